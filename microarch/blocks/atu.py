"""Address Translation Unit of a die's D2D controller: redirects a read to the nearest instance of the slice.

Paper: Yu et al., ISCA 2026 (arXiv 2510.05497v4), section V: a read of a remote slice passes the D2D controller, whose
ATU redirects it to the local HBM if the die holds a copy. The full table of copies is ``microarch.blocks.hbm.Copies``;
an entry of the ATU caches it for one expert of one layer. Under ``tables: finite`` it has 512 entries (paper, table
II) with LRU replacement; for any other expert it reads the table in the local HBM.

State layout: ``known: uint8[die, layer·expert]``, ``ring: lru.RING[die, layer·expert + 1]``, ``used``, ``misses:
int64[die]``.

Transitions::

    state   event  next       spawns  action                          latency
    ------  -----  ---------  ------  ------------------------------  -----------------------------------------------
    LOOKUP  HIT    COMPUTE            use the slice in the local LLC  llc.hit_ns
    LOOKUP  HERE   LOCAL_HBM          redirect to the local HBM       llc.miss_ns, + hbm.latency_ns if the ATU misses
    LOOKUP  AWAY   REQUEST            query the home                  llc.miss_ns, + hbm.latency_ns if the ATU misses
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from archsim.base.kernels import inner
from microarch.blocks import hbm, llc, lru
from microarch.blocks.parameters import PAPER, parameter
from microarch.blocks.request import Event, State, Unit
from microarch.blocks.state_machine import Step, codes

SERVES = {State.LOOKUP: Unit.PORT}
MISSED = "llc.miss_ns, + hbm.latency_ns if the ATU misses"
STEPS = {
    (State.LOOKUP, Event.HIT): Step(State.COMPUTE, action="use the slice in the local LLC", latency="llc.hit_ns"),
    (State.LOOKUP, Event.HERE): Step(State.LOCAL_HBM, action="redirect to the local HBM", latency=MISSED),
    (State.LOOKUP, Event.AWAY): Step(State.REQUEST, action="query the home", latency=MISSED),
}
SERVED, HIT, MISS, HERE, AWAY, KEEP = codes(Event)


@dataclass(frozen=True)
class Parameters:
    """Size of the table; its look-up adds no time to that of the LLC."""

    entries: int = parameter(512, "decision.atu_entries", f"{PAPER}, table II")


@inner
def look_up(llc_tags, copies, entry, key):
    """HIT, HERE or AWAY: in the local LLC, in the local HBM (home or copy), or elsewhere. Reading a copy makes it the
    youngest.

    ``entry.look_here`` is 0 if no copies are made and the die is not the home: then only the home is queried.
    """
    if not entry.look_here:
        return AWAY
    if llc.holds(llc_tags, entry.die, entry.expert, key):
        copies.room[entry.die].hits += entry.die != entry.home
        return HIT
    if entry.die == entry.home:
        return HERE
    if copies.present[entry.die, key]:
        hbm.read(copies, entry.die, key)
        copies.room[entry.die].hits += 1
        return HERE
    return AWAY


class Translations(NamedTuple):
    """Entries of all ATUs; see the module's text."""

    known: np.ndarray
    ring: np.ndarray
    used: np.ndarray
    misses: np.ndarray
    entries: int  # of one ATU; 0: unbounded


def no_translations(dies: int, experts: int, entries: int) -> Translations:
    """Empty ATUs of ``entries`` entries (0: unbounded) for ``experts`` over all layers."""
    tracked = experts if entries else 0
    return Translations(
        known=np.zeros((dies, tracked), np.uint8),
        ring=lru.empty_rings(dies, tracked),
        used=np.zeros(dies, np.int64),
        misses=np.zeros(dies, np.int64),
        entries=entries,
    )


@inner
def knows(atu, entry, expert):
    """Whether the ATU has an entry for an expert of another die; if not, it enters one.

    ``expert``: number of the expert over all layers. Homes and dies without copies need no translation.
    """
    die = entry.die
    if atu.entries == 0 or die == entry.home or not entry.look_here:
        return True
    ring = atu.ring[die]
    if atu.known[die, expert]:
        lru.touch(ring, expert)
        return True
    if atu.used[die] == atu.entries:
        leaving = lru.oldest(ring)
        lru.unlink(ring, leaving)
        atu.known[die, leaving] = 0
    else:
        atu.used[die] += 1
    atu.known[die, expert] = 1
    lru.link_youngest(ring, expert)
    atu.misses[die] += 1
    return False
