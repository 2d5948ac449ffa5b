"""``archsim run``: simulate one combination of an experiment, print it, write a timeline of one of its steps."""

import argparse
from collections.abc import Mapping
from typing import Any

from archsim.cli.arguments import CHOSEN, OK, OUTPUT, add_chosen, add_experiment, add_samples, below, natural
from archsim.cli.heartbeat import begins

NARROW = 120  # columns of a terminal


def add_run(parser: argparse.ArgumentParser) -> None:
    add_experiment(parser)
    add_chosen(parser)
    add_samples(parser)
    parser.add_argument(
        "--phase",
        choices=("dispatch", "combine"),
        help="Time only the dispatch or the combine of hidden vectors, with a row for each iteration and layer.",
    )
    parser.add_argument(
        "--law",
        metavar="MACHINE/VERSION",
        help="With --phase, also give the time by a measured kernel, such as blackhole/replay-2026-09-11.",
    )
    parser.add_argument(
        "--step", type=natural, metavar="N", help="Which step (iteration) to draw in the timeline. 0 is the prefill."
    )
    parser.add_argument("--layer", type=natural, metavar="N", help="Which layer to draw in the timeline.")
    parser.add_argument(
        "--die-dies", type=natural, metavar="N",
        help="Compare the decode step before and after die N fails, and say what has to move.",
    )  # fmt: skip
    parser.add_argument(
        "--timeline",
        metavar="FILE",
        help="Write a timeline of that layer in that step to this file, for Perfetto.",
        **below(parser, OUTPUT),
    )


def run_run(args: argparse.Namespace) -> int:
    if args.phase is not None:
        return _phase(args)
    if args.die_dies is not None:
        return _death(args)
    import archsim as ar
    from archsim.cli.printing import print_compiling, print_notes, print_result_notes
    from archsim.report.answers import iteration_sentence
    from archsim.report.timeline import refuse_part_of_timeline
    from archsim.runs.choice import choose
    from archsim.runs.feasibility import kv_rooms_told
    from archsim.runs.plan import plan_of, select
    from archsim.runs.run_cost import cost_sentence

    refuse_part_of_timeline({f"--{name}": getattr(args, name) for name in ("step", "layer", "timeline")})
    experiment = ar.load_experiment(args.file, args.overrides)
    names = (*CHOSEN, "step", "layer", "timeline")
    chosen = choose(experiment, **{name: getattr(args, name) for name in CHOSEN})
    begins(f"simulating {cost_sentence(plan_of(chosen), 1)}")
    print_compiling(of=chosen)
    row = ar.run(experiment, **{name: getattr(args, name) for name in names}).runs.rows[0]
    args.result = row
    if whole := iteration_sentence(row):
        print(whole)
    _print_row(row, experiment)
    for room in kv_rooms_told(select(choose(experiment, **{name: row[name] for name in CHOSEN})).runs()):
        print(room)
    print_result_notes([row], [system for system in experiment.systems if system.name == row["system"]])
    print_notes(experiment.unread)
    if args.samples is not None:
        from archsim.cli.printing import print_sure

        one = choose(experiment, **{name: row[name] for name in CHOSEN})
        begins(f"drawing {args.samples} samples")
        sure = ar.sure(one, args.samples)
        args.result = {**row, **{key: each for key, each in sure.table().rows[0].items() if key not in row}}
        print_sure(sure)
    if args.timeline is not None:
        print(f"timeline: {args.timeline} (open it at https://ui.perfetto.dev)")
    return OK


def _death(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    import archsim as ar
    from archsim.cli.printing import print_compiling
    from archsim.runs.choice import choose
    from archsim.studies.death import death_of

    chosen = choose(ar.load_experiment(args.file, args.overrides), **{name: getattr(args, name) for name in CHOSEN})
    print_compiling()
    found = death_of(chosen, args.die_dies)
    args.result = asdict(found) | {"steps": found.steps}
    print("\n".join(found.lines))
    return OK


def _phase(args: argparse.Namespace) -> int:
    import archsim as ar
    from archsim.cli.printing import print_compiling

    experiment = ar.load_experiment(args.file, args.overrides)
    print_compiling()
    found = ar.run_phase(experiment, args.phase, law=args.law, **{name: getattr(args, name) for name in CHOSEN})
    args.result = found.to_pandas().to_dict("records")
    for line in found.lines():
        print(line)
    return OK


def _print_row(row: Mapping[str, Any], experiment) -> None:
    """The combination and its alternatives, then the columns of the page's table that have a value, with units."""
    from archsim.base.causes import label_of
    from archsim.cli.printing import console, grid
    from archsim.report.tables import COLUMNS
    from archsim.report.units import amount, estimate_texts, percent, usd
    from archsim.runs.prices import price_range
    from archsim.specs.explore import OBJECTIVES

    table = grid("", "", "")
    table.show_header = False
    table.columns[0].no_wrap = True
    if console().width < NARROW:  # leave room for meanings
        table.columns[1].max_width, table.columns[1].overflow = 22, "fold"
    chosen = {
        "system": [each.name for each in experiment.systems],
        "model": [each.name for each in experiment.models],
        "batch": [str(each) for each in experiment.workload.batch],
        "policy": [each.name for each in experiment.policies],
        "assumptions": [each.label for each in experiment.assumptions],
    }
    for name, others in chosen.items():
        choice = f"one of {', '.join(others)} (choose with --{name})" if len(others) > 1 else ""
        table.add_row(name, str(row[name]), choice)
    for name in ("trace", "engine", "layers", "run"):
        table.add_row(name, str(row[name]), "")
    table.add_section()
    for column in COLUMNS:
        if row.get(column.name) is not None:
            table.add_row(column.header, column.shown(row[column.name]), column.meaning.partition("; empty")[0])
        if column.name == "decode_batch_token_ns" and (bound := row["bounded_by"]):
            took = percent(row[f"bound_{bound}"])
            table.add_row("bounded by", label_of(bound), f"which takes {took} of the critical path")
    for name in ("energy", "power", "area"):
        if row[OBJECTIVES[name][0]] is not None:
            ends = [row[end] for bound in ("low", "high") if (end := f"{OBJECTIVES[name][0]}_{bound}") in row]
            of = "MoE layers alone" if name in ("energy", "power") else "dies"
            value, said = row[OBJECTIVES[name][0]], "whose range `archsim hardware cost` shows"
            text = amount(name, value)
            if len(ends) == 2:
                text, low, high = estimate_texts(name, value, *ends)
                said = f"with a range of {low} to {high}"
            table.add_row(name, text, f"estimate for the {of}, {said}")
    system = next(each for each in experiment.systems if each.name == row["system"])
    table.add_row("price", usd(*price_range(system)), "estimate of what the machine costs to make")
    console().print(table)
    for name, title in (("iteration", "a decode iteration"), ("prefill_iteration", "the prefill")):
        if row.get(f"{name}_ns"):
            console().print(_iteration(row, name, title))


def _iteration(row: Mapping[str, Any], prefix: str, title: str):
    """Where the time of an iteration goes, attention and head included."""
    from archsim.cli.printing import grid
    from archsim.report.units import percent
    from archsim.runs.columns import BY_NAME

    table, whole = grid(title, "", "of it", title=None), f"{prefix}_ns"
    total = row[whole]
    parts = [each for each in row if each.startswith(f"{prefix}_") and each.endswith("_ns") and each != whole]
    for name in (whole, *parts):
        if row[name]:
            said = "in all" if name == whole else BY_NAME[name].meaning.removeprefix("of it: ")
            table.add_row(said, f"{row[name] / 1e6:.2f} ms", percent(row[name] / total))
    if prefix == "iteration" and (joule := row.get("iteration_energy_per_token_j")):
        ends = [row[f"iteration_energy_per_token_j_{bound}"] for bound in ("low", "high")]
        said = f"{1 / joule:.3g} tokens/J ({1 / ends[1]:.3g} to {1 / ends[0]:.3g})"
        table.add_row("energy, waiting included (estimate)", f"{joule:.3g} J/token", said)
    return table
