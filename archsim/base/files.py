"""Files that are either complete or absent."""

from __future__ import annotations

import errno
import logging
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from archsim.base.errors import ArchsimError

DRAFT_SUFFIX = ".draft"
_LOCK = ".lock"  # also says that archsim made the folder
_LONGEST_NAME = 240  # bytes; file systems take 255, and drafts have longer names
_MANIFEST = "manifest.yaml"  # a report without its lock, such as one under version control
LOG = logging.getLogger(__name__)


def regular(path: Path) -> Path:
    """The path itself, of a file that can be read to its end. Raises OSError as opening it would, and for a device or a
    pipe, whose reading may never end; ValueError for a path with a null character.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path


@contextmanager
def write_draft(path: Path, durable: bool = False) -> Iterator[Path]:
    """A temporary path, renamed to ``path`` if the block ends without an error. durable: sync to disk before."""
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
    """Create and lock the folder. Raises ArchsimError if it is locked, and as `own_folder` does."""
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


"""What a file may declare: this much, or this many times its compressed size; one part of it may be of few values."""
