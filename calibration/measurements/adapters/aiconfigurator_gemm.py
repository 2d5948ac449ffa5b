"""GEMM and quantisation sweeps of ai-dynamo/aiconfigurator (Apache-2.0), as tidy CSV.

Times are means over replays of a CUDA graph, with weights rotated past the L2. FP8 rows include the dynamic
quantisation of the activation, as do NVFP4 ones (512 x 512 weights take TensorRT-LLM 7.5 us for one row, and 2.6 in
BF16); BF16 rows are the GEMM alone. Each framework version is one sweep.
"""

import pandas as pd

from archsim.laws.tables import newest_first
from calibration.measurements.layouts import frame, layout, translate

DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4_mxfp8",
    "int4_wo": "int4",
}
QUANTISED = ("fp8", "fp8_block", "nvfp4")
DENSE = "trtllm-dense"
TIMES = "latency_us_"  # of a sweep: latency_us_trtllm_1_3_0rc20
GRID_GPU = "H100-SXM5-80GB"  # the grid of the layout without a GPU column


def _products(rows: pd.DataFrame, dtype: pd.Series, latency_us: pd.Series) -> pd.DataFrame:
    included = dtype.isin(QUANTISED).map({True: "1", False: "0"})
    return frame(
        rows, "m n k", dtype=translate(dtype, DTYPES), quant_included=included, groups=1.0, latency_us_median=latency_us
    )


def _gemm_sweeps(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per GPU, framework, version, dtype and shape; m = 0 marks placeholders without a timing."""
    rows = rows[rows["m"] > 0]
    return _products(rows, rows["dtype"], rows["latency_us"]).assign(
        run_id=rows["framework_version"], gpu_name=rows["gpu"], library=rows["framework"],
        library_version=rows["framework_version"], kernel=rows["kernel_source"],
    )  # fmt: skip


def _grid(rows: pd.DataFrame) -> pd.DataFrame:
    """Two sweeps of unspecified TRT-LLM 1.3.0 release candidates, side by side."""
    runs = [
        _products(rows, rows["dtype"], rows[f"latency_us_{run}"]).assign(
            run_id=f"grid-{run}", gpu_name=GRID_GPU, library="trtllm", library_version="1.3.0", kernel="torch_flow"
        )
        for run in ("run1", "run2")
    ]
    return pd.concat(runs)


def _engines(rows: pd.DataFrame) -> pd.DataFrame:
    """Sweeps side by side, a column each by library and version (empty: not measured); newest version a dtype."""
    versions = {name: name.removeprefix(TIMES).partition("_") for name in rows if name.startswith(TIMES)}
    newest = sorted(versions, key=lambda name: newest_first(versions[name][2].replace("_", ".")), reverse=True)
    found, taken = [], set()
    for name in newest:
        library, _, version = versions[name]
        version = version.replace("_", ".")
        times = pd.to_numeric(rows[name], errors="coerce").dropna()
        for dtype, latency_us in times.groupby(rows["dtype"]):
            if (library, dtype) in taken:
                continue
            taken.add((library, dtype))
            mine = rows.loc[latency_us.index]
            found.append(
                _products(mine, mine["dtype"], latency_us).assign(
                    run_id=version, gpu_name=mine["gpu"], library=library, library_version=version
                )
            )
    return pd.concat(found)


def _dense_projections(rows: pd.DataFrame) -> pd.DataFrame:
    """Products of attention, dense FFN, router and LM head of TRT-LLM, kept as a separate library.

    A table has one law, and widths of 32 to 65536 would bias it for the shapes of experts.
    """
    return _products(rows, rows["dtype"], rows["latency_us"]).assign(
        run_id=rows["framework_version"], gpu_name=rows["gpu"], library=DENSE, library_version=rows["framework_version"]
    )


def _quantisations(rows: pd.DataFrame) -> pd.DataFrame:
    """Per-tensor scales of FP8 activations."""
    who = "run_id=framework_version gpu_name=gpu library=framework library_version=framework_version"
    return frame(rows, f"{who} op m k latency_us_median=latency_us", dtype="fp8")


_ENGINES = "gpu dtype latency_us_trtllm_1_3_0rc20 latency_us_vllm_0_24_0"
GEMM_LAYOUTS = (
    layout(
        "aiconfigurator gemm",
        "gemm",
        _gemm_sweeps,
        "gpu dtype framework framework_version kernel_source",
        "m n k latency_us",
    ),
    layout("aiconfigurator gemm grid", "gemm", _grid, "dtype", "n k m latency_us_run1 latency_us_run2"),
    layout("aiconfigurator gemm of engines", "gemm", _engines, _ENGINES, "m n k"),
    layout(
        "aiconfigurator dense projections",
        "gemm",
        _dense_projections,
        "gpu framework_version dtype",
        "n k m latency_us",
    ),
    layout(
        "aiconfigurator quantisation",
        "quantisation",
        _quantisations,
        "gpu op framework framework_version",
        "m k latency_us",
    ),
)
