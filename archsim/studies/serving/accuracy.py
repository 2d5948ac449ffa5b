"""Simulated against measured serving: points of closed loops, with their model, machine and parallel sizes.

The table is that of ``silicon_agg.csv`` (aiconfigurator's sample of InferenceX and of NVIDIA's own runs); its README
tells how each point was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.base.units import NS_PER_MS
from archsim.iteration.times import IterationLaws
from archsim.serving.deployment import Engine, laws_of, with_host
from archsim.serving.hosts import host_file, host_of
from archsim.serving.measures import times_ns
from archsim.serving.requests import lengths, without_hashes
from archsim.serving.simulate import Pool, Scheduler, simulate
from archsim.serving.tables import Host
from archsim.specs.deployment import Parallelism
from archsim.specs.loading.calibrations import calibration_named
from archsim.specs.loading.library import load_model
from archsim.studies.serving.recipes import INFERENCEX, captured_of, precision_of, scheduler_of

MODELS = MappingProxyType({
    "Llama-3.1-70B": "llama-3.1-70b", "Llama-3.1-8B": "llama-3.1-8b", "Qwen3-32B": "qwen3-32b",
    "DeepSeek-R1/V3": "deepseek-v3", "Kimi-K2.5": "kimi-k2", "MiniMax-M2.5": "minimax-m2.5",
    "Qwen3-235B-A22B": "qwen3-235b-a22b", "gpt-oss-120b": "gpt-oss-120b",
})  # fmt: skip
# Calibration and HBM of a system, as CUDA reports it (79.1, 139.8 and 178.4 GiB).
SYSTEMS = MappingProxyType(
    {"H100-SXM5-80GB": ("h100", 84.9e9), "H200-SXM-141GB": ("h200", 150.1e9), "B200-SXM": ("b200", 191.5e9)}
)
UNFIT = ("host_bound_suspect", "nonmonotone")  # notes of points that nothing should be judged on
# Lengths relative to the nominal ones, and requests a client. InferenceX draws them from 0.8 to 1. The method of
# NVIDIA's own runs is not stated: they are taken to have the nominal lengths on average, and not all the same, since
# clients with equal ones stay in step, so that prompts never meet decodes (TPOT of dense models would be 14 % short).
NIGHTLY_SHARES, OTHER_SHARES, REQUESTS_A_CLIENT = (0.8, 1.0), (0.9, 1.1), 10


class Point(NamedTuple):
    """ms; ``fitted``: whether its group was used to fit constants."""

    row: Mapping[str, Any]
    ttft: float
    tpot: float
    fitted: bool

    @property
    def errors(self) -> tuple[float, float]:
        """(TTFT, TPOT): simulated / measured - 1."""
        return self.ttft / self.row["ttft_ms"] - 1, self.tpot / self.row["tpot_ms"] - 1


def judged_rows(path: Path) -> list[dict[str, Any]]:
    """Points of the table that can be simulated and are fit to judge on."""
    import pandas

    table = pandas.read_csv(path)
    fit = ~table.notes.fillna("").str.contains("|".join(UNFIT))
    return table[fit & table.model.isin(MODELS) & table.system.isin(SYSTEMS)].to_dict("records")


def ends_of_groups(rows: Iterable[Mapping[str, Any]], most_clients: int) -> list[Mapping[str, Any]]:
    """Of each group the points of fewest and of most clients, of those with up to ``most_clients``, or the fewest."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    found = []
    for points in groups.values():
        points.sort(key=lambda row: row["concurrency"])
        few = [row for row in points if row["concurrency"] <= most_clients] or points[:1]
        found += [few[0], few[-1]] if len(few) > 1 else few
    return found


def simulated(rows: Iterable[Mapping[str, Any]]) -> Iterator[Point]:
    """Points in order of their groups; those that do not fit into HBM by our count are left out."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    for group, points in groups.items():
        try:
            yield from _group(points, group in host_file().fitted_on)
        except ArchsimError:
            continue


class Case(NamedTuple):
    """A group of points with the engine that serves them, before host constants."""

    rows: list[Mapping[str, Any]]
    engine: Engine
    scheduler: Scheduler
    laws: IterationLaws
    notes: tuple[str, ...]


def case_of(rows: list[Mapping[str, Any]]) -> Case:
    """Raises ArchsimError for what cannot be simulated."""
    row = rows[0]
    gpu, hbm_bytes = SYSTEMS[row["system"]]
    sizes = (row["moe_ep"], row["moe_tp"]) if row["is_moe"] else (1, 1)
    parallel = Parallelism(*(int(each) for each in (row["tp"], row["attention_dp"], *sizes)))
    model, precision = load_model(MODELS[row["model"]]), precision_of(row)
    engine = Engine(model, calibration_named(gpu), hbm_bytes, parallel, precision, library=row["backend"])
    schedulers = [scheduler_of(each) for each in rows]
    scheduler = schedulers[0]._replace(
        max_num_seqs=max(each.max_num_seqs for each in schedulers),
        max_num_batched_tokens=max(each.max_num_batched_tokens for each in schedulers),
    )
    return Case(rows, engine, scheduler, *laws_of(engine, scheduler))


def case_dtype(row: Mapping[str, Any]) -> str:
    """Of the experts of a point, or of a dense model's products."""
    precision = precision_of(row)
    return precision.experts if row["is_moe"] else precision.products


def host_of_case(case: Case) -> Host:
    """The shipped constants."""
    engine, backend = case.engine, case.rows[0]["backend"]
    precision = engine.precision
    found = host_of(backend, engine.model, engine.calibration.gpu, precision.experts, precision.products)
    captured = captured_of(case.rows[0])
    return found if captured is None else found._replace(captured=captured)


def times_of(case: Case, pool: Pool, host: Host, row: Mapping[str, Any]) -> tuple[float, float]:
    """Mean (TTFT, TPOT) of a point, ms."""
    served = simulate(_requests(row), scheduler_of(row), pool, **host.of_requests)
    times = times_ns(served)
    return times["ttft"].mean() / NS_PER_MS, times["tpot"].mean() / NS_PER_MS


def _group(rows: list[Mapping[str, Any]], fitted: bool) -> Iterator[Point]:
    case = case_of(rows)
    host = host_of_case(case)
    pool = with_host(case.laws, case.notes, case.engine, case.scheduler, host, 1).pool
    for row in rows:
        yield Point(row, *times_of(case, pool, host, row), fitted)


def _requests(row: Mapping[str, Any]):
    clients = int(row["concurrency"])
    low, high = NIGHTLY_SHARES if row["origin"] == INFERENCEX else OTHER_SHARES
    sizes = (
        lengths(REQUESTS_A_CLIENT * clients, "uniform", (max(1, int(low * size)), int(high * size)), clients, stream)
        for stream, size in enumerate((row["isl_tokens"], row["osl_tokens"]), 1)
    )
    return without_hashes(np.zeros(REQUESTS_A_CLIENT * clients), *sizes, clients)


def median_errors(points: Iterable[Point]) -> tuple[float, float, float, int]:
    """(TPOT, TTFT, TTFT of warmed-up points; median of absolute errors; points); nan for none."""
    found = list(points)
    errors = np.abs([point.errors for point in found]).reshape(-1, 2)
    warm = np.array([point.row["warmed_up"] == "yes" for point in found], bool)

    def median(values: np.ndarray) -> float:
        return float(np.median(values)) if len(values) else float("nan")

    return median(errors[:, 1]), median(errors[:, 0]), median(errors[warm, 0]), len(found)
