"""``archsim serve``: requests over time on a deployment."""

import argparse
import sys

from archsim.cli import arguments, heartbeat

SHOWN = 10  # rows of a search
MOST_POINTS = 30  # rows of a file with axes


def add_serve(parser: argparse.ArgumentParser) -> None:
    arguments.add_experiment(parser, "The deployment and its requests")
    arguments.add_report(parser, "reports/NAME, or reports/NAME-search with --search")
    arguments.add_jobs(parser)
    arguments.add_samples(
        parser, sentence="default: 16, of a file with `sweep:` of at most 8 runs that are near the best; 0: none"
    )
    parser.add_argument(
        "--timeline",
        metavar="FILE",
        help="Write a timeline of the first policy's run to this file, for Perfetto.",
        **arguments.below(parser, arguments.OUTPUT),
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--compare", metavar="BENCH.json", help="Compare the simulation with a result of `vllm bench serve`."
    )
    how.add_argument(
        "--calibrate", metavar="BENCH.json", help="Fit the time of the host to a result of `vllm bench serve`."
    )
    how.add_argument(
        "--search", action="store_true", help="Find the parallel sizes and batch limits with the most goodput."
    )


def run_serve(args: argparse.Namespace) -> int:
    """Serve, and print the measures. Raises ArchsimError for what does not fit or can never be served."""
    print(f"reading {args.file} ...", file=sys.stderr, flush=True)  # before slow imports
    import archsim as ar
    from archsim.cli.printing import print_compiling

    _refuse_unwritten(args)
    print_compiling("serving")
    if args.search:
        args.result = _search(args)
    elif args.compare:
        print(f"simulating what {args.compare} measured ...", file=sys.stderr, flush=True)
        args.result = ar.compare_serving(args.file, args.compare, args.overrides)
        _print_comparison(args.result)
    elif args.calibrate:
        text = f"fitting the host's time to {args.calibrate}: it is simulated many times ..."
        print(text, file=sys.stderr, flush=True)
        found = ar.calibrate_serving(args.file, args.calibrate, args.overrides, report=heartbeat.begins)
        _print_comparison(found.compared)
        print(*found.halves, f"host: {found.host.as_written}", sep="\n")
    else:
        return _serve(args)
    return arguments.OK


def _serve(args: argparse.Namespace) -> int:
    import archsim as ar
    from archsim.cli.printing import print_notes, print_served_sure, report_folder
    from archsim.cli.progress import study

    folder = report_folder(arguments.stem_of(args.file), args.out)
    with study(folder) as watching:
        watching.phase("loading the simulator")
        served = ar.serve_plan(
            args.file, args.overrides, out=folder, watcher=watching, jobs=args.jobs, samples=args.samples
        )
    rows = [dict(row) for row in served.table.rows]
    for row, outcome in zip(rows, served.outcomes, strict=False):  # none of a file with axes
        row |= {"why_slow": list(outcome.why_slow), "notes": list(outcome.notes)}
    args.result = {"answer": served.answer, "rows": rows}
    if served.sampled is not None:
        args.result["sure"] = served.sampled.plain()
    if served.answer:
        print(served.answer)
    if served.plan.has_axes:
        _print_points(served)
        print_notes(served.plan.notes(served.table.rows))
    else:
        _print_measures(served.outcomes[0])
        if len(served.outcomes) > 1:
            _print_policies(served.outcomes)
        print_notes(served.outcomes[0].notes)
        for each in served.outcomes[1:]:
            print_notes(f"{each.serving.policy.name}: {said}" for said in each.unsteady_told)
    if served.sampled is not None and args.samples:
        print_served_sure(served.sampled)
    if args.timeline:
        ar.serve(args.file, args.overrides, timeline=args.timeline)
        print(f"timeline: {args.timeline} (open it with https://ui.perfetto.dev)")
    print(f"report: {folder / 'index.html'}")
    return arguments.OK


def _print_points(served) -> None:
    """The best rows, and which were refused."""
    from archsim.base.errors import sentence
    from archsim.cli.printing import console, grid
    from archsim.studies.serving.page import FEW, cells, order_rows, ranges_of

    ranges = ranges_of(served.plan, served.table, served.sampled)
    keys = ("point", *served.plan.first.axes, "policy")
    rows = order_rows(served.table.rows)
    table = grid(*keys, title=f"{len(rows)} runs, most goodput first", numbers=tuple(each for _, each in FEW))
    for row in rows[:MOST_POINTS]:
        table.add_row(*cells(row, keys, FEW, ranges.get(row["run"], {}))[:-1])
    console().print(table)
    if len(rows) > MOST_POINTS:
        print(f"{len(rows) - MOST_POINTS:,} more runs are in results.csv.")
    for key, what, why in (
        ("saturated", "saturated", "requests come faster than they end"),
        ("unsteady", "unsteady", "halves differ, a run is short, or a fault came"),
        ("rejected", "incomplete", "requests that are too long are rejected"),
    ):
        points = [str(row["point"]) for row in rows if row[key]]
        if points:
            runs = "1 run is" if len(points) == 1 else f"{len(points)} runs are"
            numbers = ", ".join(points[:SHOWN]) + (", …" if len(points) > SHOWN else "")
            print(f"{runs} {what}, because {why} (point{'' if len(points) == 1 else 's'} {numbers}).")
    refused = [row for row in rows if row["refused"]]
    if refused:
        runs = "1 run was" if len(refused) == 1 else f"{len(refused)} runs were"
        print(f"{runs} refused. The first is point {refused[0]['point']}: {sentence(refused[0]['refused'])}")


def _refuse_unwritten(args: argparse.Namespace) -> None:
    """Raise SpecError for files that nothing would write."""
    from archsim.base.errors import SpecError

    asked = next((name for name in ("search", "compare", "calibrate") if getattr(args, name)), None)
    if asked and args.samples is not None:
        raise SpecError(f"--samples and --{asked} cannot be given together, as --{asked} draws no samples")
    for name in ("out", "timeline"):
        if asked and getattr(args, name) and (asked, name) != ("search", "out"):
            raise SpecError(f"--{name} and --{asked} cannot be given together, as --{asked} writes no such file")


def _print_measures(outcome) -> None:
    from archsim.cli.printing import console, grid
    from archsim.report.units import interval
    from archsim.serving.measures import PERCENTILES, number
    from archsim.serving.serving import rooms_told
    from archsim.studies.serving.page import time_rows

    measures = outcome.measures
    title = f"{outcome.serving.model.name}, {outcome.deployment.summary}"
    numbers = ("mean", *(f"p{each}" for each in PERCENTILES))
    table = grid("ms", title=title, numbers=numbers)
    for row in time_rows(outcome):
        table.add_row(*row)
    console().print(table)
    values = {
        "requests": f"{measures.requests:,} in {measures.duration_s:,.1f} s, {measures.requests_per_s:.3f} per second"
        + (f"; {measures.rejected:,} more are rejected" if measures.rejected else ""),
        "goodput": f"{measures.goodput_per_s:.3f} requests/s; {measures.within_slo:.1%} of them are within the limits",
        "output": f"{measures.output_tokens_per_s:,.0f} tokens/s",
        "output per device": f"{measures.output_tokens_per_s_device:,.0f} tokens/s",
        "output per user": f"{number(measures.tokens_per_s_user, '.1f')} tokens/s",
        "KV cache": f"{measures.kv_mean:.1%} in use on average, {measures.kv_peak:.1%} at most",
        "prefix cache": f"{measures.prefix_hits:.1%} of the prompt tokens",
        "preemptions": f"{measures.preemptions:,}",
    }
    if measures.device_w == measures.device_w:  # else it is not estimated
        watts = interval(measures.device_w, measures.device_w_low, measures.device_w_high)
        joules = interval(measures.output_token_j, measures.output_token_j_low, measures.output_token_j_high)
        values |= {
            "power": "{} W per device ({} to {}), without host and cooling".format(*watts),
            "energy": "{} J an output token ({} to {}), its prompt included".format(*joules),
        }
    if outcome.serving.has_traffic:
        values |= {
            "policy": outcome.serving.policy.name,
            "balance of dies": f"{measures.balancedness:.3f} (mean over largest load)",
            "migrations": f"{measures.migrations:,}, which move {measures.moved_bytes / 1e9:,.1f} GB",
            "wait for them": f"{measures.stalled_ns / 1e9:.3f} s",
        }
    table = grid("", "")
    table.show_header = False
    for name, value in values.items():
        table.add_row(name, value)
    console().print(table)
    for room in rooms_told(outcome.serving):
        print(room)


def _print_policies(outcomes) -> None:
    from archsim.cli.printing import console, grid
    from archsim.studies.serving.page import POLICY_COLUMNS, policy_values

    table = grid("policy", title="policies, with the same requests", numbers=POLICY_COLUMNS)
    for outcome in outcomes:
        table.add_row(outcome.serving.policy.name, *policy_values(outcome))
    console().print(table)


def _print_comparison(compared) -> None:
    from archsim.cli.printing import console, grid, print_notes

    table = grid("vllm bench serve", title="measured and simulated", numbers=("measured", "simulated", "error"))
    for row in compared.rows:
        measured = "–" if row.measured is None else f"{row.measured:,.2f}"
        simulated = "–" if row.simulated is None else f"{row.simulated:,.2f}"
        table.add_row(row.key, measured, simulated, "–" if row.error is None else f"{row.error:+.1%}")
    console().print(table)
    print_notes((*compared.advice, *compared.outcome.notes))


def _search(args: argparse.Namespace) -> dict:
    """Print the configurations found, and write the page. Returns the answer, the best as a file of `archsim serve`,
    and the rows. What was served is kept in the folder of the page; after Ctrl-C the same command goes on from there.
    """
    from archsim.base.errors import sentence
    from archsim.base.files import own_folder
    from archsim.base.host import available_cores
    from archsim.cli.printing import console, grid, print_notes, report_folder
    from archsim.cli.progress import resumes
    from archsim.specs.serving_files import load_serving
    from archsim.studies.serving.configuration import with_choice
    from archsim.studies.serving.results import (
        COLUMNS,
        NOTATION,
        answer,
        best_sentences,
        equal_groups,
        table_of,
        values,
    )
    from archsim.studies.serving.search import search
    from archsim.studies.serving.search_page import PARTIAL, write_search

    serving = load_serving(args.file, args.overrides)
    folder = own_folder(report_folder(arguments.stem_of(args.file), args.out, "search"))
    print("searching ...", file=sys.stderr, flush=True)

    def keep(so_far) -> None:
        table_of(so_far).write_csv(folder / PARTIAL)

    with resumes(folder):
        found = search(serving, heartbeat.begins, jobs=args.jobs or available_cores(), folder=folder, kept=keep)
    for said in best_sentences(serving, found):
        print(said)
    groups = equal_groups(found)
    title = f"{len(found)} configurations, the best first (a row holds all with the same numbers)"
    table = grid("configuration", title=title, numbers=COLUMNS)
    for each in groups[:SHOWN]:
        table.add_row(each.name, *values(each.measures, each.highest_rate))
    if groups:
        console().print(table)
    if len(groups) > SHOWN:
        print(f"{len(groups) - SHOWN:,} more rows are in search.csv.")
    if groups:
        print(NOTATION)
    write_search(serving, found, folder)
    print(f"report: {folder / 'index.html'}")
    if groups:
        print(f"`archsim serve {folder / 'best.yaml'}` serves with the best configuration.")
    first = "a search serves the first value of an axis"
    print_notes((*serving.unread, *(f"{name} has no effect: {first}" for name in serving.axes)))
    refused = [each for each in found if each.measures is None]
    if refused:
        were = "1 configuration was" if len(refused) == 1 else f"{len(refused)} configurations were"
        print(f"{were} refused. The first is {refused[0].choice.name}: {sentence(refused[0].refused)}")
    best = with_choice(serving.given, found[0].choice) if groups else None
    return {
        "answer": answer(serving, found), "serve_file": best, "rows": [dict(row) for row in table_of(found).rows],
    }  # fmt: skip
