"""Shared fixtures: where the routing data and the reference results live (they are not part of the repository)."""

import os
from pathlib import Path

import pytest


def shared_path() -> Path:
    """``$ARCHSIM_SHARED`` or the folder ``shared`` beside the checkout."""
    return Path(os.environ.get("ARCHSIM_SHARED", Path(__file__).resolve().parents[2] / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    path = shared_path()
    if not (path / "data").is_dir():
        pytest.skip(f"needs the shared data folder: {path}/data not found; set ARCHSIM_SHARED to where it lies")
    return path


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Nothing is read from, or left in, the cache of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARCHSIM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
