"""``archsim trace profile``: measure the patterns of recorded routing."""

import argparse
from pathlib import Path

from archsim.cli.arguments import add_out
from archsim.cli.exit_codes import OK


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SRC", help="store, .npz or directory of JSON requests")
    parser.add_argument("--model", required=True, metavar="NAME", help="model by name or file")
    add_out(parser, "folder of the page", required=True)


def run(args: argparse.Namespace) -> int:
    """Print the measured patterns and the verdicts on the published insights."""
    from archsim.report.profile_page import write_profile
    from archsim.specs.loading.library import load_model
    from archsim.workload import open_trace
    from archsim.workload.patterns.profile import insights, profile

    found = profile(open_trace(args.source, load_model(args.model)))
    page = write_profile(found, Path(args.out))
    for name in found.layers:
        print(f"{name:<24} {found.mean(name):.3f}")
    for each in insights(found):
        print(f"insight {each.number}: {each.verdict}: {each.measured}")
    print(f"report: {page}")
    return OK
