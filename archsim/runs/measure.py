"""Measures of a finished run: functions of a `Finished` run, one per column or group of columns.

``archsim.runs.columns`` says which column each of them is. Times in ns, shares as fractions; ``None`` if there is
nothing to measure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from archsim.base.causes import CAUSES, Cause
from archsim.base.units import NS_PER_S

if TYPE_CHECKING:
    from archsim.engine.loop import Outcome
    from archsim.engine.run_demand import RunDemand
    from archsim.iteration.memory import Fit
    from archsim.runs.run import Run
    from archsim.specs.scenario import Scenario
    from archsim.workload import TokenSource
    from microarch.silicon.energy import Activity

MESSAGES, BYTES = 0, 1  # columns of Tally.hops
HOST_PERCENTILES = (10, 50, 90, 99)

@dataclass(frozen=True)
class Finished:
    """A run that has ended: its inputs (``run``, ``demand``, ``source`` of its routing) and its ``outcome``.

    Values shared by several columns are computed once.
    """

    run: Run
    demand: RunDemand
    source: TokenSource
    outcome: Outcome

    @property
    def scenario(self) -> Scenario:
        return self.run.scenario

    @property
    def total_ns(self) -> float:
        return self.outcome.prefill_ns + self.outcome.decode_ns

    @cached_property
    def decode(self) -> np.ndarray:
        """Iterations that have tokens and count: not the prefill, nor the warm-up. int64[n]."""
        routed = np.flatnonzero(self.demand.tokens.any(axis=(1, 2)))
        decode = routed[routed > 0] if self.demand.has_prefill else routed
        return decode[self.run.workload.warmup_steps :]

    @cached_property
    def bound_ns(self) -> dict[str, float]:
        """Time on the critical path by cause (names of columns)."""
        bound_ns = {cause.column: float(self.outcome.tally.bound_ns[cause]) for cause in CAUSES}
        return bound_ns | {Cause.DECISION.column: float(self.outcome.decision.exposed_ns.sum())}

    @cached_property
    def bound_shares(self) -> dict[str, float]:
        """As ``bound_ns``, of their sum; empty where that is 0."""
        every = sum(self.bound_ns.values())
        return {name: each / every for name, each in self.bound_ns.items()} if every else {}

    @cached_property
    def decision_overhead_percent(self) -> np.ndarray:
        """The exposed part of decisions over the rest of each step: float64[step and layer that took time]."""
        exposed_ns = np.array(self.outcome.decision.by_step)
        step_ns = self.outcome.step_ns[self.outcome.step_ns > 0]
        return 100 * exposed_ns / (step_ns - exposed_ns)

    @cached_property
    def dies(self) -> dict[str, list]:
        """Columns over the dies, list[die] each; see ``archsim.runs.columns.DIES``."""
        from archsim.runs.measure_units import measure_dies

        return measure_dies(self.outcome)

    @cached_property
    def links(self) -> dict[str, list]:
        """Columns over the links, list[link] each; see ``archsim.runs.columns.LINKS``."""
        from archsim.runs.measure_units import measure_links

        return measure_links(self.outcome)

    @cached_property
    def pairs(self) -> dict[str, list]:
        """Columns over pairs of dies, list[pair] each; see ``archsim.runs.columns.PAIRS``."""
        from archsim.runs.measure_units import measure_pairs

        return measure_pairs(self.outcome)

    @cached_property
    def steps(self) -> dict[str, np.ndarray]:
        """Columns over the steps; see ``archsim.runs.columns.STEPS``; empty for very many."""
        from archsim.runs.measure_steps import measure_steps

        return measure_steps(self)

    @cached_property
    def beside_experts(self) -> Fit:
        """What dies hold without routed experts."""
        from archsim.iteration.memory import fit_of_slots

        run = self.run
        slots = np.zeros(run.system.dies, np.int64)
        deployed = run.workload, run.batch, run.scenario.deployment
        return fit_of_slots(run.system, run.model, run.assumptions, slots, *deployed)

    @cached_property
    def work(self) -> dict[str, float]:
        """Work that energy is computed from, prefill included; see ``archsim.runs.economics.work_of``."""
        from archsim.runs.economics import work_of

        return work_of(self.run.model, self.run.assumptions, self.dies, self.links)

    @cached_property
    def iteration(self) -> dict[str, dict[str, float]]:
        """See ``archsim.runs.measure_iteration.iterations_of``."""
        from archsim.runs.measure_iteration import iterations_of

        return iterations_of(self)

    @cached_property
    def economics(self) -> dict[str, float | None]:
        """See ``archsim.runs.economics.economics``."""
        from archsim.runs.economics import build_costs, economics

        return economics(self.activity, build_costs(self.run.system))

    @cached_property
    def activity(self) -> Activity:
        """What energy is computed from."""
        from archsim.runs.economics import activity_of

        tally, outcome = self.outcome.tally, self.outcome
        read = {f"{place}_hbm_read_bytes": tally.dies[f"{place}_read_bytes"].sum() for place in ("local", "remote")}
        times = {
            "prefill_ns": outcome.prefill_ns,
            "decode_ns": outcome.decode_ns,
            "decision_ns": outcome.decision.states_ns.sum(),
        }
        lost = {"pairs_lost": pairs_lost(self)}
        row = {name: plain(value) for name, value in {**read, **times, **lost}.items()} | self.work
        return activity_of(self.run.model, row)


def plain(value: Any) -> Any:
    """A Python value instead of a NumPy scalar."""
    return value.item() if isinstance(value, np.generic) else value


def mesh_side(side: str) -> Callable[[Finished], int | None]:
    """Dies along ``x`` or ``y``; None for a system without a mesh."""
    return lambda run: None if run.run.system.mesh is None else getattr(run.run.system.mesh, side)


def trace(run: Finished) -> str:
    from archsim.runs.run import trace_label

    workload = run.run.workload
    return trace_label(workload) if isinstance(workload.trace, str) else run.source.label


def throughput(run: Finished) -> float | None:
    """Tokens per second of decode; see the assumption ``throughput``."""
    if not run.outcome.decode_ns:
        return None
    if run.run.assumptions.throughput == "nominal":
        tokens = run.run.batch * (len(run.decode) if run.run.workload.warmup_steps else run.demand.steps)
    else:
        tokens = int(run.demand.tokens_of_step[run.decode].sum())
    return tokens / (run.outcome.decode_ns / NS_PER_S)


def hops(of: int) -> Callable[[Finished], int]:
    """MESSAGES or BYTES times hops, of the types that the assumption ``hops`` counts."""

    def measured(run: Finished) -> int:
        from archsim.engine.state import DATA_MESSAGES, HIDDEN, REQUESTS

        counted = [REQUESTS] if run.run.assumptions.hops == "requests" else [REQUESTS, DATA_MESSAGES, HIDDEN]
        return run.outcome.tally.hops[counted, of].sum()

    return measured


def hop_messages(kind: str) -> Callable[[Finished], int]:
    """Messages times hops of one type of ``archsim.engine.state``: REQUESTS, DATA_MESSAGES or HIDDEN."""

    def measured(run: Finished) -> int:
        from archsim.engine import state

        return run.outcome.tally.hops[getattr(state, kind), MESSAGES]

    return measured


def over_dies(column: str) -> Callable[[Finished], int]:
    """The sum of a column of ``Tally.dies``."""
    return lambda run: run.outcome.tally.dies[column].sum()


def copies(what: str) -> Callable[[Finished], int]:
    """Bytes of cached copies on all dies: ``saved``, ``evicted_unused``, ``evicted_used`` or ``held``."""

    def measured(run: Finished) -> int:
        room = run.outcome.memory.copies.room
        slices = {
            "saved": room["hits"],
            "evicted_unused": room["unused"],
            "evicted_used": room["evictions"] - room["unused"],
        }
        return room["used_bytes"].sum() if what == "held" else slices[what].sum() * run.outcome.machine.slice_bytes

    return measured


def die_utilisation(run: Finished) -> float:
    from archsim.runs.measure_units import ARRAYS, per_die, share_of_time

    return share_of_time(per_die(run.outcome, ARRAYS)["busy_ns"], run.total_ns).mean()


def load_max_over_mean(run: Finished) -> float | None:
    """Mean over steps of the largest over the mean load of a die."""
    load = run.outcome.load[run.decode]
    steps = load.reshape(-1, load.shape[-1])
    steps = steps[steps.any(axis=1)]
    return (steps.max(axis=1) / steps.mean(axis=1)).mean() if len(steps) else None


def load_ceiling(name: str) -> Callable[[Finished], float | None]:
    """Mean over steps of a ceiling (``archsim.engine.ceilings.Ceilings``) over the mean load of a die."""

    def measured(run: Finished) -> float | None:
        from archsim.engine.ceilings import Ceilings

        steps = run.outcome.ceilings[run.decode].reshape(-1, len(Ceilings._fields))
        steps = steps[steps[:, 0] > 0]
        column = Ceilings._fields.index(name)
        return (steps[:, column] / steps[:, 0]).mean() if len(steps) else None

    return measured


def balancing(field: str) -> Callable[[Finished], float]:
    """A total of ``archsim.engine.balancing.BalancingTotals``."""
    return lambda run: getattr(run.outcome.balancing, field)


def pairs_lost(run: Finished) -> int:
    return 0 if run.demand.lost_pairs is None else run.demand.lost_pairs.sum()


def gate_mass_lost(run: Finished) -> float:
    """Mean over steps and layers, prefill included."""
    if run.demand.lost_mass is None:
        return 0.0
    ran = run.demand.rows > 0
    return run.demand.lost_mass[ran].mean() if ran.any() else 0.0


def replica_hbm(run: Finished) -> int:
    """Slots of the last placement beyond one for each expert: replicas, slots left empty, and those for fetched ones.
    """
    from archsim.engine.machine import slice_bytes
    from archsim.engine.state import SLICES
    from archsim.iteration.account import EXPERTS

    model = run.run.model
    once = len(model.moe_layer_ids) * model.experts * SLICES * slice_bytes(run.run.system, model)
    return run.outcome.fit.parts[EXPERTS].sum() - once


def bound(name: str) -> Callable[[Finished], float | None]:
    """The share of a cause."""
    return lambda run: run.bound_shares.get(name)


def bounded_by(run: Finished) -> str | None:
    return max(run.bound_shares, key=run.bound_shares.__getitem__) if run.bound_shares else None


def bounded_by_margin(run: Finished) -> float | None:
    """Difference between the largest and the next bound."""
    if not run.bound_shares:
        return None
    first, second = sorted(run.bound_shares.values(), reverse=True)[:2]
    return first - second


def overhead_mean(run: Finished) -> float | None:
    overhead = run.decision_overhead_percent
    return overhead.mean() if len(overhead) else None


def overhead_percentile(percent: int) -> Callable[[Finished], float | None]:
    def measured(run: Finished) -> float | None:
        overhead = run.decision_overhead_percent
        return np.percentile(overhead, percent) if len(overhead) else None

    return measured


def decision_exposed_ns(run: Finished) -> float:
    return np.array(run.outcome.decision.by_step).sum()


def exposed(state: str) -> Callable[[Finished], float]:
    """Exposed time of decisions in a state of ``microarch.blocks.global_cp``."""

    def measured(run: Finished) -> float:
        from microarch.blocks.global_cp import State

        return run.outcome.decision.exposed_ns[State[state]]

    return measured


def host_percentile(percent: int) -> Callable[[Finished], float | None]:
    """Percentile of the timed calls of a policy function; None if its time was given or no host decided."""

    def measured(run: Finished) -> float | None:
        called_ns = run.outcome.decision.called_ns
        return np.percentile(called_ns, percent) if called_ns else None

    return measured


def decode_low_ns(run: Finished) -> float | None:
    """Decode with GEMMs at the 5 % end of their residuals, on an unchanged critical path."""
    residual_ns = run.outcome.decode_residual_ns
    return None if residual_ns is None else max(run.outcome.decode_ns - residual_ns[0], 0.0)


def decode_high_ns(run: Finished) -> float | None:
    """As `decode_low_ns`, at the 95 % end."""
    residual_ns = run.outcome.decode_residual_ns
    return None if residual_ns is None else run.outcome.decode_ns + residual_ns[1]


def gemm_extrapolated(run: Finished) -> float | None:
    if run.outcome.decode_residual_ns is None:
        return None
    return 1.0 if run.run.system.datasheet_only else run.outcome.gemm_extrapolated


def copies_extrapolated(run: Finished) -> float | None:
    """Share of the run's slices of a size outside the measured copies; all have the same size."""
    from archsim.engine.machine import slice_bytes

    law = run.run.system.d2d.copies
    outside = None if law is None else law.extrapolates(slice_bytes(run.run.system, run.run.model))
    return None if outside is None else float(outside)


def drawn_from(run: Finished) -> float | None:
    from archsim.workload.extended import recorded_requests

    recorded = recorded_requests(run.source)
    return float(recorded) if run.run.batch > recorded else None


def extended_by(run: Finished) -> str | None:
    return None if drawn_from(run) is None else run.run.workload.extend


def active_experts(run: Finished) -> float | None:
    """Mean over decode steps and layers of the experts that have tokens."""
    tokens = run.demand.tokens[int(run.demand.has_prefill) :]
    return float((tokens > 0).sum(axis=2).mean()) if len(tokens) else None


def active_if_distinct(run: Finished) -> float | None:
    """As `active_experts`, were every request another one: each pair draws an expert from the loads of all decode
    steps of its layer. An upper estimate, as the loads of one step are less even than those of all.
    """
    tokens = run.demand.tokens[int(run.demand.has_prefill) :].sum(axis=0, dtype=np.float64)
    if drawn_from(run) is None or not tokens.any():
        return None
    share = tokens / tokens.sum(axis=1, keepdims=True)
    return float((1 - (1 - share) ** (run.run.batch * run.demand.top_k)).sum(axis=1).mean())


def uncharged(run: Finished) -> str | None:
    """Own functions of the policy that decided without an Effort, by name; None where none did."""
    from archsim.engine.decision import ALLOCATION, ASIDE

    uncounted, policy = run.outcome.decision.uncounted, run.run.policy
    rules = ([policy.allocation] if ALLOCATION in uncounted else []) + (
        [policy.rebalancing, policy.replication] if ASIDE in uncounted else []
    )
    return ", ".join(rule.name for rule in rules if rule.is_function) or None


def beside_experts(kind: str) -> Callable[[Finished], int | None]:
    """Bytes of a kind of ``archsim.iteration.memory`` on the die with most of it."""
    return lambda run: run.beside_experts.of(kind)


def hbm_all_counted(run: Finished) -> int | None:
    """Whether ``memory: all`` could be followed; None where it is not assumed."""
    return int(not run.run.model.missing_geometry) if run.run.assumptions.memory == "all" else None


def approximate(run: Finished) -> str | None:
    """What the model's file says that is not modelled."""
    return "; ".join(run.run.model.approximate) or None


def context_from(run: Finished) -> str | None:
    """What says how many tokens of KV cache a request holds; None where experts alone are counted."""
    return None if run.beside_experts.context is None else run.run.context_from


def transfer_law(run: Finished) -> str | None:
    """The kernels that hidden vectors wait for; None where no GPU's are charged."""
    from archsim.engine.cluster import transfers
    from archsim.engine.transfer import told_kernels

    scenario = run.run.scenario
    told = transfers.told_kernels if scenario.assumptions.execution == "expert_parallel" else told_kernels
    return told(scenario)


def copy_room(run: Finished) -> int | None:
    bounded = run.run.assumptions.capacity == "finite"
    return run.outcome.memory.copies.room["limit_bytes"].min() if bounded else None
