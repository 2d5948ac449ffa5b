"""The architecture rules: direction of imports, and size limits."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# From bottom to top; no module imports from a later floor. A module belongs to its longest matching prefix.
FLOORS = [
    ("archsim.base",),
    ("archsim.laws",),
    ("archsim.specs",),
    ("archsim.workload", "archsim.models"),
    ("archsim.policies",),
    ("archsim.balancers",),
    ("microarch",),
    ("archsim.iteration",),
    ("archsim.engine",),
    ("archsim.runs",),
    ("archsim.serving",),
    ("archsim.report",),
    ("calibration",),
    ("archsim.studies",),
    ("archsim.api",),
    ("archsim.cli", "archsim.__main__"),
]
RANK = {prefix: rank for rank, floor in enumerate(FLOORS) for prefix in floor}
SLOW_TO_IMPORT = {"numba", "pandas", "matplotlib", "pyarrow", "numpy", "rich"}
MOST_LINES, MOST_LINES_OF_FUNCTION = 600, 80
FILES = sorted(file for package in ("archsim", "microarch", "calibration") for file in (ROOT / package).rglob("*.py"))


def module_of(file: Path) -> str:
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def rank_of(module: str) -> int | None:
    """Position in FLOORS; None for other packages, and for ``archsim`` itself, the public entry."""
    while module:
        if module in RANK:
            return RANK[module]
        module = module.rpartition(".")[0]
    return None


def imports_of(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, module) of every import, at any depth."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found += [
                (node.lineno, node.module),
                *((node.lineno, f"{node.module}.{alias.name}") for alias in node.names),
            ]
    return found


def named(file: Path) -> str:
    return str(file.relative_to(ROOT))


@pytest.fixture(params=FILES, ids=named)
def file(request) -> Path:
    return request.param


@pytest.fixture
def tree(file) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def test_every_module_has_a_floor(file):
    assert module_of(file) == "archsim" or rank_of(module_of(file)) is not None


def test_nothing_imports_to_its_right(file, tree):
    rank = len(FLOORS) if module_of(file) == "archsim" else rank_of(module_of(file))
    wrong = [(line, module) for line, module in imports_of(tree) if (rank_of(module) or 0) > rank]
    assert wrong == []


def test_what_is_imported_exists(file, tree):
    """Also where an import is inside a function, which fails on its first use alone."""
    ours = [(line, module) for line, module in imports_of(tree) if rank_of(module) is not None]
    assert [each for each in ours if not exists(each[1]) and not exists(each[1].rpartition(".")[0])] == []


def exists(module: str) -> bool:
    path = ROOT.joinpath(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_module_is_short(file):
    assert len(file.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def test_functions_are_short(tree):
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = {
        node.name: size for node in functions if (size := node.end_lineno - node.lineno + 1) > MOST_LINES_OF_FUNCTION
    }
    assert long == {}


def test_no_eval_and_no_bare_except(tree):
    assert [node.lineno for node in ast.walk(tree) if is_eval(node)] == []
    assert [node.lineno for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.type is None] == []


def is_eval(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec")


@pytest.mark.parametrize("package", [
    "archsim.specs",
    "archsim.laws.tables",
    "archsim.cli.main",
    "archsim.cli.sweep",
    "archsim.api",
    "archsim.base.code_digest",
    "archsim",
])
def test_what_every_command_imports_is_light(package):
    """Only the standard library, pydantic and PyYAML at module level."""
    inside = () if package == "archsim" else f"{package}."
    files = [file for file in FILES if module_of(file) == package or module_of(file).startswith(inside)]
    assert files
    for file in files:
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            imported = {name.partition(".")[0] for _, name in imports_of(node)} if _is_import(node) else set()
            assert not imported & SLOW_TO_IMPORT, f"{named(file)}:{node.lineno}"


def _is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def test_rules_detect_violations():
    """The helpers above see imports inside functions, and rank a module by its package."""
    tree = ast.parse("def f():\n    from archsim.report import page\n    import numba.core\n")
    assert {module for _, module in imports_of(tree)} == {"archsim.report", "archsim.report.page", "numba.core"}
    assert (
        rank_of("archsim.report.page")
        > rank_of("archsim.engine.loop")
        > rank_of("microarch.fabric.fabric")
        > rank_of("archsim.specs.x")
    )
    assert rank_of("numpy.random") is None
