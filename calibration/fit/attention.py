"""Fits attention: a law of FLOP and bytes, and corrections on a grid of batches and contexts for every number of heads.

The law is found by least squares on log ratios with a soft-L1 loss. Corrections ln(measured / law) of a table are
kriged together, over heads, KV heads, batch and tokens; the kriged values fill the grid where nothing was measured
(long contexts of large batches, points left out). A point far from its prediction by all others is an outlier.
"""

from typing import Any

import numpy as np
import pandas as pd

from archsim.base.units import NS_PER_US
from archsim.laws import attention
from archsim.laws.tables import AttentionLaw, AttentionTable
from calibration.fit import gemm, robust
from calibration.measurements.consensus import consensus, note_of
from calibration.measurements.sweeps import pools

KEYS = ["library", "phase", "kind", "dtype", "kv_dtype", "products", "head_dim", "window"]
SHAPE, GRID = ["heads", "kv_heads"], ["batch", "tokens"]
POINT = [*SHAPE, *GRID]
# Logs of typical values: launch ns, ns per request, ns per request and head, flop/s, bytes/s; order - 1.
START = np.log([5e3, 20.0, 2.0, 5e14, 2e12, 1.0])
PRIOR = 0.003  # weight of one prior relative to one point, per unit of log
ROBUST = 0.1  # log residuals beyond this count linearly
OUTLIER = 0.7  # of ln(measured / predicted from all other points): a factor of two
MOST_ROUNDS = 6  # of dropping outliers, the worst first: they distort the prediction of their neighbours
WORST = 0.8  # of the largest distance: dropped in one round
MOST_CORRECTION = 3.0  # of ln(measured / law), while outliers are still among the points


def fit_attention(rows: pd.DataFrame) -> tuple[AttentionTable, ...]:
    """Tables of one GPU's attention rows (of the schema), sorted."""
    tables = []
    rows = rows.assign(products=rows["products"].fillna("")) if "products" in rows else rows.assign(products="")
    for values, mine in rows.groupby(KEYS, sort=True):
        named: dict[str, Any] = dict(zip(KEYS, values, strict=True))
        named |= {key: int(named[key]) for key in ("head_dim", "window")}
        for version, sweeps in pools(mine, POINT, "latency_us_median"):
            source = ", ".join(sorted(set(mine["file"])))
            ran = tuple(sorted(sweeps.columns))
            who = {"version": version, "source": source, "note": note_of(sweeps), "sweeps": ran}
            tables.append(fit_table(consensus(sweeps) + np.log(NS_PER_US), named | who))
    return tuple(sorted(tables, key=lambda t: tuple(getattr(t, key) for key in ("version", *KEYS))))


def fit_table(logs: pd.Series, named: dict) -> AttentionTable:
    """The table of ln ns, index heads, kv_heads, batch, tokens."""
    law = fit_law(logs, named)
    corrections = logs - np.log(points_ns(law, named, logs.index))
    kept, inverse = _without_outliers(corrections)
    if len(kept) < len(logs):
        law = fit_law(logs[kept.index], named)
        kept = logs[kept.index] - np.log(points_ns(law, named, kept.index))
    batch, tokens, shapes = _fill_grid(kept, inverse)
    longest = kept.reset_index().groupby("batch")["tokens"].max()
    return AttentionTable(
        **named, law=law, batch=batch, tokens=tokens, most_tokens=tuple(float(size) for size in longest), shapes=shapes,
        unseen=gemm.quantiles(np.expm1(left_out(kept, GRID, inverse))),
        unseen_shapes=gemm.quantiles(np.expm1(left_out(kept, SHAPE, inverse))),
    )  # fmt: skip


def fit_law(logs: pd.Series, named: dict) -> AttentionLaw:
    """The law that fits ln ns best, with a robust loss."""

    def residuals(values: np.ndarray) -> np.ndarray:
        fit = np.log(points_ns(_law(values), named, logs.index)) - logs.to_numpy()
        return np.concatenate([fit, PRIOR * np.sqrt(len(logs)) * (values - START)])

    bounds = START - np.log(1e4), START + np.log([1e4] * 5 + [10])
    found = robust.least_squares(residuals, START, bounds, ROBUST, steps=200)
    return AttentionLaw(**{key: robust.significant(value) for key, value in dict(_law(found.x)).items()})


def points_ns(law: AttentionLaw, named: dict, index: pd.MultiIndex) -> np.ndarray:
    """The law at points of an index heads, kv_heads, batch, tokens; float64[point]."""
    heads, kv_heads, batch, tokens = (index.get_level_values(name).to_numpy(float) for name in POINT)
    sizes = attention.AttentionSizes(heads, kv_heads, named["head_dim"], named["window"], named["kind"])
    new = np.ones_like(tokens) if named["phase"] == attention.DECODE else tokens
    return attention.law_ns(
        law, named["phase"], sizes, batch, new, tokens, named["kv_dtype"], products=named["products"]
    )


def left_out(corrections: pd.Series, together: list[str], inverse: np.ndarray) -> np.ndarray:
    """Corrections minus their prediction from all points that differ in ``together``, float64[point], by the closed
    form of Dubrule (1983). ``inverse``: K^-1.
    """
    weighted, found = inverse @ corrections.to_numpy(), np.empty(len(corrections))
    for rows in corrections.reset_index().groupby(together).indices.values():
        found[rows] = np.linalg.solve(inverse[np.ix_(rows, rows)], weighted[rows])
    return found


def _law(values: np.ndarray) -> AttentionLaw:
    launch, request, head, flop, byte, order = np.exp(values)
    return AttentionLaw.model_construct(
        launch_ns=launch, ns_per_request=request, ns_per_head=head, flop_per_s=flop, bytes_per_s=byte, order=1 + order
    )


def _without_outliers(corrections: pd.Series) -> tuple[pd.Series, np.ndarray]:
    """(the points that are kept, the inverse of their covariance)"""
    inverse = _inverse(corrections.index)
    for _ in range(MOST_ROUNDS):
        clipped = corrections.clip(-MOST_CORRECTION, MOST_CORRECTION).to_numpy()
        off = np.abs(inverse @ clipped / np.diag(inverse))
        worst = off > max(OUTLIER, WORST * off.max())
        if not worst.any():
            break
        corrections = corrections[~worst]
        inverse = _inverse(corrections.index)
    return corrections, inverse


def _fill_grid(
    corrections: pd.Series, inverse: np.ndarray
) -> tuple[tuple[float, ...], tuple[float, ...], dict[str, tuple[float, ...]]]:
    """(batches, tokens, shape → corrections on their grid): as measured, else kriged."""
    levels = [np.unique(corrections.index.get_level_values(name)) for name in GRID]
    shapes = corrections.index.droplevel(GRID).unique().sort_values()
    whole = pd.MultiIndex.from_tuples(
        [(*shape, batch, size) for shape in shapes for batch in levels[0] for size in levels[1]], names=POINT
    )
    weights = inverse @ corrections.to_numpy()
    kriged = attention.covariance(_features(whole), _features(corrections.index)) @ weights
    values = corrections.reindex(whole).fillna(pd.Series(kriged, index=whole))
    rounded = np.rint(values.to_numpy() / attention.CORRECTION_UNIT).reshape(len(shapes), -1) + 0.0
    names = [f"{int(heads)}x{int(kv_heads)}" for heads, kv_heads in shapes]
    return tuple(levels[0]), tuple(levels[1]), {name: tuple(row) for name, row in zip(names, rounded, strict=True)}


def _inverse(index: pd.MultiIndex) -> np.ndarray:
    """Of the covariance of points, by Cholesky."""
    from scipy.linalg import lapack

    features = _features(index)
    factor, failed = lapack.dpotrf(
        attention.covariance(features, features) + attention.NOISE * np.eye(len(features)), lower=1
    )
    assert not failed, "a covariance with noise is positive definite"
    half, _ = lapack.dpotri(factor, lower=1)
    return np.tril(half) + np.tril(half, -1).T


def _features(index: pd.MultiIndex) -> np.ndarray:
    """float64[point, feature], in units of the correlation lengths."""
    heads, kv_heads, batch, tokens = (index.get_level_values(name).to_numpy(float) for name in POINT)
    shape, batches = attention.shape_features(heads, kv_heads)[:, :2], np.log2(batch)
    work = (batches + np.log2(kv_heads)) / attention.WORK_SCALE
    together = (batches + np.log2(heads)) / attention.BATCH_SCALE
    return np.column_stack(
        [shape, batches / attention.BATCH_SCALE, np.log2(tokens) / attention.TOKENS_SCALE, work, together]
    )
