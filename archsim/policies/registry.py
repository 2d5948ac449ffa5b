"""Policies by name: from a ``PolicySpec`` to the functions that decide, built in or a user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from archsim.policies.allocation import linear_programme
from archsim.policies.allocation import rules as allocation
from archsim.policies.allocation.copy_aware import copy_aware
from archsim.policies.own_functions import own_allocation, own_placement, own_predictor, own_rebalancing
from archsim.policies.placement import rules as placement
from archsim.policies.placement.placement import Placement
from archsim.policies.prediction import heatmap as prediction
from archsim.policies.prediction.admission import Admission, EveryPrediction, Reread
from archsim.policies.rebalancing.rules import Rebalancing
from archsim.specs.policies import EVERY_STEPS

PLACEMENTS = {"linear": placement.linear, "balanced": placement.balanced}
ALLOCATIONS = {
    "first_seen": allocation.first_seen,
    "home": allocation.home,
    "isca26": allocation.isca26,
    "paper": allocation.paper,
    "copy_aware": copy_aware,
    "lp": linear_programme.lp,
}


def _heatmap(top_fraction: float | None = None, top_n: int | None = None):
    return prediction.TopPositive(top_n) if top_n is not None else prediction.TopFraction(top_fraction)


PREDICTIONS = {"none": lambda: None, "heatmap": _heatmap}
ADMISSION = "admission"  # parameter of a prediction, beside those of its predictor
ADMISSIONS = {None: EveryPrediction, "reread": Reread}


@dataclass(frozen=True)
class Policy:
    """``place(layers, experts, dies)``, ``allocate(step)``, ``predictor(heat, changed, out)`` or None,
    ``rebalancing`` or None; ``admission(layers, dies, ids)``, with the state of a run.
    """

    place: Callable[[int, int, int], Placement]
    allocate: Callable[[allocation.StepView], allocation.Plan]
    predictor: Callable | None
    rebalancing: Rebalancing | None
    admission: Callable[[int, int, int], Admission]


def build_policy(spec) -> Policy:
    """The functions of a ``PolicySpec``.

    Raises ValueError if a user's function cannot be imported. A user's function that fails later raises ArchsimError.
    """
    return Policy(
        place=_placement(spec.placement),
        allocate=_function(spec.allocation, ALLOCATIONS, own_allocation),
        predictor=_predictor(spec.prediction),
        rebalancing=_rebalancing(spec.rebalancing),
        admission=ADMISSIONS[None if spec.prediction.is_function else spec.prediction.params.get(ADMISSION)],
    )


def place_experts(spec, model, dies: int) -> Placement:
    """The placement of a ``PolicySpec`` for the experts of a model's MoE layers on ``dies`` dies."""
    return build_policy(spec).place(len(model.moe_layer_ids), model.experts, dies)


def _placement(rule):
    if rule.is_function:
        return own_placement(rule.name, rule.params)
    known = partial(PLACEMENTS[rule.name], **rule.params)
    return lambda layers, experts, dies: Placement.of_homes(known(experts, dies), layers, dies)


def _rebalancing(rule) -> Rebalancing | None:
    if not rule.is_function:
        return None
    params = {name: value for name, value in rule.params.items() if name != EVERY_STEPS}
    return Rebalancing(rule.params[EVERY_STEPS], own_rebalancing(rule.name, params))


def _function(rule, known, own):
    return own(rule.name, rule.params) if rule.is_function else partial(known[rule.name], **rule.params)


def _predictor(rule):
    if rule.is_function:
        return own_predictor(rule.name, rule.params)
    return PREDICTIONS[rule.name](**{name: value for name, value in rule.params.items() if name != ADMISSION})
