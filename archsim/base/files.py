"""Files that are either complete or absent."""

from __future__ import annotations

import errno
import io
import logging
import lzma
import math
import os
import stat
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from zipfile import BadZipFile
from zlib import error as ZlibError

from archsim.base.errors import ArchsimError

if TYPE_CHECKING:
    import numpy as np

DRAFT_SUFFIX = ".draft"
_LOCK = ".lock"  # also says that archsim made the folder
_LONGEST_NAME = 240  # bytes; file systems take 255, and drafts have longer names
_MANIFEST = "manifest.yaml"  # a report without its lock, such as one under version control
LOG = logging.getLogger(__name__)


def regular(path: Path) -> Path:
    """The path itself, of a file that can be read to its end. Raises OSError as opening it would, and for a device or
    a pipe, whose reading may never end; ValueError for a path with a null character.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path


@contextmanager
def write_draft(path: Path, durable: bool = False) -> Iterator[Path]:
    """A temporary path to write to; it is renamed to ``path`` when the block ends without an error.

    durable: sync the content to disk before the rename.
    """
    draft = path.with_name(f".{path.name}{DRAFT_SUFFIX}")
    try:
        yield draft
        if durable:
            with draft.open("rb") as stream:
                os.fsync(stream.fileno())
        draft.replace(path)
    finally:
        with suppress(OSError):  # the error that ended the block says more
            draft.unlink(missing_ok=True)


def write_text(path: Path, text: str, durable: bool = False) -> None:
    """Write UTF-8 text without changing line feeds; the file is replaced atomically."""
    with write_draft(path, durable) as draft:
        draft.write_text(text, encoding="utf-8", newline="")


def write_sealed(path: Path, text: str, durable: bool = False) -> None:
    """Like ``write_text``, but after a line with the CRC-32 of the text."""
    write_text(path, f"{zlib.crc32(text.encode()):08x}\n{text}", durable)


def read_sealed(path: Path) -> str:
    """What ``write_sealed`` wrote. Raises OSError as reading does, and ValueError, after a warning, for a file that is
    damaged or was changed by hand: what it keeps is to be made anew.
    """
    content = path.read_bytes()
    seal, _, text = content.partition(b"\n")
    if seal != b"%08x" % zlib.crc32(text):
        LOG.warning("%s: damaged: its checksum does not match; it is made anew", path)
        raise ValueError(f"{path}: its checksum does not match")
    return text.decode()


def refuse_unwritable(path: Path) -> None:
    """Raise ArchsimError if ``path`` cannot be written. Call it before the work whose result goes there."""
    problem = None
    if path.is_dir():
        problem = "is a directory"
    elif not path.parent.is_dir():
        problem = f"{path.parent} is not a directory"
    elif not os.access(path.parent, os.W_OK):
        problem = f"{path.parent} is read-only"
    if problem:
        raise ArchsimError(f"{path}: cannot be written to: {problem}")


def refuse_no_place(path: Path) -> None:
    """Raise ArchsimError for a name under which neither a file nor a folder can be made: bytes that are no UTF-8 (pages
    and manifests could not name it), ``~``, which only shells expand, or a place that is no folder or read-only.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ArchsimError(f"{path!s:.200}: cannot be written to: its name has bytes that are no UTF-8") from None
    if "\0" in str(path):
        raise ArchsimError(f"{str(path)[:200]!r}: cannot be written to: a null character in its name")
    if path.parts[:1] and path.parts[0].startswith("~"):
        raise ArchsimError(f"{path}: cannot be written to: '~' is expanded by shells. Write the home folder in full")
    try:
        there = path
        while not there.exists() and not there.is_symlink():
            there = there.parent
        if there.is_symlink() and not there.exists():
            raise ArchsimError(f"{path}: cannot be written to: {there} is a link to nothing")
    except (OSError, ValueError) as error:  # too long a name, or a null character
        raise ArchsimError(f"{path!s:.200}: cannot be written to: {error}") from None
    if there != path and not there.is_dir():
        raise ArchsimError(f"{path}: cannot be written to: {there} is not a directory")
    if any(len(os.fsencode(part)) > _LONGEST_NAME for part in path.parts):
        raise ArchsimError(f"{path!s:.200}: cannot be written to: a name of more than {_LONGEST_NAME} bytes")
    if not os.access(there, os.W_OK):
        raise ArchsimError(f"{path}: cannot be written to: {there} is read-only")


def own_folder(folder: Path) -> Path:
    """The folder, made if it is not there. Raises ArchsimError as `refuse_foreign` and `claim` do."""
    refuse_foreign(folder)
    claim(folder)
    return folder


def claim(folder: Path) -> None:
    """Make a folder, or let archsim write into one that is there. Raises ArchsimError if that cannot be."""
    refuse_no_place(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _LOCK).touch()
    except OSError as error:
        raise ArchsimError(f"{folder}: cannot be written to: {error.strerror}") from None


def refuse_foreign(folder: Path) -> None:
    """Raise ArchsimError for a folder with files that archsim did not make, unless it was claimed."""
    try:
        foreign = sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))
    except FileNotFoundError:
        return
    except OSError as error:
        raise ArchsimError(f"{folder}: cannot be written to: {error.strerror}") from None
    if foreign and not (folder / _LOCK).exists() and not _is_report(folder / _MANIFEST):
        raise ArchsimError(
            f"{folder}: has files that archsim did not make, such as {foreign[0]!r}, and nothing is written there. "
            f"Give another folder with --out, or `--out {folder} --force` to write among them"
        )


def _is_report(manifest: Path) -> bool:
    return manifest.is_file() and manifest.read_bytes().startswith(b"manifest:\n")


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Create the folder and lock it against other processes. Raises ArchsimError if it is locked, and as `own_folder`
    does.
    """
    with (own_folder(folder) / _LOCK).open("w") as stream:
        _lock(stream, folder)
        yield


def _lock(stream, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # not a POSIX system: no lock
        return
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ArchsimError(f"{folder}: another sweep is writing there. Choose another folder for this one") from None
    except OSError:  # the file system has no locks
        return


# Archives of others: arrays (``.npy``, ``.npz``) and compressed text, read in bounded memory. Nothing is unpickled.
#
# What a file holds follows from its headers, before anything is unpacked. A file that declares much more than its size
# is refused: recorded routing and tables of measurements shrink to a twentieth at most, a zip bomb to a thousandth.

# KeyError: of a member; RuntimeError: of a version or a cipher of zip; ValueError: of a header of numpy.
UNREADABLE = (OSError, EOFError, ValueError, KeyError, RuntimeError, BadZipFile, ZlibError)
LEAST_SUSPECT_BYTES, MOST_TIMES, MOST_TIMES_OF_PART = 64 << 20, 40, 400
"""What a file may declare: this much, or this many times its compressed size; one part of it may be of few values."""
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
    """The arrays of a file by name; those of ``wanted`` that it has, or all.

    most_bytes: of all arrays together, numbers counted as float64. Raises those of UNREADABLE.
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
