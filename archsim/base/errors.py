"""Errors raised when the input, not the program, is at fault. Every message says where (file, line, key or request),
what was found, what was expected and, if there is one, the nearest valid name; it is printed alone.
"""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class ArchsimError(Exception):
    """Base class of all errors that a user can fix."""


class FailedRuns(ArchsimError):
    """Some runs of a sweep failed; the others are kept."""


class SpecError(ArchsimError):
    """A YAML file, an override or a name in it is not valid."""


class TraceError(ArchsimError):
    """A routing trace is malformed or does not belong to the model."""


class CapacityError(ArchsimError):
    """A model does not fit into the memory of the machine."""


class PlacementError(ArchsimError):
    """A placement of experts is malformed, or does not belong to the model or to the number of ranks."""


# The nearest valid name, for error messages.

_CLOSE, _PART = 0.65, 0.5  # least likeness of a name that is meant, and of one that is part of the other
_PERCENT, _WORD = re.compile(r"(?<=\d)%(?!\w|\.\w)"), re.compile(r"\S*\d%\S*")
_BEGUN = 5  # letters that a name begins with


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name most similar to ``name`` (case and ``-``/``_`` are ignored), or None if none is similar. A name
    that begins as the given one comes first: whoever writes ``qwen3-235b`` means ``qwen3-235b-a22b``.
    """
    given, folded = _fold(name), {_fold(candidate): candidate for candidate in valid}
    begun = [each for each in folded if each.startswith(given)] if len(given) >= _BEGUN else []
    if begun and given not in folded:
        return folded[min(begun, key=lambda each: (len(each), each))]
    matches = get_close_matches(given, folded, n=1, cutoff=_CLOSE)
    parts = get_close_matches(given, [each for each in folded if given in each or each in given], n=1, cutoff=_PART)
    return folded[(matches or parts)[0]] if matches or parts else None


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` or an empty string; appended to a message."""
    match = nearest(name, valid)
    return f"; did you mean {match!r}?" if match else ""


def _fold(name: str) -> str:
    return name.casefold().replace("-", "_")


# Numbers in words and rows in columns, as messages and progress say them.


def spoken(seconds: float) -> str:
    """``40 s``, ``5 min``, ``1.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def in_words(number: float) -> str:
    """``950``, ``3.2 million``."""
    return f"{number / 1e6:,.1f} million" if number >= 1e6 else f"{number:,.0f}"


def sentence(text: str) -> str:
    """The text with a full stop at its end, where it has none."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def spaced(text: str) -> str:
    """``71%`` → ``71 %``: what a reader sees has a space, which does not break, before the sign; paths and what is
    quoted stay.
    """

    def put(word: re.Match[str]) -> str:
        return word[0] if re.search(r"[/\\='\"]", word[0]) else _PERCENT.sub("\u00a0%", word[0])

    return _WORD.sub(put, text)


def capital(text: str) -> str:
    """The text with a capital at its begin; names within it stay as they are."""
    return f"{text[:1].upper()}{text[1:]}"


def align(rows: Sequence[Sequence[str]]) -> str:
    """One line a row, its cells below those of the first."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def printable(text: str) -> str:
    """Text without control characters, which names of files may bring and a terminal would obey."""
    return "".join(each if each.isprintable() or each == "\n" else f"\\x{ord(each):02x}" for each in text)
