"""Pipelines of stages, and ranks that share the tokens of a request: memory and time by hand."""

import numpy as np
import pytest

from archsim.base.errors import ArchsimError, SpecError
from archsim.iteration.times import batches_of, iteration_times
from archsim.serving.deployment import kept, kv_room, pipeline_of
from archsim.serving.serving import deploy, engine_of, serve
from archsim.serving.simulate import Scheduler
from archsim.specs.serving_files import load_serving

FILE = {
    "system": "h200_node",
    "model": "deepseek-v2-lite",
    "engine": "none",
    "precision": {"products": "bf16", "experts": "bf16"},
    "parallel": {"attention": {"tp": 4}},
    "requests": {"concurrency": 16, "input": {"fixed": 2000}, "output": {"fixed": 8}, "count": 16},
    "scheduler": {"max_num_seqs": 16, "max_num_batched_tokens": 2048},
    "disaggregated": {"prefill": "none", "decode": {"parallel": {"attention": {"tp": 4}}}},
}


def loaded(parallel, **others):
    return load_serving(FILE | {"disaggregated": {"prefill": "none", "decode": {"parallel": parallel}}} | others)


def side_of(serving):
    return engine_of(serving, serving.spec.pools[-1].parallel)


def tpot_ms(serving):
    return serve(serving).measures.tpot.mean


def test_a_stage_has_its_part_of_weights_and_cache():
    whole, stage = (side_of(loaded({"attention": {"tp": 4}, "pp": pp})) for pp in (1, 2))
    scheduler = Scheduler.of(loaded({"attention": {"tp": 4}}).spec.scheduler)
    for kind in ("experts", "shared experts", "attention"):
        assert kept(stage, scheduler)[kind] == pytest.approx(kept(whole, scheduler)[kind] / 2, rel=1e-6)
    assert kv_room(stage, scheduler).kv.token_bytes == kv_room(whole, scheduler).kv.token_bytes / 2
    assert deploy(loaded({"attention": {"tp": 4}, "pp": 2})).devices == 8


def test_ranks_that_share_tokens_keep_no_copies():
    """Latent attention has one key a token, which all 4 ranks would hold."""
    scheduler = Scheduler.of(loaded({"attention": {"tp": 4}}).spec.scheduler)
    room = [kv_room(side_of(loaded({"attention": {"tp": 4, "context": n}})), scheduler).tokens for n in (1, 2, 4)]
    assert room[1] == pytest.approx(2 * room[0], abs=2) and room[2] == pytest.approx(4 * room[0], abs=4)


def test_a_token_passes_all_stages_with_its_micro_batch():
    """16 requests on 2 stages: 8 of them pass 27 layers, and two copies of their hidden vectors."""
    serving = loaded({"attention": {"tp": 4}, "pp": 2})
    outcome = serve(serving)
    laws, engine = outcome.deployment.prefill.laws, side_of(serving)
    hop = pipeline_of(engine, laws.sizes).hop_ns[8]
    context = 2000 + np.arange(1, 8).mean()
    alone = iteration_times(laws, batches_of(np.ones(8, int), np.full(8, round(context)))).total_ns[0]
    assert outcome.measures.tpot.mean * 1e6 == pytest.approx(alone + 2 * hop, rel=0.01)


def test_more_stages_are_no_faster_for_one_request_and_bubbles_are_exact():
    """One request fills one stage of p: it takes the layers of all of them, and p copies."""
    one = {"requests": {"concurrency": 1, "input": {"fixed": 2000}, "output": {"fixed": 8}, "count": 1}}
    times = [tpot_ms(loaded({"attention": {"tp": 4}, "pp": pp}, **one)) for pp in (1, 2)]
    engine = side_of(loaded({"attention": {"tp": 4}, "pp": 2}))
    hop = pipeline_of(engine, 2).hop_ns[1]
    assert times[1] * 1e6 == pytest.approx(times[0] * 1e6 + 2 * hop, rel=1e-3)


def test_a_first_prompt_fills_the_pipeline():
    """m = p micro-batches take 2 p - 1 turns where no prompt was before them."""
    ttft = []
    for pp in (1, 2):
        file = {"parallel": {"attention": {"tp": 4}, "pp": pp}, "disaggregated": "none"}
        file |= {"requests": {"concurrency": 1, "input": {"fixed": 2000}, "output": {"fixed": 2}, "count": 1}}
        ttft.append(serve(load_serving(FILE | file)).measures.ttft.mean)
    assert ttft[1] < 1.5 * ttft[0]  # not divided by two: 3 turns of 1,000 tokens in place of one of 2,000


def test_sharing_tokens_pays_where_contexts_are_long():
    """What ranks exchange takes time at any context; reading a part of the cache saves time with its length (Helix,
    arXiv 2507.07120, figure 6: it pays beyond some hundred thousand tokens).
    """
    gains = []
    for context, requests in ((1_000, 4), (30_000, 16)):
        many = {"requests": {"concurrency": requests, "input": {"fixed": context}, "output": {"fixed": 4},
                             "count": requests}}  # fmt: skip
        alone, shared = (tpot_ms(loaded({"attention": {"tp": 4, "context": n}}, **many)) for n in (1, 4))
        gains.append(alone / shared)
    assert gains[0] < 1.02 and gains[1] > gains[0]


@pytest.mark.parametrize(
    ("parallel", "others", "told"),
    [
        ({"attention": {"tp": 4, "context": 3}}, {}, "does not divide tp 4"),
        ({"attention": {"tp": 8, "context": 4}}, {"model": "qwen3-235b-a22b"}, "2 of them would hold the same"),
        ({"attention": {"tp": 8, "context": 2}}, {"model": "gpt-oss-120b", "precision": {}}, "context"),
        ({"attention": {"tp": 1}, "pp": 28}, {"system": "h100_cluster", "precision": {}}, "27 layers"),
        ({"attention": {"tp": 4}, "pp": 4}, {}, "h200_node has 8 devices"),
        ({"attention": {"tp": 4}, "pp": 2}, {"assumptions": {"overlap": "two_batch"}}, "pp: 1"),
        ({"attention": {"tp": 4}, "pp": 2}, {"speculation": {"draft_tokens": 1, "acceptance": 0.5}}, "pp: 1"),
    ],
)
def test_what_nobody_runs_is_refused_by_name(parallel, others, told):
    with pytest.raises(ArchsimError, match=told):
        deploy(loaded(parallel, **others))


def test_an_experiment_says_that_it_has_neither(tmp_path):
    from archsim.api import run

    for key, parallel in (
        ("pp", {"attention": {"tp": 8}, "pp": 2}), ("context", {"attention": {"tp": 8, "context": 2}}),
    ):  # fmt: skip
        file = {
            "name": "none", "systems": ["h200_node"], "models": ["deepseek-v3"], "policies": ["ep"],
            "parallel": parallel, "workload": {"trace": {"synthetic": {"decode_steps": 1}}, "batch": 8, "context": 16},
        }  # fmt: skip
        with pytest.raises(SpecError, match=key):
            run(file)
