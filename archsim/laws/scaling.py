"""Tables that a GPU takes from another one, scaled by nominal rates, for what was not measured on it.

Rates of laws scale by the ratio of peaks (FLOP) and of HBM bandwidths (bytes), costs of MoE layers as
their terms say, collectives within a node by that of NVLink; launches, latencies (per k, too),
corrections and links between nodes stay. docs/calibration.md has the errors, where both GPUs were measured. Every time
of a scaled table counts as extrapolated.
"""

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from archsim.base.units import NS_PER_S, WEIGHT_BYTES
from archsim.laws import tables, transfers

# ---- moe_scaling
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

    def moved(ns: float, n_bytes: float) -> float:
        of_bytes = min(ns, n_bytes / layer.hbm_bytes_per_s * NS_PER_S)  # at the measured GPU's rates
        return of_bytes / scale.memory + (ns - of_bytes) / least

    return law.model_copy(
        update={
            "flop_per_s": law.flop_per_s * scale.compute,
            "bytes_per_s": law.bytes_per_s * scale.memory,
            "ns_per_token": moved(law.ns_per_token, token_bytes(layer)),
            "ns_per_pair": moved(law.ns_per_pair, pair_bytes(layer)),
            "ns_per_expert": law.ns_per_expert / least,
        }
    )


# ---- scaled


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
    scaled = [_scaled(table, calibration, base) for table in lacking]
    return [table.model_copy(update={"scaled_from": base.gpu}) for table in scaled if table is not None]


def _scaled(
    table: tables.TableOrigin, calibration: tables.CalibrationSpec, base: tables.CalibrationSpec
) -> tables.TableOrigin | None:
    """None where the GPU has no peak for the dtype, or no known link."""
    if isinstance(table, tables.TransferTable):
        ratio = _link_ratio(table, calibration.gpu, base.gpu)
        slower = tuple(ns / ratio for ns in table.ns_per_byte) if ratio else ()
        later = tuple(ns * _host_ratio(table, calibration.gpu, base.gpu) for ns in table.latency_ns)
        return table.model_copy(update={"ns_per_byte": slower, "latency_ns": later}) if ratio else None
    assert isinstance(table, tables.GemmTable | tables.MoeTable | tables.AttentionTable)
    ratios = _ratios(table.dtype, calibration.reference, base.reference)
    if ratios is None:
        return None
    compute, memory = ratios
    rates = {"flop_per_s": table.law.flop_per_s * compute, "bytes_per_s": table.law.bytes_per_s * memory}
    if isinstance(table.law, tables.GemmLaw):
        rates |= {"ns_per_input": table.law.ns_per_input / memory}
    if isinstance(table.law, tables.MoeLaw):  # as archsim.laws.die scales them to a die
        layer = MeasuredLayer(table.hidden, table.ffn, table.dtype, base.reference.hbm_bytes_per_s)
        return table.model_copy(update={"law": scaled_law(table.law, layer, Scale(*ratios))})
    return table.model_copy(update={"law": table.law.model_copy(update=rates)})


def _ratios(dtype: str, wanted: tables.ReferenceRates, base: tables.ReferenceRates) -> tuple[float, float] | None:
    """(compute, memory) of a GPU relative to another."""
    if dtype not in wanted.peak_flop_per_s or dtype not in base.peak_flop_per_s:
        return None
    compute = wanted.peak_flop_per_s[dtype] / base.peak_flop_per_s[dtype]
    return compute, wanted.hbm_bytes_per_s / base.hbm_bytes_per_s


def _link_ratio(table: tables.TransferTable, wanted: str, base: str) -> float:
    """The ratio of the links that a collective uses. 0 if it is unknown. Between nodes, both have a NIC of 400 Gb/s for
    each GPU.
    """
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
