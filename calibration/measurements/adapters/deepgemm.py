"""Tables of DeepGEMM's README (deepseek-ai/DeepGEMM, MIT): dense and grouped FP8 products on H800, as tidy CSV."""

import pandas as pd

from calibration.measurements.layouts import Layout


def _products(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "run_id": "readme",
            "gpu_name": "H800",
            "library": "deepgemm-" + rows["kind"].str.replace("_", "-"),
            "library_version": "readme",
            "dtype": rows["dtype"],
            "quant_included": "0",
            "groups": rows["groups"],
            "m": rows["m_per_group"],
            "n": rows["n"],
            "k": rows["k"],
            "kernel": rows["kind"],
            "latency_us_median": rows["latency_us_derived"],
        },
        index=rows.index,
    )


LAYOUTS = (
    Layout(
        "DeepGEMM README",
        "gemm",
        ("kind", "dtype", "groups", "m_per_group", "n", "k", "latency_us_derived"),
        ("groups", "m_per_group", "n", "k", "latency_us_derived"),
        _products,
    ),
)
