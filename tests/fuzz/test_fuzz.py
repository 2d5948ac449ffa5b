"""A short campaign over all targets; ``python tests/fuzz`` runs longer ones."""

import pytest
from fuzz.campaign import fuzz
from fuzz.targets import TARGETS

SEED, MUTANTS = 28, 10


@pytest.mark.parametrize("name", TARGETS)
def test_mutants_are_taken_or_refused_with_their_place(name, tmp_path):
    report = fuzz(name, TARGETS[name], tmp_path, SEED, 0, MUTANTS)
    assert not report.found, "\n\n".join(f"{each.number}: archsim {each.command}\n{each.said}" for each in report.found)
    assert report.accepted + report.refused == MUTANTS and report.refused > 0
