"""Address Translation Unit of a die's D2D controller: redirects a read to the nearest instance of the slice.

Paper: Yu et al., ISCA 2026 (arXiv 2510.05497v4), section V: a read of a remote slice passes the D2D controller, whose
ATU redirects it to the local HBM if the die holds a copy. The full table of copies is ``microarch.blocks.hbm.Copies``;
an entry of the ATU caches it for one expert of one layer. Under ``tables: finite`` it has 512 entries (paper, table
II) in sets of ``ways`` with LRU replacement in a set, which is the expert's number over all layers modulo the sets;
for any other expert it reads the table in the local HBM. (LRU over all 512 entries, ``ways`` = ``entries``, is no
hardware.)

State layout: ``tags: int64[die, set, way]``, experts in the order of their use, oldest first, -1 where empty;
``misses: int64[die]``.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from archsim.base.compiled import inner
from microarch.blocks import hbm, llc
from microarch.blocks.block import CHOICE, PAPER, NextState, parameter
from microarch.blocks.request import AWAY, HERE, HIT, Event, State, Unit

SERVES = {State.LOOKUP: Unit.PORT}
MISSED = "llc.miss_ns, + hbm.latency_ns if the ATU misses"
STEPS = {
    (State.LOOKUP, Event.HIT): NextState(State.COMPUTE, action="use the slice in the local LLC", latency="llc.hit_ns"),
    (State.LOOKUP, Event.HERE): NextState(State.LOCAL_HBM, action="redirect to the local HBM", latency=MISSED),
    (State.LOOKUP, Event.AWAY): NextState(State.REQUEST, action="query the home", latency=MISSED),
}
EMPTY = -1


@dataclass(frozen=True)
class Parameters:
    """Size of the table; its look-up adds no time to that of the LLC."""

    entries: int = parameter(512, "decision.atu_entries", f"{PAPER}, table II")
    ways: int = parameter(8, "decision.atu_ways", CHOICE)


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

    tags: np.ndarray
    misses: np.ndarray
    entries: int  # of one ATU; 0: unbounded


def no_translations(dies: int, entries: int, ways: int) -> Translations:
    """Empty ATUs of ``entries`` entries (0: unbounded), ``ways`` to a set, or all of them where there are fewer."""
    ways = max(1, min(ways, entries))
    tags = np.full((dies, entries // ways, ways), EMPTY, np.int64)
    return Translations(tags, np.zeros(dies, np.int64), entries)


@inner
def knows(atu, entry, expert):
    """Whether the ATU has an entry for an expert of another die; if not, it enters one.

    ``expert``: number of the expert over all layers. Homes and dies without copies need no translation.
    """
    die = entry.die
    if atu.entries == 0 or die == entry.home or not entry.look_here:
        return True
    return use(atu, die, expert)


@inner
def use(atu, die, expert):
    """Whether the ATU of a die has an entry for the expert, which becomes the youngest of its set."""
    line = atu.tags[die, expert % atu.tags.shape[1]]
    ways = line.shape[0]
    at = 0
    while at < ways and line[at] != EMPTY and line[at] != expert:
        at += 1
    known = at < ways and line[at] == expert
    first = 0 if at == ways else at  # a full set evicts its oldest
    last = first
    while last + 1 < ways and line[last + 1] != EMPTY:
        line[last] = line[last + 1]
        last += 1
    line[last] = expert
    atu.misses[die] += 0 if known else 1
    return known
