"""Copies of experts: which expert gets one more slot, by its load."""

from typing import NamedTuple

import numpy as np

from archsim.base.compiled import kernel


class ExpertInstances(NamedTuple):
    """Instances of every row's experts, the first of each before all further ones."""

    expert: np.ndarray  # int64[row, copy]
    rank: np.ndarray  # int64[row, copy] 0 for an expert's first instance
    number: np.ndarray  # int64[row, expert] instances of an expert
    load: np.ndarray  # float64[row, copy] of one instance: the expert's load / its instances


def replicate(load: np.ndarray, copies: int) -> ExpertInstances:
    """``copies`` instances, load float64[row, expert]: one each, then each to the largest load per instance."""
    rows, experts = load.shape
    expert, rank = np.zeros((2, rows, copies), np.int64)
    expert[:, :experts] = np.arange(experts)
    count, each = np.ones((rows, experts), np.int64), load.copy()
    _give_copies(load, each, count, expert, rank)
    return ExpertInstances(expert, rank, count, np.take_along_axis(each, expert, axis=1))


@kernel
def _give_copies(load, each, count, expert, rank):
    rows, experts = load.shape
    for row in range(rows):
        for copy in range(experts, expert.shape[1]):
            hottest = 0
            for candidate in range(1, experts):
                if each[row, candidate] > each[row, hottest]:
                    hottest = candidate
            expert[row, copy] = hottest
            rank[row, copy] = count[row, hottest]
            count[row, hottest] += 1
            each[row, hottest] = load[row, hottest] / count[row, hottest]
