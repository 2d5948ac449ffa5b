"""Measured meshes of chips: laws of links and endpoints, their fit, faults of input, and what of them is measured."""

import csv
from pathlib import Path

import numpy as np
import pytest
from support.shared import shared_path

import archsim as ar
from archsim.base.errors import ArchsimError
from archsim.cli.main import main
from archsim.laws.mesh import COMBINE, DISPATCH, EndpointLaw, LinkRate, link_loads, quantities
from archsim.machine.fabric_calibrations import fabric_calibration, shipped_fabrics
from calibration.measurements.mesh import even

MEASURED = shared_path() / "data" / "mesh_measured"
needs_data = pytest.mark.skipif(not MEASURED.is_dir(), reason=f"no measured meshes in {MEASURED}")
RING, LINE = ((8,), (True,)), ((8,), (False,))
ROUTING = np.random.default_rng(3).integers(0, 200, (8, 8)).astype(float)


def write(folder: Path, name: str, rows: list[dict]) -> None:
    with (folder / f"{name}.csv").open("w", newline="") as stream:
        out = csv.DictWriter(stream, list(rows[0]))
        out.writeheader()
        out.writerows(rows)


def matrix_rows(sent, case="m4_L3_captured") -> list[dict]:
    return [
        {"case": case, "source_chip": s} | {f"to_chip_{d}": int(n) for d, n in enumerate(row)}
        for s, row in enumerate(sent)
    ]


def replay(folder: Path, ns_per_vector: float = 400.0, fixed_ns: float = 1e5, **changed) -> None:
    """A folder with a made-up replay of three cases whose combine follows a law exactly."""
    timings, matrices = [], []
    for number, mode in enumerate(("captured", "placement_balanced", "source_shuffled")):
        sent = np.full((8, 8), 64.0)
        sent[:, number] += 8 * number
        sent[:, 7] -= 8 * number
        case = f"m4_L3_{mode}"
        matrices += matrix_rows(sent, case)
        for kernel in (DISPATCH, COMBINE):
            of = quantities(sent, *RING, kernel)
            ns = ns_per_vector * of["tokens"] if kernel == DISPATCH else fixed_ns + ns_per_vector * of["experts"]
            timings.append({"case": case, "op": kernel, "mean_device_max_ms": ns / 1e6})
    write(folder, "replay_timings", timings)
    write(folder, "replay_source_destination", changed.get("matrices") or matrices)


def test_a_ring_halves_the_busiest_link_of_even_traffic():
    loads = {kind: link_loads(even(8, 8), *kind) for kind in (RING, LINE)}
    assert loads[LINE].max() == 16 and loads[RING].max() == loads[RING].min() == 8


def test_vectors_that_stay_on_their_chip_count_for_nothing():
    more = ROUTING + 1000 * np.eye(8)
    assert quantities(ROUTING, *RING, COMBINE) == quantities(more, *RING, COMBINE)


def test_a_combine_returns_what_a_dispatch_sent():
    there, back = (quantities(ROUTING, *LINE, kernel) for kernel in (DISPATCH, COMBINE))
    assert there["experts"] == back["experts"] and there["tokens"] == back["tokens"]
    assert back == quantities(ROUTING.T, *LINE, DISPATCH) | {"tokens": back["tokens"], "experts": back["experts"],
                                                              "sender": back["sender"]}  # fmt: skip


def test_slots_of_a_chip_have_no_effect_to_the_bit(tmp_path):
    """Counts of experts in another order give the same matrix, and so the same time."""
    replay(tmp_path)
    rows = [
        {"case": "m4_L3_captured", "expert_slot": slot, "chip": slot // 2, "assignments": 100 + 312 * (slot % 2)}
        for slot in range(16)
    ]
    times = []
    for flip in (False, True):
        for row in rows if flip else []:
            row["assignments"] = 512 - row["assignments"]
        write(tmp_path, "replay_expert_counts", rows)
        times.append([each.simulated_ns for each in ar.validate_meshes(tmp_path).judged])
    assert times[0] == times[1]


def test_fewer_links_are_limited_by_the_larger_of_the_fit_and_the_nominal_rate():
    law = EndpointLaw("x", COMBINE, "v", ("ring",), 2, 50e9, 100, 0.0, {"experts": 1.0}, 0.015)
    of = {"tokens": 0.0, "sender": 0.0, "experts": 0.0, "link": 1.0}
    assert law.link_ns(of, 100) == 1.5 and law.link_ns(of, 100, links=1) == 2.0
    assert law._replace(link_ns_per_byte=0.0).link_ns(of, 100, links=1) == 0


def test_a_link_passes_at_most_a_packet_at_a_time():
    law = LinkRate("x", "line", 160.0, 23e9)
    assert law.rate(2048) == 2048 / 160e-9 and law.rate(1 << 14) == 23e9
    with pytest.raises(ValueError, match="a packet of 0 bytes; expected more than 0"):
        law.rate(0)


def test_a_fit_finds_the_law_of_a_replay(tmp_path):
    replay(tmp_path)
    (fitted,) = ar.calibrate_meshes(tmp_path, out=tmp_path / "out")
    again = fabric_calibration(tmp_path / "out" / "blackhole.yaml")
    for found in (fitted, again):
        dispatch, combine = (found.law(kernel, "replay-2026-09-11") for kernel in (DISPATCH, COMBINE))
        assert dispatch.ns_per_vector == pytest.approx({"tokens": 400.0}, rel=1e-4) and dispatch.fixed_ns == 0
        assert combine.ns_per_vector == pytest.approx({"experts": 400.0}, rel=1e-3)
        assert combine.fixed_ns == pytest.approx(1e5, rel=1e-3) and combine.residuals.most < 1e-3


def test_a_file_in_the_current_folder_that_nobody_named_is_left_as_it_is(tmp_path, monkeypatch, capsys):
    (tmp_path / "measured").mkdir()
    replay(tmp_path / "measured")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blackhole.yaml").write_text("mine")
    assert main(["calibrate", "measured"]) == 2
    assert "blackhole.yaml exists already and is left as it is" in capsys.readouterr().err
    assert (tmp_path / "blackhole.yaml").read_text() == "mine"


def test_calibrate_and_validate_at_the_command_line(tmp_path, capsys):
    replay(tmp_path)
    assert main(["calibrate", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    file, page = str(tmp_path / "out" / "blackhole.yaml"), tmp_path / "page.md"
    assert main(["validate", "--mesh", str(tmp_path), "--with", file, "--out", str(page)]) == 0
    said = capsys.readouterr().out
    assert "m4_L3_captured" in said and "links only" in said and "change against captured" in said
    assert "| combine | replay-2026-09-11 | – | 3 | 0.0 |" in page.read_text(encoding="utf-8")
    assert main(["validate", "--mesh"]) == 0
    assert "blackhole dispatch replay-2026-09-11 (ring)" in capsys.readouterr().out


def _row_sum(rows):
    rows[3]["to_chip_2"] += 1


def _no_such_chip(rows):
    rows[5]["source_chip"] = 9


def _lacks_a_chip(rows):
    del rows[7]


def _not_a_number(rows):
    rows[1]["to_chip_4"] = "many"


@pytest.mark.parametrize("spoil, says", [
    (_row_sum, r"replay_source_destination.csv: line 5: case 'm4_L3_captured': the assignments of source chip 3 sum to "
               r"513; expected 512"),
    (_no_such_chip, r"line 7, column source_chip: '9'; the mesh has chips 0 to 7"),
    (_lacks_a_chip, r"line 8: case 'm4_L3_captured' has no row of source chip 7; expected chips 0 to 7"),
    (_not_a_number, r"line 3, column to_chip_4: 'many'; expected a whole number from 0"),
])  # fmt: skip
def test_a_bad_matrix_is_refused_with_file_and_place(tmp_path, spoil, says):
    rows = matrix_rows(np.full((8, 8), 64))
    spoil(rows)
    write(tmp_path, "replay_source_destination", rows)
    with pytest.raises(ArchsimError, match=says):
        ar.validate_meshes(tmp_path)


def test_a_packet_of_no_bytes_is_refused(tmp_path):
    row = {"machine": "x", "test": "t", "links": 1, "packet_bytes": 0, "op": "write", "gigabytes_per_s": 3}
    write(tmp_path, "fabric_bandwidth", [row])
    with pytest.raises(ArchsimError, match="line 2, column packet_bytes: '0'; expected a whole number above 0"):
        ar.calibrate_meshes(tmp_path)


def test_a_calibration_of_another_topology_is_refused(tmp_path):
    law = fabric_calibration("blackhole").law(DISPATCH, "column-g3-2026-07-29")
    assert law.topologies == ("linear", "ring")
    file = tmp_path / "lines.yaml"
    text = (Path(__file__).parents[2] / "configs" / "fabrics" / "blackhole.yaml").read_text(encoding="utf-8")
    file.write_text(text.replace("  - linear\n  - ring\n", "  - linear\n"), encoding="utf-8")
    row = {
        "model": "m", "generation": "g3_2026-07-29", "topology": "ring", "links_per_direction": 2, "layer": 1,
        "galaxy_column": 0, "in_column_share_percent": 25, "tokens_per_chip": 640, "hidden": 7168, "top_k": 8,
        "dispatch_ns": 1, "combine_ns": 1,
    }  # fmt: skip
    write(tmp_path, "captured_columns_5k", [row])
    with pytest.raises(ArchsimError, match="line 2: m layer 1 .* topology 'ring'; .* was measured on linear. Give a"):
        ar.validate_meshes(tmp_path, calibration=file)


def test_a_law_whose_links_are_faster_than_links_are_is_refused(tmp_path):
    text = (Path(__file__).parents[2] / "configs" / "fabrics" / "blackhole.yaml").read_text(encoding="utf-8")
    file = tmp_path / "fast.yaml"
    file.write_text(text.replace("link_ns_per_byte: 0.015464", "link_ns_per_byte: 0.0034405"), encoding="utf-8")
    with pytest.raises(ArchsimError, match=r"fast.yaml.*endpoint\.4\.link_ns_per_byte.*290\.7 GB/s.*100"):
        fabric_calibration(file)


def test_a_folder_without_a_measured_mesh_is_refused(tmp_path):
    with pytest.raises(ArchsimError, match="no measured mesh; expected a folder with one or more of the files"):
        ar.validate_meshes(tmp_path)


def test_every_shipped_law_has_residuals_and_nothing_negative():
    laws = [law for fabric in shipped_fabrics() for law in fabric.endpoint]
    assert len(laws) > 10
    for law in laws:
        assert law.residuals is not None and law.fixed_ns >= 0 and min(law.ns_per_vector.values(), default=0) >= 0


@needs_data
def test_shipped_laws_are_those_of_the_measurements_and_meet_the_bars():
    fitted = {each.machine: each for each in ar.calibrate_meshes(MEASURED)}
    for shipped in shipped_fabrics():
        for law in shipped.endpoint:
            same = fitted[shipped.machine].law(law.kernel, law.version)
            assert law.ns_per_vector == pytest.approx(same.ns_per_vector, rel=1e-3)
            assert law.fixed_ns == pytest.approx(same.fixed_ns, rel=1e-3)
    found = ar.validate_meshes(MEASURED)
    for each in found.judged:
        if each.case and each.case.family == "replay":
            assert abs(each.error) < 0.10 and abs(each.left_out_error) < 0.10
        if each.case and each.case.family == "model":
            assert abs(each.left_out_error) < (0.12 if each.kernel == COMBINE else 0.15)
    changes = [each for each in found.ratios if each.kind == "change against captured"]
    assert changes and all(abs(each.off) <= each.bar for each in changes)
    rings = [each for each in found.ratios if each.kind == "ring over line"]
    assert np.mean([abs(each.off) <= each.bar for each in rings]) >= 0.8
    tori = found.orders[-1].simulated
    assert tori == ("FABRIC_2D_TORUS_XY", "FABRIC_2D_TORUS_Y", "FABRIC_1D", "FABRIC_2D_TORUS_X", "FABRIC_2D")


@needs_data
def test_the_page_is_up_to_date():
    from archsim.evidence.meshes import page_of

    page = (Path(__file__).parents[2] / "docs" / "meshes.md").read_text(encoding="utf-8")
    assert page_of(ar.validate_meshes(MEASURED), shipped_fabrics()) == page, "archsim calibrate --validate --mesh …"
