"""``archsim trace``: recorded and generated routing."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from archsim.base import verbs
from archsim.cli import arguments

if TYPE_CHECKING:
    from archsim.base.answer import Answer


def add_import_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SRC",
        help="Recorded routing: a directory or .tar.gz of JSON requests, .npz, .json or .jsonl. Or loads of experts: "
        ".pt, .json, .jsonl, .csv, .npy, .npz or a directory of rank*.safetensors.",
    )
    arguments.add_store_out(parser, "SRC-store")
    parser.add_argument("--model", metavar="NAME", help="The model, by name or file (default: the one named in SRC).")
    parser.add_argument("--reader", metavar="MODULE:FUNCTION", help="Your own reader of a format (see docs/traces.md).")
    parser.add_argument(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help="What to do with damaged data: stop and import nothing, or report and skip it (default: stop).",
    )


def run_import_store(args: argparse.Namespace) -> Answer | int:
    """Import and print the store. Raises TraceError for damaged data with ``--on-error stop``."""
    from archsim.base.host import available_cores
    from archsim.cli.import_progress import import_watcher
    from archsim.cli.printing import answer_of_store
    from archsim.show.units import count_of
    from archsim.specs.library import load_model
    from archsim.traffic.formats.importing import import_sources

    model = load_model(args.model) if args.model else None
    sources, out = (
        [Path(source) for source in args.sources],
        Path(args.out or f"{arguments.stem_of(args.sources[0])}-store"),
    )
    jobs = args.jobs or available_cores()
    started = time.perf_counter()
    try:
        with import_watcher() as watcher:
            report = import_sources(sources, out, model, jobs, args.on_error, watcher, args.replace, args.reader)
    except KeyboardInterrupt:
        print("\nInterrupted. What has been read is kept. The same command resumes there.", file=sys.stderr)
        return arguments.INTERRUPTED
    seconds = time.perf_counter() - started
    kept = f", {report.kept} of them read before" if report.kept else ""
    print(
        f"{count_of(report.requests, 'request')}{kept}, {report.size / 1e6:,.1f} MB in {seconds:.1f} s", file=sys.stderr
    )
    if report.problems:
        print(f"{len(report.problems)} damaged requests are left out (listed above)", file=sys.stderr)
    return answer_of_store(out)


def add_fit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="SRC",
        help="Recorded routing (a store, .npz or directory of JSON requests), an .npz of loads (counts, layer_ids), or "
        "a YAML file of published statistics, such as a preset of configs/traffic.",
    )
    parser.add_argument("--model", metavar="NAME", help="The model, by name or file (default: that of a YAML file).")
    parser.add_argument(
        "--published", metavar="FILE", help="YAML file of published statistics that are fitted together with SRC."
    )
    parser.add_argument(
        "--hold-out",
        action="append",
        default=[],
        metavar="STATISTIC",
        help="Fit without this statistic, and print what the traffic predicts for it. May be repeated.",
    )
    arguments.add_file(parser, "YAML file to write. Its tables are written beside it as .npz", "SRC-traffic.yaml")
    parser.add_argument("--seed", type=verbs.natural, default=0, metavar="N")


def run_fit(args: argparse.Namespace) -> int:
    from archsim.specs.library import load_model
    from archsim.traffic.preset_files import fit_preset, statistics_model
    from archsim.traffic.published import table_lines
    from archsim.traffic.traffic_heads import TrafficSubjects, read_head

    to = arguments.file_out(args.out, f"{arguments.stem_of(args.source)}-traffic.yaml")
    model = load_model(args.model or statistics_model(args.source))
    out = fit_preset(args.source, model, to, args.seed, args.published, args.hold_out)
    head, _ = read_head(out)
    answer = (
        f"{out} holds traffic like {args.source}; `trace: {{synthetic: {{like: {out}}}}}` of an experiment takes it."
    )
    args.result = {"answer": answer, "file": str(out), "traffic": head}
    print(answer)
    if isinstance(head, TrafficSubjects):
        print(f"Each of {len(head.subjects)} subjects has its model. Their standard deviations over the mean:")
        print("\n".join(f"  {name}: {value:g} %" for name, value in head.spread.items()))
        print("Any other subject is as uncertain. `mix: {another: 1}` takes one of these, chosen by its name.")
    print(*table_lines(head.published, "generated"), sep="\n")
    return arguments.OK


def add_head(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE")
    parser.add_argument(
        "-n", "--rows", type=verbs.natural, default=5, metavar="N", help="How many tokens to print (default: 5)."
    )


def run_head(args: argparse.Namespace) -> int:
    """Print the rows. Raises TraceError for a store of loads."""
    from archsim.traffic.trace_store import head_of, open_store

    args.result = list(head_of(open_store(args.store), args.rows))
    print(*args.result, sep="\n")
    return arguments.OK


def add_info(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE")
    parser.add_argument("--verify", action="store_true", help="Read everything, and check every checksum.")


def run_info(args: argparse.Namespace) -> Answer:
    """Print the store. Raises TraceError if it is damaged."""
    from archsim.cli.printing import answer_of_store

    if args.verify:
        from archsim.traffic.trace_store import open_store, verify

        verify(open_store(args.store))
        return answer_of_store(args.store, "All checksums match.")
    return answer_of_store(args.store)


def add_merge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stores", nargs="+", metavar="STORE")
    arguments.add_store_out(parser, "STORE-merged")


def run_merge(args: argparse.Namespace) -> Answer:
    """Merge and print the store. Raises TraceError for stores of different models."""
    from archsim.base.host import available_cores
    from archsim.cli.printing import answer_of_store
    from archsim.traffic.store_writer import merge

    out = Path(args.out or f"{arguments.stem_of(args.stores[0])}-merged")
    merge([Path(store) for store in args.stores], out, args.jobs or available_cores(), args.replace)
    return answer_of_store(out)


def add_profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="SRC",
        help="Recorded routing (a store, .npz or directory of JSON requests), or a traffic preset, whose generated "
        "requests are measured.",
    )
    parser.add_argument("--model", metavar="NAME", help="The model, by name or file (default: that of a preset).")
    parser.add_argument(
        "--published",
        metavar="FILE",
        help="YAML file of published statistics to print beside (default: those of the model's preset).",
    )
    arguments.add_report(parser, "reports/SRC-profile")


def run_profile(args: argparse.Namespace) -> int:
    from archsim.cli.printing import report_folder
    from archsim.show.profile_page import write_profile
    from archsim.show.units import percent, significant
    from archsim.traffic.preset_files import profile_source
    from archsim.traffic.profile import insights, profile
    from archsim.traffic.published import measure_statistics, table_lines

    trace, published = profile_source(args.source, args.model, args.published)
    found = profile(trace)
    folder = report_folder(arguments.stem_of(args.source), args.out, "profile")
    page = write_profile(found, folder)
    beside = measure_statistics(published, trace)
    busiest, top = found.mean("max_over_mean"), percent(found.mean("load_top20"))
    answer = (
        f"In {args.source}, the most loaded expert of a layer has {significant(busiest)} times the mean load, and the "
        f"most loaded 20 % of the experts get {top} of all tokens (means of layers)."
    )
    print(answer)
    args.result = {
        "answer": answer, "means": {name: found.mean(name) for name in found.layers}, "published": beside,
        "insights": insights(found),
    }  # fmt: skip
    for name in found.layers:
        print(f"{name:<24} {found.mean(name):.3f}")
    print(*table_lines(beside, "measured"), sep="\n")
    for each in insights(found):
        print(f"Insight {each.number} ({each.verdict}): {each.measured}")
    print(f"report: {page}")
    return arguments.OK


def add_sample(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE")
    parser.add_argument(
        "-n", "--requests", type=verbs.positive, required=True, metavar="N", help="How many requests to sample."
    )
    parser.add_argument("--seed", type=verbs.natural, default=0, metavar="N")
    arguments.add_store_out(parser, "STORE-sample")


def run_sample(args: argparse.Namespace) -> Answer:
    """Sample and print the store. Raises TraceError for more requests than the store has."""
    from archsim.base.host import available_cores
    from archsim.cli.printing import answer_of_store
    from archsim.traffic.store_writer import sample_entries, write_selection
    from archsim.traffic.trace_store import open_store

    store = open_store(args.store)
    entries = sample_entries(store, args.requests, args.seed)
    out = Path(args.out or f"{arguments.stem_of(args.store)}-sample")
    write_selection(store, entries, out, args.jobs or available_cores(), args.replace)
    return answer_of_store(out)


def add_slice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE")
    parser.add_argument(
        "--requests", type=_span, default=(0, None), metavar="A:B", help="Take requests A to B-1 (default: all)."
    )
    parser.add_argument(
        "--subject",
        dest="subjects",
        action="append",
        default=[],
        metavar="NAME",
        help="Take only requests of this subject. May be repeated.",
    )
    arguments.add_store_out(parser, "STORE-slice")


def run_slice(args: argparse.Namespace) -> Answer:
    """Slice and print the store. Raises TraceError for requests that the store does not have."""
    from archsim.base.host import available_cores
    from archsim.cli.printing import answer_of_store
    from archsim.traffic.store_writer import slice_entries, write_selection
    from archsim.traffic.trace_store import open_store

    store = open_store(args.store)
    first, last = args.requests
    entries = slice_entries(store, first, last, args.subjects)
    out = Path(args.out or f"{arguments.stem_of(args.store)}-slice")
    write_selection(store, entries, out, args.jobs or available_cores(), args.replace)
    return answer_of_store(out)


def _span(text: str) -> tuple[int, int | None]:
    first, colon, last = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r}: expected A:B, as in 0:100, :100 or 100:")
    return verbs.natural(first or "0"), verbs.natural(last) if last else None


def add_synth(parser: argparse.ArgumentParser) -> None:
    preset = parser.add_mutually_exclusive_group(required=True)
    preset.add_argument(
        "preset",
        nargs="?",
        metavar="PRESET",
        help="A name in configs/traffic, or a .yaml that `archsim trace fit` wrote.",
    )
    preset.add_argument("--like", metavar="PRESET", help="The same as the argument PRESET.")
    parser.add_argument("--model", metavar="NAME", help="The model, by name or file (default: that of the preset).")
    parser.add_argument(
        "--requests", type=verbs.positive, default=64, metavar="N", help="How many requests to generate (default: 64)."
    )
    parser.add_argument("--seed", type=verbs.natural, default=0, metavar="N")
    arguments.add_file(parser, "The .npz file to write", "PRESET.npz")


def run_synth(args: argparse.Namespace) -> Answer:
    from archsim.base.answer import Answer
    from archsim.show.units import count_of
    from archsim.traffic.preset_files import generate_trace

    preset = args.preset or args.like
    out = str(arguments.file_out(args.out, f"{arguments.stem_of(preset)}.npz"))
    trace = generate_trace(preset, args.model, args.requests, args.seed, out)
    held = f"{count_of(trace.requests, 'request')} and {count_of(len(trace.experts), 'token')}"
    said = f"{out} holds {held} of generated routing of {trace.model}."
    return Answer((said,), result={"file": out, "requests": trace.requests, "tokens": len(trace.experts)})
