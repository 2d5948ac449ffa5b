"""How long measured kernels take to pass bytes through the fullest port of a level: laws by name and number of nodes.

A measured kernel (``Laws.dispatch_combine``, ``Laws.collective``) gives a time for a number of tokens a rank, all
experts equally popular. Every port of a level then passes the same bytes, which are known (the expected number of
distinct ranks or nodes of a token, times a vector); so the time is one by the bytes of a port:

    fixed + busy(bytes), busy(0) = 0, growing, linear between the measured sizes

Uniform traffic takes exactly what was measured, whatever its vectors; a port that passes more bytes is busy longer.
Numbers of ranks of a node between two measured ones take the geometric mean, weighted by their logarithms, at equal
tokens; more than measured take the law of the most. Between nodes: ``between_nodes``. A link of another
nominal bandwidth than the measured one changes ``busy`` in proportion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from math import inf, log2
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from archsim.base.errors import SpecError
from archsim.base.sums import sum
from archsim.base.units import VECTOR_BYTES
from archsim.engine.moves import Sizes, VectorBytes, expected_ranks
from archsim.iteration.times import NODE, NVLINK_RANKS
from archsim.laws.laws import Laws
from archsim.laws.tables import CalibrationSpec, LawMissing
from archsim.laws.transfers import (
    COMBINE,
    DISPATCH,
    NOTIFY_OF,
    NVLINK_BYTES_PER_S,
    PREPARE,
    dispatches,
    nodes_away,
    payload_of,
)
from archsim.specs.calibration_files import calibration_digest, calibration_named, siblings_of

# ---- port_laws

# Links inside the measured nodes, one direction; PCIe 5.0 x16 (RTX PRO 6000 Blackwell Server Edition datasheet).
MEASURED_BYTES_PER_S = MappingProxyType({**NVLINK_BYTES_PER_S, "rtx-pro-6000-server": 64e9})
MOST_TOKENS = 1 << 15  # a rank
COLD = 17  # sizes, four an octave: up to 16 tokens of a rank
INTRA, INTER = "intra_node", "inter_node"


class TransferKernel(NamedTuple):
    """A kernel that moves hidden vectors. ``once``: sent once for every token and rank (and node); else for every
    token and expert. ``sms``: that it takes as long as it runs; 0: all of them while it sends and receives. ``padded``:
    what a rank sends another fills up to the largest of all ranks.
    """

    names: Mapping[str, str]  # library → its kernel; which of them a level without a library takes: `variant_of`
    once: bool
    forwarded: bool  # between nodes to the GPU of the same number, then on inside the node
    sms: int = 0
    padded: bool = False


# Of the measured numbers of SMs of DeepEP's normal kernels laws take the most; NCCL is taken to use as many.
NORMAL_SMS = 24
KERNELS = {
    "per_rank": TransferKernel(
        {"deepep": "normal", "trtllm": "nvlink_two_sided"}, once=True, forwarded=True, sms=NORMAL_SMS
    ),
    "per_token_expert": TransferKernel(
        {"deepep": "low_latency", "trtllm": "nvlink_one_sided"}, once=False, forwarded=False
    ),
    "all_to_all": TransferKernel({"nccl": "all_to_all"}, once=False, forwarded=False, sms=NORMAL_SMS),
    "all_to_all_padded": TransferKernel(
        {"nccl": "all_to_all"}, once=False, forwarded=False, sms=NORMAL_SMS, padded=True
    ),
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
    gpu: str = ""  # on which it was measured

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


def slower(law: PortLaw, factor: float) -> PortLaw:
    """A law all of whose times are ``factor`` times as long."""
    return law if factor == 1 else law._replace(fixed_ns=law.fixed_ns * factor, busy_ns=law.busy_ns * factor)


def plain_law(latency_ns: float, bytes_per_ns: float) -> PortLaw:
    """``transfer_software: free``: a port passes bytes at its rate."""
    return PortLaw(latency_ns, np.array([0.0, 1.0]), np.array([0.0, 1.0 / bytes_per_ns]), "", False)


@lru_cache(maxsize=256)
def node_law(
    name: str,
    digest: str,
    op: str,
    dispatch: str,
    library: str | None,
    shape: tuple[int, int, int],
    size: int,
    sms: int | None = None,
) -> PortLaw:
    """Inside a node of ``size`` ranks. ``digest``: of the calibration's file; ``shape``: hidden, top_k, experts;
    ``sms``: that the kernel takes, None: the most measured.

    Raises LawMissing for kernels that the calibration lacks.
    """
    _refuse_sms(dispatch, sms)
    laws = Laws(calibration_named(name))
    if "nccl" in KERNELS[dispatch].names:
        return _nccl(laws, size)
    variant = variant_of(laws, dispatch, library, size)
    near = nearest_shape(measured(laws, variant, op, nodes=1), shape)
    known = sorted({each[3] for each in measured(laws, variant, op, nodes=1) if each[:3] == near})
    below, above, weight = around(known, size)
    if below == above:
        return _on_ranks(laws, op, dispatch, variant, near, below, below, near != shape or below != size, sms)
    # at equal tokens, whose bytes are those of ``size``: left out, 16 ranks are 2 % off 8 and 64 (at equal bytes 9 %)
    few, many = (_on_ranks(laws, op, dispatch, variant, near, ranks, size, True, sms) for ranks in (below, above))
    return middle(few, many, weight)


def _refuse_sms(dispatch: str, sms: int | None) -> None:
    """Raise LawMissing for a number of SMs of kernels that were not measured by it."""
    if sms is not None and dispatch != "per_rank":
        raise LawMissing(
            f"sms: {sms} of a level: kernels of dispatch: {dispatch} were not measured by the SMs that they take; "
            "leave sms out, or take dispatch: per_rank"
        )


def around(known: Sequence[int], wanted: int) -> tuple[int, int, float]:
    """(next measured number below, next above, weight of that above by logarithms); equal at both ends of them."""
    below = max((each for each in known if each <= wanted), default=known[0])
    above = min((each for each in known if each >= wanted), default=known[-1])
    return below, above, 0.0 if below == above else log2(wanted / below) / log2(above / below)


def _on_ranks(
    laws: Laws, op: str, dispatch: str, variant: str, near, ranks: int, size: int, carried: bool, sms: int | None
) -> PortLaw:
    """The law of one measured number of ranks of a node, by the bytes that its tokens are on ``size`` ranks."""
    kernel = KERNELS[dispatch]
    vectors = expected_ranks(Sizes(near[2], near[1]), size) if kernel.once else near[1]
    asked = {"kernel": variant, "ranks": ranks, "nodes": 1, "sms": sms}
    return by_bytes(laws, op, near, asked, vectors * (size - 1) / size, f"{variant} on {ranks} ranks", carried)


def middle(first: PortLaw, other: PortLaw, weight: float) -> PortLaw:
    """The geometric mean of two laws at equal bytes; ``weight`` of the other."""
    at = np.union1d(first.at_bytes, other.at_bytes)
    fixed = first.fixed_ns ** (1 - weight) * other.fixed_ns**weight
    both = [law.fixed_ns + law.busy(at) for law in (first, other)]
    total = np.maximum.accumulate(np.exp((1 - weight) * np.log(both[0]) + weight * np.log(both[1])))
    return PortLaw(fixed, at, total - fixed, f"between {first.named} and {other.named}", True, first.gpu)


def by_bytes(laws: Laws, op, shape, asked, vectors: float, named: str, carried: bool) -> PortLaw:
    """A table as a law of bytes; ``vectors``: that pass a port for every token of a rank."""
    hidden, top_k, experts = shape
    sizes = {"hidden": hidden, "top_k": top_k, "experts": experts}
    tokens = np.unique(np.rint(2.0 ** np.arange(0, log2(MOST_TOKENS) + 0.01, 0.25)))
    times = laws.dispatch_combine(op, tokens, **asked, **sizes)
    vector_bytes = hidden * VECTOR_BYTES[payload_of(times.table)]
    total = _growing(times.ns)
    at = np.concatenate([[0.0], tokens * vectors * vector_bytes])
    busy = np.concatenate([[0.0], total - total[0]])
    carried = carried or bool(times.table.scaled_from) or bool(times.extrapolated.all())
    gpu = laws.calibration.gpu
    return PortLaw(float(total[0]), at, busy, f"{gpu} {times.table.library} {named}", carried, gpu)


def _growing(ns: np.ndarray) -> np.ndarray:
    """Times of ascending sizes that never fall, float64[size]. Of the COLD first sizes, those before the shortest time
    take as long as it: a sweep's first ones were measured cold (TensorRT-LLM's combine on 16 ranks of an NVL72: 64 us
    of one token, 18 us of 16, in all three sweeps).
    """
    shortest = int(ns[:COLD].argmin())
    return np.maximum.accumulate(np.where(np.arange(len(ns)) < shortest, ns[shortest], ns))


def _nccl(laws: Laws, size: int) -> PortLaw:
    """NCCL's all-to-all inside a node: sizes are what a rank sends, its own part included."""
    known = [int(table.of["num_gpus"]) for table in laws.calibration.collectives if table.of["op"] == "all_to_all"]
    if not known:
        raise LawMissing(f"calibration {laws.calibration.gpu} has no all_to_all. Take dispatch: per_rank")
    ranks = min(known, key=lambda each: (abs(log2(each / size)), each))
    n_bytes = 2.0 ** np.arange(9, 29.01, 0.25)
    times = laws.collective("all_to_all", n_bytes, ranks=ranks)
    total = _growing(times.ns)
    at = np.concatenate([[0.0], n_bytes * (ranks - 1) / ranks])
    busy = np.concatenate([[0.0], total - total[0]])
    named = f"{laws.calibration.gpu} NCCL all-to-all on {ranks} ranks"
    return PortLaw(float(total[0]), at, busy, named, ranks != size, laws.calibration.gpu)


def variant_of(laws: Laws, dispatch: str, library: str | None, ranks: int | None = None) -> str:
    """The measured kernel of a way to dispatch: of a library; without one, of the first that has one, or of that whose
    measured ranks of a node are the least far from ``ranks``. Raises LawMissing, and says which kernels there are.
    """
    there = {table.of["variant"] for table in dispatches(laws.calibration)}
    wanted = [name for of, name in KERNELS[dispatch].names.items() if library in (None, of)]
    found = [name for name in wanted if name in there]
    if found:
        return found[0] if ranks is None else min(found, key=lambda name: _beyond(laws, name, ranks))  # first of equals
    raise LawMissing(
        f"calibration {laws.calibration.gpu} has no kernel {' or '.join(wanted) or f'of {library}'} for dispatch: "
        f"{dispatch} (it has: {', '.join(sorted(there)) or 'none'}). Name another GPU (or library) in the level, such "
        f"as law: h100/{INTRA}, or take transfer_software: free"
    )


def _beyond(laws: Laws, variant: str, ranks: int) -> float:
    """How far, in doublings, ``ranks`` lie beyond those of a node that a kernel was measured on; 0: inside."""
    known = [each[3] for each in measured(laws, variant, DISPATCH, nodes=1)]
    return max(log2(ranks / max(known)), log2(min(known) / ranks), 0.0) if known else inf


def measured(laws: Laws, variant: str, op: str, nodes: int | None = None) -> list[tuple[int, int, int, int, int]]:
    """(hidden, top_k, experts, ranks, nodes) of the tables of a kernel."""
    found = []
    for table in dispatches(laws.calibration):
        if table.of["variant"] == variant and table.of["op"] == op:
            hidden, top_k, experts, ranks, of_nodes = (
                int(table.of[key]) for key in ("hidden", "top_k", "experts", "num_gpus", "nodes")
            )
            if nodes is None or of_nodes == nodes:
                found.append((hidden, top_k, experts, ranks, of_nodes))
    return found


def nearest_shape(there, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """The measured shape whose sizes differ least, by the sum of their ratios' logarithms."""
    shapes = {each[:3] for each in there}
    return min(shapes, key=lambda each: (sum(abs(log2(a / b)) for a, b in zip(each, shape, strict=True)), each))


# ---- between_nodes
# Laws of ports between nodes, by the bytes of a NIC, from kernels measured on some numbers of nodes.
#
# Direct kernels (DeepEP's low latency): the geometric mean of the two measured numbers of nodes around, at equal bytes.
#
# Forwarded ones (DeepEP's normal): a time has three parts, which follow the number of nodes differently.
#
# ==========  ==========================================================================================================
# ``notify``  ranks tell each other how many vectors come: one time a number of nodes, the median over sizes
# ``fixed``   of the exchange of vectors: the median of FEW_TOKENS and fewer
# ``busy``    a NIC passes its bytes, at the same rate whatever the number of nodes. What is measured is at least that,
#             as SMs may be slower (2 nodes) or the network congested (8 nodes): the least of the measured is taken
# ==========  ==========================================================================================================
#
# The first two take the geometric mean between measured numbers of nodes. A measured number of nodes takes its own busy
# times as far as they were measured, and beyond grows as the least.

# ConnectX-7, 400 Gb/s, one a GPU: the network of DeepEP's own table (deepseek-ai/DeepEP, docs/legacy.md), which the
# inter-node measurements fit (their source does not describe it).
NIC_BYTES_PER_S = 50e9
FEW_TOKENS = 8  # a rank
PREPARED_TOKENS = 2.0 ** np.arange(9)  # of a rank, over which counts take the same time


def level_law(level, number: int, op: str, dispatch: str, model, nodes: int, size: int, bandwidth: float) -> PortLaw:
    """The law of ports of fabric level ``number`` (0 inside a node, 1 between nodes) for ``op``, DISPATCH or COMBINE.

    Raises SpecError for a level without a law, or with one of another kind; LawMissing for kernels that its
    calibration lacks.
    """
    if level.law is None:
        raise SpecError(
            f"fabric.levels.{number}: execution: expert_parallel needs a law of measured transfers. Give law: "
            f"h100/{(INTRA, INTER)[number]}, or take transfer_software: free"
        )
    name, _, kind = level.law.rpartition("/")
    if kind != (INTRA, INTER)[number]:
        raise SpecError(
            f"fabric.levels.{number}.law: {level.law!r} is no law of this level; expected "
            f"{name}/{(INTRA, INTER)[number]}"
        )
    shape, digest = (model.hidden, model.top_k, model.experts), calibration_digest(name)
    if number == 0:
        law = node_law(name, digest, op, dispatch, level.library, shape, size, level.sms)
        law = law.scaled(bandwidth / MEASURED_BYTES_PER_S.get(calibration_named(name).gpu, bandwidth))
        return law._replace(fixed_ns=law.fixed_ns + prepare_ns(name, op, dispatch, level.library, size))
    law = between_law(name, digest, op, dispatch, level.library, shape, nodes, level.sms)
    return law.scaled(bandwidth / NIC_BYTES_PER_S)


@lru_cache(maxsize=256)
def between_law(
    name: str,
    digest: str,
    op: str,
    dispatch: str,
    library: str | None,
    shape: tuple[int, int, int],
    nodes: int,
    sms: int | None = None,
) -> PortLaw:
    """The law of the NICs of ``nodes``. The arguments are those of `node_law`. Raises LawMissing for kernels that were
    not measured.
    """
    _refuse_sms(dispatch, sms)
    laws = Laws(calibration_named(name))
    if "nccl" in KERNELS[dispatch].names:
        raise LawMissing(
            f"dispatch: {dispatch}: NCCL's all-to-all was not measured between nodes (calibration "
            f"{laws.calibration.gpu}). Take dispatch: per_rank or per_token_expert, or a single node"
        )
    variant = variant_of(laws, dispatch, library)
    known = sorted({each[4] for each in measured(laws, variant, op) if each[4] > 1})
    if not known:
        raise LawMissing(
            f"calibration {laws.calibration.gpu} has no {variant} kernels between nodes. Name h100/{INTER} in the law "
            "of the level, or take transfer_software: free"
        )
    below, above, weight = around(known, nodes)
    if KERNELS[dispatch].forwarded:
        return _anchored(laws, op, dispatch, variant, shape, nodes, known, sms)
    first = _of_nodes(laws, op, dispatch, variant, shape, below, nodes, sms)
    if below == above:
        return first
    return middle(first, _of_nodes(laws, op, dispatch, variant, shape, above, nodes, sms), weight)


def _of_nodes(
    laws: Laws, op: str, dispatch: str, variant: str, shape, at_nodes: int, nodes: int, sms: int | None
) -> PortLaw:
    """The law of one measured number of nodes, by bytes of a NIC."""
    there = measured(laws, variant, op, nodes=at_nodes)
    near = nearest_shape(there, shape)
    ranks = min(each[3] for each in there if each[:3] == near)
    _, top_k, experts = near
    away = nodes_away(at_nodes, top_k, experts) if KERNELS[dispatch].once else top_k * (at_nodes - 1) / at_nodes
    asked = {"kernel": variant, "ranks": ranks, "nodes": at_nodes, "sms": sms}
    carried = near != shape or at_nodes != nodes
    law = by_bytes(laws, op, near, asked, away, f"{variant} on {at_nodes} nodes", carried)
    return _measured_part(law, laws, op, near, asked, away) if KERNELS[dispatch].forwarded else law


def _measured_part(law: PortLaw, laws: Laws, op: str, shape, asked, away: float) -> PortLaw:
    """Up to the bytes of a NIC at the largest measured size."""
    hidden, top_k, experts = shape
    table = laws.dispatch_combine(op, 1, **asked, hidden=hidden, top_k=top_k, experts=experts).table
    there = law.at_bytes <= table.last_bytes * away / top_k
    return law._replace(at_bytes=law.at_bytes[there], busy_ns=law.busy_ns[there])


def _anchored(
    laws: Laws, op: str, dispatch: str, variant: str, shape, nodes: int, known: list[int], sms: int | None
) -> PortLaw:
    """Notify, fixed and busy times apart, as this section says."""
    by_nodes = {each: _of_nodes(laws, op, dispatch, variant, shape, each, nodes, sms) for each in known}
    notify = {each: _notify_ns(laws, op, variant, shape, each) for each in known}
    below, above, weight = around(known, nodes)
    if below == above == nodes:
        own = by_nodes[nodes]
        going_on = _going_on(own, _least([*by_nodes.values()]))
        return going_on._replace(fixed_ns=own.fixed_ns + notify[nodes])
    few = {each: _few_ns(law) for each, law in by_nodes.items()}
    fixed = sum(of[below] ** (1 - weight) * of[above] ** weight for of in (few, notify))
    least = _least([_beyond_nodes(law, few[each]) for each, law in by_nodes.items()])
    named = f"{by_nodes[below].named.partition(' on ')[0]}, a NIC as on {' and '.join(map(str, known))} nodes"
    return PortLaw(fixed, least.at_bytes, least.busy_ns, named, True, laws.calibration.gpu)


def _notify_ns(laws: Laws, op: str, variant: str, shape, nodes: int) -> float:
    """The median over sizes: a notify does not depend on them."""
    there = measured(laws, variant, NOTIFY_OF[op], nodes=nodes)
    hidden, top_k, experts = nearest_shape(there, shape)
    ranks = min(each[3] for each in there if each[:3] == (hidden, top_k, experts))
    tokens = 2.0 ** np.arange(FEW_TOKENS)
    times = laws.dispatch_combine(
        NOTIFY_OF[op], tokens, kernel=variant, ranks=ranks, nodes=nodes, hidden=hidden, top_k=top_k, experts=experts
    )
    return float(np.median(times.ns[~times.extrapolated] if not times.extrapolated.all() else times.ns))


def _few_ns(law: PortLaw) -> float:
    """The median time of FEW_TOKENS and fewer."""
    few = (law.at_bytes > 0) & (law.at_bytes <= FEW_TOKENS * law.at_bytes[1])
    return law.fixed_ns + float(np.median(law.busy_ns[few]))


def _beyond_nodes(law: PortLaw, fixed_ns: float) -> PortLaw:
    """The same times, of which ``fixed_ns`` count as fixed."""
    return law._replace(fixed_ns=fixed_ns, busy_ns=np.maximum(law.fixed_ns + law.busy_ns - fixed_ns, 0.0))


def _least(laws: Sequence[PortLaw]) -> PortLaw:
    """The least busy time at any bytes; a law that ends before others grows as that of most bytes."""
    longest = max(laws, key=lambda law: law.at_bytes[-1])
    every = [_going_on(law, longest) for law in laws]
    at = np.unique(np.concatenate([law.at_bytes for law in every]))
    busy = np.maximum.accumulate(np.min([law.busy(at) for law in every], axis=0))
    return longest._replace(at_bytes=at, busy_ns=busy)


def _going_on(law: PortLaw, other: PortLaw) -> PortLaw:
    """A law as far as it goes, and from there with the growth of another."""
    last = law.at_bytes[-1]
    at = other.at_bytes[other.at_bytes > last]
    grown = law.busy_ns[-1] + other.busy(at) - other.busy(last)
    return law._replace(at_bytes=np.concatenate([law.at_bytes, at]), busy_ns=np.concatenate([law.busy_ns, grown]))


# ---- alike
# Dispatch and combine where all experts are equally popular, of any number of ranks: the laws above, without a plan.


class TransferTimes(NamedTuple):
    """``dispatch``, ``combine``: float64[tokens of a rank] ns of one layer; ``carried``: whether they were measured on
    another number of ranks, GPU or shape; ``told``: whose laws they are, and how far off they are where a measured
    number of ranks is left out.
    """

    dispatch: np.ndarray
    combine: np.ndarray
    carried: bool
    told: str


def moved_alike(
    calibration: CalibrationSpec,
    dispatch: str,
    sizes: Sizes,
    hidden: int,
    n_bytes: VectorBytes,
    ranks: int,
    tokens: np.ndarray,
) -> TransferTimes:
    """Of ``tokens`` of every rank, float64[size]. One NVLink domain has the law of its kernels between and beyond the
    measured numbers of ranks (`node_law`); more nodes have that of ports inside nodes and of NICs, whichever takes
    longer, as `archsim.engine.cluster.moves` composes flows. Kernels are the GPU's own or, where their numbers of ranks
    are nearer, those of the GPU most like it. Raises LawMissing where no GPU has any.
    """
    size = min(ranks, NVLINK_RANKS.get(calibration.gpu, NODE))
    nodes, kernel = -(-ranks // size), KERNELS[dispatch]
    shape = hidden, sizes.top_k, sizes.experts
    inner, outer = _nearest_kernels(calibration, dispatch, size, nodes)
    away = expected_ranks(sizes, ranks) if kernel.once else sizes.top_k
    every, found = {}, []
    for op, each in ((DISPATCH, n_bytes.dispatch), (COMBINE, n_bytes.combine)):
        law = node_law(inner, calibration_digest(inner), op, dispatch, None, shape, size)
        every[law.named] = law
        ratio = NVLINK_BYTES_PER_S.get(calibration.gpu, 1.0) / MEASURED_BYTES_PER_S.get(law.gpu, 1.0)
        inside = (size - 1) / size if kernel.forwarded or nodes == 1 else (size - 1) / ranks
        law = law.scaled(ratio) if law.gpu != calibration.gpu and calibration.gpu in NVLINK_BYTES_PER_S else law
        ns = law.fixed_ns + law.busy(tokens * away * inside * each)
        if nodes > 1:
            beyond = between_law(outer, calibration_digest(outer), op, dispatch, None, shape, nodes)
            every[beyond.named] = beyond
            sent = nodes_away(nodes, sizes.top_k, sizes.experts) if kernel.once else away * (nodes - 1) / nodes
            ns = np.maximum(ns, beyond.fixed_ns + beyond.busy(tokens * sent * each))
        found.append(np.where(tokens > 0, ns, 0.0))
    prepare = np.where(tokens > 0, prepare_ns(inner, DISPATCH, dispatch, None, size), 0.0)
    carried = any(law.carried or law.gpu != calibration.gpu for law in every.values())
    told = f"dispatch and combine of {ranks} ranks: {'; '.join(every)}"
    if carried:
        told += f" (not measured on {ranks} ranks of {calibration.gpu}{_off_told(inner, dispatch, shape, size)})"
    return TransferTimes(found[0] + prepare, found[1], carried, told)


def _nearest_kernels(calibration: CalibrationSpec, dispatch: str, size: int, nodes: int) -> tuple[str, str]:
    """Names of the calibrations whose kernels inside a node, and between nodes, are nearest. Raises LawMissing."""
    inner: tuple[float, str] | None = None
    outer = ""
    for each in chain([calibration], siblings_of(calibration)):  # read only if it is needed
        gpu = each.gpu
        try:
            laws = Laws(calibration_named(gpu))
            variant = variant_of(laws, dispatch, None, size)
        except SpecError:  # a calibration of a user's own, or one without kernels
            continue
        beyond = _beyond(laws, variant, size)
        if beyond < inf and (inner is None or beyond < inner[0]):
            inner = beyond, gpu
        if not outer and any(each[4] > 1 for each in measured(laws, variant, DISPATCH)):
            outer = gpu
        if inner is not None and inner[0] == 0 and (nodes == 1 or outer):
            break
    if inner is None or (nodes > 1 and not outer):
        where = "between nodes" if inner else "of a node"
        raise LawMissing(f"calibration {calibration.gpu} has no kernels for dispatch: {dispatch} {where}, and no other")
    return inner[1], outer


def prepare_ns(name: str, op: str, dispatch: str, library: str | None, size: int) -> float:
    """The time to exchange counts before a dispatch of TensorRT-LLM's two-sided kernels, as the median for few tokens.
    It is 0 for other kernels and for a combine. Between measured numbers of ranks, it is their geometric mean.
    """
    laws = Laws(calibration_named(name))
    if op != DISPATCH or "nccl" in KERNELS[dispatch].names:
        return 0.0
    variant = variant_of(laws, dispatch, library, size)
    there = measured(laws, variant, PREPARE, nodes=1)
    if not there:
        return 0.0
    below, above, weight = around(sorted({each[3] for each in there}), size)
    hidden, top_k, experts = there[0][:3]
    asked: dict[str, Any] = {
        "kernel": variant, "nodes": 1, "hidden": hidden, "top_k": top_k, "experts": experts,
    }  # fmt: skip
    ends = [np.median(laws.dispatch_combine(PREPARE, PREPARED_TOKENS, ranks=at, **asked).ns) for at in (below, above)]
    return float(ends[0] ** (1 - weight) * ends[1] ** weight)


JUDGED_TOKENS = 2.0 ** np.arange(0, 11, 2)  # of a rank, on which the law of ranks is judged


def _off_told(name: str, dispatch: str, shape: tuple[int, int, int], size: int) -> str:
    """How far the law of ranks is off where the measured number nearest to ``size`` is left out; '' for too few."""
    laws = Laws(calibration_named(name))
    variant = variant_of(laws, dispatch, None, size)
    there = measured(laws, variant, DISPATCH, nodes=1)
    near = nearest_shape(there, shape)
    known = sorted({each[3] for each in there if each[:3] == near})
    inner = known[1:-1] if size < known[-1] else known[1:]
    if not inner:
        return ""
    left = min(inner, key=lambda each: abs(log2(each / size)))
    below, above, weight = around([each for each in known if each != left], left)
    asked: dict[str, Any] = {
        "kernel": variant, "nodes": 1, **dict(zip(("hidden", "top_k", "experts"), near, strict=True)),
    }  # fmt: skip
    off = []
    for op in (DISPATCH, COMBINE):
        ends = [laws.dispatch_combine(op, JUDGED_TOKENS, ranks=each, **asked).ns for each in (below, above)]
        ours = ends[0] ** (1 - weight) * ends[1] ** weight
        off.append(ours / laws.dispatch_combine(op, JUDGED_TOKENS, ranks=left, **asked).ns - 1)
    return f"; {left} ranks left out, {np.min(off):+.0%} to {np.max(off):+.0%} off"
