"""The page of a plan with axes: its best points, goodput over each axis of numbers, and every point."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from archsim.base.files import write_text
from archsim.base.tables import Table
from archsim.report.draw.lines import Line, line_panel
from archsim.report.rendering import rendered
from archsim.studies.serving.plan import ServePlan

SHOWN = (
    ("goodput_per_s", "goodput /s"), ("requests_per_s", "requests /s"), ("within_slo", "within limits"),
    ("output_tokens_per_s_device", "tokens/s a device"), ("tokens_per_s_user", "tokens/s a user"),
    ("ttft_mean_ms", "TTFT ms"), ("ttft_p99_ms", "TTFT p99 ms"), ("tpot_mean_ms", "TPOT ms"),
    ("itl_p99_ms", "ITL p99 ms"), ("kv_peak", "KV peak"),
)  # fmt: skip
FEW = tuple(SHOWN[at] for at in (0, 1, 3, 5, 7))  # on a terminal


def write_points_page(plan: ServePlan, table: Table, folder: Path) -> Path:
    """``index.html``. Equal tables give equal bytes."""
    serving, target = plan.first, folder / "index.html"
    served = [row for row in table.rows if not row["refused"]]
    keys = ("point", *serving.axes, "policy")
    context = {
        "model": serving.model.name, "system": serving.system.name, "points": len(plan.points),
        "policies": ", ".join(policy.name for policy in serving.policies),
        "headers": [*keys, *(header for _, header in SHOWN), "note"],
        "rows": [cells(row, keys) for row in ordered(table.rows)],
        "texts": len(keys), "refused": len(table.rows) - len(served),
        "plots": [_over(path, served, serving.axes) for path in serving.axes if _is_number(served, path)],
    }
    write_text(target, rendered("serving_points.html.j2", context))
    return target


def ordered(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(rows, key=_order)


def _order(row: Mapping[str, Any]) -> tuple:
    return (bool(row["refused"]), -(row["goodput_per_s"] or 0.0), row["point"], row["policy"])


def cells(row: Mapping[str, Any], keys: Sequence[str], shown: Sequence[tuple[str, str]] = SHOWN) -> list[str]:
    """Of a row: ``keys``, columns ``shown``, and why it was refused or is saturated."""
    values = ["–" if row[name] is None else f"{row[name]:,.3g}" for name, _ in shown]
    note = row["refused"] or ", ".join(row[key].partition(":")[0] for key in ("saturated", "unsteady") if row[key])
    return [*(str(row[key]) for key in keys), *values, note]


def _is_number(rows: Sequence[Mapping[str, Any]], path: str) -> bool:
    return len({row[path] for row in rows}) > 1 and all(isinstance(row[path], int | float) for row in rows)


def _over(path: str, rows: Sequence[Mapping[str, Any]], axes: Mapping[str, Any]) -> tuple[str, str]:
    """Goodput over an axis, a line for every policy and value of the other axes."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        others = [str(row[each]) for each in axes if each != path]
        lines.setdefault(", ".join([row["policy"], *others]), []).append((row[path], row["goodput_per_s"]))
    drawn = [Line(name, tuple(sorted(points))) for name, points in lines.items()]
    title = f"Requests a second within the limits, over {path}"
    return title, line_panel(drawn, path, "goodput", dots=True)
