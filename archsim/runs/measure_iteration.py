"""Measures of a whole decode iteration on a cluster: MoE layers as the run has them, all else by laws.

A run has MoE layers alone, often some of them: its decode time an iteration counts for all of the model's, split into
phases as over the whole run. Requests hold `WorkloadSpec.context_tokens` each. Empty unless experts ran under
``execution: expert_parallel``, and where attention of the GPU was not measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archsim.runs.measure import Finished


def of_iteration(cause: str) -> Callable[[Finished], float | None]:
    """The ns of a cause of `archsim.iteration.overlap.ITERATION`."""

    def measured(run: Finished) -> float | None:
        found = run.iteration
        return found.get(cause) if found else None

    return measured


def whole_iteration(run: Finished) -> float | None:
    """All causes together."""
    return sum(run.iteration.values()) if run.iteration else None


def iteration_energy(bound: str) -> Callable[[Finished], float | None]:
    """J a token with coefficients at their ``value``, ``low`` or ``high``."""

    def measured(run: Finished) -> float | None:
        from archsim.runs.economics import Coefficients, build_costs
        from archsim.runs.iteration_energy import iteration_energy_j

        known = Coefficients()
        at = known if bound == "value" else Coefficients(known.energy.at(bound), known.area, known.cost)
        return iteration_energy_j(run, run.activity, build_costs(run.run.system), whole_iteration(run), at)

    return measured


def iteration_of(run: Finished) -> dict[str, float]:
    """Cause → ns of one decode iteration; empty where there is none."""
    from archsim.iteration.overlap import MoeTimes, decode_batch, iteration_ns, laws_of

    parts, layers = run.outcome.tally.part_ns, run.outcome.step_ns.shape[1]
    if not parts.any() or not len(run.decode) or not run.outcome.decode_ns:
        return {}
    laws = laws_of(run.scenario)
    if laws is None:
        return {}
    model, overlap = run.run.model, run.run.assumptions.overlap
    moe_ns = run.outcome.decode_ns / len(run.decode) * len(model.moe_layer_ids) / layers
    shares = parts / parts.sum()
    shares[1] = 0.0  # shared experts are among the dense products
    moe = MoeTimes(*(moe_ns * shares).tolist())
    batch = decode_batch(run.scenario, run.run.workload.context_tokens or 1)
    return iteration_ns(laws, batch, moe, overlap)
