"""How much of the true front a search with two fidelities finds, and how many event runs it needs.

    python benchmarks/explore.py [--out DIR] [--jobs 2]

Runs a space of about 500 machines completely on the event engine (kept in --out, so that a second call is quick),
searches it with 15 % of those runs, and prints the ratio of both volumes, and how long each took.
"""

import argparse
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from archsim.base.host import available_cores
from archsim.questions.exploration.explore import explore
from archsim.questions.exploration.pareto import as_costs, pareto
from archsim.runs.sweep import Unwatched
from archsim.specs.library import load_exploration

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.hypervolume import hypervolume

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "explore_dojo.yaml"
# 486 machines of a model with DeepSeek-V3's experts and few layers: a run takes a tenth of a second.
SMALL = (
    "models=[{name: deepseek-like, source: DeepSeek-V3 with two MoE layers, layers: 3, moe_layers: {first: 1, last: "
    "2}, hidden: 7168, expert_ffn: 2048, experts: 256, top_k: 8, shared_experts: 1}]",
    "workload.batch=512",
)


@contextmanager
def unwatched():
    yield Unwatched()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("reports/benchmark-explore"))
    parser.add_argument("--jobs", type=int, default=available_cores())
    arguments = parser.parse_args()
    searched, spec = timed("search", arguments, "search", "15 %")
    everything, _ = timed("all", arguments, "all", "100 %")
    senses = spec.senses
    costs, found = (
        as_costs(np.array([[p.values[name] for name in spec.objectives] for p in points]), senses)
        for points in (everything.points, searched.front)
    )
    reference = costs.max(axis=0)
    whole, reached = hypervolume(costs[pareto(costs)], reference), hypervolume(found, reference)
    print(f"points {len(costs)}, on the true front {pareto(costs).sum()}, found {len(found)}")
    print(
        f"event runs of the search: {len(searched.known)} ({len(searched.known) / len(costs):.1%}); stable: "
        f"{searched.stable}"
    )
    print(f"volume found over that of the true front: {reached / whole:.2%}")


def timed(name: str, arguments: argparse.Namespace, folder: str, runs: str):
    plan, spec = load_exploration(CONFIG, [*SMALL, f"explore.event_runs={runs}", "engine=analytical"])
    begin = time.perf_counter()
    found = explore(plan, spec, arguments.out / folder, arguments.jobs, unwatched)
    print(f"{name}: {time.perf_counter() - begin:.1f} s")
    return found, spec


if __name__ == "__main__":
    main()
