"""The page of an ablation: a waterfall for every policy, the effect of each assumption, and a table of all values."""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, log
from pathlib import Path

from archsim.base.files import write_text
from archsim.report import layers
from archsim.report.draw.waterfall import Change, waterfall
from archsim.report.rendering import rendered
from archsim.report.units import factor
from archsim.specs.assumptions import ASSUMPTIONS
from archsim.studies.ablation.ablation import EFFECT_COLUMNS, Ablation, Effect, Link, Waterfall, effect_rows

MOST_NAMED = 4  # assumptions in a sentence
LEAST_CHANGE = 0.01  # relative change of a speed-up below which an assumption is not named


@dataclass(frozen=True)
class Group:
    """All waterfalls of a system, model and batch."""

    heading: str
    sentence: str
    panels: tuple[tuple[str, str], ...]  # policy, SVG


def write_ablation(found: Ablation, name: str, folder: Path) -> Path:
    """Write ``index.html`` and ``ablation.csv``; returns the path of the page. Equal results give equal bytes."""
    write_text(folder / "ablation.csv", csv_of(found))
    write_text(folder / "index.html", render(found, name))
    return folder / "index.html"


def csv_of(found: Ablation) -> str:
    """One row per policy, system, model, batch and assumption."""
    stream = io.StringIO()
    rows = csv.writer(stream, lineterminator="\n")
    rows.writerow(EFFECT_COLUMNS)
    for row in effect_rows(found):
        rows.writerow([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row])
    return stream.getvalue()


def render(found: Ablation, name: str) -> str:
    context = {
        "name": name, "found": found, "layers": layers.told(found.layers), "start": found.start.label,
        "end": found.end.label, "groups": list(groups_of(found)), "worth": list(worth_of(found)),
        "meanings": [
            (link, ASSUMPTIONS[link.field][link.before], ASSUMPTIONS[link.field][link.after])
            for link in (*found.links, *_further(found))
        ],
    }
    return rendered("ablation.html.j2", context, {"factor": factor})


def _further(found: Ablation) -> list[Link]:
    return [fall.beyond.link for fall in found.waterfalls[:1] if fall.beyond]


def groups_of(found: Ablation) -> Iterator[Group]:
    places = dict.fromkeys((fall.system, fall.model, fall.batch) for fall in found.waterfalls)
    for system, model, batch in places:
        falls = [fall for fall in found.waterfalls if (fall.system, fall.model, fall.batch) == (system, model, batch)]
        panels = tuple((fall.policy, drawing(fall, found)) for fall in falls)
        yield Group(
            f"{model} on {system}, batch {batch:,}", sentence(max(falls, key=lambda fall: fall.start), found), panels
        )


def drawing(fall: Waterfall, found: Ablation) -> str:
    changes = [
        Change(effect.link.field, effect.speedup_before, effect.speedup_after, _tip(effect)) for effect in fall.effects
    ]
    spoken = f"{fall.policy} on {fall.system}, {fall.model}: {factor(fall.start)} to {factor(fall.end)}"
    return waterfall((found.start.label, fall.start), changes, (found.end.label, fall.end), spoken)


def sentence(fall: Waterfall, found: Ablation) -> str:
    """Speed-up of a policy under both sets, and the assumptions with the largest effects, the largest first."""
    largest = sorted(
        (each for each in fall.effects if _distance(each) > log(1 + LEAST_CHANGE)), key=_distance, reverse=True
    )
    parts = [
        f"{factor(each.factor)} by {each.link.field} ({each.link.before} → {each.link.after})"
        for each in largest[:MOST_NAMED]
    ]
    changes = f"; in the chain, the largest changes first: {', '.join(parts)}" if parts else ""
    return (
        f"{fall.policy}: {factor(fall.start)} over base under {found.start.label}, {factor(fall.end)} under "
        f"{found.end.label}{changes}.{endpoint_told(fall, found)}"
    )


def endpoint_told(fall: Waterfall, found: Ablation) -> str:
    """What the speed-up is worth if the controllers of dies are like those of a measured mesh; empty if it is asked
    already.
    """
    if fall.beyond is None:
        return ""
    return (
        f" If the controller of a die sends and receives only what that of a measured chip does (endpoint: "
        f"as_measured), the speed-up under {found.end.label} is {factor(fall.beyond.speedup_after)} instead of "
        f"{factor(fall.end)}."
    )


def _distance(effect: Effect) -> float:
    """How far a factor is from 1, either way."""
    return abs(log(effect.factor)) if effect.factor > 0 else inf


def worth_of(found: Ablation) -> Iterator[tuple[str, str, str, str, str]]:
    """(assumption, least, median, largest factor in the chain, median factor alone) over all waterfalls."""
    for place, link in enumerate((*found.links, *_further(found))):
        effects = [(*fall.effects, *([fall.beyond] if fall.beyond else []))[place] for fall in found.waterfalls]
        chained = sorted(effect.factor for effect in effects)
        alone = sorted(
            effect.speedup_alone / fall.start for effect, fall in zip(effects, found.waterfalls, strict=True)
        )
        middle = len(chained) // 2
        yield link.field, factor(chained[0]), factor(chained[middle]), factor(chained[-1]), factor(alone[middle])


def _tip(effect: Effect) -> str:
    link = effect.link
    return (
        f"{link.field}: {link.before} → {link.after}: {factor(effect.speedup_before)} → "
        f"{factor(effect.speedup_after)}; "
        f"changed alone: {factor(effect.speedup_alone)}"
    )
