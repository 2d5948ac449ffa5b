"""``archsim trace import``: read recorded routing into a store."""

import argparse
import sys
import time
from pathlib import Path

from archsim.cli.arguments import add_store_out
from archsim.cli.exit_codes import INTERRUPTED, OK


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SRC",
        help="directory or .tar.gz of JSON requests, .npz, .json, .jsonl; or expert loads: .pt, .json, .jsonl, .csv, "
        ".npy, .npz, or a directory of rank*.safetensors",
    )
    add_store_out(parser)
    parser.add_argument("--model", metavar="NAME", help="model by name or file (default: the one named in SRC)")
    parser.add_argument("--reader", metavar="MODULE:FUNCTION", help="a reader for your own format (docs/traces.md)")
    parser.add_argument(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help="on damaged data: stop and import nothing (default), or report and skip it",
    )


def run(args: argparse.Namespace) -> int:
    """Import and print the store. Raises TraceError for damaged data with ``--on-error stop``."""
    from archsim.base.cores import available_cores
    from archsim.cli.printing import print_store
    from archsim.cli.trace.import_progress import import_watcher
    from archsim.specs.loading.library import load_model
    from archsim.workload.formats.importing import import_sources

    model = load_model(args.model) if args.model else None
    sources, out, jobs = [Path(source) for source in args.sources], Path(args.out), args.jobs or available_cores()
    started = time.perf_counter()
    try:
        with import_watcher() as watcher:
            report = import_sources(sources, out, model, jobs, args.on_error, watcher, args.replace, args.reader)
    except KeyboardInterrupt:
        print("\ninterrupted; what has been read is kept: the same command resumes", file=sys.stderr)
        return INTERRUPTED
    seconds = time.perf_counter() - started
    kept = f", {report.kept} of them read before" if report.kept else ""
    print(f"{report.requests} requests{kept}, {report.size / 1e6:,.1f} MB in {seconds:.1f} s", file=sys.stderr)
    if report.problems:
        print(f"{len(report.problems)} damaged: left out, see above", file=sys.stderr)
    print_store(args.out)
    return OK
