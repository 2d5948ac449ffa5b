"""What invalidates kept runs and compiled kernels is what changes numbers: the declared rooms hold what simulating a
run imports.
"""

from pathlib import Path

import pytest

from archsim.base.code_digest import COMPILED, DECIDING, INERT, digest_of
from archsim.evidence import claims
from archsim.serving.answers import engines, runs

ROOT = Path(__file__).resolve().parents[2]


def test_declared_rooms_are_there():
    missing = [room for room in DECIDING + INERT + COMPILED if not any(ROOT.glob(room))]
    assert missing == []
    with pytest.raises(FileNotFoundError, match="archsim/nowhere.py"):
        digest_of(ROOT, ("archsim/nowhere.py",))
    for rooms in (claims._CODE, runs._SERVING, engines._SOURCES):
        assert digest_of(ROOT, rooms)
