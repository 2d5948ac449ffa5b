"""Components beside their tables: random and recorded stimulus, and planted errors that must be found."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.small_runs import demand_of, policy, replay, small_model, small_system

from archsim.cli.main import main
from archsim.engine.interpreted.engine import InterpretedEngine
from archsim.specs.library import load_assumptions

pytest.importorskip("amaranth", reason="RTL: pip install 'archsim[rtl]'")

from support.rtl_mutants import SHOWN, caught, mutants, why_equivalent  # noqa: E402

from microarch.rtl.lockstep import lockstep  # noqa: E402

SMALL = [  # at every commit: one of each kind
    *[("allocator", 60, {"dies": 12, "lanes": lanes, "pipeline": stages}) for lanes, stages in ((4, 3), (8, 0))],
    ("allocator", 60, {"dies": 6, "lanes": 4, "speeds": True}),
    ("allocator", 60, {"dies": 1, "lanes": 4}),
    ("pdu", 500, {}),
    ("pdu", 800, {"experts": 64, "port_bits": 64, "shadow": False}),
    ("select", 1500, {"experts": 60, "larger_wins": True, "keep": 12}),
    ("sorter", 300, {"experts": 16, "comparators": 4}),
    ("atu", 600, {"entries": 8, "ways": 8, "experts": 40}),
    ("heatmap", 300, {"experts": 20, "port_bits": 64}),
]  # fmt: skip
FURTHER = [
    *[("allocator", 60, {"dies": 12, "lanes": lanes, "pipeline": stages}) for lanes, stages in
      ((1, 0), (1, 3), (2, 2), (4, 1), (8, 3), (16, 2))],
    ("allocator", 60, {}),
    ("allocator", 60, {"dies": 5, "lanes": 2, "pipeline": 0, "speeds": True}),
    ("pdu", 800, {"shadow": False}),
    ("pdu", 800, {"experts": 64, "port_bits": 64}),
    ("select", 300, {}),
    ("select", 1500, {"experts": 33, "comparators": 4, "keep": 33}),
    ("sorter", 300, {}),
    ("sorter", 300, {"experts": 8, "comparators": 1}),
    ("sorter", 300, {"experts": 8, "comparators": 4}),
    ("atu", 400, {}),
    ("atu", 600, {"entries": 16, "ways": 1, "experts": 100}),
    ("heatmap", 200, {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("block", "events", "changes"),
    [*SMALL, *(pytest.param(*each, marks=pytest.mark.nightly) for each in FURTHER)],
    ids=lambda each: str(each),
)
def test_rtl_does_what_the_table_says(block, events, changes):
    found = lockstep(block, events, seed=7, changes=changes)
    assert found.events >= events and found.difference == ""


def one_a_block(cases):
    """The first of each block at every commit, the others with -m nightly."""
    first = {case[0]: case for case in reversed(cases)}
    return [pytest.param(*case, marks=[] if case is first[case[0]] else [pytest.mark.nightly]) for case in cases]


MUTANTS = [(block, each) for block in SHOWN for each in mutants(block) if not why_equivalent(block, each)]


@pytest.mark.parametrize(
    ("block", "mutant"),
    one_a_block(MUTANTS),
    ids=lambda each: str(each).split("(")[0] if isinstance(each, str) else f"{each.line}-{each.at}",
)
def test_every_changed_comparison_is_caught(block, mutant):
    assert caught(block, mutant)


PLANTED = [  # at the shipped size: what only large numbers, or the ends of what may enter, show
    ("heatmap", "self.row, self.word = Signal(range(p.experts))", "self.row, self.word = Signal(2)"),
    ("heatmap", "mask[i] & counter.all()", "mask[i] & counter[1:].all()"),
    ("pdu", "self.is_local = Signal(), Signal(range(p.experts))", "self.is_local = Signal(), Signal(8)"),
    ("allocator", "self.block_tokens = Signal(p.token_bits)", "self.block_tokens = Signal(12)"),
    ("allocator", "Signal(range(p.dies + 1)), Signal(p.token_bits)", "Signal(range(p.dies + 1)), Signal(15)"),
    ("allocator", "Signal(p.cost_bits, name=f\"load_{die}\"", "Signal(23, name=f\"load_{die}\""),
    ("allocator", "self.work, self.last_work = Signal(p.cost_bits)", "self.work, self.last_work = Signal(23)"),
    ("allocator", "Signal(p.cost_bits + 1, name=f\"kept_{lane}\"", "Signal(p.cost_bits, name=f\"kept_{lane}\""),
]  # fmt: skip


@pytest.mark.parametrize(("block", "written", "planted"), one_a_block(PLANTED))
def test_errors_of_large_numbers_are_found_at_the_shipped_size(block, written, planted):
    source = Path(SHOWN[block].module.__file__).read_text(encoding="utf-8")
    assert written in source
    made = ModuleType(f"planted_{block}")
    sys.modules[made.__name__] = made
    exec(compile(source.replace(written, planted), made.__name__, "exec"), made.__dict__)
    shipped = getattr(made, SHOWN[block].component)
    found = lockstep(block, 1, 0, component=lambda parameters: shipped(made.Parameters(**vars(parameters))))
    assert found.difference


@pytest.mark.parametrize(("block", "changes"), [
    ("allocator", {"dies": 9, "lanes": 4}), ("allocator", {"dies": 5, "lanes": 2, "speeds": True}), ("pdu", {}),
    ("select", {"experts": 64}), ("sorter", {"experts": 128}),
    ("atu", {"entries": 64}), ("heatmap", {}),
])  # fmt: skip
def test_corners_cover_every_bit_branch_and_bound(block, changes):
    found = lockstep(block, 1, 0, changes, cover=True)
    assert found.difference == "" and found.coverage.missed == [] and found.coverage.complete


def test_what_is_not_covered_is_named():
    found = lockstep("pdu", 3, 0, {"experts": 16, "port_bits": 4}, given=[(1, 5, 1, 0, 0, 0, 0)] * 3, cover=True)
    assert "bit local[0]" in found.coverage.missed and "bound looks up the last" in found.coverage.missed


def test_there_are_mutants_of_every_component():
    assert {block for block, _ in MUTANTS} == set(SHOWN) and len(MUTANTS) >= 30


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
    demand = demand_of(model, system, spec, batch=60, decode_steps=2)
    return replay(system, model, spec, assumptions, demand, engine=InterpretedEngine)


def test_command_tells_what_was_compared(capsys):
    assert main(["rtl", "lockstep", "pdu", "--events", "300", "--seed", "3"]) == 0
    assert "0 differences; covered 1,544 of 1,544 bits, 6 of 6 branches, 7 of 7 bounds" in capsys.readouterr().out
    asked = ["allocator", "--blocks", "40", "--seed", "3", "--set", "dies=4", "--lanes", "1,2"]
    assert main(["rtl", "lockstep", *asked]) == 0
    out = capsys.readouterr().out
    assert out.count("0 differences") == 2 and "lanes=2" in out


def test_command_refuses_unknown_blocks_and_parameters(capsys):
    assert main(["rtl", "lockstep", "alocator"]) == 2
    assert "allocator" in capsys.readouterr().err
    assert main(["rtl", "lockstep", "pdu", "--set", "expert=3"]) == 2
    assert "experts" in capsys.readouterr().err
