"""Serving follows the machine's file: cases derived by hand, at the door that a user takes."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from support.examples import sampled

from archsim.base.config_files import search_folders
from archsim.base.errors import SpecError
from archsim.base.units import WEIGHT_BYTES
from archsim.base.yaml import read_yaml
from archsim.iteration.constants import engines, host_of
from archsim.iteration.layers import ALL_REDUCE, CAUSES, DENSE_FFN, LM_HEAD, PROJECTIONS, SAMPLED
from archsim.iteration.machine import has_measured_links, scaled_report
from archsim.laws.tables import MachineCalibration
from archsim.runs.energy import full_load_w
from archsim.runs.prices import build_costs
from archsim.runs.run import Workspace
from archsim.serving.answers import highest_rate
from archsim.serving.answers import search as searching
from archsim.serving.answers.configuration import Configuration, with_choice
from archsim.serving.answers.engines import SharedEngines
from archsim.serving.answers.question import asked_of
from archsim.serving.answers.race import Race, Tried, find_curve
from archsim.serving.answers.recommend import recommend
from archsim.serving.deployment import build, laws_of, offloaded_ns, pipeline_of
from archsim.serving.file_engines import engine_of, host_for
from archsim.serving.kv_room import kv_blocks
from archsim.serving.outcome import measured_residual
from archsim.serving.physical_laws import below_roofline
from archsim.serving.serving import check_serving, deploy, requests_on, serve, serve_at_clock
from archsim.serving.simulate import Scheduler
from archsim.specs.deployment import Precision
from archsim.specs.library import load_model, load_system
from archsim.specs.serving_files import load_serving

PRODUCTS = PROJECTIONS, DENSE_FFN
FP8 = {"products": "fp8_block", "experts": "fp8_block", "kv": "bf16"}


def of_machine(system, tp=8, **more):
    """A prompt of 8,192 tokens alone, without a host."""
    return load_serving({
        "system": system, "model": "llama-3.1-70b", "parallel": {"attention": {"tp": tp}}, "precision": FP8,
        "engine": "none", "scheduler": {"max_num_seqs": 16, "max_num_batched_tokens": 8192},
        "requests": {"concurrency": 1, "input": {"fixed": 8192}, "output": {"fixed": 16}, "count": 2}, **more,
    })  # fmt: skip


def times_ms(serving):
    measures = serve(serving).measures
    return measures.ttft.mean, measures.tpot.mean


def mine(like="h200_node", **keys):
    return {"like": like, "name": "mine", **keys}


def linked(rate):
    level = {"switch": 8, "bandwidth": rate, "hop_latency": "0.3 us", "law": "h100/intra_node"}
    return mine(fabric={"levels": [level]})


def test_a_machine_of_another_name_has_the_same_times():
    assert times_ms(of_machine("h200_node")) == times_ms(of_machine(mine()))


RENAMED = sampled(
    sorted(path.stem for path in search_folders("models", None)[-1].glob("*.yaml")), {"gpt-oss-20b"}.__contains__
)


@pytest.mark.parametrize(
    ("system", "experts"),
    sampled([("h200_node", "fp8_block"), ("b300_node", "nvfp4")], lambda case: case[1] != "nvfp4"),
)
@pytest.mark.parametrize("model", RENAMED)
def test_a_model_of_another_name_has_the_same_times(model, system, experts, tmp_path):
    """In every number, with the constants and factors of every engine."""
    known = load_model(model)
    mine = known.model_copy(update={"name": "mine"})
    text = (search_folders("models", None)[-1] / f"{model}.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace(f"name: {model}", "name: mine"))
    for engine, gpu, dtype in product(
        engines(), ("h100", "h200", "b200", "b300"), ("fp8", "fp8_block", "nvfp4", "mxfp4")
    ):
        assert host_of(engine, mine, gpu, dtype, dtype) == host_of(engine, known, gpu, dtype, dtype)
    given = {
        "system": system, "precision": FP8 | {"experts": experts}, "parallel": {"attention": {"dp": 4}},
        "requests": {"concurrency": 8, "input": {"mean": 300}, "output": {"fixed": 8}, "count": 8},
        "scheduler": {"max_num_seqs": 16, "max_num_batched_tokens": 2048},
    }  # fmt: skip
    one, other = (serve(load_serving(given | {"model": each})) for each in (model, tmp_path / "mine.yaml"))
    assert one.measures == other.measures and one.served.requests.tobytes() == other.served.requests.tobytes()


def test_products_take_the_peak_of_the_machine():
    """8,192 tokens x 2 FLOP x 69.5e9 weights on two GPUs of 200 TFLOP/s: 2.85 s at least."""
    slow, _ = times_ms(of_machine(mine(compute={"peak": "200 TFLOP/s"}), tp=2))
    assert slow >= 2850 > times_ms(of_machine("h200_node", tp=2))[0]


def test_all_reduces_take_the_links_of_the_machine():
    """160 all-reduces of 134.2 MB over 45 GB/s: 477 ms at least."""
    assert times_ms(of_machine(linked("45 GB/s")))[0] >= 477 > times_ms(of_machine("h200_node"))[0]


def test_weights_take_the_hbm_of_the_machine():
    """A token reads 70e9 / 8 weights of a byte on each rank: 8.7 ms at 1 TB/s, which HBM carries."""
    tpot = {rate: times_ms(of_machine(mine(hbm={"bandwidth": rate})))[1] for rate in ("1 TB/s", "4.8 TB/s", "9.6 TB/s")}
    assert tpot["1 TB/s"] > 8.7 > tpot["4.8 TB/s"] > tpot["9.6 TB/s"]


@pytest.mark.parametrize(("system", "dtype"), [("a100_cluster", "fp8_block"), ("h200_node", "nvfp4")])
def test_weights_without_an_arithmetic_of_their_own_take_their_bytes_and_the_rate_of_bf16(system, dtype):
    """A token alone reads fewer bytes; 8,192 tokens take the FLOP of BF16, and no less than these."""
    engines_of = [engine_of(each, each.spec.parallel) for words in ("bf16", dtype) for each in [
        of_machine(system, engine="vllm", precision={"products": words, "kv": "bf16"})]]  # fmt: skip
    scheduler = Scheduler(max_num_seqs=16, max_num_batched_tokens=8192)
    wide, alone = (laws_of(each, scheduler)[0] for each in engines_of)
    read, multiplied = (alone.ns(*PRODUCTS)[rows] / wide.ns(*PRODUCTS)[rows] for rows in (1, 8192))
    assert WEIGHT_BYTES[dtype] / 2 < read < 0.9 and 0.95 < multiplied <= 1
    assert np.array_equal(*(each.ns(LM_HEAD, rows=SAMPLED) for each in (wide, alone)))  # in BF16 in both
    stored = engines_of[1]._replace(precision=Precision(dtype, experts=dtype))
    assert kv_blocks(engines_of[1], scheduler) == kv_blocks(stored, scheduler) > kv_blocks(engines_of[0], scheduler)


@pytest.mark.parametrize(("faster", "slower"), [("mi355x_node", "h100_node"), ("vr_nvl144", "b200_node")])
def test_a_faster_machine_of_the_same_calibration_is_faster(faster, slower):
    one, other = times_ms(of_machine(faster)), times_ms(of_machine(slower))
    assert one[0] < 0.8 * other[0] and one[1] < 0.95 * other[1]  # launches and latencies stay


@pytest.mark.parametrize("name", ["mi355x_node", "vr_nvl144"])
def test_a_machine_that_nobody_measured_has_no_measured_range_and_says_so(name):
    serving = of_machine(name, engine="vllm")
    found = measured_residual(serving)
    assert found is not None and (found.gpu, found.dtype) == ("any", "any")
    said = scaled_report(load_system(name))
    assert said and said in check_serving(serving) and said in deploy(serving).notes
    assert not scaled_report(load_system("h200_node"))


@pytest.mark.parametrize(
    ("changes", "measured"), [({}, True), ({"bandwidth": "45 GB/s"}, False), ({"hop_latency": "3 us"}, False)]
)
def test_a_machine_of_other_links_has_the_range_of_no_measured_one(changes, measured):
    level = {"switch": 8, "bandwidth": "450 GB/s", "hop_latency": "0.3 us", "law": "h100/intra_node"} | changes
    system = {"like": "h200_node", "name": "mine", "fabric": {"levels": [level]}}
    serving = load_serving({
        "system": system, "model": "qwen3-235b-a22b", "parallel": {"attention": {"tp": 8}}, "engine": "sglang",
        "engine_version": "0.5.9", "requests": {"concurrency": 1, "input": {"fixed": 8}, "output": {"fixed": 8}},
    })  # fmt: skip
    assert has_measured_links(serving.system) == measured
    assert measured_residual(serving).gpu == ("h200" if measured else "any")


@pytest.mark.parametrize("engine", ["none", "vllm", "sglang", "trtllm"])
def test_loads_of_experts_take_the_link_of_the_host_whatever_was_fitted(engine):
    """All experts of a rank are chosen: half of the 128 of each layer are loaded once, at 50 GB/s."""
    serving = load_serving({
        "system": "h100_node", "model": "qwen3-30b-a3b", "precision": FP8, "engine": engine,
        "scheduler": {"max_num_seqs": 16, "max_num_batched_tokens": 8192},
        "expert_offload": {"resident": 0.5, "bandwidth": "50 GB/s"},
        "requests": {"concurrency": 1, "input": {"fixed": 2048}, "output": {"fixed": 2}, "count": 1},
    })  # fmt: skip
    engine_ = engine_of(serving, serving.spec.parallel)
    built = build(engine_, Scheduler.of(serving.spec.scheduler), host_for(serving))
    bytes_of_expert = 3 * 2048 * 768
    due_ns = 48 * 64 * bytes_of_expert / 50e9 * 1e9
    assert np.asarray(offloaded_ns(engine_, built.laws))[4096] == pytest.approx(due_ns, rel=1e-6)
    assert built.pool.table.links.loaded[4096] == pytest.approx(due_ns, rel=1e-6)


@pytest.mark.parametrize("system", ["h200_node", "mi355x_node", "gb200_nvl72"])
@pytest.mark.parametrize(("faster", "clause"), [("gemm", "GEMMs at peak"), ("links", "all-reduces over the links")])
def test_an_iteration_below_the_roofline_is_a_broken_law(system, faster, clause):
    """Of a calibration whose kernels, or collectives, are said to be 100 times as fast as the machine's rates."""
    serving = of_machine(system)
    engine = engine_of(serving, serving.spec.parallel)
    laws, _ = laws_of(engine, Scheduler("vllm_v1", 16, 8192, block_tokens=16))
    assert not list(below_roofline(laws, engine.calibration, engine.precision))
    of_links = {ALL_REDUCE} if faster == "links" else set(CAUSES) - {ALL_REDUCE}
    by = {
        rows: {cause: ns / 100 if cause in of_links else ns for cause, ns in causes.items()}
        for rows, causes in laws.by.items()
    }
    broken = list(below_roofline(replace(laws, by=by), engine.calibration, engine.precision))
    scaled = isinstance(engine.calibration, MachineCalibration)
    assert any(clause in each for each in broken) == (scaled or faster == "gemm")


def test_a_dense_model_is_served_on_a_wafer_by_ranks_of_its_mesh():
    """With SRAM as the memory that keeps weights: a token reads 2 x 7.5e9 B / 32 of a rank, and passes its mesh."""
    dies = {"bandwidth": "21 PB/s", "capacity": "1 GB", "latency": "2 ns", "stacks_on_carrier": 1}
    serving = {
        "model": "llama-3.1-8b", "precision": {"products": "bf16", "kv": "bf16"}, "engine": "none",
        "parallel": {"attention": {"tp": 32}}, "scheduler": {"max_num_seqs": 1, "max_num_batched_tokens": 1024},
        "requests": {"concurrency": 1, "input": {"fixed": 512}, "output": {"fixed": 2}, "count": 1},
    }  # fmt: skip
    wafer = {"like": "dojo", "name": "sram", "mesh": {"x": 8, "y": 4}, "hbm": dies}
    fast, slow = (
        times_ms(load_serving(serving | {"system": wafer | {"hbm": dies | {"bandwidth": each}}}))[1]
        for each in ("21 PB/s", "1 TB/s")
    )
    assert slow > max(fast, 2 * 7.5e9 / 32 / 1e12 * 1e3)
    links = wafer | {"d2d": {"bandwidth": "1.5 TB/s", "hop_latency": "2 us"}}
    later = times_ms(load_serving(serving | {"system": links}))[1]
    assert later > fast + 64 * 2 * 10 * (
        2e-3 - 0.5e-3
    )  # 64 all-reduces cross ten hops, there and back (500 ns off carrier)


@pytest.mark.parametrize(
    ("file", "published"),
    [
        ("serve_wse3", 1800),  # tokens/s a user (Cerebras, August 2024), Llama-3.1-8B
        ("serve_wse3_moe", 2059),  # Artificial Analysis, 2026, gpt-oss-120b
        ("serve_lpu", 300),  # Groq, 2023, Llama-2-70B with 4,096 tokens of context
    ],
)
def test_machines_that_keep_weights_in_sram_serve_within_a_factor_of_two(file, published):
    assert published / 2 < 1e3 / times_ms(load_serving(f"configs/{file}.yaml"))[1] < published * 2


DRAFTS = {"acceptance": 0.0, "method": "ngram"}


def six_wafers_ms(hop_us=1, speculation="none", **compute):
    levels = [{"mesh": [8, 4]}, {"switch": 6, "per": "group", "bandwidth": "150 GB/s", "hop_latency": f"{hop_us} us"}]
    system = {"like": "wse3_cluster", "name": "own", "fabric": {"levels": levels}, "compute": compute}
    given = {"system": system, "speculation": speculation}
    return times_ms(load_serving(read_yaml("configs/serve_wse3_moe.yaml").data | given))[1]


def test_drafts_beside_a_pipeline_take_their_rows_and_layers():
    """One user, none accepted: rows of experts that are verified take time, and so does the layer that drafts."""
    none, one, three = (six_wafers_ms(speculation=DRAFTS | {"draft_tokens": each} if each else "none")
                        for each in (0, 1, 3))  # fmt: skip
    mtp = six_wafers_ms(speculation=DRAFTS | {"draft_tokens": 1, "method": "mtp"})
    assert none < one < three and one < mtp < one + none / 36 * 1.5
    accepted = six_wafers_ms(speculation=DRAFTS | {"draft_tokens": 1, "acceptance": 1.0})
    assert accepted == pytest.approx(one / 2, rel=0.02)


def test_experts_of_a_die_of_its_own_take_the_latency_of_its_kernels():
    """Twice the latency is that much later for three kernels of the experts of 36 layers, and for others of a layer."""
    one, two, three = (six_wafers_ms(kernel_latency=f"{us} us") for us in (1, 2, 3))
    assert two - one == pytest.approx(three - two, rel=1e-3)
    assert 36 * (3 + 5) * 1e-3 < two - one < 36 * (3 + 10) * 1e-3


def test_a_stage_of_a_pipeline_is_a_whole_lower_level_of_the_fabric():
    """Experts of a stage are on one wafer: what links wafers is passed between six stages, and to the host and back."""
    assert six_wafers_ms(2) - six_wafers_ms(1) == pytest.approx((6 + 2) * 2 * 1e-3, rel=1e-6)


def test_a_lower_limit_slows_prompts_alone_and_is_kept():
    """At a limit that is never reached nothing changes; below it the clock falls, and prompts take longer."""
    found = [
        (serve(of_machine(mine(power={"die_limit": f"{watt} W"} if watt else None), tp=1, model="llama-3.1-8b")), watt)
        for watt in (None, 2000, 450, 300)
    ]
    (free, _), (high, _), *_ = found
    assert high.measures.ttft.mean == free.measures.ttft.mean
    assert high.measures.device_w == pytest.approx(free.measures.device_w)
    times = [each.measures.ttft.mean for each, _ in found]
    assert times == sorted(times) and times[3] > times[2] > times[1]
    for each, watt in found[2:]:
        assert each.measures.device_w <= watt and "limited by the power of a die" in each.deployment.notes[-1]
    assert found[3][0].measures.tpot.mean < 1.1 * free.measures.tpot.mean  # decode waits for HBM


def test_a_search_has_the_clock_and_the_power_of_each_file_that_it_could_write(monkeypatch):
    monkeypatch.setattr(searching, "RATED", 0)
    asked = {"arrivals": {"rate": "4/s"}, "input": {"fixed": 2048}, "output": {"fixed": 8}, "count": 12}
    given = {
        "system": mine(power={"die_limit": "280 W"}), "model": "llama-3.1-8b", "precision": FP8, "engine": "none",
        "requests": asked, "slo": {"ttft": "10 s"},
        "search": {"devices": 2, "max_num_seqs": [8], "max_num_batched_tokens": [2048]},
    }  # fmt: skip
    found = searching.search(load_serving(given))
    assert len({each.measures.device_w for each in found}) == len(found) > 1
    for each in found:
        alone = serve(load_serving(with_choice(given, each.choice))).measures
        assert each.measures.ttft == alone.ttft and each.measures.device_w == pytest.approx(alone.device_w)
        assert each.measures.device_w <= 280


def test_a_recommendation_has_the_rate_power_and_times_of_the_clock_within_the_limits(tmp_path, monkeypatch):
    """At the full clock it would serve more, and draw more than the limit."""
    monkeypatch.setattr("archsim.serving.answers.recommend.RACED_OF_KIND", 1)
    monkeypatch.setattr("archsim.serving.answers.recommend.RACED", 1)
    monkeypatch.setattr("archsim.serving.answers.question.MOST_REQUESTS", 100)
    monkeypatch.setattr("archsim.serving.answers.recommendation.FULL_REQUESTS", 100)
    (tmp_path / "held.yaml").write_text("{like: h200_node, name: held, power: {die_limit: 300 W}}")
    given = {"ttft": "3 s", "engines": ["vllm"], "precisions": ["bf16"], "input_tokens": 2048, "output_tokens": 16}
    free, held = (recommend(asked_of("llama-3.1-8b", [f"{of}:1"], **given)) for of in ("h200", tmp_path / "held.yaml"))
    assert held.best.upkeep.w_per_gpu[0] <= 300 < free.best.upkeep.w_per_gpu[0]
    assert held.best.rate_per_s < free.best.rate_per_s and held.measures.ttft.mean <= 3000
    assert held.measures.device_w <= 300 and held.measures.requests_per_s < held.best.rate_per_s


def test_a_limit_of_a_machine_counts_all_engines_that_a_recommendation_puts_there():
    """Eight engines of a GPU within 2.24 kW, of which one is served, are as one within 280 W."""
    found, asked = [], {"arrivals": {"rate": "8/s"}, "input": {"fixed": 2048}, "output": {"fixed": 8}, "count": 60}
    for power, offered in (({"die_limit": "280 W"}, 1), ({"limit": "2.24 kW"}, 8)):
        serving = of_machine(mine(power=power), tp=1, model="llama-3.1-8b", requests=asked)
        choice = Configuration(serving.spec.parallel, 1, 16, 8192)
        kinds = [SimpleNamespace(serving=serving, offer=SimpleNamespace(gpu="h200", devices=offered))]
        part = Race(None, kinds, None).part(find_curve, Tried(0, choice, 8.0, 1e9))
        engines = SharedEngines(Workspace())
        deployment, requests = part.deployment(engines, choice), part.requests_at(engines, 8.0)
        engine = part.sides(engines, choice)[0][0]
        found.append(serve_at_clock(serving, deployment, engine, requests)[-1])
    assert found[0][:2] == found[1][:2] and found[0].w_per_die <= 280 and found[0].clock < 1


def test_the_highest_rate_is_that_at_the_clock_within_the_limits(monkeypatch):
    monkeypatch.setattr(highest_rate, "ENOUGH", 60)
    monkeypatch.setattr(highest_rate, "SUSTAINED", 60)
    rates, asked = [], {"arrivals": {"rate": "4/s"}, "input": {"fixed": 2048}, "output": {"fixed": 8}, "count": 60}
    for power in (None, {"die_limit": "2 kW"}, {"die_limit": "280 W"}):
        slo = {"ttft": "1 s"}
        serving = of_machine(mine(power=power), tp=1, model="llama-3.1-8b", requests=asked, slo=slo)
        deployment = deploy(serving)
        rates.append(highest_rate.highest_rate(serving, deployment, requests_on(serving, deployment)))
    assert rates[0] == rates[1] > 1.05 * rates[2] > 0


def test_pools_within_limits_are_refused_by_name():
    side = {"parallel": {"attention": {"tp": 1}}}
    given = {
        "system": mine(power={"die_limit": "300 W"}), "model": "llama-3.1-8b", "precision": FP8, "engine": "none",
        "disaggregated": {"prefill": side, "decode": side},
        "requests": {"concurrency": 1, "input": {"fixed": 64}, "output": {"fixed": 4}, "count": 2},
    }  # fmt: skip
    for ask in (serve, check_serving):
        with pytest.raises(SpecError, match="limit the clock .* not modelled for pools.*disaggregated"):
            ask(load_serving(given))
    assert serve(load_serving(given | {"system": mine()})).measures.ttft.mean > 0


def test_power_of_a_wafer_that_serves_lies_between_its_idle_and_its_public_power():
    found = serve(load_serving("configs/serve_wse3.yaml")).measures
    joule = found.output_token_j / found.device_w  # of all devices in the time of a token
    assert 0.154 * 46225 < 32 * found.device_w < 23_000 and found.device_w_low < found.device_w < found.device_w_high
    assert joule == pytest.approx(32 / found.output_tokens_per_s, rel=0.1)
    assert 23_000 / 2 < full_load_w(build_costs(load_system("wse3"))) < 23_000 * 2  # a system (Cerebras)


def test_kernels_of_a_die_of_its_own_take_their_latency_and_a_roofline():
    """Twice the latency is that much later for each of 4 products, attention and the small kernels of 32 layers."""

    def tpot_ms(latency, **compute):
        system = {"like": "wse3", "name": "own", "compute": {"kernel_latency": latency} | compute}
        return times_ms(load_serving(read_yaml("configs/serve_wse3.yaml").data | {"system": system}))[1]

    one, two, three = (tpot_ms(f"{us} us") for us in (1, 2, 3))
    assert two - one == pytest.approx(three - two, rel=1e-3)
    assert 32 * 5 * 1e-3 < two - one < 32 * 15 * 1e-3


def test_a_pipeline_of_dies_passes_their_own_links():
    """Nine stages of 64 chips: a vector of 16 KB leaves each by its own port, over three hops of 722 ns."""
    serving = load_serving("configs/serve_lpu.yaml")
    engine = engine_of(serving, serving.spec.parallel)
    none, some = engine.links.next_stage_ns(np.array([0, 16384]), 64, 9)
    assert none == pytest.approx(3 * 722) and some - none == pytest.approx(16384 / (50 * 0.9))
    overlap = pipeline_of(engine, 2)
    assert overlap.stages == 9 and overlap.hop_ns == pytest.approx([0, some])
