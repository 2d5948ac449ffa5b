"""Fits GEMM measurements: a smooth law, corrections at the measured points, and residuals.

The law's six parameters are found by least squares on log ratios with a soft-L1 loss (robust to outliers), with weak
priors, so that a handful of points suffices. Corrections are the medians over sweeps of ln(measured / law), averaged
with their prediction from the other shapes by inverse variance: sweep repeatability against kriging (more shapes give
the prediction more weight; a tenth to a fifth on the grid). A point that is far from both its neighbours in m and its
prediction from the other shapes is an outlier; the prediction replaces it.
"""

import numpy as np
import pandas as pd

from archsim.base.units import NS_PER_US
from archsim.laws.gemm import CORRECTION_UNIT, law_ns, left_out
from archsim.laws.tables import GemmLaw, GemmTable, ResidualQuantiles
from calibration.fit.robust import least_squares, significant
from calibration.measurements.consensus import consensus, note_of, off_the_others
from calibration.measurements.fingerprints import fingerprints
from calibration.measurements.sweeps import pools

POINT = ["n", "k", "m"]
# Logs of typical values: launch ns, ns per k, ns per input, flop/s, bytes/s; order - 1.
START = np.log([3e3, 0.1, 1e-4, 5e14, 2.5e12, 1.5])
PRIOR = 0.003  # weight of one prior relative to one point, per unit of log
ROBUST = 0.05  # log residuals beyond this count linearly
OUTLIER = 0.5  # of ln(measured / law), against both neighbours and other shapes
NOISE = 0.02  # standard deviation of ln t for a single sweep; pairs of public sweeps have 0.015 to 0.02
LEAST_SHAPES_TO_KRIGE = 8
WINDOW = 5  # neighbouring points in m


def fit_gemm(rows: pd.DataFrame, sms: int) -> tuple[GemmTable, ...]:
    """Tables of one GPU's GEMM rows (of the schema), sorted by library, version, dtype, groups."""
    keys = ["library", "dtype", "quant_included", "groups"]
    tables = []
    for (library, dtype, included, groups), mine in rows.groupby(keys, sort=True):
        for version, sweeps in pools(mine, POINT, "latency_us_median"):
            who = {"library": library, "version": version, "source": ", ".join(sorted(set(mine["file"])))}
            quantisation = "included" if included == "1" else "apart"
            tables.append(fit_table(sweeps, dtype, quantisation, int(groups), sms, who))
    return tuple(sorted(tables, key=lambda t: (t.library, t.version, t.dtype, t.quantisation, t.groups)))


def fit_table(sweeps: pd.DataFrame, dtype: str, quantisation: str, groups: int, sms: int, who: dict) -> GemmTable:
    """The table of one pool of sweeps (ln us; index n, k, m)."""
    logs = consensus(sweeps) + np.log(NS_PER_US)
    n, k, m = (logs.index.get_level_values(name).to_numpy(float) for name in POINT)
    law = fit_law(logs.to_numpy(), m, n, k, dtype, groups)
    sizes, axis, corrections = _fill_gaps(logs - np.log(law_ns(law, m, n, k, dtype, groups)))
    others = np.zeros_like(corrections)
    if len(sizes) >= LEAST_SHAPES_TO_KRIGE:
        others, variance = left_out(sizes, corrections, axis, sms)
    unseen = quantiles(np.expm1(corrections - others))
    if len(sizes) >= LEAST_SHAPES_TO_KRIGE:
        along = pd.DataFrame(corrections.T).rolling(WINDOW, center=True, min_periods=1).median().to_numpy().T
        outliers = (np.abs(corrections - along) > OUTLIER) & (np.abs(corrections - others) > OUTLIER)
        corrections = np.where(outliers, others, corrections)
        corrections = _drawn_to(corrections, others, variance, _noise(sweeps) ** 2 / sweeps.shape[1])
    names = [f"{int(n)}x{int(k)}" for n, k in sizes]
    rounded = np.rint(corrections / CORRECTION_UNIT)
    return GemmTable(
        **who, sweeps=tuple(sorted(sweeps.columns)), note=note_of(sweeps), prints=fingerprints(sweeps), dtype=dtype,
        quantisation=quantisation, groups=groups, law=law, m=tuple(axis),
        shapes={name: tuple(row) for name, row in zip(names, rounded, strict=True)}, ends=_ends(logs, axis),
        seen=_repeatability(sweeps), unseen=unseen,
    )  # fmt: skip


def fit_law(logs: np.ndarray, m, n, k, dtype: str, groups: int = 1) -> GemmLaw:
    """The law that fits ln ns of the products best, with a robust loss."""

    def residuals(values: np.ndarray) -> np.ndarray:
        fit = np.log(law_ns(_law(values), m, n, k, dtype, groups)) - logs
        return np.concatenate([fit, PRIOR * np.sqrt(len(logs)) * (values - START)])

    bounds = START - np.log(1e4), START + np.log([1e4] * 5 + [10])
    found = least_squares(residuals, START, bounds, ROBUST, steps=200)
    return GemmLaw(**{key: significant(value) for key, value in dict(_law(found.x)).items()})


def _law(values: np.ndarray) -> GemmLaw:
    launch, per_k, per_input, flop, byte, order = np.exp(values)
    return GemmLaw.model_construct(
        launch_ns=launch, ns_per_k=per_k, ns_per_input=per_input, flop_per_s=flop, bytes_per_s=byte, order=1 + order
    )


def quantiles(residuals: np.ndarray) -> ResidualQuantiles:
    """5, 50 and 95 % of measured / predicted - 1."""
    residuals = np.asarray(residuals)
    if not residuals.size:
        return ResidualQuantiles(p05=0.0, p50=0.0, p95=0.0, points=0)
    p05, p50, p95 = (significant(value) for value in np.quantile(residuals, (0.05, 0.5, 0.95)))
    return ResidualQuantiles(p05=p05, p50=p50, p95=p95, points=residuals.size)


def _repeatability(sweeps: pd.DataFrame) -> ResidualQuantiles | None:
    """Residuals of single sweeps against the median of the others; None with one sweep."""
    residuals = off_the_others(sweeps).to_numpy()
    residuals = residuals[np.isfinite(residuals)]
    return quantiles(residuals) if len(residuals) else None


def _fill_gaps(corrections: pd.Series) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(sizes float64[shape, (n, k)], m float64[point], float64[shape, point]); gaps are filled along ln m."""
    table = corrections.unstack("m").sort_index()
    axis = np.sort(table.columns.to_numpy(float))
    table = table[axis]
    filled = np.empty(table.shape)
    for row, values in enumerate(table.to_numpy()):
        known = np.isfinite(values)
        filled[row] = np.interp(np.log(axis), np.log(axis[known]), values[known])
    return np.array(table.index.tolist(), float), axis, filled


def _ends(logs: pd.Series, axis: np.ndarray) -> dict[str, tuple[float, float]]:
    """First and last m of shapes without the first or last m of ``axis``."""
    measured = logs.index.to_frame(index=False).groupby(["n", "k"])["m"].agg(["min", "max"])
    short = measured[(measured["min"] > axis[0]) | (measured["max"] < axis[-1])]
    return {f"{int(n)}x{int(k)}": (float(row["min"]), float(row["max"])) for (n, k), row in short.iterrows()}


def _noise(sweeps: pd.DataFrame) -> float:
    """Standard deviation of ln t of one sweep, from the mean absolute difference of pairs; NOISE with one sweep."""
    newest = sweeps[sweeps.columns[0]]
    differences = sweeps.drop(columns=sweeps.columns[0]).sub(newest, axis=0).abs().stack()
    return float(differences.mean() * np.sqrt(np.pi) / 2) if len(differences) else NOISE


def _drawn_to(corrections: np.ndarray, others: np.ndarray, relative: np.ndarray, noise: float) -> np.ndarray:
    """Corrections of variance ``noise``, averaged with kriged ones by inverse variance.

    ``relative``: variances of the kriged ones up to a factor, which follows from the mean absolute difference. No
    correction changes by more than the standard deviation of its noise.
    """
    factor = np.mean(np.abs(corrections - others) / np.sqrt(relative)) ** 2 * np.pi / 2
    moves = noise / (noise + factor * relative) * (others - corrections)
    return corrections + np.clip(moves, -np.sqrt(noise), np.sqrt(noise))
