"""``archsim serve``: requests over time on a deployment."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from archsim.cli import arguments, heartbeat

if TYPE_CHECKING:
    from archsim.base.answer import Answer, Part

SHOWN = 10  # rows of a search


def run_serve(args: argparse.Namespace) -> Answer:
    """Serve, and say the measures. Raises ArchsimError for what does not fit or can never be served."""
    print(f"reading {args.file} ...", file=sys.stderr, flush=True)  # before slow imports
    import archsim as ar
    from archsim.cli.printing import print_compiling

    _refuse_unwritten(args)
    keys = {"requests": "requests.trace", "rate": "rate", "users": "users", "ttft": "slo.ttft", "tpot": "slo.tpot"}
    given = {key: value for name, key in keys.items() if (value := getattr(args, name)) is not None}
    _refuse_swept(args, given)
    args.overrides = [*args.overrides, *(f"{key}={value}" for key, value in given.items())]
    print_compiling("serving")
    if args.search:
        return _search(args)
    if args.compare:
        print(f"simulating what {args.compare} measured ...", file=sys.stderr, flush=True)
        return ar.compare_serving(args.file, args.compare, args.overrides).as_answer()
    if args.calibrate:
        text = f"fitting the host's time to {args.calibrate}: it is simulated many times ..."
        print(text, file=sys.stderr, flush=True)
        found = ar.calibrate_serving(args.file, args.calibrate, args.overrides, report=heartbeat.begins)
        compared = found.compared.as_answer()
        return replace(compared, parts=(*compared.parts, *found.halves, f"host: {found.host.as_written}"), result=None)
    return _serve(args)


def _serve(args: argparse.Namespace) -> Answer:
    import archsim as ar
    from archsim.cli.printing import report_folder
    from archsim.cli.progress import study
    from archsim.serving.answers.plan_answer import answer_of

    folder = report_folder(arguments.stem_of(args.file), args.out)
    with study(folder) as watching:
        watching.phase("loading the simulator")
        served = ar.serve_plan(
            args.file, args.overrides, out=folder, watcher=watching, jobs=args.jobs, samples=args.samples
        )
    found, files = answer_of(served, bool(args.samples)), [f"report: {folder / 'index.html'}"]
    if args.timeline:
        ar.serve(args.file, args.overrides, timeline=args.timeline)
        files.insert(0, f"timeline: {args.timeline} (open it with https://ui.perfetto.dev)")
    return replace(found, parts=(*found.parts, *files))


def _refuse_unwritten(args: argparse.Namespace) -> None:
    """Raise SpecError for files that nothing would write."""
    from archsim.base.errors import SpecError

    asked = next((name for name in ("search", "compare", "calibrate") if getattr(args, name)), None)
    if asked and args.samples is not None:
        raise SpecError(f"--samples and --{asked} cannot be given together, as --{asked} takes no samples")
    for name in ("out", "timeline"):
        if asked and getattr(args, name) and (asked, name) != ("search", "out"):
            raise SpecError(f"--{name} and --{asked} cannot be given together, as --{asked} writes no such file")


def _refuse_swept(args: argparse.Namespace, given: Mapping[str, object]) -> None:
    """Raise SpecError for options that an axis of the file replaces. ``given``: their keys → values."""
    from archsim.base.errors import SpecError
    from archsim.specs.serving_files import load_serving
    from archsim.specs.serving_keys import replaces

    axes = load_serving(args.file, args.overrides).axes if given else {}
    for key, (axis, values) in product(given, axes.items()):
        if replaces(axis, values[0], key):
            option = f"--{key.split('.')[-1] if key != 'requests.trace' else 'requests'}"
            raise SpecError(
                f"{option} has no effect beside the axis {axis} of `sweep:` in {args.file}. Leave it out, or give the "
                "file without that axis"
            )


def _search(args: argparse.Namespace) -> Answer:
    """Search, write the page, answer with the best file and rows. What was served is kept beside the page."""
    from archsim.base.answer import Answer, Grid
    from archsim.base.errors import sentence
    from archsim.base.files import own_folder
    from archsim.base.host import available_cores
    from archsim.cli.printing import report_folder
    from archsim.cli.progress import resumes
    from archsim.serving.answers import results
    from archsim.serving.answers.configuration import with_choice
    from archsim.serving.answers.search import search, unread_by_search
    from archsim.serving.answers.search_page import PARTIAL, write_search
    from archsim.specs.serving_files import load_serving

    serving = load_serving(args.file, args.overrides)
    folder = own_folder(report_folder(arguments.stem_of(args.file), args.out, "search"))
    print("searching ...", file=sys.stderr, flush=True)

    def keep(so_far) -> None:
        results.table_of(so_far).write_csv(folder / PARTIAL)

    with resumes(folder):
        found = search(serving, heartbeat.begins, jobs=args.jobs or available_cores(), folder=folder, kept=keep)
    write_search(serving, found, folder)
    groups = results.equal_groups(found)
    parts: list[Part] = list(results.best_sentences(serving, found))
    if groups:
        rows = [(each.name, *results.values(each.measures, each.highest_rate)) for each in groups[:SHOWN]]
        title = f"{len(found)} configurations, the best first (a row holds all with the same numbers)"
        parts.append(Grid(("configuration",), rows, results.COLUMNS, title=title))
        if len(groups) > SHOWN:
            parts.append(f"{len(groups) - SHOWN:,} more rows are in search.csv.")
        parts.append(results.NOTATION)
    parts.append(f"report: {folder / 'index.html'}")
    if groups:
        parts.append(f"`archsim serve {folder / 'best.yaml'}` serves with the best configuration.")
    refused = [each for each in found if each.measures is None]
    if refused:
        were = "1 configuration was" if len(refused) == 1 else f"{len(refused)} configurations were"
        parts.append(f"{were} refused. The first is {refused[0].choice.name}: {sentence(refused[0].refused)}")
    notes = (*serving.unread, *unread_by_search(serving))
    best = with_choice(serving.given, found[0].choice) if groups else None
    rows_of = [dict(row) for row in results.table_of(found).rows]
    answer = results.answer(serving, found)
    return Answer(parts, notes, {"answer": answer, "serve_file": best, "rows": rows_of})
