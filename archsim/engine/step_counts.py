"""What every step counted: the difference of the run's tally before and after it, one row a step of a layer.

What moves between two steps (weights that rebalancing moves) counts for the next one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from archsim.engine.pair_traffic import CLASSES
from archsim.engine.state import PARTS, UNITS, Machine, Tally

PREFILL, DECODE = 0, 1  # rows of ``StepCounts.hbm_bytes``
MOVED = tuple(CLASSES)
MOST_STEPS = 12_000  # rows that are kept: 127 iterations of 94 layers, the paper's longest run
MOST_DIES = 128  # with more, classes of messages are not told apart: their sum over pairs would take longer than a step


class StepCounts:
    """``hbm_bytes``: int64[2, die] that HBM moved, ``tokens``: int64[2, die] assigned to it, ``part_ns``: float64[2,
    PARTS] of expert-parallel layers; in prefill and decode.

    A run of more than MOST_STEPS steps keeps these sums alone: its rows would be larger than all else that is kept.
    """

    def __init__(self, machine: Machine, tally: Tally) -> None:
        self._machine, self._tally = machine, tally
        self.hbm_bytes, self.tokens = np.zeros((2, 2, machine.dies), np.int64)
        self.part_ns = np.zeros((2, len(PARTS)))
        self._rows: list[tuple] = []
        self._steps = 0
        self._before = self._now()

    def forget(self) -> None:
        """The tally begins anew."""
        self.hbm_bytes[:] = self.tokens[:] = 0
        self.part_ns[:] = 0.0
        self._rows.clear()
        self._steps = 0
        self._before = self._now()

    def add(
        self, step: int, layer: int, prefill: bool, took_ns: float, exposed_ns: float, load: np.ndarray,
        wanted: np.ndarray,
    ) -> None:
        """A step has run. ``load``: int64[die] tokens; ``wanted``: int32[expert] tokens."""
        now, before = self._now(), self._before
        self._before = now
        grown = {name: now[name] - before[name] for name in now}
        dies, links = self._machine.dies, UNITS * self._machine.dies
        n_bytes, busy_ns = grown["bytes"], grown["busy_ns"][links:]
        phase = PREFILL if prefill else DECODE
        self.hbm_bytes[phase] += n_bytes[dies : 2 * dies]
        self.tokens[phase] += load
        self.part_ns[phase] += grown["part_ns"]
        self._steps += 1
        if self._steps > MOST_STEPS:
            self._rows.clear()
            return
        hottest = int(busy_ns.argmax()) if busy_ns.any() else -1
        link = (hottest, int(n_bytes[links + hottest]), float(busy_ns[hottest])) if hottest >= 0 else (-1, 0, 0.0)
        busiest, expert = int(load.argmax()), int(wanted.argmax())
        self._rows.append(
            (step, layer, took_ns, exposed_ns, grown["bound_ns"], grown["dies"].sum(axis=0), grown["moved"])
            + (*link, busiest, int(load[busiest]), int(load.sum()), expert, int(wanted[expert]))
        )

    def columns(self) -> Mapping[str, np.ndarray]:
        """Name → one value a step, in their order; none for more than MOST_STEPS. ``layer`` counts the layers that run;
        ``bound_ns`` float64[step, state + 1] as in the tally; ``hbm_bytes`` int64[step, 4] by field of
        ``archsim.engine.state.DIE``; ``moved`` int64[step, class] by `MOVED`, 0 for machines of more than MOST_DIES
        dies; ``link`` -1: none was busy.
        """
        names = (
            "step", "layer", "time_ns", "decision_ns", "bound_ns", "hbm_bytes", "moved", "link", "link_bytes",
            "link_busy_ns", "die", "die_tokens", "tokens", "expert", "expert_tokens",
        )  # fmt: skip
        columns = zip(*self._rows, strict=True) if self._rows else ([] for _ in names)
        return {name: np.array(values) for name, values in zip(names, columns, strict=True)}

    def _now(self) -> dict[str, np.ndarray]:
        tally, dies = self._tally, self._tally.dies
        few = self._machine.dies <= MOST_DIES
        return {
            "bytes": tally.resources["bytes"].copy(),
            "busy_ns": tally.resources["busy_ns"].copy(),
            "bound_ns": tally.bound_ns.copy(),
            "part_ns": tally.part_ns.copy(),
            "dies": np.stack([dies[name] for name in dies.dtype.names], axis=1),
            "moved": tally.pair_bytes.sum(axis=(1, 2)) if few else np.zeros(len(MOVED), np.int64),
        }
