"""The nearest valid name, for error messages."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name most similar to ``name`` (case and ``-``/``_`` are ignored), or None if none is similar."""
    folded = {_fold(candidate): candidate for candidate in valid}
    matches = get_close_matches(_fold(name), folded, n=1, cutoff=0.5)
    return folded[matches[0]] if matches else None


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` or an empty string; appended to a message."""
    match = nearest(name, valid)
    return f"; did you mean {match!r}?" if match else ""


def _fold(name: str) -> str:
    return name.casefold().replace("-", "_")
