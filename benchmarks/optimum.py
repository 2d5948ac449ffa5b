"""Time of a step's bound and of a plan of allocation ``lp`` for DeepSeek-V3: 256 experts on 25 dies, 80 links.

python benchmarks/optimum.py
"""

import statistics
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import numpy as np
from support.small_runs import policy, scenario_of, step_view

from archsim.engine.demand import build_run_demand
from archsim.engine.machine import build_memory, policy_costs
from archsim.iteration.misfit import refuse_misfit
from archsim.policies.linear_programme import lp
from archsim.policies.placement import Placement, linear
from archsim.questions.optimum_bounds import lower_bound
from archsim.questions.optimum_problem import ProblemBuilder
from archsim.specs.library import load_assumptions, load_model, load_system
from archsim.specs.workload import SyntheticSpec
from archsim.traffic.synthetic import SyntheticTraffic
from microarch.fabric.grid import build_mesh

STEPS = 20


def main() -> None:
    model, system = load_model("deepseek-v3"), load_system("dojo")
    home = linear(model.experts, system.dies)
    placement = Placement.of_homes(home, len(model.moe_layer_ids), system.dies)
    for batch in (512, 4096, 16384):
        source = SyntheticTraffic(model, SyntheticSpec(prompt_tokens=0, decode_steps=1), batch)
        demand = build_run_demand(source, batch, 1, 0, origin_dies=system.dies, predictor=None)
        step = int(np.flatnonzero(demand.tokens.any(axis=(1, 2)))[-1])
        for name in ("physical", "published"):
            assumptions = load_assumptions(name)
            scenario = scenario_of(system, model, policy("ep"), assumptions, batch)
            memory = build_memory(scenario, demand.layers, refuse_misfit(scenario, placement))
            builder = ProblemBuilder(scenario, False, int(demand.tokens.max()))
            report(batch, name, "bound of a step", timed(partial(_bound, builder, demand, step, placement, memory)))
        nothing = np.zeros((model.experts, system.dies), np.int8)
        hops, costs = build_mesh(system.mesh.x, system.mesh.y).hops, policy_costs(system, model)
        report(batch, "", "plan of allocation lp", timed(partial(_plan, demand, step, home, nothing, hops, costs)))


def _bound(builder, demand, step, placement, memory, layer):
    return lower_bound(builder.build(demand.at(step, layer), layer, layer, placement, memory))


def _plan(demand, step, home, nothing, hops, costs, layer):
    return lp(step_view(demand.tokens[step, layer], demand.first_seen[step, layer], home, nothing, hops, costs))


def report(batch: int, assumptions: str, what: str, taken: list[float]) -> None:
    median, slowest = statistics.median(taken), max(taken)
    print(f"batch {batch:>5} {assumptions:<10} {what}: median {median:.0f} ms, slowest {slowest:.0f} ms")


def timed(function) -> list[float]:
    """ms for each of the first layers, after a warm-up call."""
    function(0)
    taken = []
    for layer in range(STEPS):
        begin = time.perf_counter()
        function(layer)
        taken.append((time.perf_counter() - begin) * 1e3)
    return taken


if __name__ == "__main__":
    main()
