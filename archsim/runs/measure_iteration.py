"""Measures of a whole iteration on a cluster: MoE layers as the run has them, all else by laws.

A run has MoE layers alone, often some of them: its time an iteration counts for all of the model's. Decoded requests
hold `WorkloadSpec.context_tokens` each; prompts are all as long as their mean. Empty unless experts ran under
``execution: expert_parallel``, and where attention of the GPU was not measured.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archsim.runs.measure import Finished

DECODE, PREFILL = "decode", "prefill"
# Columns, and what they say; the causes of each: archsim.iteration.scenario.COLUMNS.
PARTS_OF_ITERATION = MappingProxyType(
    {
        "attention": "attention",
        "projections": "projections of attention",
        "dense": "dense layers, router, norms, and shared experts that the run leaves out",
        "experts": "routed and shared experts",
        "transfers": "dispatch and combine that nothing hides",
        "all_reduce": "all-reduces of tensor parallelism",
        "head": "LM head and sampling",
        "host": "the host; 0 where nothing says",
    }
)


def of_iteration(column: str, phase: str = DECODE) -> Callable[[Finished], float | None]:
    """The ns of a column of `archsim.iteration.scenario.COLUMNS`."""

    def measured(run: Finished) -> float | None:
        from archsim.iteration.scenario import COLUMNS

        found = run.iteration[phase]
        return sum(found[cause] for cause in COLUMNS[column]) if found else None

    return measured


def whole_iteration(phase: str = DECODE) -> Callable[[Finished], float | None]:
    """All causes together."""
    return lambda run: sum(run.iteration[phase].values()) if run.iteration[phase] else None


def iteration_energy(bound: str) -> Callable[[Finished], float | None]:
    """J a token with coefficients at their ``value``, ``low`` or ``high``."""

    def measured(run: Finished) -> float | None:
        from archsim.runs.economics import Coefficients, build_costs
        from archsim.runs.iteration_energy import iteration_energy_j

        known = Coefficients()
        at = known if bound == "value" else Coefficients(known.energy.at(bound), known.area, known.cost)
        return iteration_energy_j(run, run.activity, build_costs(run.run.system), whole_iteration()(run), at)

    return measured


def attention_law(run: Finished) -> str | None:
    """What pages print of attention that was not measured."""
    from archsim.iteration.scenario import laws_of

    laws = laws_of(run.scenario) if any(run.iteration.values()) else None
    return "; ".join(laws.notes) or None if laws else None


def iterations_of(run: Finished) -> dict[str, dict[str, float]]:
    """Cause → ns of one decode iteration, and of the prefill; empty where there is none."""
    from archsim.engine.step_counts import DECODE as DECODES
    from archsim.engine.step_counts import PREFILL as PROMPTS

    tokens = run.demand.tokens_of_step
    groups, outcome = run.scenario.parallel.dp, run.outcome
    prompted = float(tokens[0]) / groups if len(tokens) else 0.0
    return {
        DECODE: _iteration(run, DECODES, outcome.decode_ns, len(run.decode), run.run.batch / groups),
        PREFILL: _iteration(run, PROMPTS, outcome.prefill_ns, 1, prompted),
    }


def _iteration(run: Finished, phase: int, ns: float, iterations: int, tokens: float) -> dict[str, float]:
    from archsim.engine.cluster.transfers import sms_share
    from archsim.engine.step_counts import PREFILL as PROMPTS
    from archsim.iteration.overlap import Layer
    from archsim.iteration.scenario import batch_of, iteration_ns, laws_of

    scenario, parts = run.scenario, run.outcome.counts.part_ns[phase]
    laws = laws_of(scenario) if parts.any() and iterations and ns else None
    if laws is None:
        return {}
    layers = run.outcome.step_ns.shape[1]
    all_ns = ns / iterations * len(scenario.model.moe_layer_ids) / layers
    batch = batch_of(scenario, tokens, prompts=phase == PROMPTS)
    moe = Layer(*(all_ns * parts / parts.sum()).tolist())
    return iteration_ns(scenario, laws, batch, moe, sms_share(scenario.system, scenario.assumptions))
