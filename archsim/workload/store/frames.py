"""Files of columns: compressed, checksummed, written atomically.

Layout: the magic ``ARCHCOL1``, the length of the header (uint32, little-endian), its CRC-32 (uint32), the header, the
frames. The header is JSON: ``facts``, and ``columns`` {name: {dtype, shape, frames: [[bytes, CRC-32], …]}}. A frame is
one Zstandard frame; a column has one for each index of its first axis if it has three axes, else one in all.
Nothing in a file depends on when or where it was written: equal columns make equal bytes.
"""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base.errors import TraceError
from archsim.base.files import drafted

MAGIC = b"ARCHCOL1"
LEVEL = 3
"""Of Zstandard: beyond it, routing gets smaller by 1–4 %, and takes 2–7 times as long."""

LARGEST_COLUMN_BYTES = 1 << 34
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
    """Write a file atomically."""
    with drafted(path, durable=True) as draft:
        draft.write_bytes(pack_frames(columns, facts))


def read_frames(path: Path, only: frozenset[str] | None = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(columns, facts) of a file; `only` some of the columns. Raises TraceError if it is damaged."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from error
    header, at = _header(path, content)
    columns = {}
    for name, about in header["columns"].items():
        size = sum(size for size, _ in about["frames"])
        if only is None or name in only:
            columns[name] = _column(path, name, about, content[at : at + size])
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
    return json.loads(text), start + length


def _column(path: Path, name: str, about: dict, content: bytes) -> np.ndarray:
    dtype, shape = np.dtype(about["dtype"]), tuple(about["shape"])
    column = np.empty(shape, dtype)
    if column.nbytes > LARGEST_COLUMN_BYTES:
        raise TraceError(f"{path}: column '{name}' declares {column.nbytes} bytes; at most {LARGEST_COLUMN_BYTES}")
    codec, at = _zstd(), 0
    parts = column if column.ndim == 3 else [column]
    for part, (size, checksum) in zip(parts, about["frames"], strict=True):
        frame = content[at : at + size]
        if len(frame) != size or zlib.crc32(frame) != checksum:
            raise TraceError(f"{path}: damaged: the checksum of column '{name}' does not match")
        part[...] = np.frombuffer(codec.decompress(frame, part.nbytes), dtype).reshape(part.shape)
        at += size
    return column


def _zstd(level: int | None = None):
    """A codec; pyarrow is imported only when files are packed or read."""
    import pyarrow

    return pyarrow.Codec("zstd", level)
