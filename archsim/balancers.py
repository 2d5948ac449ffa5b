"""Balancers of MoE load as pure functions: arrays in, named tuples of arrays out; ties go to the lowest index.

The policies call the same functions. ``docs/policies.md`` lists them; each states its shapes, its errors and its
source. A ValueError says what is wrong with the input and what would fit.
"""

from archsim.policies.capacity import drop, drop_experts, expert_capacity, reroute
from archsim.policies.craft import craft_assign, craft_balancedness, craft_budget, greedy_placement
from archsim.policies.eplb import eplb
from archsim.policies.harmoeny import harmoeny
from archsim.policies.libra import libra_plan, libra_shard
from archsim.policies.lina import device_share, lina_fit, prediction_accuracy, uniform_split
from archsim.policies.load import balancedness, imbalance
from archsim.policies.lplb import lplb
from archsim.policies.remap import dup, remap
from archsim.policies.waterfill import waterfill

__all__ = [
    "balancedness",
    "craft_assign",
    "craft_balancedness",
    "craft_budget",
    "device_share",
    "drop",
    "drop_experts",
    "dup",
    "eplb",
    "expert_capacity",
    "greedy_placement",
    "harmoeny",
    "imbalance",
    "libra_plan",
    "libra_shard",
    "lina_fit",
    "lplb",
    "prediction_accuracy",
    "remap",
    "reroute",
    "uniform_split",
    "waterfill",
]
