"""Loads as all readers return them, and the checks that they share."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from archsim.base.errors import TraceError
from archsim.model.spec import ModelSpec
from archsim.traffic import trace_checks

UNKNOWN_PHASE = -1
# Ranks and times in names of files: rank3, timestamp1744347750.1, and those of SGLang's recorder, time_rank or time.
_RANK = re.compile(
    r"[_.-]?rank(?P<rank>\d+)|_timestamp(?P<time>[\d.]+)|(?<=recorder)_(?P<at>\d+\.\d+)(?:_(?P<of>\d+))?$"
)


@dataclass(frozen=True)
class Loads:
    """Load matrices in the order of their recording."""

    counts: np.ndarray  # int64 or float64[matrix, layer, expert]
    layer_ids: np.ndarray  # int32[layer], the model's numbering
    names: list[str]  # of every matrix
    series: list[str]  # of every matrix; matrices of one series follow each other in time
    phase: list[int]  # of every matrix: 0 prefill, 1 decode, -1 not known
    rank: int | None = None  # whose tokens are counted; None: those of all ranks


def made_loads(
    where: str,
    model: ModelSpec,
    counts: np.ndarray,
    names: Sequence[str],
    series: Sequence[str],
    phase: Sequence[int],
    layer_ids: Any = None,
    rank: int | None = None,
) -> Loads:
    """Loads, checked against a model. Raises TraceError.

    counts: numbers [matrix, layer, expert]. layer_ids: None: rows are the model's MoE layers, or all of its layers,
    dense ones being zero.
    """
    if counts.dtype.kind not in "iuf" or not np.isfinite(counts).all():
        raise TraceError(f"{where}: expected finite counts, found {counts.dtype}")
    if counts.size and counts.min() < 0:
        matrix, row, expert = np.argwhere(counts < 0)[0]
        raise TraceError(f"{where}: a count is negative: {counts[matrix, row, expert]} in row {row}, expert {expert}")
    if counts.size and counts.max() >= 2**62:
        raise TraceError(f"{where}: a count is {counts.max()}; expected less than 2**62")
    _, rows, experts = counts.shape
    trace_checks.check_shape(where, model, experts=experts)
    moe = list(model.moe_layer_ids)
    if layer_ids is None and rows == model.layers and rows != len(moe):
        dense = sorted(set(range(rows)) - set(moe))
        if counts[:, dense].any():
            raise TraceError(f"{where}: a dense layer of {model.name} has counts; expected zeros in layers {dense}")
        counts, layer_ids = counts[:, moe], moe
    elif layer_ids is None and rows == len(moe):
        layer_ids = moe
    elif layer_ids is None:
        raise TraceError(f"{where}: {rows} layers; {model.name} has {model.layers} layers, {len(moe)} of them MoE")
    layer_ids = np.asarray(layer_ids)
    if layer_ids.shape != (counts.shape[1],) or layer_ids.dtype.kind not in "iu":
        raise TraceError(f"{where}: layer ids and counts do not match: {layer_ids.shape} and {counts.shape}")
    trace_checks.check_layers(where, model, layer_ids)
    return Loads(whole(counts), layer_ids.astype(np.int32), list(names), list(series), list(phase), rank)


def whole(counts: np.ndarray) -> np.ndarray:
    """int64 if all counts are whole, else float64."""
    return counts.astype(np.int64) if (counts == np.floor(counts)).all() else counts.astype(np.float64)


def series_of(stem: str) -> str:
    """The name of a recording: that of its file without rank and time."""
    return _RANK.sub("", stem) or stem


def number_in_name(stem: str, *kinds: str) -> float | None:
    """The rank (``rank``, ``of``) or the time (``time``, ``at``) in the name of a file."""
    given = (match[kind] for match in _RANK.finditer(stem) for kind in kinds if match[kind])
    return next((float(each.strip(".")) for each in given if each.count(".") < 2), None)


def phase_of(name: str) -> int:
    return 0 if "prefill" in name else 1 if "decode" in name else UNKNOWN_PHASE


# Plain load matrices: ``.npy``, ``.npz`` and CSV; counts may be fractions, such as means.
#
# * ``.npy``: [layer, expert] or [matrix, layer, expert];
# * ``.npz``: ``counts`` as in ``.npy``; optional: layer_ids, workload (names), phase, model;
# * CSV: a header ``layer,0,1,…``, then one row of counts per layer; or no header and one row per layer; or a header of
#   three names for layer, expert and count (SGLang's older recorder: ``layer_id,expert_id,count``), then one row for
#   each pair, absent ones being zero.
#
# Rows are the model's MoE layers, or all its layers, dense ones being zero, or what layer_ids says.

MOST_BYTES = 512 << 20
