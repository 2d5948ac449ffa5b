"""``archsim figure``: a figure of a report as a file for print."""

import argparse

from archsim.cli.exit_codes import OK


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("report", metavar="REPORT", help="folder of a sweep, serve or explore")
    parser.add_argument("name", metavar="NAME", nargs="?", help="a figure (default: list those that the report has)")
    parser.add_argument("--out", metavar="FILE", help="as its ending says: .pdf, .png or .svg (default: NAME.pdf)")


def run(args: argparse.Namespace) -> int:
    """Write the figure, or list their names. Raises ArchsimError for a name that the report does not have."""
    from pathlib import Path

    from archsim.report.printed import names_of, write_figure

    if args.name is None and args.out is None:
        for name, about in names_of(Path(args.report)).items():
            print(f"{name:<10} {about}")
        return OK
    print(f"figure: {write_figure(Path(args.report), args.name or '', Path(args.out or f'{args.name}.pdf'))}")
    return OK
