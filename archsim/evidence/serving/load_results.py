"""Results of load generators as measured points, and the formats in which they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from archsim.base.errors import SpecError, TraceError, did_you_mean
from archsim.base.evidence import refuse_broken
from archsim.evidence.serving.gpustack_rows import gpustack_points
from archsim.evidence.serving.inferencex_rows import inferencex_points, table_points, with_batches
from archsim.evidence.serving.measured_points import (
    AIPERF,
    GPUSTACK,
    GUIDELLM,
    INFERENCEX,
    INFERENCEX_JSON,
    SGLANG,
    VLLM,
    MeasuredPoint,
    ResultFormat,
)
from archsim.evidence.serving.measured_run import claims_of_times, number_of, rows_of, runs_of, under_load
from archsim.laws.calibration_files import DEFAULT_CALIBRATION
from archsim.specs.library import Source, tree_of
from archsim.specs.serving_files import load_serving


def _of_bench(where: str, row: Mapping[str, Any], base: dict[str, Any] | None) -> list[MeasuredPoint]:
    """A row of a load generator's result beside a deployment; of GuideLLM every benchmark of a report."""
    assert base is not None
    found = []
    for at, run in runs_of(where, row):
        values, given = run.values, under_load(base, run)
        serving = load_serving(given)
        gpu = serving.system.compute.calibration or DEFAULT_CALIBRATION
        precision = serving.spec.precision
        label = precision.experts or precision.products or serving.system.compute.dtype
        mean = number_of(values, "mean_ttft_ms") is not None
        kind = "mean" if mean else "median"
        ttft, tpot = (number_of(values, f"{kind}_{name}_ms") for name in ("ttft", "tpot"))
        found.append(
            MeasuredPoint(
                where=at,
                engine=serving.spec.engine,
                gpu=gpu,
                model=serving.model.name,
                precision=str(label),
                given=given,
                ttft=ttft,
                tpot=tpot,
                output_per_s=number_of(values, "output_throughput"),
                mean=mean,
                lists=run.lists,
                duration_s=number_of(values, "duration"),
            )
        )
    return found


def _has(*keys: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: f"its keys {', '.join(keys)}" if all(key in row for key in keys) else ""


def _of_vllm(row: Mapping[str, Any]) -> str:
    own = "mean_ttft_ms" in row and "completed" in row and not _of_sglang(row)
    return "its keys completed, mean_ttft_ms" if own else ""


def _of_sglang(row: Mapping[str, Any]) -> str:
    named = "mean_ttft_ms" in row and ("random_input_len" in row or "sharegpt_output_len" in row)
    return "its keys mean_ttft_ms, random_input_len" if named else ""


FORMATS: Mapping[str, ResultFormat] = MappingProxyType({
    INFERENCEX: ResultFormat(
        "InferenceX rows", "columns isl_tokens, concurrency, backend",
        _has("isl_tokens", "concurrency", "backend", "system"), table_points, True, with_batches,
    ),
    GPUSTACK: ResultFormat(
        "rows of GPUStack's performance lab", "columns command, case, out_tps", _has("command", "case", "out_tps"),
        gpustack_points, True,
    ),
    INFERENCEX_JSON: ResultFormat(
        "InferenceX (agg_*.json)", "keys hw, conc, framework, mean_ttft", _has("hw", "conc", "framework", "mean_ttft"),
        inferencex_points, True, unit="s",
    ),
    AIPERF: ResultFormat(
        "AIPerf (profile_export_aiperf.json)", "keys time_to_first_token, request_throughput",
        _has("time_to_first_token", "request_throughput"), _of_bench, False,
    ),
    GUIDELLM: ResultFormat("GuideLLM", "key benchmarks", _has("benchmarks"), _of_bench, False),
    VLLM: ResultFormat("`vllm bench serve`", "keys completed, mean_ttft_ms", _of_vllm, _of_bench, False),
    SGLANG: ResultFormat(
        "SGLang's bench_serving", "keys mean_ttft_ms, random_input_len", _of_sglang, _of_bench, False
    ),
})  # fmt: skip


class Read(NamedTuple):
    """Points of a file."""

    points: tuple[MeasuredPoint, ...]
    read_as: str  # in words, with the evidence


def read_served(path: Path, deployment: Source | None = None, name: str | None = None, unit: str | None = None) -> Read:
    """Measured points of a file, in the format ``name`` or that of its keys. ``deployment``: a file of ``archsim
    serve``, for formats that have none; ``unit``: of its times, of UNITS, None for that of the format. Raises
    TraceError for no format or impossible times, SpecError for an unknown name, or where a deployment is needed.
    """
    if unit is not None and unit not in UNITS:
        raise SpecError(f"--time-unit: unknown {unit!r} (known: {', '.join(UNITS)})")
    if name is not None and name not in FORMATS:
        raise SpecError(f"--format: unknown {name!r}{did_you_mean(name, FORMATS)} (known: {', '.join(FORMATS)})")
    rows = rows_of(path)
    evidence = {each: key for each, form in FORMATS.items() if (key := form.shown_by(rows[0]))}
    if name is None and len(evidence) != 1:
        said = " and ".join(f"{each} ({key})" for each, key in evidence.items())
        raise TraceError(
            f"{path}: cannot tell whose result this is: "
            + (f"its keys are those of {said}" if said else f"none of {', '.join(FORMATS)} has its keys")
            + f". Name it with --format ({', '.join(FORMATS)})"
        )
    chosen = name or next(iter(evidence))
    form = FORMATS[chosen]
    if name is not None and name not in evidence:
        raise TraceError(f"{path}: --format {name}: it lacks what shows that format: {form.needs}")
    if not form.deployed and deployment is None:
        raise SpecError(
            f"{path}: a result of {form.title} does not say on what it was measured: give --deployment FILE, a file of "
            "`archsim serve`"
        )
    base = None if form.deployed else dict(tree_of(deployment).data)  # type: ignore[arg-type]
    points = []
    for at, row in enumerate(form.prepared(rows), 1):
        try:
            points += form.points(f"{path}:{at}" if len(rows) > 1 else str(path), row, base)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise TraceError(f"{path}: row {at} of {form.title}: {what}") from None
    how = f"by --format {name}" if name else f"by {evidence[chosen]}"
    points, times = _in_unit(path, points, form.unit, unit)
    return Read(tuple(points), f"{path}: read as {form.title}, {how}: {len(points)} points, {times}")


UNITS: Mapping[str, float] = MappingProxyType({"s": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6})  # ms
# A client of a closed loop has one token every TPOT while it decodes, and none while it waits for its first: its tokens
# a second times TPOT are 1 at most, and some hundredths where most of the time passes in queues.
CLIENT_SHARE = (0.01, 1.5)


def _in_unit(
    path: Path, points: Sequence[MeasuredPoint], own: str, given: str | None
) -> tuple[list[MeasuredPoint], str]:
    """Points with times in ms, and by which evidence. Raises TraceError where rates contradict the unit."""
    factor = UNITS[given] / UNITS[own] if given else 1.0
    found = [
        each._replace(**{name: value * factor for name in ("ttft", "tpot") if (value := getattr(each, name))})
        for each in points
    ]
    for each in found:
        refuse_broken(each.where, claims_of_times(each.ttft, each.tpot, each.output_per_s, each.duration_s))
    shares = [
        each.tpot / 1e3 * each.output_per_s / clients for each in found
        if each.given is not None and each.tpot and each.output_per_s
        and (clients := each.given["requests"].get("concurrency"))
    ]  # fmt: skip
    text = f"times in {given}, as --time-unit says" if given else f"times in {own}, by its keys"
    if not shares:
        return found, text
    share = float(np.median(shares))
    low, high = CLIENT_SHARE
    if low <= share <= high:
        return found, f"{text}, and its clients' tokens per second agree"
    likely = [unit for unit, ms in UNITS.items() if low <= share * ms / UNITS[given or own] <= high]
    raise TraceError(
        f"{path}: {text}: a client would have {share:.3g} tokens in a time per output token, where it has one at most"
        + (f"; in {likely[0]} it would have {share * UNITS[likely[0]] / UNITS[given or own]:.2g}" if likely else "")
        + ". Name the unit: --time-unit s, or ms, us, ns"
    )
