"""``archsim validate``: compare a calibration with measurements, held-out ones included."""

import argparse
import sys
from pathlib import Path

from archsim.base.files import claim
from archsim.cli.exit_codes import OK, UNREAD, USER_ERROR

_MOST_SETS = 12  # printed sets of transfers


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("measurements", metavar="DIR", nargs="?", help="folder of CSV files, or one file")
    parser.add_argument("--with", dest="calibration", metavar="FILE", help="calibration by name or file")
    parser.add_argument(
        "--out", metavar="DIR", help="folder of the page and the CSV files (default: reports/calibration-GPU)"
    )
    parser.add_argument(
        "--force", dest="over", action="store_true", help="write into --out although it holds files of others"
    )
    parser.add_argument(
        "--audit",
        action="store_true",
        help="instead: points of the calibration (default: of every shipped one) that stand apart from those beside "
        "them; --out names the page",
    )
    parser.add_argument(
        "--mesh",
        nargs="*",
        metavar="FOLDER",
        help="instead: measured meshes of chips, CSV files of one folder or several, beside what the calibrations of "
        "fabrics say (--with: one of them by name or file) and beside null models; without a folder: residuals of the "
        "calibrations; --out names the page, a Markdown file",
    )
    parser.add_argument("--quick", action="store_true", help="only evaluate the file; no held-out fits")


def run(args: argparse.Namespace) -> int:
    """Validate and report. Raises CalibrationError if there are no measurements of the calibrated GPU."""
    if args.audit:
        return _audit(args)
    if args.mesh is not None:
        return _mesh(args)
    lacking = [name for name, given in (("DIR", args.measurements), ("--with", args.calibration)) if not given]
    if lacking:
        print(f"archsim validate: missing {' and '.join(lacking)} (or --audit)", file=sys.stderr)
        return USER_ERROR
    from archsim.base.cores import use_one_blas_thread

    use_one_blas_thread()
    import archsim as ar
    from archsim.cli.printing import print_measurement_problems, print_notes
    from calibration.measurements.reading import read_measurements

    measurements = read_measurements(args.measurements)
    print_measurement_problems(measurements)
    if not args.quick:
        print("fitting again without held-out sweeps, shapes and EP sizes ...", flush=True)
    found = ar.validate(measurements, args.calibration, quick=args.quick)
    print_notes(found.notes)
    if not len(found.sections):
        print(f"{args.measurements}: nothing to compare: no measured table that a law of the calibration reads")
    _print_summary(found)
    _print_sections(found)
    _print_layers(found)
    _print_power(found)
    _print_copies(found, args.calibration)
    folder = Path(args.out or f"reports/calibration-{found.calibration.gpu}")
    if args.over:
        claim(folder)
    print(f"report: {found.write(folder)}")
    for line in found.unread:
        print(f"no law reads: {line}", file=sys.stderr)
    return UNREAD if found.unread or not len(found.sections) else OK


def _print_sections(found) -> None:
    from archsim.studies.validation.sections import section_table

    print("\nevery law that an iteration uses, by the calibration file on all that was measured:")
    _print_columns(*section_table(found.sections))
    if not len(found.power):
        print("energy: no power was measured (python -m calibration.measure power)")


def _audit(args: argparse.Namespace) -> int:
    from archsim.specs.loading.calibrations import load_calibration
    from archsim.studies.validation.audit import page_of, told
    from archsim.studies.validation.engine_layers import calibrations_shipped

    names = [args.calibration] if args.calibration else sorted(calibrations_shipped())
    calibrations = [load_calibration(name) for name in names]
    for calibration in calibrations:
        for line in told(calibration):
            print(line)
    if args.out:
        Path(args.out).write_text(page_of(calibrations), encoding="utf-8")
        print(f"page: {args.out}")
    return OK


def _mesh(args: argparse.Namespace) -> int:
    from archsim.specs.loading.fabric_calibrations import fabric_calibration, shipped_fabrics
    from archsim.studies.validation.mesh import case_lines, law_lines, page_of, told

    fabrics = [fabric_calibration(args.calibration)] if args.calibration else shipped_fabrics()
    folders = [*args.mesh, *([args.measurements] if args.measurements else [])]
    if not folders:
        for line in law_lines(fabrics):
            print(line)
        return OK
    import archsim as ar

    found = ar.validate_meshes(*folders, calibration=args.calibration)
    for line in (*case_lines(found), *told(found)):
        print(line)
    if args.out:
        Path(args.out).write_text(page_of(found, fabrics), encoding="utf-8")
        print(f"page: {args.out}")
    return OK if found.judged else UNREAD


def _print_layers(found) -> None:
    from archsim.studies.validation.engine_layers import layer_table

    if len(found.layers):
        print("\none rank against fused layers, by the event engine under gemm: grouped:")
        _print_columns(*layer_table(found.layers))


def _print_power(found) -> None:
    from archsim.studies.validation.power import power_table

    if len(found.power):
        print("\npower of the whole GPU at steady work, measured and computed from what it does:")
        _print_columns(*power_table(found.power))


def _print_columns(names: list[str], rows: list[list[str]]) -> None:
    for row in [names, *rows]:
        print("  ".join(cell.ljust(max(len(name), 13)) for cell, name in zip(row, names, strict=True)).rstrip())


def _print_copies(found, name: str) -> None:
    from archsim.laws.copy import why_no_link

    if found.calibration.p2p and not len(found.copies):
        reason = why_no_link(found.calibration)
        print(f"\ncopies between two dies by the event engine: none, as {name} has {reason}")


def _print_summary(found) -> None:
    """The page's summary, then the held-out errors (with ``--quick``: the errors of the file itself)."""
    from archsim.studies.validation.groups import layer_groups
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
    """``found``: one row per group, with the columns ``by`` and those of ``Summary`` (studies/validation/errors.py)."""
    widths = [max(len(str(value)) for value in [name, *(row[name] for row in found)]) for name in by]
    head = "  ".join(name.ljust(width) for name, width in zip(by, widths, strict=True))
    print(f"{head}   cases  extrap.    <5%  mean %   p95 %   max %  floor %")
    for row in found:
        names = "  ".join(str(row[name]).ljust(width) for name, width in zip(by, widths, strict=True))
        figures = "".join(f"{_percent(row[name]):>8}" for name in ("mean", "p95", "max", "floor"))
        print(f"{names}  {row['cases']:6d}  {row['extrapolated']:7d} {row['under']:6d}{figures}")


def _percent(share: float | None) -> str:
    return "–" if share is None or share != share else f"{100 * share:.2f}"
