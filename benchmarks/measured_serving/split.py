"""Disaggregated serving, simulated and measured: engines that prefill, and others that decode.

The table is that of ``silicon_disagg.csv``: columns of each side are named ``prefill_...`` and ``decode_...``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from archsim.base.errors import ArchsimError
from archsim.base.units import NS_PER_MS
from archsim.evidence.serving.inferencex_rows import as_served, decode_batches
from archsim.iteration.constants import DECODE, PREFILL, Host, HostFile, PoolRow
from archsim.serving.kv_room import handed_over, kv_blocks
from archsim.serving.measures import times_ns
from archsim.serving.records import KvTransfer
from archsim.serving.simulate import Pool, simulate
from archsim.specs.serving import TransferSpec
from measured_serving.accuracy import (
    MODELS,
    REQUESTS_A_CLIENT,
    SYSTEMS,
    Case,
    Point,
    case_dtype,
    case_of,
    host_of_case,
    pool_of,
    requests_of_row,
)
from measured_serving.fitting import FOLDS, OUTLIER, ROUNDS, fold_of
from measured_serving.recipes import INFERENCEX, link_bytes_per_s, scheduler_of

SIZES = ("tp", "attention_dp", "moe_tp", "moe_ep")
MOST_TOKENS = 2**24  # of the outputs of a point's requests: those of more take long
SHARES = (1, REQUESTS_A_CLIENT - 1)  # of the clients' first requests, which come all at once, and of the others
# Factors on prompts of ranks of data-parallel attention with which points are simulated: they take more than laws say,
# and TTFT of one that is busy grows faster than they do.
PREFILLS = (1.0, 2.0)
MOST_PREFILL = 1.3  # of ln of an engine's or a cell's
# ms and iterations by which first tokens are late: units, most, and two beginnings of the search.
LATE, MOST_LATE, BEGIN = np.array([100.0, 10.0]), np.array([6.0, 4.0]), ((1.0, 0.5), (0.2, 2.0))
# Of ln of factors of engines, of these with or without data-parallel attention, and of cells before anything is
# measured, and of a point; of factors on prompts of engines with a dtype and of cells; and of ln TTFT. By folds.
SPREADS, NOISE, OF_PROMPTS, FAR_TTFT = (0.2, 0.1, 0.07), 0.1, (0.5, 0.3), 0.3


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


def with_own_name(point: Point) -> Point:
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
            sides = [case_of([_side(row, side) for row in points], side) for side in (PREFILL, DECODE)]
            for case in sides:
                kv_blocks(case.engine, case.scheduler)
            found.append(SplitCase(points, sides[0], sides[1], decode_batches(points)))
        except ArchsimError as error:
            refused |= {row["point"]: str(error) for row in points}
    return found, refused


def split_points_of(case: SplitCase, known: HostFile) -> Iterator[Point]:
    """All points of a case by constants."""
    first = case.rows[0]
    sides = ((case.prefill, PREFILL), (case.decode, DECODE))
    hosts = [host_of_case(side, known, pool) for side, pool in sides]
    prefill, decode = (
        pool_of(side, host)._replace(instances=int(first[f"{name}_workers"]))
        for side, host, name in zip((case.prefill, case.decode), hosts, (PREFILL, DECODE), strict=True)
    )
    moved = handed_over(case.prefill.engine, link_bytes_per_s(first), TransferSpec().latency_ns, hosts[0])
    for row, most in zip(case.rows, case.most, strict=True):
        yield _point(row, prefill, decode._replace(most=most), moved, hosts[0])


def judge_cases(cases: Sequence[SplitCase], known: HostFile, plain: Sequence[Sequence[Point]]) -> list[Point]:
    """All points, each by what pools are given by groups of other folds, and for all else by ``known``. ``plain``: as
    `plain_points` has them.
    """
    fold = fold_of(case.rows[0]["group"] for case in cases)
    found = []
    for left in range(FOLDS):
        others = [[each for each in points if fold[each.row["group"]] != left] for points in plain]
        mine = known.model_copy(update={"pools": pools_of(*others)})
        own = [case for case in cases if fold[case.rows[0]["group"]] == left]
        found += [point for case in own for point in split_points_of(case, mine)]
    return found


def plain_points(cases: Sequence[SplitCase], known: HostFile) -> list[list[Point]]:
    """For each of PREFILLS all points with engines as they are, no time to hand requests over, and first tokens at
    once.
    """
    engines, found = {case.rows[0]["backend"] for case in cases}, []
    for factor in PREFILLS:
        rows = [PoolRow(engine=each, request=0, handoff=0, first_after=1) for each in engines]  # type: ignore[arg-type]
        pools = (*rows, PoolRow(data_parallel=True, prompts=factor))
        slower = known.model_copy(update={"pools": pools})
        found.append([point for case in cases for point in split_points_of(case, slower)])
    return found


def pools_of(points: Sequence[Point], *slower: Sequence[Point]) -> tuple[PoolRow, ...]:
    """What brings points that were simulated plainly nearest to what was measured: of each engine the time to hand a
    request over and the iterations after which a first token is seen; of engines with a dtype and of their cells (GPU,
    dtype) a factor on prompts of ranks with data-parallel attention; of engines, of these with or without such ranks,
    and of cells a factor on all of an iteration. A group counts as the root of its points. ``slower``: the same points
    by the other PREFILLS.
    """
    groups = [point.row["group"] for point in points]
    weights = np.array([groups.count(group) ** -0.5 for group in groups])
    cells = [_cell_of(point) for point in points]
    kinds = [(cell[0], point.row["decode_attention_dp"] > 1) for cell, point in zip(cells, points, strict=True)]
    factors = _factors(points, cells, kinds, weights)
    found, prompts = [], dict[tuple, float]()
    for engine in sorted({cell[0] for cell in cells}):
        mine = [at for at, cell in enumerate(cells) if cell[0] == engine]
        each = [[of[at] for at in mine] for of in (points, *slower)]
        handoff_ms, late, own = _first_tokens(each, [cells[at] for at in mine], weights[mine])
        prompts |= own
        found.append(PoolRow(
            engine=engine, decodes=factors[engine,], request=0, handoff=handoff_ms * NS_PER_MS, first_after=1 + late,
        ))  # fmt: skip
    found += [PoolRow(engine=kind[0], data_parallel=kind[1], decodes=factors[kind]) for kind in sorted(set(kinds))]
    found += [PoolRow(engine=cell[0], gpu=cell[1], dtype=cell[2], decodes=factors[cell]) for cell in sorted(set(cells))]
    for key, each in sorted(prompts.items(), key=lambda each: (len(each[0]), each[0])):
        gpu = {"gpu": key[1]} if len(key) > 2 else {}
        found.append(PoolRow(engine=key[0], dtype=key[-1], data_parallel=True, prompts=each, **gpu))
    return tuple(found)


def _cell_of(point: Point) -> tuple[str, ...]:
    """(engine, GPU, dtype of experts)"""
    return str(point.row["backend"]), SYSTEMS[point.row["system"]][0], case_dtype(point.row)


def _factors(
    points: Sequence[Point], cells: Sequence[tuple], kinds: Sequence[tuple], weights: np.ndarray
) -> dict[tuple, float]:
    """Of engines, (engine,), with and without data-parallel attention, and of cells: the least squares of ln TPOT, held
    towards 1 by SPREADS, those beyond OUTLIER counting less and less (Cauchy's loss).
    """
    owned = [(cell[:1], kind, cell) for cell, kind in zip(cells, kinds, strict=True)]
    keys = list(dict.fromkeys(key for each in owned for key in each))
    matrix = np.array([[float(key in each) for key in keys] for each in owned])
    ln = np.array([np.log(point.row["tpot_ms"] / point.tpot) for point in points])
    held = np.diag([(NOISE / SPREADS[len(key) - 1]) ** 2 for key in keys])
    found = np.zeros(len(keys))
    for _ in range(ROUNDS):
        each = weights / (1 + ((matrix @ found - ln) / OUTLIER) ** 2)
        found = np.linalg.solve(matrix.T @ (each[:, None] * matrix) + held, matrix.T @ (each * ln))
    return dict(zip(keys, map(float, np.exp(found)), strict=True))


def _first_tokens(
    points: Sequence[Sequence[Point]], cells: Sequence[tuple], weights: np.ndarray
) -> tuple[float, int, dict[tuple, float]]:
    """(ms, iterations, factors on prompts) of one engine that bring TTFT nearest: the least squares of its ln, held
    towards 1 by OF_PROMPTS; errors beyond FAR_TTFT count less and less. Between PREFILLS, ln TTFT is interpolated.
    """
    rows = [point.row for point in points[0]]
    ln, steps = np.log([[point.ttft for point in each] for each in points]), np.log(PREFILLS[: len(points)])
    tpot, real = (np.array([row[name] for row in rows]) for name in ("tpot_ms", "ttft_ms"))
    wide = [row.get("prefill_attention_dp", 1) > 1 and len(points) > 1 for row in rows]
    mine = sorted({cell for cell, each in zip(cells, wide, strict=True) if each})
    keys = [*sorted({(engine, dtype) for engine, _, dtype in mine}), *mine]
    owned = np.array(
        [[each and key in (cell[::2], cell) for key in keys] for cell, each in zip(cells, wide, strict=True)]
    )
    held = FAR_TTFT / np.array([OF_PROMPTS[len(key) > 2] for key in keys])

    def off(values: np.ndarray) -> np.ndarray:
        at = owned.reshape(len(rows), -1) @ values[:-2]
        plain = ln[0]
        if len(steps) > 1:
            low, column = np.clip(np.searchsorted(steps, at) - 1, 0, len(steps) - 2), np.arange(len(rows))
            share = (at - steps[low]) / (steps[low + 1] - steps[low])
            plain = (1 - share) * ln[low, column] + share * ln[low + 1, column]
        far = np.log((np.exp(plain) + LATE[0] * values[-2] + LATE[1] * values[-1] * tpot) / real) / FAR_TTFT
        return np.r_[np.sign(far) * np.sqrt(weights * np.log1p(far**2)), held * values[:-2]]

    bounds = np.r_[np.full(len(keys), -MOST_PREFILL), 0, 0], np.r_[np.full(len(keys), MOST_PREFILL), MOST_LATE]
    tries = [
        least_squares(off, np.r_[np.full(len(keys), 0.2), begin], bounds=bounds, diff_step=0.02) for begin in BEGIN
    ]
    found = min(tries, key=lambda each: each.cost).x
    handoff_ms, late = LATE * found[-2:]
    return float(handoff_ms), round(late), dict(zip(keys, map(float, np.exp(found[:-2])), strict=True))


def _point(row: Mapping[str, Any], prefill: Pool, decode: Pool, moved: KvTransfer, host: Host) -> Point:
    requests = requests_of_row(row, MOST_TOKENS)
    scheduler = scheduler_of(_side(row, DECODE))
    times = times_ns(simulate(requests, scheduler, prefill, decode=decode, transfer=moved, **host.of_requests))
    first = slice(0, int(row["concurrency"])), slice(int(row["concurrency"]), None)
    ttft, tpot = (np.average([times[name][each].mean() for each in first], weights=SHARES) for name in ("ttft", "tpot"))
    return Point(row, float(ttft) / NS_PER_MS, float(tpot) / NS_PER_MS)


def _side(row: Mapping[str, Any], side: str) -> dict[str, Any]:
    """A point of one side alone."""
    return dict(row) | {name: row[f"{side}_{name}"] for name in SIZES}
