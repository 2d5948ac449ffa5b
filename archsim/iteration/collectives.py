"""Collectives of an iteration: the fastest measured kernels inside a node, and nodes by copies between their NICs.

No collective between nodes was measured. An all-reduce of nodes is taken as a hierarchy: each GPU ends with its share
of its node's sum, GPUs of the same number exchange theirs, one NIC each, and nodes gather the whole. With S bytes on n
nodes of g GPUs it takes ``T_g(S) + 2 (n - 1) t(S / (n g))``: T_g is a node's measured all-reduce, whose halves are the
first and the last step; t is a measured copy between nodes, of which a ring of n takes 2 (n - 1) (Thakur, Rabenseifner
and Gropp, International Journal of High Performance Computing Applications 19, 2005, section 4.4).
"""

from __future__ import annotations

import numpy as np

from archsim.laws.choosing import LawMissing
from archsim.laws.laws import Laws
from archsim.laws.piecewise import law_of
from archsim.laws.tables import TransferTable

NODE = 8  # GPUs behind one NVSwitch, one NIC each (NVIDIA, DGX H100 and HGX B200 user guides)


def all_reduce_ns(laws: Laws, size_bytes: np.ndarray, ranks: int) -> np.ndarray:
    """float64[size], for sizes in order, of ranks of one node, or of nodes of ``NODE``. Raises LawMissing."""
    nodes = ranks // NODE
    if nodes < 2 or ranks % NODE or _measured(laws, ranks):
        return fastest_all_reduce_ns(laws, size_bytes, ranks)
    copies = laws.copy(np.maximum(size_bytes / ranks, 1), placement="inter_node")
    return fastest_all_reduce_ns(laws, size_bytes, NODE) + 2 * (nodes - 1) * copies.ns


def _measured(laws: Laws, ranks: int) -> bool:
    return any(table.of.get("op") == "all_reduce" and table.of.get("num_gpus") == str(ranks)
               for table in laws.calibration.collectives)  # fmt: skip


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


def gathered_ns(laws: Laws, op: str, size_bytes: np.ndarray, ranks: int) -> np.ndarray:
    """float64[size] of an all-gather or a reduce-scatter of all ranks, as vLLM, SGLang and TensorRT-LLM do without
    DeepEP. Between nodes, the law of the largest measured number of ranks. Raises LawMissing.
    """
    for measured in (ranks, *(n for n in (64, 32, 16, 8, 4, 2) if n < ranks)):
        try:
            return laws.collective(op, size_bytes, ranks=measured).ns
        except LawMissing:
            continue
    raise LawMissing(f"calibration {laws.calibration.gpu} has no {op}")
