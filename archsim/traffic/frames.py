"""Files of columns: compressed, checksummed, written atomically.

Layout: the magic ``ARCHCOL1``, the length of the header (uint32, little-endian), its CRC-32 (uint32), the header, the
frames. The header is JSON: ``facts``, and ``columns`` {name: {dtype, shape, frames: [[bytes, CRC-32], …]}}. A frame
is one Zstandard frame; a column has one for each index of its first axis if it has three axes, else one in all.
Nothing in a file depends on when or where it was written: equal columns make equal bytes.
"""

import json
import math
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base.errors import TraceError
from archsim.base.files import write_draft
from archsim.base.packed_files import Bomb, refuse_bomb

MAGIC = b"ARCHCOL1"
LEVEL = 3
"""Of Zstandard: beyond it, routing gets smaller by 1–4 %, and takes 2–7 times as long."""

LARGEST_COLUMN_BYTES = 1 << 34
LEAST_SUSPECT_BYTES, MOST_TIMES = 64 << 20, 1000
"""A column that declares more than LEAST_SUSPECT_BYTES and MOST_TIMES its compressed size is refused as a bomb."""

_DTYPE = re.compile(r"[<|][iuf][1248]")
_LENGTHS = struct.Struct("<II")


def pack_frames(columns: dict[str, np.ndarray], facts: dict[str, Any]) -> bytes:
    """The content of a file of integer columns."""
    codec = _zstd(LEVEL)
    described, frames = {}, []
    for name, column in columns.items():
        parts = column if column.ndim == 3 else [column]
        packed = [codec.compress(np.ascontiguousarray(part), asbytes=True) for part in parts]
        described[name] = {
            "dtype": column.dtype.newbyteorder("<").str,
            "shape": list(column.shape),
            "frames": [[len(frame), zlib.crc32(frame)] for frame in packed],
        }
        frames += packed
    header = json.dumps({"facts": facts, "columns": described}, separators=(",", ":")).encode()
    return b"".join([MAGIC, _LENGTHS.pack(len(header), zlib.crc32(header)), header, *frames])


def write_frames(path: Path, columns: dict[str, np.ndarray], facts: dict[str, Any]) -> None:
    with write_draft(path, durable=True) as draft:
        draft.write_bytes(pack_frames(columns, facts))


def read_frames(path: Path, only: frozenset[str] | None = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(columns, facts) of a file; `only` some of the columns. Raises TraceError if it is damaged."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from error
    header, at = _header(path, content)
    columns, declared = {}, 0
    for name, about in header["columns"].items():
        frames = _frames(path, name, about)
        size = sum(size for size, _ in frames)
        if only is None or name in only:
            declared += math.prod(about["shape"]) * np.dtype(about["dtype"]).itemsize
            try:
                refuse_bomb(f"column '{name}', with those before it,", declared, len(content))
            except Bomb as error:
                raise TraceError(f"{path}: {error}") from None
            columns[name] = _column(path, name, about, frames, content[at : at + size])
        at += size
    if at != len(content):
        raise TraceError(f"{path}: damaged: {len(content)} bytes; expected {at}")
    return columns, header["facts"]


def _header(path: Path, content: bytes) -> tuple[dict, int]:
    start = len(MAGIC) + _LENGTHS.size
    if len(content) < start or not content.startswith(MAGIC):
        raise TraceError(f"{path}: not a file of columns (it does not start with {MAGIC.decode()})")
    length, checksum = _LENGTHS.unpack(content[len(MAGIC) : start])
    text = content[start : start + length]
    if len(text) != length or zlib.crc32(text) != checksum:
        raise TraceError(f"{path}: damaged: the checksum of the header does not match")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: damaged: its header is not valid JSON ({error})") from error
    if type(header) is not dict or type(header.get("columns")) is not dict or type(header.get("facts")) is not dict:
        raise TraceError(f"{path}: damaged: its header has no 'facts' and 'columns'")
    return header, start + length


def _frames(path: Path, name: str, about: Any) -> list[list[int]]:
    """The (bytes, CRC-32) of a column's frames; dtype, shape and frames are checked. Raises TraceError."""
    given = about if type(about) is dict else {}
    dtype, frames = given.get("dtype"), given.get("frames")
    shape: Any = given.get("shape")
    whole = type(shape) is list and all(type(n) is int and 0 <= n <= LARGEST_COLUMN_BYTES for n in shape)
    if not (whole and len(shape) <= 8 and type(dtype) is str and _DTYPE.fullmatch(dtype)):
        raise TraceError(f"{path}: damaged: column {name!r} has dtype {dtype!r:.40} and shape {shape!r:.40}")
    pairs: list[Any] = frames if type(frames) is list else [None]
    if not all(type(each) is list and [type(n) for n in each] == [int, int] and min(each) >= 0 for each in pairs):
        raise TraceError(f"{path}: damaged: the frames of column {name!r} are not pairs of numbers")
    expected = shape[0] if len(shape) == 3 else 1
    if len(pairs) != expected:
        raise TraceError(f"{path}: damaged: column {name!r} has {len(pairs)} frames; expected {expected}")
    return pairs


def _column(path: Path, name: str, about: dict, frames: list[list[int]], content: bytes) -> np.ndarray:
    dtype, shape = np.dtype(about["dtype"]), tuple(about["shape"])
    declared = math.prod(shape) * dtype.itemsize
    most = min(LARGEST_COLUMN_BYTES, max(LEAST_SUSPECT_BYTES, MOST_TIMES * len(content)))
    if declared > most:
        raise TraceError(f"{path}: column '{name}' declares {declared} bytes; at most {most}")
    column = np.empty(shape, dtype)
    codec, at = _zstd(), 0
    parts = column if column.ndim == 3 else [column]
    for part, (size, checksum) in zip(parts, frames, strict=True):
        frame = content[at : at + size]
        if len(frame) != size or zlib.crc32(frame) != checksum:
            raise TraceError(f"{path}: damaged: the checksum of column '{name}' does not match")
        try:
            part[...] = np.frombuffer(codec.decompress(frame, part.nbytes), dtype).reshape(part.shape)
        except (OSError, ValueError, MemoryError) as error:  # pyarrow's errors are ValueErrors or OSErrors
            raise TraceError(f"{path}: damaged: a frame of column {name!r} does not unpack ({error})") from error
        at += size
    return column


def _zstd(level: int | None = None):
    """A codec; pyarrow is imported only when files are packed or read."""
    import pyarrow

    return pyarrow.Codec("zstd", level)
