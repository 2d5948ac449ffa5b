"""The validation page: what a calibration predicts beside what was measured, and where it is wrong; one HTML file."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd

from archsim.files import write_text
from archsim.report.page import TEMPLATES
from archsim.report.svg import Axis, element, log_axis, number, picture, text, title
from archsim.specs.calibration import CalibrationSpec, newest_first
from calibration.comm_errors import SetErrors
from calibration.engine_cases import engine_table
from calibration.engine_copies import copies_table
from calibration.groups import GROUP, layer_groups
from calibration.validate import GEMM, UNDER, expert_cases, summaries

WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 320.0, 220.0, 54.0, 22.0, 34.0, 8.0
MOST_POINTS = 600  # of one scatter: every n-th case, by error, so that the worst are always drawn
MOST_LISTED = 60
BY = ["kind", "what", "library", "version", "dtype"]
SHAPE = ["n", "k"]
CSS = "main { overflow-x: auto; } .wrong { color: var(--bad); } .curve { stroke: var(--p2); stroke-width: 1.4; }"


def write_page(
    calibration: CalibrationSpec,
    cases: pd.DataFrame,
    transfers: dict[str, list[SetErrors]],
    through_engine: pd.DataFrame,
    copies: pd.DataFrame,
    folder: Path,
) -> Path:
    """Write ``index.html``, tables and ``cases.parquet`` into the folder; returns the page. Equal inputs, equal bytes.

    ``cases.parquet``: every case. ``cases.csv``: those that are 5 % off or more, and all of the experts' GEMMs.
    ``summary.csv``, ``moe_groups.csv``: errors of groups. ``engine.csv``: ``through_engine``, of ``calibration.engine_cases``;
    ``engine_copies.csv``: ``copies``, of ``calibration.engine_copies``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    cases.to_parquet(folder / "cases.parquet", index=False, compression="zstd")
    _write_table(folder / "cases.csv", cases[_worth_listing(cases)] if len(cases) else cases)
    by, layers = summaries(cases, BY) if len(cases) else pd.DataFrame(), layer_groups(cases)
    _write_table(folder / "summary.csv", by)
    _write_table(folder / "moe_groups.csv", layers)
    _write_table(folder / "engine.csv", through_engine)
    _write_table(folder / "engine_copies.csv", copies)
    body = [
        f'<p class="kicker">calibration {escape(calibration.gpu)}</p><h1>Predicted and measured</h1>',
        "<p>Error: predicted / measured − 1. Floor: how far the measurement is from other sweeps of the same release at "
        "the same point; no model can be expected to be better than that. <i>Left out</i>, <i>not in its fit</i>: the fit has "
        "not seen it.</p>",
        '<p class="files"><a href="cases.csv">cases.csv</a> (5 % off or more, and experts) '
        '<a href="cases.parquet">cases.parquet</a> (all) <a href="summary.csv">summary.csv</a> '
        '<a href="moe_groups.csv">moe_groups.csv</a> <a href="engine.csv">engine.csv</a> '
        '<a href="engine_copies.csv">engine_copies.csv</a></p>',
        "<h2>Errors</h2>",
        _summary_table(by, BY),
        *_expert_section(cases),
        "<h2>Predicted against measured</h2>",
        f'<div class="panels">{"".join(_scatters(cases))}</div>',
        *_engine_section(through_engine, copies),
        *_transfer_section(transfers),
        "<h2>Where it is wrong</h2>",
        *_layer_section(layers),
        *_wrong_section(cases),
    ]
    css = (TEMPLATES / "page.css").read_text(encoding="utf-8") + CSS
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Calibration {escape(calibration.gpu)}</title><style>{css}</style></head>\n<body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )
    write_text(folder / "index.html", page)
    return folder / "index.html"


def _write_table(path: Path, table: pd.DataFrame) -> None:
    write_text(path, table.to_csv(index=False, float_format="%.5g", lineterminator="\n"))


def _worth_listing(cases: pd.DataFrame) -> pd.Series:
    experts = expert_cases(cases[cases["what"] == GEMM]).index
    return (cases["error"].abs() >= UNDER) | cases.index.isin(experts)


def _layer_section(layers: pd.DataFrame) -> list[str]:
    """Groups of fused MoE layers, the worst first."""
    if not len(layers):
        return []
    worst = layers.sort_values("mean", ascending=False, kind="stable")
    worst = worst.assign(aim=worst["aim"].map(_percent))
    return [
        f"<h3>Fused MoE layers, each EP size left out: {(layers['met'] == 'yes').sum()} of {len(layers)} groups meet their aim</h3>",
        "<p><i>floor</i>: missed by less than repetitions, or draws of the routing, differ.</p>",
        _summary_table(worst, [*GROUP, "aim", "met"]),
    ]


def _expert_section(cases: pd.DataFrame) -> list[str]:
    """The paper's figure 12: time over M of the experts' products, and the cases of powers of two."""
    gemm = cases[cases["what"] == GEMM]
    judged = expert_cases(gemm)
    if not len(judged):
        return []
    kinds = ["kind", "library", "version", "dtype", "model"]
    newest = judged[judged["library"] == judged["library"].mode()[0]]
    newest = newest[newest["version"] == max(newest["version"], key=newest_first)]
    curves = [
        _curve(f"{model} {int(n)} × {int(k)}, {dtype}, {version}", shown)
        for (model, n, k, dtype, version), shown in newest.groupby(["model", *SHAPE, "dtype", "version"], sort=True)
    ]
    return [
        "<h2>Experts’ GEMMs, M = 1 … 4096</h2>",
        "<p>Times over M; points: measured, line: predicted.</p>",
        f'<div class="panels">{"".join(curves)}</div>',
        _summary_table(summaries(judged, kinds), kinds),
    ]


def _scatters(cases: pd.DataFrame) -> list[str]:
    return [
        _scatter(f"{what}, {kind}: {library} {version}, {dtype}", shown)
        for (kind, what, library, version, dtype), shown in cases.groupby(BY, sort=True)
    ]


def _scatter(caption: str, cases: pd.DataFrame) -> str:
    order = np.argsort(-cases["error"].abs().to_numpy(), kind="stable")
    shown = cases.iloc[order[:: math.ceil(len(order) / MOST_POINTS)]]
    times = shown[["measured_us", "predicted_us"]].to_numpy(float)
    axis = log_axis(times.min(), times.max(), _plain)
    frame = _frame(axis, axis, "measured, us")
    frame.append(element("path", class_="ref", d=f"M{number(_x(axis, axis.low))} {number(_y(axis, axis.low))}"
                         f"L{number(_x(axis, axis.high))} {number(_y(axis, axis.high))}"))  # fmt: skip
    for (measured, predicted), error in zip(times, shown["error"], strict=True):
        kind = "p2" if abs(error) < UNDER else "p7"
        frame.append(element("circle", class_=kind, cx=_x(axis, measured), cy=_y(axis, predicted), r=1.8))
    mean = (
        f"{len(cases)} cases, mean {_percent(cases['error'].abs().mean())}, max {_percent(cases['error'].abs().max())}"
    )
    return _figure(f"{caption}<br><small>{mean}</small>", picture(WIDTH, HEIGHT, caption, frame))


def _curve(caption: str, cases: pd.DataFrame) -> str:
    cases = cases.sort_values("m", kind="stable")
    times = cases[["measured_us", "predicted_us"]].to_numpy(float)
    across, up = log_axis(1, cases["m"].max(), _plain), log_axis(times.min(), times.max(), _plain)
    frame = _frame(across, up, "M")
    line = cases.drop_duplicates("m")
    points = [
        f"{number(_x(across, m))} {number(_y(up, t))}" for m, t in zip(line["m"], line["predicted_us"], strict=True)
    ]
    frame.append(element("path", class_="curve", d="M" + "L".join(points)))
    for m, (measured, _), error in zip(cases["m"], times, cases["error"], strict=True):
        kind = "p4" if abs(error) < UNDER else "p7"
        tip = title(f"M = {m}: measured {measured:.4g} us, error {_percent(error)}")
        frame.append(element("circle", tip, class_=kind, cx=_x(across, m), cy=_y(up, measured), r=2.4))
    return _figure(escape(caption), picture(WIDTH, HEIGHT, caption, frame))


def _figure(caption: str, drawing: str) -> str:
    return f"<figure><figcaption>{caption}</figcaption>{drawing}</figure>"


def _frame(across: Axis, up: Axis, unit: str) -> list[str]:
    parts = []
    for tick in across.ticks:
        x = number(_x(across, tick))
        parts.append(element("path", class_="grid", d=f"M{x} {number(TOP)}V{number(HEIGHT - BOTTOM)}"))
        parts.append(text(_x(across, tick), HEIGHT - BOTTOM + 13, across.label(tick), "m", "middle"))
    for tick in up.ticks:
        y = number(_y(up, tick))
        parts.append(element("path", class_="grid", d=f"M{number(LEFT)} {y}H{number(WIDTH - RIGHT)}"))
        parts.append(text(LEFT - 5, _y(up, tick) + 3.5, up.label(tick), "m", "end"))
    parts.append(text((LEFT + WIDTH) / 2, HEIGHT - 6, unit, "m", "middle"))
    return parts


def _x(axis: Axis, value: float) -> float:
    return LEFT + (WIDTH - RIGHT - LEFT) * axis.share(value)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * axis.share(value)


def _plain(value: float) -> str:
    return f"{value:,.10g}"


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"


def _summary_table(found: pd.DataFrame, by: list[str]) -> str:
    if not len(found):
        return "<p>No cases.</p>"
    names = [*by, "cases", "under 5 %", "mean", "p95", "max", "floor (mean)"]
    rows = [
        [*(str(row[name]) for name in by), str(row["cases"]), str(row["under"])]
        + [_percent(row[name]) for name in ("mean", "p95", "max", "floor")]
        for row in found.to_dict("records")
    ]
    return _table(names, rows, len(by))


def _table(names: list[str], rows: list[list[str]], texts: int) -> str:
    """The first ``texts`` columns hold text, the others numbers."""
    kind = ["" if at < texts else ' class="n"' for at in range(len(names))]
    head = "".join(f"<th{kind[at]}>{escape(name)}</th>" for at, name in enumerate(names))
    body = "".join(
        "<tr>" + "".join(f"<td{kind[at]}>{escape(cell)}</td>" for at, cell in enumerate(row)) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _engine_section(experts: pd.DataFrame, copies: pd.DataFrame) -> list[str]:
    parts = []
    if len(experts):
        names, rows = engine_table(experts)
        parts += [
            "<p>One expert on one die that fetches a matrix when the one before is multiplied, by the event engine under "
            "<code>gemm: calibrated</code>; measured: the sum of gate, up and down product.</p>",
            _table(names, rows, 3),
        ]
    if len(copies):
        names, rows = copies_table(copies)
        parts += [
            "<p>Two dies with <code>d2d: {calibration}</code>: the one reads weights that live on the other, slice by slice.</p>",
            f'<div class="panels">{_copies_plot(copies)}</div>',
            _table(names, rows, 2),
        ]
    return ["<h2>Through the event engine</h2>", *parts] if parts else []


def _copies_plot(cases: pd.DataFrame) -> str:
    """Time over size; points: measured, line: the event engine."""
    times = cases[["engine_us", "measured_us"]].to_numpy(float)
    across = log_axis(cases["bytes"].min(), cases["bytes"].max(), _size)
    up = log_axis(np.nanmin(times), np.nanmax(times), _plain)
    frame = _frame(across, up, "bytes")
    line = [f"{number(_x(across, row.bytes))} {number(_y(up, row.engine_us))}" for row in cases.itertuples()]
    frame.append(element("path", class_="curve", d="M" + "L".join(line)))
    for row in cases.dropna(subset="measured_us").itertuples():
        kind = "p4" if abs(row.error) < UNDER else "p7"
        tip = title(f"{row.bytes} bytes: measured {row.measured_us:.4g} us, error {_percent(row.error)}")
        frame.append(element("circle", tip, class_=kind, cx=_x(across, row.bytes), cy=_y(up, row.measured_us), r=1.8))
    caption = f"copies between two dies, {cases['library'].iloc[0]} {cases['version'].iloc[0]}, us"
    return _figure(escape(caption), picture(WIDTH, HEIGHT, caption, frame))


def _size(value: float) -> str:
    exponent = round(math.log10(value))
    return f"10{str(exponent).translate(str.maketrans('0123456789', '⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def _transfer_section(transfers: dict[str, list[SetErrors]]) -> list[str]:
    parts = []
    for heading, errors in transfers.items():
        rows = [
            [row.name, str(row.points), str(row.under_5_percent)]
            + [
                _percent(value)
                for value in (row.mean, row.p95, row.max, row.binned_mean, row.binned_max, row.binned_max_unrounded)
            ]
            + [_percent(math.nan if row.floor is None else row.floor)]
            for row in errors
        ]
        names = [
            "set",
            "points",
            "under 5 %",
            "mean",
            "p95",
            "max",
            "half octaves: mean",
            "max",
            "max beyond rounding",
            "floor",
        ]
        parts += [f"<h2>Transfers and memory: {escape(heading)}</h2>", _table(names, rows, 1)] if rows else []
    return parts


def _wrong_section(cases: pd.DataFrame) -> list[str]:
    """Per kind and table: the experts' cases above 5 %, else the worst cases."""
    gemm = cases[cases["what"] == GEMM]
    experts = expert_cases(gemm)
    parts = []
    for heading, found in (("Experts’ GEMMs at powers of two", experts), ("All cases", cases)):
        above = found[found["error"].abs() >= UNDER] if len(found) else found
        worst = above.iloc[np.argsort(-above["error"].abs().to_numpy(), kind="stable")[:MOST_LISTED]]
        listed = f"the worst {len(worst)} of them" if len(worst) < len(above) else "all of them"
        parts.append(f"<h3>{heading}: {len(above)} of {len(found)} are 5 % off or more; {listed}</h3>")
        names = [
            name
            for name in (*BY, "sweep", "model", "distribution", "n", "k", "m", "ep", "tokens_total")
            if name in worst
        ]
        rows = [
            [_cell(row[name]) for name in names]
            + [
                f"{row['measured_us']:.4g}",
                f"{row['predicted_us']:.4g}",
                _percent(row["error"]),
                _percent(row["floor"]),
            ]
            for row in worst.to_dict("records")
        ]
        parts.append(_table([*names, "measured us", "predicted us", "error", "floor"], rows, len(names)))
    return parts


def _cell(value) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:g}"
    return str(value)
