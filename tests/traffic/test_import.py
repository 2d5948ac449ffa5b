# ruff: noqa: E501  (one row a case: a table is read across)

"""Imports: every source gives the same store, damage is named and leaves what was there, what was stopped goes on."""

import csv
import gzip
import io
import json
import shutil
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from support.stores import LAYERS, NAMES, Quiet, contents, imported
from support.tiny import TINY, archsim
from support.trace_files import TOY, save_npz, toy_requests, write_tree

import archsim as ar
from archsim.base.errors import ArchsimError, TraceError
from archsim.cli.main import main
from archsim.engine.demand import build_run_demand
from archsim.laws.mesh import quantities
from archsim.machine.fabric_calibrations import fabric_calibration
from archsim.specs.library import load_model
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.traffic.formats import importing, registry
from archsim.traffic.formats import json_tree as tree
from archsim.traffic.formats.importing import import_sources
from archsim.traffic.formats.json_request import Origin, read_request
from archsim.traffic.formats.json_scan import scan
from archsim.traffic.formats.readers import open_trace
from archsim.traffic.layer_subset import some_layers
from archsim.traffic.store_writer import merge, slice_entries, write_selection
from archsim.traffic.trace_store import open_store, verify


@pytest.fixture
def source(tmp_path):
    return write_tree(tmp_path / "tree", toy_requests(NAMES), LAYERS, 5)


def packed(source, path, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        archive.add(source, arcname=".")
    return path


def test_the_shared_requests_and_the_shared_npz_give_identical_stores(shared, tmp_path):
    data = shared / "data/traces"
    llama = load_model("llama-4-maverick")
    imported(data / "meta-llama", tmp_path / "raw", None, jobs=1)
    imported(data / "llama4-maverick/mmlu_abstract_algebra_anatomy.npz", tmp_path / "npz", None)
    raw, npz = open_store(tmp_path / "raw"), open_store(tmp_path / "npz")
    wanted = {entry.name for entry in raw.entries}
    write_selection(npz, [entry for entry in npz.entries if entry.name in wanted], tmp_path / "same", 1)
    assert len(wanted) == 16 and len(npz.entries) == 235
    assert contents(tmp_path / "same") == contents(tmp_path / "raw")
    assert open_trace(tmp_path / "raw", llama).digest == open_trace(data / "meta-llama", llama).digest
    size = sum(file.stat().st_size for file in (data / "meta-llama").rglob("*.json"))
    assert sum(map(len, contents(tmp_path / "raw").values())) * 15 < size


@pytest.mark.parametrize("mode", ["w:gz", "w"])
def test_archives_are_read_like_directories(mode, source, tmp_path):
    imported(source, tmp_path / "one")
    imported(packed(source, tmp_path / ("x.tar.gz" if mode == "w:gz" else "x.tar"), mode), tmp_path / "other", jobs=3)
    assert contents(tmp_path / "one") == contents(tmp_path / "other")


def test_jobs_batches_and_the_order_of_sources_do_not_change_a_store(source, tmp_path, monkeypatch):
    imported(source, tmp_path / "one")
    monkeypatch.setattr(importing, "BATCH_BYTES", 1)
    imported([source / "org/toy/set/b", source / "org/toy/set/a"], tmp_path / "other", jobs=4)
    assert contents(tmp_path / "one") == contents(tmp_path / "other")


@pytest.mark.parametrize("indent", [None, 1, 4, "\t"])
def test_formatting_does_not_matter(indent, source, tmp_path):
    before = open_trace(source, TOY).digest
    for file in source.rglob("*.json"):
        content = json.dumps(json.loads(file.read_text()), indent=indent)
        assert scan(content.encode(), 6, 2, 99) is not None, "the fast scanner reads it"
        file.write_text(content)
    assert open_trace(source, TOY).digest == before


def test_unusual_formatting_is_left_to_the_exact_reader(source):
    before = open_trace(source, TOY).digest
    for file in source.rglob("*.json"):
        data = [dict(reversed(each.items())) if t else each for t, each in enumerate(json.loads(file.read_text()))]
        content = json.dumps(data).replace('"1"', '"\\u0031"')
        assert scan(content.encode(), 6, 2, 99) is None
        file.write_text(content)
    assert open_trace(source, TOY).digest == before


def test_json_lines(tmp_path):
    requests = toy_requests(["log/1", "log/2"])
    with (tmp_path / "log.jsonl").open("w") as stream:
        for key, (experts, iteration) in zip(("topk_ids", "routed_experts"), requests.values(), strict=True):
            line = {key: experts.tolist(), "prompt_tokens": int((iteration == 0).sum()), "finish_reason": "stop"}
            stream.write(json.dumps(line) + "\n")
    imported(tmp_path / "log.jsonl", tmp_path / "store")
    npz = open_trace(save_npz(tmp_path / "a.npz", requests, LAYERS), TOY)
    assert open_trace(tmp_path / "store", TOY).digest == npz.digest == open_trace(tmp_path / "log.jsonl", TOY).digest


def test_load_matrices_of_every_format_agree(tmp_path, capsys):
    counts = np.random.default_rng(0).integers(0, 1000, (4, 6))
    every_layer = np.vstack([np.zeros((1, 6), int), counts])
    sources = {
        "dump.json": json.dumps({"logical_count": every_layer.tolist()}),
        "steps.json": json.dumps({"logical_count": [every_layer.tolist(), np.zeros_like(every_layer).tolist()]}),
        "load.csv": "layer,0,1,2,3,4,5\n"
        + "".join(f"{n + 1},{','.join(map(str, row))}\n" for n, row in enumerate(counts)),
    }
    for name, text in sources.items():
        (tmp_path / name).write_text(text)
    np.savez(tmp_path / "load.npz", counts=counts)
    for name in [*sources, "load.npz"]:
        out = tmp_path / f"store of {name}"
        imported(tmp_path / name, out)
        assert np.array_equal(open_store(out).loads()[0]["counts"][0], counts), name
        with pytest.raises(TraceError, match="expert loads.*experts of every token"):
            open_trace(out, TOY)
    for action in (["slice", "--requests", "0:1"], ["sample", "-n", "1"], ["head"], ["merge"]):
        assert main(["trace", action[0], str(out), *action[1:]]) == 2 and "expert loads" in capsys.readouterr().err


def test_published_load_matrices(shared, tmp_path):
    file = shared / "data/traces/deepseek-v3-r1/sglang_logical_count.npz"
    imported(file, tmp_path / "store", load_model("deepseek-v3"))
    columns, facts = open_store(tmp_path / "store").loads()
    with np.load(file) as members:
        assert np.array_equal(columns["counts"], members["counts"])
        assert facts["names"] == members["workload"].tolist() and columns["phase"].tolist() == members["phase"].tolist()


def add(archive, name, content=b"[]", **changes):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for key, value in changes.items():
        setattr(member, key, value)
    archive.addfile(member, io.BytesIO(content))


# What is added to an archive of good requests → the message.
BAD_MEMBERS = {
    "path traversal": (lambda archive: add(archive, "org/toy/set/../../../../etc/1.json"), "leads out of the archive"),
    "absolute path": (lambda archive: add(archive, "/etc/1.json"), "leads out of the archive"),
    "link": (lambda archive: add(archive, "org/toy/set/a/7.json", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
             "is a link or a device"),
    "device": (lambda archive: add(archive, "org/toy/set/a/7.json", b"", type=tarfile.CHRTYPE),
               "is a link or a device"),
    "no number": (lambda archive: add(archive, "org/toy/set/a/x.json"), "expected <dataset>/<subject>/<n>.json"),
    "another model": (lambda archive: add(archive, "org/other/set/a/7.json"),
                      "holds requests of org/toy and of org/other"),
    "no iterations": (lambda archive: add(archive, "org/toy/set/a/7.json"), "a/7: expected a list of 1 to 32767"),
    "binary rubbish": (lambda archive: add(archive, "org/toy/set/a/7.json", b"\xff\x00\x81"), "a/7: not valid JSON"),
    "a request twice": (lambda archive: add(archive, "org/toy/set/a/1.json", archive.again),
                        "request set/a/1 appears twice"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_MEMBERS)
def test_bad_archives_leave_the_store_as_it_was(case, source, tmp_path):
    imported(source, tmp_path / "store")
    before = contents(tmp_path / "store")
    spoil, message = BAD_MEMBERS[case]
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        archive.add(source / "org", arcname="org")
        archive.again = (source / "org/toy/set/a/1.json").read_bytes()
        spoil(archive)
    with pytest.raises(TraceError, match=message):
        imported(tmp_path / "x.tar.gz", tmp_path / "store", replace=True)
    assert contents(tmp_path / "store") == before


def test_a_member_that_declares_too_much_is_refused_unread(source, tmp_path, monkeypatch):
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.add(source / "org", arcname="org")
        member = tarfile.TarInfo("org/toy/set/a/7.json")
        member.size = 1 << 40
        archive.fileobj.write(member.tobuf())
        archive.fileobj.write(b"\0" * 2048)
        archive.offset = archive.fileobj.tell()
    with pytest.raises(TraceError, match="1099511627776 bytes"):
        imported(tmp_path / "x.tar", tmp_path / "store")


def test_a_member_that_inflates_too_much_is_refused_unread(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("experts.npy", bytes(80 << 20))
    with pytest.raises(TraceError, match="'experts.npy'.* 83886080 bytes"):
        imported(tmp_path / "bomb.npz", tmp_path / "store")


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9, 0.999])
def test_truncated_archives(part, source, tmp_path):
    for name, mode in (("x.tar.gz", "w:gz"), ("x.tar", "w")):
        file = packed(source, tmp_path / name, mode)
        content = file.read_bytes().rstrip(b"\0")  # a tar archive may have more zeros at its end than it needs
        file.write_bytes(content[: int(part * len(content))])
        with pytest.raises(TraceError, match=f"{name}: .*truncated"):
            imported(file, tmp_path / "store")


@pytest.mark.parametrize(
    "content", [b"", b"\x1f\x8b rubbish", bytes(range(256)) * 8, gzip.compress(b"no tar", mtime=0)]
)
def test_rubbish_of_every_name_is_refused(content, tmp_path):
    for name in ("x.tar.gz", "x.tar", "x.npz", "x.json", "x.jsonl", "x.csv", "x.xyz"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TraceError, match=str(tmp_path)):
            imported(tmp_path / name, tmp_path / "store")
    assert not (tmp_path / "store/manifest.json").exists()


def spoiled(source):
    """Damage a/2: an id that does not exist."""
    file = source / "org/toy/set/a/2.json"
    data = json.loads(file.read_text())
    data[1]["2"][0][0] = 6
    file.write_text(json.dumps(data))
    return file


def test_damage_stops_an_import(source, tmp_path):
    file = spoiled(source)
    with pytest.raises(TraceError) as error:
        imported(source, tmp_path / "store")
    assert (
        str(error.value)
        == f"{file}: request a/2, iteration 1, layer 2: expert id 6 at rank 0 is out of range; expected 0 to 5"
    )
    assert not (tmp_path / "store/manifest.json").exists()


def test_damage_is_skipped_when_asked(source, tmp_path):
    file = spoiled(source)
    report = imported(source, tmp_path / "store", on_error="skip")
    assert [str(file) in problem for problem in report.problems] == [True]
    assert [entry.name for entry in open_store(tmp_path / "store").entries] == ["set/a/1", "set/b/9", "set/b/10"]


def test_an_import_that_did_not_end_is_named(source, tmp_path):
    spoiled(source)
    with pytest.raises(TraceError):
        imported(source, tmp_path / "store")
    with pytest.raises(TraceError, match="store: .*`archsim trace import`"):
        open_trace(tmp_path / "store", TOY)


def test_what_a_directory_has_beside_requests_is_told(source, tmp_path):
    (source / "other.npz").write_bytes(b"")
    heard, watcher = [], Quiet()
    watcher.problem = heard.append
    import_sources([source], tmp_path / "store", TOY, 1, "stop", watcher, False)
    assert heard == [
        f"{source}: 1 .npz file; only .json requests are read from a directory; name the others individually"
    ]


def test_skipping_everything_is_an_error(source, tmp_path):
    for file in source.rglob("*.json"):
        file.write_text("{")
    with pytest.raises(TraceError, match=r"\b4 problem.*a/1"):
        imported(source, tmp_path / "store", on_error="skip")


def test_a_stopped_import_goes_on(source, tmp_path, monkeypatch):
    monkeypatch.setattr(importing, "BATCH_BYTES", 1)
    imported(source, tmp_path / "whole")
    read = tree.read_request
    calls = []

    def failing(content, origin, model, layer_ids):
        calls.append(origin.name)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return read(content, origin, model, layer_ids)

    monkeypatch.setattr(tree, "read_request", failing)
    with pytest.raises(KeyboardInterrupt):
        imported(source, tmp_path / "store")
    assert not (tmp_path / "store/manifest.json").exists()
    report = imported(source, tmp_path / "store")
    assert report.kept == 2 and calls == ["a/1", "a/2", "b/9", "b/9", "b/10"]
    assert contents(tmp_path / "store") == contents(tmp_path / "whole")
    assert not (tmp_path / "store/.import").exists()


def test_a_file_that_changed_since_is_read_again(source, tmp_path, monkeypatch):
    spoiled(source)
    with pytest.raises(TraceError):
        imported(source, tmp_path / "store")
    shutil.rmtree(source)
    write_tree(source, toy_requests(NAMES), LAYERS, 5)
    imported(source, tmp_path / "store")
    assert open_trace(tmp_path / "store", TOY).digest == open_trace(source, TOY).digest


def test_sources_of_two_models_are_refused(shared, source, tmp_path):
    with pytest.raises(TraceError, match="llama-4-maverick.* deepseek-v2-lite"):
        data = shared / "data/traces"
        imported([data / "deepseek-v2-lite/moe_beyond_prompts.npz", data / "meta-llama"], tmp_path / "store", None)


def test_a_model_that_nobody_names_must_be_given(source, tmp_path):
    with pytest.raises(TraceError, match="'org/toy'.*--model"):
        imported(source, tmp_path / "store", None)


def test_tokens_and_loads_do_not_mix(source, tmp_path):
    np.savez(tmp_path / "load.npz", counts=np.ones((4, 6), int))
    with pytest.raises(TraceError, match="expert loads.*tokens"):
        imported([source, tmp_path / "load.npz"], tmp_path / "store")


def test_memory_is_a_few_batches(tmp_path, monkeypatch):
    """However many requests there are, no more batches are under way than the jobs can use."""
    write_tree(tmp_path / "tree", toy_requests([f"a/{n}" for n in range(40)]), LAYERS, 5)
    monkeypatch.setattr(importing, "BATCH_BYTES", 1)
    taken, done = [], []

    class Counting(Quiet):
        def read(self, requests, size):
            done.append(len(taken))

    original = tree.tree_items

    def counted(root):
        for item in original(root):
            taken.append(item)
            yield item

    monkeypatch.setattr(registry, "tree_items", counted)
    import_sources([tmp_path / "tree"], tmp_path / "store", TOY, 2, "stop", Counting(), False)
    assert len(done) == 40
    assert max(ahead - finished for finished, ahead in enumerate(done)) <= 5


def test_the_exact_reader_refuses_what_json_would_swallow(source):
    file = source / "org/toy/set/a/1.json"
    good = file.read_text()
    for text, message in (
        (good.replace('"2":', '"1":', 1), "layer id '1' appears twice in one iteration"),
        (good.replace("null", "NaN", 1), "layer 0: has routing|layer 0 is dense"),
    ):
        file.write_text(text)
        with pytest.raises(TraceError, match=message):
            open_trace(source, TOY)
    origin = Origin("x", "a/1")
    data = json.loads(good)
    data[1]["1"] = [[True, 2]]
    with pytest.raises(TraceError, match="expert id True at rank 0"):
        read_request(json.dumps(data).encode(), origin, TOY, None)


# ---- Recorded routing as matrices of assignments: import, dispatch and combine alone.

SENT = np.random.default_rng(5).multinomial(256, [1 / 8] * 8, size=8)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("matrices")
    write(folder / "mine_source_destination.csv", SENT)
    counts = [np.random.default_rng(c).multinomial(SENT[:, c].sum(), [1 / 16] * 16) for c in range(8)]
    with (folder / "mine_expert_counts.csv").open("w", newline="") as stream:
        out = csv.writer(stream)
        out.writerow(["case", "expert_slot", "chip", "assignments"])
        out.writerows(["one", 16 * c + n, c, counts[c][n]] for c in range(8) for n in range(16))
    command = ["trace", "import", str(folder / "mine_source_destination.csv"), "--model", "mistral-small-4"]
    assert main([*command, "--out", str(folder / "store")]) == 0
    return folder, np.concatenate(counts)


def write(file, sent):
    with file.open("w", newline="") as stream:
        out = csv.writer(stream)
        out.writerow(["case", "source_chip", *(f"to_chip_{d}" for d in range(len(sent)))])
        out.writerows(["one", s, *row] for s, row in enumerate(sent))


def experiment(store, **changed):
    return {
        "name": "replay", "systems": ["blackhole_ring8"], "models": ["mistral-small-4"], "policies": ["ep"],
        "workload": {"trace": str(store / "store"), "batch": 8, "decode_steps": 1},
        "assumptions": [{"set": "physical", "dispatch": "per_token_expert", "memory": "experts"}],
    } | changed  # fmt: skip


def test_a_trace_has_the_sums_of_the_files(store):
    folder, counts = store
    trace = open_trace(str(folder / "store"), ar.load_model("mistral-small-4"))
    found = np.asarray(trace.experts)[:, 0]
    assert len(found) == 8 * 64 and trace.subject_names == ("one",)
    assert (np.bincount(found.ravel(), minlength=128) == counts).all()
    for source in range(8):
        chips = found[64 * source : 64 * source + 64].ravel() // 16
        assert (np.bincount(chips, minlength=8) == SENT[source]).all()
    assert all(len(set(row)) == 4 for row in found.tolist())


@pytest.mark.parametrize("phase", ["dispatch", "combine"])
def test_a_phase_alone_has_the_vectors_of_the_matrix_and_the_time_of_the_law(store, phase):
    found = ar.run_phase(experiment(store[0]), phase, law="blackhole/replay-2026-09-11")
    (layer,) = found.layers
    law = fabric_calibration("blackhole").law(phase, "replay-2026-09-11")
    assert layer.vectors == SENT.sum() - np.trace(SENT)
    assert layer.law_ns == law.time_ns(quantities(SENT, (8,), (True,), phase), 8192)
    assert 0 < layer.ns < layer.law_ns and list(found.to_pandas()["bytes"]) == [layer.n_bytes]
    assert ar.run_phase(experiment(store[0]), phase) == found  # the system names the law


@pytest.mark.parametrize("phase", ["dispatch", "combine"])
@pytest.mark.parametrize(("like", "version"), [
    ("ring8", "replay-2026-09-11"), ("ring8", "column-g3-2026-07-29"), ("line8", "column-g3-2026-07-29"),
])  # fmt: skip
def test_a_law_of_a_mesh_takes_the_links_of_the_machine(store, phase, like, version):
    """Half the rate, or half of the share that links reach, adds what bytes take on the busiest link, and no link
    passes more than its rate.
    """
    law = fabric_calibration("blackhole").law(phase, version)

    def layer(gb_per_s, share=0.94):
        d2d = {"bandwidth": f"{gb_per_s} GB/s", "efficiency": share}
        system = {"like": f"blackhole_{like}", "name": "own", "d2d": d2d}
        return ar.run_phase(experiment(store[0], systems=[system]), phase, law=f"blackhole/{version}").layers[0]

    sent, (half, whole, least) = quantities(SENT, (8,), (like == "ring8",), phase), map(layer, (25, 50, 1))
    assert layer(50, 0.47).law_ns == pytest.approx(half.law_ns)
    assert layer(50, 1.0).law_ns == pytest.approx(layer(50 / 0.94).law_ns)
    size = whole.n_bytes / whole.vectors
    passed = law.link_ns(sent, size) * law.links * law.link_bytes_per_s / 1e9
    assert half.law_ns - whole.law_ns == pytest.approx(passed * (1 / 25 - 1 / 50), rel=1e-9, abs=1e-6)
    assert least.law_ns == pytest.approx(max(sent["link"] * size, whole.law_ns + passed * (1 - 1 / 50)), rel=1e-9)


def test_at_the_command_line(store, tmp_path, capsys):
    import yaml

    (tmp_path / "e.yaml").write_text(yaml.safe_dump(experiment(store[0])))
    assert main(["run", str(tmp_path / "e.yaml"), "--phase", "combine", "--law", "blackhole/replay-2026-09-11"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("The combine takes ") and " µs per MoE layer" in said and "fitted, us" in said


@pytest.mark.parametrize("phase, law, systems, says", [
    ("combine", "blackhole/replay-2026-09-11", ["blackhole_line8"], r"was measured on the topology ring; .* 'linear'"),
    ("combine", "blackhole/replay-2026", ["blackhole_ring8"], r"no combine kernel of version 'replay-2026'.*known: "),
    ("combine", "replay", ["blackhole_ring8"], r"expected MACHINE/VERSION"),
    ("gather", None, ["blackhole_ring8"], r"unknown phase 'gather' \(known: dispatch, combine\)"),
    ("dispatch", None, ["blackhole_ring8"], r"under activations: dispatched .*, not activations: replicated"),
])  # fmt: skip
def test_a_law_that_does_not_fit_is_refused(store, phase, law, systems, says):
    given = experiment(store[0], systems=systems)
    if "replicated" in says:
        given["assumptions"] = ["published"]
    with pytest.raises(ArchsimError, match=says):
        ar.run_phase(given, phase, law=law)


def test_counts_that_do_not_fit_the_matrix_are_refused(tmp_path, store):
    folder, counts = store
    off = SENT.copy()
    off[0, :2] += 1, -1
    write(tmp_path / "mine_source_destination.csv", off)
    (tmp_path / "mine_expert_counts.csv").write_bytes((folder / "mine_expert_counts.csv").read_bytes())
    command = ["trace", "import", str(tmp_path / "mine_source_destination.csv"), "--model", "mistral-small-4"]
    assert main([*command, "--out", str(tmp_path / "store")]) == 2


def test_a_whole_layer_takes_the_time_of_the_measured_kernels(store):
    """A system that names its measured endpoint has it without being asked: dispatch and combine are the law's, whether
    the kernel of a layer is one or streams.
    """
    ends = {"set": "physical", "dispatch": "per_token_expert", "memory": "experts", "execution": "expert_parallel"}
    bare = {"like": "blackhole_ring8", "name": "bare", "endpoint": None}
    given = experiment(store[0], systems=["blackhole_ring8", bare], assumptions=[ends], engine="analytical")
    law = {phase: ar.run_phase(given, phase, law="blackhole/replay-2026-09-11") for phase in ("dispatch", "combine")}
    found = ar.load(given)
    measured, links = (ar.run(found, system=each.name).runs.rows[0] for each in found.systems)
    whole = sum(each.layers[0].law_ns for each in law.values())
    assert links["prefill_ns"] < measured["prefill_ns"] > whole
    assert measured["prefill_ns"] - links["prefill_ns"] == pytest.approx(
        whole - sum(each.layers[0].ns for each in law.values()), rel=0.05
    )


# ---- Gate scores in traces: read from every format that carries them, kept by stores, and what routing then uses.

SCORES_NAMES = ["a/0", "a/1", "b/2"]


@pytest.fixture
def requests():
    return toy_requests(SCORES_NAMES)


@pytest.fixture
def scores(requests):
    """float32[token, layer, k] of all requests, falling by rank."""
    experts = np.concatenate([experts for experts, _ in requests.values()])
    return -np.sort(-np.random.default_rng(1).random(experts.shape, np.float32), axis=2)


@pytest.fixture
def npz(tmp_path, requests, scores):
    return save_npz(tmp_path / "scored.npz", requests, LAYERS, scores=scores, model="toy")


def test_npz_lines_and_stores_carry_scores(tmp_path, npz, requests, scores):
    lines, first = [], 0
    for experts, iteration in requests.values():
        own = scores[first : first + len(experts)]
        first += len(experts)
        prompt = int((iteration == 0).sum())
        line = {"topk_ids": experts.tolist(), "topk_weights": own.tolist(), "prompt_tokens": prompt}
        lines.append(json.dumps(line))
    (tmp_path / "scored.jsonl").write_text("\n".join(lines))
    imported(npz, tmp_path / "store")
    verify(open_store(tmp_path / "store"))
    for source in (npz, tmp_path / "scored.jsonl", tmp_path / "store"):
        trace = open_trace(source, TOY)
        assert np.array_equal(trace.scores, scores) and trace.scores.dtype == np.float32, source


def test_parts_and_merged_stores_keep_scores(tmp_path, npz, scores):
    imported(npz, tmp_path / "store")
    store = open_store(tmp_path / "store")
    write_selection(store, slice_entries(store, 0, 1, []), tmp_path / "one", 1)
    write_selection(store, slice_entries(store, 1, None, []), tmp_path / "others", 1)
    merge([tmp_path / "one", tmp_path / "others"], tmp_path / "both", 1)
    assert np.array_equal(open_trace(tmp_path / "both", TOY).scores, scores)


def test_stores_with_and_without_scores_do_not_mix(tmp_path, npz):
    imported(npz, tmp_path / "scored")
    imported(save_npz(tmp_path / "plain.npz", toy_requests(["c/7"]), LAYERS, request_id=[7]), tmp_path / "plain")
    with pytest.raises(TraceError, match="scores"):
        merge([tmp_path / "scored", tmp_path / "plain"], tmp_path / "both", 1)


def test_scores_are_part_of_a_traces_identity(tmp_path, npz, requests, scores):
    plain = open_trace(save_npz(tmp_path / "plain.npz", requests, LAYERS), TOY)
    other = open_trace(save_npz(tmp_path / "other.npz", requests, LAYERS, scores=scores / 2), TOY)
    assert len({plain.digest, other.digest, open_trace(npz, TOY).digest}) == 3
    assert plain.scores is None


def test_some_layers_have_their_scores(npz, scores):
    some = some_layers(open_trace(npz, TOY), 2)
    (piece,) = some.steps(np.array([0]), 0)
    assert np.array_equal(piece.scores, scores[: len(piece.request), some.columns])


@pytest.mark.parametrize(
    ("change", "words"),
    [(lambda s: s[..., :1], "shape"), (lambda s: -s, "finite scores"), (lambda s: s * np.nan, "finite scores")],
)
def test_bad_scores_are_refused(tmp_path, requests, scores, change, words):
    file = save_npz(tmp_path / "bad.npz", requests, LAYERS, scores=change(scores))
    with pytest.raises(TraceError, match=f"bad.npz: scores: .*{words}"):
        open_trace(file, TOY)


@pytest.mark.parametrize(("name", "rule"), [
    ("capacity_drop", {"name": "drop", "gamma": 0.5}),
    ("capacity_reroute", {"name": "reroute", "gamma": 0.5}),
    ("expert_drop", {"name": "expert_drop", "share": 0.5}),
])  # fmt: skip
def test_lost_mass_is_that_of_recorded_scores(npz, name, rule):
    """Scores of 1 for rank 0 and 0 for others: what is lost is the share of tokens that lose their first expert."""
    recorded = open_trace(npz, TOY)
    first_only = np.zeros_like(recorded.scores)
    first_only[:, :, 0] = 1.0
    trace = replace(recorded, scores=first_only)
    spec = PolicySpec(name="own", **(dict(PRESETS[name]) | {"routing": rule | {"pass_tokens": 100}}))
    demand = build_run_demand(trace, 3, 3, 0, shaped_by=spec)
    assert demand.lost_mass.max() > 0
    tokens = demand.tokens_of_step
    whole = demand.lost_mass * tokens[:, None]
    assert whole == pytest.approx(np.rint(whole))


# ---- A user's own trace format: read as the built-in ones are, in runs and imports; what it gives is checked.

READER = '''
import numpy as np

def read(path, model):
    """One request a line: prompt tokens, then expert ids of every token, layer and rank."""
    for line in path.read_text().splitlines():
        prompt, *ids = map(int, line.split())
        yield np.array(ids).reshape(-1, len(model.moe_layer_ids), model.top_k), prompt

def broken(path, model):
    raise RuntimeError("no such luck")

def outside(path, model):
    yield np.full((2, len(model.moe_layer_ids), model.top_k), model.experts), 1

def unlike(path, model):
    yield np.zeros((2, len(model.moe_layer_ids), model.top_k)), 1

def empty(path, model):
    return iter(())
'''


@pytest.fixture
def own_requests():
    """Three requests of the toy model: (experts, iteration)."""
    return toy_requests(["a/0", "a/1", "a/2"])


@pytest.fixture
def own_source(tmp_path, monkeypatch, own_requests):
    """A file of the requests in a format that only the reader beside it knows."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_format.py").write_text(READER)
    lines = [
        f"{(iteration == 0).sum()} {' '.join(map(str, experts.ravel()))}"
        for experts, iteration in own_requests.values()
    ]
    file = tmp_path / "routing.txt"
    file.write_text("\n".join(lines))
    return file


def test_own_reader_gives_what_it_read(own_source, own_requests):
    trace = open_trace(own_source, TOY, "my_format:read")
    assert np.array_equal(trace.experts, np.concatenate([experts for experts, _ in own_requests.values()]))
    assert np.array_equal(trace.iteration, np.concatenate([iteration for _, iteration in own_requests.values()]))


def test_sweep_and_import_read_it(tmp_path, own_source):
    rows = [" ".join(["1", *(str(i % 16) for i in range(r, r + 5 * 2 * 2))]) for r in range(6)]
    (tmp_path / "tiny.txt").write_text("\n".join(rows))
    text = TINY.replace("trace: {synthetic: {prompt_tokens: 3}}", "trace: tiny.txt, reader: my_format:read").replace(
        "[12, 40]", "[4]"
    )
    (tmp_path / "own.yaml").write_text(text)
    swept = archsim(tmp_path, "sweep", "own.yaml", "--jobs", "1")
    assert swept.returncode == 0, swept.stderr
    own = ("trace", "import", "routing.txt", "--model", "toy.yaml", "--reader", "my_format:read", "--out", "store")
    imported = archsim(tmp_path, *own)
    assert imported.returncode == 2 and "toy.yaml" in imported.stderr  # there is no such model file yet
    (tmp_path / "toy.yaml").write_text(
        "{name: toy, source: made up, layers: 5, moe_layers: {first: 1, last: 4}, hidden: 8, expert_ffn: 8, experts: "
        "6, top_k: 2}"
    )
    imported = archsim(tmp_path, *own)
    assert imported.returncode == 0, imported.stderr
    assert np.array_equal(
        open_trace(tmp_path / "store", TOY).experts, open_trace(own_source, TOY, "my_format:read").experts
    )


@pytest.mark.parametrize(("function", "said"), [
    ("broken", r"RuntimeError: no such luck \(.*my_format.py:\d+\)"),
    ("outside", "expert id 6"),
    ("unlike", "expected integers"),
    ("empty", "yields no requests"),
    ("missing", "has no function 'missing'"),
])  # fmt: skip
def test_what_a_reader_does_wrong_is_named(own_source, function, said):
    with pytest.raises(TraceError, match=said):
        open_trace(own_source, TOY, f"my_format:{function}")
