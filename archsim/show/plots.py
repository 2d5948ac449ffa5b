"""Figures. Each is one question, its rows, and how they are drawn. It looks the same on pages, in notebooks and in
print.

A figure is data. `Figure.vega` says it to Vega-Lite, which draws it everywhere: hovering tells numbers, the fields of
``filters`` choose what is shown, a click on a mark or a legend highlights what belongs to it in every figure of the
page, and a drawing of points zooms.

Colours are names of CSS variables (``--p2``). The page gives them their values, light or dark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from archsim.show.plot_parts import (
    CONFIG,
    Row,
    as_vega_text,
    colours,
    named_by,
    packed_rows,
    scripts,
    select_param,
    six_digits,
)
from archsim.show.printed_figures import FONT_PT, draw
from archsim.show.units import significant

RAMP = ("--u0", "--u1", "--u2", "--u3", "--u4")
KINDS = ("--p0", "--p1", "--p2", "--p3", "--p4", "--p5", "--p6", "--p7", "--p8")
CHARACTER = 6.6  # mean width of a character of 11 px text, in px; labels are laid out with it
MOST_NUMBERS = 60  # rows of the table that stands where a browser runs no scripts


class PlotAxis(NamedTuple):
    """A field of the rows and its title with the unit. ``format``: of d3. ``low``, ``high``: ends, where given."""

    field: str
    title: str
    format: str = ""
    log: bool = False
    low: float | None = None
    high: float | None = None
    ticks: tuple[float, ...] = ()


class Colours(NamedTuple):
    """A field of the rows and the colour of each of its values, in the order of the legend."""

    field: str
    of: Mapping[str, str]
    title: str = ""


def _cell(value: Any) -> str:
    """A value in the table of a figure; of a number, digits that a reader needs."""
    return significant(value, 4) if isinstance(value, float) else "" if value is None else str(value)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What every figure has. ``question``: its heading. ``panel``: a field; each of its values has a panel. ``name``:
    by which it is asked for (default: made of the question).

    ``filters``: field → the value that is chosen at first, None for all. ``tips``: (field, title) shown on hovering.
    """

    question: str
    rows: Sequence[Row]
    x: PlotAxis
    colours: Colours | None = None
    panel: str = ""
    filters: Mapping[str, Any] = field(default_factory=dict)
    tips: Sequence[tuple[str, str]] = ()
    least_px: int = 330  # width below which panels stand in fewer columns
    name: str = ""

    # ---- Vega-Lite

    def layers(self) -> list[dict[str, Any]]:
        """The layers of a panel. Every kind of figure has its own."""
        raise NotImplementedError

    def height(self) -> Any:
        return 260

    def left_px(self) -> float:
        return 58.0

    def names_px(self, field: str, most: float = 240.0) -> float:
        """Room for the names that rows have in a field, which stand on the left of a panel."""
        return min(14 + CHARACTER * max((len(str(row[field])) for row in self.rows), default=0), most)

    def datasets(self) -> dict[str, Sequence[Row]]:
        return {"rows": self.rows}

    def params(self) -> list[dict[str, Any]]:
        """Further parameters, as of Vega-Lite."""
        return []

    def vega(self, compact: bool = False) -> dict[str, Any]:
        """The figure as a specification of Vega-Lite 6; ``compact``: with rows as pages store them."""
        shown = {name: value for name, value in self.filters.items() if len(self._values(name)) > 1}
        params = [select_param(name, self._values(name), value) for name, value in shown.items()] + self.params()
        inner: dict[str, Any] = {"width": 420, "height": self.height(), "layer": self.layers()} | self.apart()
        if self.colours:
            params.append(self._highlight())
        panels = len(self._values(self.panel)) if self.panel else 1
        spec: dict[str, Any] = {
            "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
            "description": self.spoken,
            "background": None,
            "config": {**CONFIG},
            "params": params,
            "datasets": {name: packed_rows(rows) if compact else list(rows) for name, rows in self.datasets().items()},
            "usermeta": {
                "name": self.name or named_by(self.question),
                "panels": panels,
                "least": self.least_px,
                "left": round(self.left_px()),
                "entry": round(30 + CHARACTER * 1.1 * max(map(len, map(str, self.colours.of)), default=0))
                if self.colours
                else 125,
                "colour": self.colours.field if self.colours else None,
                "ratio": self.ratio(),
                "filters": list(shown),
                **self.plan(),
            },
            "data": {"name": "rows"},
        }
        chosen = [{"filter": f"f_{name} == null || datum[{json.dumps(name)}] == f_{name}"} for name in shown]
        if panels > 1:
            header = {"title": None, "labelAnchor": "start", "labelFontWeight": 600, "labelLimit": 0}
            spec |= {
                "transform": chosen,
                "facet": {"field": self.panel, "type": "nominal", "sort": self._values(self.panel), "header": header},
                "columns": 1,
                "bounds": "flush",
                "spacing": {"column": round(self.left_px()) + 24, "row": 44},
                "spec": inner,
                "resolve": {"scale": dict.fromkeys(self.own_scales_of(), "independent")},
            }
        else:
            spec |= inner | {"transform": chosen}
        return spec

    def _highlight(self) -> dict[str, Any]:
        """What a click on a mark or on the legend highlights, and for the keyboard a list of the same."""
        assert self.colours is not None
        field, values = self.colours.field, self._values(self.colours.field)
        known = [value for value in self.colours.of if value in values]
        param: dict[str, Any] = {"name": f"pick_{field}", "value": None}
        if len(known) < 2:
            return param
        labels = ["nothing", *map(str, known)]
        return param | {"bind": {"input": "select", "options": [None, *known], "labels": labels, "name": "highlight "}}

    def plan(self) -> dict[str, Any]:
        """What else ``archsim/show/templates/plots.js`` needs to know."""
        return {}

    def apart(self) -> dict[str, Any]:
        """What the layers of a panel do not share."""
        return {}

    def own_scales_of(self) -> tuple[str, ...]:
        return ()

    def ratio(self) -> float | None:
        """Height over width of a panel, where both hang together."""
        return None

    @property
    def spoken(self) -> str:
        panels = ", ".join(map(str, self._values(self.panel))) if self.panel else ""
        return f"{self.question} {self.x.title}{f': {panels}' if panels else ''}"

    def _values(self, field: str) -> list[Any]:
        return list(dict.fromkeys(row[field] for row in self.rows if row.get(field) is not None)) if field else []

    def colour(self) -> dict[str, Any]:
        """The encodings of colour, and of what is highlighted."""
        if not self.colours:
            return {"color": {"value": KINDS[2]}}
        known = {name: value for name, value in self.colours.of.items() if name in self._values(self.colours.field)}
        field = self.colours.field
        return {
            "color": {
                "field": field,
                "type": "nominal",
                "sort": None,
                "scale": {"domain": list(known), "range": list(known.values())},
                "legend": {"title": self.colours.title or None} if len(known) > 1 else None,
            },
            "opacity": {
                "condition": {
                    "test": f"pick_{field} == null || datum[{json.dumps(field)}] == pick_{field}",
                    "value": 1,
                },
                "value": 0.18,
            },
        }

    def tooltip(self) -> list[dict[str, str]]:
        return [{"field": field, "title": title, "type": "nominal"} for field, title in self.tips]

    def scale(self, axis: PlotAxis, room: float = 1.0, zero: bool = True, ends: Sequence[str] = ()) -> dict[str, Any]:
        """Encoding of an axis; ``room``: beyond the largest, ×; ``zero``: from 0; ``ends``: fields of intervals."""
        fields = (axis.field, *ends)
        values = [row[field] for row in self.rows for field in fields if row.get(field) is not None]
        scale: dict[str, Any] = {"type": "log", "nice": False} if axis.log else {"zero": zero, "nice": room == 1}
        if axis.low is not None or (axis.log and values):
            scale["domainMin"] = axis.low if axis.low is not None else min(values) / (1.0 if room == 1 else 1.1)
        if axis.high is not None or (values and room != 1):
            scale["domainMax"] = axis.high if axis.high is not None else max(values) * room
        ticks: dict[str, Any] = {"title": axis.title, "tickCount": 6} | ({"format": axis.format} if axis.format else {})
        ticks |= {"values": list(axis.ticks)} if axis.ticks else {}
        return {"field": axis.field, "type": "quantitative", "scale": scale, "axis": ticks}

    # ---- pages and notebooks

    def html(self) -> str:
        """A ``<figure>`` for a page with `scripts`; without scripts it is a table of the numbers."""
        written = json.dumps(self.vega(compact=True), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return (
            f'<figure class="plot" data-name="{self.name}" aria-label="{escape(self.question)}">'
            f'<figcaption>{escape(self.question)}</figcaption><div class="view"></div>'
            f'<script type="application/json">{written.replace("<", chr(92) + "u003c")}</script>'
            f"<noscript>{self._numbers()}</noscript></figure>"
        )

    def _repr_html_(self) -> str:
        """The figure for a notebook, with all the code that draws it, so that it needs no network."""
        css = "".join(f"{name}:{value};" for name, value in colours().items())
        return f"<style>.archsim{{{css}}}</style><div class='archsim'>{self.html()}</div>{scripts()}"

    def _numbers(self) -> str:
        fields = [(field, title) for field, title in self.tips if any(row.get(field) is not None for row in self.rows)]
        if not fields:
            return ""
        head = "".join(f"<th>{escape(title)}</th>" for _, title in fields)
        every = list(dict.fromkeys(tuple(_cell(row.get(field)) for field, _ in fields) for row in self.rows))
        rows = ("".join(f"<td>{escape(cell)}</td>" for cell in cells) for cells in every[:MOST_NUMBERS])
        body, left = "".join(f"<tr>{cells}</tr>" for cells in rows), len(every) - MOST_NUMBERS
        more = f"<p>{left:,} further rows are in the files of this folder.</p>" if left > 0 else ""
        return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}'

    def save(self, out: str | Path, columns: int | None = None, font_pt: float = FONT_PT) -> Path:
        """Draw it for print; see `archsim.show.printed_figures.draw`."""
        return draw(self.vega(), out, columns, font_pt)


class Follows(NamedTuple):
    """How bars show what is chosen in the timeline of layer-steps: the sums of its cells (`MatrixFigure.sums`) that the
    ``field`` of a row names, in ``worth`` of the axis; the mean of an iteration, or of all chosen iterations together.
    ``units``: of labels, the largest first.
    """

    field: str
    worth: float
    units: Sequence[tuple[float, str]]
    mean: bool


@dataclass(frozen=True, kw_only=True)
class Bars(Figure):
    """Horizontal bars. ``y``: the field that names a bar. Rows with the same name are stacked in their order.

    ``label``: a field with the text at the end of a bar (of stacked bars: of its last row). ``low`` and ``high``:
    fields of the ends of a whisker. ``reference``: a value with a line. ``begin``: a field; bars begin there, not at 0.
    ``follows``: how the bars show a part of the timeline alone.
    """

    y: str
    follows: Follows | None = None
    label: str = "label"
    low: str = ""
    high: str = ""
    begin: str = ""
    reference: float | None = None

    def own_scales_of(self) -> tuple[str, ...]:
        return ("y",)

    def height(self) -> Any:
        return {"step": 18}

    def left_px(self) -> float:
        return self.names_px(self.y)

    def plan(self) -> dict[str, Any]:
        return {"follows": self.follows._asdict()} if self.follows else {}

    def params(self) -> list[dict[str, Any]]:
        return [{"name": "part", "value": 1}] if self.follows else []  # of the longest bar, where fewer steps are shown

    def _totals(self) -> dict[tuple[Any, ...], float]:
        totals: dict[tuple[Any, ...], float] = {}
        for row in self.rows:
            totals[self._key(row)] = totals.get(self._key(row), 0.0) + (row.get(self.x.field) or 0.0)
        return totals

    def _key(self, row: Row) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in (self.y, self.panel, *self.filters) if name)

    def datasets(self) -> dict[str, Sequence[Row]]:
        """The rows, with ``end``, where the label stands; of stacked bars, the last has it."""
        if self.begin:
            ends = (self.x.field, self.high, self.begin)
            return {"rows": [{**row, "end": max(row.get(name) or 0.0 for name in ends)} for row in self.rows]}
        totals, last = self._totals(), {self._key(row): at for at, row in enumerate(self.rows)}
        return {
            "rows": [
                {**row, "end": max(totals[self._key(row)], row.get(self.high) or 0.0)}
                if last[self._key(row)] == at
                else row
                for at, row in enumerate(self.rows)
            ]
        }

    def _end_of_axis(self) -> Any:
        """Of the bars that are chosen, with room for their labels: an expression that follows the filters."""
        rows = self.datasets()["rows"]
        shown = [name for name in self.filters if len(self._values(name)) > 1]
        most: dict[str, float] = {}
        for row in rows:
            values = [(as_vega_text(row.get(name)), as_vega_text(None)) for name in shown]
            for chosen in product(*values):
                key = "|".join(chosen)
                most[key] = max(most.get(key, 0.0), row.get("end") or 0.0)
        ends = {key: six_digits(1.22 * (value or 1.0)) for key, value in most.items()}
        if not shown and not self.follows:
            return ends.get("", 1.22)
        chosen_now = " + '|' + ".join(f"toString(f_{name})" for name in shown) or "''"
        return {"expr": f"({json.dumps(ends)}[{chosen_now}] || 1)" + (" * part" if self.follows else "")}

    def layers(self) -> list[dict[str, Any]]:
        name = {
            "field": self.y,
            "type": "nominal",
            "sort": None,
            "axis": {"title": None, "labelLimit": self.left_px(), "ticks": False, "domain": False},
        }
        x = self.scale(self.x)
        if self.x.high is None:
            x["scale"] |= {"nice": False, "domainMax": self._end_of_axis()}
        if self.begin and self.x.log:
            reached = [row[name] for row in self.rows for name in (self.begin, self.x.field) if row.get(name)]
            low, high = min(reached, default=1.0), max(reached, default=1.0)
            room = (high / low) ** 0.45 * 1.02  # of a logarithmic axis, for the longest label
            x["scale"] |= {"domainMin": low / 1.01, "domainMax": high * room}
        if not self.begin:
            x |= {"stack": None if self.x.log else "zero"}
        bar = {"y": name, "x": x, **self.colour(), "tooltip": self.tooltip()}
        if self.begin:
            bar["x2"] = {"field": self.begin}
        layers: list[dict[str, Any]] = [{"mark": {"type": "bar", "cursor": "pointer"}, "encoding": bar}]
        if self.low:
            rule = {"type": "errorbar", "ticks": {"size": 8, "color": "--ink"}, "rule": {"color": "--ink"}}
            both: dict[str, Any] = {
                "y": name,
                "x": {"field": self.low, "type": "quantitative", "axis": {"title": self.x.title}},  # as that of bars
                "x2": {"field": self.high},
            }
            layers.append({"mark": rule, "encoding": both})
        if self.reference is not None:
            layers.append(
                {
                    "mark": {"type": "rule", "strokeDash": [4, 3], "color": "--soft"},
                    "encoding": {"x": {"datum": self.reference}},
                }
            )
        text = {"y": name, "x": {"field": "end", "type": "quantitative"}, "text": {"field": self.label}}
        halo: dict[str, Any] = {
            "stroke": "--page",
            "strokeWidth": 4,
            "strokeJoin": "round",
        }  # no line strikes through a label
        texts: list[dict[str, Any]] = [
            {
                "transform": [{"filter": "isValid(datum.end)"}],
                "mark": {"type": "text", "align": "left", "dx": 5, "color": "--ink", "aria": not under} | under,
                "encoding": text,
            }
            for under in (halo, {})
        ]
        return [*layers, *texts]


@dataclass(frozen=True, kw_only=True)
class Points(Figure):
    """Points, or with ``lines`` lines, of one or more values of the colour. ``shape``: a field. ``low``, ``high``:
    fields of the ends of an upright whisker, or of a band along a line. ``curves``: rows of lines in the
    background, with the fields of both axes and ``line``. ``label``: a field with the text beside a point.
    ``dots``: marks on lines. ``named``: a field of names, which takes the place of ``y``. ``own_scales``: each
    panel has axes of its own.
    """

    y: PlotAxis
    lines: bool = False
    dots: bool = False
    shape: str = ""
    low: str = ""
    high: str = ""
    label: str = ""
    curves: Sequence[Row] = ()
    size: int = 46
    zero: bool = True
    named: str = ""
    own_scales: bool = False

    def left_px(self) -> float:
        if not self.named:
            return 64.0
        return self.names_px(self.named, 300.0)

    def height(self) -> Any:
        return {"step": 22} if self.named else 300

    def own_scales_of(self) -> tuple[str, ...]:
        return ("x", "y") if self.own_scales else ()

    def datasets(self) -> dict[str, Sequence[Row]]:
        return {"rows": self.rows} | ({"curves": self.curves} if self.curves else {})

    def layers(self) -> list[dict[str, Any]]:
        every = replace(self, rows=[*self.rows, *self.curves])
        x = every.scale(self.x, zero=self.zero, room=1.06 if self.x.log else 1.0)
        if self.named:
            names = {"title": None, "labelLimit": self.left_px(), "ticks": False, "domain": False, "grid": True}
            y: dict[str, Any] = {"field": self.named, "type": "nominal", "sort": None, "axis": names}
        else:
            ends = (self.low, self.high) if self.low else ()
            y = every.scale(self.y, zero=self.zero, room=1.06 if self.y.log else 1.0, ends=ends)
        if self.own_scales:
            for axis in (x, y):
                axis["scale"] = {name: value for name, value in axis["scale"].items() if not name.startswith("domain")}
        place = {"x": x, "y": y}
        layers: list[dict[str, Any]] = []
        zoom = {
            "name": "zoom",
            "bind": "scales",
            "select": {
                "type": "interval",
                "zoom": "wheel![event.shiftKey]",
                "translate": "[pointerdown, window:pointerup] > window:pointermove!",
            },
        }
        if self.curves:
            curve = place | {"detail": {"field": "line"}, "order": {"field": self.x.field}}
            mark = {"type": "line", "color": "--soft", "strokeWidth": 1.4, "clip": True}
            layers.append({"data": {"name": "curves"}, "mark": mark, "encoding": curve})
        if self.low:
            rule = {
                "x": x,
                "y": (y if self.lines else {"type": "quantitative"}) | {"field": self.low},
                "y2": {"field": self.high},
                **self.colour(),
            }
            band = {"type": "area", "fillOpacity": 0.16} if self.lines else {"type": "rule"}
            layers.append({"mark": {**band, "clip": True}, "encoding": rule})
        if self.lines:
            line = {"type": "line", "clip": True, "strokeWidth": 2, "interpolate": "linear"}
            layers.append({"mark": line, "encoding": place | self.colour() | {"order": {"field": self.x.field}}})
        if not self.lines or self.dots:
            shape = {"shape": {"field": self.shape, "type": "nominal", "legend": {"title": None}}} if self.shape else {}
            mark = {"type": "point", "filled": True, "size": self.size, "clip": True, "cursor": "pointer"}
            layers.append({"mark": mark, "encoding": place | self.colour() | shape | {"tooltip": self.tooltip()}})
        elif self.tips:  # to hover over a line
            mark = {"type": "point", "filled": True, "size": 60, "clip": True, "opacity": 0}
            layers.append({"mark": mark, "encoding": place | {"tooltip": self.tooltip()}})
        if self.label:
            mark = {"type": "text", "align": "left", "dx": 6, "dy": -5, "color": "--ink", "clip": True}
            layers.append({"mark": mark, "encoding": place | {"text": {"field": self.label}}})
        if not self.named:
            layers[0]["params"] = [zoom]
        return layers


@dataclass(frozen=True, kw_only=True)
class Ranges(Figure):
    """For each ``y`` a band from ``low`` to ``high``, a tick at ``x``, and a point at ``best``, where given."""

    y: str
    low: str
    high: str
    best: str = ""

    def own_scales_of(self) -> tuple[str, ...]:
        return ("y",)

    def height(self) -> Any:
        return {"step": 22}

    def left_px(self) -> float:
        return self.names_px(self.y)

    def layers(self) -> list[dict[str, Any]]:
        ends = [
            row[name]
            for row in self.rows
            for name in (self.low, self.high, self.best)
            if name and row.get(name) is not None
        ]
        left = self.left_px()
        name = {
            "field": self.y,
            "type": "nominal",
            "sort": None,
            "axis": {"title": None, "labelLimit": left, "ticks": False, "domain": False},
        }
        low = self.x.low if self.x.low is not None else (min(ends, default=1.0) / 1.1 if self.x.log else None)
        x = self.scale(
            self.x._replace(low=low, high=self.x.high or max(ends, default=1.0) * (1.1 if self.x.log else 1.04)),
            zero=self.x.low is None,
        )
        band = {"y": name, "x": x | {"field": self.low}, "x2": {"field": self.high}, "tooltip": self.tooltip()}
        layers: list[dict[str, Any]] = [
            {"mark": {"type": "bar", "size": 10}, "encoding": band | self.colour()},
            {
                "mark": {"type": "tick", "size": 16, "thickness": 2.5, "color": "--ink"},
                "encoding": {"y": name, "x": x, "tooltip": self.tooltip()},
            },
        ]
        if self.best:
            point = {"y": name, "x": x | {"field": self.best}, "tooltip": self.tooltip()}
            layers.append({"mark": {"type": "point", "filled": True, "size": 42, "color": "--p4"}, "encoding": point})
        return layers


@dataclass(frozen=True, kw_only=True)
class MatrixFigure(Figure):
    """Cells of a grid, coloured by ``value``. ``square``: cells are as high as wide; else all rows are ``tall_px``.

    ``sums``: of a timeline of layer-steps: what the lists in this field of a cell count, by the field of `Follows`.
    Pressing on a cell and pulling chooses its iterations, and a click one layer-step, which the map and `Follows` show.
    """

    y: PlotAxis
    value: PlotAxis
    sums: Mapping[str, Sequence[str]] = field(default_factory=dict)
    square: bool = False
    tall_px: int = 240

    def plan(self) -> dict[str, Any]:
        return {"sums": {name: list(of) for name, of in self.sums.items()}} if self.sums else {}

    def params(self) -> list[dict[str, Any]]:
        return [{"name": "span", "value": None}, {"name": "die", "value": None}] if self.sums else []

    def ratio(self) -> float | None:
        across, down = (len(self._values(axis.field)) for axis in (self.x, self.y))
        return down / max(across, 1) if self.square else None

    def height(self) -> Any:
        return self.tall_px

    def left_px(self) -> float:
        return 62.0

    def layers(self) -> list[dict[str, Any]]:
        place = {
            name: {
                "field": axis.field,
                "type": "ordinal",
                "axis": {"title": axis.title, "labelOverlap": True, "labelAngle": 0, "ticks": False},
            }
            for name, axis in (("x", self.x), ("y", self.y))
        }
        values = [row[self.value.field] for row in self.rows if row.get(self.value.field)]
        scale: dict[str, Any] = {"range": list(RAMP), "interpolate": "rgb"}
        if self.value.log and values:
            scale |= {"type": "log", "domain": [max(values) / 1e3, max(values)], "clamp": True}
        elif self.value.high is not None:
            scale["domain"] = [self.value.low or 0, self.value.high]
        colour = {
            "field": self.value.field,
            "type": "quantitative",
            "scale": scale,
            "legend": {"title": self.value.title} | ({"format": self.value.format} if self.value.format else {}),
        }
        encoding = place | {"color": colour, "tooltip": self.tooltip()}
        if self.sums:
            x, y = self.x.field, self.y.field
            within = f"datum.{x} >= span.from && datum.{x} <= span.to && (span.{y} == null || span.{y} == datum.{y})"
            busiest = "isValid(datum.die) && indexof(datum.die, die + ',') == 0"
            test = f"(span == null || {within}) && (die == null || {busiest})"
            encoding |= {"opacity": {"condition": {"test": test, "value": 1}, "value": 0.18}}
        return [{"mark": {"type": "rect", "cursor": "pointer"}, "encoding": encoding}]


def waterfall(
    question: str,
    changes: Sequence[tuple[str, float, str, Row]],
    x: PlotAxis,
    *,
    total: tuple[str, str],
    first: tuple[str, float] | None = None,
    tips: Sequence[tuple[str, str]] = (),
    **more: Any,
) -> Bars:
    """Bars that float: each of ``changes`` (name, change, colour, further fields) begins where the one before ends.

    ``first``: name and value of a bar from 0 in front; ``total``: name of the last bar, and the format of labels.
    """
    rows: list[dict[str, Any]] = []
    at = 0.0
    if first:
        rows.append(
            {"name": first[0], "begin": 0.0, x.field: first[1], "kind": "total", "label": format(first[1], total[1])}
        )
        at = first[1]
    for name, change, colour, fields in changes:
        label = format(change, f"+{total[1]}" if first else total[1]).replace("-", "−")
        rows.append({"name": name, "begin": at, x.field: at + change, "kind": colour, "label": label, **fields})
        at += change
    rows.append({"name": total[0], "begin": 0.0, x.field: at, "kind": "total", "label": format(at, total[1])})
    kinds = {row["kind"]: row["kind"] if row["kind"].startswith("--") else "--dec" for row in rows}
    return _Waterfall(
        question=question, rows=rows, x=x, y="name", begin="begin", colours=Colours("kind", kinds),
        tips=tips or (("name", "part"), ("label", x.title)), **more,
    )  # fmt: skip


class _Waterfall(Bars):
    """Bars with the colours of their parts, which need no legend."""

    def colour(self) -> dict[str, Any]:
        found = super().colour()
        return found | {"color": found["color"] | {"legend": None}}
