"""What-ifs on deployments with the same requests in many samples, and what the time of one goes to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from archsim.base import errors, tables
from archsim.base.errors import capital
from archsim.runs.prices import build_costs
from archsim.search.best_deployment import best_sentence
from archsim.search.compare import UNITS
from archsim.search.deployment_pair import at_limits, moved_limits, pair_sentence, short
from archsim.search.options import Side
from archsim.serving.answers.load_answer import SustainedRate, load_text, offered_requests, unsustained
from archsim.serving.answers.runs import ServePlan, ServeRun, describe_values, serve_plan, shown
from archsim.serving.answers.sure import HEADLINES, ServedOption, ServedSure, find_sure, write_sure
from archsim.serving.answers.sustained import sustained_rate
from archsim.serving.measures import rent_of
from archsim.show.units import listing, significant
from archsim.specs import serving_files
from archsim.specs.serving import SloSpec
from archsim.specs.serving_keys import full_key

GOODPUT = "goodput_per_s"
SAMPLES = 16  # each is served
MOST_RATES = 4  # deployments of which the rate that is sustained is found
MOST_TOKENS = 110e6  # of all of these together, where nobody asks for samples: 10 to 40 s of one core


@dataclass(frozen=True, eq=False)
class DeploymentComparison(tables.Shown):
    """Deployments in the same samples. ``sure``: headlines; ``equal``: the budget for a unit of which they compare."""

    sure: ServedSure
    names: tuple[str, ...]  # in the order in which they were given
    refused: tuple[tuple[str, str], ...]  # (name, why it cannot be served)
    equal: str  # of EQUALS; machines: all that a file says
    amounts: Mapping[str, float]  # name → devices, USD an hour, W or mm² of silicon
    limits_ms: Mapping[str, float]  # ttft, tpot → limit
    devices: Mapping[str, float]  # name → how many it takes
    is_closed_loop: bool  # whether clients wait for an answer before they ask again
    moved: Mapping[float, float]  # of two: factor on all limits → ratio of their goodputs; {} where no limit is near
    lacking: str = ""  # which of them do not sustain their load, and what rate they do
    idle: str = ""  # a sentence on varied keys that have no effect here, and why

    def option(self, name: str) -> ServedOption:
        return next(each for each in self.sure.options if each.name == name)

    @property
    def sentence(self) -> str:
        """Both values, their difference with its range, and whether it is a tie."""
        first, *others = [name for name in self.names if name not in dict(self.refused)]
        if not others:
            return f"{self._refused_text()} {self.sure.sentence}.".strip()
        per = f" {UNITS[self.equal]}".rstrip()
        if len(others) > 1:
            said = best_sentence(self.sure, (first, *others), self.amounts, per, self.devices, self.limits_ms)
        else:
            said = pair_sentence(
                self.sure, first, others[0], self.amounts, per, self.limits_ms, self.moved, self.is_closed_loop
            )
        begin = f"{self.idle}. " if self.idle else ""
        if self.lacking:
            begin += f"{capital(self.lacking)}: "
            said = said.replace("With", "with", 1) if said.startswith("With") else said
        return f"{begin}{said.removesuffix('.')}{self._rejected_text()}.{self._missed_text()}{self._refused_text()}"

    def _missed_text(self) -> str:
        """The nearest to the limits, where none has goodput in half of the samples."""
        if self.sure.judged != GOODPUT or any(np.median(each.samples[GOODPUT]) for each in self.sure.options):
            return ""
        times = {
            each.name: {
                column: (each.intervals[column].p50, limit)
                for column, limit in ((f"{name}_mean_ms", ms) for name, ms in self.limits_ms.items())
                if column in each.intervals
            }
            for each in self.sure.options
        }
        if not all(times.values()):
            return ""
        name = min(times, key=lambda each: max(ms / limit for ms, limit in times[each].values()))
        said = [f"{HEADLINES[at][1]} {significant(ms, 2)} of {limit:,g} ms" for at, (ms, limit) in times[name].items()]
        return f" None keeps the limits in half of the samples. The nearest is {short(name)}, with {listing(said)}."

    def _rejected_text(self) -> str:
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
        return self.sure.table()

    def to_pandas(self) -> Any:
        """One row per deployment, with columns ``_p05``, ``_p50`` and ``_p95``."""
        return self.table.to_pandas()

    def as_json(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {"answer": self.sentence, "equal": self.equal, "refused": list(self.refused)} | self.sure.plain()


def compare_deployments(
    sides: Sequence[Side], vary: Mapping[str, Sequence[Any]], overrides: Sequence[str] = (), equal: str = "machines",
    rents: Mapping[str, float] = MappingProxyType({}), samples: int | None = None, folder: Path | None = None,
    jobs: int | None = None, watcher: Any = None,
) -> DeploymentComparison:  # fmt: skip
    """Files, each with every combination of ``vary``, or else of its own ``sweep:``. Raises SpecError for fewer than
    two, for a key that a file does not have, and for an unknown price.
    """
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
        raise errors.SpecError(
            f"the sides have no model in common: {', '.join(sorted(models))}. One for all is --set model=NAME"
        )
    found = compare_points(points, names, equal, rents, samples, folder, jobs, watcher)
    keys = (full_key(tuple(key.split(".")), f"--vary {key}", values[0]) for key, values in vary.items())
    ends = {key.split(".")[-1] for key in keys}
    unread = set.intersection(*(set(point.unread) for point in points))
    idle = [each for each in points[0].unread if each in unread and each.split(" ")[0].split(".")[-1] in ends]
    return replace(found, idle=". ".join(capital(short(each)) for each in idle))


def _limits_ms(slo: SloSpec) -> dict[str, float]:
    return {name: ns / 1e6 for name, ns in {"ttft": slo.ttft_ns, "tpot": slo.tpot_ns}.items() if ns}


def policies_sentence(plan: ServePlan, found: ServedSure, names: Sequence[str] = ()) -> str:
    """What is said of the policies of a file without axes. ``names``: theirs in ``found``, if not of the plan."""
    served, slo = {option.name for option in found.options}, plan.first.spec.slo
    is_loop, runs = bool(plan.first.spec.requests.concurrency), plan.runs()
    lacking = _lacking(found, dict(zip(names or plan.names(), runs, strict=True)))
    names = [each for each in names or plan.names() if each in served]
    same = dict.fromkeys(names, 1.0)
    limits = _limits_ms(slo)
    near = len(names) == len(runs) == 2 and at_limits(found.options, limits)
    moved = moved_limits(runs[0].serving, runs[1].serving) if near else {}
    return DeploymentComparison(
        found, tuple(names), (), "machines", same, limits, same, is_loop, moved, lacking
    ).sentence


def compare_points(
    points: Sequence[serving_files.Serving], names: Sequence[str], equal: str = "machines",
    rents: Mapping[str, float] = MappingProxyType({}), samples: int | None = None, folder: Path | None = None,
    jobs: int | None = None, watcher: Any = None,
) -> DeploymentComparison:  # fmt: skip
    """Deployments of one policy each, in the same samples. ``samples``: None for SAMPLES, of MOST_TOKENS. Raises
    SpecError for an unknown price or power.
    """
    amounts = {name: _amount(point, equal, rents) for name, point in zip(names, points, strict=True)}
    devices = {name: _amount(point, "devices", rents) for name, point in zip(names, points, strict=True)}
    refused: list[tuple[str, str]] = []
    plan = ServePlan(tuple(points), ({},) * len(points))
    found = find_sure(
        plan, samples or SAMPLES, folder, watcher, jobs, names=names,
        refused=lambda name, why: refused.append((name, why)), most_tokens=inf if samples else MOST_TOKENS,
    )  # fmt: skip
    if equal == "w":  # which only a run knows
        for each in found.options:
            if not each.device_w:
                raise errors.SpecError(f"--equal w: the power of {each.name} is not known. Give another budget")
            amounts[each.name] *= each.device_w
    slo = points[0].spec.slo
    limits = _limits_ms(slo)
    edges = at_limits(found.options, limits)
    moved = moved_limits(points[0], points[1]) if edges and len(points) == 2 and not refused else {}
    return DeploymentComparison(
        found, tuple(names), tuple(refused), equal, amounts, limits, devices,
        bool(points[0].spec.requests.concurrency), moved, _lacking(found, dict(zip(names, plan.runs(), strict=True))),
    )  # fmt: skip


def _lacking(found: ServedSure, runs: Mapping[str, ServeRun]) -> str:
    """Which of the runs do not sustain their load, and of few of them the rate that each does; '' for none."""
    names = [name for name in runs if any(each.name == name and not each.sustained for each in found.options)]
    loads: dict[float, tuple[serving_files.Serving, list[str], list[SustainedRate]]] = {}
    for name in names:
        serving, offered = runs[name].serving, offered_requests(runs[name])
        rate = sustained_rate(runs[name], 0, 1) if len(names) <= MOST_RATES else None
        if rate is None or rate.per_s < offered:  # which a longer run decides
            _, subjects, rates = loads.setdefault(offered, (serving, [], []))
            subjects.append("the deployment" if short(name) == load_text(serving, offered) else short(name))
            rates += [rate] if rate else []
    return "; ".join(unsustained(serving, own, offered, rates) for offered, (serving, own, rates) in loads.items())


def _amount(serving: serving_files.Serving, equal: str, rents: Mapping[str, float]) -> float:
    """Of a deployment: USD an hour, mm² of silicon, or else devices. Raises SpecError for a price that is not known."""
    if equal == "machines":
        return 1.0
    total = 0.0
    for name, side in serving.spec.sides.items():
        system = serving.on(name).system
        each = 1.0
        if equal == "usd":
            gpu = system.compute.calibration or system.name
            rent = rent_of(gpu, rents)
            if rent is None:
                raise errors.SpecError(
                    f"--equal usd: the price of {gpu} is not known: give --price {gpu}=USD (an hour of one device)"
                )
            each = rent.usd_per_hour
        elif equal == "mm2":
            each = build_costs(system).silicon_mm2 / system.dies
        total += side.instances * side.parallel.devices * each
    return total


def write_deployments(found: DeploymentComparison, folder: Path) -> Path:
    """Write the page of the worlds as ``index.html``, with ``sure.csv`` and ``sure.json``; returns its path."""
    page = write_sure(replace(found.sure, sentence=found.sentence.rstrip(".")), folder)
    return page.replace(folder / "index.html")
