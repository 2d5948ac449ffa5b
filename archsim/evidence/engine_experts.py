"""Experts on the event engine, against the fitted law and measurements (figure 12 of Yu et al., ISCA 2026, arXiv
2510.05497v4): gate, up and down product in turn on a die with the GPU's peak and HBM. Times must equal the law.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from archsim.base import sums, units
from archsim.base.case import Case, frame_of
from archsim.base.errors import SpecError
from archsim.engine import engine, loop
from archsim.engine.demand import RunDemand
from archsim.evidence.page import join_frames
from archsim.evidence.products import EXPERTS
from archsim.laws import gemm, tables
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from archsim.specs import policies
from archsim.specs.library import load_assumptions
from archsim.specs.scenario import Scenario
from archsim.specs.workload import WorkloadSpec
from calibration.fit.fit import products
from calibration.measurements import reading, sweeps

_NAMED = {"name": "validation", "source": "validation of a calibration"}


def steps_ns(
    machine: Mapping[str, Any], sizes: Mapping[str, int], policy: str, tokens: np.ndarray, **assumptions: str
) -> np.ndarray:
    """float64[step] ns of steps with ``tokens: int64[step, expert]``. ``machine``: fields of a SystemSpec; ``sizes``:
    of a ModelSpec; ``assumptions``: changes of ``physical``.
    """
    steps, experts = tokens.shape
    system = SystemSpec(**_NAMED, **machine)
    model = ModelSpec(**_NAMED, layers=1, moe_layers={"first": 0, "last": 0}, experts=experts, **sizes)
    batch = int(tokens.max())
    workload = WorkloadSpec(trace={"synthetic": {}}, batch=batch)
    chosen = policies.PolicySpec(name=policy, **policies.PRESETS[policy])
    scenario = Scenario(system, model, load_assumptions("physical", **assumptions), chosen, workload, batch)
    demand = RunDemand(
        tokens=tokens.astype(np.int32)[:, None, :], first_seen=np.zeros((steps, 1, experts), np.int16),
        has_prefill=False, layer_ids=np.zeros(1, np.int32), top_k=model.top_k, batch=batch, digest="",
    )  # fmt: skip
    return loop.Replay(engine.EventEngine(scenario), demand).run().step_ns[:, 0]


HIDDEN_AND_FFN = dict(zip(EXPERTS, ((7168, 2048), (4096, 1536), (2048, 768)), strict=True))
DTYPES = ("bf16", "fp8")


def engine_cases(calibration: tables.CalibrationSpec, named: str, measurements: reading.Measurements) -> pd.DataFrame:
    """One row per expert, dtype and tokens for which all products were measured; ``law_us`` and ``law_error``: of the
    engine against the curve. ``named``: the calibration's name or path. Measured: medians over the release's sweeps.
    """
    rows = products(measurements, calibration.gpu)
    found = []
    for dtype in DTYPES:
        try:
            table = gemm.choose_table(calibration, dtype)
        except SpecError:
            continue
        medians = _medians(rows, table)
        for model, (hidden, ffn) in HIDDEN_AND_FFN.items():
            measured = _expert(medians, hidden, ffn)
            if len(measured):
                found.append(_cases(calibration, named, table, model, hidden, ffn, measured))
    return join_frames(found)


def expert_ns(
    calibration: tables.CalibrationSpec, named: str, dtype: str, hidden: int, ffn: int, tokens: np.ndarray
) -> np.ndarray:
    """Times of one expert on one die by the event engine, float64[n] ns, for tokens int64[n]."""
    reference = calibration.reference
    machine = {
        "mesh": {"x": 1, "y": 1},
        "hbm": {"bandwidth_bytes_per_s": reference.hbm_bytes_per_s, "capacity_bytes": 10**12},
        "d2d": {"bandwidth_bytes_per_s": 1e12},
        "llc": {"capacity_bytes": 2**20},  # less than a slice: one in flight, none kept
        "compute": {"peak_flop_per_s": reference.peak_flop_per_s[dtype], "dtype": dtype, "calibration": named},
    }
    as_measured = {"activations": "replicated", "decision_cost": "free", "gemm": "calibrated", "reads": "together"}
    sizes = {"hidden": hidden, "expert_ffn": ffn, "top_k": 1}
    return steps_ns(machine, sizes, "ep", tokens.reshape(-1, 1), **as_measured, memory="experts")


def _medians(rows: pd.DataFrame, table: tables.GemmTable) -> pd.Series:
    """(n, k, m) → measured us."""
    included = {"included": "1", "apart": "0"}[table.quantisation]
    same = rows[(rows["library"] == table.library) & (rows["dtype"] == table.dtype) & (rows["groups"].astype(int) == 1)]
    same = same[same["quant_included"].astype(str) == included]
    same = same[same["library_version"].map(sweeps.release) == sweeps.release(table.version)]
    return same.groupby(["n", "k", "m"])["latency_us_median"].median()


def _expert(medians: pd.Series, hidden: int, ffn: int) -> pd.Series:
    """m → us of gate, up and down product."""
    shapes = set(zip(medians.index.get_level_values("n"), medians.index.get_level_values("k"), strict=True))
    if not {(ffn, hidden), (hidden, ffn)} <= shapes:
        return pd.Series(dtype=float)
    return (2 * medians.loc[ffn, hidden] + medians.loc[hidden, ffn]).dropna()


def _cases(calibration, named, table, model, hidden, ffn, measured) -> pd.DataFrame:
    tokens = measured.index.to_numpy(np.int64)
    engine_us = expert_ns(calibration, named, table.dtype, hidden, ffn, tokens) / units.NS_PER_US
    products = [(ffn, hidden), (ffn, hidden), (hidden, ffn)]
    law_us = (
        sums.sum(
            gemm.table_times(table, np.full_like(tokens, n), np.full_like(tokens, k), tokens, calibration.reference.sms)
            for n, k in products
        )
        / units.NS_PER_US
    )
    who = {"model": model, "dtype": table.dtype, "library": table.library, "version": table.version}
    group = f"{model}, {table.dtype}, {table.library} {table.version}"
    cases = [
        Case("event engine, one expert on one die", group, f"m {m}", "us", us, simulated_us)
        for m, us, simulated_us in zip(tokens, measured.to_numpy(float), engine_us, strict=True)
    ]
    return frame_of(cases, m=tokens, law_us=law_us, law_error=engine_us / law_us - 1).assign(**who)
