"""Simulated against measured serving: points of closed loops, with their model, machine and parallel sizes.

The table is that of ``silicon_agg.csv`` (aiconfigurator's sample of InferenceX and of NVIDIA's own runs); its README
tells how each point was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.base.units import NS_PER_MS
from archsim.iteration.constants import DECODE, PREFILL, Host, HostFile, host_of
from archsim.iteration.times import IterationLaws
from archsim.laws.calibration_files import calibration_named
from archsim.serving.deployment import laws_of, with_host
from archsim.serving.engine import ServingEngine
from archsim.serving.kv_room import kv_blocks
from archsim.serving.measures import times_ns
from archsim.serving.requests import Requests, lengths, without_hashes
from archsim.serving.simulate import Pool, Scheduler, Served, simulate
from archsim.specs.deployment import Parallelism
from archsim.specs.library import load_model
from measured_serving.recipes import captured_of, precision_of, scheduler_of, shares_of

MODELS = MappingProxyType({
    "Llama-3.1-70B": "llama-3.1-70b", "Llama-3.1-8B": "llama-3.1-8b", "Qwen3-32B": "qwen3-32b",
    "DeepSeek-R1/V3": "deepseek-v3", "Kimi-K2.5": "kimi-k2", "MiniMax-M2.5": "minimax-m2.5",
    "Qwen3-235B-A22B": "qwen3-235b-a22b", "gpt-oss-120b": "gpt-oss-120b", "GLM-5": "glm-5",
    "Qwen3.5-397B-A17B": "qwen3.5-397b-a17b",
})  # fmt: skip
# Calibration and HBM of a system, as CUDA reports it (79.1, 139.8, 178.4, of the last two 184.31 and 276.50 GiB); of
# B300 by its datasheet.
SYSTEMS = MappingProxyType({
    "H100-SXM5-80GB": ("h100", 84.9e9), "H200-SXM-141GB": ("h200", 150.1e9), "B200-SXM": ("b200", 191.5e9),
    "B300-SXM": ("b300", 288e9), "GB200": ("gb200", 197.9e9), "GB300": ("gb300", 296.9e9),
})  # fmt: skip
UNFIT = ("host_bound_suspect", "nonmonotone")  # notes of points that nothing should be judged on
REQUESTS_A_CLIENT = 10
LONG, MOST_OF_LONG = 8192, 16  # tokens of an output, and clients of such points


class Point(NamedTuple):
    """ms, by constants that were fitted on other groups."""

    row: Mapping[str, Any]
    ttft: float
    tpot: float

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


def with_few_clients(rows: Iterable[Mapping[str, Any]], most_clients: int) -> list[Mapping[str, Any]]:
    """Points of up to ``most_clients``, of long outputs up to ``MOST_OF_LONG``: those of more take long."""

    def most(row: Mapping[str, Any]) -> int:
        return min(most_clients, MOST_OF_LONG) if row["osl_tokens"] >= LONG else most_clients

    return [row for row in rows if row["concurrency"] <= most(row)]


def cases_of(rows: Iterable[Mapping[str, Any]]) -> tuple[list[Case], dict[str, str]]:
    """Of each group, and why others cannot be simulated."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    found, refused = [], {}
    for group, points in groups.items():
        try:
            case = case_of(points)
            kv_blocks(case.engine, case.scheduler)
            found.append(case)
        except ArchsimError as error:
            refused[group] = str(error)
    return found, refused


class Case(NamedTuple):
    """A group of points with the engine that serves them, before host constants."""

    rows: Sequence[Mapping[str, Any]]
    engine: ServingEngine
    scheduler: Scheduler
    laws: IterationLaws
    notes: tuple[str, ...]


def case_of(rows: Sequence[Mapping[str, Any]], pool: str = "") -> Case:
    """``pool``: PREFILL or DECODE of engines that do one alone. Raises ArchsimError for what cannot be simulated."""
    row = rows[0]
    gpu, hbm_bytes = SYSTEMS[row["system"]]
    sizes = (row["moe_ep"], row["moe_tp"]) if row["is_moe"] else (1, 1)
    parallel = Parallelism(*(int(each) for each in (row["tp"], row["attention_dp"], *sizes)))
    model, precision = load_model(MODELS[row["model"]]), precision_of(row)
    engine = ServingEngine(model, calibration_named(gpu), hbm_bytes, parallel, precision, library=row["backend"])
    engine = engine._replace(decodes_alone=pool == DECODE, prefills_alone=pool == PREFILL)
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


def host_of_case(case: Case, known: HostFile | None = None, pool: str = "") -> Host:
    """The constants; ``known``: in place of the shipped ones; ``pool``: of an engine that does one of both."""
    engine, backend = case.engine, case.rows[0]["backend"]
    precision = engine.precision
    found = host_of(backend, engine.model, engine.calibration.gpu, precision.experts, precision.products, known, pool,
                    engine.parallel.dp)  # fmt: skip
    captured = captured_of(case.rows[0])
    return found if captured is None else found._replace(captured=captured)


def pool_of(case: Case, host: Host) -> Pool:
    """The engine of a case. Raises CapacityError."""
    return with_host(case.laws, case.notes, case.engine, case.scheduler, host, 1).pool


def serve_point(pool: Pool, host: Host, row: Mapping[str, Any], logged: bool = False) -> Served:
    """The clients of a point; ``logged``: with a log of all iterations."""
    requests = requests_of_row(row)
    most = 2 * int(requests.output.sum()) if logged else 0
    return simulate(requests, scheduler_of(row), pool, **host.of_requests, logged=most)


def points_of(case: Case, known: HostFile) -> Iterator[Point]:
    """All points of a case by constants."""
    host = host_of_case(case, known)
    pool = pool_of(case, host)
    for row in case.rows:
        times = times_ns(serve_point(pool, host, row))
        yield Point(row, times["ttft"].mean() / NS_PER_MS, times["tpot"].mean() / NS_PER_MS)


def requests_of_row(row: Mapping[str, Any], most_tokens: float = np.inf) -> Requests:
    """The requests of a point's clients, so many each as the benchmark sends; fewer, but two each, where all outputs
    together have more than ``most_tokens``.
    """
    clients = int(row["concurrency"])
    each = int(np.clip(most_tokens / (clients * row["osl_tokens"]), 2, REQUESTS_A_CLIENT))
    low, high = shares_of(row)
    sizes = (
        lengths(each * clients, "uniform", (max(1, int(low * size)), int(high * size)), clients, stream)
        for stream, size in enumerate((row["isl_tokens"], row["osl_tokens"]), 1)
    )
    return without_hashes(np.zeros(each * clients), *sizes, clients)


def median_errors(points: Iterable[Point]) -> tuple[float, float, float, int]:
    """(TPOT, TTFT, TTFT of warmed-up points; median of absolute errors; points); nan for none."""
    found = list(points)
    errors = np.abs([point.errors for point in found]).reshape(-1, 2)
    warm = np.array([point.row["warmed_up"] == "yes" for point in found], bool)

    def median(values: np.ndarray) -> float:
        return float(np.median(values)) if len(values) else float("nan")

    return median(errors[:, 1]), median(errors[:, 0]), median(errors[warm, 0]), len(found)
