"""What dies remember from step to step, as lists and ordered dictionaries."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from archsim.base.causes import Cause
from archsim.engine.state import CAUSE_OF, DATA_MESSAGES, HIDDEN, REQUESTS, SLICES, Machine, Memory, Tally
from microarch.blocks import hbm, llc
from microarch.blocks.request import Event, State

if TYPE_CHECKING:
    from archsim.engine.interpreted.interpreter import Request, Stage

# ---- memory

NO_BITS = np.zeros((0, 0), np.uint8)


class DieMemory:
    """LLCs and sets of ATUs as lists, oldest first; copies (with whether they were read) as ordered dictionaries,
    oldest first. ``cp_en``, ``bits_ready_ns``: the PDUs' bits of the step.
    """

    def __init__(self, memory: Memory, slice_bytes: int) -> None:
        self.slice_bytes = slice_bytes
        self.experts = memory.copies.present.shape[1] // SLICES  # of all layers
        self.cp_en, self.bits_ready_ns = NO_BITS, 0.0
        self.load(memory)

    def load(self, memory: Memory) -> None:
        """Take over what the arrays say."""
        self.sets, self.ways = memory.llc_tags.shape[1:]
        self.llc = [[[int(key) for key in line if key >= 0] for line in die] for die in memory.llc_tags]
        copies, room = memory.copies, memory.copies.room
        self.copies = [
            OrderedDict((key, int(copies.was_read[die, key])) for key in ring_order(ring))
            for die, ring in enumerate(copies.ring)
        ]
        self.limit = [int(each["limit_bytes"]) for each in room]
        self.peak = [int(each["peak_bytes"]) for each in room]
        self.unwritten = [int(each["unwritten_bytes"]) for each in room]
        dies = range(len(room))
        self.hits, self.evictions, self.unused, self.misses = ([0 for _ in dies] for _ in range(4))  # more of them
        self.kept_bytes = [0 for _ in dies]
        self.atu_entries = memory.atu.entries
        self.known = [[[int(tag) for tag in line if tag >= 0] for line in die] for die in memory.atu.tags]
        self.atu_ways = memory.atu.tags.shape[2]

    def in_llc(self, die: int, expert: int, key: int) -> bool:
        return key in self.llc[die][expert % self.sets]

    def store(self, die: int, expert: int, key: int) -> None:
        line = self.llc[die][expert % self.sets]
        if self.ways == 0:
            return
        if key in line:
            line.remove(key)
        elif len(line) == self.ways:
            line.pop(0)
        line.append(key)

    def read_copy(self, die: int, key: int) -> None:
        self.copies[die][key] = 1
        self.copies[die].move_to_end(key)
        self.hits[die] += 1

    def keep(self, die: int, key: int) -> None:
        copies = self.copies[die]
        if key in copies:
            copies.move_to_end(key)
        elif self.slice_bytes > self.limit[die]:
            return
        else:
            while (len(copies) + 1) * self.slice_bytes > self.limit[die]:
                _, was_read = copies.popitem(last=False)
                self.evictions[die] += 1
                self.unused[die] += not was_read
            copies[key] = 0
            self.peak[die] = max(self.peak[die], len(copies) * self.slice_bytes)
        self.kept_bytes[die] += self.slice_bytes

    def translate(self, die: int, key: int) -> bool:
        """Whether the ATU knows the slice's expert; from now on it does."""
        expert = key // SLICES
        known = self.known[die][expert % len(self.known[die])]
        knew = expert in known
        if knew:
            known.remove(expert)
        known.append(expert)
        self.misses[die] += not knew
        if len(known) > self.atu_ways:
            known.pop(0)
        return knew

    def leave(self, memory: Memory) -> None:
        """Write what the dies remember into the arrays that the rest of the engine reads."""
        memory.llc_tags.fill(-1)
        copies, room = memory.copies, memory.copies.room
        for name in ("present", "was_read", "slices"):
            getattr(copies, name).fill(0)
        memory.atu.tags.fill(-1)
        for die, sets in enumerate(self.llc):
            for at, line in enumerate(sets):
                memory.llc_tags[die, at, : len(line)] = line
            for key, was_read in self.copies[die].items():
                copies.present[die, key], copies.was_read[die, key] = 1, was_read
                copies.slices[key // hbm.SLICES, die] += 1
            copies.ring[die] = ring_of(self.copies[die], len(copies.ring[die]) - 1)
            room[die]["used_bytes"] = len(self.copies[die]) * self.slice_bytes
            room[die]["peak_bytes"], room[die]["unwritten_bytes"] = self.peak[die], self.unwritten[die]
            for name in ("hits", "evictions", "unused"):
                room[die][name] += getattr(self, name)[die]
            for at, line in enumerate(self.known[die]):
                memory.atu.tags[die, at, : len(line)] = line
            memory.atu.misses[die] += self.misses[die]


def ring_order(ring: np.ndarray) -> list[int]:
    """Keys of an LRU ring, oldest first."""
    head = len(ring) - 1
    at, keys = int(ring[head]["newer"]), []
    while at != head:
        keys.append(at)
        at = int(ring[at]["newer"])
    return keys


def ring_of(keys: Iterable[int], entries: int) -> np.ndarray:
    """The LRU ring of ``keys``, oldest first: lru.RING[entries + 1]."""
    (ring,) = llc.empty_rings(1, entries)
    order = np.array([entries, *keys], np.int64)
    ring["newer"][order], ring["older"][np.roll(order, -1)] = np.roll(order, -1), order
    return ring


# ---- counting
# What a step moves, counted in the columns of ``archsim.engine.state.Tally``.

ROUNDING = 1e-9  # a share of less is none


class StepCounter:
    """Counts of one step, in integers and in the order of events; ``leave`` adds them to a tally."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.messages: list[tuple[int, int, int, int]] = []  # (class, source, target, bytes)
        self.dies: list[tuple[str, int, int]] = []  # (column, die, bytes)
        self.hits = [0, 0]
        self.use: dict[int, list[tuple[str, float]]] = {}  # by resource: (column, amount), in order

    def served(self, request: Request, event: Event | None) -> None:
        """A block takes a request."""
        state, n_bytes = request.state, request.n_bytes
        if state == State.LOOKUP:
            self.hits[0] += event == Event.HIT
        elif state == State.REMOTE_LLC:
            self.hits[1] += 1
        elif state == State.LOCAL_HBM:
            self.dies.append(("local_read_bytes", request.die, n_bytes))
        elif state == State.REMOTE_HBM:
            self.dies.append(("remote_read_bytes", request.home, n_bytes))
        elif state == State.ACT_READ:
            self.dies.append(("activation_bytes", request.home, n_bytes))
        elif state == State.REQUEST:
            self.messages.append((int(REQUESTS), request.die, request.home, int(self.machine.request_bytes)))
        elif state == State.DATA:
            self.messages.append((int(DATA_MESSAGES), request.home, request.die, n_bytes))
        elif state == State.ACT_MOVE:
            self.dies.append(("activation_bytes", request.die, n_bytes))
            self.messages.append((int(HIDDEN) + request.phase, request.home, request.die, n_bytes))

    def uses(self, resource: int, **amounts: float) -> None:
        """A resource was busy, waited for, or passed bytes."""
        self.use.setdefault(resource, []).extend(amounts.items())

    def leave(self, tally: Tally, kept_bytes: list[int], events: int) -> None:
        """Add all to a tally. ``kept_bytes``: of copies that each die has entered."""
        for what, src, dst, n_bytes in self.messages:
            hops, kind = int(self.machine.hops[src, dst]), min(what, int(HIDDEN))
            tally.hops[kind] += hops, hops * n_bytes
            tally.pair_bytes[what, src, dst] += n_bytes
            if what >= HIDDEN:
                tally.moved_bytes[what - int(HIDDEN)] += n_bytes
        for column, die, n_bytes in self.dies:
            tally.dies[column][die] += n_bytes
        tally.dies["write_bytes"] += kept_bytes
        tally.llc_hits[:] += self.hits
        for resource, amounts in self.use.items():
            for column, amount in amounts:
                tally.resources[column][resource] += amount
        tally.events[0] += events


def trace_back(
    tally: Tally,
    last: Stage | None,
    begin: float,
    since_of: Callable[[Stage], float],
    explain: Callable[[Stage, float, float], None],
) -> None:
    """Add the critical path that ends with the stage ``last`` to ``bound_ns``, by cause.

    ``since_of(stage)``: from when on the step waited for it; ``explain(stage, since, until)``: of a product.
    """
    stage, until = last, last.end if last else begin
    while stage is not None and until > begin:
        since = max(min(since_of(stage), until), begin)
        length = until - since
        reading = min(length, stage.hbm_ns) if stage.state == State.DATA else 0.0
        if stage.state == State.COMPUTE:
            explain(stage, since, until)
        else:
            tally.bound_ns[CAUSE_OF[stage.state]] += length - reading
        tally.bound_ns[Cause.HBM] += reading
        until, stage = since, stage.cause


def explain_product(
    tally: Tally, entry: SimpleNamespace, launching_ns: float, held_ns: float, since: float, until: float
) -> None:
    """What a product on the critical path was doing, by cause."""
    launch_ns, compute_ns, bound_ns = min(launching_ns, until - since), entry.compute_ns + held_ns, tally.bound_ns
    rest_ns = min(until - since - launch_ns, compute_ns)
    share = rest_ns / compute_ns if compute_ns > 0.0 else 0.0
    named_ns = entry.bytes_ns + entry.permute_ns + entry.started_ns + held_ns
    lost_ns = compute_ns - named_ns - entry.multiply_ns
    lost_ns = 0.0 if lost_ns < ROUNDING * compute_ns else lost_ns
    bound_ns[Cause.COMPUTE] += share * (compute_ns - named_ns - lost_ns)
    bound_ns[Cause.INEFFICIENCY] += share * lost_ns
    bound_ns[Cause.PERMUTE] += share * entry.permute_ns
    bound_ns[Cause.LAUNCH] += launch_ns + share * entry.started_ns
    bound_ns[Cause.BLOCKS] += share * held_ns
    bound_ns[Cause.HBM] += until - since - launch_ns - rest_ns + share * entry.bytes_ns
    longer = (until - since - launch_ns) / compute_ns if entry.alone_ns > entry.compute_ns else 1.0
    tally.residual_ns[:] += entry.low_ns * max(1.0, longer), entry.high_ns * max(1.0, longer)
