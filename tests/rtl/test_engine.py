"""Runs with components in RTL give the files of runs with tables, byte for byte; what has no RTL is refused."""

import csv

import numpy as np
import pytest
from support.small_runs import demand_of, policy, replay, small_model, small_system
from support.tiny import TINY

from archsim.base.errors import ArchsimError
from archsim.cli.main import main
from archsim.engine.interpreted.engine import InterpretedEngine
from archsim.specs.decision import FsmSpec
from archsim.specs.library import load_assumptions
from archsim.specs.model import LayerSet
from microarch.blocks.global_cp import State

pytest.importorskip("amaranth", reason="RTL: pip install 'archsim[rtl]'")

FILES = ("results.csv", "results.parquet")
PREDICTING = "{name: predicting, allocation: {name: paper, block_tokens: 4}, prediction: {name: heatmap, top_n: 3}}"
SMALL = (
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
    text = SMALL.replace(SMALL[SMALL.index("- name: square") : SMALL.index("models:")], "")
    for one, other in changes:
        assert one in text
        text = text.replace(one, other)
    file.write_text(text, encoding="utf-8")
    return str(file)


def files_of(folder, *changes):
    """The files of a run."""
    overrides = [each for change in changes for each in ("--set", change)]
    file = experiment(folder)
    assert main(["sweep", file, "--out", str(folder / "out"), "--jobs", "1", *overrides]) == 0
    return [(folder / "out" / name).read_bytes() for name in FILES]


def test_a_run_in_rtl_gives_the_same_files(tmp_path):
    table = files_of(tmp_path / "table", SYSTEM % "table")
    assert files_of(tmp_path / "rtl", SYSTEM % "rtl", BLOCKS) == table
    rows = list(csv.DictReader(table[0].decode().splitlines()))
    assert len(rows) == 3 and float(rows[2]["local_hbm_write_bytes"]) > 0 and float(rows[2]["atu_misses"]) > 0
    assert float(rows[1]["decision_exposed_ns"]) > float(rows[0]["decision_exposed_ns"]) > 0


UNEQUAL = "systems.0.dies_as_built={speed: {table: [[0.5, 1], [1.1, 0.8], [1, 1], [0.7, 1], [1, 1], [1, 1]]}}"
SLOW_LINK = "systems.0.links_as_built={degraded: [{link: [0, 1], bandwidth: 20 %}]}"
ASKS = "{name: asks, allocation: {name: paper, block_tokens: 4, needs: speeds}}"


def test_an_allocator_in_rtl_sees_speeds_of_dies_and_links_as_its_table(tmp_path):
    """Speeds change plans, the multiplier takes a cycle a block, and components do both as tables do."""
    def run(name, made, change=""):
        ask = (SMALL[SMALL.index("[ep, allo-paper"):].partition("\n")[0], f"[allo-paper, {ASKS}]")
        file, out = experiment(tmp_path / name, ask), tmp_path / name / "out"
        changes = [SYSTEM % made, *((UNEQUAL, SLOW_LINK) if change else ())]
        overrides = [each for one in changes for each in ("--set", one)]
        assert main(["sweep", file, "--out", str(out), "--jobs", "1", *overrides]) == 0
        return (out / "results.csv").read_bytes()

    equal, unequal = run("equal", "rtl"), run("rtl", "rtl", "unequal")
    assert unequal == run("table", "table", "unequal") and unequal != equal
    rows = list(csv.DictReader(equal.decode().splitlines()))
    assert float(rows[1]["decision_ns"]) > float(rows[0]["decision_ns"])


def test_a_component_that_decides_otherwise_changes_the_run(monkeypatch):
    from microarch.rtl import lockstep

    def decided():
        fsm = {"fsm": FsmSpec(implementation="rtl")}
        system, spec = small_system(2, 2, decision=fsm), policy("allo-paper")
        demand = demand_of(MODEL, system, spec, batch=12, decode_steps=2)
        run = replay(system, MODEL, spec, load_assumptions("physical"), demand, engine=InterpretedEngine)
        return run.run().decision

    place, shipped = lockstep.place, decided()

    async def late(*given):
        entries, cycles = await place(*given)
        return entries, [cycles[0], cycles[1] + 1, cycles[2]]

    monkeypatch.setattr(lockstep, "place", late)
    changed = decided()
    more_ns = changed.states_ns - shipped.states_ns
    assert more_ns[State.EVALUATE] == pytest.approx(len(shipped.by_step) / 0.85) and more_ns.sum() > 0


def test_a_store_in_rtl_counts_and_halves_as_its_table():
    from archsim.engine.interpreted.rtl_decision import RtlHeatmap
    from archsim.policies.heatmap import COUNTER_LIMIT, _take_in

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


@pytest.mark.parametrize(("change", "key", "said"), [
    (("engine: interpreted", "engine: event"), "", "engine: interpreted alone, not event"),
    (("assumptions: physical", "assumptions: published"), "", "needs decision_cost: charged, not free"),
    (("allo-paper", "allo"), "", "an allocator for allocation: paper, not for isca26 of allo"),
    ((), "comparators=24", "a power of two of comparators, not 24"),
    ((), "heatmap_port_bits=24", "heatmap_port_bits that is a multiple of 16, not 24"),
])
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
