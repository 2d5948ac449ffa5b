"""Files, tables and pictures about how sure an answer is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from archsim.base import files, tables
from archsim.base.uncertain import Quantity
from archsim.show import plots, rendering, sample_figures, units
from archsim.uncertainty.estimate import Index
from archsim.uncertainty.sure_answer import SHOWN, ComparedOptions, Sure, order_sentence, written_range

FILE, JSON, PAGE = "sure.csv", "sure.json", "sure.html"


def write_sure(found: Sure, folder: Path) -> Path:
    """Write ``sure.html``, ``sure.csv`` and ``sure.json``; returns the path of the page."""
    return write_files(found.table(), found.plain(), {"found": found, **section_of(found)}, folder)


def write_files(table: tables.Table, plain: Mapping[str, Any], context: Mapping[str, Any], folder: Path) -> Path:
    """The three files of samples. ``plain``: as JSON; ``context``: of the page, as `section_of` has it."""
    files.own_folder(folder)
    table.write_csv(folder / FILE)
    files.write_text(folder / JSON, json.dumps(plain, ensure_ascii=False, indent=1, allow_nan=False) + "\n")
    files.write_text(folder / PAGE, rendering.render("sure.html.j2", context))
    return folder / PAGE


def section_of(found: Sure) -> dict[str, Any]:
    """What the section "How sure is this?" shows."""
    return {
        "sure_places": [
            {
                "name": place.name, "told": place.sentence, "chart": whiskers(place), "tornado": tornado(place),
                "pairs": [(each.faster, each.slower, each.ratio, written_range(each.ratio), order_sentence(each))
                          for each in (*place.pairs, *place.further)],
                "measure": place.advice, "unknown": place.unknown, "timed": place.timed,
                "explained": place.explained_text,
            }
            for place in found.places
        ],
        "sure_quantities": quantity_rows(found.quantities),
        "sure_exact": found.exact, "sure_notes": found.notes, "sure_samples": found.samples,
    }  # fmt: skip


def quantity_rows(quantities: Iterable[Quantity]) -> list[tuple[str, ...]]:
    """What the page tells of quantities: key, value, ends, shape, the name of the draw, source."""
    return [
        (
            each.key,
            *(units.in_base_unit(at, each.unit) for at in (each.value, each.distribution.low, each.distribution.high)),
            each.distribution.shape, each.draws_as, each.source,
        )
        for each in quantities
    ]  # fmt: skip


def whiskers(place: ComparedOptions) -> plots.Bars:
    ends = [(each.name, (each.ns.p05, each.ns.p50, each.ns.p95)) for each in place.options]
    return sample_figures.option_times(f"{place.name}: {place.timed}", ends)


def tornado(place: ComparedOptions) -> plots.Bars | None:
    """Total indices of the draws on which the headline hangs, with two standard errors to each side."""
    return tornado_of(place.indices, f"{place.name}: {place.explained_text}")


def tornado_of(found: Sequence[Index], name: str) -> plots.Bars | None:
    """Like `tornado`, but for the answer ``name``."""
    draws = []
    for each in found[:SHOWN]:
        if each.total > 0:
            low, high = max(0.0, each.total - 2 * each.total_error), min(1.0, each.total + 2 * each.total_error)
            draws.append((each.name.removeprefix("system."), each.first, low, each.total, high))
    return sample_figures.variance_shares(name, draws)
