"""Public layouts that are recognised but not read, each with the reason: no law takes them, or no times."""

import pandas as pd

from calibration.measurements.layouts import FileLayout, layout

ATTENTION = "attention of prompts and decodes in one kernel; tables have them separately"
NO_TIMES = "model sizes without times"
OPERATORS = "single operators of an MoE layer; fitted curves cover whole layers, or the experts after a dispatch"
SERVING = "layers of one serving engine, from a profiler; not fitted yet"


def _never(rows: pd.DataFrame) -> pd.DataFrame:
    raise AssertionError("files of this layout are skipped")


def _skip(name: str, columns: str, why: str) -> FileLayout:
    return layout(name, "", _never, columns, "", skip=why)


NOT_FITTED_LAYOUTS = (
    _skip("LLMServingSim attention", "profile prefill_chunk kv_prefill n_decode kv_decode latency_us", ATTENTION),
    _skip("LLMServingSim mixed context", "regime n_decode n_decode_long kv_short kv_long latency_skewed_us", ATTENTION),
    _skip("LLMServingSim dense layers", "profile layer tokens latency_us", SERVING),
    _skip("LLMServingSim layers of sequences", "profile layer sequences latency_us", SERVING),
    _skip("LLMServingSim MoE", "profile tokens activated_experts latency_us", SERVING),
    _skip(
        "Frontier MoE",
        "gpu model measurement experts_on_rank ep tp num_tokens shuffling_median_us grouped_gemm_median_us",
        OPERATORS,
    ),
    _skip(
        "DeepEP README",
        "gpu kernel scope ep tokens_per_rank phase dtype latency_us bottleneck",
        "one size for each number of ranks; a curve needs several",
    ),
    _skip(
        "aiconfigurator GEMM grid of three engines",
        "gpu dtype n k m latency_us_sglang_0_5_10 latency_us_vllm_0_14_0 latency_us_trtllm_1_0_0",
        "a GEMM grid of three engines; fitting it would change the GEMM times of A100 systems, so it waits for a "
        "release that may do so",
    ),
    _skip("dense shapes", "model projection tp n k on_grid", NO_TIMES),
    _skip("expert shapes", "model projection n k in_dataset", NO_TIMES),
    _skip("sizes of models", "model hidden_size inter_size topk num_experts", NO_TIMES),
)
