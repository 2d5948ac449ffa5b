"""Errors of a calibration file, and of fits on unseen sweeps, shapes and EP sizes, next to repeatability. ``error`` =
predicted / measured - 1; ``floor``: |measured / median of the other sweeps of its release at the point - 1|.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from archsim.base.case import errors
from archsim.base.units import NS_PER_US
from archsim.evidence import choosing
from archsim.evidence.page import join_frames
from archsim.laws import gemm
from archsim.laws.moe import EPLB, moe_ns, outside_ranks
from archsim.laws.moe import POINT as RANK_POINT
from archsim.laws.tables import CalibrationSpec, GemmTable, MoeTable
from calibration.fit import fit, moe
from calibration.fit.gemm import POINT, fit_table
from calibration.measurements.consensus import consensus, off_the_others, repeatability
from calibration.measurements.fingerprints import in_fit
from calibration.measurements.reading import Measurements
from calibration.measurements.sweeps import SAME, pools, release, table_of_sweeps

# Kinds of cases: judged by the calibration file, on sweeps and sizes in and not in its fit; and judged by fits with
# something left out.
FITTED, NEW = "file: in its fit", "file: not in its fit"
SWEEP_OUT, SHAPE_OUT, RANK_OUT = "sweep left out", "shape left out", "EP size left out"
# Expert shapes of the paper's validation and of the models in its DGX measurements.
EXPERTS = ("DeepSeek-V3", "Qwen3-235B-A22B", "Qwen3-30B-A3B")
SHAPES_OF_EXPERTS = {
    **dict.fromkeys(((4096, 7168), (2048, 7168), (7168, 2048)), EXPERTS[0]),
    **dict.fromkeys(((3072, 4096), (1536, 4096), (4096, 1536)), EXPERTS[1]),
    **dict.fromkeys(((1536, 2048), (768, 2048), (2048, 768)), EXPERTS[2]),
}
POWERS_OF_TWO = tuple(2**exponent for exponent in range(13))  # M = 1 ... 4096
SHAPE_FOLDS = 16  # every sixteenth shape of a grid is left out at a time,
FEW_SHAPES, FOLDS_OF_FEW = 32, 8  # every eighth if there are fewer shapes
LEAST_SHAPES = 4


def gemm_cases(calibration: CalibrationSpec, measurements: Measurements) -> pd.DataFrame:
    rows = measurements.table("gemm", calibration.gpu)
    found = []
    for key, mine in choosing.gemm_groups(measurements, calibration.gpu):
        table = choosing.gemm_table_for(calibration, *key)
        if table is not None:
            n, k, m = (mine[name].to_numpy(np.int64) for name in POINT)
            predicted = gemm.table_times(table, n, k, m, fit.sms_of(calibration.gpu)) / NS_PER_US
            cases = _cases(mine, predicted).assign(
                table=choosing.name_of(table), extrapolated=gemm.outside(table, n, k, m)
            )
            same_release = _of_release(rows, choosing.GEMM_KEYS, key, table)
            kinds = _kinds(mine, table.prints, _size_names(n, k), table.shapes, m, table.m)
            found.append(cases.assign(floor=_floors(mine, same_release, POINT), kind=kinds))
    return _as_cases(found)


def _size_names(first: np.ndarray, second: np.ndarray) -> pd.Series:
    return pd.Series(first.astype(np.int64).astype(str)) + "x" + pd.Series(second.astype(np.int64).astype(str))


def _kinds(rows: pd.DataFrame, prints, name: pd.Series, names, at: np.ndarray, axis) -> np.ndarray:
    """Whether each row is in the fit: its time is in its cell of the table, whatever file it came in through."""
    row, column = (pd.Index(cells).get_indexer(wanted) for cells, wanted in ((list(names), name), (axis, at)))
    return np.where(in_fit(prints, row, column, np.log(rows["latency_us_median"].to_numpy(float))), FITTED, NEW)


def _of_release(rows: pd.DataFrame, names: list[str], key: tuple, table: GemmTable | MoeTable) -> pd.DataFrame:
    """Rows of all sweeps of a release; of other versions only those that the fit pooled, if it includes this one.
    ``key``: columns of ``names``, then the version.
    """
    same = rows["library_version"].map(release) == release(key[-1])
    for name, value in zip(names, key, strict=False):
        same &= rows[name] == value
    own, fitted = rows["library_version"] == key[-1], _sweeps(rows).isin(_fitted_sweeps(table))
    return rows[same & (own | fitted) if (same & own & fitted).any() else same]


def _sweeps(rows: pd.DataFrame) -> pd.Series:
    return rows["library_version"] + "/" + rows["run_id"]


def _fitted_sweeps(table: GemmTable | MoeTable) -> set[str]:
    return {name for sweep in table.sweeps for name in sweep.split(SAME)}


def _floors(mine: pd.DataFrame, same_release: pd.DataFrame, point: list[str]) -> np.ndarray:
    """Distance of each row from the median of the other sweeps of its release; nan if there is none."""
    sweeps = table_of_sweeps(same_release, point, "latency_us_median")
    logs = np.log(mine["latency_us_median"].to_numpy(float))
    at = sweeps.reindex(pd.MultiIndex.from_frame(mine[point])).to_numpy(copy=True)
    at[np.isclose(at, logs[:, None], rtol=0, atol=1e-12)] = np.nan
    known = ~np.isnan(at).all(axis=1)
    floors = np.full(len(mine), np.nan)
    floors[known] = np.abs(np.expm1(logs[known] - np.nanmedian(at[known], axis=1)))
    return floors


def _gemm_pools(measurements: Measurements, gpu: str) -> Iterator[tuple[dict, pd.DataFrame]]:
    for key, mine in measurements.table("gemm", gpu).groupby(choosing.GEMM_KEYS, sort=True):
        library, dtype, included, groups = key
        for version, sweeps in pools(mine, POINT, "latency_us_median"):
            quantisation = "included" if included == "1" else "apart"
            yield (
                {
                    "dtype": dtype,
                    "quantisation": quantisation,
                    "groups": int(groups),
                    "sms": fit.sms_of(gpu),
                    "who": {"library": library, "version": version, "source": "cross-validation"},
                },
                sweeps,
            )


def sweep_out_cases(measurements: Measurements, gpu: str) -> pd.DataFrame:
    """Each sweep of a release, judged by a table fitted to the other sweeps only, at shapes that those have."""
    found = []
    for how, sweeps in _gemm_pools(measurements, gpu):
        for name in sweeps.columns if sweeps.shape[1] > 1 else ():
            rest = sweeps.drop(columns=name).dropna(how="all")
            shapes = set(zip(*_sizes(rest)[:2], strict=True))
            judged = sweeps[name].dropna()
            judged = judged[[(n, k) in shapes for n, k, _ in judged.index]]
            if len(judged):
                floor = off_the_others(sweeps)[name].abs().reindex(judged.index)
                found.append(_predict(SWEEP_OUT, fit_table(rest, **how), judged, how, name, floor))
    return _as_cases(found)


def shape_out_cases(measurements: Measurements, gpu: str, folds: int = SHAPE_FOLDS) -> pd.DataFrame:
    """Shapes beside a table fitted without them, in ``folds`` folds (with few shapes at most FOLDS_OF_FEW). Tables of
    fewer than LEAST_SHAPES shapes are skipped.
    """
    found = []
    for how, sweeps in _gemm_pools(measurements, gpu):
        shapes = sorted(set(zip(*_sizes(sweeps)[:2], strict=True)))
        parts = folds if len(shapes) >= FEW_SHAPES else min(len(shapes), FOLDS_OF_FEW)
        fold_of = {shape: at % parts for at, shape in enumerate(shapes)}
        part = np.array([fold_of[n, k] for n, k, _ in sweeps.index])
        for fold in range(parts) if len(shapes) >= LEAST_SHAPES else ():
            table = fit_table(sweeps[part != fold], **how)
            judged = consensus(sweeps[part == fold])
            spread = repeatability(sweeps[part == fold]).reindex(judged.index)
            found.append(_predict(SHAPE_OUT, table, judged, how, "all", spread))
    return _as_cases(found)


def _predict(kind, table: GemmTable, judged: pd.Series, how: dict, sweep: str, floor) -> pd.DataFrame:
    n, k, m = _sizes(judged)
    measured = np.exp(judged.to_numpy())
    predicted = gemm.table_times(table, n, k, m, how["sms"]) / NS_PER_US
    return pd.DataFrame(
        {
            "kind": kind,
            "source": choosing.GEMM,
            "library": table.library,
            "version": table.version,
            "dtype": table.dtype,
            "sweep": sweep,
            "groups": table.groups,
            "n": n,
            "k": k,
            "m": m,
            "measured": measured,
            "predicted": predicted,
            "error": predicted / measured - 1,
            "floor": np.asarray(floor, float),
            "table": choosing.name_of(table),
            "extrapolated": gemm.outside(table, n, k, m),
        }
    )


def _cases(rows: pd.DataFrame, predicted: np.ndarray) -> pd.DataFrame:
    measured = rows["latency_us_median"].to_numpy(float)
    names = {"library": "library", "library_version": "version", "dtype": "dtype", "run_id": "sweep"}
    cases = rows[list(names)].rename(columns=names).assign(source=choosing.GEMM)
    cases = cases.assign(**{name: rows[name].astype(np.int64) for name in ("groups", *POINT)})
    return cases.assign(measured=measured, predicted=predicted, error=predicted / measured - 1)


def moe_cases(calibration: CalibrationSpec, measurements: Measurements) -> pd.DataFrame:
    """Every MoE row beside the calibration file's table of its model, library, release, dtype and distribution."""
    found = []
    rows = measurements.table("moe", calibration.gpu)
    rows = moe.with_defaults(rows)
    for key, mine in choosing.moe_groups(measurements, calibration.gpu):
        table = choosing.moe_table_for(calibration, *key)
        if table is not None:
            floor = _floors(
                mine, _of_release(rows, choosing.MOE_NAMES[:-1], key[: len(choosing.MOE_NAMES)], table), RANK_POINT
            )
            found.append(_moe_predicted(table, mine).assign(floor=floor))
    return _as_cases(found)


def _moe_predicted(table: MoeTable, rows: pd.DataFrame) -> pd.DataFrame:
    points = ep, tp, tokens = [rows[name].to_numpy(float) for name in RANK_POINT]
    predicted = moe_ns(table, *points) / NS_PER_US
    measured = rows["latency_us_median"].to_numpy(float)
    names = {"library": "library", "library_version": "version", "run_id": "sweep"}
    cases = rows[[*names, "model", "dtype", "distribution", EPLB, *RANK_POINT]].rename(columns=names)
    return cases.assign(
        kind=_kinds(rows, table.prints, _size_names(ep, tp), table.ranks, tokens, table.tokens), source=choosing.MOE,
        measured=measured, predicted=predicted, error=predicted / measured - 1, table=choosing.name_of(table),
        extrapolated=outside_ranks(table, *points),
    )  # fmt: skip


def rank_out_cases(measurements: Measurements, gpu: str) -> pd.DataFrame:
    """Fused MoE layers of each EP size, judged by a table fitted without that size."""
    found = []
    for named, sweeps in moe.moe_pools(measurements.table("moe", gpu)):
        off = moe.left_out_errors(sweeps, named)
        if len(off):
            measured = np.exp(consensus(sweeps).reindex(off.index))
            cases = off.assign(measured=measured).reset_index()
            who = {name: named[name] for name in choosing.MOE_NAMES} | {
                "table": f"{named['library']} {named['version']}"
            }
            found.append(cases.assign(kind=RANK_OUT, source=choosing.MOE, sweep="all", **who))
    cases = _as_cases(found)
    return cases.assign(predicted=(1 + cases["error"]) * cases["measured"]) if len(cases) else cases


def _sizes(indexed) -> tuple[np.ndarray, ...]:
    return tuple(indexed.index.get_level_values(name).to_numpy(np.int64) for name in POINT)


def _as_cases(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """With the columns of a case, and ``law`` and ``of``, by which those that the file predicts are summed up."""
    cases = join_frames(frames)
    if not len(cases):
        return cases
    if "n" in cases:
        shapes = pd.Series(zip(cases["n"], cases["k"], strict=True), index=cases.index)
        what = "m " + cases["m"].astype(str) + ", " + cases["n"].astype(str) + " x " + cases["k"].astype(str)
        law = shapes.isin(list(SHAPES_OF_EXPERTS)).map({True: "expert GEMM", False: "dense GEMM"})
    else:
        what = cases["model"] + ", EP " + cases["ep"].astype(str) + ", tokens " + cases["tokens_total"].astype(str)
        law = pd.Series(choosing.MOE, index=cases.index)
    group = cases["kind"] + ", " + cases["library"] + " " + cases["version"] + " " + cases["dtype"]
    return cases.assign(
        group=group, what=what, unit="us", seen=cases["kind"] == FITTED, of=cases["dtype"],
        law=law.where(cases["kind"].isin([FITTED, NEW]), None),
    )  # fmt: skip


def expert_cases(cases: pd.DataFrame) -> pd.DataFrame:
    """Cases of the nine expert shapes at M = 1, 2 ... 4096, with a column ``model``."""
    model = [SHAPES_OF_EXPERTS.get(shape) for shape in zip(cases["n"], cases["k"], strict=True)] if len(cases) else []
    cases = cases.assign(model=pd.Series(model, index=cases.index, dtype=object))
    return cases[cases["model"].notna() & cases["m"].isin(POWERS_OF_TWO)] if len(cases) else cases


# Target mean errors: for the model most decisions rely on, and for any model. Names are compared in lower case.
AIM_OF = {"DeepSeek-V3": 0.04}
AIM = 0.06
GROUP = ["library", "dtype", "distribution", "model", "version", "kernel", "eplb_slots"]


def layer_groups(cases: pd.DataFrame) -> pd.DataFrame:
    """A row a group of GROUP, ``aim`` and ``met`` ('yes', 'no', or 'floor': missed, but within the spread of
    repetitions or routing draws).
    """
    if not len(cases) or not set(choosing.MOE_NAMES) <= set(cases):
        return pd.DataFrame()
    cases = cases[cases["kind"] == RANK_OUT]
    found = errors(cases.assign(model=_one_name_each(cases["model"])), GROUP)
    if not len(found):
        return found
    found["aim"] = found["model"].map(AIM_OF).fillna(AIM)
    found["met"] = [_met(row) for row in found.to_dict("records")]
    return found


def _one_name_each(models: pd.Series) -> pd.Series:
    """One name for models whose names differ only in case: that of AIM_OF, else the first in alphabetical order."""
    shown = {name.lower(): name for name in [*sorted(models.unique(), reverse=True), *AIM_OF]}
    return models.map(lambda name: shown[name.lower()])


def _met(row: dict) -> str:
    if row["mean"] <= row["aim"]:
        return "yes"
    return "floor" if row["mean"] <= row["floor"] else "no"
