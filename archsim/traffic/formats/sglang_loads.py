"""SGLang's expert-distribution recorder, as ``.pt`` or as JSON of the same object.

* modes ``stat`` and ``stat_approx``: ``logical_count`` [layer][expert], or [step][layer][expert];
* ``per_pass``: ``records``, each with ``global_physical_count`` [layer][slot] and ``forward_pass_id``; one file a
  rank, with that rank's tokens;
* ``per_token``: ``records``, each with ``topk_ids_of_layer`` [layer][token][k], slots, -1 where there is none, and
  ``forward_mode`` (1 extend, 2 decode).

Records count slots; ``last_physical_to_logical_map`` [layer][slot] says which expert a slot holds. Layers are all
layers of the model. Source: sgl-project/sglang, python/sglang/srt/eplb/expert_distribution.py @ 02295fe5.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base.errors import TraceError
from archsim.model.spec import ModelSpec
from archsim.traffic.formats.load_matrices import loads_of_matrices
from archsim.traffic.formats.pt import MOST_BYTES as MOST_PT_BYTES
from archsim.traffic.formats.pt import read_pt
from archsim.traffic.loads import UNKNOWN_PHASE, Loads, made_loads, series_of
from archsim.traffic.logical_counts import logical_counts, numbers

MAP = "last_physical_to_logical_map"
_PHASE_OF_MODE = {1: 0, 2: 1}
_TENSOR = "__tensor__"


def read_json_dump(path: Path, model: ModelSpec) -> Loads:
    """Raises TraceError."""
    try:
        if path.stat().st_size > MOST_PT_BYTES:
            raise TraceError(
                f"{path}: {path.stat().st_size} bytes; expected at most {MOST_PT_BYTES} for a dump of loads"
            )
        data = json.loads(path.read_bytes(), object_hook=_tensor)
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        raise TraceError(f"{path}: not valid JSON ({error}); is the file truncated?") from error
    return _from_dump(path, data, model)


def _tensor(members: dict) -> Any:
    """``{"__tensor__": dtype, "shape": …, "data": nested lists}`` as its data."""
    return members.get("data") if _TENSOR in members else members


def read_pt_dump(path: Path, model: ModelSpec) -> Loads:
    """Raises TraceError."""
    return _from_dump(path, read_pt(path), model)


def _from_dump(path: Path, data: Any, model: ModelSpec) -> Loads:
    if isinstance(data, dict) and "logical_count" in data:
        counts = numbers(str(path), "logical_count", data["logical_count"], 2, 3)
        rank = data.get("rank") if type(data.get("rank")) is int else None
        return loads_of_matrices(path, model, counts.reshape(-1, *counts.shape[-2:]), rank=rank)
    if isinstance(data, dict) and "records" in data:
        return _from_records(path, data, model)
    raise TraceError(
        f"{path}: expected an object with logical_count [layer][expert], or with records and {MAP}, as SGLang's "
        "recorder dumps it"
    )


def _from_records(path: Path, data: dict, model: ModelSpec) -> Loads:
    records, where = data["records"], str(path)
    if not isinstance(records, list) or not records or not all(isinstance(each, dict) for each in records):
        raise TraceError(f"{where}: records: expected a list of one forward pass or more")
    if data.get(MAP) is None:
        raise TraceError(f"{where}: counts of physical slots without a map to experts; expected {MAP} [layer][slot]")
    slots = numbers(where, MAP, data[MAP], 2)
    counts = np.stack([_slots_of(f"{where}: record {n}", record, slots.shape) for n, record in enumerate(records)])
    series = series_of(path.stem)
    names, phase = [], []
    for n, record in enumerate(records):
        number = _integer(f"{where}: record {n}", record, "forward_pass_id", n)
        names.append(f"{series} pass {number}")
        phase.append(_PHASE_OF_MODE.get(record.get("forward_mode"), UNKNOWN_PHASE))
    (rank, *others) = sorted({_integer(f"{where}: record {n}", each, "rank", 0) for n, each in enumerate(records)})
    if others:
        raise TraceError(f"{where}: records of ranks {rank} and {others[0]}; expected those of one rank")
    counts = logical_counts(where, model, counts, slots, MAP)
    return made_loads(where, model, counts, names, [series] * len(names), phase, rank=rank)


def _slots_of(where: str, record: dict, shape: tuple[int, ...]) -> np.ndarray:
    """Tokens of every slot in one pass, [layer, slot]."""
    if "global_physical_count" in record:
        counts = numbers(where, "global_physical_count", record["global_physical_count"], 2)
        if counts.shape != shape:
            found, expected = list(counts.shape), list(shape)
            raise TraceError(f"{where}: global_physical_count is {found}; expected {expected}, as {MAP}")
        return counts
    if "topk_ids_of_layer" not in record:
        raise TraceError(f"{where}: has neither global_physical_count nor topk_ids_of_layer")
    ids = numbers(where, "topk_ids_of_layer", record["topk_ids_of_layer"], 3)
    layers, slots = shape
    if ids.dtype.kind not in "iu" or len(ids) != layers or (ids.size and (ids.min() < -1 or ids.max() >= slots)):
        raise TraceError(
            f"{where}: topk_ids_of_layer is {ids.dtype}{list(ids.shape)}; expected {layers} layers of slots 0 to "
            f"{slots - 1}, -1 where there is none"
        )
    return np.stack([np.bincount(layer[layer >= 0], minlength=slots) for layer in ids.astype(np.int64)])


def _integer(where: str, record: dict, name: str, default: int) -> int:
    value = record.get(name, default)
    if type(value) is not int or not 0 <= value < 2**62:
        raise TraceError(f"{where}: {name} is {value!r}; expected a whole number")
    return value
