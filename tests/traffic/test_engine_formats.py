# ruff: noqa: E501  (one row a case: a table is read across)

"""Loads and routing in the formats of serving engines: every reader arrives at the same counts, or says why not."""

import base64
import io
import json
import os
import pickle
import pickletools
import shutil
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.examples import examples
from support.stores import imported
from support.torch_files import save_pt, tensors, zip_pt
from support.trace_files import TOY

from archsim.base.errors import TraceError
from archsim.model.spec import ModelSpec
from archsim.specs.library import load_model
from archsim.traffic.formats.load_files import load_files, read_all_loads, read_loads
from archsim.traffic.formats.pt import read_pt
from archsim.traffic.formats.readers import open_trace
from archsim.traffic.trace_store import open_store

TINY = ModelSpec(name="tiny-moe", source="made up", layers=4, moe_layers={"first": 1, "last": 3}, hidden=8,
                 expert_ffn=8, experts=8, top_k=2)  # fmt: skip
RNG = np.random.default_rng(3)
STEPS, SLOTS = 3, 8
ROUTING = RNG.random((2, STEPS, 5, 5, 6)).argsort(axis=4)[..., :2]  # [rank, step, layer, token, k], layer 0 dense
MAP = np.stack([np.r_[RNG.permutation(6), RNG.integers(0, 6, 2)] for _ in range(5)])  # [layer, slot]
COUNTS = np.stack([
    [[np.bincount(ROUTING[rank, step, layer].ravel(), minlength=6) for layer in range(5)] for step in range(STEPS)]
    for rank in range(2)
])  # fmt: skip
COUNTS[:, :, 0] = 0
TRUTH = COUNTS.sum(axis=0)[:, 1:]


def slot_of(layer, expert):
    """A slot that holds the expert; the last one, so that redundant slots are used."""
    return int(np.flatnonzero(MAP[layer] == expert)[-1])


def physical(rank, step):
    counts = np.zeros((5, SLOTS), np.int64)
    for layer in range(1, 5):
        for expert in range(6):
            counts[layer, slot_of(layer, expert)] += COUNTS[rank, step, layer, expert]
    return counts


def per_pass(folder, **more):
    files = []
    for rank in (0, 1):
        records = [{"forward_pass_id": 7 + n, "rank": rank, "gatherer_key": "primary", "global_physical_count":
                    physical(rank, n)} for n in range(STEPS)]  # fmt: skip
        content = {"records": records, "last_physical_to_logical_map": MAP} | more
        files.append(save_pt(folder / f"expert_distribution_recorder_177_rank{rank}.pt", content))
    return files


def per_token(folder):
    files = []
    for rank in (0, 1):
        records = []
        for n in range(STEPS):
            ids = np.full((5, 5, 8), -1, np.int32)
            for layer in range(1, 5):
                ids[layer, :, :2] = np.vectorize(lambda e, layer=layer: slot_of(layer, e))(ROUTING[rank, n, layer])
            records.append({"forward_pass_id": n, "rank": rank, "forward_mode": 1 if n == 0 else 2,
                            "extend_seq_lens": [5] if n == 0 else None, "topk_ids_of_layer": ids})  # fmt: skip
        content = {"records": records, "last_physical_to_logical_map": MAP}
        files.append(save_pt(folder / f"x_rank{rank}.pt", content))
    return files


def stat(folder):
    return [save_pt(folder / "stat.pt", {"rank": 0, "logical_count": COUNTS.sum(axis=0)})]


def old_csv(folder):
    files = []
    for rank in (0, 1):
        total = COUNTS[rank].sum(axis=0)
        rows = [f"{layer},{e},{total[layer, e]}" for layer in range(1, 5) for e in range(6) if total[layer, e]]
        file = folder / f"expert_distribution_rank{rank}_timestamp17443.{rank}.csv"
        file.write_text("\n".join(["layer_id,expert_id,count", *rows]) + "\n")
        files.append(file)
    return files


def vllm(folder):
    lines = [{"record_type": "session_metadata", "version": 1}]
    for step in range(STEPS):
        load = sum(physical(rank, step) for rank in (0, 1))[1:]
        lines.append({"record_type": "eplb_load_stats", "version": 1, "step": step, "num_ranks": 2,
                      "expert_load": load.tolist(), "p2l_map": MAP[1:].tolist()})  # fmt: skip
    lines.append({**lines[-1], "step": 9, "expert_load": np.zeros((4, SLOTS), int).tolist()})
    (folder / "stats.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [folder / "stats.jsonl"]


def safetensors(path, tensors):
    header, body = {"__metadata__": {"made": "up"}}, b""
    for name, tensor in tensors.items():
        kind = {"int64": "I64", "int32": "I32"}[tensor.dtype.name]
        at = len(body)
        body += tensor.tobytes()
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [at, len(body)]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def trtllm(folder):
    folder = folder / "statistic"
    folder.mkdir()
    (folder / "meta_info.json").write_text('{"num_experts": 6, "num_experts_per_token": 2}')
    for rank in (0, 1):
        keys = [(step, layer) for step in range(STEPS) for layer in range(1, 5)]
        safetensors(folder / f"rank{rank}.safetensors", {f"{100 + s}_{n}": COUNTS[rank, s, n] for s, n in keys})
        raw = {f"{100 + s}_{n}": ROUTING[rank, s, n].astype(np.int32) for s, n in keys}
        safetensors(folder / f"rank{rank}_raw.safetensors", raw)
    return [folder]


def npy(folder):
    np.save(folder / "m.npy", TRUTH.sum(axis=0))
    return [folder / "m.npy"]


def plain_csv(folder):
    (folder / "m.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in TRUTH.sum(axis=0).tolist()))
    return [folder / "m.csv"]


FORMATS = [per_pass, per_token, stat, old_csv, vllm, trtllm, npy, plain_csv]


@pytest.mark.parametrize("written", FORMATS)
def test_every_format_gives_the_same_counts(tmp_path, written):
    sources = written(tmp_path)
    imported(sources, tmp_path / "store")
    columns, facts = open_store(tmp_path / "store").loads()
    counts = columns["counts"]
    assert counts.dtype == np.int64 and np.array_equal(counts.sum(axis=0), TRUTH.sum(axis=0))
    assert len(counts) == len(facts["names"]) == len(facts["series"])
    if len(counts) > 1:
        assert np.array_equal(counts, TRUTH) and len(set(facts["series"])) == 1
    if written is per_token:
        assert columns["phase"].tolist() == [0, 1, 1]


def test_layers_that_a_table_of_pairs_lacks_are_not_recorded(tmp_path):
    """They are not layers without load, which would count as balanced."""
    (tmp_path / "m.csv").write_text("layer,expert,count\n1,0,8\n3,5,4\n3,1,4\n")
    imported(tmp_path / "m.csv", tmp_path / "store")
    store = open_store(tmp_path / "store")
    assert list(store.shape.layer_ids) == [1, 3]
    assert store.loads()[0]["counts"].tolist() == [[[8, 0, 0, 0, 0, 0], [0, 4, 0, 0, 0, 4]]]


def test_fractions_are_kept(tmp_path):
    np.save(tmp_path / "m.npy", TRUTH / 8 + 0.3)
    imported(tmp_path / "m.npy", tmp_path / "store")
    assert np.array_equal(open_store(tmp_path / "store").loads()[0]["counts"], TRUTH / 8 + 0.3)


SAMPLES = {
    "stat": ["sglang_stat.json"],
    "stat 2d": ["sglang_stat_2d.json"],
    "old csv": [f"sglang_old_expert_distribution_rank{n}_timestamp1744347750.{n}.csv" for n in (0, 1)],
    "vllm 1": ["vllm_eplb_load_stats_rev1.jsonl"],
    "vllm 2": ["vllm_eplb_load_stats_rev2.jsonl"],
    "trtllm": ["trtllm_expert_statistic"],
    "per pass": [f"sglang_per_pass_rank{n}.mirror.json" for n in (0, 1)],
    "per token": [f"sglang_per_token_rank{n}.mirror.json" for n in (0, 1)],
}


@pytest.mark.parametrize("as_pt", [False, True])
@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_give_their_truth(shared, tmp_path, name, as_pt):
    folder = shared / "data/engine_formats/samples"
    sources = [folder / each for each in SAMPLES[name]]
    if as_pt:
        sources = [as_torch(source, tmp_path) for source in sources]
    truth = read_all_loads([folder / "truth_logical_counts.csv"], TINY)
    assert np.array_equal(read_all_loads(sources, TINY).counts.sum(axis=0), truth.counts[0])


def as_torch(source, folder):
    if source.suffix != ".json":
        return source
    content = tensors(json.loads(source.read_text()))
    if "logical_count" in content:
        content["logical_count"] = np.array(content["logical_count"])
    return save_pt(folder / f"{source.stem}.pt", content)


def test_real_dumps(shared):
    folder, model = shared / "data/engine_formats/real", load_model("deepseek-v3")
    loads = read_all_loads([folder / "expert_distribution_fp4_1k1k_compressed.pt"], model)
    assert (loads.counts.sum(axis=2) == 8_568_624).all() and loads.counts.shape == (1, 58, 256)
    with pytest.raises(TraceError, match="fp8_1k1k_compressed.pt: .*zero"):
        read_all_loads([folder / "expert_distribution_fp8_1k1k_compressed.pt"], model)


def test_ranks_are_summed_once(tmp_path):
    first, second = per_pass(tmp_path)
    shutil.copy(first, tmp_path / "other_rank0.pt")
    again = save_pt(
        tmp_path / "expert_distribution_recorder_177_rank5.pt",
        {
            "records": [{"forward_pass_id": 7, "rank": 1, "global_physical_count": physical(1, 0)}],
            "last_physical_to_logical_map": MAP,
        },
    )
    with pytest.raises(TraceError, match="second matrix .* rank 1"):
        read_all_loads([first, second, again], TOY)
    with pytest.raises(TraceError, match="second matrix"):
        read_all_loads(npy(tmp_path) * 2, TOY)


@pytest.mark.parametrize("suffix", [".pt", ".json"])
def test_dumps_of_ranks_and_of_times(tmp_path, suffix):
    """SGLang names a file by its own clock and rank: ranks of a pass are summed, later dumps follow in time."""

    def dumped(of, at, **content):
        path = tmp_path / f"expert_distribution_recorder_17470000{at:02}.{of + 5}_{of}{suffix}"
        if suffix == ".json":
            path.write_text(json.dumps(content, default=np.ndarray.tolist))
        return save_pt(path, content) if suffix == ".pt" else path

    def passes(rank, at, steps):
        records = [{"forward_pass_id": n, "rank": rank, "global_physical_count": physical(rank, n)} for n in steps]
        return dumped(rank, at, records=records, last_physical_to_logical_map=MAP)

    ranks = [passes(rank, 0, range(STEPS)) for rank in (0, 1)]
    assert np.array_equal(read_all_loads(ranks, TOY).counts, TRUTH)
    later = read_all_loads([*(passes(rank, 9, [0]) for rank in (0, 1)), *ranks], TOY)  # in any order
    assert np.array_equal(later.counts, [*TRUTH, TRUTH[0]]) and len(set(later.series)) == 2
    with pytest.raises(TraceError, match="7000003.5_0.* 1 ranks.* 2: rank 1"):
        read_all_loads([passes(0, 3, range(STEPS)), passes(1, 3, range(1, STEPS))], TOY)
    stat = [dumped(rank, 5, rank=rank, logical_count=COUNTS[rank, 0]) for rank in (0, 1)]
    assert np.array_equal(read_all_loads(stat, TOY).counts, TRUTH[:1])


def test_statistics_of_another_model_or_cut_are_refused(tmp_path):
    (folder,) = trtllm(tmp_path)
    assert [file.name for file in load_files([folder])] == ["rank0.safetensors", "rank1.safetensors"]
    with pytest.raises(TraceError, match="experts = 6.* tiny-moe .*experts = 8"):
        read_all_loads([folder], TINY)
    file = folder / "rank1.safetensors"
    good = file.read_bytes()
    for content, message in [
        (good[:-1], "is the file truncated"),
        (good[:40], "its header is missing or cut"),
        (good.replace(b'"I64"', b'"X64"'), "is of dtype 'X64'; expected one of"),
        (good.replace(b'"100_1"', b'"100 1"'), "expected names <iteration>_<layer>"),
        (good.replace(b'"100_1"', b'"103_1"'), r"iteration 101 has layers \[1, 2, 3, 4\]; expected \[2, 3, 4\]"),
        (good.replace(b'"100_', b'"-00_'), "expected names <iteration>_<layer>"),
        (good.replace(b'"shape":', b'"shapo":'), "not a .safetensors file"),
    ]:
        file.write_bytes(content)
        with pytest.raises(TraceError, match=f"rank1.safetensors: .*{message}"):
            read_all_loads([folder], TOY)
    file.write_bytes(good)
    (folder / "meta_info.json").write_text('{"num_experts": 6, "num_experts_per_token": 3}')
    with pytest.raises(TraceError, match="meta_info.json: .*top_k = 3"):
        read_all_loads([folder], TOY)


TOKENS = RNG.random((7, 5, 6)).argsort(axis=2)[..., :2]  # [token, layer, k]


def encoded(experts):
    return base64.b64encode(experts.astype("<i4").tobytes()).decode()


def as_npy(experts):
    stream = io.BytesIO()
    np.save(stream, experts.astype(np.uint8))
    return base64.b64encode(stream.getvalue()).decode()


RESPONSES = {
    "sglang": {"text": "…", "meta_info": {"prompt_tokens": 3, "completion_tokens": 5,
               "routed_experts": encoded(TOKENS)}},
    "openai": {"choices": [{"sgl_ext": {"routed_experts": encoded(TOKENS)}}], "usage": {"prompt_tokens": 3}},
    "vllm": {"choices": [{"routed_experts": as_npy(TOKENS)}], "usage": {"prompt_tokens": 3}},
    "moe layers": {"prompt_tokens": 3, "routed_experts": as_npy(TOKENS[:, 1:])},
}  # fmt: skip


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
@pytest.mark.parametrize("name", RESPONSES)
def test_responses_become_tokens(tmp_path, name, suffix):
    (tmp_path / f"x{suffix}").write_text(json.dumps(RESPONSES[name]) + "\n")
    imported(tmp_path / f"x{suffix}", tmp_path / "store")
    for path in (tmp_path / "store", tmp_path / f"x{suffix}"):
        trace = open_trace(path, TOY)
        assert np.array_equal(trace.experts, TOKENS[:, 1:])
        assert trace.iteration.tolist() == [0, 0, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("prompt", [{"prompt_tokens": 3}, {"prompt_token_ids": np.arange(3)}])
def test_routed_experts_in_npz(tmp_path, prompt):
    np.savez(tmp_path / "x.npz", routed_experts=TOKENS, **prompt)
    imported(tmp_path / "x.npz", tmp_path / "store")
    for path in (tmp_path / "store", tmp_path / "x.npz"):
        assert np.array_equal(open_trace(path, TOY).experts, TOKENS[:, 1:])


MANY = RNG.random((10, 5, 6)).argsort(axis=2)[..., :2]  # 10 tokens of 4 MoE layers have as many ids as 8 of 5 layers
CHOICES = {
    "choices": [{"sgl_ext": {"routed_experts": encoded(TOKENS)}}, {"sgl_ext": {"routed_experts": encoded(MANY)}}]
}


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
@pytest.mark.parametrize(("response", "requests"), [
    (CHOICES | {"usage": {"prompt_tokens": 3, "completion_tokens": 13}}, [TOKENS, MANY]),
    ([RESPONSES["sglang"], CHOICES | {"usage": {"prompt_tokens": 3}}], [TOKENS, TOKENS, MANY]),
    ({"meta_info": {"prompt_tokens": 3, "completion_tokens": 8, "routed_experts": encoded(MANY[:, 1:])}}, [MANY]),
])  # fmt: skip
def test_every_choice_of_a_response_is_a_request(tmp_path, suffix, response, requests):
    """Also of a list of responses; counts of tokens say which of two shapes ids without one have."""
    (tmp_path / f"x{suffix}").write_text(json.dumps(response) + "\n")
    imported(tmp_path / f"x{suffix}", tmp_path / "store")
    for path in (tmp_path / "store", tmp_path / f"x{suffix}"):
        trace = open_trace(path, TOY)
        assert np.diff(trace.request_offsets).tolist() == [len(each) for each in requests]
        assert np.array_equal(trace.experts, np.concatenate(requests)[:, 1:])


def test_routing_that_no_router_makes(tmp_path):
    """Tokens in a row, or layers, with the same experts, in every format."""
    frozen, copied = MANY[:, 1:].copy(), np.repeat(MANY[:, 1:2], 4, axis=1)
    frozen[2:] = frozen[2]
    for experts, prompt, both in ((frozen, 2, "8; expected at most 7"), (copied, 1, "4; expected at most 1")):
        steps = [{str(n): rows[:, n - 1].tolist() for n in range(1, 5)}
                 for rows in (experts[:prompt], *experts[prompt:, None])]  # fmt: skip
        (tmp_path / "0.json").write_text(json.dumps(steps))
        (tmp_path / "x.jsonl").write_text(json.dumps({"prompt_tokens": prompt, "topk_ids": experts.tolist()}))
        np.savez(tmp_path / "x.npz", experts=experts, request_offsets=[0, 10], layer_ids=[1, 2, 3, 4],
                 iteration=[0] * prompt + [*range(1, 11 - prompt)])  # fmt: skip
        for file in ("0.json", "x.jsonl", "x.npz"):
            with pytest.raises(TraceError, match=f"{file}.* with the same experts: {both}"):
                open_trace(tmp_path / file, TOY)


BAD_RESPONSES = {
    "rows lost": ({"prompt_tokens": 3, "completion_tokens": 50, "routed_experts": encoded(TOKENS)},
                  "routing: 7; expected 52"),
    "rows lost, npy": ({"prompt_tokens": 3, "completion_tokens": 4, "routed_experts": as_npy(TOKENS)},
                       "routing: 7; expected 6"),
    "choice dropped": ({**CHOICES, "choices": [*CHOICES["choices"], {}], "usage": {"prompt_tokens": 3}},
                       "choice 2 of 3: has no"),
    "rows of a choice lost": ({**CHOICES, "usage": {"prompt_tokens": 3, "completion_tokens": 14}},
                              "2 choices: 17; expected 18"),
    "two shapes": ({"prompt_tokens": 3, "routed_experts": encoded(MANY[:, 1:])},
                   "8 tokens of 5 layers or 10 tokens of 4"),
    "no base64": ({"prompt_tokens": 3, "routed_experts": "?"}, "routed_experts is not base64"),
    "cut": ({"prompt_tokens": 3, "routed_experts": encoded(TOKENS)[:-4]}, "routed_experts has .* expected"),
    "no prompt": ({"routed_experts": encoded(TOKENS)}, "prompt_tokens is None; expected a number from 0 to 7"),
    "another model": ({"prompt_tokens": 3, "routed_experts": encoded(TOKENS[:, :3, :1])},
                      "has 21 ids; expected a multiple of 5"),
    "out of range": ({"prompt_tokens": 3, "routed_experts": encoded(TOKENS + 1)}, "is out of range; expected 0 to 5"),
    "cut npy": ({"prompt_tokens": 3, "routed_experts": as_npy(TOKENS)[:-8]}, "not a readable .npy file"),
    "flat npy": ({"prompt_tokens": 3, "routed_experts": as_npy(TOKENS.ravel())}, r"has shape \[70\]"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_RESPONSES)
def test_bad_responses(tmp_path, case):
    response, message = BAD_RESPONSES[case]
    (tmp_path / "x.json").write_text(json.dumps(response))
    with pytest.raises(TraceError, match=f"x.json: .*{message}"):
        imported(tmp_path / "x.json", tmp_path / "store")


def test_routed_npz_without_the_prompt_is_refused(tmp_path):
    np.savez(tmp_path / "x.npz", routed_experts=TOKENS)
    with pytest.raises(TraceError, match="x.npz: .*prompt_tokens"):
        imported(tmp_path / "x.npz", tmp_path / "store")


# ---- ``.pt`` files without PyTorch: tensors come back as they were saved, and nothing in a file is ever executed.

MODEL = load_model("olmoe-1b-7b")
PT_COUNTS = np.random.default_rng(0).integers(0, 1000, size=(3, MODEL.layers, MODEL.experts))


class Evil:
    """Unpickled, it makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def dump(tmp_path, counts=PT_COUNTS, **more):
    content = {"rank": 0, "logical_count": counts, "average_utilization_rate_over_window": None} | more
    return save_pt(tmp_path / "my_decode.pt", content)


@pytest.mark.parametrize("dtype", ["int64", "int32", "float32"])
def test_a_dump_keeps_its_steps(tmp_path, dtype):
    found = read_loads(dump(tmp_path, PT_COUNTS.astype(dtype)), MODEL)
    assert (found.counts == PT_COUNTS).all() and found.counts.dtype == np.int64
    assert found.phase == [1, 1, 1] and set(found.series) == {"my_decode"}


@settings(max_examples=examples(60), derandomize=True)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
        | arrays.arrays(st.sampled_from(["int64", "int32", "float32", "bool"]), arrays.array_shapes(max_dims=3),
                        elements=st.integers(0, 1)),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
        max_leaves=8,
    )
)  # fmt: skip
def test_what_is_saved_is_read(tmp_path_factory, content):
    found = read_pt(save_pt(tmp_path_factory.mktemp("pt") / "x.pt", content))
    assert same(found, content)


def same(one, other):
    if isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in other)
    if isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def test_strided_tensors_are_read_and_expanded_ones_refused(tmp_path):
    assert (
        read_pt(save_pt(tmp_path / "x.pt", PT_COUNTS.transpose(2, 0, 1).copy().transpose(1, 2, 0))) == PT_COUNTS
    ).all()
    with zipfile.ZipFile(save_pt(tmp_path / "z.pt", np.ones((7, 1), np.int64))) as archive:
        pickled = archive.read("z/data.pkl")
    shape_and_strides = b"K\x07K\x01\x86", b"K\x01K\x01\x86"
    assert all(part in pickled for part in shape_and_strides)
    expanded = pickled.replace(shape_and_strides[1], b"K\x00K\x00\x86").replace(shape_and_strides[0], b"K\x08K\x01\x86")
    with pytest.raises(TraceError, match=r"\[8, 1\].* 7 numbers"):
        read_pt(zip_pt(tmp_path / "y.pt", expanded, [bytes(56)]))


@pytest.mark.parametrize("protocol", range(6))
def test_what_would_be_executed_is_not(tmp_path, protocol):
    victim = tmp_path / "executed"
    for number, content in enumerate(({"logical_count": Evil(victim)}, Evil(victim), [print], {"x": io.StringIO})):
        path = zip_pt(tmp_path / f"{number}.pt", pickle.dumps(content, protocol))
        with pytest.raises(TraceError, match="cannot be read safely|can be read safely.* nothing in it was executed"):
            read_loads(path, MODEL)
    bare = tmp_path / "bare.pt"
    bare.write_bytes(pickle.dumps(Evil(victim), protocol))
    with pytest.raises(TraceError, match="torch 1.6"):
        read_loads(bare, MODEL)
    assert not victim.exists()


def test_damage_is_named(tmp_path):
    path = dump(tmp_path)
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    for content in (good[: len(good) // 2], b"", b"rubbish", bytes(flipped)):
        path.write_bytes(content)
        with pytest.raises(TraceError, match=r"my_decode.pt: not a .pt file that can be read.*nothing in it was"):
            read_loads(path, MODEL)


@settings(max_examples=examples(200), derandomize=True)
@given(st.data())
def test_no_damaged_pickle_crashes(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("pt")
    with zipfile.ZipFile(dump(folder, np.ones((2, 2), np.int64))) as archive:
        pickled = bytearray(archive.read("my_decode/data.pkl"))
    for _ in range(data.draw(st.integers(1, 4))):
        pickled[data.draw(st.integers(0, len(pickled) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read_pt(zip_pt(folder / "x.pt", bytes(pickled), [bytes(32)]))
    except TraceError as error:
        assert "x.pt: not a .pt file" in str(error)
    else:
        assert pickletools.genops(bytes(pickled)) and not callable(found)


def test_counts_that_are_none_are_refused(tmp_path):
    with pytest.raises(TraceError, match="negative"):
        read_loads(dump(tmp_path, -PT_COUNTS), MODEL)
    with pytest.raises(TraceError, match="zero"):
        read_all_loads([dump(tmp_path, 0 * PT_COUNTS)], MODEL)
    with pytest.raises(TraceError, match="finite"):
        read_loads(dump(tmp_path, np.full((16, 64), np.nan, np.float32)), MODEL)
    with pytest.raises(TraceError, match="experts = 63.* olmoe-1b-7b .*experts = 64"):
        read_loads(dump(tmp_path, PT_COUNTS[:, :, :63]), MODEL)


def test_torch_writes_what_is_read(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed: files of torch itself cannot be written here")
    torch.save({"rank": 0, "logical_count": torch.from_numpy(PT_COUNTS)}, tmp_path / "x.pt")
    assert (read_loads(tmp_path / "x.pt", MODEL).counts == PT_COUNTS).all()
