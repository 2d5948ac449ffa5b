"""Placements from recorded loads: what is written holds the rules of every engine, what does not fit is refused."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.trace_files import save_npz, toy_requests

import archsim as ar
from archsim.base.errors import ArchsimError, CapacityError, PlacementError, TraceError
from archsim.cli.main import main
from archsim.model.attention import LayerSet
from archsim.model.spec import ModelSpec
from archsim.policies.load import imbalance
from archsim.serving.answers.place import least_gain
from archsim.serving.answers.placement_choices import POLICIES
from archsim.serving.answers.placement_costs import rank_loads
from archsim.specs.library import load_model, load_system
from archsim.traffic import placements
from archsim.traffic.placements import ENGINES, PhysicalMap, read_placement, sglang_default, write_placement

MODEL = ModelSpec(name="toy", source="made up", layers=5, moe_layers={"first": 1, "last": 4}, hidden=512,
                  expert_ffn=256, experts=6, top_k=2)  # fmt: skip
SYSTEM = load_system("dojo")
RANKS = 4
RNG = np.random.default_rng(5)
POPULAR = RNG.gamma(0.4, size=(4, 6))
LOADS = RNG.poisson(POPULAR * 400, size=(12, 4, 6)) + 1


@pytest.fixture
def loads(tmp_path):
    np.save(tmp_path / "loads.npy", LOADS)
    return tmp_path / "loads.npy"


def placed(loads, policy="eplb", slots=6, **more):
    return ar.place(loads, MODEL, SYSTEM, policy, slots, **{"ranks": RANKS, **more})


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_writes_what_every_engine_reads(loads, tmp_path, policy):
    found = placed(loads, policy, out=tmp_path / "out")
    manifest = json.loads((tmp_path / "out/placement.json").read_text())
    assert set(manifest["sha256"]) == {engine.file for engine in ENGINES}
    for engine in ENGINES:
        read = engine.read(tmp_path / "out" / engine.file, MODEL, RANKS)
        assert np.array_equal(read.experts, found.map.experts) and read.slots_per_rank == 3
        assert str(read.slots - 6) in engine.options(read, tmp_path) or engine.name == "TensorRT-LLM"
    assert found.trained == 9 and found.held_out == 3 and len(found.to_pandas()) == 3
    assert found.rows[-1].name == policy and all(row.max_over_mean >= 1 and row.experts_ns > 0 for row in found.rows)


def test_files_have_the_engines_layer_numbers(loads, tmp_path):
    found = placed(loads, out=tmp_path / "out")
    rows = found.map.experts.tolist()
    sglang, vllm, trt = ((tmp_path / "out" / engine.file).read_text() for engine in ENGINES)
    assert json.loads(sglang) == {"physical_to_logical_map": [sglang_default(12, 6).tolist(), *rows]}
    record = json.loads(vllm)
    assert record["initial_global_assignments"] == {str(n): row for n, row in enumerate(rows)}
    assert (record["num_slots"], record["num_redundant_experts"]) == (12, 6)
    config = yaml.safe_load(trt)
    assert config == {
        "num_slots": 12,
        "layer_updates_per_iter": 0,
        "initial_global_assignments": dict(zip((1, 2, 3, 4), rows, strict=True)),
    }


@pytest.mark.parametrize("policy", ["eplb", "craft"])
def test_replicas_gain_on_loads_held_out(loads, policy):
    found = placed(loads, policy)
    judged = LOADS[9:]
    of_rank = rank_loads(found.map, judged)
    assert np.allclose(of_rank.sum(axis=2), judged.sum(axis=2))
    assert found.rows[-1].max_over_mean == pytest.approx(of_rank.max(axis=2).sum() / of_rank.mean(axis=2).sum())
    assert found.rows[-1].balancedness == pytest.approx(np.mean(1 / imbalance(of_rank)))
    assert found.gain > 1.03 and 1 < found.least_gain < found.gain
    said = found.as_answer().parts[0]
    assert "less load than with the default of" in said and ": use it" in said
    assert found.gain == pytest.approx(found.rows[0].max_over_mean / found.rows[-1].max_over_mean)


@pytest.mark.parametrize(("before", "used"), [
    ([1.004, 1.005, 1.004, 1.005], True),  # little, but of every matrix
    ([1.3, 0.9, 1.1, 0.8], False),  # more, but not of every matrix
    ([1.0, 1.0, 1.0, 1.0], False), ([1.004], True),
])  # fmt: skip
def test_a_placement_is_used_if_it_gains_beyond_what_the_held_out_loads_differ_by(loads, before, used):
    least = least_gain(np.array(before), np.ones(len(before)))
    said = dataclasses.replace(placed(loads), least_gain=least).as_answer().parts[0]
    assert (least > 1) == used == ("use it" in said) and least <= np.mean(before)


def test_the_held_out_loads_are_not_used(loads, tmp_path):
    later = LOADS.copy()
    later[9:] = later[9:, :, ::-1]
    np.save(tmp_path / "later.npy", later)
    one, other = placed(loads), placed(tmp_path / "later.npy")
    assert np.array_equal(one.map.experts, other.map.experts)
    assert one.rows[-1].max_over_mean != other.rows[-1].max_over_mean


def test_costs_are_bytes_of_experts(loads):
    found = placed(loads)
    expert = 3 * 512 * 256 * SYSTEM.compute.dtype_bytes
    cost = found.cost
    assert (
        cost.expert_bytes == expert
        and cost.rank_bytes == 3 * 4 * expert
        and cost.extra_bytes == round(1.5 * 4 * expert)
    )
    before = PhysicalMap(np.tile(sglang_default(12, 6), (4, 1)), 6, RANKS)
    gets = (found.map.copies() > 0) & (before.copies() == 0)
    assert cost.moved == gets.sum() and cost.busiest_bytes == gets.sum(axis=(0, 1)).max() * expert
    assert placed(loads, "none").cost.moved == 0 and placed(loads, "none").gain == 1


@st.composite
def cases(draw):
    ranks, experts = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    each = -(-experts // ranks) + draw(st.integers(0, 3))
    layers, times = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    count = layers * times * experts
    values = draw(st.lists(st.integers(0, 10**6), min_size=count, max_size=count))
    return np.array(values, float).reshape(times, layers, experts), ranks, ranks * each


@settings(max_examples=examples(150), derandomize=True)
@given(cases(), st.sampled_from(sorted(POLICIES)))
def test_laws_of_every_placement(tmp_path_factory, case, policy):
    loads, ranks, slots = case
    _, layers, experts = loads.shape
    model = ModelSpec(
        name="any",
        source="made up",
        layers=layers + 1,
        moe_layers={"first": 1, "last": layers},
        hidden=8,
        expert_ffn=8,
        experts=experts,
        top_k=1,
    )
    rows = POLICIES[policy](loads, ranks, slots)
    found = PhysicalMap(rows.astype(np.int32), experts, ranks)
    copies = found.copies()
    assert (copies.sum(axis=1) == slots // ranks).all(), "slots per rank are equal"
    assert (copies.sum(axis=2) >= 1).all(), "every expert has a replica"
    assert np.allclose(rank_loads(found, loads).sum(axis=2), loads.sum(axis=2)), "loads add up"
    files = write_placement(found, model, tmp_path_factory.mktemp("out"))
    assert len(files) == 3 and all(np.array_equal(read_placement(file, model, ranks).experts, rows) for file in files)


def test_defaults_are_those_of_the_engines():
    assert sglang_default(12, 8).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]
    assert placements.trtllm_default(12, 8, 2).tolist() == [0, 1, 2, 3, 4, 5, 4, 5, 6, 7, 0, 1]


REFUSED = {
    "slots that do not divide": ({"slots": 7}, r"toy on dojo: 13 slots .*\b6\b.*\b7\b.*\b4 ranks; 12 or 16 .*6 or 10"),
    "no slots": ({"slots": 0}, r"\b4 ranks; 8 .*\b2\b"),
    "fewer slots than experts": ({"num_slots": 4}, r"\b4 slots .*\b6 experts; .*\b4 ranks .*\b8\b"),
    "negative slots": ({"slots": -2}, "slots is -2; .* 0$"),
    "no ranks": ({"ranks": 0}, "ranks is 0; .* 1$"),
    "more ranks than devices": ({"ranks": 26}, "^ranks is 26, .*dojo has 25 devices.*list systems"),
    "unknown policy": ({"policy": "crafty"}, "'crafty'.*craft"),
    "all held out": ({"held_out": 1.0}, "held_out is 1.0; .*0 and 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_with_what_would(loads, tmp_path, case):
    given, message = REFUSED[case]
    with pytest.raises(PlacementError, match=message):
        placed(loads, out=tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


def test_loads_of_another_model_and_unknown_files_are_refused(loads, tmp_path):
    with pytest.raises(TraceError, match="loads.npy: .*experts = 6,.* deepseek-v3 .*experts = 256"):
        ar.place(loads, "deepseek-v3", "dojo", slots=19)
    with pytest.raises(TraceError, match="missing.npy: "):
        placed(tmp_path / "missing.npy")
    (tmp_path / "x.txt").write_text("1")
    with pytest.raises(TraceError, match="x.txt: "):
        placed(tmp_path / "x.txt")
    np.savez(tmp_path / "other.npz", logical_count=LOADS)
    with pytest.raises(TraceError, match=r"other.npz.*'experts'.* logical_count"):
        placed(tmp_path / "other.npz")
    with pytest.raises(TraceError, match="a second matrix named"):
        placed([loads, loads])
    np.savez(tmp_path / "named.npz", counts=LOADS, model="deepseek-ai/DeepSeek-V3")
    with pytest.raises(ArchsimError, match="deepseek-v3"):
        ar.place(tmp_path / "named.npz", load_model("mixtral-8x7b"), "dojo", slots=17)


def test_experts_that_do_not_fit_in_hbm_are_refused(loads):
    hbm = SYSTEM.hbm.model_copy(update={"capacity_bytes": 10 * 4 * 3 * 512 * 256 * SYSTEM.compute.dtype_bytes // 4})
    small = SYSTEM.model_copy(update={"hbm": hbm})
    with pytest.raises(CapacityError, match="dojo: 3 slots .*4 layers .* 2 slots"):
        ar.place(loads, MODEL, small, slots=6, ranks=RANKS)
    with pytest.raises(CapacityError, match=" 2 slots .* 3 ranks "):
        ar.place(loads, MODEL, small, slots=0, ranks=2)


def test_one_matrix_cannot_be_held_out(tmp_path):
    np.save(tmp_path / "sum.npy", LOADS.sum(axis=0))
    found = placed(tmp_path / "sum.npy")
    assert (found.trained, found.held_out) == (1, 0) and found.rows[-1].experts_ns is None
    assert found.gain > 1.03 and not re.search("use it|keep theirs", found.as_answer().parts[0])
    assert "held out" in " ".join(found.notes) and "--tokens" in " ".join(found.notes)
    assert placed(tmp_path / "sum.npy", tokens=64).rows[-1].experts_ns > 0


def test_a_trace_of_tokens_and_a_store_of_loads(loads, tmp_path):
    trace = save_npz(tmp_path / "trace.npz", toy_requests(["a/1", "a/2"]), [1, 2, 3, 4])
    found = placed(trace)
    assert found.trained + found.held_out == 4 and found.rows[-1].max_over_mean >= 1
    assert (
        main(["trace", "import", str(loads), "--model", str(model_file(tmp_path)), "--out", str(tmp_path / "store")])
        == 0
    )
    assert np.array_equal(placed(tmp_path / "store").map.experts, placed(loads).map.experts)
    with pytest.raises(TraceError, match="trace.npz"):
        placed([trace, loads])


def test_layers_without_loads_keep_the_default(tmp_path):
    np.savez(tmp_path / "some.npz", counts=LOADS[:, :2], layer_ids=[2, 4])
    found = placed(tmp_path / "some.npz")
    assert found.map.experts[[0, 2]].tolist() == [sglang_default(12, 6).tolist()] * 2
    assert "2 MoE layers" in " ".join(found.notes)


def model_file(folder):
    file = folder / "toy.yaml"
    file.write_text(yaml.safe_dump(MODEL.model_dump(mode="json")))
    return file


def test_the_command(loads, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["place", str(loads), "--model", str(model_file(tmp_path)), "--system", "dojo", "--ranks", "4"]
    assert main([*words, "--policy", "craft", "--slots", "6", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "3 of 12 matrices" in printed and "craft" in printed and "HBM" in printed
    assert f"--ep-num-redundant-experts 6 --init-expert-location {out / 'sglang_init_expert_location.json'}" in printed
    assert main([*words, "--slots", "5"]) == 2
    assert re.search(r"\b4 ranks; 8 or 12 .*2 or 6", capsys.readouterr().err)


def test_what_is_half_written_never_looks_complete(loads, tmp_path, monkeypatch):
    out = tmp_path / "out"
    placed(loads, out=out)
    broken = [engine if n < 2 else type(engine)(engine.name, engine.file, fail, engine.read, engine.options)
              for n, engine in enumerate(ENGINES)]  # fmt: skip
    monkeypatch.setattr("archsim.traffic.placements.ENGINES", tuple(broken))
    with pytest.raises(OSError, match="disk full"):
        placed(loads, "none", out=out)
    assert not (out / "placement.json").exists() and not list(out.glob(".*draft"))


def fail(*_):
    raise OSError("disk full")


def test_samples_of_the_engines(shared):
    folder = shared / "data/engine_formats/samples"
    tiny = MODEL.model_copy(
        update={"layers": 4, "moe_layers": MODEL.moe_layers.model_copy(update={"last": 3}), "experts": 8}
    )
    names = ("sglang_init_expert_location.json", "vllm_eplb_initial_mapping.jsonl", "trtllm_moe_load_balancer.yaml")
    first, *others = (read_placement(folder / name, tiny, 2).experts for name in names)
    assert len(others) == 2 and all(np.array_equal(first, other) for other in others)
    for name, message in [("sglang_map_missing_expert.json", "no slot holds expert 4|no slot holds expert 0"),
                          ("vllm_mapping_wrong_num_slots.jsonl", "num_slots is 13"),
                          ("trtllm_slots_not_divisible.yaml", "num_slots is 11")]:  # fmt: skip
        with pytest.raises(PlacementError, match=message):
            read_placement(folder / "invalid" / name, tiny, 2)
    with pytest.raises(PlacementError, match="trtllm_moe_load_balancer_online.yaml"):
        read_placement(folder / "trtllm_moe_load_balancer_online.yaml", tiny, 2)
    with pytest.raises(PlacementError, match=r"\b5 ranks\b"):
        read_placement(folder / names[0], tiny, 5)


@pytest.mark.nightly
def test_the_commands_of_the_page(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).resolve().parents[2] / "docs/place.md").read_text()
    commands = [line.split() for line in page.split("```sh\n")[1].split("```")[0].splitlines()]
    monkeypatch.chdir(tmp_path)
    assert len(commands) == 3 and [main(words[1:]) for words in commands] == [0, 0, 0]
    assert (tmp_path / "placement/placement.json").is_file()
    assert "placement/vllm_eplb_initial_mapping.jsonl" in capsys.readouterr().out


def test_real_loads(shared):
    file = shared / "data/engine_formats/real/expert_distribution_fp4_1k1k_compressed.pt"
    found = ar.place(file, "deepseek-v3", "dojo", "craft", 8, ranks=24, tokens=4096)
    assert found.map.experts.shape == (58, 264) and found.gain > 3
    with pytest.raises(TraceError, match="all counts are zero"):
        ar.place(file.with_name("expert_distribution_fp8_1k1k_compressed.pt"), "deepseek-v3", "dojo", slots=19)


@pytest.mark.parametrize(
    ("scale", "told"),
    [(2.5, "layer 2 has 2.5 times the pairs of the others"), (0.0, "layer 2 has no pairs"), (1.3, None)],
)
def test_a_layer_with_other_pairs_than_the_rest_is_told(tmp_path, scale, told):
    """Every token passes all layers: other counts are of a recorder that was off, or of two runs added up."""
    loads = np.full_like(LOADS, 400)
    loads[:, 1] = (loads[:, 1] * scale).astype(loads.dtype)
    np.save(tmp_path / "loads.npy", loads)
    notes = " ".join(placed(tmp_path / "loads.npy").notes)
    assert ("a recording of other tokens" in notes) == (told is not None) and (told is None or told in notes)


@pytest.mark.parametrize(("ran", "told"), [
    (lambda layer: range(2), "6 of 8 experts .2 to 7. never run in any of 3 layers"),
    (lambda layer: (0, 1, 2, 6, 7), "3 of 8 experts .3 to 5. never run"), (lambda layer: range(4, 6), "0 to 3, 6 to 7"),
    (lambda layer: [(4 * layer + e) % 8 for e in range(4)], "in each of 3 layers 4 of 8 experts never run"),
    (lambda layer: [e for e in range(8) if e != layer], ""), (lambda layer: range(7), ""),
])  # fmt: skip
def test_counts_of_some_ranks_alone_are_refused(tmp_path, ran, told):
    model = MODEL.model_copy(update={"experts": 8, "layers": 3, "moe_layers": LayerSet(first=0, last=2)})
    counts = np.zeros((3, 8), int)
    for layer in range(3):
        counts[layer, list(ran(layer))] = 1000 + 17 * layer
    path = tmp_path / "counts.json"
    path.write_text(json.dumps({"logical_count": counts.tolist()}))
    if not told:
        ar.place([path], model, SYSTEM, "eplb", 4, ranks=4)
        return
    with pytest.raises(TraceError, match=f"{told}.*some ranks alone"):
        ar.place([path], model, SYSTEM, "eplb", 4, ranks=4)
    path.write_text(json.dumps({"logical_count": (counts // 200).tolist()}))  # too few to tell
    ar.place([path], model, SYSTEM, "eplb", 4, ranks=4)
