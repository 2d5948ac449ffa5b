"""The entry point to a calibration: evaluates every one of its tables, by name.

``Laws(calibration_named("h100")).copy(2**20).ns``. Sizes may be numbers or arrays that broadcast; times have their
shape. Without a name, the library with most measurements is chosen, in its newest version. ``LawMissing`` is raised for
what was not measured, and lists what was. Times are in ns, sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from archsim.laws import attention, gemm, moe
from archsim.laws.gemm import ExpertGemm, Rates
from archsim.laws.host_path import HostPath, path_of
from archsim.laws.moe import MoeSizes
from archsim.laws.scaling import Scale
from archsim.laws.tables import (
    ONLY_BY_NAME,
    CalibrationSpec,
    MoeTable,
    Same,
    ScalarTable,
    Table,
    TableOrigin,
    TransferTable,
    matching,
    newest,
)
from archsim.laws.transfers import (
    HbmReads,
    collectives,
    dispatches,
    hbm_reads,
    law_of,
    link_table,
    nominal_bytes_per_s,
    payload_of,
    preferred_collective,
    preferred_copy,
    preferred_number,
    sent_bytes,
    why_no_link,
)

Of = TypeVar("Of", bound=TableOrigin)


class Times(NamedTuple, Generic[Of]):
    """``ns``: float64 and ``extrapolated``: bool, of the shape of the given sizes; ``table``: the one evaluated."""

    ns: np.ndarray
    extrapolated: np.ndarray
    table: Of


class LinkCopies(NamedTuple):
    """P2P copies for a link and the measured link's nominal rate; ``table`` None: there is none, ``why`` says why."""

    table: TransferTable | None
    nominal_bytes_per_s: float
    why: str


class Laws:
    """The laws of one calibration."""

    def __init__(self, calibration: CalibrationSpec):
        self.calibration = calibration

    def gemm(
        self,
        m: ArrayLike,
        n: ArrayLike,
        k: ArrayLike,
        *,
        dtype: str,
        library: str | None = None,
        version: str | None = None,
        quantisation: str | None = None,
        rates: Rates | None = None,
    ) -> Times:
        """m x n x k GEMMs: m rows (tokens) by weights of k x n. m, n, k: int64.

        ``quantisation``: ``apart`` from the time or ``included`` in it; apart preferred. ``rates``: of the modelled die
        (``archsim.laws.gemm.Rates``); None: the measured GPU. Raises LawMissing.
        """
        return self.grouped_gemm(
            m, n, k, 1, dtype=dtype, library=library, version=version, quantisation=quantisation, rates=rates
        )

    def grouped_gemm(
        self,
        m: ArrayLike,
        n: ArrayLike,
        k: ArrayLike,
        groups: int,
        *,
        dtype: str,
        library: str | None = None,
        version: str | None = None,
        quantisation: str | None = None,
        rates: Rates | None = None,
    ) -> Times:
        """``groups`` (a measured number) of products of m rows each in one kernel; otherwise as ``gemm``."""
        table = gemm.choose_table(self.calibration, dtype, library, version, quantisation=quantisation, groups=groups)
        scale = (1.0, 1.0) if rates is None else gemm.scale_to(self.calibration, table.dtype, rates)
        (m, n, k), shape = _flat(np.int64, m=m, n=n, k=k)
        ns = gemm.table_times(table, n, k, m, self.calibration.reference.sms, *scale)
        return Times(ns.reshape(shape), gemm.outside(table, n, k, m).reshape(shape) | bool(table.scaled_from), table)

    def expert_gemm(
        self, hidden: int, ffn: int, *, dtype: str, rates: Rates | None = None, library: str | None = None
    ) -> ExpertGemm:
        """Gate, up and down product of an expert on a die with these rates. Raises LawMissing."""
        return ExpertGemm(self.calibration, hidden, ffn, dtype, rates, library)

    def fused_moe(
        self,
        tokens: ArrayLike,
        ep: ArrayLike,
        tp: ArrayLike = 1,
        *,
        dtype: str,
        model: str | None = None,
        sizes: MoeSizes | None = None,
        distribution: str = "balanced",
        eplb_slots: int = 0,
        library: str | None = None,
        version: str | None = None,
        kernel: str | None = None,
        pairs: ArrayLike | None = None,
        active_experts: ArrayLike | None = None,
    ) -> Times:
        """The MoE layer (gate, up, down) on the slowest rank of an EP group, without dispatch and combine.

        tokens: of the whole EP group; ep, tp: its sizes. The layer is named by ``model``, by ``sizes``, or both. Sizes
        alone that were not measured take the law of the nearest ones (``archsim.laws.moe``), flagged.
        ``eplb_slots``: slots over which EPLB spread replicas of experts; 0: no replicas. ``pairs`` and
        ``active_experts`` (float64 above 0, both or neither): token-expert pairs of the rank, and the number of its
        experts that receive any; by default those of the routing named by ``distribution``. Raises LawMissing.
        """
        if model is None and sizes is None:
            raise ValueError("fused_moe needs a model or the sizes of its layer")
        if (pairs is None) != (active_experts is None):
            raise ValueError("fused_moe needs both pairs and active_experts of a rank, or neither")
        asked = {
            "model": model,
            **(sizes._asdict() if sizes else {}),
            "dtype": dtype,
            "distribution": distribution,
            "eplb_slots": eplb_slots,
        }
        how = {"library": library, "version": version, "kernel": kernel}
        far = model is None and sizes is not None and not self._measured_layer(sizes)
        if far and sizes is not None:
            table = self._nearest_layer(asked | how, sizes)
        else:
            table = _preferred_moe(self._matching("fused MoE", self.calibration.moe, asked | how))
        if pairs is None or active_experts is None:
            (tokens, ep, tp), shape = _flat(np.float64, tokens=tokens, ep=ep, tp=tp)
            ns = moe.moe_ns(table, ep, tp, tokens)
        else:
            (tokens, ep, tp, pairs, active), shape = _flat(
                np.float64, tokens=tokens, ep=ep, tp=tp, pairs=pairs, active_experts=active_experts
            )
            ns = moe.rank_ns(table, pairs, active, ep, tp, tokens)
        beyond = moe.outside_ranks(table, ep, tp, tokens).reshape(shape) | bool(table.scaled_from) | far
        return Times(ns.reshape(shape), beyond, table)

    def _measured_layer(self, sizes: MoeSizes) -> bool:
        named = sizes._asdict().items()
        return any(all(getattr(table, name) == size for name, size in named) for table in self.calibration.moe)

    def _nearest_layer(self, asked: dict[str, object], sizes: MoeSizes) -> MoeTable:
        others = {key: value for key, value in asked.items() if key not in sizes._asdict()}
        tables = self._matching("fused MoE", self.calibration.moe, others)
        models = dict.fromkeys(table.model for table in tables)
        each = [_preferred_moe([table for table in tables if table.model == model]) for model in models]
        return moe.nearest_layer(each, sizes)

    def attention(
        self,
        tokens: ArrayLike,
        context_tokens: ArrayLike,
        requests: ArrayLike = 1,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        dtype: str,
        kv_dtype: str | None = None,
        window: int = 0,
        kind: str = "gqa",
        products: str = "",
        phase: str | None = None,
        library: str | None = None,
        version: str | None = None,
        rates: Rates | None = None,
    ) -> Times:
        """Attention of ``requests`` with ``tokens`` new tokens each, at the end of ``context_tokens`` (which include
        them), on one rank; without projections.

        ``heads``, ``kv_heads``: of the rank. ``kind``: gqa or mla (``head_dim`` of the latent vector with RoPE, and one
        KV head); mla_block: with its projections in the dtype ``products``; mla_pre, mla_post: the products around an
        absorbed decode, a request a token. ``phase``: prefill or decode; by default decode where every request has one
        new token.
        ``kv_dtype``: of the cache, by default ``dtype``; ``window``: of sliding-window attention, 0 for none. Sizes of
        heads and windows that were not measured take those of the nearest table, flagged. Raises LawMissing.
        """
        (tokens, context, requests), shape = _flat(
            np.float64, tokens=tokens, context_tokens=context_tokens, requests=requests
        )
        if np.any(tokens > context):
            raise ValueError("context_tokens include the new tokens, so they cannot be fewer")
        phase = phase or ("decode" if np.all(tokens == 1) else "prefill")
        sizes = attention.AttentionSizes(heads, kv_heads, head_dim, window, kind)
        table = attention.choose_attention(self.calibration, phase, sizes, dtype, kv_dtype, library, version, products)
        grid = attention.attention_grid(table, sizes, *self.scale_of(table.dtype, rates))
        ns = attention.grid_ns(grid, requests, tokens, context)
        return Times(ns.reshape(shape), attention.outside(grid, requests, context).reshape(shape), table)

    def scale_of(self, dtype: str, rates: Rates | None) -> Scale:
        """Rates of the modelled die relative to the measured GPU."""
        return Scale(1.0, 1.0) if rates is None else gemm.scale_to(self.calibration, dtype, rates)

    def copy(
        self,
        size_bytes: ArrayLike,
        *,
        direction: str = "uni",
        placement: str = "intra_node",
        concurrent_pairs: int | None = None,
        method: str | None = None,
        library: str | None = None,
        version: str | None = None,
    ) -> Times:
        """GPU-to-GPU copy. ``direction``: uni, bi, ring; ``method``: ce (copy engine), nccl. Raises LawMissing."""
        asked = {"placement": placement, "direction": direction, "concurrent_pairs": concurrent_pairs, "method": method}
        tables = self._matching("copy (p2p)", self.calibration.p2p, asked | {"library": library, "version": version})
        return _transfer(preferred_copy(tables), size_bytes)

    def link(self) -> LinkCopies:
        """The copies that calibrate a D2D link: one way, one pair, within a node, at sizes of weight slices."""
        table = link_table(self.calibration)
        if table is None:
            return LinkCopies(None, 0.0, why_no_link(self.calibration))
        return LinkCopies(table, nominal_bytes_per_s(self.calibration.gpu, table), "")

    def collective(
        self,
        op: str,
        size_bytes: ArrayLike,
        *,
        ranks: int,
        nodes: int | None = None,
        variant: str | None = None,
        library: str | None = None,
        version: str | None = None,
    ) -> Times:
        """all_reduce, all_gather, reduce_scatter or all_to_all of ``size_bytes``, as the library counts it, on measured
        ``ranks`` and ``nodes`` (by default the fewest). Raises LawMissing.
        """
        table = _collective(Same(self.calibration), op, ranks, nodes, variant, library, version)
        return _transfer(table, size_bytes)

    def dispatch_combine(
        self,
        op: str,
        tokens: ArrayLike,
        *,
        kernel: str,
        ranks: int,
        hidden: int,
        top_k: int,
        experts: int,
        nodes: int | None = None,
        dtype: str | None = None,
        sms: int | None = None,
        library: str | None = None,
        version: str | None = None,
    ) -> Times[TransferTable]:
        """``dispatch`` or ``combine`` of ``tokens`` of each rank; for TensorRT-LLM also ``prepare`` and
        ``combine_low_precision``, for DeepEP's normal kernels between nodes ``dispatch_notify`` and ``combine_notify``,
        which come before.

        ``kernel``: normal or low_latency (DeepEP), nvlink_one_sided or nvlink_two_sided (TensorRT-LLM). ``nodes``:
        server nodes that the ranks span, by default the fewest; ``dtype``: the payload; ``sms``: SMs used, by default
        the most. Numbers of SMs between two measured ones take the geometric mean, weighted by their logarithms, and
        count as extrapolated: left out, 8 to 20 of DeepEP's normal kernels are 1 % off in the median, and 9 of 10 by at
        most 5 % (H100, B200).

        Only measured ranks, nodes, hidden sizes, top_k and experts are available. Raises LawMissing, also for SMs
        outside the measured ones.
        """
        asked = {
            "op": op,
            "variant": kernel,
            "num_gpus": ranks,
            "nodes": nodes,
            "hidden": hidden,
            "top_k": top_k,
            "experts": experts,
            "dtype": dtype,
            "sms": sms,
        }
        there, named = dispatches(self.calibration), {"library": library, "version": version}
        if sms is not None:
            tables = self._matching("dispatch and combine", there, asked | named | {"sms": None})
            known = sorted({int(table.of["sms"]) for table in tables if "sms" in table.of})
            if known and sms not in known and known[0] < sms < known[-1]:
                ends = max(each for each in known if each < sms), min(each for each in known if each > sms)
                below, above = (
                    self.dispatch_combine(
                        op, tokens, kernel=kernel, ranks=ranks, hidden=hidden, top_k=top_k, experts=experts,
                        nodes=nodes, dtype=dtype, sms=each, library=library, version=version,
                    )
                    for each in ends
                )  # fmt: skip
                weight = np.log(sms / ends[0]) / np.log(ends[1] / ends[0])
                ns = below.ns ** (1 - weight) * above.ns**weight
                return Times(ns, np.ones_like(ns, dtype=bool), below.table)
        tables = self._matching("dispatch and combine", there, asked | named)
        table = preferred_collective(tables)
        return _transfer(table, sent_bytes(payload_of(table), np.asarray(tokens, np.float64), top_k, hidden))

    def host(
        self,
        size_bytes: ArrayLike,
        direction: str,
        *,
        pinned: bool = True,
        method: str | None = None,
        library: str | None = None,
        version: str | None = None,
    ) -> Times:
        """A transfer over PCIe; ``direction``: d2h or h2d. Raises LawMissing."""
        asked = {
            "direction": direction,
            "pinned": int(pinned),
            "method": method,
            "library": library,
            "version": version,
        }
        there = [table for table in self.calibration.pcie if isinstance(table, TransferTable)]
        return _transfer(preferred_copy(self._matching("host transfer (pcie)", there, asked)), size_bytes)

    def launch(self, kind: str) -> ScalarTable:
        """ns of a kernel launch; ``kind``: stream, graph_node, grid_sync, launch_to_sync. Raises LawMissing."""
        return newest(self._matching("launch", self.calibration.launch, {"kind": kind}))

    def host_path(self) -> HostPath:
        return path_of(self.calibration)

    def memory(
        self, level: str, op: str, quantity: str, *, library: str | None = None, version: str | None = None
    ) -> ScalarTable:
        """One number of a memory level (l1, l2, hbm): ``bytes_per_s`` or ``efficiency`` of op read or write,
        ``latency_ns`` of chase. Raises LawMissing.
        """
        there = [table for table in self.calibration.hbm if isinstance(table, ScalarTable)]
        asked = {"level": level, "op": op, "quantity": quantity, "library": library, "version": version}
        return preferred_number(self._matching("memory", there, asked))

    def hbm_reads(self) -> HbmReads:
        """Latency of reads and their share of the reference bandwidth, as far as measured."""
        return hbm_reads(self.calibration)

    def _matching(self, what: str, tables: Sequence[Table], asked: Mapping[str, object]) -> list[Table]:
        return matching(self.calibration.gpu, what, tables, asked)


@lru_cache(maxsize=256)
def _collective(calibration: Same, *asked: str | int | None) -> TransferTable:
    """Every step asks for the same few again. ``asked``: as by `Laws.collective`."""
    names = ("op", "num_gpus", "nodes", "variant", "library", "version")
    found = collectives(calibration.value)
    asked_by = dict(zip(names, asked, strict=True))
    return preferred_collective(matching(calibration.value.gpu, "collective", found, asked_by))


def _transfer(table: TransferTable, size_bytes: ArrayLike) -> Times[TransferTable]:
    law = law_of(table)
    return Times(law.time_ns(size_bytes), law.extrapolates(size_bytes) | bool(table.scaled_from), table)


def _flat(dtype: type, **sizes: ArrayLike) -> tuple[list[np.ndarray], tuple[int, ...]]:
    """Sizes as arrays [point], and their broadcast shape. Raises ValueError unless positive and finite."""
    arrays = np.broadcast_arrays(*(np.asarray(values) for values in sizes.values()))
    for name, values in zip(sizes, arrays, strict=True):
        if not np.all(np.isfinite(values) & (values > 0)):
            raise ValueError(f"{name} must be positive and finite")
    return [values.ravel().astype(dtype) for values in arrays], arrays[0].shape


def _preferred_moe(tables: list[MoeTable]) -> MoeTable:
    """Among the newest versions of each library and kernel, the one with most points; ONLY_BY_NAME last."""
    kernels = {(table.library, table.kernel) for table in tables}
    newest_of_each = [
        newest(table for table in tables if (table.library, table.kernel) == kernel) for kernel in kernels
    ]

    def rank(table: MoeTable) -> tuple:
        named_only, points = table.library in ONLY_BY_NAME, len(table.ranks) * len(table.tokens)
        return not table.scaled_from, not named_only, points, table.library, table.kernel

    return max(newest_of_each, key=rank)


# Tables that another table of the same library dominates: fewer bits or a newer version, and yet slower.
#
# A kernel that reads fewer bytes, or that replaced another, and takes longer at the same sizes is one that nobody
# serves with, or a fault of the measurement. Tables are compared at all points that both measured.
