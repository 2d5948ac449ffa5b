"""What ``archsim calibrate`` and ``archsim validate`` do. Everything heavy is imported inside the commands."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

INTERRUPTED = 130
MOST_TOLD = 12  # problems per file
MOST_SETS = 12  # of transfers
SECTIONS = ("gemm", "moe", "p2p", "collectives", "pcie", "hbm", "launch")


def add_calibration_commands(commands: argparse._SubParsersAction) -> None:
    """The parsers of both commands."""
    calibrate = commands.add_parser("calibrate", help="fit measurements of a GPU")
    calibrate.add_argument("measurements", metavar="DIR", help="folder of CSV files, or one file")
    calibrate.add_argument(
        "--out",
        default="configs/calibrations",
        metavar="FILE",
        help="YAML file, named after the GPU; or a folder, for one file per GPU (default: configs/calibrations)",
    )
    calibrate.add_argument("--gpu", metavar="NAME", help="which GPU of the measurements, such as h100")
    calibrate.add_argument(
        "--peak", action="append", default=[], type=_peak, metavar="DTYPE=RATE", help="nominal peak of a GPU that is not known, such as bf16=600TFLOP/s; repeatable"
    )
    calibrate.add_argument("--hbm", type=_hbm, metavar="RATE", help="nominal bandwidth of its HBM, such as 2.4TB/s")
    calibrate.set_defaults(command=_calibrate)

    validate = commands.add_parser("validate", help="judge a calibration by measurements, and by what it has not seen")
    validate.add_argument("measurements", metavar="DIR", help="folder of CSV files, or one file")
    validate.add_argument("--with", dest="calibration", required=True, metavar="FILE", help="calibration, name or file")
    validate.add_argument("--out", metavar="DIR", help="folder of the page and CSV (default: reports/calibration-GPU)")
    validate.add_argument(
        "--quick", action="store_true", help="only the file itself, nothing left out and fitted again"
    )
    validate.set_defaults(command=_validate)


def _peak(text: str) -> tuple[str, float]:
    from calibration.measurements.datasheets import peak_named

    try:
        return peak_named(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _hbm(text: str) -> float:
    from calibration.measurements.datasheets import hbm_named

    try:
        return hbm_named(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _one_thread() -> None:
    """Small matrices are inverted several times faster by one thread, and the same way on every machine.

    Holds where numpy has not been imported yet.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _calibrate(arguments: argparse.Namespace) -> int:
    _one_thread()
    from calibration.fit.fit import choose_gpu
    from calibration.fit.parameters import is_calibration_file
    from calibration.measurements.datasheets import Nominal
    from calibration.measurements.reading import CalibrationError, read_measurements

    out, is_file = Path(arguments.out), is_calibration_file(arguments.out)
    measurements = read_measurements(arguments.measurements)
    _tell(measurements)
    if is_file or arguments.gpu:
        gpus = [choose_gpu(measurements, arguments.gpu, out.stem if is_file else "")]
    else:
        gpus = measurements.gpus()
    named = Nominal(dict(arguments.peak), arguments.hbm)
    if named and len(gpus) > 1:
        raise CalibrationError(f"--peak and --hbm are of one GPU, and there are {', '.join(gpus)}; choose one with --gpu")
    paths: list[Path] = []
    try:
        for gpu in gpus:
            _fit_one(measurements, gpu, named, out if is_file else out / f"{gpu}.yaml", paths)
    except KeyboardInterrupt:
        kept = f"whole, and kept: {', '.join(map(str, paths))}" if paths else "no file was written"
        print(f"\ninterrupted; {kept}", file=sys.stderr)
        return INTERRUPTED
    if not paths:
        print(f"{arguments.measurements}: nothing that can be used", file=sys.stderr)
    return 0 if paths else 2


def _fit_one(measurements, gpu: str, named, path: Path, written: list[Path]) -> None:
    """Fit a GPU and write its file, if there is anything to write; its path is added to ``written``. named: nominal rates of an own GPU."""
    from calibration.fit.fit import fit_measurements
    from calibration.fit.parameters import write_calibration
    from calibration.measurements.datasheets import fitted_note

    calibration = fit_measurements(measurements, gpu, named)
    if not any(getattr(calibration, kind) for kind in SECTIONS):
        print(f"{gpu}: these measurements alone say nothing that a calibration holds", file=sys.stderr)
        return
    written.append(write_calibration(calibration, path))
    note = fitted_note(gpu, calibration.reference) if calibration.gemm or calibration.hbm else ""
    if note:
        print(f"note: {note}", file=sys.stderr)
    counts = {kind: len(getattr(calibration, kind)) for kind in SECTIONS}
    print(f"{path}: {gpu}, tables: " + ", ".join(f"{kind} {count}" for kind, count in counts.items() if count))


def _validate(arguments: argparse.Namespace) -> int:
    _one_thread()
    import pandas as pd

    from archsim.specs.loading.calibrations import load_calibration
    from calibration.laws.copy import why_no_link as no_copies
    from calibration.measurements.reading import CalibrationError, read_measurements
    from calibration.validate import errors as validate
    from calibration.validate.choosing import choice_notes
    from calibration.validate.comm_errors import errors_with, transfer_errors
    from calibration.validate.engine_cases import engine_cases
    from calibration.validate.engine_copies import copy_cases
    from calibration.validate.page import write_page

    calibration = load_calibration(arguments.calibration)
    measurements = read_measurements(arguments.measurements)
    _tell(measurements)
    if calibration.gpu not in measurements.gpus():
        known = ", ".join(measurements.gpus()) or "none"
        raise CalibrationError(
            f"no measurements of {calibration.gpu!r}, which was calibrated; there are some of: {known}"
        )
    found = [validate.gemm_cases(calibration, measurements), validate.moe_cases(calibration, measurements)]
    transfers = {"calibration file": errors_with(calibration, measurements)}
    if not arguments.quick:
        print("fitting again without sweeps, shapes and EP sizes …", flush=True)
        found += [
            validate.sweep_out_cases(measurements, calibration.gpu),
            validate.shape_out_cases(measurements, calibration.gpu),
            validate.rank_out_cases(measurements, calibration.gpu),
        ]
        transfers["sizes left out"] = transfer_errors(measurements, calibration.gpu)
    cases = pd.concat([frame for frame in found if len(frame)] or found[:1], ignore_index=True)
    notes = choice_notes(calibration, measurements)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    if not len(cases) and not any(transfers.values()):
        print(f"{arguments.measurements}: nothing in them is judged: no GEMM, fused MoE layer or transfer that the calibration has a table of")
    through_engine = engine_cases(calibration, str(arguments.calibration), measurements)
    copies = copy_cases(calibration, measurements)
    _print_short(cases, transfers, through_engine, copies)
    if calibration.p2p and not len(copies):
        print(f"\ncopies between two dies by the event engine: none, as {arguments.calibration} has {no_copies(calibration)}")
    folder = Path(arguments.out or f"reports/calibration-{calibration.gpu}")
    print(f"report: {write_page(calibration, cases, transfers, through_engine, copies, notes, folder)}")
    return 0


def _print_short(cases, transfers: dict, through_engine, copies) -> None:
    """The page's sentences in short, then errors of what was not seen in the fit; of the file alone where nothing was left out."""
    from calibration.validate.groups import layer_groups
    from calibration.validate.page import NO_FLOOR, OVERVIEW, in_short, overview

    for sentence in in_short(cases, layer_groups(cases), transfers, through_engine, copies):
        print(sentence)
    if len(cases):
        found = overview(cases)
        print()
        _print_table(found.to_dict("records"), OVERVIEW)
        if found["floor"].isna().any():
            print(f"floor {NO_FLOOR}")
    for heading, errors in list(transfers.items())[-1:]:
        if errors:
            shown = [vars(each) | {"under": each.under_5_percent, "cases": each.points} for each in errors]
            worst = sorted(shown, key=lambda row: row["mean"], reverse=True)
            which = f", the worst {MOST_SETS} of {len(shown)} by their mean" if len(shown) > MOST_SETS else ""
            print(f"\ntransfers and memory, {heading}{which}:")
            _print_table(worst[:MOST_SETS], ["name", "table"])


def _print_table(found: list[dict], by: list[str]) -> None:
    """``found``: a group each, with the columns ``by`` and those of ``validate.Summary``."""
    widths = [max(len(str(value)) for value in [name, *(row[name] for row in found)]) for name in by]
    head = "  ".join(name.ljust(width) for name, width in zip(by, widths, strict=True))
    print(f"{head}   cases  extrap.    <5%  mean %   p95 %   max %  floor %")
    for row in found:
        names = "  ".join(str(row[name]).ljust(width) for name, width in zip(by, widths, strict=True))
        figures = "".join(f"{_percent(row[name]):>8}" for name in ("mean", "p95", "max", "floor"))
        print(f"{names}  {row['cases']:6d}  {row['extrapolated']:7d} {row['under']:6d}{figures}")


def _percent(share: float | None) -> str:
    return "–" if share is None or share != share else f"{100 * share:.2f}"


def _tell(measurements) -> None:
    """Problems on stderr: refused files, then quarantined rows and warnings, so many per file."""
    told = Counter()
    for problem in measurements.problems:
        told[problem.file] += 1
        if told[problem.file] <= MOST_TOLD:
            print(problem, file=sys.stderr)
    for file, count in told.items():
        if count > MOST_TOLD:
            print(f"{file}: and {count - MOST_TOLD} more", file=sys.stderr)
    for file, why in measurements.skipped.items():
        print(f"{file}:1: skipped: {why}", file=sys.stderr)
