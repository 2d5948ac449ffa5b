"""The architecture rules: direction of imports, and what no module does. One loop a rule lists all offenders."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import yaml
from support.source import parsed, statements

import archsim
from archsim import extend
from archsim.show.reference import architecture_page

ROOT = Path(__file__).resolve().parents[1]
# From bottom to top; no module imports from a later floor. A module belongs to its longest matching prefix.
FLOORS = [
    ("archsim.base",),
    ("archsim.laws",),
    ("archsim.model", "archsim.machine"),
    ("archsim.specs",),
    ("archsim.traffic",),
    ("archsim.policies",),
    ("archsim.balancers",),
    ("microarch",),
    ("archsim.iteration",),
    ("archsim.engine",),
    ("archsim.runs",),
    ("archsim.show",),
    ("archsim.uncertainty",),
    ("archsim.serving",),
    ("calibration",),
    ("archsim.questions",),
    ("archsim.search",),
    ("archsim.evidence",),
    ("archsim.api", "archsim.extend"),
    ("archsim.cli", "archsim.__main__"),
]
RANK = {prefix: rank for rank, floor in enumerate(FLOORS) for prefix in floor}
SLOW_TO_IMPORT = {"numba", "pandas", "vl_convert", "pyarrow", "numpy", "rich"}
EXTRAS = {"amaranth", "pyosys", "distributed", "optuna", "vl_convert", "torch", "triton"}
FILES = sorted(file for package in ("archsim", "microarch", "calibration") for file in (ROOT / package).rglob("*.py"))


@pytest.fixture(scope="module")
def trees():
    return parsed(FILES)


@cache
def module_of(file: Path) -> str:
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


@cache
def rank_of(module: str) -> int | None:
    """Position in FLOORS; None for other packages, and for ``archsim`` itself, the public entry."""
    while module:
        if module in RANK:
            return RANK[module]
        module = module.rpartition(".")[0]
    return None


@cache
def imports_of(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, module) of every import, at any depth."""
    found = []
    for node in statements(tree):
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


def test_every_module_has_a_floor():
    modules = [module_of(file) for file in FILES]
    assert [module for module in modules if module != "archsim" and rank_of(module) is None] == []


def test_nothing_imports_to_its_right(trees):
    wrong = []
    for file, tree in trees.items():
        rank = len(FLOORS) if module_of(file) == "archsim" else rank_of(module_of(file))
        wrong += [f"{named(file)}:{line} {name}" for line, name in imports_of(tree) if (rank_of(name) or 0) > rank]
    assert wrong == []


def test_what_is_imported_exists(trees):
    """Also where an import is inside a function, which fails on its first use alone."""
    missing = [
        f"{named(file)}:{line} {name}"
        for file, tree in trees.items()
        for line, name in imports_of(tree)
        if rank_of(name) is not None and not exists(name) and not exists(name.rpartition(".")[0])
    ]
    assert missing == []


@cache
def exists(module: str) -> bool:
    path = ROOT.joinpath(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_no_eval_and_no_bare_except(trees):
    wrong = [
        f"{named(file)}:{node.lineno}"
        for file, tree in trees.items()
        if re.search(r"\b(eval|exec)\(|except:", file.read_text(encoding="utf-8"))
        for node in ast.walk(tree)
        if is_eval(node) or (isinstance(node, ast.ExceptHandler) and node.type is None)
    ]
    assert wrong == []


def is_eval(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec")


@pytest.mark.parametrize(
    "package",
    [
        "archsim.machine",
        "archsim.model.spec",
        "archsim.specs",
        "archsim.laws.tables",
        "archsim.cli.main",
        "archsim.cli.sweep",
        "archsim.api",
        "archsim.base.code_digest",
        "archsim",
    ],
)
def test_what_every_command_imports_is_light(trees, package):
    """Only the standard library, pydantic and PyYAML at module level."""
    inside = () if package == "archsim" else f"{package}."
    files = [file for file in FILES if module_of(file) == package or module_of(file).startswith(inside)]
    assert files
    for file in files:
        for node in trees[file].body:
            imported = {name.partition(".")[0] for _, name in imports_of(ast.Module([node], []))}
            assert not (_is_import(node) and imported & SLOW_TO_IMPORT), f"{named(file)}:{node.lineno}"


def test_a_run_needs_no_extra(trees):
    """What ``pip install archsim`` leaves out is imported inside functions, by whoever asks for it."""
    found, waiting = {}, ["archsim.api", "archsim.cli.main", "archsim.runs.simulator", "archsim.serving.answers.runs"]
    of = {module_of(file): tree for file, tree in trees.items()}
    while waiting:
        name = waiting.pop()
        body = of[name].body if name in of and name not in found else []
        names = {each for node in body if _is_import(node) for _, each in imports_of(ast.Module([node], []))}
        found.setdefault(name, {each.partition(".")[0] for each in names})
        waiting += sorted(names & of.keys())
    assert {name: names & EXTRAS for name, names in found.items() if names & EXTRAS} == {}


def _is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def test_rules_detect_violations():
    """The helpers above see imports inside functions, and rank a module by its package."""
    tree = ast.parse("def f():\n    from archsim.show import page\n    import numba.core\n")
    assert {module for _, module in imports_of(tree)} == {"archsim.show", "archsim.show.page", "numba.core"}
    assert (
        rank_of("archsim.show.page")
        > rank_of("archsim.engine.loop")
        > rank_of("microarch.fabric.fabric")
        > rank_of("archsim.specs.x")
    )
    assert rank_of("numpy.random") is None


PARTS = ("Front: ", "Units and errors: ", "Laws:\n", "Journey: ")


def test_every_room_says_its_question_front_units_laws_and_a_journey(trees):
    """At most a screen; what it names as its front is there, and every law names the test that holds it."""
    tests = {
        name for file in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    rooms = [module_of(file) for file in FILES if file.name == "__init__.py"]
    texts = {name: ast.get_docstring(trees[ROOT.joinpath(*name.split("."), "__init__.py")]) or "" for name in rooms}
    contracts = {name: text for name, text in texts.items() if all(part in text for part in PARTS)}
    assert len(contracts) >= 17
    wrong, numbers = [], {}
    for room, text in contracts.items():
        front = re.findall(r"`([\w.]+)`", text.partition("Front: ")[2].partition("Units and errors: ")[0])
        numbered = re.findall(r"(INV-\d+)\. [^(]*\((test_\w+)\)", text.partition("Laws:\n")[2])
        laws = [test for _, test in numbered]
        numbers |= dict(numbered)
        wrong += [f"{room}: {name} is no test" for name in laws if name not in tests]
        wrong += [f"{room}: {name} is not there" for name in front if not is_named(f"{room}.{name}")]
        if not 1 <= len(front) <= 12 or not laws or len(text.splitlines()) > 40:
            wrong.append(f"{room}: {len(front)} names, {len(laws)} laws, {len(text.splitlines())} lines")
    assert wrong == []
    assert len(set(numbers.values())) == len(numbers)
    mutants = yaml.safe_load((ROOT / "tests" / "law_mutants.yaml").read_text(encoding="utf-8"))
    assert numbers == {number: row["test"].rpartition("::")[2] for number, row in mutants.items()}


def test_tests_take_inner_names_of_their_own_room(trees):
    """A name that no front has, and that no other room of the product takes, is tested in its room, so that renaming it
    changes no test of another. The table has those that are left; it only shrinks.
    """
    users = {}  # module or name → files of the product that import it
    for file, tree in trees.items():
        for _, name in imports_of(tree):
            users.setdefault(name, set()).add(file)
    fronts = {f"{module}.{name}" for module, names in archsim._NAMES.items() for name in names.split()}
    fronts |= {f"{module}.{name}" for module, name in extend._HOME.values()}
    for file in (each for each in FILES if each.name == "__init__.py"):
        front = (ast.get_docstring(trees[file]) or "").partition("Front: ")[2].partition("Units and errors: ")[0]
        fronts |= {f"{module_of(file)}.{name}" for name in re.findall(r"`([\w.]+)`", front)}

    @cache
    def is_inner(module: str, name: str) -> bool:
        home = room_of(ROOT.joinpath(*module.split(".")).with_suffix(".py"))
        beside = {file for of in (module, f"{module}.{name}") for file in users.get(of, ()) if room_of(file) != home}
        return f"{module}.{name}" not in fronts and not any(re.search(rf"\b{name}\b", text_of(file)) for file in beside)

    found = {}
    for file in (ROOT / "tests").rglob("*.py"):
        mine, text = file.relative_to(ROOT / "tests").parts[0], text_of(file)
        if not re.search("(?m)^ *from (archsim|calibration|microarch)", text):
            continue
        for module, name in sorted(names_taken(ast.parse(text), text)):
            home = room_of(ROOT.joinpath(*module.split(".")).with_suffix(".py"))
            if home not in (mine, "api", "archsim", "balancers", "extend") and is_inner(module, name):
                found.setdefault(str(file.relative_to(ROOT / "tests")), []).append(f"{module}.{name}")
    assert found == yaml.safe_load((ROOT / "tests" / "inner_names.yaml").read_text(encoding="utf-8"))


@cache
def room_of(file: Path) -> str:
    """The folder of the tests of a module."""
    package, room, *_ = [*file.relative_to(ROOT).with_suffix("").parts, "archsim"]
    return room if package == "archsim" or room == "rtl" else package


def names_taken(tree: ast.Module, text: str) -> set[tuple[str, str]]:
    """(module, name) of what a test imports of the packages, or takes of a module that it imports."""
    froms = [node for node in statements(tree) if isinstance(node, ast.ImportFrom) and rank_of(node.module) is not None]
    pairs = [(node.module, alias.name, alias.asname or alias.name) for node in froms for alias in node.names]
    taken = {(of, what) for of, what, _ in pairs if not exists(f"{of}.{what}")}
    for of, what, name in pairs:
        if exists(f"{of}.{what}"):
            taken |= {(f"{of}.{what}", used) for used in re.findall(rf"(?<![\w.\"/]){name}\.(\w+)", text)}
    return {(of, what) for of, what in taken if not what.startswith("__")}


def is_named(full: str) -> bool:
    module, _, name = full.rpartition(".")
    file = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    return exists(module) and re.search(rf"(?m)^((def|class) )?{name}\b", text_of(file)) is not None


@cache
def text_of(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def test_the_table_of_rooms_in_the_manual_is_what_they_say():
    page = ROOT / "docs" / "architecture.md"
    assert page.read_text(encoding="utf-8") == architecture_page(page.parent), "python -m archsim.show.reference"
