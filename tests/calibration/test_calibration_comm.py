"""Laws of transfers, adapters of public sweeps, and the measuring scripts with a backend that needs no GPU."""

import io
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from support.examples import sampled

from archsim.evidence.transfers import series_cases, set_errors
from archsim.laws.tables import CalibrationSpec, ReferenceRates, ResidualQuantiles, TransferTable
from archsim.laws.transfers import PiecewiseLaw, law_of, link_of_copy
from archsim.specs.library import load_model
from calibration.fit.launch import fit_launch
from calibration.fit.memory import fit_memory
from calibration.fit.segments import binned_errors, fit_segments, held_out_ratios
from calibration.fit.transfers import fit_transfers, series_of
from calibration.measure.__main__ import main
from calibration.measure.backend import MeasuredMachine, MeasuredTime, MeasureError, PointError
from calibration.measure.points import GEMM_M, PLANS, gemm_shapes
from calibration.measure.recording import Recording
from calibration.measure.session import SessionTally, measure
from calibration.measurements.adapters.dispatches import WITHIN_A_NODE
from calibration.measurements.reading import UNKNOWN_LAYOUT, Measurements, read_measurements
from calibration.measurements.schema import IDLE_US, TABLES

NOTIFY_SCATTERS = pytest.mark.xfail(
    strict=True,
    reason=(
        "dispatch misses the bar: its exchange of counts takes 30 to 66 us on 2 nodes and 73 to 225 us on 8, at random"
    ),
)
SIZES = np.unique(np.geomspace(1024, 2**30, 200).round())
FEW = SIZES[::3]


def three_pieces(size):
    """Steps at 64 KiB and 4 MiB."""
    size = np.asarray(size, dtype=float)
    return np.where(size < 2**16, 5000 + size / 10, np.where(size < 2**22, 8000 + size / 100, 20000 + size / 350))


class TestSegments:
    def test_break_points_are_found(self):
        law = fit_segments(SIZES, three_pieces(SIZES))
        assert len(law.from_bytes) == 3
        assert law.from_bytes[1:] == pytest.approx([2**16, 2**22], rel=0.08)
        assert law.latency_ns == pytest.approx([5000, 8000, 20000], rel=1e-3)
        assert law.ns_per_byte == pytest.approx([1 / 10, 1 / 100, 1 / 350], rel=1e-3)
        assert law.held_out_error < 1e-3

    def test_outliers_hardly_move_it(self):
        time = three_pieces(SIZES)
        time[::17] *= 3
        law = fit_segments(SIZES, time)
        assert np.median(np.abs(law.time_ns(SIZES) / three_pieces(SIZES) - 1)) < 0.002
        assert np.mean(np.abs(law.time_ns(SIZES) / three_pieces(SIZES) - 1)) < 0.01

    def test_lone_outlier_of_a_sparse_sweep_is_ignored(self):
        size = 2.0 ** np.arange(10, 31)
        time = 5000 + size / 300
        time[9] *= 3
        assert fit_segments(size, time).time_ns(size) == pytest.approx(5000 + size / 300, rel=0.03)

    def test_noise_keeps_its_quantiles(self):
        time = three_pieces(SIZES) * (1 + 0.03 * np.random.default_rng(1).standard_normal(len(SIZES)))
        low, middle, high = fit_segments(SIZES, time).residual_quantiles
        assert -0.07 < low < -0.03 and abs(middle) < 0.01 and 0.03 < high < 0.07

    def test_same_points_in_any_order_give_the_same_law(self):
        time = three_pieces(FEW) * (1 + 0.01 * np.random.default_rng(2).standard_normal(len(FEW)))
        order = np.random.default_rng(3).permutation(len(FEW))
        assert fit_segments(FEW, time) == fit_segments(FEW[order], time[order])

    @pytest.mark.parametrize("scale", [1e-3, 1e3])
    def test_other_units_of_time_scale_it(self, scale):
        time = three_pieces(FEW)
        scaled = fit_segments(FEW, time * scale)
        assert scaled.time_ns(FEW) == pytest.approx(fit_segments(FEW, time).time_ns(FEW) * scale, rel=1e-6)

    def test_one_size_is_all_bandwidth_and_two_are_a_line(self):
        one = fit_segments([2**30, 2**30], [2e6, 4e6])
        assert one.latency_ns == (0.0,) and one.time_ns(2**31) == pytest.approx(6e6)
        two = fit_segments([1000, 2000], [1500, 2500])
        assert two.time_ns([1000, 1500, 2000, 4000]) == pytest.approx([1500, 2000, 2500, 4500])

    def test_outside_it_extrapolates_and_says_so(self):
        law = fit_segments(SIZES, three_pieces(SIZES))
        assert law.time_ns(1) == law.time_ns(1024)
        assert law.time_ns(2**32) == pytest.approx(20000 + 2**32 / 350, rel=0.01)
        assert law.extrapolates([1023, 1024, 2**30, 2**30 + 1]).tolist() == [True, False, False, True]

    def test_a_short_last_piece_does_not_say_what_larger_sizes_take(self):
        """A plateau of times up to the largest size: with its slope, twice the size would take as long."""
        size = np.unique(np.geomspace(2**14, 1.4 * 2**22, 300).round())
        law = fit_segments(size, 5000 + np.minimum(size, 2**22) / 350)
        last = size[-1]
        assert law.from_bytes[-1] == last == law.last_bytes and law.ns_per_byte[-1] > 0.3 / 350 > law.ns_per_byte[-2]
        times = law.time_ns(last * np.array([1, 1 + 1e-9, 2, 4]))
        assert times[1] == pytest.approx(times[0], rel=1e-6) and times[3] > 1.5 * times[0]
        assert law.time_ns(size) == pytest.approx(5000 + np.minimum(size, 2**22) / 350, rel=0.01)
        octaves = 2.0 ** np.arange(12, 25)
        assert len(fit_segments(octaves, 5000 + octaves / 350).from_bytes) == 1

    def test_no_time_falls_with_size_within_a_piece(self):
        time = three_pieces(SIZES) * (1 + 0.1 * np.random.default_rng(4).standard_normal(len(SIZES)))
        assert min(fit_segments(SIZES, time).ns_per_byte) >= 0

    def test_left_out_sizes_are_judged_without_being_seen(self):
        time = three_pieces(SIZES)
        time[100] *= 1.5
        ratio = held_out_ratios(SIZES, time, 2)
        assert np.isnan(ratio[[0, -1]]).all() and not np.isnan(ratio[1:-1]).any()
        assert ratio[100] == pytest.approx(1 / 1.5, rel=0.01)
        assert binned_errors(SIZES, ratio).mean() < 0.01

    @pytest.mark.parametrize("size, time", [([], []), ([1], [0]), ([0], [1]), ([1, 2], [1, np.nan]), ([1], [-1])])
    def test_what_is_no_measurement_is_refused(self, size, time):
        with pytest.raises(ValueError):
            fit_segments(size, time)


@pytest.fixture(scope="module")
def public(shared):
    folder = shared / "data" / "calibration"
    if not (folder / "comm").is_dir():
        pytest.skip(f"needs {folder}/comm")
    return {name: read_measurements(folder / name) for name in ("comm", "node", "micro", "micro_gpl3")}


@pytest.mark.nightly
class TestPublicSets:
    def test_every_file_is_read_without_a_problem(self, public):
        problems_found = [problem for found in public.values() for problem in found.problems]
        assert {(problem.file, problem.kind) for problem in problems_found} <= {
            ("gpu_benches_stream_vs_occupancy.csv", "warning"),
            ("aic_deepep_normal_internode.csv", "quarantined"),
        }
        congested = [problem.reason for problem in problems_found if problem.kind == "quarantined"]
        assert all(" on 8 nodes: " in each or "_notify on 2 nodes: " in each for each in congested)
        assert any(each.startswith("dispatch on 8 nodes") and "16 GB/s a NIC" in each for each in congested)
        skipped = {file: why for found in public.values() for file, why in found.skipped.items()}
        assert set(skipped) <= {"deepep_readme_h800.csv"} and UNKNOWN_LAYOUT not in skipped.values()
        assert len(public["comm"].tables) == 2

    def test_send_recv_of_an_h100_node(self, public):
        rows = public["comm"].table("p2p", "h100")
        rows = rows[(rows["library_version"] == "vidur") & (rows["placement"] == "intra_node")]
        [errors] = set_errors(series_cases(Measurements({"p2p": rows}), "h100")).itertuples()
        assert errors.mean <= 0.015 and errors.binned_mean <= 0.015
        assert errors.binned_max_unrounded <= 0.07  # 9.5 % as it is: one point of 7 us at a resolution of 1 us
        # All but the bin of 18 KiB, whose only point is between 5 us and 7 us at a resolution of 1 us.
        [series] = series_of(rows, "p2p")
        binned = np.sort(binned_errors(series.size_bytes, held_out_ratios(series.size_bytes, series.time_ns, 5)))
        assert binned[-2] <= 0.07

    @pytest.mark.parametrize("variant, series", [("low_latency", 3), ("normal", 3)])
    def test_dispatch_and_combine(self, public, variant, series):
        rows = public["comm"].table("collective", "h100")
        rows = rows[(rows["variant"] == variant) & (rows["hidden"] == 7168) & ~(rows["sms"] < 20)]
        within = rows[rows["library_version"] == WITHIN_A_NODE]
        found = list(set_errors(series_cases(Measurements({"collective": within}), "h100")).itertuples())
        assert len(found) == 2
        for errors in found:
            assert errors.series >= series
            assert errors.mean <= 0.02

    @pytest.mark.parametrize("variant", ["low_latency", pytest.param("normal", marks=NOTIFY_SCATTERS)])
    def test_dispatch_and_combine_between_nodes(self, public, variant):
        rows = public["comm"].table("collective", "h100")
        rows = rows[(rows["variant"] == variant) & (rows["nodes"] > 1) & ~(rows["sms"] < 20)]
        if not len(rows):
            pytest.skip("needs measurements between nodes")
        found = list(set_errors(series_cases(Measurements({"collective": rows}), "h100")).itertuples())
        assert {f"{nodes:g} nodes" in errors.set for nodes in set(rows["nodes"]) for errors in found} == {True, False}
        assert max(errors.mean for errors in found) <= 0.02

    def test_laws_of_an_all_to_all_hold_what_was_measured(self, public):
        """But for one and two tokens on 16 and 64 ranks, of which some took four times as long as their repetitions,
        and one set
        with a lone point that took twice as long as its neighbours."""
        rows = public["comm"].table("collective", "gb200")
        if not len(rows):
            pytest.skip("needs measurements of a GB200")
        reference = ReferenceRates(peak_flop_per_s={}, hbm_bytes_per_s=1e12, sms=1)
        calibration = CalibrationSpec(gpu="gb200", reference=reference, collectives=fit_transfers(rows, "collective"))
        judged = Measurements({"collective": rows[rows["tokens_per_rank"] > 2]})
        found = list(set_errors(series_cases(judged, "gb200", calibration)).itertuples())
        assert len(found) == len(calibration.collectives)
        assert np.mean([errors.mean for errors in found]) <= 0.01
        missed = {errors.set for errors in found if errors.mean > 0.02}
        assert missed <= {"collective trtllm 1.3.0rc10 dispatch nvlink_two_sided 16 GPUs nvfp4"}

    def test_tables_hold_the_laws(self, public):
        rows = public["comm"].table("p2p", "b200")
        tables = fit_transfers(rows, "p2p")
        assert len(tables) == 3
        for table, series in zip(tables, series_of(rows, "p2p"), strict=True):
            law = fit_segments(series.size_bytes, series.time_ns)
            assert law_of(table) == law_of(law)
            assert table.residuals.p05 <= table.residuals.p50 <= table.residuals.p95

    def test_a_calibration_is_judged_on_sizes_that_it_has_not_seen(self, public):
        rows = public["comm"].table("p2p", "h100")
        rows = rows[(rows["library_version"] == "vidur") & (rows["placement"] == "intra_node")]
        seen = np.arange(len(rows)) % 3 != 1
        reference = ReferenceRates(peak_flop_per_s={}, hbm_bytes_per_s=1e12, sms=1)
        calibration = CalibrationSpec(gpu="h100", reference=reference, p2p=fit_transfers(rows[seen], "p2p"))
        [errors] = set_errors(series_cases(Measurements({"p2p": rows[~seen]}), "h100", calibration)).itertuples()
        assert errors.cases == np.sum(~seen) and errors.mean <= 0.015 and errors.binned_mean <= 0.015
        other = calibration.model_copy(update={"p2p": ()})
        assert not len(set_errors(series_cases(Measurements({"p2p": rows}), "h100", other)))

    def test_memory_numbers(self, public):
        found = {
            (table.of["level"], table.of["op"], table.of["quantity"]): table.value
            for table in fit_memory(public["micro"].table("memory", "h100"), 3.35e12)
            if "level" in table.of
        }
        assert found["hbm", "read", "bytes_per_s"] == pytest.approx(2561.03 * 2**30)
        assert found["hbm", "read", "efficiency"] == pytest.approx(2561.03 * 2**30 / 3.35e12)
        assert found["l2", "chase", "latency_ns"] == pytest.approx(219.345 / 1.98)

    def test_latency_over_the_working_set(self, public):
        tables = fit_memory(public["micro_gpl3"].table("memory", "h100-pcie"), None)
        [chase] = [law_of(table) for table in tables if table.of["quantity"] == "load_ns"]
        assert chase.time_ns([2**17, 2**22, 2**29]) == pytest.approx([19.6, 151.3, 373], rel=0.02)

    def test_launch_of_a_gpu_without_its_own_measurements_is_its_siblings(self, public):
        found = {table.of["kind"]: table for table in fit_launch(public["micro_gpl3"], "h100")}
        assert found["stream"].of["measured_on"] == "h200" and 2400 < found["stream"].value < 2650
        assert fit_launch(public["micro_gpl3"], "b200") == ()

    def test_rows_of_unknown_origin_are_not_used(self, public):
        assert set(public["node"].table("hostpath")["method"]) == {"sm"}
        assert set(public["node"].table("p2p")["library"]) == {"p2pBandwidthLatencyTest"}

    def test_report_names_every_set(self, public):
        (_,), (curve,) = (
            set_errors(series_cases(public[name], gpu)).itertuples()
            for name, gpu in (("node", "h100"), ("micro_gpl3", "h100-pcie"))
        )
        assert "pass_ns" in curve.set


class FakeBackend:
    """Times by formula; like a machine with one GPU without FP8 if asked to."""

    def __init__(self, gpus=8, has_fp8=True, stop_after=None, gpu_name="Fake H100"):
        self.machine = MeasuredMachine(gpu_name, gpus, "fake", "1.0", "555", has_fp8, 50 * 2**20, 80 * 2**30)
        self.calls, self._stop_after = 0, stop_after

    def time(self, kind, point):
        if kind == "p2p" and self.machine.gpus < 2:
            raise PointError("copies between GPUs need two of them; this machine has one")
        if point.get("dtype") == "fp8" and not self.machine.has_fp8:
            raise PointError("no FP8")
        if self.calls == self._stop_after:
            raise KeyboardInterrupt
        self.calls += 1
        size = point.get("bytes", point.get("working_set_bytes", 1000 * point.get("m", 1)))
        median = 5 + size / 3e5
        if kind == "gemm":  # nothing is faster than its GPU could be
            median = 5 + 2 * point["m"] * point["n"] * point["k"] / 4e8
        if kind == "hostpath":
            median = 5 + size / 5e4
        if kind == "memory":
            median = 5 + size / 2.5e6
        if kind == "moe":
            pairs = point["tokens_total"] * point["top_k"] / (point.get("ep", 1) * point.get("tp", 1))
            median = 100 + 6 * pairs * point["hidden"] * point["ffn"] / 2e8
        if kind == "power":
            work_us = 5 + point["flop"] / 2e8 + point["hbm_bytes"] / 1e6
            median = IDLE_US if point["work"] == "idle" else work_us
        return MeasuredTime(median, 0.9 * median, 1.1 * median, 20, {"sm_clock_mhz": "1980"})


@pytest.fixture
def models():
    return [load_model("deepseek-v3"), load_model("mixtral-8x7b")]


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=200)


class TestMeasure:
    def test_plan_has_each_point_once_and_all_that_the_readers_need(self, models):
        for kind, plan in PLANS.items():
            points = list(plan(models, 8))
            keys = [tuple(point.get(name, "") for name in TABLES[kind].key) for point in points]
            assert len(points) > 10 and len(set(keys)) == len(keys), kind

    def test_expert_shapes(self, models):
        shapes = gemm_shapes(models)
        assert {(4096, 7168), (2048, 7168), (7168, 2048), (28672, 4096), (14336, 4096), (4096, 14336)} == set(shapes)
        assert {2**i for i in range(13)} | {48, 129} <= set(GEMM_M)

    def test_copies_span_the_sizes_both_ways(self, models):
        points = [point for point in PLANS["p2p"](models, 8) if (point["src"], point["dst"]) == ("0", "1")]
        for direction in ("uni", "bi"):
            sizes = [point["bytes"] for point in points if point["direction"] == direction]
            assert sizes[0] == 4096 and sizes[-1] == 2**32 and all(b <= 2 * a for a, b in pairwise(sizes))
        assert len({(point["src"], point["dst"]) for point in PLANS["p2p"](models, 8)}) == 56

    def test_all_tables_are_read_back_without_a_problem(self, models, console, tmp_path):
        backend = FakeBackend()
        measure(backend, list(PLANS), models[:1], tmp_path, "1", console)
        found = read_measurements(tmp_path)
        assert found.problems == [] and found.skipped == {}
        assert sum(len(rows) for rows in found.tables.values()) == backend.calls
        assert set(found.tables) == set(PLANS) and found.gpus() == ["h100"]
        [table] = [t for t in fit_transfers(found.table("p2p"), "p2p") if t.of["direction"] == "bi"]
        assert law_of(table).time_ns(2**20) == pytest.approx(5000 + 2**20 / 300, rel=1e-3)

    def test_copies_and_launches_are_the_drivers_whichever_library_is_there(self, models, console, tmp_path):
        measure(FakeBackend(), ["p2p", "hostpath", "launch", "memory"], models[:1], tmp_path, "1", console)
        found = read_measurements(tmp_path)
        versions = {
            kind: set(zip(rows["library"], rows["library_version"], strict=True)) for kind, rows in found.tables.items()
        }
        assert versions == {
            **dict.fromkeys(("p2p", "hostpath", "launch"), {("cuda", "555")}),
            "memory": {("fake", "1.0")},
        }

    def test_interrupted_and_cut_off_it_goes_on_with_what_is_missing(self, models, console, tmp_path):
        with pytest.raises(KeyboardInterrupt):
            measure(FakeBackend(stop_after=30), ["hostpath"], models, tmp_path, "1", console)
        path = tmp_path / "hostpath.csv"
        path.write_bytes(path.read_bytes()[:-7])
        second = FakeBackend()
        [tally] = measure(second, ["hostpath"], models, tmp_path, "1", console)
        assert (tally.kept, tally.measured) == (29, second.calls) == (29, len(list(PLANS["hostpath"]([], 8))) - 29)
        third = FakeBackend()
        assert measure(third, ["hostpath"], models, tmp_path, "1", console)[0].measured == third.calls == 0
        assert read_measurements(tmp_path).problems == []

    def test_killed_at_any_byte_it_goes_on_to_the_same_file(self, models, console, tmp_path):
        measure(FakeBackend(), ["launch"], models, tmp_path, "1", console)
        path = tmp_path / "launch.csv"
        whole = path.read_bytes()
        assert len(whole) > 61
        for length in range(0, len(whole), 61):
            path.write_bytes(whole[:length])
            measure(FakeBackend(), ["launch"], models, tmp_path, "1", console)
            assert path.read_bytes() == whole

    def test_two_gpus_are_no_sweep_cut_off(self, models, console, tmp_path):
        measure(FakeBackend(gpus=2), ["p2p"], models, tmp_path, "1", console)
        assert read_measurements(tmp_path).problems == []

    def test_reasons_are_summed_up_and_a_broken_manifest_is_reported(self, models, console, tmp_path):
        assert "left out 6 points for other reasons" in str(
            SessionTally("gemm", left_out={f"size {i}": i + 1 for i in range(13)})
        )
        (tmp_path / "manifest.json").write_text("{")
        with pytest.raises(MeasureError, match="manifest.json: .*Remove it"):
            measure(FakeBackend(), ["launch"], models, tmp_path, "1", console)

    def test_without_a_terminal_lines_estimate_the_time_left(self, models, console, tmp_path, monkeypatch):
        monkeypatch.setattr("calibration.measure.session.WORD_EVERY_S", 0.0)
        measure(FakeBackend(), ["launch"], models, tmp_path, "1", console)
        assert "launch: 11 of 12, about 0 min left" in console.file.getvalue()

    def test_another_repetition_measures_all_again(self, models, console, tmp_path):
        for run_id in ("1", "2"):
            [tally] = measure(FakeBackend(), ["launch"], models, tmp_path, run_id, console)
            assert tally.kept == 0 and tally.measured == 12
        assert sorted(set(read_measurements(tmp_path).table("launch")["run_id"])) == ["1", "2"]

    def test_one_gpu_and_no_fp8_are_said_once_and_the_rest_is_measured(self, models, console, tmp_path):
        backend = FakeBackend(gpus=1, has_fp8=False)
        p2p, gemm = measure(backend, ["p2p", "gemm"], models, tmp_path, "1", console)
        assert p2p.measured == 0 and list(p2p.left_out) == [
            "copies between GPUs need two of them; this machine has one"
        ]
        assert gemm.left_out == {"no FP8": gemm.measured} and gemm.measured == backend.calls > 0
        assert "this machine has one" in console.file.getvalue()

    def test_rows_of_two_gpus_or_other_columns_do_not_mix(self, models, console, tmp_path):
        measure(FakeBackend(), ["launch"], models, tmp_path, "1", console)
        with pytest.raises(MeasureError, match="measured on 'Fake H100', this is 'Other'"):
            Recording(tmp_path, "launch", "1", FakeBackend(gpu_name="Other").machine)
        (tmp_path / "memory.csv").write_text("a,b\n1,2\n")
        with pytest.raises(MeasureError, match="columns"):
            Recording(tmp_path, "memory", "1", FakeBackend().machine)

    def test_command(self, tmp_path, capsys):
        arguments = ["launch", "hostpath", "--out", str(tmp_path), "--models", "deepseek-v3"]
        assert main(arguments, FakeBackend) == 0
        assert main(arguments, FakeBackend) == 0
        assert "12 kept from earlier calls" in capsys.readouterr().err
        assert main([*arguments, "--run-id", "2"], lambda: FakeBackend(stop_after=3)) == 130
        assert "run the same command again to continue" in capsys.readouterr().err

    def test_without_torch_it_says_what_is_needed(self, tmp_path, capsys, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch", None)
        assert main(["gemm", "--out", str(tmp_path / "none")]) == 1
        assert "needs PyTorch with CUDA" in capsys.readouterr().err
        assert not (tmp_path / "none").exists()

    def test_without_cuda_it_says_so(self, tmp_path, capsys, monkeypatch):
        torch = type(sys)("torch")
        torch.cuda = type(sys)("torch.cuda")
        torch.cuda.is_available = lambda: False
        monkeypatch.setitem(sys.modules, "torch", torch)
        assert main(["gemm", "--out", str(tmp_path)]) == 1
        assert "finds no CUDA device" in capsys.readouterr().err

    def test_balanced_tokens_of_one_rank(self):
        from calibration.measure.torch_backend import _rank_of_balanced

        point = {"experts": 8, "ep": 4, "top_k": 2, "tokens_total": 8, "tokens_seen": "received"}
        tokens, rows, ends = _rank_of_balanced(point)
        assert (tokens, ends) == (4, [2, 4])
        assert len(rows) == 4 and set(rows) == {0, 1, 2, 3}


# The law of transfers: pieces, and what it says of sizes that were not measured.

LAW = PiecewiseLaw((64.0, 4096.0), (2000.0, 3000.0), (0.5, 0.1), 64.0, 2.0**20)


def test_a_piece_begins_at_its_size():
    assert LAW.time_ns([64, 4095, 4096, 2**20]).tolist() == [
        2032.0, 2000 + 4095 * 0.5, 3000 + 4096 * 0.1, 3000 + 2**20 * 0.1,
    ]  # fmt: skip
    assert float(LAW.time_ns(4096)) == 3000 + 4096 * 0.1


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_times_have_the_shape_of_sizes(shape):
    assert LAW.time_ns(np.full(shape, 128)).shape == shape == LAW.extrapolates(np.full(shape, 128)).shape


def test_below_the_smallest_size_the_time_holds_and_above_the_largest_the_line_goes_on():
    below, above = 1.0, 2.0**30
    assert LAW.time_ns(below) == LAW.time_ns(64)
    assert LAW.time_ns(above) == 3000 + above * 0.1
    assert LAW.extrapolates([63, 64, 2**20, 2**20 + 1]).tolist() == [True, False, False, True]


@given(
    st.lists(st.integers(1, 2**30), min_size=1, max_size=5, unique=True).map(sorted),
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1)), min_size=5, max_size=5),
    st.floats(1, 2**31),
)
def test_a_time_is_that_of_the_last_piece_that_has_begun(begins, pieces, size):
    latency_ns, ns_per_byte = zip(*pieces[: len(begins)], strict=True)
    table = TransferTable(
        library="made up", version="1", source="none", of={}, from_bytes=begins, latency_ns=latency_ns, ns_per_byte=ns_per_byte,  # noqa: E501
        first_bytes=begins[0], last_bytes=2**30, residuals=ResidualQuantiles(p05=0, p50=0, p95=0, points=1),
    )  # fmt: skip
    at = max(size, begins[0])
    piece = max(i for i, begin in enumerate(begins) if begin <= at)
    assert float(law_of(table).time_ns(size)) == latency_ns[piece] + at * ns_per_byte[piece]


# Lines from size to size: what a dense sweep in whole microseconds says of sizes that were left out.

MIB = 2.0**20
DENSE_SIZES = np.arange(32, 640) * MIB / 32
NVLINK = 450e9


def staircase(size):
    """Copies that take 10 % longer from right after every second MiB on."""
    return 1e4 + size / 300 * (1 + 0.1 * (np.ceil(size / MIB) % 2))


@pytest.fixture(scope="module")
def law():
    return fit_segments(DENSE_SIZES, staircase(DENSE_SIZES))


def test_every_measured_size_has_its_time(law):
    assert law.time_ns(DENSE_SIZES) == pytest.approx(staircase(DENSE_SIZES), rel=1e-9)


@given(at=st.integers(0, len(DENSE_SIZES) - 2), share=st.floats(0, 1))
def test_between_two_sizes_times_and_rates_are_between_theirs(law, at, share):
    low, high = DENSE_SIZES[at : at + 2]
    size = low + share * (high - low)
    times, rates = staircase(DENSE_SIZES[at : at + 2]), DENSE_SIZES[at : at + 2] / staircase(DENSE_SIZES[at : at + 2])
    assert times.min() * (1 - 1e-9) <= law.time_ns(size) <= times.max() * (1 + 1e-9)
    assert rates.min() * (1 - 1e-9) <= size / law.time_ns(size) <= rates.max() * (1 + 1e-9)


def test_a_line_stays_one_piece_and_lines_between_sizes_are_chosen_only_where_they_pay(law):
    assert len(fit_segments(DENSE_SIZES, 9000 + DENSE_SIZES / 250).from_bytes) == 1
    scattered = (9000 + DENSE_SIZES / 250) * (1 + 0.05 * np.random.default_rng(1).standard_normal(len(DENSE_SIZES)))
    assert len(fit_segments(DENSE_SIZES, scattered).from_bytes) <= 8
    assert len(law.from_bytes) >= len(DENSE_SIZES) - 1


def test_the_same_points_in_any_order_give_the_same_law(law):
    order = np.random.default_rng(2).permutation(len(DENSE_SIZES))
    assert fit_segments(DENSE_SIZES[order], staircase(DENSE_SIZES)[order]) == law


@given(size=st.floats(2 * MIB, 16 * MIB))
def test_a_link_takes_the_time_of_the_copy_and_the_rate_around_it(law, size):
    latency_ns, share = link_of_copy(law, NVLINK, size)
    assert 2 * latency_ns + size / (share * NVLINK) * 1e9 == pytest.approx(float(law.time_ns(size)), rel=1e-9)
    assert 0.58 < share < 0.72  # 300 GB/s, or 10 % less; single lines have 0 to 1


@given(latency=st.floats(1e3, 1e5), rate=st.floats(1e9, NVLINK), size=st.floats(1, 2**32))
def test_a_link_of_one_line_is_that_line(latency, rate, size):
    line = PiecewiseLaw((4096.0,), (latency,), (1e9 / rate,), 4096.0, 2.0**30)
    hop_ns, share = link_of_copy(line, NVLINK, size)
    assert share == pytest.approx(rate / NVLINK, rel=1e-6)
    assert 2 * hop_ns == pytest.approx(latency + max(0, 4096 - size) * 1e9 / rate, rel=1e-5)


@pytest.mark.parametrize("folds", sampled((2, 3, 5), {2}.__contains__))
def test_send_and_receive_on_one_node_at_sizes_left_out(shared, folds):
    path = shared / "data/calibration/comm/vidur_nccl_send_recv.csv"
    if not path.is_file():
        pytest.skip(f"needs {path}")
    rows = read_measurements(path).table("p2p", "h100")
    (item,) = (each for each in series_of(rows, "p2p") if each.of["placement"] == "intra_node")
    ratio = held_out_ratios(item.size_bytes, item.time_ns, folds)
    there = ~np.isnan(ratio)
    errors, off_ns = np.abs(ratio - 1)[there], (np.abs(ratio - 1) * item.time_ns)[there]
    assert errors.mean() <= 0.0105
    # Beyond 7 %: both sides of two steps, right after 4 and 10 MiB, and what 1 us of rounding explains.
    assert set(item.size_bytes[there][(errors > 0.07) & (off_ns > 1_001)] / MIB // 1) == {4.0, 10.0}
    assert np.sum(errors > 0.07) <= 16
    assert binned_errors(item.size_bytes, ratio).mean() <= 0.0125
