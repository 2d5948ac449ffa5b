"""The validation page: predictions of a calibration against measurements, and the largest errors; one HTML file."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from archsim.base.files import own_folder, write_text
from archsim.evidence import products
from archsim.evidence.charts import percent, scatter, shares_within, times_over
from archsim.evidence.choosing import GEMM, MOE
from archsim.evidence.engine_copies import copies_table
from archsim.evidence.engine_experts import engine_table
from archsim.evidence.engine_layers import layer_table
from archsim.evidence.kernels import judge_tables, section_table, sections, unread
from archsim.evidence.power import power_table
from archsim.evidence.transfers import SetErrors
from archsim.laws.tables import CalibrationSpec, newest_first
from archsim.report import plots, rendering
from archsim.specs import calibration_files, config_files
from calibration.measurements.reading import CASES, Measurements, read_measurements

TEMPLATES = Path(__file__).parent / "templates"
MOST_LISTED = 60
NO_FLOOR = "–: unknown, as the release has only one sweep"
BY = ["kind", "what", "library", "version", "dtype", "table"]
OVERVIEW = ["kind", "what", "table", "dtype"]
SHAPE = ["n", "k"]
UNSEEN = (
    products.NEW,
    products.SWEEP_OUT,
    products.SHAPE_OUT,
    products.RANK_OUT,
)  # kinds that judge predictions, in this order
LEAST_POINTS_TO_TELL = 8  # for a set of copies to appear in the summary
FULL_HEAT = 0.2  # mean error at which a cell of the EP size table has full colour


class PageTable(NamedTuple):
    """The first ``texts`` columns are text, the others numbers."""

    names: list[str]
    rows: list[list[str]]
    texts: int


class ErrorMap(NamedTuple):
    """Mean errors by model (rows) and EP size; a cell is (text, share of full colour), or None."""

    caption: str
    ranks: list[int]
    rows: list[tuple[str, list[tuple[str, float] | None]]]


def write_page(
    calibration: CalibrationSpec,
    cases: pd.DataFrame,
    transfers: dict[str, list[SetErrors]],
    through_engine: pd.DataFrame,
    copies: pd.DataFrame,
    notes: list[str],
    folder: Path,
    ranks: pd.DataFrame,
    power: pd.DataFrame,
    of_laws: pd.DataFrame,
    unread: list[str],
) -> Path:
    """Write ``index.html``, tables and ``cases.parquet`` into the folder; returns the page. Equal
    inputs give equal bytes.

    ``cases.parquet``: every case. ``cases.csv``: cases with an error of 5 % or more, and all GEMMs of experts.
    ``summary.csv``, ``moe_groups.csv``, ``transfers.csv``: errors of groups. ``engine.csv``: ``through_engine``, from
    `engine_cases`; ``engine_copies.csv``: ``copies``, from `engine_copies`; ``engine_layers.csv``: ``ranks``, from
    `engine_layers`; ``power.csv``: ``power``, from `power_cases`; ``sections.csv``: ``of_laws``, as ``unread``. Tables
    without rows are not written. ``notes``: from `choosing.choice_notes`.
    """
    own_folder(folder)
    cases.to_parquet(folder / CASES, index=False, compression="zstd")
    by = products.summaries(cases, BY) if len(cases) else pd.DataFrame()
    layers, experts = products.layer_groups(cases), _experts(cases)
    tables = {
        "cases.csv": cases[(cases["error"].abs() >= products.UNDER) | cases.index.isin(experts.index)]
        if len(cases)
        else cases,
        "summary.csv": by,
        "moe_groups.csv": layers,
        "transfers.csv": pd.DataFrame(
            [{"kind": heading} | asdict(each) for heading, found in transfers.items() for each in found]
        ),
        "engine.csv": through_engine,
        "engine_copies.csv": copies,
        "engine_layers.csv": ranks,
        "power.csv": power,
        "sections.csv": of_laws,
    }
    for name, table in tables.items():
        if len(table):
            write_text(folder / name, table.to_csv(index=False, float_format="%.5g", lineterminator="\n"))
        else:  # one of an earlier validation
            (folder / name).unlink(missing_ok=True)
    context = {
        "gpu": calibration.gpu, "notes": notes, "no_floor": NO_FLOOR,
        "files": [CASES, *(name for name, table in tables.items() if len(table))],
        "short": list(in_short(cases, layers, transfers, through_engine, copies)),
        "overview": _summary_table(overview(cases), OVERVIEW) if len(cases) else None, "shares": _shares(cases),
        "curves": _curves(experts), "experts": _fold(experts, [*BY[:1], *BY[2:], "model"]),
        "heats": list(_heats(cases)), "layers": _layer_table(layers), "scatters": _scatters(cases),
        "engine": _engine(through_engine, copies, ranks),
        "power": PageTable(*power_table(power), 3) if len(power) else None, "transfers": list(_transfers(transfers)),
        "laws": PageTable(*section_table(of_laws), 3) if len(of_laws) else None, "unread": unread,
        "wrong": list(_wrong(experts, cases)), "all": _summary_table(by, BY) if len(by) else None,
    }  # fmt: skip
    write_text(folder / "index.html", rendering.render("validation.html.j2", context, folder=TEMPLATES))
    return folder / "index.html"


def _of_one_table(cases: pd.DataFrame) -> pd.DataFrame:
    """Cases of the library with most cases, by its newest table."""
    if not len(cases):
        return cases
    mine = cases[cases["library"] == cases["library"].mode()[0]]
    return mine[mine["table"] == max(mine["table"], key=lambda table: newest_first(table.rpartition(" ")[2]))]


def kinds_shown(cases: pd.DataFrame) -> list[str]:
    """Cases that the fit has not seen; if it has seen all, all of them."""
    return [kind for kind in UNSEEN if (cases["kind"] == kind).any()] or [products.FITTED]


def _experts(cases: pd.DataFrame) -> pd.DataFrame:
    return products.expert_cases(cases[cases["what"] == GEMM])


def in_short(
    cases: pd.DataFrame,
    layers: pd.DataFrame,
    transfers: Mapping[str, Sequence[SetErrors]],
    through_engine: pd.DataFrame,
    copies: pd.DataFrame,
) -> Iterator[str]:
    """Summary sentences, the most important first."""
    experts = _of_one_table(_experts(cases))
    for kind in kinds_shown(experts) if len(experts) else ():
        mine = experts[experts["kind"] == kind].groupby("dtype", sort=True)["error"]
        parts = [f"{dtype} {(found.abs() < products.UNDER).sum()} of {len(found)}" for dtype, found in mine]
        yield f"GEMMs of experts at M = 1 … 4096, {kind}: under 5 % are {', '.join(parts)}."
    if len(layers):
        met = layers["met"].value_counts()
        aims = ", ".join(f"{100 * aim:.0f} % for {model}" for model, aim in products.AIM_OF.items())
        yield (
            f"Fused MoE layers, each EP size left out: the mean error of {met.get('yes', 0)} of {len(layers)} groups "
            f"is "
            f"within {100 * products.AIM:.0f} % ({aims}), that of {met.get('floor', 0)} others within the spread of "
            f"repetitions or routing samples."
        )
    for heading, found in list(transfers.items())[-1:]:
        for row in found:
            if row.name.startswith("p2p") and row.points >= LEAST_POINTS_TO_TELL:
                far = (
                    f"errors of medians over half octaves of sizes: mean {percent(row.binned_mean)}, max "
                    f"{percent(row.binned_max)}"
                )
                yield f"Copies, {row.name.removeprefix('p2p ')} ({heading}): {far}."
    for what, found in (("one expert on one die", through_engine), ("copies between two dies", copies)):
        if len(found):
            yield f"Event engine, {what}: at most {100 * found['law_error'].abs().max():.2f} % from the fitted curve."


def overview(cases: pd.DataFrame) -> pd.DataFrame:
    """Errors of unseen cases, by the table that judged them; a row per group of OVERVIEW, see ``summaries``."""
    return pd.concat(
        [products.summaries(cases[cases["kind"] == kind], OVERVIEW) for kind in kinds_shown(cases)], ignore_index=True
    )


def _shares(cases: pd.DataFrame) -> plots.Points | None:
    found: dict[str, dict[str, np.ndarray]] = {}
    for kind in kinds_shown(cases) if len(cases) else ():
        for what, mine in cases[cases["kind"] == kind].groupby("what", sort=True):
            by_dtype = {dtype: of.to_numpy(float) for dtype, of in mine.groupby("dtype", sort=True)["error"]}
            found[f"{what}, {kind}"] = by_dtype
    return shares_within("How many cases are within a given error?", found)


def _curves(experts: pd.DataFrame) -> plots.Points | None:
    """Figure 12 of the paper: times of expert GEMMs over M, for the library with most of them, newest version."""
    newest = _of_one_table(experts)
    if not len(newest):
        return None
    sets: dict[str, tuple[Sequence[tuple[float, float]], Sequence[tuple[float, float, float]]]] = {}
    of_file = newest[newest["kind"].isin([products.FITTED, products.NEW])]
    for (model, n, k, dtype, table), shown in of_file.groupby(["model", *SHAPE, "dtype", "table"], sort=True):
        ordered = shown.sort_values("m", kind="stable")
        once = ordered.drop_duplicates("m")
        sets[f"{model} {int(n)} × {int(k)}, {dtype}, {table}"] = (
            list(zip(once["m"], once["predicted_us"], strict=True)),
            list(zip(ordered["m"], ordered["measured_us"], ordered["error"], strict=True)),
        )
    return times_over("How well is the time of an expert's GEMM predicted?", sets, "M, rows")


def _fold(cases: pd.DataFrame, by: list[str]) -> dict[str, PageTable]:
    """'shown': unseen cases, 'folded': the rest; keys without cases are omitted."""
    if not len(cases):
        return {}
    shown = cases["kind"].isin(kinds_shown(cases))
    parts = {"shown": cases[shown], "folded": cases[~shown]}
    return {name: _summary_table(products.summaries(part, by), by) for name, part in parts.items() if len(part)}


def _scatters(cases: pd.DataFrame) -> list[plots.Points]:
    """Of unseen cases, and of those in the fit."""
    kinds = kinds_shown(cases) if len(cases) else []
    sets: dict[bool, dict[str, pd.DataFrame]] = {True: {}, False: {}}
    for (kind, what, library, version, dtype, table), shown in cases.groupby(BY, sort=True):
        other = f", by {table}" if table != f"{library} {version}" else ""
        sets[kind in kinds][f"{what}, {kind}: {library} {version}, {dtype}{other}"] = shown
    asked = "How far are predictions from measurements that no fit has seen?", "How far are they on cases of the fit?"
    drawn = (scatter(question, sets[unseen]) for unseen, question in zip((True, False), asked, strict=True))
    return [each for each in drawn if each is not None]


def _heats(cases: pd.DataFrame) -> Iterator[ErrorMap]:
    """Mean errors of fused MoE layers at each left-out EP size."""
    layers = cases[(cases["what"] == MOE) & (cases["kind"] == products.RANK_OUT)] if len(cases) else cases
    if not len(layers):
        return
    for (library, dtype, distribution), mine in layers.groupby(["library", "dtype", "distribution"], sort=True):
        means = (
            mine["error"].abs().groupby([mine["model"], mine["ep"].astype(int)]).mean().unstack("ep").sort_index(axis=1)
        )
        rows = [
            (str(model), [_heat_cell(value) for value in row])
            for model, row in zip(means.index, means.to_numpy(), strict=True)
        ]
        yield ErrorMap(f"{library} {dtype}, {distribution}", list(means.columns), rows)


def _heat_cell(mean: float) -> tuple[str, float] | None:
    return None if math.isnan(mean) else (f"{100 * mean:.1f}", round(min(mean / FULL_HEAT, 1.0), 3))


def _layer_table(layers: pd.DataFrame) -> PageTable | None:
    """Groups of fused MoE layers, largest error first."""
    if not len(layers):
        return None
    worst = layers.sort_values("mean", ascending=False, kind="stable")
    return _summary_table(worst.assign(aim=worst["aim"].map(percent)), [*products.GROUP, "aim", "met"])


def _engine(experts: pd.DataFrame, copies: pd.DataFrame, ranks: pd.DataFrame) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if len(ranks):
        found["layers"] = PageTable(*layer_table(ranks), 3)
    if len(experts):
        found["experts"] = PageTable(*engine_table(experts), 3)
    if len(copies):
        library = f"{copies['library'].iloc[0]} {copies['version'].iloc[0]}"
        found["copies"] = PageTable(*copies_table(copies), 2)
        known = copies.dropna(subset="measured_us")
        line = list(zip(copies["bytes"], copies["engine_us"], strict=True))
        points = list(zip(known["bytes"], known["measured_us"], known["error"], strict=True))
        question = "How long do copies between two dies take on the event engine (line), and measured (points)?"
        found["drawing"] = times_over(question, {f"copies, {library}": (line, points)}, "bytes")
    return found


def _transfers(transfers: dict[str, list[SetErrors]]) -> Iterator[tuple[str, PageTable]]:
    names = [
        "set", "table", "points", "extrapolated", "under 5 %", "mean", "p95", "max", "half octaves: mean", "max",
        "max beyond rounding", "floor",
    ]  # fmt: skip
    for heading, found in transfers.items():
        rows = [
            [row.name, row.table, str(row.points), str(row.extrapolated), str(row.under_5_percent)]
            + [
                percent(value)
                for value in (row.mean, row.p95, row.max, row.binned_mean, row.binned_max, row.binned_max_unrounded)
            ]
            + [percent(math.nan if row.floor is None else row.floor)]
            for row in found
        ]
        if rows:
            yield heading, PageTable(names, rows, 2)


def _wrong(experts: pd.DataFrame, cases: pd.DataFrame) -> Iterator[tuple[str, PageTable]]:
    """Expert GEMMs with errors above 5 %, and the worst of all cases."""
    for heading, found in (("GEMMs of experts at powers of two", experts), ("All cases", cases)):
        if not len(found):
            continue
        above = found[found["error"].abs() >= products.UNDER]
        worst = above.iloc[np.argsort(-above["error"].abs().to_numpy(), kind="stable")[:MOST_LISTED]]
        listed = f"the worst {len(worst)} of them" if len(worst) < len(above) else "all of them"
        columns = (*BY, "sweep", "model", "distribution", "n", "k", "m", "ep", "tokens_total", "extrapolated")
        names = [name for name in columns if name in worst]
        rows = [[_cell(row[name]) for name in names] + _times(row) for row in worst.to_dict("records")]
        title = f"{heading}: {len(above)} of {len(found)} have an error of 5 % or more; {listed}"
        yield title, PageTable([*names, "measured us", "predicted us", "error", "floor"], rows, len(names))


def _times(row: dict) -> list[str]:
    return [f"{row['measured_us']:.4g}", f"{row['predicted_us']:.4g}", percent(row["error"]), percent(row["floor"])]


def _summary_table(found: pd.DataFrame, by: list[str]) -> PageTable:
    names = [*by, "cases", "extrapolated", "under 5 %", "mean", "p95", "max", "floor (mean)"]
    rows = [
        [*(str(row[name]) for name in by), str(row["cases"]), str(row["extrapolated"]), str(row["under"])]
        + [percent(row[name]) for name in ("mean", "p95", "max", "floor")]
        for row in found.to_dict("records")
    ]
    return PageTable(names, rows, len(by))


def _cell(value) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:g}"
    return str(value)


HEAD = """# Shipped calibrations against measurements

Every law that an iteration uses, by the calibration file as it is, on all that was measured of its GPU: most of it is
what the file was fitted to. Errors of sizes, shapes and
sweeps left out of the fit are on the page of `archsim calibrate --validate MEASUREMENTS --with GPU`. *Own table*:
the kernel's table; else as the engine takes it, by the bytes of a port. Made by
`python -m archsim.evidence.page MEASUREMENTS docs/validation.md`.
"""
MOST_UNREAD = 8  # listed


def main(arguments: list[str]) -> None:
    """Write the page for all shipped calibrations, or those named, whose GPU was measured."""
    folder, out, *names = arguments
    measurements = read_measurements(folder)
    wanted = names or sorted(config_files.named_files("calibrations"))
    parts = [part for name in wanted for part in _of(name, measurements)]
    write_text(Path(out), "\n".join([HEAD, *parts]))


def _of(name: str, measurements: Measurements) -> Iterator[str]:
    calibration = calibration_files.calibration_named(name)
    if calibration.gpu not in measurements.gpus():
        return
    found = [products.gemm_cases(calibration, measurements), products.moe_cases(calibration, measurements)]
    cases = pd.concat([each for each in found if len(each)] or found[:1], ignore_index=True)
    read = judge_tables(calibration, name, measurements, cases)
    names, rows = section_table(sections([each._replace(what="", library="") for each in read]))
    kept = [column for column in range(len(names)) if names[column] not in ("what", "library")]
    yield f"## {name}\n"
    yield "| " + " | ".join(names[column] for column in kept) + " |\n|" + "---|" * len(kept)
    for row in rows:
        yield "| " + " | ".join(row[column] for column in kept) + " |"
    lines = [line for line in unread(read, measurements) if ": " not in line]
    more = f" and {len(lines) - MOST_UNREAD} more" if len(lines) > MOST_UNREAD else ""
    yield f"\nMeasured, and used by no fitted curve: {'; '.join(lines[:MOST_UNREAD]) + more if lines else 'none'}.\n"


if __name__ == "__main__":
    main(sys.argv[1:])
