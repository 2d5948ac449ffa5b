"""What dies remember from step to step, as lists and ordered dictionaries."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np

from archsim.engine.state import Memory
from microarch.blocks import hbm, lru

NO_BITS = np.zeros((0, 0), np.uint8)


class DieMemory:
    """LLCs and sets of ATUs as lists, oldest first; copies (with whether they were read) as ordered dictionaries,
    oldest first. ``cp_en``, ``bits_ready_ns``: the PDUs' bits of the step.
    """

    def __init__(self, memory: Memory, slice_bytes: int) -> None:
        self.slice_bytes = slice_bytes
        self.experts = memory.copies.present.shape[1] // hbm.SLICES  # of all layers
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
        expert = key // hbm.SLICES
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
    (ring,) = lru.empty_rings(1, entries)
    order = np.array([entries, *keys], np.int64)
    ring["newer"][order], ring["older"][np.roll(order, -1)] = np.roll(order, -1), order
    return ring
