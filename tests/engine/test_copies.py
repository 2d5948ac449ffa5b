"""Cached copies: what is written, saved, evicted and kept adds up; steps of the warm-up run and are not counted."""

from dataclasses import replace

import numpy as np
import pytest
from support.small_runs import BATCH, demand_of, policy, scenario_of, small_model, small_system

from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.engine import EventEngine
from archsim.engine.loop import Replay
from archsim.engine.machine import memory_fit
from archsim.engine.state import DATA_MESSAGES
from archsim.policies.registry import place_experts
from archsim.specs.loading.library import load_assumptions
from archsim.specs.model import MoeLayers
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


def replay_of(spec, room=None, engine=EventEngine, warmup=0, steps=STEPS, **changes):
    """A run at its start. ``room``: slices of copies that fit; None: unbounded."""
    model = small_model(moe_layers=MoeLayers(first=0, last=3))
    assumptions = load_assumptions(
        "physical", **PREDICTED, capacity="unbounded" if room is None else "finite", **changes
    )
    system = small_system() if room is None else system_with_room(room, spec, model)
    demand = demand_of(model, system, spec, decode_steps=steps)
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
