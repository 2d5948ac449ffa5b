"""An experiment with a sweep, and one with an exploration."""

from contextlib import nullcontext

from archsim.runs.sweep import Unwatched
from support.tiny import TINY

SWEPT = (
    TINY
    + """\
sweep:
  grid:
    hbm.bandwidth: [1 TB/s, 2 TB/s, 4 TB/s]
    d2d.bandwidth: [500 GB/s, 2 TB/s]
"""
)


EXPLORED = (
    SWEPT
    + """\
explore:
  objectives: [throughput, energy, cost]
  budgets: [cost <= 4900, cost <= 1]
  event_runs: 40 %
"""
)


def unwatched():
    """Stages of a search that nobody watches."""
    return nullcontext(Unwatched())
