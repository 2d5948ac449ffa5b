"""What a run needs of HBM under ``memory: all``: hand cases, monotony, and refusals whose suggestions fit."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples, sampled
from support.scenarios import placed, scenario
from support.small_runs import small_model, small_system

from archsim.base.errors import CapacityError
from archsim.cli.main import main
from archsim.engine.engine import EventEngine
from archsim.iteration import rank_memory
from archsim.iteration.layers import PROJECTIONS, LayerProduct, before_attention, count_operators, dtype_of, program
from archsim.iteration.layers import SHARED as SHARED_EXPERTS
from archsim.iteration.memory import KV, fit_of, memory_fit
from archsim.iteration.misfit import levers, refuse_misfit
from archsim.iteration.rank_memory import ACTIVATIONS, ATTENTION, COLLECTIVE_BYTES, EXPERTS, SAMPLED_BYTES, SHARED
from archsim.model.spec import ModelSpec
from archsim.specs.deployment import (
    BF16,
    AttentionRanks,
    Parallelism,
    ParallelSpec,
    Precision,
    PrecisionSpec,
)
from archsim.specs.library import load_assumptions, load_model
from archsim.specs.workload import WorkloadSpec


def with_hbm(of, **changes):
    hbm = of.system.hbm.model_copy(update=changes)
    return replace(of, system=of.system.model_copy(update={"hbm": hbm}))


def test_parts_by_hand():
    """DeepSeek-V3 in FP8 on 25 dies; 100 requests live on 4 each."""
    of = scenario(model="deepseek-v3", batch=100, context=1000)
    fit = fit_of(of, placed(of))
    expert, hidden = 3 * 7168 * 2048, 7168
    assert fit.of(EXPERTS) == 58 * 11 * expert and fit.of(SHARED) == 58 * expert
    attention = of.model.attention_weights + 3 * 3 * hidden * 18432
    assert fit.of(ATTENTION) == attention + 2 * (58 * hidden * 256 + 2 * 129280 * hidden)  # routers in BF16, too
    assert fit.of(KV) == 4 * 1000 * 70_272
    assert fit.of(ACTIVATIONS) == 4 * 38.5 * 129280 > 4 * (4 * hidden + 8 * (3 * hidden + 4 * 2048))


def test_the_reserve_of_the_paper_holds_63_tokens_of_qwen3():
    """16,384 requests are 656 on the fullest of 25 dies; 10 % of 80 GB is 8 GB."""
    of = scenario(context=63)
    assert 8 * 10**9 // (656 * 192_512) == 63
    without = fit_of(scenario(context=0), placed(of)).demand_bytes.max()
    of = with_hbm(of, capacity_bytes=int(without) + 8 * 10**9, reserved_fraction=0.0)
    assert refuse_misfit(of, placed(of)).fits
    with pytest.raises(CapacityError, match=r"KV cache 8\.1 GB.*16,384.* 64 .* 63 "):
        refuse_misfit(replace(of, workload=of.workload.model_copy(update={"context": 64})), placed(of))


MODELS = st.sampled_from(["qwen3-235b-a22b", "deepseek-v3", "gpt-oss-20b", "llama-4-maverick"])


@settings(max_examples=examples(40))
@given(
    model=MODELS,
    batch=st.integers(1, 30_000),
    context=st.integers(0, 20_000),
    more=st.integers(0, 5_000),
    kv=st.sampled_from(["bf16", "fp8"]),
    weights=st.sampled_from(["replicated", "sharded"]),
)
def test_more_context_or_requests_never_leave_more_room(model, batch, context, more, kv, weights):
    said = {"kv": kv, "attention_weights": weights}
    of = scenario(model=model, batch=batch, context=context, **said)
    room = fit_of(of, placed(of)).room_bytes
    longer = scenario(model=model, batch=batch, context=context + more, **said)
    assert (fit_of(longer, placed(of)).room_bytes <= room).all()
    larger = scenario(model=model, batch=batch + more, context=context, **said)
    assert fit_of(larger, placed(of)).room_bytes.min() <= room.min()


@settings(max_examples=examples(40))
@given(
    model=MODELS,
    batch=st.integers(1, 30_000),
    context=st.integers(1, 20_000),
    system=st.sampled_from(["dojo", "isca26_dojo"]),
)
def test_every_suggestion_makes_it_fit(model, batch, context, system):
    of = with_hbm(scenario(system=system, model=model, batch=batch, context=context), capacity_bytes=30 * 10**9)
    if fit_of(of, placed(of)).fits:
        of = with_hbm(of, capacity_bytes=int(fit_of(of, placed(of)).demand_bytes.max()))
    found = {lever.text: lever for lever in levers(of, placed(of))}
    assert any(text.startswith("hbm.capacity") for text in found)
    for text, lever in found.items():
        system = lever.scenario.system
        if "dies" in text:
            system = system.model_copy(update={"mesh": system.mesh.model_copy(update={"x": len(lever.slots), "y": 1})})
        changed = replace(lever.scenario, system=system)
        assert refuse_misfit(changed, placed(changed)).fits, text
        if "batch" in text:
            beyond = replace(changed, batch=changed.batch + 1)
            assert not fit_of(beyond, placed(beyond)).fits


def test_experts_alone_are_counted_unless_said_otherwise():
    of = scenario(model="deepseek-v3", context=10**6, assumptions=load_assumptions("published"))
    assert set(fit_of(of, placed(of)).parts) == {EXPERTS}
    assumptions = load_assumptions("physical", memory="experts")
    fit = memory_fit(of.system, of.model, assumptions, placed(of), of.workload, of.batch)
    assert set(fit.parts) == {EXPERTS, SHARED} and fit.context is None


@pytest.mark.parametrize(
    ("trace", "keys", "tokens"),
    [
        ({"synthetic": {"prompt_tokens": 100}}, {"decode_steps": 28}, 128),
        ({"synthetic": {}}, {}, 16 + 127),
        ({"synthetic": {"prompt_tokens": 100, "decode_steps": 5}}, {}, 105),
        ({"synthetic": {"prompt_tokens": 100}}, {"context": 7}, 7),
        ({"synthetic": {"prompt_tokens": 0}}, {}, None),
        ({"synthetic": {"like": "deepseek-v3"}}, {}, None),
        ("some/trace", {}, None),
    ],
)
def test_default_context(trace, keys, tokens):
    assert WorkloadSpec(trace=trace, batch=1, **keys).context_tokens == tokens


def test_prompts_need_room_for_a_chunk():
    short, long = (scenario(prompt_tokens=tokens, context=10, batch=100) for tokens in (0, 1))
    few, chunk = (fit_of(of, placed(of)).of(ACTIVATIONS) for of in (short, long))
    assert few == 4 * 38.5 * 151936 and chunk == 8192 * (4 * 4096 + 8 * (3 * 4096 + 4 * 1536))


def test_copies_get_what_is_left():
    model = small_model(attention=load_model("deepseek-v3").attention, layers=61)
    of = scenario(system=small_system(), model=model, batch=60, context=50)
    engine = EventEngine(of)
    room = engine.memory.copies.room["limit_bytes"]
    assert (room == fit_of(of, placed(of)).room_bytes).all()
    experts = memory_fit(of.system, model, load_assumptions("physical", memory="experts"), placed(of)).room_bytes
    taken = of.system.dies * [10 * 50 * model.kv_bytes_per_token()]
    assert (experts - room > np.array(taken)).all()


# ---- One account of memory: runs, serving and checks count the same bytes of a deployment, and say what would fit.


def sizes(tp):
    """Of eight devices."""
    return ParallelSpec(attention=AttentionRanks(tp=tp, dp=8 // tp))


KEPT = {  # on one rank in BF16: bytes of a token, of windows and of states
    "gpt-oss-120b": (18 * 2048, 18 * 2048 * 128, 0),
    "llama-4-maverick": (12 * 4096, 36 * 4096 * 8192, 0),
    "qwen3-next-80b-a3b": (24_576, 0, 39_518_208),
    "deepseek-v3.2": (78_324, 0, 0),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_request_keeps_what_its_model_says(name):
    model, (of_token, of_windows, states) = load_model(name), KEPT[name]
    kv = rank_memory.request_kv(model, Parallelism(), BF16)
    assert (kv.token_bytes, kv.filled_bytes) == (of_token, of_windows + states)
    for context in (0, 1, 100, 5_000, 100_000):
        assert kv.held_bytes(context) == model.kv_bytes(context) + states


@pytest.mark.parametrize(("context", "tp"), [(100, 1), (100_000, 8)])
def test_compressed_entries_and_windows_of_deepseek_v4(context, tp):
    kv = rank_memory.request_kv(deepseek_v4(), Parallelism(tp=tp), BF16)
    assert kv.token_bytes == pytest.approx(21 * (1024 + 132) / 4 + 20 * 1024 / 128) == 6229
    assert kv.held_bytes(context) == pytest.approx(6229 * context + 43 * min(context, 128) * 1024)
    fp8 = rank_memory.request_kv(deepseek_v4(), Parallelism(tp=tp), BF16._replace(kv="fp8"))
    assert fp8.windows == ((128, 43 * 584),)  # 448 of FP8, 64 of BF16, 7 scales and a byte more
    assert fp8.token_bytes == pytest.approx(21 * (584 + 132) / 4 + 20 * 584 / 128)


def deepseek_v4():
    base = {"kind": "compressed", "heads": 64, "head_dim": 512, "q_lora_rank": 1024, "o_lora_rank": 1024}
    base |= {"o_groups": 8, "window": 128}
    index = {"overlapping": True, "index_heads": 64, "index_head_dim": 128, "index_topk": 512, "ratio": 4}
    dense = [base | {"layers": [0, 1]}, base | index | {"layers": list(range(2, 43, 2))}, base | {"ratio": 128}]
    return ModelSpec(
        name="v4", source="config.json", layers=43, moe_layers=list(range(43)), hidden=4096, expert_ffn=2048,
        experts=256, top_k=6, shared_experts=1, attention=dense, vocabulary=129280,
    )  # fmt: skip


def test_sparse_caches_in_8_bits_hold_their_scales():
    """48,072 B a token of DeepSeek-V3.2 were measured in SGLang (sgl-project/sglang#11309)."""
    kv = rank_memory.request_kv(load_model("deepseek-v3.2"), Parallelism(tp=8), BF16._replace(kv="fp8"))
    assert kv.token_bytes == 61 * (512 + 16 + 128 + 132) == 48_068


def test_drafts_of_mtp_take_a_layer_of_weights_and_kv():
    model, parallel = load_model("deepseek-v3"), Parallelism(8, 1, 8, 1)
    fp8 = Precision("fp8_block", "bf16", "bf16", "fp8_block")
    without, drafting = (rank_memory.weights_by_kind(model, parallel, fp8, 58 * 32, layers) for layers in (0, 1))
    more = sum(drafting.values()) - sum(without.values())
    assert more == pytest.approx(11_610_068_224 / 8, rel=1e-3)  # DeepSeek-V3's, without copies of its embeddings
    assert rank_memory.request_kv(model, parallel, fp8, 1).token_bytes == 62 * 1152


def test_parts_that_a_checkpoint_leaves_in_bf16_take_16_bits_everywhere():
    """DeepSeek-R1 in NVFP4: 4.5 bits a weight, but for routers, output layer and what its attention takes."""
    model, hidden = load_model("deepseek-v3"), 7168
    kept = PrecisionSpec(products="nvfp4", experts="nvfp4").dtypes("bf16", model)
    assert kept.kept == ("attention_inputs",) and not PrecisionSpec(products="fp8_block").dtypes("bf16", model).kept
    assert not PrecisionSpec(products="nvfp4", bf16=()).dtypes("bf16", model).kept
    inputs, output = hidden * (1536 + 576) + 1536 * 128 * 192 + 512 * 128 * 256, 128 * 128 * hidden
    narrow = 0.5625 * (61 * output + 3 * 3 * hidden * 18432)
    wide = 61 * inputs + 58 * 256 * hidden + 2 * 129280 * hidden
    assert rank_memory.other_bytes(model, kept, 1) == pytest.approx(narrow + 2 * wide, abs=2)
    shared = Precision("nvfp4", kept=("shared_experts",))
    assert rank_memory.shared_bytes(model, shared, 1) == 58 * 3 * hidden * 2048 * 2
    found = {
        (each.n, each.k): dtype_of(each, kept)
        for each in count_operators(program(model, Parallelism())) if isinstance(each, LayerProduct)
    }  # fmt: skip
    of_sixteen = {(2112, 7168), (24576, 1536), (32768, 512), (256, 7168), (129280, 7168)}
    assert {size for size, dtype in found.items() if dtype == "bf16"} == of_sixteen
    assert found[hidden, 16384] == "nvfp4" and {*found.values()} == {"bf16", "nvfp4"}


@pytest.mark.parametrize(
    ("name", "tp"), [("qwen3-32b", 2), ("qwen3-32b", 4), ("mistral-small-4", 1), ("deepseek-v2-lite", 2), ("latent", 1)]
)
def test_parts_of_products_do_not_depend_on_their_widths(name, tp):
    """Inputs of attention as wide as the hidden vector are inputs, and products around experts are of no attention."""
    model = load_model("deepseek-v3" if name == "latent" else name)
    model = model.model_copy(update={"expert_hidden": 1024}) if name == "latent" else model
    others, every = ("attention_inputs", "dense_ffn"), ("attention_inputs", "dense_ffn", "attention_output")
    weights = {
        each: number * each.weights for each, number in count_operators(program(model, Parallelism(tp=tp))).items()
        if isinstance(each, LayerProduct) and each.cause == PROJECTIONS
    }  # fmt: skip
    output = sum(found for each, found in weights.items() if dtype_of(each, Precision("fp8", kept=others)) == "fp8")
    wide, narrow = (rank_memory.other_bytes(model, Precision("fp8", kept=kept), tp) for kept in (every, others))
    assert output == pytest.approx(wide - narrow, abs=1)
    around = len(model.moe_layer_ids) * 2 * model.hidden * (model.expert_hidden or 0)
    before = 1 - (output + around) / sum(weights.values())
    assert before_attention(model, Parallelism(tp=tp)) == pytest.approx(before)


@pytest.mark.parametrize(("tp", "divided"), [(1, 1), (2, 1), (4, 1), (8, 8)])
def test_ranks_with_all_tokens_divide_shared_experts_and_others_have_them_whole(tp, divided):
    model, parallel = load_model("deepseek-v3"), sizes(tp).sizes()
    assert rank_memory.shared_ranks(parallel) == divided
    held = [
        each for layers in program(model, parallel) for each in layers.operators
        if isinstance(each, LayerProduct) and each.cause == SHARED_EXPERTS
    ]  # fmt: skip
    assert {each.n * each.k for each in held} == {
        size * model.hidden * model.shared_experts * model.shared_ffn // divided for size in (1, 2)
    }
    assert {each.sharing * divided for each in held} == {tp}  # the work of a rank is its share either way


@pytest.mark.parametrize("attention", sampled(["{tp: 8}", "{tp: 2, dp: 4}", "{dp: 8}"], lambda each: "," in each))
def test_check_run_and_serve_print_one_room(tmp_path, capsys, monkeypatch, attention):
    monkeypatch.chdir(tmp_path)
    parallel = f"parallel: {{attention: {attention}}}\nprecision: {{products: bf16, experts: fp8_block}}\n"
    seqs = 64 if "tp: 8" in attention else 16 if "tp: 2" in attention else 8
    experiment, serve = tmp_path / "experiment.yaml", tmp_path / "serve.yaml"
    traffic = "workload: {trace: {synthetic: {prompt_tokens: 32, decode_steps: 2}}, batch: 64, layers: 1}\n"
    names = "name: room\nsystems: [h200_node]\nmodels: [deepseek-v2-lite]\npolicies: [ep]\n"
    experiment.write_text(f"{names}{parallel}{traffic}")
    requests = "requests: {concurrency: 2, input: {fixed: 32}, output: {fixed: 2}, count: 4}\n"
    serve.write_text(
        f"system: h200_node\nmodel: deepseek-v2-lite\n{parallel}{requests}scheduler: {{max_num_seqs: {seqs}}}\n"
    )
    rooms = []
    for command, file in (("check", experiment), ("check", serve), ("run", experiment), ("serve", serve)):
        assert main([command, str(file), *(["--samples", "0"] if command != "check" else [])]) == 0
        rooms += [line.strip() for line in capsys.readouterr().out.splitlines() if "tokens of KV cache" in line]
    assert len(rooms) == 4 and len(set(rooms)) == 1


# ---- What an engine takes besides weights and KV, against what vLLM and SGLang logged at their start, each by the
# others. The table has bytes in GiB: of a GPU as CUDA reports it, of loaded weights, of the peak of activations
# in a profiled step, of what is neither (contexts, collectives, in later versions graphs), and of KV.

TABLE = Path(__file__).parents[2] / "calibration" / "measurements" / "engine_memory.csv"
GIB = 2**30
with TABLE.open(encoding="utf-8") as stream:
    ROWS = [row for row in csv.DictReader(stream) if row["weights_gib"] and float(row["kv_gib"]) > 5]


def columns():
    """bound - weights, entries that are sampled, whether there are collectives (not over PCIe), and KV: GB."""
    number = {key: np.array([float(row[key]) for row in ROWS]) for key in (
        "hbm_gib", "utilisation", "weights_gib", "vocabulary", "max_num_seqs", "tp", "kv_gib",
    )}  # fmt: skip
    free = (number["hbm_gib"] * number["utilisation"] - number["weights_gib"]) * GIB / 1e9
    together = (number["tp"] > 1) & np.array([row["gpu"] != "l40s" for row in ROWS])
    return free, number["vocabulary"] * number["max_num_seqs"] / 1e9, together, number["kv_gib"] * GIB / 1e9


def errors(of_entry, collectives):
    """Relative errors of the room for KV."""
    free, entries, together, kv = columns()
    return (free - of_entry * entries - collectives * together) / kv - 1


def fitted(left_out):
    """The pair of constants with the least sum of errors over all other logs."""
    tried = [(of_entry, each) for of_entry in np.arange(15, 50, 2.5) for each in np.arange(0, 4, 0.25)]
    others = [at for at in range(len(ROWS)) if at != left_out]
    return min(tried, key=lambda pair: np.abs(errors(*pair)[others]).sum())


def test_room_for_kv_is_within_five_percent_of_logs():
    found = np.abs(errors(SAMPLED_BYTES, COLLECTIVE_BYTES / 1e9))
    by_others = np.abs([errors(*fitted(at))[at] for at in range(len(ROWS))])
    assert np.median(found) < 0.03 and np.quantile(found, 0.8) < 0.06 and found.max() < 0.12
    assert np.median(by_others) < 0.03 and np.quantile(by_others, 0.8) < 0.06


# ---- Samples: what is not known of an engine's memory, against what was measured.


def sampled_room(hbm_bytes, utilisation, ranks, weights_bytes, activation_bytes, engine="vllm", given=True):
    budget = rank_memory.Budget(hbm_bytes, utilisation, engine, given, ranks)
    beside = COLLECTIVE_BYTES if ranks > 1 and engine != "sglang" else 0
    kept = {"weights": weights_bytes, ACTIVATIONS: activation_bytes + beside}
    return rank_memory.room_left(kept, budget, rank_memory.RequestKv(1.0))


# vLLM 0.15.1 on an H100 at 0.9 (inference-sim/inference-sim @ f90a1e3, testdata/trained_physics_iter29.json), 128
# requests: GPUs, blocks of 16 tokens, and by the models' configurations weights, KV values a token, and vocabulary.
BLOCKS = {
    "Llama-2-7b": (1, 7463, 6.738e9, 32 * 2 * 4096, 32_000),
    "Llama-3.1-70B": (4, 30251, 70.554e9, 80 * 2 * 1024, 128_256),
    "Mistral-Nemo, 2 GPUs": (2, 48009, 12.248e9, 40 * 2 * 1024, 131_072),
    "Mistral-Nemo": (1, 19251, 12.248e9, 40 * 2 * 1024, 131_072),
    "Qwen2.5-7B": (1, 65352, 7.616e9, 28 * 2 * 512, 152_064),
    "Yi-34B": (2, 20793, 34.389e9, 60 * 2 * 1024, 64_000),
}


def measured_rooms():
    """(group, KV in bytes, its samples) of every log and run; a group is an engine's version and a GPU."""
    for row, *numbers in zip(ROWS, *columns(), strict=True):
        free, entries, together, kv = (each * 1e9 for each in numbers)
        yield (row["engine"], row["gpu"]), kv, sampled_room(free, 1.0, 1 + bool(together), 0, SAMPLED_BYTES * entries)
    for tp, blocks, weights, values, vocabulary in BLOCKS.values():
        activations = SAMPLED_BYTES * 128 * vocabulary
        room = sampled_room(81000 * 2**20, 0.9, tp, 2 * weights / tp, activations)
        yield ("vllm 0.15.1", "h100"), blocks * 16 * values * 2 / tp, room


def test_measured_rooms_for_kv_are_within_the_samples():
    found = list(measured_rooms())
    assert len(found) > 15
    for group, measured, room in found:
        assert room.samples[0] <= measured <= 1.005 * room.samples[-1], group
    likely = [room.likely_bytes[0] <= measured <= room.likely_bytes[1] for _, measured, room in found]
    assert np.mean(likely) >= 0.7


def test_ranges_of_other_engines_and_gpus_hold_what_is_left_out(monkeypatch):
    """Contexts, graphs and buffers by factors, from the least to the most of all groups but one."""
    free, entries, together, kv = columns()
    tp, blocks, weights, values, vocabulary = map(np.array, zip(*BLOCKS.values(), strict=True))
    total = (0.9 * 81000 * 2**20 - 2 * weights / tp) / 1e9
    besides = np.r_[free - SAMPLED_BYTES * entries - kv,
                    total - SAMPLED_BYTES * 128e-9 * vocabulary - 32e-9 * blocks * values / tp]  # fmt: skip
    alone = ~np.r_[together, tp > 1]
    groups = [group for group, _, _ in measured_rooms()]
    kept = []
    for left in set(groups):
        others = np.array([group != left for group in groups])
        for name, these in (("ALONE_BYTES", alone), ("TOGETHER_BYTES", ~alone)):
            known = besides[these & others]
            monkeypatch.setattr(rank_memory, name, (max(known.min(), 0.1) * 1e9, known.max() * 1e9))
        kept += [
            room.samples[0] <= measured <= 1.005 * room.samples[-1]
            for group, measured, room in measured_rooms() if group == left
        ]  # fmt: skip
    assert np.mean(kept) >= 0.8


@settings(max_examples=examples(100))
@given(
    engine=st.sampled_from([None, "vllm", "sglang", "trtllm"]),
    given=st.booleans(),
    ranks=st.sampled_from([1, 8]),
    hbm=st.floats(20e9, 300e9),
    more=st.floats(0, 50e9),
    weights=st.floats(1e9, 300e9),
    activations=st.floats(0, 20e9),
    needed=st.floats(0, 50e9),
)
def test_more_memory_never_leaves_less(engine, given, ranks, hbm, more, weights, activations, needed):
    rest = 0.9, ranks, weights, activations, engine, given
    small, large = sampled_room(hbm, *rest), sampled_room(hbm + more, *rest)
    assert small.usable_bytes <= large.usable_bytes and small.share(needed) <= large.share(needed)
    assert not small.fits(needed) or large.fits(needed)
    low, high = small.likely_bytes
    assert low <= small.free_bytes <= high
    if small.usable_bytes >= needed > 0:
        assert small.fits(needed)
    longer = sampled_room(hbm, 0.9, ranks, weights + more, activations, engine, given)
    assert longer.usable_bytes <= small.usable_bytes
