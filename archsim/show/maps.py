"""The map of a system of any topology: what every die and link does over a run. Dies stand where the fabric has them,
else in a row per group, GPUs in the frame of their node. Links beyond neighbours run in the gaps of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, hypot, sqrt
from types import MappingProxyType
from typing import Any, NamedTuple

from archsim.base.sums import sum
from archsim.runs.results import Frames, Row
from archsim.show import plots, units
from archsim.show.die_map import DieMap, Metric
from archsim.show.layout import arrange

MOST_LINKS = 1200  # of a run; of more, only those between neighbours are drawn
LANE, GUTTER = 0.07, 0.45  # distance of a link from the line between two dies, in distances of dies
_NO_AXIS = plots.PlotAxis("die", "")
LOADS = ("prefill", "decode")
BOTH_WAYS = "both ways"  # in the column direction


class Idle(NamedTuple):
    """A die of a wafer that the machine does not use: its number as made, its place, and why (``dead``, ``spare``)."""

    site: int
    x: int
    y: int
    why: str


class MapMoment(NamedTuple):
    """A step: its sentence, its most loaded die and its busiest link (from, to), where they are known; and the first
    and the last of the iterations that it stands for.
    """

    tip: str
    die: int | None
    link: tuple[int, int] | None
    first: int = 0
    last: int = 0


class MappedRun(NamedTuple):
    """A run on a map: the fields that choose it, its dies and links (rows of these tables of results; the ``site`` of a
    die only of a machine that is not perfect), its steps, and what dies and links did then.
    """

    chosen: Mapping[str, Any]
    dies: Sequence[Row]
    links: Sequence[Row]
    moments: Sequence[MapMoment] = ()
    frames: Frames = MappingProxyType({})


def die_map(
    question: str,
    runs: Sequence[MappedRun],
    width: int | None = None,
    nodes: int | None = None,
    idle: Sequence[Idle] = (),
) -> DieMap:
    """The map of one system for some runs, chosen by the fields in which they differ. width: dies per row where dies
    have no coordinates (None: square); nodes: of a cluster of GPUs behind switches; idle: dies that are not used.
    """
    rows: list[dict[str, Any]] = []
    links: list[dict[str, Any]] = []
    moments: list[dict[str, Any]] = []
    nodes_at: dict[tuple[float, float], dict[str, Any]] = {}
    for run in runs:
        dies, own = run.dies, run.links
        if dies[0]["x"] is None:
            if nodes:
                own_rows = _cluster_rows(run, nodes)
                rows += own_rows
                moments += _moment_rows(run, own_rows, ())
                continue
            dies, own = arrange(dies, own, width or ceil(sqrt(len(dies))))
            idle = ()
        own_rows = [dict(run.chosen) | row | _at_moments(run, at) for at, row in enumerate(_die_rows(dies))]
        rows += own_rows
        moments += _moment_rows(run, own_rows, own)
        there = {(die["x"], die["y"]) for die in dies} | {(each.x, each.y) for each in idle}
        every = len(own) <= MOST_LINKS
        for at, link in enumerate(own):
            if link["src_x"] is None:
                continue
            if every or abs(link["dst_x"] - link["src_x"]) + abs(link["dst_y"] - link["src_y"]) == 1:
                links.append(dict(run.chosen) | _link_row(link) | _link_at_moments(run, at))
            for end in ("src", "dst"):
                place = link[f"{end}_x"], link[f"{end}_y"]
                if place not in there:
                    nodes_at[place] = {"x_at": place[0], "y_at": place[1], "tip": f"node {link[end]}, not a die"}
    dead = [{"x_at": each.x, "y_at": each.y, "tip": f"die {each.site}: {each.why}"} for each in idle]
    found = _metrics(rows)
    tips = [("die", "die"), *((each.field, each.label) for each in found), *_identical(rows), *_EXTRA_TIPS]
    return DieMap(
        name="dies", question=question, rows=rows, x=_NO_AXIS, metrics=found, links=links, moments=moments, dead=dead,
        switches=list(nodes_at.values()), filters=dict(runs[0].chosen) if runs else {},
        tips=[(field, title) for field, title in tips if any(field in row for row in rows)],
    )  # fmt: skip


def _at_moments(run: MappedRun, die: int) -> dict[str, Any]:
    """What a die did at each moment, in the units of `_METRICS`, and how many stages waited for its HBM on average."""
    frames = run.frames
    if not frames:
        return {}
    loads = [tokens[die] * len(tokens) / (sum(tokens) or 1) for tokens in frames["tokens"]]
    found = {"load": [float(f"{load:.3g}") for load in loads]}
    found |= {name: [float(f"{100 * each[die]:.3g}") for each in frames[name]] for name in ("hbm", "array")}
    found["queue"] = [each[die] for each in frames["queue"]]
    whole = sum(frames["time_ns"])
    known = None not in found["queue"]  # an engine may not measure what waits
    mean = sum(n * ns for n, ns in zip(found["queue"], frames["time_ns"], strict=True)) / whole if known else None
    return {"queue": mean, "at": found}


def _link_at_moments(run: MappedRun, link: int) -> dict[str, Any]:
    if not run.frames:
        return {}
    busy = [float(f"{100 * each[link]:.3g}") for each in run.frames["link"]]
    return {"at": busy, "queue_at": [each[link] for each in run.frames["link_queue"]]}


def _moment_rows(run: MappedRun, rows: Sequence[Mapping[str, Any]], links: Sequence[Row]) -> list[dict[str, Any]]:
    at = {row["die"]: {"x_at": row["x_at"], "y_at": row["y_at"]} for row in rows}
    drawn = {(link["src"], link["dst"]): link for link in links if link["src_x"] is not None}
    found = []
    for number, each in enumerate(run.moments, 1):
        row = dict(run.chosen) | {"moment": number, "tip": each.tip, "from": each.first, "to": each.last}
        if run.frames:
            row["ns"] = run.frames["time_ns"][number - 1]
        if each.die is not None:
            row |= at.get(each.die, {})
        link = drawn.get(each.link) or drawn.get(each.link[::-1]) if each.link else None
        if link is not None:
            ends = _link_row(link)
            row |= {f"link_{name.replace('_at', '')}": ends[name] for name in ("x_at", "y_at", "x_to", "y_to")}
        found.append(row)
    return found


_EXTRA_TIPS = (("site", "number as made"), ("node", "node"))
# Field, label, ends of the colours where they do not follow from the rows.
_METRICS = (
    ("hbm", "HBM bandwidth, %", 0.0, 100.0),
    ("array", "compute array busy, %", 0.0, 100.0),
    ("load", "load over the mean, ×", None, None),
    ("queue", "queue of its HBM, stages", 0.0, None),
    ("port", "port to its node's switch, %", 0.0, 100.0),
    ("nic", "NIC, %", 0.0, 100.0),
    ("power", "power with HBM, W", 0.0, None),
    ("heat", "hottest spot, °C", None, None),
    ("hbm_heat", "HBM, °C", None, None),
    ("clock", "clock of its array in decode, % of the nominal", None, None),
    ("prefill_clock", "clock of its array in the prefill, % of the nominal", None, None),
    ("speed", "HBM as built, %", None, None),
)
_FACTORS = ("clock", "prefill_clock", "speed")  # the same for all dies, they colour nothing


def _metrics(rows: Sequence[Mapping[str, Any]]) -> list[Metric]:
    """The metrics that the rows have. A factor that is the same for all dies is left out."""
    found = []
    for field, label, low, high in _METRICS:
        values = [row[field] for row in rows if row.get(field) is not None]
        at = (value for row in rows for value in row.get("at", {}).get(field, ()))
        values += [value for value in at if value is not None]
        if not values or (field in _FACTORS and min(values) == max(values)):
            continue
        ends = min(values) if low is None else low, max(values) if high is None else high
        found.append(Metric(field, label, *ends, ".2f" if field == "load" else ".1f" if field == "queue" else ".0f"))
    return found


def _identical(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Factors that are the same for all dies, but not the nominal: field and label of a tooltip."""
    known = {field: {row[field] for row in rows if row.get(field) is not None} for field in _FACTORS}
    labels = {field: label for field, label, *_ in _METRICS}
    return [(field, labels[field]) for field, values in known.items() if len(values) == 1 and values != {100.0}]


def _die_rows(dies: Sequence[Row]) -> list[dict[str, Any]]:
    """What a map shows of every die: values that are known, and nominal speeds where they are not."""
    loads = [sum(die[f"{phase}_tokens"] or 0 for phase in LOADS) for die in dies]
    mean = sum(loads) / len(loads)
    found = []
    for die, load in zip(dies, loads, strict=True):
        speed, clock, prefill_clock = die["array_speed"] or 1.0, die["clock"], die["prefill_clock"]
        limited = clock or prefill_clock
        row = {
            "die": die["die"], "x_at": die["x"], "y_at": die["y"], "hbm": 100 * die["hbm_utilisation"],
            "array": 100 * die["compute_utilisation"], "load": load / mean if mean else None,
            "power": die["power_w"], "heat": die["temperature_c"], "hbm_heat": die["hbm_temperature_c"],
            "clock": 100 * speed * (clock or 1.0),
            "prefill_clock": 100 * speed * (prefill_clock or 1.0) if limited else None,
            "speed": 100 * (die["hbm_speed"] or 1.0), "site": die["site"],
        }  # fmt: skip
        found.append({name: value for name, value in row.items() if value is not None})
    return found


def ends_text(link: Row) -> str:
    """``3 → 4``, or ``3 ↔ 4`` of an edge that is one resource for both directions."""
    return f"{link['src']} {'↔' if link['direction'] == BOTH_WAYS else '→'} {link['dst']}"


def _link_row(link: Row) -> dict[str, Any]:
    x, y, to_x, to_y = (link[name] for name in ("src_x", "src_y", "dst_x", "dst_y"))
    length = hypot(to_x - x, to_y - y)
    both_ways = link["direction"] == BOTH_WAYS
    aside = (0.0 if both_ways else LANE) if length <= 1 else GUTTER if link["src"] < link["dst"] else -GUTTER
    by_x, by_y = -(to_y - y) / length * aside, (to_x - x) / length * aside
    return {
        "x_at": x + by_x,
        "y_at": y + by_y,
        "x_to": to_x + by_x,
        "y_to": to_y + by_y,
        "busy": 100 * link["utilisation"],
        "tip": f"{ends_text(link)}: busy {units.percent(link['utilisation'])} of the run",
    }


def _cluster_rows(run: MappedRun, nodes: int) -> list[dict[str, Any]]:
    """GPUs by node, with their ports in place of links: of 64 nodes of 8 there are 2,048 lines to switches."""
    size = len(run.dies) // nodes
    inner, nics, shared = port_utilisation(run.links, len(run.dies), nodes)
    across = ceil(sqrt(2 * size)) if size > 2 else size
    down = -(-size // across)
    columns = ceil(sqrt(nodes * (down + 1) / (across + 1)))
    rows = []
    for at, die in enumerate(_die_rows([{**die, "x": 0, "y": 0} for die in run.dies])):
        node, own = divmod(at, size)
        x = node % columns * (across + 0.6) + own % across
        y = node // columns * (down + 0.6) + own // across
        ports = {"port": inner.get(die["die"]), "nic": nics.get(die["die"], shared.get(node))}
        row = dict(run.chosen) | die | {"x_at": x, "y_at": y} | _at_moments(run, at) | {"node": node}
        rows.append(row | {name: 100 * value for name, value in ports.items() if value is not None})
    return rows


def port_utilisation(
    links: Sequence[Row], dies: int, nodes: int
) -> tuple[dict[int, float], dict[int, float], dict[int, float]]:
    """(GPU → port inside its node, GPU → own NIC, node → shared NIC): utilisation of the fuller direction.

    Switches of nodes have the numbers after the dies; then come those of rails, or the shared ports of nodes.
    """
    inner: dict[int, float] = {}
    nics: dict[int, float] = {}
    shared: dict[int, float] = {}
    ports = range(dies + nodes, dies + 2 * nodes)
    shares = any(link["src"] in ports and link["dst"] >= dies + 2 * nodes for link in links)
    for link in links:
        low, high = sorted((link["src"], link["dst"]))
        used = link["utilisation"]
        if low < dies:
            if high < dies + nodes:
                inner[low] = max(inner.get(low, 0.0), used)
            elif not shares:
                nics[low] = max(nics.get(low, 0.0), used)
        elif shares and low in ports:
            shared[low - dies - nodes] = max(shared.get(low - dies - nodes, 0.0), used)
    return inner, nics, shared
