"""Tables for products of narrow weights that a calibration lacks: those of a dtype that computes equally."""

from types import MappingProxyType
from typing import NamedTuple

from archsim.base.units import WEIGHT_BYTES
from archsim.laws.tables import CalibrationSpec, GemmLaw


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
        "int4": Narrow("bf16", 1.0),
    }
)

FUSED = "fp8"  # dtype of products whose activations engines quantise in the kernel before


def narrow(calibration: CalibrationSpec, section: str, dtype: str) -> tuple[str, CalibrationSpec]:
    """(dtype of the tables to use, calibration with its tables of that dtype at the rates of narrower weights)."""
    tables = getattr(calibration, section)
    own = [table for table in tables if table.dtype == dtype]
    if section == "gemm" and dtype == FUSED:
        own = [table for table in own if table.quantisation == "apart"]
        kept = tuple(table for table in tables if table.dtype != dtype or table.quantisation == "apart")
        calibration = calibration.model_copy(update={section: kept}) if own else calibration
    if own or dtype not in NARROW:
        return dtype, calibration
    like, compute = NARROW[dtype]
    memory = WEIGHT_BYTES[like] / WEIGHT_BYTES[dtype]
    found = [faster(table, compute, memory) if table.dtype == like else table for table in tables]
    return like, calibration.model_copy(update={section: tuple(found)})


def faster(table, compute: float, memory: float):
    """A table at rates that are so many times higher."""
    rates = {"flop_per_s": table.law.flop_per_s * compute, "bytes_per_s": table.law.bytes_per_s * memory}
    if isinstance(table.law, GemmLaw):
        rates |= {"ns_per_k": table.law.ns_per_k / memory}
    return table.model_copy(update={"law": table.law.model_copy(update=rates), "scaled_from": table.dtype})
