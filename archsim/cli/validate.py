"""``archsim calibrate --validate``: compare a calibration with measurements, held-out ones included."""

import argparse
import sys
from pathlib import Path

from archsim.base.files import claim
from archsim.cli.arguments import FAILED_RUNS, OK, UNREAD, USER_ERROR, Parser, add_jobs
from archsim.verbs import positive

_MOST_SETS = 12  # printed sets of transfers


def add_validate(parser: Parser) -> None:
    parser.add_argument(
        "measurements", metavar="DIR", nargs="?", help="Folder of CSV files with measurements, or one such file."
    )
    parser.add_argument(
        "--with", dest="calibration", metavar="FILE", help="The calibration to validate, by name or file."
    )
    parser.add_argument(
        "--out", metavar="DIR",
                help="Folder to write the page and its CSV files to (default: reports/GPU-validation). With --audit, "
                "--mesh or --served, a Markdown file to write the page to (default: none is written).",
    )  # fmt: skip
    parser.spelled_before("--page", "--out")
    parser.add_argument(
        "--force",
        dest="over",
        action="store_true",
        help="Write into --out even if it holds files that archsim did not write.",
    )
    parser.add_argument(
        "--audit",
        action="store_true",
        help="List the points of a calibration (default: of every shipped one) that differ from their neighbours.",
    )
    parser.add_argument(
        "--mesh",
        nargs="*",
        metavar="FOLDER",
        help="Compare measured meshes of chips, read from CSV files in these folders, with the calibrations of "
        "fabrics and with null models. --with names one calibration. Without a folder, show the residuals of "
        "the calibrations.",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="Only evaluate the file, without fits to held-out parts of the measurements.",
    )
    served = parser.add_argument_group("measured serving")
    served.add_argument(
        "--served", nargs="+", metavar="FILE",
        help="Simulate results of InferenceX, AIPerf, GuideLLM, `vllm bench serve` or SGLang's bench_serving, and "
        "compare. The exit status is 1 if a cell has become worse (--against).",
    )  # fmt: skip
    served.add_argument("--deployment", metavar="FILE",
            help="The file of `archsim serve` that describes where they were measured, for results that do not say "
            "it.")  # fmt: skip
    served.add_argument("--format", metavar="NAME",
            help="Format of the results: inferencex, inferencex-json, aiperf, guidellm, vllm or sglang (default: the "
            "one that their keys fit).")  # fmt: skip
    served.add_argument("--time-unit", choices=("s", "ms", "us", "ns"), help="Unit of the times in the "
                        "results (default: that of the format, if the rates agree with it).")  # fmt: skip
    served.add_argument(
        "--most-clients", type=positive, metavar="N", help="Leave out closed loops with more clients than this."
    )
    served.add_argument("--against", metavar="FILE.csv",
            help="Table beside an earlier page. The command fails if the median error of a cell grew by 2 points and "
            "by 10 %%.")  # fmt: skip
    add_jobs(served, "How many processes --served uses")


def run_validate(args: argparse.Namespace) -> int:
    """Validate and report. Raises CalibrationError if there are no measurements of the calibrated GPU."""
    if args.audit:
        return _audit(args)
    if args.mesh is not None:
        return _mesh(args)
    if args.served:
        return _validate_served(args)
    lacking = [name for name, given in (("DIR", args.measurements), ("--with", args.calibration)) if not given]
    if lacking:
        print(f"archsim calibrate --validate: missing {' and '.join(lacking)} (or --audit)", file=sys.stderr)
        return USER_ERROR
    from archsim.base.host import use_one_blas_thread

    use_one_blas_thread()
    import archsim as ar
    from archsim.cli.printing import print_measurement_problems, print_notes
    from calibration.measurements.reading import read_measurements

    measurements = read_measurements(args.measurements)
    print_measurement_problems(measurements)
    if not args.quick:
        print("fitting again without the held-out sweeps, shapes and EP sizes ...", flush=True)
    found = ar.validate(measurements, args.calibration, quick=args.quick)
    print_notes(found.notes)
    if not len(found.sections):
        print(f"{args.measurements}: nothing to compare: no fitted curve of the calibration uses a measured table")
    _print_summary(found)
    _print_sections(found)
    _print_layers(found)
    _print_power(found)
    _print_copies(found, args.calibration)
    folder = Path(args.out or f"reports/{found.calibration.gpu}-validation")
    if args.over:
        claim(folder)
    page = found.write(folder)
    print(f"report: {page}")
    args.result = {
        "calibration": found.calibration.gpu, "laws": found.sections.to_dict("records"), "unread": list(found.unread),
        "report": str(page),
    }  # fmt: skip
    for line in found.unread:
        print(f"No fitted curve uses {line}", file=sys.stderr)
    return UNREAD if found.unread or not len(found.sections) else OK


def _print_sections(found) -> None:
    from archsim.studies.validation.sections import section_table

    print("\nErrors of every fitted curve that an iteration uses, on all that was measured:")
    _print_columns(*section_table(found.sections))
    if not len(found.power):
        print("No power was measured. `python -m calibration.measure power` measures it.")


def _audit(args: argparse.Namespace) -> int:
    from archsim.specs.calibration_files import load_calibration
    from archsim.studies.validation.audit import audit_lines, page_of
    from archsim.studies.validation.engine_layers import calibrations_shipped

    names = [args.calibration] if args.calibration else sorted(calibrations_shipped())
    calibrations = [load_calibration(name) for name in names]
    args.result = {name: list(audit_lines(each)) for name, each in zip(names, calibrations, strict=True)}
    for lines in args.result.values():
        print(*lines, sep="\n")
    if args.out:
        Path(args.out).write_text(page_of(calibrations), encoding="utf-8")
        print(f"report: {args.out}")
    return OK


def _validate_served(args: argparse.Namespace) -> int:
    """Simulate measured results; print how far off the simulation is by engine, GPU and model."""
    import archsim as ar
    from archsim.cli.heartbeat import doing
    from archsim.cli.printing import console, grid, print_compiling
    from archsim.studies.serving.accuracy import cell_texts, far_told, row_of, summary

    print_compiling()
    found = ar.validate_served(
        args.served, args.deployment, format=args.format, time_unit=args.time_unit, most_clients=args.most_clients,
        against=args.against,
        page=args.out, jobs=args.jobs, report=doing,
    )  # fmt: skip
    args.result = {
        "summary": summary(found), "points": [row_of(each) for each in found.judged], "worsened": found.worsened,
    }  # fmt: skip
    for line in found.read_as:
        print(line)
    print(summary(found))
    numbers = ("points", "TPOT %", "TTFT %", "tokens/s %", "in range")
    table = grid("engine, GPU, model, precision", title="medians of absolute errors (with sign)", numbers=numbers)
    for cell in found.cells:
        table.add_row(*cell_texts(cell))
    if found.cells:
        console().print(table)
    for line in far_told(found):
        print(line)
    for why, count in found.refused.items():
        print(f"{count} point{'s were' if count > 1 else ' was'} not simulated: {why}")
    if args.out:
        print(f"report: {args.out}")
    for line in found.worsened:
        print(f"worse: {line}")
    return FAILED_RUNS if found.worsened else OK


def _mesh(args: argparse.Namespace) -> int:
    from archsim.specs.fabric_calibrations import fabric_calibration, shipped_fabrics
    from archsim.studies.validation.mesh import answer_lines, case_lines, cases_of, law_lines, page_of

    fabrics = [fabric_calibration(args.calibration)] if args.calibration else shipped_fabrics()
    folders = [*args.mesh, *([args.measurements] if args.measurements else [])]
    if not folders:
        args.result = {"laws": list(law_lines(fabrics))}
        print(*args.result["laws"], sep="\n")
        return OK
    import archsim as ar

    found = ar.validate_meshes(*folders, calibration=args.calibration)
    args.result = {"cases": found.judged, "told": [*case_lines(found), *answer_lines(found)]}
    print(*args.result["told"], sep="\n")
    if args.out:
        Path(args.out).write_text(page_of(found, fabrics), encoding="utf-8")
        Path(args.out).with_suffix(".csv").write_text(cases_of(found), encoding="utf-8")
        print(f"report: {args.out}")
    return OK if found.judged else UNREAD


def _print_layers(found) -> None:
    from archsim.studies.validation.engine_layers import layer_table

    if len(found.layers):
        print("\nOne rank compared with fused layers, on the event engine under gemm: grouped:")
        _print_columns(*layer_table(found.layers))


def _print_power(found) -> None:
    from archsim.studies.validation.power_cases import power_table

    if len(found.power):
        print("\nPower of the whole GPU at steady work, measured and computed from its activity:")
        _print_columns(*power_table(found.power))


def _print_columns(names: list[str], rows: list[list[str]]) -> None:
    for row in [names, *rows]:
        print("  ".join(cell.ljust(max(len(name), 13)) for cell, name in zip(row, names, strict=True)).rstrip())


def _print_copies(found, name: str) -> None:
    from archsim.laws.transfers import why_no_link

    if found.calibration.p2p and not len(found.copies):
        reason = why_no_link(found.calibration)
        print(f"\nNo copies between two dies are compared, as {name} has {reason}.")


def _print_summary(found) -> None:
    """The page's summary, then the held-out errors (with ``--quick``: the errors of the file itself)."""
    from archsim.studies.validation.errors import layer_groups
    from archsim.studies.validation.page import NO_FLOOR, OVERVIEW, in_short, overview

    cases = found.cases
    for sentence in in_short(cases, layer_groups(cases), found.transfers, found.through_engine, found.copies):
        print(sentence)
    if len(cases):
        shown = overview(cases)
        print()
        _print_table(shown.to_dict("records"), OVERVIEW)
        if shown["floor"].isna().any():
            print(f"floor {NO_FLOOR}")
    heading, errors = list(found.transfers.items())[-1]
    if errors:
        rows = [vars(each) | {"under": each.under_5_percent, "cases": each.points} for each in errors]
        worst = sorted(rows, key=lambda row: row["mean"], reverse=True)
        which = f", the worst {_MOST_SETS} of {len(rows)} by their mean" if len(rows) > _MOST_SETS else ""
        print(f"\ntransfers and memory, {heading}{which}:")
        _print_table(worst[:_MOST_SETS], ["name", "table"])


def _print_table(found: list[dict], by: list[str]) -> None:
    """``found``: one row per group, with the columns ``by`` and those of `archsim.studies.validation.errors`."""
    widths = [max(len(str(value)) for value in [name, *(row[name] for row in found)]) for name in by]
    head = "  ".join(name.ljust(width) for name, width in zip(by, widths, strict=True))
    print(f"{head}   cases  extrap.    <5%  mean %   p95 %   max %  floor %")
    for row in found:
        names = "  ".join(str(row[name]).ljust(width) for name, width in zip(by, widths, strict=True))
        figures = "".join(f"{_percent(row[name]):>8}" for name in ("mean", "p95", "max", "floor"))
        print(f"{names}  {row['cases']:6d}  {row['extrapolated']:7d} {row['under']:6d}{figures}")


def _percent(share: float | None) -> str:
    return "–" if share is None or share != share else f"{100 * share:.2f}"
