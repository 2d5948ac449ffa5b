"""The compiled kernels against the interpreter of the same tables, event for event; and what they leave behind."""

import itertools
from collections import Counter

import numpy as np
import pytest
from reference.interpreter import MOVE_STATES, SLICES, Reserved, Shared, ring_order, walk
from test_physical_laws import demand_of, policy, small_model, small_system

from archsim.engine.event import EventEngine
from archsim.engine.transfers import FLOWS, WAITING
from archsim.specs.library import load_assumptions
from archsim.specs.model import MoeLayers
from microarch import blocks, global_cp, local_cp
from microarch.request import Event, State

MODEL = small_model(experts=6, top_k=2, hidden=512, expert_ffn=384, shared_ffn=384, moe_layers=MoeLayers(first=0, last=1))


def ran(kernel):
    """Stages of the kernel's last step: (state, item, event, next, parent's number), and their starts and ends."""
    rows = kernel.pool.stages[: kernel.pool.count[0]]
    told = []
    for row in rows:
        done = row["kind"] == State.DONE
        event = None if done else Event(row["event"])
        following = None if done else State(blocks.NEXT[row["kind"], event])
        told.append((State(row["kind"]), int(row["item"]), event, following, int(row["parent"])))
    return told, rows["time"].copy(), rows["end"].copy()


def interpreted(interpreter):
    told = [(s.state, s.item, s.event, s.next, s.parent.number if s.parent else -1) for s in interpreter.log]
    return told, np.array([s.start for s in interpreter.log]), np.array([s.end for s in interpreter.log])


def by_item(told, starts, ends):
    """{(state, item): (event, next, parent's state and item)} and {(state, item): (start, end)}.

    Under ``shared`` no item is in a state twice. Rates of different solvers differ in the last bit, so that the order of
    unrelated events is only defined where their times differ by more.
    """
    names = [row[:2] for row in told]
    assert len(set(names)) == len(names)
    what = {row[:2]: (*row[2:4], names[row[4]] if row[4] >= 0 else None) for row in told}
    return what, {name: time for name, *time in sorted(zip(names, starts, ends, strict=True))}


class Both:
    """A kernel that runs every step also in the interpreter, and compares."""

    def __init__(self, engine, assumptions):
        self.kernel, self.machine, self.assumptions = engine._kernel, engine.machine, assumptions
        self.stages, self.seen = 0, Counter()

    def step(self, work, memory, tally, begin_ns):
        reserved = self.assumptions.contention == "reserved"
        strategy, switch = (Reserved, self.assumptions.ties == "sequence") if reserved else (
            Shared, self.assumptions.source == "queued")
        interpreter = strategy(self.machine, work, memory, switch)
        expected = interpreter.run(begin_ns)
        end = self.kernel.step(work, memory, tally, begin_ns)
        told, starts, ends = ran(self.kernel)
        told_here, starts_here, ends_here = interpreted(interpreter)
        if reserved:
            assert told == told_here
            assert (starts == starts_here).all() and (ends == ends_here).all() and end == expected
        else:
            what, when = by_item(told, starts, ends)
            what_here, when_here = by_item(told_here, starts_here, ends_here)
            assert what == what_here
            assert np.array([*when.values()]) == pytest.approx(np.array([*when_here.values()]), rel=1e-9)
            assert end == pytest.approx(expected, rel=1e-9)
        self.compare_local_cps(interpreter, work, told, ends)
        compare_memory(interpreter.memory, memory)
        check_drained(self.kernel, work, reserved)
        self.stages += len(told)
        self.seen += Counter((t.table, t.state, t.event) for t in interpreter.transitions)
        return end

    def compare_local_cps(self, interpreter, work, told, ends):
        """States at the end, and when the Local CPs changed: with the last bundle, and the last routed slice."""
        assert [local.state for local in interpreter.local] == work.local["state"].tolist()
        for t in interpreter.transitions:
            if t.table != "local_cp":
                continue
            if t.event == local_cp.Event.TOKENS:
                last = [end for (state, item, _, following, _), end in zip(told, ends, strict=True)
                        if state in MOVE_STATES and following in (State.DONE, State.ACT_WRITE)
                        and item < work.moves.shape[1] and work.moves[0, item]["dst"] == t.item]
            else:
                entries = work.entries
                last = [end for (state, item, *_), end in zip(told, ends, strict=True) if state == State.COMPUTE
                        and entries[item // SLICES]["routed"] and entries[item // SLICES]["die"] == t.item]
            assert t.time == pytest.approx(max(last), rel=1e-9)


class WalkedDecision:
    """The engine's cost model of decisions; what it says is compared with a walk through the Global CP's table."""

    def __init__(self, decision):
        self.decision, self.seen = decision, Counter()
        self.totals, self.decide = decision.totals, decision.decide

    def before_step(self, plan, rows):
        ready_ns = self.decision.before_step(plan, rows)
        ends = self.walk(self.states_ns(plan, rows, 0))
        late_ns = ends[global_cp.State.WRITE] - ends[global_cp.State.DISPATCH]
        assert ready_ns == pytest.approx(max(0.0, late_ns) if rows else 0.0, rel=1e-9)
        return ready_ns

    def after_step(self, plan, rows, copies, before_ns, step_ns):
        exposed_ns = self.decision.after_step(plan, rows, copies, before_ns, step_ns)
        states_ns = self.states_ns(plan, rows, copies)
        for state, hidden_ns in ((global_cp.State.READ, before_ns), (global_cp.State.UPDATE, step_ns)):
            states_ns[state] = max(0.0, states_ns[state] - hidden_ns)
        assert exposed_ns == pytest.approx(self.walk(states_ns)[global_cp.State.UPDATE], rel=1e-9)
        return exposed_ns

    def states_ns(self, plan, rows, copies):
        return self.decision._states_ns(self.decision._counts(plan, rows, copies))

    def walk(self, states_ns):
        """When each state ends."""
        start = global_cp.State.IDLE
        transitions = walk(global_cp.TABLE, start, lambda state: (global_cp.Event(int(state != start)), states_ns[state]))
        assert len({t.state for t in transitions}) == len(transitions) == len(global_cp.TABLE.steps)
        self.seen += Counter((t.table, t.state, t.event) for t in transitions)
        return {t.state: t.time for t in transitions}


def compare_memory(mine, memory):
    """The same slices in the LLCs, copies, and translations, in the same order of age."""
    tags = [[[int(key) for key in line if key >= 0] for line in die] for die in memory.llc_tags]
    assert tags == mine.llc
    assert [ring_order(ring) for ring in memory.copies.ring] == [list(copies) for copies in mine.copies]
    assert [ring_order(ring) for ring in memory.atu.ring] == [list(known) for known in mine.known]


def check_drained(kernel, work, reserved):
    """After a step nothing is claimed, queued, held or under way."""
    pool = kernel.pool
    if reserved:
        stages = pool.stages[: pool.count[0]]
        assert not pool.claims["claimed"].any()
        assert pool.count[2] == 0 and stages["admitted"].all()
        for claim, queue in zip(pool.claims, pool.queue, strict=True):
            assert stages["admitted"][queue[: claim["queued"]]].all()  # only entries of stages that were served elsewhere
    else:
        assert pool.count[WAITING] == 0 and pool.count[FLOWS] == 0
        assert not kernel._net.resources["load"].any()
        assert (pool.dies["running"] == -1).all() and (pool.dies["first"] == -1).all()
        assert (pool.dies["first_out"] == -1).all()
        if kernel._queued:
            assert not pool.dies["sending"].any()
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
)
POLICIES = {name: policy(name) for name in ("base", "ep", "allo", "pred", "allo+pred")}
SMALL_TABLES = {"hbm": {"capacity_bytes": 4_400_000}, "decision": {"atu_entries": 2}}  # copies and translations are evicted
RUNS = [(name, changes, {}) for name, changes in itertools.product(POLICIES, SETS)] + [
    ("pred", {"contention": "reserved"}, SMALL_TABLES),
    ("pred", {}, SMALL_TABLES),
]


def run_both(name, changes, hardware):
    """(transitions taken, stages compared, outcome of the run)."""
    system = small_system(2, 2, **hardware)
    assumptions = load_assumptions("physical", decision_cost="charged", heatmap_update="free", **changes)
    spec = POLICIES[name]
    engine = EventEngine(system, MODEL, spec, assumptions, demand_of(MODEL, system, spec, decode_steps=3, batch=12))
    engine._kernel = both = Both(engine, assumptions)
    engine.decision = WalkedDecision(engine.decision)
    outcome = engine.run()
    return both.seen + engine.decision.seen, both.stages, outcome


def test_kernels_and_interpreter_agree_event_for_event_on_every_transition(capsys):
    seen, stages = Counter(), 0
    for run in RUNS:
        taken, more, outcome = run_both(*run)
        assert more
        if run[2]:
            assert outcome.memory.copies.room["evictions"].sum() > 0
            assert outcome.memory.atu.misses.sum() > outcome.memory.atu.used.sum()
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
