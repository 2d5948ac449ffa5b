"""What every step counted: the difference of the run's tally before and after it, one row a step of a layer.

What moves between two steps (weights that rebalancing moves) counts for the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from archsim.base.compiled import inner, kernel
from archsim.engine import pair_traffic, state
from archsim.policies.allocation import Plan
from microarch.silicon.energy import TILE_ROWS

PREFILL, DECODE = 0, 1  # rows of ``StepCounts.hbm_bytes``
MOVED = tuple(pair_traffic.CLASSES)
MOST_STEPS = 12_000  # rows that are kept: 127 iterations of 94 layers, the paper's longest run
MOST_DIES = 128  # with more, classes of messages are not kept apart: their sum over pairs would take longer than a step

# Of a step; ``link`` -1: none was busy. What has more than one value a step is in columns of its own.
ROW = np.dtype(
    [
        ("step", "i8"), ("layer", "i8"), ("time_ns", "f8"), ("decision_ns", "f8"), ("link", "i8"),
        ("link_bytes", "i8"), ("link_busy_ns", "f8"), ("die", "i8"), ("die_tokens", "i8"), ("tokens", "i8"),
        ("expert", "i8"), ("expert_tokens", "i8"),
    ],
    align=True,
)  # fmt: skip
NAMES = (
    "step", "layer", "time_ns", "decision_ns", "bound_ns", "hbm_bytes", "moved", "link", "link_bytes",
    "link_busy_ns", "die", "die_tokens", "tokens", "expert", "expert_tokens",
)  # fmt: skip
FIRST_ROOM = 256  # rows; doubled when they are full
MOST_FRAMES = 16  # of a run; iterations are taken together where it has more


class Frame(NamedTuple):
    """Sums of a run up to the end of ``step``: time, tokens, and bytes, ns busy and ns waited of each resource."""

    step: int  # iteration that has ended
    time_ns: float  # of the run so far, decisions included
    tokens: np.ndarray  # int64[die]: assigned so far
    bytes: np.ndarray  # int64[resource]: passed so far
    busy_ns: np.ndarray  # float64[resource]: so far
    wait_ns: np.ndarray  # float64[resource]: time that stages waited for it so far


class Sums(NamedTuple):
    """What the tally held before a step, and then what it has grown by: of resources, causes, parts, and dies."""

    resource_bytes: np.ndarray  # int64[resource]
    busy_ns: np.ndarray  # float64[resource]
    bound_ns: np.ndarray  # float64[cause]
    part_ns: np.ndarray  # float64[PARTS]
    hbm_bytes: np.ndarray  # int64[4], by field of DIE, of all dies
    moved: np.ndarray  # int64[class] of all pairs


class StepCounts:
    """In prefill and decode: ``resource_bytes``: int64[2, resource] and ``busy_ns``: float64[2, resource], of each
    resource as ``archsim.engine.state`` numbers them; ``hbm_bytes``: int64[2, die], a part of the bytes; ``tokens``:
    int64[2, die] assigned to it, ``padded``: int64[2, die] rows that are empty in the tiles of its products;
    ``entries``: int64[2] of plans, experts that a die runs; ``time_ns``: float64[2]; ``part_ns``: float64[2, PARTS] of
    expert-parallel layers.

    A run of more than MOST_STEPS steps keeps these sums alone: its rows would be larger than all else that is kept.
    """

    def __init__(self, machine: state.Machine, tally: state.Tally) -> None:
        self._tally = tally
        self.tokens, self.padded = np.zeros((2, 2, machine.dies), np.int64)
        self.resource_bytes, self.entries = np.zeros((2, len(tally.resources)), np.int64), np.zeros(2, np.int64)
        self.busy_ns, self.time_ns = np.zeros((2, len(tally.resources))), np.zeros(2)
        self.hbm_bytes = self.resource_bytes[:, machine.dies : 2 * machine.dies]
        self.part_ns = np.zeros((2, len(state.PARTS)))
        self._links = state.UNITS * machine.dies
        self._pair_bytes = tally.pair_bytes if machine.dies <= MOST_DIES else tally.pair_bytes[:, :0]
        self._before = Sums(
            np.zeros(len(tally.resources), np.int64), np.zeros(len(tally.resources)), np.zeros_like(tally.bound_ns),
            np.zeros(len(state.PARTS)), np.zeros(len(state.DIE.fields or ()), np.int64), np.zeros(len(MOVED), np.int64),
        )  # fmt: skip
        self._grown = Sums(*map(np.zeros_like, self._before))
        several = self._grown.bound_ns, self._grown.hbm_bytes, self._grown.moved
        self._columns = [np.zeros(FIRST_ROOM, ROW), *(np.zeros((FIRST_ROOM, len(of)), of.dtype) for of in several)]
        self.forget()

    def forget(self) -> None:
        """The tally begins anew."""
        self.resource_bytes[:] = self.tokens[:] = self.padded[:] = self.entries[:] = 0
        self.part_ns[:] = self.busy_ns[:] = self.time_ns[:] = 0.0
        self._steps, self._iteration, self._end_ns = 0, -1, 0.0
        self._frames: list[Frame] = []
        self._ended, self._together = 0, 1  # iterations, and how many of them a frame spans
        self._wait_ns = self._tally.resources["wait_ns"].copy()
        _grow(self._tally, self._pair_bytes, self._before, self._grown)

    def add(
        self,
        step: int,
        layer: int,
        prefill: bool,
        took_ns: float,
        exposed_ns: float,
        end_ns: float,
        load: np.ndarray,
        wanted: np.ndarray,
        plan: Plan,
    ) -> None:
        """``end_ns``: of the run so far; ``load``: int64[die] tokens; ``wanted``: int32[expert] tokens."""
        if step != self._iteration:
            self._end_iteration(step)
        phase = PREFILL if prefill else DECODE
        self.time_ns[phase] += took_ns
        self._end_ns = end_ns
        self.entries[phase] += len(plan.expert)
        _add_padded(plan.die, plan.tokens, TILE_ROWS, self.padded[phase])
        sums = self.resource_bytes, self.busy_ns, self.tokens, self.part_ns
        _add(self._tally, self._pair_bytes, self._before, self._grown, load, *(each[phase] for each in sums))
        np.copyto(self._wait_ns, self._tally.resources["wait_ns"])
        at, self._steps = self._steps, self._steps + 1
        if at >= MOST_STEPS:
            return
        if at == len(self._columns[0]):
            self._columns = [np.concatenate([column, np.zeros_like(column)]) for column in self._columns]
        _note(tuple(self._columns), at, (step, layer, took_ns, exposed_ns), self._grown, self._links, load, wanted)

    def _end_iteration(self, following: int) -> None:
        if self._iteration >= 0:
            self._ended += 1
            if self._ended % self._together == 0:
                self._frames.append(self._frame())
            if len(self._frames) >= 2 * MOST_FRAMES:
                del self._frames[::2]  # two become one, which ends with the later
                self._together *= 2
        self._iteration = following

    def _frame(self) -> Frame:
        tokens, n_bytes, busy_ns = (each.sum(axis=0) for each in (self.tokens, self.resource_bytes, self.busy_ns))
        return Frame(self._iteration, self._end_ns, tokens, n_bytes, busy_ns, self._wait_ns.copy())

    def frames(self) -> list[Frame]:
        """At the ends of some iterations, at most MOST_FRAMES, the last one among them."""
        every = [*self._frames, self._frame()] if self._iteration >= 0 else []
        while len(every) > MOST_FRAMES:
            every = every[-1::-2][::-1]
        return every

    def columns(self) -> Mapping[str, np.ndarray]:
        """Name → one value a step, in their order; none for more than MOST_STEPS. ``layer`` counts the layers that run;
        ``bound_ns`` float64[step, state + 1] as in the tally; ``hbm_bytes`` int64[step, 4] by field of
        ``archsim.engine.state.DIE``; ``moved`` int64[step, class] by `MOVED`, 0 for machines of more than MOST_DIES
        dies; ``link`` -1: none was busy.
        """
        if not 0 < self._steps <= MOST_STEPS:
            return {name: np.array([]) for name in NAMES}
        rows, *several = (column[: self._steps] for column in self._columns)
        wide = dict(zip(("bound_ns", "hbm_bytes", "moved"), several, strict=True))
        return {name: wide[name].copy() if name in wide else rows[name].copy() for name in NAMES}


@kernel
def _grow(tally, pair_bytes, before, grown):
    """Replace ``before`` by what the tally (with its pairs, if any) holds now; ``grown``: how much more that is."""
    for r in range(len(tally.resources)):
        row = tally.resources[r]
        grown.resource_bytes[r], before.resource_bytes[r] = row.bytes - before.resource_bytes[r], row.bytes
        grown.busy_ns[r], before.busy_ns[r] = row.busy_ns - before.busy_ns[r], row.busy_ns
    for cause in range(len(tally.bound_ns)):
        grown.bound_ns[cause] = tally.bound_ns[cause] - before.bound_ns[cause]
        before.bound_ns[cause] = tally.bound_ns[cause]
    for part in range(len(tally.part_ns)):
        grown.part_ns[part] = tally.part_ns[part] - before.part_ns[part]
        before.part_ns[part] = tally.part_ns[part]
    local, remote, written, activations = 0, 0, 0, 0
    for die in range(len(tally.dies)):
        row = tally.dies[die]
        local += row.local_read_bytes
        remote += row.remote_read_bytes
        written += row.write_bytes
        activations += row.activation_bytes
    _replace(before.hbm_bytes, grown.hbm_bytes, 0, local)
    _replace(before.hbm_bytes, grown.hbm_bytes, 1, remote)
    _replace(before.hbm_bytes, grown.hbm_bytes, 2, written)
    _replace(before.hbm_bytes, grown.hbm_bytes, 3, activations)
    for what in range(len(pair_bytes)):
        sent = 0
        for src in range(pair_bytes.shape[1]):
            for dst in range(pair_bytes.shape[2]):
                sent += pair_bytes[what, src, dst]
        _replace(before.moved, grown.moved, what, sent)


@kernel
def _add(tally, pair_bytes, before, grown, load, resource_bytes, busy_ns, tokens, part_ns):
    """As `_grow`; adds it to the sums of a phase, int64[resource], float64[resource], int64[die], float64[PARTS]."""
    _grow(tally, pair_bytes, before, grown)
    for r in range(len(resource_bytes)):
        resource_bytes[r] += grown.resource_bytes[r]
        busy_ns[r] += grown.busy_ns[r]
    for die in range(len(load)):
        tokens[die] += load[die]
    for part in range(len(part_ns)):
        part_ns[part] += grown.part_ns[part]


@inner
def _replace(before, grown, at, now):
    grown[at], before[at] = now - before[at], now


@kernel
def _add_padded(die, tokens, rows, padded):
    """Add the rows that are empty in the tiles, of so many ``rows``, of a plan's products, to int64[die]."""
    for at in range(len(die)):
        padded[die[at]] += -tokens[at] % rows


@kernel
def _note(columns, at, known, grown, links, load, wanted):
    """Fill in a row of all ``columns``. ``known``: step, layer, times; ``links``: first resource that is one."""
    rows, bound_ns, hbm_bytes, moved = columns
    _copy(grown.bound_ns, bound_ns[at])
    _copy(grown.hbm_bytes, hbm_bytes[at])
    _copy(grown.moved, moved[at])
    row = rows[at]
    row.step, row.layer, row.time_ns, row.decision_ns = known
    hottest = _fullest(grown.busy_ns[links:])
    row.link = -1
    if hottest >= 0 and grown.busy_ns[links + hottest] != 0.0:
        row.link, row.link_bytes = hottest, grown.resource_bytes[links + hottest]
        row.link_busy_ns = grown.busy_ns[links + hottest]
    row.die, row.expert = _fullest(load), _fullest(wanted)
    row.die_tokens, row.expert_tokens = load[row.die], wanted[row.expert]
    for die in range(len(load)):
        row.tokens += load[die]


@inner
def _copy(values, to):
    for at in range(len(values)):
        to[at] = values[at]


@inner
def _fullest(values):
    """Index of the largest value, the first of equal ones; -1 without values."""
    fullest = -1
    for at in range(len(values)):
        if fullest < 0 or values[at] > values[fullest]:
            fullest = at
    return fullest
