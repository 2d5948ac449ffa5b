"""``archsim optimum``: run every combination, bound its steps, print the distances, write page and CSV."""

import argparse
import sys

from archsim.cli.arguments import add_experiment, add_json, add_report, positive
from archsim.cli.exit_codes import OK


def add(parser: argparse.ArgumentParser) -> None:
    add_experiment(parser)
    add_report(parser, "reports/NAME-optimum")
    add_json(parser)
    parser.add_argument(
        "--steps", type=positive, default=200, metavar="N", help="steps per run to bound, evenly spread (default: 200)"
    )


def run(args: argparse.Namespace) -> int:
    """Bound and report. Raises ArchsimError for more than 128 dies."""
    import archsim as ar
    from archsim.cli.printing import print_compiling
    from archsim.cli.report_folder import print_replaced, report_folder

    experiment = ar.load_experiment(args.file, args.overrides)
    folder = report_folder(experiment.name, args.out, "optimum")
    print_replaced(folder, None)
    print_compiling()
    print("simulating runs, bounding their steps ...", file=sys.stderr, flush=True)
    found = ar.optimum(experiment, None, args.steps, _print_run)
    print("writing the page ...", file=sys.stderr, flush=True)
    from archsim.studies.optimum.page import write_optimum

    write_optimum(list(found.runs), found.name, folder)
    args.result = found.to_pandas().to_dict("records")
    print(f"report: {folder / 'index.html'}")
    return OK


def _print_run(measured) -> None:
    from archsim.report.units import percent

    mean, p95, worst = (percent(share, 1) for share in measured.summary())
    parts = ", ".join(f"{name} {percent(share, 1)}" for name, share in measured.parts.items())
    far = f"above the bound: mean {mean} ({parts}), p95 {p95}, worst {worst}"
    print(f"{measured.run.name}: {far}; {len(measured.steps)} steps", flush=True)
