"""Digests of the sources that decide numbers, and of those that are compiled; numba's cache is named by the latter.

What a source file may change is declared by rooms. A test holds the declarations against the graph of imports.

numba finds out when the file of a compiled function changes, but not when a function that was inlined into it does, or a constant,
in another file. So machine code is kept in a folder named by the digest of all sources that hold any, and is never stale.
"""

import hashlib
import os
import shutil
import sys
import time
from functools import lru_cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
# What decides numbers: rooms and files, relative to the checkout. A kept run is a result of these.
DECIDING = (
    "archsim/base/kernels.py", "archsim/base/threads.py", "archsim/specs", "archsim/workload", "archsim/policies", "archsim/engine",
    "archsim/runs/run.py", "archsim/runs/simulator.py", "archsim/runs/columns.py", "archsim/runs/measure.py", "archsim/runs/measure_units.py",
    "archsim/runs/economics.py", "calibration/laws", "microarch/blocks", "microarch/fabric", "microarch/silicon",
)  # fmt: skip
# What simulating a run imports as well, and cannot change a number: messages, files, this module, how many threads there are.
INERT = (
    "archsim/base/code_digest.py", "archsim/base/cores.py", "archsim/base/errors.py", "archsim/base/files.py", "archsim/base/nearest.py",
    "archsim/base/tables.py", "archsim/runs/results.py",
)  # fmt: skip
# What holds compiled functions, and constants that are compiled into them.
COMPILED = (
    "archsim/base/kernels.py", "archsim/specs/model.py", "archsim/workload", "archsim/policies", "archsim/engine", "calibration/laws",
    "microarch/blocks", "microarch/fabric",
)  # fmt: skip
_KEPT_S = 7 * 24 * 3600.0


@lru_cache(maxsize=1)
def numbers_digest() -> str:
    """12 hex digits that change with any source file that a result may depend on."""
    return digest_of(_PACKAGE.parent, DECIDING)


def digest_of(checkout: Path, rooms: tuple[str, ...]) -> str:
    """12 hex digits of the names and the content of all Python files in ``rooms``: folders, or files."""
    digest = hashlib.sha256()
    for room in rooms:
        for file in [checkout / room] if room.endswith(".py") else sorted((checkout / room).rglob("*.py")):
            digest.update(f"{file.relative_to(checkout).as_posix()} ".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def keep_machine_code() -> None:
    """Set ``NUMBA_CACHE_DIR``, unless the user has: in the checkout, or in the environment archsim is installed in.

    Has an effect before numba is imported only. Where the folder cannot be made, numba chooses one itself.
    """
    if "NUMBA_CACHE_DIR" in os.environ:
        return
    checkout = _PACKAGE.parent
    folder = (checkout if (checkout / "pyproject.toml").is_file() else Path(sys.prefix)) / ".numba_cache"
    mine = folder / digest_of(checkout, COMPILED)
    try:
        if not mine.is_dir():
            mine.mkdir(parents=True)
            _remove_unused(folder)
        os.utime(mine)
    except OSError:
        return
    os.environ["NUMBA_CACHE_DIR"] = str(mine)


def nothing_compiled() -> bool:
    """Whether the folder of machine code is known and holds none: what is run first is compiled first."""
    folder = os.environ.get("NUMBA_CACHE_DIR")
    return folder is not None and next(Path(folder).rglob("*.nbi"), None) is None


def _remove_unused(folder: Path) -> None:
    """Remove machine code of other sources that nobody has used for a week."""
    for other in folder.iterdir():
        if time.time() - other.stat().st_mtime > _KEPT_S:
            shutil.rmtree(other, ignore_errors=True)
