"""How far measured times of a cell (engine, kind of model, GPU, dtype) are from simulated ones, for configs/serving."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from archsim.iteration.constants import ANY
from measured_serving.accuracy import SYSTEMS, Point, case_dtype

SHRINK_GROUPS = 4.0  # groups as which those of the whole engine count in a cell, and of all engines in an engine's
QUANTILE = 1.2816  # standard deviations within which 80 % of a normal distribution lie


def residual_rows(points: Iterable[Point], pools: bool = False) -> Iterator[str]:
    """Of points judged by constants of other groups: a row a cell, and one for each engine, whose dtype is ``any``.
    ``pools``: of engines that do one of both, of which rows say so, and cells are too few; a few of their TTFT are far
    off, so that ranges are quantiles.
    """
    chosen = list(points)
    whole = _moments(chosen)
    by_engine: dict[tuple[str, bool], list[Point]] = {}
    for point in chosen:
        by_engine.setdefault((point.row["backend"], bool(point.row["is_moe"])), []).append(point)
    for (engine, moe), mine in sorted(by_engine.items()):
        of_engine = _shrunk(mine, whole)
        if pools:
            yield _sentence(engine, moe, ANY, ANY, mine, of_engine, _middle(mine, chosen))
            continue
        yield _sentence(engine, moe, ANY, ANY, mine, of_engine)
        by_cell: dict[tuple[str, str], list[Point]] = {}
        for point in mine:
            by_cell.setdefault((SYSTEMS[point.row["system"]][0], case_dtype(point.row)), []).append(point)
        for (gpu, dtype), here in sorted(by_cell.items()):
            yield _sentence(engine, moe, gpu, dtype, here, _shrunk(here, of_engine))


def _moments(points: Sequence[Point]) -> np.ndarray:
    """float64[2, 2]: mean and mean square of ln (measured / simulated), of TTFT and of TPOT; groups count the same."""
    groups = [point.row["group"] for point in points]
    weights = np.array([1 / groups.count(group) for group in groups])
    off = -np.log1p([point.errors for point in points])
    return np.stack([np.average(off, axis=0, weights=weights), np.average(off**2, axis=0, weights=weights)])


def _shrunk(points: Sequence[Point], towards: np.ndarray) -> np.ndarray:
    count = len({point.row["group"] for point in points})
    return (count * _moments(points) + SHRINK_GROUPS * towards) / (count + SHRINK_GROUPS)


def _middle(points: Sequence[Point], all_points: Sequence[Point]) -> np.ndarray:
    """float64[2]: TTFT over the simulated one between which 80 % lie, groups alike, those of other engines as
    SHRINK_GROUPS together.
    """
    groups = [point.row["group"] for point in all_points]
    own = np.array([point in points for point in all_points])
    weights = np.array([1 / groups.count(group) for group in groups])
    weights[~own] *= SHRINK_GROUPS / max(weights[~own].sum(), 1e-9)
    off = -np.log1p([point.errors[0] for point in all_points])
    order = np.argsort(off)
    below = np.cumsum(weights[order]) - weights[order] / 2
    return np.exp(np.interp(np.array([0.1, 0.9]) * weights.sum(), below, off[order]))


def _sentence(
    engine: str, moe: bool, gpu: str, dtype: str, points: Sequence[Point], moments: np.ndarray,
    pools_ttft: np.ndarray | None = None,
) -> str:  # fmt: skip
    pools, mean, spread = pools_ttft is not None, moments[0], np.sqrt(np.maximum(moments[1] - moments[0] ** 2, 0))
    ranges = [np.exp(mean[at] + QUANTILE * spread[at] * np.array([-1, 1])) for at in (0, 1)]
    ranges[0] = ranges[0] if pools_ttft is None else pools_ttft
    ttft, tpot = (f"[{low:.2f}, {high:.2f}]" for low, high in ranges)
    groups = len({point.row["group"] for point in points})
    return (
        f"{{engine: {engine}, experts: {str(moe).lower()}, gpu: {gpu}, dtype: {dtype}, groups: {groups}, "
        f"ttft: {ttft}, tpot: {tpot}{', pools: true' if pools else ''}}}"
    )
