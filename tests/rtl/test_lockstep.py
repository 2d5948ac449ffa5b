"""Components beside their tables: random and recorded stimulus, and planted errors that must be found."""

import csv
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from support.examples import sampled
from support.rtl_mutants import SHOWN, caught, mutants, why_equivalent
from support.small_runs import demand_of, policy, replay, small_model, small_system
from support.tiny import TINY

from archsim.base.errors import ArchsimError
from archsim.cli.main import main
from archsim.engine.interpreted.engine import InterpretedEngine
from archsim.machine.decision import FsmSpec
from archsim.model.attention import LayerSet
from archsim.specs.library import load_assumptions
from microarch.blocks.global_cp import State
from microarch.rtl import drive, pdu
from microarch.rtl.activity import Watched
from microarch.rtl.lockstep import FURTHER_SIZES, lockstep
from microarch.silicon.switching import energy_of
from microarch.silicon.synthesis import read_result

pytest.importorskip("amaranth", reason="RTL: pip install 'archsim[rtl]'")


CASES = [
    ("allocator", 8, {"dies": 6, "lanes": 4, "speeds": True}),
    *[("allocator", 8, {"dies": 12, "lanes": lanes, "pipeline": stages}) for lanes, stages in ((4, 3), (8, 0))],
    ("allocator", 8, {"dies": 1, "lanes": 4}),
    ("pdu", 100, {}),
    ("pdu", 100, {"experts": 64, "port_bits": 64, "shadow": False}),
    ("select", 200, {"experts": 60, "larger_wins": True, "keep": 12}),
    ("sorter", 60, {"experts": 16, "comparators": 4}),
    ("atu", 120, {"entries": 8, "ways": 8, "experts": 40}),
    ("atu", 50, {"experts": 2}),
    ("heatmap", 60, {"experts": 20, "port_bits": 64}),
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
    *((block, 200, each) for block, sizes in FURTHER_SIZES.items() for each in sizes if set(each) != {"lanes"}),
    ("heatmap", 200, {}),
]  # fmt: skip


def one_a_block(cases):
    """The first of each block at every commit, the others with -m nightly."""
    first = {case[0]: case for case in reversed(cases)}
    return [pytest.param(*case, marks=[] if case is first[case[0]] else [pytest.mark.nightly]) for case in cases]


@pytest.mark.parametrize(("block", "events", "changes"), one_a_block(CASES), ids=str)
def test_rtl_does_what_the_table_says(block, events, changes):
    found = lockstep(block, events, seed=7, changes=changes)
    assert found.events >= events and found.difference == ""


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


@pytest.mark.parametrize(("block", "changes"), sampled([
    ("allocator", {"dies": 9, "lanes": 4}), ("allocator", {"dies": 5, "lanes": 2, "speeds": True}), ("pdu", {}),
    ("select", {"experts": 64}), ("sorter", {"experts": 128}),
    ("atu", {"entries": 16}), ("heatmap", {}),
], lambda case: case[0] == "atu"))  # fmt: skip
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
    system, model, spec = small_system(3, 2), MODEL, policy(name)
    assumptions = load_assumptions("physical", heatmap_update="free")
    demand = demand_of(model, system, spec, batch=30, decode_steps=9)
    return replay(system, model, spec, assumptions, demand, engine=InterpretedEngine)


def test_command_tells_what_was_compared(capsys):
    assert main(["rtl", "lockstep", "pdu", "--events", "100", "--seed", "3"]) == 0
    covered = "they cover 1,544 of 1,544 bits, 6 of 6 branches, 7 of 7 bounds."
    out = capsys.readouterr().out
    assert out.startswith("pdu (seed 3) does what its table says in all of ") and covered in out
    asked = ["allocator", "--blocks", "4", "--seed", "3", "--set", "dies=4", "--lanes", "1,2"]
    assert main(["rtl", "lockstep", *asked]) == 0
    out = capsys.readouterr().out
    assert out.count("what its table says in all of") == 2 and "lanes=2" in out


def test_command_refuses_unknown_blocks_and_parameters(capsys):
    assert main(["rtl", "lockstep", "alocator"]) == 2
    assert "allocator" in capsys.readouterr().err
    assert main(["rtl", "lockstep", "pdu", "--set", "expert=3"]) == 2
    assert "experts" in capsys.readouterr().err


# Clocked and toggled bits of a component, counted beside its registers, and the energy that follows from them.

WORDS = 32  # of a PDU's bits


def activity_of(stimulus):
    watched = Watched(pdu.Pdu(pdu.Parameters()))

    async def bench(ctx):
        for given in stimulus:
            await drive.cycle(ctx, watched, given)

    drive.simulate(watched, bench)
    return watched.activity


def test_bits_that_are_written_are_clocked_and_those_that_change_toggle():
    always = 2  # answered, keep
    idle = activity_of([(0,) * 7] * 10)
    assert (idle.cycles, idle.clocked, idle.toggled) == (10, 10 * always, 0)
    zeros = activity_of([(1, 0, 0, 0, 0, 0, 0)] * 2 * WORDS)
    counter = 5 + 1  # which word; loading
    assert zeros.clocked == 2 * WORDS * (16 + counter + always) + 2 * 512
    ones = activity_of([(1, 2**16 - 1, 0, 0, 0, 0, 0)] * 2 * WORDS)
    assert ones.toggled - zeros.toggled == 512 + 512  # once into the second register, once into the one in use
    placed = activity_of([(0, 0, 0, 0, 1, 7, 1)] * 3)
    assert (placed.clocked, placed.toggled) == (3 * (1 + always), 1)


def test_a_gated_clock_takes_less_and_a_free_one_what_table_ii_has():
    found = read_result("pdu")
    busy, idle = (energy_of(found, bits, bits / 4, 2e9) for bits in (400, 4))
    assert idle.free == busy.free == pytest.approx(found.flip_flops * 1.17, rel=0.01)
    assert idle.gated < busy.gated < busy.free and idle.changes < busy.changes
    tables_mw = found.free_running_fj / found.flip_flops * 1024 * 25 * 0.7 * 2.5e9 * 1e-12
    assert tables_mw == pytest.approx(55.75, rel=0.1)  # table II, prediction tables


def test_commands_take_the_stimulus_of_a_run(tmp_path, capfd):
    file = tmp_path / "small.yaml"
    text = TINY.replace("assumptions: published", "assumptions: physical")
    text = text.replace("policies: [base, ep, allo, pred, allo+pred]", "policies: [ep, allo-paper]")
    file.write_text(text.replace("batch: [12, 40]", "batch: 12"), encoding="utf-8")
    assert main(["rtl", "lockstep", "sorter", "--events", "60", "--run", str(file)]) == 0
    assert "recorded in small toy batch 12 allo-paper" in (out := capfd.readouterr().out) and "says in all of" in out
    assert main(["rtl", "energy", "sorter", "--events", "40", "--run", str(file), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    picojoule = found["rows"]["sorter"]["pJ/event free"]
    assert found["answer"].startswith(f"An event takes {picojoule:.2g} pJ in registers and clock of sorter")
    assert main(["rtl", "lockstep", "select", "--run", str(file)]) == 2
    assert "no run has a stimulus for select: it needs prediction" in capfd.readouterr().err


# Runs with components in RTL give the files of runs with tables, byte for byte; what has no RTL is refused.

FILES = ("results.csv", "results.parquet")
PREDICTING = "{name: predicting, allocation: {name: paper, block_tokens: 4}, prediction: {name: heatmap, top_n: 3}}"
ENGINE_SMALL = (
    TINY.replace("batch: [12, 40], decode_steps: 4", "batch: 30, decode_steps: 5")
    .replace("[base, ep, allo, pred, allo+pred]", f"[ep, allo-paper, {PREDICTING}]")
    .replace("assumptions: published", "assumptions: physical\nengine: interpreted")
)
MODEL = small_model(experts=6, top_k=2, hidden=512, expert_ffn=384, moe_layers=LayerSet(first=0, last=1))
RTL = "systems.0.decision.fsm.implementation=rtl"
SYSTEM = "systems.0.decision={atu_entries: 8, atu_ways: 4, fsm: {implementation: %s}}"
BLOCKS = "systems.0.blocks=['microarch.rtl.blocks:Atu', 'microarch.rtl.blocks:Pdu']"


def experiment(folder, *changes):
    folder.mkdir()
    file = folder / "small.yaml"
    text = ENGINE_SMALL.replace(ENGINE_SMALL[ENGINE_SMALL.index("- name: square") : ENGINE_SMALL.index("models:")], "")
    for one, other in changes:
        assert one in text
        text = text.replace(one, other)
    file.write_text(text, encoding="utf-8")
    return str(file)


def files_of(folder, *changes):
    """The files of a run."""
    overrides = [each for change in changes for each in ("--set", change)]
    file = experiment(folder)
    assert main(["sweep", file, "--out", str(folder / "out"), "--jobs", "1", "--samples", "0", *overrides]) == 0
    return [(folder / "out" / name).read_bytes() for name in FILES]


@pytest.mark.nightly
def test_a_run_in_rtl_gives_the_same_files(tmp_path):
    table = files_of(tmp_path / "table", SYSTEM % "table")
    assert files_of(tmp_path / "rtl", SYSTEM % "rtl", BLOCKS) == table
    rows = list(csv.DictReader(table[0].decode().splitlines()))
    assert len(rows) == 3 and float(rows[2]["local_hbm_write_bytes"]) > 0 and float(rows[2]["atu_misses"]) > 0
    assert float(rows[1]["decision_exposed_ns"]) > float(rows[0]["decision_exposed_ns"]) > 0


UNEQUAL = "systems.0.dies_as_built={speed: {table: [[0.5, 1], [1.1, 0.8], [1, 1], [0.7, 1], [1, 1], [1, 1]]}}"
SLOW_LINK = "systems.0.links_as_built={degraded: [{link: [0, 1], bandwidth: 20 %}]}"
ASKS = "{name: asks, allocation: {name: paper, block_tokens: 4, needs: speeds}}"


@pytest.mark.nightly
def test_an_allocator_in_rtl_sees_speeds_of_dies_and_links_as_its_table(tmp_path):
    """Speeds change plans, the multiplier takes a cycle a block, and components do both as tables do."""

    def run(name, made, change=""):
        ask = (ENGINE_SMALL[ENGINE_SMALL.index("[ep, allo-paper") :].partition("\n")[0], f"[allo-paper, {ASKS}]")
        file, out = experiment(tmp_path / name, ask), tmp_path / name / "out"
        changes = [SYSTEM % made, *((UNEQUAL, SLOW_LINK) if change else ())]
        overrides = [each for one in changes for each in ("--set", one)]
        assert main(["sweep", file, "--out", str(out), "--jobs", "1", "--samples", "0", *overrides]) == 0
        return (out / "results.csv").read_bytes()

    equal, unequal = run("equal", "rtl"), run("rtl", "rtl", "unequal")
    assert unequal == run("table", "table", "unequal") and unequal != equal
    rows = list(csv.DictReader(equal.decode().splitlines()))
    assert float(rows[1]["decision_ns"]) > float(rows[0]["decision_ns"])


def test_a_component_that_decides_otherwise_changes_the_run(monkeypatch):

    def decided():
        fsm = {"fsm": FsmSpec(implementation="rtl")}
        system, spec = small_system(2, 2, decision=fsm), policy("allo-paper")
        demand = demand_of(MODEL, system, spec, batch=12, decode_steps=2)
        run = replay(system, MODEL, spec, load_assumptions("physical"), demand, engine=InterpretedEngine)
        return run.run().decision

    place, shipped = drive.place, decided()

    async def late(*given):
        entries, cycles = await place(*given)
        return entries, [cycles[0], cycles[1] + 1, cycles[2]]

    monkeypatch.setattr(drive, "place", late)
    changed = decided()
    more_ns = changed.states_ns - shipped.states_ns
    assert more_ns[State.EVALUATE] == pytest.approx(len(shipped.by_step) / 0.85) and more_ns.sum() > 0


def test_a_store_in_rtl_counts_and_halves_as_its_table():
    from archsim.engine.interpreted.rtl_heatmap import RtlHeatmap
    from archsim.policies.ported_heatmap import COUNTER_LIMIT, _take_in

    rng = np.random.default_rng(3)
    experts = np.array([rng.choice(20, 4, replace=False) for _ in range(60)], np.int16)
    last, request, same = experts[:6].copy(), rng.integers(0, 6, 60), rng.random(60) < 0.5
    same[0] = False
    start = (COUNTER_LIMIT - rng.integers(0, 6, (20, 20))).astype(np.uint16)
    done = []
    for count in (_take_in, RtlHeatmap(20, 64)):
        heat, bound, changed = start.copy(), np.full(20, COUNTER_LIMIT), np.zeros(20, np.bool_)
        pairs = np.arange(60)
        halved = count(pairs, same, request, experts, last, heat, bound, changed, np.int64(4))
        done.append((int(halved), heat.tolist(), changed.tolist()))
    assert done[0] == done[1] and done[0][0] > 5
    twice = np.array([[1, 1]], np.int16)
    with pytest.raises(ArchsimError, match="a token has expert 1 twice"):
        RtlHeatmap(20, 64)(pairs[:1], same, request, twice, twice, heat, bound, changed, np.int64(4))


@pytest.mark.parametrize(
    ("change", "key", "said"),
    [
        (("engine: interpreted", "engine: event"), "", "engine: interpreted alone, not event"),
        (("assumptions: physical", "assumptions: published"), "", "needs decision_cost: charged, not free"),
        (("allo-paper", "allo"), "", "an allocator for allocation: paper, not for isca26 of allo"),
        ((), "comparators=24", "a power of two of comparators, not 24"),
        ((), "heatmap_port_bits=24", "heatmap_port_bits that is a multiple of 16, not 24"),
    ],
)
def test_what_has_no_rtl_is_refused_by_check_as_by_run(tmp_path, capsys, change, key, said):
    file = experiment(tmp_path / "refused", *([change] if change else []))
    further = ["--set", f"systems.0.decision.fsm.{key}"] if key else []
    for command in ("check", "sweep"):
        assert main([command, file, "--set", RTL, *further]) == 2
        assert said in capsys.readouterr().err


def test_sets_of_an_atu_that_no_component_has_are_refused(tmp_path, capsys):
    file = experiment(tmp_path / "odd")
    odd = "systems.0.decision={atu_entries: 6, atu_ways: 2}"
    for command in ("check", "sweep"):
        assert main([command, file, "--set", odd, "--set", BLOCKS]) == 2
        assert "Atu: expected entries / ways to be a power of two" in capsys.readouterr().err
