"""Fits fused MoE layers: a law of one rank's pairs and active experts, corrections, and kriging between EP sizes.

Token-expert pairs of the rank that is waited for: tokens top_k / ep^spread. Its active experts: of ``experts / ep``, those
that get a pair; balanced routing fills them one by one, others as by chance. An expert is three slices of
hidden x ffn / tp. Corrections are interpolated by kriging over log2 ep, log2 tp and log2 tokens, with an
exponential covariance (kernels are chosen by size, so the corrections are rough).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from archsim.specs.calibration import MoeLaw, MoeTable, shape_of
from calibration.gemm import NS_PER_US, PRIOR, ROBUST, quantiles, significant
from calibration.sweeps import consensus, pools
from microarch.gemm import NS_PER_S, OPERAND_BYTES, UNIT

POINT = ["ep", "tp", "tokens_total"]
BALANCED = "balanced"
SLICES = 3
# Logs of typical values: launch ns, ns per token, flop/s, bytes/s; order - 1; spread.
START = np.log([3e4, 10.0, 5e14, 2.5e12, 1.5, 0.9])
LOOSENESS = np.log([1e3, 1e4, 30, 30, 10, 3])
LEAST_RANKS_TO_LEAVE_OUT = 3
# Octaves of ep, tp and tokens; and the noise of a point relative to the variance.
SCALES = np.array([4.0, 4.0, 2.0])
NOISE = 0.02


def fit_moe(rows: pd.DataFrame) -> tuple[MoeTable, ...]:
    """Tables of one GPU's MoE rows (of the schema), sorted by model, library, version, dtype, distribution."""
    keys = ["model", "library", "dtype", "distribution", "hidden", "ffn", "experts", "top_k"]
    tables = []
    for values, mine in rows.groupby(keys, sort=True):
        named = dict(zip(keys, values, strict=True))
        named |= {key: int(named[key]) for key in ("hidden", "ffn", "experts", "top_k")}
        for version, sweeps in pools(mine, POINT, "latency_us_median"):
            source = ", ".join(sorted(set(mine["file"])))
            tables.append(fit_table(sweeps, {**named, "version": version, "source": source}))
    return tuple(sorted(tables, key=lambda t: (t.model, t.library, t.version, t.dtype, t.distribution)))


def fit_table(sweeps: pd.DataFrame, named: dict) -> MoeTable:
    """The table of one pool of sweeps (ln us; index ep, tp, tokens_total)."""
    logs = consensus(sweeps) + np.log(NS_PER_US)
    law = fit_law(logs, named)
    errors = _errors_with_law(logs, law, named)
    return _table(
        logs, law, {**named, "sweeps": tuple(sorted(sweeps.columns)), "unseen": quantiles(-errors / (1 + errors))}
    )


def left_out_errors(sweeps: pd.DataFrame, named: dict) -> pd.Series:
    """predicted / measured - 1 of every EP size (at tp = 1) by a table fitted to the others; index ep, tp, tokens_total."""
    logs = consensus(sweeps) + np.log(NS_PER_US)
    unknown = {**named, "unseen": quantiles([])}
    found = [pd.Series(dtype=float)]
    for out in _sizes_to_leave_out(logs):
        table = _table(logs[~out], fit_law(logs[~out], named), unknown)
        found.append(moe_ns(table, *_axes(logs[out])) / np.exp(logs[out]) - 1)
    return pd.concat(found[1:] or found)


def _errors_with_law(logs: pd.Series, law: MoeLaw, named: dict) -> np.ndarray:
    """The same with the law kept as it is: a closed form, quick enough for every fit."""
    axes = _axes(logs)
    corrections = logs.to_numpy() - np.log(law_ns(law, named, *axes))
    points = _features(*axes)
    inverse = np.linalg.inv(_covariance(points, points) + NOISE * np.eye(len(points)))
    weights = inverse @ corrections
    found = [np.linalg.solve(inverse[np.ix_(out, out)], weights[out]) for out in _sizes_to_leave_out(logs)]
    return np.expm1(-np.concatenate(found)) if found else np.zeros(0)


def _sizes_to_leave_out(logs: pd.Series) -> list[np.ndarray]:
    """A mask of points for every EP size at tp = 1; none where there are too few sizes."""
    ep, tp, _ = _axes(logs)
    sizes = np.unique(ep[tp == 1])
    return [(ep == size) & (tp == 1) for size in sizes] if len(sizes) >= LEAST_RANKS_TO_LEAVE_OUT else []


def _table(logs: pd.Series, law: MoeLaw, named: dict) -> MoeTable:
    corrections = (logs - np.log(law_ns(law, named, *_axes(logs)))).unstack("tokens_total").sort_index()
    axis = np.sort(corrections.columns.to_numpy(float))
    ranks = {}
    for (ep, tp), row in corrections[axis].iterrows():
        known = np.isfinite(row.to_numpy())
        filled = np.interp(np.log(axis), np.log(axis[known]), row.to_numpy()[known])
        ranks[f"{int(ep)}x{int(tp)}"] = tuple(np.rint(filled / UNIT))
    return MoeTable(**named, law=law, tokens=tuple(axis), ranks=ranks)


def moe_ns(table: MoeTable, ep, tp, tokens) -> np.ndarray:
    """Time of fused layers, float64[point]; ep, tp, tokens: float64[point] (tokens of the whole EP group)."""
    named = table.model_dump(include={"hidden", "ffn", "experts", "top_k", "dtype", "distribution"})
    known = [(*shape_of(name), size) for name in table.ranks for size in table.tokens]
    corrections = np.array([value for row in table.ranks.values() for value in row]) * UNIT
    points = _features(*np.array(known, float).T)
    wanted = _features(ep, tp, tokens)
    weights = np.linalg.solve(_covariance(points, points) + NOISE * np.eye(len(points)), corrections)
    return law_ns(table.law, named, ep, tp, tokens) * np.exp(_covariance(wanted, points) @ weights)


def law_ns(law: MoeLaw, named: dict, ep, tp, tokens) -> np.ndarray:
    """The law without corrections, float64[point]; ``named``: a table's model, dtype and distribution."""
    slice_weights = named["hidden"] * named["ffn"] / tp
    pairs = tokens * named["top_k"] / ep**law.spread
    local = named["experts"] / ep
    if named["distribution"] == BALANCED:
        active = np.minimum(local, np.maximum(pairs, 1.0))
    else:
        active = np.maximum(local * -np.expm1(-pairs / local), np.minimum(local, 1.0))
    flop_ns = 2 * SLICES * pairs * slice_weights / law.flop_per_s * NS_PER_S
    bytes_ns = active * SLICES * slice_weights * OPERAND_BYTES[named["dtype"]] / law.bytes_per_s * NS_PER_S
    largest = np.maximum(flop_ns, bytes_ns)
    both = largest * ((flop_ns / largest) ** law.order + (bytes_ns / largest) ** law.order) ** (1 / law.order)
    return law.launch_ns + law.ns_per_token * tokens + both


def fit_law(logs: pd.Series, named: dict) -> MoeLaw:
    """The law nearest to ln ns of the layers, in the robust sense (index ep, tp, tokens_total)."""
    from scipy.optimize import least_squares

    axes = _axes(logs)

    def residuals(values: np.ndarray) -> np.ndarray:
        fit = np.log(law_ns(_law(values, named), named, *axes)) - logs.to_numpy()
        return np.concatenate([fit, PRIOR * np.sqrt(len(logs)) * (values - START)])

    high = START + LOOSENESS
    high[-1] = 0.0
    found = least_squares(
        residuals, START, bounds=(START - LOOSENESS, high), loss="soft_l1", f_scale=ROBUST, max_nfev=100
    )
    return MoeLaw(**{key: significant(value) for key, value in dict(_law(found.x, named)).items()})


def _law(values: np.ndarray, named: dict) -> MoeLaw:
    launch, per_token, flop, byte, order, spread = np.exp(values)
    return MoeLaw.model_construct(
        launch_ns=launch,
        ns_per_token=per_token,
        flop_per_s=flop,
        bytes_per_s=byte,
        order=1 + order,
        spread=1.0 if named["distribution"] == BALANCED else spread,
    )


def _axes(logs: pd.Series) -> tuple[np.ndarray, ...]:
    return tuple(logs.index.get_level_values(name).to_numpy(float) for name in POINT)


def _features(ep, tp, tokens) -> np.ndarray:
    return np.log2(np.stack([ep, tp, tokens], axis=1)) / SCALES


def _covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Exponential in the distance, plus one: an unknown mean of the same variance."""
    return np.exp(-np.sqrt(((a[:, None] - b[None]) ** 2).sum(axis=2))) + 1.0
