"""Policies by name: from a ``PolicySpec`` to the functions that decide, built in or a user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from archsim.policies import allocation, placement, prediction
from archsim.specs.policies import import_function

PLACEMENTS = {"linear": placement.linear, "balanced": placement.balanced}
ALLOCATIONS = {
    "first_seen": allocation.first_seen,
    "home": allocation.home,
    "isca26": allocation.isca26,
    "paper": allocation.paper,
}


def _heatmap(top_fraction: float | None = None, top_n: int | None = None):
    return prediction.TopPositive(top_n) if top_n is not None else prediction.TopFraction(top_fraction)


PREDICTIONS = {"none": lambda: None, "heatmap": _heatmap}


@dataclass(frozen=True)
class Policy:
    """``place(experts, dies)``, ``allocate(step)`` and ``predictor(heat, changed, out)`` or None."""

    place: Callable[[int, int], np.ndarray]
    allocate: Callable[[allocation.StepView], allocation.Plan]
    predictor: Callable | None


def build_policy(spec) -> Policy:
    """The functions of a ``PolicySpec``. Raises ValueError if a user's function cannot be imported."""
    return Policy(
        place=partial(_function(spec.placement, PLACEMENTS), **spec.placement.params),
        allocate=partial(_function(spec.allocation, ALLOCATIONS), **spec.allocation.params),
        predictor=_predictor(spec.prediction),
    )


def _function(rule, known):
    return import_function(rule.name) if rule.is_function else known[rule.name]


def _predictor(rule):
    if rule.is_function:
        return partial(import_function(rule.name), **rule.params)
    return PREDICTIONS[rule.name](**rule.params)
