"""Notes on policies: own functions whose decisions cost nothing, plans that are worse than ``ep``'s, and what speed-ups
are worth if dies have the endpoints of a measured chip.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from archsim.runs.run import point_told

MOST_NAMED = 4  # policies
SLOWER = 0.99  # of the throughput of ep; above it, a policy is as fast


def policy_notes(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence for every set of own functions that is not charged, and for every policy that is slower than ``ep``.
    rows: of results.
    """
    rows = list(rows)
    uncharged = dict.fromkeys((str(row["policy"]), str(row["uncharged"])) for row in rows if row.get("uncharged"))
    notes = [
        f"policy {policy} decides in no time: {functions} returns no Effort, so that nothing is charged for it"
        for policy, functions in uncharged
    ]
    return [*notes, *_slower(rows), *_endpoints(rows)]


ENDPOINT = "endpoint=as_measured"


def _endpoints(rows: list[Mapping[str, Any]]) -> list[str]:
    """What the largest speed-up over base of each set of assumptions is worth under ``endpoint: as_measured``."""
    names = ("system", "model", "batch", "policy")
    known = [row for row in rows if row.get("speedup_vs_base") is not None]
    of = {(tuple(row[name] for name in names), row.get("point"), str(row["assumptions"])): row for row in known}
    pairs: dict[str, list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = {}
    for (place, point, label), row in of.items():
        unlimited = "+".join(part for part in label.split("+") if part != ENDPOINT)
        if ENDPOINT in label and (other := of.get((place, point, unlimited))):
            pairs.setdefault(unlimited, []).append((other, row))
    notes = []
    for label, those in pairs.items():
        free, limited = max(those, key=lambda pair: pair[0]["speedup_vs_base"])
        notes.append(
            f"if the controller of a die sends and receives only what that of a measured chip does (endpoint: "
            f"as_measured), the largest speed-up over base under {label} is {limited['speedup_vs_base']:.2f}× "
            f"instead of {free['speedup_vs_base']:.2f}× ({free['policy']} on {free['system']}, {free['model']}, batch "
            f"{int(free['batch'])})"
        )
    return notes


def _slower(rows: list[Mapping[str, Any]]) -> list[str]:
    compared: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row.get("speedup_vs_ep") is not None and row["policy"] != "ep":
            compared.setdefault(str(row["policy"]), []).append(row)
    worse = {name: [row for row in those if row["speedup_vs_ep"] < SLOWER] for name, those in compared.items()}
    slower = sorted((name for name in worse if worse[name]), key=lambda name: -len(worse[name]) / len(compared[name]))
    notes = []
    for name in slower[:MOST_NAMED]:
        least = min(worse[name], key=lambda row: row["speedup_vs_ep"])
        where = f"{point_told(least.get('point'))}{least['system']}, {least['model']}, batch {int(least['batch'])}"
        notes.append(
            f"policy {name} is slower than ep in {len(worse[name])} of {len(compared[name])} runs, at worst "
            f"{least['speedup_vs_ep']:.2f}× of its throughput ({where}, {least['assumptions']}): there its plan costs "
            "more than it gains"
        )
    if len(slower) > MOST_NAMED:
        others = ", ".join(slower[MOST_NAMED:])
        notes.append(f"so are, in some runs, {others} (column speedup_vs_ep)")
    return notes
