"""The tests themselves: none imports another, every one asserts something, and none is a matter of the clock."""

import ast
from pathlib import Path

import pytest
from support.assertions import TESTS, Module, Reader

FILES = sorted(TESTS.rglob("*.py"))
MODULES = sorted(TESTS.rglob("test_*.py"))
CLOCKS = {
    "time",
    "perf_counter",
    "perf_counter_ns",
    "monotonic",
    "monotonic_ns",
    "process_time",
    "process_time_ns",
    "sleep",
}


def named(file: Path) -> str:
    return str(file.relative_to(TESTS))


def module_of(text: str) -> Module:
    return Module(TESTS / "test_tests.py", ast.parse(text))


def idle(module: Module) -> list[str]:
    """Tests that may pass without an assertion that looked at something."""
    return [name for name, node in module.tests if not Reader(module, node).asserts()]


def clocks_in(module: Module) -> list[int]:
    """Lines that ask a clock, or sleep."""
    names = {name for name, (source, there) in module.imported.items() if source == "time" and there in CLOCKS}
    return [
        node.lineno
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.Name) and node.id in names)
        or (isinstance(node, ast.Attribute) and node.attr in CLOCKS and ast.unparse(node.value) == "time")
    ]


@pytest.mark.parametrize("file", FILES, ids=named)
def test_no_test_is_imported(file):
    others = [name for name in Module(file).imports if name.split(".")[-1].startswith("test_") or "conftest" in name]
    assert others == [], "what two tests share belongs in tests/support"


@pytest.mark.parametrize("file", MODULES, ids=named)
def test_every_test_asserts_something_whatever_its_loops_find(file):
    assert idle(Module(file)) == [], "assert outside the loop that there is something to loop over"


@pytest.mark.parametrize("file", MODULES, ids=named)
def test_no_test_asks_a_clock(file):
    assert clocks_in(Module(file)) == [], "wait for a condition with support.waiting; measure in benchmarks/"


@pytest.mark.parametrize(
    "body",
    [
        "run()",
        "for row in rows():\n        assert row",
        "rows = read()\n    for row in rows:\n        assert row",
        "for row in [row for row in (1, 2) if row > 2]:\n        assert row",
        "for number in range(n):\n        assert number",
        "for number in range(0):\n        assert number",
        "for row in EMPTY:\n        assert row",
        "for one, two in zip((1, 2), rows()):\n        assert one",
        "while busy():\n        assert True",
        "assert all(row for row in rows())",
        "assert not any(row for row in rows())",
        "assert all(row for row in (1, 2) if row > 2)",
        "if run():\n        assert True",
        "helper()",
        "def inner():\n        assert True",
    ],
)
def test_an_idle_test_is_found(body):
    module = module_of(f"EMPTY = ()\n\ndef helper():\n    run()\n\ndef test_it(n):\n    {body}\n")
    assert idle(module) == ["test_it"]


@pytest.mark.parametrize(
    "body",
    [
        "assert run()",
        "rows = read()\n    assert rows\n    for row in rows:\n        assert row",
        "for row in (1, 2):\n        assert row",
        "rows = [f(row) for row in ROWS]\n    for row in rows:\n        assert row",
        "for number in range(MOST):\n        assert number",
        "for number, row in enumerate(sorted(ROWS)):\n        assert row",
        "for one, two in zip(ROWS, rows(), strict=True):\n        assert one",
        "for one, two in product(ROWS, range(1, 3)):\n        assert one",
        "for file in TESTS_TO_READ:\n        assert file",
        "assert all(row for row in ROWS) and run()",
        "with pytest.raises(ValueError):\n        run()",
        "if run():\n        assert True\n    else:\n        assert False",
        "np.testing.assert_allclose(1, run())",
        "helper()",
        "def inner():\n        assert True\n    inner()",
    ],
)
def test_a_test_that_asserts_is_no_idle_one(body):
    top = "from support.assertions import KEEP_LENGTH as TESTS_TO_READ\n\nMOST = 3\nROWS = {1: 2}.items()\n"
    module = module_of(f"{top}\ndef helper():\n    assert True\n\ndef test_it(n):\n    {body}\n")
    assert len(module.tests) == 1 and idle(module) == []


def test_imports_of_tests_and_clocks_are_found():
    module = module_of(
        "def f():\n    from test_demand import rows\n    import time\n    return rows, time.monotonic()\n"
    )
    assert module.imports == ["time", "test_demand", "test_demand.rows"]
    assert clocks_in(module) == [4]
    assert clocks_in(module_of("from time import sleep as rest\nrest(1)\n")) == [2]
