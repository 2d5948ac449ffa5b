"""Runs and served engines have one iteration."""

import numpy as np
import pytest
import yaml
from support.examples import sampled
from support.rates import MOVED, RATES, pair, rates_move_their_share
from support.scenarios import SCENARIO

from archsim.engine.machine import links_of
from archsim.iteration.layers import CAUSES
from archsim.iteration.run_iteration import laws_of
from archsim.iteration.times import batches_of, iteration_times
from archsim.runs.plan import prepare
from archsim.serving.answers.engines import estimate_of
from archsim.serving.answers.question import asked_of, kinds_of
from archsim.serving.deployment import laws_of as laws_of_engine
from archsim.serving.file_engines import engine_of
from archsim.serving.file_requests import requests_of
from archsim.serving.simulate import Scheduler
from archsim.specs.deployment import AttentionRanks, ParallelSpec
from archsim.specs.library import load_experiment
from archsim.specs.serving_files import load_serving

WAFER = SCENARIO | {
    "systems": ["dojo"],
    "models": ["qwen3-235b-a22b"],
    "workload": SCENARIO["workload"] | {"batch": 400, "layers": 1, "decode_steps": 1},
    "assumptions": "physical",
    "parallel": {"attention": {"tp": 4, "dp": 6}},
}


MACHINES = (("h100_node", "gpt-oss-120b"), ("b200_node", "qwen3-30b-a3b"), ("mi355x_node", "deepseek-v3"),
            ("vr_nvl144", "gpt-oss-120b"), ("a100_cluster", "qwen3-30b-a3b"))  # fmt: skip


@pytest.mark.parametrize(("like", "model"), sampled(MACHINES, {MACHINES[0]}.__contains__))
def test_runs_and_served_engines_have_one_iteration_of_a_gpu(like, model):
    """Without an engine both take the fastest kernel of all engines with constants."""
    level = {"switch": 8, "bandwidth": "400 GB/s", "hop_latency": "0.5 us", "law": "h100/intra_node"}
    system = {"like": like, "name": "mine", "fabric": {"levels": [level]}}
    parallel = {"attention": {"tp": 2, "dp": 4}}
    serving = load_serving({
        "system": system, "model": model, "parallel": parallel, "engine": "none", "routing": {"like": "model"},
        "requests": {"concurrency": 4, "input": {"fixed": 8}, "output": {"fixed": 8}, "count": 4},
        "scheduler": {"max_num_seqs": 64, "max_num_batched_tokens": 512}, "precision": {"kv": "bf16"},
    })  # fmt: skip
    served, _ = laws_of_engine(engine_of(serving, serving.spec.parallel), Scheduler.of(serving.spec.scheduler))
    given = WAFER | {"systems": [system], "models": [model], "parallel": parallel, "precision": {"kv": "bf16"}}
    ran = laws_of(prepare(load_experiment(given | {"assumptions": "physical"})).runs[0], None)
    same_laws(ran, served)
    for phase, new in (("decode", 1.0), ("prefill", 512.0)):
        ns = [sum(layers * times.ns(8.0, new, 2048.0) for times, layers in laws.attention[phase])
              for laws in (ran, served)]  # fmt: skip
        assert ns[0] == ns[1] > 0


def same_laws(ran, served):
    for cause in CAUSES:
        for rows in ("tokens", "sampled"):
            assert np.array_equal(ran.ns(cause, rows=rows)[:200], served.ns(cause, rows=rows)[:200]), cause


def test_runs_and_served_engines_have_one_iteration_of_a_wafer():
    system = {"like": "dojo", "name": "w", "mesh": {"x": 6, "y": 4}}
    parallel, model = {"attention": {"tp": 4, "dp": 6}, "experts": {"ep": 24}}, "olmoe-1b-7b"
    serving = load_serving(
        {
            "system": system, "model": model, "parallel": parallel, "engine": "none", "routing": {"like": "model"},
            "requests": {"concurrency": 4, "input": {"fixed": 8}, "output": {"fixed": 8}, "count": 4},
        }
    )  # fmt: skip
    served, _ = laws_of_engine(engine_of(serving, serving.spec.parallel), Scheduler.of(serving.spec.scheduler))
    given = WAFER | {"systems": [system], "models": [model], "parallel": parallel}
    [run] = prepare(load_experiment(given)).runs
    ran = laws_of(run, links_of(run.system, run.assumptions))
    same_laws(ran, served)
    assert ran.ns("all_reduce")[1] > 0 and ran.ns("host")[1] > 0 == ran.ns("host")[0]


TP2 = ParallelSpec(attention=AttentionRanks(tp=2))


def of_engine(serving):
    laws, _ = laws_of_engine(engine_of(serving, TP2), Scheduler.of(serving.spec.scheduler))
    found = iteration_times(laws, batches_of([1] * 64, [1280] * 64))
    return {cause: float(ns[0]) for cause, ns in found.ns.items()}


def test_recommend_and_serve_have_one_iteration_of_which_rates_move_their_share(tmp_path):
    def recommended(system):
        (tmp_path / "pair.yaml").write_text(yaml.safe_dump(system))
        (kind,) = kinds_of(asked_of("olmoe-1b-7b", [f"{tmp_path / 'pair.yaml'}:2"], tpot="50ms", engines=["vllm"]))
        return kind.serving

    serving = load_serving({
        "system": pair(), "model": "olmoe-1b-7b", "parallel": {"attention": {"tp": 2}}, "engine": "vllm",
        "precision": {"kv": "bf16"}, "requests": {"concurrency": 4, "input": {"fixed": 8}, "output": {"fixed": 8}},
    })  # fmt: skip
    assert of_engine(recommended(pair())) == of_engine(serving)
    for rates in MOVED:
        rates_move_their_share(lambda system: of_engine(recommended(system)), rates)
    files = [recommended(pair(**dict.fromkeys(RATES, times))) for times in (0.5, 1.0, 2.0)]
    half, one, twice = (estimate_of(each, TP2, requests_of(each), {}, 0.0).rate for each in files)
    assert 2 * half > one > half and 2 * one > twice > one  # no more than the rates, as launches stay
