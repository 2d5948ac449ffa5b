"""One engine of a deployment: its model, its GPU, how it is divided, and what its file says of it."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from archsim.iteration import rank_memory
from archsim.iteration.layers import ACTIVATION_BYTES
from archsim.iteration.links import Links
from archsim.laws import gemm
from archsim.laws.tables import CalibrationSpec
from archsim.model.spec import ModelSpec
from archsim.serving.requests import TokenPool
from archsim.serving.tabulated import Overlap
from archsim.specs.deployment import Parallelism, Precision

UNIFORM = "uniform"  # every token draws its experts by chance; other routings are those of the fused MoE law


class StaticBatch(NamedTuple):
    """Requests that prefill in one pass, all of them at once. ``requests``, ``tokens``: of all ranks, and of a request
    with its output; ``prompt_tokens``: of all ranks; ``reserve_bytes``: of a GPU, for nothing else; ``imbalance``:
    pairs of the busiest rank over the mean, for which buffers are sized; ``stages``: sets of buffers; ``gathered``:
    experts of a layer that two further buffers hold.
    """

    requests: int
    tokens: int
    prompt_tokens: int
    reserve_bytes: float
    imbalance: float
    stages: int
    gathered: int

    def buffer_bytes(self, model: ModelSpec, parallel: Parallelism, precision: Precision) -> int:
        """The buffers of a rank hold the hidden vectors of all tokens, gathered and summed; for every pair of token and
        expert on the busiest rank its vector sent and returned, and the products with gate and up and their product, in
        BF16; and copies of experts.
        """
        pair = (2 * model.hidden + 3 * model.expert_ffn) * ACTIVATION_BYTES
        pairs = self.prompt_tokens * model.top_k / parallel.ep * self.imbalance
        vectors = 2 * self.prompt_tokens * model.hidden * ACTIVATION_BYTES
        return int(
            vectors + self.stages * pairs * pair + 2 * self.gathered * rank_memory.expert_bytes(model, precision)
        )


class Offload(NamedTuple):
    """Experts in memory of the host. ``absent``: of a rank in a layer, those that HBM lacks; ``bytes_per_s``: of loads
    of a rank; ``accuracy``: share of loads that are named a layer before; None: none is named. ``missing``: function of
    int64[n] tokens of all ranks: float64[n] experts of a rank and layer that they choose and HBM lacks, of the mean
    layer.
    """

    absent: int
    bytes_per_s: float
    accuracy: float | None
    missing: Callable[[np.ndarray], np.ndarray]
    note: str


def missing_of(model: ModelSpec, ep: int, resident: int, pool: TokenPool | None) -> Callable[[np.ndarray], np.ndarray]:
    """``missing`` of `Offload`: each expert that is not resident is loaded if one of the tokens chooses it, of the rank
    that loads most. With a pool of traffic, those are resident that the first half of its decodes chose most, and the
    second half says how often the others are chosen.
    """
    mine, experts = model.experts // ep, model.experts
    if pool is None:
        often = np.full((1, ep, mine - resident), model.top_k / experts)
    else:
        half = max(len(pool.decodes) // 2, 1)
        lacking = []
        for layer in range(pool.decodes.shape[1]):
            first, second = (np.bincount(each[:, layer].ravel(), minlength=experts) / len(each)
                             for each in (pool.decodes[:half], pool.decodes[half:]))  # fmt: skip
            order = np.argsort(-first.reshape(ep, mine), axis=1, kind="stable")
            lacking.append(np.take_along_axis(second.reshape(ep, mine), order, axis=1)[:, resident:])
        often = np.minimum(np.stack(lacking), 1.0)  # [layer, rank, expert]
    each = [_most_loaded(1 - (1 - often) ** count).mean() for count in _FEW_TOKENS]
    if pool is not None:
        return lambda tokens: np.interp(tokens, _FEW_TOKENS, each)

    def mean(tokens: np.ndarray) -> np.ndarray:
        return (mine - resident) * (1 - (1 - model.top_k / experts) ** tokens)

    above = np.array(each) - mean(_FEW_TOKENS)
    return lambda tokens: np.minimum(mean(tokens) + np.interp(tokens, _FEW_TOKENS, above), mine - resident)


def _most_loaded(chosen: np.ndarray) -> np.ndarray:
    """float64[layer]: expected experts of the rank that loads most, where each is loaded by chance: float64[layer,
    rank, expert]. The chance that no rank loads more than n is the product of theirs.
    """
    layers, ranks, experts = chosen.shape
    if ranks == 1:
        return chosen.sum(axis=2)[:, 0]
    same = bool((chosen == chosen[:, :1]).all())
    counts = np.zeros((layers, 1 if same else ranks, experts + 1))  # chance of so many
    counts[..., 0] = 1.0
    for at in range(experts):
        load = chosen[:, : counts.shape[1], at, None]
        counts[..., 1:] = counts[..., 1:] * (1 - load) + counts[..., :-1] * load
        counts[..., :1] *= 1 - load
    within = np.minimum(counts.cumsum(axis=2), 1.0)
    every = within[:, 0] ** ranks if same else within.prod(axis=1)
    return (1 - every[:, :-1]).sum(axis=1)


_FEW_TOKENS = np.concatenate([[0], np.unique(np.rint(2 ** np.arange(0, 17.01, 0.25)))])


class ServingEngine(NamedTuple):
    """``library``: whose attention; None: any. ``utilisation``: share of HBM that it may use; ``utilised``: whether the
    file says it.
    ``routing``: None where experts come from traffic. ``rates``: of a die that is not the calibrated GPU; ``links``: of
    its machine.
    ``expert_slots``: of the fullest rank, all layers together; None: its share of the experts. ``overlap``: what runs
    beside what. ``mtp_layers``: of multi-token prediction, which draft; ``drafts``: of a decode. ``static``: a static
    batch, None for requests that come one by one. ``offload``: of experts, None: all are in HBM.
    ``shares_prompts``: whether its groups of data-parallel attention share the tokens of every prompt, and have no
    decodes. ``decodes_alone``, ``prefills_alone``: whether other engines compute the prompts, or decode.
    """

    model: ModelSpec
    calibration: CalibrationSpec
    hbm_bytes: float
    parallel: Parallelism = Parallelism()
    precision: Precision = Precision()
    routing: str | None = UNIFORM
    library: str | None = None
    utilisation: float = 0.9
    rates: gemm.Rates | None = None
    expert_slots: int | None = None
    overlap: Overlap = Overlap()
    mtp_layers: int = 0
    drafts: int = 0
    static: StaticBatch | None = None
    offload: Offload | None = None
    shares_prompts: bool = False
    decodes_alone: bool = False
    prefills_alone: bool = False
    utilised: bool = False
    links: Links | None = None

    @property
    def budget(self) -> rank_memory.Budget:
        """What a rank may use; of a static batch, all but its reserve."""
        if self.static is not None:
            return rank_memory.Budget(self.hbm_bytes - self.static.reserve_bytes, 1.0, exact=True)
        exact = self.rates is not None
        return rank_memory.Budget(
            self.hbm_bytes, self.utilisation, self.library, self.utilised, self.parallel.ranks, exact
        )
