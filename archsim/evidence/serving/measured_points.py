"""Measured points of serving: what a row says, and the deployment that it was measured on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from archsim.evidence.serving.measured_run import Lists

INFERENCEX, INFERENCEX_JSON, AIPERF = "inferencex", "inferencex-json", "aiperf"
GUIDELLM, VLLM, SGLANG, GPUSTACK = "guidellm", "vllm", "sglang", "gpustack"
DISAGGREGATED = "disaggregated"  # after the name of an engine whose prompts and decodes run apart
SCHEDULERS: Mapping[str, str] = MappingProxyType({"vllm": "vllm_v1", "sglang": "sglang", "trtllm": "trtllm"})


class MeasuredPoint(NamedTuple):
    """What was measured of one deployment. Times in ms; None: not measured."""

    where: str  # file and row
    engine: str
    gpu: str
    model: str
    precision: str
    given: Mapping[str, Any] | None  # a file of ``archsim serve``; None where ``refused`` says why
    ttft: float | None
    tpot: float | None
    output_per_s: float | None  # tokens
    mean: bool = True  # whether times are means; else medians
    lists: Lists | None = None  # of every request
    refused: str = ""
    duration_s: float | None = None  # of the run


class ResultFormat(NamedTuple):
    """How a load generator's results are known from others, and read."""

    title: str
    needs: str  # the keys that show it, in words
    shown_by: Callable[[Mapping[str, Any]], str]  # the key of a row that shows it; ''
    # (place, row, deployment or None) → points
    points: Callable[[str, Mapping[str, Any], dict[str, Any] | None], list[MeasuredPoint]]
    deployed: bool  # whether rows say on what they were measured
    prepared: Callable[[Sequence[dict[str, Any]]], Sequence[dict[str, Any]]] = list
    unit: str = "ms"  # of its times by its keys
