"""How many examples and cases a law is tried on: a few at each commit, all of them nightly."""

import pytest
from hypothesis import settings

AT_A_COMMIT = 12


def examples(nightly: int, at_a_commit: int = AT_A_COMMIT) -> int:
    """``nightly`` examples with ``--hypothesis-profile nightly``, at most ``at_a_commit`` without."""
    return nightly if settings.default.max_examples > AT_A_COMMIT else min(nightly, at_a_commit)


def sampled(cases, kept):
    """Cases as parameters of a test: those of which ``kept`` holds at each commit, the others in the nightly profile.
    Values of several arguments are a tuple.
    """
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=[] if kept(case) else [pytest.mark.nightly])
        for case in cases
    ]
