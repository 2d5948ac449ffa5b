"""The heatmap that counts every pair at once (``heatmap_update: free``): its predictions follow from the routing alone.

Rules: Yu et al., ISCA 2026 (arXiv 2510.05497v4), as in the published simulator. Compare `PortedHeatmap`.
"""

from copy import deepcopy
from pathlib import Path

import numpy as np

from archsim.base import compiled, host
from archsim.policies.heatmap import Predictor, seen_of
from archsim.traffic import stacked, trace


class FreeHeatmap:
    """The heatmap of every layer, and the last token of every request of the batch; a `Watcher` of the demand.

    Rows: uint8[step, layer, expert, ceil(E/8)], little-endian bitset: bit j of row i is set where expert j is predicted
    to follow expert i by the heatmap as of this step, this step included; all zero in step 0. folder: where they go
    that would fill the memory; None: they stay there.
    """

    def __init__(self, source: trace.TokenSource, batch: int, predictor: Predictor, folder: Path | None = None):
        layers, experts = len(source.layer_ids), source.num_experts
        self._predictor = predictor
        self._heat = np.zeros((layers, experts, experts), np.uint32)
        self._changed = np.ones((layers, experts), np.bool_)
        self._hot = np.zeros((layers, experts, (experts + 7) // 8), np.uint8)
        self._last = np.zeros((batch, layers, source.top_k), np.int16)
        self._last_iteration = np.full(batch, -1, np.int32)
        self._rows = stacked.Stacked(self._hot.shape, np.uint8, folder and folder / "predicted_rows")
        self._look = getattr(predictor, "look", None)  # of a predictor that sees tokens
        self._pieces: list[trace.StepTokens] = []

    def take_rows(self) -> np.ndarray:
        """Return the rows of all steps so far and clear them: uint8[step, layer, expert, ceil(E/8)]."""
        return self._rows.take()

    def add(self, piece: trace.StepTokens, layer_threads: host.LayerThreads) -> None:
        """Count the pairs that end in this piece: between prefill tokens, and between decode steps from the 2nd on."""
        if self._look is not None and piece.iteration:
            self._pieces.append(deepcopy(piece))
        wanted = piece.iteration - 1 if piece.iteration else 0
        same = np.concatenate([[False], piece.request[1:] == piece.request[:-1]])
        follows = same | (self._last_iteration[piece.request] == wanted)
        if piece.iteration != 1:
            layer_threads.run(
                _count_pairs, piece.experts, piece.request, same, follows, self._last, self._heat, self._changed
            )
        ends = np.concatenate([~same[1:], [True]])
        self._last[piece.request[ends]] = piece.experts[ends]
        self._last_iteration[piece.request[ends]] = piece.iteration

    def end(self, iteration: int, layer_threads: host.LayerThreads) -> None:
        """Predict for a step; nothing is predicted in iteration 0."""
        if iteration == 0:
            self._rows.append(np.zeros_like(self._hot))
            return
        if self._look is None:
            self._predictor(self._heat, self._changed, self._hot)
        elif self._pieces:
            for layer in range(len(self._hot)):
                self._hot[layer] = self._look(seen_of(layer, self._pieces, self._heat[layer]))
            self._pieces.clear()
        self._changed[:] = False
        self._rows.append(self._hot.copy())


@compiled.kernel
def _count_pairs(experts, first, end, request, same, follows, last, heat, changed):
    """Add pairs (previous token, this token) to heat uint32[layer, expert, expert], marking changed[layer, expert].

    The previous token of a row is the row before it where `same`, else last[request] where `follows`, else none.
    Layers outermost: the map of one layer stays in cache.
    """
    rows, _, top_k = experts.shape
    for layer in range(first, end):
        for row in range(rows):
            if not follows[row]:
                continue
            before = experts[row - 1, layer] if same[row] else last[request[row], layer]
            now = experts[row, layer]
            for rank in range(top_k):
                prior = np.uint64(before[rank])
                changed[layer, prior] = True
                counts = heat[layer, prior]
                for following in range(top_k):
                    counts[np.uint64(now[following])] += np.uint32(1)
