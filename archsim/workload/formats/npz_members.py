"""Members of untrusted ``.npz`` files: nothing is unpickled, and zip bombs are refused."""

import zipfile
from pathlib import Path

import numpy as np

from archsim.base.archives import UNREADABLE
from archsim.base.errors import TraceError

LEAST_SUSPECT_BYTES = 64 << 20
MOST_TIMES = 400
"""A member that declares more than LEAST_SUSPECT_BYTES and MOST_TIMES its compressed size is refused: routing has
entropy (recorded traces: at most 20 times), while a zip bomb reaches 1032 times."""


def member_names(path: Path) -> set[str]:
    """The names of a file's members; none if it is not readable."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy") for name in archive.namelist()}
    except UNREADABLE:
        return set()


def load_members(path: Path, wanted: set[str]) -> dict[str, np.ndarray]:
    """Those of the wanted members that a file has. Raises TraceError."""
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                _refuse_bomb(path, info)
        with np.load(path, allow_pickle=False) as archive:
            members = {name: archive[name] for name in archive.files if name in wanted}
    except TraceError:
        raise
    except Exception as error:  # zipfile, zlib and numpy's header parser raise a dozen different exceptions
        raise TraceError(f"{path}: not a readable .npz file ({error})") from error
    for name, member in members.items():
        if not isinstance(member, np.ndarray):
            raise TraceError(f"{path}: member '{name}' is not an array")
    return members


def _refuse_bomb(path: Path, info: zipfile.ZipInfo) -> None:
    if info.file_size > max(LEAST_SUSPECT_BYTES, MOST_TIMES * info.compress_size):
        raise TraceError(
            f"{path}: member '{info.filename}' declares {info.file_size} bytes in {info.compress_size} compressed "
            f"ones; expected at most {MOST_TIMES} times as many"
        )
