"""Notes on batches that are larger than their trace."""

from collections.abc import Iterable, Mapping
from typing import Any

MOST_NAMED = 4  # batches
HOW = {
    "shifted": "copies of the {recorded} recorded ones, each from another of its decode steps on",
    "fitted": "generated from a traffic model that is fitted to the {recorded} recorded ones",
}


def drawn_notes(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence for every batch that is larger than its trace, and for how many others. rows: of results."""
    drawn = {}
    for row in rows:
        if row.get("drawn_from") is not None:
            drawn.setdefault((int(row["batch"]), int(row["drawn_from"]), row.get("extend") or "redraw"), row)
    notes = [_told(*found, row) for found, row in list(drawn.items())[:MOST_NAMED]]
    if len(drawn) > MOST_NAMED:
        notes.append(f"so are {len(drawn) - MOST_NAMED} other batches (column drawn_from)")
    return notes


def _told(batch: int, recorded: int, extend: str, row: Mapping[str, Any]) -> str:
    if extend in HOW:
        return f"{batch:,} requests are {HOW[extend].format(recorded=recorded)} (workload.extend: {extend})"
    note = (
        f"{batch:,} requests are drawn from the {recorded} that there are, with replacement (by workload.seed): copies "
        "choose the same experts at every step"
    )
    active, distinct = row.get("active_experts"), row.get("active_if_distinct")
    if active is None or distinct is None:
        return note
    return (
        f"{note}. A step has {active:.0f} active experts a layer, where {batch:,} different requests would have up to "
        f"{distinct:.0f}; `workload.extend: shifted` or `fitted` comes closer to them"
    )
