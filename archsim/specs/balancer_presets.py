"""Published balancers by name, each as the keys of a policy file."""

from collections.abc import Mapping

BALANCER_PRESETS: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    (
        "eplb",
        "EPLB: redundant slots, filled anew by recent loads; tokens divided evenly among replicas",
        {"placement": "redundant", "allocation": "even", "rebalancing": "eplb"},
    ),
    (
        "lplb",
        "LPLB: redundant slots as they are; the best shares among replicas",
        {"placement": "redundant", "allocation": "lplb"},
    ),
    (
        "eplb+lplb",
        "EPLB's replicas with LPLB's shares",
        {"placement": "redundant", "allocation": "lplb", "rebalancing": "eplb"},
    ),
    ("waterfill", "expert parallelism; shared experts fill less loaded dies", {"shared": "waterfill"}),
    (
        "eplb+waterfill",
        "EPLB, and shared experts fill less loaded dies",
        {"placement": "redundant", "allocation": "even", "rebalancing": "eplb", "shared": "waterfill"},
    ),
    ("craft", "CRAFT: a few replicas, for the layers that gain most", {"allocation": "even", "rebalancing": "craft"}),
    (
        "lina",
        "Lina: the next layer's popular experts replicated, predicted from paths",
        {"allocation": "even", "replication": "lina"},
    ),
    (
        "libra",
        "Libra: the next layer's experts replicated by look-ahead, remote tokens sharded",
        {"allocation": "libra", "replication": "libra"},
    ),
    ("harmoeny", "HarMoEny: overloaded dies pass tokens on, which fetch the expert", {"allocation": "harmoeny"}),
    ("capacity_drop", "capacity-aware: an expert drops tokens above its capacity", {"routing": "drop"}),
    ("capacity_reroute", "capacity-aware: tokens above an expert's capacity choose others", {"routing": "reroute"}),
    ("expert_drop", "capacity-aware: the least loaded experts are not executed", {"routing": "expert_drop"}),
    (
        "eplb_async",
        "EPLB, one layer after the other beside the steps",
        {"placement": "redundant", "allocation": "even", "rebalancing": "async_eplb"},
    ),
    (
        "separate",
        "experts that tokens choose together on different dies, anew every 64 iterations",
        {"rebalancing": "separate"},
    ),
    (
        "affine",
        "experts where their tokens live, with those that these choose as well",
        {"rebalancing": "affine"},
    ),
    ("by_task", "experts such that the load of every subject is even over dies", {"rebalancing": "by_task"}),
    (
        "metro",
        "METRO: EPLB's replicas, and every expert on one of its holders, equally many per die",
        {"placement": "redundant", "allocation": "metro", "rebalancing": "eplb"},
    ),
    ("remap", "Remap: experts placed by the prefill's loads, once", {"rebalancing": "remap"}),
    ("dup", "Dup: replicas placed by the prefill's loads, once", {"allocation": "even", "rebalancing": "dup"}),
)
