"""Source text as trees and as pieces, for tests of what it may hold."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_PIECE = re.compile(
    r"""(?P<comment>\#[^\n]*)
    |(?P<own>^[ ]*)?(?P<prefix>\b[rbfuRBFU]{1,2})?
     (?:\"\"\"(?P<long>(?:[^\\]|\\.)*?)\"\"\"|"(?P<double>(?:[^"\\\n]|\\.)*)"|'(?P<single>(?:[^'\\\n]|\\.)*)')""",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)


class Piece(NamedTuple):
    """A comment, a docstring or another string of a source file. ``at``: where it begins, in characters."""

    line: int
    at: int
    end: int
    kind: str  # "comment", "docstring", "string", "f-string"
    text: str  # without quotes


def pieces(text: str) -> list[Piece]:
    """Comments and strings, found by their quotes, which is faster than the tokens of Python. A docstring is a long
    string that begins its line after a colon or a finished statement.
    """
    found, line, last = [], 1, 0
    for match in _PIECE.finditer(text):
        line, last = line + text.count("\n", last, match.start()), match.start()
        if match["comment"]:
            kind, inner = "comment", match["comment"]
        else:
            inner = next(match[name] for name in ("long", "double", "single") if match[name] is not None)
            before = text[: match.start()].rstrip()[-1:] if match["own"] is not None and match["long"] else "("
            if before not in tuple("([{,=+|%"):
                kind = "docstring"
            else:
                kind = "f-string" if "f" in (match["prefix"] or "").lower() else "string"
        found.append(Piece(line, match.start(), match.end(), kind, inner))
    return found


def parsed(files: Iterable[Path]) -> dict[Path, ast.Module]:
    return {file: ast.parse(file.read_text(encoding="utf-8")) for file in files}


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements of a tree, at any depth; what is inside expressions has none."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(tree, name, ()):
            yield node
            yield from statements(node)
