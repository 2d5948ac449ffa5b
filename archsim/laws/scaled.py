"""Tables that a GPU takes from another one, scaled by nominal rates, for what was not measured on it.

Rates of laws scale by the ratio of peaks (FLOP) and of HBM bandwidths (bytes), costs of MoE layers as
``archsim.laws.moe_scaling`` says, collectives within a node by that of NVLink; launches, latencies (per k, too),
corrections and links between nodes stay. docs/calibration.md has the errors, where both GPUs were measured. Every time
of a scaled table counts as extrapolated.
"""

from collections.abc import Callable, Sequence
from types import MappingProxyType

from archsim.laws.choosing import PARTS_OF_LAYERS
from archsim.laws.copy import NVLINK_BYTES_PER_S
from archsim.laws.moe_scaling import Layer, Scale, scaled_law
from archsim.laws.tables import (
    AttentionTable,
    CalibrationSpec,
    Fitted,
    GemmLaw,
    GemmTable,
    MoeLaw,
    MoeTable,
    Reference,
    TransferTable,
)


def with_scaled(calibration: CalibrationSpec, base: CalibrationSpec) -> CalibrationSpec:
    """The calibration with tables of ``base`` for whatever its sections of ``scaled`` lack."""
    sections = calibration.scaled.sections if calibration.scaled else ()
    found: dict[str, tuple[Fitted, ...]] = {
        section: (*getattr(calibration, section), *_missing(calibration, base, section)) for section in sections
    }
    return calibration.model_copy(update=found)


def _missing(calibration: CalibrationSpec, base: CalibrationSpec, section: str) -> list[Fitted]:
    key = KEYS[section]
    own = {key(table) for table in getattr(calibration, section)}
    lacking: Sequence[Fitted] = [table for table in getattr(base, section) if key(table) not in own]
    scaled = [_scaled(table, calibration, base) for table in lacking]
    return [table.model_copy(update={"scaled_from": base.gpu}) for table in scaled if table is not None]


def _scaled(table: Fitted, calibration: CalibrationSpec, base: CalibrationSpec) -> Fitted | None:
    """None where the GPU has no peak for the dtype, or no known link."""
    if isinstance(table, TransferTable):
        ratio = _link_ratio(table, calibration.gpu, base.gpu)
        slower = tuple(ns / ratio for ns in table.ns_per_byte) if ratio else ()
        return table.model_copy(update={"ns_per_byte": slower}) if ratio else None
    assert isinstance(table, GemmTable | MoeTable | AttentionTable)
    ratios = _ratios(table.dtype, calibration.reference, base.reference)
    if ratios is None:
        return None
    compute, memory = ratios
    rates = {"flop_per_s": table.law.flop_per_s * compute, "bytes_per_s": table.law.bytes_per_s * memory}
    if isinstance(table.law, GemmLaw):
        rates |= {"ns_per_input": table.law.ns_per_input / memory}
    if isinstance(table.law, MoeLaw):  # as archsim.laws.grouped scales them to a die
        layer = Layer(table.hidden, table.ffn, table.dtype, base.reference.hbm_bytes_per_s)
        return table.model_copy(update={"law": scaled_law(table.law, layer, Scale(*ratios))})
    return table.model_copy(update={"law": table.law.model_copy(update=rates)})


def _ratios(dtype: str, wanted: Reference, base: Reference) -> tuple[float, float] | None:
    """(compute, memory) of a GPU relative to another."""
    if dtype not in wanted.peak_flop_per_s or dtype not in base.peak_flop_per_s:
        return None
    compute = wanted.peak_flop_per_s[dtype] / base.peak_flop_per_s[dtype]
    return compute, wanted.hbm_bytes_per_s / base.hbm_bytes_per_s


def _link_ratio(table: TransferTable, wanted: str, base: str) -> float:
    """Of the links that a collective uses; 0: unknown. Between nodes, both have a NIC of 400 Gb/s a GPU."""
    if table.of.get("nodes", "1") != "1":
        return 1.0
    if wanted not in NVLINK_BYTES_PER_S or base not in NVLINK_BYTES_PER_S:
        return 0.0
    return NVLINK_BYTES_PER_S[wanted] / NVLINK_BYTES_PER_S[base]


# What tells tables of a section apart: where the GPU has one, it lacks nothing.
KEYS: MappingProxyType[str, Callable] = MappingProxyType({
    "gemm": lambda table: (table.dtype, table.groups == 1),
    "moe": lambda table: (
        table.model, table.dtype, table.distribution, table.eplb_slots, table.library in PARTS_OF_LAYERS
    ),
    "attention": lambda table: (table.phase, table.kind, table.kv_dtype, table.products),
    "collectives": lambda table: (table.library, *(table.of.get(key) for key in ("op", "num_gpus", "nodes"))),
})
