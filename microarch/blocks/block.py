"""What a block declares: parameters with the keys and sources of their values, and transitions as a table.

A table is written once as ``{(state, event): NextState(next, spawn)}`` and used three ways: as integer arrays by the
compiled engine, as text in the module's docstring (`describe`), and by the contract test that runs every block.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

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
    return align(rows)


def align(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as text, the first row underlined."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    head, *body = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join([head, "  ".join("-" * width for width in widths), *body])


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

    name: str  # of the block
    states: type[IntEnum]  # all of them
    events: type[IntEnum]  # all of them
    initial: tuple[IntEnum, ...]  # where it may begin
    final: IntEnum  # where it ends
    steps: Mapping[tuple[IntEnum, IntEnum], NextState]  # (state, event) → what follows; others are illegal

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
        return align(rows)
