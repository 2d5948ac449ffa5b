"""Why a step takes as long as it does: causes, hottest link, busiest die and expert, and what would shorten it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base import verbs
from archsim.base.answer import Answer, Grid
from archsim.base.causes import CAUSES, Cause
from archsim.base.errors import ArchsimError, align
from archsim.base.quantities import as_written
from archsim.base.tables import DataFrame, Shown, frame_of
from archsim.engine.loop import Replay
from archsim.runs.calibration_notes import calibration_notes, die_of
from archsim.runs.choice import choose
from archsim.runs.plan import Selection, select
from archsim.runs.run import Run
from archsim.runs.simulator import Simulator
from archsim.show.units import (
    BYTE_UNITS,
    NO_BREAK,
    TIME_UNITS,
    less_or_more,
    listing,
    percent,
    significant,
    with_unit,
)
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.library import load_experiment, load_planned
from archsim.uncertainty.estimate import interval
from archsim.uncertainty.ranges import shorten
from archsim.uncertainty.worlds import Worlds

Row = Mapping[str, Any]
LEAST = 0.03  # share of a step below which a cause is not tried
NOTHING = 0.001  # changes below this share are none
SAMPLES = 16  # in which the share of the first sentence is sampled
MOST_LEVERS = 3  # causes that are tried, the largest first
_NEAR = 4  # layers that a refusal lists
_OTHERS = 4  # other policies of the experiment that are tried
# Keys of a system that are no links; every bandwidth below the others is one of a link class.
_NO_LINKS = ("hbm", "llc", "compute", "decision", "blocks")


@dataclass(frozen=True)
class Lever:
    """A change and the simulated time of the step with it."""

    what: str
    time_ns: float

    @property
    def with_it(self) -> str:
        """``with HBM twice as fast``, ``under policy ep``."""
        return f"{'under' if self.what.startswith('policy ') else 'with'} {self.what}"


@dataclass(frozen=True)
class Why(Shown):
    """What a run's steps spend their time on."""

    run: str  # its name
    rows: tuple[Row, ...]  # of steps (columns of steps.parquet), the slowest first
    levers: tuple[Lever, ...]  # of the first
    experts: int  # of a layer
    dies: int  # of the machine
    answer: str  # what the time goes to, with its range, and what would help most
    is_step: bool  # whether a step or a layer was asked for
    notes: tuple[str, ...] = ()  # on the laws behind the times, a sentence each
    clock: str = ""  # what limits it, of a system with limits

    def to_pandas(self) -> DataFrame:
        return frame_of(self.rows)

    def lines(self) -> list[tuple[str, str]]:
        """(cause | link | die | expert | help, what there is to say) of the first step."""
        row = self.rows[0]
        even = row["tokens"] / self.dies or 1
        expert = row["tokens"] / self.experts or 1
        hot = (
            f"The busiest link is {row['link_src']} → {row['link_dst']}. It is busy for "
            f"{percent(row['link_busy_ns'] / row['time_ns'])} of the layer-step and carries "
            f"{with_unit(row['link_bytes'], BYTE_UNITS)}."
        )
        return [
            ("cause", f"The layer-step spends {doing_text(row)}. It takes {with_unit(row['time_ns'], TIME_UNITS)}."),
            ("link", "No link was busy." if row["link"] is None else hot),
            (
                "die",
                f"The busiest die is {row['die']}. It executes {_token_count(row['die_tokens'])}, "
                f"{significant(row['die_tokens'] / even)}× the mean.",
            ),
            (
                "expert",
                f"The busiest expert is {row['expert']}. It has {_token_count(row['expert_tokens'])}, "
                f"{significant(row['expert_tokens'] / expert)}× the mean and "
                f"{percent(row['expert_tokens'] / row['tokens'])} of all.",
            ),
            *([("clock", self.clock)] if self.clock else []),
            ("help", self._help()),
        ]

    def as_answer(self) -> Answer:
        """What the time goes to; of a step its lines, else the worst steps and the clock."""
        if self.is_step:
            return Answer((self.answer, repr(self).removeprefix(f"{self.answer}\n")), self.notes, self)
        clock = [self.clock] if self.clock else []
        return Answer((self.answer, Grid(HEADS, table_of(self.rows), title=self.run), *clock), self.notes, self)

    def _help(self) -> str:
        if not self.levers:
            return "Nothing could be tried."
        time_ns = self.rows[0]["time_ns"]
        best = sorted(self.levers, key=lambda each: each.time_ns)
        said = listing(f"{_change(each.time_ns / time_ns - 1)} time {each.with_it}" for each in best)
        return f"The layer-step would take {said}. Each change was simulated."

    def __repr__(self) -> str:
        first = self.rows[0]
        if not self.is_step:
            clock = [self.clock] if self.clock else []
            return "\n".join([self.answer, self.run, align([HEADS, *table_of(self.rows)]), *clock])
        step = f"{self.run}, iteration {first['step']}, layer {first['layer']}"
        return "\n".join([self.answer, step, *(f"  {name:<7}{text}" for name, text in self.lines())])


def _change(share: float) -> str:
    return less_or_more(share, NOTHING)


def _token_count(tokens: int) -> str:
    return f"{tokens:,} token{'' if tokens == 1 else 's'}"


def shares_of(row: Row) -> dict[Cause, float]:
    """Cause → share of the step, the largest first; those of the critical path that took any time."""
    shares = {cause: row[f"bound_{cause.column}_ns"] / row["time_ns"] for cause in CAUSES}
    return dict(sorted(((cause, share) for cause, share in shares.items() if share), key=lambda each: -each[1]))


def causes_text(row: Row, most: int = 3) -> str:
    """``links 61 %, HBM 22 %``."""
    shares = list(shares_of(row).items())[:most]
    return ", ".join(f"{CAUSES[cause].label} {percent(share)}" for cause, share in shares if share >= LEAST)


def doing_text(row: Row, most: int = 3) -> str:
    """``61 % of its time waiting for links and 22 % multiplying``."""
    shares = [(cause, share) for cause, share in list(shares_of(row).items())[:most] if share >= LEAST]
    (first, share), *others = shares
    rest = [f"{percent(other)} {CAUSES[cause].doing}" for cause, other in others]
    return listing([f"{percent(share)} of its time {CAUSES[first].doing}", *rest])


def explain(
    experiment: ExperimentSpec,
    step: int | None,
    layer: int | None,
    worst: int,
    chosen: Mapping[str, Any],
    report: Callable[[str], None],
) -> Why:
    """The slowest steps, of iteration ``step`` or of ``layer`` if given, and what would shorten the first. ``report``:
    hears what is tried next. Raises ArchsimError for a run without kept steps, and for a missing step.
    """
    selection = select(choose(experiment, **chosen))
    (run,) = selection.runs()
    rows, result = _steps(selection)
    kept = [row for row in rows if step in (None, row["step"]) and layer in (None, row["layer"])]
    if not kept:
        raise ArchsimError(_absent(rows, step, layer or 0))
    kept.sort(key=lambda row: -row["time_ns"])
    levers, is_step = tuple(_levers(selection, experiment, kept[0], report)), step is not None or layer is not None
    if is_step:
        row = kept[0]
        spent = f"Layer {row['layer']} in iteration {row['step']} spends {doing_text(row, 1)}"
    else:
        report(f"simulating the run in {SAMPLES} samples")
        spent = _spent_text(run, result, selection)
    notes = calibration_notes([result], [(run.system.name, die_of(run.system))])
    return Why(
        run.name, tuple(kept[:worst]), levers, run.model.experts, run.system.dies,
        f"{spent}, {_helps_text(kept[0], levers, 'it' if is_step else 'its slowest layer-step')}.", is_step,
        tuple(notes), _clock_sentence(result),
    )  # fmt: skip


def _spent_text(run: Run, result: Row, selection: Selection) -> str:
    """What MoE layers of a run spend most of their time on, with the range of that share in samples."""
    cause = max(CAUSES, key=lambda each: result[f"bound_{each.column}"] or 0.0)
    column = f"bound_{cause.column}"
    share, spread = result[column] or 0.0, ""
    with suppress(ArchsimError):  # a sample that cannot run leaves the share without a range
        short, worlds, simulator = shorten(run), Worlds([run], SAMPLES), Simulator(selection.maker.traces)
        rows = [simulator.record(each)["row"] for each in (short, *worlds.runs(short, run.engine))]
        shares = np.array([row[column] or 0.0 for row in rows])
        ends = interval(np.clip(share + shares[1:] - shares[0], 0.0, 1.0))
        spread = f" ({percent(ends.p05)} to {percent(ends.p95)} in {percent(0.9)} of {SAMPLES} samples)"
    return (
        f"With {run.model.name} at batch {run.batch:,}, {run.policy.name} on {run.system.name} spends {percent(share)}"
        f"{spread} of the time of MoE layers {CAUSES[cause].doing}"
    )


def _helps_text(row: Row, levers: Sequence[Lever], what: str) -> str:
    """``and its slowest layer-step would take 21 % less time with HBM twice as fast, …``."""
    best = min(levers, key=lambda each: each.time_ns, default=None)
    if best is None:
        return "and nothing could be tried to make it shorter"
    change = best.time_ns / row["time_ns"] - 1
    if change > -NOTHING:
        return f"and nothing that was tried would make {what} shorter"
    return f"and {what} would take {_change(change)} time {best.with_it}, which helps most of all that was tried"


def fastest_run(
    report: Any, overrides: Sequence[str], step: int | None, layer: int | None, chosen: Mapping[str, Any]
) -> tuple[ExperimentSpec, dict[str, Any], str] | None:
    """Of a report of which nothing is chosen, the run to explain: the fastest at the largest batch, under ``physical``
    if that was run. Its experiment (at its values of the axes, with all policies), what chooses it, and a sentence.
    None of other sources, and where no run decoded. Raises SpecError.
    """
    from archsim.runs.results import Results

    is_report = isinstance(report, str | os.PathLike) and Path(report).is_dir()
    if not is_report or step is not None or layer is not None or any(chosen.values()):
        return None
    rows = [row for row in Results.load(Path(report)).runs.rows if row.get("tokens_per_s")]
    rows = [row for row in rows if row["assumptions"].startswith("physical")] or rows
    if not rows:
        return None
    row, planned = max(rows, key=lambda row: (row["batch"], row["tokens_per_s"])), load_planned(report, overrides)
    picked, said = {name: row[name] for name in verbs.CHOSEN}, "the fastest run of the report at its largest batch"
    if isinstance(planned, ExperimentSpec):
        return planned, picked, f"This is {said}."
    point = planned.point(row["point"])
    one, shown = planned.alone(point), listing(" ".join(each) for each in planned.shown(point).items())
    others = [each for each in planned.experiment.policies if each.name != row["policy"]]
    experiment = one.model_copy(update={"policies": (*one.policies, *others)})
    return experiment, picked, f"This is {said}, point {point.index} ({shown})."


def _steps(selection: Selection) -> tuple[tuple[Row, ...], Row]:
    """Rows of steps.parquet, of a run that a sweep has kept, or simulated now; and its results."""
    from archsim.runs import store
    from archsim.runs.results import collect

    (run,), simulator = selection.runs(), Simulator(selection.maker.traces)
    record = store.find(replace(run, details=True)) or simulator.record(run)
    if not record["steps"]:
        raise ArchsimError(
            f"{run.name}: this run has more than 12,000 layer-steps, and these are kept of shorter runs only. Set "
            "workload.layers or workload.decode_steps to a smaller number"
        )
    found = collect([record])
    return found.steps.rows, found.runs.rows[0]


def _clock_sentence(row: Row) -> str:
    """A sentence on the clock of a system with limits of power or heat. '' for other systems."""
    if row.get("throttled_share") is None:
        return ""
    if not row["throttled_share"]:
        return "The clock is full, as no limit of power or heat is reached."
    clocks = listing(f"{percent(row[name])} in {phase}" for name, phase in _CLOCKS if (row[name] or 1) < 1)
    return f"Of the full clock, dies run at {clocks}. The limit is the {row['held_by']}."


_CLOCKS = ("prefill_clock", "the prefill"), ("clock", "decode")


def _absent(rows: tuple[Row, ...], step: int | None, layer: int) -> str:
    steps, layers = ({row[name] for row in rows} for name in ("step", "layer"))
    if step is not None and step not in steps:
        return f"step {step}: the run has no such step. It has iterations {min(steps)} to {max(steps)} (0: the prefill)"
    near = sorted(sorted(layers, key=lambda each: abs(each - layer))[:_NEAR])
    has = ", ".join(map(str, near)) + f" (the nearest of {len(layers)})" * (len(layers) > _NEAR)
    return f"layer {layer}: the run simulates no such MoE layer. It has {has}"


def _levers(
    selection: Selection, experiment: ExperimentSpec, row: Row, report: Callable[[str], None]
) -> Iterator[Lever]:
    one = selection.plan.experiment
    tried: set[str] = set()
    for cause, share in list(shares_of(row).items())[:MOST_LEVERS]:
        what = _LEVERS.get(cause)
        if share < LEAST or what is None or what in tried:
            continue
        tried.add(what)
        report(f"simulating up to that layer-step with {what}")
        with suppress(ArchsimError):  # what the machine cannot have is no advice
            yield Lever(what, _time_ns(_with_lever(one, what), row))
    others = [each.name for each in experiment.policies if each.name != row["policy"]][:_OTHERS]
    for name in others:
        other = next(each for each in experiment.policies if each.name == name)
        report(f"simulating up to that layer-step under policy {name}, {others.index(name) + 1} of {len(others)}")
        with suppress(ArchsimError):
            yield Lever(f"policy {name}", _time_ns(one.model_copy(update={"policies": (other,)}), row))


_TWICE_LINKS, _TWICE_HBM, _TWICE_PEAK = "links twice as fast", "HBM twice as fast", "twice the peak"
_FREE, _HALF_LLC = "free decisions", "LLC twice as fast"
_LEVERS = {
    Cause.LINK: _TWICE_LINKS, Cause.ACTIVATIONS: _TWICE_LINKS, Cause.HBM: _TWICE_HBM, Cause.PERMUTE: _TWICE_HBM,
    Cause.COMPUTE: _TWICE_PEAK, Cause.INEFFICIENCY: _TWICE_PEAK, Cause.LLC: _HALF_LLC, Cause.DECISION: _FREE,
}  # fmt: skip


def _with_lever(one: ExperimentSpec, what: str) -> ExperimentSpec:
    tree = one.model_dump(mode="json", by_alias=True)  # without ranges, in which other values would not be
    system = tree["systems"][0]
    if what == _TWICE_HBM:
        _scale(system["hbm"], ("bandwidth",), 2)
    elif what == _TWICE_PEAK:
        _scale(system["compute"], ("peak",), 2)
    elif what == _HALF_LLC:
        _scale(system["llc"], ("hit", "miss", "write"), 0.5)
    elif what == _FREE:
        tree["assumptions"][0] |= {"decision_cost": "free"}
    else:
        for key in (key for key in system if key not in _NO_LINKS):
            _scale(system[key], ("bandwidth",), 2)
    return load_experiment(tree)


def _scale(part: Any, names: tuple[str, ...], by: float) -> None:
    for key, value in part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ():
        if key in names and isinstance(value, str) and (written := as_written(value)) is not None:
            part[key] = f"{written.number * by!r} {written.unit}"
        else:
            _scale(value, names, by)


def _time_ns(experiment: ExperimentSpec, row: Row) -> float:
    """The time of the step in the only run of an experiment. Later steps are not simulated."""
    selection = select(experiment)
    (run,) = selection.runs()
    replay: Replay = Simulator(selection.maker.traces).replay(run)
    demands: Any = replay.demands
    layers = list(demands.layer_ids)
    for result in replay.steps():
        if (result.step, layers[result.layer]) == (row["step"], row["layer"]):
            return result.times.step_ns
    raise ArchsimError(f"step {row['step']}, layer {row['layer']}: nothing ran there")


HEADS = "iteration", "layer", "time", "cause", "hottest link", "busiest die", "busiest expert"


def table_of(rows: tuple[Row, ...]) -> list[tuple[str, ...]]:
    """(iteration, layer, time, causes, link, die over mean) of steps."""
    return [
        (
            str(row["step"]), str(row["layer"]), with_unit(row["time_ns"], TIME_UNITS), causes_text(row),
            "–" if row["link"] is None else f"{row['link_src']} → {row['link_dst']}",
            f"{row['die']}{NO_BREAK}({percent(row['die_tokens'] / row['tokens'])} of tokens)",
            f"{row['expert']}{NO_BREAK}({percent(row['expert_tokens'] / row['tokens'])})",
        )
        for row in rows
    ]  # fmt: skip
