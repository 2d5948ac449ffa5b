"""Selects the table or law of a calibration that judges each measurement, and reports substitutes and gaps."""

from collections.abc import Iterator

import pandas as pd

from archsim.base.errors import SpecError
from archsim.laws import gemm
from archsim.laws.moe import EPLB, SIZES
from archsim.laws.tables import CalibrationSpec, GemmTable, MoeTable, TableOrigin, TransferTable, newest_first
from calibration.fit import moe, transfers
from calibration.fit.memory import curves_of
from calibration.measurements import reading, sweeps

GEMM, MOE = "GEMM", "fused MoE"
GEMM_KEYS = ["library", "dtype", "quant_included", "groups"]
MOE_NAMES = ["model", "library", "kernel", "dtype", "distribution", EPLB, "version"]
MOE_KEYS = [*MOE_NAMES, *SIZES]
MOST_NAMED = 6  # in one sentence


def name_of(table: TableOrigin) -> str:
    return f"{table.library} {table.version}"


def gemm_groups(measurements: reading.Measurements, gpu: str) -> Iterator[tuple[tuple, pd.DataFrame]]:
    """((*GEMM_KEYS, version), rows) judged by one table."""
    return iter(measurements.table("gemm", gpu).groupby([*GEMM_KEYS, "library_version"], sort=True))


def moe_groups(measurements: reading.Measurements, gpu: str) -> Iterator[tuple[tuple, pd.DataFrame]]:
    """(MOE_KEYS, rows) judged by one table."""
    rows = measurements.table("moe", gpu)
    rows = moe.with_defaults(rows).assign(version=rows["library_version"])
    return iter(rows.groupby(MOE_KEYS, sort=True))


def gemm_table_for(
    calibration: CalibrationSpec, library: str, dtype: str, included: str, groups: int, version: str
) -> GemmTable | None:
    """The table of the same version, else the newest of the library, else the default of the dtype."""
    quantisation = "included" if included == "1" else "apart"
    same = [
        table
        for table in calibration.gemm
        if (table.library, table.dtype, table.quantisation, table.groups) == (library, dtype, quantisation, groups)
    ]
    for wanted in (version, sweeps.release(version)):
        exact = [table for table in same if table.version == wanted]
        if exact:
            return exact[0]
    if same:
        return max(same, key=lambda table: newest_first(table.version))
    try:
        return gemm.choose_table(calibration, dtype) if groups == 1 else None
    except SpecError:
        return None


def moe_table_for(
    calibration: CalibrationSpec,
    model: str,
    library: str,
    kernel: str,
    dtype: str,
    distribution: str,
    eplb_slots: int,
    version: str,
    *numbers: int,
) -> MoeTable | None:
    """The table of the same model and sizes: preferably of the kernel, then the version or release, then the newest."""
    tables = [
        t
        for t in calibration.moe
        if (t.model, t.library, t.dtype, t.distribution, t.eplb_slots)
        == (model, library, dtype, distribution, eplb_slots)
        and tuple(getattr(t, name) for name in SIZES) == numbers
    ]

    def nearness(table: MoeTable) -> tuple:
        of_release = table.version == sweeps.release(version)
        return table.kernel == kernel, table.version == version, of_release, newest_first(table.version)

    return max(tables, key=nearness, default=None)


def all_series(measurements: reading.Measurements, gpu: str) -> list[transfers.Series]:
    """Every P2P, collective and host path series and memory curve of a GPU."""
    series = [item for kind in transfers.SERIES for item in transfers.series_of(measurements.table(kind, gpu), kind)]
    memory = measurements.table("memory", gpu).astype({"working_set_bytes": float, "value": float})
    return [*series, *curves_of(memory)]


def law_for(calibration: CalibrationSpec, series: transfers.Series) -> TransferTable | None:
    """The law of the same library and curve: of the same version, else the newest."""
    tables = (*calibration.p2p, *calibration.collectives, *calibration.pcie, *calibration.hbm)
    same = [
        table
        for table in tables
        if isinstance(table, TransferTable) and (table.library, table.of) == (series.library, series.of)
    ]
    return max(same, key=lambda table: (table.version == series.version, newest_first(table.version)), default=None)


def choice_notes(calibration: CalibrationSpec, measurements: reading.Measurements) -> list[str]:
    """A sentence for each library and version without a table of its own, for tables whose sweeps disagree somewhere,
    and for tables that do not say what they were fitted to.
    """
    others: dict[tuple[str, str, str], list[str]] = {}
    for what, library, version, detail, table in _choices(calibration, measurements):
        own = table is not None and table.library == library and table.version in (version, sweeps.release(version))
        if not own:
            others.setdefault((what, f"{library} {version}", name_of(table) if table else ""), []).append(detail)
    chosen = [_sentence(*key, list(dict.fromkeys(details))) for key, details in others.items()]
    return [*chosen, *_notes_of_tables(calibration)]


def _notes_of_tables(calibration: CalibrationSpec) -> Iterator[str]:
    """What tables note on their sweeps, and how many have no fingerprints of theirs."""
    for what, tables in ((GEMM, calibration.gemm), (MOE, calibration.moe), ("attention", calibration.attention)):
        for table in tables:
            if table.note and not table.scaled_from:
                names = [getattr(table, name, "") for name in ("model", "phase", "kind", "dtype", "distribution")]
                yield f"{what} of {name_of(table)} ({' '.join(name for name in names if name)}): {table.note}"
    of_products: tuple[GemmTable | MoeTable, ...] = (*calibration.gemm, *calibration.moe)
    judged = [table for table in of_products if not table.scaled_from]
    unknown = sum(not table.prints for table in judged)
    if unknown:
        yield (
            f"{unknown} of {len(judged)} tables do not say which measurements they were fitted to (no prints); their "
            "cases count as not in the fit: fit them again with archsim calibrate"
        )


def _sentence(what: str, version: str, judge: str, details: list[str]) -> str:
    named = ", ".join(details[:MOST_NAMED]) + (
        f" and {len(details) - MOST_NAMED} more" if len(details) > MOST_NAMED else ""
    )
    if judge:
        return (
            f"{what} of {version} ({named}): the calibration has no table of it; tested by that of {judge}, so errors "
            f"include the difference between the two"
        )
    return f"{what} of {version} ({named}): the calibration has no table for it; not tested"


def _choices(
    calibration: CalibrationSpec, measurements: reading.Measurements
) -> Iterator[tuple[str, str, str, str, TableOrigin | None]]:
    """(what, library, version, configuration, the table that judges it)"""
    gpu = calibration.gpu
    for (library, dtype, included, groups, version), _ in gemm_groups(measurements, gpu):
        table = gemm_table_for(calibration, library, dtype, included, groups, version)
        detail = dtype + (f", groups of {groups:g}" if groups > 1 else "")
        yield GEMM, library, version, detail, table
    for key, _ in moe_groups(measurements, gpu):
        named = dict(zip(MOE_KEYS, key, strict=True))
        detail = f"{named['model']} {named['dtype']} {named['distribution']}" + (
            f" EPLB {named[EPLB]:g}" if named[EPLB] else ""
        )
        yield MOE, named["library"], named["version"], detail, moe_table_for(calibration, *key)
    for series in all_series(measurements, gpu):
        yield series.kind, series.library, series.version, " ".join(series.of.values()), law_for(calibration, series)
