"""What the host charges, and when: iterations outside captured graphs, requests at the front end."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from support.serving import MS, opened, pool

import archsim as ar
from archsim.base.errors import TraceError
from archsim.iteration.constants import Host, host_file
from archsim.iteration.experts import ByChance
from archsim.iteration.layers import EXPERTS
from archsim.iteration.overlap import HOW, MICRO_BATCHES
from archsim.iteration.stand_ins import with_stand_ins
from archsim.laws.calibration_files import calibration_named
from archsim.laws.dominated import dominated_in
from archsim.laws.laws import Laws
from archsim.runs.plan import prepare
from archsim.runs.simulator import Simulator
from archsim.serving.answers.configuration import Configuration
from archsim.serving.answers.engines import deployment_of
from archsim.serving.clock import HOST_CAPTURED, HOST_EAGER, LAWS_PROMPTS
from archsim.serving.deployment import laws_of
from archsim.serving.engine import ServingEngine
from archsim.serving.expert_groups import NOT_MOVED, groups_of
from archsim.serving.file_engines import engine_of, host_for
from archsim.serving.groups import SELDOM, ExpertGroup
from archsim.serving.requests import without_hashes, without_too_long
from archsim.serving.serving import deploy, serve
from archsim.serving.simulate import Scheduler, _put, simulate
from archsim.specs.deployment import Parallelism, Precision
from archsim.specs.library import load_experiment, load_model
from archsim.specs.serving_files import load_serving

EAGER_NS = 50 * MS


def served(rows, graph, **more):
    """On an engine that captures graphs of ``graph`` tokens with prompts."""
    machine = pool(blocks=2000)
    host = machine.table.host.copy()
    host[HOST_EAGER], host[HOST_CAPTURED] = EAGER_NS, graph
    return simulate(opened(rows), Scheduler(), machine._replace(table=machine.table._replace(host=host)), **more)


@pytest.mark.parametrize(
    ("graph", "prompt", "charged"), [(512, 13, 0), (512, 512, 0), (512, 513, 1), (0, 13, 1), (0, 513, 1), (256, 300, 1)]
)
def test_only_iterations_outside_captured_graphs_are_charged(graph, prompt, charged):
    """A short tail of a prompt is inside vLLM's graphs; engines that capture decodes alone charge every prompt."""
    found, free = served([(0.0, prompt, 1)], graph), simulate(opened([(0.0, prompt, 1)]), Scheduler(), pool(2000))
    late = found.requests["first_ns"] - free.requests["first_ns"]
    assert late[0] == pytest.approx(charged * EAGER_NS)


def test_decodes_alone_are_captured_up_to_the_largest_graph():
    found = served([(0.0, 2, 3)] * 4, graph=3)
    ends, first = found.requests["last_ns"], found.requests["first_ns"]
    assert (ends - first > 2 * EAGER_NS).all()  # four tokens an iteration
    within = served([(0.0, 2, 3)] * 3, graph=6)
    assert (within.requests["last_ns"] - within.requests["first_ns"] < EAGER_NS).all()


def test_the_largest_graph_follows_the_batch_as_in_vllm():
    assert [Host(captured=512).of_iterations(seqs)[HOST_CAPTURED] for seqs in (8, 128, 256, 1024)] == [
        16, 256, 512, 512,
    ]  # fmt: skip
    assert {row.captured for row in host_file().hosts if row.engine == "vllm"} == {512}
    assert {row.captured for row in host_file().hosts if row.engine != "vllm"} == {0}


def test_a_first_token_reaches_its_client_an_iteration_later_whatever_runs_in_it():
    """SGLang runs prompts before decodes: of two prompts in turn, the first one's token is out with the second."""
    found, free = (
        simulate(opened([(0.0, 100, 5)] * 2), Scheduler("sglang", max_num_batched_tokens=100), pool(), first_after=late)
        for late in (2, 1)
    )
    prompt, decode = 2 * MS + 100 * 1e4 + 1e3, 2 * MS + 2 * 1e4 + 1e3
    late = found.requests["first_ns"] - free.requests["first_ns"]
    assert late == pytest.approx([prompt, decode])


def test_requests_pass_the_front_end_one_after_the_other():
    """Four at once wait for each other, four that come apart do not; all wait as long behind it."""
    burst, apart = (
        simulate(opened([(gap * i, 1, 1) for i in range(4)]), Scheduler(), pool(), front_end_ns=5 * MS, request_ns=MS)
        for gap in (0.0, 100.0)
    )
    waited = burst.requests["scheduled_ns"] - burst.requests["arrival_ns"]
    assert np.all(waited >= np.arange(1, 5) * 5 * MS + MS) and waited[0] == pytest.approx(6 * MS)
    assert apart.requests["scheduled_ns"] - apart.requests["arrival_ns"] == pytest.approx(np.full(4, 6 * MS))


def test_less_than_a_nanosecond_of_the_host_is_told_as_none():
    """What a fit leaves of a constant at its bound; it can be written in a file."""
    told = Host(iteration_ns=7.6e-10, request_ns=2e6).as_written
    assert told.startswith("{iteration: 0 ms, sequence: 0 ms, prompt: 0 ms, request: 2 ms")


PLAIN = {
    "model": "deepseek-v3", "parallel": {"attention": {"tp": 8}, "experts": {"ep": 8}},
    "requests": {"concurrency": 32, "input": {"mean": 1000}, "output": {"mean": 100}},
}  # fmt: skip


def test_a_constant_by_hand_leaves_the_engine_its_others():
    given = PLAIN | {"system": "h200_node"}
    fitted, own = (
        host_for(load_serving(given | {"host": host})) for host in ({}, {"iteration": "9 ms", "prompt": "0 ns"})
    )
    assert fitted == host_for(load_serving(given)) and fitted.sequence_ns > 0 and fitted.prompt_ns > 0
    assert own == fitted._replace(iteration_ns=9e6, prompt_ns=0)


@pytest.mark.parametrize(
    ("system", "engine", "products", "kv", "scheduler"),
    [
        ("h200_node", "vllm", "fp8_block", "bf16", ("vllm_v1", 8192, {"reserve_full_isl": 1})),
        ("h200_node", "trtllm", "fp8_block", "fp8", ("trtllm", 8192, {})),
        ("h200_node", "sglang", "fp8_block", "bf16", ("sglang", 8192, {"poll_every": 1, "kept_share": 0.7})),
        ("b200_node", "sglang", "nvfp4", "fp8", ("sglang", 16384, {"poll_every": 1, "kept_share": 0.7})),
    ],
)
def test_a_plain_file_is_served_as_its_engine_is_started(system, engine, products, kv, scheduler):
    given = PLAIN | {"system": system, "engine": engine, "precision": {"products": products}}
    found = load_serving(given)
    own = found.spec.scheduler
    assert (own.name, own.max_num_batched_tokens, own.params) == scheduler
    assert found.spec.precision.dtypes("bf16", found.model).kv == kv
    varied = ("lognormal", (1000, 0.0)) if engine == "sglang" else ("uniform", (900, 1100))
    assert found.spec.requests.input.drawn == varied
    said = "; ".join(found.recipe)
    assert ("precision.kv: fp8" in said) == (kv == "fp8")
    assert f"max_num_batched_tokens: {scheduler[1]} (" in said and "max_num_seqs" in said
    assert load_serving(given, ["precision.kv=bf16"]).spec.precision.kv == "bf16"
    kept = load_serving(given | {"scheduler": {"name": scheduler[0], "max_num_batched_tokens": 4096}}).spec.scheduler
    assert kept.max_num_batched_tokens == 4096


@pytest.mark.parametrize(
    ("system", "engine", "version", "tokens", "seqs"),
    [
        ("b200_node", "vllm", None, 16_384, 1024), ("b200_node", "vllm", "0.27.1", 8192, 1024),
        ("mi300x_node", "vllm", "v0.28.0", 16_384, 1024), ("h200_node", "vllm", None, 8192, 1024),
        ("h100_node", "vllm", None, 8192, 1024), ("h20_cluster", "vllm", None, 8192, 1024),
        ("a100_cluster", "vllm", None, 2048, 256), ("v100_node", "vllm", None, 2048, 256),
        ("h100_node", "sglang", None, 8192, 2048), ("b300_node", "sglang", None, 16_384, 2048),
        ("a30_node", "sglang", None, 4096, 2048), ("b300_node", "trtllm", None, 8192, 2048),
    ],
)  # fmt: skip
def test_defaults_follow_engine_version_and_memory_and_no_name(system, engine, version, tokens, seqs):
    """vLLM, get_batch_defaults of v0.27 and v0.28; SGLang, _handle_gpu_memory_settings; TensorRT-LLM, llm_args.py."""
    given = PLAIN | {"engine": engine, "model": "llama-3.1-70b", "parallel": {"attention": {"tp": 8}},
                     "engine_version": version}  # fmt: skip
    found = [load_serving(given | {"system": each}) for each in (system, {"like": system, "name": "renamed"})]
    for each in found:
        assert (each.spec.scheduler.max_num_batched_tokens, each.spec.scheduler.max_num_seqs) == (tokens, seqs)
        assert len([told for told in each.recipe if ".py" in told]) == 2  # the origin of both
    assert found[0].recipe == found[1].recipe


@pytest.mark.parametrize(("version", "given", "joins"), [
    (None, {}, 1), ("0.5.10.post1", {}, 1), ("v0.5.9", {}, 0), ("0.5.8.post1", {}, 0), (None, {"join_decodes": 0}, 0),
    ("0.5.8", {"join_decodes": 1}, 1),
])  # fmt: skip
def test_sglangs_decodes_take_over_requests_as_their_version_does(version, given, joins):
    """SGLang, disaggregation/decode.py, get_next_disagg_decode_batch_to_run: sgl-project/sglang#12839 and #19568."""
    side = {"parallel": {"attention": {"tp": 8}, "experts": {"ep": 8}}}
    file = {key: each for key, each in PLAIN.items() if key != "parallel"}
    file |= {
        "system": "gb200_nvl72",
        "engine": "sglang",
        "engine_version": version,
        "scheduler": {"name": "sglang"} | given,
    }
    found = load_serving(file | {"disaggregated": {"prefill": side, "decode": side}})
    assert found.spec.scheduler.params["join_decodes"] == joins
    assert any("join_decodes" in each for each in found.recipe) == (not given)


def test_prompts_of_pools_take_the_factors_of_their_ranks():
    """At the doors of serve and of searches: of ranks that share requests, and of data-parallel ones."""
    found = []
    for attention in ({"tp": 4}, {"dp": 4}):
        side = {"parallel": {"attention": attention, "experts": {"ep": 4}}}
        file = {key: each for key, each in PLAIN.items() if key != "parallel"} | {"system": "gb200_nvl72"}
        file |= {"engine": "sglang", "precision": {"products": "nvfp4", "experts": "nvfp4"}, "search": {"devices": 8}}
        serving = load_serving(file | {"disaggregated": {"prefill": side, "decode": side}})
        known = deploy(serving)
        choice = Configuration(serving.spec.pools[0].parallel, 2, 256, 8192, prefill=1)
        engine = engine_of(serving.on("prefill"), serving.spec.pools[0].parallel)
        searched = deployment_of(serving, [(engine, known.prefill), (engine, known.decode)], choice)
        factors = [each.prefill.pool.table.host[LAWS_PROMPTS] for each in (known, searched)]
        assert factors[0] == factors[1]
        found.append(factors[0])
    rows = [each for each in host_file().pools if each.of(4, engine="sglang", gpu="gb200", dtype="nvfp4")]
    assert found[1] / found[0] == pytest.approx(np.prod([each.prompts for each in rows])) != 1


# ---- What was wrong in serving once: keys that nothing read, tables of another size, stand-ins that were never
# taken.

SMALL = {
    "system": "h200_node",
    "model": "qwen3-235b-a22b",
    "parallel": {"attention": {"tp": 8}, "experts": {"ep": 8}},
    "requests": {"arrivals": {"rate": "6/s"}, "input": {"mean": 200, "cv": 0.5}, "output": {"fixed": 20}, "count": 24},
}
ROUTED = SMALL | {"routing": {"synthetic": {}, "layers": 1, "requests": 4, "steps": 4}}
SPREAD = {"parallel": {"attention": {"dp": 8}, "experts": {"ep": 8}}}
CLI = "import sys; from archsim.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.nightly
def test_files_do_not_depend_on_how_many_processes_simulate(tmp_path):
    """To the byte: two runs, one after the other in this process, and at the same time in two others."""
    rates = {"slow": "3/s", "fast": "30/s"}
    started = []
    for name, rate in rates.items():
        given = [f"requests={{arrivals: {{rate: {rate}}}, input: {{fixed: 200}}, output: {{fixed: 10}}, count: 12}}"]
        ar.serve("serve_h200", given, out=tmp_path / "one" / name)
        command = [sys.executable, "-c", CLI, "serve", "serve_h200", "--samples", "0", "--set", *given]
        started.append(subprocess.Popen([*command, "--out", str(tmp_path / "two" / name)], stdout=subprocess.DEVNULL))
    assert [each.wait() for each in started] == [0, 0]
    files = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").glob("*/*.*") if path.suffix]
    assert len(files) == 2 * 6
    for path in files:
        assert (tmp_path / "one" / path).read_bytes() == (tmp_path / "two" / path).read_bytes(), path


def test_tables_of_experts_of_different_sizes_go_on_as_they_end():
    state = SimpleNamespace(experts=np.zeros((2, 2, 5)))
    table = np.arange(6.0).reshape(2, 3)
    _put(state, 1, SimpleNamespace(table=table))
    assert np.array_equal(state.experts[1, :, :3], table)
    assert np.array_equal(state.experts[1, :, 4], table[:, 2]) and not state.experts[0].any()


def test_tokens_are_drawn_less_often_as_serving_goes_on():
    group = ExpertGroup.__new__(ExpertGroup)
    group._every, group._rule, group._pending, group.asked_at = 40, None, None, 0
    assert group.next_pause == 40
    group.asked_at = 1000 * SELDOM
    assert group.next_pause == 1000


@pytest.mark.parametrize(("given", "taken"), [
    (None, "all_gather"), ({"dispatch": "per_rank"}, "per_rank"), ({"set": "physical"}, "that of the set"),
])  # fmt: skip
def test_a_dispatch_that_is_given_is_kept(given, taken):
    serving = load_serving(ROUTED | SPREAD | {"assumptions": given})
    known = serving.assumptions.dispatch if taken == "that of the set" else taken
    assert _groups(serving).scenario.assumptions.dispatch == known


def test_a_run_says_where_a_dispatch_makes_no_difference():
    together, apart = (_groups(load_serving(ROUTED | more)) for more in ({}, SPREAD))
    assert NOT_MOVED in together.note and NOT_MOVED not in apart.note


def _groups(serving):
    engine = engine_of(serving, serving.spec.parallel)
    deployment = deploy(serving)
    return groups_of(serving, engine, deployment.prefill, deployment.scheduler, Host())


def test_one_shot_all_reduces_need_links_between_gpus():
    pcie = calibration_named("rtx-pro-6000-server")
    found = with_stand_ins(pcie, load_model("llama-3.1-70b"), "bf16", "bf16").calibration
    assert {table.library for table in found.collectives} == {table.library for table in pcie.collectives} == {"nccl"}


def test_a_whole_prompt_fits_its_iteration_though_its_output_does_not():
    """TensorRT-LLM never computes a prompt anew with its output."""
    given = without_hashes(np.zeros(1), np.array([800]), np.array([7000]))
    assert without_too_long(given, 10_000, 1024, False, "requests", preempted=False) is given
    with pytest.raises(TraceError, match="iterations take 1,024 tokens"):
        without_too_long(given, 10_000, 1024, False, "requests")


def test_loads_are_those_that_the_file_asks_for(tmp_path):
    loads = {"rates": ["2/s", "6/s", "20/s"], "inputs": [100, 400]}
    ar.serve(SMALL | {"loads": loads, "slo": {"ttft": "2 s"}}, out=tmp_path)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "How many requests per second are served within the limits?" in page
    assert "Mean TTFT by length of prompts and requests/s offered" in page
    for cell in (">2</th>", ">6</th>", ">20</th>", ">100</td>", ">400</td>"):
        assert cell in page


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


@pytest.mark.parametrize(("library", "pool", "behind"), [
    ("sglang", "decodes_alone", True), ("sglang", "prefills_alone", True), ("sglang", "shares_prompts", False),
    ("trtllm", "decodes_alone", False),
])  # fmt: skip
def test_pools_behind_deepep_take_its_grouped_products(library, pool, behind):
    """SGLang on GB300, DP 8 EP 8: 58.9 ms measured at 512 requests a rank, 87.6 at 960 (InferenceX); of the 64 us by
    which each further request lengthens the iteration, fused layers alone would take 60.
    """
    engine = ServingEngine(
        load_model("deepseek-v3"), calibration_named("gb300"), 296.9e9, Parallelism(dp=8, ep=8),
        Precision("fp8_block", "bf16", "fp8", "fp8_block"), library=library, **{pool: True},
    )  # fmt: skip
    laws, _ = laws_of(engine, Scheduler(library, 1024, 1024, block_tokens=16))
    assert (laws.sources[EXPERTS] == "sglang-deepep") == behind
    fewer, more = laws.ns(EXPERTS)[[512, 960]]
    assert 0 < more - fewer < (960 - 512) * 15e3 or not behind


def test_a_kernel_slower_than_one_of_more_bits_is_not_served():
    """vLLM's FP8 experts on Hopper are measured with a kernel twice as slow as its BF16 one; time of its stand-in is
    flagged, and says whose law it is. TensorRT-LLM's are as they were measured."""
    model = load_model("qwen3-235b-a22b")
    for gpu in ("h100", "h200"):
        found = with_stand_ins(calibration_named(gpu), model, "fp8", "fp8")
        assert any("kernel flashinfer_cutlass is left out" in note and "triton of bf16" in note for note in found.notes)
        kernels = {(table.library, table.kernel) for table in found.calibration.moe if table.dtype == "fp8"}
        assert ("vllm", "triton") in kernels and ("vllm", "flashinfer_cutlass") not in kernels
        ns = {}
        for dtype, calibration in (("fp8", found.calibration), ("bf16", calibration_named(gpu))):
            each = ByChance("vllm").times(Laws(calibration), model, Parallelism(4, 1, 4), dtype, 300)
            assert each.outside[1:].all() == (dtype == "fp8" or gpu == "h200")
            ns[dtype] = each.ns
        assert (ns["fp8"][1:] <= ns["bf16"][1:] * 1.001).all()


@pytest.mark.nightly
def test_the_audit_names_every_dominated_table():
    (moe,) = (found for section, found in dominated_in(calibration_named("h100")) if section == "moe")
    whose = {(one.table.library, one.table.kernel, one.table.dtype) for one in moe}
    assert whose == {("vllm", "flashinfer_cutlass", "fp8")}
    assert len(moe) == 10 and all(one.ratio > 1.5 for one in moe)


# ---- Serving composes an iteration as runs do: the same parts, beside each other or in turn.

RANKS, EACH, CONTEXT = 16, 128, 32
ASSUMED = [how for how in HOW if how != MICRO_BATCHES]  # which is of experts apart, and no assumption
EVEN = {"popularity_skew": 0, "request_taste": 0, "stickiness": 0}
SYSTEM = {"like": "h200_cluster", "name": "two", "fabric": {"levels": [
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
