"""GEMM tables of the user with too few points for a law: refused, or warned of."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from calibration.measurements import reading, schema
from calibration.measurements.sweeps import release

LEAST_POINTS = 8  # two more than the law has parameters
LEAST_SIZES_OF_LAW = 3  # of m at one shape, before a law is known to follow m
LEAST_FITTED_SIZES = 5  # of m at each shape, before their corrections mean much
REMEDY = "measure more, for instance with `python -m calibration.measure gemm`"
_TABLE = ["gpu", "library", "release", "dtype", "quant_included", "groups"]


def fittable(measurements: reading.Measurements) -> reading.Measurements:
    """The measurements without the user's GEMM tables that no law can be judged on, and with its problems."""
    rows = measurements.table("gemm")
    own = rows["file"].isin(measurements.own).to_numpy(bool)
    refused, problems = np.zeros(len(rows), bool), list(measurements.problems)
    for at, found in _sparse_tables(rows[own]):
        problems += found
        refused[np.flatnonzero(own)[at]] = any(problem.kind == "refused" for problem in found)
    tables = {**measurements.tables, "gemm": rows[~refused].reset_index(drop=True)} if refused.any() else None
    return replace(measurements, tables=tables or measurements.tables, problems=problems)


def _sparse_tables(rows: pd.DataFrame) -> Iterator[tuple[np.ndarray, list[schema.MeasurementProblem]]]:
    """(positions of the rows of a table, its problems) of the tables with too few points."""
    named = rows.assign(release=rows["library_version"].map(release))
    for (gpu, library, version, dtype, *_), at in named.groupby(_TABLE, sort=True).indices.items():
        mine = rows.iloc[at]
        points = mine[["m", "n", "k"]].drop_duplicates()
        sizes = points.groupby(["n", "k"])["m"].nunique()
        name = f"{gpu}, {library} {version}, {dtype}"
        most = sizes.max()
        lines = mine.groupby("file")["line"].min().items()
        if len(points) < LEAST_POINTS or most < LEAST_SIZES_OF_LAW:
            reason = (
                f"{name}: {len(points)} points, at most {most} sizes of m at a shape (n, k); no curve can be "
                f"tested with fewer than {LEAST_POINTS} points, or than {LEAST_SIZES_OF_LAW} sizes: {REMEDY}"
            )
            yield at, [schema.MeasurementProblem(file, int(line), reason, "refused") for file, line in lines]
        elif (sizes < LEAST_FITTED_SIZES).any():
            few = sizes[sizes < LEAST_FITTED_SIZES]
            n, k = few.index[0]
            reason = (
                f"{name}: {len(few)} of {len(sizes)} shapes have fewer than {LEAST_FITTED_SIZES} sizes of m "
                f"(n {n:g}, k {k:g} "
                f"has {few.iloc[0]}); between and beyond them, only the fitted curve predicts: {REMEDY}"
            )
            yield at, [schema.MeasurementProblem(file, int(line), reason, "warning") for file, line in lines]
