"""A machine of four dies that runs in milliseconds, and a small deployment."""

TOY = {
    "name": "toy",
    "systems": [{
        "name": "die4", "source": "made up", "mesh": {"x": 2, "y": 2}, "launch": "local_cp",
        "hbm": {"bandwidth": "1 TB/s", "capacity": "80 GB", "efficiency": {"value": 0.9, "range": [0.6, 0.95]}},
        "d2d": {"bandwidth": "200 GB/s", "hop_latency": "200 ns"}, "compute": {"peak": "200 TFLOP/s", "dtype": "fp8"},
    }],
    "models": [{
        "name": "toy", "source": "made up", "layers": 3, "moe_layers": {"first": 1, "last": 2}, "hidden": 512,
        "expert_ffn": 256, "experts": 16, "top_k": 2, "shared_experts": 1, "vocabulary": 1000, "dense_ffn": 512,
        "attention": {"heads": 8, "kv_heads": 2, "head_dim": 64},
    }],
    "workload": {"trace": {"synthetic": {"prompt_tokens": 3}}, "batch": 64, "decode_steps": 2},
    "policies": ["base", "ep"], "assumptions": ["physical"],
}  # fmt: skip
SERVED = {
    "system": "h200_node", "model": "qwen3-30b-a3b", "parallel": {"attention": {"tp": 4}},
    "requests": {"arrivals": {"rate": "6/s"}, "input": {"mean": 200, "cv": 0.5}, "output": {"fixed": 20}, "count": 24},
    "slo": {"ttft": "2 s"}, "scheduler": {"max_num_batched_tokens": 512},  # laws are tabulated so far
}  # fmt: skip
