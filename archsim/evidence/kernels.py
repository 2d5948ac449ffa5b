"""One section of error for every law that an iteration uses, and the measured tables that no law reads."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from archsim.evidence import choosing
from archsim.evidence.cluster_cases import transfer_cases
from archsim.evidence.products import FITTED, NEW, SHAPES_OF_EXPERTS
from archsim.laws import attention, tables, transfers
from calibration.measurements import reading, sweeps
from calibration.measurements.adapters.not_fitted import NO_TIMES

WITHIN = 0.25
COLUMNS = ["law", "what", "library", "points", "median", "p90", "worst", "within_25"]


class LawPoints(NamedTuple):
    """Points of one law."""

    law: str  # name
    what: str  # was measured: dtype, kind, sizes
    library: str  # and its version, where versions are not pooled
    points: int  # how many
    error: np.ndarray | None  # float64[point]: predicted / measured - 1; None: no law reads them


def judge_tables(
    calibration: tables.CalibrationSpec, name: str, measurements: reading.Measurements, cases: pd.DataFrame
) -> list[LawPoints]:
    """Everything measured on the calibration's GPU. ``cases``: of products and fused layers
    (``archsim.evidence.products``), of which those of the file count.
    """
    return [
        *_products(calibration, measurements, cases),
        *_attention(calibration, measurements),
        *_transfer_points(name, measurements, calibration.gpu),
        *_series(calibration, name, measurements),
    ]


def sections(found: list[LawPoints]) -> pd.DataFrame:
    """A row a law, kind and library: number of points, median, p90 and worst of \\|error\\|, share within 25 %."""
    rows = []
    ordered = sorted((each for each in found if each.error is not None), key=lambda each: each[:3])
    for key in dict.fromkeys(each[:3] for each in ordered):
        errors = np.abs(np.concatenate([each.error for each in ordered if each[:3] == key]))
        if len(errors):
            figures = np.median(errors), np.quantile(errors, 0.9), errors.max(), np.mean(errors <= WITHIN)
            rows.append([*key, len(errors), *map(float, figures)])
    return pd.DataFrame(rows, columns=COLUMNS)


def unread(found: list[LawPoints], measurements: reading.Measurements) -> list[str]:
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


def _products(calibration, measurements, cases) -> Iterator[LawPoints]:
    of_file = cases[cases["kind"].isin([FITTED, NEW])] if len(cases) else cases
    if len(of_file):
        shapes = of_file.reindex(columns=["n", "k"]).itertuples(index=False, name=None)
        experts = [pair in SHAPES_OF_EXPERTS for pair in shapes]
        shape = np.where(of_file["what"] == choosing.MOE, "fused MoE", np.where(experts, "expert GEMM", "dense GEMM"))
        for (law, dtype, library), mine in of_file.groupby([shape, "dtype", "library"], sort=True):
            yield LawPoints(law, dtype, library, len(mine), mine["error"].to_numpy(float))
    gpu = calibration.gpu
    for key, rows in choosing.gemm_groups(measurements, gpu):
        if choosing.gemm_table_for(calibration, *key) is None:
            of = dict(zip([*choosing.GEMM_KEYS, "version"], key, strict=True))
            yield LawPoints("GEMM", of["dtype"], f"{of['library']} {of['version']}", len(rows), None)
    for key, rows in choosing.moe_groups(measurements, gpu):
        if choosing.moe_table_for(calibration, *key) is None:
            of = dict(zip(choosing.MOE_KEYS, key, strict=True))
            what = f"{of['model']} {of['dtype']} {of['distribution']}"
            yield LawPoints("fused MoE", what, f"{of['library']} {of['version']}", len(rows), None)


def _attention(calibration, measurements) -> Iterator[LawPoints]:
    for way, rows in attention_groups(measurements, calibration.gpu):
        library, version, phase, kind, dtype, kv_dtype = way
        error = attention_errors(calibration, way, rows)
        what = f"{kind} {dtype}, {kv_dtype} KV"
        yield LawPoints(f"{phase} attention", what, _named_section(library, version, error), len(rows), error)


def _transfer_points(name: str, measurements: reading.Measurements, gpu: str) -> Iterator[LawPoints]:
    for each in transfer_cases(name, measurements, gpu):
        of = each.of
        where = f"{of['nodes']} nodes" if int(of["nodes"]) > 1 else f"{of['num_gpus']} GPUs"
        yield LawPoints(str(of["op"]), f"{of['variant']}, {where}", str(of["library"]), len(each.us), each.error)


def _series(calibration, name, measurements) -> Iterator[LawPoints]:
    """Collectives, copies, the host path and curves of memory, each by its own table; dispatch and combine of SMs and
    payloads that an engine does not take, too.
    """
    taken = {(each.of["op"], each.of["variant"]) for each in transfer_cases(name, measurements, calibration.gpu)}
    for item in choosing.all_series(measurements, calibration.gpu):
        of, table = item.of, choosing.law_for(calibration, item)
        if (of.get("op"), of.get("variant")) in taken and table is None:
            continue
        error = None if table is None else transfers.law_of(table).time_ns(item.size_bytes) / item.time_ns - 1
        law = f"{of['op']}, own table" if of.get("op") in transfers.PAYLOAD_OF else of.get("op", item.kind)
        where = of.get("variant") or of.get("direction") or ""
        what = " ".join(filter(None, [where, f"{of['num_gpus']} GPUs" if "num_gpus" in of else ""]))
        yield LawPoints(law, what, _named_section(item.library, item.version, error), len(item.time_ns), error)


def _named_section(library: str, version: str, error: np.ndarray | None) -> str:
    """Versions are pooled where they are judged."""
    return library if error is not None else f"{library} {version}"


WAY = ["library", "library_version", "phase", "kind", "dtype", "kv_dtype"]
SIZES = ["heads", "kv_heads", "head_dim", "window"]
US = 1e-3  # per ns


def attention_groups(measurements: reading.Measurements, gpu: str) -> Iterator[tuple[tuple, pd.DataFrame]]:
    """((*WAY), rows) judged by tables of one library."""
    return iter(measurements.table("attention", gpu).groupby(WAY, sort=True))


def attention_errors(calibration: tables.CalibrationSpec, way: tuple, rows: pd.DataFrame) -> np.ndarray | None:
    """Predicted / measured - 1, float64[row]; None where the library has no table of this phase and kind."""
    library, version, phase, kind, dtype, kv_dtype = way
    errors = []
    for shape, mine in rows.groupby(SIZES, sort=True):
        heads, kv_heads, head_dim, window = (int(size) for size in shape)
        sizes = attention.AttentionSizes(heads, kv_heads, head_dim, window, kind)
        table = _table(calibration, phase, sizes, dtype, kv_dtype, library, version)
        if table is None:
            return None
        batch, context = (mine[name].to_numpy(float) for name in ("batch", "tokens"))
        new = np.ones_like(context) if phase == attention.DECODE else context
        found = attention.grid_ns(attention.attention_grid(table, sizes), batch, new, context) * US
        errors.append(found / mine["latency_us_median"].to_numpy(float) - 1)
    return np.concatenate(errors)


def _table(calibration, phase, sizes, dtype, kv_dtype, library, version) -> tables.AttentionTable | None:
    """Of the same version or its release, else the newest of the library."""
    for wanted in (version, sweeps.release(version), None):
        try:
            return attention.choose_attention(calibration, phase, sizes, dtype, kv_dtype or None, library, wanted)
        except tables.LawMissing:
            continue
    return None
