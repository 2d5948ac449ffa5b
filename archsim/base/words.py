"""Numbers in words and rows in columns, as messages and progress say them."""

from collections.abc import Sequence


def spoken(seconds: float) -> str:
    """``40 s``, ``5 min``, ``1.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def counted(number: float) -> str:
    """``950``, ``3.2 million``."""
    return f"{number / 1e6:,.1f} million" if number >= 1e6 else f"{number:,.0f}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """One line a row, its cells below those of the first."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
