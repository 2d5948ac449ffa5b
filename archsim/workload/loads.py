"""Loads as all readers return them, and the checks that they share."""

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base.errors import TraceError
from archsim.base.files import read_npy
from archsim.specs.model import ModelSpec
from archsim.workload import trace
from archsim.workload.formats import npz, source_destination
from archsim.workload.pt import MOST_BYTES as MOST_PT_BYTES
from archsim.workload.pt import read_pt

# ---- loads

UNKNOWN_PHASE = -1
# Ranks and times in names of files: rank3, timestamp1744347750.1, and those of SGLang's recorder, time_rank or time.
_RANK = re.compile(
    r"[_.-]?rank(?P<rank>\d+)|_timestamp(?P<time>[\d.]+)|(?<=recorder)_(?P<at>\d+\.\d+)(?:_(?P<of>\d+))?$"
)


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


def _in_name(stem: str, *kinds: str) -> float | None:
    """The rank (``rank``, ``of``) or the time (``time``, ``at``) in the name of a file."""
    given = (match[kind] for match in _RANK.finditer(stem) for kind in kinds if match[kind])
    return next((float(each.strip(".")) for each in given if each.count(".") < 2), None)


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


def read_npy_loads(path: Path, model: ModelSpec) -> Loads:
    """Raises TraceError."""
    try:
        counts = read_npy(path)
    except Exception as error:  # numpy's header parser raises many different exceptions
        raise TraceError(f"{path}: not a readable .npy file ({error})") from error
    counts = numbers(str(path), "the array", counts, 2, 3)
    return _of_matrices(path, model, counts.reshape(-1, *counts.shape[-2:]))


def _of_matrices(path: Path, model: ModelSpec, counts: np.ndarray, layer_ids=None, rank: int | None = None) -> Loads:
    """``rank``: that the file states; None: the one in its name."""
    if rank is None and (named := _in_name(path.stem, "rank", "of")) is not None:
        rank = int(named)
    series, n = series_of(path.stem), len(counts)
    names = [series] if n == 1 else [f"{series} {at}" for at in range(n)]
    return made_loads(str(path), model, counts, names, [series] * n, [phase_of(series)] * n, layer_ids, rank)


def read_npz_loads(path: Path, model: ModelSpec) -> Loads:
    """Raises TraceError."""
    members = npz.load_members(path, MEMBERS)
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
    return _of_matrices(path, model, counts)


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


# ---- sglang
# SGLang's expert-distribution recorder, as ``.pt`` or as JSON of the same object.
#
# * modes ``stat`` and ``stat_approx``: ``logical_count`` [layer][expert], or [step][layer][expert];
# * ``per_pass``: ``records``, each with ``global_physical_count`` [layer][slot] and ``forward_pass_id``; one file a
#   rank, with that rank's tokens;
# * ``per_token``: ``records``, each with ``topk_ids_of_layer`` [layer][token][k], slots, -1 where there is none, and
#   ``forward_mode`` (1 extend, 2 decode).
#
# Records count slots; ``last_physical_to_logical_map`` [layer][slot] says which expert a slot holds. Layers are all
# layers of the model. Source: sgl-project/sglang, python/sglang/srt/eplb/expert_distribution.py @ 02295fe5.

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
        return _of_matrices(path, model, counts.reshape(-1, *counts.shape[-2:]), rank=rank)
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


# ---- trtllm
# TensorRT-LLM's expert statistics (``EXPERT_STATISTIC_PATH``).
#
# A folder of ``meta_info.json`` (num_experts, num_experts_per_token) and ``rank<r>.safetensors``: tensors
# ``<iteration>_<model layer>`` of counts [expert], of that rank's tokens. ``rank<r>_raw.safetensors`` hold the same
# tokens' choices and are not read. Source: NVIDIA/TensorRT-LLM, tensorrt_llm/_torch/expert_statistic.py @ 0fccc5b9.

# ---- safetensors
# ``.safetensors`` files: the length of a JSON header (uint64), the header, then raw little-endian tensors.
#
# Source of the layout: the format section of https://github.com/huggingface/safetensors.

MOST_HEADER_BYTES = 100 << 20  # the limit of the safetensors library
DTYPES = {
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "U16": "<u2", "U32": "<u4", "U64": "<u8",
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BOOL": "?",
}  # fmt: skip


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a file by name. Raises TraceError."""
    try:
        size = path.stat().st_size
        content = path.read_bytes() if size <= MOST_BYTES else b""
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from error
    if size > MOST_BYTES:
        raise TraceError(f"{path}: {size} bytes; expected at most {MOST_BYTES} for expert statistics")
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(MOST_HEADER_BYTES, len(content) - 8):
        raise TraceError(f"{path}: not a .safetensors file: its header is missing or cut; is the file truncated?")
    try:
        header = json.loads(content[8 : 8 + length])
        items = [(name, about) for name, about in header.items() if name != "__metadata__"]
        body = memoryview(content)[8 + length :]
        return {name: _stored_tensor(path, name, about, body) for name, about in items}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TraceError(f"{path}: not a .safetensors file ({error})") from error


def _stored_tensor(path: Path, name: str, about: dict, body: memoryview) -> np.ndarray:
    if about["dtype"] not in DTYPES:
        raise TraceError(f"{path}: tensor {name!r} is of dtype {about['dtype']!r}; expected one of {', '.join(DTYPES)}")
    dtype, shape, (start, end) = np.dtype(DTYPES[about["dtype"]]), tuple(about["shape"]), about["data_offsets"]
    if not all(type(n) is int and n >= 0 for n in (*shape, start, end)):
        raise TraceError(f"{path}: tensor {name!r} has shape {list(shape)} and offsets {[start, end]}")
    if end > len(body) or end - start != math.prod(shape) * dtype.itemsize:
        raise TraceError(
            f"{path}: tensor {name!r} of shape {list(shape)} has bytes {start} to {end} of {len(body)}; is the file "
            "truncated?"
        )
    return np.frombuffer(body[start:end], dtype).reshape(shape)


# ---- trtllm

_FILE = re.compile(r"rank(\d+)\.safetensors")
_KEY = re.compile(r"(\d{1,15})_(\d{1,9})")
META = "meta_info.json"


def statistic_files(folder: Path) -> list[Path]:
    """The statistics of all ranks in a folder, by rank; [] if there are none."""
    found = {int(match[1]): file for file in folder.iterdir() if (match := _FILE.fullmatch(file.name))}
    return [found[rank] for rank in sorted(found)]


def read_statistics(path: Path, model: ModelSpec) -> Loads:
    """The statistics of one rank. Raises TraceError."""
    match = _FILE.fullmatch(path.name)
    if match is None:
        raise TraceError(
            f"{path}: expected rank<number>.safetensors, as TensorRT-LLM names counts (rank<number>_raw.safetensors "
            "hold the choices of the same tokens)"
        )
    _check_meta(path.with_name(META), model)
    counts: dict[int, dict[int, np.ndarray]] = {}
    for name, tensor in read_safetensors(path).items():
        key = _KEY.fullmatch(name)
        if key is None:
            raise TraceError(f"{path}: tensor {name!r}; expected names <iteration>_<layer>")
        each = numbers(f"{path}: tensor {name!r}", "counts", tensor, 1)
        trace.check_shape(f"{path}: tensor {name!r}", model, experts=len(each))
        counts.setdefault(int(key[1]), {})[int(key[2])] = each
    if not counts:
        raise TraceError(f"{path}: holds no counts; expected tensors <iteration>_<layer>")
    steps = sorted(counts)
    layers = sorted(counts[steps[0]])
    for step in steps:
        if sorted(counts[step]) != layers:
            raise TraceError(f"{path}: iteration {step} has layers {sorted(counts[step])}; expected {layers}")
    matrices = np.stack([np.stack([counts[step][layer] for layer in layers]) for step in steps])
    series = path.absolute().parent.name
    names = [f"{series} iteration {step}" for step in steps]
    return made_loads(
        str(path), model, matrices, names, [series] * len(steps), [UNKNOWN_PHASE] * len(steps), layers, int(match[1])
    )


def _check_meta(path: Path, model: ModelSpec) -> None:
    """Raise TraceError if ``meta_info.json`` is of another model."""
    if not path.is_file():
        return
    try:
        stated = json.loads(path.read_bytes())
        experts, top_k = stated["num_experts"], stated["num_experts_per_token"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TraceError(f"{path}: expected num_experts and num_experts_per_token ({error!r})") from error
    trace.check_shape(str(path), model, experts=experts, top_k=top_k)


# ---- vllm
# vLLM's ``eplb_load_stats`` records (pull request 41141), JSON lines.
#
# Read are ``eplb_load_stats``: ``step``, ``expert_load`` [layer][slot] and ``p2l_map`` [layer][slot], and of
# ``eplb_load_meta`` the name of the model; records of other types are skipped. Layers are the MoE layers, from 0.

STATS, VLLM_META = "eplb_load_stats", "eplb_load_meta"
_PEEK_BYTES = 1 << 16


def is_load_stats(path: Path) -> bool:
    """Whether the first line has a ``record_type``."""
    with path.open("rb") as stream:
        return b'"record_type"' in stream.readline(_PEEK_BYTES)


def model_named(path: Path) -> str:
    """The model that ``eplb_load_meta`` names in the first line, or ''."""
    with path.open("rb") as stream:
        try:
            first = json.loads(stream.readline(_PEEK_BYTES))
        except (ValueError, RecursionError):
            return ""
    return str(first.get("model", "")) if isinstance(first, dict) and first.get("record_type") == VLLM_META else ""


def read_load_stats(path: Path, model: ModelSpec) -> Loads:
    """Raises TraceError."""
    counts: list[np.ndarray] = []
    names: list[str] = []
    if path.stat().st_size > MOST_BYTES:
        raise TraceError(f"{path}: {path.stat().st_size} bytes; expected at most {MOST_BYTES} for load statistics")
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            where = f"{path}: line {number}"
            record = _record(where, line) if line.strip() else {}
            if record.get("record_type") == VLLM_META:
                trace.check_name(where, model, str(record.get("model", "")))
            elif record.get("record_type") == STATS:
                counts.append(_counts(where, record, model))
                names.append(f"{path.stem} step {record.get('step', len(names))}")
    if not counts:
        raise TraceError(f"{path}: has no {STATS} records")
    if len({each.shape for each in counts}) > 1:
        raise TraceError(f"{path}: the number of layers differs between records")
    return made_loads(str(path), model, np.stack(counts), names, [path.stem] * len(names), [UNKNOWN_PHASE] * len(names))


def _record(where: str, line: bytes) -> dict:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(
            f"{where}: not valid JSON ({error}); is the file truncated? Without its last line it can be read"
        ) from error
    if not isinstance(record, dict):
        raise TraceError(f"{where}: expected an object with record_type")
    return record


def _counts(where: str, record: dict[str, Any], model: ModelSpec) -> np.ndarray:
    """[layer, expert]"""
    if "expert_load" not in record:
        raise TraceError(f"{where}: has no expert_load")
    slots = numbers(where, "expert_load", record["expert_load"], 2)
    stated = record.get("num_layers", len(slots))
    if stated != len(slots):
        raise TraceError(f"{where}: num_layers is {stated!r}, but expert_load has {len(slots)} layers")
    return logical_counts(where, model, slots[None], record.get("p2l_map"), "p2l_map")[0]


# ---- reading
# Which reader a source of loads has, and loads of several sources and ranks as one.

_ALWAYS = (".csv", ".npy", ".pt", ".safetensors")


def holds_loads(path: Path) -> bool:
    """Whether a source holds loads rather than tokens."""
    if path.is_dir():
        return bool(statistic_files(path))
    if source_destination.is_matrices(path):
        return False
    if path.suffix == ".npz":
        return "counts" in npz.member_names(path)
    if path.suffix == ".jsonl":
        return is_load_stats(path)
    if path.suffix == ".json":
        content = path.read_bytes() if path.stat().st_size <= MOST_BYTES else b""
        return content.lstrip().startswith(b"{") and b'"routed_experts"' not in content
    return path.suffix in _ALWAYS


def loads_name(path: Path) -> str:
    """The model that a source of loads names, or ''."""
    if path.suffix == ".jsonl":
        return model_named(path)
    return str(npz.load_members(path, {"model"}).get("model", "")) if path.suffix == ".npz" else ""


def read_loads(path: Path, model: ModelSpec) -> Loads:
    """The loads of one file. Raises TraceError."""
    readers = {
        ".npz": read_npz_loads,
        ".npy": read_npy_loads,
        ".csv": read_csv,
        ".pt": read_pt_dump,
        ".jsonl": read_load_stats,
        ".safetensors": read_statistics,
    }
    try:
        return readers.get(path.suffix, read_json_dump)(path, model)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from error


def load_files(sources: Sequence[Path]) -> list[Path]:
    """The files of sources of loads; a folder has those of TensorRT-LLM's ranks."""
    return list(chain.from_iterable(statistic_files(each) if each.is_dir() else [each] for each in sources))


def read_all_loads(sources: Sequence[Path], model: ModelSpec) -> Loads:
    """The loads of all sources, files or folders: summed over the ranks of a recording, idle matrices left out.

    Raises TraceError for sources that do not belong together, and where every count is zero.
    """
    files = load_files(sources)
    every = [read_loads(file, model) for file in files]
    for file, part in zip(files, every, strict=True):
        if not np.array_equal(part.layer_ids, every[0].layer_ids):
            raise TraceError(f"{file}: its layers differ from those of {files[0]}")
    busy = _busy(_summed(files, every))
    if not busy.names:
        raise TraceError(
            f"{files[0]}: all counts are zero: the recorder did not run while tokens were served; start it before the "
            "requests (SGLang: POST /start_expert_distribution_record), and dump again"
        )
    _refuse_counts_of_some_ranks(files, busy)
    return busy


# Choices an expert has on average in a layer, from which one that is never chosen in any of two layers or more is no
# chance: at a tenth of that popularity it would be left out of three layers in exp(-0.1 x 16 x 3), 1 of 100, and of 58
# never.
MEAN_CHOICES = 16


def _refuse_counts_of_some_ranks(files: list[Path], loads: Loads) -> None:
    """Raise TraceError where the same experts, or as many in every layer, never run: a rank counts its own experts
    alone until an engine adds the ranks up.
    """
    counts = loads.counts.sum(axis=0)
    counts = counts[counts.any(axis=1)]
    experts, idle = counts.shape[1], counts == 0
    never, idle_each = np.flatnonzero(idle.all(axis=0)), np.unique(idle.sum(axis=1))
    if counts.sum(axis=1).min() < MEAN_CHOICES * experts or len(counts) < 2:
        return
    if len(never) > 1:
        which = f"{len(never)} of {experts} experts ({spans(never.tolist())}) never run in any of {len(counts)} layers"
    elif len(idle_each) == 1 and 2 * idle_each[0] >= experts:
        which = f"in each of {len(counts)} layers {idle_each[0]} of {experts} experts never run"
    else:
        return
    raise TraceError(
        f"{files[0]}: {which}, which no router does: these are counts of some ranks alone, each of its own experts. "
        "Give the files of all ranks, or dump counts that the engine has summed over its ranks (SGLang: "
        "expert_distribution_recorder all-reduces them in mode stat)"
    )


def spans(numbers: Sequence[int]) -> str:
    """``0 to 15, 32``: ascending numbers, runs written short."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    written = [str(low) if low == high else f"{low} to {high}" for low, high in runs]
    return ", ".join(written[:6]) + (", ..." if len(written) > 6 else "")


def _summed(files: list[Path], every: list[Loads]) -> Loads:
    """Loads one after the other; those of the same name are summed if they are of different ranks. A rank's later file
    of a recording, by the time in its name, is a dump of its own.
    """
    at: dict[str, int] = {}
    ranks: dict[str, dict[int, Path]] = {}
    counts: list[np.ndarray] = []
    series: list[str] = []
    phase: list[int] = []
    dumps: Counter[tuple[str, int]] = Counter()
    times = [_in_name(file.stem, "time", "at") for file in files]
    for n in sorted(range(len(files)), key=lambda n: times[n] or 0.0):
        file, part = files[n], every[n]
        dump = ""
        if times[n] is not None and part.rank is not None:
            of = part.series[0], part.rank
            dumps[of] += 1
            dump = f", dump {dumps[of]}" if dumps[of] > 1 else ""
        for m, name in enumerate(f"{each}{dump}" for each in part.names):
            if name not in at:
                at[name] = len(counts)
                counts.append(part.counts[m])
                phase.append(part.phase[m])
                series.append(part.series[m] + dump)
            elif part.rank is None or part.rank in ranks.get(name, {part.rank}):
                whose = "" if part.rank is None else f" of rank {part.rank}"
                raise TraceError(f"{file}: a second matrix named {name!r}{whose}. Give the files different names")
            else:
                counts[at[name]] = counts[at[name]] + part.counts[m]
            if part.rank is not None:
                ranks.setdefault(name, {})[part.rank] = file
    _refuse_missing_ranks(files, ranks)
    return Loads(np.stack(counts), every[0].layer_ids, list(at), series, phase)


def _refuse_missing_ranks(files: list[Path], ranks: dict[str, dict[int, Path]]) -> None:
    """``ranks``: of every matrix, and the files that they are in."""
    every = set().union(*ranks.values())
    missing = next(rank for rank in count() if rank not in every)
    if missing < len(every):
        raise TraceError(
            f"{files[0]}: counts of ranks {', '.join(map(str, sorted(every)))}; expected the files of all ranks, rank "
            f"{missing} is missing"
        )
    for name, own in ranks.items():
        if lacking := every - set(own):
            raise TraceError(
                f"{next(iter(own.values()))}: {name!r} is of {len(own)} ranks, others of {len(every)}: rank "
                f"{min(lacking)} lacks it; expected the same passes of every rank"
            )


def _busy(loads: Loads) -> Loads:
    """Without the matrices in which nothing is counted, such as idle steps."""
    kept = np.flatnonzero(loads.counts.any(axis=(1, 2)))
    names, series = ([every[n] for n in kept] for every in (loads.names, loads.series))
    return Loads(loads.counts[kept], loads.layer_ids, names, series, [loads.phase[n] for n in kept])
