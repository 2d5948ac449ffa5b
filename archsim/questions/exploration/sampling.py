"""Points of a large space proposed from others' results: NSGA-II (Deb et al., IEEE TEVC 6(2), 2002) by optuna."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.specs.plan import Point, SweepPlan

GENERATION = 50  # points proposed together; optuna's default population
PATIENCE = 20  # generations without a new point that is kept, after which the space counts as exhausted


def sample_points(
    plan: SweepPlan,
    measures: Mapping[str, Callable[[Point], Any]],
    evaluate: Callable[[Sequence[Point]], Sequence[np.ndarray]],
    count: int,
    objectives: int,
    seed: int,
) -> list[Point]:
    """At most ``count`` points that the constraints keep, by number. evaluate: costs of points, float64[objective]
    each, infinite for one that failed. Raises ArchsimError without optuna.
    """
    try:
        import optuna
    except ImportError:
        raise ArchsimError(
            "explore.analytical_runs is below the number of points: sampling needs optuna: pip install "
            "'archsim[explore]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        directions=["minimize"] * objectives,
        sampler=optuna.samplers.NSGAIISampler(seed=seed, population_size=GENERATION),
    )
    within: dict[str, optuna.distributions.BaseDistribution] = {
        f"group {place}": optuna.distributions.IntDistribution(0, size - 1) for place, size in enumerate(plan.sizes)
    }
    seen: dict[int, np.ndarray] = {}
    points: dict[int, Point] = {}
    idle = 0
    while len(points) < count and idle < PATIENCE:
        trials = [study.ask(within) for _ in range(GENERATION)]
        asked = [plan.index_of(tuple(trial.params.values())) for trial in trials]
        fresh = [plan.point(index) for index in dict.fromkeys(asked) if index not in seen]
        fresh = [point for point in fresh if plan.keeps(point, measures)][: count - len(points)]
        seen |= {point.index: costs for point, costs in zip(fresh, evaluate(fresh) if fresh else [], strict=True)}
        points |= {point.index: point for point in fresh}
        idle = 0 if fresh else idle + 1
        for trial, index in zip(trials, asked, strict=True):
            costs = seen.get(index)
            if costs is None or not np.isfinite(costs).all():
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, costs.tolist())
    if not points:
        raise ArchsimError(
            f"no point of {plan.combinations:,} that optuna proposed satisfies the constraints of the sweep"
        )
    return [points[index] for index in sorted(points)]
