"""Cached copies: what is written, saved, evicted and kept adds up; steps of the warm-up run and are not counted."""

from dataclasses import replace

import numpy as np
import pytest
from support.small_runs import BATCH, demand_of, policy, scenario_of, small_model, small_system

from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.engine import EventEngine
from archsim.engine.loop import Replay
from archsim.engine.state import DATA_MESSAGES
from archsim.iteration.memory import memory_fit
from archsim.policies.registry import place_experts
from archsim.specs.library import load_assumptions
from archsim.specs.model import LayerSet
from archsim.specs.workload import WorkloadSpec

ENGINES = pytest.mark.parametrize("engine", [EventEngine, AnalyticalEngine])
PREDICTED = {"heatmap_update": "free", "decision_cost": "free"}
STEPS = 8


def system_with_room(slices, spec, model):
    """A 3 × 2 mesh whose fullest die has room for that many slices of copies."""
    weights = memory_fit(
        small_system(), model, load_assumptions("physical"), place_experts(spec, model, 6)
    ).demand_bytes
    room_bytes = int(slices * model.hidden * model.expert_ffn)
    return small_system(hbm={"capacity_bytes": int(weights.max()) + room_bytes, "reserved_fraction": 0.0})


def replay_of(spec, room=None, engine=EventEngine, warmup=0, steps=STEPS, seed=1, **changes):
    """A run at its start. ``room``: slices of copies that fit; None: unbounded."""
    model = small_model(moe_layers=LayerSet(first=0, last=3))
    assumptions = load_assumptions(
        "physical", **PREDICTED, capacity="unbounded" if room is None else "finite", **changes
    )
    system = small_system() if room is None else system_with_room(room, spec, model)
    demand = demand_of(model, system, spec, seed, decode_steps=steps)
    workload = WorkloadSpec(trace={"synthetic": {}}, batch=BATCH, decode_steps=steps, warmup_steps=warmup)
    scenario = replace(scenario_of(system, model, spec, assumptions), workload=workload)
    return Replay(engine(scenario, demand.layer_ids), demand)


def away_slices(run):
    """Slices of experts that dies run without holding them by placement; runs the run."""
    away = 0
    for result in run.steps():
        plan, holds = result.times.plan, run.engine.placement.holds[run.engine.rows[result.layer]]
        away += 3 * int(np.count_nonzero(~holds[plan.expert, plan.die]))
    return away


@ENGINES
@pytest.mark.parametrize("room", [None, 24, 40.5])
def test_what_is_written_saved_and_evicted_adds_up(room, engine):
    """Every slice of another home is either saved or crosses the fabric; kept less evicted is resident."""
    run = replay_of(policy("pred"), room, engine)
    away, engine = away_slices(run), run.engine
    copies, tally, size = engine.memory.copies, engine.tally, engine.machine.slice_bytes
    written = tally.dies["write_bytes"]
    moved = tally.dies["remote_read_bytes"].sum() // size + tally.llc_hits[1]
    assert copies.room["hits"].sum() + moved == away > 0
    assert copies.room["hits"].sum() > 0
    assert (written - copies.room["evictions"] * size == copies.room["used_bytes"]).all()
    assert (copies.present.sum(axis=1) * size == copies.room["used_bytes"]).all()
    assert (copies.room["unused"] <= copies.room["evictions"]).all()
    assert (copies.room["evictions"].sum() > 0) == (room is not None)


def test_copies_that_were_read_are_told_from_those_that_were_not():
    """A die that must evict at every write reads what it wrote rarely; one that never evicts has no unused ones."""
    tight, wide = (replay_of(policy("pred"), room).run().memory.copies.room for room in (24, None))
    assert 0 < tight["unused"].sum() <= tight["evictions"].sum()
    assert wide["unused"].sum() == wide["evictions"].sum() == 0 < wide["hits"].sum()


@ENGINES
@pytest.mark.parametrize("room", [None, 24.5])
def test_steps_of_the_warm_up_run_and_are_not_counted(engine, room):
    """Counted steps take the time that they take after the same steps of a run that counts all."""
    spec, warmup = policy("pred"), 3
    whole, warm = replay_of(spec, room, engine), replay_of(spec, room, engine, warmup)
    every, counted = whole.run(), warm.run()
    first = warmup + 1  # iteration 0 is the prefill
    assert not counted.step_ns[:first].any() and not counted.load[:first].any()
    assert (counted.step_ns[first:] == every.step_ns[first:]).all() and counted.step_ns[first:].all()
    assert counted.prefill_ns == 0.0 and counted.decode_ns == pytest.approx(counted.step_ns.sum(), rel=1e-12)
    assert (counted.memory.copies.present == every.memory.copies.present).all()
    before = replay_of(spec, room, engine)
    for result in before.steps():
        if (result.step, result.layer) == (warmup, before.engine.layers - 1):
            break
    for field in counted.tally.dies.dtype.names:
        assert (every.tally.dies[field] - before.engine.tally.dies[field] == counted.tally.dies[field]).all()
    room_of = [each.room for each in (every.memory.copies, before.engine.memory.copies, counted.memory.copies)]
    for field in ("evictions", "unused", "hits"):
        assert (room_of[0][field] - room_of[1][field] == room_of[2][field]).all()
    assert (counted.tally.hops == every.tally.hops - before.engine.tally.hops).all()
    assert counted.tally.hops[DATA_MESSAGES].any()


def test_a_run_that_ends_in_its_warm_up_counts_nothing():
    run = replay_of(policy("pred"), None, warmup=STEPS - 1, steps=STEPS)
    run.demands = [pair for pair in run.demands if pair[1].step < 4]
    outcome = run.run()
    assert outcome.decode_ns == outcome.prefill_ns == 0.0 and len(outcome.step_ns) == 0
    assert not outcome.tally.resources["bytes"].any() and not outcome.memory.copies.room["hits"].any()


def test_a_warm_up_leaves_a_step_to_count():
    with pytest.raises(ValueError, match="leaves none of the 8 decode steps to count; expected at most 7"):
        WorkloadSpec(trace={"synthetic": {}}, batch=1, decode_steps=8, warmup_steps=8)


ADMITTED = {"name": "heatmap", "admission": "reread"}


@pytest.mark.parametrize("room", [None, 24, 40.5])
@pytest.mark.parametrize("allocation", ["first_seen", "copy_aware"])
def test_admission_never_writes_more_than_the_papers_rule(allocation, room):
    """In every step its bits are among those of the paper's rule; over a run it writes no more."""
    paper, admitted = (
        replay_of(policy("pred", allocation=allocation, prediction=rule), room, steps=16)
        for rule in ("heatmap", ADMITTED)
    )
    seen = []
    admission = admitted.engine._admission
    judge = admission.admit

    def watched(layer, plan, holds, bits, copies):
        before = None if bits is None else bits.copy()
        judge(layer, plan, holds, bits, copies)
        seen.append(bits is None or bool((bits <= before).all()))

    admission.admit = watched
    outcomes = paper.run(), admitted.run()
    written = [outcome.tally.dies["write_bytes"].sum() for outcome in outcomes]
    assert len(seen) > 50 and all(seen)
    assert written[1] <= written[0]


def test_admission_saves_more_than_it_writes_where_the_papers_rule_thrashes():
    """The paper's rule evicts most of its copies unused; admission writes a fraction, and saves as much."""
    outcomes = [replay_of(policy("pred", prediction=rule), 24, steps=20).run() for rule in ("heatmap", ADMITTED)]
    size = outcomes[0].machine.slice_bytes
    written = [outcome.tally.dies["write_bytes"].sum() // size for outcome in outcomes]
    saved = [outcome.memory.copies.room["hits"].sum() for outcome in outcomes]
    unused = [outcome.memory.copies.room["unused"].sum() for outcome in outcomes]
    assert saved[0] < written[0] and unused[0] > written[0] / 2
    assert saved[1] > written[1] and saved[1] >= saved[0] and 4 * written[1] < written[0]


@pytest.mark.parametrize("seed", range(3))
def test_with_room_for_all_copy_aware_reads_no_more_remotely_than_first_seen(seed):
    """Not a theorem (an adversary may unbalance every step anew); holds wherever experts recur."""
    rows = [
        replay_of(policy("pred", allocation=allocation), None, steps=6 + seed)
        .run()
        .tally.dies["remote_read_bytes"]
        .sum()
        for allocation in ("first_seen", "copy_aware")
    ]
    assert rows[1] <= rows[0] and rows[0] > 0


@pytest.mark.parametrize("contention", ["shared", "reserved"])
@ENGINES
def test_background_writes_end_steps_earlier_and_lose_no_bytes(engine, contention):
    """The same slices are written; what is left at a step's end passes the HBM in the next."""
    quick = {"gemm": "roofline", "activations": "replicated", "contention": contention}
    spec = policy("pred", prediction={"name": "heatmap", "top_fraction": 1.0})
    runs = [replay_of(spec, None, engine, copy_writes=way, **quick) for way in ("barrier", "background")]
    left = [[], []]
    for run, seen in zip(runs, left, strict=True):
        seen += [
            (result.times.end_ns, run.engine.memory.copies.room["unwritten_bytes"].sum()) for result in run.steps()
        ]
    assert not any(unwritten for _, unwritten in left[0]) and any(unwritten for _, unwritten in left[1])
    assert left[1][-1][0] < left[0][-1][0]
    written, moved = (
        [each.engine.tally.dies["write_bytes"] for each in runs],
        [each.engine.tally.resources["bytes"][6:12] for each in runs],
    )
    assert (written[0] == written[1]).all() and written[0].any()
    unwritten = runs[1].engine.memory.copies.room["unwritten_bytes"]
    if engine is EventEngine and contention == "shared":
        assert (moved[1] + unwritten == moved[0]).all()
