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
from archsim.laws.tables import CalibrationSpec, newest_first
from archsim.laws.transfers import PAYLOAD_OF, law_of
from archsim.report.page import rendered
from archsim.report.plots import Colours, PlotAxis, Points
from archsim.specs import calibration_files, config_files
from archsim.studies.validation import errors
from archsim.studies.validation.cases import (
    attention_errors,
    attention_groups,
    copies_table,
    engine_table,
    layer_table,
    moved,
    power_table,
)
from archsim.studies.validation.errors import (
    AIM,
    AIM_OF,
    FITTED,
    GEMM,
    GROUP,
    MOE,
    NEW,
    RANK_OUT,
    SHAPE_OUT,
    SHAPES_OF_EXPERTS,
    SWEEP_OUT,
    UNDER,
    SetErrors,
    expert_cases,
    gemm_cases,
    layer_groups,
    moe_cases,
    summaries,
)
from calibration.measurements.adapters.not_fitted import NO_TIMES
from calibration.measurements.reading import CASES, Measurements, read_measurements

# ---- charts
# Figures of the validation page: measured against predicted times, and errors.

MOST_POINTS = 18_000  # of all scatters: of a set every n-th case by error, so that the worst are always drawn
MOST_ERROR = 0.2  # largest error on the axis of cumulative error charts
_NEAR_OR_FAR = {"error under 5 %": "--p4", "5 % or more": "--p7"}
COLOUR_OF = {"bf16": "--p2", "fp8": "--p3", "fp8_block": "--p5"}
OTHER_COLOUR = "--p0"
_TIPS = (("set", "set"), ("at", "at"), ("measured", "measured, µs"), ("predicted", "predicted, µs"), ("error", "error"))


def scatter(question: str, sets: dict[str, pd.DataFrame]) -> Points | None:
    """Predicted over measured time with the diagonal, one set at a time; the frames have measured_us, predicted_us and
    error. None without sets.
    """
    rows: list[dict[str, Any]] = []
    for name, cases in sets.items():
        order = np.argsort(-cases["error"].abs().to_numpy(), kind="stable")
        shown = cases.iloc[order[:: math.ceil(len(order) * len(sets) / MOST_POINTS)]]
        of_all = cases["error"].abs()
        told = f"{name} ({len(cases):,} cases, mean error {percent(of_all.mean())}, max {percent(of_all.max())})"
        rows += [
            {
                "set": told, "measured": float(row.measured_us), "predicted": float(row.predicted_us),
                "kind": _kind(row.error), "error": percent(row.error),
            }
            for row in shown.itertuples()
        ]  # fmt: skip
    ends = [end for row in rows for end in (row["measured"], row["predicted"])]
    return Points(
        question=question, rows=rows, x=PlotAxis("measured", "measured, µs", "~g", log=True), zero=False, size=16,
        y=PlotAxis("predicted", "predicted, µs", "~g", log=True), colours=Colours("kind", _NEAR_OR_FAR), tips=_TIPS,
        curves=[{"line": "equal", "measured": end, "predicted": end} for end in (min(ends), max(ends))],
        filters={"set": rows[0]["set"]},
    ) if rows else None  # fmt: skip


def _kind(error: float) -> str:
    """One of `_NEAR_OR_FAR`."""
    return "error under 5 %" if abs(error) < UNDER else "5 % or more"


def times_over(
    question: str, sets: dict[str, tuple[Sequence[tuple[float, float]], Sequence[tuple[float, float, float]]]], x: str
) -> Points | None:
    """Points: measured; line: predicted. ``sets``: name → (line of (x, µs), points of (x, µs, error)); None without."""
    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    for name, (line, points) in sets.items():
        curves += [{"set": name, "line": name, "at": float(at), "us": float(us)} for at, us in line]
        rows += [
            {"set": name, "at": float(at), "us": float(us), "error": percent(error), "kind": _kind(error)}
            for at, us, error in points
        ]
    return Points(
        question=question, rows=rows, curves=curves, x=PlotAxis("at", x, "~s", log=True),
        y=PlotAxis("us", "µs", "~g", log=True),
        colours=Colours("kind", _NEAR_OR_FAR), panel="set", own_scales=True, zero=False, size=22,
        tips=(("set", "set"), ("at", x), ("us", "measured, µs"), ("error", "error")),
    ) if rows else None  # fmt: skip


def shares_within(question: str, sets: dict[str, dict[str, np.ndarray]]) -> Points | None:
    """Share of cases (y) with at most a given error (x), a line for each dtype. ``sets``: name → dtype → errors,
    float64[case]; None without.
    """
    rows, at = [], np.linspace(0, MOST_ERROR, 41)
    for name, by_dtype in sets.items():
        for dtype, of in by_dtype.items():
            share = np.searchsorted(np.sort(np.abs(of)), at, side="right") / len(of)
            told = f"{percent(float(np.mean(np.abs(of) < UNDER)))} of {len(of):,} cases are under 5 %"
            rows += [
                {"set": name, "dtype": dtype, "error": 100 * float(x), "share": 100 * float(y), "told": told}
                for x, y in zip(at, share, strict=True)
            ]
    dtypes = dict.fromkeys(str(row["dtype"]) for row in rows)
    return Points(
        question=question, rows=rows, x=PlotAxis("error", "error at most, %"),
        y=PlotAxis("share", "share of cases, %"), lines=True,
        colours=Colours("dtype", {dtype: COLOUR_OF.get(dtype, OTHER_COLOUR) for dtype in dtypes}), panel="set",
        tips=(("set", "set"), ("dtype", "dtype"), ("told", "cases")),
    ) if rows else None  # fmt: skip


def percent(share: float) -> str:
    """``0.034`` → ``3.4 %``; nan (unknown) is a dash."""
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"


# ---- sections
# One section of error for every law that an iteration uses, and the measured tables that no law reads.

WITHIN = 0.25
COLUMNS = ["law", "what", "library", "points", "median", "p90", "worst", "within_25"]


class LawPoints(NamedTuple):
    """Points of one law. ``error``: predicted / measured - 1, float64[point]; None: no law reads them."""

    law: str
    what: str
    library: str
    points: int
    error: np.ndarray | None


def judged(calibration: CalibrationSpec, name: str, measurements: Measurements, cases: pd.DataFrame) -> list[LawPoints]:
    """Everything measured on the calibration's GPU. ``cases``: of products and fused layers
    (``archsim.studies.validation.errors``), of which those of the file count.
    """
    return [
        *_products(calibration, measurements, cases),
        *_attention(calibration, measurements),
        *_moved(name, measurements, calibration.gpu),
        *_series(calibration, name, measurements),
    ]


def sections(found: list[LawPoints]) -> pd.DataFrame:
    """A row a law, kind and library: number of points, median, p90 and worst of \\|error\\|, share within 25 %."""
    rows = []
    ordered = sorted((each for each in found if each.error is not None), key=lambda each: each[:3])
    for key in dict.fromkeys(each[:3] for each in ordered):
        errors = np.abs(np.concatenate([each.error for each in ordered if each[:3] == key]))
        if len(errors):
            figures = np.median(errors), np.quantile(errors, 0.9), errors.max(), np.mean(errors <= WITHIN)
            rows.append([*key, len(errors), *map(float, figures)])
    return pd.DataFrame(rows, columns=COLUMNS)


def unread(found: list[LawPoints], measurements: Measurements) -> list[str]:
    """A sentence for every measured table that no law reads, and for every file of times that is not read."""
    lines = [f"{each.law} {each.what} of {each.library} ({each.points} points)" for each in found if each.error is None]
    return [*dict.fromkeys(lines), *(f"{file}: {why}" for file, why in measurements.skipped.items() if why != NO_TIMES)]


def section_table(found: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    names = ["law", "what", "library", "points", "median", "90 %", "worst", "within 25 %"]
    rows = [
        [row.law, row.what, row.library, f"{row.points:,}"]
        + [f"{100 * share:.1f} %" for share in (row.median, row.p90, row.worst, row.within_25)]
        for row in found.itertuples()
    ]
    return names, rows


def _products(calibration, measurements, cases) -> Iterator[LawPoints]:
    of_file = cases[cases["kind"].isin([FITTED, NEW])] if len(cases) else cases
    if len(of_file):
        shapes = of_file.reindex(columns=["n", "k"]).itertuples(index=False, name=None)
        experts = [pair in SHAPES_OF_EXPERTS for pair in shapes]
        shape = np.where(of_file["what"] == errors.MOE, "fused MoE", np.where(experts, "expert GEMM", "dense GEMM"))
        for (law, dtype, library), mine in of_file.groupby([shape, "dtype", "library"], sort=True):
            yield LawPoints(law, dtype, library, len(mine), mine["error"].to_numpy(float))
    gpu = calibration.gpu
    for key, rows in errors.gemm_groups(measurements, gpu):
        if errors.gemm_table_for(calibration, *key) is None:
            of = dict(zip([*errors.GEMM_KEYS, "version"], key, strict=True))
            yield LawPoints("GEMM", of["dtype"], f"{of['library']} {of['version']}", len(rows), None)
    for key, rows in errors.moe_groups(measurements, gpu):
        if errors.moe_table_for(calibration, *key) is None:
            of = dict(zip(errors.MOE_KEYS, key, strict=True))
            what = f"{of['model']} {of['dtype']} {of['distribution']}"
            yield LawPoints("fused MoE", what, f"{of['library']} {of['version']}", len(rows), None)


def _attention(calibration, measurements) -> Iterator[LawPoints]:
    for way, rows in attention_groups(measurements, calibration.gpu):
        library, version, phase, kind, dtype, kv_dtype = way
        error = attention_errors(calibration, way, rows)
        what = f"{kind} {dtype}, {kv_dtype} KV"
        yield LawPoints(f"{phase} attention", what, _named_section(library, version, error), len(rows), error)


def _moved(name: str, measurements: Measurements, gpu: str) -> Iterator[LawPoints]:
    for each in moved(name, measurements, gpu):
        of = each.of
        where = f"{of['nodes']} nodes" if int(of["nodes"]) > 1 else f"{of['num_gpus']} GPUs"
        yield LawPoints(str(of["op"]), f"{of['variant']}, {where}", str(of["library"]), len(each.us), each.error)


def _series(calibration, name, measurements) -> Iterator[LawPoints]:
    """Collectives, copies, the host path and curves of memory, each by its own table; dispatch and combine of SMs and
    payloads that an engine does not take, too.
    """
    taken = {(each.of["op"], each.of["variant"]) for each in moved(name, measurements, calibration.gpu)}
    for item in errors.all_series(measurements, calibration.gpu):
        of, table = item.of, errors.law_for(calibration, item)
        if (of.get("op"), of.get("variant")) in taken and table is None:
            continue
        error = None if table is None else law_of(table).time_ns(item.size_bytes) / item.time_ns - 1
        law = f"{of['op']}, own table" if of.get("op") in PAYLOAD_OF else of.get("op", item.kind)
        where = of.get("variant") or of.get("direction") or ""
        what = " ".join(filter(None, [where, f"{of['num_gpus']} GPUs" if "num_gpus" in of else ""]))
        yield LawPoints(law, what, _named_section(item.library, item.version, error), len(item.time_ns), error)


def _named_section(library: str, version: str, error: np.ndarray | None) -> str:
    """Versions are pooled where they are judged."""
    return library if error is not None else f"{library} {version}"


# ---- page

TEMPLATES = Path(__file__).parent / "templates"
MOST_LISTED = 60
NO_FLOOR = "–: unknown, as the release has only one sweep"
BY = ["kind", "what", "library", "version", "dtype", "table"]
OVERVIEW = ["kind", "what", "table", "dtype"]
SHAPE = ["n", "k"]
UNSEEN = (NEW, SWEEP_OUT, SHAPE_OUT, RANK_OUT)  # kinds that judge predictions, in this order
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
    ``archsim.studies.validation.cases``; ``engine_copies.csv``: ``copies``, from
    ``archsim.studies.validation.cases``; ``engine_layers.csv``: ``ranks``, from
    ``archsim.studies.validation.cases``; ``power.csv``: ``power``, from ``archsim.studies.validation.cases``;
    ``sections.csv``: ``of_laws``, as ``unread``. Tables
    without rows are not written. ``notes``: from
    ``archsim.studies.validation.errors``.
    """
    own_folder(folder)
    cases.to_parquet(folder / CASES, index=False, compression="zstd")
    by = summaries(cases, BY) if len(cases) else pd.DataFrame()
    layers, experts = layer_groups(cases), _experts(cases)
    tables = {
        "cases.csv": cases[(cases["error"].abs() >= UNDER) | cases.index.isin(experts.index)] if len(cases) else cases,
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
        "gpu": calibration.gpu,
        "notes": notes,
        "no_floor": NO_FLOOR,
        "files": [CASES, *(name for name, table in tables.items() if len(table))],
        "short": list(in_short(cases, layers, transfers, through_engine, copies)),
        "overview": _summary_table(overview(cases), OVERVIEW) if len(cases) else None,
        "shares": _shares(cases),
        "curves": _curves(experts),
        "experts": _folded(experts, [*BY[:1], *BY[2:], "model"]),
        "heats": list(_heats(cases)),
        "layers": _layer_table(layers),
        "scatters": _scatters(cases),
        "engine": _engine(through_engine, copies, ranks),
        "power": PageTable(*power_table(power), 3) if len(power) else None,
        "transfers": list(_transfers(transfers)),
        "laws": PageTable(*section_table(of_laws), 3) if len(of_laws) else None,
        "unread": unread,
        "wrong": list(_wrong(experts, cases)),
        "all": _summary_table(by, BY) if len(by) else None,
    }
    write_text(folder / "index.html", rendered("validation.html.j2", context, folder=TEMPLATES))
    return folder / "index.html"


def _of_one_table(cases: pd.DataFrame) -> pd.DataFrame:
    """Cases of the library with most cases, by its newest table."""
    if not len(cases):
        return cases
    mine = cases[cases["library"] == cases["library"].mode()[0]]
    return mine[mine["table"] == max(mine["table"], key=lambda table: newest_first(table.rpartition(" ")[2]))]


def kinds_shown(cases: pd.DataFrame) -> list[str]:
    """Cases that the fit has not seen; if it has seen all, all of them."""
    return [kind for kind in UNSEEN if (cases["kind"] == kind).any()] or [FITTED]


def _experts(cases: pd.DataFrame) -> pd.DataFrame:
    return expert_cases(cases[cases["what"] == GEMM])


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
        parts = [f"{dtype} {(found.abs() < UNDER).sum()} of {len(found)}" for dtype, found in mine]
        yield f"GEMMs of experts at M = 1 … 4096, {kind}: under 5 % are {', '.join(parts)}."
    if len(layers):
        met = layers["met"].value_counts()
        aims = ", ".join(f"{100 * aim:.0f} % for {model}" for model, aim in AIM_OF.items())
        yield (
            f"Fused MoE layers, each EP size left out: the mean error of {met.get('yes', 0)} of {len(layers)} groups "
            f"is "
            f"within {100 * AIM:.0f} % ({aims}), that of {met.get('floor', 0)} others within the spread of "
            f"repetitions or routing draws."
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
            yield f"Event engine, {what}: at most {100 * found['law_error'].abs().max():.2f} % from the law."


def overview(cases: pd.DataFrame) -> pd.DataFrame:
    """Errors of unseen cases, by the table that judged them; a row per group of OVERVIEW, see ``summaries``."""
    return pd.concat(
        [summaries(cases[cases["kind"] == kind], OVERVIEW) for kind in kinds_shown(cases)], ignore_index=True
    )


def _shares(cases: pd.DataFrame) -> Points | None:
    found: dict[str, dict[str, np.ndarray]] = {}
    for kind in kinds_shown(cases) if len(cases) else ():
        for what, mine in cases[cases["kind"] == kind].groupby("what", sort=True):
            by_dtype = {dtype: of.to_numpy(float) for dtype, of in mine.groupby("dtype", sort=True)["error"]}
            found[f"{what}, {kind}"] = by_dtype
    return shares_within("How many cases are within a given error?", found)


def _curves(experts: pd.DataFrame) -> Points | None:
    """Figure 12 of the paper: times of expert GEMMs over M, for the library with most of them, newest version."""
    newest = _of_one_table(experts)
    if not len(newest):
        return None
    sets: dict[str, tuple[Sequence[tuple[float, float]], Sequence[tuple[float, float, float]]]] = {}
    of_file = newest[newest["kind"].isin([FITTED, NEW])]
    for (model, n, k, dtype, table), shown in of_file.groupby(["model", *SHAPE, "dtype", "table"], sort=True):
        ordered = shown.sort_values("m", kind="stable")
        once = ordered.drop_duplicates("m")
        sets[f"{model} {int(n)} × {int(k)}, {dtype}, {table}"] = (
            list(zip(once["m"], once["predicted_us"], strict=True)),
            list(zip(ordered["m"], ordered["measured_us"], ordered["error"], strict=True)),
        )
    return times_over("How well is the time of an expert's product predicted?", sets, "M, rows")


def _folded(cases: pd.DataFrame, by: list[str]) -> dict[str, PageTable]:
    """'shown': unseen cases, 'folded': the rest; keys without cases are omitted."""
    if not len(cases):
        return {}
    shown = cases["kind"].isin(kinds_shown(cases))
    parts = {"shown": cases[shown], "folded": cases[~shown]}
    return {name: _summary_table(summaries(part, by), by) for name, part in parts.items() if len(part)}


def _scatters(cases: pd.DataFrame) -> list[Points]:
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
    layers = cases[(cases["what"] == MOE) & (cases["kind"] == RANK_OUT)] if len(cases) else cases
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
    return _summary_table(worst.assign(aim=worst["aim"].map(percent)), [*GROUP, "aim", "met"])


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
        "set",
        "table",
        "points",
        "extrapolated",
        "under 5 %",
        "mean",
        "p95",
        "max",
        "half octaves: mean",
        "max",
        "max beyond rounding",
        "floor",
    ]
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
        above = found[found["error"].abs() >= UNDER]
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


# ---- shipped
# The page of docs on the shipped calibrations: every law that an iteration uses, against all that was measured.
#
# ``python -m archsim.studies.validation.page MEASUREMENTS docs/validation.md [GPU ...]`` writes it.

HEAD = """# Shipped calibrations against measurements

Every law that an iteration uses, by the calibration file as it is, on all that was measured of its GPU: most of it is
what the file was fitted to. Errors of sizes, shapes and
sweeps left out of the fit are on the page of `archsim calibrate --validate MEASUREMENTS --with GPU`. *Own table*:
the kernel's table; else as the engine takes it, by the bytes of a port. Made by
`python -m archsim.studies.validation.page MEASUREMENTS docs/validation.md`.
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
    found = [gemm_cases(calibration, measurements), moe_cases(calibration, measurements)]
    cases = pd.concat([each for each in found if len(each)] or found[:1], ignore_index=True)
    read = judged(calibration, name, measurements, cases)
    names, rows = section_table(sections([each._replace(what="", library="") for each in read]))
    kept = [column for column in range(len(names)) if names[column] not in ("what", "library")]
    yield f"## {name}\n"
    yield "| " + " | ".join(names[column] for column in kept) + " |\n|" + "---|" * len(kept)
    for row in rows:
        yield "| " + " | ".join(row[column] for column in kept) + " |"
    lines = [line for line in unread(read, measurements) if ": " not in line]
    more = f" and {len(lines) - MOST_UNREAD} more" if len(lines) > MOST_UNREAD else ""
    yield f"\nMeasured, and read by no law: {'; '.join(lines[:MOST_UNREAD]) + more if lines else 'none'}.\n"


if __name__ == "__main__":
    main(sys.argv[1:])
