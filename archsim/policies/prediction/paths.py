"""Lina's prediction of a batch: how many tokens every expert of every layer gets, from the paths that tokens took.

The tables are counted over the first tokens of the batch, up to a sample, and predict only iterations after those that
they were counted over. Prediction, too, reads a sample of an iteration's tokens and scales it.
"""

import numpy as np

from archsim.base.threads import LayerThreads
from archsim.policies.prediction.lina import LinaTable, lina_fit
from archsim.workload.stacked import Stacked
from archsim.workload.trace import StepTokens, TokenSource


class PathForecast:
    """A `Watcher` of the demand. ``sample``: most tokens that are counted, and predicted in an iteration."""

    def __init__(self, source: TokenSource, path_length: int, sample: int):
        self._layers, self._experts, self._top_k = len(source.layer_ids), source.num_experts, source.top_k
        self._path_length, self._sample = path_length, sample
        self._known: list[np.ndarray] = []
        self._table: LinaTable | None = None
        self._expected = Stacked((self._layers, self._experts), np.float32)
        self._clear()

    def take_expected(self) -> np.ndarray:
        """Return the expectations of all steps so far and clear them: float32[step, layer, expert]."""
        return self._expected.take()

    def add(self, piece: StepTokens, layer_threads: LayerThreads) -> None:
        """Keep every n-th token, with n doubled when twice the sample is reached."""
        first = -self._seen % self._stride
        self._seen += len(piece.request)
        self._rows.append(piece.experts[first :: self._stride, :, 0].copy())
        if sum(map(len, self._rows)) > 2 * self._sample:
            self._rows = [np.concatenate(self._rows)[::2]]
            self._stride *= 2

    def end(self, iteration: int, layer_threads: LayerThreads) -> None:
        top1 = np.concatenate(self._rows)[: 2 * self._sample].T if self._rows else np.zeros((self._layers, 0), np.int16)
        self._expected.append(self._predict(top1.astype(np.int64)))
        if (missing := self._sample - sum(each.shape[1] for each in self._known)) > 0 and top1.shape[1]:
            self._known.append(top1[:, :missing].astype(np.int64))
            self._table = lina_fit(np.concatenate(self._known, axis=1), self._path_length, self._experts)
        self._clear()

    def _clear(self) -> None:
        self._rows: list[np.ndarray] = []
        self._stride, self._seen = 1, 0

    def _predict(self, top1: np.ndarray) -> np.ndarray:
        expected = np.zeros((self._layers, self._experts), np.float32)
        if self._table is None or not top1.shape[1]:
            return expected
        predicted = self._table.predict(top1, self._top_k)
        for layer in range(1, self._layers):
            expected[layer] = np.bincount(predicted[layer].ravel(), minlength=self._experts)
        return expected * np.float32(self._seen / top1.shape[1])
