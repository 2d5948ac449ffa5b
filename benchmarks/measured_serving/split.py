"""Disaggregated serving, simulated and measured: engines that prefill, and others that decode.

The table is that of ``silicon_disagg.csv``: columns of each side are named ``prefill_...`` and ``decode_...``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.base.units import NS_PER_MS
from archsim.serving.deployment import Host, handed_over, kv_blocks
from archsim.serving.hosts import HostFile
from archsim.serving.measures import times_ns
from archsim.serving.records import Transfer
from archsim.serving.simulate import Pool, simulate
from archsim.specs.serving import TransferSpec
from archsim.studies.serving.accuracy import as_served, decode_batches
from measured_serving.accuracy import (
    MODELS,
    REQUESTS_A_CLIENT,
    SYSTEMS,
    Case,
    Point,
    case_of,
    host_of_case,
    pool_of,
    requests_of_row,
)
from measured_serving.fitting import FOLDS, OUTLIER, fold_of
from measured_serving.recipes import INFERENCEX, link_bytes_per_s, scheduler_of

PREFILL, DECODE = "prefill", "decode"
SIZES = ("tp", "attention_dp", "moe_tp", "moe_ep")
MOST_TOKENS = 2**24  # of the outputs of a point's requests: those of more take long
SHARES = (1, REQUESTS_A_CLIENT - 1)  # of the clients' first requests, which come all at once, and of the others
HANDOFFS_MS = np.arange(0.0, 1000.0, 5.0)  # among which an engine's is chosen


class SplitCase(NamedTuple):
    """A group of points, and the engine of each side. ``most``: requests of a decode rank, a number a point; 0: no
    bound.
    """

    rows: Sequence[Mapping[str, Any]]
    prefill: Case
    decode: Case
    most: Sequence[int]


def split_rows(path: Path) -> list[dict[str, Any]]:
    """Points of the table that are fit to judge on, of the aggregated table's columns."""
    import pandas

    table = pandas.read_csv(path)
    rows = table[table.model.isin(MODELS) & table.system.isin(SYSTEMS)].to_dict("records")
    return [{"origin": INFERENCEX, "tp": row["decode_tp"]} | dict(as_served(row)) for row in rows]


def named(point: Point) -> Point:
    """Under an engine's name that tells it from those that do both."""
    return point._replace(row=dict(point.row) | {"backend": f"{point.row['backend']}, disaggregated"})


def split_cases_of(rows: Iterable[Mapping[str, Any]]) -> tuple[list[SplitCase], dict[str, str]]:
    """Of each group, engine version and shape, and why others cannot be simulated, by point."""
    sizes = [f"{side}_{name}" for side in (PREFILL, DECODE) for name in (*SIZES, "workers")]
    keys = ("group", "backend_version", *sizes)
    groups: dict[tuple, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    found, refused = [], {}
    for points in groups.values():
        try:
            sides = [case_of([_side(row, side) for row in points], side == DECODE) for side in (PREFILL, DECODE)]
            for case in sides:
                kv_blocks(case.engine, case.scheduler)
            found.append(SplitCase(points, sides[0], sides[1], decode_batches(points)))
        except ArchsimError as error:
            refused |= {row["point"]: str(error) for row in points}
    return found, refused


def split_points_of(case: SplitCase, known: HostFile) -> Iterator[Point]:
    """All points of a case by constants."""
    first = case.rows[0]
    hosts = [host_of_case(side, known) for side in (case.prefill, case.decode)]
    prefill, decode = (
        pool_of(side, host)._replace(instances=int(first[f"{name}_workers"]))
        for side, host, name in zip((case.prefill, case.decode), hosts, (PREFILL, DECODE), strict=True)
    )
    moved = handed_over(case.prefill.engine, link_bytes_per_s(first), TransferSpec().latency_ns, hosts[0])
    for row, most in zip(case.rows, case.most, strict=True):
        yield _point(row, prefill, decode._replace(most=most), moved, hosts[0])


def judged(cases: Sequence[SplitCase], known: HostFile, plain: Sequence[Point]) -> list[Point]:
    """All points, each by the handoff of the groups of other folds, and for all else by ``known``. ``plain``: all,
    with no time to hand requests over.
    """
    fold = fold_of(case.rows[0]["group"] for case in cases)
    found = []
    for left in range(FOLDS):
        mine = with_handoffs(known, handoffs_ns([each for each in plain if fold[each.row["group"]] != left]))
        own = [case for case in cases if fold[case.rows[0]["group"]] == left]
        found += [point for case in own for point in split_points_of(case, mine)]
    return found


def plain_points(cases: Sequence[SplitCase], known: HostFile) -> list[Point]:
    """All points with no time to hand requests over."""
    free = with_handoffs(known, {})
    return [point for case in cases for point in split_points_of(case, free)]


def handoffs_ns(points: Sequence[Point]) -> dict[str, float]:
    """Of each engine, for points that were simulated without: the time that brings TTFT nearest to what was measured.
    Errors are of logarithms, those beyond OUTLIER count less and less (Cauchy's loss), and groups count alike.
    """
    found = {}
    for engine in sorted({point.row["backend"] for point in points}):
        mine = [point for point in points if point.row["backend"] == engine]
        groups = [point.row["group"] for point in mine]
        weights = np.array([1 / groups.count(group) for group in groups])
        ours, real = (np.array(each) for each in zip(*((each.ttft, each.row["ttft_ms"]) for each in mine), strict=True))
        off = np.log1p((np.log((ours + HANDOFFS_MS[:, None]) / real) / OUTLIER) ** 2) @ weights
        found[engine] = float(HANDOFFS_MS[off.argmin()]) * NS_PER_MS
    return found


def with_handoffs(known: HostFile, times_ns_of: Mapping[str, float]) -> HostFile:
    """The constants with the handoff of engines; of others none."""
    rows = tuple(row.model_copy(update={"handoff": times_ns_of.get(row.engine, 0.0)}) for row in known.hosts)
    return known.model_copy(update={"hosts": rows})


def _point(row: Mapping[str, Any], prefill: Pool, decode: Pool, moved: Transfer, host: Host) -> Point:
    requests = requests_of_row(row, MOST_TOKENS)
    scheduler = scheduler_of(_side(row, DECODE))
    times = times_ns(simulate(requests, scheduler, prefill, decode=decode, transfer=moved, **host.of_requests))
    first = slice(0, int(row["concurrency"])), slice(int(row["concurrency"]), None)
    ttft, tpot = (np.average([times[name][each].mean() for each in first], weights=SHARES) for name in ("ttft", "tpot"))
    return Point(row, float(ttft) / NS_PER_MS, float(tpot) / NS_PER_MS)


def _side(row: Mapping[str, Any], side: str) -> dict[str, Any]:
    """A point of one side alone."""
    return dict(row) | {name: row[f"{side}_{name}"] for name in SIZES}
