"""Notes on policies: free own decisions, plans worse than ``ep``'s, and speed-ups with a measured chip's endpoints."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from archsim.base.causes import CAUSES, Cause
from archsim.runs.named_runs import count_runs, list_some, place_of

MOST_NAMED_POLICY_NOTES = 4  # policies
SLOWER = 0.99  # of the throughput of ep; above it, a policy is as fast


def policy_notes(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """On sets of own functions that are not charged, and policies slower than ``ep``. rows: of results."""
    rows = list(rows)
    uncharged = dict.fromkeys((str(row["policy"]), str(row["uncharged"])) for row in rows if row.get("uncharged"))
    notes = [
        f"Decisions of policy {policy} take no time, because {functions} returns no Effort."
        for policy, functions in uncharged
    ]
    asking = list(dict.fromkeys(str(row["policy"]) for row in rows if row.get("plans_by_speeds")))
    if asking:
        notes.append(
            f"Policies that see the speeds of dies ({list_some(asking)}) make another plan for every machine. By "
            "luck, the plan for slower dies may be better: a faster die was seen to make a step up to "
            f"{LUCK:.0%} longer. To compare two machines, compare means over several wafers or several samples of the "
            "traffic."
        )
    return [*notes, *_under_way(rows), *_slower(rows), *_endpoints(rows), *_plans(rows)]


def _under_way(rows: list[Mapping[str, Any]]) -> list[str]:
    """Where a run ended before the weights had arrived that a rebalancing moved."""
    late = [row for row in rows if row.get("under_way_bytes")]
    shares = [row["under_way_bytes"] / (row["under_way_bytes"] + row["migrated_bytes"]) for row in late]
    names = list_some(dict.fromkeys(str(row["policy"]) for row in late))
    return (
        []
        if not late
        else [
            f"{count_runs(len(late), len(rows), 'ends', 'end')} while weights are under way that rebalancing moves "
            f"(policies {names}, up to {max(shares):.0%} of the weights, column under_way_bytes). What has not arrived "
            "counts neither as moved nor in energy, and its placement is never used. More workload.decode_steps show "
            "what it brings."
        ]
    )


LUCK = 0.03  # of a step: greedy plans for one die faster (tests/engine/test_as_built_runs.py; 2.2 % was the most)
LESS_FOR_MORE = 0.99  # of the time of a step of fewer requests; below it, one of more takes less


def _plans(rows: list[Mapping[str, Any]]) -> list[str]:
    """Where a step of more requests takes less time: their plan differs, not the work of it."""
    steps: dict[tuple[str, ...], dict[int, list[float]]] = {}
    for row in rows:
        if row.get("decode_step_ns"):
            key = tuple(str(row.get(name)) for name in ("system", "model", "policy", "engine", "assumptions"))
            steps.setdefault(key, {}).setdefault(int(row["batch"]), []).append(row["decode_step_ns"])
    notes = []
    for (system, model, policy, *_), of in steps.items():
        batches = sorted(of)
        if all(len(times) == 1 for times in of.values()):  # nothing else differs
            pairs = [(of[more][0] / of[few][0], few, more) for few, more in pairwise(batches)]
            share, few, more = min(pairs, default=(1.0, 0, 0))
            if share < LESS_FOR_MORE:
                notes.append(
                    f"For {model} on {system} under {policy}, a decode step of {more:,} requests takes {1 - share:.0%} "
                    f"less time than a decode step of {few:,}. The reason is that the policy makes another plan for "
                    "other loads. Under the same plan, more requests never take less time."
                )
    return notes


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
            f"The largest speed-up over base under {label} is {free['speedup_vs_base']:.2f}×, reached by "
            f"{free['policy']} with {place_of(free)}. It is {limited['speedup_vs_base']:.2f}× if a die's controller "
            "sends and receives only as fast as that of a measured chip (endpoint: as_measured)."
        )
    return notes


def grown(row: Mapping[str, Any], ep: Mapping[str, Any], slower: float) -> tuple[Cause, float] | None:
    """The cause that grew most, and its share of the time under ``ep``; ``slower``: time over that; or None."""
    shares = {cause: f"bound_{cause.column}" for cause in CAUSES}
    if not all(any(each.get(column) for column in shares.values()) for each in (row, ep)):
        return None
    grew = {cause: (row.get(each) or 0.0) * slower - (ep.get(each) or 0.0) for cause, each in shares.items()}
    most = max(grew, key=grew.__getitem__)
    return most, grew[most]


def _slower(rows: list[Mapping[str, Any]]) -> list[str]:
    compared: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row.get("speedup_vs_ep") is not None and row["policy"] != "ep":
            compared.setdefault(str(row["policy"]), []).append(row)
    worse = {name: [row for row in those if row["speedup_vs_ep"] < SLOWER] for name, those in compared.items()}
    columns = ("point", "system", "model", "batch", "assumptions")
    reference = {tuple(row.get(column) for column in columns): row for row in rows if row.get("policy") == "ep"}
    slower = sorted((name for name in worse if worse[name]), key=lambda name: -len(worse[name]) / len(compared[name]))
    notes = []
    for name in slower[:MOST_NAMED_POLICY_NOTES]:
        least = min(worse[name], key=lambda row: row["speedup_vs_ep"])
        ep = reference.get(tuple(least.get(column) for column in columns))
        grew = grown(least, ep, 1 / least["speedup_vs_ep"]) if ep else None
        notes.append(
            f"Policy {name} is slower than ep in {len(worse[name])} of {len(compared[name])} runs. At worst, its "
            f"throughput is {least['speedup_vs_ep']:.2f}× that of ep ({place_of(least)}, {least['assumptions']})."
            + (f" Most of the added time there goes to {CAUSES[grew[0]].meaning}." if grew else "")
        )
    if others := slower[MOST_NAMED_POLICY_NOTES:]:
        are = "Policies {} are" if len(others) > 1 else "Policy {} is"
        notes.append(f"{are.format(list_some(others))} slower than ep in some runs, too (column speedup_vs_ep).")
    return notes
