"""One section of error for every law that an iteration uses, and the measured tables that no law reads."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from archsim.laws.collective import PAYLOAD_OF
from archsim.laws.piecewise import law_of
from archsim.laws.tables import CalibrationSpec
from archsim.studies.validation import choosing
from archsim.studies.validation.attention_cases import attention_errors, attention_groups
from archsim.studies.validation.cluster_cases import moved
from archsim.studies.validation.errors import FITTED, NEW, SHAPES_OF_EXPERTS
from calibration.measurements.adapters.not_fitted import NO_TIMES
from calibration.measurements.reading import Measurements

WITHIN = 0.25
COLUMNS = ["law", "what", "library", "points", "median", "p90", "worst", "within_25"]


class Judged(NamedTuple):
    """Points of one law. ``error``: predicted / measured - 1, float64[point]; None: no law reads them."""

    law: str
    what: str
    library: str
    points: int
    error: np.ndarray | None


def judged(calibration: CalibrationSpec, name: str, measurements: Measurements, cases: pd.DataFrame) -> list[Judged]:
    """Everything measured on the calibration's GPU. ``cases``: of products and fused layers
    (``archsim.studies.validation.errors``), of which those of the file count.
    """
    return [
        *_products(calibration, measurements, cases), *_attention(calibration, measurements),
        *_moved(name, measurements, calibration.gpu), *_series(calibration, name, measurements),
    ]


def sections(found: list[Judged]) -> pd.DataFrame:
    """A row a law, kind and library: number of points, median, p90 and worst of \\|error\\|, share within 25 %."""
    rows = []
    ordered = sorted((each for each in found if each.error is not None), key=lambda each: each[:3])
    for key in dict.fromkeys(each[:3] for each in ordered):
        errors = np.abs(np.concatenate([each.error for each in ordered if each[:3] == key]))
        if len(errors):
            figures = np.median(errors), np.quantile(errors, 0.9), errors.max(), np.mean(errors <= WITHIN)
            rows.append([*key, len(errors), *map(float, figures)])
    return pd.DataFrame(rows, columns=COLUMNS)


def unread(found: list[Judged], measurements: Measurements) -> list[str]:
    """A sentence for every measured table that no law reads, and for every file of times that is not read."""
    lines = [f"{each.law} {each.what} of {each.library} ({each.points} points)" for each in found if each.error is None]
    return [*dict.fromkeys(lines), *(f"{file}: {why}" for file, why in measurements.skipped.items() if why != NO_TIMES)]


def section_table(found: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    names = ["law", "what", "library", "points", "median", "90 %", "worst", "within 25 %"]
    rows = [
        [row.law, row.what, row.library, f"{row.points:,}"]
        + [f"{100 * share:.1f} %" for share in (row.median, row.p90, row.worst, row.within_25)]
        for row in found.itertuples()
    ]
    return names, rows


def _products(calibration, measurements, cases) -> Iterator[Judged]:
    of_file = cases[cases["kind"].isin([FITTED, NEW])] if len(cases) else cases
    if len(of_file):
        shapes = of_file.reindex(columns=["n", "k"]).itertuples(index=False, name=None)
        experts = [pair in SHAPES_OF_EXPERTS for pair in shapes]
        shape = np.where(of_file["what"] == choosing.MOE, "fused MoE", np.where(experts, "expert GEMM", "dense GEMM"))
        for (law, dtype, library), mine in of_file.groupby([shape, "dtype", "library"], sort=True):
            yield Judged(law, dtype, library, len(mine), mine["error"].to_numpy(float))
    gpu = calibration.gpu
    for key, rows in choosing.gemm_groups(measurements, gpu):
        if choosing.gemm_table_for(calibration, *key) is None:
            of = dict(zip([*choosing.GEMM_KEYS, "version"], key, strict=True))
            yield Judged("GEMM", of["dtype"], f"{of['library']} {of['version']}", len(rows), None)
    for key, rows in choosing.moe_groups(measurements, gpu):
        if choosing.moe_table_for(calibration, *key) is None:
            of = dict(zip(choosing.MOE_KEYS, key, strict=True))
            what = f"{of['model']} {of['dtype']} {of['distribution']}"
            yield Judged("fused MoE", what, f"{of['library']} {of['version']}", len(rows), None)


def _attention(calibration, measurements) -> Iterator[Judged]:
    for way, rows in attention_groups(measurements, calibration.gpu):
        library, version, phase, kind, dtype, kv_dtype = way
        error = attention_errors(calibration, way, rows)
        what = f"{kind} {dtype}, {kv_dtype} KV"
        yield Judged(f"{phase} attention", what, _named(library, version, error), len(rows), error)


def _moved(name: str, measurements: Measurements, gpu: str) -> Iterator[Judged]:
    for each in moved(name, measurements, gpu):
        of = each.of
        where = f"{of['nodes']} nodes" if int(of["nodes"]) > 1 else f"{of['num_gpus']} GPUs"
        yield Judged(str(of["op"]), f"{of['variant']}, {where}", str(of["library"]), len(each.us), each.error)


def _series(calibration, name, measurements) -> Iterator[Judged]:
    """Collectives, copies, the host path and curves of memory, each by its own table; dispatch and combine of SMs and
    payloads that an engine does not take, too.
    """
    taken = {(each.of["op"], each.of["variant"]) for each in moved(name, measurements, calibration.gpu)}
    for item in choosing.all_series(measurements, calibration.gpu):
        of, table = item.of, choosing.law_for(calibration, item)
        if (of.get("op"), of.get("variant")) in taken and table is None:
            continue
        error = None if table is None else law_of(table).time_ns(item.size_bytes) / item.time_ns - 1
        law = f"{of['op']}, own table" if of.get("op") in PAYLOAD_OF else of.get("op", item.kind)
        where = of.get("variant") or of.get("direction") or ""
        what = " ".join(filter(None, [where, f"{of['num_gpus']} GPUs" if "num_gpus" in of else ""]))
        yield Judged(law, what, _named(item.library, item.version, error), len(item.time_ns), error)


def _named(library: str, version: str, error: np.ndarray | None) -> str:
    """Versions are pooled where they are judged."""
    return library if error is not None else f"{library} {version}"
