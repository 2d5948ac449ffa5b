"""``archsim.extend`` is the one door for users' code; paths that the documentation named before still work."""

import importlib
import re
from pathlib import Path

import pytest

from archsim import extend

DOCS = Path(__file__).parents[1] / "docs"


def test_every_name_is_there_and_told():
    for name in extend.__all__:
        assert getattr(extend, name) is not None and f"``{name}``" in extend.__doc__
    with pytest.raises(AttributeError, match="StepViw"):
        _ = extend.StepViw


def test_moved_modules_are_found_by_their_old_path():
    for old, now in extend.MOVED.items():
        with pytest.warns(DeprecationWarning, match=re.escape(now)):
            found = importlib.reload(importlib.import_module(old))
        there = importlib.import_module(now)
        assert all(getattr(found, name) is getattr(there, name) for name in vars(there) if not name.startswith("__"))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("archsim.engine.never_was")


def test_pages_for_own_code_import_from_the_door_alone():
    for page in ("own", "topologies", "blocks", "serving"):
        for line in re.findall(r"^from (\S+) import (.+)$", (DOCS / f"{page}.md").read_text(), re.M):
            if line[0].startswith(("archsim", "microarch")):
                names = [name.strip() for name in line[1].split(",")]
                assert line[0] in ("archsim", "archsim.extend") or not set(names) & set(extend.__all__), (page, line)
