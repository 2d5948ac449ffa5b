"""Tables of DeepGEMM's README (deepseek-ai/DeepGEMM, MIT): dense and grouped FP8 products on H800, as tidy CSV."""

import pandas as pd

from calibration.measurements.schema import frame, layout


def _products(rows: pd.DataFrame) -> pd.DataFrame:
    return frame(
        rows, "dtype groups m=m_per_group n k kernel=kind latency_us_median=latency_us_derived", run_id="readme",
        gpu_name="H800", library="deepgemm-" + rows["kind"].str.replace("_", "-"), library_version="readme",
        quant_included="0",
    )


LAYOUTS = (
    layout("DeepGEMM README", "gemm", _products, "kind dtype", "groups m_per_group n k latency_us_derived"),
)
