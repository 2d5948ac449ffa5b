"""How long measured kernels take to pass bytes through the fullest port of a level: laws by name and number of nodes.

A measured kernel (``Laws.dispatch_combine``, ``Laws.collective``) gives a time for a number of tokens a rank, all
experts equally popular. Every port of a level then passes the same bytes, which are known (the expected number of
distinct ranks or nodes of a token, times a vector); so the time is one by the bytes of a port:

    fixed + busy(bytes), busy(0) = 0, growing, linear between the measured sizes

Uniform traffic takes exactly what was measured, whatever its vectors; a port that passes more bytes is busy longer.
Numbers of ranks of a node between two measured ones take the geometric mean, weighted by their logarithms, at equal
tokens; more than measured take the law of the most. Between nodes: `archsim.engine.cluster.between_nodes`. A
link of another nominal bandwidth than the measured one changes ``busy`` in proportion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf, log2
from typing import Any, NamedTuple

import numpy as np

from archsim.base import sums, units
from archsim.engine.moves import Sizes, expected_ranks
from archsim.laws.calibration_files import calibration_named
from archsim.laws.laws import Laws
from archsim.laws.tables import LawMissing
from archsim.laws.transfers import DISPATCH, PREPARE, dispatches, payload_of

MOST_TOKENS = 1 << 15  # a rank
COLD = 17  # sizes, four an octave: up to 16 tokens of a rank
INTRA, INTER = "intra_node", "inter_node"


class TransferKernel(NamedTuple):
    """A kernel that moves hidden vectors."""

    names: Mapping[str, str]  # library → its kernel; which of them a level without a library takes: `variant_of`
    once: bool  # sent once for every token and rank (and node); else for every token and expert
    forwarded: bool  # between nodes to the GPU of the same number, then on inside the node
    sms: int = 0  # that it takes as long as it runs; 0: all of them while it sends and receives
    padded: bool = False  # what a rank sends another fills up to the largest of all ranks


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
    """``fixed_ns`` + ``busy_ns`` of a port's bytes, linear between ``at_bytes`` and beyond."""

    fixed_ns: float  # of any number of bytes
    at_bytes: np.ndarray  # float64[point], ascending from 0
    busy_ns: np.ndarray  # float64[point]: how long a port is busy with so many bytes
    named: str  # what was measured
    carried: bool  # whether the number of nodes or the shape of a part of it was not measured
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

    def scale(self, ratio: float) -> PortLaw:
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
    refuse_sms(dispatch, sms)
    laws = Laws(calibration_named(name))
    if "nccl" in KERNELS[dispatch].names:
        return _nccl(laws, size)
    variant = variant_of(laws, dispatch, library, size)
    near = nearest_shape(measured_shapes(laws, variant, op, nodes=1), shape)
    known = sorted({each[3] for each in measured_shapes(laws, variant, op, nodes=1) if each[:3] == near})
    below, above, weight = around(known, size)
    if below == above:
        return _on_ranks(laws, op, dispatch, variant, near, below, below, near != shape or below != size, sms)
    # at equal tokens, whose bytes are those of ``size``: left out, 16 ranks are 2 % off 8 and 64 (at equal bytes 9 %)
    few, many = (_on_ranks(laws, op, dispatch, variant, near, ranks, size, True, sms) for ranks in (below, above))
    return middle(few, many, weight)


def refuse_sms(dispatch: str, sms: int | None) -> None:
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
    vector_bytes = hidden * units.VECTOR_BYTES[payload_of(times.table)]
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
    """The measured kernel of ``library``, the first that has one, or that of nearest ``ranks``. Raises LawMissing."""
    there = {table.of["variant"] for table in dispatches(laws.calibration)}
    wanted = [name for of, name in KERNELS[dispatch].names.items() if library in (None, of)]
    found = [name for name in wanted if name in there]
    if found:
        return (
            found[0] if ranks is None else min(found, key=lambda name: ranks_beyond(laws, name, ranks))
        )  # first of equals
    raise LawMissing(
        f"calibration {laws.calibration.gpu} has no kernel {' or '.join(wanted) or f'of {library}'} for dispatch: "
        f"{dispatch} (it has: {', '.join(sorted(there)) or 'none'}). Name another GPU (or library) in the level, such "
        f"as law: h100/{INTRA}, or take transfer_software: free"
    )


def ranks_beyond(laws: Laws, variant: str, ranks: int) -> float:
    """How far, in doublings, ``ranks`` lie beyond those of a node that a kernel was measured on; 0: inside."""
    known = [each[3] for each in measured_shapes(laws, variant, DISPATCH, nodes=1)]
    return max(log2(ranks / max(known)), log2(min(known) / ranks), 0.0) if known else inf


def measured_shapes(
    laws: Laws, variant: str, op: str, nodes: int | None = None
) -> list[tuple[int, int, int, int, int]]:
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
    return min(shapes, key=lambda each: (sums.sum(abs(log2(a / b)) for a, b in zip(each, shape, strict=True)), each))


PREPARED_TOKENS = 2.0 ** np.arange(9)  # of a rank, over which counts take the same time


def prepare_ns(name: str, op: str, dispatch: str, library: str | None, size: int) -> float:
    """ns to exchange counts before a dispatch of TensorRT-LLM's two-sided kernels (median of few tokens); else 0."""
    laws = Laws(calibration_named(name))
    if op != DISPATCH or "nccl" in KERNELS[dispatch].names:
        return 0.0
    variant = variant_of(laws, dispatch, library, size)
    there = measured_shapes(laws, variant, PREPARE, nodes=1)
    if not there:
        return 0.0
    below, above, weight = around(sorted({each[3] for each in there}), size)
    hidden, top_k, experts = there[0][:3]
    asked: dict[str, Any] = {
        "kernel": variant, "nodes": 1, "hidden": hidden, "top_k": top_k, "experts": experts,
    }  # fmt: skip
    ends = [np.median(laws.dispatch_combine(PREPARE, PREPARED_TOKENS, ranks=at, **asked).ns) for at in (below, above)]
    return float(ends[0] ** (1 - weight) * ends[1] ** weight)
