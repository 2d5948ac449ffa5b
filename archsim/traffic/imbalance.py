"""Popularity fitted to a published imbalance: for every layer the skew with which generated traffic has it.

A first skew comes from the expected loads, by bisection; then traffic is generated, its loads are measured, and the
skew is moved, a few times. Experts lie contiguously on the ranks, as every engine starts.
"""

from functools import lru_cache
from types import MappingProxyType, SimpleNamespace

import numpy as np

from archsim.base.errors import TraceError
from archsim.base.packing import pack
from archsim.base.replication import replicate
from archsim.specs.workload import SyntheticSpec
from archsim.traffic.synthetic import PREFERRED, SyntheticTraffic, popularity, skew_of_layers

TOKENS = 8192
"""Tokens of a step that is generated to measure loads: an expert's of 256, top-8, has 256 pairs, 6 % by chance."""

MOST_SKEW = 8.0
_BISECTIONS, _CORRECTIONS = 30, 6
_PLAIN = MappingProxyType(
    dict.fromkeys(("decode_steps", "requests", "switch_step", "chunk_tokens")) | {"prompt_tokens": 0, "drift": 0.0}
)  # of traffic whose loads are measured


@lru_cache(maxsize=64)
def fitted_skew(spec: SyntheticSpec, layer_ids: tuple[int, ...], experts: int, top_k: int) -> tuple[float, ...]:
    """float64[layer]: deviation of log popularity for traffic with ``spec.imbalance``. Raises TraceError for none."""
    wanted = spec.imbalance
    assert wanted is not None
    ids = np.array(layer_ids, np.int32)
    kind, levels = wanted.level
    target = skew_of_layers(levels, ids)[:, 0]
    if wanted.ranks is not None and experts % wanted.ranks:
        raise TraceError(f"imbalance: {experts} experts do not divide among {wanted.ranks} ranks")
    slots = experts + wanted.slots * (wanted.ranks or 0)

    def of_loads(loads: np.ndarray) -> np.ndarray:
        return measure(loads, kind, wanted.ranks or 1, slots)

    def expect(skew: np.ndarray) -> np.ndarray:
        shares = popularity(spec.seed, ids, experts, skew[:, None])
        return of_loads(expected_loads(shares, top_k, spec.request_taste, spec.stickiness))

    low, high = np.zeros(len(ids)), np.full(len(ids), MOST_SKEW)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        below = expect(middle) < target
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    if (worst := int(np.argmax(low))) >= 0 and low[worst] > MOST_SKEW * 0.999:
        most = float(expect(np.full(len(ids), MOST_SKEW))[worst])
        raise TraceError(f"imbalance: {kind} {target[worst]:g} in layer {ids[worst]}: no popularity of {experts} "
                         f"experts, top-{top_k}, gives it; at most {most:.3g}")  # fmt: skip
    skew = (low + high) / 2
    for _ in range(_CORRECTIONS):
        found = of_loads(_generate_loads(spec, ids, experts, top_k, skew))
        skew = np.clip(skew * (np.log(target + 0.01) / np.log(np.maximum(found, 1.0) + 0.01)) ** 0.8, 0, MOST_SKEW)
    return tuple(skew.tolist())


def measure(loads: np.ndarray, kind: str, ranks: int, slots: int) -> np.ndarray:
    """float64[layer] of loads [layer, expert]. eplb_gain: the fullest rank over that after EPLB with ``slots``."""
    layers, experts = loads.shape
    if kind == "hottest_expert":
        return loads.max(axis=1) / loads.mean(axis=1)
    of_rank = loads.reshape(layers, ranks, experts // ranks).sum(axis=2)
    if kind == "max_over_mean":
        return of_rank.max(axis=1) / of_rank.mean(axis=1)
    if kind == "max_over_min":
        return of_rank.max(axis=1) / np.maximum(of_rank.min(axis=1), 1e-12)
    copies = replicate(loads.astype(np.float64), slots)
    into, _ = pack(copies.load, np.full(ranks, slots // ranks))
    placed = np.zeros((layers, ranks))
    np.add.at(placed, (np.arange(layers)[:, None], into), copies.load)
    return of_rank.max(axis=1) / placed.max(axis=1)


def expected_loads(shares: np.ndarray, top_k: int, taste: float, stickiness: float) -> np.ndarray:
    """float64[layer, expert], about: how often a token has an expert, drawn from shares [layer, expert] until it has
    top_k. By exponential arrival times (1 − exp(−rate) of those that arrive before a common time); an expert that a
    request does not prefer arrives less often, and one of the token before stays.
    """
    if top_k == 1:
        return shares

    def inclusion(time: np.ndarray) -> np.ndarray:
        fresh = -PREFERRED * np.expm1(-shares * time) - (1 - PREFERRED) * np.expm1(-shares * time * (1 - taste))
        return fresh / np.maximum(1 - stickiness + stickiness * fresh, 1e-12)

    low, high = np.zeros((len(shares), 1)), np.full((len(shares), 1), 1e9)
    for _ in range(60):
        middle = np.sqrt(np.maximum(low, 1e-6) * high)
        enough = inclusion(middle).sum(axis=1, keepdims=True) > top_k
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return inclusion(high)


def _generate_loads(spec: SyntheticSpec, ids: np.ndarray, experts: int, top_k: int, skew: np.ndarray) -> np.ndarray:
    """Loads [layer, expert] of the second decode step of TOKENS requests; in the first, nothing stays."""
    from archsim.traffic.statistics import loads_of

    plain = spec.model_copy(update=_PLAIN | {"imbalance": None})
    shape = SimpleNamespace(moe_layer_ids=ids, experts=experts, top_k=top_k)
    traffic = SyntheticTraffic(shape, plain, TOKENS, skew[:, None])
    loads = np.zeros((len(ids), experts))
    for piece in traffic.steps(np.arange(TOKENS), 2):
        if piece.iteration == 2:
            loads += loads_of(piece.experts, experts)
    return loads


def skew_of(spec: SyntheticSpec, layer_ids: np.ndarray, experts: int, top_k: int) -> np.ndarray | None:
    """float64[layer, 1], fitted to the stated imbalance; None where none is stated. Raises TraceError."""
    if spec.imbalance is None:
        return None
    published = spec.model_copy(update=_PLAIN)
    return np.array(fitted_skew(published, tuple(layer_ids.tolist()), experts, top_k))[:, None]
