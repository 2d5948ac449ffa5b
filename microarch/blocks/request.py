"""What happens to one request: the weight slice that a sub-kernel needs, or a bundle of hidden vectors on its way.

The D2D controller, ATU, PDU, LLC, HBM and compute array of the dies serve it one after the other; each state
names the block that is busy with it (paper [W] section V, published simulator; see ``docs/assumptions.md``).

=========== ============================ =========================================================================
state       block                        what it does
=========== ============================ =========================================================================
LOOKUP      LLC port of the die          look the slice up in the local LLC and the ATU
LOCAL_HBM   HBM of the die               read the slice: the die is its home or holds a copy
REQUEST     links, die to home           command and address travel to the home
REMOTE_LLC  LLC port of the home         read the slice there
REMOTE_HBM  HBM of the home              read the slice there
DATA        links, home to die           the slice travels back
COMPUTE     compute array of the die     multiply the tokens with the slice
LLC_FILL    LLC port of the reader       the slice that came from HBM enters that die's LLC
COPY        HBM of the die               the PDU keeps the slice: it is written and entered in the ATU
ACT_READ    HBM of the source die        hidden vectors are read (dispatch: home of the tokens; combine: executor)
ACT_MOVE    links, source to target      hidden vectors travel
ACT_WRITE   HBM of the target die        hidden vectors are written
DONE        none                         the request is complete
=========== ============================ =========================================================================

Each block declares the transitions of the states that it serves; ``microarch.blocks.catalogue`` combines them.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

# ---- state_machine
# State machines as tables: one enum of states, one of events, one transition table per block.
#
# A table is written once as ``{(state, event): Step(next, spawn)}`` and used three ways: as integer arrays by the
# compiled engine, as text in the module's docstring (``describe``), and by the contract test that runs every block.

# ---- parameters
# Parameters of hardware blocks: frozen dataclasses whose fields record the spec key that sets them and the source
# of the default.

PAPER = "Yu et al., ISCA 2026 (arXiv 2510.05497v4)"
SIMULATOR = "published simulator"
CHOICE = "choice of archsim"


def parameter(default: Any, key: str, source: str) -> Any:
    """A dataclass field: ``key`` is the path in a system spec (``hbm.latency``), ``source`` that of the default."""
    return dataclasses.field(default=default, metadata={"key": key, "source": source})


def describe(block: type) -> str:
    """One line per parameter: name, default, spec key, source of the default."""
    rows = [("parameter", "default", "set by", "source of the default")]
    for field in dataclasses.fields(block):
        rows.append((field.name, f"{field.default:g}", field.metadata["key"], field.metadata["source"]))
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as text, the first row underlined."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    head, *body = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join([head, "  ".join("-" * width for width in widths), *body])


# ---- state_machine

ILLEGAL = -1
NOTHING = -1


def codes(names: type[IntEnum]) -> tuple[np.int64, ...]:
    """The numbers of an enum as int64 scalars, for compiled kernels.

    (To numba every plain Python constant is a separate type: functions would be compiled once per constant.)
    """
    return tuple(np.int64(name) for name in names)


class NextState(NamedTuple):
    """Effect of an event on a state: the next state and optionally a second activity that it spawns.

    ``action`` says what is done; ``latency`` how long the state lasts, in the names of the block's ``Parameters``
    (or those of another block: ``llc.hit_ns``), or "waits" if something else ends it.
    """

    next: IntEnum
    spawn: IntEnum | None = None
    action: str = ""
    latency: str = ""


@dataclass(frozen=True)
class TransitionTable:
    """The transition table of one block."""

    name: str
    states: type[IntEnum]
    events: type[IntEnum]
    initial: tuple[IntEnum, ...]
    final: IntEnum
    steps: Mapping[tuple[IntEnum, IntEnum], NextState]

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """``next``, ``spawn``: int64[state, event]; -1 if the event is illegal or nothing is spawned."""
        following = np.full((len(self.states), len(self.events)), ILLEGAL, dtype=np.int64)
        spawned = np.full_like(following, NOTHING)
        for (state, event), step in self.steps.items():
            following[state, event] = step.next
            if step.spawn is not None:
                spawned[state, event] = step.spawn
        return following, spawned

    def describe(self) -> str:
        """The table as aligned text, one transition per line."""
        rows = [("state", "event", "next", "spawns", "action", "latency")]
        for (state, event), step in self.steps.items():
            spawns = step.spawn.name if step.spawn is not None else ""
            rows.append((state.name, event.name, step.next.name, spawns, step.action, step.latency))
        return aligned(rows)


# ---- request


class State(IntEnum):
    LOOKUP = 0
    LOCAL_HBM = 1
    REQUEST = 2
    REMOTE_LLC = 3
    REMOTE_HBM = 4
    DATA = 5
    COMPUTE = 6
    LLC_FILL = 7
    COPY = 8
    ACT_READ = 9
    ACT_MOVE = 10
    ACT_WRITE = 11
    DONE = 12


class Unit(IntEnum):
    """The block that serves a state."""

    PORT = 0
    HBM = 1
    COMPUTE = 2
    PATH = 3
    NONE = 4


class Event(IntEnum):
    SERVED = 0  # the block is done
    HIT = 1  # the LLC holds the slice
    MISS = 2  # the home's LLC does not
    HERE = 3  # the slice is in this die's HBM
    AWAY = 4  # it is in another die's
    KEEP = 5  # served, and the PDU keeps a copy


# ---- codes
# States and events of a request as int64 constants, for compiled kernels.

(
    LOOKUP,
    LOCAL_HBM,
    REQUEST,
    REMOTE_LLC,
    REMOTE_HBM,
    DATA,
    COMPUTE,
    LLC_FILL,
    COPY,
    ACT_READ,
    ACT_MOVE,
    ACT_WRITE,
    DONE,
) = codes(State)
SERVED, HIT, MISS, HERE, AWAY, KEEP = codes(Event)
