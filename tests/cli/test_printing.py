"""Tables in a narrow terminal."""

import pytest
from rich.console import Console

from archsim.cli import printing
from archsim.report.units import BYTE_UNITS, TIME_UNITS, scaled
from archsim.studies.designs import SCALES


@pytest.mark.parametrize(
    ("width", "left_out"), [(120, ""), (40, "topology, bandwidth"), (24, "rate, topology, bandwidth")]
)
def test_a_narrow_terminal_keeps_the_first_columns(monkeypatch, capsys, width, left_out):
    monkeypatch.setattr(printing, "console", lambda: Console(width=width))
    table = printing.grid("point", "model", numbers=("rate",))
    table.add_column("topology")
    table.add_column("bandwidth")
    table.add_row("17", "deepseek-v3", "416,197", "fully_connected", "826.002 GB/s")
    printing.print_fitting(table, kept=2)
    printed = capsys.readouterr().out
    assert "point" in printed and "model" in printed and ("bandwidth" in printed.splitlines()[1]) == (not left_out)
    assert printed.rstrip().endswith(f"left out, as the terminal is narrow: {left_out}" if left_out else "GB/s")


def test_nothing_has_the_plain_unit():
    assert [scaled(0, units).split("\u00a0") for units in (BYTE_UNITS, TIME_UNITS, SCALES)] == [
        ["0", "B"], ["0", "ns"], ["0", ""],
    ]  # fmt: skip
