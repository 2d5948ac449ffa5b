"""How many random examples a property is tried on: a few at each commit, all of them nightly."""

from hypothesis import settings

AT_A_COMMIT = 25


def examples(nightly: int) -> int:
    """``nightly`` examples with ``--hypothesis-profile nightly``, at most AT_A_COMMIT without."""
    return nightly if settings.default.max_examples > AT_A_COMMIT else min(nightly, AT_A_COMMIT)
