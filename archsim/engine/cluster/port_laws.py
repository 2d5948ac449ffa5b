"""How long measured kernels take to pass bytes through the fullest port of a level: laws by name and number of nodes.

A measured kernel (``Laws.dispatch_combine``, ``Laws.collective``) gives a time for a number of tokens a rank, all
experts equally popular. Every port of a level then passes the same bytes, which are known (the expected number of
distinct ranks or nodes of a token, times a vector); so the time is one by the bytes of a port:

    fixed + busy(bytes), busy(0) = 0, growing, linear between the measured sizes

Uniform traffic takes exactly what was measured, whatever its vectors; a port that passes more bytes is busy longer.
Numbers of nodes between two measured ones take the geometric mean weighted by their logarithms, at equal bytes of a
NIC; more nodes than measured take the law of the most. A link of another nominal bandwidth than the measured one
changes ``busy`` in proportion.
"""

from __future__ import annotations

from functools import lru_cache
from math import log2
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from archsim.base.errors import SpecError
from archsim.engine.hidden import Sizes, expected_ranks
from archsim.specs.loading.calibrations import calibration_digest, calibration_named
from calibration.laws.choosing import LawMissing
from calibration.laws.collective import BYTES_PER_VALUE, dispatches, payload_of
from calibration.laws.copy import NVLINK_BYTES_PER_S
from calibration.laws.laws import Laws

# ConnectX-7, 400 Gb/s, one a GPU: the network of DeepEP's own table (deepseek-ai/DeepEP, docs/legacy.md), which the
# inter-node measurements fit (their source does not describe it).
NIC_BYTES_PER_S = 50e9
# Links inside the measured nodes, one direction; PCIe 5.0 x16 (RTX PRO 6000 Blackwell Server Edition datasheet).
MEASURED_BYTES_PER_S = MappingProxyType({**NVLINK_BYTES_PER_S, "rtx-pro-6000-server": 64e9})
MOST_TOKENS = 1 << 15  # a rank
GROUPS_TAKEN = 4  # DeepEP's benchmark routes to at most 4 of the nodes (tests/test_internode.py, num_topk_groups)
NS_PER_S = 1e9
INTRA, INTER = "intra_node", "inter_node"


class Kernel(NamedTuple):
    """A kernel that moves hidden vectors. ``once``: sent once for every token and rank (and node); else for every
    token and expert.
    """

    names: tuple[str, ...]  # in a calibration, the first that was measured
    once: bool
    forwarded: bool  # between nodes to the GPU of the same number, then on inside the node


KERNELS = {
    "per_rank": Kernel(("normal", "nvlink_two_sided"), once=True, forwarded=True),
    "per_token_expert": Kernel(("low_latency", "nvlink_one_sided"), once=False, forwarded=False),
    "all_to_all": Kernel(("all_to_all",), once=False, forwarded=False),
}


class PortLaw(NamedTuple):
    """``fixed_ns`` + ``busy_ns`` of a port's bytes, linear between ``at_bytes`` (float64[point], ascending from 0) and
    beyond. ``named``: what was measured; ``carried``: of which part the number of nodes or the shape was not.
    """

    fixed_ns: float
    at_bytes: np.ndarray
    busy_ns: np.ndarray
    named: str
    carried: bool

    def busy(self, n_bytes: np.ndarray) -> np.ndarray:
        """float64, of the shape of ``n_bytes``."""
        found = np.interp(n_bytes, self.at_bytes, self.busy_ns)
        over = np.asarray(n_bytes, float) - self.at_bytes[-1]
        return np.where(over > 0, self.busy_ns[-1] + over * self.last_ns_per_byte, found)

    @property
    def last_ns_per_byte(self) -> float:
        """Slope beyond the last point."""
        return float((self.busy_ns[-1] - self.busy_ns[-2]) / (self.at_bytes[-1] - self.at_bytes[-2]))

    def scaled(self, ratio: float) -> PortLaw:
        """Of a link whose bandwidth is ``ratio`` of the measured one."""
        return self if ratio == 1 else self._replace(busy_ns=self.busy_ns / ratio)


def plain_law(latency_ns: float, bytes_per_ns: float) -> PortLaw:
    """``transfer_software: free``: a port passes bytes at its rate."""
    return PortLaw(latency_ns, np.array([0.0, 1.0]), np.array([0.0, 1.0 / bytes_per_ns]), "", False)


def level_law(level, number: int, op: str, dispatch: str, model, nodes: int, size: int, bandwidth: float) -> PortLaw:
    """The law of ports of fabric level ``number`` (0 inside a node, 1 between nodes) for ``op``, DISPATCH or COMBINE.

    Raises SpecError for a level without a law, or with one of another kind; LawMissing for kernels that its
    calibration lacks.
    """
    if level.law is None:
        raise SpecError(
            f"fabric.levels.{number}: execution: expert_parallel needs a law of measured transfers; give law: "
            f"h100/{(INTRA, INTER)[number]}, or take transfer_software: free"
        )
    name, _, kind = level.law.rpartition("/")
    if kind != (INTRA, INTER)[number]:
        raise SpecError(
            f"fabric.levels.{number}.law: {level.law!r} is no law of this level; expected "
            f"{name}/{(INTRA, INTER)[number]}"
        )
    shape = model.hidden, model.top_k, model.experts
    digest = calibration_digest(name)
    if number == 0:
        law = _of_node(name, digest, op, dispatch, shape, size)
        return law.scaled(bandwidth / MEASURED_BYTES_PER_S.get(calibration_named(name).gpu, bandwidth))
    return _between(name, digest, op, dispatch, shape, nodes).scaled(bandwidth / NIC_BYTES_PER_S)


@lru_cache(maxsize=256)
def _of_node(name: str, digest: str, op: str, dispatch: str, shape: tuple[int, int, int], size: int) -> PortLaw:
    """Inside a node, from the number of ranks nearest to ``size``."""
    laws = Laws(calibration_named(name))
    if dispatch == "all_to_all":
        return _nccl(laws, size)
    kernel, variant = KERNELS[dispatch], _variant(laws, dispatch)
    there = _measured(laws, variant, op, nodes=1)
    near = _nearest(there, shape)
    ranks = min((each[3] for each in there if each[:3] == near), key=lambda each: (abs(log2(each / size)), each))
    vectors = expected_ranks(Sizes(near[2], near[1]), ranks) if kernel.once else near[1]
    asked = {"kernel": variant, "ranks": ranks, "nodes": 1}
    carried = near != shape or ranks != size
    return _by_bytes(laws, op, near, asked, vectors * (ranks - 1) / ranks, f"{variant} on {ranks} ranks", carried)


@lru_cache(maxsize=256)
def _between(name: str, digest: str, op: str, dispatch: str, shape: tuple[int, int, int], nodes: int) -> PortLaw:
    """Between nodes, from the measured numbers of nodes around ``nodes``."""
    laws = Laws(calibration_named(name))
    if dispatch == "all_to_all":
        raise LawMissing(
            f"dispatch: all_to_all: NCCL's all-to-all was not measured between nodes (calibration "
            f"{laws.calibration.gpu}); take dispatch: per_rank or per_token_expert, or a single node"
        )
    variant = _variant(laws, dispatch)
    known = sorted({each[4] for each in _measured(laws, variant, op) if each[4] > 1})
    if not known:
        raise LawMissing(
            f"calibration {laws.calibration.gpu} has no {variant} kernels between nodes; name h100/{INTER} in the law "
            "of the level, or take transfer_software: free"
        )
    below = max((each for each in known if each <= nodes), default=known[0])
    above = min((each for each in known if each >= nodes), default=known[-1])
    first = _of_nodes(laws, op, dispatch, variant, shape, below, nodes)
    if below == above:
        return first
    other = _of_nodes(laws, op, dispatch, variant, shape, above, nodes)
    return _middle(first, other, log2(nodes / below) / log2(above / below))


def _of_nodes(laws: Laws, op: str, dispatch: str, variant: str, shape, measured: int, nodes: int) -> PortLaw:
    """The law of one measured number of nodes, by bytes of a NIC."""
    there = _measured(laws, variant, op, nodes=measured)
    near = _nearest(there, shape)
    ranks = min(each[3] for each in there if each[:3] == near)
    _, top_k, experts = near
    if KERNELS[dispatch].once:
        taken = min(measured, GROUPS_TAKEN)
        vectors = expected_ranks(Sizes(experts, top_k, measured, taken), measured)
    else:
        vectors = float(top_k)
    asked = {"kernel": variant, "ranks": ranks, "nodes": measured}
    away = vectors * (measured - 1) / measured
    carried = near != shape or measured != nodes
    return _by_bytes(laws, op, near, asked, away, f"{variant} on {measured} nodes", carried)


def _middle(first: PortLaw, other: PortLaw, weight: float) -> PortLaw:
    """The geometric mean of two laws at equal bytes; ``weight`` of the other."""
    at = np.union1d(first.at_bytes, other.at_bytes)
    fixed = first.fixed_ns ** (1 - weight) * other.fixed_ns**weight
    both = [law.fixed_ns + law.busy(at) for law in (first, other)]
    total = np.maximum.accumulate(np.exp((1 - weight) * np.log(both[0]) + weight * np.log(both[1])))
    return PortLaw(fixed, at, total - fixed, f"between {first.named} and {other.named}", True)


def _by_bytes(laws: Laws, op, shape, asked, vectors: float, named: str, carried: bool) -> PortLaw:
    """A table as a law of bytes; ``vectors``: that pass a port for every token of a rank."""
    hidden, top_k, experts = shape
    sizes = {"hidden": hidden, "top_k": top_k, "experts": experts}
    tokens = np.unique(np.rint(2.0 ** np.arange(0, log2(MOST_TOKENS) + 0.01, 0.25)))
    times = laws.dispatch_combine(op, tokens, **asked, **sizes)
    vector_bytes = hidden * BYTES_PER_VALUE[payload_of(times.table)]
    total = np.maximum.accumulate(times.ns)
    at = np.concatenate([[0.0], tokens * vectors * vector_bytes])
    busy = np.concatenate([[0.0], total - total[0]])
    carried = carried or bool(times.table.scaled_from)
    return PortLaw(float(total[0]), at, busy, f"{laws.calibration.gpu} {named}", carried)


def _nccl(laws: Laws, size: int) -> PortLaw:
    """NCCL's all-to-all inside a node: sizes are what a rank sends, its own part included."""
    known = [int(table.of["num_gpus"]) for table in laws.calibration.collectives if table.of["op"] == "all_to_all"]
    if not known:
        raise LawMissing(f"calibration {laws.calibration.gpu} has no all_to_all; take dispatch: per_rank")
    ranks = min(known, key=lambda each: (abs(log2(each / size)), each))
    n_bytes = 2.0 ** np.arange(9, 29.01, 0.25)
    times = laws.collective("all_to_all", n_bytes, ranks=ranks)
    total = np.maximum.accumulate(times.ns)
    at = np.concatenate([[0.0], n_bytes * (ranks - 1) / ranks])
    busy = np.concatenate([[0.0], total - total[0]])
    named = f"{laws.calibration.gpu} NCCL all-to-all on {ranks} ranks"
    return PortLaw(float(total[0]), at, busy, named, ranks != size)


def _variant(laws: Laws, dispatch: str) -> str:
    """The measured kernel of a way to dispatch. Raises LawMissing, and says which kernels there are."""
    there = {table.of["variant"] for table in dispatches(laws.calibration)}
    for name in KERNELS[dispatch].names:
        if name in there:
            return name
    raise LawMissing(
        f"calibration {laws.calibration.gpu} has no kernel {' or '.join(KERNELS[dispatch].names)} for dispatch: "
        f"{dispatch} (it has: {', '.join(sorted(there)) or 'none'}); name another GPU in the law of the level, such as "
        f"h100/{INTRA}, or take transfer_software: free"
    )


def _measured(laws: Laws, variant: str, op: str, nodes: int | None = None) -> list[tuple[int, int, int, int, int]]:
    """(hidden, top_k, experts, ranks, nodes) of the tables of a kernel."""
    found = [
        tuple(int(table.of[key]) for key in ("hidden", "top_k", "experts", "num_gpus", "nodes"))
        for table in dispatches(laws.calibration)
        if table.of["variant"] == variant and table.of["op"] == op
    ]
    return [each for each in found if nodes is None or each[4] == nodes]


def _nearest(there, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """The measured shape whose sizes differ least, by the sum of their ratios' logarithms."""
    shapes = {each[:3] for each in there}
    return min(shapes, key=lambda each: (sum(abs(log2(a / b)) for a, b in zip(each, shape, strict=True)), each))
