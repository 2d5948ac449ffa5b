"""Tables that another table of the same library dominates: fewer bits or a newer version, and yet slower.

A kernel that reads fewer bytes, or that replaced another, and takes longer at the same sizes is one that nobody
serves with, or a fault of the measurement. Tables are compared at all points that both measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from archsim.base.units import VECTOR_BYTES, WEIGHT_BYTES
from archsim.laws.attention import AttentionSizes, attention_grid, grid_ns
from archsim.laws.gemm import CORRECTION_UNIT
from archsim.laws.gemm import law_ns as gemm_ns
from archsim.laws.moe import moe_ns
from archsim.laws.tables import (
    AttentionTable,
    CalibrationSpec,
    GemmTable,
    MoeTable,
    Same,
    TableOrigin,
    TransferTable,
    newest_first,
    shape_of,
)
from archsim.laws.transfers import law_of

SLOWER = 1.1  # median ratio from which a table counts: repeated sweeps differ by up to 10 % (median)
NOT_SERVED = 1.5  # from which a kernel of fused layers is taken for one that nobody serves with


class Dominated(NamedTuple):
    """``ratio``: median time of ``table`` over that of ``by``, at ``points`` that both measured."""

    table: TableOrigin
    by: TableOrigin
    ratio: float
    points: int


def find_dominated(section: str, tables: Iterable[TableOrigin]) -> list[Dominated]:
    """The tables of a section that are dominated, each by the one that is best; the worst first."""
    groups: dict[tuple, list[TableOrigin]] = {}
    for table in tables:
        if not table.scaled_from:
            groups.setdefault((table.library, *_OF[section].key(table)), []).append(table)
    found = [one for group in groups.values() for table in group if (one := _dominated_by_best(section, table, group))]
    return sorted(found, key=lambda one: -one.ratio)


def not_served(calibration: CalibrationSpec, dtype: str) -> list[Dominated]:
    """Balanced fused layers that take NOT_SERVED times as long as kernels of more bits of their library (median)."""
    return list(_not_served(tuple(map(Same, calibration.moe)), dtype))


@lru_cache(maxsize=64)  # every served engine asks, and all points of all tables are compared
def _not_served(tables: tuple[Same, ...], dtype: str) -> tuple[Dominated, ...]:
    moe = (table.value for table in tables)
    there = [table for table in moe if table.distribution == "balanced" and not table.eplb_slots]
    kernels: dict[tuple[str, str], list[Dominated]] = {}
    for table in there:
        if table.dtype == dtype:
            group = [each for each in there if each.library == table.library and _shape(each) == _shape(table)]
            one = _dominated_by_best("moe", table, [each for each in group if _bits(each.dtype) > _bits(dtype)])
            if one:
                kernels.setdefault((table.library, table.kernel), []).append(one)
    slow = (each for each in kernels.values() if np.median([one.ratio for one in each]) >= NOT_SERVED)
    return tuple(one for each in slow for one in each)


def _dominated_by_best(section: str, table: TableOrigin, group: Sequence[TableOrigin]) -> Dominated | None:
    kind, found = _OF[section], []
    for by in group:
        if by is not table and _should_be_faster(kind, table, by):
            ratios = kind.ratios(table, by)
            if len(ratios):
                found.append(Dominated(table, by, float(np.median(ratios)), len(ratios)))
    worst = max(found, key=lambda one: one.ratio, default=None)
    return worst if worst and worst.ratio >= SLOWER else None


def _should_be_faster(kind: Section, table: TableOrigin, other: TableOrigin) -> bool:
    """Fewer bits, or the same kernel in a newer version."""
    mine, theirs = kind.bits(table), kind.bits(other)
    if mine != theirs:
        return all(a <= b for a, b in zip(mine, theirs, strict=True))
    return kind.kernel(table) == kind.kernel(other) and newest_first(table.version) > newest_first(other.version)


class Section(NamedTuple):
    """How tables compare. ``key``: equal for equal work; ``bits``: of values; ``kernel``: of any version."""

    key: Callable[..., tuple]
    bits: Callable[..., tuple[float, ...]]
    kernel: Callable[..., object]
    ratios: Callable[..., np.ndarray]


def _gemm_ratios(table: GemmTable, other: GemmTable) -> np.ndarray:
    m = sorted(set(table.m) & set(other.m))
    places = [[each.m.index(rows) for rows in m] for each in (table, other)]
    found = []
    for name in table.shapes.keys() & other.shapes.keys() if m else ():
        n, k = shape_of(name)
        ns = [
            gemm_ns(each.law, m, n, k, each.dtype, each.groups)
            * np.exp(np.array(each.shapes[name])[at] * CORRECTION_UNIT)
            for each, at in zip((table, other), places, strict=True)
        ]
        ranges = [each.range_of(n, k) for each in (table, other)]
        there = np.array([all(first <= rows <= last for first, last in ranges) for rows in m])
        found.append((ns[0] / ns[1])[there])
    return np.concatenate(found) if found else np.empty(0)


def _moe_ratios(table: MoeTable, other: MoeTable) -> np.ndarray:
    tokens = np.array(sorted(set(table.tokens) & set(other.tokens)))
    ranks = np.array([shape_of(name) for name in sorted(table.ranks.keys() & other.ranks.keys())], float)
    if not len(ranks) or not len(tokens):
        return np.empty(0)
    ep, tp = (np.repeat(each, len(tokens)) for each in ranks.T)
    at = ep, tp, np.tile(tokens, len(ranks))
    return moe_ns(table, *at) / moe_ns(other, *at)


def _attention_ratios(table: AttentionTable, other: AttentionTable) -> np.ndarray:
    found = []
    for name in table.shapes.keys() & other.shapes.keys():
        sizes = AttentionSizes(*shape_of(name), table.head_dim, table.window, table.kind)
        batch, tokens = (a.ravel() for a in np.meshgrid(
            sorted(set(table.batch) & set(other.batch)), sorted(set(table.tokens) & set(other.tokens)), indexing="ij"
        ))  # fmt: skip
        inside = np.ones(len(batch), bool)
        for each in (table, other):
            inside &= tokens <= np.interp(batch, each.batch, each.most_tokens)
        batch, tokens = batch[inside], tokens[inside]
        new = np.full(len(tokens), 1.0) if table.phase == "decode" else tokens
        one, two = (grid_ns(attention_grid(each, sizes), batch, new, tokens) for each in (table, other))
        found.append(one / two)
    return np.concatenate(found) if found else np.empty(0)


def _transfer_ratios(table: TransferTable, other: TransferTable) -> np.ndarray:
    first, last = max(table.first_bytes, other.first_bytes), min(table.last_bytes, other.last_bytes)
    if first > last:
        return np.empty(0)
    sizes = np.geomspace(first, last, 33)
    return law_of(table).time_ns(sizes) / law_of(other).time_ns(sizes)


def _bits(dtype: str) -> int:
    """Of a weight, without its share of a scale."""
    return int(8 * WEIGHT_BYTES[dtype])


def _shape(table: MoeTable) -> tuple:
    return table.model, table.hidden, table.ffn, table.experts, table.top_k


def _attention_bits(table: AttentionTable) -> tuple[float, ...]:
    each = (table.dtype, table.kv_dtype, table.products or "bf16")
    return tuple(VECTOR_BYTES[dtype] for dtype in each)


def _transfer_key(table: TransferTable) -> tuple:
    return tuple(sorted(table.of.items()))


_OF = MappingProxyType({
    "gemm": Section(
        lambda table: (table.groups,), lambda table: (_bits(table.dtype),),
        lambda table: (table.dtype, table.quantisation), _gemm_ratios,
    ),
    "moe": Section(
        lambda table: (*_shape(table), table.distribution, table.eplb_slots, table.seen),
        lambda table: (_bits(table.dtype),), lambda table: (table.dtype, table.kernel), _moe_ratios,
    ),
    "attention": Section(
        lambda table: (table.phase, table.kind, table.head_dim, table.window, bool(table.products)), _attention_bits,
        lambda table: (table.dtype, table.kv_dtype, table.products), _attention_ratios,
    ),
    **{name: Section(_transfer_key, lambda table: (), lambda table: (), _transfer_ratios)
       for name in ("p2p", "collectives")},
})  # fmt: skip
SECTIONS = tuple(_OF)


def dominated_in(calibration: CalibrationSpec) -> Iterator[tuple[str, list[Dominated]]]:
    """(section, what is dominated there), of the calibration's own tables."""
    for section in SECTIONS:
        yield section, find_dominated(section, getattr(calibration, section))
