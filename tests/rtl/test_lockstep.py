"""Components beside their tables: random and recorded stimulus, and planted errors that must be found."""

import ast
import importlib.util
import sys
from pathlib import Path

import pytest
from support.small_runs import demand_of, policy, replay, small_model, small_system

from archsim.cli.main import main
from archsim.specs.loading.library import load_assumptions

pytest.importorskip("amaranth", reason="RTL: pip install 'archsim[rtl]'")

from microarch.rtl import allocator, atu, heatmap, pdu, select  # noqa: E402
from microarch.rtl.lockstep import lockstep  # noqa: E402

SMALL = [
    *[("allocator", 250, {"dies": 12, "lanes": lanes, "pipeline": stages}) for lanes, stages in
      ((1, 0), (1, 3), (2, 2), (4, 1), (4, 3), (8, 0), (8, 3), (16, 2))],
    ("allocator", 200, {}),
    ("allocator", 100, {"dies": 1, "lanes": 4}),
    ("pdu", 1500, {}),
    ("pdu", 800, {"shadow": False}),
    ("pdu", 800, {"experts": 64, "port_bits": 64}),
    ("select", 1500, {}),
    ("select", 1500, {"experts": 60, "larger_wins": True, "keep": 12}),
    ("select", 1500, {"experts": 33, "comparators": 4, "keep": 33}),
    ("atu", 400, {}),
    ("atu", 600, {"entries": 8, "ways": 8, "experts": 40}),
    ("atu", 600, {"entries": 16, "ways": 1, "experts": 100}),
    ("heatmap", 200, {}),
    ("heatmap", 300, {"experts": 20, "port_bits": 64}),
]  # fmt: skip


@pytest.mark.parametrize(("block", "events", "changes"), SMALL, ids=lambda each: str(each))
def test_rtl_does_what_the_table_says(block, events, changes):
    found = lockstep(block, events, seed=7, changes=changes)
    assert found.events >= events and found.difference == ""


OTHER = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq}
# Sizes at which a mutant shows soon.
SHOWS = {
    "allocator": (allocator, "Allocator", 600, ({"dies": 6, "lanes": 2}, {"dies": 6, "lanes": 4, "pipeline": 0})),
    "pdu": (pdu, "Pdu", 500, ({"experts": 16, "port_bits": 4}, {"experts": 16, "port_bits": 4, "shadow": False})),
    "select": (select, "Selector", 3000, ({"experts": 12, "comparators": 4, "keep": 3},
                                          {"experts": 10, "comparators": 4, "keep": 3, "larger_wins": True})),
    "atu": (atu, "Atu", 300, ({"entries": 8, "ways": 4, "experts": 40},)),
    "heatmap": (heatmap, "HeatmapStore", 200, ({"experts": 12, "port_bits": 64},)),
}  # fmt: skip


def comparisons(module):
    """(line, column) of the comparisons in the methods of a module's component."""
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    component = [node for node in tree.body if isinstance(node, ast.ClassDef)][-1]
    inside = [
        node for function in component.body if isinstance(function, ast.FunctionDef) for node in ast.walk(function)
    ]
    return [(node.lineno, node.col_offset) for node in inside
            if isinstance(node, ast.Compare) and type(node.ops[0]) in OTHER]  # fmt: skip


class Mutate(ast.NodeTransformer):
    def __init__(self, place):
        self.place = place

    def visit_Compare(self, node):
        self.generic_visit(node)
        if (node.lineno, node.col_offset) == self.place:
            node.ops[0] = OTHER[type(node.ops[0])]()
        return node


def mutant(module, place, name):
    """The component of a copy of the module in which one comparison is another."""
    tree = Mutate(place).visit(ast.parse(Path(module.__file__).read_text(encoding="utf-8")))
    spec = importlib.util.spec_from_loader(f"mutant_{name}", loader=None)
    copy = importlib.util.module_from_spec(spec)
    sys.modules[copy.__name__] = copy
    exec(compile(ast.fix_missing_locations(tree), module.__file__, "exec"), copy.__dict__)
    return getattr(copy, name)


MUTANTS = [(block, place) for block, (module, *_) in SHOWS.items() for place in comparisons(module)]


def caught(block, place):
    module, name, events, sizes = SHOWS[block]
    for changes in sizes:
        for seed in (1, 2):
            try:
                if lockstep(block, events, seed, changes, mutant(module, place, name)).difference:
                    return True
            except Exception:  # noqa: BLE001 - a mutant may be refused by the simulator
                return True
    return False


@pytest.mark.parametrize(("block", "place"), MUTANTS, ids=str)
def test_every_changed_comparison_is_caught(block, place):
    assert caught(block, place)


def test_there_are_mutants_of_every_component():
    assert {block for block, _ in MUTANTS} >= set(SHOWS) - {"heatmap"} and len(MUTANTS) >= 20


def test_recorded_steps_of_a_run():
    """Views, look-ups and bits of a small run of the engine, recorded where it decides and looks up."""
    views, run = [], replay_of("allo-paper")
    decide = run.engine.decision.decide

    def recording(allocate, view):
        views.append((view._replace(copied_slices=view.copied_slices.copy(), charged=None), 50))
        return decide(allocate, view)

    run.engine.decision.decide = recording
    run.run()
    assert run.engine.costs.quantum_ns == 1.0
    found = lockstep("allocator", 10**9, 0, {"dies": 6}, given=views)
    assert len(views) > 3 and found.events > 100 and found.difference == ""


def replay_of(name):
    system, model, spec = small_system(3, 2), small_model(), policy(name)
    assumptions = load_assumptions("physical", heatmap_update="free")
    return replay(system, model, spec, assumptions, demand_of(model, system, spec, batch=60, decode_steps=2))


def test_command_tells_what_was_compared(capsys):
    assert main(["rtl", "lockstep", "pdu", "--events", "300", "--seed", "3"]) == 0
    assert "0 differences" in capsys.readouterr().out
    assert main(["rtl", "lockstep", "allocator", "--blocks", "40", "--seed", "3", "--set", "dies=4", "lanes=1,2"]) == 0
    out = capsys.readouterr().out
    assert out.count("0 differences") == 2 and "lanes=2" in out


def test_command_refuses_unknown_blocks_and_parameters(capsys):
    assert main(["rtl", "lockstep", "alocator"]) == 2
    assert "allocator" in capsys.readouterr().err
    assert main(["rtl", "lockstep", "pdu", "--set", "expert=3"]) == 2
    assert "experts" in capsys.readouterr().err
