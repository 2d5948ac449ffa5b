"""Figures of a report for print, by matplotlib: the numbers of its files, in the colours of its pages."""

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any

from archsim.base.errors import ArchsimError, did_you_mean
from archsim.base.files import refuse_unwritable
from archsim.base.tables import parquet_columns
from archsim.base.units import NS_PER_MS
from archsim.report.figures import BOUND_NAMES, policy_class
from archsim.report.page import TEMPLATES
from archsim.runs.results import Results

FORMATS = ("pdf", "png", "svg")
COLUMN_IN = 3.4  # width of a column of a paper with two
MOST_GROUPS = 24  # of bars in a panel
FONT_PT = 8
BAR = 0.8  # of the room of a group that its bars take
_PLACE = ("assumptions", "system", "model")


@dataclass(frozen=True)
class Figure:
    """``about``: one line for lists; ``file`` of a report that it is drawn from, and a ``column`` that it must have;
    ``draw``: (folder) → figure of matplotlib.
    """

    about: str
    file: str
    column: str
    draw: Callable[[Path], Any]


def write_figure(folder: Path, name: str, out: Path) -> Path:
    """Draw a figure of the report in ``folder``. Raises ArchsimError for a name or a format that is not there, with
    those that are, and where matplotlib is missing.
    """
    known = names_of(folder)
    if not known:
        raise ArchsimError(f"{folder}: no report of a sweep, exploration or serve; there are no figures")
    if name not in known:
        listed = "\n".join(f"  {each:<12} {about}" for each, about in known.items())
        raise ArchsimError(f"{folder}: no figure {name!r}{did_you_mean(name, known)}; it has:\n{listed}")
    if out.suffix[1:] not in FORMATS:
        raise ArchsimError(f"{out}: figures are written as {', '.join(FORMATS)}, by the file's ending")
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        raise ArchsimError("figures for print need matplotlib: pip install 'archsim[figures]'") from None
    refuse_unwritable(out)
    with mpl.rc_context({"font.size": FONT_PT, "pdf.fonttype": 42, "svg.hashsalt": name, "axes.axisbelow": True}):
        metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[out.suffix[1:]]
        FIGURES[name].draw(folder).savefig(out, bbox_inches="tight", dpi=300, metadata=metadata)
    return out


def names_of(folder: Path) -> dict[str, str]:
    """Name → what it shows, of the figures that a report's files allow."""
    found = {}
    for name, each in FIGURES.items():
        path = folder / each.file
        if path.is_file():
            columns = parquet_columns(path) if path.suffix == ".parquet" else _header(path)
            found |= {name: each.about} if each.column in columns else {}
    return found


def _bars(column: str, label: str, reference: float | None = None) -> Callable[[Path], Any]:
    """Grouped bars of a column: a panel for each place, a group for each batch, a bar for each policy; whiskers from
    ``<column>_low`` to ``<column>_high`` where the results have them.
    """

    def draw(folder: Path):
        rows, policies = _rows(folder, column)
        figure, panels = _panels(rows)
        for panel, runs in panels:
            for at, policy in enumerate(policies):
                own = [(x, run) for x, run in _grouped(runs) if run["policy"] == policy]
                ends = [(run.get(f"{column}_low"), run.get(f"{column}_high")) for _, run in own]
                spread = [
                    [run[column] - low, high - run[column]]
                    for (_, run), (low, high) in zip(own, ends, strict=True) if low is not None and high is not None
                ]  # fmt: skip
                panel.bar(
                    [x + BAR * ((at + 0.5) / len(policies) - 0.5) for x, _ in own], [run[column] for _, run in own],
                    BAR / len(policies), label=policy, color=_colour(policy_class(policy, policies)),
                    yerr=list(zip(*spread, strict=True)) if len(spread) == len(own) and own else None,
                    error_kw={"elinewidth": 0.6, "capsize": 1},
                )  # fmt: skip
            if reference is not None:
                panel.axhline(reference, color=_colour("ink"), linewidth=0.6, linestyle="--")
            _ticks(panel, runs)
        return _finished(figure, panels, label)

    return draw


def _limits(folder: Path):
    """Stacked shares of time by cause, a bar for each batch and policy."""
    rows, policies = _rows(folder, next(iter(BOUND_NAMES)))
    figure, panels = _panels(rows)
    for panel, runs in panels:
        below = dict.fromkeys(range(len(runs)), 0.0)
        ordered = sorted(runs, key=lambda run: (run["batch"], policies.index(run["policy"])))
        for column, (kind, name) in BOUND_NAMES.items():
            heights = [run[column] or 0.0 for run in ordered]
            if any(heights):
                panel.bar(list(below), heights, BAR, bottom=list(below.values()), label=name, color=_colour(kind))
                below = {at: low + height for (at, low), height in zip(below.items(), heights, strict=True)}
        several = len({run["batch"] for run in runs}) > 1
        names = [f"{run['policy']}, {run['batch']:,}" if several else run["policy"] for run in ordered]
        panel.set_xticks(list(below), names, rotation=90 if several else 30, ha="center" if several else "right")
    return _finished(figure, panels, "share of time on the critical path")


def _front(folder: Path):
    """Every design that the event engine ran by the first two objectives of the front: dominated ones are hollow."""
    rows = _csv(folder / "front.csv")
    names = [name for name in rows[0] if name.endswith(")") and " (" in name]
    up = names[0]
    across = next((name for name in names if name.startswith("cost")), names[1])
    figure, ((panel, _),) = _panels([dict.fromkeys(_PLACE, "")])
    for on, colour, told in (("0", "p0", "dominated"), ("1", "p4", "on the front")):
        own = [(float(row[across]), float(row[up])) for row in rows if row["front"] == on]
        face = "none" if on == "0" else _colour(colour)
        panel.scatter(
            *zip(*own, strict=True), s=14, label=told, facecolors=face, edgecolors=_colour(colour)
        ) if own else ()
    panel.set(xscale="log", yscale="log", xlabel=across, title="")
    return _finished(figure, [(panel, ())], up)


def _requests(column: str, label: str) -> Callable[[Path], Any]:
    """Cumulative share of requests by a time of ``requests.csv``; a line for each policy's folder."""

    def draw(folder: Path):
        files = [folder / "requests.csv", *sorted(folder.glob("*/requests.csv"))]
        figure, ((panel, _),) = _panels([dict.fromkeys(_PLACE, "")])
        for at, file in enumerate(files):
            values = sorted(float(row[column]) / NS_PER_MS for row in _csv(file) if row[column])
            shares = [(rank + 1) / len(values) for rank in range(len(values))]
            name = file.parent.name if file.parent != folder else "first"
            panel.plot(values, shares, label=name, color=_colour(f"p{(at + 2) % 9}"), linewidth=1)
        panel.set(xlabel=label, ylim=(0, 1), title="")
        return _finished(figure, [(panel, ())], "share of requests")

    return draw


def _rows(folder: Path, column: str) -> tuple[list[Mapping[str, Any]], list[str]]:
    """The runs that have the column, and their policies in order."""
    rows = [row for row in Results.load(folder).runs.rows if row.get(column) is not None]
    if not rows:
        raise ArchsimError(f"{folder}: no run has {column}; nothing to draw")
    most = max(len(list(runs)) for _, runs in groupby(sorted(rows, key=_place), key=_place))
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    if most > MOST_GROUPS * len(policies):
        raise ArchsimError(
            f"{folder}: {most} runs in one panel; bars are drawn for up to {MOST_GROUPS} batches; of a `sweep:` "
            "take its exploration's front, or results.parquet"
        )
    return rows, policies


def _header(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="") as stream:
        return next(csv.reader(stream), [])


def _csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    if not rows:
        raise ArchsimError(f"{path}: no rows; nothing to draw")
    return rows


def _place(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in _PLACE)


def _panels(rows: Sequence[Mapping[str, Any]]):
    """A figure, and (axes, runs) for every place, two a row."""
    from matplotlib.figure import Figure as Canvas

    places = list(dict.fromkeys(_place(row) for row in rows))
    across = min(2, len(places))
    down = -(-len(places) // across)
    figure = Canvas(figsize=(COLUMN_IN * across, 2.3 * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
    for unused in axes[len(places) :]:
        unused.set_visible(False)
    panels = []
    for panel, place in zip(axes, places, strict=False):
        assumptions, system, model = place
        panel.set_title(f"{model} on {system}, {assumptions}", fontsize=FONT_PT)
        panel.grid(axis="y", color=_colour("line"), linewidth=0.5)
        panel.spines[["top", "right"]].set_visible(False)
        panels.append((panel, [row for row in rows if _place(row) == place]))
    return figure, panels


def _grouped(runs: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, Any]]]:
    """(Number of its group, run): a group for each batch."""
    batches = sorted({run["batch"] for run in runs})
    return [(batches.index(run["batch"]), run) for run in runs]


def _ticks(panel, runs: Sequence[Mapping[str, Any]]) -> None:
    batches = sorted({run["batch"] for run in runs})
    panel.set_xticks(range(len(batches)), [f"{batch:,}" for batch in batches])
    panel.set_xlabel("batch")


def _finished(figure, panels, label: str):
    """With one legend above, and the label beside."""
    figure.supylabel(label, fontsize=FONT_PT)
    named = {
        name: handle for panel, _ in panels for handle, name in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    if len(named) > 1:
        figure.legend(named.values(), named, loc="outside upper center", ncols=min(5, len(named)), frameon=False)
    return figure


@cache
def _colours() -> Mapping[str, str]:
    """Name of a colour, or class → #rrggbb, of the light pages."""
    css = (TEMPLATES / "page.css").read_text(encoding="utf-8")
    named: dict[str, str] = {}
    for name, value in re.findall(r"--([\w-]+): (#[0-9a-f]{6})", css):
        named.setdefault(name, value)  # the first are those of the light scheme
    return MappingProxyType(
        named | {kind: named[name] for kind, name in re.findall(r"\.([pk][\w-]+) \{ fill: var\(--([\w-]+)\)", css)}
    )


def _colour(name: str) -> str:
    return _colours()[name]


def _of_runs(column: str, about: str, reference: float | None = None, unit: str = "×") -> Figure:
    return Figure(about, "results.parquet", column, _bars(column, f"{about}, {unit}", reference))


def _of_requests(column: str, about: str) -> Figure:
    return Figure(about, "requests.csv", column, _requests(column, f"{about}, ms"))


FIGURES: Mapping[str, Figure] = MappingProxyType({
    "gain": _of_runs("speedup_vs_ep", "decode throughput over ep", 1.0),
    "speedup": _of_runs("speedup_vs_base", "decode throughput over base", 1.0),
    "limits": Figure("share of time by cause", "results.parquet", next(iter(BOUND_NAMES)), _limits),
    "load": _of_runs("load_max_over_mean", "tokens of the busiest die over the mean", 1.0),
    "energy": _of_runs("energy_per_token_j", "energy a token, estimated, with its range", unit="J"),
    "front": Figure(
        "designs by throughput and price: the front, and what it dominates", "front.csv", "front", _front
    ),
    "ttft": _of_requests("ttft_ns", "time to first token"),
    "tpot": _of_requests("tpot_ns", "time per output token"),
})
