"""What was wrong in serving once: keys that nothing read, tables of another size, stand-ins that were never taken."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import archsim as ar
from archsim.base.errors import ArchsimError, TraceError
from archsim.cli.main import main
from archsim.iteration.experts import ByChance
from archsim.iteration.times import fastest_all_reduce_ns
from archsim.laws.dominated import dominated_in
from archsim.laws.laws import Laws
from archsim.serving.deployment import NEAR, NOT_MOVED, ONE_SHOT, Host, groups_of, with_stand_ins
from archsim.serving.groups import SELDOM, Group
from archsim.serving.requests import refuse_too_long, without_hashes
from archsim.serving.serving import deploy, engine_of
from archsim.serving.simulate import _put
from archsim.specs.calibration_files import calibration_named
from archsim.specs.deployment import Parallelism
from archsim.specs.library import load_model
from archsim.specs.serving_files import load_serving

SMALL = {
    "system": "h200_node",
    "model": "qwen3-235b-a22b",
    "parallel": {"attention": {"tp": 8}, "experts": {"ep": 8}},
    "requests": {"arrivals": {"rate": "6/s"}, "input": {"mean": 200, "cv": 0.5}, "output": {"fixed": 20}, "count": 24},
}
CLOSED = {"concurrency": 4, "input": {"fixed": 200}, "output": {"fixed": 20}}
ROUTED = SMALL | {"routing": {"synthetic": {}, "layers": 1, "requests": 4, "steps": 4}}
SPREAD = {"parallel": {"attention": {"dp": 8}, "experts": {"ep": 8}}}
CLI = "import sys; from archsim.cli.main import main; sys.exit(main(sys.argv[1:]))"


def test_files_do_not_depend_on_how_many_processes_simulate(tmp_path):
    """To the byte: two runs, one after the other in this process, and at the same time in two others."""
    rates = {"slow": "3/s", "fast": "30/s"}
    started = []
    for name, rate in rates.items():
        given = [f"requests={{arrivals: {{rate: {rate}}}, input: {{fixed: 200}}, output: {{fixed: 10}}, count: 12}}"]
        ar.serve("serve_h200", given, out=tmp_path / "one" / name)
        command = [sys.executable, "-c", CLI, "serve", "serve_h200", "--set", *given]
        started.append(subprocess.Popen([*command, "--out", str(tmp_path / "two" / name)], stdout=subprocess.DEVNULL))
    assert [each.wait() for each in started] == [0, 0]
    files = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").glob("*/*.*") if path.suffix]
    assert len(files) == 2 * 6
    for path in files:
        assert (tmp_path / "one" / path).read_bytes() == (tmp_path / "two" / path).read_bytes(), path


@pytest.mark.parametrize(
    ("how", "file"),
    [
        (["--search"], "--timeline"),
        (["--compare", "b.json"], "--out"),
        (["--calibrate", "b.json"], "--timeline"),
    ],
)
def test_files_that_nothing_writes_are_refused(how, file, capsys):
    assert main(["serve", "serve_h200", *how, file, "somewhere"]) != 0
    assert f"{file}: {how[0]} writes no file" in capsys.readouterr().err


def test_tables_of_experts_of_different_sizes_go_on_as_they_end():
    state = SimpleNamespace(experts=np.zeros((2, 2, 5)))
    table = np.arange(6.0).reshape(2, 3)
    _put(state, 1, SimpleNamespace(table=table))
    assert np.array_equal(state.experts[1, :, :3], table)
    assert np.array_equal(state.experts[1, :, 4], table[:, 2]) and not state.experts[0].any()


def test_tokens_are_drawn_less_often_as_serving_goes_on():
    group = Group.__new__(Group)
    group._every, group._rule, group._pending, group.asked_at = 40, None, None, 0
    assert group.next_pause == 40
    group.asked_at = 1000 * SELDOM
    assert group.next_pause == 1000


@pytest.mark.parametrize(("given", "taken"), [(None, "all_gather"), ({"dispatch": "per_rank"}, "per_rank")])
def test_a_dispatch_that_is_given_is_kept(given, taken):
    serving = load_serving(ROUTED | SPREAD | {"assumptions": given})
    assert _groups(serving).scenario.assumptions.dispatch == taken


def test_the_dispatch_of_a_set_is_kept():
    serving = load_serving(ROUTED | SPREAD | {"assumptions": {"set": "physical"}})
    assert _groups(serving).scenario.assumptions.dispatch == serving.assumptions.dispatch


def test_a_run_says_where_a_dispatch_makes_no_difference():
    together, apart = (_groups(load_serving(ROUTED | more)) for more in ({}, SPREAD))
    assert NOT_MOVED in together.note and NOT_MOVED not in apart.note


def _groups(serving):
    engine = engine_of(serving, serving.spec.parallel)
    deployment = deploy(serving)
    return groups_of(serving, engine, deployment.prefill, deployment.scheduler, Host())


def test_one_shot_all_reduces_stand_in_for_those_of_a_gpu_without():
    """They were looked up, but never taken: every time of a stand-in counts as extrapolated."""
    measured = calibration_named("b200")
    nccl = tuple(table for table in measured.collectives if table.library not in ONE_SHOT)
    b200 = measured.model_copy(update={"collectives": nccl})
    with_kernels = with_stand_ins(b200, load_model("llama-3.1-70b"), "fp8", "fp8").calibration
    small, large = (np.array([size]) for size in (65536.0, 2.0**27))
    for ranks in (2, 4, 8):
        of_small, of_large = (
            [fastest_all_reduce_ns(Laws(each), size, ranks) for each in (with_kernels, b200)] for size in (small, large)
        )
        assert of_small[0] < 0.5 * of_small[1]
        assert of_large[0] == of_large[1]


def test_one_shot_all_reduces_need_links_between_gpus():
    pcie = calibration_named("rtx-pro-6000-server")
    found = with_stand_ins(pcie, load_model("llama-3.1-70b"), "bf16", "bf16").calibration
    assert {table.library for table in found.collectives} == {table.library for table in pcie.collectives} == {"nccl"}


def test_a_whole_prompt_fits_its_iteration_though_its_output_does_not():
    """TensorRT-LLM never computes a prompt anew with its output."""
    given = without_hashes(np.zeros(1), np.array([800]), np.array([7000]))
    refuse_too_long(given, 10_000, 1024, False, "requests", preempted=False)
    with pytest.raises(TraceError, match="iterations take 1024 tokens"):
        refuse_too_long(given, 10_000, 1024, False, "requests")


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("lina", "policies: lina: replication: lina follows .* sweep"),
        ("waterfill", "policies: waterfill: shared: waterfill moves .* sweep"),
        ("pred", "policies: pred: prediction: .* sweep"),
    ],
)
def test_what_serving_does_not_run_is_told_with_a_way_out(policy, told):
    with pytest.raises(ArchsimError, match=told):
        ar.serve(ROUTED | {"policies": [policy]})


def test_loads_are_those_that_the_file_asks_for(tmp_path):
    loads = {"rates": ["2/s", "6/s", "20/s"], "inputs": [100, 400]}
    ar.serve(SMALL | {"loads": loads, "slo": {"ttft": "2 s"}}, out=tmp_path)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "How many requests a second are served within the limits?" in page
    assert "Mean TTFT by length of prompts and requests/s offered" in page
    for cell in (">2</th>", ">6</th>", ">20</th>", ">100</td>", ">400</td>"):
        assert cell in page


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"loads": {"clients": [4]}}, "have rates; give rates"),
        ({"loads": {"rates": ["0/s"]}}, "no request ever comes"),
        ({"requests": CLOSED, "loads": {"rates": ["4/s"]}}, "a closed loop has clients; give clients"),
    ],
)
def test_loads_that_do_not_fit_the_requests_are_refused(change, told):
    with pytest.raises(ArchsimError, match=told):
        load_serving(SMALL | change)


def test_tensorrt_llm_takes_prompts_whole_unless_told():
    named = {"name": "trtllm"}
    assert not load_serving(SMALL | {"scheduler": named}).spec.scheduler.chunked_prefill
    assert load_serving(SMALL | {"scheduler": named | {"chunked_prefill": True}}).spec.scheduler.chunked_prefill
    assert load_serving(SMALL).spec.scheduler.chunked_prefill


def test_rates_need_a_trace_that_has_one(tmp_path):
    trace = tmp_path / "at_once.jsonl"
    trace.write_text('{"timestamp": 5, "input_length": 20, "output_length": 4, "hash_ids": []}\n' * 3)
    at_once = SMALL | {"requests": {"trace": str(trace)}, "loads": {"rates": ["1/s", "2/s"]}}
    with pytest.raises(TraceError, match=r"at_once\.jsonl: all requests arrive at once: .* loads\.rates"):
        ar.serve(at_once)


def test_engines_share_the_kernels_of_flashinfer():
    """TensorRT-LLM's own table is of an older kernel than the one that FlashInfer packs."""
    model = load_model("deepseek-v3")
    laws = Laws(with_stand_ins(calibration_named("b200"), model, "nvfp4", "nvfp4").calibration)
    one = Parallelism(tp=8, expert_tp=8)
    own, none, other = (ByChance(each).times(laws, model, one, "nvfp4", 65).ns[64] for each in ("trtllm", None, "vllm"))
    assert own == pytest.approx(none) and other == pytest.approx(none)
    assert "trtllm" in ByChance("trtllm").times(laws, model, one, "nvfp4", 65).library


def test_a_kernel_that_was_not_measured_on_a_shape_takes_a_near_one():
    model = load_model("deepseek-v3")
    found = with_stand_ins(calibration_named("b300"), model, "fp8_block", "fp8_block")
    copies = {table.kernel: table for table in found.calibration.moe
              if table.scaled_from and (table.hidden, table.dtype) == (model.hidden, "fp8_block")}  # fmt: skip
    assert copies["sglang_flashinfer_trtllm_moe"].scaled_from == "GLM-5"
    assert "deepgemm" not in copies  # measured
    shapes = {table.model.lower(): table for table in calibration_named("b300").moe}
    for table in copies.values():
        like = shapes[table.scaled_from.lower()]
        sizes = ((like.hidden, model.hidden), (like.ffn, model.expert_ffn), (like.experts, model.experts))
        assert sum(abs(np.log2(a / b)) for a, b in sizes) <= NEAR
    assert any("GLM-5 (sglang_flashinfer_trtllm_moe)" in note for note in found.notes)


def test_a_kernel_slower_than_one_of_more_bits_is_not_served():
    """vLLM's FP8 experts on Hopper are measured with a kernel twice as slow as its BF16 one; time of its stand-in is
    flagged, and says whose law it is. TensorRT-LLM's are as they were measured."""
    model = load_model("qwen3-235b-a22b")
    for gpu in ("h100", "h200"):
        found = with_stand_ins(calibration_named(gpu), model, "fp8", "fp8")
        assert any("kernel flashinfer_cutlass takes" in note and "triton of bf16" in note for note in found.notes)
        kernels = {(table.library, table.kernel) for table in found.calibration.moe if table.dtype == "fp8"}
        assert ("vllm", "triton") in kernels and ("vllm", "flashinfer_cutlass") not in kernels
        ns = {}
        for dtype, calibration in (("fp8", found.calibration), ("bf16", calibration_named(gpu))):
            each = ByChance("vllm").times(Laws(calibration), model, Parallelism(4, 1, 4), dtype, 300)
            assert each.outside[1:].all() == (dtype == "fp8" or gpu == "h200")
            ns[dtype] = each.ns
        assert (ns["fp8"][1:] <= ns["bf16"][1:] * 1.001).all()


def test_the_audit_names_every_dominated_table():
    (moe,) = (found for section, found in dominated_in(calibration_named("h100")) if section == "moe")
    whose = {(one.table.library, one.table.kernel, one.table.dtype) for one in moe}
    assert whose == {("vllm", "flashinfer_cutlass", "fp8")}
    assert len(moe) == 10 and all(one.ratio > 1.5 for one in moe)
