"""Loads as all readers return them, and the checks that they share."""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base.errors import TraceError
from archsim.base.files import read_npy
from archsim.specs.model import ModelSpec
from archsim.workload import trace
from archsim.workload.formats.npz import load_members

# ---- loads

UNKNOWN_PHASE = -1
_RANK = re.compile(r"[_.-]?rank\d+|_timestamp[\d.]+")


@dataclass(frozen=True)
class Loads:
    """Load matrices in the order of their recording.

    counts: int64 or float64[matrix, layer, expert]. layer_ids: int32[layer], the model's numbering. names, series:
    of every matrix; matrices of one series follow each other in time. phase: 0 prefill, 1 decode, -1 not known.
    rank: the rank whose tokens are counted; None: those of all ranks.
    """

    counts: np.ndarray
    layer_ids: np.ndarray
    names: list[str]
    series: list[str]
    phase: list[int]
    rank: int | None = None


def made_loads(
    where: str, model: ModelSpec, counts: np.ndarray, names: Sequence[str], series: Sequence[str], phase: Sequence[int],
    layer_ids: Any = None, rank: int | None = None,
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
    trace.check_shape(where, model, experts=experts)
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
    trace.check_layers(where, model, layer_ids)
    return Loads(whole(counts), layer_ids.astype(np.int32), list(names), list(series), list(phase), rank)


def whole(counts: np.ndarray) -> np.ndarray:
    """int64 if all counts are whole, else float64."""
    return counts.astype(np.int64) if (counts == np.floor(counts)).all() else counts.astype(np.float64)


def numbers(where: str, name: str, values: Any, *dimensions: int) -> np.ndarray:
    """Nested lists, or an array, as an array of numbers of one of these numbers of dimensions. Raises TraceError."""
    try:
        found = np.asarray(values)
    except (ValueError, OverflowError):
        found = np.empty(0, object)
    if found.dtype.kind not in "iuf" or found.ndim not in dimensions:
        kind = f"{found.dtype}{list(found.shape)}" if found.dtype.kind != "O" else "uneven lists, or numbers above 2^64"
        raise TraceError(
            f"{where}: {name}: {kind}; expected numbers in nested lists of even lengths, "
            f"{' or '.join(map(str, dimensions))} dimensions"
        )
    return found


def logical_counts(where: str, model: ModelSpec, physical: np.ndarray, slots: Any, named: str) -> np.ndarray:
    """Counts of slots as counts of experts.

    physical: numbers [matrix, layer, slot]. slots: the expert in every slot [layer, slot], -1 for an empty one; None
    is refused. named: what the file calls the map. Raises TraceError.
    """
    if slots is None:
        raise TraceError(
            f"{where}: counts of physical slots without a map to experts; expected {named} [layer][slot] beside them"
        )
    slots = numbers(where, named, slots, 2)
    if slots.dtype.kind not in "iu" or slots.shape != physical.shape[1:]:
        raise TraceError(
            f"{where}: {named} is {slots.dtype}{list(slots.shape)}; expected integers {list(physical.shape[1:])}, as "
            "the counts [layer][slot]"
        )
    if slots.size and (slots.min() < -1 or slots.max() >= model.experts):
        raise TraceError(
            f"{where}: {named} has expert ids {slots.min()} to {slots.max()}; {model.name} has 0 to {model.experts - 1}"
        )
    logical = np.zeros((*physical.shape[:2], model.experts), physical.dtype)
    for layer, row in enumerate(slots):
        if physical[:, layer, row < 0].any():
            raise TraceError(f"{where}: an empty slot of row {layer} has counts; expected none where {named} is -1")
        np.add.at(logical[:, layer].T, row[row >= 0], physical[:, layer, row >= 0].T)
    return logical


def series_of(stem: str) -> str:
    """The name of a recording: that of its file without rank and time."""
    return _RANK.sub("", stem) or stem


def phase_of(name: str) -> int:
    return 0 if "prefill" in name else 1 if "decode" in name else UNKNOWN_PHASE


# ---- matrices
# Plain load matrices: ``.npy``, ``.npz`` and CSV; counts may be fractions, such as means.
#
# * ``.npy``: [layer, expert] or [matrix, layer, expert];
# * ``.npz``: ``counts`` as in ``.npy``; optional: layer_ids, workload (names), phase, model;
# * CSV: a header ``layer,0,1,…``, then one row of counts per layer; or no header and one row per layer; or a header of
#   three names for layer, expert and count (SGLang's older recorder: ``layer_id,expert_id,count``), then one row for
#   each pair, absent ones being zero.
#
# Rows are the model's MoE layers, or all its layers, dense ones being zero, or what layer_ids says.

MEMBERS = {"counts", "layer_ids", "workload", "phase", "model"}
MOST_BYTES = 512 << 20
_LONG = ({"layer", "layer_id", "model_layer"}, {"expert", "expert_id", "logical_expert"}, {"count", "load", "tokens"})
_OLD_NAME = re.compile(r"rank(\d+)")


def read_npy_loads(path: Path, model: ModelSpec) -> Loads:
    """Raises TraceError."""
    try:
        counts = read_npy(path)
    except Exception as error:  # numpy's header parser raises many different exceptions
        raise TraceError(f"{path}: not a readable .npy file ({error})") from error
    counts = numbers(str(path), "the array", counts, 2, 3)
    return _of_matrices(path, model, counts.reshape(-1, *counts.shape[-2:]))


def _of_matrices(path: Path, model: ModelSpec, counts: np.ndarray, layer_ids=None) -> Loads:
    names = [path.stem] if len(counts) == 1 else [f"{path.stem} {n}" for n in range(len(counts))]
    return made_loads(
        str(path), model, counts, names, [path.stem] * len(counts), [phase_of(path.stem)] * len(counts), layer_ids
    )


def read_npz_loads(path: Path, model: ModelSpec) -> Loads:
    """Raises TraceError."""
    members = load_members(path, MEMBERS)
    trace.check_name(str(path), model, str(members.get("model", "")))
    counts = numbers(str(path), "member 'counts'", members["counts"], 2, 3)
    counts = counts.reshape(-1, *counts.shape[-2:])
    if "workload" not in members and "phase" not in members:
        return _of_matrices(path, model, counts, members.get("layer_ids"))
    names = [str(name) for name in members.get("workload", [f"{path.stem} {n}" for n in range(len(counts))])]
    phase = members.get("phase", np.array([phase_of(name) for name in names]))
    if len(names) != len(counts) or phase.shape != (len(counts),) or not np.isin(phase, (-1, 0, 1)).all():
        raise TraceError(f"{path}: 'workload' and 'phase' must have one entry per matrix ({len(counts)}), phase 0 or 1")
    return made_loads(str(path), model, counts, names, names, phase.tolist(), members.get("layer_ids"))


def read_csv(path: Path, model: ModelSpec) -> Loads:
    """Raises TraceError."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"{path.stat().st_size} bytes; expected at most {MOST_BYTES}")
        with path.open(newline="", encoding="utf-8") as stream:
            rows = [(number, row) for number, row in enumerate(csv.reader(stream), 1) if row] or [(1, [])]
    except (OSError, ValueError, csv.Error) as error:
        raise TraceError(f"{path}: not a readable CSV file ({error})") from error
    header = rows[0][1]
    if len(header) == 3 and all(name in names for name, names in zip(header, _LONG, strict=True)):
        return _read_long(path, model, rows[1:])
    expected = ["layer", *map(str, range(model.experts))]
    if header == expected:
        table = _table(path, rows[1:], f"a layer and {model.experts} counts", len(expected))
        ids = table[:, 0]
        if (ids != np.floor(ids)).any():
            raise TraceError(f"{path}: the first column has fractions; expected the numbers of layers")
        return _of_matrices(path, model, table[None, :, 1:], ids.astype(np.int64))
    if header and all(_number(cell) is not None for cell in header):
        return _of_matrices(path, model, _table(path, rows, f"{model.experts} counts", model.experts)[None])
    raise TraceError(
        f"{path}: the header has {len(header)} columns; expected layer, 0, 1, … {model.experts - 1}, or "
        "layer_id,expert_id,count, or rows of counts alone"
    )


def _read_long(path: Path, model: ModelSpec, rows: list[tuple[int, list[str]]]) -> Loads:
    """One row for each layer and expert."""
    table = _table(path, rows, "layer, expert and count", 3)
    counts = np.zeros((1, model.layers, model.experts))
    seen: set[tuple[int, int]] = set()
    for (number, _), (layer, expert, count) in zip(rows, table.tolist(), strict=True):
        where = f"{path}: line {number}"
        if layer not in range(model.layers) or expert not in range(model.experts):
            raise TraceError(
                f"{where}: layer {layer:g}, expert {expert:g}; {model.name} has layers 0 to {model.layers - 1} and "
                f"experts 0 to {model.experts - 1}"
            )
        if (layer, expert) in seen:
            raise TraceError(f"{where}: layer {layer:g}, expert {expert:g} appears twice")
        seen.add((layer, expert))
        counts[0, int(layer), int(expert)] = count
    series, rank = series_of(path.stem), _OLD_NAME.search(path.stem)
    return made_loads(
        str(path), model, counts, [series], [series], [phase_of(series)], rank=int(rank[1]) if rank else None
    )


def _table(path: Path, rows: list[tuple[int, list[str]]], expected: str, columns: int) -> np.ndarray:
    """float64[row, column] of rows of numbers >= 0."""
    table = np.empty((len(rows), columns))
    for n, (number, row) in enumerate(rows):
        values = [_number(cell) for cell in row]
        if len(row) != columns or any(value is None for value in values):
            raise TraceError(f"{path}: line {number}: expected {expected}, all numbers from 0")
        table[n] = values
    return table


def _number(cell: str) -> float | None:
    """A finite number >= 0, or None."""
    try:
        value = float(cell) if len(cell) < 40 and cell.isascii() and "_" not in cell else -1.0
    except ValueError:
        return None
    return value if 0 <= value < 2**62 else None
