"""Source text as trees, for tests of what it may hold."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path


def parsed(files: Iterable[Path]) -> dict[Path, ast.Module]:
    return {file: ast.parse(file.read_text(encoding="utf-8")) for file in files}


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements of a tree, at any depth; what is inside expressions has none."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(tree, name, ()):
            yield node
            yield from statements(node)
