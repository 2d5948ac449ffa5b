"""Plain load matrices: ``.npy``, ``.npz`` and CSV; counts may be fractions, such as means.

* ``.npy``: [layer, expert] or [matrix, layer, expert];
* ``.npz``: ``counts`` as in ``.npy``; optional: layer_ids, workload (names), phase, model;
* CSV: a header ``layer,0,1,…``, then one row of counts per layer; or no header and one row per layer; or a header of
  three names for layer, expert and count (SGLang's older recorder: ``layer_id,expert_id,count``), then one row for
  each pair, absent ones of a layer being zero.

Rows are the model's MoE layers, or all its layers, dense ones being zero, or what layer_ids says.
"""

import csv
from pathlib import Path

import numpy as np

from archsim.base.errors import TraceError
from archsim.base.packed_files import read_npy
from archsim.model.spec import ModelSpec
from archsim.traffic import trace_checks
from archsim.traffic.formats import npz
from archsim.traffic.loads import MOST_BYTES, Loads, made_loads, number_in_name, phase_of, series_of
from archsim.traffic.logical_counts import numbers

MEMBERS = {"counts", "layer_ids", "workload", "phase", "model"}
_LONG = ({"layer", "layer_id", "model_layer"}, {"expert", "expert_id", "logical_expert"}, {"count", "load", "tokens"})


def read_npy_loads(path: Path, model: ModelSpec) -> Loads:
    """Raises TraceError."""
    try:
        counts = read_npy(path)
    except Exception as error:  # numpy's header parser raises many different exceptions
        raise TraceError(f"{path}: not a readable .npy file ({error})") from error
    counts = numbers(str(path), "the array", counts, 2, 3)
    return loads_of_matrices(path, model, counts.reshape(-1, *counts.shape[-2:]))


def loads_of_matrices(
    path: Path, model: ModelSpec, counts: np.ndarray, layer_ids=None, rank: int | None = None
) -> Loads:
    """``rank``: that the file states; None: the one in its name."""
    if rank is None and (named := number_in_name(path.stem, "rank", "of")) is not None:
        rank = int(named)
    series, n = series_of(path.stem), len(counts)
    names = [series] if n == 1 else [f"{series} {at}" for at in range(n)]
    return made_loads(str(path), model, counts, names, [series] * n, [phase_of(series)] * n, layer_ids, rank)


def read_npz_loads(path: Path, model: ModelSpec) -> Loads:
    """Raises TraceError."""
    members = npz.load_members(path, MEMBERS)
    trace_checks.check_name(str(path), model, str(members.get("model", "")))
    counts = numbers(str(path), "member 'counts'", members["counts"], 2, 3)
    counts = counts.reshape(-1, *counts.shape[-2:])
    if "workload" not in members and "phase" not in members:
        return loads_of_matrices(path, model, counts, members.get("layer_ids"))
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
        return loads_of_matrices(path, model, table[None, :, 1:], ids.astype(np.int64))
    if header and all(_number(cell) is not None for cell in header):
        return loads_of_matrices(path, model, _table(path, rows, f"{model.experts} counts", model.experts)[None])
    raise TraceError(
        f"{path}: the header has {len(header)} columns; expected layer, 0, 1, … {model.experts - 1}, or "
        "layer_id,expert_id,count, or rows of counts alone"
    )


def _read_long(path: Path, model: ModelSpec, rows: list[tuple[int, list[str]]]) -> Loads:
    """One row for each layer and expert."""
    table = _table(path, rows, "layer, expert and count", 3)
    counts = np.zeros((1, model.layers, model.experts))
    seen: set[tuple[int, int]] = set()
    for (number, _), (layer, expert, tokens) in zip(rows, table.tolist(), strict=True):
        where = f"{path}: line {number}"
        if layer not in range(model.layers) or expert not in range(model.experts):
            raise TraceError(
                f"{where}: layer {layer:g}, expert {expert:g}; {model.name} has layers 0 to {model.layers - 1} and "
                f"experts 0 to {model.experts - 1}"
            )
        if (layer, expert) in seen:
            raise TraceError(f"{where}: layer {layer:g}, expert {expert:g} appears twice")
        seen.add((layer, expert))
        counts[0, int(layer), int(expert)] = tokens
    ids = [id for id in sorted({int(layer) for layer, _ in seen}) if id in model.moe_layer_ids or counts[0, id].any()]
    return loads_of_matrices(path, model, counts[:, ids], np.array(ids, np.int64))


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
