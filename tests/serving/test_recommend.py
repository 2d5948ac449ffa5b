"""``archsim recommend``: cases derived by hand, and one small question from the command line."""

import json
import os
import re
import shlex
import signal
import subprocess
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from measured_serving.accuracy import Point
from measured_serving.choices import with_clients, within_limits
from measured_serving.split import pools_of
from support.examples import examples

import archsim as ar
from archsim.base.errors import ArchsimError, CapacityError, FailedRuns, SpecError, TraceError
from archsim.cli.main import main
from archsim.iteration.constants import host_file, host_of
from archsim.iteration.layers import (
    DECODES,
    PROMPTS,
    SAMPLED,
    TOKENS,
    Stream,
    count_operators,
    has_experts,
    program,
    row_flop,
)
from archsim.laws.calibration_files import calibration_named
from archsim.runs.executor import do_all
from archsim.runs.run import Workspace
from archsim.serving.answers.chances import Factors, drawn_rates
from archsim.serving.answers.configuration import Configuration, with_choice
from archsim.serving.answers.engines import SharedEngines, estimate_of, estimate_rate, largest
from archsim.serving.answers.highest_rate import Curve
from archsim.serving.answers.kubernetes import llm_d_values, manifests
from archsim.serving.answers.question import MOST_DEVICES, asked_of, file_of, kinds_of, unread_by
from archsim.serving.answers.race import PartOfRace, Race, Rounds, Tried
from archsim.serving.answers.recommend import (
    _ask_alone,
    _estimates,
    _most_ranks,
    _race_sizes,
    _refusal,
    _serve_best,
    _too_few,
    recommend,
    requests_shown,
)
from archsim.serving.answers.recommendation import _describe_precision, answer
from archsim.serving.answers.results import ConfigurationResult
from archsim.serving.answers.results import answer as search_answer
from archsim.serving.answers.search import OfLayout, layouts, search, serving_under, unread_by_search
from archsim.serving.answers.start import DECODE, PREFILL, Started, arguments, gpus_of_host, options_file, script
from archsim.serving.engine import ServingEngine
from archsim.serving.file_requests import requests_of
from archsim.serving.measures import Spread, usd_per_million
from archsim.serving.power import activity, energy
from archsim.serving.records import ITERATION, TOTALS
from archsim.serving.requests import without_hashes
from archsim.serving.serving import check_serving
from archsim.specs.deployment import AttentionRanks, ExpertRanks, Parallelism, ParallelSpec, Precision
from archsim.specs.library import load_model, load_system
from archsim.specs.serving import RequestSpec, SloSpec
from archsim.specs.serving_files import load_serving


def curve_of(*tpots_ms):
    """Rates 1, 2, 3, …; at each, these times per output token of as many requests alike, in ms."""
    times = np.array(tpots_ms, float) * 1e6
    return Curve(np.arange(1.0, len(times) + 1), np.stack([np.zeros_like(times), times, np.zeros_like(times)], axis=1))


@pytest.mark.parametrize(
    ("given", "users", "shown"),
    [(4, 0, 2000), (3000, 0, 2000), (3000, 1500, 4500), (3000, 5000, 6000), (6000, 5000, 6000), (9000, 2500, 7500)],
)
def test_the_run_that_is_shown_repeats_short_traces_alone(given, users, shown):
    """Three times the users, and at least 2,000. Nothing is repeated beyond 6,000; a longer trace is not cut there."""
    every = without_hashes(np.arange(given) * 1e9, np.full(given, 8), np.full(given, 2))
    some = requests_shown(every, users)
    assert len(some.input) == shown and some.offered_per_s == pytest.approx(1.0)


LIMITS = np.array([np.inf, 50e6, np.inf])
KIND = SimpleNamespace(
    engine="vllm", precision="fp8", offer=SimpleNamespace(gpu="h200"),
    serving=SimpleNamespace(spec=SimpleNamespace(slo=SimpleNamespace(ttft_ns=None, tpot_ns=50e6, e2e_ns=None))),
)  # fmt: skip


def test_the_highest_rate_lies_where_nine_tenths_are_within_the_limits():
    # All of ten requests at rate 1; 8 of 10 at rate 2: 90 % lie half way between.
    shares = curve_of([40] * 10, [40] * 8 + [60] * 2, [60] * 10)
    assert shares.highest(LIMITS) == pytest.approx(1.5)
    assert curve_of([40] * 10, [45] * 10).highest(LIMITS) == 2.0  # the grid ends
    assert curve_of([60] * 10).highest(LIMITS) == 0.0


def test_a_system_that_takes_twice_as_long_serves_half_of_the_rate_of_half_the_limit(monkeypatch):
    # Twice as long: its times at rate 1 are those of rate 2, doubled, so 50 ms here are 25 ms on the curve.
    curve = curve_of([20] * 10, [25] * 10, [40] * 10, [60] * 10)
    tried = SimpleNamespace(kind=0, choice=Configuration(ParallelSpec(), 1, 64, 4096))
    monkeypatch.setattr(
        "archsim.serving.answers.chances.factors_of",
        lambda kind, choice: Factors((0.0, float(np.log(2))), (0.0, 0.0), 4),
    )
    slow = drawn_rates([KIND], [tried], [curve])
    assert np.allclose(slow, curve.highest(np.array([np.inf, 25e6, np.inf])) / 2)
    monkeypatch.setattr(
        "archsim.serving.answers.chances.factors_of", lambda kind, choice: Factors((0.0, 0.0), (0.0, 0.0), 4)
    )
    assert np.allclose(drawn_rates([KIND], [tried], [curve]), curve.highest(LIMITS))


def test_errors_of_a_cell_of_one_group_move_all_of_its_sizes_together(monkeypatch):
    curve = curve_of(*([10 * at] * 10 for at in range(1, 9)))
    sizes = [SimpleNamespace(kind=0, choice=Configuration(ParallelSpec(), 1, seqs, 4096)) for seqs in (32, 64)]
    monkeypatch.setattr(
        "archsim.serving.answers.chances.factors_of", lambda kind, choice: Factors((0.0, 0.0), (0.1, 0.1), 1)
    )
    together = drawn_rates([KIND], sizes, [curve, curve])
    assert np.array_equal(together[0], together[1])
    monkeypatch.setattr(
        "archsim.serving.answers.chances.factors_of", lambda kind, choice: Factors((0.0, 0.0), (0.1, 0.1), 100)
    )
    apart = drawn_rates([KIND], sizes, [curve, curve])
    assert np.corrcoef(apart)[0, 1] < 0.2


def one_request(model, **totals):
    """One request of 10 prompt and 3 output tokens on one GPU, in 3 iterations of 0.3 s: 12 tokens are computed."""
    log = np.zeros(3, ITERATION)
    log["end_ns"], log["decodes"], log["chunk_tokens"] = 3e8, [0, 1, 1], [10, 0, 0]
    requests = np.zeros(1, [(n, "i8") for n in ("input", "output", "hit")] + [("arrival_ns", "f8"), ("last_ns", "f8")])
    requests["input"], requests["output"], requests["last_ns"] = 10, 3, 1e9
    engine = ServingEngine(model, calibration_named("h200"), 141e9, Parallelism(), Precision())
    counts = dict.fromkeys(TOTALS.names, 0) | {"iterations": 3} | totals
    return SimpleNamespace(requests=requests, log=log, totals=counts), engine, load_system("h200_node"), 1


def test_energy_follows_from_weights_kv_and_products():
    model = load_model("llama-3.1-8b")
    found = activity(*one_request(model))
    flop = row_flop(model, Parallelism())
    weights = sum(flop.values()) / 2  # of all products, the head among them
    of_tokens = sum(each for (rows, _), each in flop.items() if rows == TOKENS)
    kv = model.layers * 2 * 8 * 128 * 2  # bytes of a token: 8 heads of 128, keys and values in BF16
    read = kv * (11 + 12)  # two decodes, with what is before them and their own token
    assert found.tokens == 3 and found.time_s == 1.0
    streams = [each for each in count_operators(program(model, Parallelism())) if isinstance(each, Stream)]
    moved = sum((12 if each.rows == TOKENS else 3) * each.row_bytes for each in streams)
    assert found.hbm_bytes == pytest.approx(3 * 2 * weights + read + moved, rel=0.001)
    assert found.kernel_s == pytest.approx(0.9, rel=1e-3)  # three iterations of 0.3 s
    assert found.flop == pytest.approx(12 * of_tokens + 3 * (sum(flop.values()) - of_tokens), rel=0.001)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3"])
def test_drafts_take_the_energy_of_what_verifies_and_drafts_them(model):
    model, joules, found = load_model(model), {}, {}
    flop = {
        rows: sum(each for (of, _), each in row_flop(model, Parallelism()).items() if of == rows)
        for rows in (TOKENS, DECODES, PROMPTS, SAMPLED)
    }
    of_decodes, head = flop[TOKENS] + flop[DECODES], flop[SAMPLED]
    of_prompts = flop[TOKENS] + flop[PROMPTS]
    if has_experts(model):
        experts = 2.0 * len(model.moe_layer_ids) * model.top_k * model.slices * model.slice_weights
        of_decodes, of_prompts = of_decodes + experts, of_prompts + experts
    for share, n in product((0.0, 1 / model.layers), range(4)):  # of n-grams, then of a layer; none is accepted
        case = one_request(model, drafts=n, depth=n, drafted=2 * n, draft_share=share * (n > 0))
        found[share, n], joules[share, n] = activity(*case), sum(energy(*case)[0].values())
    for n in range(1, 4):
        plain, verified, drafted = found[0.0, 0], found[0.0, n], found[share, n]
        assert verified.flop - plain.flop == pytest.approx(2 * n * (of_decodes + head), rel=0.01)
        more = share * (2 * n * of_decodes + 10 * of_prompts) + 2 * n * head
        assert drafted.flop - verified.flop == pytest.approx(more, rel=0.01)
        read = share * ((2 * n + 1) * flop[TOKENS] + 2 * n * flop[DECODES]) + 2 * n * head  # 2 bytes a weight, 2 FLOP
        assert drafted.hbm_bytes - verified.hbm_bytes > read
        assert joules[0.0, n - 1] < joules[0.0, n] < joules[share, n] and joules[share, n - 1] < joules[share, n]
        refused = one_request(
            model, drafts=n, depth=n, drafted=n, accepted=1, draft_share=share
        )  # one decode makes two
        assert sum(energy(*refused)[0].values()) < joules[share, n]


def test_a_million_tokens_at_a_thousand_a_second_take_a_thousand_seconds_of_rent():
    assert usd_per_million(3.6, 1000.0) == pytest.approx(1.0)
    assert usd_per_million(3.6, 0.0) == float("inf")


def started(engine, **changes):
    parallel = ParallelSpec(attention=AttentionRanks(tp=2, dp=4), experts=ExpertRanks(ep=8, tp=1))
    of = Started(engine, load_model("qwen3-235b-a22b"), parallel, Precision(kv="fp8"), 2, 64, 4096)
    return of._replace(**changes)


def test_each_engine_is_started_as_it_counts_its_ranks_and_limits():
    vllm, sglang = (" ".join(arguments(started(each))) for each in ("vllm", "sglang"))
    assert "--tensor-parallel-size 2 --data-parallel-size 4 --enable-expert-parallel" in vllm
    assert "--max-num-seqs 64 --max-num-batched-tokens 4096" in vllm  # of a rank
    assert "--tp-size 8 --enable-dp-attention --dp-size 4 --ep-size 8" in sglang
    assert "--max-running-requests 256 --chunked-prefill-size 16384" in sglang  # of all ranks
    trtllm = " ".join(arguments(started("trtllm")))
    assert "--tp_size 8 --ep_size 8 --max_batch_size 64 --max_num_tokens 4096" in trtllm
    options = yaml.safe_load(options_file(started("trtllm")))
    assert options["enable_attention_dp"] is True and options["kv_cache_config"]["dtype"] == "fp8"
    assert options_file(started("vllm")) == ""


SIZES = {1: (1, 1), 2: (2, 1), 4: (2, 2), 8: (2, 4), 16: (2, 8)}  # ranks: tensor and data parallel


def sized(engine, role, instances, ranks):
    tp, dp = SIZES[ranks]
    parallel = ParallelSpec(attention=AttentionRanks(tp=tp, dp=dp), experts=ExpertRanks(ep=ranks, tp=1))
    return started(engine, role=role, instances=instances, parallel=parallel)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("pools, hosts", [
    ([("both", 1, 8)], 1), ([("both", 4, 2)], 1), ([("both", 3, 8)], 3), ([("both", 2, 16)], 4),
    ([(PREFILL, 2, 1), (DECODE, 1, 2)], 1), ([(PREFILL, 3, 2), (DECODE, 2, 1)], 1),
    ([(PREFILL, 2, 4), (DECODE, 1, 16)], 3),
])  # fmt: skip
def test_a_script_starts_every_engine_on_gpus_and_ports_of_its_own_behind_a_router(tmp_path, engine, pools, hosts):
    every = [sized(engine, *pool) for pool in pools]
    text = script(every, 8)
    file = tmp_path / "start.sh"
    file.write_text(text)
    assert subprocess.run(["bash", "-n", str(file)], capture_output=True).returncode == 0
    commands = [line for line in text.splitlines() if "CUDA_VISIBLE_DEVICES=" in line]
    used = []
    for line in commands:
        gpus = re.search(r"CUDA_VISIBLE_DEVICES=([\d,]+)", line)[1].split(",")
        host = int((re.search(r'"\$HOST" != (\d+)', line) or [0, 0])[1])
        of_mpi = "mpirun" in line
        used += [(each, gpu) for each in range(host, host + (line.count("HOSTS[") if of_mpi else 1)) for gpu in gpus]
    assert len(set(used)) == len(used) == sum(n * ranks for _, n, ranks in pools)
    assert max(host for host, _ in used) == hosts - 1
    engines = sum(n for _, n, _ in pools)
    heads = [line for line in commands if "--headless" not in line and "--node-rank 1" not in line]
    assert len(heads) == engines
    names = "--port|--disaggregation-bootstrap-port|--data-parallel-rpc-port|--master-port"
    ports = [port for line in heads for port in re.findall(rf"(?:{names}) (\d+)", line)]
    ports += [port for line in heads for port in re.findall(r"(?:SIDE_CHANNEL_PORT=|dist-init-addr \S+:)(\d+)", line)]
    assert len(set(ports)) == len(ports) and all(1024 < int(port) < 32768 for port in ports)
    routers = re.findall("^(nginx -c|vllm-router|trtllm-serve disagg|python.*launch_router)", text, re.MULTILINE)
    assert len(routers) == (engines > 1)
    if engines > 1:
        behind = text[text.index("\ndone\n") :]
        assert {re.search(r"--port (\d+)", line)[1] for line in heads} <= set(re.findall(r":(\d+)", behind))
        assert "8000" in behind and "8000" not in ports
    assert ("--attn-dp-size" in text) == (engine == "sglang" and any(ranks > 2 for _, _, ranks in pools))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("pools", [[("both", 3, 8)], [("both", 2, 16)], [(PREFILL, 2, 4), (DECODE, 1, 2)]])
def test_kubernetes_starts_engines_with_the_arguments_of_the_script(engine, pools):
    every = [sized(engine, *pool)._replace(checkpoint="owner/name", drafts=2) for pool in pools]
    lines = [line for line in script(every, 8).splitlines() if "CUDA_VISIBLE_DEVICES=" in line]

    def flags(text):  # of one host, without addresses and ports
        text = text.replace("$ATTENTION", "--enable-dp-attention --dp-size")
        words = [word.strip("'") for word in shlex.split(text.rstrip("& "))]
        at = next(at for at, word in enumerate(words) if word.startswith("--"))
        found = dict(zip(words[at:], [*words[at + 1 :], ""], strict=True))
        return {key: value for key, value in found.items() if key.startswith("--") and not re.search(
            "host|port|addr|rank|nnodes|headless", key)}  # fmt: skip

    objects = list(yaml.safe_load_all(yaml.safe_dump_all(manifests(every, 8))))
    wide = any(ranks > 8 for *_, ranks in pools)
    assert bool(objects) == (len(pools) == 1 and not (engine == "trtllm" and wide))
    for each in objects:
        if "spec" in each and each["kind"] != "Service":
            spec = each["spec"].get("leaderWorkerTemplate", {"leaderTemplate": each["spec"].get("template")})
            assert each["spec"]["replicas"] == pools[0][1] and spec.get("size", 1) == (2 if wide else 1)
            (container,) = spec["leaderTemplate"]["spec"]["containers"]
            assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
            assert flags(container["command"][-1].splitlines()[-1]) == flags(lines[0].split("CUDA_VISIBLE_DEVICES=")[1])
            assert subprocess.run(["bash", "-n", "-c", container["command"][-1]], check=True)
    values = yaml.safe_load(yaml.safe_dump(llm_d_values(every, 8)))
    assert bool(values) == (engine == "vllm" and not wide)
    for (role, instances, _), started_at in zip(pools, (0, 2), strict=False):
        if values:
            own = values["prefill" if role == PREFILL else "decode"]
            (container,) = own["containers"]
            assert own["replicas"] == instances and container["args"][0] == "owner/name"
            mine = " ".join(map(shlex.quote, container["args"][1:]))
            assert flags(mine) == flags(lines[started_at].split('MODEL"')[1])


def test_a_script_says_what_is_missing_before_anything_starts(tmp_path):
    for engine, missing in (("vllm", "vllm"), ("sglang", "sglang"), ("trtllm", "trtllm-serve")):
        text = script([sized(engine, "both", 2, 16)], 8)
        done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 2 and f"{missing} is missing" in done.stderr and not list(tmp_path.iterdir())
    systems = "h200_cluster", "gb200_nvl72", "rtx_pro_6000_pair"
    assert [gpus_of_host(load_system(each)) for each in systems] == [8, 4, 2]


def test_a_gpu_without_a_number_is_one_node_and_a_checkpoint_has_its_precision():
    asked = asked_of("Qwen/Qwen3-32B-FP8", ["h200"], tpot="50ms")
    assert [asked_of(name, ["h200"]).model_name for name in ("deepseek-r1", "deepseek-ai/DeepSeek-V3")] == [
        "deepseek-r1 (as deepseek-v3)", "deepseek-v3",
    ]  # fmt: skip
    assert asked.notes == ("`--on h200` means one h200_node of 8 GPUs. Give `--on h200:N` for N GPUs.",)
    assert (asked.model.name, asked.precisions) == ("qwen3-32b", ("fp8",))
    assert not asked_of("qwen3-32b", ["h200"], tpot="50ms", usd_per_hour=50).notes  # as many as these buy
    with pytest.raises(SpecError, match="int4 is not compared"):
        asked_of("Qwen/Qwen3-32B-INT4", ["h200"], tpot="50ms")


def test_a_machine_with_changed_keys_is_what_is_asked_estimated_and_written():
    """As of a file of `archsim serve` with the same keys."""
    changed = ["system.hbm.bandwidth=9.6TB/s"]
    fast = asked_of("olmoe-1b-7b", ["h200:1"], tpot="50ms", engines=["vllm"], overrides=changed)
    plain, kind = (kinds_of(asked)[0] for asked in (fast._replace(overrides=()), fast))
    assert kind.offer.system.hbm.bandwidth_bytes_per_s == 2 * plain.offer.system.hbm.bandwidth_bytes_per_s
    written = load_serving(file_of(fast, kind.offer, "vllm", kind.dtypes))
    assert written.system == kind.offer.system == kind.serving.system
    assert "The machine has system.hbm.bandwidth=9.6TB/s, which its files do not say." in fast.notes
    with pytest.raises(SpecError, match="unknown key; did you mean 'bandwidth'"):
        kinds_of(fast._replace(overrides=("system.hbm.bandwith=1TB/s",)))


def test_weights_without_an_arithmetic_of_their_own_are_of_vllm_and_named():
    (kind,) = kinds_of(asked_of("Qwen/Qwen3-32B-FP8", ["a100:8"], tpot="50ms"))
    assert (kind.engine, kind.recipe) == ("vllm", "FP8 weights, BF16 arithmetic")
    assert "FP8 weights, BF16 arithmetic" in _describe_precision(SimpleNamespace(kind=kind))
    with pytest.raises(SpecError, match="no FP8 arithmetic.* of sglang"):
        kinds_of(asked_of("Qwen/Qwen3-32B-FP8", ["a100:8"], tpot="50ms", engines=["sglang"]))


@pytest.mark.parametrize(("name", "inside", "outside"), [
    ("deepseek-v3", "attention inputs in BF16", "output in BF16"),
    ("nvidia/DeepSeek-R1-FP4", "attention inputs in BF16, attention output in BF16", "none"),
    ("qwen3-235b-a22b", "weights in nvfp4", "BF16"),
])  # fmt: skip
def test_an_answer_and_its_script_say_what_stays_in_bf16(name, inside, outside):
    asked = asked_of(name, ["b200"], tpot="50ms", engines=["trtllm"], precisions=["nvfp4"])
    (kind,) = kinds_of(asked)
    said = _describe_precision(SimpleNamespace(kind=kind))
    assert inside in said and outside not in said
    assert kind.weights.kept == kind.serving.spec.precision.dtypes("fp8", kind.serving.model).kept
    text = script([started("trtllm", model=kind.serving.model, precision=kind.weights)])
    assert (kind.weights.kept_words + "; set MODEL") in text


def test_keys_of_a_machine_that_no_engine_reads_are_said_to_have_no_effect(tmp_path):
    for name, keys in (("mine", {"llc": {"hit": "100 ns"}, "hbm": {"bandwidth": "4 TB/s"}}), ("plain", {})):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({"like": "h100_node", "name": name, **keys}))
    mine, plain = (f"{tmp_path / name}.yaml:8" for name in ("mine", "plain"))
    said = [[*unread_by(kinds_of(asked_of("qwen3-32b", on, tpot="50ms", prices={"h100": 2.0})))]
            for on in ([mine], [plain], [mine, plain])]  # fmt: skip
    assert len(said[0]) == 1 and said[0][0].startswith("system.llc.hit has no effect: ") and said[1] == []
    assert said[2] == [f"{tmp_path / 'mine'}.yaml: {said[0][0]}"]


def test_a_rate_asks_how_many_gpus_and_needs_no_price_of_one_kind():
    asked = asked_of("qwen3-235b-a22b", ["h200"], rate=20)
    assert not asked.notes and asked.offers[0].devices >= 1000 and asked.offers[0].system.name == "h200_cluster"
    assert asked_of("qwen3-235b-a22b", ["h200"], rate=20, usd_per_hour=100).offers[0].devices < 100
    (note,) = asked_of("qwen3-235b-a22b", ["h200"], rate=20, prices={"h200": 2.0, "b200": 3.0}).notes
    assert "b200 has no effect" in note
    assert [_most_ranks(asked.offers[0], offers) for offers in (1, 2)] == [32, 16]
    own = asked_of("qwen3-235b-a22b", ["rtx_pro_6000_pair"], rate=1)
    assert own.offers[0].devices >= 1000 and own.objective == "price"
    with pytest.raises(SpecError, match="objective energy: rate finds the cheapest"):  # what is named is what counts
        asked_of("qwen3-235b-a22b", ["h200"], rate=20, objective="energy")


def test_drafts_need_a_checkpoint_that_drafts():
    given = {"tpot": "50ms", "drafts": [1], "acceptance": 0.8}
    assert not asked_of("deepseek-v3", ["h200:8"], **given).notes
    assert "not known whether" in asked_of("qwen3-235b-a22b", ["h200:8"], **given).notes[-1]
    with pytest.raises(SpecError, match="drafts 1: kimi-k2 has no MTP layer"):
        asked_of("kimi-k2", ["h200:16"], **given)


def test_too_few_gpus_for_a_rate_are_refused_with_the_number_that_answers_it():
    def refusal(rates, devices=32, pools=False, budget=()):
        kind = SimpleNamespace(offer=SimpleNamespace(gpu="h200", devices=devices))
        choice = Configuration(ParallelSpec(attention=AttentionRanks(tp=8)), 4, 64, 4096)
        row = SimpleNamespace(kind=kind, choice=choice, rate_per_s=20.0)
        return _too_few(SimpleNamespace(rate=100.0, pools=pools, budget=budget), [row], rates)

    rates = np.repeat([2.0, 4.0], 50)[None]  # one engine answers 2/s in nine tenths of the samples
    assert "on h200:400" in refusal(rates) and "as many as are needed" in refusal(rates)
    # As many as are needed are not to be had beside pools, a budget, nor twice.
    for given in ({"pools": True}, {"budget": ("watts",)}, {"devices": MOST_DEVICES}):
        assert "as many as are needed" not in refusal(rates, **given)
    assert "aise watts or" in refusal(rates, budget=("watts",)) and "h200:" not in refusal(rates, budget=("watts",))
    assert "Raise the limits" in refusal(np.zeros((1, 100)))  # no number of engines that hardly answer is known


def test_more_engines_at_a_rate_each_have_the_times_of_one(monkeypatch):
    monkeypatch.setattr("archsim.serving.answers.recommendation.FULL_REQUESTS", 300)
    kind = kinds_of(asked := asked_of("llama-3.1-8b", ["h200:8"], tpot="50ms", engines=["vllm"]))[0]
    race, seen = Race(asked, [kind], requests_of(kind.serving)), []
    for number in (1, 8):
        choice = Configuration(ParallelSpec(), number, 256, 8192, precision=kind.dtypes)
        best = SimpleNamespace(kind=kind, choice=choice, rate_per_s=20.0 * number)
        tried = Tried(0, choice._replace(instances=1), 20.0, 5e9)
        seen.append(_serve_best(race, tried, best, SharedEngines(Workspace()))[0])
    one, eight = seen
    assert eight.tpot == one.tpot and eight.e2e == one.e2e
    assert eight.output_tokens_per_s == pytest.approx(8 * one.output_tokens_per_s)


def test_default_lengths_fit_the_positions_of_the_model():
    usual = asked_of("llama-3.1-8b", ["h200:8"], tpot="50ms")
    assert (usual.requests["input"]["mean"], usual.requests["output"]["mean"], usual.notes) == (1024, 512, ())
    short = asked_of("olmoe-1b-7b", ["h200:8"], tpot="50ms")
    prompt, answer = (short.requests[side]["mean"] for side in ("input", "output"))
    assert 512 <= prompt < 1024 and prompt == pytest.approx(2 * answer, abs=32)
    assert short.notes == (
        f"Prompts have {prompt} tokens and outputs {answer} on average, not 1,024 and 512, so that the longest request "
        "fits the 4,096 positions of olmoe-1b-7b.",
    )
    for asked in (short, asked_of("olmoe-1b-7b", ["h200"], tpot="50ms", output_tokens=100)):
        drawn = requests_of(kinds_of(asked)[0].serving)  # refuses what is too long
        assert (drawn.input + drawn.output).max() <= 4096
    own = asked_of("olmoe-1b-7b", ["h200:8"], tpot="50ms", input_tokens=4000, output_tokens=2000)
    assert own.requests["input"]["mean"] == 4000 and not own.notes
    with pytest.raises(TraceError, match="olmoe-1b-7b has 4,096 positions"):
        recommend(own)


def test_a_budget_bounds_the_gpus():
    of = asked_of("llama-3.1-8b", ["h200"], tpot="50ms", usd_per_hour=16.0, watts=4900.0)
    assert of.offers[0].devices == 7  # ten for 16 USD at 1.60, seven for 4,900 W at 700


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """From the command line, on two GPUs."""
    out = tmp_path_factory.mktemp("asked")
    words = "recommend llama-3.1-8b --on h200:2 --ttft 2s --tpot 10ms --engine vllm --engine sglang --jobs 1 --json"
    lines = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("archsim.cli.printing.print_json", lines.append)
        patch.setattr("archsim.serving.answers.question.MOST_REQUESTS", 400)
        patch.setattr("archsim.serving.answers.recommendation.FULL_REQUESTS", 400)
        assert main([*words.split(), "--out", str(out / "files")]) == 0
    return lines[0], out / "files"


def test_the_answer_is_a_sentence_and_its_numbers_hang_together(found):
    result, _ = found
    best = result["best"]
    assert result["answer"].startswith("Serve llama-3.1-8b with ") and " configurations. " in result["answer"]
    assert best["rate_low_per_s"] < best["rate_per_s"] < best["rate_high_per_s"]
    assert sum(row["probability"] for row in result["compared"]) == pytest.approx(1.0)
    assert best["probability"] == max(row["probability"] for row in result["compared"])
    rate = re.search(r"answers ([\d.]+) requests per second \(([\d.]+) to ([\d.]+) in", result["answer"]).groups()
    assert re.search(rf"says {rate[0]} requests/s.* {rate[1]} to {rate[2]}, by ", result["why"][0])
    tokens = best["usd_per_million_output_tokens"] * best["rate_per_s"]
    assert tokens == pytest.approx(2 * 1.60 / 3600 * 1e6 / 512, rel=0.02)
    assert {row["engine"] for row in result["compared"]} == {"vllm", "sglang"}


def test_the_files_start_what_was_recommended(found):
    result, folder = found
    names = {each.name for each in folder.iterdir()}
    assert {"serve.yaml", "start.sh", "recommendation.json", "configurations.csv", "index.html"} <= names
    page = (folder / "index.html").read_text()
    assert result["answer"] in page and "output tokens/s per device" in page and "tokens/s of a user" in page
    assert json.loads((folder / "recommendation.json").read_text())["answer"] == result["answer"]
    serving = load_serving(str(folder / "serve.yaml"))
    check_serving(serving)
    assert serving.spec.scheduler.max_num_seqs == result["best"]["max_num_seqs"]
    limits = f"{result['best']['max_num_batched_tokens']}"
    assert limits in (folder / "start.sh").read_text()
    told = ar.serve(serving.given).measures
    assert told.within_slo > 0.85  # at 95 % of the rate at which 90 % are within the limits


def test_goodput_on_the_page_is_of_all_gpus(found):
    """512 tokens an answer on 2 GPUs; both numbers are rounded to three digits."""
    page = (found[1] / "index.html").read_text()
    rows = re.findall(r"<td>[^<]+ on 2 H200, ([^<]+)</td><td>([\d.]+)</td><td>[\d.]+</td><td>([\d,]+)</td>", page)
    assert any("2 x" in sizes for sizes, *_ in rows)
    for _, goodput, tokens in rows:
        assert float(goodput) * 512 / 2 == pytest.approx(float(tokens.replace(",", "")), rel=0.02)


def test_work_in_copies_is_that_of_this_process():
    here = []  # what the work refers to is copied with the process

    def work(at):
        here.append(at)
        return 6 / at

    assert dict(do_all(work, [1, 2, 3], 2)) == {at: 6 / at for at in (1, 2, 3)} and not here
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        list(do_all(work, [1, 0], 2))
    assert dict(do_all(work, [1, 2], 1)) == {1: 6.0, 2: 3.0} and here == [1, 2]


def refused_within(at):
    try:
        {}["key"]
    except KeyError as error:
        raise SpecError("search.yaml: line 3: give a key") from error


def too_large(at):
    raise CapacityError("80 GB are missing")


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("work, kind, words", [
    (refused_within, SpecError, "line 3: give a key"), (too_large, CapacityError, "80 GB are missing"),
])  # fmt: skip
def test_work_in_copies_raises_as_here(jobs, work, kind, words):
    with pytest.raises(kind, match=words):
        list(do_all(work, [1, 2], jobs))


def test_a_process_that_is_killed_names_its_task():
    with pytest.raises(ArchsimError, match="'third'.*signal 9"):
        list(do_all(lambda task: task == "third" and os.kill(os.getpid(), signal.SIGKILL), ["first", "third"], 2))


SEARCHED = {
    "system": "h200_node", "model": "llama-3.1-8b", "precision": {"products": "bf16"},
    "requests": {"arrivals": {"rate": "4/s"}, "input": {"fixed": 64}, "output": {"fixed": 8}, "count": 20},
    "search": {"devices": 2, "max_num_seqs": [8], "max_num_batched_tokens": [512]},
    "slo": {"ttft": "1 s"},
}  # fmt: skip


def few(monkeypatch):
    """Highest rates are found with few requests."""
    monkeypatch.setattr("archsim.serving.answers.highest_rate.SUSTAINED", 0)
    monkeypatch.setattr("archsim.serving.answers.highest_rate.ENOUGH", 20)
    monkeypatch.setattr("archsim.serving.serving.ENOUGH", 20)


def test_a_search_of_two_processes_finds_what_one_finds(tmp_path, monkeypatch):
    few(monkeypatch)
    serving, kept = load_serving(SEARCHED), []
    monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path / "one"))
    one = search(serving)
    monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path / "two"))
    two = search(serving, jobs=2, kept=lambda found: kept.append(len(found)))
    assert one == two and kept[-1] == 2


def test_a_search_within_limits_that_nothing_keeps_names_the_nearest(tmp_path, monkeypatch):
    few(monkeypatch)
    serving = load_serving(SEARCHED | {"slo": {"tpot": "10 us"}})
    said = search_answer(serving, search(serving))
    assert re.search(r"nearest is 1 .*TP 2, whose 90th percentiles are TPOT [\d.]+ ms.*raise slo.tpot to", said)


OPEN_LOOP, CLOSED_LOOP = {"arrivals": {"rate": "4/s"}, "count": 20}, {"concurrency": 8}
TTFT_AND_TPOT = {"ttft": "1 s", "tpot": "50 ms"}


@pytest.mark.parametrize(("slo", "load", "ttft_ms", "tpot_ms", "saturated", "ways"), [
    ({"tpot": "50 ms"}, OPEN_LOOP, 0, 50.4, "", "raise slo.tpot to 51 ms"),  # not 50, to which it rounds
    ({"tpot": "50 ms"}, OPEN_LOOP, 0, 54.4, "", "raise slo.tpot to 55 ms"),
    ({"tpot": "50 ms"}, OPEN_LOOP, 0, 49, "it is", "lower requests.arrivals.rate"),
    ({"tpot": "50 ms"}, {"trace": "some.jsonl"}, 0, 49, "it is", "lower requests.speed"),
    ({"tpot": "50 ms"}, CLOSED_LOOP, 0, 54.4, "", "raise slo.tpot to 55 ms"),
    (TTFT_AND_TPOT, OPEN_LOOP, 1040, 53, "it is", "raise slo.ttft to 1.1 s and slo.tpot to 53 ms, or lower"),
    ({"tpot": "50 ms"}, CLOSED_LOOP, 0, 49, "", "give faster devices"),
])  # fmt: skip
def test_limits_that_a_search_says_to_raise_suffice(slo, load, ttft_ms, tpot_ms, saturated, ways):
    """With two limits at the 95th percentiles, as 90 % of the requests then keep both together."""
    drawn = {"input": {"fixed": 64}, "output": {"fixed": 8}} if "trace" not in load else {}
    spec = SimpleNamespace(slo=SloSpec(**slo), requests=RequestSpec(**load, **drawn))
    ttft, tpot = ((0.0, *((ms, 9.0) if len(slo) == 1 else (9.0, ms)), 9.0) for ms in (ttft_ms, tpot_ms))
    measures = SimpleNamespace(
        goodput_per_s=0.0, saturated=saturated, ttft=Spread(0, 0, ttft), tpot=Spread(0, 0, tpot),
    )  # fmt: skip
    choice = Configuration(ParallelSpec(attention=AttentionRanks(tp=1, dp=1)), 1, 8, 512)
    said = search_answer(SimpleNamespace(spec=spec), [ConfigurationResult(choice, measures, "")])
    assert f"{ways}" in said.partition("load: ")[2] and ("raise" in said) == ("raise" in ways)
    assert ("lower" in said) == bool(saturated)


def test_a_search_that_is_ended_goes_on_from_there(tmp_path, monkeypatch):
    """A second time nothing is served, neither configurations nor rates."""
    from archsim.serving.answers import search as searching

    few(monkeypatch)
    monkeypatch.setattr("archsim.runs.sweep.KEPT_ALONE_S", 0.0)
    monkeypatch.setattr("archsim.runs.store.WORTH_S", float("inf"))  # of the cache: the folder alone keeps them
    serving, served, simulate = load_serving(SEARCHED), [], searching.serve_requests

    def interrupted(found):
        raise KeyboardInterrupt

    monkeypatch.setattr(searching, "serve_requests", lambda *given: served.append(given) or simulate(*given))
    with pytest.raises(KeyboardInterrupt):
        search(serving, folder=tmp_path, kept=interrupted)
    assert len(served) == 1
    whole = search(serving, folder=tmp_path)
    assert len(whole) == len(served) == 2
    monkeypatch.setattr("archsim.serving.answers.highest_rate.highest_rate", lambda *given: pytest.fail("is kept"))
    assert search(serving, folder=tmp_path, jobs=1) == whole and len(served) == 2


def test_a_search_that_is_ended_does_not_look_complete(tmp_path, monkeypatch, capsys):
    """It has no answer and no page, and says how it goes on; the same command then leaves nothing partial."""
    from archsim.serving.answers import search as searching

    few(monkeypatch)
    file = tmp_path / "searched.yaml"
    file.write_text(yaml.safe_dump(SEARCHED))
    command = ["serve", str(file), "--search", "--jobs", "1", "--out", str(tmp_path / "out")]
    simulate, served = searching.serve_requests, []

    def interrupted(*given):
        if served:
            raise KeyboardInterrupt
        served.append(given)
        return simulate(*given)

    with monkeypatch.context() as patch:
        patch.setattr(searching, "serve_requests", interrupted)
        assert main(command) == 130
    said = capsys.readouterr()
    there = {each.name for each in (tmp_path / "out").iterdir()}
    assert not there & {"search.csv", "best.yaml", "index.html"} and "search.partial.csv" in there
    assert "The same command resumes there" in said.err and not said.out
    assert main(command) == 0
    there = {each.name for each in (tmp_path / "out").iterdir()}
    assert {"search.csv", "best.yaml", "index.html"} <= there and "search.partial.csv" not in there


def test_a_search_serves_limits_that_bound_nothing_once(monkeypatch):
    from archsim.serving.answers import search as searching

    monkeypatch.setattr("archsim.runs.store.WORTH_S", float("inf"))  # of the cache, in which the second would find them
    monkeypatch.setattr(searching, "RATED", 0)
    # The captured graphs of 256 and 512 requests are as large, those of 4 and 8 smaller.
    sizes = {"devices": 1, "max_num_seqs": [256, 4, 512, 8], "max_num_batched_tokens": [512, 128]}
    given = SEARCHED | {"search": sizes}
    given["requests"] = given["requests"] | {"arrivals": {"rate": "60/s"}, "count": 2000}
    serving, served = load_serving(given), []

    def counted(serving, deployment, requests):
        served.append(deployment.scheduler.max_num_seqs)
        return serve(serving, deployment, requests)

    serve = searching.serve_requests
    monkeypatch.setattr(searching, "serve_requests", counted)
    found = {each.choice: each for each in search(serving)}
    bound = sorted(served)
    assert len(found) == 8 and len(bound) < 8
    monkeypatch.setattr(searching, "_unbound_run", lambda outcome, choice: None)
    for each in search(serving):
        mine, other = found[each.choice].measures, each.measures
        assert mine.kv_peak == pytest.approx(other.kv_peak) and mine.kv_mean == pytest.approx(other.kv_mean)
        assert mine._replace(kv_peak=0, kv_mean=0) == other._replace(kv_peak=0, kv_mean=0)


def test_a_rate_that_many_requests_do_not_hold_is_lowered_in_few_runs():
    from archsim.serving.answers.highest_rate import lower_until_fits

    asked = []

    def fits(rate):
        asked.append(rate)
        return rate <= 9.0

    assert 9.0 / 1.03 <= lower_until_fits(fits, 10.0) <= 9.0 and len(asked) <= 5
    assert lower_until_fits(lambda rate: False, 10.0) == 0.0


def test_a_search_answers_first_and_writes_what_to_serve(tmp_path, monkeypatch, capsys):
    few(monkeypatch)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(SEARCHED))
    lines = []
    monkeypatch.setattr("archsim.cli.printing.print_json", lines.append)
    words = ["serve", str(tmp_path / "mine.yaml"), "--search", "--jobs", "1", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    said = capsys.readouterr().out.splitlines()
    assert main([*words, "--json"]) == 0
    assert lines[0]["answer"] == said[0] and len(lines[0]["rows"]) == 2
    check_serving(load_serving(lines[0]["serve_file"]))
    assert said[0].startswith("Serve llama-3.1-8b with ")
    assert re.search(r" up to [\d,.]+ requests per second( \(.*\))?, of which 90\s% stay within ", said[0])
    assert any(line.startswith("Notation: ") for line in said)
    page = (tmp_path / "out" / "index.html").read_text()
    assert said[0] in page and "best.yaml" in page
    best = load_serving(str(tmp_path / "out" / "best.yaml"))
    check_serving(best)
    told = best.spec.parallel.attention
    assert f"tp {told.tp} dp {told.dp}" in (tmp_path / "out" / "search.csv").read_text().splitlines()[1]


SPACE = {
    "system": "h200_node", "model": "qwen3-235b-a22b", "precision": {"products": "fp8_block"},
    "requests": {"arrivals": {"rate": "4/s"}, "input": {"fixed": 64}, "output": {"fixed": 8}, "count": 20},
    "speculation": {"draft_tokens": 3, "acceptance": [0.8, 0.7, 0.5]},
    "search": {"devices": 8, "max_num_seqs": [64], "max_num_batched_tokens": [2048], "pp": [1, 2], "context": [1, 2],
               "draft_tokens": [0, 2], "decode_max_num_seqs": [32], "pools": ["colocated", "unlike"]},
}  # fmt: skip


def test_keys_that_a_search_chooses_are_said_to_have_no_effect():
    given = {"parallel": {"attention": {"tp": 8}}, "scheduler": {"name": "vllm_v1", "max_num_seqs": 8}}
    swept = {"sweep": {"grid": {"precision.kv": ["bf16", "fp8"]}}}
    assert not [*unread_by_search(load_serving(SPACE))]
    chosen, axis = unread_by_search(load_serving(SPACE | given | swept))
    assert chosen.startswith("parallel and scheduler.max_num_seqs have no effect: a search chooses")
    assert axis.startswith("precision.kv has no effect: ")


def test_every_configuration_of_a_search_is_a_file_that_says_the_same():
    serving, seen = load_serving(SPACE), set()
    for drafts in serving.spec.search.draft_tokens:
        kind = serving_under(serving, serving.policy, None, drafts)
        every = 1 if examples(100) == 100 else 40  # of pools whose sizes differ
        for layout in [each for at, each in enumerate(layouts(serving)) if each.decode is None or at % every == 0]:
            for choice in OfLayout(kind, None, drafts, layout).choices:
                given = with_choice(serving.given, choice)
                own, sides = load_serving(given).spec, {}
                for name, side in own.sides.items():
                    sides[name] = side.parallel, side.instances, side.max_num_seqs
                assert sum(side.parallel.devices * side.instances for side in own.pools) == choice.devices == 8
                assert own.speculation == kind.spec.speculation
                assert (own.speculation == "none") == (drafts == 0)
                if choice.prefill:
                    assert sides["decode"] == (choice.decode, choice.instances - choice.prefill, choice.decode_seqs)
                    assert sides["prefill"][:2] == (choice.parallel, choice.prefill)
                else:
                    assert own.parallel == choice.parallel
                seen.add((choice.parallel.pp, choice.parallel.attention.context, drafts, choice.decode_seqs))
    assert len(seen) == 2 * 2 * 2 * 2


def test_a_configuration_is_measured_as_the_file_that_it_makes(monkeypatch):
    """Also where the search has larger batches, whose captured graph is larger, and where pools have constants."""
    few(monkeypatch)
    given = SEARCHED | {
        "engine": "vllm", "requests": SEARCHED["requests"] | {"arrivals": {"rate": "40/s"}},
        "search": {"devices": 2, "max_num_seqs": [4, 64], "max_num_batched_tokens": [512], "pools": [
            "colocated", "disaggregated"]},
    }  # fmt: skip
    serving, pools = load_serving(given), set()
    for layout in layouts(serving):
        part = OfLayout(serving, None, None, layout)
        for each in part.found(part.find(Workspace().of(SharedEngines))):
            own = ar.serve(with_choice(serving.given, each.choice)).measures
            for name in ("ttft", "tpot", "e2e"):
                assert getattr(each.measures, name).mean == pytest.approx(getattr(own, name).mean, rel=1e-3), each
            pools.add((each.choice.prefill, each.choice.max_num_seqs))
    assert pools == {(0, 4), (0, 64), (1, 4), (1, 64)}


@pytest.mark.parametrize("changes, words", [
    ({"speculation": "none"}, "search.draft_tokens"),
    ({"speculation": {"draft_tokens": 1, "acceptance": [0.8]}}, "2 drafts"),
    ({"speculation": {"draft_tokens": 2, "acceptance": 0.8, "tree": [2, 2]}}, "tree"),
])  # fmt: skip
def test_drafts_of_a_search_need_their_acceptance(changes, words):
    with pytest.raises(SpecError, match=words):
        load_serving(SPACE | changes)


def test_a_question_with_drafts_stages_and_context_has_kinds_that_start_so():
    asked = asked_of("qwen3-235b-a22b", ["h200:8"], drafts=[2], acceptance=0.8, stages=[2], context=[2])
    kinds = kinds_of(asked)
    assert {(each.engine, each.drafts) for each in kinds} == set(product(("vllm", "sglang", "trtllm"), (0, 2)))
    assert all(each.serving.spec.search.pp == (1, 2) for each in kinds)
    assert {each.engine for each in kinds if 2 in each.serving.spec.search.context} == {"vllm"}
    parallel = ParallelSpec(attention=AttentionRanks(tp=4, dp=1, context=2), experts=ExpertRanks(ep=4, tp=1), pp=2)
    words = " ".join(arguments(started("vllm", parallel=parallel, drafts=2)))
    assert "--pipeline-parallel-size 2 --decode-context-parallel-size 2 --speculative-config" in words
    assert "num_nextn_predict_layers: 2" in options_file(started("trtllm", drafts=2))
    for wrong, named in (({"drafts": [2]}, "Give acceptance"), ({"context": [2], "engines": ["sglang"]}, "context 2")):
        with pytest.raises(SpecError, match=named):
            asked_of("qwen3-235b-a22b", ["h200:8"], **wrong)


def test_a_race_that_is_ended_compares_what_it_has_and_goes_on_from_there(tmp_path, monkeypatch):
    """The same folder then has the answer of a race that nobody ended, and only what was missing is served."""
    from archsim.serving.answers import race

    few_requests(monkeypatch)
    given = asked_of("llama-3.1-8b", ["h200:1"], tpot="10ms", engines=["vllm", "sglang"], **SHORT)
    monkeypatch.setattr("archsim.runs.sweep.KEPT_ALONE_S", 0.0)
    monkeypatch.setattr("archsim.runs.store.WORTH_S", float("inf"))  # of the cache: the folder alone keeps them
    done, simulate, ends = [], race.PartOfRace.simulate, [True]

    def ending(part, workspace):
        if ends and part.how is race.find_curve and any(how == "find_curve" for how, _ in done):
            ends.pop()
            raise KeyboardInterrupt
        if part.how is not race.serve_few:  # which every call begins with
            done.append((part.how.__name__, part.key))
        return simulate(part, workspace)

    monkeypatch.setattr(race.PartOfRace, "simulate", ending)
    found = recommend(given, folder=tmp_path / "ended")
    assert found.ended and not found.others and "ended" in found.notes[0]
    first = done.copy()
    whole = recommend(given, folder=tmp_path / "ended")
    more = done[len(first) :]
    assert not whole.ended and whole.others and more and {how for how, _ in more} == {"find_curve"}
    done.clear()
    recommend(given, folder=tmp_path / "whole")
    assert sorted(first + more) == sorted(done)
    assert found.best.rate_per_s in [each.rate_per_s for each in (whole.best, *whole.others)]


SHORT = {"input_tokens": 512, "output_tokens": 16}


def few_requests(monkeypatch):
    """Recommendations serve few."""
    monkeypatch.setattr("archsim.serving.answers.question.MOST_REQUESTS", 100)
    monkeypatch.setattr("archsim.serving.answers.recommendation.FULL_REQUESTS", 100)


def test_limits_that_nothing_meets_name_the_nearest_and_what_would_help(monkeypatch):
    """Also where one is met with little to spare; where requests that come alone keep all, these are served."""
    few_requests(monkeypatch)
    monkeypatch.setattr("archsim.serving.answers.recommend.RACED_OF_KIND", 1)

    def asked(**limits):
        return asked_of("llama-3.1-8b", ["h200:2"], engines=["vllm"], precisions=["bf16"], **SHORT, **limits)

    def refusal(**limits):
        with pytest.raises(SpecError, match="nearest is vLLM on H200") as refused:
            recommend(asked(**limits))
        said = str(refused.value)
        return dict(re.findall(r"(\w+) to ([\d.]+ ms)", said)), re.findall(r"(?:within|every) ([\d.]+) ms", said)

    with monkeypatch.context() as patch:
        patch.setattr("archsim.serving.answers.recommend._race_sizes", lambda *_: pytest.fail("sizes were raced"))
        refusal(tpot="501us")
    ttft_ms, tpot_ms = (1.003 * float(ms) for ms in refusal(ttft="500us", tpot="500us")[1])
    raised, _ = refusal(ttft=f"{ttft_ms}ms", tpot="500us")
    assert raised.keys() == {"ttft", "tpot"} and recommend(asked(**raised)).best.rate_per_s > 0
    assert recommend(asked(tpot=f"{tpot_ms}ms")).best.rate_per_s > 0


def refusal_of(given, *tps):
    """What is said where engines of these TP serve at no rate."""
    kinds = kinds_of(given)
    sizes = [ParallelSpec(attention=AttentionRanks(tp=tp, dp=1)) for tp in tps]
    done = [Tried(0, Configuration(each, 1, 256, 8192, precision=kinds[0].dtypes), 0.0, 1e9) for each in sizes]
    race = Race(given, kinds, requests_of(kinds[0].serving))
    return _refusal(race, done, _ask_alone(race, done, Rounds(lambda text: None, 1, None)))


def test_the_nearest_to_limits_is_of_one_node_where_two_share_a_request_at_a_loss():
    given = asked_of("llama-3.1-8b", ["h100:16"], tpot="0.2ms", engines=["vllm"], precisions=["bf16"])
    assert "(1 x TP 8, bf16)" in refusal_of(given, 8, 16)


def test_engines_that_fail_on_requests_that_come_alone_say_why(monkeypatch):
    def fails(part, engines):
        raise CapacityError("no room for the longest")

    monkeypatch.setattr("archsim.serving.answers.recommend.find_alone", fails)
    given = asked_of("llama-3.1-8b", ["h100:1"], tpot="0.2ms", engines=["vllm"], precisions=["bf16"])
    assert "no room for the longest" in refusal_of(given, 1)


def test_precisions_that_are_named_are_compared_and_one_that_fits_at_no_rate_is_refused_alone(monkeypatch):
    few_requests(monkeypatch)
    given = asked_of("llama-3.1-8b", ["h200:1"], tpot="10ms", engines=["vllm"], precisions=["fp8", "bf16"], **SHORT)
    monkeypatch.setattr("archsim.serving.answers.recommend.RACED", 1)
    found = recommend(given)
    assert found.best.kind.precision == "fp8" and [each.kind.precision for each in found.others] == ["bf16"]
    assert re.search(r" In bf16 the best is vLLM \(.*\), which answers [\d.]+ requests per second \(", answer(found))
    from archsim.serving.answers import race

    def fits_in_fp8_alone(part, engines, find_curve=race.find_curve):
        if part.tried.choice.precision.products == "bf16":
            raise CapacityError("no rate is within the limits of power")
        return find_curve(part, engines)

    monkeypatch.setattr("archsim.serving.answers.recommend.find_curve", fits_in_fp8_alone)
    alone = recommend(given)
    assert alone.best.kind.precision == "fp8" and not alone.others
    assert any("is not compared: no rate is within the limits of power" in note for note in alone.notes)


def test_a_race_shows_where_the_program_failed():
    def broken(part, engines):
        return 1 / 0

    tried = Tried(0, Configuration(ParallelSpec(), 1, 8, 512), 0.0, 0.0)
    with pytest.raises(FailedRuns, match="1 of 1 runs failed(?s:.*)ZeroDivisionError(?s:.*)in broken"):
        Rounds(print, 1, None).rows([PartOfRace(load_serving(SEARCHED), broken, tried)], "sizes")


def test_what_a_search_varies_is_in_the_keys_of_its_parts():
    """Estimates, tables and the limits that are tried depend on it, so what was kept holds for it alone."""
    from archsim.serving.answers.race import PartOfRace, Tried, find_limits

    keys = []
    for change in ({}, {"max_num_seqs": [8, 16]}, {"max_num_batched_tokens": [256, 512]}, {"decode_max_num_seqs": [4]}):
        serving = load_serving(SEARCHED | {"search": SEARCHED["search"] | change})
        layout, tried = layouts(serving)[0], Tried(0, Configuration(ParallelSpec(), 1, 8, 512), 1.0, 1e9)
        parts = OfLayout(serving, None, None, layout), PartOfRace(serving, find_limits, tried)
        keys += [key for part in parts for key in (f"{type(part)} {part.key}", f"{type(part)} {part.group}")]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("tp, dp, context", [(1, 16, 1), (2, 8, 1), (16, 1, 1), (1, 2, 1), (16, 1, 2)])
def test_the_bound_of_sizes_is_no_less_than_their_estimate(tp, dp, context):
    """And an estimate that shares grids is that of an engine with tables of its own."""
    model = "olmoe-1b-7b" if context == 1 else "qwen3-235b-a22b"  # whose ranks hold copies of keys and values
    serving = load_serving(SEARCHED | {"model": model, "engine": "vllm"})
    parallel = ParallelSpec(attention=AttentionRanks(tp=tp, dp=dp, context=context))
    requests, grids, own = requests_of(serving), {}, {}
    found = estimate_of(serving, parallel, requests, own, 0.0)
    for least in (1e-9, 0.0):  # a bound that says nothing
        assert found == estimate_of(serving, parallel, requests, grids, least)
    for key, each in own.items():
        assert all(map(np.array_equal, grids[key], each))
    assert found == estimate_rate(serving, *largest(serving, parallel), requests)
    assert estimate_of(serving, parallel, requests, grids, 1e9).rate >= found.rate


@pytest.mark.parametrize("end, rounds", [("estimated", 1), ("sizes served", 2), ("nothing", 3)])
def test_no_round_of_sizes_begins_after_a_race_is_ended(end, rounds):
    begun = []

    def tried(parts, what):
        begun.append(what)
        stub.ended |= what == end
        return [part._replace(rate=part.rate or 1.0) for part in parts]

    stub = SimpleNamespace(ended=False, tried=tried)
    kind = SimpleNamespace(offer=SimpleNamespace(gpu="h200"), precision="fp8")
    asked = SimpleNamespace(precisions=())
    race = SimpleNamespace(kinds=[kind], part=lambda how, each, best=0.0: each, asked=asked)
    sizes = [Configuration(ParallelSpec(attention=AttentionRanks(tp=tp)), 1, 64, 4096) for tp in (1, 2)]
    guesses = _estimates(race, [Tried(0, each, 0.0, 1e9) for each in sizes], stub)
    _race_sizes(race, guesses, stub)
    assert len(begun) == rounds


def small(monkeypatch, *words):
    """The answer of one small question, as ``--json`` prints it."""
    lines = []
    monkeypatch.setattr("archsim.cli.printing.print_json", lines.append)
    monkeypatch.setattr("archsim.serving.answers.question.MOST_REQUESTS", 400)
    monkeypatch.setattr("archsim.serving.answers.recommendation.FULL_REQUESTS", 400)
    asked = "recommend qwen3-30b-a3b --ttft 2s --tpot 30ms --engine sglang --precision fp8 --jobs 1 --json"
    assert main([*asked.split(), *words]) == 0
    return lines[0]


@pytest.mark.nightly
def test_pools_of_a_budget_with_loads_have_files_to_start(tmp_path, monkeypatch):
    loads = tmp_path / "loads.csv"
    rows = [f"{layer},{expert},{1 + (7 * expert + layer) % 50}" for layer in range(48) for expert in range(128)]
    loads.write_text("\n".join(["layer,expert,count", *rows]) + "\n")
    out = tmp_path / "out"
    # Two H200: 3.20 USD an hour of 1.60 each, 1,400 W of 700.
    found = small(monkeypatch, "--on", "h200", "--usd", "3.3", "--watts", "2000", "--pools", "--out", str(out),
                  "--loads", str(loads))  # fmt: skip
    assert all(row["gpus"] <= 2 for row in found["compared"])
    apart = [row for row in found["compared"] if row["prefill"]]
    assert apart and all(row["instances"] == 2 and row["prefill"] == 1 for row in apart)
    assert any(each.name.startswith("placement") for each in out.iterdir())
    script = (out / "start.sh").read_text()
    best = found["best"]
    assert script.count("sglang.launch_server") == best["instances"]
    assert ("--disaggregation-mode prefill" in script) == bool(best["prefill"])
    check_serving(load_serving(str(out / "serve.yaml")))


# ---- Disaggregated points: batches by the recipes' rule, what pools are fitted to, and a choice's loss.


def points(late, iterations, slower):
    """Of two engines; simulated plainly."""
    one = {"backend": "vllm", "system": "GB200", "model": "DeepSeek-R1/V3", "is_moe": 1, "gemm_quant": "nvfp4",
           "moe_quant": "nvfp4", "origin": "inferencex_db", "decode_attention_dp": 1}  # fmt: skip
    found = []
    for group, ttft, tpot in (("A", 100.0, 6.0), ("A", 200.0, 12.0), ("B", 300.0, 20.0), ("C", 400.0, 30.0)):
        real = tpot * slower
        row = one | {"group": group, "ttft_ms": ttft + late + iterations * real, "tpot_ms": real}
        found.append(Point(row, ttft, tpot))
    return found


def test_pools_are_given_what_their_points_are_late_and_slower():
    engine, kind, cell = pools_of(points(160.0, 8, 1.1))
    assert (engine.engine, engine.request, engine.first_after) == ("vllm", 0, 9)
    assert engine.handoff == pytest.approx(160e6)
    assert (cell.gpu, cell.dtype) == ("gb200", "nvfp4") and cell.first_after is None
    assert kind.data_parallel is False and cell.data_parallel is None
    assert engine.decodes * kind.decodes * cell.decodes == pytest.approx(1.1, abs=0.03)
    assert 1 < cell.decodes < kind.decodes < engine.decodes  # held towards 1 more strongly


def test_prompts_of_data_parallel_ranks_take_as_long_as_ttft_says():
    """Simulated at factors of 1 and 2 on prompts, and measured at 1.7."""
    own = {"prefill_attention_dp": 4, "tpot_ms": 10.0}
    ttft = np.array([100.0, 200.0, 400.0, 800.0, 1600.0])

    def slower(factor):
        return [Point(row | {"group": str(at), "ttft_ms": each * 1.7 + 50}, each * factor, 10.0)
                for at, each in enumerate(ttft) for row in [points(0, 0, 1)[0].row | own]]  # fmt: skip

    found = pools_of(slower(1.0), slower(2.0))
    known = host_file().model_copy(update={"pools": found})
    of = [host_of("vllm", load_model("deepseek-v3"), "gb200", "nvfp4", "nvfp4", known, "prefill", dp) for dp in (1, 4)]
    assert of[1].prompts / of[0].prompts == pytest.approx(1.7, rel=0.1) and found[0].first_after < 8
    assert of[1].decodes == of[0].decodes


def test_pools_decode_by_their_own_constants():
    known = host_file().model_copy(update={"pools": pools_of(points(160.0, 8, 1.1))})
    model = load_model("deepseek-v3")
    both, first, then = (
        host_of("vllm", model, "gb200", "nvfp4", "nvfp4", known, pool) for pool in ("", "prefill", "decode")
    )
    slower = then.decodes / both.decodes
    assert slower == pytest.approx(then.iteration_ns / both.iteration_ns) == pytest.approx(1.1, abs=0.03)
    assert first.prompts / both.prompts == pytest.approx(known.pools[-1].decodes)
    assert first.decodes == both.decodes and first.handoff_ns == pytest.approx(160e6) and first.first_after == 9
    assert first.request_ns == 0 < both.request_ns and both.first_after == 2
    elsewhere = host_of("vllm", model, "h100", "fp8_block", "fp8_block", known, "decode")
    assert 1.01 < elsewhere.decodes / host_of("vllm", model, "h100", "fp8_block", "fp8_block", known).decodes < 1.1


def choice(gpus, tpot, simulated, clients=8):
    row = {
        "model": "m", "system": "s", "backend": "vllm", "isl_tokens": 100, "osl_tokens": 100, "precision": "fp8",
        "concurrency": clients, "gpus": gpus, "tp": gpus, "attention_dp": 1, "moe_tp": 1, "moe_ep": 1,
        "ttft_ms": 0.0, "tpot_ms": tpot,
    }  # fmt: skip
    return Point(row, 0.0, simulated)


def test_a_choice_loses_what_the_best_measured_one_has_more():
    right = [choice(1, 40.0, 41.0), choice(4, 12.0, 12.0)]
    assert with_clients(right)[:3] == (1, 0.0, 1.0)
    wrong = [choice(1, 40.0, 41.0), choice(4, 12.0, 9.0)]  # 4 GPUs: 20.8 requests a GPU against 25
    found = with_clients(wrong)
    assert found.mean == pytest.approx(1 - 40 / 48) and found.near == 0 and found.fewest == 0
    limits = within_limits(wrong)  # 12, 15, 20, 30 ms: the only one; 10: simulated within it, none measured
    assert limits.choices == 6 and np.isclose(limits.mean, (1 - 40 / 48) * 2 / 6)
