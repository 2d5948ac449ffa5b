"""Weights that ranks fetch for one step: of experts that a plan runs where they are not held.

HarMoEny passes tokens to ranks that fetch the expert; the wafer's rules run experts beside their holders. A rank
fetches each such expert from the nearest holder, once a step, over the links that the dispatch has used before;
meanwhile it computes what it holds. Fetched weights are not kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from archsim.engine import execution, state, weight_moves
from archsim.policies.placement import nearest_holders
from microarch.blocks.hbm import SLICES
from microarch.fabric.fabric import Fabric


class FetchedWeights(NamedTuple):
    """``ns``: float64[die], from the end of the dispatch until a die has the weights; ``share``: float64[die] of its
    pairs that wait for them. ``source``: int64[fetch], where the weights come from; ``transfer``: their way, None
    without fetches.
    """

    ns: np.ndarray
    share: np.ndarray
    source: np.ndarray
    transfer: weight_moves.WeightTransfer | None


class Fetches:
    """Times and counts what the steps of a run fetch."""

    def __init__(self, machine: state.Machine, fabric: Fabric, tally: state.Tally):
        self._machine, self._fabric, self._tally = machine, fabric, tally
        self._mover = weight_moves.WeightMover(machine, fabric, tally)

    def of(self, order: execution.Order) -> FetchedWeights:
        plan, dies = order.plan, self._machine.dies
        holds = order.placement.holds[order.row]
        away = ~holds[plan.expert, plan.die]
        if not away.any():
            return FetchedWeights(np.zeros(dies), np.zeros(dies), np.zeros(0, np.int64), None)
        die = plan.die[away]
        source = nearest_holders(holds[plan.expert[away]], die, self._fabric.hops)
        transfer = self._mover.transfer(source, die, self._expert_bytes)
        pairs = np.bincount(plan.die, plan.tokens, dies)
        waiting = np.bincount(die, plan.tokens[away], dies)
        share = np.divide(waiting, pairs, out=np.zeros(dies), where=pairs > 0)
        return FetchedWeights(transfer.arrival_ns, share, source, transfer)

    def count(self, fetched: FetchedWeights) -> None:
        """Add what a step has fetched to the tally."""
        if fetched.transfer is not None:
            self._mover.book(fetched.transfer, state.DATA_MESSAGES)
            np.add.at(self._tally.dies["remote_read_bytes"], fetched.source, self._expert_bytes)

    @property
    def _expert_bytes(self) -> int:
        return SLICES * self._machine.slice_bytes
