"""Sweeps of these tests do not reuse each other's runs."""

import pytest


@pytest.fixture(autouse=True)
def cache_of_this_test(tmp_path, monkeypatch):
    """No run of another test is reused."""
    monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path / ".cache"))
