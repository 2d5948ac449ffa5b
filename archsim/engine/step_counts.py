"""What every step counted: the difference of the run's tally before and after it, one row a step of a layer.

What moves between two steps (weights that rebalancing moves) counts for the next one.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from archsim.base.kernels import inner, kernel
from archsim.engine.pair_traffic import CLASSES
from archsim.engine.state import DIE, PARTS, UNITS, Machine, Tally

PREFILL, DECODE = 0, 1  # rows of ``StepCounts.hbm_bytes``
MOVED = tuple(CLASSES)
MOST_STEPS = 12_000  # rows that are kept: 127 iterations of 94 layers, the paper's longest run
MOST_DIES = 128  # with more, classes of messages are not told apart: their sum over pairs would take longer than a step


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


class Sums(NamedTuple):
    """What the tally held before a step, and then what it has grown by: of resources, causes, parts, and dies."""

    resource_bytes: np.ndarray  # int64[resource]
    busy_ns: np.ndarray  # float64[resource]
    bound_ns: np.ndarray  # float64[cause]
    part_ns: np.ndarray  # float64[PARTS]
    hbm_bytes: np.ndarray  # int64[4], by field of DIE, of all dies
    moved: np.ndarray  # int64[class] of all pairs


class StepCounts:
    """``hbm_bytes``: int64[2, die] that HBM moved, ``tokens``: int64[2, die] assigned to it, ``part_ns``: float64[2,
    PARTS] of expert-parallel layers; in prefill and decode.

    A run of more than MOST_STEPS steps keeps these sums alone: its rows would be larger than all else that is kept.
    """

    def __init__(self, machine: Machine, tally: Tally) -> None:
        self._tally = tally
        self.hbm_bytes, self.tokens = np.zeros((2, 2, machine.dies), np.int64)
        self.part_ns = np.zeros((2, len(PARTS)))
        self._links = UNITS * machine.dies
        self._pair_bytes = tally.pair_bytes if machine.dies <= MOST_DIES else tally.pair_bytes[:, :0]
        self._before, self._grown = self._no_sums(), self._no_sums()
        self._room(FIRST_ROOM)
        self.forget()

    def _no_sums(self) -> Sums:
        resources = len(self._tally.resources)
        return Sums(
            np.zeros(resources, np.int64), np.zeros(resources), np.zeros_like(self._tally.bound_ns),
            np.zeros(len(PARTS)), np.zeros(len(DIE), np.int64), np.zeros(len(MOVED), np.int64),
        )  # fmt: skip

    def _room(self, rows: int) -> None:
        """Room for so many rows; those that are kept stay."""
        every = np.zeros(rows, ROW), *(np.zeros((rows, len(each)), each.dtype) for each in self._several)
        for new, old in zip(every, getattr(self, "_columns", every), strict=True):
            new[: len(old)] = old[:rows]
        self._columns = every

    @property
    def _several(self) -> tuple[np.ndarray, ...]:
        return self._grown.bound_ns, self._grown.hbm_bytes, self._grown.moved

    def forget(self) -> None:
        """The tally begins anew."""
        self.hbm_bytes[:] = self.tokens[:] = 0
        self.part_ns[:] = 0.0
        self._steps = 0
        _grow(self._tally, self._pair_bytes, self._before, self._grown)

    def add(
        self, step: int, layer: int, prefill: bool, took_ns: float, exposed_ns: float, load: np.ndarray,
        wanted: np.ndarray,
    ) -> None:
        """A step has run. ``load``: int64[die] tokens; ``wanted``: int32[expert] tokens."""
        of_phase = (each[PREFILL if prefill else DECODE] for each in (self.hbm_bytes, self.tokens, self.part_ns))
        _add(self._tally, self._pair_bytes, self._before, self._grown, load, *of_phase)
        at, self._steps = self._steps, self._steps + 1
        if at >= MOST_STEPS:
            return
        if at == len(self._columns[0]):
            self._room(2 * at)
        _note(self._columns, at, (step, layer, took_ns, exposed_ns), self._grown, self._links, load, wanted)

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
    """Replace ``before`` by what the tally holds now; leave in ``grown`` how much more that is. ``pair_bytes``: of the
    tally, or without pairs.
    """
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
def _add(tally, pair_bytes, before, grown, load, hbm_bytes, tokens, part_ns):
    """As `_grow`; add what it found to the sums of a phase, int64[die], int64[die] and float64[PARTS]."""
    _grow(tally, pair_bytes, before, grown)
    for die in range(len(load)):
        hbm_bytes[die] += grown.resource_bytes[len(load) + die]
        tokens[die] += load[die]
    for part in range(len(part_ns)):
        part_ns[part] += grown.part_ns[part]


@inner
def _replace(before, grown, at, now):
    grown[at], before[at] = now - before[at], now


@kernel
def _note(columns, at, known, grown, links, load, wanted):
    """Fill in a row of all ``columns``. ``known``: step, layer, time and time of the decision; ``links``: first
    resource that is one.
    """
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
