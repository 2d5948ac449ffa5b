"""What balancers do between steps: migrations of a rebalancing and replicas for the next layer, and what they cost."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from archsim.engine.weight_moves import Transfer, WeightMover, advance
from archsim.policies.allocation.rules import Effort
from archsim.policies.placement.placement import Placement, nearest_holders
from archsim.policies.replication.rules import LayerView, Replication
from archsim.workload.step_demand import StepDemand


@dataclass
class BalancingTotals:
    """Totals of a run. Exposed time is what steps waited, decisions of the balancers included."""

    migrated_bytes: int = 0
    migration_exposed_ns: float = 0.0
    replicated_bytes: int = 0
    replication_exposed_ns: float = 0.0


@dataclass
class Pending:
    """A migration under way: the placement that follows, what is left of the decision, and of the transfer (1 to 0)."""

    placement: Placement
    transfer: Transfer
    decision_ns: float
    left: float = 1.0


class Fetched(NamedTuple):
    """The holders of a layer for one step, and how long the step waits for them."""

    placement: Placement
    row: int
    exposed_ns: float


class Balancing:
    """Moves weights between steps, as the assumption ``migration`` says. ``aside_ns(effort)``: time of a decision of
    that effort beside the steps.
    """

    def __init__(self, how: str, mover: WeightMover, hops: np.ndarray, expert_bytes: int, aside_ns):
        self._how, self._mover, self._hops, self._expert_bytes = how, mover, hops, expert_bytes
        self._aside_ns = aside_ns
        self._spare_bytes: np.ndarray | None = None
        self._before_ns = 0.0
        self._counted: np.ndarray | None = None
        self.pending: Pending | None = None
        self.totals = BalancingTotals()

    def count_anew(self) -> None:
        """Forget what was counted so far; a migration under way goes on."""
        self.totals = BalancingTotals()

    def migrate(self, placement: Placement, moves: np.ndarray, effort: Effort) -> float:
        """Begin a migration; returns how long the next step waits. With ``overlapped`` it is pending for a while."""
        transfer = self._mover.transfer(moves["src"], moves["dst"], self._expert_bytes)
        self._mover.book(transfer)
        self.totals.migrated_bytes += transfer.total_bytes
        decision_ns = 0.0 if self._how == "free" else self._aside_ns(effort)
        if self._how == "overlapped":
            self.pending = Pending(placement, transfer, decision_ns)
            return 0.0
        exposed_ns = decision_ns + transfer.ns if self._how == "blocking" else 0.0
        self.totals.migration_exposed_ns += exposed_ns
        return exposed_ns

    def arrived(self) -> Placement | None:
        """The placement of a migration that is complete, once."""
        if self.pending is None or self.pending.left > 0:
            return None
        placement, self.pending = self.pending.placement, None
        return placement

    def fetch(self, rule: Replication, placement: Placement, layer: int, row: int, demand: StepDemand) -> Fetched:
        """Replicas for a layer that is about to run, fetched while the step before ran."""
        holders = placement.holds[row]
        expected = np.zeros(len(holders), np.float32) if demand.expected is None else demand.expected
        origins = np.zeros((0, 0), np.int32) if demand.origins is None else demand.origins
        view = LayerView(origins, expected, placement.home[row], holders, layer, demand.step)
        replicas = rule.rule(view)
        expert, die = np.nonzero(replicas.holds)
        transfer = self._mover.transfer(nearest_holders(holders[expert], die, self._hops), die, self._expert_bytes)
        exposed_ns = self._exposed_ns(transfer, 0.0 if self._how == "free" else self._aside_ns(replicas.effort))
        self._mover.book(transfer)
        self.totals.replicated_bytes += transfer.total_bytes
        self.totals.replication_exposed_ns += exposed_ns
        return Fetched(placement.of_layer(row, replicas.holds), 0, exposed_ns)

    def _exposed_ns(self, transfer: Transfer, decision_ns: float) -> float:
        """What a step waits for replicas that were decided on and fetched during the step before."""
        if self._how == "free":
            return 0.0
        if self._how == "blocking" or self._spare_bytes is None or decision_ns >= self._before_ns:
            hidden_ns = 0.0 if self._how == "blocking" else min(decision_ns, self._before_ns)
            return decision_ns - hidden_ns + transfer.ns
        spare_bytes = self._spare_bytes * (1 - decision_ns / self._before_ns)
        return (1 - advance(transfer, spare_bytes)) * transfer.ns

    def begin_step(self) -> None:
        if self._how == "overlapped":
            self._counted = self._mover.counted_bytes()

    def end_step(self, step_ns: float) -> None:
        """It has ended; what it left of links and HBM advances a pending migration, and hides the next replicas."""
        if self._how != "overlapped" or self._counted is None:
            return
        moved = self._mover.counted_bytes() - self._counted
        self._spare_bytes, self._before_ns = self._mover.spare_bytes(step_ns, moved), step_ns
        if self.pending is not None and step_ns > 0:
            waited_ns = min(self.pending.decision_ns, step_ns)
            self.pending.decision_ns -= waited_ns
            self.pending.left -= advance(self.pending.transfer, self._spare_bytes * (1 - waited_ns / step_ns))
