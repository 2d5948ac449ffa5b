"""Policies by name: from a ``PolicySpec`` to the functions that decide, built in or a user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from archsim.policies.allocation import linear_programme
from archsim.policies.allocation import rules as allocation
from archsim.policies.own_functions import own_allocation, own_placement, own_predictor
from archsim.policies.placement import rules as placement
from archsim.policies.prediction import heatmap as prediction

PLACEMENTS = {"linear": placement.linear, "balanced": placement.balanced}
ALLOCATIONS = {
    "first_seen": allocation.first_seen,
    "home": allocation.home,
    "isca26": allocation.isca26,
    "paper": allocation.paper,
    "lp": linear_programme.lp,
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
    """The functions of a ``PolicySpec``.

    Raises ValueError if a user's function cannot be imported; those raise ArchsimError themselves when they fail.
    """
    return Policy(
        place=_function(spec.placement, PLACEMENTS, own_placement),
        allocate=_function(spec.allocation, ALLOCATIONS, own_allocation),
        predictor=_predictor(spec.prediction),
    )


def _function(rule, known, own):
    return own(rule.name, rule.params) if rule.is_function else partial(known[rule.name], **rule.params)


def _predictor(rule):
    if rule.is_function:
        return own_predictor(rule.name, rule.params)
    return PREDICTIONS[rule.name](**rule.params)
