"""Collectives, and dispatch and combine of MoE libraries: which table, and how many bytes a rank sends."""

from collections.abc import Sequence
from math import prod
from types import MappingProxyType

from archsim.base.dtypes import VECTOR_BYTES
from archsim.laws.choosing import ONLY_BY_NAME, LawMissing, newest
from archsim.laws.tables import CalibrationSpec, TransferTable

DISPATCH, COMBINE = "dispatch", "combine"
# TensorRT-LLM operations: the exchange of counts and indices before a dispatch, and a combine in the dtype of the
# layer.
PREPARE, COMBINE_LOW_PRECISION = "prepare", "combine_low_precision"
# Of DeepEP's normal kernels between nodes, apart from the vectors that follow: ranks tell each other how many come, and
# wait for all (deepseek-ai/DeepEP, csrc/kernels/internode.cu, notify_dispatch and cached_notify).
NOTIFY_OF = MappingProxyType({DISPATCH: "dispatch_notify", COMBINE: "combine_notify"})
# Default payload of operations: DeepEP dispatches FP8 and combines BF16 (deepseek-ai/DeepEP, README).
PAYLOAD_OF = MappingProxyType({
    DISPATCH: "fp8",
    COMBINE: "bf16",
    PREPARE: "bf16",
    COMBINE_LOW_PRECISION: "nvfp4",
    NOTIFY_OF[DISPATCH]: "fp8",
    NOTIFY_OF[COMBINE]: "bf16",
})

GROUPS_TAKEN = 4  # DeepEP's benchmark routes to at most 4 of the nodes (tests/test_internode.py, num_topk_groups)


def nodes_away(nodes: int, top_k: int, experts: int) -> float:
    """Other nodes that a token of DeepEP's benchmark is sent to, on average: ``top_k`` of the experts of at most
    GROUPS_TAKEN nodes, all equally popular, each node once (hypergeometric).
    """
    groups, each = min(nodes, GROUPS_TAKEN), experts / nodes
    none = prod(((groups - 1) * each - drawn) / (groups * each - drawn) for drawn in range(top_k))
    return groups * (1 - max(none, 0.0)) * (nodes - 1) / nodes


def collectives(calibration: CalibrationSpec) -> list[TransferTable]:
    """Tables of collectives; sizes are message bytes as the library counts them."""
    return [table for table in calibration.collectives if table.of.get("op") not in PAYLOAD_OF]


def dispatches(calibration: CalibrationSpec) -> list[TransferTable]:
    """Tables of dispatch and combine; sizes are bytes that one rank sends."""
    return [table for table in calibration.collectives if table.of.get("op") in PAYLOAD_OF]


def sent_bytes(payload: str, tokens, top_k, hidden):
    """Bytes that one rank sends for its own ``tokens``, each to ``top_k`` experts on other ranks. ``payload``: a key of
    archsim.base.dtypes.VECTOR_BYTES.

    Laws of dispatch and combine use this size, whatever a library really sends (TensorRT-LLM: each vector once per
    rank). Raises LawMissing.
    """
    if payload not in VECTOR_BYTES:
        raise LawMissing(
            f"unknown payload {payload!r}: its bytes per value are not known (known: {', '.join(VECTOR_BYTES)})"
        )
    return tokens * top_k * hidden * VECTOR_BYTES[payload]


def payload_of(table: TransferTable) -> str:
    """The payload of a table of ``dispatches``."""
    return table.of.get("dtype") or PAYLOAD_OF[table.of["op"]]


def preferred_collective(tables: Sequence[TransferTable]) -> TransferTable:
    """The table with the fewest nodes; then most SMs, then the library with most points, in its newest version;
    libraries of ONLY_BY_NAME last. Then the default payload.
    """

    def rank(table: TransferTable) -> tuple:
        of, listed = table.of, table.library not in ONLY_BY_NAME
        usual = of.get("dtype") == PAYLOAD_OF.get(of["op"])
        sms, points = float(of.get("sms", 0)), table.residuals.points
        return not table.scaled_from, listed, -float(of.get("nodes", 1)), sms, points, usual, table.library

    best = max(tables, key=rank)
    return newest(table for table in tables if (table.library, table.of) == (best.library, best.of))
