"""Files that are either complete or not there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from archsim.base.errors import ArchsimError

DRAFT_SUFFIX = ".draft"


@contextmanager
def drafted(path: Path, durable: bool = False) -> Iterator[Path]:
    """Where to write what is to become ``path``; it gets its name when the block ends without an error.

    durable: the content is on the disk before the name is.
    """
    draft = path.with_name(f".{path.name}{DRAFT_SUFFIX}")
    try:
        yield draft
        if durable:
            with draft.open("rb") as stream:
                os.fsync(stream.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: Path, text: str, durable: bool = False) -> None:
    """Write UTF-8 text with line feeds as they are; the file is replaced as a whole."""
    with drafted(path, durable) as draft:
        draft.write_text(text, encoding="utf-8", newline="")


def refuse_unwritable(path: Path) -> None:
    """Raises ArchsimError if no file can be written there; asked before the work whose result it is to hold."""
    problem = None
    if path.is_dir():
        problem = "is a directory"
    elif not path.parent.is_dir():
        problem = f"{path.parent} is no directory"
    elif not os.access(path.parent, os.W_OK):
        problem = f"{path.parent} is read-only"
    if problem:
        raise ArchsimError(f"{path}: cannot be written to: {problem}")


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Make the folder and hold it against other processes. Raises ArchsimError if it is held or read-only."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / ".lock").open("w")
    except OSError as error:
        raise ArchsimError(f"{folder}: cannot be written to: {error.strerror}") from None
    with stream:
        _lock(stream, folder)
        yield


def _lock(stream, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # not a POSIX system: nothing is held
        return
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ArchsimError(f"{folder}: another sweep is writing there; give this one a folder of its own") from None
    except OSError:  # a file system without locks
        return
