"""Policies by name: from a ``PolicySpec`` to the functions that decide, built in or a user's own."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from archsim.policies import allocation, heatmap, own_functions, placement, prediction
from archsim.policies.placement import Placement, from_file
from archsim.policies.rebalancing import Rebalancing
from archsim.policies.replication import BOTH, Replication, acts_in
from archsim.policies.routing import PASS_TOKENS, RoutingRule
from archsim.specs.policies import EVERY_STEPS, NEEDS, PATHS, PHASE

PLACEMENTS: Mapping[str, Callable[..., Any]] = {
    "linear": placement.linear, "balanced": placement.even_placement, "padded": placement.pad_slots,
    "redundant": placement.redundant,
}  # fmt: skip
# Other rules: ``module:function`` in this package, imported when a policy names the rule.
ALLOCATIONS = {
    "first_seen": "allocation:first_seen",
    "home": "allocation:home",
    "isca26": "allocation:isca26",
    "paper": "allocation:paper",
    "copy_aware": "copy_aware:copy_aware",
    "lp": "linear_programme:lp",
    "even": "allocation:even",
    "hashed": "allocation:take_by_hash",
    "nearest": "allocation:nearest",
    "static": "allocation:static",
    "lplb": "allocation:lplb",
    "metro": "metro:metro",
    "libra": "libra:libra",
    "harmoeny": "libra:harmoeny",
}
REBALANCINGS = {name: f"rebalancing:{name}" for name in ("eplb", "craft", "remap", "dup")} | {
    "async_eplb": "async_eplb:async_eplb", "separate": "separation:separate", "affine": "affinity:affine",
    "by_task": "task_placement:by_task",
}  # fmt: skip
ROUTINGS = {"drop": "routing:drop_rule", "reroute": "routing:reroute_rule", "expert_drop": "routing:expert_drop"}
REPLICATIONS = {"libra": "replication:libra", "lina": "replication:lina"}
SHARED = {"waterfill": "waterfill:waterfill_rule"}


def _heatmap(top_fraction: float = 0.0, top_n: int | None = None) -> heatmap.Predictor:
    """With one of the two, as the specs say."""
    return heatmap.TopPositive(top_n) if top_n is not None else heatmap.TopFraction(top_fraction)


# Allocations that read no cost, rate or latency of the machine: one plan serves machines that differ in these.
COSTLESS = ("first_seen", "home", "even", "hashed", "nearest", "static", "metro")
# Allocations that assume nominal rates of all dies, and read nothing else of the machine but its hops.
NOMINAL = (*COSTLESS, "isca26", "paper", "copy_aware", "lplb")
PREDICTIONS: Mapping[str, Callable[..., heatmap.Predictor | None]] = {"none": lambda: None, "heatmap": _heatmap}
ADMISSION = "admission"  # parameter of a prediction, beside those of its predictor
ADMISSIONS: Mapping[str | None, type[prediction.Reread]] = {"reread": prediction.Reread}


class Policy(NamedTuple):
    """The functions of a policy; None: a part that it lacks."""

    place: Callable[[int, int, int], Placement]  # (layers, experts, dies)
    allocate: Callable[[allocation.StepView], allocation.Plan]  # of every step
    predictor: Callable | None  # (heat, changed, out)
    rebalancing: Rebalancing | None  # every few steps
    admission: type[prediction.Reread] | None  # (layers, dies, ids), with the state of a run
    routing: RoutingRule | None  # of one layer and pass
    replication: Replication | None  # of experts, before a layer
    share: Callable[[np.ndarray, np.ndarray], np.ndarray] | None  # (tokens, load), of shared experts


def built_in(rule: str) -> Callable[..., Any]:
    module, _, name = rule.partition(":")
    return getattr(import_module(f"archsim.policies.{module}"), name)


def build_policy(spec, model=None) -> Policy:
    """The functions of a ``PolicySpec``. ``model``: whose experts are placed; only a placement from a file needs it.
    Raises ValueError if a user's function cannot be imported; one that fails later raises ArchsimError.
    """
    place = _placement(spec.placement, model)
    replication = None if spec.replication.name == "none" else _replication(spec.replication)
    return Policy(
        # replicas for the layer that runs and for the next take turns in two sets of slots
        place=place if replication is None else lambda *shape: replace(place(*shape), buffers=2 * replication.slots),
        allocate=_allocation(spec.allocation),
        predictor=_predictor(spec.prediction),
        rebalancing=None if spec.rebalancing.name == "none" else _rebalancing(spec.rebalancing),
        admission=None if spec.prediction.is_function else ADMISSIONS.get(spec.prediction.params.get(ADMISSION)),
        routing=None if spec.routing.name == "as_chosen" else _routing(spec.routing),
        replication=replication,
        share=None if spec.shared.name == "local" else _function(spec.shared, SHARED, own_functions.own_sharing),
    )


def place_experts(spec, model, dies: int) -> Placement:
    """The placement of a ``PolicySpec`` for the experts of a model's MoE layers on ``dies`` dies."""
    return build_policy(spec, model).place(len(model.moe_layer_ids), model.experts, dies)


def _placement(rule, model):
    if rule.is_function:
        return own_functions.own_placement(rule.name, rule.params)
    if rule.name == "from_file":
        return lambda layers, experts, dies: from_file(model, dies, rule.params.get("file", ""))
    known = partial(PLACEMENTS[rule.name], **rule.params)
    if rule.name in ("padded", "redundant"):
        return lambda layers, experts, dies: known(experts, dies, layers)
    return lambda layers, experts, dies: Placement.of_homes(known(experts, dies), layers, dies)


def _rebalancing(rule) -> Rebalancing:
    every, first, window = (rule.params.get(key) for key in (EVERY_STEPS, "first_steps", "window_steps"))
    if rule.is_function:
        params = {name: value for name, value in rule.params.items() if name not in (EVERY_STEPS, NEEDS)}
        return Rebalancing(every, own_functions.own_rebalancing(rule.name, params))
    params = {name: value for name, value in rule.params.items() if not name.endswith("_steps") and name != NEEDS}
    return Rebalancing(every, partial(built_in(REBALANCINGS[rule.name]), **params), first, window)


def _routing(rule) -> RoutingRule:
    params = {name: value for name, value in rule.params.items() if name != "pass_tokens"}
    pass_tokens = rule.params.get("pass_tokens", PASS_TOKENS)
    known = (
        own_functions.own_routing(rule.name, params)
        if rule.is_function
        else partial(built_in(ROUTINGS[rule.name]), **params)
    )
    return RoutingRule(pass_tokens, known)


def _replication(rule) -> Replication:
    if rule.is_function:
        params = {name: value for name, value in rule.params.items() if name != "slots"}
        slots = rule.params.get("slots", 1)
        return Replication(slots, own_functions.own_replication(rule.name, params, slots))
    params = {name: value for name, value in rule.params.items() if name not in (*PATHS, PHASE)}
    known = partial(built_in(REPLICATIONS[rule.name]), **params)
    return Replication(rule.params["slots"], known, rule.params.get(PHASE, BOTH))


def _function(rule, known, own):
    if rule.is_function:
        return own(rule.name, {name: value for name, value in rule.params.items() if name != NEEDS})
    params = {name: value for name, value in rule.params.items() if name not in (NEEDS, PHASE)}
    return partial(built_in(known[rule.name]), **params)


def _allocation(rule):
    """Outside of its phase every expert runs at home."""
    found, phase = _function(rule, ALLOCATIONS, own_functions.own_allocation), rule.params.get(PHASE, BOTH)
    if rule.is_function or phase == BOTH:
        return found
    return lambda step: found(step) if acts_in(phase, step.prompt) else allocation.home(step)


def _predictor(rule):
    if rule.is_function:
        return own_functions.own_predictor(rule.name, rule.params)
    return PREDICTIONS[rule.name](**{name: value for name, value in rule.params.items() if name != ADMISSION})
