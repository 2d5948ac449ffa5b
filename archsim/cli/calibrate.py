"""``archsim calibrate``: fit measurements, write a calibration for each GPU."""

import argparse
import sys

from archsim.cli.arguments import INTERRUPTED, OK, USER_ERROR, file_out
from archsim.laws.tables import SECTIONS

MOST_NOTES = 10  # printed of one GPU


def add_calibrate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("measurements", metavar="DIR", help="Folder of CSV files with measurements, or one such file.")
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="YAML file to write. Give a folder to write one file for each GPU or measured mesh (default: GPU.yaml "
        "in the current folder).",
    )
    parser.add_argument("--gpu", metavar="NAME", help="Fit only this GPU of the measurements, such as h100.")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        choices=SECTIONS,
        metavar="SECTION",
        help=f"fit only this section and leave the others of the file as they are ({', '.join(SECTIONS)}); repeatable",
    )
    parser.add_argument(
        "--peak",
        action="append",
        default=[],
        type=_peak,
        metavar="DTYPE=RATE",
        help="Nominal peak of a GPU whose datasheet is not known here, such as bf16=600TFLOP/s. May be repeated.",
    )
    parser.add_argument("--hbm", type=_hbm, metavar="RATE", help="Nominal bandwidth of its HBM, such as 2.4TB/s.")


def run_calibrate(args: argparse.Namespace) -> int:
    """Fit and write. Raises CalibrationError if no measurement can be used, or if one GPU must be chosen."""
    from archsim.base.host import use_one_blas_thread

    use_one_blas_thread()
    from calibration.measurements.mesh import is_mesh_folder

    if is_mesh_folder(args.measurements):
        return _meshes(args)
    import archsim as ar
    from archsim.cli.printing import print_measurement_problems
    from calibration.fit.calibration_file import is_calibration_file
    from calibration.measurements.datasheets import Nominal
    from calibration.measurements.fittable import fittable
    from calibration.measurements.peaks import Peaks
    from calibration.measurements.reading import kinds_of, read_measurements

    asked, args.out = bool(args.out), args.out or "."
    is_calibration_file(args.out)  # a wrong name is refused before measurements are read
    peaks = Peaks(Nominal(dict(args.peak), args.hbm), args.gpu)
    measurements = fittable(read_measurements(args.measurements, peaks, kinds_of(args.only)))
    if not asked and not args.only:  # --only changes sections of a file that is there
        for gpu in [args.gpu] if args.gpu else measurements.gpus():
            file_out(None, f"{gpu}.yaml")
    print_measurement_problems(measurements)
    written: list[str] = []

    args.result = {}

    def report(fitted) -> None:
        written.extend([] if fitted.path is None else [str(fitted.path)])
        args.result[fitted.gpu] = {"file": fitted.path, "tables": fitted.tables}
        _print_fitted(fitted)

    try:
        ar.calibrate(
            measurements, args.out, gpu=args.gpu, peaks=dict(args.peak), hbm=args.hbm, report=report, only=args.only
        )
    except KeyboardInterrupt:
        kept = f"These files are complete and kept: {', '.join(written)}" if written else "No file was written."
        print(f"\nInterrupted. {kept}", file=sys.stderr)
        return INTERRUPTED
    if not written:
        print(f"{args.measurements}: no usable measurements", file=sys.stderr)
    refused = [problem.file for problem in measurements.problems if problem.kind == "refused"]
    if refused:
        print(f"The calibration is not complete: {', '.join(dict.fromkeys(refused))} refused", file=sys.stderr)
    return OK if written and not refused else USER_ERROR


def _meshes(args: argparse.Namespace) -> int:
    import archsim as ar
    from archsim.evidence.meshes import law_lines
    from calibration.measurements.mesh import read_meshes

    if not args.out:
        for machine in {case.machine for case in read_meshes(args.measurements).cases}:
            file_out(None, f"{machine}.yaml")
    args.result = {}

    def report(fitted, path) -> None:
        args.result[fitted.machine] = {"file": path}
        for line in law_lines([fitted]):
            print(line)
        print(f"{path}: {fitted.machine}, curves: endpoint {len(fitted.endpoint)}, link rate {len(fitted.link_rate)}, "
              f"hop latency {len(fitted.hop_latency)}")  # fmt: skip

    return OK if ar.calibrate_meshes(args.measurements, out=args.out or ".", report=report) else USER_ERROR


def _print_fitted(fitted) -> None:
    from calibration.fit.covered_tables import notes_of

    if fitted.path is None:
        print(f"{fitted.gpu}: these measurements alone cannot determine any table of a calibration", file=sys.stderr)
        return
    if fitted.note:
        print(f"note: {fitted.note}", file=sys.stderr)
    notes = [*notes_of(fitted.calibration)]
    for note in notes[:MOST_NOTES]:
        print(f"note: {fitted.gpu} {note}", file=sys.stderr)
    if len(notes) > MOST_NOTES:
        print(f"note: {fitted.gpu}: the tables hold {len(notes) - MOST_NOTES} more (`note`)", file=sys.stderr)
    counts = ", ".join(f"{kind} {count}" for kind, count in fitted.tables.items())
    print(f"{fitted.path}: {fitted.gpu}, tables: {counts}")


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
