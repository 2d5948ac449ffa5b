"""Components beside their tables: random and recorded stimulus, and planted errors that must be found."""

import pytest
from support.small_runs import demand_of, policy, replay, small_model, small_system

from archsim.cli.main import main
from archsim.engine.interpreted.engine import InterpretedEngine
from archsim.specs.loading.library import load_assumptions

pytest.importorskip("amaranth", reason="RTL: pip install 'archsim[rtl]'")

from support.rtl_mutants import EQUIVALENT, OPERATORS, SHOWN, caught, mutants  # noqa: E402

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
    ("sorter", 300, {}),
    ("sorter", 1500, {"experts": 16, "comparators": 4}),
    ("sorter", 600, {"experts": 8, "comparators": 1}),
    ("sorter", 600, {"experts": 8, "comparators": 4}),
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


MUTANTS = [
    (block, each) for block in SHOWN for each in mutants(block) if (each.text, OPERATORS[each.other]) not in EQUIVALENT
]


@pytest.mark.parametrize(
    ("block", "mutant"),
    MUTANTS,
    ids=lambda each: str(each).split("(")[0] if isinstance(each, str) else f"{each.line}-{each.at}",
)
def test_every_changed_comparison_is_caught(block, mutant):
    assert caught(block, mutant)


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
    assert "0 differences" in capsys.readouterr().out
    asked = ["allocator", "--blocks", "40", "--seed", "3", "--set", "dies=4", "--lanes", "1,2"]
    assert main(["rtl", "lockstep", *asked]) == 0
    out = capsys.readouterr().out
    assert out.count("0 differences") == 2 and "lanes=2" in out


def test_command_refuses_unknown_blocks_and_parameters(capsys):
    assert main(["rtl", "lockstep", "alocator"]) == 2
    assert "allocator" in capsys.readouterr().err
    assert main(["rtl", "lockstep", "pdu", "--set", "expert=3"]) == 2
    assert "experts" in capsys.readouterr().err
