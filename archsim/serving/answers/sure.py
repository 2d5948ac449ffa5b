"""How sure the numbers of served requests are: the runs of a plan in worlds in which the laws of iterations are off.

What may be off depends on what is known of the engine:

============================== ========================================================================================
deployment                     what is drawn
============================== ========================================================================================
an engine that was measured    two factors: on all that its laws give, what measured TPOT was over simulated TPOT where
                               no constant was fitted; on the time to first tokens, the same of TTFT
other GPUs                     what laws of products, experts, attention and collectives are off (widths.yaml), and the
                               constants of the host
a die that is no GPU           its machine, as in `archsim.uncertainty.worlds`, and the laws of products and attention
============================== ========================================================================================

Machines and policies share their draws. A world is a run of a plan with other numbers, so that it is kept and resumed
as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from archsim.base import errors, files, host
from archsim.base.answer import Answer, Grid
from archsim.base.tables import REAL, TEXT, DataFrame, Shown, Table
from archsim.base.uncertain import Distribution, Quantity
from archsim.iteration.constants import DECODE
from archsim.iteration.layers import kind_of_attention
from archsim.iteration.machine import calibration_on, has_measured_links
from archsim.iteration.stand_ins import ATTENTION_STANDS_IN, REDUCES_STAND_IN, with_stand_ins
from archsim.laws.transfers import domain_of
from archsim.machine.system import SystemSpec
from archsim.runs import store, sweep
from archsim.serving.answers.load_answer import load_sentence, offered_requests, sustains, with_medians
from archsim.serving.answers.runs import ServePlan, ServeRun
from archsim.serving.expert_groups import WITH_KERNELS
from archsim.serving.file_engines import FIRST
from archsim.serving.file_requests import requests_of
from archsim.serving.outcome import measured_residual
from archsim.show.plots import Bars
from archsim.show.sample_figures import intervals
from archsim.show.units import interval as interval_text
from archsim.show.units import listing, percent, significant
from archsim.specs import serving_files, uncertainty, workload
from archsim.specs.scenario import Scenario
from archsim.uncertainty import sure_answer
from archsim.uncertainty.estimate import (
    SURE,
    Index,
    Interval,
    OptionPair,
    expand,
    fastest_shares,
    indices,
    interval,
    order,
    pair,
    refuse_shares,
)
from archsim.uncertainty.propagation import SharedProgress
from archsim.uncertainty.sure import measurements
from archsim.uncertainty.sure_files import quantity_rows, tornado_of, write_files
from archsim.uncertainty.system_quantities import SystemQuantity, measurable, measured_off, quantities_of
from archsim.uncertainty.worlds import drawn, draws_of, refuse_few, value_of

FOLDER = "worlds"
# Columns of results that have an interval, their unit, and their name in a sentence.
HEADLINES: Mapping[str, tuple[str, str]] = MappingProxyType({
    "ttft_mean_ms": ("ms", "TTFT"), "ttft_p99_ms": ("ms", "p99 of TTFT"), "tpot_mean_ms": ("ms", "TPOT"),
    "tpot_p99_ms": ("ms", "p99 of TPOT"), "e2e_mean_ms": ("ms", "E2E"),
    "requests_per_s": ("requests/s", "requests"), "goodput_per_s": ("requests/s", "goodput"),
    "within_slo": ("", "within the limits"), "output_tokens_per_s": ("tokens/s", "output"),
})  # fmt: skip
FEWEST_REQUESTS = 100  # that a shortened run has
_Z80, _Z90 = 1.2815515655446004, 1.6448536269514722  # of a standard normal variable: 80 and 90 % lie within these
# Table of measurements → the factor of `archsim.iteration.constants.Host` that is off with it.
_FACTORS = MappingProxyType({
    "gemm": "products", "moe": "experts", "attention": "attention", "sparse": "attention", "linear": "attention",
    "collectives": "moves", "all_reduce": "moves",
})  # fmt: skip
MOVES = ("collectives", "all_reduce")
_HOST = ("iteration_ns", "sequence_ns", "prompt_ns", "request_ns", "front_end_ns", "handoff_ns")
_WORKLOAD = workload.WorkloadSpec(
    trace=workload.SyntheticTrace(synthetic=workload.SyntheticSpec()), batch=(1,), context=0
)


class Off(NamedTuple):
    """What is off in a side: factors of host constants (field → quantity that multiplies), numbers of its machine."""

    factors: tuple[tuple[str, Quantity], ...]
    machine: tuple[SystemQuantity, ...]


@dataclass(frozen=True)
class ServedOption:
    """A run in all worlds. ``values``: of `HEADLINES`, as they are without a draw; ``intervals``: of those that have
    one; ``best``: share of the worlds in which it is the best; ``rejected``: requests that are too long, and all;
    ``samples``: float64[world] of every headline; ``device_w``: W that a device takes without a draw, None if unknown;
    ``sustained``: whether it keeps up with its load, within its limits.
    """

    name: str
    values: Mapping[str, float | None]
    intervals: Mapping[str, Interval]
    best: float
    rejected: tuple[int, int]
    samples: Mapping[str, np.ndarray] = field(repr=False, compare=False, default_factory=dict)
    device_w: float | None = None
    sustained: bool = True


@dataclass(frozen=True)
class ServedSure(Shown):
    """``ar.serve_sure``: the runs of a plan in ``samples`` worlds. ``judged``: the column that options are compared by;
    ``pairs``: the best against each other, then the others; their ratios are of ``judged``, the better over the worse.
    ``indices`` are of ``explained``, a headline of the best run; '' for its ratio to the next one.
    """

    name: str
    samples: int
    judged: str
    options: tuple[ServedOption, ...]
    pairs: tuple[OptionPair, ...]
    sentence: str
    indices: tuple[Index, ...]
    measurements: tuple[sure_answer.Measurement, ...]
    quantities: tuple[Quantity, ...]
    notes: tuple[str, ...]
    unknown: str = ""  # why there are no indices and measurements
    explained: str = ""

    def as_answer(self) -> Answer:
        """Headlines with their intervals, what the order depends on, what to measure, and the order."""
        rows = [
            (
                option.name, percent(option.best),
                *(
                    "{} ({} to {})".format(*interval_text(each.p50, each.p05, each.p95)) if each else "–"
                    for each in map(option.intervals.get, HEADLINES)
                ),
            )
            for option in self.options
        ]  # fmt: skip
        table = Grid(
            ("",), rows, ("best in", *(f"{name} {unit}".strip() for unit, name in HEADLINES.values())),
            title=f"in {self.samples} samples: median (5 % to 95 %)", wraps=True,
        )  # fmt: skip
        causes = sure_answer.causes_of(self.indices, self.unknown, self.explained_text)
        return Answer((errors.sentence(self.sentence), table, *causes, *self.advice), self.notes, self.plain())

    @property
    def explained_text(self) -> str:
        """``TTFT of ep``."""
        if self.explained:
            return f"{HEADLINES[self.explained][1]} of {self.options[0].name}"
        return f"{HEADLINES[self.judged][1]} of {self.pairs[0].faster} over that of {self.pairs[0].slower}"

    def __repr__(self) -> str:
        return f"ServedSure({self.name!r}, {self.samples} samples: {self.sentence})"

    def table(self) -> Table:
        """One row for each run, with ``_p05``, ``_p50`` and ``_p95`` beside every headline."""
        ends = [f"{name}{end}" for name in HEADLINES for end in ("", "_p05", "_p50", "_p95")]
        columns = {"option": TEXT} | dict.fromkeys(ends, REAL) | {"best_share": REAL}
        return Table(columns, tuple(_row(each) for each in self.options))

    def to_pandas(self) -> DataFrame:
        return self.table().to_pandas()

    def plain(self) -> dict[str, Any]:
        """The result as JSON has it."""
        return {
            "name": self.name, "samples": self.samples, "judged": self.judged, "sentence": self.sentence,
            "notes": list(self.notes), "unknown": self.unknown,
            "explained": self.explained_text, "options": [_row(each) for each in self.options],
            "pairs": [
                {"better": each.faster, "worse": each.slower, "probability": each.probability,
                 "reverse": each.reverse, "sure": each.sure} | dict(zip(("p05", "p50", "p95"), each.ratio, strict=True))
                for each in self.pairs
            ],
            "indices": [each._asdict() for each in self.indices],
            "measure": [self.measured_sentence(each) for each in self.measurements],
            "quantities": [
                {"key": each.key, "value": each.value, "unit": each.unit, "low": each.distribution.low,
                 "high": each.distribution.high, "draw": each.draws_as, "source": each.source}
                for each in self.quantities
            ],
        }  # fmt: skip

    def measured_sentence(self, each: sure_answer.Measurement) -> str:
        """``measuring … would narrow 1.02–1.68 to 1.20–1.40``."""
        before = self.options[0].intervals[self.explained] if self.explained else self.pairs[0].ratio
        narrows = each.narrowed.width < sure_answer.NARROWER * before.width
        return sure_answer.narrowing_sentence(
            each, sure_answer.written_range(before), sure_answer.written_range(each.narrowed), narrows
        )

    @property
    def advice(self) -> tuple[str, ...]:
        """Sentences: what would make the answer surer."""
        return sure_answer.advice_sentences([self.measured_sentence(each) for each in self.measurements], self.indices)


def off_of(serving: serving_files.Serving, widths: uncertainty.UncertaintySpec) -> Off:
    """What is off in one side of a deployment, which ``serving`` is (`Serving.on`)."""
    spec, system = serving.spec, serving.system
    engine, gpu = spec.engine, system.compute.calibration or system.name
    residual = measured_residual(serving) if spec.host is None else None
    if residual is not None and system.launch == WITH_KERNELS:
        pools = " in pools" if spec.disaggregated != "none" else ""
        whose = f"{engine}{pools} on {residual.gpu}, {residual.groups} groups of measurements that no fit saw"
        if residual.unseen:
            whose = f"{engine}{pools} of a version that was not measured, {residual.groups} pages of another lab"
        key = f"served.{engine}.{gpu}.{'pools.' if pools else ''}"
        laws, first = (
            Quantity(f"{key}{name}", 1.0, "", f"measured {name} over simulated, {whose}", _of_residual(ends))
            for name, ends in (("tpot", residual.tpot), ("ttft", residual.ttft))
        )  # fmt: skip
        beside = ((FIRST, first),) if serving.side != DECODE else ()  # of a request, once
        return Off((("decodes", laws), ("prompts", laws), *beside), ())
    machine: list[SystemQuantity] = []
    if serving.has_traffic:
        scenario = Scenario(system, serving.model, serving.assumptions, serving.policy, _WORKLOAD, 1)
        machine = [each for each in quantities_of(scenario, "event", widths) if _of_machine(each, system)]
    return Off(factors_of_laws(serving, widths), tuple(machine))


def factors_of_laws(
    serving: serving_files.Serving, widths: uncertainty.UncertaintySpec
) -> tuple[tuple[str, Quantity], ...]:
    """What laws of an iteration and constants of the host are off, by name of a field of its host constants."""
    off = Quantity("served.host", 1.0, "", widths.defaults["host"].source, widths.defaults["host"].of(1.0))
    factors = [(name, off) for name in _HOST]
    tables = ["gemm", kind_of_attention(serving.model)] + ([] if serving.has_traffic else ["moe"])
    tables += [_collectives(serving)] if serving.system.launch == WITH_KERNELS else []
    for table in tables:
        way = _way(serving, table)
        kind = widths.table_of_experts(way, serving.spec.parallel.sizes().ep) if table == "moe" else table
        off_by = measured_off(widths, kind, way, serving.model.name)
        factors += [(_FACTORS[table], measurable(each)) for each in off_by]
    return tuple(each for each in factors if not each[1].exact)


def _collectives(serving: serving_files.Serving) -> str:
    """The kind of kernels that move vectors: all-reduces of a node alone, or others, too."""
    attention = serving.spec.parallel.attention
    domain = domain_of(calibration_on(serving.system))
    return "all_reduce" if attention.dp == attention.context == 1 and attention.tp <= domain else "collectives"


def _of_machine(found: SystemQuantity, system: SystemSpec) -> bool:
    return not found.quantity.key.startswith("measured.gemm")


def _of_residual(ends: tuple[float, float]) -> Distribution:
    """Of a factor of which 80 % lie between two ends."""
    low, high = ends
    centre, wider = min(max(1.0, low), high), _Z90 / _Z80
    return Distribution("lognormal", centre * (low / centre) ** wider, centre, centre * (high / centre) ** wider)


def _way(serving: serving_files.Serving, table: str) -> str:
    """How a law of an engine was had, of `archsim.specs.uncertainty.SUBSTITUTIONS`."""
    system = serving.system
    if system.launch != WITH_KERNELS:
        return "scaled"
    calibration = calibration_on(system)
    if calibration.reference != calibration.measured_rates or (table in MOVES and not has_measured_links(system)):
        return "scaled"
    stand = with_stand_ins(calibration, serving.model, serving.precision.products, serving.precision.experts)
    scaled = calibration.scaled is not None and table in calibration.scaled.sections
    if scaled or (table in ("sparse", "linear") and all(each.scaled_from for each in calibration.blocks)):
        return "scaled"
    if table == "moe":
        own = [each for each in calibration.moe if each.dtype == stand.experts]
        shape = serving.model.expert_width, serving.model.expert_ffn
        return "fit" if any((each.hidden, each.ffn) == shape for each in own) else "nearest_shape"
    stands_in = REDUCES_STAND_IN if table in MOVES else ATTENTION_STANDS_IN if table != "gemm" else None
    if stands_in and any(note.startswith(stands_in) for note in stand.notes):
        return "sibling_gpu"
    return "fit" if table in MOVES else "nearest_shape"


def find_sure(
    plan: ServePlan, samples: int, folder: Path | None, watcher: sweep.Watcher | None = None, jobs: int | None = None,
    names: Sequence[str] = (), refused: Callable[[str, str], None] | None = None, most_tokens: float = np.inf,
) -> ServedSure:  # fmt: skip
    """Serve the runs of a plan in samples, kept in ``folder``/worlds; ``jobs`` at a time (default: cores); ``names``:
    of the runs; ``refused``: gets the name of a run that cannot be served, and why; ``most_tokens``: of all runs in
    samples together, which serve only their first requests where they have more. Raises ArchsimError for too few
    samples or a plain file that cannot be served; FailedRuns.
    """
    refuse_few(samples)
    if folder is None:
        with TemporaryDirectory(prefix="archsim-") as made:
            return find_sure(plan, samples, Path(made), watcher, jobs, names, refused, most_tokens)
    watcher, widths = watcher or sweep.Unwatched(), uncertainty.load_widths()
    files.own_folder(folder)
    runs = [replace(run, details=False) for run in plan.runs()]
    fewer = {run.key: shorten(run, most_tokens / max(samples * len(runs), 1)) for run in runs}
    off = {run.key: {side: off_of(run.serving.on(side), widths) for side in run.serving.spec.sides} for run in runs}
    every = quantities_of_sides(off.values())
    draws = draws_of(sorted({each.draws_as for each in every.values()}), samples)
    worlds = {run.key: [world_of(fewer[run.key], off[run.key], draws, at) for at in range(samples)] for run in runs}
    asked = {each.key: each for run in runs for each in (run, fewer[run.key], *worlds[run.key])}
    watcher.phase(f"{samples} samples: {len(asked):,} runs of the requests")
    failures: list[str] = []
    records = sweep.complete(
        list(asked.values()), store.RecordStore(folder / FOLDER), SharedProgress(watcher, len(asked)), failures,
        jobs or host.available_cores(),
    )  # fmt: skip
    sweep.refuse_failed(failures, len(asked))
    found: dict[str, tuple[Mapping[str, Any], list[Mapping[str, Any]]]] = {}
    served: dict[str, ServeRun] = {}
    for run, name in zip(runs, names or plan.names(), strict=True):
        rows = [records[each.key]["row"] for each in (run, fewer[run.key], *worlds[run.key])]
        if why := next((row["refused"] for row in rows if row["refused"]), ""):
            if not plan.has_axes and refused is None:
                raise errors.ArchsimError(why)
            watcher.phase(f"{name} is left out: {why}")
            if refused is not None:
                refused(name, why)
        else:
            served[name] = run
            few = rows[0] if fewer[run.key] is run else rows[1]
            found[name] = rows[0], [_of_all(each, few, rows[0]) for each in rows[2:]]
    if not found:
        raise errors.ArchsimError("no run of the plan can be served; see archsim serve without --samples")
    cut = [len(requests_of(each.serving).input) for run in runs if (each := fewer[run.key]) is not run]
    return _answer(plan, samples, found, served, every, draws, min(cut, default=0))


def quantities_of_sides(off: Iterable[Mapping[str, Off]]) -> dict[str, Quantity]:
    return {
        quantity.key: quantity
        for sides in off for each in sides.values()
        for quantity in (*(of for _, of in each.factors), *(found.quantity for found in each.machine))
    }  # fmt: skip


def shorten(run: ServeRun, most_tokens: float) -> ServeRun:
    """The run with its first requests alone, of at most so many tokens; itself where it has no more, and where its
    requests depend on each other: those of clients and of a batch. Sessions are cut, and classes sampled again.
    """
    given = run.serving.spec.requests
    if most_tokens == np.inf or given.concurrency or run.serving.spec.static_batch is not None:
        return run
    try:
        requests = requests_of(run.serving)
    except errors.ArchsimError:  # its run says so
        return run
    count = max(int(np.searchsorted(np.cumsum(requests.input + requests.output), most_tokens)), FEWEST_REQUESTS)
    if count >= len(requests.input):
        return run
    spec = run.serving.spec
    few = spec.model_copy(update={"requests": given.model_copy(update={"total": count})})
    return replace(run, serving=run.serving._replace(spec=few))


def _of_all(row: Mapping[str, Any], few: Mapping[str, Any], whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """Headlines of all requests in a world in which ``row`` has the first of them: as much of those of ``whole`` as
    ``row`` has of ``few``, the same requests without a draw. Shares move by as much as they do there.
    """
    if few is whole or any(each["refused"] for each in (row, few, whole)):
        return row
    found = dict(row)
    for column in HEADLINES:
        now, before, every = row[column], few[column], whole[column]
        if column == "within_slo":
            found[column] = min(max(every + now - before, 0.0), 1.0)
        elif now is not None and before and every is not None:
            found[column] = every * now / before
        else:
            found[column] = every
    return found


def _varies(samples: np.ndarray) -> bool:
    return bool(np.ptp(samples) > 1e-9 * np.abs(samples).max())


def world_of(run: ServeRun, off: Mapping[str, Off], draws: Mapping[str, np.ndarray], at: int) -> ServeRun:
    serving, machines = run.serving, dict(run.serving.machines)
    factors: dict[str, dict[str, float]] = {}
    for side, each in off.items():
        own = factors.setdefault(side, {})
        for name, quantity in each.factors:
            own[name] = own.get(name, 1.0) * value_of(quantity, draws, at)
        if FIRST in own:  # of the whole of it, which the laws are a part of
            own[FIRST] /= own["prompts"]
        if each.machine and side in machines:
            machines[side] = serving_files.DeployedMachine(
                drawn(machines[side].system, each.machine, draws, at), machines[side].assumptions
            )
        elif each.machine:
            serving = serving._replace(system=drawn(run.serving.system, each.machine, draws, at))
    given = {side: MappingProxyType(own) for side, own in factors.items()}
    return replace(run, serving=serving._replace(machines=MappingProxyType(machines), off=MappingProxyType(given)))


def _answer(
    plan: ServePlan,
    samples: int,
    found: Mapping[str, tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]],
    served: Mapping[str, ServeRun],
    every: Mapping[str, Quantity],
    draws: Mapping[str, np.ndarray],
    cut: int = 0,
) -> ServedSure:
    judged, higher = judged_by(plan.first)
    values = {name: _column(rows, judged) for name, (_, rows) in found.items()}
    costs = {name: 1 / np.maximum(each, 1e-12) if higher else each for name, each in values.items()}
    names = order(costs)
    pairs = [pair(names[0], other, costs) for other in names[1:]]
    pairs += [pair(one, other, costs) for one, other in combinations(names[1:], 2)]
    shares = fastest_shares(costs)
    options = tuple(_option(served[name], name, *found[name], shares[name]) for name in names)
    explained, answer = "" if pairs else judged, costs[names[1]] / costs[names[0]] if pairs else values[names[0]]
    if not _varies(answer):  # as goodput is, while all requests are within their limits: then the first that varies
        samples_of = options[0].samples
        explained = next((each for each in options[0].intervals if _varies(samples_of[each])), explained)
        answer = samples_of[explained] if explained else answer
    shares_of: tuple[Index, ...] = ()
    measured: tuple[sure_answer.Measurement, ...] = ()
    if not (unknown := refuse_shares(len(draws), samples)):
        expansion = expand(draws, answer)
        rates = {name: expand(draws, 1 / each) for name, each in costs.items()}
        measured = measurements(expansion, rates, draws, answer, every)
        shares_of = tuple(indices(expansion, draws, answer))
    if pairs:
        sentence = _sentence(judged, options, pairs[: len(names) - 1], samples)
    else:
        run, first = served[names[0]], options[0]
        sentence = load_sentence(run.serving, found[names[0]][0], run.offered, first.intervals, samples)
    return ServedSure(
        name=f"{plan.first.model.name} on {plan.first.system.name}",
        samples=samples,
        judged=judged,
        options=options,
        pairs=tuple(pairs),
        sentence=sentence.removesuffix("."),
        indices=shares_of,
        measurements=measured,
        quantities=tuple(every.values()),
        notes=_notes(every, cut),
        unknown=unknown,
        explained=explained,
    )


def judged_by(serving: serving_files.Serving) -> tuple[str, bool]:
    """(Column by which runs are compared, whether more is better): goodput under limits, output of a closed loop, else
    the time of a request.
    """
    slo = serving.spec.slo
    if any(ns is not None for ns in (slo.ttft_ns, slo.tpot_ns, slo.e2e_ns)):
        return "goodput_per_s", True
    return ("output_tokens_per_s", True) if serving.spec.requests.concurrency else ("e2e_mean_ms", False)


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    return np.array([np.nan if row[name] is None else row[name] for row in rows], np.float64)


def _option(
    run: ServeRun, name: str, own: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], best: float
) -> ServedOption:
    columns = {column: _column(rows, column) for column in HEADLINES}
    intervals = {column: interval(each) for column, each in columns.items() if np.isfinite(each).all()}
    rejected = int(own["rejected"]), int(own["rejected"] + own["requests"])
    values = {column: own[column] for column in HEADLINES}
    is_kept = sustains(run.serving, with_medians(own, intervals), offered_requests(run))
    return ServedOption(name, values, intervals, best, rejected, columns, own["device_w"], is_kept)


def _notes(every: Mapping[str, Quantity], cut: int) -> tuple[str, ...]:
    found = ["Requests are one sample of their generator, or those of a file. The intervals leave their spread out."]
    if cut:
        found.append(
            f"The ranges are relative changes of the first {cut:,} requests, as all of them would take long (--samples "
            "N serves all of them in every sample)."
        )
    placeholders = sorted(key for key, each in every.items() if "placeholder" in each.source)
    if placeholders:
        found.append(f"These widths are placeholders (configs/uncertainty/widths.yaml): {', '.join(placeholders)}.")
    return tuple(found)


def _sentence(judged: str, options: Sequence[ServedOption], pairs: Sequence[OptionPair], samples: int) -> str:
    first = options[0]
    what = {"goodput_per_s": "the most goodput", "output_tokens_per_s": "the most output tokens"}.get(
        judged, "the shortest time of a request"
    )
    headlines = listing(
        headline_sentence(first, column)
        for column in ("ttft_mean_ms", "tpot_mean_ms", judged) if column in first.intervals
    )  # fmt: skip
    ties, rest = [each for each in pairs if not each.sure], [each for each in pairs if each.sure]
    if not ties:
        each = rest[0]
        low, high = sure_answer.written_ends(each.ratio)
        return (
            f"{first.name} has {what} in {percent(first.best)} of {samples} samples. It is {each.ratio.p50:.2f}× "
            f"better than {each.slower}, and {low}× to {high}× in 90 % of the samples. Its {headlines}"
        )
    closest = ties[0]
    tied = listing([first.name, *(each.slower for each in ties)])
    return (
        f"{tied} are a tie: {first.name} is better than {closest.slower} in {percent(closest.probability)} of "
        f"{samples} samples and worse in {percent(closest.reverse)}, where {percent(SURE)} would decide. "
        f"{first.name} has {headlines}"
    )


def headline_sentence(option: ServedOption, column: str) -> str:
    """``TPOT 12.3 ms (90 %: 11.4 to 13.9)``, of the median."""
    unit, name = HEADLINES[column]
    found = option.intervals[column]
    middle, low, high = interval_text(found.p50, found.p05, found.p95)
    return f"{name} {middle} {unit} (90 %: {low} to {high})".replace("  ", " ")


def _row(option: ServedOption) -> dict[str, Any]:
    row: dict[str, Any] = {"option": option.name}
    for column, value in option.values.items():
        row[column] = None if value is None else float(value)
        row |= sure_answer.ends_of(column, option.intervals.get(column))
    return row | {"best_share": option.best}


def write_sure(found: ServedSure, folder: Path) -> Path:
    """Write ``sure.html``, ``sure.csv`` and ``sure.json``; returns the page's path."""
    return write_files(found.table(), found.plain(), {"found": found, **_section(found)}, folder)


def _section(found: ServedSure) -> dict[str, Any]:
    """What the page shows; as `archsim.uncertainty.sure_files.section_of`."""
    place = {
        "name": found.name, "told": f"{found.sentence}.", "chart": whiskers(found),
        "tornado": tornado_of(found.indices, found.explained_text), "explained": found.explained_text,
        "pairs": [
            (each.faster, each.slower, each.ratio, sure_answer.written_range(each.ratio),
             f"better in {percent(each.probability)}, worse in {percent(each.reverse)} of samples"
             if each.sure else "a tie")
            for each in found.pairs
        ],
        "measure": found.advice, "unknown": found.unknown,
    }  # fmt: skip
    return {
        "sure_places": [place], "sure_quantities": quantity_rows(found.quantities), "sure_exact": (),
        "sure_notes": found.notes, "sure_samples": found.samples,
    }  # fmt: skip


def whiskers(found: ServedSure) -> Bars | None:
    """The headline of every run; None where no run has one above 0."""
    options: list[tuple[str, tuple[float, float, float], str, str]] = [
        (each.name, each.intervals[found.judged], significant(each.intervals[found.judged].p50),
         headline_sentence(each, found.judged))
        for each in found.options if found.judged in each.intervals
    ]  # fmt: skip
    unit, name = HEADLINES[found.judged]
    title = f"{name}{f', {unit}' if unit else ''}: the median, and the central 90 % as a line"
    known = any(ends[2] > 0 for _, ends, _, _ in options)
    return intervals(f"How high is {name}, and how sure is that?", title, options) if known else None
