"""``archsim compare``: two designs, or two policies or systems of one experiment, side by side."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from archsim.base.errors import SpecError, capital
from archsim.cli import arguments
from archsim.studies import claims_page

if TYPE_CHECKING:
    from archsim.specs.experiment import ExperimentSpec
    from archsim.specs.plan import SweepPlan


# ---- compare


def add_compare(parser: argparse.ArgumentParser) -> None:
    for name in ("A", "B"):
        parser.add_argument(
            name.lower(),
            metavar=name,
            help="An experiment, by path or name. With --in, a policy or a system of that experiment.",
        )
    parser.add_argument(
        "--in", dest="inside", metavar="FILE", help="The experiment that A and B are policies or systems of."
    )
    arguments.add_chosen(parser)
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY.PATH=VALUE",
        help="Override a key of both designs. May be repeated.",
    )  # fmt: skip
    arguments.add_out(parser, "Folder to write the page to (default: reports/A-B-…).")
    arguments.add_samples(parser)


def run_compare(args: argparse.Namespace) -> int:
    """Print what differs, and write the page."""
    from pathlib import Path

    import archsim as ar
    from archsim.cli.printing import print_compiling, print_notes
    from archsim.runs.results import damage_told

    print_compiling()
    chosen = {name: getattr(args, name) for name in arguments.CHOSEN}
    folder = Path(args.out or Path("reports") / _folder_name(args))
    for each in dict.fromkeys(filter(None, (args.inside, args.a, args.b))):
        print_notes(damage_told(Path(each)))
    print("simulating both ...", file=sys.stderr, flush=True)
    found = ar.compare(args.a, args.b, inside=args.inside, out=folder, overrides=args.overrides, **chosen)
    args.result = found
    _print(found)
    print_notes(found.notes)
    if args.samples is not None:
        from archsim.cli.printing import print_sure
        from archsim.cli.progress import study
        from archsim.studies.sides import load_side, side_of
        from archsim.studies.sure import sure_of_sides

        inside = None if args.inside is None else load_side(args.inside, args.overrides)
        sides = {name: side_of(each, inside, args.overrides, chosen) for name, each in (("A", args.a), ("B", args.b))}
        named = {f"{name}: {of}": side for (name, side), of in zip(sides.items(), (found.a, found.b), strict=True)}
        with study(folder) as watching:
            sure = sure_of_sides(named, args.samples, folder, None, watching)
        print_sure(sure)
    print(f"report: {folder / 'index.html'}")
    return arguments.OK


def _folder_name(args: argparse.Namespace) -> str:
    """The name of the folder of the comparison, which depends on ``--in``, ``--batch``, ``--set`` and the like."""
    from pathlib import Path

    files = [Path(each).stem for each in (args.inside, args.a, args.b) if each]
    given = [str(value) for name in arguments.CHOSEN if (value := getattr(args, name)) is not None]
    return re.sub(r"[^\w.+=-]+", "_", "-".join([*files, *given, *args.overrides]))


def _print(found) -> None:
    from archsim.cli.printing import console, grid
    from archsim.studies.designs_page import answer, cell, change

    print(f"A: {found.a}, B: {found.b}; both: {found.same}")
    table = grid("specification", "A", "B")
    for each in found.spec:
        table.add_row(each.key, each.a, each.b)
    console().print(table)
    table = grid("", numbers=("A", "B", "B over A"))
    table.add_column("")
    for group in dict.fromkeys(each.group for each in (*found.causes, *found.quantities)):
        table.add_row(group, style="bold")
        for each in (*found.causes, *found.quantities):
            if each.group == group:
                better = {1: "better", -1: "worse", 0: ""}[each.better]
                table.add_row(f"  {each.name}", cell(each, 0), cell(each, 1), change(each), better)
    console().print(table)
    print(f"{answer(found)}.")


# ---- engines
# ``archsim compare --engines``: run a sample of an experiment on two engines, print how they differ.


def add_engines(parser: arguments.Parser) -> None:
    arguments.add_experiment(parser)
    parser.add_argument(
        "--runs",
        type=arguments.positive,
        metavar="N",
        default=40,
        help="How many runs to draw at random (default: 40).",
    )
    parser.spelled_before("--sample", "--runs")
    parser.add_argument(
        "--interpreted", action="store_true", help="Compare every column with engine: interpreted, which is slow."
    )
    parser.add_argument(
        "--steps",
        type=arguments.positive,
        metavar="N",
        default=3,
        help="The most decode steps of a run to simulate (default: 3).",
    )


def run_engines(args: argparse.Namespace) -> int:
    """Print the errors by assumption set, then every run outside the limit with the reason."""
    import archsim as ar
    from archsim.cli.printing import print_compiling, print_engine_errors, print_notes
    from archsim.cli.progress import watcher
    from archsim.specs.library import load_planned
    from archsim.specs.plan import SweepPlan

    planned = load_planned(args.file, args.overrides)
    print_compiling()
    if args.interpreted:
        return _interpreted(planned, args)
    with watcher() as watching:
        found = ar.engines(planned, args.runs, args.steps, watching)
    kind = "points" if isinstance(planned, SweepPlan) else "runs"
    steps = f"at most {found.decode_steps} decode {'step' if found.decode_steps == 1 else 'steps'}"
    args.result = found.to_pandas().to_dict("records")
    print(f"{found.name}: {len(found.runs)} of {found.drawn_from:,} {kind} on both engines, {steps}")
    print_engine_errors(found.runs)
    print_notes((planned.experiment if isinstance(planned, SweepPlan) else planned).unread)
    return arguments.OK


def _interpreted(planned: ExperimentSpec | SweepPlan, args: argparse.Namespace) -> int:
    """Print the column that differs most in each run; fails if one does by more than the order of floats explains."""
    from archsim.runs.engine_comparison import AGREES, compare_interpreted, sample, shortened
    from archsim.runs.plan import select
    from archsim.runs.simulator import Simulator

    selection = select(planned)
    points = map(selection.plan.point, sample(selection.kept, args.runs))
    runs = [shortened(run, args.steps) for run in selection.maker.runs(points)]
    worst, args.result = 0.0, []
    for each in compare_interpreted(runs, Simulator(selection.maker.traces)):
        said = "all columns equal" if each.share == 0.0 else f"{each.column} {each.event:.12g} {each.interpreted:.12g}"
        print(f"  {each.run}: {said}", flush=True)
        worst = max(worst, each.share)
        args.result.append(each)
    print(f"{len(runs)} runs, compiled and interpreted: largest difference {worst:.1e}")
    return arguments.OK if worst <= AGREES else arguments.DIFFERS


# ---- claims
# ``archsim compare --papers``: published numbers of papers beside runs of their experiments.

FOLDER = "reports/claims"


def add_claims(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "papers", nargs="*", metavar="PAPER", help="A paper, by its name in configs/papers or by file (default: all)."
    )
    parser.add_argument(
        "--recorded", action="store_true",
        help="Simulate nothing, and judge the values that were recorded with this version "
        "(configs/papers/recorded.json).",
    )  # fmt: skip
    arguments.add_report(parser, FOLDER)
    arguments.add_jobs(parser)


def run_claims(args: argparse.Namespace) -> int:
    """Run what is missing, and print how many numbers are met where a null model is not, and the largest misses."""
    print("reading the papers' files ...", file=sys.stderr, flush=True)
    import archsim as ar
    from archsim.cli.printing import print_compiling
    from archsim.cli.progress import study
    from archsim.studies.claims_page import as_json

    folder = Path(args.out or FOLDER)
    if args.recorded:
        found = ar.claims(args.papers, folder, recorded=True)
    else:
        print_compiling()
        with study(folder) as watching:
            found = ar.claims(args.papers, folder, args.jobs, watching)
    args.result = as_json(found)
    _print_claims(found)
    pages = [folder / each.paper.paper for each in found] if args.papers else [folder]
    for page in pages:
        print(f"report: {page / 'index.html'}")
    return arguments.OK


def _print_claims(found) -> None:
    from archsim.base.errors import sentence
    from archsim.cli.printing import console, grid

    for each in found:
        for answer in each.answers:
            print(claims_page.answer_sentence(answer))
    print(claims_page.summary_sentence(found))
    for claims, judged in claims_page.largest_misses(found):
        unit, at = judged.group.unit, judged.place
        print(
            f"Largest miss in {claims.paper.title}: {judged.group.what}{f' ({at})' if at else ''}. The published value "
            f"is {claims_page.published_text(judged, unit)} and the simulated "
            f"{claims_page.shown(judged.simulated, unit)}. "
            f"{sentence(capital(judged.why))}"
        )
    names = tuple(name.replace("_", " ") for name in claims_page.VerdictCounts._fields)
    table = grid("paper", title="published numbers", numbers=names)
    for each in found:
        table.add_row(each.paper.paper, *map(str, claims_page.counts_of([each])))
    console().print(table)


# ---- worth
# ``archsim compare --without``: whether a balancer pays on a deployment, judged on held-out loads, or a block of
# silicon.


def add_worth(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        metavar="WHAT",
        help="A balancer (eplb, craft, remap or dup) or a block of silicon (prediction, allocator or speeds).",
    )
    parser.add_argument(
        "--loads", nargs="+", metavar="LOADS", help="For a balancer: recorded loads, as `archsim place` takes them."
    )
    parser.add_argument(
        "--deployment",
        metavar="FILE",
        help="For a balancer: a deployment with one engine, as `archsim serve` takes it.",
    )
    parser.add_argument(
        "--in",
        dest="inside",
        metavar="FILE",
        help="For a block: the experiment, or the folder of a report, whose policies are compared.",
    )
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY.PATH=VALUE",
        help="Override a key of the deployment or experiment, such as requests.count=200. May be repeated.",
    )  # fmt: skip
    arguments.add_out(parser, "For a balancer: folder to write the files to deploy to (default: nothing is written).")
    arguments.add_samples(parser)
    arguments.add_jobs(parser)


def run_worth(args: argparse.Namespace) -> int:
    """Print the verdict and what it stands on. Raises ArchsimError for what does not fit."""
    if args.inside is None and (args.loads is None or args.deployment is None):
        raise SpecError(
            "a balancer needs --loads and --deployment. A block (prediction, allocator or speeds) needs --in"
        )
    if args.inside is not None and (args.loads or args.deployment or args.out):
        raise SpecError("--in is for a block. --loads, --deployment and --out are for a balancer")
    print(f"reading {args.inside or args.deployment} ...", file=sys.stderr, flush=True)  # before slow imports
    return _balancer(args) if args.inside is None else _block(args)


def _balancer(args: argparse.Namespace) -> int:
    import archsim as ar
    from archsim.cli.printing import print_compiling, print_notes

    print_compiling()
    print("choosing placements, serving with and without ...", file=sys.stderr, flush=True)
    out = None if args.out is None else Path(args.out)
    found = ar.worth(args.what, args.loads, args.deployment, args.overrides, out=out, samples=args.samples)
    args.result = found
    print(found.verdict)
    if found.reason:
        print(found.reason)
    if found.worlds is not None:
        print(found.worlds.sentence)
    _print_rows(found)
    _print_moves(found)
    print_notes(found.notes)
    return arguments.OK


def _block(args: argparse.Namespace) -> int:
    import archsim as ar
    from archsim.cli.printing import print_compiling, print_notes
    from archsim.cli.progress import watcher

    is_report = Path(args.inside).is_dir()
    if is_report and args.overrides:
        raise SpecError(f"{args.inside} is a report, whose runs are taken as they are. --set needs an experiment")
    print_compiling()
    with watcher() as watching:
        experiment = args.inside if is_report else ar.load(args.inside, args.overrides)
        found = ar.block_worth(args.what, experiment, args.jobs, watching, args.samples)
    args.result = found
    _print_block(found)
    print_notes(getattr(experiment, "unread", ()))
    return arguments.OK


def _print_block(found) -> None:
    from archsim.cli.printing import console, grid
    from archsim.report.units import TIME_UNITS, scaled, signed_percent, usd
    from archsim.studies.block_worth import WORDS

    print(found.verdict)
    for each in found.worlds:
        print(each.sentence)
    for cost in found.costs:
        takes = f"{cost.mm2:,.3g} mm², {cost.w:,.3g} W and {usd(*cost.usd[::2])}"
        print(f"On {cost.system}, which decides by {cost.decided}, {found.block} takes {takes}.")
    numbers = ("batch", "saved a decode step", "throughput", "energy a token")
    table = grid("policy", "without it", "system", "model", "assumptions", title="simulated", numbers=numbers)
    table.add_column("pays for its")
    for row in found.rows:
        saved = "0" if row.gain == 0 else scaled(row.saved_ns, TIME_UNITS)
        energy = "–" if row.energy is None else signed_percent(row.energy)
        pays = ", ".join(WORDS[each] for each in row.pays) or "no"
        where = row.policy, row.without, row.system, row.model, row.assumptions, f"{row.batch:,}"
        table.add_row(*where, saved, signed_percent(row.gain), energy, pays)
    console().print(table)
    for sentence in (*found.reasons, *found.break_evens):
        print(sentence)


def _print_rows(found) -> None:
    from archsim.cli.printing import console, grid

    timed = any(row.experts_ms is not None for row in found.rows)
    numbers = ("max / mean", *(["experts ms"] if timed else []), "TTFT ms", "TPOT ms", "goodput /s", "KV blocks a rank")
    table = grid("served", title="on held-out loads, simulated", numbers=("spares a rank", *numbers))
    for row in found.rows:
        spares, experts = ("–" if each is None else f"{each:.4g}" for each in (row.spares, row.experts_ms))
        times = (f"{row.ttft_ms:,.1f}", f"{row.tpot_ms:,.3f}", f"{row.goodput_per_s:.3f}", f"{row.kv_blocks:,}")
        table.add_row(row.name, spares, f"{row.max_over_mean:.3f}", *([experts] if timed else []), *times)
    console().print(table)


def _print_moves(found) -> None:
    cost, even = found.placed.cost, found.break_even
    print(
        f"Spare slots take {cost.extra_bytes / 1e9:.2f} GB of HBM a rank, {cost.hbm_share:.1%} of it.\n"
        f"A new placement moves {cost.moved:,} experts, of which {cost.busiest_bytes / 1e9:.2f} GB go to the busiest "
        f"rank. That takes {found.stall_ms:,.1f} ms over its link, after a search of {found.search_s:.2f} s on this "
        "host (measured)."
    )
    if even is None:
        print("Moving experts never pays for itself, as a token takes no less time afterwards.")
    else:
        print(f"Moving experts pays for itself if the placement stays for {even:,.0f} decode iterations.")
    for file in found.placed.files:
        print(f"Written for deployment: {file}")
