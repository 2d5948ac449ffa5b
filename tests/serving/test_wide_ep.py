"""Wide expert parallelism as it is deployed, by the command alone, against published tokens a second and node."""

import json
from pathlib import Path

import pytest

from archsim.base.errors import TraceError
from archsim.cli.main import main
from archsim.serving.serving import deploy, serve
from archsim.specs.serving_files import load_serving

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
# SGLang, large-scale EP on 96 H100 (LMSYS, May 2025): EP72 at 256 requests a GPU with 2,000 tokens; EP32, 16,384 a GPU.
DECODES = {"two_batch": 22_310, "none": 22_310 / 1.255}
PREFILLS = {1024: 57_674, 4096: 50_302}
FEW = "routing={like: model, layers: 1, requests: 64, steps: 128, every: 100000}"


def served(capsys, name, *changes):
    """The one row that ``archsim serve --json`` prints."""
    overrides = [part for each in changes for part in ("--set", each)]
    assert main(["serve", str(CONFIGS / f"{name}.yaml"), "--json", *overrides]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    return row


@pytest.mark.parametrize("overlap", DECODES)
def test_decode_on_9_nodes(capsys, overlap):
    changes = f"assumptions.overlap={overlap}", "requests.output.fixed=8", FEW
    row = served(capsys, "serve_wide_ep_decode", *changes)
    assert row["output_tokens_per_s"] / 9 == pytest.approx(DECODES[overlap], rel=0.2)


@pytest.mark.parametrize("prompt", PREFILLS)
def test_prefill_on_4_nodes(capsys, prompt):
    fewer = "requests.count=1024", "requests.concurrency=1024"
    row = served(capsys, "serve_wide_ep_prefill", f"requests.input.fixed={prompt}", *fewer)
    assert row["total_tokens_per_s"] / 4 == pytest.approx(PREFILLS[prompt], rel=0.2)


def test_ranks_that_do_not_divide_the_experts_are_served_with_replicas():
    """256 experts on 72 ranks: 32 replicas, of EPLB, unless a file names policies."""
    file = {
        "system": "gb200_nvl72", "model": "deepseek-v3", "routing": {"like": "model"}, "engine": "sglang",
        "requests": {"concurrency": 1, "input": {"fixed": 8}, "output": {"fixed": 2}},
    }  # fmt: skip
    wide, even = ({"parallel": {"attention": {"dp": ranks}}} for ranks in (72, 64))
    (found,) = load_serving(file | wide).policies
    assert (found.name, found.placement.params["slots"]) == ("eplb", 0)
    assert [load_serving(file | each).policy.name for each in (even, wide | {"policies": ["ep"]})] == ["ep", "ep"]


def test_what_comes_with_its_kv_needs_a_token_to_decode():
    with pytest.raises(TraceError, match="one token"):
        serve(load_serving(CONFIGS / "serve_wide_ep_decode.yaml", ["requests.output.fixed=1", FEW]))


def decodes_on(system, ranks, **changes):
    """Decodes of engines of their own, whose requests come with their KV."""
    return {
        "system": system, "model": "deepseek-v3", "engine": "sglang",
        "precision": {"products": "fp8_block", "experts": "fp8_block", "kv": "fp8"},
        "disaggregated": {"prefill": "none", "decode": {"parallel": {"attention": {"dp": ranks}}}},
        "requests": {"concurrency": 64 * ranks, "input": {"fixed": 1024}, "output": {"fixed": 8}, "count": 64 * ranks},
    } | changes  # fmt: skip


def moved_ns(file, tokens=64):
    """Dispatch and combine of all layers, of so many tokens of a rank, and the notes."""
    found = deploy(load_serving(file))
    table = found.prefill.pool.table
    return float(table.dispatch[tokens] + table.combine[tokens]), " ".join(found.notes)


def test_wide_groups_dispatch_between_and_beyond_measured_ranks():
    """16 and 64 ranks of an NVL72 were measured; 32 lie between, and nobody gathers the tokens of all of them."""
    times = {ranks: moved_ns(decodes_on("gb200_nvl72", ranks)) for ranks in (16, 32, 64)}
    assert times[16][0] < times[32][0] < times[64][0] < 1.2 * times[16][0]
    assert times[32][0] / 58 == pytest.approx(60e3, rel=0.1)  # one layer
    assert "not measured on 32 ranks of gb200; 16 ranks left out, " in times[32][1]
    assert "not measured on" not in times[64][1].split("combine of 64 ranks")[1]


def test_wide_groups_between_nodes_of_gpus_without_kernels_take_those_of_another():
    ns, told = moved_ns(decodes_on("b200_cluster", 16))
    assert "h100 deepep low_latency on 2 nodes" in told and 58 * 100e3 < ns < 58 * 300e3


@pytest.mark.parametrize("experts", ["fp8_block", "nvfp4"])
def test_traffic_and_chance_compose_dispatch_alike(experts):
    """Experts that all are equally popular: traffic takes as long as chance, in any dtype of the GPU."""
    even = {"synthetic": {"popularity_skew": 0}, "layers": 1, "requests": 64, "steps": 64, "every": 100000}
    file = decodes_on("gb200_nvl72", 32, precision={"products": "fp8_block", "experts": experts, "kv": "fp8"})
    tpot = [serve(load_serving(file | each)).measures.tpot.mean for each in ({}, {"routing": even})]
    assert tpot[1] == pytest.approx(tpot[0], rel=0.35)
