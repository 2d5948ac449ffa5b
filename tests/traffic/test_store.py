"""The trace store: what is written is what is read, damage is named, and an old store outlives a failure."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.stores import LAYERS, NAMES, contents, imported
from support.trace_files import TOY, toy_requests, write_tree

import archsim as ar
from archsim.base.errors import TraceError
from archsim.cli.main import main
from archsim.engine.demand import RunDemand, build_run_demand
from archsim.specs.library import load_experiment, load_model
from archsim.traffic import demand_cache, open_trace, stacked, store_writer, trace_store
from archsim.traffic.demand_cache import cached_demand
from archsim.traffic.frames import pack_frames, read_frames, write_frames
from archsim.traffic.store_writer import merge, sample_entries, slice_entries, write_selection
from archsim.traffic.trace_store import open_store, verify


@pytest.fixture
def tree(tmp_path):
    return write_tree(tmp_path / "tree", toy_requests(NAMES), LAYERS, 5)


@pytest.fixture
def store(tree, tmp_path):
    imported(tree, tmp_path / "store")
    return tmp_path / "store"


def test_frames_are_read_as_written(tmp_path):
    rng = np.random.default_rng(0)
    columns = {
        "z": rng.integers(0, 200, (3, 50, 2)).astype(np.uint8),
        "a": np.arange(-5, 5, dtype=np.int64),
        "none": np.zeros(0, np.int16),
    }
    write_frames(tmp_path / "x.col", columns, {"name": "é"})
    found, facts = read_frames(tmp_path / "x.col")
    assert facts == {"name": "é"} and list(found) == list(columns)
    assert all(
        np.array_equal(found[name], columns[name]) and found[name].dtype == columns[name].dtype for name in columns
    )
    assert list(read_frames(tmp_path / "x.col", frozenset(["a"]))[0]) == ["a"]


def test_any_damaged_byte_of_a_file_is_noticed(tmp_path):
    good = pack_frames({"x": np.arange(40, dtype=np.int16), "y": np.ones((2, 3, 4), np.uint8)}, {"n": 1})
    file = tmp_path / "x.col"
    assert len(good) > 40 * 2 + 2 * 3 * 4
    for at in range(len(good)):
        file.write_bytes(good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :])
        with pytest.raises(TraceError, match=r"x\.col: "):
            read_frames(file)
    for size in range(0, len(good), 7):
        file.write_bytes(good[:size])
        with pytest.raises(TraceError, match=r"x\.col: "):
            read_frames(file)


def test_a_store_opens_as_the_trace_it_was_made_of(tree, store):
    raw, kept = open_trace(tree, TOY), open_trace(store, TOY)
    for name in ("experts", "request_offsets", "iteration", "layer_ids", "request_subject"):
        one, other = getattr(raw, name), getattr(kept, name)
        assert np.array_equal(one, other) and one.dtype == other.dtype, name
    assert raw.digest == kept.digest and raw.subject_names == kept.subject_names
    assert kept.source == str(store)


def test_a_large_store_is_mapped_and_keeps_its_digest(store, tmp_path, monkeypatch):
    small = open_trace(store, TOY)
    monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(trace_store, "MAPPED_BYTES", 0)
    for _ in range(2):
        mapped = open_trace(store, TOY)
        assert isinstance(mapped.experts, np.memmap)
        assert mapped.known_digest == small.digest and np.array_equal(mapped.experts, small.experts)


def test_a_store_of_another_model_is_refused(store):
    with pytest.raises(TraceError, match="top_k = 2.*model x .*top_k = 1"):
        open_trace(store, TOY.model_copy(update={"name": "x", "top_k": 1}))


def test_slice_and_merge_are_inverse(store, tmp_path):
    opened = open_store(store)
    write_selection(opened, slice_entries(opened, 0, 3, []), tmp_path / "one", 1)
    write_selection(opened, slice_entries(opened, 3, None, []), tmp_path / "two", 2)
    merge([tmp_path / "two", tmp_path / "one"], tmp_path / "whole", 1)
    assert contents(tmp_path / "whole") == contents(store)


def test_slice_by_subject(store, tmp_path):
    entries = slice_entries(open_store(store), 0, None, ["b"])
    assert [entry.name for entry in entries] == ["set/b/9", "set/b/10"]
    with pytest.raises(TraceError, match="subject 'c'"):
        slice_entries(open_store(store), 0, None, ["c"])


def test_equal_files_of_rows_are_written_once(tree, tmp_path, monkeypatch):
    monkeypatch.setattr(store_writer, "FILE_TOKENS", 1)
    for number in ("3", "4", "5"):
        shutil.copy(tree / "org/toy/set/a/1.json", tree / f"org/toy/set/a/{number}.json")
    imported(tree, tmp_path / "store", jobs=4)
    assert len(list((tmp_path / "store").glob("rows-*.col"))) == 4
    verify(open_store(tmp_path / "store"))
    assert open_trace(tmp_path / "store", TOY).digest == open_trace(tree, TOY).digest


def test_merging_a_store_with_itself_is_refused(store, tmp_path):
    with pytest.raises(TraceError, match="set/a/1 .*twice"):
        merge([store, store], tmp_path / "out", 1)
    assert not trace_store.is_store(tmp_path / "out")


def test_stores_of_two_models_do_not_merge(tree, store, tmp_path):
    imported(tree, tmp_path / "other", TOY.model_copy(update={"experts": 9}))
    with pytest.raises(TraceError, match="top-2 of 9.*top-2 of 6"):
        merge([store, tmp_path / "other"], tmp_path / "out", 1)


def test_samples_are_seeded_and_without_repeats(store):
    opened = open_store(store)
    one, again = sample_entries(opened, 3, 1), sample_entries(opened, 3, 1)
    assert one == again and len({entry.name for entry in one}) == 3
    assert {tuple(sample_entries(opened, 2, seed)) for seed in range(20)} != {tuple(sample_entries(opened, 2, 0))}
    with pytest.raises(TraceError, match=r"\b4 requests.*\b5\b"):
        sample_entries(opened, 5, 0)


def test_an_existing_store_is_replaced_only_when_asked(store, tree, tmp_path):
    before = contents(store)
    with pytest.raises(TraceError, match="trace store.*--replace"):
        imported(tree / "org/toy/set/a", store)
    assert contents(store) == before
    imported(tree / "org/toy/set/a", store, replace=True)
    assert len(open_store(store).entries) == 2
    assert len(contents(store)) == 3, "files of the old store are gone"


def test_other_folders_are_not_written_to(tree, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/letter.txt").write_text("dear")
    with pytest.raises(TraceError, match="exists and is not a trace store"):
        imported(tree, tmp_path / "home")


@pytest.mark.parametrize("spoil", [
    lambda manifest: "{",
    lambda manifest: "[]",
    lambda manifest: json.dumps({**manifest, "version": 99}),
    lambda manifest: json.dumps({key: value for key, value in manifest.items() if key != "shape"}),
    lambda manifest: json.dumps({**manifest, "index": {**manifest["index"], "file": "../index.col"}}),
    lambda manifest: json.dumps({**manifest, "index": {**manifest["index"], "bytes": 5}}),
    lambda manifest: json.dumps({**manifest, "rows": [{**manifest["rows"][0], "file": "rows-gone.col"}]}),
])  # fmt: skip
def test_damaged_manifests(spoil, store):
    file = store / "manifest.json"
    file.write_text(spoil(json.loads(file.read_text())))
    with pytest.raises(TraceError, match=str(store)):
        open_trace(store, TOY)


def test_verify_finds_damage(store):
    verify(open_store(store))
    file = next(store.glob("rows-*.col"))
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(TraceError, match=r"rows-.*\.col: damaged"):
        verify(open_store(store))
    with pytest.raises(TraceError, match=r"rows-.*\.col: damaged"):
        open_trace(store, TOY)


def test_a_folder_without_a_manifest_is_no_store(store):
    (store / "manifest.json").unlink()
    with pytest.raises(TraceError, match="not a trace store"):
        open_store(store)


def test_commands(tree, tmp_path, capsys):
    out = str(tmp_path / "store")
    assert main(["trace", "slice", out, "--out", "x"]) == 2
    assert "not a trace store" in capsys.readouterr().err
    model = tmp_path / "toy.yaml"
    model.write_text(
        "name: toy\nsource: x\nlayers: 5\nmoe_layers: {first: 1, last: 4}\nhidden: 8\nexpert_ffn: 8\nexperts: 6\n"
        "top_k: 2\n"
    )
    assert main(["trace", "import", str(tree), "--out", out, "--model", str(model)]) == 0
    printed = capsys.readouterr().out
    assert "requests  4" in printed and "a 2, b 2" in printed
    assert main(["trace", "info", out, "--verify"]) == 0
    assert "All checksums match." in capsys.readouterr().out
    assert main(["trace", "head", out, "-n", "1"]) == 0
    assert capsys.readouterr().out.startswith("set/a/1 iteration 0  1: ")
    assert main(["trace", "sample", out, "-n", "2", "--out", str(tmp_path / "two")]) == 0
    assert "requests  2" in capsys.readouterr().out


def test_an_experiment_runs_from_a_store(shared, tmp_path):
    llama = load_model("llama-4-maverick")
    tree = shared / "data/traces/meta-llama"
    imported(tree, tmp_path / "store", llama)
    rows = []
    for trace in (tree, tmp_path / "store"):
        changes = [f"workload.trace={trace}", "workload.batch=16", "workload.decode_steps=2"]
        experiment = load_experiment("configs/published_llama4.yaml", changes)
        row = ar.run(experiment).runs.rows[0]
        rows.append({name: value for name, value in row.items() if name not in ("trace", "run")})
    assert rows[0] == rows[1]


def test_demands_are_kept_by_content(tree, tmp_path, monkeypatch):
    monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(demand_cache, "WORTH_S", 0)
    trace = open_trace(tree, TOY)

    def build(folder):
        return build_run_demand(trace, 4, 3, 0, origin_dies=2, folder=folder)

    first = cached_demand(RunDemand, "x", build)
    second = cached_demand(RunDemand, "x", lambda folder: pytest.fail("summed again"))
    for name in ("tokens", "first_seen", "origins", "layer_ids"):
        one, other = getattr(first, name), getattr(second, name)
        assert np.array_equal(one, other) and one.dtype == other.dtype
    assert second.predicted_rows is None
    assert (first.has_prefill, first.top_k, first.batch, first.digest) == (
        second.has_prefill,
        second.top_k,
        second.batch,
        second.digest,
    )
    monkeypatch.setattr(demand_cache, "MOST_BYTES", 0)
    cached_demand(RunDemand, "y", build)
    assert list(demand_cache.folder().iterdir()) == []


@pytest.mark.parametrize("damaged", [lambda whole: b"short", lambda whole: bytes(len(whole))])
@pytest.mark.parametrize("held_bytes", [0, 1 << 20])
def test_a_damaged_demand_is_summed_again(tree, tmp_path, monkeypatch, damaged, held_bytes):
    monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(demand_cache, "WORTH_S", 0)
    monkeypatch.setattr(stacked, "HELD_BYTES", held_bytes)
    trace, built = open_trace(tree, TOY), []

    def build(folder):
        built.append(folder)
        return build_run_demand(trace, 4, 3, 0, folder=folder)

    tokens = cached_demand(RunDemand, "x", build).tokens.copy()
    (entry,) = demand_cache.folder().iterdir()
    (entry / "tokens").write_bytes(damaged((entry / "tokens").read_bytes()))
    again = cached_demand(RunDemand, "x", build)
    assert len(built) == 2 and np.array_equal(again.tokens, tokens)
    assert [each.name for each in demand_cache.folder().iterdir()] == [entry.name]


def test_drafts_of_other_processes_outlive_old_entries(tree, tmp_path, monkeypatch):
    monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(demand_cache, "WORTH_S", 0)
    monkeypatch.setattr(demand_cache, "MOST_BYTES", 0)
    now, ages_s = tmp_path.stat().st_mtime, {"draft-live": 7200, "draft-abandoned": 2 * 86400, "gone": 60, "old": 7200}
    for name, age_s in ages_s.items():
        folder = demand_cache.folder() / name
        folder.mkdir(parents=True)
        (folder / "tokens").write_bytes(b"some")
        os.utime(folder, (now - age_s,) * 2)
    stat = Path.stat

    def vanishing(path, **how):
        if path.name == "gone":  # another process removes it between the look at the folder and that at the entry
            raise FileNotFoundError(path)
        return stat(path, **how)

    monkeypatch.setattr(Path, "stat", vanishing)
    trace = open_trace(tree, TOY)
    cached_demand(RunDemand, "x", lambda folder: build_run_demand(trace, 4, 3, 0, folder=folder))
    assert sorted(each.name for each in demand_cache.folder().iterdir()) == ["draft-live", "gone"]


def test_other_users_read_a_demand(tree, tmp_path, monkeypatch):
    monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(demand_cache, "WORTH_S", 0)
    trace = open_trace(tree, TOY)
    (tmp_path / "usual").mkdir()
    cached_demand(RunDemand, "x", lambda folder: build_run_demand(trace, 4, 3, 0, folder=folder))
    (entry,) = demand_cache.folder().iterdir()
    assert entry.stat().st_mode == (tmp_path / "usual").stat().st_mode

    def refused(*_):
        raise PermissionError("the entry of another user")

    monkeypatch.setattr(os, "utime", refused)
    cached_demand(RunDemand, "x", lambda folder: pytest.fail("summed again"))


def test_a_demand_needs_no_folder(tree, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file, not a folder")
    monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path / "cache"))
    trace = open_trace(tree, TOY)
    demand = cached_demand(RunDemand, "x", lambda folder: build_run_demand(trace, 4, 3, 0, folder=folder))
    assert (demand.tokens == build_run_demand(trace, 4, 3, 0).tokens).all()


def test_threads_do_not_change_a_demand(monkeypatch):
    from archsim.base import host as parallel
    from archsim.policies.heatmap import TopFraction
    from archsim.specs.workload import SyntheticSpec
    from archsim.traffic.synthetic import SyntheticTraffic

    monkeypatch.setattr(parallel, "LEAST_SHARED", 0)
    source = SyntheticTraffic(TOY, SyntheticSpec(requests=20, prompt_tokens=3), 20)
    one, other = (build_run_demand(source, 20, 5, 0, origin_dies=3, predictor=TopFraction(), threads=n) for n in (1, 3))
    for name in ("tokens", "first_seen", "origins", "predicted_rows"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
