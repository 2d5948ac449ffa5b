"""The digest of the sources that decide numbers, and numba's cache named by it.

numba finds out when the file of a compiled function changes, but not when a function that was inlined into it does, in
another file. So machine code is kept in a folder named by the digest of all sources, and is never stale.
"""

import hashlib
import os
import shutil
import sys
import time
from functools import lru_cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
# Rooms that decide numbers, relative to the checkout; pages, studies and commands show them and cannot change them.
_DECIDING = (
    "archsim/base", "archsim/specs", "archsim/workload", "archsim/policies", "archsim/engine", "archsim/runs",
    "calibration/laws", "microarch",
)
_KEPT_S = 7 * 24 * 3600.0


@lru_cache(maxsize=1)
def source_digest() -> str:
    """12 hex digits that change with any source file that a result may depend on."""
    digest = hashlib.sha256()
    root = _PACKAGE.parent
    for room in _DECIDING:
        for file in sorted((root / room).rglob("*.py")):
            digest.update(f"{file.relative_to(root).as_posix()} ".encode())
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
    mine = folder / source_digest()
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
