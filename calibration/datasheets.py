"""Peak rates of the GPUs that calibrations are known of (vendors' datasheets, dense, without sparsity).

They only scale a calibration to other dies; the fitted rates are independent of them.
"""

from archsim.specs.calibration import Reference

TERA = 1e12


def _tensor(bf16: float, fp8: float | None, hbm_tbytes_per_s: float, sms: int) -> Reference:
    peaks = {"bf16": bf16 * TERA} | ({} if fp8 is None else {"fp8": fp8 * TERA, "fp8_block": fp8 * TERA})
    return Reference(peak_flop_per_s=peaks, hbm_bytes_per_s=hbm_tbytes_per_s * TERA, sms=sms)


DATASHEETS = {
    "a100": _tensor(312, None, 2.039, 108),
    "h100": _tensor(989, 1979, 3.35, 132),
    "h100-pcie": _tensor(756, 1513, 2.0, 114),
    "h200": _tensor(989, 1979, 4.8, 132),
    "h800": _tensor(989, 1979, 3.35, 132),
    "h20": _tensor(148, 296, 4.0, 78),
    "b200": _tensor(2250, 4500, 8.0, 148),
    "gb200": _tensor(2500, 5000, 8.0, 148),
    "b300": _tensor(2250, 4500, 8.0, 148),
    "l40": _tensor(181, 362, 0.864, 142),
    "mi300x": _tensor(1307, 2615, 5.3, 304),
}
UNKNOWN_SMS = 132


def reference_of(gpu: str, fitted_flop_per_s: dict[str, float], fitted_bytes_per_s: float) -> Reference:
    """The datasheet of a GPU; where there is none, or none of a dtype, the fitted rates stand for the peaks."""
    if gpu in DATASHEETS:
        sheet = DATASHEETS[gpu]
        peaks = sheet.peak_flop_per_s
        others = {dtype: peaks["bf16"] if dtype == "fp16" else rate for dtype, rate in fitted_flop_per_s.items() if dtype not in peaks}
        return sheet.model_copy(update={"peak_flop_per_s": peaks | others}) if others else sheet
    return Reference(peak_flop_per_s=fitted_flop_per_s, hbm_bytes_per_s=fitted_bytes_per_s, sms=UNKNOWN_SMS)
