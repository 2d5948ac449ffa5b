"""Tables that stand in for what a calibration lacks: weights of 4 bits, and expert layers of other shapes.

Every time of a stand-in counts as extrapolated. Weights of 4 bits take the tables of a dtype that computes equally,
with the rates at which their bytes and products would pass. An expert layer takes the law of the nearest measured
shape, with its own sizes, as dies do (``archsim.laws.die``). Kernels of fused layers that are slower than kernels of
more bits of their library are not those that engines run (``archsim.laws.laws``): the library's kernel of 16 bits
stands in, with the bytes of its own weights and the FLOP rate of their dtype. Where both were measured, the law of 16
bits is 5 to 8 % off FP8 (medians; TensorRT-LLM on H100, B200 and GB200, vLLM's Triton and FlashInfer kernels on B200
and GB200), that of FP8 in blocks 7 to 35 %.
"""

from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from archsim.base.sums import sum
from archsim.base.units import WEIGHT_BYTES
from archsim.iteration.attention import PHASES
from archsim.iteration.experts import NOT_GATED
from archsim.iteration.layers import attentions
from archsim.laws import scaling, transfers
from archsim.laws.calibration_files import siblings_of
from archsim.laws.dominated import not_served
from archsim.laws.tables import CalibrationSpec, GemmLaw, MachineCalibration, MoeTable, ScaledSections
from archsim.model.spec import SLICES, ModelSpec

# How the notes on attention and on all-reduces of another GPU begin.
ATTENTION_STANDS_IN, REDUCES_STAND_IN = "Attention on", "All-reduces on"


class StandIns(NamedTuple):
    """``products``, ``experts``: dtypes whose tables of ``calibration`` are to be used; ``notes``: why, in words."""

    calibration: CalibrationSpec
    products: str
    experts: str
    notes: tuple[str, ...]


SIXTEEN_BITS = "bf16"
NEAR = 1.0  # doublings of sizes within which a kernel's law holds for a shape that it was not measured on
# Products of experts apart from the rest of their layer; kernels that engines all-reduce small messages with.
NOT_FUSED, ONE_SHOT = ("sglang-deepep", "trtllm-wideep"), ("trtllm", "vllm", "sglang")


def with_stand_ins(
    calibration: CalibrationSpec, model: ModelSpec, products: str, experts: str, kernel: str = ""
) -> StandIns:
    """Tables for these dtypes and expert layers; ``kernel``: of experts, where measured, in place of fused layers."""
    notes = []
    own = tuple(table for table in calibration.moe if (table.kernel, table.dtype) == (kernel, experts))
    fused = tuple(table for table in calibration.moe if table.library not in NOT_FUSED)
    calibration = calibration.model_copy(update={"moe": own or fused})
    measured = any(table.library in ONE_SHOT for table in calibration.collectives)
    if calibration.gpu in transfers.NVLINK_BYTES_PER_S and not measured:
        calibration, whose = _with_one_shot(calibration)
        notes.append(f"{REDUCES_STAND_IN} {calibration.gpu} take the times of {whose}'s one-shot kernels.")
    if _lacks_attention(calibration, model):
        base = next(each for each in siblings_of(calibration) if not _lacks_attention(each, model))
        sections = ScaledSections(gpu=base.gpu, sections=("attention",))
        calibration = scaling.with_scaled(calibration.model_copy(update={"scaled": sections}), base)
        notes.append(f"{ATTENTION_STANDS_IN} {calibration.gpu} takes the times of {base.gpu}, scaled by rates.")
    calibration, said = _served_tables(calibration, experts)
    notes += said if model.experts > 1 else []
    like_products, calibration, stand_in = narrow(calibration, "gemm", products)
    like_experts, calibration, of_experts = narrow(calibration, "moe", experts)
    for what, dtype, like in (("Products", products, stand_in), ("Experts", experts, of_experts)):
        if like and (what == "Products" or model.experts > 1):
            named = dtype.removesuffix(f"_{SIXTEEN_BITS}")
            notes.append(f"{what} in {named} take the {like} tables of {calibration.gpu}, with fewer bytes of weights.")
    if not model.gated and model.experts > 1:
        calibration, said = _without_gate(calibration, like_experts)
        notes += said
    if model.experts > 1:
        copies = _of_other_shapes(calibration, model, like_experts)
        calibration = calibration.model_copy(update={"moe": (*calibration.moe, *copies)})
        likes = sorted({f"{table.scaled_from} ({table.kernel})" for table in copies})
        if likes:
            notes.append(f"Experts of {model.name} take the fitted curves of {' and '.join(likes)}, at their sizes.")
    return StandIns(calibration, like_products, like_experts, tuple(notes))


def _served_tables(calibration: CalibrationSpec, dtype: str) -> tuple[CalibrationSpec, list[str]]:
    """The calibration without kernels of fused layers that nobody serves with, where the library has another."""
    said: dict[tuple[str, str, str], list[float]] = {}
    dropped: set[tuple[str, str, str]] = set()
    added: dict[tuple, MoeTable] = {}
    own = calibration.measured if isinstance(calibration, MachineCalibration) else calibration
    for one in not_served(own, dtype) if calibration.moe else ():  # whatever the rates of the machine
        mine = one.table
        assert isinstance(mine, MoeTable)
        wide = [
            table
            for table in calibration.moe
            if (table.library, table.model, table.dtype) == (mine.library, mine.model, SIXTEEN_BITS)
        ]
        if not wide:
            continue
        # Of the version in which the kernel was measured, or the one before or after.
        kernel, version = min(
            {(table.kernel, table.version) for table in wide}, key=lambda each: (each[1] != mine.version, each)
        )
        for table in wide:
            if (table.kernel, table.version) == (kernel, version):
                key = table.library, table.model, kernel, version, table.distribution, table.eplb_slots
                added[key] = _in_fewer_bits(calibration, table, dtype)
        dropped.add((mine.library, mine.kernel, mine.model))
        said.setdefault((mine.library, mine.kernel, kernel), []).append(one.ratio)
    kept = [
        table
        for table in calibration.moe
        if table.dtype != dtype or (table.library, table.kernel, table.model) not in dropped
    ]
    notes = [
        f"For experts in {dtype}, {library}'s kernel {kernel} is left out, as it takes {np.median(ratios):.1f} times "
        f"as long on {calibration.gpu} as kernels with more bits. Kernel {other} of {SIXTEEN_BITS} is used instead, "
        f"with the bytes of {dtype}."
        for (library, kernel, other), ratios in said.items()
    ]
    return calibration.model_copy(update={"moe": (*kept, *added.values())}), notes


def _in_fewer_bits(calibration: CalibrationSpec, table: MoeTable, dtype: str) -> MoeTable:
    peaks = calibration.reference.peak_flop_per_s
    faster = peaks[dtype] / peaks[SIXTEEN_BITS] if dtype in peaks and SIXTEEN_BITS in peaks else 1.0
    law = table.law.model_copy(update={"flop_per_s": table.law.flop_per_s * faster})
    return table.model_copy(update={"dtype": dtype, "law": law, "scaled_from": SIXTEEN_BITS})


def _lacks_attention(calibration: CalibrationSpec, model: ModelSpec) -> bool:
    """Whether no table is of one of its kinds, for prompts or for decodes."""
    needed = {kind.table for kind, _ in attentions(model)} - {None}
    there = {(table.phase, table.kind) for table in calibration.attention}
    return not all((phase, kind) in there for phase in PHASES for kind in needed)


def _with_one_shot(calibration: CalibrationSpec) -> tuple[CalibrationSpec, str]:
    """With all-reduce kernels of engines, bound by latency, from the nearest GPU with NVLink; and whose these are."""
    base = next(
        each for each in siblings_of(calibration)
        if each.gpu in transfers.NVLINK_BYTES_PER_S and any(map(_one_shot, each.collectives))
    )  # fmt: skip
    there = scaling.with_links(base, calibration).collectives
    added = [table.model_copy(update={"scaled_from": base.gpu}) for table in there if _one_shot(table)]
    return calibration.model_copy(update={"collectives": (*calibration.collectives, *added)}), base.gpu


def _one_shot(table) -> bool:
    return table.library in ONE_SHOT and table.of.get("op") == "all_reduce"


def _without_gate(calibration: CalibrationSpec, dtype: str) -> tuple[CalibrationSpec, list[str]]:
    """With kernels of two matrices; if unmeasured, those of three with 2/3 of weights and FLOP (relu²: Nemotron 3)."""
    of_dtype = [table for table in calibration.moe if table.dtype == dtype and not table.eplb_slots]
    if any(table.kernel.endswith(NOT_GATED) for table in of_dtype):
        return calibration, []
    more = SLICES / (SLICES - 1)
    added = [
        faster(table, more, more).model_copy(
            update={"kernel": f"{table.kernel}_{NOT_GATED}", "scaled_from": table.kernel}
        )
        for table in of_dtype
    ]
    note = (
        f"Experts without a gate in {dtype} take kernels of {calibration.gpu} with a gate, with 2/3 of their weights."
    )
    return calibration.model_copy(update={"moe": (*calibration.moe, *added)}), [note]


def _of_other_shapes(calibration: CalibrationSpec, model: ModelSpec, dtype: str) -> list[MoeTable]:
    """The tables of each kernel unmeasured on the model's shape: the nearest's, if near or if no kernel was."""
    kernels: dict[tuple[str, str], list[MoeTable]] = {}
    for table in calibration.moe:
        if table.dtype == dtype and not table.eplb_slots and table.kernel.endswith(NOT_GATED) != model.gated:
            kernels.setdefault((table.library, table.kernel), []).append(table)
    nearest = {key: min(balanced, key=lambda table: _apart(table, model)) for key, tables in kernels.items()
               if (balanced := [table for table in tables if table.distribution == "balanced"])}  # fmt: skip
    least = min((_apart(table, model)[0] for table in nearest.values()), default=0.0)
    shape = {"hidden": model.expert_width, "ffn": model.expert_ffn, "experts": model.experts, "top_k": model.top_k}
    return [
        table.model_copy(update=shape | {"scaled_from": table.model})
        for key, like in nearest.items() if 0 < _apart(like, model)[0] <= max(least, NEAR)
        for table in kernels[key] if table.model == like.model
    ]  # fmt: skip


def _apart(table: MoeTable, model: ModelSpec) -> tuple[float, int]:
    """Doublings of sizes between a table's shape and the model's; of the same, most distributions of routing first."""
    sizes = ((table.hidden, model.expert_width), (table.ffn, model.expert_ffn), (table.experts, model.experts))
    return sum(abs(float(np.log2(a / b))) for a, b in sizes), -len(table.ranks)


class Narrow(NamedTuple):
    """``like``: dtype of the tables; ``compute``: rate of products relative to theirs."""

    like: str
    compute: float


# NVFP4 multiplies twice as fast as FP8 (NVIDIA, Blackwell architecture); MXFP4 on Hopper and INT4 are weights only, and
# multiply in 16 bits.
# FP8 with a scale a tensor takes its tables without the quantisation of activations, which engines fuse into the norm
# before; where all were timed with a separate kernel of 8 us that quantises, those of FP8 in blocks.
NARROW = MappingProxyType(
    {
        "fp8": Narrow("fp8_block", 1.0),
        "nvfp4": Narrow("fp8_block", 2.0),
        "mxfp4": Narrow("bf16", 1.0),
        **dict.fromkeys(("int4", "fp8_bf16", "fp8_block_bf16", "nvfp4_bf16"), Narrow("bf16", 1.0)),
    }
)

FUSED = "fp8"  # dtype of products whose activations engines quantise in the kernel before


def narrow(calibration: CalibrationSpec, section: str, dtype: str) -> tuple[str, CalibrationSpec, str]:
    """(dtype of the tables to use, calibration with its tables of that dtype at the rates of narrower weights, dtype
    that stands in or ''). Products of weights alone have tables beside those of 16 bits, which others keep.
    """
    tables = getattr(calibration, section)
    own = [table for table in tables if table.dtype == dtype]
    if section == "gemm" and dtype == FUSED:
        own = [table for table in own if table.quantisation == "apart"]
        kept = tuple(table for table in tables if table.dtype != dtype or table.quantisation == "apart")
        calibration = calibration.model_copy(update={section: kept}) if own else calibration
    if own or dtype not in NARROW:
        return dtype, calibration, ""
    like, compute = NARROW[dtype]
    if section == "gemm" and like == SIXTEEN_BITS:
        alone = [table.model_copy(update={"dtype": dtype, "scaled_from": like}) for table in tables
                 if table.dtype == like]  # fmt: skip
        return dtype, calibration.model_copy(update={section: (*tables, *alone)}), like
    memory = WEIGHT_BYTES[like] / WEIGHT_BYTES[dtype]
    found = [faster(table, compute, memory) if table.dtype == like else table for table in tables]
    return like, calibration.model_copy(update={section: tuple(found)}), like


def faster(table, compute: float, memory: float):
    """A table at rates that are so many times higher."""
    rates = {"flop_per_s": table.law.flop_per_s * compute, "bytes_per_s": table.law.bytes_per_s * memory}
    if isinstance(table.law, GemmLaw):
        rates |= {"ns_per_k": table.law.ns_per_k / memory}
    return table.model_copy(update={"law": table.law.model_copy(update=rates), "scaled_from": table.dtype})
