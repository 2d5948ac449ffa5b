"""A short campaign over all targets; ``python tests/fuzz`` runs longer ones."""

import pytest
from fuzz.campaign import fuzz
from fuzz.targets import TARGETS

SEED, FEW = 28, 1  # mutants at a commit: each is a command, of a second or two
MUTANTS = [FEW, pytest.param(10, marks=pytest.mark.nightly)]


@pytest.mark.parametrize("count", MUTANTS)
@pytest.mark.parametrize("name", TARGETS)
def test_mutants_are_taken_or_refused_with_their_place(name, count, tmp_path):
    report = fuzz(name, TARGETS[name], tmp_path, SEED, 0, count)
    assert not report.found, "\n\n".join(f"{each.number}: archsim {each.command}\n{each.said}" for each in report.found)
    assert report.accepted + report.refused == count and (report.refused > 0 or count == FEW)
