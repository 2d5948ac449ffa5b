"""Cost of one expert-parallel MoE layer of DeepSeek-V3 on 8 to 1,024 GPUs: CPU time of both engines, and memory.

    python benchmarks/cluster.py

Prints a line per size, and the growth of the time from 8 to 1,024 ranks against that of ranks x experts. Bars: 512 and
1,024 GPUs in 1 s (event), 20 ms (analytical), 2 GB.
"""

import resource
import time
from statistics import median

import numpy as np

from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.engine import EventEngine
from archsim.machine.system import SystemSpec
from archsim.specs.library import load_assumptions, load_model, load_system
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.specs.scenario import Scenario
from archsim.specs.workload import WorkloadSpec
from archsim.traffic.step_demand import StepDemand

NODES, TOKENS, REPEATS = (1, 2, 4, 8, 16, 32, 64, 128), 128, 5
VALUES = {
    "execution": "expert_parallel",
    "gemm": "grouped",
    "combine": "bf16",
    "transfer_software": "charged",
    "capacity": "unbounded",
    "memory": "experts",
    "decision_cost": "free",
}


def scenario_of(nodes, dispatch):
    given = load_system("h100_cluster").model_dump(mode="json", by_alias=True)
    given["fabric"]["levels"][1]["switch"] = nodes
    system = SystemSpec.model_validate(given)
    workload = WorkloadSpec(trace={"synthetic": {}}, batch=system.dies)
    assumptions = load_assumptions("physical", dispatch=dispatch, **VALUES)
    policy = PolicySpec(name="ep", **PRESETS["ep"])
    return Scenario(system, load_model("deepseek-v3"), assumptions, policy, workload, system.dies)


def demand_of(model, dies):
    rng = np.random.default_rng(1)
    popularity = np.exp(0.7 * rng.standard_normal(model.experts))
    origins = rng.multinomial(TOKENS * model.top_k, popularity / popularity.sum(), size=dies).astype(np.int32)
    total = origins.sum(axis=0, dtype=np.int32)
    order = np.arange(model.experts, dtype=np.int16)
    return StepDemand(0, total, np.zeros_like(total), order, model.top_k, origins)


def main():
    print(f"{'GPUs':>5} {'kernel':<18} {'engine':<11} {'built':>9} {'a layer':>9}  simulated")
    times = {}
    for nodes in NODES:
        for dispatch in ("per_rank", "per_token_expert"):
            scenario = scenario_of(nodes, dispatch)
            demand = demand_of(scenario.model, scenario.system.dies)
            for name, engine in (("event", EventEngine), ("analytical", AnalyticalEngine)):
                begin = time.process_time()
                run = engine(scenario)
                run.step(0, demand, 0.0)
                built, took = time.process_time() - begin, []
                for _ in range(REPEATS):
                    begin = time.process_time()
                    result = run.step(0, demand, 0.0)
                    took.append(time.process_time() - begin)
                times[nodes, dispatch, name] = median(took)
                print(
                    f"{8 * nodes:>5} {dispatch:<18} {name:<11} {built:>7.2f} s {1e3 * median(took):>6.1f} ms  "
                    f"{result.step_ns / 1e3:,.0f} us"
                )
    ranks = NODES[-1] / NODES[0]
    for dispatch in ("per_rank", "per_token_expert"):
        for name in ("event", "analytical"):
            growth = times[NODES[-1], dispatch, name] / times[NODES[0], dispatch, name]
            sizes = f"from {8 * NODES[0]} to {8 * NODES[-1]} ranks ({ranks:.0f} times ranks x experts)"
            print(f"{dispatch}, {name}: {growth:.1f} times {sizes}")
    print(f"memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
