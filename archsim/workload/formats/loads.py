"""Expert loads: the number of tokens of every expert, without the tokens themselves.

* SGLang's expert-distribution dumps: JSON, or ``.pt`` through ``torch.load(weights_only=True)``, an object with
  ``logical_count`` [layer][expert], or [time][layer][expert], which is summed;
* CSV: a header ``layer,0,1,…``, then one row of counts per layer;
* ``.npz``: ``counts`` [layer, expert] or [matrix, layer, expert]; optional: layer_ids, workload (names), phase, model.

Rows are the model's MoE layers, or all its layers, dense ones being zero, or what layer_ids says.
"""

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from archsim.base.errors import TraceError
from archsim.specs.model import ModelSpec
from archsim.workload import checks
from archsim.workload.formats.npz_members import load_members
from archsim.workload.formats.pt import MOST_BYTES, read_pt

MEMBERS = {"counts", "layer_ids", "workload", "phase", "model"}
UNKNOWN_PHASE = -1


@dataclass(frozen=True)
class Loads:
    """counts: int64[matrix, layer, expert]. names, phase: of every matrix (0 prefill, 1 decode, -1 not known)."""

    counts: np.ndarray
    layer_ids: np.ndarray
    names: list[str]
    phase: list[int]


def holds_loads(path: Path) -> bool:
    """Whether a file holds loads rather than tokens."""
    if path.suffix == ".npz":
        return "counts" in load_members(path, {"counts"})
    if path.suffix == ".json":
        with path.open("rb") as stream:
            return stream.read(64).lstrip().startswith(b"{")
    return path.suffix in (".csv", ".pt")


def loads_name(path: Path) -> str:
    return str(load_members(path, {"model"}).get("model", "")) if path.suffix == ".npz" else ""


def read_loads(path: Path, model: ModelSpec) -> Loads:
    """Raises TraceError."""
    reader = {".npz": _read_npz, ".csv": _read_csv, ".pt": _read_pt}.get(path.suffix, _read_json)
    loads = reader(path, model)
    if loads.counts.min(initial=0) < 0:
        raise TraceError(f"{path}: a count is negative")
    if not loads.counts.any():
        raise TraceError(f"{path}: all counts are zero")
    return loads


def _read_json(path: Path, model: ModelSpec) -> Loads:
    if path.stat().st_size > MOST_BYTES:
        raise TraceError(f"{path}: {path.stat().st_size} bytes; expected at most {MOST_BYTES} for a dump of loads")
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: not valid JSON ({error}); is the file truncated?") from error
    return _from_dump(path, data, model)


def _read_pt(path: Path, model: ModelSpec) -> Loads:
    return _from_dump(path, read_pt(path), model)


def _from_dump(path: Path, data, model: ModelSpec) -> Loads:
    if not isinstance(data, dict) or "logical_count" not in data:
        raise TraceError(f"{path}: expected an object with logical_count [layer][expert], as SGLang dumps it")
    counts = _whole(path, "logical_count", data["logical_count"])
    if counts.ndim == 3:
        counts = counts.sum(axis=0)
    if counts.ndim != 2:
        raise TraceError(f"{path}: logical_count has {counts.ndim} dimension(s); expected [layer][expert]")
    return _loads(path, model, counts[None], None, [path.stem], [_phase_of(path.stem)])


def _read_csv(path: Path, model: ModelSpec) -> Loads:
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            header, *rows = [row for row in csv.reader(stream) if row] or [[]]
    except (OSError, ValueError, csv.Error) as error:
        raise TraceError(f"{path}: not a readable CSV file ({error})") from error
    expected = ["layer", *map(str, range(model.experts))]
    if header != expected:
        raise TraceError(f"{path}: the header has {len(header)} columns; expected layer, 0, 1, … {model.experts - 1}")
    for number, row in enumerate(rows, 2):
        if len(row) != len(expected) or not all(cell.isascii() and cell.isdecimal() and len(cell) < 19 for cell in row):
            raise TraceError(f"{path}: line {number}: expected a layer and {model.experts} counts, all natural numbers")
    table = np.array(rows, np.int64).reshape(len(rows), len(expected))
    return _loads(path, model, table[None, :, 1:], table[:, 0], [path.stem], [_phase_of(path.stem)])


def _read_npz(path: Path, model: ModelSpec) -> Loads:
    members = load_members(path, MEMBERS)
    checks.check_name(str(path), model, str(members.get("model", "")))
    counts = members["counts"]
    if counts.dtype.kind not in "iu" or counts.ndim not in (2, 3):
        raise TraceError(
            f"{path}: member 'counts' is {counts.dtype}{list(counts.shape)}; expected integers [matrix, layer, expert]"
        )
    counts = counts.reshape(-1, *counts.shape[-2:]).astype(np.int64)
    names = [str(name) for name in members.get("workload", [f"{path.stem} {n}" for n in range(len(counts))])]
    phase = members.get("phase", np.array([_phase_of(name) for name in names]))
    if len(names) != len(counts) or phase.shape != (len(counts),) or not np.isin(phase, (-1, 0, 1)).all():
        raise TraceError(f"{path}: 'workload' and 'phase' must have one entry per matrix ({len(counts)}), phase 0 or 1")
    return _loads(path, model, counts, members.get("layer_ids"), names, phase.tolist())


def _loads(path: Path, model: ModelSpec, counts: np.ndarray, layer_ids, names: list[str], phase: list[int]) -> Loads:
    """Build and check; layer_ids None: inferred from the number of rows."""
    _, rows, experts = counts.shape
    checks.check_shape(str(path), model, experts=experts)
    moe = list(model.moe_layer_ids)
    if layer_ids is None and rows == model.layers and rows != len(moe):
        dense = sorted(set(range(rows)) - set(moe))
        if counts[:, dense].any():
            raise TraceError(f"{path}: a dense layer of {model.name} has counts; expected zeros in layers {dense}")
        counts, layer_ids = counts[:, moe], moe
    elif layer_ids is None and rows == len(moe):
        layer_ids = moe
    elif layer_ids is None:
        raise TraceError(f"{path}: {rows} layers; {model.name} has {model.layers} layers, {len(moe)} of them MoE")
    layer_ids = np.asarray(layer_ids)
    if layer_ids.shape != (counts.shape[1],) or layer_ids.dtype.kind not in "iu":
        raise TraceError(f"{path}: layer ids and counts do not match: {layer_ids.shape} and {counts.shape}")
    checks.check_layers(str(path), model, layer_ids)
    return Loads(counts, layer_ids.astype(np.int32), names, phase)


def _whole(path: Path, name: str, values) -> np.ndarray:
    try:
        counts = np.array(values)
    except (ValueError, OverflowError):
        counts = np.empty(0, object)
    if counts.dtype.kind == "f" and np.isfinite(counts).all() and (counts == np.floor(counts)).all():
        counts = counts.astype(np.int64)
    if counts.dtype.kind != "i":
        raise TraceError(f"{path}: {name}: expected whole numbers in nested lists of even lengths")
    return counts


def _phase_of(name: str) -> int:
    return 0 if "prefill" in name else 1 if "decode" in name else UNKNOWN_PHASE
