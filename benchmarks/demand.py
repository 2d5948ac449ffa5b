"""Speed of generating routing and building demand: ``python benchmarks/demand.py``.

Prints ns per token–expert selection of generating, counting and splitting by origin, ns per pair of updating the
heatmap, µs per row of choosing hot experts; the projection to 16,384 requests × 128 steps × 58 layers × top-8; and the
speed-up over the plain-Python oracle of the tests.
"""

import resource
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from reference.demand_oracle import oracle_demand
from timing import least_s

from archsim.engine.demand import build_run_demand
from archsim.policies.heatmap import TopFraction
from archsim.specs.library import load_model
from archsim.specs.workload import SyntheticSpec
from archsim.traffic.synthetic import SyntheticTraffic
from archsim.traffic.trace import Trace

REQUESTS, STEPS, LAYERS, TOP_K, EXPERTS, DIES = 16384, 128, 58, 8, 256, 25
SAMPLE_REQUESTS, SAMPLE_STEPS = 16384, 8


class Replay:
    """A token source with all tokens in memory, so that reading it costs nothing."""

    def __init__(self, source, requests, decode_steps):
        self.requests, self.layer_ids, self.digest, self.label = source.requests, source.layer_ids, "", ""
        self.num_experts, self.top_k = source.num_experts, source.top_k
        self._pieces = list(source.steps(np.arange(requests), decode_steps))

    def steps(self, requests, decode_steps):
        return iter(self._pieces)


def kernels(source):
    """Seconds of the sample by part: generate, count, origins, pairs, rows."""
    predictor, nothing = TopFraction(0.2), lambda heat, changed, out: None
    replay = Replay(source, SAMPLE_REQUESTS, SAMPLE_STEPS)

    def demand(**what):
        return least_s(
            lambda: build_run_demand(replay, SAMPLE_REQUESTS, SAMPLE_STEPS, 0, **what), clock=time.perf_counter
        )

    count = demand()
    pairs = demand(predictor=nothing)
    return {
        "generate": least_s(
            lambda: sum(1 for _ in source.steps(np.arange(SAMPLE_REQUESTS), SAMPLE_STEPS)), clock=time.perf_counter
        ),
        "count": count,
        "origins": demand(origin_dies=DIES) - count,
        "pairs": pairs - count,
        "rows": demand(predictor=predictor) - pairs,
    }


def oracle_seconds_per_selection(source, requests=20, decode_steps=4):
    """Seconds per selection of the oracle, which does everything except choosing hot experts."""
    tokens = list(source.steps(np.arange(requests), decode_steps))
    iteration = np.concatenate([np.full(len(piece.request), piece.iteration, np.int16) for piece in tokens])
    request = np.concatenate([piece.request for piece in tokens])
    order = np.lexsort((iteration, request))
    trace = Trace(
        experts=np.concatenate([piece.experts for piece in tokens])[order],
        request_offsets=np.searchsorted(request[order], np.arange(requests + 1)),
        iteration=iteration[order],
        layer_ids=source.layer_ids,
        num_experts=source.num_experts,
        top_k=source.top_k,
        model="",
        source="",
        request_subject=np.zeros(requests, np.int16),
        subject_names=("",),
    )
    start = time.perf_counter()
    oracle_demand(trace, range(requests), decode_steps, DIES)
    return (time.perf_counter() - start) / trace.experts.size


def main():
    source = SyntheticTraffic(load_model("deepseek-v3"), SyntheticSpec(prompt_tokens=0), REQUESTS)
    sample = kernels(source)
    selections = SAMPLE_REQUESTS * SAMPLE_STEPS * LAYERS * TOP_K
    pairs = SAMPLE_REQUESTS * (SAMPLE_STEPS - 1) * LAYERS * TOP_K**2
    rows = SAMPLE_STEPS * LAYERS * EXPERTS
    for part in ("generate", "count", "origins"):
        print(f"{part:10s} {sample[part] / selections * 1e9:8.2f} ns/selection")
    print(f"{'pairs':10s} {sample['pairs'] / pairs * 1e9:8.2f} ns/pair")
    print(f"{'rows':10s} {sample['rows'] / rows * 1e6:8.2f} µs/row")
    whole = {**sample, "pairs": sample["pairs"] * SAMPLE_STEPS / (SAMPLE_STEPS - 1)}
    projected = sum(whole.values()) * REQUESTS * STEPS / (SAMPLE_REQUESTS * SAMPLE_STEPS)
    print(f"projected  {projected:8.1f} s for {REQUESTS} × {STEPS} × {LAYERS} × {TOP_K}, one core, all parts")
    plain = oracle_seconds_per_selection(source)
    fast = sum(sample[part] for part in ("count", "origins", "pairs")) / selections
    print(f"oracle     {plain * 1e9:8.0f} ns/selection for count, origins and pairs: {plain / fast:.0f} times as long")
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak       {peak_mib:8.0f} MiB, with {SAMPLE_STEPS} steps held for timing")


if __name__ == "__main__":
    main()
