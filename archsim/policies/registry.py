"""Policies by name: from a ``PolicySpec`` to the functions that decide, built in or a user's own."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from archsim.policies import allocation, libra, linear_programme, rebalancing, routing
from archsim.policies import heatmap as prediction
from archsim.policies import own_functions as own
from archsim.policies import placement_rules as placement
from archsim.policies import replication as replicating
from archsim.policies import waterfill as shared
from archsim.policies.allocation import copy_aware
from archsim.policies.placement import Placement, from_file
from archsim.policies.prediction import Admission, EveryPrediction, Reread
from archsim.policies.rebalancing import Rebalancing
from archsim.policies.replication import Replication
from archsim.policies.routing import Routing
from archsim.specs.policies import EVERY_STEPS, NEEDS, PATHS

PLACEMENTS = {"linear": placement.linear, "balanced": placement.balanced, "redundant": placement.redundant}
ALLOCATIONS = {
    "first_seen": allocation.first_seen,
    "home": allocation.home,
    "isca26": allocation.isca26,
    "paper": allocation.paper,
    "copy_aware": copy_aware,
    "lp": linear_programme.lp,
    "even": allocation.even,
    "hashed": allocation.hashed,
    "nearest": allocation.nearest,
    "static": allocation.static,
    "lplb": allocation.lplb,
    "libra": libra.libra,
    "harmoeny": libra.harmoeny,
}
REBALANCINGS = {
    "eplb": rebalancing.eplb,
    "craft": rebalancing.craft,
    "remap": rebalancing.remap,
    "dup": rebalancing.dup,
}
ROUTINGS = {"drop": routing.drop_rule, "reroute": routing.reroute_rule, "expert_drop": routing.expert_drop}
REPLICATIONS = {"libra": replicating.libra, "lina": replicating.lina}
SHARED = {"waterfill": shared.waterfill_rule}


def _heatmap(top_fraction: float | None = None, top_n: int | None = None):
    return prediction.TopPositive(top_n) if top_n is not None else prediction.TopFraction(top_fraction)


# Allocations that read no cost, rate or latency of the machine: one plan serves machines that differ in these.
COSTLESS = ("first_seen", "home", "even", "hashed", "nearest", "static")
# Allocations that assume nominal rates of all dies, and read nothing else of the machine but its hops.
NOMINAL = (*COSTLESS, "isca26", "paper", "copy_aware", "lplb")
PREDICTIONS = {"none": lambda: None, "heatmap": _heatmap}
ADMISSION = "admission"  # parameter of a prediction, beside those of its predictor
ADMISSIONS = {None: EveryPrediction, "reread": Reread}


@dataclass(frozen=True)
class Policy:
    """``place(layers, experts, dies)``, ``allocate(step)``, ``predictor(heat, changed, out)`` or None,
    ``rebalancing``, ``routing``, ``replication`` and ``share(tokens, load)`` of shared experts, or None;
    ``admission(layers, dies, ids)``, with the state of a run.
    """

    place: Callable[[int, int, int], Placement]
    allocate: Callable[[allocation.StepView], allocation.Plan]
    predictor: Callable | None
    rebalancing: Rebalancing | None
    admission: Callable[[int, int, int], Admission]
    routing: Routing | None
    replication: Replication | None
    share: Callable[[np.ndarray, np.ndarray], np.ndarray] | None


def build_policy(spec, model=None) -> Policy:
    """The functions of a ``PolicySpec``. ``model``: whose experts are placed; only a placement from a file needs it.

    Raises ValueError if a user's function cannot be imported. A user's function that fails later raises ArchsimError.
    """
    replication = _replication(spec.replication)
    return Policy(
        place=_with_buffers(_placement(spec.placement, model), replication),
        allocate=_function(spec.allocation, ALLOCATIONS, own.own_allocation),
        predictor=_predictor(spec.prediction),
        rebalancing=_rebalancing(spec.rebalancing),
        admission=ADMISSIONS[None if spec.prediction.is_function else spec.prediction.params.get(ADMISSION)],
        routing=_routing(spec.routing),
        replication=replication,
        share=None if spec.shared.name == "local" else _function(spec.shared, SHARED, own.own_sharing),
    )


def place_experts(spec, model, dies: int) -> Placement:
    """The placement of a ``PolicySpec`` for the experts of a model's MoE layers on ``dies`` dies."""
    return build_policy(spec, model).place(len(model.moe_layer_ids), model.experts, dies)


def _placement(rule, model):
    if rule.is_function:
        return own.own_placement(rule.name, rule.params)
    if rule.name == "from_file":
        return lambda layers, experts, dies: from_file(model, dies, rule.params.get("file", ""))
    known = partial(PLACEMENTS[rule.name], **rule.params)
    if rule.name == "redundant":
        return lambda layers, experts, dies: known(experts, dies, layers)
    return lambda layers, experts, dies: Placement.of_homes(known(experts, dies), layers, dies)


def _with_buffers(place, replication: Replication | None):
    """Replicas for the layer that runs and for the next take turns in two sets of slots."""
    if replication is None:
        return place
    return lambda *shape: replace(place(*shape), buffers=2 * replication.slots)


def _rebalancing(rule) -> Rebalancing | None:
    if rule.name == "none":
        return None
    every, first, window = (rule.params.get(key) for key in (EVERY_STEPS, "first_steps", "window_steps"))
    if rule.is_function:
        params = {name: value for name, value in rule.params.items() if name not in (EVERY_STEPS, NEEDS)}
        return Rebalancing(every, own.own_rebalancing(rule.name, params))
    params = {name: value for name, value in rule.params.items() if not name.endswith("_steps") and name != NEEDS}
    return Rebalancing(every, partial(REBALANCINGS[rule.name], **params), first, window)


def _routing(rule) -> Routing | None:
    if rule.name == "as_chosen":
        return None
    params = {name: value for name, value in rule.params.items() if name != "pass_tokens"}
    pass_tokens = rule.params.get("pass_tokens", routing.PASS_TOKENS)
    known = own.own_routing(rule.name, params) if rule.is_function else partial(ROUTINGS[rule.name], **params)
    return Routing(pass_tokens, known)


def _replication(rule) -> Replication | None:
    if rule.name == "none":
        return None
    if rule.is_function:
        params = {name: value for name, value in rule.params.items() if name != "slots"}
        slots = rule.params.get("slots", 1)
        return Replication(slots, own.own_replication(rule.name, params, slots))
    params = {name: value for name, value in rule.params.items() if name not in PATHS}
    return Replication(rule.params["slots"], partial(REPLICATIONS[rule.name], **params))


def _function(rule, known, own):
    params = {name: value for name, value in rule.params.items() if name != NEEDS}
    return own(rule.name, params) if rule.is_function else partial(known[rule.name], **params)


def _predictor(rule):
    if rule.is_function:
        return own.own_predictor(rule.name, rule.params)
    return PREDICTIONS[rule.name](**{name: value for name, value in rule.params.items() if name != ADMISSION})
