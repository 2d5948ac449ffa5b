"""What the command processors did, transition by transition: the log of a run.

=============  ======================  ==========================================================================
column         dtype[transition]       meaning
=============  ======================  ==========================================================================
``step``       int64                   iteration
``layer``      int64                   MoE layer of the demand
``time_ns``    float64                 since the start of the run, decisions included
``block``      int64                   ``Processor``
``die``        int64                   where the command processor sits
``state``      int64                   state before (``State`` of ``microarch.blocks.global_cp`` or ``local_cp``)
``event``      int64                   event that the block processed
``next``       int64                   state after
=============  ======================  ==========================================================================

The Global CP's table is walked with the durations of its states; Local CPs record their transitions while the kernel
of a step runs, in rows that its work carries. Without a log there are no such rows, and nothing is walked.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from archsim.base.compiled import inner, kernel
from archsim.engine.decision import FreeDecision
from archsim.engine.local_cp import NOTE
from microarch.blocks import block, local_cp
from microarch.blocks.global_cp import TABLE as GLOBAL_TABLE
from microarch.blocks.global_cp import State

COLUMNS = ("step", "layer", "time_ns", "block", "die", "state", "event", "next")


class Processor(IntEnum):
    GLOBAL_CP = 0
    LOCAL_CP = 1


GLOBAL_NEXT, GLOBAL_SPAWN = GLOBAL_TABLE.arrays()
GLOBAL_ENDS = np.full(len(State), block.NOTHING, np.int64)  # the one event that ends each state; -1 for the final one


for _state, _event in GLOBAL_TABLE.steps:
    assert GLOBAL_ENDS[_state] == block.NOTHING, f"{_state.name} may end in two ways"
    GLOBAL_ENDS[_state] = _event


IDLE = block.codes(State)[0]


@inner
def _follow(following, ends_with, lasts_ns, state, now, notes, count):
    """Record the transitions from ``state``, begun at ``now``, to the final state; returns the number of notes."""
    while ends_with[state] >= 0:
        now += lasts_ns[state]
        note = notes[count]
        note.time_ns, note.state, note.event = now, state, ends_with[state]
        note.next = following[state, ends_with[state]]
        state = note.next
        count += 1
    return count


@kernel
def walk(following, spawned, ends_with, lasts_ns, start, begin_ns, notes):
    """Walk a table by ``lasts_ns: float64[state]``; returns the notes' number. Spawned states start when spawned."""
    count = _follow(following, ends_with, lasts_ns, start, begin_ns, notes, np.int64(0))
    noted = np.int64(0)
    while noted < count:
        branch = spawned[notes[noted].state, notes[noted].event]
        if branch >= 0:
            count = _follow(following, ends_with, lasts_ns, branch, notes[noted].time_ns, notes, count)
        noted += 1
    return count


class TransitionLog:
    """Keeps transitions of command processors. ``dies``: Local CPs; ``global_die``: where the Global CP sits."""

    def __init__(self, dies: int, global_die: int):
        self.notes = np.zeros(len(local_cp.TABLE.steps) * dies + 1, NOTE)
        self._of_global = np.zeros(len(GLOBAL_TABLE.steps), NOTE)
        self._global_die = global_die
        self._now = 0.0
        self._steps: list[tuple[int, int, np.ndarray, np.ndarray]] = []

    def begin(self) -> None:
        """A step begins: nothing is recorded yet (the last row's ``next`` is the count)."""
        self.notes[-1]["next"] = 0

    def add(self, step: int, layer: int, decision: FreeDecision, previous_ns: float, step_ns: float) -> None:
        """A step of ``step_ns`` has ended, after one of ``previous_ns``; notes of Local CPs count from its start."""
        lasts_ns = decision.lasts_ns(previous_ns, step_ns)
        made = walk(GLOBAL_NEXT, GLOBAL_SPAWN, GLOBAL_ENDS, lasts_ns, IDLE, self._now, self._of_global)
        ours = self._of_global[:made].copy()
        ours["die"] = self._global_die
        theirs = self.notes[: self.notes[-1]["next"]].copy()
        theirs["time_ns"] += ours["time_ns"][ours["state"] == State.DISPATCH][0]
        self._now = float(ours["time_ns"][ours["state"] == State.UPDATE][0])
        blocks = np.repeat([Processor.GLOBAL_CP, Processor.LOCAL_CP], [len(ours), len(theirs)])
        rows = np.concatenate([ours, theirs])
        order = np.argsort(rows["time_ns"], kind="stable")
        self._steps.append((step, layer, blocks[order], rows[order]))

    def columns(self) -> dict[str, np.ndarray]:
        """The table of this section: steps in order, the transitions of a step by time."""
        rows = np.concatenate([np.zeros(0, NOTE), *(rows for *_, rows in self._steps)])
        lengths = [len(rows) for *_, rows in self._steps]
        made = {
            "step": np.repeat(np.array([step for step, *_ in self._steps], np.int64), lengths),
            "layer": np.repeat(np.array([layer for _, layer, *_ in self._steps], np.int64), lengths),
            "block": np.concatenate([np.zeros(0, np.int64), *(blocks for _, _, blocks, _ in self._steps)]),
        } | {name: rows[name] for name in NOTE.fields or ()}
        return {name: made[name] for name in COLUMNS}
