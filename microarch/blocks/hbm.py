"""HBM of a die as a store of expert weights: homes, which are never evicted, and cached copies that the PDU made,
evicted by LRU.

A slice key is ``(layer * experts + expert) * 3 + slice``. Cached copies have finite room, what homes and reserve leave
free (machine model, ``capacity: finite``), or practically unlimited room (``capacity: unbounded``).

==============  ========================  ==================================================================
array           layout                    meaning
==============  ========================  ==================================================================
``present``     uint8[die, key]           1 where the die holds a cached copy
``was_read``    uint8[die, key]           1 where that copy has been read since
``slices``      int8[layer·expert, die]   slices of the expert that the die holds copies of
``ring``        lru.RING[die, key + 1]    the order in which copies were last used
``room``        ROOM[die]                 bytes used and limit in bytes; slices evicted, and found; bytes unwritten
==============  ========================  ==================================================================
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from archsim.base.compiled import inner, kernel
from archsim.model.spec import SLICES
from microarch.blocks import lru
from microarch.blocks.block import PAPER, SIMULATOR, NextState, parameter
from microarch.blocks.request import Event, State, Unit

UNBOUNDED_BYTES = 2**62
SERVES = {state: Unit.HBM for state in (State.LOCAL_HBM, State.REMOTE_HBM, State.COPY, State.ACT_READ, State.ACT_WRITE)}
MOVED = "latency_ns + bytes / bytes_per_ns"
STEPS = {
    (State.LOCAL_HBM, Event.SERVED): NextState(State.COMPUTE, State.LLC_FILL, "read the slice", MOVED),
    (State.REMOTE_HBM, Event.SERVED): NextState(State.DATA, State.LLC_FILL, "read it for another die", MOVED),
    (State.COPY, Event.SERVED): NextState(State.DONE, None, "enter the copy, evict the oldest", MOVED),
    (State.ACT_READ, Event.SERVED): NextState(State.ACT_MOVE, None, "read outgoing vectors", MOVED),
    (State.ACT_READ, Event.HERE): NextState(State.DONE, None, "read vectors that stay", MOVED),
    (State.ACT_WRITE, Event.SERVED): NextState(State.DONE, None, "write arrived vectors", MOVED),
}

ROOM = np.dtype(
    [
        ("used_bytes", "i8"),
        ("peak_bytes", "i8"),
        ("limit_bytes", "i8"),
        ("evictions", "i8"),  # slices evicted
        ("unused", "i8"),  # of these, slices that were never read
        ("unwritten_bytes", "i8"),  # of copies, when the last step ended (``copy_writes: background``)
        ("hits", "i8"),  # slices of other homes that the die found in its own HBM, or in its LLC thanks to a copy
    ]
)


@dataclass(frozen=True)
class Parameters:
    """Size and speed of the HBM of one die; bandwidth and capacity default to Dojo's."""

    bandwidth_bytes_per_s: float = parameter(2e12, "hbm.bandwidth", f"{PAPER}, table I")  # nominal
    efficiency: float = parameter(0.9, "hbm.efficiency", SIMULATOR)  # share of the bandwidth that transfers reach
    latency_ns: float = parameter(300.0, "hbm.latency", PAPER)  # of a read or write
    capacity_bytes: int = parameter(80 * 10**9, "hbm.capacity", f"{PAPER}, table I")  # of one die
    reserved_fraction: float = parameter(0.1, "hbm.reserved", PAPER)  # of the capacity, for no weights

    @property
    def bytes_per_ns(self) -> float:
        """What transfers reach."""
        return self.bandwidth_bytes_per_s / 1e9 * self.efficiency


class Copies(NamedTuple):
    """Cached copies on all dies; see the module's table."""

    present: np.ndarray  # uint8[die, key]
    was_read: np.ndarray  # uint8[die, key]
    slices: np.ndarray  # int8[layer·expert, die]
    ring: np.ndarray  # RING[die, key + 1]
    room: np.ndarray  # ROOM[die]


def no_copies(experts: int, limit_bytes: np.ndarray) -> Copies:
    """No cached copies yet of ``experts`` (over all layers), on dies with ``limit_bytes: int64[die]`` of room for
    them.
    """
    dies, keys = len(limit_bytes), experts * SLICES
    room = np.zeros(dies, ROOM)
    room["limit_bytes"] = limit_bytes
    present, was_read = np.zeros((2, dies, keys), np.uint8)
    return Copies(present, was_read, np.zeros((experts, dies), np.int8), lru.empty_rings(dies, keys), room)


def count_anew(copies: Copies) -> None:
    """Forget what was counted so far; copies stay where they are."""
    copies.room["peak_bytes"] = copies.room["used_bytes"]
    for counter in ("evictions", "unused", "hits"):
        copies.room[counter] = 0


@inner
def read(copies, die, key):
    """A copy was read: it becomes the youngest."""
    copies.was_read[die, key] = 1
    lru.touch(copies.ring[die], key)


@inner
def _evict_down_to(copies, die, slice_bytes, most_bytes):
    """Evict the oldest copies until at most ``most_bytes`` are used."""
    room, ring = copies.room[die], copies.ring[die]
    while room.used_bytes > most_bytes:
        oldest = lru.oldest(ring)
        lru.unlink(ring, oldest)
        copies.present[die, oldest] = 0
        copies.slices[oldest // SLICES, die] -= 1
        room.used_bytes -= slice_bytes
        room.evictions += 1
        room.unused += 1 - copies.was_read[die, oldest]


@kernel
def evict_beyond_room(copies, slice_bytes):
    """Evict the oldest copies of dies whose room has shrunk."""
    for die in range(len(copies.room)):
        _evict_down_to(copies, die, slice_bytes, copies.room[die].limit_bytes)


@inner
def keep(copies, die, key, slice_bytes):
    """Enter a copy, evicting the oldest ones if there is no room; False if it can never fit."""
    if copies.present[die, key]:
        lru.touch(copies.ring[die], key)
        return True
    room, ring = copies.room[die], copies.ring[die]
    if slice_bytes > room.limit_bytes:
        return False
    _evict_down_to(copies, die, slice_bytes, room.limit_bytes - slice_bytes)
    copies.present[die, key], copies.was_read[die, key] = 1, 0
    copies.slices[key // SLICES, die] += 1
    room.used_bytes += slice_bytes
    room.peak_bytes = max(room.peak_bytes, room.used_bytes)
    lru.link_youngest(ring, key)
    return True
