"""What-ifs on deployments: files of `archsim serve`, or values of their keys, with the same requests in many worlds;
and what the time of one goes to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from archsim.base import errors, tables
from archsim.base.sums import sum
from archsim.iteration import layers
from archsim.iteration.times import Batches, iteration_times
from archsim.report.units import less_or_more, listing, percent
from archsim.search.best_deployment import best_sentence
from archsim.search.deployment_pair import NOTHING, at_limits, moved_limits, pair_sentence, short
from archsim.search.options import Side
from archsim.serving.measures import Measures, rent_of
from archsim.serving.outcome import Outcome
from archsim.serving.serving import serve
from archsim.specs import serving_files, uncertainty
from archsim.specs.serving import SloSpec
from archsim.studies.serving.runs import ServePlan, describe_values, serve_plan, shown
from archsim.studies.serving.sure import ServedOption, ServedSure, factors_of_laws, find_sure, write_sure
from archsim.uncertainty.estimate import Interval, interval
from archsim.uncertainty.worlds import draws_of, value_of

SAMPLES = 16  # each is served
WORLDS_OF_SHARES = 64  # of an iteration, whose times are scaled: nothing is served
# What an iteration is spent on, and the field of `archsim.iteration.constants.Host` by which that may be off.
_SPENT: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType({
    "links": ("moves", (layers.DISPATCH, layers.COMBINE, layers.ALL_REDUCE)),
    "GEMMs": ("products", (layers.PROJECTIONS, layers.DENSE_FFN, layers.ROUTER, layers.SHARED, layers.LM_HEAD)),
    "experts": ("experts", (layers.EXPERTS,)), "attention": ("attention", (layers.ATTENTION,)),
    "the host": ("iteration_ns", (layers.HOST,)),
    "other kernels": ("", (layers.ELEMENTWISE, layers.SAMPLING)),
})  # fmt: skip
# Groups of causes whose rates are doubled, and the field of `archsim.iteration.constants.Host` that is off with them.
_LEVERS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "GEMMs twice as fast": ("products",), "experts twice as fast": ("experts",),
    "attention twice as fast": ("attention",), "links twice as fast": ("moves",),
    "half the time of the host": ("iteration_ns", "sequence_ns", "prompt_ns", "request_ns", "front_end_ns"),
})  # fmt: skip


@dataclass(frozen=True, eq=False)
class DeploymentComparison(tables.Shown):
    """Deployments with the same worlds. ``sure``: their headlines in all of them; ``equal``: the budget for a unit of
    which they are compared.
    """

    sure: ServedSure
    names: tuple[str, ...]  # in the order in which they were given
    refused: tuple[tuple[str, str], ...]  # (name, why it cannot be served)
    equal: str  # machines (all that a file says), devices or usd
    amounts: Mapping[str, float]  # name → devices, or USD an hour
    limits_ms: Mapping[str, float]  # ttft, tpot → limit
    devices: Mapping[str, float]  # name → how many it takes
    is_closed_loop: bool  # whether clients wait for an answer before they ask again
    moved: Mapping[float, float]  # of two: factor on all limits → ratio of their goodputs; {} where no limit is near

    def option(self, name: str) -> ServedOption:
        """One of them."""
        return next(each for each in self.sure.options if each.name == name)

    @property
    def sentence(self) -> str:
        """Both values, their difference with its range, and whether it is a tie."""
        first, *others = [name for name in self.names if name not in dict(self.refused)]
        if not others:
            return f"{self.sure.sentence}.{self._refused_text()}"
        per = {"devices": " per device", "usd": " per dollar"}.get(self.equal, "")
        if len(others) > 1:
            said = best_sentence(self.sure, (first, *others), self.amounts, per, self.devices, self.limits_ms)
        else:
            said = pair_sentence(
                self.sure, first, others[0], self.amounts, per, self.limits_ms, self.moved, self.is_closed_loop
            )
        return f"{said.removesuffix('.')}{self._rejected_text()}.{self._refused_text()}"

    def _rejected_text(self) -> str:
        """How many requests are too long; where deployments differ in that, for which of them."""
        counts = {each.name: each.rejected[0] for each in self.sure.options}
        every = max((each.rejected[1] for each in self.sure.options), default=0)
        if not any(counts.values()):
            return ""
        if len(set(counts.values())) == 1:
            return f", and {max(counts.values()):,} of {every:,} requests are rejected as too long"
        each = listing(f"{few:,} with {short(name)}" for name, few in counts.items())
        return f", and of {every:,} requests, these are rejected as too long: {each}"

    def _refused_text(self) -> str:
        names: dict[str, list[str]] = {}
        for name, why in self.refused:
            names.setdefault(why.rstrip("."), []).append(short(name))
        return "".join(f" {listing(each)} cannot be served: {why}." for why, each in names.items())

    def __repr__(self) -> str:
        return f"DeploymentComparison({self.sentence})"

    @property
    def table(self) -> tables.Table:
        """As `ServedSure.table`."""
        return self.sure.table()

    def to_pandas(self) -> Any:
        """One row per deployment, with columns ``_p05``, ``_p50`` and ``_p95``."""
        return self.table.to_pandas()

    def as_json(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {"answer": self.sentence, "equal": self.equal, "refused": list(self.refused)} | self.sure.plain()


def compare_deployments(
    sides: Sequence[Side], vary: Mapping[str, Sequence[Any]], overrides: Sequence[str] = (), equal: str = "machines",
    rents: Mapping[str, float] = MappingProxyType({}), samples: int = SAMPLES, folder: Path | None = None,
    jobs: int | None = None, watcher: Any = None,
) -> DeploymentComparison:  # fmt: skip
    """Files, each with every combination of ``vary``, or else of its own ``sweep:``. Raises SpecError for less than
    two, for a key that a file does not have, and for a price that is not known.
    """
    if equal in ("w", "mm2"):
        raise errors.SpecError(f"--equal {equal}: deployments are compared by machines, devices or usd")
    points: list[serving_files.Serving] = []
    names: list[str] = []
    for side in sides:
        for each in product(*vary.values()):
            cell = dict(zip(vary, each, strict=True))
            changes = [*overrides, *(f"{key}={json.dumps(value)}" for key, value in cell.items())]
            plan = serve_plan(side.source, ["sweep=null", *changes] if vary else changes)
            for point, own in zip(plan.points, plan.cells, strict=True):
                words = describe_values({key: shown(value) for key, value in cell.items()} | own)
                names.append(" with ".join(filter(None, [side.name if len(sides) > 1 or not words else "", words])))
                points.append(point._replace(policies=point.policies[:1], axes=MappingProxyType({})))
    if len(points) < 2:
        raise errors.SpecError(
            f"{sides[0].name}: one deployment has nothing beside it. Give another file, or --vary KEY=[value, value]"
        )
    models = {point.model.name for point in points}
    if len(models) > 1:
        raise errors.SpecError(f"the sides have no model in common: {', '.join(sorted(models))}")
    return compare_points(points, names, equal, rents, samples, folder, jobs, watcher)


def _limits_ms(slo: SloSpec) -> dict[str, float]:
    """ttft, tpot → limit of a file, ms; those that it gives."""
    return {name: ns / 1e6 for name, ns in {"ttft": slo.ttft_ns, "tpot": slo.tpot_ns}.items() if ns}


def policies_sentence(plan: ServePlan, found: ServedSure, names: Sequence[str] = ()) -> str:
    """What is said of the policies of a file without axes. ``names``: theirs in ``found``, if not of the plan."""
    served, slo = {option.name for option in found.options}, plan.first.spec.slo
    names = [each for each in names or plan.names() if each in served]
    same = dict.fromkeys(names, 1.0)
    limits = _limits_ms(slo)
    is_loop, runs = bool(plan.first.spec.requests.concurrency), plan.runs()
    near = len(names) == len(runs) == 2 and at_limits(found.options, limits)
    moved = moved_limits(runs[0].serving, runs[1].serving) if near else {}
    return DeploymentComparison(found, tuple(names), (), "machines", same, limits, same, is_loop, moved).sentence


def compare_points(
    points: Sequence[serving_files.Serving], names: Sequence[str], equal: str = "machines",
    rents: Mapping[str, float] = MappingProxyType({}), samples: int = SAMPLES, folder: Path | None = None,
    jobs: int | None = None, watcher: Any = None,
) -> DeploymentComparison:  # fmt: skip
    """Deployments of one policy each, in the same worlds. Raises SpecError for a price that is not known."""
    amounts = {name: _amount(point, equal, rents) for name, point in zip(names, points, strict=True)}
    devices = {name: _amount(point, "devices", rents) for name, point in zip(names, points, strict=True)}
    refused: list[tuple[str, str]] = []
    found = find_sure(
        ServePlan(tuple(points), ({},) * len(points)), samples, folder, watcher, jobs, names=names,
        refused=lambda name, why: refused.append((name, why)),
    )  # fmt: skip
    slo = points[0].spec.slo
    limits = _limits_ms(slo)
    edges = at_limits(found.options, limits)
    moved = moved_limits(points[0], points[1]) if edges and len(points) == 2 and not refused else {}
    return DeploymentComparison(
        found, tuple(names), tuple(refused), equal, amounts, limits, devices,
        bool(points[0].spec.requests.concurrency), moved,
    )  # fmt: skip


def _amount(serving: serving_files.Serving, equal: str, rents: Mapping[str, float]) -> float:
    """Devices, or USD an hour, of a deployment. Raises SpecError for a price that is not known."""
    if equal == "machines":
        return 1.0
    total = 0.0
    for name, side in serving.spec.sides.items():
        system = serving.on(name).system
        devices = side.instances * side.parallel.devices
        gpu = system.compute.calibration or system.name
        rent = rent_of(gpu, rents)
        if equal == "usd" and rent is None:
            raise errors.SpecError(
                f"--equal usd: the price of {gpu} is not known: give --price {gpu}=USD (an hour of one device)"
            )
        total += devices * (rent.usd_per_hour if equal == "usd" and rent is not None else 1.0)
    return total


class ServedLever(NamedTuple):
    """What a change does to the means of a run."""

    what: str
    ttft: float  # relative change of mean TTFT
    tpot: float  # of mean TPOT
    goodput: float  # of requests within the limits a second


@dataclass(frozen=True, eq=False)
class ServedWhy(tables.Shown):
    """What the time of a deployment goes to, and what would help."""

    name: str
    outcome: Outcome
    shares: Mapping[str, Interval]  # what → share of a mean decode iteration in samples, the largest first
    levers: tuple[ServedLever, ...]  # most gain first

    @property
    def sentence(self) -> str:
        """Where a decode iteration goes, and the lever that helps most."""
        (first, share), *others = list(self.shares.items())[:3]
        spread = f"{percent(share.p05)} to {percent(share.p95)} in {percent(0.9)} of {WORLDS_OF_SHARES} samples"
        rest = [f"{percent(each.p50)} on {what}" for what, each in others]
        spent = listing([f"{percent(share.p50)} ({spread}) of a mean decode iteration on {first}", *rest])
        best = next(iter(self.levers), None)
        if best is None or max(-best.ttft, -best.tpot, best.goodput) < NOTHING:
            return f"{self.name} spends {spent}, and nothing that was tried would help."
        return (
            f"{self.name} spends {spent}; with {best.what}, TPOT would be {less_or_more(best.tpot)} and TTFT "
            f"{less_or_more(best.ttft)}, which helps most of all that was tried."
        )

    def __repr__(self) -> str:
        lines = [f"  {each.what}: TTFT {each.ttft:+.1%}, TPOT {each.tpot:+.1%}, goodput {each.goodput:+.1%}"
                 for each in self.levers]  # fmt: skip
        return "\n".join([self.sentence, *self.outcome.why_slow, *lines])

    def to_pandas(self) -> Any:
        """One row per change that was tried."""
        import pandas

        return pandas.DataFrame(list(self.levers), columns=list(ServedLever._fields))

    def as_json(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            "answer": self.sentence, "why": list(self.outcome.why_slow),
            "shares": {what: each._asdict() for what, each in self.shares.items()},
            "levers": [each._asdict() for each in self.levers],
        }  # fmt: skip


def why_deployment(
    serving: serving_files.Serving, name: str, say: Callable[[str], None] = lambda text: None
) -> ServedWhy:
    """Serve it, and again with each group of causes twice as fast."""
    say("serving the requests")
    outcome = serve(serving)
    own = outcome.measures
    levers = []
    for what, fields in _LEVERS.items():
        say(f"serving the requests with {what}")
        off = {side: MappingProxyType(dict.fromkeys(fields, 0.5)) for side in serving.spec.sides}
        found = serve(serving._replace(off=MappingProxyType(off))).measures
        levers.append(ServedLever(what, *(_change(own, found, name) for name in ("ttft", "tpot", "goodput"))))
    levers.sort(key=lambda each: each.tpot + each.ttft - 2 * max(each.goodput, 0.0))
    return ServedWhy(name, outcome, _shares(outcome), tuple(levers))


def _change(before: Measures, after: Measures, name: str) -> float:
    one, other = (each.goodput_per_s if name == "goodput" else getattr(each, name).mean for each in (before, after))
    return float(other / one - 1) if one and one == one and other == other else 0.0


def _shares(outcome: Outcome) -> dict[str, Interval]:
    """What → share of an iteration with the mean number of decodes at their mean context, as what laws are off moves
    it.
    """
    built, totals = outcome.deployment.decode or outcome.deployment.prefill, outcome.served.totals
    iterations = max(float(totals["iterations"]), 1.0)
    decodes = max(float(totals["sequences"]) / iterations, 1.0)
    context = float(np.mean(outcome.requests.input) + np.mean(outcome.requests.output) / 2)
    one, none = np.ones(1), np.zeros(1)
    batch = Batches(one * decodes, one * context, none, one, one, one * decodes)
    host = outcome.deployment.host
    found = iteration_times(built.laws, batch, host_ns=host.iteration_ns + decodes * host.sequence_ns)
    side = "decode" if outcome.deployment.decode else next(iter(outcome.serving.spec.sides))
    factors = factors_of_laws(outcome.serving.on(side), uncertainty.load_widths())
    draws = draws_of(sorted({each.draws_as for _, each in factors}), WORLDS_OF_SHARES)
    ns: dict[str, np.ndarray] = {}
    for what, (name, causes) in _SPENT.items():
        own = sum(float(found.ns[cause][0]) for cause in causes if cause in found.ns)
        off = [[value_of(each, draws, at) for at in range(WORLDS_OF_SHARES)] for of, each in factors if of == name]
        if own:
            ns[what] = own * np.prod(off, axis=0) if off else np.full(WORLDS_OF_SHARES, own)
    total = np.sum(list(ns.values()), axis=0)
    shares = {what: interval(each / total) for what, each in ns.items()}
    return dict(sorted(shares.items(), key=lambda each: -each[1].p50))


def write_deployments(found: DeploymentComparison, folder: Path) -> Path:
    """Write the page of the worlds as ``index.html``, with ``sure.csv`` and ``sure.json``; returns its path."""
    page = write_sure(replace(found.sure, sentence=found.sentence.rstrip(".")), folder)
    return page.replace(folder / "index.html")
