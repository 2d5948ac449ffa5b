"""How many random examples a property is tried on: a few at each commit, all of them nightly."""

from hypothesis import settings

AT_A_COMMIT = 25


def examples(nightly: int, at_a_commit: int = AT_A_COMMIT) -> int:
    """``nightly`` examples with ``--hypothesis-profile nightly``, at most ``at_a_commit`` without."""
    return nightly if settings.default.max_examples > AT_A_COMMIT else min(nightly, at_a_commit)
