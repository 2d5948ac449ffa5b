"""Notes on batches that are larger than their trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

MOST_NAMED = 4  # batches


def drawn_notes(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence for every batch that was drawn with replacement, and for how many others. rows: of results."""
    drawn = {(int(row["batch"]), int(row["drawn_from"])): None for row in rows if row.get("drawn_from") is not None}
    notes = [
        f"{batch} requests are drawn from the {requests} that there are, with replacement (by workload.seed): some "
        f"come more than "
        "once, with equal routing"
        for batch, requests in list(drawn)[:MOST_NAMED]
    ]
    if len(drawn) > MOST_NAMED:
        notes.append(f"so are {len(drawn) - MOST_NAMED} other batches (column drawn_from)")
    return notes
