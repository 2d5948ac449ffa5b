"""Laws of GEMM times: what synthetic measurements were made of is found again, and evaluation keeps its laws."""

import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from archsim.base.errors import SpecError
from archsim.cli.main import main
from archsim.evidence.products import expert_cases
from archsim.laws.calibration_files import load_calibration
from archsim.laws.gemm import ExpertGemm, Rates, choose_table, gemm_curve, gemm_times, law_ns, outside, table_times
from archsim.laws.tables import GemmLaw, GemmTable
from calibration.fit.calibration_file import write_calibration
from calibration.fit.fit import choose_gpu, fit_measurements
from calibration.fit.gemm import fit_gemm
from calibration.measurements.reading import CalibrationError, Measurements
from calibration.measurements.sweeps import SAME, pools

SMS = 132
LAW = GemmLaw(launch_ns=3000, ns_per_k=0.2, ns_per_input=1e-5, flop_per_s=7e14, bytes_per_s=2.8e12, order=2.5)
SIZES = [(n, k) for n in (512, 1024, 2048, 4096, 8192) for k in (512, 1024, 2048, 4096, 8192)]
M = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]


def rows_of(law=LAW, runs=("1",), version="1.0", noise=0.0, sizes=SIZES, bump=lambda m, n, k: 0.0) -> pd.DataFrame:
    """Synthetic rows of the schema: the law, a smooth departure from it, and noise of a fixed seed."""
    generator = np.random.default_rng(7)
    points = [(run, n, k, m) for run in runs for n, k in sizes for m in M]
    run, n, k, m = (np.array(column) for column in zip(*points, strict=True))
    times = law_ns(law, m, n, k, "bf16") * np.exp(bump(m, n, k) + noise * generator.standard_normal(len(m))) / 1e3
    return pd.DataFrame(
        {
            "run_id": run, "gpu_name": "H100", "library": "lib", "library_version": version, "dtype": "bf16",
            "quant_included": "0", "groups": 1.0, "m": m.astype(float), "n": n.astype(float), "k": k.astype(float),
            "latency_us_median": times, "gpu": "h100", "file": "gemm.csv", "line": np.arange(len(m)) + 2,
        }
    )  # fmt: skip


def wavy(m, n, k):
    return 0.1 * np.sin(np.log(n)) * np.cos(np.log(k)) + 0.05 * np.sin(np.log(m))


@pytest.fixture(scope="module")
def table() -> GemmTable:
    (found,) = fit_gemm(rows_of(bump=wavy), SMS)
    return found


def measured(rows: pd.DataFrame) -> tuple[np.ndarray, ...]:
    return tuple(rows[name].to_numpy(np.int64) for name in "nkm")


class TestFit:
    def test_pure_law_is_found(self):
        (found,) = fit_gemm(rows_of(), SMS)
        assert found.law.flop_per_s == pytest.approx(LAW.flop_per_s, rel=0.02)
        assert found.law.bytes_per_s == pytest.approx(LAW.bytes_per_s, rel=0.02)
        assert max(abs(value) for row in found.shapes.values() for value in row) < 100  # 1 %

    def test_measured_points_move_less_than_the_noise_of_one_sweep(self, table):
        rows = rows_of(bump=wavy)
        times = table_times(table, *measured(rows), SMS)
        assert times == pytest.approx(rows["latency_us_median"] * 1e3, rel=0.0203)

    def test_shapes_left_out_are_interpolated(self):
        out = [(1024, 2048), (4096, 4096)]
        (found,) = fit_gemm(rows_of(bump=wavy, sizes=[size for size in SIZES if size not in out]), SMS)
        rows = rows_of(bump=wavy, sizes=out)
        errors = table_times(found, *measured(rows), SMS) / (rows["latency_us_median"] * 1e3) - 1
        assert errors.abs().mean() < 0.02
        assert not gemm_curve(found, *out[0], SMS).measured

    def test_lone_outlier_is_not_believed(self):
        rows = rows_of()
        at = rows[(rows["n"] == 2048) & (rows["k"] == 2048) & (rows["m"] == 64)].index[0]
        truth = rows["latency_us_median"][at] * 1e3
        rows.loc[at, "latency_us_median"] *= 3
        (found,) = fit_gemm(rows, SMS)
        assert table_times(found, *(np.array([x]) for x in (2048, 2048, 64)), SMS)[0] == pytest.approx(truth, rel=0.1)

    def test_median_of_three_sweeps_ignores_one(self):
        rows = rows_of(runs=("1", "2", "3"), noise=0.001)
        rows.loc[(rows["run_id"] == "2") & (rows["m"] == 64), "latency_us_median"] *= 1.4
        (found,) = fit_gemm(rows, SMS)
        assert table_times(found, *measured(rows_of()), SMS) == pytest.approx(
            rows_of()["latency_us_median"] * 1e3, rel=0.02
        )

    def test_noise_becomes_the_interval(self):
        (found,) = fit_gemm(rows_of(runs=("1", "2"), noise=0.03), SMS)
        assert -0.09 < found.seen.p05 < -0.04 and 0.04 < found.seen.p95 < 0.09
        curve = gemm_curve(found, 2048, 2048, SMS)
        assert np.all(curve.low < curve.ns) and np.all(curve.ns < curve.high)

    def test_order_of_rows_does_not_matter(self, table):
        (shuffled,) = fit_gemm(rows_of(bump=wavy).sample(frac=1, random_state=1).reset_index(drop=True), SMS)
        assert shuffled == table


class TestSweeps:
    POINT = ["n", "k", "m"]

    def test_candidates_of_a_release_are_one_version(self):
        rows = pd.concat([rows_of(version="1.3.0rc1", noise=0.01), rows_of(version="1.3.0rc2", noise=0.02)])
        assert [version for version, _ in pools(rows, self.POINT, "latency_us_median")] == ["1.3.0"]

    def test_candidates_that_disagree_are_two(self):
        slower = LAW.model_copy(update={"launch_ns": 9000.0, "bytes_per_s": 2e12})
        rows = pd.concat([rows_of(version="1.3.0rc1"), rows_of(law=slower, version="1.3.0rc10")])
        assert [version for version, _ in pools(rows, self.POINT, "latency_us_median")] == ["1.3.0rc10", "1.3.0rc1"]

    def test_copy_of_a_sweep_counts_once(self):
        rows = pd.concat([rows_of(runs=("a",)), rows_of(runs=("b",), sizes=SIZES[:9])])
        ((_, sweeps),) = pools(rows, self.POINT, "latency_us_median")
        assert list(sweeps.columns) == [f"1.0/a{SAME}1.0/b"]

    def test_newest_version_is_the_default(self):
        parts = [rows_of(version=version, noise=0.01, sizes=SIZES[:9]) for version in ("1.9.0", "1.10.0", "1.10.0rc3")]
        calibration = fit_measurements(Measurements({"gemm": pd.concat(parts, ignore_index=True)}), "h100")
        assert choose_table(calibration, "bf16").version == "1.10.0"


class TestEvaluation:
    @settings(max_examples=examples(60))
    @given(st.lists(st.integers(1, 10_000), min_size=2, max_size=20, unique=True), st.data())
    def test_times_are_monotone_where_points_are(self, m, data):
        m = np.array(sorted(m))
        ns = np.cumsum(data.draw(st.lists(st.floats(1, 1e6), min_size=len(m), max_size=len(m))))
        rows = np.arange(0, 12_000, 7)
        out = np.empty(len(rows))
        gemm_times(m, ns[None], np.zeros(len(rows), np.int64), rows, out)
        assert out[0] == 0 and np.all(np.diff(out) >= -1e-9 * out[1:])

    def test_points_are_met_and_nothing_takes_no_time(self):
        m, ns = np.array([2, 8, 64]), np.array([[10.0, 11.0, 50.0]])
        out = np.empty(7)
        gemm_times(m, ns, np.zeros(7, np.int64), np.array([0, 1, 2, 4, 8, 64, 120]), out)
        assert out[[0, 1, 2, 4, 5]] == pytest.approx([0, 10, 10, 11, 50])
        assert out[3] == pytest.approx(np.sqrt(110)) and out[6] == pytest.approx(50 + 39)

    def test_beyond_the_last_point_the_law_goes_on_with_its_correction(self, table):
        """A slope of the last two points, which may be on a plateau, would be arbitrary."""
        n, k, last = 4096, 4096, int(table.m[-1])
        m = last * np.array([1, 2, 3, 8, 1000, 10**7])
        size = np.full(len(m), n)
        times, law = table_times(table, size, size, m, SMS), law_ns(table.law, m, n, k, table.dtype)
        assert times / times[0] == pytest.approx(law / law[0], rel=0.03)
        assert times[[1, 3]] / times[0] == pytest.approx(law[[1, 3]] / law[0], rel=1e-9)
        curve, out = gemm_curve(table, n, k, SMS), np.empty(len(m))
        gemm_times(curve.m, curve.ns[None], np.zeros(len(m), np.int64), m, out)
        assert curve.last == last and out == pytest.approx(times, rel=1e-12)

    def test_sizes_outside_are_flagged(self, table):
        assert gemm_curve(table, 512, 16384, SMS).extrapolates
        assert gemm_curve(table, 256, 2048, SMS).extrapolates
        assert not gemm_curve(table, 700, 3000, SMS).extrapolates

    def test_shapes_far_from_all_measured_ones_are_flagged_within_their_range_too(self):
        (table,) = fit_gemm(rows_of(sizes=[(512, 512), (512, 8192), (8192, 512), (8192, 8192), (1024, 1024)]), SMS)
        assert gemm_curve(table, 3000, 3000, SMS).extrapolates and not gemm_curve(table, 1200, 800, SMS).extrapolates
        n, k, m = np.array([3000, 1200, 1024]), np.array([3000, 800, 1024]), np.array([8, 8, 8])
        assert outside(table, n, k, m).tolist() == [True, False, False]

    def test_a_shape_that_was_cut_off_is_flagged_from_there_on(self):
        rows = rows_of()
        cut = (rows["n"] == 2048) & (rows["k"] == 2048) & (rows["m"] > 64)
        (table,) = fit_gemm(rows[~cut], SMS)
        assert table.ends == {"2048x2048": (1, 64)} and gemm_curve(table, 2048, 2048, SMS).last == 64
        at = np.array([2048, 2048])
        assert outside(table, at, at, np.array([64, 65])).tolist() == [False, True]
        assert not outside(table, at, np.array([4096, 4096]), np.array([64, 65])).any()

    def test_other_dies_scale_both_terms(self, table):
        same, faster, wider = (gemm_curve(table, 4096, 4096, SMS, *scale).ns for scale in ((), (2.0,), (1.0, 2.0)))
        assert faster[-1] < 0.65 * same[-1] and faster[0] == pytest.approx(same[0], rel=0.01)
        assert wider[0] < 0.8 * same[0] and wider[-1] == pytest.approx(same[-1], rel=0.05)

    def test_expert_of_a_calibration(self):
        calibration = load_calibration("h100")
        expert = ExpertGemm(calibration, 7168, 2048, "fp8")
        gate, down = expert.gate, expert.down
        assert gate.measured and down.measured and not gate.extrapolates
        half = ExpertGemm(
            calibration, 7168, 2048, "fp8", Rates(1979e12 / 2, calibration.reference.hbm_bytes_per_s)
        ).gate
        assert half.ns[-1] > 1.5 * gate.ns[-1]
        bf16, fp16 = (ExpertGemm(calibration, 4096, 1536, dtype).gate.ns for dtype in ("bf16", "fp16"))
        assert np.array_equal(bf16, fp16)
        with pytest.raises(SpecError, match="no GEMM table for .*fp4"):
            ExpertGemm(calibration, 4096, 1536, "fp4")


def files_below(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


class TestCommands:
    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory):
        folder = tmp_path_factory.mktemp("measurements")
        rows = rows_of(runs=("1", "2"), noise=0.02, sizes=SIZES + [(2048, 7168), (4096, 7168), (7168, 2048)])
        columns = [name for name in rows if name not in ("gpu", "file", "line")]
        rows[columns].astype({name: int for name in "mnk"} | {"groups": int}).to_csv(folder / "gemm.csv", index=False)
        return folder

    @pytest.fixture(scope="class")
    def fitted(self, folder, tmp_path_factory):
        out = tmp_path_factory.mktemp("fitted")
        assert main(["calibrate", str(folder), "--out", str(out / "fit")]) == 0
        return out / "fit"

    def test_same_measurements_same_bytes_and_round_trip(self, folder, fitted, tmp_path):
        assert main(["calibrate", str(folder), "--out", str(tmp_path / "again")]) == 0
        write_calibration(load_calibration(fitted / "h100.yaml"), tmp_path / "written" / "h100.yaml")
        first, *others = map(files_below, (fitted, tmp_path / "again", tmp_path / "written"))
        assert set(first) == {"h100.yaml", "h100/gemm.yaml", "h100/gemm.npz"} and others == [first, first]

    def test_validation_writes_a_page_that_says_where_it_is_wrong(self, folder, fitted, tmp_path, capsys):
        assert (
            main(["validate", "--with", str(fitted / "h100.yaml"), str(folder), "--out", str(tmp_path / "page")]) == 0
        )
        page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
        assert "Largest errors" in page and "GEMMs of experts" in page
        own = re.sub(r"<script.*?</script>", "", page, flags=re.S)  # the library that draws has such words
        assert "src=" not in own and "@import" not in own
        cases = pd.read_parquet(tmp_path / "page" / "cases.parquet")
        sweeps = cases[cases["kind"] == "sweep left out"]
        assert len(sweeps) == 2 * 28 * len(M)
        experts = expert_cases(sweeps)
        near = (experts["error"].abs() < 0.05).sum()
        assert f"sweep left out: under 5 % are bf16 {near} of {len(experts)}." in page and len(experts) == 2 * 39
        # Between the noise of the sweep that is judged and that of two (where a table is as noisy as its sweep);
        # the mean of a normal distribution's size is 0.8 of its standard deviation.
        assert 0.8 * 0.02 < sweeps["error"].abs().mean() < 0.8 * 0.02 * np.sqrt(2)
        assert np.allclose(cases["error"], cases["predicted"] / cases["measured"] - 1, atol=1e-3)
        assert "sweep left out" in capsys.readouterr().out

    def test_gpu_is_asked_for_where_there_is_a_choice(self):
        frames = pd.concat([rows_of(), rows_of().assign(gpu="a100")])
        measurements = Measurements({"gemm": frames})
        assert choose_gpu(measurements, None, "a100") == "a100" and choose_gpu(measurements, "h100", "x") == "h100"
        with pytest.raises(CalibrationError, match="a100, h100"):
            choose_gpu(measurements, None, "x")

    def test_calibration_of_another_gpu_is_reported(self, folder, capsys):
        assert main(["validate", "--with", "rtx-pro-6000-server", str(folder)]) == 2
        assert "no measurements of 'rtx-pro-6000-server'" in capsys.readouterr().err
