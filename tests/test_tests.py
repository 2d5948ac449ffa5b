"""The tests themselves: none imports another, and every one asserts something. The linter forbids clocks (TID251)."""

import ast
import re
from pathlib import Path

import pytest
from support.source import parsed, statements

TESTS = Path(__file__).resolve().parent
FILES = sorted(TESTS.rglob("*.py"))
MODULES = [file for file in FILES if file.name.startswith("test_")]


@pytest.fixture(scope="module")
def trees():
    return parsed(FILES)


@pytest.fixture(scope="module")
def functions(trees):
    every = (node for tree in trees.values() for node in statements(tree))
    return {node.name: node for node in every if isinstance(node, ast.FunctionDef)}


def named(file: Path) -> str:
    return str(file.relative_to(TESTS))


def asserts(function: ast.FunctionDef, functions: dict, seen: frozenset[str] = frozenset()) -> bool:
    """Whether it, or a helper of the tests that it calls, has an assertion."""
    if any(isinstance(node, ast.Assert) for node in statements(function)):
        return True
    called = {getattr(node.func, "id", getattr(node.func, "attr", "")) for node in ast.walk(function)
              if isinstance(node, ast.Call)}  # fmt: skip
    if any(name in ("raises", "warns", "fail") or name.startswith("assert_") for name in called):
        return True
    helpers = called & functions.keys() - seen
    return any(asserts(functions[name], functions, seen | {name}) for name in helpers)


def test_no_test_is_imported():
    wrong = [
        f"{named(file)}: {line.strip()}"
        for file in FILES
        for line in file.read_text(encoding="utf-8").splitlines()
        if re.match(r"\s*(from|import)\s+(\w+\.)*test_", line)
    ]
    assert wrong == [], "shared parts: tests/support"


def test_every_test_asserts_something(trees, functions):
    silent = [
        f"{named(file)}::{node.name}"
        for file in MODULES
        for node in statements(trees[file])
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test") and not asserts(node, functions)
    ]
    assert silent == []


def test_files_that_have_a_place_in_the_order_of_the_suite_are_there(request):
    order = request.config.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    assert [name for name in order.BEGIN + order.LONG if not (TESTS / name).is_file()] == []
