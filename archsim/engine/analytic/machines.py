"""Many machines at once: the steps of one plan, walked for machines that differ in rates and latencies alone.

Where a policy's plan reads no rate of the machine (`shares_plan`), machines that differ in `RATES` have the same
plans, moves, caches and tables. A *part* is what some of these rates decide: each combination of a part's rates is set
up once, as an engine of its own that records its steps (`record`), and the machines are combinations of parts:

========= ==================================================== =======================================================
part      rates                                                decides
========= ==================================================== =======================================================
``work``  of the array, and bandwidth of HBM                   times of products, `Machine.hbm_bytes_per_ns`
``links`` of the fabric, and latency of HBM                    links, routes, software of transfers, decisions
``llc``   of the LLC                                           its latencies
========= ==================================================== =======================================================

The walk and what it counts are those of one machine (`archsim.engine.analytic.walk`, ``count``), in one call for all.
Machines that differ in the latency of hits alone take one walk, unless it hits: nothing else reads that latency.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from archsim.base.compiled import inner, kernel
from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.analytic.slices import Walk
from archsim.engine.analytic.walk import LLC_HITS, WALKS, add_moves, add_slices, begun
from archsim.engine.demand import RunDemand
from archsim.engine.loop import Elapsed, Outcome, Replay
from archsim.engine.state import Machine, Memory, Tally, Work
from archsim.policies.registry import COSTLESS
from archsim.specs.scenario import Scenario
from microarch.blocks.global_cp import State
from microarch.blocks.hbm import Copies

PARTS: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        "work": (("compute", "peak"), ("compute", "efficiency"), ("hbm", "bandwidth"), ("hbm", "efficiency")),
        "links": (("d2d", "bandwidth"), ("d2d", "hop_latency"), ("d2d", "efficiency"), ("hbm", "latency")),
        "llc": (("llc", "hit"), ("llc", "miss"), ("llc", "write")),
    }
)
"""Part → keys of a system that it depends on."""
RATES = frozenset(key for keys in PARTS.values() for key in keys)
_CHUNK_BYTES = 1 << 25  # of the state of machines that are walked in one call
_MOST = 4096  # machines in one call
Words = tuple[np.ndarray, ...]


def shares_plan(scenario: Scenario) -> bool:
    """Whether the plans of a scenario are the same whatever the rates of its machine are. They keep no copies."""
    policy, assumptions, decision = scenario.policy, scenario.assumptions, scenario.system.decision
    others = (policy.prediction, policy.rebalancing, policy.replication)
    return (
        policy.allocation.name in COSTLESS
        and not policy.needs_speeds("allocation")
        and all(rule.name == "none" for rule in others)
        and assumptions.execution == "weight_streaming"
        and (assumptions.decision_cost == "free" or decision.executor != "host" or decision.host.time_ns is not None)
        and scenario.system.d2d.copies is None
        and not scenario.own_functions
        and not scenario.workload.warmup_steps
        and scenario.system.power is None
        and scenario.system.cooling is None
    )


class _Recorder:
    """A kernel that keeps the work of every step, and takes no time."""

    def __init__(self) -> None:
        self.works: list[Work] = []

    def step(self, work: Work, memory: Memory, tally: Tally, begin_ns: float) -> float:
        self.works.append(work)
        return begin_ns


class _RecordingEngine(AnalyticalEngine):
    def _kernels(self) -> Any:
        return _Recorder


class Recorded(NamedTuple):
    """Steps of a scenario that took no time: their work, whether each is of the prefill, and what else they gave.

    ``exposed_ns``: what the decision adds to every step; ``decision_ns``: what all decisions take.
    """

    machine: Machine
    works: tuple[Work, ...]
    prefill: tuple[bool, ...]
    exposed_ns: tuple[float, ...]
    decision_ns: float
    outcome: Outcome | None

    @property
    def machine_alone(self) -> Recorded:
        """Without the work, which takes most of the memory."""
        return self._replace(works=(), outcome=None)


def record(scenario: Scenario, demand: RunDemand) -> Recorded:
    """Set a run up and go through its steps, without their time."""
    engine = _RecordingEngine(scenario, demand.layer_ids)
    prefill = tuple(bool(each.prefill_tokens.any()) for _, each in demand)
    outcome = Replay(engine, demand).run()
    states_ns = outcome.decision.states_ns
    assert not (states_ns[State.READ] or states_ns[State.UPDATE]), "nothing of a decision overlaps with steps"
    assert not any(work.cp_en.any() for work in engine.execution.kernel.works), "no copies are kept"
    works, exposed_ns = tuple(engine.execution.kernel.works), tuple(outcome.decision.by_step)
    return Recorded(engine.machine, works, prefill, exposed_ns, float(states_ns.sum()), outcome)


class Machines(NamedTuple):
    """Machines as arrays: rows of ``links`` and what differs beside them, float64[machine] each."""

    row: np.ndarray  # int64[machine]: of the tables below
    llc_hit_ns: np.ndarray
    llc_miss_ns: np.ndarray
    llc_write_ns: np.ndarray
    # tables, [row, ...]
    hbm_latency_ns: np.ndarray
    link_bytes_per_ns: np.ndarray
    hop_ns: np.ndarray
    link_rates: np.ndarray
    route_bytes_per_ns: np.ndarray
    route_ns: np.ndarray
    transfer_ns: np.ndarray
    transfer_bytes_per_ns: np.ndarray


OF_LINKS = Machines._fields[4:]
OF_LLC = Machines._fields[1:4]


class Walked(NamedTuple):
    """Of machines: times in ns, float64[machine]; ``counted``: int64[machine, 4], see `add_slices`."""

    prefill_ns: np.ndarray
    decode_ns: np.ndarray
    decision_ns: np.ndarray
    counted: np.ndarray


class Rows(NamedTuple):
    """Machines of the combinations of ``links`` and of ``llc``, by name of a field of `Machines`: [row, ...]; of
    ``links`` also what decisions add to every step and take in all.
    """

    links: Mapping[str, np.ndarray]
    llc: Mapping[str, np.ndarray]
    exposed_ns: np.ndarray  # float64[row, step]
    decision_ns: np.ndarray  # float64[row]


def rows_of(links: Sequence[Recorded], llc: Sequence[Recorded]) -> Rows:
    """The rows of what was recorded with these links, and with these LLCs."""
    return Rows(
        {name: _stacked(links, name) for name in OF_LINKS},
        {name: _stacked(llc, name) for name in OF_LLC},
        np.array([each.exposed_ns for each in links]),
        np.array([each.decision_ns for each in links]),
    )


def walk_machines(work: Recorded, rows: Rows, row: np.ndarray, llc_row: np.ndarray, strategy: str) -> Walked:
    """Walk all steps of ``work`` on machines with links ``row`` and LLCs ``llc_row``: int64[machine]."""
    walks, count = _Walks(work, rows, strategy), len(row)
    first, alike = _alike(rows, row, llc_row)
    ns, counted = (each[alike] for each in walks.of(row[first], llc_row[first]))
    others = first[alike] != np.arange(count)
    hits = np.flatnonzero(others & (counted[:, LLC_HITS] > 0))
    ns[hits], counted[hits] = walks.of(row[hits], llc_row[hits])
    elapsed, end_ns = Elapsed(), np.zeros(count)
    for step in range(len(work.works)):
        end_ns = end_ns + ns[:, step]
        elapsed.add(end_ns, rows.exposed_ns[row, step], work.prefill[step])
    zeros = np.zeros(count)
    return Walked(elapsed.prefill_ns + zeros, elapsed.decode_ns + zeros, rows.decision_ns[row], counted)


def _alike(rows: Rows, row: np.ndarray, llc_row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Kinds of machines that differ in the latency of hits alone: the first of each, and that of each machine."""
    beside = np.stack([each for name, each in rows.llc.items() if name != "llc_hit_ns"])
    llc_kind = np.unique(beside, axis=1, return_inverse=True)[1].reshape(-1)
    _, first, alike = np.unique(row * len(llc_kind) + llc_kind[llc_row], return_index=True, return_inverse=True)
    return first, alike


def _stacked(recorded: Sequence[Recorded], name: str) -> np.ndarray:
    return np.stack([np.asarray(getattr(each.machine, name), np.float64) for each in recorded])


class _Walks:
    """The arrays in which machines are walked."""

    def __init__(self, work: Recorded, rows: Rows, strategy: str) -> None:
        self._work, self._rows, self._kernel = work, rows, KERNELS[strategy]
        assert work.outcome is not None
        self._memory = work.outcome.memory
        state_bytes = self._memory.llc_tags.nbytes + self._memory.copies.room.nbytes
        self._at_once = max(1, min(_MOST, _CHUNK_BYTES // max(1, state_bytes)))

    def of(self, row: np.ndarray, llc_row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(float64[machine, step] in ns, ``Walked.counted``)."""
        rates = {name: each[llc_row] for name, each in self._rows.llc.items()}
        rates |= {"row": row}
        ns, counted = np.zeros((len(row), len(self._work.works))), np.zeros((len(row), 4), np.int64)
        for begin in range(0, len(row), self._at_once):
            own = slice(begin, begin + self._at_once)
            machines = Machines(**{name: each[own] for name, each in rates.items()}, **self._rows.links)
            self._run(machines, ns[own], counted[own])
        return ns, counted

    @cached_property
    def _states(self) -> list[tuple[Walk, Words, Words, np.ndarray]]:
        """Of every step: its state, the arrays that a walk changes, how they begin, and counts of hidden vectors."""
        found = []
        for work in self._work.works:
            state = begun(self._work.machine, work, self._memory)
            changed = tuple(map(_as_words, (state.booked, state.dies, state.lines, work.local)))
            counted = np.zeros(4, np.int64)
            add_moves(self._work.machine, work, counted)
            found.append((state, changed, tuple(each.copy() for each in changed), counted))
        return found

    def _run(self, machines: Machines, ns: np.ndarray, counted: np.ndarray) -> None:
        """Fill in what `of` gives."""
        memory, count = self._memory, len(machines.row)
        tags, rooms = (_repeated(each, count) for each in (memory.llc_tags, memory.copies.room))
        for step, (state, changed, fresh, moved) in enumerate(self._states):
            self._kernel(state, machines, tags, rooms, changed, fresh, ns[:, step], counted)
            counted += moved


def _as_words(rows: np.ndarray) -> np.ndarray:
    """The memory of records, int64[n]."""
    return rows.reshape(-1).view(np.int64)


def _repeated(rows: np.ndarray, count: int) -> np.ndarray:
    return np.repeat(rows[None], count, axis=0)


@inner
def _machine_of(same, machines, at):
    """The machine ``at``; ``same``: what it shares with all."""
    row = machines.row[at]
    return Machine(
        same.dies,
        same.hops,
        same.route_ptr,
        same.route_links,
        same.link_resources,
        same.hbm_bytes_per_ns,
        machines.link_bytes_per_ns[row],
        machines.hbm_latency_ns[row],
        machines.hop_ns[row],
        machines.link_rates[row],
        machines.route_bytes_per_ns[row],
        machines.route_ns[row],
        same.request_bytes,
        machines.llc_hit_ns[at],
        machines.llc_miss_ns[at],
        machines.llc_write_ns[at],
        same.slice_bytes,
        same.first_bytes,
        same.window,
        same.stream_bytes,
        same.array_waits,
        same.copies_in_background,
        same.whole_ns,
        machines.transfer_ns[row],
        machines.transfer_bytes_per_ns[row],
        same.hbm_rates,
        same.array_speeds,
    )


@inner
def _walk_all(s, machines, tags, rooms, changed, fresh, ns, counted, walk):
    """Walk one step on every machine, from its tags and rooms on. A walk looks all slices up before it reads them.
    ``walk``: of WALKS, which is compiled already.
    """
    for at in range(len(ns)):
        for each in range(len(changed)):
            for word in range(len(changed[each])):
                changed[each][word] = fresh[each][word]
        machine, copies = _machine_of(s.machine, machines, at), s.memory.copies
        own = Copies(copies.present, copies.was_read, copies.slices, copies.ring, rooms[at])
        memory = Memory(tags[at], own, s.memory.atu)
        own_walk = Walk(machine, s.work, memory, s.fetches, s.booked, s.dies, s.done, s.flying, s.lines, s.calendar)
        ns[at] = walk(own_walk)
        add_slices(machine, s.work, s.fetches, counted[at])


_TOGETHER, _IN_ORDER, _RESERVED = WALKS["together"], WALKS["in_order"], WALKS["reserved"]


@kernel
def _shared(s, machines, tags, rooms, changed, fresh, ns, counted):
    _walk_all(s, machines, tags, rooms, changed, fresh, ns, counted, _TOGETHER)


@kernel
def _in_order(s, machines, tags, rooms, changed, fresh, ns, counted):
    _walk_all(s, machines, tags, rooms, changed, fresh, ns, counted, _IN_ORDER)


@kernel
def _held(s, machines, tags, rooms, changed, fresh, ns, counted):
    _walk_all(s, machines, tags, rooms, changed, fresh, ns, counted, _RESERVED)


KERNELS = {"together": _shared, "in_order": _in_order, "reserved": _held}
