"""Recorded routing as matrices of assignments: import, dispatch and combine alone."""

import csv

import numpy as np
import pytest

import archsim as ar
from archsim.base.errors import ArchsimError
from archsim.cli.main import main
from archsim.laws.mesh import quantities
from archsim.specs.calibration_files import fabric_calibration
from archsim.workload import open_trace

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


def test_at_the_command_line(store, tmp_path, capsys):
    import yaml

    (tmp_path / "e.yaml").write_text(yaml.safe_dump(experiment(store[0])))
    assert main(["run", str(tmp_path / "e.yaml"), "--phase", "combine", "--law", "blackhole/replay-2026-09-11"]) == 0
    said = capsys.readouterr().out
    assert "combine alone:" in said and "law, us" in said


@pytest.mark.parametrize("phase, law, systems, says", [
    ("combine", "blackhole/replay-2026-09-11", ["blackhole_line8"], r"was measured on the topology ring; .* 'linear'"),
    ("combine", "blackhole/replay-2026", ["blackhole_ring8"], r"no combine kernel of version 'replay-2026'.*known: "),
    ("combine", "replay", ["blackhole_ring8"], r"expected MACHINE/VERSION"),
    ("gather", None, ["blackhole_ring8"], r"unknown phase 'gather' \(known: dispatch, combine\)"),
])  # fmt: skip
def test_a_law_that_does_not_fit_is_refused(store, phase, law, systems, says):
    with pytest.raises(ArchsimError, match=says):
        ar.run_phase(experiment(store[0], systems=systems), phase, law=law)


def test_counts_that_do_not_fit_the_matrix_are_refused(tmp_path, store):
    folder, counts = store
    off = SENT.copy()
    off[0, :2] += 1, -1
    write(tmp_path / "mine_source_destination.csv", off)
    (tmp_path / "mine_expert_counts.csv").write_bytes((folder / "mine_expert_counts.csv").read_bytes())
    command = ["trace", "import", str(tmp_path / "mine_source_destination.csv"), "--model", "mistral-small-4"]
    assert main([*command, "--out", str(tmp_path / "store")]) == 2


def test_a_whole_layer_takes_the_time_of_the_measured_kernels(store):
    """execution: expert_parallel on a system that names its measured endpoint: dispatch and combine are the law's."""
    ends = {"set": "physical", "dispatch": "per_token_expert", "memory": "experts", "execution": "expert_parallel"}
    sets = [ends, ends | {"endpoint": "as_measured"}]
    given = experiment(store[0], assumptions=sets, engine="analytical")
    law = {phase: ar.run_phase(given, phase, law="blackhole/replay-2026-09-11") for phase in ("dispatch", "combine")}
    found = ar.load(given)
    links, measured = (ar.run(found, assumptions=each.label).runs.rows[0] for each in found.assumptions)
    whole = sum(each.layers[0].law_ns for each in law.values())
    assert links["prefill_ns"] < measured["prefill_ns"] > whole
    assert measured["prefill_ns"] - links["prefill_ns"] == pytest.approx(
        whole - sum(each.layers[0].ns for each in law.values()), rel=0.05
    )
