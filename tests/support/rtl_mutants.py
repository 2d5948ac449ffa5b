"""Components of RTL with one planted error: every bench has to tell them from the shipped ones.

Errors are planted in the source, one at a time: another comparison, another operator, a register or wire that is a bit
too narrow, a ``Mux`` with its values exchanged, a condition that is inverted, a statement that is missing, a constant
that is off by one.
"""

import ast
import copy
import importlib.util
import sys
from pathlib import Path
from typing import NamedTuple

from microarch.rtl import allocator, atu, heatmap, pdu, select, sorter
from microarch.rtl.lockstep import lockstep

COMPARISONS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
NEXT = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr}
HELPERS = """
def _narrow(shape):
    from amaranth.hdl import Shape
    return max(0, Shape.cast(shape).width - 1)

def _inverted(condition):
    from amaranth.hdl import Value
    return ~Value.cast(condition).any()
"""


class Shown(NamedTuple):
    """Where mutants of a component show: sizes at which lockstep runs its corners and ``events`` more, and sizes that
    are refused.
    """

    module: object
    component: str
    events: int
    sizes: tuple[dict, ...]
    refused: tuple[dict, ...]


SHOWN = {
    "allocator": Shown(
        allocator, "Allocator", 200,
        ({"dies": 1, "lanes": 1, "pipeline": 0}, {"dies": 6, "lanes": 2}, {"dies": 7, "lanes": 5, "pipeline": 0},
         {"dies": 6, "lanes": 1, "pipeline": 3}, {"dies": 4, "lanes": 2, "pipeline": 1, "speeds": True}),
        ({"pipeline": 4}, {"pipeline": -1}, {"dies": 0}, {"lanes": 0}),
    ),
    "pdu": Shown(
        pdu, "Pdu", 300,
        ({"experts": 2, "port_bits": 1}, {"experts": 16, "port_bits": 4},
         {"experts": 12, "port_bits": 4, "shadow": False}),
        ({"experts": 1, "port_bits": 1}, {"experts": 10, "port_bits": 4}),
    ),
    "select": Shown(
        select, "Selector", 1000,
        ({"experts": 12, "comparators": 4, "keep": 1}, {"experts": 12, "comparators": 4, "keep": 3},
         {"experts": 10, "comparators": 4, "keep": 3, "larger_wins": True},
         {"experts": 6, "comparators": 4, "keep": 6, "larger_wins": True}),
        ({"keep": 0}, {"keep": 513}),
    ),
    "sorter": Shown(
        sorter, "Sorter", 100,
        ({"experts": 8, "comparators": 1}, {"experts": 8, "comparators": 4}, {"experts": 16, "comparators": 8}),
        ({"experts": 12}, {"comparators": 3}, {"experts": 4, "comparators": 4}, {"comparators": 0}),
    ),
    "atu": Shown(atu, "Atu", 200, ({"entries": 8, "ways": 4, "experts": 40},), ({"entries": 24, "ways": 8},)),
    "heatmap": Shown(heatmap, "HeatmapStore", 100, ({"experts": 12, "port_bits": 64},), ({"port_bits": 24},)),
}  # fmt: skip

EQUIVALENT = {  # (what is written, what is planted): why no stimulus can tell it
    ("number == p.words - 1", ">="): "the counter stops there",
    ("at == p.words - 1", ">="): "the counter stops there",
    ("self.at == p.words - 1", ">="): "the counter stops there",
    ("self.marked_at == p.words - 1", ">="): "the counter stops there",
    ("self.marked_at == (0 if p.larger_wins else p.words - 1)", ">="): "the counter stops there",
    ("halving == p.words - 1", ">="): "the counter stops there",
    ("self.group + 1 == self.groups", ">="): "the counter stops there",
    ("self.at + 1 == self.groups + self.levels + self.parameters.stages", ">="): "the counter stops there",
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
EQUIVALENT_IN = {  # (block, what is written, what is planted): why
    ("pdu", "Signal(p.experts, reset_less=True)", "a bit narrower"): "the last word does not pass the second register",
    ("select", "m.d.sync += [self.threshold.eq(0), self.reaching.eq(0), self.above.eq(0)]", "1 is missing"): (
        "every pass ends with 0"
    ),
    ("sorter", "p.levels - p.within", "Add"): "wider outputs",
    (
        "allocator",
        "m.d.sync += [self.rest.eq(self.tokens), self.pending.eq(0), self.filled.eq(0)]",
        "1 is missing",
    ): "MERGE ends when no slot is pending",
    ("allocator", "self.filled.eq(0)", "+1"): "the first slot always gets a candidate",
    ("allocator", "2 * lane + i < p.lanes", "!="): "the tree has no node where it would be larger",
    (
        "sorter",
        "m.d.sync += [self.state.eq(ORDER), self.pair.eq(0), self.distance.eq(1), self.block.eq(2)]",
        "1 is missing",
    ): "every stage ends with 0",
}


class Mutant(NamedTuple):
    """The ``at``-th node of a file's syntax tree with an error; ``text``: as it is written, ``planted``: what is done
    to it.
    """

    at: int
    kind: str
    planted: str
    line: int
    text: str


def _errors(node):
    """(kind, what is planted) of every error that a node can have."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS and len(node.ops) == 1:
        for other in COMPARISONS:
            if other is not type(node.ops[0]):
                yield ("next" if other is NEXT[type(node.ops[0])] else "comparison"), COMPARISONS[other]
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        yield "operator", OPERATORS[type(node.op)].__name__
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        yield "operator", "no ~"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "Signal" and node.args:
            yield "width", "a bit narrower"
        elif node.func.id == "Mux":
            yield "mux", "values exchanged"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("If", "Elif"):
        yield "condition", "inverted"
    elif isinstance(node, ast.AugAssign) and getattr(node.target, "attr", "") in ("sync", "comb"):
        for at in range(len(node.value.elts)) if isinstance(node.value, ast.List) else (0,):
            yield "statement", f"{at} is missing"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "eq":
        if isinstance(node.args[0], ast.Constant) and type(node.args[0].value) is int:
            yield "constant", "+1"


def _nodes(tree):
    """Nodes of functions before the claims of a component, without texts; without the arithmetic of sizes, which is
    done in Python and can only make registers wider or fail to build.
    """
    skipped: set[int] = set()
    for node in ast.walk(tree):
        named = getattr(node, "name", "") or (isinstance(node, ast.Call) and getattr(node.func, "id", ""))
        if isinstance(node, (ast.JoinedStr, ast.Raise)):
            skipped |= {id(each) for each in ast.walk(node)}
        elif named in ("Parameters", "Signal", "Const", "range", "_slot_bits", "_registers", "_groups_of", "memories"):
            skipped |= {id(each) for each in ast.walk(node) if isinstance(each, ast.BinOp)}
    claims = next(at for at, node in enumerate(tree.body) if ast.unparse(node).startswith("CLAIM ="))
    bodies = (node for part in tree.body[:claims] for node in ast.walk(part) if isinstance(node, ast.FunctionDef))
    return [node for body in bodies for part in body.body for node in ast.walk(part) if id(node) not in skipped]


def mutants(block, every=False):
    """Of a block's file: the next comparison of each, or with ``every`` all errors."""
    source = Path(SHOWN[block].module.__file__).read_text(encoding="utf-8")
    for at, node in enumerate(_nodes(ast.parse(source))):
        for kind, planted in _errors(node):
            if every or kind == "next":
                yield Mutant(at, kind, planted, node.lineno, ast.get_source_segment(source, node))


def _plant(node, mutant):
    if mutant.kind in ("next", "comparison"):
        node.ops[0] = next(kind for kind, sign in COMPARISONS.items() if sign == mutant.planted)()
    elif mutant.planted == "no ~":
        node.operand = ast.UnaryOp(ast.Invert(), node.operand)  # ~~x is x
    elif mutant.kind == "operator":
        node.op = OPERATORS[type(node.op)]()
    elif mutant.kind == "width":
        node.args[0] = ast.Call(ast.Name("_narrow", ast.Load()), [node.args[0]], [])
    elif mutant.kind == "mux":
        node.args[1], node.args[2] = node.args[2], node.args[1]
    elif mutant.kind == "condition":
        node.args[0] = ast.Call(ast.Name("_inverted", ast.Load()), [node.args[0]], [])
    elif mutant.kind == "statement":
        at, value = int(mutant.planted.split()[0]), node.value
        node.value = ast.List([], ast.Load()) if not isinstance(value, ast.List) else value
        if isinstance(value, ast.List):
            del value.elts[at]
    elif mutant.kind == "constant":
        node.args[0].value += 1


def build(block, mutant):
    """The module with the mutant in it."""
    shown = SHOWN[block]
    tree = ast.parse(Path(shown.module.__file__).read_text(encoding="utf-8"))
    _plant(_nodes(tree)[mutant.at], mutant)
    spec = importlib.util.spec_from_loader(f"mutant_{block}", loader=None)
    made = importlib.util.module_from_spec(spec)
    sys.modules[made.__name__] = made
    exec(HELPERS, made.__dict__)
    exec(compile(ast.fix_missing_locations(copy.deepcopy(tree)), shown.module.__file__, "exec"), made.__dict__)
    return made


def why_equivalent(block, mutant):
    """Why no stimulus can tell a mutant; '' if one has to."""
    return EQUIVALENT.get((mutant.text, mutant.planted), "") or EQUIVALENT_IN.get(
        (block, mutant.text, mutant.planted), ""
    )


def caught(block, mutant):
    """Whether lockstep finds it, it cannot be built or simulated, or it takes a size that has to be refused."""
    shown = SHOWN[block]
    try:
        module = build(block, mutant)
    except Exception:  # noqa: BLE001 - a mutant may be no Python
        return True
    for changes in shown.refused:
        try:
            module.Parameters(**changes)
        except ValueError:
            continue
        return True
    component = getattr(module, shown.component)
    for changes in shown.sizes:
        try:
            parameters = module.Parameters(**changes)
            if lockstep(block, shown.events, 1, changes, lambda _, p=parameters: component(p)).difference:
                return True
        except Exception:  # noqa: BLE001 - a mutant may be refused by the simulator
            return True
    return False
