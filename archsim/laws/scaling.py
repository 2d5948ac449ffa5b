"""Tables of a GPU at other rates: those that a GPU takes from another one for what was not measured on it, and all of
them where a machine has other rates than the GPU that was measured.

Rates of laws scale by the ratio of peaks (FLOP) and of HBM bandwidths (bytes), costs of MoE layers as
their terms say, collectives within a node by that of NVLink; launches, latencies (per k, too),
corrections and links between nodes stay. docs/calibration.md has the errors, where both GPUs were measured. Every time
of a table that was taken from another GPU counts as extrapolated.
"""

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from archsim.base.units import NS_PER_S, WEIGHT_BYTES
from archsim.laws import tables, transfers

# Laws of fused MoE layers on another GPU or die: what of them moves bytes, and what does not.
#
# FLOP scale with the peak, weights with the HBM. Of the costs of a token and of a pair, bytes scale with the HBM: those
# of the kernels around the products, at the bandwidth of the measured GPU (`token_bytes`, `pair_bytes`), and no more
# than the whole cost. The rest, and the cost of an expert, gain by whichever of peak and HBM gained less; launch and
# floor are software and stay.

BF16_BYTES = 2


class Scale(NamedTuple):
    """Rates of a die relative to the measured GPU; of many dies, float64[die] each."""

    compute: Any
    memory: Any


class MeasuredLayer(NamedTuple):
    """Sizes of a layer, its dtype, and the HBM bandwidth of the GPU that measured it."""

    hidden: int
    ffn: int
    dtype: str
    hbm_bytes_per_s: float


def token_bytes(layer: MeasuredLayer) -> float:
    """The bytes that a token costs a rank that it passes. Its result is written in BF16. Where the dtype is narrower,
    quantisation reads the token in BF16 and writes it in the dtype.
    """
    operand = WEIGHT_BYTES[layer.dtype]
    quantised = BF16_BYTES + operand if operand < BF16_BYTES else 0
    return layer.hidden * (BF16_BYTES + quantised)


def pair_bytes(layer: MeasuredLayer) -> float:
    """The bytes that a token–expert pair costs. Its row is copied in the dtype. The activation reads gate and up in
    BF16 and writes one of them in the dtype; the final sum reads the result in BF16.
    """
    operand = WEIGHT_BYTES[layer.dtype]
    return layer.hidden * (2 * operand + BF16_BYTES) + layer.ffn * (2 * BF16_BYTES + operand)


def scaled_law(law: tables.MoeLaw, layer: MeasuredLayer, scale: Scale) -> tables.MoeLaw:
    """The law at other rates; of a ``scale`` of many dies, float64[die], its terms that change are arrays, too."""
    least = min(scale) if np.ndim(scale.compute) == 0 else np.minimum(*scale)

    def move(ns: float, n_bytes: float) -> float:
        of_bytes = min(ns, n_bytes / layer.hbm_bytes_per_s * NS_PER_S)  # at the measured GPU's rates
        return of_bytes / scale.memory + (ns - of_bytes) / least

    return law.model_copy(
        update={
            "flop_per_s": law.flop_per_s * scale.compute,
            "bytes_per_s": law.bytes_per_s * scale.memory,
            "ns_per_token": move(law.ns_per_token, token_bytes(layer)),
            "ns_per_pair": move(law.ns_per_pair, pair_bytes(layer)),
            "ns_per_expert": law.ns_per_expert / least,
        }
    )


def with_scaled(calibration: tables.CalibrationSpec, base: tables.CalibrationSpec) -> tables.CalibrationSpec:
    """The calibration with tables of ``base`` for whatever its sections of ``scaled`` lack."""
    sections = calibration.scaled.sections if calibration.scaled else ()
    found: dict[str, tuple[tables.TableOrigin, ...]] = {
        section: (*getattr(calibration, section), *_missing(calibration, base, section)) for section in sections
    }
    return calibration.model_copy(update=found)


def _missing(
    calibration: tables.CalibrationSpec, base: tables.CalibrationSpec, section: str
) -> list[tables.TableOrigin]:
    key = KEYS[section]
    own = {key(table) for table in getattr(calibration, section)}
    lacking: Sequence[tables.TableOrigin] = [table for table in getattr(base, section) if key(table) not in own]
    scaled = [scaled_table(table, calibration, base) for table in lacking]
    return [table for table in scaled if table is not None]


def scaled_table(table: tables.Table, calibration: tables.CalibrationSpec, base: tables.CalibrationSpec) -> Any:
    """A table of ``base`` at the rates of another GPU. None where this has no peak for the dtype, or no known link."""
    found = _scale_table(table, calibration, base)
    return None if found is None else found.model_copy(update={"scaled_from": base.gpu})


def _scale_table(
    table: tables.TableOrigin, calibration: tables.CalibrationSpec, base: tables.CalibrationSpec
) -> tables.TableOrigin | None:
    """As `scaled_table`, without saying of whom it is."""
    if isinstance(table, tables.TransferTable):
        ratio = _link_ratio(table, calibration.gpu, base.gpu)
        slower = tuple(ns / ratio for ns in table.ns_per_byte) if ratio else ()
        later = tuple(ns * _host_ratio(table, calibration.gpu, base.gpu) for ns in table.latency_ns)
        return table.model_copy(update={"ns_per_byte": slower, "latency_ns": later}) if ratio else None
    assert isinstance(table, tables.GemmTable | tables.MoeTable | tables.AttentionTable)
    ratios = _ratios(table.dtype, calibration.reference, base.reference)
    return None if ratios is None else _kernel_at(table, Scale(*ratios), base.reference.hbm_bytes_per_s)


def _kernel_at(
    table: tables.GemmTable | tables.MoeTable | tables.AttentionTable, scale: Scale, hbm_bytes_per_s: float
) -> tables.TableOrigin:
    """The table at other rates; ``hbm_bytes_per_s``: of the GPU that it is of."""
    law = table.law
    if isinstance(law, tables.MoeLaw):  # as archsim.laws.die scales them to a die
        assert isinstance(table, tables.MoeTable)
        layer = MeasuredLayer(table.hidden, table.ffn, table.dtype, hbm_bytes_per_s)
        return table.model_copy(update={"law": scaled_law(law, layer, scale)})
    rates = {"flop_per_s": law.flop_per_s * scale.compute, "bytes_per_s": law.bytes_per_s * scale.memory}
    if isinstance(law, tables.GemmLaw):
        rates |= {"ns_per_input": law.ns_per_input / scale.memory}
    return table.model_copy(update={"law": law.model_copy(update=rates)})


class MachineRates(NamedTuple):
    """Rates of a machine of GPUs. ``compute``, ``memory``: relative to those of the GPU whose tables it takes."""

    compute: float  # FLOP/s of every dtype
    memory: float  # bytes/s that reads of HBM reach
    link_bytes_per_s: float  # of a device into its node, one direction
    pair_bytes_per_s: float  # between two devices of a node
    nic_bytes_per_s: float  # of a device to other nodes
    hop_ns: float  # latency of a hop in a node, beyond that of the measured node
    nic_hop_ns: float  # latency of a hop between nodes, beyond that of the measured nodes
    domain: int  # devices of a node
    linked: bool = False  # each device of a node has a link to each other, and no switch


HOPS = MappingProxyType({"all_reduce": 2})  # that any algorithm needs, one after the other; one for other operations


def link_ratios(gpu: str, rates: MachineRates) -> tuple[float, float, float]:
    """Rates of a machine's links, pairs and NICs over the measured nodes'; 1 inside a node of unknown links."""
    link, pair = (
        here / transfers.LINK_BYTES_PER_S.get(gpu, here) for here in (rates.link_bytes_per_s, rates.pair_bytes_per_s)
    )
    return link, pair, rates.nic_bytes_per_s / transfers.NIC_BYTES_PER_S


def at_rates(calibration: tables.CalibrationSpec, rates: MachineRates) -> tables.CalibrationSpec:
    """The calibration with its tables read as efficiencies, at the rates of a machine: what FLOP and bytes take follows
    the machine; launches and latencies of kernels stay. The calibration itself where the machine is the measured one.
    """
    links = link_ratios(calibration.gpu, rates)
    same = rates.compute == rates.memory == 1.0 and links == (1.0, 1.0, 1.0) and rates.hop_ns == rates.nic_hop_ns == 0
    if same and rates.domain == transfers.domain_of(calibration):
        return calibration
    scale, reference = Scale(rates.compute, rates.memory), calibration.reference
    kernels = {
        section: tuple(_kernel_at(each, scale, reference.hbm_bytes_per_s) for each in getattr(calibration, section))
        for section in (() if scale == (1.0, 1.0) else ("gemm", "moe", "attention"))
    }
    peaks = {dtype: peak * rates.compute for dtype, peak in reference.peak_flop_per_s.items()}
    there = reference.model_copy(
        update={"peak_flop_per_s": peaks, "hbm_bytes_per_s": reference.hbm_bytes_per_s * rates.memory}
    )
    moves = {
        section: tuple(_transfer_at(each, rates, *links) for each in getattr(calibration, section))
        for section in ("p2p", "collectives")
    }
    return tables.MachineCalibration.model_construct(
        **dict(calibration) | kernels | moves | {"reference": there},
        measured=calibration, link_bytes_per_s=rates.link_bytes_per_s, pair_bytes_per_s=rates.pair_bytes_per_s,
        nic_bytes_per_s=rates.nic_bytes_per_s, hop_ns=rates.hop_ns, nic_hop_ns=rates.nic_hop_ns, domain=rates.domain,
        linked=rates.linked,
    )  # fmt: skip


def with_links(calibration: tables.CalibrationSpec, like: tables.CalibrationSpec) -> tables.CalibrationSpec:
    """Tables of another GPU at the links of a machine: those of ``like``, where it is one."""
    if not isinstance(like, tables.MachineCalibration):
        return calibration
    links = like.link_bytes_per_s, like.pair_bytes_per_s, like.nic_bytes_per_s
    return at_rates(calibration, MachineRates(1.0, 1.0, *links, like.hop_ns, like.nic_hop_ns, like.domain, like.linked))


def measured_scale(calibration: tables.CalibrationSpec) -> Scale:
    """What brings tables at the rates of a machine back to those of the GPU that was measured."""
    now, then = calibration.reference, calibration.measured_rates
    dtype = next(iter(then.peak_flop_per_s))
    compute = then.peak_flop_per_s[dtype] / now.peak_flop_per_s[dtype]
    return Scale(compute, then.hbm_bytes_per_s / now.hbm_bytes_per_s)


def _transfer_at(
    table: tables.TransferTable, rates: MachineRates, link: float, pair: float, nic: float
) -> tables.TransferTable:
    """Copies are of a pair of devices, all else of a device with the others of its group in a node. A piece of a law
    that would take less than no time for no bytes has no latency: all of its time is of bytes. One that falls with the
    bytes is no rate of a link. An all-reduce passes its bytes over a link at least once, however little its time rises
    with them: these follow the link, and the rest of its time is latency.
    """
    of = table.of
    outside = of.get("placement") == "inter_node" or of.get("nodes", "1") != "1"
    inside = link * transfers.linked_share(rates, int(of.get("num_gpus", rates.domain)))
    ratio = nic if outside else pair if "placement" in of else inside
    later = HOPS.get(of.get("op", ""), 1) * (rates.nic_hop_ns if outside else rates.hop_ns)
    if ratio == 1.0 and later == 0.0:
        return table
    least = 0.0  # ns a byte over the measured link
    if of.get("op") == "all_reduce" and not outside:
        least = NS_PER_S * link / rates.link_bytes_per_s
    return table.model_copy(
        update={
            "ns_per_byte": tuple(
                ns + least * (1 / ratio - 1) if ns < least and latency_ns >= 0 else ns / ratio if ns > 0 else ns
                for ns, latency_ns in zip(table.ns_per_byte, table.latency_ns, strict=True)
            ),
            "latency_ns": tuple(ns / ratio + later if ns < 0 else max(ns + later, 0.0) for ns in table.latency_ns),
        }
    )


def _ratios(dtype: str, wanted: tables.ReferenceRates, base: tables.ReferenceRates) -> tuple[float, float] | None:
    """(compute, memory) of a GPU relative to another."""
    if dtype not in wanted.peak_flop_per_s or dtype not in base.peak_flop_per_s:
        return None
    compute = wanted.peak_flop_per_s[dtype] / base.peak_flop_per_s[dtype]
    return compute, wanted.hbm_bytes_per_s / base.hbm_bytes_per_s


def _link_ratio(table: tables.TransferTable, wanted: str, base: str) -> float:
    """The ratio of the links that a collective uses, 0: unknown. Between nodes, both have 400 Gb/s for each GPU."""
    if table.of.get("nodes", "1") != "1":
        return 1.0
    if wanted not in transfers.NVLINK_BYTES_PER_S or base not in transfers.NVLINK_BYTES_PER_S:
        return 0.0
    return transfers.NVLINK_BYTES_PER_S[wanted] / transfers.NVLINK_BYTES_PER_S[base]


# Kernels that the host starts one by one wait for it: an all-reduce outside a captured graph takes 2.2 times as long on
# a Grace CPU as on an x86 one (up to 64 KiB on 2 and 4 ranks: SGLang on GB200 and B300 54 and 24 us, vLLM on GB300 and
# B200 44 and 20 us; in a graph 7.2 and 5.8, 6.7 and 7.1 us).
GRACE, SLOWER_ON_GRACE, EAGER = ("gb200", "gb300"), 2.2, "eager"


def _host_ratio(table: tables.TransferTable, wanted: str, base: str) -> float:
    """Of the time that the host takes to start a collective."""
    if not str(table.of.get("variant", "")).endswith(EAGER):
        return 1.0
    return SLOWER_ON_GRACE ** ((wanted in GRACE) - (base in GRACE))


# What tells tables of a section apart: where the GPU has one, it lacks nothing.
KEYS: MappingProxyType[str, Callable] = MappingProxyType(
    {
        "gemm": lambda table: (table.dtype, table.groups == 1),
        "moe": lambda table: (
            table.model,
            table.dtype,
            table.distribution,
            table.eplb_slots,
            table.library in tables.PARTS_OF_LAYERS,
        ),
        "attention": lambda table: (table.phase, table.kind, table.kv_dtype, table.products),
        "collectives": lambda table: (table.library, *(table.of.get(key) for key in ("op", "num_gpus", "nodes"))),
    }
)
