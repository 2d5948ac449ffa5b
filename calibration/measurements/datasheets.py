"""Peak rates of GPUs (datasheets, dense, without sparsity) or given ones, to scale calibrations to other dies."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from archsim.base.errors import SpecError, did_you_mean
from archsim.base.quantities import BANDWIDTH, COMPUTE, format_quantity, parse_quantity
from archsim.base.units import DTYPES as KNOWN_DTYPES
from archsim.laws.tables import HBM, ReferenceRates, ScaledSections

TERA = 1e12


def _tensor(
    bf16: float, fp8: float | None, hbm_tbytes_per_s: float, sms: int, nvfp4: float | None = None
) -> ReferenceRates:
    of_kind = {"bf16": bf16, "fp8": fp8, "nvfp4": nvfp4}
    peaks = {
        name: peak * TERA
        for name, dtype in KNOWN_DTYPES.items()
        if (nvfp4 or dtype.weight >= 1) and name != "fp16" and (peak := of_kind.get(dtype.computes)) is not None
    }
    return ReferenceRates(peak_flop_per_s=peaks, hbm_bytes_per_s=hbm_tbytes_per_s * TERA, sms=sms)


DATASHEETS = {
    "a100": _tensor(312, None, 2.039, 108),
    "h100": _tensor(989, 1979, 3.35, 132),
    "h100-pcie": _tensor(756, 1513, 2.0, 114),
    "h200": _tensor(989, 1979, 4.8, 132),
    "h800": _tensor(989, 1979, 3.35, 132),
    "h20": _tensor(148, 296, 4.0, 78),
    # NVIDIA Blackwell and Blackwell Ultra architecture briefs, HGX and NVL72 datasheets; FP4 dense
    "b200": _tensor(2250, 4500, 8.0, 148, 9000),
    "gb200": _tensor(2500, 5000, 8.0, 148, 10000),
    "b300": _tensor(2250, 4500, 8.0, 148, 14000),
    "gb300": _tensor(2500, 5000, 8.0, 148, 15000),
    "l40": _tensor(181, 362, 0.864, 142),
    # GDDR7; no dense peaks stated
    "rtx-pro-6000-server": ReferenceRates(peak_flop_per_s={}, hbm_bytes_per_s=1.597 * TERA, sms=188),
    "mi300x": _tensor(1307, 2615, 5.3, 304),
}
# What public measurements lack, and on which GPU it was measured; docs/calibration.md has the errors of scaling.
SCALED = {
    "h200": ScaledSections(gpu="h100", sections=("moe",)),
    "h800": ScaledSections(gpu="h100", sections=("gemm", "moe", "attention", "collectives")),
    "h20": ScaledSections(gpu="h100", sections=("gemm", "moe", "attention", "collectives")),
    # Kernels of Blackwell that were measured on a sibling alone: all-reduces of some libraries, operations of NCCL, and
    # layers in some dtypes
    "b200": ScaledSections(gpu="b300", sections=("moe", "collectives")),
    "b300": ScaledSections(gpu="b200", sections=("moe", "collectives")),
    "gb200": ScaledSections(gpu="b200", sections=("moe", "collectives")),
    "gb300": ScaledSections(gpu="b300", sections=("moe", "collectives")),
}
# GPUs that differ in their HBM alone: one law serves them, scaled by its bandwidth.
SAME_BUT_HBM = {"h100": ("h200",), "h200": ("h100",)}
UNKNOWN_SMS = 132
# Equal tensor core peaks on all of DATASHEETS
SAME_PEAK = {
    "fp16": "bf16",
    "bf16": "fp16",
    "fp8_block": "fp8",
    "fp8": "fp8_block",
    "mxfp4": "bf16",
    "int4": "bf16",
    "mxfp4_mxfp8": "fp8",
}


def peak_of(peaks: Mapping[str, float], dtype: str) -> float | None:
    """FLOP/s of a dtype, or of the one with the same peak; None if neither is known."""
    return peaks.get(dtype) or peaks.get(SAME_PEAK.get(dtype, ""))


@dataclass(frozen=True)
class Nominal:
    """Rates that a user gives for a GPU: ``peak_flop_per_s`` by dtype, and of its HBM; they override a datasheet's."""

    peak_flop_per_s: dict[str, float] = field(default_factory=dict)
    hbm_bytes_per_s: float | None = None

    def __bool__(self) -> bool:
        return bool(self.peak_flop_per_s) or self.hbm_bytes_per_s is not None


def peak_named(text: str) -> tuple[str, float]:
    """(dtype, FLOP/s) from text such as ``bf16=600TFLOP/s``. Raises ValueError."""
    dtype, equals, rate = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r}: expected a dtype and its peak, such as bf16=600TFLOP/s")
    if dtype not in KNOWN_DTYPES:
        raise ValueError(
            f"{text!r}: unknown dtype {dtype!r}{did_you_mean(dtype, KNOWN_DTYPES)} (known: {', '.join(KNOWN_DTYPES)})"
        )
    return dtype, _positive(float(parse_quantity(rate, COMPUTE)), text)


def hbm_named(text: str) -> float:
    """Bytes/s from text such as ``2.4TB/s``. Raises ValueError."""
    return _positive(float(parse_quantity(text, BANDWIDTH)), text)


def _positive(rate: float, text: str) -> float:
    if rate <= 0:
        raise ValueError(f"{text!r}: must be positive")
    return rate


# What was measured of a named rate. Products of the shipped calibrations reach 37 % (NVFP4 on B300) to 98 % (FP8 on
# GB300) of the peak, and their fits 49 to 117 % of the HBM's bandwidth.
LEAST_REACHED, MOST_REACHED = 0.3, 1.25


def refuse_implausible(named: Nominal, flop_per_s: dict[str, float], bytes_per_s: float | None) -> None:
    """Raise SpecError where measurements reach less than `LEAST_REACHED` or more than `MOST_REACHED` of a named rate,
    which then has a wrong unit or is of another GPU. ``flop_per_s``: fitted, by dtype; ``bytes_per_s``: of HBM.
    """
    asked = [
        (f"--peak {dtype}=", peak, flop_per_s.get(dtype), COMPUTE) for dtype, peak in named.peak_flop_per_s.items()
    ]
    for option, rate, reached, kind in [*asked, ("--hbm ", named.hbm_bytes_per_s, bytes_per_s, BANDWIDTH)]:
        if rate and reached and not LEAST_REACHED <= reached / rate <= MOST_REACHED:
            raise SpecError(
                f"{option}{format_quantity(rate, kind)}: these measurements reach "
                f"{format_quantity(_short(reached), kind)}, {reached / rate:.3g} times as much; "
                f"expected {LEAST_REACHED:.0%} to {MOST_REACHED:.0%} of the datasheet's. Mind the unit (TB/s, GB/s)"
            )


def reference_of(
    gpu: str, fitted_flop_per_s: dict[str, float], fitted_bytes_per_s: float, named: Nominal | None = None
) -> ReferenceRates:
    """Given, else the datasheet's, else the fitted ones; fp16 has bf16's peak, fp8_block fp8's or vice versa."""
    named, sheet = named or Nominal(), DATASHEETS.get(gpu)
    peaks = (sheet.peak_flop_per_s if sheet else {}) | named.peak_flop_per_s
    same = {
        dtype: peaks[SAME_PEAK[dtype]]
        for dtype in fitted_flop_per_s
        if dtype not in peaks and SAME_PEAK[dtype] in peaks
    }
    fitted = {dtype: rate for dtype, rate in fitted_flop_per_s.items() if dtype not in peaks and dtype not in same}
    bandwidth = named.hbm_bytes_per_s or (sheet.hbm_bytes_per_s if sheet else None)
    return ReferenceRates(
        peak_flop_per_s=peaks | same | fitted,
        hbm_bytes_per_s=bandwidth or fitted_bytes_per_s,
        sms=sheet.sms if sheet else UNKNOWN_SMS,
        fitted=(*fitted, *([] if bandwidth else [HBM])),
    )


def fitted_note(gpu: str, reference: ReferenceRates) -> str:
    """States which rates of the reference are fitted, and which options to give; '' if all are nominal."""
    if not reference.fitted:
        return ""
    rates = {
        dtype: format_quantity(_short(reference.peak_flop_per_s[dtype]), COMPUTE)
        for dtype in reference.fitted
        if dtype != HBM
    }
    asked = [f"--peak {dtype}=..." for dtype in rates]
    if HBM in reference.fitted:
        rates[HBM] = format_quantity(_short(reference.hbm_bytes_per_s), BANDWIDTH)
        asked.append("--hbm ...")
    listed = ", ".join(f"{name} {rate}" for name, rate in rates.items())
    return (
        f"{gpu}: no nominal rate is known, so fitted rates stand in for the peaks ({listed}); a system with the "
        f"nominal "
        f"rates would be faster than measured: give them with {' '.join(asked)}, or use the fitted ones in systems"
    )


def _short(rate: float) -> float:
    return float(f"{rate:.4g}")
