"""Parameters of hardware blocks: frozen dataclasses whose fields record the spec key that sets them and the source
of the default.
"""

import dataclasses
from typing import Any

PAPER = "Yu et al., ISCA 2026 (arXiv 2510.05497v4)"
SIMULATOR = "published simulator"
CHOICE = "choice of archsim"


def parameter(default: Any, key: str, source: str) -> Any:
    """A dataclass field: ``key`` is the path in a system spec (``hbm.latency``), ``source`` that of the default."""
    return dataclasses.field(default=default, metadata={"key": key, "source": source})


def describe(block: type) -> str:
    """One line per parameter: name, default, spec key, source of the default."""
    rows = [("parameter", "default", "set by", "source of the default")]
    for field in dataclasses.fields(block):
        rows.append((field.name, f"{field.default:g}", field.metadata["key"], field.metadata["source"]))
    return aligned(rows)


def aligned(rows: list[tuple[str, ...]]) -> str:
    """Rows of cells as text, the first row underlined."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    head, *body = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join([head, "  ".join("-" * width for width in widths), *body])
