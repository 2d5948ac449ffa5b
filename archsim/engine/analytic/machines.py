"""Many machines at once: the steps of one plan, walked for machines that differ in rates and latencies alone.

Where a policy's plan reads no rate of the machine (`shares_plan`), machines that differ in `RATES` have the same
plans, moves, caches and tables. A run is set up once, as an engine that records its steps (`record`); what the rates
of many machines decide follows from the same functions as for one, with arrays in place of numbers. A *part* is what
some of these rates decide, and is found once for all machines that agree in them:

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

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from archsim.base.compiled import inner, kernel
from archsim.base.units import NS_PER_S
from archsim.engine.analytic.bookings import Walk
from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.analytic.walk import LLC_HITS, WALKS, add_moves, add_slices, begun
from archsim.engine.decision import ChargedDecision, FreeDecision, global_die
from archsim.engine.demand import RunDemand
from archsim.engine.loop import Elapsed, Replay, RunOutcome
from archsim.engine.machine import (
    carriers_needed,
    effective_utilisation,
    endpoint_bytes_per_s,
    is_perfect,
    link_classes,
    off_carrier,
    plain_link_bytes_per_ns,
)
from archsim.engine.moves import software
from archsim.engine.state import Machine, Memory, StepWork, Tally
from archsim.engine.weight_streaming import WeightStreaming
from archsim.policies.registry import COSTLESS
from archsim.specs.experiment import Scenario
from archsim.specs.system import SystemSpec
from microarch.blocks.global_cp import DecisionWork, Reach, State, exposed_ns
from microarch.blocks.hbm import Copies
from microarch.fabric.fabric import Fabric

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
_TABLE_BYTES = 1 << 26  # of what the rates of machines decide, in one call of `walk_machines`
_MOST = 4096  # machines in one call
_LEAST = 16  # of them, however large their tables are
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
        and all(edge.hop_latency_ns is None for edge in scenario.system.topology.edges)  # else routes depend on it
        and not scenario.own_functions
        and not scenario.workload.warmup_steps
        and is_perfect(scenario.system)
        and scenario.system.power is None
        and scenario.system.cooling is None
    )


class _Recorder:
    """A kernel that keeps the work of every step, and takes no time."""

    def __init__(self) -> None:
        self.works: list[StepWork] = []

    def step(self, work: StepWork, memory: Memory, tally: Tally, begin_ns: float) -> float:
        self.works.append(work)
        return begin_ns


class _RecordingDecision(ChargedDecision):
    """Keeps the work of every decision, and what a host takes for it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.decided: list[tuple[DecisionWork, float]] = []

    def after_step(self, plan, rows, copies, previous_ns, step_ns):
        self.decided.append((self._counts(plan, rows, copies), self._decided_ns))
        return super().after_step(plan, rows, copies, previous_ns, step_ns)

    def states_of(self, counts: DecisionWork, decided_ns: float, reach: Reach) -> np.ndarray:
        """float64[machine, State] of machines with this reach."""
        self._reach = reach
        return self._states_ns(counts, decided_ns)


class _RecordingProducts:
    """Products that keep the distinct tokens of every die, which no entry of the work tells."""

    def __init__(self, products: Any) -> None:
        self._products = products
        self.arrived: list[np.ndarray | None] = []

    def of(self, tokens, routed, read_bytes, die, arrived=None):
        self.arrived.append(arrived)
        return self._products.of(tokens, routed, read_bytes, die, arrived)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._products, name)


class _RecordingEngine(AnalyticalEngine):
    def __init__(self, scenario: Scenario, layer_ids: Any) -> None:
        super().__init__(scenario, layer_ids)
        assert isinstance(self.execution, WeightStreaming)
        self.kernel: Any = self.execution.kernel
        self.products = _RecordingProducts(self.execution.builder.gemm)
        own: Any = self.execution.builder  # products of the run, behind what keeps their arguments
        own.gemm = self.products

    def _kernels(self) -> Any:
        return _Recorder

    def _build_decision(self) -> FreeDecision:
        scenario = self.scenario
        if scenario.assumptions.decision_cost == "free":
            return FreeDecision()
        given = scenario.system.decision, self.machine, self.fabric, scenario.model.experts, self.tally
        return _RecordingDecision(*given)


class RecordedSteps(NamedTuple):
    """Steps of a scenario that took no time: their work, the distinct tokens that dies receive in each, whether each is
    of the prefill, and what else they gave.
    """

    scenario: Scenario
    machine: Machine
    fabric: Fabric
    works: tuple[StepWork, ...]
    arrived: tuple[np.ndarray | None, ...]
    products: Any
    decision: FreeDecision
    prefill: tuple[bool, ...]
    outcome: RunOutcome

    @property
    def most_machines(self) -> int:
        """How many machines one call of `walk_machines` should be given: their tables take some tens of megabytes."""
        machine = self.machine
        tables = 2 * machine.dies**2 + len(machine.link_rates) + len(self.works)
        tables += 6 * max((len(work.entries) for work in self.works), default=0)
        return max(_LEAST, min(_MOST, _TABLE_BYTES // (8 * tables)))


def record(scenario: Scenario, demand: RunDemand) -> RecordedSteps:
    """Set a run up and go through its steps, without their time."""
    engine = _RecordingEngine(scenario, demand.layer_ids)
    prefill = tuple(bool(each.prefill_tokens.any()) for _, each in demand)
    outcome = Replay(engine, demand).run()
    states_ns = outcome.decision.states_ns
    assert not (states_ns[State.READ] or states_ns[State.UPDATE]), "nothing of a decision overlaps with steps"
    works = tuple(engine.kernel.works)
    assert not any(work.cp_en.any() for work in works), "no copies are kept"
    arrived, products = tuple(engine.products.arrived), engine.products._products
    return RecordedSteps(
        scenario, engine.machine, engine.fabric, works, arrived, products, engine.decision, prefill, outcome
    )


# ---- rates
# A system whose rates are arrays: of many machines.

_FIELDS = MappingProxyType(
    {
        (block, key): next(
            name
            for name, field in SystemSpec.model_fields[block].annotation.model_fields.items()  # type: ignore[union-attr]
            if (field.alias or name) == key
        )
        for block, key in sorted(RATES)
    }
)
"""Key of `RATES` → name of its attribute."""


def with_rates(system: SystemSpec, rates: Mapping[tuple[str, str], np.ndarray], machines: int) -> SystemSpec:
    """A system that stands for many: each of its `RATES` is float64[machine], given or its own. It is no valid
    specification; functions that compute with numbers alone give arrays for it.
    """
    changed: dict[str, dict[str, np.ndarray]] = {}
    for (block, key), name in _FIELDS.items():
        value = rates.get((block, key), getattr(getattr(system, block), name))
        changed.setdefault(block, {})[name] = np.broadcast_to(np.asarray(value, np.float64), machines)
    return system.model_copy(
        update={block: getattr(system, block).model_copy(update=fields) for block, fields in changed.items()}
    )


def _machines_of(system: SystemSpec) -> int:
    """How many machines a system of `with_rates` stands for."""
    return int(np.size(system.hbm.latency_ns))


def _picked(system: SystemSpec, at: np.ndarray) -> SystemSpec:
    """Some of the machines that a system stands for."""
    rates = {key: getattr(getattr(system, key[0]), name)[at] for key, name in _FIELDS.items()}
    return with_rates(system, rates, len(at))


def one_of(system: SystemSpec, at: int) -> SystemSpec:
    """One of the machines that a system stands for, as a specification."""
    changed: dict[str, dict[str, float]] = {}
    for (block, _), name in _FIELDS.items():
        changed.setdefault(block, {})[name] = float(getattr(getattr(system, block), name)[at])
    return system.model_copy(
        update={block: getattr(system, block).model_copy(update=fields) for block, fields in changed.items()}
    )


def _unlike(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Machines by values of these columns, [machine] each: the first of every kind, and that of each machine."""
    kind = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, at = np.unique(column, return_inverse=True)
        if len(values) > 1:
            _, kind = np.unique(kind * len(values) + at.reshape(-1), return_inverse=True)
            kind = kind.reshape(-1)
    _, first, of = np.unique(kind, return_index=True, return_inverse=True)
    return first, of.reshape(-1)


def _by_part(system: SystemSpec, part: str) -> tuple[np.ndarray, np.ndarray]:
    return _unlike(*(getattr(getattr(system, block), _FIELDS[block, key]) for block, key in PARTS[part]))


def _own(values: np.ndarray) -> np.ndarray:
    """A copy in rows: kernels are compiled anew for arrays that may not be written, or that lie in columns."""
    return np.array(values, np.float64, order="C")


class Links(NamedTuple):
    """What the part ``links`` decides, of machines: fields of `Machine`, [machine, ...] each."""

    hbm_latency_ns: np.ndarray
    link_bytes_per_ns: np.ndarray
    hop_ns: np.ndarray
    link_rates: np.ndarray
    route_bytes_per_ns: np.ndarray
    route_ns: np.ndarray
    transfer_ns: np.ndarray
    transfer_bytes_per_ns: np.ndarray


def _of_classes(fabric: Fabric, system: SystemSpec, machines: int) -> tuple[np.ndarray, np.ndarray]:
    """Bytes per ns, and latency in ns, of the classes of links, float64[machine, class] each; ports come last."""
    classes = link_classes(system)
    if len(fabric.classes) - (fabric.ports > 0) > len(classes):
        classes += off_carrier(system, classes)
    rates, latencies = [each.bytes_per_ns for each in classes], [each.latency_ns for each in classes]
    if fabric.ports:
        rates, latencies = [*rates, endpoint_bytes_per_s(system) / NS_PER_S], [*latencies, 0.0]
    stacked = (np.stack([np.broadcast_to(each, machines) for each in of], axis=1) for of in (rates, latencies))
    return tuple(np.asarray(each, np.float64) for each in stacked)  # type: ignore[return-value]


def _summed(values: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Sums of ``values: float64[machine, class]``, each as often as ``count: int64[sum, class]`` says: float64[machine,
    sum]. Equal values are counted and multiplied, smaller ones come first, as in `per_route`.
    """
    order, rank = np.argsort(values, axis=1, kind="stable"), np.zeros(values.shape, np.int64)
    larger = np.diff(np.take_along_axis(values, order, axis=1), axis=1) > 0
    np.put_along_axis(rank, order[:, 1:], np.cumsum(larger, axis=1), axis=1)
    total = np.zeros((len(values), len(count)))
    firsts, of = _unlike(*rank.T)
    for kind, first in enumerate(firsts):
        own_rank, own = rank[first], np.flatnonzero(of == kind)
        for each in range(own_rank.max() + 1):
            alike = np.flatnonzero(own_rank == each)
            total[own] += count[:, alike].sum(axis=1) * values[own, alike[0]][:, None]
    return total


def _links_of(recorded: RecordedSteps, system: SystemSpec) -> tuple[Links, Reach]:
    """Of all machines of a system, and how far messages of their decisions go."""
    fabric, dies, machines = recorded.fabric, recorded.fabric.dies, _machines_of(system)
    rates, latencies = _of_classes(fabric, system, machines)
    kinds, pairs = rates.shape[1], dies * dies
    pair = np.repeat(np.arange(pairs), np.diff(fabric.route_ptr))
    count = np.bincount(pair * kinds + fabric.link_class[fabric.route_links], minlength=pairs * kinds)
    count = count.reshape(pairs, kinds)
    route_ns = _summed(latencies, count).reshape(machines, dies, dies)
    plain = np.asarray(plain_link_bytes_per_ns(system), np.float64)
    narrowest = np.full((machines, pairs), np.inf)
    for kind in range(kinds):
        has = count[:, kind] > 0
        narrowest[:, has] = np.minimum(narrowest[:, has], rates[:, kind, None])
    narrowest[:, ~count.any(axis=1)] = plain[:, None]
    away = ~np.eye(dies, dtype=bool)
    away_ns = route_ns[:, away].min(axis=1) if dies > 1 else 0.0
    transfers = software(recorded.scenario, np.asarray(system.hbm.latency_ns + away_ns)[:, None])
    die, links = global_die(fabric), fabric.links - fabric.ports
    leaving = np.bincount(fabric.link_class[:links][fabric.link_src[:links] == die], minlength=kinds)
    bytes_per_ns = _summed(rates, leaving[None])[:, 0]
    if fabric.ports:
        bytes_per_ns = np.minimum(bytes_per_ns, rates[:, -1])
    software_ns, software_bytes_per_ns = (np.broadcast_to(each, (machines, 2)) for each in transfers)
    found = Links(
        *(
            _own(np.asarray(each))
            for each in (
                system.hbm.latency_ns,
                plain,
                system.d2d.hop_latency_ns,
                rates[:, fabric.link_class],
                narrowest.reshape(machines, dies, dies),
                route_ns,
                software_ns,
                software_bytes_per_ns,
            )
        )
    )
    return found, Reach(route_ns[:, die].max(axis=1), np.where(bytes_per_ns > 0, bytes_per_ns, plain))


def _decisions_of(recorded: RecordedSteps, reach: Reach) -> tuple[np.ndarray, np.ndarray]:
    """What decisions add to every step, float64[machine, step], and take in all, float64[machine]; in ns."""
    machines, decision = len(reach.farthest_ns), recorded.decision
    added, total = np.zeros((machines, len(recorded.works))), np.zeros((machines, len(State)))
    if isinstance(decision, _RecordingDecision):
        for step, (counts, decided_ns) in enumerate(decision.decided):
            states_ns = decision.states_of(counts, decided_ns, reach)
            total += states_ns
            added[:, step] = exposed_ns(states_ns, 0.0, 0.0).sum(axis=1)
    return added, total.sum(axis=1)


# ---- walks


class Machines(NamedTuple):
    """Machines as arrays, [machine] each: rows of the tables of links and work, and what differs beside them."""

    row: np.ndarray
    work: np.ndarray
    hbm_bytes_per_ns: np.ndarray
    llc_hit_ns: np.ndarray
    llc_miss_ns: np.ndarray
    llc_write_ns: np.ndarray


class ManyWalked(NamedTuple):
    """Of machines: times in ns, float64[machine]; ``counted``: int64[machine, 4], see `add_slices`."""

    prefill_ns: np.ndarray
    decode_ns: np.ndarray
    decision_ns: np.ndarray
    counted: np.ndarray


def walk_all_carriers(
    recorded: dict[int, RecordedSteps], system: SystemSpec, demand: RunDemand, strategy: str
) -> ManyWalked:  # fmt: skip
    """`walk_machines` of machines that may stand on different numbers of carriers. ``recorded``: number of carriers →
    a recorded run; numbers that it lacks are added.
    """
    scenario = next(iter(recorded.values())).scenario
    count = _machines_of(system)
    needed = carriers_needed(system) if scenario.assumptions.carriers == "as_needed" else min(recorded)
    needed = np.broadcast_to(needed, count)
    found = ManyWalked(np.zeros(count), np.zeros(count), np.zeros(count), np.zeros((count, 4), np.int64))
    for number in np.unique(needed).tolist():
        own = np.flatnonzero(needed == number)
        if number not in recorded:
            recorded[number] = record(replace(scenario, system=one_of(system, own[0])), demand)
        for whole, part in zip(found, walk_machines(recorded[number], _picked(system, own), strategy), strict=True):
            whole[own] = part
    return found


def walk_machines(recorded: RecordedSteps, system: SystemSpec, strategy: str) -> ManyWalked:
    """Walk all recorded steps on the machines that a system stands for (`with_rates`), which stand on as many carriers
    as the recorded one.
    """
    first, row = _by_part(system, "links")
    links, reach = _links_of(recorded, _picked(system, first))
    added, decision_ns = _decisions_of(recorded, reach)
    _, work = _by_part(system, "work")
    walks = _Walks(recorded, system, links, row, work, strategy)
    first, alike = _unlike(row, work, np.asarray(system.llc.miss_ns), np.asarray(system.llc.write_ns))
    ns, counted = (each[alike] for each in walks.of(first))
    others = first[alike] != np.arange(len(row))
    hits = np.flatnonzero(others & (counted[:, LLC_HITS] > 0))
    ns[hits], counted[hits] = walks.of(hits)
    elapsed, end_ns = Elapsed(), np.zeros(len(row))
    for step in range(len(recorded.works)):
        end_ns = end_ns + ns[:, step]
        elapsed.add(end_ns, added[row, step], recorded.prefill[step])
    zeros = np.zeros(len(row))
    return ManyWalked(elapsed.prefill_ns + zeros, elapsed.decode_ns + zeros, decision_ns[row], counted)


class _Walks:
    """The arrays in which machines are walked. ``row``, ``work``: of each, among those that differ in these parts."""

    def __init__(
        self,
        recorded: RecordedSteps,
        system: SystemSpec,
        links: Links,
        row: np.ndarray,
        work: np.ndarray,
        strategy: str,
    ) -> None:
        self._recorded, self._system, self._links, self._kernel = recorded, system, links, KERNELS[strategy]
        self._strategy = strategy
        self._row, self._work, self._memory = row, work, recorded.outcome.memory
        state_bytes = self._memory.llc_tags.nbytes + self._memory.copies.room.nbytes
        self._at_once = max(1, min(_MOST, _CHUNK_BYTES // max(1, state_bytes)))
        scenario = recorded.scenario
        use = effective_utilisation(system, scenario.model, scenario.assumptions)
        self._hbm_bytes_per_ns = np.asarray(system.hbm.bandwidth_bytes_per_s / NS_PER_S * use.hbm)

    def of(self, machines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(float64[machine, step] in ns, ``ManyWalked.counted``) of these machines, int64[n]."""
        ns, counted = np.zeros((len(machines), len(self._recorded.works))), np.zeros((len(machines), 4), np.int64)
        for begin in range(0, len(machines), self._at_once):
            own = slice(begin, begin + self._at_once)
            self._run(machines[own], ns[own], counted[own])
        return ns, counted

    @cached_property
    def _states(self) -> list[tuple[Walk, Words, Words, np.ndarray]]:
        """Of every step: its state, the arrays that a walk changes, how they begin, and counts of hidden vectors."""
        found = []
        for recorded in self._recorded.works:  # a walk changes its work
            work = recorded._replace(entries=recorded.entries.copy(), local=recorded.local.copy())
            state = begun(self._recorded.machine, work, self._memory, self._strategy)
            changed = tuple(map(_as_words, (state.booked, state.dies, state.lines, work.local)))
            counted = np.zeros(4, np.int64)
            add_moves(self._recorded.machine, work, counted)
            found.append((state, changed, tuple(each.copy() for each in changed), counted))
        return found

    def _run(self, at: np.ndarray, ns: np.ndarray, counted: np.ndarray) -> None:
        """Fill in what `of` gives."""
        memory, count, llc = self._memory, len(at), self._system.llc
        _, first, work = np.unique(self._work[at], return_index=True, return_inverse=True)
        machines = Machines(
            self._row[at],
            work.reshape(-1),
            *(_own(np.asarray(each)[at]) for each in (self._hbm_bytes_per_ns, llc.hit_ns, llc.miss_ns, llc.write_ns)),
        )
        tags, rooms = (_repeated(each, count) for each in (memory.llc_tags, memory.copies.room))
        of_works = _picked(self._system, at[first])
        hbm_rates = np.repeat(self._hbm_bytes_per_ns[at[first]][:, None], self._recorded.machine.dies, axis=1)
        for step, (state, changed, fresh, moved) in enumerate(self._states):
            times, launch_ns = self._times(step, of_works)
            self._kernel(
                state,
                machines,
                self._links,
                times,
                launch_ns,
                hbm_rates,
                tags,
                rooms,
                changed,
                fresh,
                ns[:, step],
                counted,
            )
            counted += moved

    def _times(self, step: int, system: SystemSpec) -> tuple[np.ndarray, np.ndarray]:
        """How long the entries of a step hold arrays, float64[work, entry, 4] (compute, least, drain and alone), and
        how long a launch delays dies, float64[work, die]. As `archsim.engine.work.WorkBuilder` sets them.
        """
        recorded = self._recorded
        entries, machine = recorded.works[step].entries, recorded.machine
        given = (np.ascontiguousarray(entries[name]) for name in ("tokens", "routed", "read_bytes", "die"))
        found = recorded.products.side_by_side(system, *given, recorded.arrived[step])
        times = np.empty((_machines_of(system), len(entries), 4))
        compute_ns = found.compute_ns + entries["block_ns"]
        whole_ns = np.ceil(compute_ns) if machine.whole_ns else compute_ns
        times[..., 0], times[..., 1] = whole_ns, whole_ns - (found.compute_ns - found.multiply_ns)
        times[..., 2], times[..., 3] = found.drain_ns + entries["block_ns"], found.alone_ns + entries["block_ns"]
        launch_ns = np.broadcast_to(found.launch_ns, (len(times), machine.dies))
        return times, _own(launch_ns)


def _as_words(rows: np.ndarray) -> np.ndarray:
    """The memory of records, int64[n]."""
    return rows.reshape(-1).view(np.int64)


def _repeated(rows: np.ndarray, count: int) -> np.ndarray:
    return np.repeat(rows[None], count, axis=0)


@inner
def _machine_of(same, machines, links, hbm_rates, at):
    """The machine ``at``; ``same``: what it shares with all."""
    row = machines.row[at]
    return Machine(
        same.dies,
        same.hops,
        same.route_ptr,
        same.route_links,
        same.link_resources,
        machines.hbm_bytes_per_ns[at],
        links.link_bytes_per_ns[row],
        links.hbm_latency_ns[row],
        links.hop_ns[row],
        links.link_rates[row],
        links.route_bytes_per_ns[row],
        links.route_ns[row],
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
        links.transfer_ns[row],
        links.transfer_bytes_per_ns[row],
        hbm_rates,
        same.array_speeds,
    )


@inner
def _walk_all(s, machines, links, times, launch_ns, hbm_rates, tags, rooms, changed, fresh, ns, counted, walk):
    """Walk one step on every machine, from its tags and rooms on. A walk looks all slices up before it reads them.
    ``walk``: of WALKS, which is compiled already.
    """
    for at in range(len(ns)):
        for each in range(len(changed)):
            for word in range(len(changed[each])):
                changed[each][word] = fresh[each][word]
        own_times, own_launch_ns = times[machines.work[at]], launch_ns[machines.work[at]]
        for each in range(len(s.work.entries)):
            entry = s.work.entries[each]
            entry.compute_ns, entry.least_ns = own_times[each, 0], own_times[each, 1]
            entry.drain_ns, entry.alone_ns = own_times[each, 2], own_times[each, 3]
        for die in range(len(s.work.local)):
            s.work.local[die].launch_ns = s.work.local[die].launched_ns = own_launch_ns[die]
        machine, copies = _machine_of(s.machine, machines, links, hbm_rates[machines.work[at]], at), s.memory.copies
        own = Copies(copies.present, copies.was_read, copies.slices, copies.ring, rooms[at])
        memory = Memory(tags[at], own, s.memory.atu)
        own_walk = Walk(
            machine, s.work, memory, s.fetches, s.booked, s.dies, s.done, s.flying, s.lines, s.calendar, s.queued
        )
        ns[at] = walk(own_walk)
        add_slices(machine, s.work, s.fetches, counted[at])


_TOGETHER, _IN_ORDER, _RESERVED = (WALKS[each] for each in ("together", "in_order", "reserved"))


@kernel
def _shared(s, machines, links, times, launch_ns, hbm_rates, tags, rooms, changed, fresh, ns, counted):
    _walk_all(s, machines, links, times, launch_ns, hbm_rates, tags, rooms, changed, fresh, ns, counted, _TOGETHER)


@kernel
def _in_order(s, machines, links, times, launch_ns, hbm_rates, tags, rooms, changed, fresh, ns, counted):
    _walk_all(s, machines, links, times, launch_ns, hbm_rates, tags, rooms, changed, fresh, ns, counted, _IN_ORDER)


@kernel
def _held(s, machines, links, times, launch_ns, hbm_rates, tags, rooms, changed, fresh, ns, counted):
    _walk_all(s, machines, links, times, launch_ns, hbm_rates, tags, rooms, changed, fresh, ns, counted, _RESERVED)


KERNELS = {"together": _shared, "in_order": _in_order, "queued": _in_order, "reserved": _held}
