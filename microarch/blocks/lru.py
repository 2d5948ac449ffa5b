"""Least-recently-used order of the entries of a table, as a ring: each links to the next older and the next younger.

Layout: ``ring: RING[entry + 1]``; the last row is the head: its ``older`` is the youngest entry, its ``newer`` the
oldest.
"""

import numpy as np

from archsim.base.compiled import inner

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
