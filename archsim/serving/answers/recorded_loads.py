"""Loads over time from whatever was recorded: engines' dumps, load matrices, stores, or traces of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from archsim.base import config_files
from archsim.base.errors import TraceError
from archsim.model.spec import ModelSpec
from archsim.specs.workload import OF_MODEL, SyntheticSpec
from archsim.traffic import trace_checks, traffic_presets
from archsim.traffic.formats import load_files, readers
from archsim.traffic.trace import Trace
from archsim.traffic.trace_store import LOADS, is_store, open_store

MOST_WINDOWS = 256  # of a trace of tokens, so that memory stays below 256 x 61 x 256 numbers


@dataclass(frozen=True)
class RecordedLoads:
    """counts: float64[time, layer, expert], in the order of the recording. layer_ids: the model's numbering.

    steps: whether every matrix is one forward pass.
    """

    counts: np.ndarray
    layer_ids: tuple[int, ...]
    steps: bool
    source: str


# What recorded loads are, for who gives a file that is not there.
RECORDED = (
    "Give what an engine recorded: a recorder dump of SGLang, `eplb_load_stats` of vLLM, statistics of TensorRT-LLM, a "
    "matrix of loads (.npz, .csv), a trace or a store. `archsim trace synth MODEL --out made.npz` makes a trace up"
)


def read_history(sources: Sequence[Path], model: ModelSpec) -> RecordedLoads:
    """Raises TraceError for sources that are unreadable, unknown, or of another model."""
    for source in sources:
        if not source.exists():
            raise TraceError(f"{source}: no such file or directory. {RECORDED}")
    name = ", ".join(source.name for source in sources)
    if len(sources) == 1 and is_store(sources[0]) and open_store(sources[0]).kind == LOADS:
        return _of_store(sources[0], model, name)
    if not is_store(sources[0]) and load_files.holds_loads(sources[0]):
        for source in sources:
            trace_checks.check_name(str(source), model, load_files.loads_name(source))
        loads = load_files.read_all_loads(sources, model)
        return _history(loads.counts, loads.layer_ids, loads.series, name)
    if len(sources) > 1:
        raise TraceError(f"{sources[0]}: holds tokens; expected one trace, or several files of expert loads")
    return _of_tokens(readers.open_trace(sources[0], model), name)


MADE_REQUESTS, MADE_STEPS = 64, 64  # of loads that are made up


def made_history(model: ModelSpec) -> RecordedLoads:
    """Loads of decode steps of a model's preset, or of usual numbers, where nothing was recorded. Raises TraceError."""
    spec = SyntheticSpec(like=OF_MODEL, prompt_tokens=0, requests=MADE_REQUESTS, decode_steps=MADE_STEPS)
    if model.name not in config_files.named_files("traffic"):
        spec = spec.model_copy(update={"like": None})
    source = traffic_presets.generated_traffic(model, spec, MADE_REQUESTS)
    experts, layers = source.num_experts, len(source.layer_ids)
    counts = np.zeros((MADE_STEPS, layers, experts))
    for piece in source.steps(np.arange(MADE_REQUESTS), MADE_STEPS):
        for layer in range(layers if piece.iteration else 0):
            counts[piece.iteration - 1, layer] += np.bincount(piece.experts[:, layer].ravel(), minlength=experts)
    whose = f"made up traffic of {model.name} ({source.label})"
    return RecordedLoads(counts[counts.any(axis=(1, 2))], tuple(map(int, source.layer_ids)), True, whose)


def _of_store(path: Path, model: ModelSpec, name: str) -> RecordedLoads:
    store = open_store(path)
    shape = store.shape
    trace_checks.check_name(str(path), model, shape.model)
    trace_checks.check_shape(str(path), model, experts=shape.num_experts, top_k=shape.top_k, layers=shape.layers)
    trace_checks.check_layers(str(path), model, np.array(shape.layer_ids))
    columns, about = store.loads()
    return _history(columns["counts"], shape.layer_ids, about.get("series", about["names"]), name)


def _history(counts: np.ndarray, layer_ids, series: Sequence[str], name: str) -> RecordedLoads:
    steps = len(series) > 1 and len(set(series)) < len(series)
    return RecordedLoads(counts.astype(np.float64), tuple(map(int, layer_ids)), steps, name)


def _of_tokens(trace: Trace, name: str) -> RecordedLoads:
    """Loads by iteration, all requests together; long traces in windows of several iterations."""
    last = int(trace.iteration.max())
    every = -(-(last + 1) // MOST_WINDOWS)
    window = trace.iteration.astype(np.int64) // every
    windows, experts = int(window.max()) + 1, trace.num_experts
    counts = np.zeros((windows, len(trace.layer_ids), experts))
    for layer in range(len(trace.layer_ids)):
        cell = (window[:, None] * experts + trace.experts[:, layer]).ravel()
        counts[:, layer] = np.bincount(cell, minlength=windows * experts).reshape(windows, experts)
    busy = counts.any(axis=(1, 2))
    return RecordedLoads(counts[busy], tuple(trace.layer_ids.tolist()), every == 1, name)
