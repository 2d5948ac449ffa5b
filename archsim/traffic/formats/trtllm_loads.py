"""TensorRT-LLM's expert statistics (``EXPERT_STATISTIC_PATH``).

A folder of ``meta_info.json`` (num_experts, num_experts_per_token) and ``rank<r>.safetensors``: tensors
``<iteration>_<model layer>`` of counts [expert], of that rank's tokens. ``rank<r>_raw.safetensors`` hold the same
tokens' choices and are not read. Source: NVIDIA/TensorRT-LLM, tensorrt_llm/_torch/expert_statistic.py @ 0fccc5b9.
"""

import json
import math
import re
from pathlib import Path

import numpy as np

from archsim.base.errors import TraceError
from archsim.model.spec import ModelSpec
from archsim.traffic import trace_checks
from archsim.traffic.loads import MOST_BYTES, UNKNOWN_PHASE, Loads, made_loads
from archsim.traffic.logical_counts import numbers

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
        trace_checks.check_shape(f"{path}: tensor {name!r}", model, experts=len(each))
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
    trace_checks.check_shape(str(path), model, experts=experts, top_k=top_k)
