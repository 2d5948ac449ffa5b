"""How sure an answer is: intervals, the probability of the order, what it depends on, and what to measure next.

`archsim.uncertainty` draws the worlds and runs them; here their samples become sentences, tables, a picture and a page.
Runs that differ in their policy alone are compared; where there is one policy, those that differ in their system.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from archsim.base import errors, files, sums, tables
from archsim.report import figures, page, plots
from archsim.report.units import TIME_UNITS, listed, percent, scaled, significant
from archsim.report.units import interval as told_interval
from archsim.runs.energy import Coefficients, activity_of, build_costs, energy_of
from archsim.runs.feasibility import cost_of
from archsim.runs.plan import Selection, select
from archsim.runs.run import Run
from archsim.runs.sweep import Unwatched, Watcher
from archsim.specs import experiment, plan, uncertainty
from archsim.uncertainty.estimate import (
    NO_DIFFERENCE,
    Expansion,
    Index,
    Interval,
    OptionPair,
    expand,
    fastest_shares,
    indices,
    interval,
    narrowed,
    order,
    pair,
    refuse_shares,
    worth_knowing,
)
from archsim.uncertainty.quantities import Distribution, Quantity
from archsim.uncertainty.worlds import (
    FAST,
    TRAFFIC,
    InWorlds,
    Worlds,
    draws_of,
    economics_of,
    exact_of,
    planned,
    propagate,
    refuse_few,
)

if TYPE_CHECKING:
    import pandas

SAMPLES = 256
_LEAST_WORTH = NO_DIFFERENCE  # share of throughput
NARROWER = 0.95  # of the width before: a measurement that leaves more does not narrow an interval
_MOST_OF_IT = 0.5  # of the variance
_NEVER = 0.005  # share of worlds that reads as 0 %
SHOWN = 10  # draws of a tornado
LAYERS = "layers that did not run"
FILE, JSON, PAGE = "sure.csv", "sure.json", "sure.html"
_FOLDER = "worlds"
_OF = ("system", "model", "batch", "assumptions")
ECONOMICS: Mapping[str, str] = MappingProxyType({"energy_per_token_j": "J a token", "cost_usd": "USD"})
"""Columns of energy and price that have an interval, and their unit."""


@dataclass(frozen=True)
class Option:
    """A policy (or system) in all worlds. ``value_ns``: without a draw; ``ns``: time of decode; ``tokens_per_s``: its
    throughput; ``fastest``: share of the worlds in which it is the fastest; ``agreement``: of the two engines;
    ``economics``: of `ECONOMICS`, those that the run has, value and interval.
    """

    name: str
    value_ns: float
    ns: Interval
    value_tokens_per_s: float | None
    tokens_per_s: Interval | None
    fastest: float
    agreement: float | None
    economics: Mapping[str, tuple[float, Interval]] = field(default_factory=dict)


@dataclass(frozen=True)
class Measurement:
    """What one command would tell. ``narrowed``: the headline's interval once its numbers are known; ``worth``:
    expected gain of throughput by then choosing better, as a share; ``names``: of the draws.
    """

    command: uncertainty.CommandSpec
    names: tuple[str, ...]
    narrowed: Interval
    worth: float


@dataclass(frozen=True)
class ComparedOptions:
    """Options that are compared. ``of``: system, model and so on that they share; ``pairs``: the fastest against
    each other; ``further``: the others against each other; ``headline``: the pair of the sentence, None with one
    option; ``told``: its sentence; ``unknown``: why there are no ``indices`` and ``measurements``, or ''; ``timed``:
    what the times are of.
    """

    of: Mapping[str, Any]
    options: tuple[Option, ...]
    pairs: tuple[OptionPair, ...]
    headline: OptionPair | None
    told: str
    indices: tuple[Index, ...]
    measurements: tuple[Measurement, ...]
    samples: Mapping[str, np.ndarray] = field(repr=False, compare=False, default_factory=dict)
    further: tuple[OptionPair, ...] = ()
    unknown: str = ""
    timed: str = "time of decode"

    @property
    def advice(self) -> tuple[str, ...]:
        """Sentences: what would make the answer surer."""
        return advised([measured_told(each, self) for each in self.measurements], self.indices)

    @property
    def name(self) -> str:
        return ", ".join(f"batch {value:,}" if key == "batch" else str(value) for key, value in self.of.items())

    @property
    def ratio(self) -> Interval:
        """The ratio of the headline. With a single option, its time."""
        return self.options[0].ns if self.headline is None else self.headline.ratio


@dataclass(frozen=True)
class Sure(tables.Shown):
    """``ar.sure``: the answer of an experiment in ``samples`` worlds.

    ``quantities``: what was drawn; ``exact``: keys of systems that count as exact.
    """

    name: str
    samples: int
    places: tuple[ComparedOptions, ...]
    quantities: tuple[Quantity, ...]
    exact: tuple[str, ...]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Sure({self.name!r}, {self.samples} worlds: {self.sentence})"

    @property
    def sentence(self) -> str:
        """The answer, of the first place; of several, how many have a sure winner."""
        first = self.places[0].told
        if len(self.places) == 1:
            return first
        won = sums.sum(place.headline is not None and all(each.sure for each in place.pairs) for place in self.places)
        many = f"{won or 'none'} {'has' if won < 2 else 'have'}"
        return f"{self.places[0].name}: {first} Of {len(self.places)} cases, {many} a sure winner."

    def table(self) -> tables.Table:
        """One row for each option, with ``_p05``, ``_p50`` and ``_p95`` beside every value."""
        rows = [_row(place, option) for place in self.places for option in place.options]
        columns = {
            name: tables.REAL if any(isinstance(row[name], float) for row in rows) else tables.TEXT for name in rows[0]
        }  # fmt: skip
        texts = [
            {name: str(each) if columns[name] == tables.TEXT else each for name, each in row.items()} for row in rows
        ]
        return tables.Table(columns, tuple(texts))

    def to_pandas(self) -> pandas.DataFrame:
        """`table` as a pandas DataFrame, with one row for each option."""
        return self.table().to_pandas()

    def plain(self) -> dict[str, Any]:
        """The result as JSON has it."""
        return {
            "name": self.name, "samples": self.samples, "sentence": self.sentence, "notes": list(self.notes),
            "places": [_plain(place) for place in self.places],
            "quantities": [
                {
                    "key": each.key, "value": each.value, "unit": each.unit, "distribution": each.distribution.shape,
                    "low": each.distribution.low, "high": each.distribution.high, "draw": each.draws_as,
                    "source": each.source, "measured_by": each.measured_by,
                }
                for each in self.quantities
            ],
            "exact": list(self.exact),
        }  # fmt: skip


# ---- study


def find_sure(
    selection: Selection,
    samples: int,
    folder: Path | None,
    jobs: int | None = None,
    watcher: Watcher | None = None,
    scheduler: str | None = None,
) -> Sure:
    """Run the worlds and say how sure the answer is. ``folder``: keeps the runs in ``worlds/``, where a later call
    finds them; ``scheduler``: as of `propagate`. Raises ArchsimError for too few samples; FailedRuns.
    """
    if folder is None:
        with TemporaryDirectory(prefix="archsim-") as made:
            return find_sure(selection, samples, Path(made), jobs, watcher, scheduler)
    runs, point = selection.runs(), selection.plan.point(selection.kept[0])

    name, traces = selection.plan.experiment.name, selection.maker.traces
    return _answer(name, runs, _places, point, traces, samples, folder, jobs, watcher or Unwatched(), scheduler)


def sure_of_sides(
    sides: Mapping[str, experiment.ExperimentSpec],
    samples: int,
    folder: Path,
    jobs: int | None = None,
    watcher: Watcher | None = None,
) -> Sure:
    """How sure the order of some single combinations is, by name; page and tables are written to the folder."""
    watcher = watcher or Unwatched()
    chosen = {name: select(each, watcher.phase) for name, each in sides.items()}
    runs = [each.runs()[0] for each in chosen.values()]
    traces = {key: trace for each in chosen.values() for key, trace in each.maker.traces.items()}
    title = " and ".join(sides)

    def places(found: Sequence[InWorlds]) -> Iterable[tuple[dict[str, Any], dict[str, InWorlds]]]:
        return [({"compared": title}, dict(zip(sides, found, strict=True)))]

    first = next(iter(chosen.values()))
    point = first.plan.point(first.kept[0])
    answer = _answer(title, runs, places, point, traces, samples, folder, jobs, watcher)
    write_sure(answer, folder)
    return answer


def _answer(
    name: str,
    runs: Sequence[Run],
    places_of: Callable[[Sequence[InWorlds]], Iterable[tuple[dict, dict]]],
    point: plan.Point,
    traces: Any,
    samples: int,
    folder: Path,
    jobs: int | None,
    watcher: Watcher,
    scheduler: str | None = None,
) -> Sure:
    """``places_of``: the runs that are compared; ``point``: of the first run, for what it costs."""
    refuse_few(samples)
    files.own_folder(folder)
    worlds = Worlds(runs, samples)
    every = planned(runs, worlds)
    watcher.phase(_estimate(point, every, samples))
    found = propagate(runs, worlds, folder / _FOLDER, traces, jobs, watcher, scheduler)
    watcher.phase("finding what the answer depends on")
    named = {each.quantity.key: each.quantity for run in runs for each in worlds.quantities(run, run.engine)}
    places = tuple(_place(of, options, worlds, named) for of, options in places_of(found))
    exact = dict.fromkeys(key for run in runs for key in exact_of(run.system) if key not in named)
    others = [_of_traffic(worlds)] if worlds.traffics else []
    if any(option.economics for place in places for option in place.options):
        others += economics_of(Coefficients())
    return Sure(name, samples, places, (*named.values(), *others), tuple(exact), tuple(_notes(runs, found, worlds)))


def sure_into(
    selection: Selection,
    samples: int,
    folder: Path,
    jobs: int | None,
    watcher: Watcher | None = None,
    scheduler: str | None = None,
) -> Sure:
    """Like `find_sure`, but also writes the page and the tables to the folder."""
    found = find_sure(selection, samples, folder, jobs, watcher, scheduler)
    write_sure(found, folder)
    return found


def _of_traffic(worlds: Worlds) -> Quantity:
    """Which draw of the traffic a world has, as a share of them by their time."""
    told = f"{worlds.traffics} draws of the traffic, the machine as it is (configs/uncertainty/widths.yaml, traffic)"
    return Quantity(TRAFFIC, 0.5, "", told, Distribution("uniform", 0.0, 0.5, 1.0))


def _estimate(point: plan.Point, every: Sequence[Run], samples: int) -> str:
    """What is ahead, by what `archsim check` expects of single runs."""
    whole = len(point.model.moe_layer_ids)
    ns = {
        key: cost_of(point._replace(engine=key[0])).host_ns * (key[1] or whole) / (point.workload.layers or whole)
        for key in {(run.engine, run.workload.layers) for run in every}
    }
    seconds = sums.sum(ns[run.engine, run.workload.layers] for run in every) / 1e9
    fast = sums.sum(run.engine == FAST for run in every)
    return (
        f"simulating {samples} worlds, which takes {fast:,} runs on the analytical engine and {len(every) - fast:,} on "
        f"others, about {errors.spoken(max(seconds, 1))} of processor time"
    )


def _places(found: Sequence[InWorlds]) -> Iterable[tuple[dict[str, Any], dict[str, InWorlds]]]:
    """Runs that are compared, by name."""
    together: dict[tuple, tuple[dict[str, Any], dict[str, InWorlds]]] = {}
    several = len({each.run.policy.name for each in found}) > 1
    systems = len({each.run.system.name for each in found}) > 1
    for each in found:
        run = each.run
        of = {"system": run.system.name, "model": run.model.name, "batch": run.batch,
              "assumptions": run.assumptions.label}  # fmt: skip
        if several:
            option = run.policy.name
        else:
            option = str(of.pop("system")) if systems else run.policy.name
        of |= {"axes": run.axes} if run.axes and several else {}
        if not several and run.axes:
            option = run.axes
        together.setdefault(tuple(of.items()), (of, {}))[1][option] = each
    return together.values()


def _place(
    of: dict[str, Any], found: Mapping[str, InWorlds], worlds: Worlds, named: Mapping[str, Quantity]
) -> ComparedOptions:
    ns = {name: each.ns for name, each in found.items()}
    names = order(ns)
    pairs = tuple(pair(names[0], name, ns) for name in names[1:])
    further = tuple(pair(faster, slower, ns) for faster, slower in combinations(names[1:], 2))
    ties = [each for each in pairs if not each.sure]
    rest = [each for each in pairs if each.sure]
    headline = next(iter(rest or pairs), None)
    shares = fastest_shares(ns)
    options = tuple(_option(name, found[name], shares[name], worlds) for name in names)
    values = ns[headline.slower] / ns[headline.faster] if headline else ns[names[0]]
    read = {
        each.quantity.draws_as for one in found.values()
        for each in worlds.quantities(one.run, one.run.engine)
    } | {TRAFFIC}  # fmt: skip
    draws = {name: drawn for name, drawn in worlds.draws.items() if name in read}
    clean = {name: each.ns if each.by_layers is None else each.ns / each.by_layers for name, each in found.items()}
    told_by = clean[headline.slower] / clean[headline.faster] if headline else clean[names[0]]
    timed = _timed(found[names[0]])
    told = _told(names, ties, rest, options, worlds.samples, timed)
    if unknown := refuse_shares(len(draws), worlds.samples):
        return ComparedOptions(of, options, pairs, headline, told, (), (), ns, further, unknown, timed)
    expansion = expand(draws, told_by)
    rates = {name: expand(draws, float(np.mean(each)) / each) for name, each in clean.items()}
    rates = {name: _scaled(each, 1 / float(np.mean(ns[name]))) for name, each in rates.items()}
    measured = measurements(expansion, rates, draws, values, named)
    found_indices = _with_layers(indices(expansion, draws, told_by), told_by, values)
    return ComparedOptions(of, options, pairs, headline, told, found_indices, measured, ns, further, "", timed)


def _timed(found: InWorlds) -> str:
    """``time of decode in the 4 of 58 MoE layers that ran``: what a run's time is of."""
    run = found.run
    phase, every = "decode" if found.row["decode_ns"] else "prefill", len(run.model.moe_layer_ids)
    ran = every if run.workload.layers is None else min(run.workload.layers, every)
    return f"time of {phase}" if ran == every else f"time of {phase} in the {ran} of {every} MoE layers that ran"


def _with_layers(found: Sequence[Index], told_by: np.ndarray, values: np.ndarray) -> tuple[Index, ...]:
    """Indices of a value, float64[world], of which ``told_by`` is what draws decide, with that of the sample of layers
    (error: of a ratio of two variances of so many worlds, each known to the root of 2 / worlds).
    """
    whole, drawn = float(np.var(values)), float(np.var(told_by))
    if whole == drawn or not whole > 0:
        return tuple(found)
    others = min(1.0, drawn / whole)
    error = others * 2 / float(np.sqrt(len(values)))
    layers = Index(LAYERS, 1 - others, error, 1 - others, error)
    scaled = [each._replace(**{name: value * others for name, value in each._asdict().items() if name != "name"})
              for each in found]  # fmt: skip
    return tuple(sorted([*scaled, layers], key=lambda each: (-each.total, each.name)))


def _scaled(expansion: Expansion, by: float) -> Expansion:
    return Expansion(expansion.names, expansion.degrees, expansion.coefficients * by, expansion.left * by * by)


def _option(name: str, found: InWorlds, fastest: float, worlds: Worlds) -> Option:
    rate = found.row["throughput_tokens_per_s"]
    tokens, paid = interval(found.tokens_per_s) if rate else None, _economics(found, worlds)
    return Option(name, found.value_ns, interval(found.ns), rate, tokens, fastest, found.agreement, paid)


def _economics(found: InWorlds, worlds: Worlds) -> dict[str, tuple[float, Interval]]:
    """Energy of a token and price of the machine, in all worlds: bytes and FLOP are those of the run, its time that of
    the world, coefficients are drawn beside (`archsim.uncertainty.worlds.economics_of`), and so is the machine.
    """
    run, row = found.run, found.row
    if any(row.get(name) is None for name in ECONOMICS):
        return {}
    activity, coefficients = activity_of(run.model, row), Coefficients()
    quantities = economics_of(coefficients)
    draws = draws_of([each.key for each in quantities], worlds.samples, seed=1)
    drawn = {each.key.partition(".")[2]: each.distribution.at(draws[each.key]) for each in quantities}
    values: dict[str, list[float]] = {name: [] for name in ECONOMICS}
    for at, world in enumerate(worlds.runs(run, run.engine)):
        known = coefficients.changed({name: float(each[at]) for name, each in drawn.items()})
        slower = replace(activity, time_s=activity.time_s * found.ns[at] / found.value_ns)
        machine = build_costs(world.system, known)
        values["energy_per_token_j"].append(sums.sum(energy_of(slower, machine, known).values()) / activity.tokens)
        values["cost_usd"].append(sums.sum(machine.usd.values()))
    return {name: (float(row[name]), interval(np.array(each))) for name, each in values.items()}


def measurements(
    expansion: Expansion,
    rates: Mapping[str, Expansion],
    draws: Mapping[str, np.ndarray],
    values: np.ndarray,
    named: Mapping[str, Quantity],
) -> tuple[Measurement, ...]:
    """What each command would tell of a value, the most for an hour of measuring first. Those that neither narrow its
    interval nor could change which option is chosen are left out. ``expansion``: of the value; ``rates``: of the
    throughput of each option; ``named``: by key.
    """
    found, before = [], interval(values)
    for name, command in uncertainty.load_widths().commands.items():
        known = sorted({each.draws_as for each in named.values() if each.measured_by == name} & set(draws))
        if known:
            after, worth = narrowed(expansion, draws, values, known), worth_knowing(rates, draws, known)
            if after.width < NARROWER * before.width or worth > _LEAST_WORTH:
                found.append(Measurement(command, tuple(known), after, worth))
    return tuple(sorted(found, key=lambda each: (each.narrowed.width - before.width) / each.command.minutes))


# ---- words


def _told(
    names: Sequence[str],
    ties: Sequence[OptionPair],
    rest: Sequence[OptionPair],
    options: Sequence[Option],
    samples: int,
    timed: str,
) -> str:
    if not ties and not rest:
        ns = options[0].ns
        value, low, high = told_interval(options[0].value_ns, ns.p05, ns.p95, TIME_UNITS)
        of = timed.removeprefix("time of ")
        return f"{names[0]} takes {value} for {of}. In 90 % of {samples} worlds it takes {low} to {high}."
    sure = ""
    if rest:
        low, high = written_ends(rest[0].ratio)
        by = f"{rest[0].ratio.p50:.2f}×"
        sure = f"{by} faster than {rest[0].slower}, and {low}× to {high}× in 90 % of the worlds"
    if not ties:
        most = f"{names[0]} is the fastest in {percent(options[0].fastest)} of {samples} worlds"
        return f"{most}. It is {sure}."
    closest = ties[0]
    tied = listed([names[0], *(each.slower for each in ties)])
    if max(closest.probability, closest.reverse) < _NEVER:
        said = f"{tied} are a tie: {names[0]} and {closest.slower} take the same time in all {samples} worlds."
    else:
        said = (
            f"{tied} are a tie: {names[0]} is faster than {closest.slower} in {percent(closest.probability)} of "
            f"{samples} worlds and slower in {percent(closest.reverse)}."
        )
    return f"{said} {names[0]} is {sure}." if rest else said


def written_range(ratio: Interval) -> str:
    """``1.21–1.44``."""
    return "–".join(written_ends(ratio))


def written_ends(ratio: Interval) -> tuple[str, str]:
    """``1.21`` and ``1.44``, in digits that tell the ends apart."""
    for digits in (2, 3, 4):
        low, high = f"{ratio.p05:.{digits}f}", f"{ratio.p95:.{digits}f}"
        if low != high:
            break
    return low, high


def order_told(each: OptionPair) -> str:
    """``faster in 97 % of worlds``, or that it is a tie."""
    said = f"faster in {percent(each.probability)}, slower in {percent(each.reverse)} of worlds"
    return said if each.sure else f"a tie: {said}"


def measured_told(each: Measurement, place: ComparedOptions) -> str:
    """``Measuring grouped expert kernels of your die takes 40 minutes (`…`). It would narrow 1.02–1.68 to 1.2–1.4.``"""
    narrows = each.narrowed.width < NARROWER * place.ratio.width
    less = place.ratio.width - each.narrowed.width if narrows else 0.0
    digits = max(2, 1 - int(np.floor(np.log10(max(less, 1e-4))))) if less > 0 else 2

    def write(found: Interval) -> str:
        if place.headline:
            return f"{found.p05:.{digits}f}–{found.p95:.{digits}f}"
        return f"{scaled(found.p05, TIME_UNITS)}–{scaled(found.p95, TIME_UNITS)}"

    said = narrowing_told(each, write(place.ratio), write(each.narrowed), narrows)
    if each.worth < _LEAST_WORTH:
        return said
    return f"{said} The better choice that it allows is worth {percent(each.worth, 1)} of throughput."


def narrowing_told(each: Measurement, before: str, after: str, narrows: bool) -> str:
    """What a measurement would narrow an interval to; ``before``, ``after``: as written."""
    minutes = f"{each.command.minutes:g} minute{'' if each.command.minutes == 1 else 's'}"
    what = f"narrow {before} to {after}" if narrows else f"hardly narrow {before}, but could change which is the best"
    return f"Measuring {each.command.of} takes {minutes} (`{each.command.run}`). It would {what}."


def advised(measured: Sequence[str], found: Sequence[Index]) -> tuple[str, ...]:
    """What would make an answer surer: more layers where most of its variance is of those that did not run, then
    sentences on measurements. Without either, that no single measurement would; nothing of an answer without variance.
    """
    said = list(measured)
    layers = next((each.total for each in found if each.name == LAYERS), 0.0)
    if layers > _MOST_OF_IT:
        said.insert(0, f"{percent(layers)} of the variance is of layers that did not run. Simulate more of them first "
                       "(workload.layers).")  # fmt: skip
    if not said and any(each.total > 0 for each in found):
        return ("No single measurement that archsim knows would narrow the interval or change the choice.",)
    return tuple(said)


def _notes(runs: Sequence[Run], found: Sequence[InWorlds], worlds: Worlds) -> Iterable[str]:
    """What the intervals leave out, and what is in them beside numbers with a range."""
    if not worlds.traffics:
        yield "The traffic is a single draw of generated or recorded requests. The intervals leave its spread out."
    elif isinstance(runs[0].workload.trace, str):
        yield (
            "Worlds draw other requests of the recorded trace. How the routing of requests on other subjects would "
            "differ is not known."
        )
    layers, every = runs[0].workload.layers, len(runs[0].model.moe_layer_ids)
    if layers is not None and layers < every:
        error = max(each.layers for each in found)
        began = f"Only {layers} of {every} MoE layers ran."
        if layers > 1:
            yield f"{began} The standard error is up to {percent(error)}, which the intervals include."
        else:
            yield f"{began} One layer cannot tell how much the others differ, so the intervals leave that out."
    told = [(each.agreement, each.run) for each in found if each.agreement is not None]
    least, run = min(told, key=lambda each: each[0], default=(1.0, runs[0]))
    if least < 0.9:
        yield (
            f"The analytical engine explains {percent(least)} of how the time of {run.policy.name} varies on the "
            f"{run.engine} engine. The rest is estimated from the worlds that both engines ran."
        )


# ---- files


def _row(place: ComparedOptions, option: Option) -> dict[str, Any]:
    kind = "policy" if "system" in place.of else "option"
    row: dict[str, Any] = {key: str(value) for key, value in place.of.items()} | {kind: option.name}
    row |= {"decode_ns": option.value_ns} | ends_of("decode_ns", option.ns)
    row |= {"throughput_tokens_per_s": option.value_tokens_per_s}
    row |= ends_of("throughput_tokens_per_s", option.tokens_per_s)
    ratio = next((each for each in place.pairs if each.slower == option.name), None)
    row |= ends_of("time_over_fastest", Interval(1.0, 1.0, 1.0) if ratio is None else ratio.ratio)
    for name in ECONOMICS:
        value, spread = option.economics.get(name, (None, None))
        row |= {name: value} | ends_of(name, spread)
    return row | {"fastest_share": option.fastest, "slower_share": 0.0 if ratio is None else ratio.probability}


def ends_of(name: str, found: Interval | None) -> dict[str, float | None]:
    """``name_p05``, ``name_p50`` and ``name_p95`` of an interval; None where there is none."""
    return {f"{name}_{end}": None if found is None else getattr(found, end) for end in Interval._fields}


def _plain(place: ComparedOptions) -> dict[str, Any]:
    return {
        "of": dict(place.of), "told": place.told, "unknown": place.unknown, "timed": place.timed,
        "options": [_row(place, each) for each in place.options],
        "pairs": [
            {"faster": each.faster, "slower": each.slower, "probability": each.probability, "reverse": each.reverse,
             "sure": each.sure, "told": order_told(each)} | ends_of("ratio", each.ratio)
            for each in (*place.pairs, *place.further)
        ],
        "indices": [each._asdict() for each in place.indices],
        "measure": [
            {"run": each.command.run, "minutes": each.command.minutes, "draws": list(each.names),
             "worth": each.worth, "told": measured_told(each, place)} | ends_of("narrowed", each.narrowed)
            for each in place.measurements
        ],
        "advice": list(place.advice),
    }  # fmt: skip


def write_sure(found: Sure, folder: Path) -> Path:
    """Write ``sure.html``, ``sure.csv`` and ``sure.json``; returns the path of the page. Equal results give equal
    bytes.
    """
    return write_files(found.table(), found.plain(), {"found": found, **section_of(found)}, folder)


def write_files(table: tables.Table, plain: Mapping[str, Any], context: Mapping[str, Any], folder: Path) -> Path:
    """The three files of worlds, of runs or of served requests. ``plain``: as JSON; ``context``: of the page, as
    `section_of` has it.
    """
    files.own_folder(folder)
    table.write_csv(folder / FILE)
    files.write_text(folder / JSON, json.dumps(plain, ensure_ascii=False, indent=1, allow_nan=False) + "\n")
    files.write_text(folder / PAGE, page.rendered("sure.html.j2", context))
    return folder / PAGE


def section_of(found: Sure) -> dict[str, Any]:
    """What the section "How sure is this?" shows."""
    return {
        "sure_places": [
            {
                "name": place.name, "told": place.told, "chart": whiskers(place), "tornado": tornado(place),
                "pairs": [(each.faster, each.slower, each.ratio, written_range(each.ratio), order_told(each))
                          for each in (*place.pairs, *place.further)],
                "measure": place.advice, "unknown": place.unknown, "timed": place.timed,
            }
            for place in found.places
        ],
        "sure_quantities": quantity_rows(found.quantities),
        "sure_exact": found.exact, "sure_notes": found.notes, "sure_samples": found.samples,
    }  # fmt: skip


def quantity_rows(quantities: Iterable[Quantity]) -> list[tuple[str, ...]]:
    """What the page tells of quantities: key, value, ends, shape, the name of the draw, source."""

    def written(value: float, unit: str) -> str:
        return f"{significant(value, 4)} {unit}".strip()

    return [
        (each.key, written(each.value, each.unit), written(each.distribution.low, each.unit),
         written(each.distribution.high, each.unit), each.distribution.shape, each.draws_as, each.source)
        for each in quantities
    ]  # fmt: skip


# ---- pictures


def whiskers(place: ComparedOptions) -> plots.Bars:
    """Time of every option: its median and its central 90 %."""
    ends = [(each.name, (each.ns.p05, each.ns.p50, each.ns.p95)) for each in place.options]
    return figures.option_times(f"{place.name}: {place.timed}", ends)


def tornado(place: ComparedOptions) -> plots.Bars | None:
    """Total indices of the draws on which the headline hangs, with two standard errors to each side."""
    return tornado_of(place.indices, place.name)


def tornado_of(found: Sequence[Index], name: str) -> plots.Bars | None:
    """Like `tornado`, but for the answer ``name``."""
    draws = []
    for each in found[:SHOWN]:
        if each.total > 0:
            low, high = max(0.0, each.total - 2 * each.total_error), min(1.0, each.total + 2 * each.total_error)
            draws.append((each.name.removeprefix("system."), each.first, low, each.total, high))
    return figures.variance_shares(name, draws)
