"""The compiled kernels against the interpreter of the same tables, event for event; and what they leave behind."""

import itertools
from collections import Counter

import numpy as np
import pytest
from reference.deciding import SlowGlobalCP
from reference.ported_heatmap import SlowHeatmap, port_transitions, top_of
from support import decompressor
from support.decompressor import State as At
from support.examples import examples, sampled
from support.random_systems import (
    OVERTAKEN,
    WatchedPath,
    assert_equal_runs,
    assert_kernels_equal_interpreter,
    in_rtl,
    random_large_system,
    run_system,
)
from support.small_runs import demand_of, policy, replay, small_model, small_system, traffic

from archsim.engine.engine import EventEngine
from archsim.engine.event.claims import BOOKED, CLAIMED, STAGES
from archsim.engine.event.flows import FLOWS, WAITING
from archsim.engine.interpreted import blocks as served
from archsim.engine.interpreted.engine import InterpretedEngine
from archsim.engine.interpreted.in_turns import SharedInTurns
from archsim.engine.interpreted.interpreter import walk
from archsim.engine.interpreted.memory import DieMemory, ring_order
from archsim.engine.interpreted.reserved import Reserved
from archsim.engine.interpreted.shared import Shared
from archsim.engine.machine import share_every_ns
from archsim.engine.transitions import Processor
from archsim.machine.decision import FsmSpec, HostSpec
from archsim.machine.fabric import EdgeSpec
from archsim.model.attention import LayerSet
from archsim.specs.library import load_assumptions
from archsim.traffic.trace import draw_requests
from microarch.blocks import catalogue as blocks
from microarch.blocks import global_cp, local_cp
from microarch.blocks.request import Event, State

MODEL = small_model(
    experts=6, top_k=2, hidden=512, expert_ffn=384, shared_ffn=384, moe_layers=LayerSet(first=0, last=1)
)


def ran(kernel):
    """Stages of the kernel's last step: (state, item, event, next, parent's number), and their starts and ends."""
    rows = kernel.pool.stages[: kernel.pool.count[0]]
    logged = []
    for row in rows:
        done = row["kind"] == State.DONE
        event = None if done else Event(row["event"])
        following = None if done else State(blocks.NEXT[row["kind"], event])
        logged.append((State(row["kind"]), int(row["item"]), event, following, int(row["parent"])))
    return logged, rows["time"].copy(), rows["end"].copy()


def interpreted(interpreter):
    logged = [(s.state, s.item, s.event, s.next, s.parent.number if s.parent else -1) for s in interpreter.log]
    return logged, np.array([s.start for s in interpreter.log]), np.array([s.end for s in interpreter.log])


def by_item(logged, starts, ends):
    """{(state, item): (event, next, parent's state and item)} and {(state, item): (start, end)}.

    Under ``shared`` no item is in a state twice. Rates of different solvers differ in the last bit, so that the order
    of unrelated events is only defined where their times differ by more.
    """
    names = [row[:2] for row in logged]
    assert len(set(names)) == len(names)
    what = {row[:2]: (*row[2:4], names[row[4]] if row[4] >= 0 else None) for row in logged}
    return what, {name: time for name, *time in sorted(zip(names, starts, ends, strict=True))}


class Both:
    """A kernel that runs every step also in the interpreter, on clocks of its own, and compares.

    The interpreter takes from the engine what is no time: the plan of the one policy function, and the chains and
    moves.
    """

    def __init__(self, replay, system, assumptions, routing):
        engine = replay.engine
        self.engine, self.kernel, self.machine, self.assumptions = (
            engine,
            engine.execution.kernel,
            engine.machine,
            assumptions,
        )
        self.stages, self.seen, self.log = 0, Counter(), []
        self.now = self.wall = self.before_ns = 0.0
        self.dropped = 0
        self.demand = demand = replay.demands
        self.steps = iter(np.argwhere(demand.tokens.any(axis=2)).tolist())
        self.global_cp = SlowGlobalCP(system, MODEL, engine.fabric, assumptions.decision_cost == "charged")
        self.fsm, self.heatmap = system.decision.fsm, None
        if engine.policy.predictor and assumptions.heatmap_update == "limited":
            self.heatmap = SlowHeatmap(routing, demand.layers, MODEL.experts, top_of(engine.policy.predictor))
        self.began = -1
        decide = engine.decision.decide
        engine.decision.decide = lambda allocate, view: self.remember(decide(allocate, view))

    def remember(self, plan):
        self.plan = plan
        return plan

    def step(self, work, memory, tally, begin_ns):
        step, layer = next(self.steps)
        bits, rows = self.predict(step, layer, memory)
        assert (work.cp_en == bits).all()
        ready_ns = self.global_cp.bits_ready(self.plan, rows)
        interpreter = self.interpreter(work._replace(cp_en=bits, cp_ready_ns=ready_ns), memory)
        expected = interpreter.run(self.now)
        end = self.kernel.step(work, memory, tally, begin_ns)
        self.compare(interpreter, work, memory, end, expected)
        self.note(step, layer, interpreter, rows, expected)
        return end

    def predict(self, step, layer, memory):
        """(cp_en bits, heatmap rows read)."""
        bits = np.zeros((self.machine.dies, MODEL.experts + MODEL.shared_experts), np.uint8)
        if self.heatmap:
            if step > self.began:
                self.heatmap.begin(step)
                self.began = step
            hot = self.heatmap.predicted(layer)
        elif self.engine.policy.predictor:
            marks = np.unpackbits(self.demand.predicted_rows[step, layer], axis=1, bitorder="little")
            hot = [set(np.flatnonzero(row).tolist()) for row in marks]
        else:
            hot = []
        if not any(hot):
            return bits, 0
        for expert, die in zip(self.plan.expert.tolist(), self.plan.die.tolist(), strict=True):
            for following in hot[expert]:
                bits[die, following] = memory.copies.room[die]["limit_bytes"] >= self.machine.slice_bytes
        return bits, len(set(self.plan.expert.tolist()))

    def interpreter(self, work, memory):
        memory = DieMemory(memory, int(self.machine.slice_bytes))
        if self.assumptions.contention == "reserved":
            return Reserved(self.machine, work, memory, self.assumptions.ties == "sequence")
        strategy = SharedInTurns if self.assumptions.arbitration == "round_robin" else Shared
        return strategy(
            self.machine, work, memory, self.assumptions.source == "queued", self.assumptions.reads == "in_order",
            share_every_ns(self.machine, self.assumptions),
        )  # fmt: skip

    def compare(self, interpreter, work, memory, end, expected):
        reserved = self.assumptions.contention == "reserved"
        logged, starts, ends = ran(self.kernel)
        logged_here, starts_here, ends_here = interpreted(interpreter)
        if reserved:
            assert logged == logged_here
            assert (starts == starts_here).all() and (ends == ends_here).all() and end == expected
        else:
            what, when = by_item(logged, starts, ends)
            what_here, when_here = by_item(logged_here, starts_here, ends_here)
            assert what == what_here
            assert np.array([*when.values()]) == pytest.approx(np.array([*when_here.values()]), rel=1e-9)
            assert end == pytest.approx(expected, rel=1e-9)
        assert [local.state for local in interpreter.local] == work.local["state"].tolist()
        compare_memory(interpreter.memory, memory)
        assert memory.copies.room["unwritten_bytes"] == pytest.approx(interpreter.memory.unwritten, abs=1)
        check_drained(self.kernel, work, reserved)
        self.stages += len(logged)

    def note(self, step, layer, interpreter, rows, end):
        """The interpreter's log of the step, on its own clock with decisions; what the heatmap takes in meanwhile."""
        step_ns = end - self.now
        copies = sum(stage.state == State.COPY and stage.item >= 0 for stage in interpreter.log)
        decided = self.global_cp.decide(self.plan, rows, copies, self.wall, self.before_ns, step_ns)
        ends = {t.state: t.time for t in decided}
        told_ns = ends[global_cp.State.DISPATCH] - (self.now if self.assumptions.contention == "reserved" else 0.0)
        local = [t for t in interpreter.transitions if t.table == "local_cp"]
        self.log += [
            (step, layer, Processor.GLOBAL_CP, self.global_cp.die, t.state, t.event, t.next, t.time) for t in decided
        ]
        self.log += [
            (step, layer, Processor.LOCAL_CP, t.item, t.state, t.event, t.next, told_ns + t.time) for t in local
        ]
        self.seen += Counter((t.table, t.state, t.event) for t in interpreter.transitions + decided)
        if self.heatmap:
            port = MODEL.experts, MODEL.top_k, self.fsm.heatmap_port_bits, self.fsm.clock_hz
            self.dropped += self.heatmap.take_in(layer, port_transitions(step_ns, *port))
        self.now, self.wall, self.before_ns = end, ends[global_cp.State.UPDATE], step_ns


def compare_logs(columns, expected, outcome):
    """Every transition of every command processor, once, with the same event, next state and time; in order of time."""
    names = "step", "layer", "block", "die", "state", "event", "next"
    logged = list(zip(*(columns[name].tolist() for name in names), strict=True))
    here = [tuple(int(value) for value in row[:7]) for row in expected]
    assert len(set(logged)) == len(logged) > 0
    assert sorted(logged) == sorted(here)
    times = dict(zip(logged, columns["time_ns"].tolist(), strict=True))
    times_here = dict(zip(here, (row[7] for row in expected), strict=True))
    assert [times[row] for row in logged] == pytest.approx([times_here[row] for row in logged], rel=1e-9)
    for step in {row[:2] for row in logged}:
        assert (np.diff([times[row] for row in logged if row[:2] == step]) >= 0).all()
    ends = [times[row] for row in logged if row[2] == Processor.GLOBAL_CP and row[4] == global_cp.State.UPDATE]
    assert max(ends) == pytest.approx(outcome.prefill_ns + outcome.decode_ns, rel=1e-9)


def compare_memory(mine, memory):
    """The same slices in the LLCs, copies, and translations, in the same order of age."""
    tags = [[[int(key) for key in line if key >= 0] for line in die] for die in memory.llc_tags]
    assert tags == mine.llc
    assert [ring_order(ring) for ring in memory.copies.ring] == [list(copies) for copies in mine.copies]
    assert [[[tag for tag in line if tag >= 0] for line in die] for die in memory.atu.tags.tolist()] == mine.known


def check_drained(kernel, work, reserved):
    """After a step nothing is claimed, queued, held or under way."""
    pool = kernel.pool
    if reserved:
        stages = pool.stages[: pool.count[STAGES]]
        assert not pool.claims["claimed"].any()
        assert pool.count[BOOKED] == 0 and pool.count[CLAIMED] == 0 and (pool.waits_for[: len(stages)] < 0).all()
        for claim, queue in zip(pool.claims, pool.queue, strict=True):
            # only entries of stages that were served elsewhere
            assert (pool.waits_for[queue[: claim["queued"]]] < 0).all()
    else:
        assert pool.count[WAITING] == 0 and pool.count[FLOWS] == 0
        flows = kernel._groups.of(work)
        assert not flows.net.resources["load"].any()
        assert (pool.dies["running"] == -1).all() and (pool.dies["first"] == -1).all()
        assert not flows.lines["busy"].any() and (flows.lines["first"] == -1).all()
    local = work.local
    assert (local["next_chain"] == local["end_chain"]).all()
    assert not local["moves_left"].any() and not local["routed_left"].any() and (local["held"] == -1).all()


SETS = (
    {"contention": "reserved"},
    {"contention": "reserved", "ties": "heapq", "llc": "slices", "activations": "ignored", "weights": "routed",
     "numbering": "column_major", "order": "as_created"},
    {"contention": "reserved", "llc": "slices"},
    {},
    {"source": "queued"},
    {"llc": "slices", "activations": "ignored"},
    {"arbitration": "round_robin"},
    {"reads": "together"},
    {"reads": "together", "source": "queued"},
    {"rate_updates": "per_round_trip"},
    {"rate_updates": "per_round_trip", "arbitration": "round_robin", "reads": "together"},
)  # fmt: skip
FREE_VECTORS = {"transfer_software": "free", "dispatch": "per_token_expert", "combine": "weights_dtype"}
# a kernel for every expert, and steps that end when their copies are written
ONE_BY_ONE = {"gemm": "calibrated", "copy_writes": "barrier", "reads": "together"}
POLICIES = {name: policy(name) for name in ("base", "ep", "allo", "pred", "allo+pred")}
# copies and translations are evicted
SMALL_TABLES = {"hbm": {"capacity_bytes": 4_400_000}, "decision": {"atu_entries": 2}}
# slices of 192 KiB stream through less than two of them
SMALL_LLC = {"llc": {"capacity_bytes": 2**19, "segment_bytes": 2**16}}
# steps end before their copies are written
BACKGROUND = {"gemm": "roofline", "activations": "ignored"}
SLOW_HBM = {"hbm": {"bandwidth_bytes_per_s": 0.3e12}}
LIMITED = {"heatmap_update": "limited"}
ROOFLINE = {"gemm": "roofline"}  # steps so short that a slow port does drop pairs
# late bits, pairs are dropped
LATE = {"decision": {"fsm": FsmSpec(clock_hz=1e7, heatmap_port_bits=16, sorter="bitonic")}}
FIRMWARE = {"decision": {"executor": "firmware"}}
HOST = {"decision": {"executor": "host", "host": HostSpec(time_ns=3000.0)}}
SWITCH = {"topology": {"name": "switch"}}
UNEQUAL = {
    "topology": {"name": "edges", "edges": (EdgeSpec(dies=(0, 1), bandwidth_bytes_per_s=0.2e12),
                 EdgeSpec(dies=(1, 2), hop_latency_ns=900.0), EdgeSpec(dies=(2, 3)), EdgeSpec(dies=(0, 3)))},
}  # fmt: skip
EVERY_PAIR = [(name, changes, {}) for name, changes in itertools.product(POLICIES, SETS)]
# At each commit the policy that has all parts under every set of assumptions, and all under the first of each kind.
PAIRS = [
    run for run in EVERY_PAIR
    if examples(2, 1) > 1 or run[0] == "allo+pred" or run[1] in ({}, {"contention": "reserved"})
]  # fmt: skip
PARTICULAR = [
    ("pred", {"contention": "reserved"}, SMALL_TABLES),
    ("pred", {}, SMALL_TABLES),
    ("pred", {"contention": "reserved"} | BACKGROUND, SLOW_HBM),
    ("pred", BACKGROUND, SLOW_HBM),
    ("pred", LIMITED, {}),
    ("allo+pred", LIMITED | {"contention": "reserved"}, {}),
    ("pred", LIMITED | ROOFLINE, LATE),
    ("pred", LIMITED | ROOFLINE | {"contention": "reserved"}, LATE),
    ("allo+pred", LIMITED, FIRMWARE),
    ("allo+pred", {}, HOST),
    ("ep", {"contention": "reserved"}, HOST),
    ("allo+pred", LIMITED | {"decision_cost": "free"}, {}),
    *(
        ("allo+pred", changes, links)
        for changes, links in itertools.product(({}, {"contention": "reserved"}), (SWITCH, UNEQUAL))
    ),
    ("base", {"arbitration": "round_robin"}, SWITCH),
    ("base", {}, SMALL_LLC),
    ("pred", {}, SMALL_LLC),
    *(
        ("allo+pred", changes, {"launch": "gpu"})
        for changes in ({}, {"source": "queued"}, {"contention": "reserved"}, {"arbitration": "round_robin"})
    ),
    *(
        ("allo+pred", older | changes, {})
        for older, changes in itertools.product((FREE_VECTORS, ONE_BY_ONE), ({}, {"contention": "reserved"}))
    ),
]
RUNS = PAIRS + PARTICULAR[:: 3 - examples(2, 1)]  # nightly all of them, else half


def run_both(name, changes, hardware):
    """(transitions taken, stages compared, outcome of the run)."""
    launch = hardware.get("launch", "local_cp")
    blocks = {block: fields for block, fields in hardware.items() if block != "launch"}
    system = small_system(2, 2, **blocks).model_copy(update={"launch": launch})
    given = {"decision_cost": "charged", "heatmap_update": "free"} | changes
    assumptions = load_assumptions("physical", **given)
    spec = POLICIES[name]
    steps = 3 if hardware == LATE else examples(3, 2)
    routing = list(traffic(MODEL, 1, steps, 12).steps(draw_requests(12, 12, 0), steps))
    demand = demand_of(MODEL, system, spec, decode_steps=steps, batch=12)
    run = replay(system, MODEL, spec, assumptions, demand, iter(routing), keep_transitions=True)
    run.engine.execution.kernel = both = Both(run, system, assumptions, routing)
    outcome = run.run()
    compare_logs(run.engine.transitions(), both.log, outcome)
    assert outcome.heatmap_dropped == both.dropped
    assert (both.dropped > 0) == (hardware == LATE)
    return both.seen, both.stages, outcome


@pytest.mark.parametrize("changes", SETS, ids=str)
def test_reset_blocks_that_have_run_are_as_good_as_new(changes):
    """A kernel that was left after a few steps, in the middle of a run, runs another as a new kernel does, to the
    bit.
    """
    system, spec = small_system(2, 2), POLICIES["allo+pred"]
    assumptions = load_assumptions("physical", heatmap_update="free", **changes)
    demand = demand_of(MODEL, system, spec, decode_steps=3, batch=12)
    left, new, again = (replay(system, MODEL, spec, assumptions, demand, keep_transitions=True) for _ in range(3))
    for _ in itertools.islice(left.steps(), 5):
        pass
    again.engine.execution.kernel = left.engine.execution.kernel
    runs = [each.run() for each in (new, again)]
    assert runs[0].step_ns.tobytes() == runs[1].step_ns.tobytes()
    assert runs[0].tally.resources.tobytes() == runs[1].tally.resources.tobytes()
    logged = [each.engine.transitions() for each in (new, again)]
    assert len(logged[0]["step"]) > 0 and all((logged[0][name] == logged[1][name]).all() for name in logged[0])


def test_a_run_without_a_log_is_the_same_and_has_none():
    system, spec, assumptions = (
        small_system(2, 2),
        POLICIES["pred"],
        load_assumptions("physical", heatmap_update="free"),
    )
    demand = demand_of(MODEL, system, spec, decode_steps=3, batch=12)
    runs = [replay(system, MODEL, spec, assumptions, demand, keep_transitions=kept) for kept in (False, True)]
    quiet, kept = (each.run() for each in runs)
    assert (quiet.step_ns == kept.step_ns).all() and quiet.tally.resources.tobytes() == kept.tally.resources.tobytes()
    assert quiet.decision.by_step == kept.decision.by_step
    with pytest.raises(ValueError, match="keep_transitions"):
        runs[0].engine.transitions()


def test_kernels_and_interpreter_agree_event_for_event_on_every_transition(capsys):
    seen, stages = Counter(), 0
    for run in RUNS:
        taken, more, outcome = run_both(*run)
        assert more
        if run[2] == SMALL_TABLES:
            assert outcome.memory.copies.room["evictions"].sum() > 0
            assert outcome.memory.atu.misses.sum() > (outcome.memory.atu.tags >= 0).sum()
        seen, stages = seen + taken, stages + more
    every = [(table.name, *key) for table in (blocks.REQUEST, local_cp.TABLE, global_cp.TABLE) for key in table.steps]
    assert {key for table in blocks.TABLES.values() for key in table.steps} <= {key[1:] for key in every}
    with capsys.disabled():
        percent = 100 * len(seen) / len(every)
        print(f"\n{len(RUNS)} runs, {stages} stages; transitions taken: {len(seen)} of {len(every)}, {percent:.0f} %")
        for table, state, event in every:
            print(f"  {table:9}  {state.name:10}  {event.name:9}  {seen[table, state, event]:6}")
    assert len(RUNS) >= 20
    assert set(seen) == set(every)


# ``engine: interpreted`` beside the compiled kernels: the same results, to the last column.

SYSTEMS = 12  # of the 1,000 that were compared
SPECIAL = (253, 10281)  # reads shorter than a first segment; flows that go on at the rate of those before


@pytest.mark.parametrize("number", sampled([*range(SYSTEMS), *SPECIAL], lambda number: number % 2 == 1))
def test_kernels_equal_the_interpreter_on_random_systems(number):
    assert_kernels_equal_interpreter(number)


# As many experts as models have, where bits of a prediction come while slices are under way.
LARGE_SYSTEMS = 600
IN_RTL = (2, 30, 64, 82, 88, 92)


@pytest.mark.parametrize("number", sampled(range(LARGE_SYSTEMS), lambda number: number in OVERTAKEN[::2]))
def test_kernels_equal_the_interpreter_on_as_many_experts_as_models_have(number, monkeypatch):
    monkeypatch.setattr(served, "ReturnPath", WatchedPath)
    monkeypatch.setattr(WatchedPath, "overtaken", 0)
    assert_kernels_equal_interpreter(number, random_large_system)
    assert WatchedPath.overtaken > 0 or number not in OVERTAKEN


@pytest.mark.nightly
@pytest.mark.parametrize("number", IN_RTL)
def test_kernels_equal_the_decision_in_rtl_on_as_many_experts_as_models_have(number):
    pytest.importorskip("amaranth", reason="RTL: pip install 'archsim[rtl]'")
    compiled = run_system(number, EventEngine, random_large_system)
    assert_equal_runs(compiled, run_system(number, InterpretedEngine, in_rtl), exact=False)


EXPAND_NS = decompressor.Parameters().expand_ns


def test_the_table_can_be_walked_from_the_new_state():
    only = walk(decompressor.REQUEST, At.EXPAND, lambda state: (Event.SERVED, EXPAND_NS if state == At.EXPAND else 7.0))
    assert [(t.time, t.state, t.next) for t in only] == [
        (EXPAND_NS, At.EXPAND, At.COMPUTE),
        (EXPAND_NS + 7.0, At.COMPUTE, At.DONE),
    ]


def test_the_table_that_was_shipped_does_not_know_the_state():
    assert not any(state == At.EXPAND for state, _ in blocks.REQUEST.steps)
    with pytest.raises(KeyError):
        walk(blocks.REQUEST, At.EXPAND, lambda state: (Event.SERVED, 0.0))
