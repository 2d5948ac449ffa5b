"""Digests of the sources that affect numbers, and of the compiled sources; the latter names numba's cache folder.

What a source file may change is declared per room. A test checks the declarations against the import graph.

numba notices when the file of a compiled function changes, but not when an inlined function or a constant in another
file does. So machine code is stored in a folder named by the digest of all compiled sources, and is never stale.
"""

import hashlib
import os
import shutil
import sys
import time
import warnings
from functools import lru_cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
# What affects numbers: rooms and files, relative to the checkout. A stored run depends on these.
DECIDING = (
    "archsim/base/causes.py", "archsim/base/compiled.py", "archsim/base/fields.py", "archsim/base/host.py",
    "archsim/base/packing.py", "archsim/base/units.py", "archsim/base/yaml.py", "archsim/specs", "archsim/workload",
    "archsim/policies", "archsim/engine", "archsim/iteration", "archsim/laws", "archsim/runs/run.py",
    "archsim/runs/simulator.py", "archsim/runs/columns.py", "archsim/runs/energy.py",
    "microarch/blocks", "microarch/fabric", "microarch/rtl", "microarch/silicon",
)  # fmt: skip
# Also imported by a run, but unable to change a number: messages, files, this module.
INERT = (
    "archsim/base/code_digest.py", "archsim/base/errors.py", "archsim/base/files.py", "archsim/base/own_code.py",
    "archsim/base/tables.py", "archsim/extend.py", "archsim/runs/results.py", "archsim/uncertainty",
)  # fmt: skip
# Sources of compiled functions, and of constants compiled into them.
COMPILED = (
    "archsim/base/compiled.py", "archsim/base/packing.py", "archsim/base/units.py",
    "archsim/specs/model.py", "archsim/workload", "archsim/policies", "archsim/engine",
    "archsim/iteration/overlap.py", "archsim/serving", "archsim/laws", "microarch/blocks", "microarch/fabric",
    "microarch/rtl/tables.py",
)  # fmt: skip
_KEPT_S = 7 * 24 * 3600.0
# Seconds that the longest kernels took to compile on one core, measured (machine code of no kernel was kept): with them
# a user who waits is told about how long.
_TAKES_S = {
    "shared.run_step": 20.0, "reserved.run_step": 14.0, "loop.run": 12.0, "walk._walk_in_order": 10.0,
    "walk._walk_held": 7.0, "walk._walk_shared": 5.0, "machines._in_order": 4.0, "machines._shared": 4.0,
    "machines._held": 4.0, "flows._run_events": 4.0,
}  # fmt: skip


@lru_cache(maxsize=1)
def numbers_digest() -> str:
    """12 hex digits that change with every source file on which a result may depend."""
    return digest_here(DECIDING)


def digest_here(rooms: tuple[str, ...]) -> str:
    """``digest_of`` rooms of this checkout."""
    return digest_of(_PACKAGE.parent, rooms)


def digest_of(checkout: Path, rooms: tuple[str, ...]) -> str:
    """12 hex digits from the names and contents of all Python files in ``rooms`` (folders or files)."""
    digest = hashlib.sha256()
    for room in rooms:
        for file in [checkout / room] if room.endswith(".py") else sorted((checkout / room).rglob("*.py")):
            digest.update(f"{file.relative_to(checkout).as_posix()} ".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def keep_compiler() -> None:
    """Remove ``NUMBA_DISABLE_JIT`` from the environment, with a warning: kernels share functions and pointers that only
    compiled code has.
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0"):
        return
    if "numba" in sys.modules:
        raise ImportError("numba was loaded with NUMBA_DISABLE_JIT set, and archsim needs compiled functions: unset it")
    del os.environ["NUMBA_DISABLE_JIT"]
    warnings.warn("NUMBA_DISABLE_JIT is ignored: archsim runs as compiled functions only", stacklevel=3)


def keep_machine_code() -> None:
    """Set ``NUMBA_CACHE_DIR`` unless the user has: to a folder in the checkout, or in the environment where archsim
    is installed.

    Only takes effect before numba is imported. If the folder cannot be created, numba chooses one itself.
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
    """Whether the folder of machine code is known and empty, so that the first run has to compile."""
    return "NUMBA_CACHE_DIR" in os.environ and not functions_compiled()


def functions_compiled() -> int:
    """Number of functions in the folder of machine code, of all processes; 0 where no folder is known."""
    folder = os.environ.get("NUMBA_CACHE_DIR")
    return 0 if folder is None else sum(1 for _ in Path(folder).rglob("*.nbc"))


def seconds_left() -> float:
    """About how long processes still compile one of the longest kernels, in s; 0 where none does.

    A process that compiles a function leaves a lock file, and machine code beside it when it has ended.
    """
    folder, longest_s = os.environ.get("NUMBA_CACHE_DIR"), 0.0
    for lock in [] if folder is None else Path(folder).rglob("*.nbi.lock"):
        takes_s = _TAKES_S.get(lock.name.split("-")[0], 0.0)
        if takes_s and not any(lock.parent.glob(lock.name.removesuffix("nbi.lock") + "*.nbc")):
            longest_s = max(longest_s, takes_s - (time.time() - lock.stat().st_mtime))
    return longest_s


def _remove_unused(folder: Path) -> None:
    """Remove machine code of other source versions that has not been used for a week."""
    for other in folder.iterdir():
        if time.time() - other.stat().st_mtime > _KEPT_S:
            shutil.rmtree(other, ignore_errors=True)
