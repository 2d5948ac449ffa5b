"""How far simulated serving is from results of users and public benchmarks. A point is one measured run with mean (else
median) TTFT and TPOT, on the deployment of its row (InferenceX) or of a file. Constants of the host were fitted on some
of the public points; docs/accuracy.md has errors by cross-validation.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from archsim.base import files, tables
from archsim.base.case import Case, errors, frame_of
from archsim.base.errors import ArchsimError, TraceError
from archsim.evidence.page import Evidence, EvidenceTable
from archsim.evidence.serving.inferencex_rows import MODELS, SYSTEMS
from archsim.evidence.serving.load_results import read_served
from archsim.evidence.serving.measured_points import DISAGGREGATED, MeasuredPoint
from archsim.evidence.serving.measured_run import number_of, requests_measured
from archsim.runs.executor import do_all
from archsim.serving.outcome import measured_residual
from archsim.serving.serving import deploy, serve_requests
from archsim.specs.library import Source
from archsim.specs.serving_files import Serving, load_serving

if TYPE_CHECKING:
    import pandas


class JudgedPoint(NamedTuple):
    """A point beside simulation, ms and tokens/s. ``ranges``: of measured means of TTFT and TPOT as pages print them,
    or None; ``refused``: why it was not simulated, or ''.
    """

    point: MeasuredPoint
    ttft: float | None = None
    tpot: float | None = None
    output_per_s: float | None = None
    ranges: tuple[tuple[float, float], tuple[float, float]] | None = None
    refused: str = ""

    def error(self, name: str) -> float | None:
        """Simulated over measured, less one; None where either is unknown."""
        ours, theirs = getattr(self, name), getattr(self.point, name)
        return ours / theirs - 1 if ours is not None and theirs else None

    def within(self, name: str) -> bool | None:
        """Whether the measured mean lies in the printed range."""
        theirs = getattr(self.point, name)
        if self.ranges is None or theirs is None or not self.point.mean:
            return None
        low, high = self.ranges[0 if name == "ttft" else 1]
        return low <= theirs <= high


def simulated_point(point: MeasuredPoint) -> JudgedPoint:
    if point.given is None:
        return JudgedPoint(point, refused=point.refused)
    try:
        serving = load_serving(point.given)
        requests = requests_measured(serving, point.lists)
        found = serve_requests(serving, deploy(serving), requests).measures
    except ArchsimError as error:
        return JudgedPoint(point, refused=str(error))
    pick = (lambda each: each.mean) if point.mean else (lambda each: each.percentiles[0])
    ttft, tpot = (None if pick(each) != pick(each) else pick(each) for each in (found.ttft, found.tpot))
    return JudgedPoint(point, ttft, tpot, found.output_tokens_per_s, _ranges(serving, ttft, tpot))


def _ranges(
    serving: Serving, ttft: float | None, tpot: float | None
) -> tuple[tuple[float, float], tuple[float, float]] | None:
    found = measured_residual(serving)
    if found is None or serving.spec.host is not None or ttft is None or tpot is None:
        return None
    return (found.ttft[0] * ttft, found.ttft[1] * ttft), (found.tpot[0] * tpot, found.tpot[1] * tpot)


KEYS = ("engine", "gpu", "model", "precision")
TIMES = ("tpot", "ttft", "output_per_s")
ALL = "all"
WORSE_POINTS, WORSE_SHARE = 0.02, 0.10  # by both of which a cell's median error has to grow to have worsened
FAR, MOST_FAR = 0.25, 5  # error of TPOT of points that are named, and of how many


class AccuracyCell(NamedTuple):
    """``errors``, ``biases``: medians of absolute and of signed errors, of TIMES; None: not measured. ``hits``: share
    of means in the printed 80 % range, of TTFT and TPOT together; None: no range.
    """

    key: tuple[str, ...]
    points: int
    errors: tuple[float | None, ...]
    biases: tuple[float | None, ...]
    hits: float | None


def cells_of(judged: Iterable[JudgedPoint]) -> list[AccuracyCell]:
    """The cells by engine, GPU, model and precision, then those by engine. The last cell is that of all points."""
    found = [each for each in judged if not each.refused]
    groups: dict[tuple[str, ...], list[JudgedPoint]] = {}
    for each in found:
        groups.setdefault(tuple(str(getattr(each.point, key)) for key in KEYS), []).append(each)
    cells = [_cell(key, mine) for key, mine in sorted(groups.items())]
    engines = sorted({each.point.engine for each in found})
    if len(groups) > 1:
        cells += [_cell((name, ALL, ALL, ALL), [each for each in found if each.point.engine == name])
                  for name in engines]  # fmt: skip
        apart = [each for each in found if each.point.engine.endswith(DISAGGREGATED)]
        if 0 < len(apart) < len(found):
            cells.append(_cell((f"{ALL}, {DISAGGREGATED}", ALL, ALL, ALL), apart))
        cells.append(_cell((ALL,) * len(KEYS), found))
    return cells


def _cell(key: tuple[str, ...], mine: Sequence[JudgedPoint]) -> AccuracyCell:
    cases = cases_of(mine)
    found = errors(cases, ["what"]).set_index("what")
    medians, biases = (
        tuple(float(found[column][name]) if name in found.index else None for name in TIMES)
        for column in ("median", "bias")
    )
    hits = errors(cases[cases["low"].notna()], ["source"])["in_range"]
    return AccuracyCell(key, len(mine), medians, biases, float(hits[0]) if len(hits) else None)


COLUMNS = {
    **dict.fromkeys(KEYS, tables.TEXT), "points": tables.INTEGER, **dict.fromkeys(TIMES, tables.REAL),
    **{f"{name}_bias": tables.REAL for name in TIMES}, "hits": tables.REAL,
}  # fmt: skip


def table_of(cells: Sequence[AccuracyCell]) -> tables.Table:
    """A row a cell; shares of 1."""
    rows = []
    for cell in cells:
        row: dict[str, Any] = dict(zip(KEYS, cell.key, strict=True)) | {"points": cell.points}
        row |= dict(zip(TIMES, cell.errors, strict=True))
        row |= {f"{name}_bias": bias for name, bias in zip(TIMES, cell.biases, strict=True)}
        rows.append(row | {"hits": cell.hits})
    return tables.Table(dict(COLUMNS), tuple(rows))


def worse(before: Path, now: Sequence[AccuracyCell]) -> list[str]:
    """Cells whose median error grew by over 2 points and by over 10 % of it against a table of this command, in words.
    Raises TraceError for a file that is no such table.
    """
    with before.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    known = {}
    for row in rows:
        try:
            known[_key_of(row)] = row
        except KeyError as error:
            command = "`archsim validate --served --page`"
            raise TraceError(f"{before}: is no table of {command}: it lacks {error}") from None
    if now and not {cell.key for cell in now} & set(known):
        text = ", ".join(now[0].key)
        raise TraceError(f"{before}: has none of these cells, such as {text}: nothing could be compared with it")
    found: list[str] = []
    for cell in now:
        row = known.get(cell.key, {})
        for name, off in zip(TIMES, cell.errors, strict=True):
            then = number_of(row, name)
            if then is None or off is None:
                continue
            if off - then > WORSE_POINTS and off > (1 + WORSE_SHARE) * then:
                found.append(f"{', '.join(cell.key)}: {name.upper()} {then:.1%} before, {off:.1%} now")
    return found


def _key_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Of a row of such a table, or of docs/accuracy.csv, which has labels of systems and models. Raises KeyError."""
    if "engine" in row:
        return tuple(str(row[key]) for key in KEYS)
    engine, system, model = (str(row[key]) for key in ("backend", "system", "model"))
    if model == DISAGGREGATED:  # all of its points
        return f"{ALL}, {DISAGGREGATED}", ALL, ALL, ALL
    gpu, _ = SYSTEMS.get(system.split("-")[0], (system, ""))
    return engine, gpu, MODELS.get(model, model), str(row["precision"])


@dataclass(frozen=True, eq=False)
class ServedAccuracy(tables.Shown):
    """``read_as``: each file, as what; ``worsened``: cells, in words, where there is a table to compare with."""

    judged: tuple[JudgedPoint, ...]
    read_as: tuple[str, ...]
    worsened: tuple[str, ...] = ()

    @property
    def cells(self) -> list[AccuracyCell]:
        return cells_of(self.judged)

    @property
    def evidence(self) -> Evidence:
        """As every source is shown."""
        cases = cases_of(self.judged)
        names = ("engine, GPU, model, precision", "points", "TPOT %", "TTFT %", "tokens/s %", "in range")
        cells = [cell_texts(cell) for cell in self.cells]
        table = EvidenceTable("Medians of absolute errors, in percent, with their sign in brackets", names, cells, 1)
        left = (f"{count} point{'s were' if count > 1 else ' was'} not simulated: {why}"
                for why, count in sorted(self.refused.items()))  # fmt: skip
        return Evidence(
            "How far simulated serving is off", (summary(self), *_far_points(self)), cases,
            errors(cases, ["source", "group", "what"]), (table,) if cells else (), self.read_as, tuple(left),
        )  # fmt: skip

    @property
    def refused(self) -> dict[str, int]:
        """Why points were not simulated → how many."""
        found: dict[str, int] = {}
        for each in self.judged:
            if each.refused:
                found[each.refused] = found.get(each.refused, 0) + 1
        return found

    def __repr__(self) -> str:
        return f"ServedAccuracy({summary(self)})"

    def to_pandas(self) -> pandas.DataFrame:
        import pandas

        return pandas.DataFrame([row_of(each) for each in self.judged])


def row_of(each: JudgedPoint) -> dict[str, Any]:
    """A point in words and numbers."""
    point = each.point
    row: dict[str, Any] = {"where": point.where, **{key: getattr(point, key) for key in KEYS}}
    for name in ("ttft", "tpot", "output_per_s"):
        row |= {
            f"{name}_measured": getattr(point, name), f"{name}_simulated": getattr(each, name),
            f"{name}_error": each.error(name),
        }  # fmt: skip
    return row | {"refused": each.refused}


def summary(found: ServedAccuracy) -> str:
    """One sentence."""
    simulated = [each for each in found.judged if not each.refused]
    if not simulated:
        why = next(iter(found.refused), "there are none")
        return f"none of {len(found.judged)} measured points could be simulated: {why}"
    cell = _cell((ALL,) * len(KEYS), simulated)
    names = ("the time per output token", "the time to first token", "the output tokens per second")
    said = [
        f"{what} by {error:.1%} ({bias:+.1%})"
        for what, error, bias in zip(names, cell.errors, cell.biases, strict=True) if error is not None
    ]  # fmt: skip
    hits = "" if cell.hits is None else f"; {cell.hits:.0%} of the measured means lie in the printed 80 % ranges"
    return (
        f"Of {len(simulated)} of {len(found.judged)} measured points the simulation misses {', '.join(said)} in the "
        f"median (with sign){hits}."
    )


def validate_served(
    paths: Sequence[Path],
    deployment: Source | None = None,
    *,
    name: str | None = None,
    unit: str | None = None,
    most_clients: int | None = None,
    against: Path | None = None,
    jobs: int = 1,
    report: Callable[[str], None] = lambda text: None,
) -> ServedAccuracy:
    """Read, simulate and compare all points; ``most_clients``: leave out closed loops of more. Raises TraceError and
    SpecError for files that cannot be read.
    """
    read = [read_served(path, deployment, name, unit) for path in paths]
    points = [
        each for one in read for each in one.points
        if most_clients is None or each.given is None or each.given["requests"].get("concurrency", 0) <= most_clients
    ]  # fmt: skip
    found: dict[int, JudgedPoint] = {}
    if points:
        found[0] = simulated_point(points[0])  # here, so that processes begin with compiled functions
    for at, judged in do_all(lambda at: simulated_point(points[at]), range(1, len(points)), jobs):
        found[at] = judged
        report(f"{len(found)} of {len(points)} measured points simulated")
    judged_points = tuple(found[at] for at in range(len(points)))
    worsened = worse(against, cells_of(judged_points)) if against else []
    return ServedAccuracy(judged_points, tuple(each.read_as for each in read), tuple(worsened))


def cell_texts(cell: AccuracyCell) -> list[str]:
    """``vllm h200 …``, points, and errors with their biases."""
    times = [
        "–" if error is None or bias is None else f"{100 * error:.1f} ({100 * bias:+.1f})"
        for error, bias in zip(cell.errors, cell.biases, strict=True)
    ]
    hits = "–" if cell.hits is None else f"{cell.hits:.0%}"
    return [" ".join(dict.fromkeys(cell.key)), str(cell.points), *times, hits]


def write_page(found: ServedAccuracy, path: Path) -> None:
    """The page, and beside it the table of its cells (``.csv``), with which a later run is compared."""
    files.write_text(path, found.evidence.markdown())
    table_of(found.cells).write_csv(path.with_suffix(".csv"))


def _far_points(found: ServedAccuracy) -> Iterator[str]:
    off = [(abs(error), at, error) for at, each in enumerate(found.judged) if (error := each.error("tpot")) is not None]
    for size, at, error in sorted(off, reverse=True)[:MOST_FAR]:
        each = found.judged[at]
        if size > FAR:
            times = f"{each.point.tpot:,.2f} ms measured, {each.tpot:,.2f} simulated"
            yield f"{each.point.where}: TPOT {times} ({error:+.0%})"


def cases_of(judged: Iterable[JudgedPoint]) -> pandas.DataFrame:
    """A row for each time of a point with `KEYS` and ``where``; none is unseen, as constants were fitted on some."""
    found, own = [], []
    for each in judged:
        for name, unit in zip(TIMES, ("ms", "ms", "tokens/s"), strict=True):
            ours, theirs = getattr(each, name), getattr(each.point, name)
            if ours is not None and theirs:
                known = each.within(name) is not None if name != "output_per_s" else False
                low, high = each.ranges[name == "tpot"] if known and each.ranges else (nan, nan)
                key = [str(getattr(each.point, part)) for part in KEYS]
                found.append(Case("serving", " ".join(key), name, unit, theirs, ours, None, low, high))
                own.append((*key, each.point.where))
    return frame_of(found, **dict(zip((*KEYS, "where"), zip(*own, strict=True), strict=True)) if own else {})
