"""What papers state about balancers, as ratios that runs show; and why a run may not show them.

=========================== ==========================================================================================
metric                      a run's value
=========================== ==========================================================================================
``throughput``              decode throughput over that of ``against``: time of ``against``'s MoE layers over its own
``hops``                    hops of ``against`` over its own
``replicas``                HBM for replicas of ``against`` over its own
``imbalance``               load of the busiest die over the mean, mean over steps
``dropped``                 pairs of token and expert that are not executed, of all that the router chose
=========================== ==========================================================================================
"""

from dataclasses import dataclass

BATCHES = (4096, 8192, 16384)


@dataclass(frozen=True)
class Claim:
    """One published ratio ``policy`` over ``against``, a mean over models × systems × batches; with ``most``, any value
    from ``value`` to it. ``lacks``: what the simulator leaves out of it, in words.
    """

    edition: str
    what: str
    metric: str
    policy: str
    value: float
    models: tuple[str, ...]
    systems: tuple[str, ...]
    against: str = "base"
    batches: tuple[int, ...] = BATCHES
    most: float | None = None
    lacks: str = ""
    decode_steps: int | None = 127  # of the published runs; None: served, not counted in steps


def _of(edition: str, models: tuple[str, ...], systems: tuple[str, ...]):
    """Claims of one paper: (what, metric, policy, value, further fields)."""

    def claim(what: str, metric: str, policy: str, value: float, against: str = "ep", **more) -> Claim:
        fields = {"batches": (), "decode_steps": None} | more
        return Claim(edition, what, metric, policy, value, models, systems, against, **fields)

    return claim


_craft = _of("CRAFT", ("deepseek-v3",), ("a100_cluster",))
_craft_kimi = _of("CRAFT", ("kimi-k2",), ("a100_cluster",))
_libra = _of("Libra", ("qwen3-235b-a22b",), ("h200_node",))
_fill = _of("SGLang, Waterfill and LPLB", ("deepseek-v3",), ("h20_cluster",))
_capacity = _of("Capacity-aware inference", ("mixtral-8x7b",), ("a30_node",))
_remap = _of("ISCA 2026, algorithm 2", ("qwen3-235b-a22b",), ("h100_node",))

_SERVED = "the paper serves requests; here MoE layers alone run"
_KV = "replicas take HBM from KV cache, which limits the batch of EPLB; here both run one batch"

BALANCERS: tuple[Claim, ...] = (
    _craft("replicas of eplb ÷ replicas of craft, DeepSeek-R1", "replicas", "craft", 7.25, "eplb"),
    _craft("goodput of craft over eplb, DeepSeek-R1", "throughput", "craft", 1.15, "eplb", lacks=f"{_SERVED}; {_KV}"),
    _craft_kimi("replicas of eplb ÷ replicas of craft, Kimi-K2", "replicas", "craft", 7.5, "eplb"),
    _craft_kimi("goodput of craft over eplb, Kimi-K2", "throughput", "craft", 1.12, "eplb", lacks=f"{_SERVED}; {_KV}"),
    _libra("time of a layer, without balancing ÷ libra", "throughput", "libra", 13.61 / 9.07,
           lacks="the layer's other 0.55 ms (attention excluded) are not simulated"),
    _libra("time of a layer, without balancing ÷ lina", "throughput", "lina", 13.61 / 11.33,
           lacks="Lina's tables were built offline on other requests; here on the prefix of the batch"),
    _libra("imbalance under libra", "imbalance", "libra", 1.0),
    _fill("throughput of eplb+waterfill over eplb", "throughput", "eplb+waterfill", 1.0148, "eplb", most=1.0466,
          lacks=_SERVED),
    _fill("throughput of eplb+lplb over eplb", "throughput", "eplb+lplb", 1.0084, "eplb", most=1.0734, lacks=_SERVED),
    _fill("throughput of lplb without redundant experts over ep", "throughput", "lplb-0", 0.9839, most=0.9905,
          lacks=_SERVED),
    _capacity("speed-up of a MoE layer at γ = 1.5", "throughput", "capacity_drop", 1.94,
              lacks="Megatron-LM's dispatch, padded to the fullest expert, is slower on PCIe than an all-to-all"),
    _capacity("share of pairs that are dropped at γ = 1.5", "dropped", "capacity_drop", 0.12,
              lacks="the skew of the generated routing is chosen so that about as many are dropped"),
    _remap("compute of MoE layers, default ÷ remap", "throughput", "remap", 1.155,
           lacks="the paper counts products of experts alone; here dispatch and combine are part of the time"),
    _remap("compute of MoE layers, default ÷ dup", "throughput", "dup", 1.125,
           lacks="the paper counts products of experts alone; here dispatch and combine are part of the time"),
)  # fmt: skip
