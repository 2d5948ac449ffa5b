"""The heatmap's store in RTL, which counts the pairs of a step a word at a time."""

import numpy as np

from archsim.base import errors
from microarch.rtl import drive, heatmap


class RtlHeatmap:
    """The heatmap's store, which adds the pairs of a step to the counters of a layer, as
    `archsim.policies.ported_heatmap.PortedHeatmap` has them counted. Raises ArchsimError for a token that has an expert
    twice, as a mask of a word has no bit for that.
    """

    def __init__(self, experts: int, port_bits: int):
        self._driven = drive.Driven(heatmap.HeatmapStore(heatmap.Parameters(experts, port_bits)))

    def __call__(
        self,
        pairs: np.ndarray,
        same: np.ndarray,
        request: np.ndarray,
        experts: np.ndarray,
        last: np.ndarray,
        heat: np.ndarray,
        bound: np.ndarray,
        changed: np.ndarray,
        per_word: int,
    ) -> int:
        halved = 0
        for at in pairs.tolist():
            masks = self._masks(experts[at].tolist(), int(per_word))
            for row in (experts[at - 1] if same[at] else last[request[at]]).tolist():
                changed[row] = True
                for word, mask in masks.items():
                    given = row, word, mask
                    halved += self._driven.ask(lambda ctx, dut, given=given: drive.count(ctx, dut, heat, *given))
        return halved

    def _masks(self, now: list[int], per_word: int) -> dict[int, int]:
        """Word → a bit for each of its counters to add to."""
        masks: dict[int, int] = {}
        for expert in now:
            word, bit = expert // per_word, 1 << expert % per_word
            if masks.get(word, 0) & bit:
                raise errors.ArchsimError(f"decision.fsm.implementation: rtl: a token has expert {expert} twice")
            masks[word] = masks.get(word, 0) | bit
        return masks
