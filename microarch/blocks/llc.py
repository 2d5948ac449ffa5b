"""Last-level cache of a die: which weight slices it holds, least recently stored evicted first.

State layout: ``tags: int64[die, set, way]``, slice keys in the order of their stores, oldest first, -1 where empty.
A look-up does not change the order (published simulator). A slice that is larger than the cache never stays
(``ways`` = 0): it streams through.

Transitions of LOOKUP are the ATU's.
"""

from dataclasses import dataclass

import numpy as np

from archsim.base.compiled import inner
from microarch.blocks.block import CHOICE, PAPER, SIMULATOR, NextState, parameter
from microarch.blocks.request import Event, State, Unit

EMPTY = -1
SERVES = {State.REMOTE_LLC: Unit.PORT, State.LLC_FILL: Unit.PORT}
STEPS = {
    (State.REMOTE_LLC, Event.SERVED): NextState(State.DATA, action="read the slice", latency="hit_ns"),
    (State.LLC_FILL, Event.SERVED): NextState(State.DONE, action="store it as the youngest", latency="write_ns"),
}


@dataclass(frozen=True)
class Parameters:
    """Size and speed of an LLC."""

    capacity_bytes: int = parameter(64 * 2**20, "llc.capacity", PAPER)  # of one die
    hit_ns: float = parameter(100.0, "llc.hit", PAPER)  # look-up that finds the slice
    miss_ns: float = parameter(110.0, "llc.miss", PAPER)  # look-up that does not
    write_ns: float = parameter(30.0, "llc.write", PAPER)  # store of a slice
    ways: int = parameter(2, "llc.ways", SIMULATOR)  # slices of a set
    segment_bytes: int = parameter(2**20, "llc.segment", CHOICE)  # of a cache of segments


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
