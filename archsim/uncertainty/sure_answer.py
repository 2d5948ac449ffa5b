"""The answer of many worlds: options with intervals, what would make it surer, and its sentences and rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from archsim.base import sums, tables
from archsim.base.answer import Answer, Grid, Part
from archsim.base.errors import sentence as end_sentence
from archsim.base.tables import DataFrame
from archsim.base.uncertain import Quantity
from archsim.runs.named_runs import own_name
from archsim.runs.run import Run
from archsim.show.units import TIME_UNITS, listing, percent, with_unit
from archsim.show.units import interval as interval_text
from archsim.specs import uncertainty
from archsim.uncertainty.estimate import NO_DIFFERENCE, Index, Interval, OptionPair
from archsim.uncertainty.propagation import InWorlds
from archsim.uncertainty.worlds import Worlds

_LEAST_WORTH = NO_DIFFERENCE  # share of throughput
NARROWER = 0.95  # of the width before: a measurement that leaves more does not narrow an interval
_MOST_OF_IT = 0.5  # of the variance
_NEVER = 0.005  # share of worlds that reads as 0 %
LAYERS = "layers that did not run"
SHOWN = 10  # draws of a tornado, and of a table
LEAST_CAUSE = 0.005  # share of a variance that is printed
# Columns of energy and price that have an interval, and their unit.
ECONOMICS: Mapping[str, str] = MappingProxyType({"energy_per_token_j": "J per token", "cost_usd": "USD"})


@dataclass(frozen=True)
class Option:
    """A policy (or system) in all worlds."""

    name: str  # of the policy, system or axes
    value_ns: float  # without a draw
    ns: Interval  # time of decode
    value_tokens_per_s: float | None  # throughput without a draw
    tokens_per_s: Interval | None  # throughput
    fastest: float  # share of the worlds in which it is the fastest
    agreement: float | None  # of the two engines
    # of `ECONOMICS`, those that the run has: value, interval
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
    no_die: str = ""  # of a die that nobody can measure, the part that its laws are of; '': the die is there


@dataclass(frozen=True)
class ComparedOptions:
    """Options that are compared."""

    of: Mapping[str, Any]  # system, model and so on that they share
    options: tuple[Option, ...]  # the fastest first
    pairs: tuple[OptionPair, ...]  # the fastest against each other one
    headline: OptionPair | None  # the pair of the sentence; None with one option
    sentence: str  # the answer
    indices: tuple[Index, ...]  # what the answer depends on
    measurements: tuple[Measurement, ...]  # what would narrow it
    # option → float64[world] in ns
    samples: Mapping[str, np.ndarray] = field(repr=False, compare=False, default_factory=dict)
    further: tuple[OptionPair, ...] = ()  # the others against each other
    unknown: str = ""  # why there are no indices and measurements
    timed: str = "time of decode"  # what the times are of
    off_centre: tuple[str, ...] = ()  # why plain runs are not in the middle of their worlds

    @property
    def explained_text(self) -> str:
        """``the time of ep over that of base``: what the indices are of."""
        if self.headline is None:
            return f"the {self.timed} of {self.options[0].name}"
        return f"the time of {self.headline.slower} over that of {self.headline.faster}"

    @property
    def advice(self) -> tuple[str, ...]:
        """Sentences: what would make the answer surer."""
        return advice_sentences([measurement_sentence(each, self) for each in self.measurements], self.indices)

    @property
    def name(self) -> str:
        return name_of(self.of)

    @property
    def ratio(self) -> Interval:
        return self.options[0].ns if self.headline is None else self.headline.ratio


def name_of(of: Mapping[str, Any]) -> str:
    """``dojo, deepseek-v3, batch 4,096``: what options share."""
    return ", ".join(f"batch {value:,}" if key == "batch" else own_name(str(value)) for key, value in of.items())


@dataclass(frozen=True)
class Sure(tables.Shown):
    """``ar.sure``: the answer of an experiment in many worlds."""

    name: str  # of the experiment
    samples: int  # number of worlds
    places: tuple[ComparedOptions, ...]  # one for each system, model, batch and set of assumptions
    quantities: tuple[Quantity, ...]  # what was drawn
    exact: tuple[str, ...]  # keys of systems that count as exact
    notes: tuple[str, ...]  # what limits the answer

    def __repr__(self) -> str:
        return f"Sure({self.name!r}, {self.samples} samples: {self.sentence})"

    @property
    def sentence(self) -> str:
        """The answer, of the first place; of several, how many have a sure winner."""
        first = self.places[0].sentence
        if len(self.places) == 1:
            return first
        won = sums.sum(place.headline is not None and all(each.sure for each in place.pairs) for place in self.places)
        many = f"{won or 'none'} {'has' if won < 2 else 'have'}"
        return f"{self.places[0].name}: {first} Of {len(self.places)} cases, {many} a sure winner."

    def as_answer(self) -> Answer:
        """Sentences and tables of every place and what to measure; places with equal numbers share them."""
        equal: dict[str, tuple[list[Part], list[Part]]] = {}  # by all that is printed: its names, and it
        for place in self.places:
            options = [
                (each.name, *interval_text(each.ns.p50, each.ns.p05, each.ns.p95, TIME_UNITS), percent(each.fastest))
                for each in place.options
            ]
            heads = ("median", "5 %", "95 %", "fastest in")
            parts: list[Part] = [Grid(("",), options, heads)]
            if pairs := (*place.pairs, *place.further):
                ratios = (interval_text(each.ratio.p50, each.ratio.p05, each.ratio.p95) for each in pairs)
                rows = [
                    (each.faster, each.slower, order_sentence(each), *(f"{end}×" for end in ends))
                    for each, ends in zip(pairs, ratios, strict=True)
                ]
                parts.append(Grid(("faster", "slower", "order"), rows, ("by", "5 %", "95 %")))
            parts += [*causes_of(place.indices, place.unknown, place.explained_text), *place.advice]
            names, _ = equal.setdefault(repr((place.sentence, parts)), ([place.sentence], parts))
            names.append(f"{place.name}: {place.timed}")
        first = [self.sentence] if len(self.places) > 1 else []
        told = [each for names, parts in equal.values() for each in (*names, *parts)]
        return Answer([*first, *told], self.notes, self.plain())

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

    def to_pandas(self) -> DataFrame:
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


def causes_of(indices: Iterable[Index], unknown: str, what: str) -> list[Part]:
    """What the variance of ``what`` in worlds depends on. Shares of what each draw does alone add up to at most 100 %;
    what several do together counts for each of them under *with others*. ``unknown``: why it is not known.
    """
    if unknown:
        return [end_sentence(unknown)]
    large = [each for each in list(indices)[:SHOWN] if each.total > LEAST_CAUSE]
    if not large:
        return [f"No number that was sampled explains more than {percent(LEAST_CAUSE, 1)} of the variance of {what}."]
    rows = [
        (each.name, *map(percent, (each.first, 2 * each.first_error, each.total, 2 * each.total_error)))
        for each in large
    ]
    return [Grid((f"{what} depends on",), rows, ("share of the variance, alone", "±", "with others", "±"))]


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
        "of": dict(place.of), "told": place.sentence, "unknown": place.unknown, "timed": place.timed,
        "explained": place.explained_text,
        "options": [_row(place, each) for each in place.options],
        "pairs": [
            {"faster": each.faster, "slower": each.slower, "probability": each.probability, "reverse": each.reverse,
             "sure": each.sure, "told": order_sentence(each)} | ends_of("ratio", each.ratio)
            for each in (*place.pairs, *place.further)
        ],
        "indices": [each._asdict() for each in place.indices],
        "measure": [
            {"run": each.command.run, "minutes": each.command.minutes, "draws": list(each.names),
             "worth": each.worth, "told": measurement_sentence(each, place)} | ends_of("narrowed", each.narrowed)
            for each in place.measurements
        ],
        "advice": list(place.advice),
    }  # fmt: skip


def order_of_options(
    names: Sequence[str],
    ties: Sequence[OptionPair],
    rest: Sequence[OptionPair],
    options: Sequence[Option],
    samples: int,
    timed: str,
) -> str:
    if not ties and not rest:
        ns = options[0].ns
        value, low, high = interval_text(options[0].value_ns, ns.p05, ns.p95, TIME_UNITS)
        of = timed.removeprefix("time of ")
        return f"{names[0]} takes {value} for {of}. In 90 % of {samples} samples it takes {low} to {high}."
    sure = ""
    if rest:
        low, high = written_ends(rest[0].ratio)
        by = f"{rest[0].ratio.p50:.2f}×"
        sure = f"{by} faster than {rest[0].slower}, and {low}× to {high}× in 90 % of the samples"
    if not ties:
        most = f"{names[0]} is the fastest in {share_text(options[0].fastest, samples)}"
        return f"{most}. It is {sure}."
    closest = max(ties, key=lambda each: each.ratio.width)
    tied = listing([names[0], *(each.slower for each in ties)])
    if max(closest.probability, closest.reverse) < _NEVER:
        said = f"{tied} are a tie: {names[0]} and {closest.slower} take the same time in all {samples} samples."
    else:
        said = (
            f"{tied} are a tie: {names[0]} is faster than {closest.slower} in "
            f"{share_text(closest.probability, samples)} and slower in {percent(closest.reverse)}."
        )
    return f"{said} {names[0]} is {sure}." if rest else said


def share_text(share: float, worlds: int) -> str:
    """``88 % of 256 worlds (± 4 points)``: with two standard errors, of a share that is drawn in towards the middle by
    two worlds on each side, so that one of 0 or 1 has an error, too (Agresti and Coull, 1998).
    """
    near = (share * worlds + 2) / (worlds + 4)
    error = 2 * float(np.sqrt(near * (1 - near) / (worlds + 4)))
    return f"{percent(share)} of {worlds} samples (± {max(1, round(100 * error))} points)"


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


def order_sentence(each: OptionPair) -> str:
    """``faster in 97 % of worlds``, or that it is a tie."""
    said = f"faster in {percent(each.probability)}, slower in {percent(each.reverse)} of samples"
    return said if each.sure else f"a tie: {said}"


def measurement_sentence(each: Measurement, place: ComparedOptions) -> str:
    """``Measuring grouped expert kernels of your die takes 40 minutes (`…`). It would narrow 1.02–1.68 to 1.2–1.4.``"""
    narrows = each.narrowed.width < NARROWER * place.ratio.width
    less = place.ratio.width - each.narrowed.width if narrows else 0.0
    digits = max(2, 1 - int(np.floor(np.log10(max(less, 1e-4))))) if less > 0 else 2

    def write(found: Interval) -> str:
        if place.headline:
            return f"{found.p05:.{digits}f}–{found.p95:.{digits}f}"
        return f"{with_unit(found.p05, TIME_UNITS)}–{with_unit(found.p95, TIME_UNITS)}"

    said = narrowing_sentence(each, write(place.ratio), write(each.narrowed), narrows)
    if each.worth < _LEAST_WORTH:
        return said
    return f"{said} The better choice that it allows is worth {percent(each.worth, 1)} of throughput."


def narrowing_sentence(each: Measurement, before: str, after: str, narrows: bool) -> str:
    """What a measurement would narrow an interval to; ``before``, ``after``: as written."""
    minutes = f"{each.command.minutes:g} minute{'' if each.command.minutes == 1 else 's'}"
    what = f"narrow {before} to {after}" if narrows else f"hardly narrow {before}, but could change which is the best"
    if each.no_die:
        return (
            f"There is no such die to measure. On a similar part, such as {each.no_die}, `{each.command.run}` takes "
            f"{minutes}; else take {each.command.simulated}. Known exactly, {listing(each.names)} would {what}."
        )
    return f"Measuring {each.command.of} takes {minutes} (`{each.command.run}`). It would {what}."


def advice_sentences(measured: Sequence[str], found: Sequence[Index]) -> tuple[str, ...]:
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
        yield "The traffic is a single sample of generated or recorded requests. The intervals leave its spread out."
    elif isinstance(runs[0].workload.trace, str):
        yield (
            "Samples take other requests of the recorded trace. How the routing of requests on other topics would "
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
    agreed = [(each.agreement, each.run) for each in found if each.agreement is not None]
    least, run = min(agreed, key=lambda each: each[0], default=(1.0, runs[0]))
    if least < 0.9:
        yield (
            f"The analytical engine explains {percent(least)} of how the time of {run.policy.name} varies on the "
            f"{run.engine} engine. The rest is estimated from the samples that both engines ran."
        )
