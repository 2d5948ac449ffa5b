"""How far a run's steps are from the best possible allocation under the same placement, copies and caches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from archsim.engine import loop, moves
from archsim.engine.demand import RunDemand
from archsim.policies.allocation import Plan
from archsim.questions.optimum_bounds import SMALL, StepBound, exact_bound, lower_bound
from archsim.questions.optimum_problem import AllocationProblem, ProblemBuilder, loads

KINDS = ("hbm", "compute", "link")


@dataclass(frozen=True)
class StepDistance:
    """One step and its bound."""

    step: int  # iteration
    layer: int  # index among the demand's MoE layers
    step_ns: float  # engine time without the decision
    exposed_ns: float  # which the decision adds
    bound: StepBound  # no allocation is faster
    problem: AllocationProblem  # that was bounded
    loads_ns: np.ndarray  # float64[resource]

    @property
    def plan_ns(self) -> float:
        """Minimum time of the plan: that of its fullest resource."""
        return float((self.loads_ns + self.problem.start_ns).max())

    @property
    def distance(self) -> float:
        """Step time, decision included, over the bound, less one; 0.1 is 10 %."""
        return (self.step_ns + self.exposed_ns) / self.bound.ns - 1

    @property
    def parts(self) -> dict[str, float]:
        """Shares of the bound: ``allocation`` (fullest resource of the plan), ``waiting`` (for order, latency, other
        dies), ``decision`` (exposed).
        """
        waiting = max(self.step_ns - self.plan_ns, 0.0) / self.bound.ns
        decision = self.exposed_ns / self.bound.ns
        return {"allocation": self.distance - waiting - decision, "waiting": waiting, "decision": decision}

    @property
    def bound_by(self) -> str:
        """The kind of resource with the largest share in the proof of the bound."""
        dies = self.problem.fabric.dies
        parts = np.split(self.bound.multipliers, [dies, 2 * dies])
        return KINDS[int(np.argmax([part.sum() for part in parts]))]

    @property
    def plan_by(self) -> str:
        return KINDS[min(int(self.loads_ns.argmax()) // self.problem.fabric.dies, 2)]


@dataclass
class Bounds:
    """Bounds of the steps of one demand on one machine, shared by policies with the same placement."""

    known: dict[tuple, StepBound] = field(default_factory=dict)

    def of(self, at: tuple[int, int], problem: AllocationProblem) -> StepBound:
        arrays = (problem.home, problem.asks, problem.reads, problem.fetches, problem.base_ns, problem.start_ns)
        key = (at, *(array.tobytes() for array in arrays))
        if key not in self.known:
            bound = lower_bound(problem)
            small = len(problem.tokens) * problem.fabric.dies <= SMALL
            self.known[key] = exact_bound(problem, bound) if small else bound
        return self.known[key]


def distances(replay: loop.Replay, most_steps: int | None, bounds: Bounds) -> Iterator[StepDistance]:
    """Run all steps; bound at most ``most_steps`` (None: all), evenly spread. Raises ArchsimError for more than 128
    dies, and for experts with several holders.
    """
    engine, demand = replay.engine, replay.demands
    assert isinstance(demand, RunDemand)
    builder = ProblemBuilder(engine.scenario, engine.policy.predictor is not None, int(demand.tokens.max()))
    routed = [tuple(map(int, at)) for at in np.argwhere(demand.tokens.any(axis=2))]
    asked = set(
        range(len(routed))
        if most_steps is None
        else np.linspace(0, len(routed) - 1, min(most_steps, len(routed))).round().astype(int).tolist()
    )
    results = replay.steps()
    for index, (step, layer) in enumerate(routed):
        problem = None
        if index in asked:  # memory is as at the start of the step
            problem = builder.build(
                demand.at(step, layer), layer, int(engine.rows[layer]), engine.placement, engine.memory
            )
        result = next(results)
        if problem is not None:
            yield _compare(result, problem, bounds.of((step, layer), problem), engine.fabric.hops)


def _compare(result: loop.StepResult, problem: AllocationProblem, bound: StepBound, hops: np.ndarray) -> StepDistance:
    times = result.times
    return StepDistance(
        step=result.step, layer=result.layer, step_ns=times.end_ns - times.begin_ns, exposed_ns=times.exposed_ns,
        bound=bound, problem=problem, loads_ns=plan_loads(problem, times.plan, hops),
    )  # fmt: skip


def plan_loads(problem: AllocationProblem, plan: Plan, hops: np.ndarray) -> np.ndarray:
    """Loads of a policy's plan (hidden vectors sent as the engine sends them), float64[resource] in ns."""
    row = np.searchsorted(problem.expert, plan.expert)
    given = np.zeros((len(problem.expert), problem.fabric.dies))
    np.add.at(given, (row, plan.die), plan.tokens)
    flow = None
    if problem.origins is not None:
        flow = moves.send_tokens(row, plan.die, plan.tokens, np.ascontiguousarray(problem.origins.T), hops)
    return loads(problem, given / problem.tokens[:, None], given > 0, flow)
