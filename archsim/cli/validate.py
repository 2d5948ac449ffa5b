"""``archsim calibrate --validate``: compare a calibration with measurements, held-out ones included."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from archsim.base.files import claim
from archsim.base.verbs import positive
from archsim.cli.arguments import FAILED_RUNS, OK, UNREAD, USER_ERROR, Parser, add_jobs

if TYPE_CHECKING:
    from archsim.evidence.page import Evidence


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
    from archsim.cli.printing import print_measurement_problems
    from archsim.laws.calibration_files import load_calibration
    from calibration.measurements.reading import read_measurements

    measurements = read_measurements(args.measurements)
    print_measurement_problems(measurements)
    if not args.quick:
        print("fitting again without the held-out sweeps, shapes and EP sizes ...", flush=True)
    found = ar.validate(measurements, args.calibration, quick=args.quick)
    folder = Path(args.out or f"reports/{load_calibration(args.calibration).gpu}-validation")
    if args.over:
        claim(folder)
    _show(args, found, found.write(folder))
    return UNREAD if found.left_out or not len(found.cases) else OK


def _show(args: argparse.Namespace, found: Evidence, page: str | os.PathLike[str] | None) -> None:
    """What a source of evidence says, its notes, and where its page is."""
    from archsim.cli.printing import print_notes

    print_notes(found.notes)
    print(*found.lines(), *found.left_out, sep="\n")
    args.result = found.as_json()
    if page:
        args.result["report"] = str(page)
        print(f"report: {page}")


def _audit(args: argparse.Namespace) -> int:
    from archsim.evidence.engine_layers import calibrations_shipped
    from archsim.laws.calibration_files import load_calibration
    from calibration.fit.audit import audit_lines, page_of

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
    from archsim.cli.heartbeat import begins
    from archsim.cli.printing import print_compiling
    from archsim.evidence.serving.accuracy import row_of

    print_compiling()
    found = ar.validate_served(
        args.served, args.deployment, format=args.format, time_unit=args.time_unit, most_clients=args.most_clients,
        against=args.against,
        page=args.out, jobs=args.jobs, report=begins,
    )  # fmt: skip
    _show(args, found.evidence, args.out)
    args.result |= {"points": [row_of(each) for each in found.judged], "worsened": found.worsened}
    for line in found.worsened:
        print(f"worse: {line}")
    return FAILED_RUNS if found.worsened else OK


def _mesh(args: argparse.Namespace) -> int:
    from archsim.evidence.meshes import law_lines, page_of
    from archsim.machine.fabric_calibrations import fabric_calibration, shipped_fabrics

    fabrics = [fabric_calibration(args.calibration)] if args.calibration else shipped_fabrics()
    folders = [*args.mesh, *([args.measurements] if args.measurements else [])]
    if not folders:
        args.result = {"laws": list(law_lines(fabrics))}
        print(*args.result["laws"], sep="\n")
        return OK
    import archsim as ar

    found = ar.validate_meshes(*folders, calibration=args.calibration)
    if args.out:
        Path(args.out).write_text(page_of(found, fabrics), encoding="utf-8")
        csv = found.to_pandas().to_csv(index=False, float_format="%.6g", lineterminator="\n")
        Path(args.out).with_suffix(".csv").write_text(csv, encoding="utf-8")
    _show(args, found.evidence, args.out)
    return OK if found.judged else UNREAD
