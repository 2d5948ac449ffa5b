"""Made-up measurements of fused MoE layers, by a law that is known."""

import numpy as np
import pandas as pd

from archsim.laws import rank_load
from archsim.laws.moe import POINT, law_ns
from archsim.laws.tables import MoeLaw

MODEL = {"model": "deepseek-v3", "hidden": 4096, "ffn": 1536, "experts": 128, "top_k": 8, "dtype": "bf16"}
LAW = MoeLaw(launch_ns=40000, ns_per_token=8, flop_per_s=5e14, bytes_per_s=2.5e12, order=3)
RANKS = [(1, 1), (2, 1), (4, 1), (8, 1), (16, 1), (1, 2), (1, 4)]


def layers(distribution="balanced", how=rank_load.BALANCED, version="1.0", powers=14, law=LAW) -> pd.DataFrame:
    points = np.array([(ep, tp, 2.0**power) for ep, tp in RANKS for power in range(powers)])
    named = {**MODEL, "distribution": distribution}
    return pd.DataFrame(points, columns=POINT).assign(
        **{key: float(value) if isinstance(value, int) else value for key, value in named.items()},
        latency_us_median=law_ns(law, named, how, *points.T) / 1e3,
        run_id="1",
        gpu_name="H100",
        library="lib",
        library_version=version,
        kernel="",
        file="moe.csv",
        gpu="h100",
    )
