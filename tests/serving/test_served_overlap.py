"""Serving composes an iteration as runs do: the same parts, beside each other or in turn."""

import pytest

from archsim.base.errors import SpecError
from archsim.iteration.overlap import HOW, MICRO_BATCHES
from archsim.runs.plan import prepare
from archsim.runs.simulator import Simulator
from archsim.serving.serving import deploy, serve
from archsim.specs.library import load_experiment
from archsim.specs.serving_files import load_serving

RANKS, EACH, CONTEXT = 16, 128, 32
ASSUMED = [how for how in HOW if how != MICRO_BATCHES]  # which is of experts apart, and no assumption
EVEN = {"popularity_skew": 0, "request_taste": 0, "stickiness": 0}
SYSTEM = {"like": "h100_cluster", "name": "two", "fabric": {"levels": [
    {"switch": 8, "bandwidth": "450 GB/s", "hop_latency": "0.3 us", "law": "h100/intra_node"},
    {"switch": 2, "per": "gpu", "bandwidth": "50 GB/s", "hop_latency": "2 us", "law": "h100/inter_node"},
]}}  # fmt: skip
PARALLEL = {"attention": {"dp": RANKS}, "experts": {"ep": RANKS}}
PHYSICAL = {"dispatch": "per_token_expert", "migration": "free"}
FILE = {
    "system": SYSTEM, "model": "deepseek-v3", "parallel": PARALLEL, "engine": "none",
    "routing": {"synthetic": EVEN, "layers": 2, "every": 1_000_000}, "utilisation": 1.0,
    "requests": {
        "concurrency": RANKS * EACH, "count": RANKS * EACH, "input": {"fixed": CONTEXT}, "output": {"fixed": 4},
    },
    "scheduler": {"max_num_seqs": EACH, "max_num_batched_tokens": EACH * CONTEXT, "prefix_caching": False},
}  # fmt: skip
RUN = {
    "name": "iteration", "systems": [SYSTEM], "models": ["deepseek-v3"], "policies": ["ep"], "engine": "analytical",
    "workload": {
        "trace": {"synthetic": {**EVEN, "prompt_tokens": 0}}, "batch": RANKS * EACH, "decode_steps": 2, "layers": 2,
        "context": CONTEXT + 2,
    },
    "assumptions": {
        "set": "physical", "execution": "expert_parallel", "gemm": "grouped", "combine": "bf16", "weights": "all",
        "transfer_software": "charged", "capacity": "unbounded", **PHYSICAL,
    },
}  # fmt: skip


def decode_ns(overlap):
    """The second decode of all requests, without the output layer."""
    served = serve(load_serving(FILE | {"assumptions": {**PHYSICAL, "overlap": overlap}}), logged=16).served
    decodes = served.log[served.log["decodes"] == RANKS * EACH]
    return float((decodes["end_ns"] - decodes["begin_ns"])[1])


def run_ns(overlap):
    (run,) = prepare(load_experiment(RUN, [f"assumptions.overlap={overlap}"])).runs
    return Simulator().record(run)["row"]["iteration_ns"]


@pytest.fixture(scope="module")
def both():
    """(serve, run) ns of an iteration, by overlap."""
    return {overlap: (decode_ns(overlap), run_ns(overlap)) for overlap in ASSUMED}


@pytest.mark.parametrize("overlap", ASSUMED)
def test_an_iteration_takes_as_long_served_as_run(both, overlap):
    served, run = both[overlap]
    assert served == pytest.approx(run, rel=0.05)


def test_overlaps_gain_alike_served_and_run(both):
    for overlap in ("shared_expert", "two_batch"):
        served, run = (both["none"][at] / both[overlap][at] - 1 for at in (0, 1))
        assert served == pytest.approx(run, abs=0.04)


def test_two_batches_overlap_under_even_routing_too():
    def table(overlap):
        given = FILE | {"routing": "uniform", "system": "h200_node", "parallel": {"attention": {"dp": 8}}}
        return deploy(load_serving(given | {"assumptions": {"overlap": overlap}})).prefill.pool.table

    alone, halves = table("none"), table("two_batch")
    assert (halves.local + halves.beside.shared >= alone.local).all() and halves.beside.shared[64] > 0
    assert alone.dispatch[64] > 0 and (halves.experts == alone.experts).all()


@pytest.mark.parametrize(("change", "said"), [
    ({"system": "dojo", "parallel": {"attention": {"dp": 25}}}, "execution: weight_streaming has no dispatch"),
    ({"routing": "uniform", "assumptions": {"overlap": "two_batch", "migration": "free"}}, "overlap alone goes"),
])
def test_overlaps_that_cannot_be_are_refused(change, said):
    with pytest.raises(SpecError, match=said):
        deploy(load_serving(FILE | {"assumptions": {"overlap": "two_batch"}} | change))
