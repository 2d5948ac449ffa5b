"""Figures for print: those that a report has, by name, in every format; others are refused with the list."""

from pathlib import Path

import pytest

from archsim.base.errors import ArchsimError
from archsim.base.tables import REAL, TEXT, Table
from archsim.report.plots import FORMATS
from archsim.report.printed import MOST_BARS, names_of, write_figure

EXAMPLE = Path(__file__).resolve().parents[2] / "reports" / "example"
COLUMNS = {name: TEXT for name in ("assumptions", "system", "model", "policy")} | {"batch": "integer"}
NUMBERS = ("speedup_vs_ep", "bound_compute", "energy_per_token_j", "energy_per_token_j_low", "energy_per_token_j_high")


def _report(folder: Path, batches: int = 2) -> Path:
    place = {"assumptions": "physical", "system": "s", "model": "m"}
    numbers = dict(zip(NUMBERS, (1.5, 1.0, 2.0, 1.0, 3.0), strict=True))
    rows = [place | numbers | {"policy": each, "batch": n} for n in range(batches) for each in ("ep", "mine")]
    bounds = {f"bound_{name}": REAL for name in ("hbm", "link", "llc", "launch", "permute", "blocks", "decision")}
    bounds |= {"bound_inefficiency": REAL, "bound_activations": REAL}
    rows = [dict.fromkeys(bounds, 0.0) | row for row in rows]
    Table(COLUMNS | bounds | dict.fromkeys(NUMBERS, REAL), tuple(rows)).write_parquet(folder / "results.parquet")
    return folder


def test_a_report_has_the_figures_of_its_columns(tmp_path):
    assert list(names_of(_report(tmp_path))) == ["gain", "limits", "critical_path", "energy"]
    assert list(names_of(EXAMPLE)) == ["front"]


def test_files_without_rows_are_refused(tmp_path):
    (tmp_path / "requests.csv").write_text("ttft_ns,tpot_ns\n")
    assert list(names_of(tmp_path)) == ["ttft", "tpot"]
    with pytest.raises(ArchsimError, match="requests.csv: no rows; nothing to draw"):
        write_figure(tmp_path, "ttft", tmp_path / "ttft.pdf")


@pytest.mark.parametrize(("name", "format_"), list(zip(("gain", "limits", "energy"), FORMATS, strict=True)))
def test_a_figure_is_written_in_its_format_the_same_each_time(tmp_path, name, format_):
    report, files = _report(tmp_path), [tmp_path / f"{n}.{format_}" for n in range(2)]
    for file in files:
        write_figure(report, name, file)
    begins = {"pdf": b"%PDF", "png": b"\x89PNG", "svg": b"<?xml"}[format_]
    assert files[0].read_bytes() == files[1].read_bytes() and files[0].read_bytes().startswith(begins)


def test_the_front_shows_what_was_dominated(tmp_path):
    text = write_figure(EXAMPLE, "front", tmp_path / "front.svg").read_text(encoding="utf-8")
    assert "dominated" in text and "on the front" in text


@pytest.mark.parametrize(
    ("name", "file", "said"),
    [("gian", "a.pdf", "did you mean 'gain'.*\n  gain "), ("gain", "a.xls", "written as pdf, png, svg")],
)
def test_an_unknown_figure_or_format_is_refused_with_those_there_are(tmp_path, name, file, said):
    with pytest.raises(ArchsimError, match=said):
        write_figure(_report(tmp_path), name, tmp_path / file)


def test_more_bars_than_can_be_read_are_refused(tmp_path):
    with pytest.raises(ArchsimError, match="runs in one panel"):
        write_figure(_report(tmp_path, MOST_BARS // 2 + 1), "gain", tmp_path / "a.pdf")
