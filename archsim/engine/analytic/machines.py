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

from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from archsim.base import compiled, units
from archsim.engine import fabrics, loop
from archsim.engine.analytic import recorded_steps, slices
from archsim.engine.analytic.rates import (
    Links,
    by_part,
    decisions_of,
    distinct,
    links_of,
    machines_of,
    one_of,
    own,
    pick,
)
from archsim.engine.analytic.slices import FROM_HBM, FROM_HOME_HBM, FROM_HOME_LLC, FROM_LLC
from archsim.engine.analytic.walk import WALKS, begun
from archsim.engine.demand import RunDemand
from archsim.engine.machine import effective_utilisation
from archsim.engine.state import Machine, Memory, route_of
from archsim.machine.system import SystemSpec
from archsim.policies.registry import COSTLESS
from archsim.specs.scenario import Scenario
from microarch.blocks.hbm import SLICES, Copies

# Columns of ``counted``, see `add_slices`, and of the times of entries, see `_Walks._times`.
HBM_BYTES, LINK_BYTES, READ_BYTES, LLC_HITS = np.arange(4)
COMPUTE, LEAST, DRAIN, ALONE = range(4)
_CHUNK_BYTES = 1 << 25  # of the state of machines that are walked in one call
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
        and fabrics.is_perfect(scenario.system)
        and scenario.system.power is None
        and scenario.system.cooling is None
    )


# A system whose rates are arrays: of many machines.

"""Key of `RATES` → name of its attribute."""


class Machines(NamedTuple):
    """Machines as arrays: rows of the tables of links and work, and what differs beside them."""

    row: np.ndarray  # int64[machine]: of the tables of `Links`
    work: np.ndarray  # int64[machine]: of the tables of products
    hbm_bytes_per_ns: np.ndarray  # float64[machine]: of a die as designed
    llc_hit_ns: np.ndarray  # float64[machine]
    llc_miss_ns: np.ndarray  # float64[machine]
    llc_write_ns: np.ndarray  # float64[machine]


class ManyWalked(NamedTuple):
    """What machines took and counted."""

    prefill_ns: np.ndarray  # float64[machine]
    decode_ns: np.ndarray  # float64[machine]
    decision_ns: np.ndarray  # float64[machine]
    counted: np.ndarray  # int64[machine, 4], see `add_slices`


def walk_all_carriers(
    recorded: dict[int, recorded_steps.RecordedSteps], system: SystemSpec, demand: RunDemand, strategy: str
) -> ManyWalked:  # fmt: skip
    """`walk_machines` on several numbers of carriers; ``recorded``: number → a recorded run; missing ones are added."""
    scenario = next(iter(recorded.values())).scenario
    count = machines_of(system)
    needed = fabrics.carriers_needed(system) if scenario.assumptions.carriers == "as_needed" else min(recorded)
    needed = np.broadcast_to(needed, count)
    found = ManyWalked(np.zeros(count), np.zeros(count), np.zeros(count), np.zeros((count, 4), np.int64))
    for number in np.unique(needed).tolist():
        own = np.flatnonzero(needed == number)
        if number not in recorded:
            recorded[number] = recorded_steps.record(replace(scenario, system=one_of(system, own[0])), demand)
        for whole, part in zip(found, walk_machines(recorded[number], pick(system, own), strategy), strict=True):
            whole[own] = part
    return found


def walk_machines(recorded: recorded_steps.RecordedSteps, system: SystemSpec, strategy: str) -> ManyWalked:
    """Walk all recorded steps on the machines that a system stands for (`rates.with_rates`), on as many carriers."""
    first, row = by_part(system, "links")
    links, reach = links_of(recorded, pick(system, first))
    added, decision_ns = decisions_of(recorded, reach)
    _, work = by_part(system, "work")
    walks = _Walks(recorded, system, links, row, work, strategy)
    first, same = distinct(row, work, np.asarray(system.llc.miss_ns), np.asarray(system.llc.write_ns))
    ns, counted = (each[same] for each in walks.of(first))
    others = first[same] != np.arange(len(row))
    hits = np.flatnonzero(others & (counted[:, LLC_HITS] > 0))
    ns[hits], counted[hits] = walks.of(hits)
    elapsed, end_ns = loop.Elapsed(), np.zeros(len(row))
    for step in range(len(recorded.works)):
        end_ns = end_ns + ns[:, step]
        elapsed.add(end_ns, added[row, step], recorded.prefill[step])
    zeros = np.zeros(len(row))
    return ManyWalked(elapsed.prefill_ns + zeros, elapsed.decode_ns + zeros, decision_ns[row], counted)


class _Walks:
    """The arrays in which machines are walked. ``row``, ``work``: of each, among those that differ in these parts."""

    def __init__(
        self,
        recorded: recorded_steps.RecordedSteps,
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
        self._at_once = max(1, min(recorded_steps.MOST_MACHINES, _CHUNK_BYTES // max(1, state_bytes)))
        scenario = recorded.scenario
        use = effective_utilisation(system, scenario.model, scenario.assumptions)
        self._hbm_bytes_per_ns = np.asarray(system.hbm.bandwidth_bytes_per_s / units.NS_PER_S * use.hbm)

    def of(self, machines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(float64[machine, step] in ns, ``ManyWalked.counted``) of these machines, int64[n]."""
        ns, counted = np.zeros((len(machines), len(self._recorded.works))), np.zeros((len(machines), 4), np.int64)
        for begin in range(0, len(machines), self._at_once):
            own = slice(begin, begin + self._at_once)
            self._run(machines[own], ns[own], counted[own])
        return ns, counted

    @cached_property
    def _states(self) -> list[tuple[slices.Walk, Words, Words, np.ndarray]]:
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
            *(own(np.asarray(each)[at]) for each in (self._hbm_bytes_per_ns, llc.hit_ns, llc.miss_ns, llc.write_ns)),
        )
        tags, rooms = (np.repeat(each[None], count, axis=0) for each in (memory.llc_tags, memory.copies.room))
        of_works = pick(self._system, at[first])
        hbm_rates = np.repeat(self._hbm_bytes_per_ns[at[first]][:, None], self._recorded.machine.dies, axis=1)
        for step, (state, changed, fresh, moved) in enumerate(self._states):
            (times, launch_ns), step_ns = self._times(step, of_works), np.zeros(count)
            self._kernel(
                state, machines, self._links, times, launch_ns, hbm_rates, tags, rooms, changed, fresh, step_ns, counted
            )
            ns[:, step] = step_ns
            counted += moved

    def _times(self, step: int, system: SystemSpec) -> tuple[np.ndarray, np.ndarray]:
        """ns, as `WorkBuilder`: float64[work, entry, 4] (compute, least, drain, alone), launches float64[work, die]."""
        recorded = self._recorded
        entries, machine = recorded.works[step].entries, recorded.machine
        given = (np.ascontiguousarray(entries[name]) for name in ("tokens", "routed", "read_bytes", "die"))
        found = recorded.products.side_by_side(system, *given, recorded.arrived[step])
        times = np.empty((machines_of(system), len(entries), 4))
        compute_ns = found.compute_ns + entries["block_ns"]
        whole_ns = np.ceil(compute_ns) if machine.whole_ns else compute_ns
        times[..., COMPUTE], times[..., LEAST] = whole_ns, whole_ns - (found.compute_ns - found.multiply_ns)
        times[..., DRAIN], times[..., ALONE] = (
            found.drain_ns + entries["block_ns"],
            found.alone_ns + entries["block_ns"],
        )
        launch_ns = np.broadcast_to(found.launch_ns, (len(times), machine.dies))
        return times, own(launch_ns)


def _as_words(rows: np.ndarray) -> np.ndarray:
    """The memory of records, int64[n]."""
    return rows.reshape(-1).view(np.int64)


@compiled.inner
def _links(machine, src, dst):
    """Links of a route: more than its hops where one leads through a switch."""
    begin, end = route_of(machine, src, dst)
    return np.int64(end) - np.int64(begin)


@compiled.outer
def add_slices(machine, work, fetches, total):
    """Add slices to ``total``, int64[4]: bytes through HBMs, links, of weights; and how many an LLC had."""
    for chain in range(len(fetches)):
        entry, fetch = work.entries[chain // SLICES], fetches[chain]
        if fetch.way == FROM_HBM:
            total[HBM_BYTES] += entry.read_bytes
            total[READ_BYTES] += entry.read_bytes
        elif fetch.way != FROM_LLC:
            total[LINK_BYTES] += _links(machine, entry.die, entry.home) * machine.request_bytes
            total[LINK_BYTES] += _links(machine, entry.home, entry.die) * machine.slice_bytes
        total[LLC_HITS] += fetch.way == FROM_LLC or fetch.way == FROM_HOME_LLC
        if fetch.way == FROM_HOME_HBM:
            total[HBM_BYTES] += machine.slice_bytes
            total[READ_BYTES] += machine.slice_bytes
        if fetch.kept:
            total[HBM_BYTES] += machine.slice_bytes


@compiled.kernel
def add_moves(machine, work, total):
    """The same of its hidden vectors."""
    for phase in range(len(work.moves)):
        for move in work.moves[phase]:
            total[HBM_BYTES] += move.bytes if move.src == move.dst else 2 * move.bytes
            total[LINK_BYTES] += _links(machine, move.src, move.dst) * move.bytes


@compiled.inner
def _machine_of(same, machines, links, hbm_rates, at):
    """The machine ``at``; ``same``: what it shares with all."""
    row = machines.row[at]
    return Machine(
        same.dies, same.hops, same.route_ptr, same.route_links, same.link_resources, machines.hbm_bytes_per_ns[at],
        links.link_bytes_per_ns[row], links.hbm_latency_ns[row], links.hop_ns[row], links.link_rates[row],
        links.route_bytes_per_ns[row], links.route_ns[row], same.request_bytes, machines.llc_hit_ns[at],
        machines.llc_miss_ns[at], machines.llc_write_ns[at], same.slice_bytes, same.first_bytes, same.window,
        same.stream_bytes, same.array_waits, same.copies_in_background, same.whole_ns, links.transfer_ns[row],
        links.transfer_bytes_per_ns[row], hbm_rates, same.array_speeds,
    )  # fmt: skip


@compiled.inner
def _walk_all(s, machines, links, times, launch_ns, hbm_rates, tags, rooms, changed, fresh, ns, counted, walk):
    """Walk one step on every machine, from its tags and rooms on. ``walk``: of WALKS."""
    for at in range(len(ns)):
        for each in range(len(changed)):
            for word in range(len(changed[each])):
                changed[each][word] = fresh[each][word]
        own_times, own_launch_ns = times[machines.work[at]], launch_ns[machines.work[at]]
        for each in range(len(s.work.entries)):
            entry = s.work.entries[each]
            entry.compute_ns, entry.least_ns = own_times[each, COMPUTE], own_times[each, LEAST]
            entry.drain_ns, entry.alone_ns = own_times[each, DRAIN], own_times[each, ALONE]
        for die in range(len(s.work.local)):
            s.work.local[die].launch_ns = s.work.local[die].launched_ns = own_launch_ns[die]
        machine, copies = _machine_of(s.machine, machines, links, hbm_rates[machines.work[at]], at), s.memory.copies
        own = Copies(copies.present, copies.was_read, copies.slices, copies.ring, rooms[at])
        memory = Memory(tags[at], own, s.memory.atu)
        own_walk = slices.Walk(
            machine, s.work, memory, s.fetches, s.booked, s.dies, s.done, s.flying, s.lines, s.calendar, s.queued
        )
        ns[at] = walk(own_walk)
        add_slices(machine, s.work, s.fetches, counted[at])


_TOGETHER, _IN_ORDER, _RESERVED = (WALKS[each] for each in ("together", "in_order", "reserved"))


@compiled.kernel
def _walk_shared(s, machines, links, times, launch_ns, hbm_rates, tags, rooms, changed, fresh, ns, counted):
    _walk_all(s, machines, links, times, launch_ns, hbm_rates, tags, rooms, changed, fresh, ns, counted, _TOGETHER)


@compiled.kernel
def _in_order(s, machines, links, times, launch_ns, hbm_rates, tags, rooms, changed, fresh, ns, counted):
    _walk_all(s, machines, links, times, launch_ns, hbm_rates, tags, rooms, changed, fresh, ns, counted, _IN_ORDER)


@compiled.kernel
def _held(s, machines, links, times, launch_ns, hbm_rates, tags, rooms, changed, fresh, ns, counted):
    _walk_all(s, machines, links, times, launch_ns, hbm_rates, tags, rooms, changed, fresh, ns, counted, _RESERVED)


KERNELS = {"together": _walk_shared, "in_order": _in_order, "queued": _in_order, "reserved": _held}
