"""The shape of the source, as figures: how long it is, what a reader trips over, and how tightly rooms are tied.

    python benchmarks/house.py [--rooms] [--names] [--against REVISION]

Reads sources as text and syntax trees, and needs nothing but the standard library and git. ``--rooms`` adds the lines
of every room, ``--names`` the places behind each figure. ``--against`` prints the figures of a revision beside those of
the working tree, and the lines that were added and removed since: what a branch brings and what it takes away.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("archsim", "microarch", "calibration")
BANNER = re.compile(r"^# -{3,} (.+)$", re.M)
PARTICIPLE = re.compile(r"_?[a-z]+ed")
# Verbs and nouns that end like a participle.
NOUNS = frozenset({"need", "feed", "speed", "seed", "embed", "exceed", "shed", "proceed", "_feed", "_seed", "_need"})
PART = 25  # lines of a part of a module that counts; smaller ones are helpers
FRONT = 15  # names that others take from one module
MANY_ROOMS = 6
RECORD = 5  # fields of a record that counts
POSITIONAL = 8  # positional arguments that nobody can tell apart


class Module(NamedTuple):
    name: str  # archsim.engine.loop
    file: Path  # relative to the checkout
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        return ".".join(self.name.split(".")[:2])

    @property
    def imports(self) -> list[ast.Import | ast.ImportFrom]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.Import | ast.ImportFrom)]


class House:
    """The sources and tests of one checkout."""

    def __init__(self, root: Path, former: frozenset[str] = frozenset()) -> None:
        """``former``: stems of files that the packages once had."""
        self.former = former
        self.modules = {each.name: each for package in PACKAGES for each in _modules(root, package)}
        self.tests = list(_modules(root, "tests"))

    @cached_property
    def taken(self) -> dict[str, dict[str, set[str]]]:
        """Module → name → modules that import it."""
        found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for module in self.modules.values():
            for of, name in _names_taken(module, self.modules):
                found[of][name].add(module.name)
        return found

    @cached_property
    def banners(self) -> list[str]:
        return [
            f"{each.file}: {text}"
            for each in self.modules.values()
            for text in BANNER.findall(each.text)
            if text.strip() in self.former
        ]

    @cached_property
    def apart(self) -> list[str]:
        """Modules with two parts or more that never name each other."""
        return [name for name, each in self.modules.items() if sum(part >= PART for part in _parts(each.tree)) >= 2]

    @cached_property
    def fronts(self) -> list[str]:
        """Modules of which others import many names one by one."""
        one_by_one: dict[str, set[str]] = defaultdict(set)
        for each in self.modules.values():
            for of, name in _names_taken(each, self.modules, through=False):
                one_by_one[of] |= {name} - {""}
        return [f"{of}: {len(names)}" for of, names in one_by_one.items() if len(names) >= FRONT]

    @cached_property
    def wide(self) -> list[str]:
        """Modules of which others use many names, one by one or through the module."""
        return [f"{of}: {len(names)}" for of, names in self.taken.items() if len(names.keys() - {""}) >= FRONT]

    @cached_property
    def far(self) -> list[str]:
        """Modules that import from many rooms."""
        rooms = {
            name: {".".join(of.split(".")[:2]) for of, _ in _names_taken(each, self.modules)}
            for name, each in self.modules.items()
        }
        return [name for name, of in rooms.items() if len(of) >= MANY_ROOMS]

    @cached_property
    def import_lines(self) -> int:
        return sum(node.end_lineno - node.lineno + 1 for each in self.modules.values() for node in each.imports)

    @cached_property
    def tested_names(self) -> tuple[set[str], list[str]]:
        """Names of the product that tests import, and those of them that no other room of the product uses."""
        names = {f"{of}.{name}" for test in self.tests for of, name in _names_taken(test, self.modules) if name}
        inner = []
        for full in sorted(names):
            of, _, name = full.rpartition(".")
            room = ".".join(of.split(".")[:2])
            if all(self.modules[user].room == room for user in self.taken[of][name]):
                inner.append(full)
        return names, inner

    @cached_property
    def crossing(self) -> set[str]:
        """Names that one room takes from another."""
        return {
            f"{of}.{name}"
            for each in self.modules.values()
            for of, name in _names_taken(each, self.modules)
            if name and self.modules[of].room != each.room
        }

    @cached_property
    def dialect(self) -> list[str]:
        return [
            f"{each.file}:{number} {word}"
            for each in self.modules.values()
            for number, line in enumerate(each.text.splitlines(), 1)
            for word in re.findall(r"\b(?:told|alike)\b", line)
        ]

    @cached_property
    def participles(self) -> list[str]:
        names = {
            node.name
            for each in self.modules.values()
            for node in ast.walk(each.tree)
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }
        return sorted(name for name in names if PARTICIPLE.fullmatch(name) and name not in NOUNS)

    @cached_property
    def fields(self) -> tuple[int, list[str]]:
        """The number of fields of records with at least five, and those without a comment or a description."""
        count, bare = 0, []
        for each in self.modules.values():
            lines = each.text.splitlines()
            for node in ast.walk(each.tree):
                fields = _fields(node) if isinstance(node, ast.ClassDef) else []
                if len(fields) < RECORD:
                    continue
                count += len(fields)
                bare += [f"{each.file}:{field.lineno} {node.name}.{ast.unparse(field.target)}"
                         for field in fields if not _explained(node, field, lines)]  # fmt: skip
        return count, bare

    @cached_property
    def by_position(self) -> list[str]:
        return [
            f"{each.file}:{node.lineno} {ast.unparse(node.func)} {len(node.args)}"
            for each in self.modules.values()
            for node in ast.walk(each.tree)
            if isinstance(node, ast.Call) and len(node.args) >= POSITIONAL and _makes_record(node)
        ]

    @cached_property
    def circles(self) -> list[str]:
        """Modules that import each other, at any depth of the code."""
        edges = {
            name: {of for of, _ in _names_taken(each, self.modules)} - {name} for name, each in self.modules.items()
        }
        return [", ".join(sorted(circle)) for circle in _circles(edges) if len(circle) > 1]

    @property
    def lines(self) -> int:
        return sum(len(each.text.splitlines()) for each in self.modules.values())

    def table(self) -> list[tuple[str, int, list[str]]]:
        """(what is counted, how many, where), in the order of reading."""
        names, inner = self.tested_names
        count, bare = self.fields
        return [
            ("modules", len(self.modules), []),
            ("lines of source", self.lines, []),
            ("lines of tests", sum(len(each.text.splitlines()) for each in self.tests), []),
            ("banners", sum(len(BANNER.findall(each.text)) for each in self.modules.values()), []),
            ("banners that were files", len(self.banners), self.banners),
            ("modules of parts that never name each other", len(self.apart), self.apart),
            (f"modules of which others import {FRONT} names or more", len(self.fronts), self.fronts),
            (f"modules of which others use {FRONT} names or more", len(self.wide), self.wide),
            (f"modules that import from {MANY_ROOMS} rooms or more", len(self.far), self.far),
            ("lines of imports", self.import_lines, []),
            ("names that cross rooms", len(self.crossing), []),
            ("names of the product that tests import", len(names), []),
            ("of these, used by no other room", len(inner), inner),
            ("circles of modules", len(self.circles), self.circles),
            ("told, alike", len(self.dialect), self.dialect),
            ("functions named by a bare participle", len(self.participles), self.participles),
            (f"fields of records of {RECORD} or more", count, []),
            ("of these, explained (%)", round(100 * (count - len(bare)) / max(count, 1)), bare),
            (f"records made of {POSITIONAL} positional arguments or more", len(self.by_position), self.by_position),
        ]

    def rooms(self) -> Counter[str]:
        """Lines by room."""
        found: Counter[str] = Counter()
        for each in self.modules.values():
            found[each.room] += len(each.text.splitlines())
        return found


def _modules(root: Path, package: str) -> Iterator[Module]:
    for file in sorted((root / package).rglob("*.py")):
        relative = file.relative_to(root)
        text = file.read_text(encoding="utf-8")
        name = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        yield Module(name, relative, text, ast.parse(text))


def _names_taken(module: Module, known: dict[str, Module], through: bool = True) -> set[tuple[str, str]]:
    """(module, name) of all that is taken from other modules of the packages; ("x", "") where a module is imported and
    no name of it is seen. ``from a import b`` with ``b.name`` in the code takes ``name`` of the module ``a.b``, where
    names used ``through`` a module count.
    """
    found: set[tuple[str, str]] = set()
    aliases: dict[str, str] = {}
    for node in module.imports:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in known:
                    found.add((alias.name, ""))
            continue
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            if whole in known:
                aliases[alias.asname or alias.name] = whole
                found.add((whole, ""))
            elif node.module in known:
                found.add((node.module, alias.name))
    for node in ast.walk(module.tree) if through else ():
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            found.add((aliases[node.value.id], node.attr))
    return found


def _parts(tree: ast.Module) -> Iterable[int]:
    """Lines of the groups of definitions that name each other, directly or through others of the group."""
    defined: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                defined |= {each.id: node for each in ast.walk(target) if isinstance(each, ast.Name)}
    group = {name: name for name in defined}

    def first(name: str) -> str:
        while group[name] != name:
            name = group[name]
        return name

    for name, node in defined.items():
        for each in ast.walk(node):
            if isinstance(each, ast.Name) and each.id in defined:
                group[first(name)] = first(each.id)
    lines: Counter[str] = Counter()
    for name, node in defined.items():
        lines[first(name)] += (node.end_lineno or node.lineno) - node.lineno + 1
    return lines.values()


def _fields(node: ast.ClassDef) -> list[ast.AnnAssign]:
    return [each for each in node.body if isinstance(each, ast.AnnAssign)]


def _explained(record: ast.ClassDef, field: ast.AnnAssign, lines: list[str]) -> bool:
    """Whether a comment stands beside a field or above it, a string below it, or a description in it."""
    inside = lines[field.lineno - 1 : field.end_lineno]
    if any(re.search(r"(^|\s)#(?! (fmt|type|noqa))", line) for line in inside):
        return True
    if lines[field.lineno - 2].lstrip().startswith("#") or "description=" in " ".join(inside):
        return True
    at = record.body.index(field) + 1
    after = record.body[at] if at < len(record.body) else None
    return isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)


def _makes_record(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name[:1].isupper() and not any(isinstance(each, ast.Starred) for each in call.args)


def _circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components (Tarjan 1972), without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []
    for root in edges:
        if root in index:
            continue
        work = [(root, iter(sorted(edges[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        while work:
            node, following = work[-1]
            for each in following:
                if each not in index:
                    index[each] = low[each] = len(index)
                    stack.append(each)
                    work.append((each, iter(sorted(edges[each]))))
                    break
                if each in stack:
                    low[node] = min(low[node], index[each])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    found.append(stack[at:])
                    del stack[at:]
    return found


def former_files() -> frozenset[str]:
    """Stems of the files that the packages had at any commit and have no more; empty outside a git checkout."""
    log = _git("log", "--diff-filter=DR", "--name-status", "--format=", "--", *PACKAGES)
    gone = {Path(line.split("\t")[1]).stem for line in log.splitlines() if line.endswith(".py")}
    return frozenset(gone)


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout


def at(revision: str, former: frozenset[str]) -> House:
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", revision, *PACKAGES, "tests"], capture_output=True, check=True
    ).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        house = House(Path(folder), former)
    return house


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rooms", action="store_true", help="lines of every room")
    parser.add_argument("--names", action="store_true", help="the places behind each figure")
    parser.add_argument("--against", metavar="REVISION", help="figures of a revision beside these")
    arguments = parser.parse_args()
    former = former_files()
    house = House(ROOT, former)
    other = at(arguments.against, former) if arguments.against else None
    then = {what: number for what, number, _ in other.table()} if other else {}
    for what, number, places in house.table():
        before = f"{then[what]:>9,} → " if then else ""
        print(f"{what:<58} {before}{number:>9,}")
        if arguments.names:
            print("".join(f"    {place}\n" for place in places), end="")
    if arguments.rooms:
        before_rooms = other.rooms() if other else Counter()
        for room, lines in sorted(house.rooms().items()):
            print(f"  {room:<56} {f'{before_rooms[room]:>9,} → ' if other else ''}{lines:>9,}")
    if arguments.against:
        changed = _git("diff", "--numstat", arguments.against, "--", *PACKAGES).splitlines()
        added, removed = (sum(int(line.split("\t")[k]) for line in changed if line[0] != "-") for k in (0, 1))
        print(f"lines of source added and removed since {arguments.against}: +{added:,} −{removed:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
