"""``archsim run``: simulate one combination of an experiment, print it, write a timeline of one of its steps."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from archsim.base import verbs
from archsim.cli.heartbeat import begins

if TYPE_CHECKING:
    from archsim.base.answer import Answer, Grid, Part
    from archsim.runs.plan import Selection
    from archsim.specs.experiment import ExperimentSpec

NARROW = 120  # columns of a terminal


def run_run(args: argparse.Namespace) -> Answer:
    import archsim as ar
    from archsim.base.answer import Answer
    from archsim.base.errors import ArchsimError
    from archsim.cli.printing import print_compiling
    from archsim.questions.ranges import range_of
    from archsim.runs.choice import choose
    from archsim.runs.plan import plan_of, select
    from archsim.runs.run_cost import cost_sentence
    from archsim.show.timeline import refuse_part_of_timeline
    from archsim.uncertainty.ranges import WORLDS

    chosen = {name: getattr(args, name) for name in verbs.CHOSEN}
    if args.phase is not None:
        experiment = ar.load_experiment(args.file, args.overrides)
        print_compiling()
        timed = ar.run_phase(experiment, args.phase, law=args.law, **chosen)
        return Answer(timed.lines(), result=timed.to_pandas().to_dict("records"))
    if args.die_dies is not None:
        from archsim.questions.death import death_of

        one = choose(ar.load_experiment(args.file, args.overrides), **chosen)
        print_compiling()
        found = death_of(one, args.die_dies, WORLDS if args.samples is None else args.samples)
        return Answer(found.lines, result=asdict(found) | {"steps": found.steps})
    drawn = {name: getattr(args, name) for name in ("step", "layer", "timeline")}
    refuse_part_of_timeline({f"--{name}": value for name, value in drawn.items()})
    experiment = ar.load_experiment(args.file, args.overrides)
    one = choose(experiment, **chosen)
    begins(f"simulating {cost_sentence(plan_of(one), 1)}")
    print_compiling(of=one)
    row = ar.run(experiment, **chosen, **drawn).runs.rows[0]
    one = choose(experiment, **{name: row[name] for name in verbs.CHOSEN})
    notes = _notes(row, experiment)
    selection = select(one)
    if args.samples is None:
        begins(f"taking {WORLDS} quick samples")
        try:
            row = {**row, **range_of(selection, row, WORLDS)}
        except ArchsimError as error:
            notes.append(f"The run has no range, as one of its samples cannot run: {error}")
    parts, result = list(_parts(row, experiment, selection)), dict(row)
    if args.samples:
        begins(f"taking {args.samples} samples")
        sure = ar.sure(one, args.samples)
        result |= {key: each for key, each in sure.table().rows[0].items() if key not in row}
        answer = sure.as_answer()
        parts, notes = [*parts, *answer.parts], [*notes, *answer.notes]
    if args.timeline is not None:
        parts.append(f"timeline: {args.timeline} (open it at https://ui.perfetto.dev)")
    return Answer(parts, notes, result)


def _notes(row: Mapping[str, Any], experiment: ExperimentSpec) -> list[str]:
    from archsim.runs.calibration_notes import die_of
    from archsim.runs.notes import result_notes, system_notes

    systems = [system for system in experiment.systems if system.name == row["system"]]
    notes = result_notes([row], [(system.name, die_of(system)) for system in systems])
    return [*notes, *system_notes(systems), *experiment.unread]


def _parts(row: Mapping[str, Any], experiment: ExperimentSpec, selection: Selection) -> Iterator[Part]:
    from archsim.runs.feasibility import kv_room_notes
    from archsim.show.answers import iteration_sentence, rate_sentence
    from archsim.uncertainty.ranges import WORLDS

    if whole := iteration_sentence([row], WORLDS) or rate_sentence([row], WORLDS):
        yield whole
    yield _table(row, experiment)
    for name, title in (("iteration", "a decode iteration"), ("prefill_iteration", "the prefill")):
        if row.get(f"{name}_ns"):
            yield _iteration(row, name, title)
    yield from kv_room_notes(selection.runs())


def _table(row: Mapping[str, Any], experiment: ExperimentSpec) -> Grid:
    from archsim.base.answer import Grid
    from archsim.base.causes import label_of
    from archsim.cli.printing import console
    from archsim.runs.prices import price_range
    from archsim.show.tables import COLUMNS
    from archsim.show.units import amount, estimate_texts, percent, usd
    from archsim.specs.explore import OBJECTIVES

    rows: list[tuple[str, ...] | None] = []
    chosen = {
        "system": [each.name for each in experiment.systems],
        "model": [each.name for each in experiment.models],
        "batch": [str(each) for each in experiment.workload.batch],
        "policy": [each.name for each in experiment.policies],
        "assumptions": [each.label for each in experiment.assumptions],
    }
    for name, others in chosen.items():
        choice = f"one of {', '.join(others)} (choose with --{name})" if len(others) > 1 else ""
        rows.append((name, str(row[name]), choice))
    for name in ("trace", "engine", "layers", "run"):
        rows.append((name, str(row[name]), ""))
    rows.append(None)
    for column in COLUMNS:
        if row.get(column.name) is not None:
            rows.append((column.header, column.shown(row[column.name]), column.meaning.partition("; empty")[0]))
        if column.name == "decode_batch_token_ns" and (bound := row["bounded_by"]):
            took = percent(row[f"bound_{bound}"])
            rows.append(("bounded by", label_of(bound), f"which takes {took} of the critical path"))
    for name in ("energy", "power", "area"):
        if row[OBJECTIVES[name][0]] is not None:
            ends = [row[end] for bound in ("low", "high") if (end := f"{OBJECTIVES[name][0]}_{bound}") in row]
            of = "MoE layers alone" if name in ("energy", "power") else "dies"
            value, said = row[OBJECTIVES[name][0]], "whose range `archsim hardware cost` shows"
            text = amount(name, value)
            if len(ends) == 2:
                text, low, high = estimate_texts(name, value, *ends)
                said = f"with a range of {low} to {high}"
            rows.append((name, text, f"estimate for the {of}, {said}"))
    system = next(each for each in experiment.systems if each.name == row["system"])
    rows.append(("price", usd(*price_range(system)), "estimate of what the machine costs to make"))
    narrow = 22 if console().width < NARROW else 0  # leave room for meanings
    return Grid(("", "", ""), rows, has_heads=False, unbroken=True, second=narrow)


def _iteration(row: Mapping[str, Any], prefix: str, title: str) -> Grid:
    """Where the time of an iteration goes, attention and head included."""
    from archsim.base.answer import Grid
    from archsim.runs.columns import BY_NAME
    from archsim.show.units import percent

    rows, whole = [], f"{prefix}_ns"
    total = row[whole]
    parts = [each for each in row if each.startswith(f"{prefix}_") and each.endswith("_ns") and each != whole]
    for name in (whole, *parts):
        if row[name]:
            said = "in all" if name == whole else BY_NAME[name].meaning.removeprefix("of it: ")
            rows.append((said, f"{row[name] / 1e6:.2f} ms", percent(row[name] / total)))
    if prefix == "iteration" and (joule := row.get("iteration_energy_per_token_j")):
        ends = [row[f"iteration_energy_per_token_j_{bound}"] for bound in ("low", "high")]
        said = f"{1 / joule:.3g} tokens/J ({1 / ends[1]:.3g} to {1 / ends[0]:.3g})"
        rows.append(("energy, waiting included (estimate)", f"{joule:.3g} J/token", said))
    return Grid((title, "", "of it"), rows)
