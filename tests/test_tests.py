"""The tests themselves: none imports another, and every one asserts something. The linter forbids clocks (TID251)."""

import ast
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parent
FILES = sorted(TESTS.rglob("*.py"))
MODULES = [file for file in FILES if file.name.startswith("test_")]


@cache
def trees() -> dict[Path, ast.Module]:
    return {file: ast.parse(file.read_text(encoding="utf-8")) for file in FILES}


@cache
def functions() -> dict[str, ast.FunctionDef]:
    every = (node for tree in trees().values() for node in ast.walk(tree))
    return {node.name: node for node in every if isinstance(node, ast.FunctionDef)}


def named(file: Path) -> str:
    return str(file.relative_to(TESTS))


def asserts(function: ast.FunctionDef, seen: frozenset[str] = frozenset()) -> bool:
    """Whether it, or a helper of the tests that it calls, has an assertion."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            helper = functions().get(name)
            if name in ("raises", "warns", "fail") or name.startswith("assert_"):
                return True
            if helper is not None and name not in seen and asserts(helper, seen | {name}):
                return True
    return False


def test_no_test_is_imported():
    imports = [
        (named(file), node.module or "")
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    ]
    wrong = [(file, module) for file, module in imports if module.split(".")[-1].startswith("test_")]
    assert wrong == [], "shared parts: tests/support"


def test_every_test_asserts_something():
    silent = [
        f"{named(file)}::{node.name}"
        for file in MODULES
        for node in ast.walk(trees()[file])
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test") and not asserts(node)
    ]
    assert silent == []
