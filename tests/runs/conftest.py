"""Sweeps of these tests find no runs of each other."""

import pytest


@pytest.fixture(autouse=True)
def cache_of_this_test(tmp_path, monkeypatch):
    """Nothing that another test has run is found."""
    monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path / ".cache"))
