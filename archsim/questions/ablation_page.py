"""The page of an ablation: a waterfall for every policy, the effect of each assumption, and a table of all values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, log
from pathlib import Path

from archsim.base import files, tables
from archsim.questions.ablation import EFFECT_COLUMNS, AblatedField, Ablation, FieldEffect, Waterfall, effect_rows
from archsim.runs.results import layer_counts
from archsim.show import plots, rendering
from archsim.show.units import factor, listing
from archsim.specs.assumptions import ASSUMPTIONS

SMALL = 0.005  # smaller relative changes get no colour
MOST_NAMED = 4  # assumptions in a sentence
LEAST_CHANGE = 0.01  # relative change of a speed-up below which an assumption is not named


@dataclass(frozen=True)
class Waterfalls:
    """All waterfalls of a system, model and batch."""

    heading: str
    sentence: str
    panels: tuple[tuple[str, plots.Bars], ...]  # policy, its waterfall


def write_ablation(found: Ablation, name: str, folder: Path, notes: Sequence[str] = ()) -> Path:
    """Write ``index.html`` and ``ablation.csv``; returns the page's path. ``notes``: on what the runs do not read."""
    files.write_text(folder / "ablation.csv", csv_of(found))
    files.write_text(folder / "index.html", render(found, name, notes))
    return folder / "index.html"


def csv_of(found: Ablation) -> str:
    """One row per policy, system, model, batch and assumption."""
    rows = ([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in effect_rows(found))
    return tables.csv_text([EFFECT_COLUMNS, *rows])


def render(found: Ablation, name: str, notes: Sequence[str] = ()) -> str:
    context = {
        "notes": notes,
        "name": name,
        "found": found,
        "layers": layer_counts(found.layers),
        "start": found.start.label,
        "end": found.end.label,
        "groups": list(groups_of(found)),
        "worth": list(worth_of(found)),
        "meanings": [
            (link, ASSUMPTIONS[link.field][link.before], ASSUMPTIONS[link.field][link.after])
            for link in _links_of(found)
        ],
    }
    return rendering.render("ablation.html.j2", context, {"factor": factor})


def _links_of(found: Ablation) -> list[AblatedField]:
    """Those of the chain, and the one beyond it."""
    return [*found.links, *(fall.beyond.link for fall in found.waterfalls[:1] if fall.beyond)]


def groups_of(found: Ablation) -> Iterator[Waterfalls]:
    places = dict.fromkeys((fall.system, fall.model, fall.batch) for fall in found.waterfalls)
    for system, model, batch in places:
        falls = [fall for fall in found.waterfalls if (fall.system, fall.model, fall.batch) == (system, model, batch)]
        panels = tuple((fall.policy, drawing(fall, found)) for fall in falls)
        yield Waterfalls(
            f"{model} on {system}, batch {batch:,}", sentence(max(falls, key=lambda fall: fall.start), found), panels
        )


def drawing(fall: Waterfall, found: Ablation) -> plots.Bars:
    changes = []
    for effect in fall.effects:
        by = effect.speedup_after - effect.speedup_before
        same = abs(effect.speedup_after / effect.speedup_before - 1) < SMALL
        colour = "--llc" if same else "--compute" if by > 0 else "--from-link"
        link, by_then = effect.link, f"{factor(effect.speedup_before)} → {factor(effect.speedup_after)}"
        text = f"{link.field}: {link.before} → {link.after}: {by_then}; changed alone: {factor(effect.speedup_alone)}"
        changes.append((link.field, by, colour, {"tip": text}))
    return plots.waterfall(
        f"{fall.policy}: how does each assumption change its speed-up?", changes,
        plots.PlotAxis("value", "decode throughput relative to base under the same assumptions, ×"),
        first=(found.start.label, fall.start), total=(found.end.label, ".2f"), reference=1.0,
        tips=(("name", "assumption"), ("label", "change"), ("tip", "in words")),
    )  # fmt: skip


def sentence(fall: Waterfall, found: Ablation) -> str:
    largest = sorted(
        (each for each in fall.effects if _distance(each) > log(1 + LEAST_CHANGE)), key=_distance, reverse=True
    )
    parts = listing(
        f"{factor(each.factor)} by {each.link.field} ({each.link.before} → {each.link.after})"
        for each in largest[:MOST_NAMED]
    )
    changes = f" In the chain, the largest changes are {parts}." if parts else ""
    return (
        f"The speed-up of {fall.policy} over base is {factor(fall.start)} under {found.start.label} and "
        f"{factor(fall.end)} under {found.end.label}.{changes}{endpoint_sentence(fall, found)}"
    )


def endpoint_sentence(fall: Waterfall, found: Ablation) -> str:
    """The speed-up if dies have the controllers of a measured mesh; empty if it is asked already."""
    if fall.beyond is None:
        return ""
    return (
        f" The speed-up under {found.end.label} is {factor(fall.beyond.speedup_after)} instead of {factor(fall.end)} "
        "if a die's controller sends and receives only as fast as that of a measured chip (endpoint: as_measured)."
    )


def lines_of(found: Ablation) -> Iterator[str]:
    """What a terminal is told: every waterfall with its effects of SMALL or more."""
    for fall in found.waterfalls:
        place = f"{fall.model} on {fall.system}, batch {fall.batch:,}: the speed-up of {fall.policy} over base"
        ends = (f"{factor(by)} under {of.label}" for by, of in ((fall.start, found.start), (fall.end, found.end)))
        yield f"{place} is {' and '.join(ends)}."
        for each in fall.effects:
            if abs(each.factor - 1) > SMALL:
                yield f"  {each.link.field:<16} {each.link.before} → {each.link.after}: {factor(each.factor)}"
        if beyond := endpoint_sentence(fall, found):
            yield f" {beyond}"
    if not found.closes:
        yield "The effects of the assumptions do not multiply to the whole change. This is a bug; please report it."


def _distance(effect: FieldEffect) -> float:
    """How far a factor is from 1, either way."""
    return abs(log(effect.factor)) if effect.factor > 0 else inf


def worth_of(found: Ablation) -> Iterator[tuple[str, str, str, str, str]]:
    """(assumption, least, median, largest factor in the chain, median factor alone) over all waterfalls."""
    for place, link in enumerate(_links_of(found)):
        effects = [fall.every[place] for fall in found.waterfalls]
        chained = sorted(effect.factor for effect in effects)
        alone = sorted(
            effect.speedup_alone / fall.start for effect, fall in zip(effects, found.waterfalls, strict=True)
        )
        middle = len(chained) // 2
        yield link.field, factor(chained[0]), factor(chained[middle]), factor(chained[-1]), factor(alone[middle])
