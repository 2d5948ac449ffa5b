"""Components of RTL in which one comparison is another: every bench has to tell them from the shipped ones."""

import ast
import importlib.util
import sys
from pathlib import Path
from typing import NamedTuple

from microarch.rtl import allocator, atu, heatmap, pdu, select, sorter
from microarch.rtl.lockstep import lockstep

OPERATORS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
NEXT = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
SEEDS = (1, 2)


class Shown(NamedTuple):
    """Where mutants of a component show: sizes at which lockstep runs ``events``, and sizes that are refused."""

    module: object
    component: str
    events: int
    sizes: tuple[dict, ...]
    refused: tuple[dict, ...]


SHOWN = {
    "allocator": Shown(
        allocator, "Allocator", 600,
        ({"dies": 1, "lanes": 1, "pipeline": 0}, {"dies": 6, "lanes": 2}, {"dies": 6, "lanes": 4, "pipeline": 0}),
        ({"pipeline": 4}, {"pipeline": -1}, {"dies": 0}, {"lanes": 0}),
    ),
    "pdu": Shown(
        pdu, "Pdu", 500,
        ({"experts": 2, "port_bits": 1}, {"experts": 16, "port_bits": 4},
         {"experts": 16, "port_bits": 4, "shadow": False}),
        ({"experts": 1, "port_bits": 1}, {"experts": 10, "port_bits": 4}),
    ),
    "select": Shown(
        select, "Selector", 3000,
        ({"experts": 12, "comparators": 4, "keep": 1}, {"experts": 12, "comparators": 4, "keep": 3},
         {"experts": 10, "comparators": 4, "keep": 3, "larger_wins": True},
         {"experts": 6, "comparators": 4, "keep": 6, "larger_wins": True}),
        ({"keep": 0}, {"keep": 513}),
    ),
    "sorter": Shown(
        sorter, "Sorter", 400,
        ({"experts": 8, "comparators": 1}, {"experts": 8, "comparators": 4}, {"experts": 16, "comparators": 4}),
        ({"experts": 12}, {"comparators": 3}, {"experts": 4, "comparators": 4}, {"comparators": 0}),
    ),
    "atu": Shown(atu, "Atu", 300, ({"entries": 8, "ways": 4, "experts": 40},), ({"entries": 24, "ways": 8},)),
    "heatmap": Shown(heatmap, "HeatmapStore", 200, ({"experts": 12, "port_bits": 64},), ({"port_bits": 24},)),
}  # fmt: skip

EQUIVALENT = {  # (comparison, the other operator): why no stimulus can tell it
    ("at == p.words - 1", ">="): "the counter stops there",
    ("number == p.words - 1", ">="): "the counter stops there",
    ("self.at == p.words - 1", ">="): "the counter stops there",
    ("halving == p.words - 1", ">="): "the counter stops there",
    ("self.group + 1 == self.groups", ">="): "the counter stops there",
    ("self.at + 1 == self.groups + self.levels + self.parameters.pipeline", ">="): "the counter stops there",
    ("self.left == 1", "<="): "in GENERATE a candidate is left",
    ("self.at == delay", "<="): "what a lane keeps before its first group is replaced by it",
    ("self.state == HALVE_WRITE", ">="): "no state is larger",
    ("self.state == IDLE", "<="): "no state is smaller",
    ("(self.pending & ~first) == 0", "<="): "no number is smaller",
    ("len(bits) == 1", "<="): "no tree has no bits",
    ("len(values) == 1", "<="): "no tree has no values",
    ("self.block == self.whole", ">="): "no block is larger than the whole",
    ("self.at[1] == Mux(self.whole[: p.within + 1].any(), 1, (self.whole >> p.within) - 1)", ">="): (
        "the counter stops there"
    ),
    ("keys[0] > keys[1]", ">="): "keys that are equal change places unseen",
}


class Mutant(NamedTuple):
    """The ``at``-th comparison of a file with another operator; ``text``: as it is written."""

    at: int
    operator: int
    other: type
    line: int
    text: str


def _comparisons(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]


def mutants(block, every=False):
    """Of a block's file: one of each comparison, or with ``every`` operator."""
    source = Path(SHOWN[block].module.__file__).read_text(encoding="utf-8")
    for at, node in enumerate(_comparisons(ast.parse(source))):
        for operator, kept in enumerate(node.ops):
            if type(kept) not in OPERATORS:
                continue
            for other in OPERATORS if every else (NEXT[type(kept)],):
                if other is not type(kept):
                    yield Mutant(at, operator, other, node.lineno, ast.get_source_segment(source, node))


def build(block, mutant):
    """The module with the mutant in it."""
    shown = SHOWN[block]
    tree = ast.parse(Path(shown.module.__file__).read_text(encoding="utf-8"))
    _comparisons(tree)[mutant.at].ops[mutant.operator] = mutant.other()
    spec = importlib.util.spec_from_loader(f"mutant_{block}", loader=None)
    copy = importlib.util.module_from_spec(spec)
    sys.modules[copy.__name__] = copy
    exec(compile(ast.fix_missing_locations(tree), shown.module.__file__, "exec"), copy.__dict__)
    return copy


def caught(block, mutant):
    """Whether lockstep finds it, it cannot be built or simulated, or it takes a size that has to be refused."""
    shown, module = SHOWN[block], build(block, mutant)
    for changes in shown.refused:
        try:
            module.Parameters(**changes)
        except ValueError:
            continue
        return True
    component = getattr(module, shown.component)
    for changes in shown.sizes:
        for seed in SEEDS:
            try:
                parameters = module.Parameters(**changes)
                if lockstep(block, shown.events, seed, changes, lambda _, p=parameters: component(p)).difference:
                    return True
            except Exception:  # noqa: BLE001 - a mutant may be refused by the simulator
                return True
    return False
