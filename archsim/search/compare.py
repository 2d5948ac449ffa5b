"""Compares options: the frontier of every side within limits, its range in many worlds, and where the order turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from archsim.base import errors, yaml
from archsim.base.quantities import TIME, format_quantity
from archsim.base.tables import INTEGER, REAL, TEXT, Shown, Table
from archsim.base.verbs import caller_name
from archsim.model.spec import ModelSpec
from archsim.questions.machine_price import price_machine
from archsim.runs.executor import do_all
from archsim.runs.prices import build_costs
from archsim.search import machines, worlds
from archsim.search.frontier import Crossing, Curve, Frontier, crossing_of, grid_of
from archsim.search.limits import Limits
from archsim.search.machines import Batch, Machine, Used, batch_of, experiment_of, run_of
from archsim.search.options import EQUALS, FIRST, Requests, Side, largest_model
from archsim.show.units import listing, percent
from archsim.specs import references
from archsim.specs.experiment import ExperimentSpec
from archsim.uncertainty.estimate import NO_DIFFERENCE, Interval, OptionPair, interval, pair

if TYPE_CHECKING:
    import pandas

SAMPLES = 32  # worlds
PARTS = 2  # of them, each simulated in one process
NEVER = 1e-9  # tokens/s, of a side that keeps no limit
UNITS: Mapping[str, str] = {
    "machines": "", "devices": "per device", "usd": "per dollar", "w": "per watt", "mm2": "per mm² of silicon",
}  # fmt: skip


@dataclass(frozen=True)
class Varied:
    """A key and its values."""

    key: str  # of the system
    values: tuple[Any, ...]  # as given
    numbers: tuple[float, ...]  # in base units; (): no numbers
    keys: tuple[str, ...] = ()  # of every value its key, where several vary; '' of the machine as it is, the first


@dataclass(frozen=True, eq=False)
class Compared:
    """One side."""

    machine: Machine
    frontier: Frontier  # of one machine; world 0 is without a draw
    chosen: Used  # how it is used at the limit, or for most tokens
    batch: Batch  # of one engine of it, as simulated
    simulated: float  # time of a batch as simulated over its estimate, by which its times are scaled
    rates: np.ndarray  # float64[1 + world] tokens/s of all machines at the limit; the first without a draw
    usd: np.ndarray  # float64[1 + world] of making all machines
    file: ExperimentSpec  # that runs it

    @property
    def side(self) -> Side:
        return self.machine.side

    @property
    def range(self) -> Interval:
        """Of the rates in samples, or of the one without a draw."""
        return interval(self.rates[1:] if len(self.rates) > 1 else self.rates)

    @property
    def keeps(self) -> bool:
        """Whether it serves anything within the limits, without a draw and in half of the samples."""
        return bool(self.rates[0] > NEVER and self.range.p50 > NEVER)

    def amount(self, equal: str) -> np.ndarray | float:
        """How much of a budget all machines are."""
        system, count = self.machine.system, self.side.machines
        if equal == "usd":
            return self.usd
        watts = self.batch.watts * self.chosen.way.engines
        each = {"machines": 1.0, "devices": system.dies, "w": watts, "mm2": build_costs(system).silicon_mm2}
        return float(count * each[equal]) if equal != "machines" else 1.0

    def per(self, equal: str) -> np.ndarray:
        """float64[1 + world]: tokens/s at the limit, of all machines or for a unit of a budget."""
        return self.rates / self.amount(equal)


@dataclass(frozen=True, eq=False)
class OptionComparison(Shown):
    """Sides compared as well as each can be used (`ar.compare`)."""

    sides: tuple[Compared, ...]
    model: ModelSpec
    limits: Limits
    requests: Requests
    equal: str  # of EQUALS: the budget by which the order turns
    samples: int  # worlds; 0: none
    notes: tuple[str, ...]
    grid: np.ndarray = field(repr=False)  # float64[limit] ns a token
    varied: Varied | None = None  # the key that varies; sides are then its values, of one machine after the other
    sentence: str = ""  # the answer (`archsim.search.answer`)
    reasons: tuple[str, ...] = ()  # why, a sentence each

    @cached_property
    def over_grid(self) -> tuple[np.ndarray, ...]:
        """float64[1 + world, limit] tokens/s of all machines of each side."""
        return tuple(each.side.machines * each.frontier.at(self.grid, self.limits.ttft_ns) for each in self.sides)

    def pair(self, one: int, other: int, equal: str) -> OptionPair:
        """How many times as much the one side serves as the other, at the limit."""
        names = self.sides[one].side.label, self.sides[other].side.label
        skip = 1 if self.samples else 0
        values = [self.sides[at].per(equal)[skip:] for at in (one, other)]
        costs = {name: 1 / np.maximum(each, NEVER) for name, each in zip(("a", "b"), values, strict=True)}
        return pair("a", "b", costs)._replace(faster=names[0], slower=names[1])

    @cached_property
    def ranked(self) -> list[int]:
        """The sides, of which the first serves most for the budget that they share."""

        def key(at: int) -> tuple[float, str]:
            return -float(np.median(self.sides[at].per(self.equal))), self.sides[at].side.label

        return sorted(range(len(self.sides)), key=key)

    @property
    def able(self) -> list[int]:
        """Those of them that keep the limits."""
        return [at for at in self.ranked if self.sides[at].keeps]

    def crossing(self, one: int, other: int, equal: str) -> Crossing | None:
        """Where the order of two sides turns, in ns a token."""
        a, b = self.sides[one], self.sides[other]
        with np.errstate(divide="ignore", invalid="ignore"):
            amounts, rates = [each.amount(equal) for each in (a, b)], (self.over_grid[one], self.over_grid[other])
            each = [rate / (amount[:, None] if isinstance(amount, np.ndarray) else amount)
                    for rate, amount in zip(rates, amounts, strict=True)]  # fmt: skip
            ratio = each[0] / each[1]
        return crossing_of(self.grid, ratio[0], ratio[1:])

    def __repr__(self) -> str:
        return f"OptionComparison({self.sentence})"

    @cached_property
    def table(self) -> Table:
        """A row for every batch of the ways that are shown; with samples, their medians."""
        rows, skip = [], 1 if self.samples else 0
        for each in self.sides:
            for used, curve in zip(each.machine.used, each.frontier.curves, strict=True):
                for at, batch in enumerate(used.batches):
                    rate = np.nan_to_num(curve.tokens_per_s[skip:, at]) * each.side.machines
                    ends, watts = interval(rate), each.side.machines * used.way.engines * batch.watts
                    rows.append({
                        "side": each.side.label, "way": used.way.label,
                        "engines": used.way.engines * each.side.machines, "batch": batch.batch,
                        "tpot_ms": float(np.nanmedian(curve.tpot_ns[skip:, at]) / 1e6),
                        "ttft_ms": float(np.nanmedian(curve.ttft_ns[skip:, at]) / 1e6), "tokens_per_s": ends.p50,
                        "tokens_per_s_p05": ends.p05, "tokens_per_s_p95": ends.p95,
                        "tokens_per_s_per_usd": float(np.median(rate / each.usd[skip:])),
                        "tokens_per_j": ends.p50 / max(watts, 1e-9),
                    })  # fmt: skip
        kinds = {"side": TEXT, "way": TEXT, "engines": INTEGER, "batch": INTEGER}
        return Table({name: kinds.get(name, REAL) for name in rows[0]}, tuple(rows))

    def to_pandas(self) -> pandas.DataFrame:
        """One row per batch of the ways that are shown."""
        return self.table.to_pandas()

    def as_json(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            "answer": self.sentence, "why": list(self.reasons), "samples": self.samples,
            "sides": [
                {
                    "side": each.side.label, "way": each.chosen.way.label, "batch": each.batch.batch,
                    "tokens_per_s": each.range.p50, "tokens_per_s_p05": each.range.p05,
                    "tokens_per_s_p95": each.range.p95, "usd": float(each.usd[0]),
                    "iteration_ms": each.batch.ns / 1e6,
                    "parts_ms": {name: ns / 1e6 for name, ns in each.batch.parts_ns.items()},
                }
                for each in self.sides
            ],
            "ratios": [
                {"equal": equal, "side": found.faster, "over": found.slower, "p50": found.ratio.p50,
                 "p05": found.ratio.p05, "p95": found.ratio.p95, "probability": found.probability}
                for one, other in combinations(self.able, 2)
                for equal in EQUALS for found in (self.pair(one, other, equal),)
            ],
            "notes": list(self.notes),
        }  # fmt: skip


def compare_machines(
    sides: Sequence[Side], model: str | ModelSpec | None, limits: Limits, requests: Requests, equal: str = "machines",
    pinned: Mapping[str, Any] | None = None, samples: int = SAMPLES, jobs: int = 1,
    say: Callable[[str], None] = lambda text: None, designs: Sequence[Any] = (), varied: Varied | None = None,
) -> OptionComparison:  # fmt: skip
    """``designs``: of each side the system of which it is a variant, where it is one; ``varied``: what varies. Raises
    SpecError for sides without a common model, and for limits that no side keeps.
    """
    shared = _common_model(sides, model)
    bases = [machines.base_of(side, shared) for side in sides]
    of = bases[0].models[0]
    if any(side.experiment is None for side in sides):
        of.refuse_longer(requests.prompt + requests.output, "a prompt with its output")
    found: list[Machine] = []
    for at, (side, base) in enumerate(zip(sides, bases, strict=True)):
        among: Sequence[Any] = ()
        if varied is not None and at % len(varied.values):  # as the first value of the same side
            among = [used.way for used in found[at - at % len(varied.values)].used]
        found.append(machines.machine_of(side, base, requests, limits, pinned or {}, say, jobs, among))
    _refuse_limits(found, limits, requests)
    designs = list(designs) or [each.system for each in found]
    frontiers = _in_worlds(found, designs, limits, requests, samples, jobs, say)
    compared = []
    for machine, frontier in zip(found, frontiers, strict=True):
        say(f"{machine.side.name}: simulating what was chosen")
        compared.append(_compare_side(machine, frontier, limits, requests, samples))
    comparison = OptionComparison(
        sides=tuple(compared), model=of, limits=limits, requests=requests, equal=equal, samples=samples,
        notes=_chosen_model(sides, model, of.name), grid=grid_of([each.frontier for each in compared]), varied=varied,
    )  # fmt: skip
    return replace(comparison, notes=(*comparison.notes, *_notes(comparison)))


def _chosen_model(sides: Sequence[Side], asked: Any, name: str) -> tuple[str, ...]:
    if asked is not None or any(side.experiment is not None for side in sides):
        return ()
    why = "" if name == FIRST else ", the largest that fits on every side"  # it is also served where none fits
    return (f"No model was named, so {name} is served{why} ({caller_name('model')} takes another)",)


def _common_model(sides: Sequence[Side], model: str | ModelSpec | None) -> str | ModelSpec:
    """Raises SpecError."""
    if isinstance(model, str):
        references.resolve("models", model, yaml.Place(f"{caller_name('model')} {model}"), None)
    if model is not None:
        for side in sides:
            if side.experiment is not None and (names := [each.name for each in side.experiment.models]):
                if str(getattr(model, "name", model)) not in names:
                    raise errors.SpecError(f"{side.name} has {', '.join(names)}, and not {model}: no common model")
        return model
    own = {f"{'ABCDEFGH'[at % 8]} ({side.name})": [each.name for each in side.experiment.models]
           for at, side in enumerate(sides) if side.experiment is not None}  # fmt: skip
    if not own:
        return largest_model([side.system for side in sides if side.system is not None])
    common = set.intersection(*map(set, own.values()))
    if not common:
        models_of = "; ".join(f"{name} has {', '.join(models)}" for name, models in own.items())
        raise errors.SpecError(
            f"the sides have no model in common: {models_of}. Give --model, or experiments that share one"
        )
    first = next(side.experiment for side in sides if side.experiment is not None)
    return next(each for each in first.models if each.name in common)


def _refuse_limits(found: Sequence[Machine], limits: Limits, requests: Requests) -> None:
    """Raise SpecError where no side keeps the limits: what is nearest, and what would help."""
    at = np.array([limits.tpot_ns if limits.tpot_ns < np.inf else 1e18])
    curves = [(each, used, used.nominal(requests.output)) for each in found for used in each.used]
    if any(curve.at(at, limits.ttft_ns).any() for _, _, curve in curves):
        return

    def over(curve: Any) -> float:
        return max(float(curve.tpot_ns[0, 0] / at[0]), float(curve.ttft_ns[0, 0] / limits.ttft_ns))

    machine, used, curve = min(curves, key=lambda each: over(each[2]))
    first = used.batches[0]
    part, ns = max(first.parts_ns.items(), key=lambda each: each[1])
    token, prompt = (format_quantity(float(f"{each[0, 0]:.3g}"), TIME) for each in (curve.tpot_ns, curve.ttft_ns))
    first_token = f" and the first one in {prompt}" if requests.prompts else ""
    raise errors.SpecError(
        f"no side is within the limits ({limits.words.removeprefix('At ')}). The nearest is {machine.side.name}, with "
        f"a token in {token}{first_token} ({used.way.label}, {first.batch} requests). {percent(ns / first.ns)} of an "
        f"iteration is {part.replace('_', ' ')}: raise the limit, or give a machine that is faster there"
    )


def _in_worlds(
    found: Sequence[Machine], designs: Sequence[Any], limits: Limits, requests: Requests, samples: int, jobs: int,
    say: Callable[[str], None],
) -> list[Frontier]:  # fmt: skip
    """The frontiers; world 0 is without a draw."""
    if not samples:
        return [Frontier([used.nominal(requests.output) for used in each.used]) for each in found]
    estimates = [_estimates(each, requests) for each in found]
    offs = []
    for each, design, at in zip(found, designs, estimates, strict=True):
        ways = [(used.way, used.batches[0].batch) for used in each.used]
        offs.append([
            worlds.off_of(machines.scenario_of(each.base, way, batch, requests, at.context), design)
            for way, batch in ways
        ])  # fmt: skip
    drawn = worlds.draws([off for own in offs for off in own], samples)
    # The way that serves most runs in all worlds at several batches; others take its factors, by their place.
    firsts = [worlds.InWorlds(at, own[0], drawn) for at, own in zip(estimates, offs, strict=True)]
    anchors = [_anchors(each.used[0], limits, requests) for each in found]
    tasks = [(at, tuple(range(first, samples, PARTS))) for at in range(len(found)) for first in range(PARTS)]
    known = [np.empty((samples, len(each))) for each in anchors]

    def in_worlds(task: tuple[int, tuple[int, ...]]) -> np.ndarray:
        return firsts[task[0]].batches(found[task[0]].used[0].way, anchors[task[0]], task[1])

    for done, ((at, among), longer) in enumerate(do_all(in_worlds, tasks, jobs), 1):
        known[at][list(among)] = longer
        say(f"{done} of {len(tasks)} parts of {samples} samples")
    frontiers = []
    for each, own, own_factors in zip(found, anchors, known, strict=True):
        curves, shown = [], each.used
        factors = worlds.factors_of(shown[0], own, own_factors)
        for used in shown:
            mine = factors if used is shown[0] else _by_place(shown[0], used, factors)
            rows = np.concatenate([np.ones((1, len(used.batches))), mine])
            largest = np.where(np.isnan(mine[:, -1]), mine[:, 0], mine[:, -1])  # where it can hold a limit of power
            prompts = np.concatenate([[1.0], largest])  # products decide both
            curves.append(used.curve(requests.output, rows, prompts))
        frontiers.append(Frontier(curves))
    return frontiers


def _by_place(first: Used, used: Used, factors: np.ndarray) -> np.ndarray:
    """Factors of another way, at the same requests a device."""

    def each(of: Used) -> np.ndarray:
        return np.log([batch.batch / of.way.engine.dies for batch in of.batches])

    return np.stack([np.exp(np.interp(each(used), each(first), np.log(row))) for row in factors])


def _estimates(machine: Machine, requests: Requests) -> machines.Estimates:
    own = machine.side.experiment is not None
    return machines.Estimates(machine.base, requests, machine.base.workload.context if own else None)


def _anchors(used: Used, limits: Limits, requests: Requests) -> list[int]:
    """Batches that run in all worlds: the smallest, the largest, and the one at the limit or halfway."""
    every = [each.batch for each in used.batches]
    token = used.nominal(requests.output).tpot_ns[0]
    middle = int(np.searchsorted(token, limits.tpot_ns)) if limits.tpot_ns < np.inf else len(every) // 2
    return sorted({every[0], every[-1], every[min(max(middle, 0), len(every) - 1)]})


def _compare_side(machine: Machine, found: Frontier, limits: Limits, requests: Requests, samples: int) -> Compared:
    """A side at the limit. Every way is simulated by the event engine with more layers, at its batch there, and its
    times are scaled by what that differs from its estimate; the best one again, where its batch then is another.
    """
    estimates = _estimates(machine, requests)

    def simulate(at: int, batch: int) -> tuple[Batch, ExperimentSpec, float]:
        simulated, file = _simulate(machine, machine.used[at], batch, requests)
        return simulated, file, simulated.ns / estimates.batch(machine.used[at].way, batch).ns

    ways = range(len(machine.used))
    known = [simulate(at, _batch_at(machine.used[at], found.curves[at], limits)) for at in ways]
    again: set[int] = set()
    while True:
        frontier = Frontier([found.curves[at].scaled(known[at][2]) for at in ways])
        best = _best_at(machine, frontier, limits)
        batch = _batch_at(machine.used[best], frontier.curves[best], limits)
        if best in again or batch == known[best][0].batch:
            break
        again.add(best)
        known[best] = simulate(best, batch)
    simulated, file, ratio = known[best]
    rates = machine.side.machines * frontier.at(_limit(limits), limits.ttft_ns)[:, 0]
    file = file.model_copy(update={"name": machines.re_named(machine.side.name)})
    return Compared(
        machine=machine,
        frontier=frontier,
        chosen=machine.used[best],
        batch=simulated,
        simulated=ratio,
        rates=rates,
        usd=machine.side.machines * price_machine(machine.system, samples=samples).own_usd,
        file=file,
    )


def _limit(limits: Limits) -> np.ndarray:
    """float64[1] ns a token; without a limit, more than any batch takes."""
    return np.array([limits.tpot_ns if limits.tpot_ns < np.inf else 1e18])


def _best_at(machine: Machine, frontier: Frontier, limits: Limits) -> int:
    """The way that serves most at the limit, without a draw; of equals that with the shortest token, then the shortest
    first one: more bandwidth then never chooses a larger batch that serves as much.
    """
    rates = np.array([curve.at(_limit(limits), limits.ttft_ns)[0, 0] for curve in frontier.curves])

    def times(at: int) -> tuple[float, ...]:
        curve, used = frontier.curves[at], machine.used[at]
        batch, sizes = _batch_at(used, curve, limits), [one.batch for one in used.batches]
        return tuple(float(np.interp(batch, sizes, ns[0])) for ns in (curve.tpot_ns, curve.ttft_ns))

    return min(np.flatnonzero(rates >= (1 - NO_DIFFERENCE) * rates.max()).tolist(), key=times)


def _batch_at(used: Used, curve: Curve, limits: Limits) -> int:
    """Requests of an engine at the limit, without a draw: the fewest that serve most."""
    sizes, within = np.array([one.batch for one in used.batches], float), curve.ttft_ns[0] <= limits.ttft_ns
    token, groups = np.maximum.accumulate(curve.tpot_ns[0]), used.way.groups
    if len(sizes) == 1 or not within.any():
        return int(sizes[0])
    largest = float(np.exp(np.interp(np.log(_limit(limits)[0]), np.log(token[within]), np.log(sizes[within]))))
    rate = curve.tokens_per_s[0][within & (sizes <= largest)]
    if len(rate) and curve.at(_limit(limits), limits.ttft_ns)[0, 0] <= rate.max() * (1 + 1e-9):
        return int(sizes[rate.argmax()])
    return int(max(groups, (largest * (1 + 1e-9)) // groups * groups))


def _simulate(machine: Machine, used: Used, batch: int, requests: Requests) -> tuple[Batch, ExperimentSpec]:
    file = experiment_of(
        machine.base, used.way, batch, requests, layers=machines.SIMULATED_LAYERS, engine="event",
        context=_estimates(machine, requests).context,
    )  # fmt: skip
    run, simulator = run_of(file)
    return batch_of(simulator.record(run, details=False)["row"], batch), file


def _notes(comparison: OptionComparison) -> list[str]:
    sides, requests, found = comparison.sides, comparison.requests, []
    if requests.prompts:
        found.append(
            f"Requests have {requests.prompt:,g} prompt and {requests.output:,g} output tokens. The time to the first "
            "token leaves out a queue"
        )
    else:
        found.append(
            f"Decodes alone, of requests with {requests.context:,} tokens on average: prompts are computed elsewhere. "
            "--ttft, --rate, --input or --output count them, too"
        )
    for each in sides:
        system = each.machine.system
        if system.datasheet_only:
            found.append(f"Nothing was measured on {system.name}: curves of another GPU are scaled by nominal rates")
        if each.machine.refused:
            found.append(
                f"{each.side.name}: {len(each.machine.refused)} of {each.machine.tried} ways to use it are refused, "
                f"such as {each.machine.refused[0][0]}: {each.machine.refused[0][1]}"
            )
        lost = int(np.isnan(each.frontier.curves[0].tpot_ns).any(axis=1).sum())
        if lost:
            found.append(
                f"{each.side.name}: in {lost} of {comparison.samples} samples it cannot hold its limits of power and "
                "heat with some batches, even at the lowest clock. These serve nothing there"
            )
    if comparison.varied is not None:
        found.append("All values are of one design, which share their samples")
    elif len(sides) > 1:
        leading = list(dict.fromkeys((*comparison.able, *comparison.ranked)))[:2]
        one, two = (sides[at].machine for at in leading)
        same, other = worlds.shared_parts(one.system, two.system)
        if other:
            found.append(
                f"{listing(other)} of {one.side.name} and {two.side.name} are different parts, whose samples are "
                "independent" + (f"; {listing(same)} are the same" if same else "")
            )
    found.append(
        "Prices are of making the machines (archsim hardware cost), and hosts take no time where their file says none"
    )
    found += [f"{comparison.model.name} is approximate: {each}" for each in comparison.model.approximate]
    return found
