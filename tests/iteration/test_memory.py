"""What a run needs of HBM under ``memory: all``: hand cases, monotony, and refusals whose suggestions fit."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.small_runs import policy, small_model, small_system

from archsim.base.errors import CapacityError, SpecError
from archsim.engine.engine import EventEngine
from archsim.iteration.memory import (
    ACTIVATIONS,
    ATTENTION,
    EXPERTS,
    KV,
    SHARED,
    fit_of,
    levers,
    memory_fit,
    refuse_misfit,
)
from archsim.policies.registry import place_experts
from archsim.runs.feasibility import Room, uncounted
from archsim.runs.notes import memory_notes
from archsim.specs.deployment import DeploymentSpec, PrecisionSpec
from archsim.specs.library import load_assumptions, load_model, load_system
from archsim.specs.scenario import Scenario
from archsim.specs.workload import WorkloadSpec

ALL = load_assumptions("physical", memory="all")
GEOMETRY = {"attention": None, "vocabulary": None}


def scenario(system="dojo", model="qwen3-235b-a22b", batch=16384, prompt_tokens=0, assumptions=ALL, kv=None, **keys):
    spec = WorkloadSpec(trace={"synthetic": {"prompt_tokens": prompt_tokens}}, batch=batch, **keys)
    system = load_system(system) if isinstance(system, str) else system
    model = load_model(model) if isinstance(model, str) else model
    deployment = DeploymentSpec(precision=PrecisionSpec(kv=kv))
    return Scenario(system, model, assumptions, policy("ep"), spec, batch, deployment=deployment)


def placed(of):
    return place_experts(of.policy, of.model, of.system.dies)


def with_hbm(of, **changes):
    hbm = of.system.hbm.model_copy(update=changes)
    return replace(of, system=of.system.model_copy(update={"hbm": hbm}))


def test_parts_by_hand():
    """DeepSeek-V3 in FP8 on 25 dies; 100 requests live on 4 each."""
    of = scenario(model="deepseek-v3", batch=100, context=1000)
    fit = fit_of(of, placed(of))
    expert, hidden = 3 * 7168 * 2048, 7168
    assert fit.of(EXPERTS) == 58 * 11 * expert and fit.of(SHARED) == 58 * expert
    attention = of.model.attention_weights + 3 * 3 * hidden * 18432 + 58 * hidden * 256
    assert fit.of(ATTENTION) == attention + 2 * (2 * 129280 * hidden)
    assert fit.of(KV) == 4 * 1000 * 70_272
    assert fit.of(ACTIVATIONS) == 4 * 38.5 * 129280 > 4 * (4 * hidden + 8 * (3 * hidden + 4 * 2048))


def test_the_reserve_of_the_paper_holds_63_tokens_of_qwen3():
    """16,384 requests are 656 on the fullest of 25 dies; 10 % of 80 GB is 8 GB."""
    of = scenario(context=63)
    assert 8 * 10**9 // (656 * 192_512) == 63
    without = fit_of(scenario(context=0), placed(of)).demand_bytes.max()
    of = with_hbm(of, capacity_bytes=int(without) + 8 * 10**9, reserved_fraction=0.0)
    assert refuse_misfit(of, placed(of)).fits
    with pytest.raises(CapacityError, match=r"KV cache 8\.1 GB, .*batch 16,384, 64 tokens a request\).* 63 tokens"):
        refuse_misfit(replace(of, workload=of.workload.model_copy(update={"context": 64})), placed(of))


MODELS = st.sampled_from(["qwen3-235b-a22b", "deepseek-v3", "gpt-oss-20b", "llama-4-maverick"])


@settings(max_examples=examples(40))
@given(
    model=MODELS, batch=st.integers(1, 30_000), context=st.integers(0, 20_000), more=st.integers(0, 5_000),
    kv=st.sampled_from(["bf16", "fp8"]), weights=st.sampled_from(["replicated", "sharded"]),
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
    model=MODELS, batch=st.integers(1, 30_000), context=st.integers(1, 20_000),
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


def test_a_model_without_attention_counts_experts_alone_and_says_so():
    model = load_model("qwen3-235b-a22b").model_copy(update=GEOMETRY)
    of = scenario(model=model)
    fit = fit_of(of, placed(of))
    assert set(fit.parts) == {EXPERTS}
    (note,) = uncounted([Room(of, fit, True, None)])
    assert note == "qwen3-235b-a22b: experts alone are counted, as the model lacks attention, vocabulary"


def test_a_context_that_nothing_says_must_be_written():
    of = scenario()
    with pytest.raises(SpecError, match=r"^workload\.context: .*give it \(context: 4096\), give 0"):
        fit_of(of, placed(of))
    none = scenario(context=0)
    fit = fit_of(none, placed(none))
    assert fit.of(KV) == 0 and uncounted([Room(none, fit, True, None)]) == [
        "workload.context is 0: HBM holds no KV cache"
    ]


@pytest.mark.parametrize(("trace", "keys", "tokens"), [
    ({"synthetic": {"prompt_tokens": 100}}, {"decode_steps": 28}, 128), ({"synthetic": {}}, {}, 16 + 127),
    ({"synthetic": {"prompt_tokens": 100, "decode_steps": 5}}, {}, 105),
    ({"synthetic": {"prompt_tokens": 100}}, {"context": 7}, 7), ({"synthetic": {"prompt_tokens": 0}}, {}, None),
    ({"synthetic": {"like": "deepseek-v3"}}, {}, None), ("some/trace", {}, None),
])
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


def test_notes_of_pages():
    rows = [
        {"model": "a", "hbm_all_counted": 1, "context_tokens": 0},
        {"model": "b", "hbm_all_counted": 0, "context_tokens": None},
        {"model": "c", "hbm_all_counted": None, "context_tokens": None},
    ]
    first, second = memory_notes(rows)
    assert "workload.context is 0" in first and second.startswith("HBM of b holds experts alone: without attention")
    assert memory_notes(rows[2:]) == []
