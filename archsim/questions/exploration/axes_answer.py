"""The first sentences of a sweep with axes: gain of the best value of a key, its equals, the cheapest, and what draws
cost. Axes of work (``workload``, ``model``, ``assumptions``) and of draws (wafers, seeds) are never choices; each
design counts with its fastest policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from archsim.base.errors import ArchsimError, capital
from archsim.questions.exploration.levels import as_quantities
from archsim.runs import executor, pool
from archsim.runs.plan import Selection
from archsim.runs.run import Workspace
from archsim.show.answers import iteration_at
from archsim.show.units import (
    RATE_UNITS,
    damage_text,
    listing,
    percent,
    percents_text,
    range_text,
    significant,
    times_text,
)
from archsim.specs.axes import WAFER, LinkedAxes
from archsim.specs.plan import SweepPlan
from archsim.specs.policies import RULE_TYPES, PolicySpec
from archsim.specs.variants import in_words
from archsim.uncertainty.estimate import Interval, interval
from archsim.uncertainty.plateau import PLATEAU, best_value, ratio_of
from archsim.uncertainty.propagation import InWorlds
from archsim.uncertainty.ranges import quick_worlds

MOST_RUNS = 18  # that are sampled, as on pages without axes
MOST_CASES = 3  # that the first sentence names
_DEARER = 1.05  # prices that differ by less are not named
_MOST_KEYS = 3  # of a design that are named
_WORK = ("workload", "model", "assumptions", "engine")  # roots of axes that are no choices
WHOLE = ("system",)  # path of an axis of whole systems
_DRAWS = ("wafer", "seed", "subject", "dead", "degraded")  # last keys of axes whose values are draws
Row = Mapping[str, Any]


class Ran(NamedTuple):
    """A run of the sweep. Its point is made where it is needed, as a sweep may have many."""

    number: int  # of its point
    choice: tuple[int, ...]  # as of `Point`
    policy: str  # its name in the experiment
    row: Row


@dataclass(frozen=True)
class AxesAnswer:
    """What a sweep with axes says first."""

    sentences: tuple[str, ...] = ()  # the first is the answer
    notes: tuple[str, ...] = ()  # why there are no ranges


@dataclass(frozen=True)
class Case:
    """Runs of equal work: design (its value of every group of keys) → policy → runs, one for each draw."""

    model: str
    system: str
    batch: int
    work: tuple[str, ...]  # values of the axes of work, in words
    runs: Mapping[tuple[int, ...], Mapping[str, tuple[Ran, ...]]]

    def best(self, design: tuple[int, ...]) -> str:
        policies = self.runs[design]
        return max(policies, key=lambda name: float(np.median([_rate(each) for each in policies[name]])))

    @property
    def where(self) -> str:
        return ", ".join([f"at batch {self.batch:,}", *self.work])


def _rate(ran: Ran) -> float:
    return float(ran.row["tokens_per_s"] or 0.0)


def _whole_rate(ran: Ran) -> float:
    return float(ran.row["batch"] * 1e9 / ran.row["iteration_ns"])


class Axes(NamedTuple):
    """Positions of the groups of axes."""

    keys: tuple[int, ...]
    draws: tuple[int, ...]
    work: tuple[int, ...]


def axes_of(groups: Sequence[LinkedAxes]) -> Axes:
    """Which groups of axes are keys of a design, draws, or work; an axis of whole policies is none of them."""
    keys, draws, work = [], [], []
    for at, group in enumerate(groups):
        paths = [axis.path for axis in group.axes]
        if any(path[-1] in _DRAWS for path in paths):
            draws.append(at)
        elif paths[0][0] in _WORK:
            work.append(at)
        elif paths[0] != ("policy",):
            keys.append(at)
    return Axes(tuple(keys), tuple(draws), tuple(work))


def answer_axes(selection: Selection, rows: Sequence[Row], samples: int, jobs: int) -> AxesAnswer:
    """``rows``: the results, with ``point``; ``samples``: worlds of the runs that are named; 0: none."""
    plan = selection.plan
    axes, cases = axes_of(plan.sweep.groups), _cases(plan, rows)
    if not cases:
        return AxesAnswer()
    if axes.draws:
        return _over_draws(selection, axes, cases)
    if axes.keys:  # of one design alone, nothing is said
        cases = sorted(cases, key=lambda case: len(case.runs) < 2)
    asked = _asked(plan, axes, cases)
    found: dict[int, InWorlds] = {}
    notes: tuple[str, ...] = ()
    if samples:
        try:
            found = _sampled(selection, asked, samples, jobs)
        except ArchsimError as error:
            notes = (f"No run has a range, as one of its samples cannot run: {error}",)
    drawn = Drawn(found, samples if found else 0)
    if axes.keys:
        said = [each for case in cases[:MOST_CASES] if (each := _case_sentence(plan, axes, case, drawn, cases[0]))]
    else:
        said = _policy_sentences(cases[:MOST_CASES], drawn)
    left = len(cases) - MOST_CASES
    more = [f"The table has {left} more {'case' if left == 1 else 'cases'}."] if left > 0 and said else []
    return AxesAnswer((*(f"{capital(each)}." for each in said), *more), notes)


@dataclass(frozen=True)
class Drawn:
    """Runs in worlds, by point."""

    found: Mapping[int, InWorlds]
    samples: int  # 0: none

    def rates(self, ran: Ran, whole: bool = False) -> np.ndarray | None:
        """float64[sample] tokens/s of MoE layers, or of ``whole`` iterations; None for a run that has none. Without
        samples, one: the run itself.
        """
        slower = np.ones(1)
        if self.samples:
            if (each := self.found.get(ran.number)) is None:
                return None
            slower = each.ns / each.value_ns
        if not whole:
            return _rate(ran) / slower
        if not ran.row.get("iteration_ns"):
            return None
        found: np.ndarray = ran.row["batch"] * 1e9 / iteration_at(ran.row, slower)
        return found

    def layers_error(self, one: Ran, other: Ran) -> float:
        """Standard error of the ratio of two runs by the layers that ran, as a share; 0 where all ran."""
        both = [self.found[each.number].by_layers for each in (one, other) if each.number in self.found]
        if len(both) < 2 or both[0] is None or both[1] is None:
            return 0.0
        return float(np.std(both[0] / both[1]))


def _cases(plan: SweepPlan, rows: Sequence[Row]) -> list[Case]:
    """Of the assumptions that a page begins with, the largest batch first."""
    axes, groups = axes_of(plan.sweep.groups), plan.sweep.groups
    of_work = [
        (at, axis) for at in axes.work for axis in groups[at].axes
        if axis.path[0] != "assumptions" and axis.path not in (("model",), ("workload", "batch"))
    ]  # fmt: skip
    paths = [axis.path for axis in plan.sweep.axes]
    rows = [row for row in rows if row.get("tokens_per_s")]
    labels = list(dict.fromkeys(row["assumptions"] for row in rows))
    label = next((each for each in labels if each.startswith("physical")), labels[-1] if labels else "")
    found: dict[tuple[Any, ...], dict[tuple[int, ...], dict[str, list[Ran]]]] = {}
    for row in rows:
        if row["assumptions"] != label:
            continue
        number = int(row["point"])
        *choice, system, _, _, _, policy = plan.indices_of(number)
        work = tuple(f"{axis.name} {in_words(axis.values[choice[at]])}" for at, axis in of_work)
        name = "the machine" if WHOLE in paths else plan.experiment.systems[system].name
        own = row["policy"] if ("policy",) in paths else plan.experiment.policies[policy].name
        designs = found.setdefault((row["model"], name, row["batch"], work), {})
        policies = designs.setdefault(tuple(choice[at] for at in axes.keys), {})
        policies.setdefault(own, []).append(Ran(number, tuple(choice), own, row))
    made = []
    for (model, name, batch, work), own in found.items():
        runs = {each: {policy: tuple(those) for policy, those in by.items()} for each, by in own.items()}
        made.append(Case(model, name, batch, work, runs))
    return sorted(made, key=lambda case: -case.batch)


def _asked(plan: SweepPlan, axes: Axes, cases: Sequence[Case]) -> list[Ran]:
    """The runs that are sampled: of every named case the first and the fastest designs, and the pair of the first."""
    found: dict[int, Ran] = {}

    def ask(runs: Sequence[Ran]) -> None:
        found.update({each.number: each for each in runs})

    if pair := _pair_of(plan, axes, cases[0]):
        ask([run for runs in cases[0].runs.values() for name in pair[:2] for run in runs[name]])
    shown = cases[:MOST_CASES]
    for at, case in enumerate(shown):
        room = (MOST_RUNS - len(found)) // (len(shown) - at)
        fastest = {design: case.runs[design][case.best(design)][0] for design in case.runs}
        first = next(iter(fastest))
        order = sorted(fastest, key=lambda design: (design != first, -_rate(fastest[design])))
        ask([fastest[design] for design in order[: max(2, room)]])
        if not axes.keys and len(case.runs[first]) > 1:
            ask([_beside(case, first)])
    return list(found.values())


def _sampled(selection: Selection, asked: Sequence[Ran], samples: int, jobs: int) -> dict[int, InWorlds]:
    runs = selection.maker.runs([selection.plan.point(each.number) for each in asked])
    found = quick_worlds(runs, [each.row for each in asked], selection.maker.traces, samples, jobs)
    return {each.number: world for each, world in zip(asked, found, strict=True)}


def _case_sentence(plan: SweepPlan, axes: Axes, case: Case, drawn: Drawn, of_first: Case) -> str:
    """``with topology switch, w48 decodes … 1.16 × (1.05–1.25) as fast as with mesh``; '' with nothing to compare.
    ``of_first``: the case of which the sentence speaks first.
    """
    first = case is of_first
    label = _labels(plan, axes, case)
    able = {
        design: (run, rates) for design in case.runs
        if (rates := drawn.rates(run := case.runs[design][case.best(design)][0])) is not None
    }  # fmt: skip
    if len(able) < 2:
        return ""
    designs = list(able)
    values = as_quantities([label(each) for each in case.runs]) if len(axes.keys) == 1 else None
    numbers = [] if values is None else [values[label(each)].number * values[label(each)].worth for each in designs]
    prices = [float(run.row["cost_usd"]) for run, _ in able.values()]
    best = best_value([rates for _, rates in able.values()], prices, numbers)
    every = [each.number * each.worth for each in (values or {}).values()]  # also of designs without samples
    end_of = best.end if numbers and numbers[best.best] in (min(every), max(every)) else ""
    chosen, at_first = designs[best.cheapest], designs[0]
    over = designs[best.worst] if 0 in best.equal else at_first
    (run, rates), (other, others) = able[chosen], able[over]
    key = _key(plan, axes)
    pair = _pair_clause(plan, axes, case, drawn) if first else ""
    of = f"{case.model} on {case.system} {case.where}"
    samples = f" in {percent(0.9)} of {drawn.samples} samples" if drawn.samples and first else ""
    if best.flat:
        (low, _), (high, _) = able[designs[best.worst]], able[designs[best.best]]
        over_worst = ratio_of(able[designs[best.best]][1], able[designs[best.worst]][1])
        ratio = times_text(*_ends(over_worst, _rate(high) / _rate(low)), within=samples)
        if numbers:
            order = np.argsort(numbers)
            values_text = f"from {label(designs[order[0]])} to {label(designs[order[-1]])}"
            said = f"{values_text}, {key}has no effect beyond the noise on {of}"
        else:
            named = (
                listing(map(label, designs))
                if len(designs) <= _MOST_KEYS + 1
                else f"{len(designs)} of {len(case.runs)} designs"
            )
            said = f"{named} are a tie for {of}"
        said += f" (best over worst {ratio})"
        cheapest = f", and {label(chosen)} is the cheapest ({_usd(min(prices))})" if min(prices) < max(prices) else ""
        return f"{pair}{said}{cheapest}"
    error = drawn.layers_error(run, other)
    layers = run.row.get("layers"), len(plan.point(run.number).model.moe_layer_ids)
    plainly = _rate(run) / _rate(other)
    of_layers = f", standard error of {layers[0]} of {layers[1]} layers ± {significant(error * plainly, 1)}"
    gain, of_layers = _ends(ratio_of(rates, others), plainly), of_layers if error else ""
    if spread := _whole_gain(drawn, run, other):
        ratio, layers_text = times_text(*spread, within=samples), f" (MoE layers: {times_text(*gain)}{of_layers})"
    else:
        ratio, layers_text = times_text(*gain, within=samples + of_layers), ""
    under = f" under {run.policy}" + (f" ({other.policy} with {label(over)})" if other.policy != run.policy else "")
    if first or (case.model, case.system) != (of_first.model, of_first.system):
        begin = f"with {key}{label(chosen)}, {case.system} decodes {case.model} {ratio} as fast as with {label(over)}"
        said = f"{begin} {case.where}{under}{layers_text}"
    else:
        said = f"{case.where}, it is {ratio} as fast with {label(chosen)} as with {label(over)}{under}{layers_text}"
    tied = _for_the_price(drawn, able, label, chosen, over)
    tied += _tied(label, designs, numbers, best.equal, best.cheapest, prices)
    end = f"; it is the {end_of} value that was tried, and beyond it more may be gained" if end_of else ""
    return f"{pair}{said}{tied}{end}"


def _whole_gain(drawn: Drawn, one: Ran, other: Ran) -> tuple[float, float, float] | None:
    """Of whole iterations, with its range; None where a run has none."""
    rates, others = drawn.rates(one, whole=True), drawn.rates(other, whole=True)
    if rates is None or others is None:
        return None
    return _ends(ratio_of(rates, others), _whole_rate(one) / _whole_rate(other))


def _ends(found: Interval, value: float) -> tuple[float, float, float]:
    return value, min(found.p05, value), max(found.p95, value)


Label = Callable[[tuple[int, ...]], str]


def _for_the_price(
    drawn: Drawn, able: Mapping[tuple[int, ...], tuple[Ran, np.ndarray]], label: Label, chosen: tuple[int, ...],
    over: tuple[int, ...],
) -> str:  # fmt: skip
    """``; it costs 5.2 × as much, and switch is 1.08 × (1.05–1.14) as fast for the same price``, by whole iterations
    where both have them; '' where the best costs hardly more.
    """

    def price(design: tuple[int, ...]) -> float:
        return float(able[design][0].row["cost_usd"])

    if price(chosen) < _DEARER * price(over):
        return ""
    other, others = able[over]
    gains = {
        each: _whole_gain(drawn, run, other) or _ends(ratio_of(rates, others), _rate(run) / _rate(other))
        for each, (run, rates) in able.items()
    }  # fmt: skip
    worth = max(able, key=lambda each: (gains[each][0] - 1) / max(price(each) / price(over) - 1, _DEARER - 1))
    more = f"; it costs {significant(price(chosen) / price(over), 2)} × as much"
    if worth in (chosen, over) or gains[worth][1] <= 1 + PLATEAU:
        return more
    gain = times_text(*gains[worth])
    at = price(worth) / price(over)
    if 1 / _DEARER < at < _DEARER:
        return f"{more}, and {label(worth)} is {gain} as fast for the same price, so take {label(worth)}"
    return f"{more}, and {label(worth)} is {gain} as fast for {significant(at, 2)} × the price"


def _usd(usd: float) -> str:
    return f"{float(f'{usd:.2g}'):,.0f} USD"


def _key(plan: SweepPlan, axes: Axes) -> str:
    """The one key that varies, with a space; '' of several, which stand in the names of designs."""
    names = [axis.path for at in axes.keys for axis in plan.sweep.groups[at].axes]
    return f"{_short(names[0])} " if len(names) == 1 else ""


def _short(path: tuple[str, ...]) -> str:
    return ".".join(path[1:]) or path[0] if path[0] == "system" else ".".join(path)


def _labels(plan: SweepPlan, axes: Axes, case: Case) -> Label:
    names = [(place, axis) for place, at in enumerate(axes.keys) for axis in plan.sweep.groups[at].axes]
    varying = [(place, axis) for place, axis in names if len({each[place] for each in case.runs}) > 1] or names

    def label(design: tuple[int, ...]) -> str:
        if len(names) == 1:
            return in_words(names[0][1].values[design[0]])
        if len(varying) > _MOST_KEYS:
            return f"point {next(iter(case.runs[design].values()))[0].number}"
        return listing(f"{_short(axis.path)} {in_words(axis.values[design[place]])}" for place, axis in varying)

    return label


def _tied(
    label: Label, designs: Sequence[tuple[int, ...]], numbers: Sequence[float], equal: Sequence[int], cheapest: int,
    prices: Sequence[float],
) -> str:  # fmt: skip
    """``; 4 TB/s to 16 TB/s are a tie with it and cost up to 1.1 × as much``; '' without others."""
    others = [at for at in equal if at != cheapest]
    if not others:
        return ""
    if numbers and len(others) > 2:
        order = sorted(others, key=lambda at: numbers[at])
        between = [at for at, number in enumerate(numbers) if numbers[order[0]] <= number <= numbers[order[-1]]]
        whole = set(between) <= set(equal)
        named = f"{label(designs[order[0]])} to {label(designs[order[-1]])}" if whole else f"{len(others)} others"
    else:
        named = listing(label(designs[at]) for at in others) if len(others) <= _MOST_KEYS else f"{len(others)} others"
    verb = "is" if len(others) == 1 else "are"
    most = max(prices[at] for at in others) / prices[cheapest] if prices[cheapest] else 1.0
    costs = "costs" if len(others) == 1 else "cost up to"
    dearer = f" and {costs} {significant(most, 3)} × as much" if most > 1 + PLATEAU / 10 else ""
    return f"; {named} {verb} a tie with it{dearer}"


# What a part of a policy adds, over a key whose values are numbers.


def _pair_of(plan: SweepPlan, axes: Axes, case: Case) -> tuple[str, str, str] | None:
    """(policy with a part, the same without it, the part): of prediction, where the policy without it is fastest; None
    without a key of numbers, or without such policies.
    """
    if len(axes.keys) != 1 or len(plan.sweep.groups[axes.keys[0]].axes) != 1 or len(case.runs) < 2:
        return None
    label = _labels(plan, axes, case)
    if as_quantities([label(each) for each in case.runs]) is None:
        return None
    names = set.intersection(*(set(policies) for policies in case.runs.values()))
    first = next(iter(case.runs.values()))
    policies = {name: plan.point(runs[0].number).policy for name, runs in first.items() if name in names}
    pairs = [
        (name, other, "prediction") for name, policy in policies.items() for other, without in policies.items()
        if policy.prediction.name != "none" and without.prediction.name == "none" and _differ_in(policy, without)
    ]  # fmt: skip

    def speed(pair: tuple[str, str, str]) -> float:
        return max(_rate(own[pair[1]][0]) for own in case.runs.values())

    return max(pairs, key=speed, default=None)


def _differ_in(policy: PolicySpec, without: PolicySpec) -> bool:
    return all(getattr(policy, part) == getattr(without, part) for part in RULE_TYPES if part != "prediction")


def _pair_clause(plan: SweepPlan, axes: Axes, case: Case, drawn: Drawn) -> str:
    """``prediction adds less than the noise from d2d.bandwidth 1 TB/s (0.5 to 2 TB/s) on, and ``; '' without a pair."""
    pair = _pair_of(plan, axes, case)
    if pair is None:
        return ""
    label = _labels(plan, axes, case)
    values = as_quantities([label(each) for each in case.runs])
    assert values is not None
    order = sorted(case.runs, key=lambda design: values[label(design)].number * values[label(design)].worth)
    gains = []
    for design in order:
        one, other = (drawn.rates(case.runs[design][name][0]) for name in pair[:2])
        if one is None or other is None:
            return ""
        gains.append(one / other)
    table, key, which = np.stack(gains), _key(plan, axes), f"{pair[0]} over {pair[1]}"
    nothing = [1 in best_value([row, np.ones(len(row))]).equal for row in table]
    least = min(at for at in range(len(order) + 1) if all(nothing[at:]))
    if least == len(order):
        last = f"{percents_text(interval(table[-1] - 1))} at {key}{label(order[-1])}"
        return f"{pair[2]} still adds {last}, the largest that was tried ({which}), and "
    starts = np.array([_start(table[:, sample]) for sample in range(table.shape[1])])
    low, high = (int(np.quantile(starts, end, method="inverted_cdf")) for end in (0.05, 0.95))
    ends = [label(order[at]) if at < len(order) else f"more than {label(order[-1])}" for at in (low, high)]
    if drawn.samples:
        spread = f" ({ends[0]} to {ends[1]})" if ends[0] != ends[1] else " (in all samples)"
    else:
        spread = ""
    smallest = ", the smallest that was tried" if not least else ""
    most = interval(table[least] - 1)
    return (
        f"{pair[2]} adds less than the noise from {key}{label(order[least])}{spread} on{smallest} ({which}: "
        f"{percents_text(most)}), and "
    )


def _start(gains: np.ndarray) -> int:
    """Position from which on no gain is above PLATEAU; the number of gains where the last one is."""
    above = np.flatnonzero(gains > 1 + PLATEAU)
    return int(above[-1]) + 1 if len(above) else 0


# Sweeps whose axes are work alone: the policies over it.


def _beside(case: Case, design: tuple[int, ...]) -> Ran:
    """What the fastest policy is compared with: ep, or the fastest of the others."""
    policies, best = case.runs[design], case.best(design)
    if "ep" in policies and best != "ep":
        return policies["ep"][0]
    others = [runs[0] for name, runs in policies.items() if name != best]
    return max(others, key=_rate)


def _policy_sentences(cases: Sequence[Case], drawn: Drawn) -> list[str]:
    """``at batch 1,024, allo decodes … 1.04 × as fast as ep``; cases of which the same is said share one."""
    found: dict[str, list[str]] = {}
    for case in cases:
        if said := _policies_sentence(case, drawn):
            found.setdefault(said, []).append(case.where)
    return [f"{'; '.join(where)}, {said}" for said, where in found.items()]


def _policies_sentence(case: Case, drawn: Drawn) -> str:
    (design,) = case.runs
    best = case.best(design)
    run = case.runs[design][best][0]
    if len(case.runs[design]) < 2:
        return _alone_sentence(case, run, drawn)
    other = _beside(case, design)
    rates, others = drawn.rates(run), drawn.rates(other)
    if rates is None or others is None:
        return ""
    ends = _ends(ratio_of(rates, others), _rate(run) / _rate(other))
    tie = ", a tie" if 1 in best_value([rates, others]).equal else ""
    return f"{best} decodes {case.model} on {case.system} {times_text(*ends)} as fast as {other.policy}{tie}"


def _alone_sentence(case: Case, run: Ran, drawn: Drawn) -> str:
    """``ep decodes 28 k tokens/s (26–30) of … on dojo in whole iterations``: of one policy, which nothing is beside."""
    whole = drawn.rates(run, whole=True)
    rates, value = (drawn.rates(run), _rate(run)) if whole is None else (whole, _whole_rate(run))
    if rates is None:
        return ""
    ends = _ends(interval(rates), value)[1:] if drawn.samples else None
    rate = range_text(value, ends, RATE_UNITS, f" in {percent(0.9)} of {drawn.samples} samples")
    by = "MoE layers alone" if whole is None else "whole iterations"
    return f"{run.policy} decodes {rate} of {case.model} on {case.system} in {by}"


# Draws: a distribution, and no best one.


def _over_draws(selection: Selection, axes: Axes, cases: Sequence[Case]) -> AxesAnswer:
    plan = selection.plan
    damaged = any(
        axis.path[0] == "system" and axis.path[-1] != "seed" or axis.path[:2] == WAFER[:2]
        for at in axes.draws for axis in plan.sweep.groups[at].axes
    )  # fmt: skip
    each_said = (
        _damage_sentence(selection, axes, case) if damaged else _seeds_sentence(plan, axes, case) for case in cases
    )
    said = list(islice(filter(None, each_said), MOST_CASES))  # those of further cases are not simulated
    return AxesAnswer(tuple(f"{capital(each)}." for each in said))


def _damage_sentence(selection: Selection, axes: Axes, case: Case) -> str:
    """``defects cost 4.1 % (1.2–9.0 %) of the throughput …``, of the fastest design over all machines made."""
    plan = selection.plan
    made = _draw_count(plan, axes)
    by_design = {
        design: np.sort([_rate(each) for each in case.runs[design][case.best(design)]]) for design in case.runs
    }  # fmt: skip
    design = max(by_design, key=lambda each: float(by_design[each].sum()))
    perfect = _perfect(selection, case, design)
    if perfect is None:
        return ""
    rates, policy = by_design[design], case.best(design)
    lost = interval(1 - rates / perfect[1])
    among = f" with {_labels(plan, axes, case)(design)}, the best of {len(case.runs)} designs," if axes.keys else ""
    theirs = "" if perfect[0] == policy else f" under {perfect[0]}"
    effect = f"defects {damage_text(lost)}"
    scrapped = f" of {made} that were made" if made > len(rates) else ""
    return (
        f"{effect} of {case.model} on {case.system}{among} {case.where} under "
        f"{policy}: the median and the central {percent(0.9)} of {len(rates)} sampled machines that work{scrapped}, "
        f"against the perfect machine{theirs}"
    )


def _draw_count(plan: SweepPlan, axes: Axes) -> int:
    return int(np.prod([len(plan.sweep.groups[at]) for at in axes.draws]))


def _perfect(selection: Selection, case: Case, design: tuple[int, ...]) -> tuple[str, float] | None:
    """(Policy, tokens/s) of the machine without defects under its fastest policy; None where it cannot run."""
    points = [selection.plan.point(runs[0].number) for runs in case.runs[design].values()]
    runs = selection.maker.runs([each._replace(system=each.system.as_made) for each in points])
    found = {}
    for run, record in executor.simulate_all(runs, 1, Workspace(traces=selection.maker.traces)):
        if not isinstance(record, pool.Failure) and (rate := record["row"].get("tokens_per_s")):
            found[run.policy.name] = float(rate)
    return max(found.items(), key=lambda each: each[1], default=None)


def _seeds_sentence(plan: SweepPlan, axes: Axes, case: Case) -> str:
    """The best design, or policy, over the first one in common draws."""
    count = _draw_count(plan, axes)
    if axes.keys and len(case.runs) > 1:
        label = _labels(plan, axes, case)
        options = {f"{_key(plan, axes)}{label(each)}": case.runs[each][case.best(each)] for each in case.runs}
    else:
        (design,) = list(case.runs)[:1]
        options = dict(case.runs[design])
    shared = set.intersection(*({_draw_of(axes, each) for each in runs} for runs in options.values()))
    if not shared:
        return ""
    rates = {}
    for name, runs in options.items():
        rates[name] = np.array([_rate(each) for each in runs if _draw_of(axes, each) in shared])
    names = list(rates)
    over = f"over {count} samples of {listing(_draw_names(plan, axes))}"
    if len(names) < 2:
        found = interval(rates[names[0]] / float(np.median(rates[names[0]])) - 1)
        return f"{over}, the throughput of {case.model} on {case.system} {case.where} changes by {percents_text(found)}"
    best = best_value([rates[name] for name in names])
    base = "ep" if "ep" in names else names[0]
    one, other = names[best.cheapest], base if names[best.cheapest] != base else names[best.worst]
    if best.flat:
        return f"{over}, {listing(names)} are a tie for {case.model} on {case.system} {case.where}"
    ends = ratio_of(rates[one], rates[other])
    return (
        f"{over}, {case.model} on {case.system} {case.where} is decoded {times_text(ends.p50, ends.p05, ends.p95)} as "
        f"fast with {one} as with {other} (median and central {percent(0.9)})"
    )


def _draw_of(axes: Axes, ran: Ran) -> tuple[int, ...]:
    return tuple(ran.choice[at] for at in axes.draws)


def _draw_names(plan: SweepPlan, axes: Axes) -> Iterator[str]:
    return (axis.name for at in axes.draws for axis in plan.sweep.groups[at].axes)
