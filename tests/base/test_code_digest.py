"""Digests of the sources that affect numbers, and of the compiled sources; the latter names numba's cache folder."""

import ast
import shutil
from pathlib import Path

import pytest

from archsim.base.code_digest import COMPILED, DECIDING, INERT, digest_here, digest_of

ROOT = Path(__file__).resolve().parents[2]


SIMULATES = ("archsim.runs.simulator", "archsim.engine.loop", "archsim.engine.analytic.engine")


DECORATORS = ("kernel", "free", "outer", "inner")


def modules():
    """Name → file of every module of the house."""
    files = (file for package in ("archsim", "microarch", "calibration") for file in (ROOT / package).rglob("*.py"))
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def executed(tree):
    """All nodes but those under ``if TYPE_CHECKING``."""
    if isinstance(tree, ast.If) and isinstance(tree.test, ast.Name) and tree.test.id == "TYPE_CHECKING":
        return
    yield tree
    for node in ast.iter_child_nodes(tree):
        yield from executed(node)


def imported(file, known):
    """Modules that a file imports, in functions too, and the packages that they lie in; not those for types alone."""
    names = set()
    for node in executed(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    every = {
        ".".join(parts[:depth]) for name in names for parts in [name.split(".")] for depth in range(1, len(parts) + 1)
    }
    return every & known.keys()


def closure(names, known):
    seen, waiting = set(), list(names)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += imported(known[name], known)
    return seen


def lies_in(file, rooms):
    path = file.relative_to(ROOT).as_posix()
    return any(path.startswith(f"{room}/") or file.relative_to(ROOT).match(room) for room in rooms)


def test_what_simulating_a_run_imports_is_declared():
    known = modules()
    named = {name for name, file in known.items() if lies_in(file, DECIDING)}  # also what a policy imports by its name
    reached = closure({*SIMULATES, *named}, known)
    assert len(reached) > 80
    bare = {"archsim", "archsim.base", "archsim.runs", "calibration", "microarch"}  # __init__ files
    undeclared = sorted(name for name in reached - bare if not lies_in(known[name], DECIDING + INERT))
    assert undeclared == [], "declare them in archsim.base.code_digest: can a change there change a number?"
    assert not {name for name in known if lies_in(known[name], DECIDING) and lies_in(known[name], INERT)}


def compiled(tree):
    """Functions that are compiled, and the names that they read."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(
            isinstance(each, ast.Name) and each.id in DECORATORS for each in node.decorator_list
        ):
            yield node.name, {each.id for line in node.body for each in ast.walk(line) if isinstance(each, ast.Name)}


def test_compiled_functions_and_their_constants_lie_in_compiled_rooms():
    known, outside, found = modules(), [], 0
    for file in known.values():
        text = file.read_text(encoding="utf-8")
        if "archsim.base.compiled import" not in text:
            continue
        tree = ast.parse(text)
        source = {
            alias.asname or alias.name: name if (name := f"{node.module}.{alias.name}") in known else node.module
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for name, read in compiled(tree):
            found += 1
            homes = {source[each] for each in read if source.get(each) in known}
            outside += [f"{file}:{name}: {home}" for home in homes if not lies_in(known[home], COMPILED)]
            outside += [] if lies_in(file, COMPILED) else [f"{file}:{name}"]
    assert found > 50 and outside == []


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the sources that may be changed."""
    folder = tmp_path_factory.mktemp("checkout")
    for package in ("archsim", "microarch", "calibration"):
        shutil.copytree(
            ROOT / package, folder / package, ignore=lambda _, names: [name for name in names if name == "__pycache__"]
        )
    return folder


def test_the_digest_is_that_of_this_checkout(copy):
    assert digest_of(copy, DECIDING) == digest_here() == digest_of(ROOT, DECIDING)


# Messages, pages and stores, which no digest covers.
OTHERS = (
    "archsim/show/page.py", "archsim/cli/sweep.py", "archsim/runs/store.py", "archsim/runs/pool.py",
    "archsim/questions/comparison.py", "archsim/base/files.py", "archsim/serving/answers/place.py",
    "archsim/runs/phase.py", "archsim/model/config_json.py",
)  # fmt: skip


def test_every_deciding_room_changes_its_digest(copy):
    """And files of others none: a comment is put at the end of one after the other."""
    digests = [digest_of(copy, rooms) for rooms in (DECIDING, COMPILED)]
    for room in [*OTHERS, *sorted({*DECIDING, *COMPILED})]:
        file = sorted(copy.glob(room if room.endswith(".py") else f"{room}/**/*.py"))[-1]
        with file.open("a", encoding="utf-8") as stream:
            stream.write("# touched\n")
        before, digests = digests, [digest_of(copy, rooms) for rooms in (DECIDING, COMPILED)]
        here = ROOT / file.relative_to(copy)
        in_them = [room not in OTHERS and lies_in(here, rooms) for rooms in (DECIDING, COMPILED)]
        assert [one != other for one, other in zip(before, digests, strict=True)] == in_them, room
