"""Digests of the sources that affect numbers, declared per room and checked by a test, and of the compiled sources:
they name numba's cache folder, as numba does not notice changes of inlined functions and constants of other files.
"""

import atexit
import hashlib
import json
import math
import os
import platform
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from archsim.base.libraries import PACKAGE, is_trusted, user_cache
from archsim.base.sums import sum

# What affects numbers: rooms and files, relative to the checkout. A stored run depends on these.
DECIDING = (
    "archsim/base/causes.py", "archsim/base/compiled.py", "archsim/base/config_files.py", "archsim/base/fields.py",
    "archsim/base/host.py",
    "archsim/base/packing.py", "archsim/base/quantities.py", "archsim/base/replication.py", "archsim/base/sums.py",
    "archsim/base/units.py",
    "archsim/base/validation.py", "archsim/base/yaml.py",
    "archsim/laws", "archsim/model/__init__.py", "archsim/model/attention.py", "archsim/model/checkpoints.py",
    "archsim/model/spec.py", "archsim/machine", "archsim/specs", "archsim/traffic", "archsim/policies",
    "archsim/engine", "archsim/iteration",
    "archsim/runs/clocks.py", "archsim/runs/columns.py", "archsim/runs/energy.py", "archsim/runs/prices.py",
    "archsim/runs/run.py", "archsim/runs/simulator.py",
    "archsim/runs/finished.py", "archsim/runs/measures", "archsim/runs/packed_steps.py",
    "archsim/runs/physical_laws.py",
    "microarch/blocks", "microarch/fabric", "microarch/rtl", "microarch/silicon",
)  # fmt: skip
# Also imported by a run, but unable to change a number: messages, files, this module.
INERT = (
    "archsim/base/answer.py", "archsim/base/code_digest.py", "archsim/base/csv_lines.py", "archsim/base/errors.py",
    "archsim/base/evidence.py",
    "archsim/base/files.py", "archsim/base/libraries.py", "archsim/base/packed_files.py",
    "archsim/base/own_code.py", "archsim/base/tables.py", "archsim/extend.py", "archsim/runs/results.py",
    "archsim/base/uncertain.py", "archsim/model/terms.py",
)  # fmt: skip
# Sources of compiled functions, and of constants compiled into them.
COMPILED = (
    "archsim/base/compiled.py", "archsim/base/packing.py", "archsim/base/replication.py", "archsim/base/units.py",
    "archsim/model/spec.py", "archsim/traffic", "archsim/policies", "archsim/engine",
    "archsim/iteration/overlap.py", "archsim/serving/*.py", "archsim/laws", "microarch/blocks", "microarch/fabric",
    "microarch/rtl/tables.py",
)  # fmt: skip
_KEPT_IN = ".numba_cache"
SHIPPED_FOR = "is_for.json"  # in a folder of shipped machine code: `code_is_for`
_KEPT_S = 7 * 24 * 3600.0
# Seconds of a core that kernels of over 0.3 s take to compile, by what needs them (measured on an EPYC core, nothing
# kept): with them a user who waits sees about how long it takes.
KERNELS: Mapping[str, Mapping[str, float]] = MappingProxyType({
    "runs": {
        "generative._generate": 3.2, "synthetic._fill_alias": 1.1, "generative._fill_tastes": 0.8,
        "generative._kind_of": 0.6, "generative._source_of": 0.4, "step_counts._grow": 1.0,
        "step_counts._add": 0.9, "step_counts._note": 0.6, "gemm.gemm_times": 0.7, "work._complete": 0.5,
        "moves._share_tokens": 0.5, "step_networks._list_routes": 0.3, "ceilings._sums": 0.3, "work._fill_bundles": 0.3,
    },
    "policies": {
        "allocation._place_isca26": 1.9, "heatmap.hot_rows": 1.1, "ported_heatmap._take_in": 0.9,
        "heatmap.copy_bits": 0.7, "heatmap._kth_largest": 0.5, "heatmap._mark": 0.3,
    },
    "shared": {"shared.run_step": 13.9},
    "reserved": {"reserved.run_step": 11.3},
    "analytical shared": {"turns.walk_turns": 5.0, "count.count_step": 1.1, "bookings.count_moves": 0.7},
    "analytical reserved": {"walk._walk_held": 7.0, "count.count_step": 1.1, "bookings.count_moves": 0.7},
    "screening": {"machines._in_order": 2.4, "machines.add_moves": 0.4},
    "serving": {"loop.run": 9.1, "schedulers.vllm_v1": 2.9, "clock.times_of": 0.8},
    "others": {
        "walk._walk_shared": 5.0, "machines._walk_shared": 4.0, "machines._held": 4.0, "simulation._run_events": 4.0,
    },
})  # fmt: skip
_TAKES_S = {name: takes_s for kernels in KERNELS.values() for name, takes_s in kernels.items()}
_JUST_S = 4.0  # after the last kernel, the next may be about to be compiled
_SLOWEST = 10.0  # a busy machine compiles so many times slower than `KERNELS` says; a lock that is older is forgotten


@lru_cache(maxsize=2)
def digest_here(rooms: tuple[str, ...] = DECIDING) -> str:
    """``digest_of`` rooms of this checkout: of those on which a result may depend."""
    return digest_of(PACKAGE.parent, rooms)


def digest_of(checkout: Path, rooms: tuple[str, ...]) -> str:
    """12 hex digits of names and contents of all Python files in ``rooms`` (folders, files, or ``*.py`` of a folder
    without those of folders in it). Raises FileNotFoundError for a room without a file.
    """
    digest = hashlib.sha256()
    for room in rooms:
        files = sorted(checkout.glob(room if room.endswith(".py") else f"{room}/**/*.py"))
        if not files:
            raise FileNotFoundError(f"{checkout / room}: no Python file of this room is there")
        for file in files:
            digest.update(f"{file.relative_to(checkout).as_posix()} ".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def keep_compiler() -> None:
    """Remove ``NUMBA_DISABLE_JIT``, with a warning: kernels share pointers that only compiled code has."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0"):
        return
    if "numba" in sys.modules:
        raise ImportError("numba was loaded with NUMBA_DISABLE_JIT set, and archsim needs compiled functions: unset it")
    del os.environ["NUMBA_DISABLE_JIT"]
    warnings.warn("NUMBA_DISABLE_JIT is ignored: archsim runs as compiled functions only", stacklevel=3)


def keep_machine_code() -> None:
    """Have numba keep machine code in a folder that only trusted people can write to: ``NUMBA_CACHE_DIR``, else one in
    the checkout or environment of archsim, else one of the user's, else one for this process and its children. Warns
    where the user's own is not taken. numba may have been imported before.
    """
    named = os.environ.get("NUMBA_CACHE_DIR")
    if named and _is_kept_by(Path(named)):
        return
    if named:
        warnings.warn(f"NUMBA_CACHE_DIR is ignored: {named} is no absolute path of a folder that you can write to and "
                      "that others cannot", stacklevel=3)  # fmt: skip
    digest = digest_here(COMPILED)
    mine = next((each / digest for each in (_kept_in(), user_cache() / _KEPT_IN) if _is_kept_by(each / digest)), None)
    if mine is None:
        mine = Path(tempfile.mkdtemp(prefix="archsim-"))
        atexit.register(shutil.rmtree, mine, ignore_errors=True)
    with suppress(OSError):
        for used in (mine, installed_code()):
            if used.is_dir():
                os.utime(used)
        if mine.parent.name == _KEPT_IN:
            _remove_unused(mine.parent)
    os.environ["NUMBA_CACHE_DIR"] = str(mine)
    if "numba" in sys.modules:
        sys.modules["numba"].config.CACHE_DIR = str(mine)  # which it read from the environment


def _is_kept_by(folder: Path) -> bool:
    """Whether machine code can be kept in a folder, which is made if it is not there, and be trusted."""
    try:
        if folder.is_absolute():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder.is_absolute() and os.access(folder, os.W_OK) and is_trusted(folder)
    except OSError:
        return False


def _kept_in() -> Path:
    checkout = PACKAGE.parent
    return (checkout if (checkout / "pyproject.toml").is_file() else Path(sys.prefix)) / _KEPT_IN


def installed_code() -> Path:
    """Where building the package leaves machine code of these sources, for this Python."""
    return _kept_in() / f"{digest_here(COMPILED)}-{sys.implementation.cache_tag}-{platform.machine().lower()}"


def code_is_for() -> dict[str, str]:
    """What machine code that travels depends on beside its target, by name."""
    from importlib.metadata import version  # here, as it takes longer to import than all else at the start

    libraries = {name: version(name) for name in ("numba", "llvmlite")}
    return {"sources": digest_here(COMPILED), "python": str(sys.implementation.cache_tag), **libraries}


@lru_cache(maxsize=1)
def shipped_code() -> Path | None:
    """The folder of machine code that came with the package or its installation; None without one for these sources and
    libraries. ``ARCHSIM_MACHINE_CODE`` names another folder, or ``0`` for none.
    """
    named = os.environ.get("ARCHSIM_MACHINE_CODE")
    for folder in [Path(named)] if named else [PACKAGE / "machine_code", installed_code()]:
        with suppress(OSError, ValueError):
            if folder.is_absolute() and json.loads((folder / SHIPPED_FOR).read_text(encoding="utf-8")) == code_is_for():
                return folder
    return None


class MachineCode(NamedTuple):
    """``functions``: how many are compiled, by all processes; ``missing_s``: about how long it takes to compile those
    that a command needs and that are not compiled yet; ``going_on``: whether a process compiles, or has a moment ago.
    """

    functions: int
    missing_s: float
    going_on: bool


def machine_code(expected: Iterable[str] = (), since_s: float = math.inf, processes: int = 1) -> MachineCode:
    """What is in the folder of machine code, where a process that compiles leaves a lock. ``expected``: groups of
    `KERNELS` that the command needs; ``since_s`` (``time.time()``): kernels since then say how fast this machine is;
    ``processes``: that compile at once.
    """
    folder, now_s, functions = os.environ.get("NUMBA_CACHE_DIR"), time.time(), 0
    made: dict[str, float] = {}
    locks: dict[str, float] = {}
    with suppress(OSError):  # another process removes a file meanwhile
        for file in () if folder is None else Path(folder).rglob("*.nb*"):
            kind = made if file.suffix == ".nbc" else locks if file.suffix == ".lock" else {}
            functions += kind is made
            name, at_s = file.name.split("-")[0], file.stat().st_mtime
            kind[name] = max(kind.get(name, 0.0), at_s)
    done = {name: _TAKES_S[name] for name, at_s in made.items() if at_s >= since_s and name in _TAKES_S}
    slower = 1.0 / processes
    if sum(done.values()) > 2:
        slower = min(max((max(made.values()) - since_s) / sum(done.values()), slower), _SLOWEST)
    open_s = {name: now_s - at_s for name, at_s in locks.items() if name not in made and name in _TAKES_S}
    open_s = {name: age_s for name, age_s in open_s.items() if age_s < _SLOWEST * _TAKES_S[name]}
    now = max((max(_TAKES_S[name] * slower * processes - age_s, 1.0) for name, age_s in open_s.items()), default=0.0)
    waiting = {name for group in expected for name in KERNELS[group]} - made.keys() - open_s.keys() - _shipped_names()
    going_on = bool(open_s) or now_s - max([*made.values(), 0.0]) <= _JUST_S
    return MachineCode(functions, now + slower * sum(_TAKES_S[name] for name in waiting), going_on)


@lru_cache(maxsize=1)
def _shipped_names() -> frozenset[str]:
    folder = shipped_code()
    return frozenset() if folder is None else frozenset(file.name.split("-")[0] for file in folder.rglob("*.nbc"))


def _remove_unused(folder: Path) -> None:
    """Remove machine code of other source versions that has not been used for a week."""
    for other in folder.iterdir():
        if time.time() - other.stat().st_mtime > _KEPT_S:
            shutil.rmtree(other, ignore_errors=True)
