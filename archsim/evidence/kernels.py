"""Attention, dispatch and combine beside what an engine takes for them, and the measured tables that no law reads."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from archsim.evidence import choosing
from archsim.evidence.cluster_cases import transfer_cases
from archsim.evidence.page import join_frames
from archsim.evidence.transfers import names_of
from archsim.laws import attention, tables
from calibration.measurements import reading, sweeps

SECTION = ["law", "of", "library"]  # by which cases of the file are summed up
WAY = ["library", "library_version", "phase", "kind", "dtype", "kv_dtype"]
SIZES = ["heads", "kv_heads", "head_dim", "window"]
US = 1e-3  # per ns


def kernel_cases(
    calibration: tables.CalibrationSpec, name: str, measurements: reading.Measurements
) -> tuple[pd.DataFrame, list[str]]:
    """Cases of kernels that the file's laws predict, in us; and a line for every table that no law reads."""
    gpu, found, unread, taken = calibration.gpu, [], list(_unread_products(calibration, measurements)), set()
    for way, rows in measurements.table("attention", gpu).groupby(WAY, sort=True):
        library, version, phase, kind, dtype, kv_dtype = way
        law, of = f"{phase} attention", f"{kind} {dtype}, {kv_dtype} KV"
        cases = _attention_cases(calibration, way, rows)
        found.append(None if cases is None else cases.assign(law=law, of=of, library=library))
        unread += [_unread(law, of, f"{library} {version}", len(rows))] if cases is None else []
    for each in transfer_cases(name, measurements, gpu):
        law, library = str(each.of["op"]), str(each.of["library"])
        where = f"{each.of['nodes']} nodes" if int(each.of["nodes"]) > 1 else f"{each.of['num_gpus']} GPUs"
        of = f"{each.of['variant']}, {where}"
        taken.add((each.of["op"], each.of["variant"]))
        if each.error is None:
            unread.append(_unread(law, of, library, len(each.us)))
            continue
        what = [f"{tokens:g} tokens per rank" for tokens in each.tokens]
        found.append(pd.DataFrame({"what": what, "measured": each.us, "predicted": (1 + each.error) * each.us,
                                   "error": each.error}).assign(law=law, of=of, library=library))  # fmt: skip
    for item in choosing.all_series(measurements, gpu):
        if choosing.law_for(calibration, item) is None and (item.of.get("op"), item.of.get("variant")) not in taken:
            unread.append(_unread(*names_of(item), f"{item.library} {item.version}", len(item.time_ns)))
    cases = join_frames(each for each in found if each is not None)
    if len(cases):
        cases = cases.assign(source=cases["law"], group=cases["of"] + ", " + cases["library"], unit="us", seen=None)
    return cases, list(dict.fromkeys(unread))


def _unread(law: str, of: str, library: str, points: int) -> str:
    return f"{law} {of} of {library} ({points} points)"


def _unread_products(calibration: tables.CalibrationSpec, measurements: reading.Measurements) -> Iterator[str]:
    for key, rows in choosing.gemm_groups(measurements, calibration.gpu):
        if choosing.gemm_table_for(calibration, *key) is None:
            of = dict(zip([*choosing.GEMM_KEYS, "version"], key, strict=True))
            yield _unread(choosing.GEMM, of["dtype"], f"{of['library']} {of['version']}", len(rows))
    for key, rows in choosing.moe_groups(measurements, calibration.gpu):
        if choosing.moe_table_for(calibration, *key) is None:
            of = dict(zip(choosing.MOE_KEYS, key, strict=True))
            what = f"{of['model']} {of['dtype']} {of['distribution']}"
            yield _unread(choosing.MOE, what, f"{of['library']} {of['version']}", len(rows))


def _attention_cases(calibration: tables.CalibrationSpec, way: tuple, rows: pd.DataFrame) -> pd.DataFrame | None:
    """A row a point; None where the library has no table of this phase and kind."""
    library, version, phase, kind, dtype, kv_dtype = way
    found = []
    for shape, mine in rows.groupby(SIZES, sort=True):
        heads, kv_heads, head_dim, window = (int(size) for size in shape)
        sizes = attention.AttentionSizes(heads, kv_heads, head_dim, window, kind)
        table = _table(calibration, phase, sizes, dtype, kv_dtype, library, version)
        if table is None:
            return None
        batch, context = (mine[name].to_numpy(float) for name in ("batch", "tokens"))
        new = np.ones_like(context) if phase == attention.DECODE else context
        predicted = attention.grid_ns(attention.attention_grid(table, sizes), batch, new, context) * US
        measured = mine["latency_us_median"].to_numpy(float)
        what = [f"{heads} heads, batch {one:g}, {tokens:g} tokens" for one, tokens in zip(batch, context, strict=True)]
        found.append(pd.DataFrame({"what": what, "measured": measured, "predicted": predicted,
                                   "error": predicted / measured - 1}))  # fmt: skip
    return join_frames(found)


def _table(calibration, phase, sizes, dtype, kv_dtype, library, version) -> tables.AttentionTable | None:
    """Of the same version or its release, else the newest of the library."""
    for wanted in (version, sweeps.release(version), None):
        try:
            return attention.choose_attention(calibration, phase, sizes, dtype, kv_dtype or None, library, wanted)
        except tables.LawMissing:
            continue
    return None
