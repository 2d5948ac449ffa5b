"""Parts of figures: parameters, packed rows, scripts, colours, fonts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

Row = Mapping[str, Any]
TEMPLATES, LIBRARY = Path(__file__).parent / "templates", Path(__file__).parent / "vega"
SCRIPTS = ("vega.min.js", "vega-lite.min.js", "vega-embed.min.js")


def select_param(name: str, values: Sequence[Any], chosen: Any) -> dict[str, Any]:
    labels = [f"{value:,}" if isinstance(value, int) else str(value) for value in values]
    options: list[Any] = list(values)
    if chosen is None:
        options, labels = [None, *options], ["all", *labels]
    bind = {"input": "select", "options": options, "labels": labels, "name": f"{name.replace('_', ' ')} "}
    return {"name": f"f_{name}", "value": chosen, "bind": bind}


def as_vega_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.15g}"
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def packed_rows(rows: Iterable[Row]) -> dict[str, list[Any]]:
    """Rows as pages store them: the names of columns once."""
    every = list(rows)
    columns = list(dict.fromkeys(name for row in every for name in row))
    return {"columns": columns, "rows": [[six_digits(row.get(name)) for name in columns] for row in every]}


def six_digits(value: Any) -> Any:
    """Six significant digits are more than a figure shows."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        value = float(f"{value:.6g}")
        return int(value) if value == int(value) and abs(value) < 1e15 else value
    return value.item() if hasattr(value, "item") else value


def named_by(question: str) -> str:
    """The name of a figure that has none of its own: ``what-does-hbm-read-and-write``."""
    return re.sub(r"[^a-z0-9]+", "-", question.partition("?")[0].lower()).strip("-")


@cache
def scripts() -> str:
    """What a page with figures needs at its end: the library, and what draws the figures."""
    files = [*(LIBRARY / name for name in SCRIPTS), TEMPLATES / "plots.js"]
    library, own = (
        [file.read_text(encoding="utf-8").strip() for file in files[:-1]],
        files[-1].read_text(encoding="utf-8"),
    )
    once = "\n".join(f"<script>{text}</script>" for text in library)
    return f"{once}\n<script>{own}</script>"


@cache
def colours() -> Mapping[str, str]:
    """Name of a CSS variable → #rrggbb (or a number) of the light pages."""
    named: dict[str, str] = {}
    css = (TEMPLATES / "page.css").read_text(encoding="utf-8")
    for name, value in re.findall(r"(--[\w-]+): (#[0-9a-f]{6}|0\.\d+);", css):
        named.setdefault(name, value)  # the first are those of the light scheme
    return MappingProxyType(named)


_FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
CONFIG = MappingProxyType(
    {
        "font": _FONT,
        "view": {"stroke": None},
        "axis": {
            "labelColor": "--ink",
            "titleColor": "--soft",
            "gridColor": "--grid",
            "domainColor": "--line",
            "tickColor": "--line",
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titleFontWeight": 400,
        },
        "legend": {
            "orient": "top",
            "direction": "horizontal",
            "labelColor": "--ink",
            "titleColor": "--soft",
            "labelFontSize": 12,
            "titleFontSize": 11,
            "titleFontWeight": 400,
            "labelLimit": 0,
            "symbolType": "square",
            "titleLimit": 0,
            "gradientLength": 180,
        },
        "header": {"labelColor": "--ink", "labelFontSize": 12},
        "text": {"fontSize": 11},
    }
)
