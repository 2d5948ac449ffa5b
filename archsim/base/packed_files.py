"""Archives of others: arrays (``.npy``, ``.npz``) and compressed text, read in bounded memory, never unpickled. A file
that declares much more than its size is refused: recorded routing shrinks to a twentieth, a zip bomb to a thousandth.
"""

from __future__ import annotations

import io
import lzma
import math
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from zipfile import BadZipFile
from zlib import error as ZlibError

if TYPE_CHECKING:
    import numpy as np
from archsim.base.files import regular

# KeyError: of a member; RuntimeError: of a version or a cipher of zip; ValueError: of a header of numpy.
UNREADABLE = (OSError, EOFError, ValueError, KeyError, RuntimeError, BadZipFile, ZlibError)
LEAST_SUSPECT_BYTES, MOST_TIMES, MOST_TIMES_OF_PART = 64 << 20, 40, 400
_MOST_HEADER_BYTES = 1 << 16  # of numpy's header of an array
_CHUNK_BYTES = 1 << 20


class Bomb(ValueError):
    """A file that unpacks to much more than it takes, or to more than was asked for."""


class Header(NamedTuple):
    """What the header of an array says. ``at``: the offset of the data."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype
    at: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def npz_names(path: Path) -> set[str]:
    """The names of the arrays of a file; none if it is not readable."""
    try:
        with zipfile.ZipFile(regular(path)) as archive:
            return {name.removesuffix(".npy") for name in archive.namelist()}
    except UNREADABLE:
        return set()


def read_npz(path: Path, wanted: Collection[str] | None = None, most_bytes: int | None = None) -> dict[str, np.ndarray]:
    """The arrays of a file by name: those of ``wanted`` that it has, or all. most_bytes: of all together, numbers
    counted as float64. Raises those of UNREADABLE.
    """
    with zipfile.ZipFile(regular(path)) as archive:
        members = {each.filename.removesuffix(".npy"): each for each in archive.infolist()}
        asked = {name: each for name, each in members.items() if wanted is None or name in wanted}
        headers: dict[str, Header] = {}
        for name, each in asked.items():
            what = f"member '{each.filename}'"
            refuse_bomb(what, each.file_size, each.compress_size, MOST_TIMES_OF_PART)
            with archive.open(each) as stream:
                headers[name] = header = _header(stream)
            if header.at + header.nbytes != each.file_size:
                raise ValueError(
                    f"{what} has {each.file_size} bytes; expected {header.at + header.nbytes} of shape "
                    f"{list(header.shape)} and {header.dtype}"
                )
        if most_bytes is not None:
            declared = sum(8 * math.prod(each.shape) for each in headers.values())
            if declared > most_bytes:
                raise Bomb(f"its arrays take {declared:,} bytes as numbers; expected at most {most_bytes:,}")
        refuse_bomb("the file", sum(each.nbytes for each in headers.values()), path.stat().st_size)
        return {name: _member(archive, each, headers[name]) for name, each in asked.items()}


def read_npy(content: bytes | Path) -> np.ndarray:
    """The array in a ``.npy`` file. Raises those of UNREADABLE."""
    import numpy as np

    with regular(content).open("rb") if isinstance(content, Path) else io.BytesIO(content) as stream:
        header = _header(stream)
        size = stream.seek(0, io.SEEK_END) - header.at
        if size != header.nbytes:
            raise ValueError(f"{size} bytes of data; its shape {header.shape} of {header.dtype} has {header.nbytes}")
        stream.seek(0)
        return np.lib.format.read_array(stream, allow_pickle=False)


def refuse_bomb(name: str, declared: int, packed: int, times: int = MOST_TIMES) -> None:
    """Raise Bomb for what declares more bytes than ``packed`` compressed ones can honestly hold."""
    if declared > max(LEAST_SUSPECT_BYTES, times * packed):
        raise Bomb(
            f"{name} declares {declared} bytes in {packed} compressed ones; expected at most {times} times as many"
        )


def decompress(data: bytes, kind: str) -> bytes:
    """The content of data that is compressed as ``gzip``, ``zlib`` or ``xz``. Raises those of UNREADABLE."""
    most = max(LEAST_SUSPECT_BYTES, MOST_TIMES * len(data))
    parts: list[bytes] = []
    found = 0
    while data:
        if kind == "xz":
            machine: Any = lzma.LZMADecompressor()
        else:
            machine = zlib.decompressobj(31 if kind == "gzip" else 15)
        try:
            part = machine.decompress(data, most - found + 1)
        except lzma.LZMAError as error:
            raise ValueError(str(error)) from None
        parts.append(part)
        found += len(part)
        if found > most:
            raise Bomb(f"unpacks to more than {most} bytes")
        if not machine.eof:
            raise EOFError("compressed data ends before its end: is it truncated?")
        data = machine.unused_data.lstrip(b"\0")
    return b"".join(parts)


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, header: Header) -> np.ndarray:
    """The array of a member, unpacked into its own memory piece by piece."""
    import numpy as np

    content = bytearray(header.nbytes)
    at = 0
    with archive.open(member) as stream:
        stream.read(header.at)
        while piece := stream.read(_CHUNK_BYTES):
            content[at : at + len(piece)] = piece
            at += len(piece)
    if at != header.nbytes:
        raise EOFError(f"member '{member.filename}' ends after {at} of {header.nbytes} bytes")
    return np.frombuffer(content, header.dtype).reshape(header.shape, order="F" if header.fortran else "C")


def _header(stream: IO[bytes]) -> Header:
    """Read from the beginning of an array. Raises ValueError for objects, which would have to be unpickled."""
    import numpy as np

    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"version {version} of numpy's format; expected 1.0 or 2.0")
    shape, fortran, dtype = read(stream, max_header_size=_MOST_HEADER_BYTES)
    if dtype.hasobject:
        raise ValueError("holds objects; expected numbers or text")
    if any(type(each) is not int or each < 0 for each in shape):
        raise ValueError(f"a shape of {shape}")
    return Header(shape, fortran, dtype, stream.tell())
