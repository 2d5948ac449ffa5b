"""``.safetensors`` files: the length of a JSON header (uint64), the header, then raw little-endian tensors.

Source of the layout: the format section of https://github.com/huggingface/safetensors.
"""

import json
import math
from pathlib import Path

import numpy as np

from archsim.base.errors import TraceError

MOST_BYTES = 512 << 20
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
        return {name: _tensor(path, name, about, body) for name, about in items}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TraceError(f"{path}: not a .safetensors file ({error})") from error


def _tensor(path: Path, name: str, about: dict, body: memoryview) -> np.ndarray:
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
