"""Rules and presets of the published balancers: EPLB, CRAFT, Lina, Libra, HarMoEny, LPLB, Waterfill, capacity-aware
routing, Remap and Dup.

A row here and a function in ``archsim.policies`` is all that a balancer needs (``archsim.policies.registry``).
"""

from collections.abc import Mapping

from archsim.specs.rules import NamedChoice, Parameter, Rule, Text

NEEDS_SPEEDS = {
    "needs": NamedChoice(
        None,
        ("speeds",),
        "what it needs beside loads: the speed of every die, and the links between them; null: nothing",
    )
}
NEEDS_ROUTING = {
    "needs": NamedChoice(
        "routing",
        ("routing",),
        "what it needs beside loads: single tokens, of which it counts pairs, transitions, origins and subjects",
    )
}
PHASE = {
    "phase": NamedChoice(
        None, ("prompts", "decode", "both"), "iterations in which it acts, both if not given; else experts run at home"
    )
}
_SEED = Parameter(0, 0, 2**31 - 1, "seed of its random choices")
_SLOTS = "slots of a die beyond its share of the experts"


def _call_times(every: int, window: int) -> dict[str, Parameter]:
    return {
        "first_steps": Parameter(1, 1, 1e6, "iterations before the first call; 1: after the prefill"),
        "every_steps": Parameter(every, 0, 1e6, "iterations between later calls; 0: no later call"),
        "window_steps": Parameter(window, 1, 1e6, "latest iterations whose loads count"),
    }


PLACEMENT: Mapping[str, Rule] = {
    "redundant": Rule(
        "slot i holds expert i mod E, what engines start from: `slots` replicas a die in every layer",
        {"slots": Parameter(1, 0, 1024, _SLOTS)},
    ),
    "from_file": Rule(
        "as a file says: of `archsim place`, or SGLang's, vLLM's or TensorRT-LLM's, with a rank for every die",
        {"file": Text(None, "a folder or placement.json of `archsim place`, or an engine's file")},
    ),
}
ALLOCATION: Mapping[str, Rule] = {
    "even": Rule(
        "an expert's tokens are divided evenly among its holders; with `needs: speeds` by their speeds", NEEDS_SPEEDS
    ),
    "hashed": Rule("every token takes a holder of its expert by a hash: even, but for chance"),
    "nearest": Rule("every die's tokens go to the nearest holder by hops"),
    "static": Rule("every die uses one fixed holder of an expert: itself, else one of the nearest, spread over dies"),
    "metro": Rule("every expert runs on one of its holders, such that dies run equally many experts (METRO)"),
    "lplb": Rule("shares among holders that minimise the load of the fullest die, exact, rounded (LPLB)", NEEDS_SPEEDS),
    "libra": Rule(
        "tokens run where they live if that die holds the expert, else at home; overloaded dies shard the rest (Libra)",
        {
            **PHASE,
            "epsilon": Parameter(0.01, 0, 10, "overload that is tolerated, of the mean load", float),
            "rule": NamedChoice("literal", ("literal", "restart"), "as printed, or sorted again after each move"),
            "stages": Parameter(1, 1, 2, "kernels of a layer; 2: local tokens run first, beside the dispatch"),
        },
    ),
    "harmoeny": Rule(
        "overloaded dies pass tokens to the least loaded, which fetch the expert (HarMoEny)",
        {
            **PHASE,
            "threshold": Parameter(150, 0, 1e9, "fewest tokens for which an expert is fetched"),
            "rule": NamedChoice("released", ("released", "paper"), "the published code, or Algorithm 2"),
        },
    ),
}
REBALANCING: Mapping[str, Rule] = {
    "eplb": Rule(
        "replicas to the largest load per instance, instances to the least loaded die (EPLB); slots stay as placed",
        {
            **_call_times(64, 64),
            "groups": Parameter(1, 1, 4096, "expert groups of the hierarchical rule"),
            "nodes": Parameter(1, 1, 4096, "nodes of the hierarchical rule; 1: global"),
            **NEEDS_SPEEDS,
        },
    ),
    "craft": Rule(
        "replicas to the layers that gain most (CRAFT)",
        {
            **_call_times(0, 64),
            "replicas": Parameter(
                8,
                0,
                4096,
                "replicas a die, over all layers together; auto: as many as gain a twentieth of what the first do; "
                "literal: the highest gain a replica, as printed",
                words=("auto", "literal"),
            ),
            "nodes": Parameter(1, 1, 4096, "nodes over which experts spread"),
            **NEEDS_SPEEDS,
        },
    ),
    "async_eplb": Rule(
        "EPLB of a few layers at a time, in turn (asynchronous EPLB; with migration: overlapped)",
        {
            **_call_times(1, 64),
            "layers": Parameter(1, 1, 10_000, "layers of a call, of those that run"),
            "groups": Parameter(1, 1, 4096, "expert groups of the hierarchical rule"),
            "nodes": Parameter(1, 1, 4096, "nodes of the hierarchical rule; 1: global"),
        },
    ),
    "separate": Rule(
        "experts that tokens choose together on different dies, loads even (insight 5 of the wafer paper)",
        {**_call_times(64, 64), **NEEDS_ROUTING},
    ),
    "affine": Rule(
        "experts where their tokens live, with the experts that these choose as well (ExFlow, GRACE-MoE)",
        {**_call_times(64, 64), **NEEDS_ROUTING},
    ),
    "by_task": Rule(
        "experts such that the load of every subject is even over dies (insight 6 of the wafer paper)",
        {**_call_times(64, 64), **NEEDS_ROUTING},
    ),
    "remap": Rule("experts by cost to the least loaded die, without replicas (Remap)", _call_times(0, 64)),
    "dup": Rule(
        "contiguous experts, and replicas where they lower the largest load most (Dup)",
        {**_call_times(0, 64), "slots": Parameter(1, 0, 1024, "replicas a die in every layer")},
    ),
}
_PASS = Parameter(8192, 1, 1e9, "most tokens of a forward pass, to which the capacity applies")
_GAMMA = Parameter(1.5, 0, 1e6, "capacity of an expert, of its mean number of tokens", float)
ROUTING: Mapping[str, Rule] = {
    "as_chosen": Rule("every chosen pair of token and expert is executed"),
    "drop": Rule(
        "an expert drops its tokens above a capacity (Token Drop)",
        {
            "gamma": _GAMMA,
            "keep": NamedChoice("score", ("score", "order", "reverse_order", "random"), "which tokens are kept"),
            "pass_tokens": _PASS,
            "seed": _SEED,
        },
    ),
    "reroute": Rule(
        "tokens that an expert rejects choose again among the others (Token Reroute)",
        {"gamma": _GAMMA, "rounds": Parameter(2, 1, 100, "rounds of choosing"), "pass_tokens": _PASS, "seed": _SEED},
    ),
    "expert_drop": Rule(
        "the least loaded experts are not executed (Expert Drop)",
        {
            "share": Parameter(0.1, 0, 1, "share of the experts that is dropped, rounded down", float),
            "pass_tokens": _PASS,
            "seed": _SEED,
        },
    ),
}
REPLICATION: Mapping[str, Rule] = {
    "none": Rule("a layer runs on the holders that the placement gives"),
    "libra": Rule(
        "every die fetches experts for the next layer, predicted by a look-ahead of stated accuracy (Libra)",
        {
            **PHASE,
            "slots": Parameter(8, 1, 1024, "experts that a die fetches for a layer; two sets of slots take turns"),
            "local_share": Parameter(0.5, 0, 1, "share of the slots for the die's own tokens (alpha)", float),
            "accuracy": Parameter(0.87, 0, 1, "share of pairs that the look-ahead predicts rightly", float),
            "rule": NamedChoice("literal", ("literal", "prose"), "Algorithm 1 as printed, or section 3.2"),
            "host_ns": Parameter(0, 0, 1e9, "ns of sharding and what it needs, beside a die's local experts", float),
            "local_pair_ns": Parameter(0, 0, 1e6, "ns of `host_ns` that a local pair of token and expert hides", float),
            "seed": _SEED,
        },
    ),
    "lina": Rule(
        "every die fetches experts for the next layer, predicted from the paths of tokens so far (Lina)",
        {
            **PHASE,
            "slots": Parameter(8, 1, 1024, "experts that a die fetches for a layer; two sets of slots take turns"),
            "path_length": Parameter(4, 1, 16, "layers of a path"),
            "sample_tokens": Parameter(4096, 1, 1e6, "most tokens of an iteration that are counted and predicted"),
            "accuracy": Parameter(0, 0, 1, "share of pairs predicted correctly, instead of paths; 0: by paths", float),
            "in_sight_ns": Parameter(0, 0, 1e9, "ns that a layer waits for the decision, whatever its tokens", float),
            "seed": _SEED,
        },
    ),
}
SHARED: Mapping[str, Rule] = {
    "local": Rule("every die runs the shared expert for the tokens that live on it"),
    "waterfill": Rule(
        "tokens' shared experts fill the less loaded dies up to a common waterline (Waterfill)",
        {
            "least_tokens": Parameter(64, 0, 1e9, "with fewer tokens on a die they stay local"),
            "loads": NamedChoice(
                None,
                ("all", "own"),
                "what a die knows: the routed loads of all (if not given), or of its tokens (SGLang's static mode)",
            ),
            "kernel": NamedChoice(
                None,
                ("apart", "fused"),
                "shared experts are separate products (if not given), or an expert more of the grouped kernel",
            ),
            **PHASE,
        },
    ),
}


"""Name, meaning, parts; the others are those of expert parallelism."""
