"""Random experiments of one run each, as a file has them: experiment ``i`` is a function of ``i`` alone.

Machines are small wafers with other rates and topologies, wafers as they are built, machines within limits of power,
and nodes and clusters of GPUs; policies, assumptions and engines are all that are shipped.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.machine.fabric import TOPOLOGIES
from archsim.runs.plan import plan_of, select
from archsim.runs.run import Record, Run
from archsim.runs.simulator import Simulator
from archsim.specs.library import load_experiment
from archsim.specs.policies import PRESETS
from support.random_systems import CHOICES

MODELS = ("deepseek-v3", "olmoe-1b-7b", "qwen3-30b-a3b", "gpt-oss-20b", "mixtral-8x7b", "llama-4-maverick")
NODES = ("h100_node", "h200_node", "b200_node", "h100_cluster", "gb200_nvl72", "a100_cluster", "mi300x_node")
TOY = {
    "name": "toy", "source": "made up", "layers": 3, "moe_layers": {"first": 1, "last": 2}, "hidden": 512,
    "expert_ffn": 384, "experts": 6, "top_k": 2, "shared_experts": 1,
}  # fmt: skip
OF_GPUS = {
    "execution": "expert_parallel", "gemm": "grouped", "dispatch": "per_rank", "combine": "bf16",
    "memory": "experts", "capacity": "unbounded", "decision_cost": "charged",
}  # fmt: skip
MORE = {
    "migration": ("overlapped", "overlapped", "blocking", "free"), "capacity": ("finite", "unbounded"),
    "carriers": ("one", "as_needed"), "endpoint": ("unlimited", "as_measured"), "hops": ("requests", "all"),
    "throughput": ("generated", "nominal"), "memory": ("experts",), "overlap": ("none", "shared_expert", "two_batch"),
    "prediction_rows": ("all", "until_own_id"),
}  # fmt: skip


def random_experiment(number: int) -> dict[str, Any]:
    """The keys of experiment ``number``; some are refused by name."""
    rng = np.random.default_rng([number, 53])

    def one(values: Any) -> Any:
        return values[rng.integers(len(values))]

    engine = one(("event", "event", "analytical", "analytical", "interpreted"))
    on_gpus = engine != "interpreted" and rng.random() < 0.25
    published = not on_gpus and rng.random() < 0.15
    assumptions: dict[str, Any] = {"set": "published" if published else "physical"}
    if on_gpus:
        dispatch = one(("per_rank", "per_rank", "per_token_expert", "all_gather", "all_to_all"))
        assumptions |= OF_GPUS | {"dispatch": dispatch, "transfer_software": one(("charged", "free"))}
        assumptions |= {name: one(MORE[name]) for name in ("migration", "overlap")}
    elif not published:
        several = CHOICES | {name: values for name, values in MORE.items() if name != "overlap"}
        chosen = rng.choice(list(several), rng.integers(0, 7), replace=False).tolist()
        assumptions |= {name: str(one(several[name])) for name in chosen}
        if assumptions.get("contention") == "reserved":
            assumptions |= {"arbitration": "fair", "reads": "together"}
    policy = one(list(PRESETS))
    return {
        "name": "random",
        "systems": [{"like": one(NODES), "name": "gpus"} if on_gpus else _wafer(rng, one, engine)],
        "models": [TOY if engine == "interpreted" else one(MODELS)],
        "workload": {
            "trace": {"synthetic": {"prompt_tokens": int(rng.integers(0, 3)), "seed": number}},
            "batch": int(np.exp(rng.uniform(np.log(4), np.log(24 if engine == "interpreted" else 512)))),
            "decode_steps": int(rng.integers(1, 5)), "layers": int(rng.integers(1, 3)), "context": 64,
            "warmup_steps": int(one((0, 0, 0, 1))),
        },
        "policies": [policy], "assumptions": [assumptions], "engine": engine,
    }  # fmt: skip


def _wafer(rng: Any, one: Any, engine: str) -> dict[str, Any]:
    x, y = (int(rng.integers(1, 4 if engine == "interpreted" else 6)) for _ in range(2))
    system: dict[str, Any] = {
        "like": "dojo", "name": "wafer", "mesh": f"{x}x{y}",
        "hbm": {"bandwidth": f"{np.exp(rng.uniform(-1, 2)):.3g} TB/s", "capacity": f"{int(one((64, 2000)))} GB"},
        "d2d": {"bandwidth": f"{np.exp(rng.uniform(-3, 1.5)):.3g} TB/s"},
    }  # fmt: skip
    kind = rng.random()
    if kind < 0.3:
        system["topology"] = str(one([each for each in TOPOLOGIES if each != "edges"]))
    elif kind < 0.45 and engine != "interpreted":
        system["drawn"] = {"defects_per_cm2": 0.02, "link_failure": "1 %", "seed": int(rng.integers(100))}
        system["dies_as_built"] = {
            "speed": {"sigma": "5 %", "hbm": {"sigma": "5 %"}}, "harvest": {"cores": 128, "needed": 64}
        }  # fmt: skip
    elif kind < 0.55 and engine != "interpreted":
        system |= {
            "power": {"limit": f"{int(rng.integers(1, 4) * 200 * x * y)} W"},
            "cooling": {"coolant": "30 C", "resistance": "0.15 K/W per die", "lateral": "silicon"},
        }
    return system


def run_of(experiment: dict[str, Any]) -> Run:
    """The one run of an experiment. Raises ArchsimError."""
    (run,) = next(select(plan_of(load_experiment(experiment))).blocks(1, details=True))[1]
    return run


def records_from(number: int, simulator: Simulator) -> Iterator[tuple[Run, Record]]:
    """The runs and records of the experiments from ``number`` on that are not refused."""
    while True:
        try:
            run = run_of(random_experiment(number))
            yield run, simulator.record(run)
        except ArchsimError:
            pass
        number += 1


SERVED = (  # system, model, parallel sizes
    ("h200_node", "qwen3-235b-a22b", {"attention": {"tp": 8}, "experts": {"ep": 8}}),
    ("h100_node", "gpt-oss-120b", {"attention": {"tp": 4}, "experts": {"ep": 4}}),
    ("h100_node", "qwen3-30b-a3b", {"attention": {"tp": 2}, "experts": {"tp": 2}}),
    ("h200_node", "deepseek-v3", {"attention": {"dp": 8}, "experts": {"ep": 8}}),
    ("b200_node", "llama-3.1-70b", {"attention": {"tp": 4}}),
)


def random_deployment(number: int) -> dict[str, Any]:
    """The keys of a serve file, a function of ``number`` alone; some are refused by name."""
    rng = np.random.default_rng([number, 54])

    def one(values: Any) -> Any:
        return values[rng.integers(len(values))]

    system, model, parallel = one(SERVED)
    engine = one(("vllm", "sglang"))
    requests = {
        "input": {"mean": int(np.exp(rng.uniform(4, 8.5))), "cv": float(one((0, 0.5, 1)))},
        "output": {"mean": int(np.exp(rng.uniform(1, 6))), "cv": float(one((0, 0.5, 1)))},
        "count": int(rng.integers(20, 200)),
        "seed": number,
    }
    if rng.random() < 0.5:
        requests["concurrency"] = int(np.exp(rng.uniform(0, 5)))
    else:
        requests["arrivals"] = {"rate": f"{np.exp(rng.uniform(-1, 4)):.3g}/s", "burstiness": float(one((0.5, 1, 4)))}
    name = "sglang" if engine == "sglang" else "vllm_v1"
    return {
        "system": system, "model": model, "parallel": parallel, "engine": engine, "requests": requests,
        "scheduler": {
            "name": name, "max_num_seqs": int(one((4, 32, 256))),
            "max_num_batched_tokens": int(one((2048, 8192))), "prefix_caching": bool(one((True, False))),
        },
        "slo": {"ttft": "1 s", "tpot": "50 ms"},
    }  # fmt: skip
