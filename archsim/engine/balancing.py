"""What balancers do between steps: migrations of a rebalancing and replicas for the next layer, and what they cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from archsim.engine import state, weight_moves
from archsim.policies.allocation import Effort
from archsim.policies.placement import Placement, nearest_holders
from archsim.policies.replication import LayerView, Replication, acts_in
from archsim.traffic.step_demand import StepDemand
from microarch.blocks.hbm import SLICES
from microarch.fabric.fabric import Fabric


@dataclass
class BalancingTotals:
    """Totals of a run. Exposed time is what steps waited, decisions of the balancers included."""

    migrated_bytes: int = 0  # of migrations, as far as they have moved
    under_way_bytes: int = 0  # what a migration still has to move
    untimed_bytes: int | np.ndarray = 0  # int64[resource]: of moves that take no time (``free``); 0 without any
    migration_exposed_ns: float = 0.0  # what steps waited for migrations
    replicated_bytes: int = 0  # of replicas for single steps
    replication_exposed_ns: float = 0.0  # what steps waited for replicas


@dataclass
class Pending:
    """A migration under way: the placement that follows, what is left of the decision, and of the transfer (1 to 0)."""

    placement: Placement
    transfer: weight_moves.WeightTransfer
    decision_ns: float
    left: float = 1.0


class Balancing:
    """Moves weights between steps as ``migration`` says. ``aside_ns(effort)``: time of a decision beside the steps."""

    def __init__(
        self, how: str, machine: state.Machine, fabric: Fabric, tally: state.Tally, aside_ns: Callable[[Effort], float]
    ) -> None:  # fmt: skip
        self._how, self._on, self._aside_ns = how, (machine, fabric, tally), aside_ns
        self._hops, self._expert_bytes = machine.hops, SLICES * machine.slice_bytes
        self._spare_bytes: np.ndarray | None = None
        self._idle_ns: float | np.ndarray = np.inf  # of the step before
        self._previous_ns, self._counts_anew = 0.0, False
        self._counted: np.ndarray | None = None
        self.pending: Pending | None = None
        self.totals = BalancingTotals()

    @cached_property
    def _mover(self) -> weight_moves.WeightMover:
        """Made when weights move, which many policies never do."""
        return weight_moves.WeightMover(*self._on)

    def count_anew(self) -> None:
        """Forget what was counted so far; a migration under way goes on, and replicas that have arrived are there."""
        self.totals, self._counts_anew = BalancingTotals(under_way_bytes=self.totals.under_way_bytes), True

    def migrate(self, placement: Placement, moves: np.ndarray, effort: Effort) -> float:
        """Begin a migration; returns how long the next step waits. With ``overlapped`` it is pending for a while."""
        transfer = self._mover.transfer(moves["src"], moves["dst"], self._expert_bytes)
        decision_ns = 0.0 if self._how == "free" else self._aside_ns(effort)
        if self._how == "overlapped":
            self.pending, self.totals.under_way_bytes = Pending(placement, transfer, decision_ns), transfer.total_bytes
            return 0.0
        self.totals.migrated_bytes += self._book(transfer)
        exposed_ns = decision_ns + transfer.ns if self._how == "blocking" else 0.0
        self.totals.migration_exposed_ns += exposed_ns
        return exposed_ns

    def take_arrived(self) -> Placement | None:
        """The placement of a migration that is complete, once."""
        if self.pending is None or self.pending.left > 0:
            return None
        placement, self.pending = self.pending.placement, None
        return placement

    def fetch(
        self, rule: Replication, placement: Placement, layer: int, row: int, demand: StepDemand
    ) -> tuple[Placement, int, float]:  # fmt: skip
        """Replicas fetched during the step before: the placement with them, the layer's row there, the wait in ns."""
        if not acts_in(rule.phase, bool(demand.prefill_tokens.any())):
            return placement, row, 0.0
        holders = placement.holds[row]
        expected = np.zeros(len(holders), np.float32) if demand.expected is None else demand.expected
        origins = np.zeros((0, 0), np.int32) if demand.origins is None else demand.origins
        view = LayerView(origins, expected, placement.home[row], holders, layer, demand.step)
        replicas = rule.rule(view)
        expert, die = np.nonzero(replicas.holds)
        transfer = self._mover.transfer(nearest_holders(holders[expert], die, self._hops), die, self._expert_bytes)
        exposed_ns, hidden = 0.0, 0.0
        idle_ns: float | np.ndarray = np.inf
        if self._how != "free":
            exposed_ns, hidden = self._exposed_ns(transfer, self._aside_ns(replicas.effort))
            exposed_ns += replicas.in_sight_ns
            idle_ns = self._idle_ns + (1 - hidden) * transfer.ns
        begin, self._counts_anew = hidden if self._counts_anew else 0.0, False
        self.totals.replicated_bytes += self._book(transfer, begin=begin, idle_ns=idle_ns)
        self.totals.replication_exposed_ns += exposed_ns
        return placement.of_layer(row, replicas.holds), 0, exposed_ns

    def _book(self, transfer: weight_moves.WeightTransfer, **part: Any) -> int:
        if self._how == "free":
            self.totals.untimed_bytes = self.totals.untimed_bytes + transfer.resource_bytes
        return self._mover.book(transfer, timed=self._how != "free", **part)

    def _exposed_ns(self, transfer: weight_moves.WeightTransfer, decision_ns: float) -> tuple[float, float]:
        """What a step waits for replicas that were fetched during the step before, and the share that arrived in it."""
        hidden_ns = hidden = 0.0
        if self._how == "overlapped" and self._spare_bytes is not None:
            hidden_ns = min(decision_ns, self._previous_ns)
            if decision_ns < self._previous_ns:
                hidden = weight_moves.advance(transfer, self._spare_bytes * (1 - decision_ns / self._previous_ns))
        return decision_ns - hidden_ns + (1 - hidden) * transfer.ns, hidden

    def begin_step(self) -> None:
        if self._how == "overlapped":
            self._counted = self._mover.resource_counts()

    def end_step(self, step_ns: float) -> None:
        """It has ended; what it left of links and HBM advances a pending migration, and hides the next replicas."""
        if self._how != "overlapped" or self._counted is None:
            return
        self._previous_ns = step_ns
        spare_bytes = self._leave(self._counted, step_ns)
        if (pending := self.pending) is not None and pending.left > 0 and step_ns > 0:
            waited_ns = min(pending.decision_ns, step_ns)
            pending.decision_ns -= waited_ns
            begin = 1 - pending.left
            moves = 1 - waited_ns / step_ns
            moved = weight_moves.advance(pending.transfer, spare_bytes * moves) if moves else 0.0
            pending.left = max(pending.left - moved, 0.0)
            n_bytes = self._mover.book(pending.transfer, begin=begin, end=1 - pending.left, idle_ns=self._idle_ns)
            self.totals.migrated_bytes += n_bytes
            self.totals.under_way_bytes -= n_bytes
            self._leave(self._counted, step_ns)

    def _leave(self, before: np.ndarray, step_ns: float) -> np.ndarray:
        """What a step leaves of resources, which had counted ``before`` when it began: bytes (returned), and time."""
        grown = self._mover.resource_counts()
        self._spare_bytes = self._mover.spare_bytes(step_ns, grown["bytes"] - before["bytes"])
        self._idle_ns = np.maximum(step_ns - (grown["busy_ns"] - before["busy_ns"]), 0.0)
        return self._spare_bytes
