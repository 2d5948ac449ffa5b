"""``archsim hardware chips``: chips that exist, beside what archsim says of their area, price and power."""

import argparse

from archsim.cli import arguments
from archsim.cli.printing import console, grid


def add_chips(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sources", action="store_true", help="Print the source of every public figure.")


def run_chips(args: argparse.Namespace) -> int:
    """Print every public figure beside archsim's, with its range, and what explains those outside their bar."""
    from archsim.report.units import carried_digits, interval
    from archsim.studies.known_chips import BARS, FACTOR, known_figures, served_figures

    chips, served = list(known_figures()), list(served_figures())
    found, out = chips + served, console()
    for title, figures in (("chips that exist", chips), ("machines that exist, serving one user", served)):
        made = grid("chip", "figure", "unit", title=title, numbers=("public", "archsim", "low", "high", "error"))
        for each in figures:
            value, low, high = interval(each.found, each.low, each.high) if each.unit else (f"{each.found:g}", "", "")
            public = (
                carried_digits(each.public, *each.public_range) if each.unit in ("USD", "ms") else f"{each.public:,.0f}"
            )
            made.add_row(each.chip, each.what, each.unit, public, value, low, high, f"{each.error:+.1%}")
        out.print(made)
    out.print(
        f"{sum(each.within for each in chips)} of {len(chips)} are within {BARS['mm2']:.0%} (area, power, rate at a "
        f"limit) or {BARS['USD']:.0%} and the range (price), and {sum(each.within for each in served)} of "
        f"{len(served)} machines within a factor of {FACTOR:g}. Low and high: all coefficients at these ends; of "
        "machines, what their files assume.",
        soft_wrap=True,
    )
    for each in found:
        if not each.within:
            out.print(f"{each.chip}, {each.what}: {each.error:+.0%}: {each.why or 'not explained'}.", soft_wrap=True)
    if args.sources:
        for each in found:
            out.print(f"{each.chip}, {each.what}: {each.source}.", soft_wrap=True)
    args.result = [each._asdict() | {"error": each.error, "within": each.within} for each in found]
    return arguments.OK
