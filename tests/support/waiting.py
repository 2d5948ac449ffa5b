"""Waiting for another process."""

import time

import pytest


def wait_for(condition, process=None, seconds: float = 60) -> None:
    """Until ``condition()`` is true; fails if ``process`` ends before, or if it takes longer than ``seconds``."""
    until = time.monotonic() + seconds
    while not condition():
        if process is not None and process.poll() is not None:
            pytest.fail(f"the process ended, with status {process.returncode}, before what was waited for")
        if time.monotonic() > until:
            pytest.fail(f"not within {seconds:g} s")
        time.sleep(0.005)
