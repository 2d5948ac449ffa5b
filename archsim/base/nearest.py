"""The nearest valid name, for error messages."""

from collections.abc import Iterable
from difflib import get_close_matches

_CLOSE, _PART = 0.65, 0.5  # least likeness of a name that is meant, and of one that is part of the other


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name most similar to ``name`` (case and ``-``/``_`` are ignored), or None if none is similar."""
    given, folded = _fold(name), {_fold(candidate): candidate for candidate in valid}
    matches = get_close_matches(given, folded, n=1, cutoff=_CLOSE)
    parts = get_close_matches(given, [each for each in folded if given in each or each in given], n=1, cutoff=_PART)
    return folded[(matches or parts)[0]] if matches or parts else None


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` or an empty string; appended to a message."""
    match = nearest(name, valid)
    return f"; did you mean {match!r}?" if match else ""


def _fold(name: str) -> str:
    return name.casefold().replace("-", "_")
