"""Balancers of MoE load as pure functions: arrays in, named tuples of arrays out; ties go to the lowest index.

The policies call the same functions. ``docs/policies.md`` lists them; each states its shapes, its errors and its
source. A ValueError says what is wrong with the input and what would fit.
"""

from archsim.policies.allocation.harmoeny import harmoeny
from archsim.policies.allocation.libra import libra_plan, libra_shard
from archsim.policies.allocation.lplb import lplb
from archsim.policies.allocation.waterfill import waterfill
from archsim.policies.load import balancedness, imbalance
from archsim.policies.placement.craft import craft_assign, craft_balancedness, craft_budget, greedy_placement
from archsim.policies.placement.eplb import eplb
from archsim.policies.placement.remap import dup, remap
from archsim.policies.prediction.lina import device_share, lina_fit, prediction_accuracy, uniform_split
from archsim.policies.routing.capacity import drop, drop_experts, expert_capacity, reroute

__all__ = [
    "balancedness", "craft_assign", "craft_balancedness", "craft_budget", "device_share", "drop", "drop_experts", "dup",
    "eplb", "expert_capacity", "greedy_placement", "harmoeny", "imbalance", "libra_plan", "libra_shard", "lina_fit",
    "lplb", "prediction_accuracy", "remap", "reroute", "uniform_split", "waterfill",
]
