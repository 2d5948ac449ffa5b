"""Lina: the next layer's experts from the path that a token took through the layers before.

As Libra, section 2 and appendix A, describes its baseline.
A table for each layer, counted over recorded tokens: which experts followed the top-1 experts of the last
``path_length`` layers. An unseen path is shortened by its oldest layer until it was seen; if nothing is left, the
layer's popularity counts.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from archsim.base.host import LayerThreads
from archsim.policies.load import checked_count, checked_load, checked_tokens
from archsim.traffic import stacked, trace


class _Paths(NamedTuple):
    """All seen paths of one length into one layer, numbered in order of key."""

    key: np.ndarray  # int64[path], ascending: number of the path less its oldest layer * experts + expert of that layer
    begin: np.ndarray  # int64[path + 1] into follows
    follows: (
        np.ndarray
    )  # int64[...] experts seen after the path, the most frequent first, the lowest first among equal ones


class LinaTable(NamedTuple):
    path_length: int
    experts: int
    paths: list[list[_Paths]]  # [layer][length 0..min(layer, path_length)]; layer 0 has none

    def predict(self, top1: ArrayLike, top_k: int) -> np.ndarray:
        """The ``top_k`` experts that follow each token most often, int64[layer, token, top_k]; layer 0 has no path: -1.

        ``top1[layer, token]``: of layer i, only layers before it are read. If a path was followed by fewer
        experts, those of the next shorter path are appended, then unseen ones; ties to the lowest id. ValueError:
        layers or experts that differ from the fitted ones.
        """
        checked_count(top_k, "top_k")
        if top_k > self.experts:
            raise ValueError(f"top_k is {top_k}; expected at most {self.experts}, the number of experts")
        top1 = _check_top1(top1, self.experts)
        if len(top1) != len(self.paths):
            raise ValueError(f"top1 has {len(top1)} layers; the table was fitted to {len(self.paths)}")
        predicted = np.full((*top1.shape, top_k), -1, np.int64)
        for layer, by_length in enumerate(self.paths[1:], start=1):
            predicted[layer] = self._predict_layer(top1[:layer], by_length, top_k)
        return predicted

    def _predict_layer(self, before: np.ndarray, by_length: list[_Paths], top_k: int) -> np.ndarray:
        """int64[token, top_k]; before[layer, token]: the top-1 experts of all layers before."""
        tokens = before.shape[1]
        best = np.broadcast_to(np.arange(top_k), (tokens, top_k))
        path, known = np.zeros(tokens, np.int64), np.ones(tokens, bool)
        for length, paths in enumerate(by_length):
            if length:
                key = path * self.experts + before[-length]
                path = np.minimum(np.searchsorted(paths.key, key), len(paths.key) - 1)
                known = known & (paths.key[path] == key)
            best = np.where(known[:, None], _ahead(_first(paths, path, top_k), best), best)
        return best


def lina_fit(top1: ArrayLike, path_length: int, experts: int) -> LinaTable:
    """Path tables of recorded ``top1[layer, token]`` (Lina: 3 or 4 layers). ValueError: no token, unknown experts."""
    checked_count(path_length, "path_length")
    top1 = _check_top1(top1, checked_count(experts, "experts"))
    layers, tokens = top1.shape
    if tokens == 0 and layers > 1:
        raise ValueError("top1 has no token; expected top1[layer, token] of one token or more")
    paths: list[list[_Paths]] = [[] for _ in range(layers)]
    for layer in range(1, layers):
        key = np.zeros(tokens, np.int64)
        for length in range(min(layer, path_length) + 1):
            seen, number = np.unique(key, return_inverse=True)
            paths[layer].append(_Paths(seen, *_followers(number, top1[layer], experts)))
            if length < layer:
                key = number * experts + top1[layer - 1 - length]
    return LinaTable(path_length, experts, paths)


def uniform_split(tokens: int, copies: int) -> np.ndarray:
    """``tokens`` split over an expert's instances, int64[instance], the remainder on the first (Libra, section 2)."""
    checked_count(tokens, "tokens", least=0)
    each, rest = divmod(int(tokens), checked_count(copies, "copies"))
    return each + (np.arange(copies) < rest).astype(np.int64)


def device_share(popularity: ArrayLike, devices: int) -> np.ndarray:
    """Number of devices in proportion to each expert's share of all tokens, float64[expert] (Lina). Raises ValueError
    for a share that is no number of at least 0, and for less than one device.
    """
    return checked_load(popularity, ("expert",), "popularity") * checked_count(devices, "devices")


def prediction_accuracy(predicted: ArrayLike, actual: ArrayLike) -> tuple[float, float]:
    """(mean fraction of a token's experts that were predicted, fraction of tokens with all of them predicted).

    predicted, actual: int[token, k] experts; the two k may differ. Libra defines the accuracy both ways, in section 2
    and in appendix A. Without tokens both are 1.0. Raises ValueError if the numbers of tokens differ.
    """
    predicted, actual = np.atleast_2d(predicted), np.atleast_2d(actual)
    if len(predicted) != len(actual):
        raise ValueError(f"predicted has {len(predicted)} tokens, actual has {len(actual)}; expected as many of both")
    if actual.size == 0:
        return 1.0, 1.0
    found = (actual[:, :, None] == predicted[:, None, :]).any(axis=2)
    return float(found.mean()), float(found.all(axis=1).mean())


def _check_top1(top1: ArrayLike, experts: int) -> np.ndarray:
    top1 = checked_tokens(top1, ("layer", "token"), "top1")
    if top1.size and top1.max() >= experts:
        raise ValueError(f"top1 has expert {top1.max()}; expected 0..{experts - 1}")
    return top1


def _followers(number: np.ndarray, follows: np.ndarray, experts: int) -> tuple[np.ndarray, np.ndarray]:
    """(begin, experts) by path: what followed each, by falling count, then by id."""
    pair, count = np.unique(number * experts + follows, return_counts=True)
    path, expert = np.divmod(pair, experts)
    order = np.lexsort((expert, -count, path))
    begin = np.searchsorted(path, np.arange(number.max(initial=-1) + 2))
    return begin, expert[order]


def _first(paths: _Paths, path: np.ndarray, top_k: int) -> np.ndarray:
    """int64[token, top_k] the most frequent followers of each token's path, -1 behind the last."""
    at = paths.begin[path][:, None] + np.arange(top_k)
    there = at < paths.begin[path + 1][:, None]
    return np.where(there, paths.follows[np.minimum(at, len(paths.follows) - 1)], -1)


def _ahead(first: np.ndarray, then: np.ndarray) -> np.ndarray:
    """Row by row, the first distinct entries of ``first`` (-1: none) and then of ``then``, as many as in a row."""
    both = np.concatenate([first, then], axis=1)
    again = (both[:, None, :] == first[:, :, None]).any(axis=1)
    again[:, : first.shape[1]] = first < 0
    order = np.argsort(again, axis=1, kind="stable")[:, : first.shape[1]]
    return np.take_along_axis(both, order, axis=1)


# Lina's prediction of a batch: how many tokens every expert of every layer gets, from the paths that tokens took.
#
# The tables are counted over the first tokens of the batch, up to a sample, and predict only iterations after those
# that they were counted over. Prediction, too, reads a sample of an iteration's tokens and scales it.


class PathForecast:
    """A `Watcher` of the demand. ``sample``: most tokens that are counted, and predicted in an iteration."""

    def __init__(self, source: trace.TokenSource, path_length: int, sample: int):
        self._layers, self._experts, self._top_k = len(source.layer_ids), source.num_experts, source.top_k
        self._path_length, self._sample = path_length, sample
        self._known: list[np.ndarray] = []
        self._rows: list[np.ndarray] = []  # every ``_stride``-th token of the iteration, of ``_seen``
        self._stride, self._seen = 1, 0
        self._table: LinaTable | None = None
        self._expected = stacked.Stacked((self._layers, self._experts), np.float32)

    def take_expected(self) -> np.ndarray:
        """Return the expectations of all steps so far and clear them: float32[step, layer, expert]."""
        return self._expected.take()

    def add(self, piece: trace.StepTokens, layer_threads: LayerThreads) -> None:
        """Keep every n-th token, with n doubled when twice the sample is reached."""
        first = -self._seen % self._stride
        self._seen += len(piece.request)
        self._rows.append(piece.experts[first :: self._stride, :, 0].copy())
        if sum(len(each) for each in self._rows) > 2 * self._sample:
            self._rows = [np.concatenate(self._rows)[::2]]
            self._stride *= 2

    def end(self, iteration: int, layer_threads: LayerThreads) -> None:
        top1 = np.concatenate(self._rows)[: 2 * self._sample].T if self._rows else np.zeros((self._layers, 0), np.int16)
        self._expected.append(self._predict(top1.astype(np.int64)))
        if (missing := self._sample - sum(each.shape[1] for each in self._known)) > 0 and top1.shape[1]:
            self._known.append(top1[:, :missing].astype(np.int64))
            self._table = lina_fit(np.concatenate(self._known, axis=1), self._path_length, self._experts)
        self._rows, self._stride, self._seen = [], 1, 0

    def _predict(self, top1: np.ndarray) -> np.ndarray:
        expected = np.zeros((self._layers, self._experts), np.float32)
        if self._table is None or not top1.shape[1]:
            return expected
        predicted = self._table.predict(top1, self._top_k)
        for layer in range(1, self._layers):
            expected[layer] = np.bincount(predicted[layer].ravel(), minlength=self._experts)
        return expected * np.float32(self._seen / top1.shape[1])
