"""Collectives of an iteration: the fastest measured kernels inside a node, and nodes by copies between their NICs.

No collective between nodes was measured. An all-reduce of nodes is taken as a hierarchy: each GPU ends with its share
of its node's sum, GPUs of the same number exchange theirs, one NIC each, and nodes gather the whole. With S bytes on
n nodes of g GPUs it takes ``T_g(S) + 2 (n - 1) t(S / (n g))``: T_g is NCCL's all-reduce of a node, whose halves are
the first and the last step (one-shot kernels of engines end at a node); t is a measured copy between nodes, of which
a ring of n takes 2 (n - 1) (Thakur, Rabenseifner and Gropp, International Journal of High Performance Computing
Applications 19, 2005, section 4.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from archsim.iteration.layers import ALL_REDUCE
from archsim.laws.calibration_files import siblings_of
from archsim.laws.laws import Laws
from archsim.laws.scaling import HOPS, with_links
from archsim.laws.tables import LawMissing, MachineCalibration, Same, TransferTable
from archsim.laws.transfers import domain_of, law_of


def all_reduce_ns(laws: Laws, size_bytes: np.ndarray, ranks: int) -> np.ndarray:
    """float64[size], for sizes in order, of any number of ranks: the fastest measured kernels where there are some;
    else NCCL's, by one curve through its measured numbers of ranks (`gathered_ns`), and between nodes by copies. Raises
    LawMissing where none was measured.
    """
    if _is_measured(laws, ranks):
        return fastest_all_reduce_ns(laws, size_bytes, ranks)
    within_ns, rounds, copy_ns = _through_nodes(laws, ALL_REDUCE, size_bytes, ranks)
    return np.minimum.accumulate(within_ns[::-1])[::-1] + 2 * rounds * copy_ns


def _is_measured(laws: Laws, ranks: int, op: str = "all_reduce") -> bool:
    return str(ranks) in _every_measured(Same(laws.calibration), op)


@lru_cache(maxsize=64)
def _every_measured(calibration: Same, op: str) -> frozenset[str | None]:
    return frozenset(table.of.get("num_gpus") for table in calibration.value.collectives if table.of.get("op") == op)


def fastest_all_reduce_ns(laws: Laws, size_bytes: np.ndarray, ranks: int) -> np.ndarray:
    """Engines choose among NCCL and one-shot kernels by size: the least of those that cover it, float64[size], for
    sizes in order; kernels of another GPU cover what was measured there. A message never takes longer than a larger
    one, so sizes below the measured ones take their time.
    """
    found = laws.collective("all_reduce", size_bytes, ranks=ranks).ns
    for library, variant in (("trtllm", None), ("vllm", "vllm_graph"), ("sglang", "sglang_graph")):
        try:
            times = laws.collective("all_reduce", size_bytes, ranks=ranks, library=library, variant=variant)
        except LawMissing:
            continue
        assert isinstance(times.table, TransferTable)
        outside_it = law_of(times.table).extrapolates(size_bytes)
        found = np.where(outside_it, found, np.minimum(found, times.ns))
    return np.minimum.accumulate(found[::-1])[::-1]


LATENCY_BYTES = 1.0  # of a message that only takes latency
JUDGED_BYTES = 2.0 ** np.arange(16, 29, 2)  # sizes on which the law of ranks is judged


def gathered_ns(laws: Laws, op: str, size_bytes: np.ndarray, ranks: int) -> np.ndarray:
    """float64[size] of an all-gather or a reduce-scatter of all ranks, as vLLM, SGLang and TensorRT-LLM do without
    DeepEP; ``size_bytes`` of all ranks together. One law, whatever the number of ranks: measured times where there are
    some; between two measured numbers their geometric mean, weighted by logarithms; beyond, the latency grows as
    between the last two, at most in proportion to the ranks, and the rest with the share of the message that a rank
    does not have. Between nodes, each rank sends its part around a ring of the nodes first (as `all_reduce_ns`).
    ``describe_gathered`` says how far off that is. Raises LawMissing.
    """
    if _is_measured(laws, ranks, op):
        return laws.collective(op, size_bytes, ranks=ranks).ns
    within_ns, rounds, copy_ns = _through_nodes(laws, op, size_bytes, ranks)
    return within_ns + rounds * copy_ns


def _through_nodes(laws: Laws, op: str, size_bytes: np.ndarray, ranks: int) -> tuple[np.ndarray, int, Any]:
    """(ns within a node, other nodes, ns of a rank's part between nodes), float64[size]. Raises LawMissing."""
    if not (measured := _measured_ranks(laws, op)):
        raise LawMissing(f"calibration {laws.calibration.gpu} has no {op}")
    domain = domain_of(laws.calibration)
    within_ns, others = _gathered_within(laws, op, size_bytes, min(ranks, domain), measured), -(-ranks // domain) - 1
    if not others:
        return within_ns, 0, 0.0
    copies = with_copies(laws, "inter_node").copy(np.maximum(size_bytes / ranks, 1), placement="inter_node")
    return within_ns, others, copies.ns


def describe_gathered(laws: Laws, op: str, ranks: int) -> str:
    """Which law gives the times of so many ranks, and its error with the largest left out; '' where measured."""
    measured = _measured_ranks(laws, op)
    if not measured or _is_measured(laws, ranks, op):
        return ""
    domain, name = domain_of(laws.calibration), op.replace("_", "-")
    said = f"{name} of {ranks} ranks: by one curve through its {', '.join(map(str, measured))} measured ranks"
    if len(measured) > 2:
        last = measured[-1]
        ours = _gathered_within(laws, op, JUDGED_BYTES, last, measured[:-1])
        off = ours / laws.collective(op, JUDGED_BYTES, ranks=last).ns - 1
        said += f", which is {off.min():+.0%} to {off.max():+.0%} off at {last} ranks when these are left out"
    if ranks > domain:
        whose = with_copies(laws, "inter_node").calibration.gpu
        said += f"; copies between nodes of {domain} are those of {whose}"
    return said


def _measured_ranks(laws: Laws, op: str) -> list[int]:
    tables = (each.of for each in laws.calibration.collectives if each.of.get("op") == op)
    return sorted({int(of["num_gpus"]) for of in tables if of.get("nodes", "1") == "1" and "num_gpus" in of})


def with_copies(laws: Laws, placement: str) -> Laws:
    """Laws of the GPU, or the nearest with copies of ``placement``, at the machine's links. Raises LawMissing."""
    own = laws.calibration
    for each in chain([own], siblings_of(own)):
        if any(table.of.get("placement") == placement for table in each.p2p):
            return laws if each is own else Laws(with_links(each, own))
    where = "between nodes" if placement == "inter_node" else "within a node"
    raise LawMissing(f"calibration {laws.calibration.gpu} has no copies {where}, and no GPU like it has")


def _gathered_within(laws: Laws, op: str, size_bytes: np.ndarray, ranks: int, measured: Sequence[int]) -> np.ndarray:
    """Of ranks of one node, by the ``measured`` numbers of ranks."""

    def of(each: int, size: ArrayLike = size_bytes) -> np.ndarray:
        return np.asarray(laws.collective(op, size, ranks=each).ns, float)

    if ranks in measured:
        return of(ranks)
    above = [each for each in measured if each > ranks]
    below = [each for each in measured if each < ranks]
    if above and below:
        low, high = below[-1], above[0]
        share = np.log(ranks / low) / np.log(high / low)
        return np.exp((1 - share) * np.log(of(low)) + share * np.log(of(high)))
    if above:
        return of(above[0])
    last = measured[-1]
    latency = of(last, LATENCY_BYTES)
    # Longer hops of the machine come on top: what grows with the ranks is as on the measured nodes.
    hops_ns = HOPS.get(op, 1) * laws.calibration.hop_ns if isinstance(laws.calibration, MachineCalibration) else 0.0
    growth = 1.0
    if len(measured) > 1:
        before = of(measured[-2], LATENCY_BYTES) - hops_ns
        growth = float(np.clip(np.log((latency - hops_ns) / before) / np.log(last / measured[-2]), 0, 1))
    moved = np.maximum(of(last) - latency, 0.0) * ((ranks - 1) / ranks) / ((last - 1) / last)
    return hops_ns + (latency - hops_ns) * (ranks / last) ** growth + moved
