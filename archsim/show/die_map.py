"""Figures of dies where they are, coloured by a metric, with the links between them and a slider over steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from archsim.show.plot_parts import Row
from archsim.show.plots import RAMP, Figure

MOST_NUMBERED = 100  # dies of a map that have their numbers written


class Metric(NamedTuple):
    """What a map of dies can show: a field of its rows, its label with the unit, and the ends of its colours."""

    field: str
    label: str
    low: float
    high: float
    format: str = ".0f"


@dataclass(frozen=True, kw_only=True)
class DieMap(Figure):
    """Dies where they are, coloured by one of ``metrics``, and the links between them. A slider goes through
    ``moments``.

    Rows have ``die``, ``x_at``, ``y_at``, the fields of the metrics, and the fields of the filters. ``links``: rows
    with ``x_at``, ``y_at``, ``x_to``, ``y_to``, ``busy`` in percent and ``tip``. ``dead``: places that are crossed
    out, rows with ``x_at``, ``y_at`` and ``tip``. ``moments``: rows with ``moment`` from 1, ``tip``, and the die
    (``x_at``, ``y_at``) and the link (``link_x``, ``link_y``, ``link_x_to``, ``link_y_to``) that are framed then.

    A click on a die chooses it for the timeline of layer-steps, and what is chosen there is what the map shows.

    Rows may have ``at``, a list over moments for each of some metrics; links ``at``, ``busy`` at each moment, and
    ``queue_at``, how many transfers waited for it; null where an engine does not measure it.
    """

    metrics: Sequence[Metric]
    links: Sequence[Row] = ()
    dead: Sequence[Row] = ()
    moments: Sequence[Row] = ()
    switches: Sequence[Row] = ()

    def apart(self) -> dict[str, Any]:
        return {"resolve": {"scale": {"color": "independent"}}}

    def _extent(self) -> tuple[float, float, float, float]:
        xs = [row[name] for row in (*self.rows, *self.dead, *self.switches) for name in ("x_at",)]
        ys = [row[name] for row in (*self.rows, *self.dead, *self.switches) for name in ("y_at",)]
        return min(xs) - 0.6, max(xs) + 0.6, min(ys) - 0.6, max(ys) + 0.6

    def ratio(self) -> float | None:
        left, right, top, bottom = self._extent()
        return (bottom - top) / (right - left)

    def left_px(self) -> float:
        return 8.0

    def datasets(self) -> dict[str, Sequence[Row]]:
        more = {"links": self.links, "dead": self.dead, "switches": self.switches, "moments": self.moments}
        return {"rows": self.rows} | {name: rows for name, rows in more.items() if rows}

    def params(self) -> list[dict[str, Any]]:
        names = [metric.field for metric in self.metrics]
        found: list[dict[str, Any]] = [
            {
                "name": "show",
                "value": names[0],
                "bind": {
                    "input": "select",
                    "options": names,
                    "labels": [metric.label for metric in self.metrics],
                    "name": "show ",
                },
            },
            {"name": "die", "value": None},
            {"name": "on_dark_from", "value": "--on-dark-from"},  # the shade from which its numbers change colour
        ]
        if self.moments:
            most = max(row["moment"] for row in self.moments)
            bind: dict[str, Any] = {
                "input": "range",
                "min": 0,
                "max": most,
                "step": 1,
                "name": "step (0: the whole run) ",
            }
            found.append({"name": "moment", "value": 0, "bind": bind})
        return found

    def layers(self) -> list[dict[str, Any]]:
        left, right, top, bottom = self._extent()
        plain = {"axis": None, "type": "quantitative"}
        x = {"field": "x_at", "scale": {"domain": [left, right], "nice": False}, **plain}
        y = {"field": "y_at", "scale": {"domain": [bottom, top], "nice": False}, **plain}
        ends = {metric.field: [metric.low, max(metric.high - metric.low, 1e-9)] for metric in self.metrics}
        formats = {metric.field: metric.format for metric in self.metrics}
        then = "moment > 0 && isValid(datum.at)"
        value = f"{then} && isValid(datum.at[show]) ? datum.at[show][moment - 1] : datum[show]"
        shade = [
            {"calculate": value if self.moments else "datum[show]", "as": "value"},
            {
                "calculate": f"clamp((datum.value - {json.dumps(ends)}[show][0]) / {json.dumps(ends)}[show][1], 0, 1)",
                "as": "shade",
            },
            {
                "calculate": f"datum.value == null ? '' : format(datum.value, {json.dumps(formats)}[show])",
                "as": "written",
            },
            *(
                {"calculate": f"datum.{at}_at {sign} 0.37", "as": f"{at}{end}"}
                for at in "xy"
                for sign, end in (("-", 0), ("+", 1))
            ),
        ]
        scale = {"domain": [0, 0.25, 0.5, 0.75, 1], "range": list(RAMP), "interpolate": "rgb"}
        layers: list[dict[str, Any]] = []
        chosen = [
            {"filter": f"f_{name} == null || datum[{json.dumps(name)}] == f_{name}"}
            for name in self.filters
            if len(self._values(name)) > 1
        ]
        if self.links:
            current = [
                {"calculate": f"{then} ? datum.at[moment - 1] : datum.busy", "as": "busy_now"},
                {
                    "calculate": f"{then} ? format(datum.busy_now, '.0f') + ' %' + "
                    "(datum.queue_at[moment - 1] == null ? '' : ', ' + format(datum.queue_at[moment - 1], '.1f') + "
                    "' transfers wait for it') : 'move the slider'",
                    "as": "now",
                },
            ]
            busy, tips = "busy", [{"field": "tip", "title": "link"}]
            if self.moments and any("at" in link for link in self.links):
                busy, tips = "busy_now", [*tips, {"field": "now", "title": "in this step"}]
            width = {
                "field": busy,
                "type": "quantitative",
                "scale": {"domain": [0, 100], "range": [1, 7]},
                "legend": None,
            }
            shown = {
                "field": busy,
                "type": "quantitative",
                "scale": {"domain": [0, 25, 50, 75, 100], "range": ["--idle", *RAMP[1:]], "interpolate": "rgb"},
                "legend": {"title": "link: busy, %", "values": [0, 50, 100], "gradientLength": 140},
            }
            hits = {
                "x": x,
                "y": y,
                "x2": {"field": "x_to"},
                "y2": {"field": "y_to"},
                "tooltip": tips,
            }
            layers.append(
                {
                    "data": {"name": "links"},
                    "transform": chosen + current if busy == "busy_now" else chosen,
                    "mark": {"type": "rule"},
                    "encoding": hits | {"color": shown, "strokeWidth": width},
                }
            )
        for name, mark in (("switches", "circle"), ("dead", "point")):
            if getattr(self, name):
                drawn: dict[str, Any] = {"type": mark, "size": 260, "color": "--soft"} | (
                    {"shape": "cross", "angle": 45} if name == "dead" else {}
                )
                layers.append(
                    {
                        "data": {"name": name},
                        "mark": drawn,
                        "encoding": {"x": x, "y": y, "tooltip": [{"field": "tip", "title": "node"}]},
                    }
                )
        box = {
            "x": {"field": "x0", **plain},
            "x2": {"field": "x1"},
            "y": {"field": "y0", **plain},
            "y2": {"field": "y1"},
        }
        # The ends of the colours follow the quantity that is shown; the list above the map names it.
        at_end = f"{json.dumps(ends)}[show][0] + datum.value * {json.dumps(ends)}[show][1]"
        written = f"format({at_end}, {json.dumps(formats)}[show])"
        key = {"title": "die: what is shown", "values": [0, 0.5, 1], "labelExpr": written, "gradientLength": 140}
        colour = {"field": "shade", "type": "quantitative", "scale": scale, "legend": key}
        is_chosen = "die != null && datum.die == die"
        chosen_die = {
            "stroke": {"condition": {"test": is_chosen, "value": "--link"}, "value": "--line"},
            "strokeWidth": {"condition": {"test": is_chosen, "value": 3}, "value": 1},
        }
        layers.append(
            {
                "transform": shade,
                "mark": {"type": "rect", "cornerRadius": 2, "cursor": "pointer"},
                "encoding": box | {"color": colour, "tooltip": self.tooltip()} | chosen_die,
            }
        )
        if len({(row["x_at"], row["y_at"]) for row in self.rows}) <= 400:
            test = "datum.shade > toNumber(on_dark_from)"
            dark = {"condition": {"test": test, "value": "--on-dark"}, "value": "--on-light"}
            layers.append(
                {
                    "transform": shade,
                    "mark": {"type": "text", "fontSize": 11},
                    "encoding": {"x": x, "y": y, "text": {"field": "written"}, "color": dark},
                }
            )
        if len({(row["x_at"], row["y_at"]) for row in self.rows}) <= MOST_NUMBERED:
            corner = {"type": "text", "fontSize": 8, "align": "left", "baseline": "top", "dx": 2, "dy": 2}
            at_corner = {"x": x | {"field": "x0"}, "y": y | {"field": "y0"}, "text": {"field": "die"}, "color": dark}
            layers.append({"transform": shade, "mark": corner, "encoding": at_corner})
        if self.moments:
            now = {"data": {"name": "moments"}, "transform": [*chosen, {"filter": "datum.moment == moment"}]}
            framed = [
                {"calculate": f"datum.{at}_at {sign} 0.42", "as": f"{at}{end}"}
                for at in "xy"
                for sign, end in (("-", 0), ("+", 1))
            ]
            known = [{"filter": "isValid(datum.x_at)"}, *framed]
            frame = {"type": "rect", "filled": False, "stroke": "--link", "strokeWidth": 3}
            layers.append(
                {"data": now["data"], "transform": [*now["transform"], *known], "mark": frame, "encoding": box}
            )
            at_link: dict[str, Any] = {
                "x": x | {"field": "link_x"},
                "y": y | {"field": "link_y"},
                "x2": {"field": "link_x_to"},
            }
            rule = {"type": "rule", "color": "--link", "strokeWidth": 6}
            known = [{"filter": "isValid(datum.link_x)"}]
            layers.append(
                {
                    "data": now["data"],
                    "transform": [*now["transform"], *known],
                    "mark": rule,
                    "encoding": at_link | {"y2": {"field": "link_y_to"}},
                }
            )
            words = {"type": "text", "align": "left", "color": "--ink", "baseline": "bottom", "fontSize": 12}
            at = {"x": {"value": 2}, "y": {"value": -4}, "text": {"field": "tip"}}
            layers.append(now | {"mark": words, "encoding": at})
        return layers
