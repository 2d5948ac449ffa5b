"""Changes one assumption set into another, one field at a time and cumulatively, and measures what each change does to
a policy's speed-up.

A *chain* starts with the first set and takes over the other's values one field after the other, in ``ORDER``; its last
link has all values of the other set and must give that set's own results, bit for bit. In addition, every field is
changed *alone*, from the first set. The two differ if assumptions interact, so both are reported.

One row more (`ENDPOINT`) goes beyond the other set: the endpoints of dies as measured on a real mesh. The controllers
of the dies of a wafer are not known, so that neither shipped set limits them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archsim.base.errors import ArchsimError, did_you_mean
from archsim.base.files import write_text
from archsim.base.tables import Shown, csv_text
from archsim.report import page, plots
from archsim.report.units import factor, listed
from archsim.runs.results import BASE_POLICY, Layers, layers_that_ran, layers_told
from archsim.runs.sweep import Watcher, sweep
from archsim.specs import library, unread
from archsim.specs.assumptions import ASSUMPTIONS, AssumptionsSpec, shipped_sets
from archsim.specs.experiment import ExperimentSpec

if TYPE_CHECKING:
    import pandas


# ---- ablation

# First what the paper's gains depend on; then what changes the work of a die; then how it is counted.
ORDER = (
    "contention", "arbitration", "reads", "rate_updates", "endpoint", "carriers", "source", "capacity", "memory",
    "copy_writes", "migration", "execution", "activations", "dispatch", "overlap", "combine", "transfer_software",
    "decision_cost", "heatmap_update", "tables", "weights", "llc", "gemm", "order", "numbering", "prediction_rows",
    "ties", "hops", "throughput",
)  # fmt: skip
ENDPOINT = ("endpoint", "unlimited", "as_measured")
EFFECT_COLUMNS = (
    "system", "model", "batch", "policy", "place", "assumption", "from", "to", "speedup_before", "speedup_after",
    "factor", "speedup_alone", "throughput_after_tokens_per_s",
)  # fmt: skip
_COMPARED = ("system", "model", "batch", "policy")


@dataclass(frozen=True)
class AblatedField:
    """A field and its two values.

    ``alone``: the first set with only this field changed; ``chain``: with all fields up to it changed.
    """

    field: str
    before: str
    after: str
    alone: AssumptionsSpec
    chain: AssumptionsSpec


@dataclass(frozen=True)
class FieldEffect:
    """Effect of a link on one policy.

    Speed-ups are over base under the same assumptions; ``throughput`` in tokens/s.
    """

    link: AblatedField
    speedup_before: float
    speedup_after: float
    speedup_alone: float
    throughput_after: float

    @property
    def factor(self) -> float:
        return self.speedup_after / self.speedup_before


@dataclass(frozen=True)
class Waterfall:
    """One policy on one system, model and batch: from the first set's speed-up to the other's.

    ``beyond``: the effect of endpoints as measured, on the other set; None where a set has them already.
    """

    system: str
    model: str
    batch: int
    policy: str
    start: float
    end: float
    effects: tuple[FieldEffect, ...]
    beyond: FieldEffect | None = None

    @property
    def every(self) -> tuple[FieldEffect, ...]:
        """``effects``, and ``beyond`` where there is one."""
        return self.effects if self.beyond is None else (*self.effects, self.beyond)


@dataclass(frozen=True)
class Ablation(Shown):
    """The waterfalls of an experiment.

    ``closes``: whether the chain's end equals the results of the other set, bit for bit, in every run; ``layers``:
    which ran, see `archsim.runs.results.layers_that_ran`.
    """

    start: AssumptionsSpec
    end: AssumptionsSpec
    links: tuple[AblatedField, ...]
    waterfalls: tuple[Waterfall, ...]
    closes: bool
    runs: int
    layers: Layers

    def __repr__(self) -> str:
        chain = f"{self.start.label} → {self.end.label}, {len(self.links)} links"
        return f"Ablation({chain}, {len(self.waterfalls)} waterfalls, {self.runs} runs)"

    def to_pandas(self) -> pandas.DataFrame:
        """One row per policy, system, model, batch and link: the effect of the link on the policy's speed-up.

        Columns: system, model, batch, policy, place (from 1), assumption, from, to, speedup_before, speedup_after,
        factor, speedup_alone, throughput_after_tokens_per_s.
        """
        import pandas

        return pandas.DataFrame(list(effect_rows(self)), columns=list(EFFECT_COLUMNS))


def effect_rows(found: Ablation) -> Iterator[tuple[Any, ...]]:
    """The values of ``EFFECT_COLUMNS`` for every effect, in the order of the chain."""
    for fall in found.waterfalls:
        for place, effect in enumerate(fall.every, 1):
            link = effect.link
            yield (
                fall.system, fall.model, fall.batch, fall.policy, place, link.field, link.before, link.after,
                effect.speedup_before, effect.speedup_after, effect.factor, effect.speedup_alone,
                effect.throughput_after,
            )  # fmt: skip


def assumptions_named(experiment: ExperimentSpec, name: str) -> AssumptionsSpec:
    """An assumption set by its label: the experiment's or a shipped one. Raises ArchsimError for an unknown label."""
    own = {each.label: each for each in experiment.assumptions}
    if name in own:
        return own[name]
    if name not in shipped_sets():
        known = list(dict.fromkeys([*shipped_sets(), *own]))
        raise ArchsimError(f"unknown assumption set {name!r}{did_you_mean(name, known)} (known: {', '.join(known)})")
    return library.load_assumptions(name)


def links_between(start: AssumptionsSpec, end: AssumptionsSpec) -> tuple[AblatedField, ...]:
    """The links of the chain. Raises ArchsimError if the sets do not differ."""
    fields = [field for field in ORDER if getattr(start, field) != getattr(end, field)]
    if not fields:
        raise ArchsimError(f"nothing to ablate: {start.label} and {end.label} have the same values")
    links, values = [], start.model_dump()
    for place, field in enumerate(fields, 1):
        after = getattr(end, field)
        values = values | {field: after, "set": f"chain-{place:02}-{field}"}
        chain = AssumptionsSpec(**{name: values[name] for name in ("set", *ASSUMPTIONS)})
        alone = start.model_copy(update={field: after, "set": f"alone-{field}"})
        links.append(AblatedField(field, getattr(start, field), after, chain if place == 1 else alone, chain))
    return tuple(links)


def beyond(start: AssumptionsSpec, end: AssumptionsSpec) -> AblatedField | None:
    """The row beyond the other set; None where one of the sets limits endpoints."""
    field, before, after = ENDPOINT
    if any(getattr(each, field) != before for each in (start, end)):
        return None
    alone = start.model_copy(update={field: after, "set": f"alone-{field}"})
    return AblatedField(field, before, after, alone, end.model_copy(update={field: after, "set": f"beyond-{field}"}))


def ablated(experiment: ExperimentSpec, start: AssumptionsSpec, end: AssumptionsSpec) -> ExperimentSpec:
    """The experiment under both sets and every link. Raises ArchsimError if no speed-up can be computed."""
    policies = [policy.name for policy in experiment.policies]
    if BASE_POLICY not in policies or len(policies) == 1:
        raise ArchsimError(
            f"an ablation compares policies with {BASE_POLICY!r}: the experiment needs it and at least one other policy"
        )
    links, more = links_between(start, end), beyond(start, end)
    alone = [link.alone for link in links if link.alone != link.chain]
    whole = (start, *alone, *(link.chain for link in links), end)
    every = experiment.model_copy(update={"assumptions": (*whole, *((more.alone, more.chain) if more else ()))})
    written: unread.WrittenKeys = experiment.__dict__.get("written", unread.WrittenKeys(frozenset(), of_manifest=False))
    kept = written._replace(keys=frozenset(keys for keys in written.keys if keys[0] != "assumptions"))
    axes = [each for each in experiment.unread if library.AXIS_UNREAD in each]
    return library.with_unread(every, axes, kept)


def ablate(
    experiment: ExperimentSpec,
    start: AssumptionsSpec,
    end: AssumptionsSpec,
    out: str | Path,
    jobs: int | None = None,
    watcher: Watcher | None = None,
) -> Ablation:
    """Run what is missing in ``out`` and compute the effects. Raises as :func:`archsim.runs.sweep.sweep`."""
    found = sweep(ablated(experiment, start, end), out, jobs, watcher).runs.rows
    links, more = links_between(start, end), beyond(start, end)
    rows = {(*(row[name] for name in _COMPARED), row["assumptions"]): row for row in found}
    every = dict.fromkeys(key[:-1] for key in rows)
    falls = [_waterfall(place, rows, links, start, end, more) for place in every if place[3] != BASE_POLICY]
    closes = all(_same(rows[(*place, links[-1].chain.label)], rows[(*place, end.label)]) for place in every)
    layers = layers_that_ran(found, {model.name: len(model.moe_layer_ids) for model in experiment.models})
    return Ablation(start, end, links, tuple(falls), closes, len(found), layers)


def _waterfall(
    place: tuple,
    rows: Mapping[tuple, Mapping[str, Any]],
    links: Sequence[AblatedField],
    start,
    end,
    more: AblatedField | None,
) -> Waterfall:
    def of(assumptions: AssumptionsSpec) -> Mapping[str, Any]:
        return rows[(*place, assumptions.label)]

    effects, before = [], of(start)["speedup_vs_base"]
    for link in links:
        after = of(link.chain)
        alone = of(link.alone)["speedup_vs_base"]
        effects.append(FieldEffect(link, before, after["speedup_vs_base"], alone, after["throughput_tokens_per_s"]))
        before = after["speedup_vs_base"]
    last = of(end)["speedup_vs_base"]
    further = None
    if more is not None:
        limited = of(more.chain)
        alone = of(more.alone)["speedup_vs_base"]
        further = FieldEffect(more, last, limited["speedup_vs_base"], alone, limited["throughput_tokens_per_s"])
    system, model, batch, policy = place
    return Waterfall(system, model, batch, policy, of(start)["speedup_vs_base"], last, tuple(effects), further)


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two rows are equal except for the names of their assumption sets."""
    named = ("assumptions", "run")
    return {key: value for key, value in one.items() if key not in named} == {
        key: value for key, value in other.items() if key not in named
    }


# ---- page
SMALL = 0.005  # smaller relative changes get no colour
# The page of an ablation: a waterfall for every policy, the effect of each assumption, and a table of all values.

MOST_NAMED = 4  # assumptions in a sentence
LEAST_CHANGE = 0.01  # relative change of a speed-up below which an assumption is not named


@dataclass(frozen=True)
class Waterfalls:
    """All waterfalls of a system, model and batch."""

    heading: str
    sentence: str
    panels: tuple[tuple[str, plots.Bars], ...]  # policy, its waterfall


def write_ablation(found: Ablation, name: str, folder: Path, notes: Sequence[str] = ()) -> Path:
    """Write ``index.html`` and ``ablation.csv``; returns the path of the page. Equal results give equal bytes.

    ``notes``: on what the runs do not read.
    """
    write_text(folder / "ablation.csv", csv_of(found))
    write_text(folder / "index.html", render(found, name, notes))
    return folder / "index.html"


def csv_of(found: Ablation) -> str:
    """One row per policy, system, model, batch and assumption."""
    rows = ([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in effect_rows(found))
    return csv_text([EFFECT_COLUMNS, *rows])


def render(found: Ablation, name: str, notes: Sequence[str] = ()) -> str:
    context = {
        "notes": notes,
        "name": name,
        "found": found,
        "layers": layers_told(found.layers),
        "start": found.start.label,
        "end": found.end.label,
        "groups": list(groups_of(found)),
        "worth": list(worth_of(found)),
        "meanings": [
            (link, ASSUMPTIONS[link.field][link.before], ASSUMPTIONS[link.field][link.after])
            for link in _links_of(found)
        ],
    }
    return page.rendered("ablation.html.j2", context, {"factor": factor})


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
        told = f"{link.field}: {link.before} → {link.after}: {by_then}; changed alone: {factor(effect.speedup_alone)}"
        changes.append((link.field, by, colour, {"told": told}))
    return plots.waterfall(
        f"{fall.policy}: how does each assumption change its speed-up?", changes,
        plots.PlotAxis("value", "decode throughput relative to base under the same assumptions, ×"),
        first=(found.start.label, fall.start), total=(found.end.label, ".2f"), reference=1.0,
        tips=(("name", "assumption"), ("label", "change"), ("told", "in words")),
    )  # fmt: skip


def sentence(fall: Waterfall, found: Ablation) -> str:
    """Speed-up of a policy under both sets, and the assumptions with the largest effects, the largest first."""
    largest = sorted(
        (each for each in fall.effects if _distance(each) > log(1 + LEAST_CHANGE)), key=_distance, reverse=True
    )
    parts = listed(
        f"{factor(each.factor)} by {each.link.field} ({each.link.before} → {each.link.after})"
        for each in largest[:MOST_NAMED]
    )
    changes = f" In the chain, the largest changes are {parts}." if parts else ""
    return (
        f"The speed-up of {fall.policy} over base is {factor(fall.start)} under {found.start.label} and "
        f"{factor(fall.end)} under {found.end.label}.{changes}{endpoint_told(fall, found)}"
    )


def endpoint_told(fall: Waterfall, found: Ablation) -> str:
    """What the speed-up is worth if the controllers of dies are like those of a measured mesh; empty if it is asked
    already.
    """
    if fall.beyond is None:
        return ""
    return (
        f" The speed-up under {found.end.label} is {factor(fall.beyond.speedup_after)} instead of {factor(fall.end)} "
        "if a die's controller sends and receives only as fast as that of a measured chip (endpoint: as_measured)."
    )


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
