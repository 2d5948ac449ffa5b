"""Last-level cache of a die: which weight slices it holds, least recently stored evicted first.

State layout: ``tags: int64[die, set, way]``, slice keys in the order of their stores, oldest first, -1 where empty.
A look-up does not change the order (published simulator). A slice that is larger than the cache never stays
(``ways`` = 0): it streams through.

Transitions of LOOKUP are the ATU's.
"""

from dataclasses import dataclass

import numpy as np

from archsim.base.compiled import inner
from microarch.blocks.request import CHOICE, PAPER, SIMULATOR, Event, NextState, State, Unit, parameter

# ---- llc

EMPTY = -1
SERVES = {State.REMOTE_LLC: Unit.PORT, State.LLC_FILL: Unit.PORT}
STEPS = {
    (State.REMOTE_LLC, Event.SERVED): NextState(State.DATA, action="read the slice", latency="hit_ns"),
    (State.LLC_FILL, Event.SERVED): NextState(State.DONE, action="store it as the youngest", latency="write_ns"),
}


@dataclass(frozen=True)
class Parameters:
    """Size and speed of an LLC."""

    capacity_bytes: int = parameter(64 * 2**20, "llc.capacity", PAPER)
    hit_ns: float = parameter(100.0, "llc.hit", PAPER)
    miss_ns: float = parameter(110.0, "llc.miss", PAPER)
    write_ns: float = parameter(30.0, "llc.write", PAPER)
    ways: int = parameter(2, "llc.ways", SIMULATOR)
    segment_bytes: int = parameter(2**20, "llc.segment", CHOICE)


def sliced_geometry(capacity_bytes: int, slice_bytes: int, ways: int) -> tuple[int, int]:
    """(sets, ways) of the published simulator: one line per slice, ``max(1, capacity // (ways * slice))`` sets."""
    return max(1, capacity_bytes // (ways * slice_bytes)), ways


def segmented_geometry(capacity_bytes: int, slice_bytes: int, segment_bytes: int) -> tuple[int, int]:
    """(sets, ways) of a fully associative cache of segments: one set, as many ways as whole slices fit."""
    lines = -(-slice_bytes // segment_bytes)
    return 1, capacity_bytes // (lines * segment_bytes)


def streaming_geometry(capacity_bytes: int, slice_bytes: int, segment_bytes: int) -> tuple[int, tuple[int, int]]:
    """(stream_bytes, (sets, ways)) of a cache of segments, half of which is room for slices on their way, half keeps
    whole slices.

    ``stream_bytes``: at least one segment. No byte is in both halves, and neither shrinks as the capacity grows.
    """
    half = capacity_bytes // 2
    return max(half, min(slice_bytes, segment_bytes)), segmented_geometry(half, slice_bytes, segment_bytes)


def empty_tags(dies: int, sets: int, ways: int) -> np.ndarray:
    """``tags`` of an empty cache on every die."""
    return np.full((dies, sets, ways), EMPTY, dtype=np.int64)


@inner
def _set_of(tags, expert):
    """An LLC of one set, as those of segments, needs no remainder, which takes longer than all else."""
    return expert % tags.shape[1] if tags.shape[1] > 1 else 0


@inner
def holds(tags, die, expert, key):
    """Whether the die's LLC has slice ``key`` of ``expert`` (the set is expert modulo sets)."""
    line = tags[die, _set_of(tags, expert)]
    for way in range(line.shape[0]):
        if line[way] == key:
            return True
    return False


@inner
def store(tags, die, expert, key):
    """Enter slice ``key`` as the youngest; a full set evicts its oldest."""
    line = tags[die, _set_of(tags, expert)]
    ways = line.shape[0]
    if ways == 0:
        return
    free = 0
    while free < ways and line[free] != EMPTY and line[free] != key:
        free += 1
    first = 0 if free == ways else free
    last = first
    while last + 1 < ways and line[last + 1] != EMPTY:
        line[last] = line[last + 1]
        last += 1
    line[last] = key


# ---- lru
# Least-recently-used order of the entries of a table, as a ring: every entry links to the next older and the next
# younger one.
#
# Layout: ``ring: RING[entry + 1]``; the last row is the head: its ``older`` is the youngest entry, its ``newer`` the
# oldest.

RING = np.dtype([("older", "i4"), ("newer", "i4")])


def empty_rings(dies: int, entries: int) -> np.ndarray:
    """A ring without entries for every die, RING[die, entry + 1]."""
    rings = np.zeros((dies, entries + 1), RING)
    rings[:, entries] = entries, entries  # a row is written before it is read: rings of no entries take no memory
    return rings


@inner
def unlink(ring, entry):
    older, newer = ring[entry].older, ring[entry].newer
    ring[older].newer = newer
    ring[newer].older = older


@inner
def link_youngest(ring, entry):
    """Insert an entry that is not in the ring as the youngest."""
    head = ring.shape[0] - 1
    youngest = ring[head].older
    ring[entry].older = youngest
    ring[entry].newer = head
    ring[youngest].newer = entry
    ring[head].older = entry


@inner
def oldest(ring):
    """The next entry to evict; the head's own number if there is none."""
    return np.int64(ring[ring.shape[0] - 1].newer)


@inner
def touch(ring, entry):
    """An entry was used: it becomes the youngest."""
    unlink(ring, entry)
    link_youngest(ring, entry)
