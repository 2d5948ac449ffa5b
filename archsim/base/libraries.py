"""What libraries find where archsim runs: nothing of the current folder, and machine code of trusted people. numba
reads ``.numba_config.yaml`` of the current folder as it is loaded and before every compilation
(``numba/core/config.py``), and no variable turns this off: it is loaded with the package's folder as the current one,
then made to look for a file that nobody has.
"""

import os
import sys
from collections.abc import Callable
from contextlib import chdir, nullcontext
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
LOADED_ELSEWHERE = ("numba",)
_FOR_ALL = 0o002  # stat.S_IWOTH


class Elsewhere(MetaPathFinder):
    """Loads `LOADED_ELSEWHERE` in the package's folder. Other threads see that folder as the current one meanwhile."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname not in LOADED_ELSEWHERE:
            return None
        for finder in sys.meta_path:
            if not isinstance(finder, Elsewhere) and (spec := finder.find_spec(fullname, path, target)) is not None:
                if spec.loader is not None:
                    vars(spec.loader)["exec_module"] = _elsewhere(spec.loader.exec_module)
                return spec
        return None


def _elsewhere(execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def execute_there(module: ModuleType) -> None:
        with chdir(PACKAGE) if _has_folder() else nullcontext():
            execute(module)
            _without_file()

    return execute_there


def _has_folder() -> bool:
    try:
        return bool(os.getcwd())
    except OSError:  # it was removed: nothing is read there
        return False


def user_cache() -> Path:
    """Where this user's caches of archsim are; a relative ``XDG_CACHE_HOME`` is ignored, as its specification says."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    return Path(named if os.path.isabs(named) else os.path.expanduser("~/.cache")) / "archsim"


def find_nothing_here() -> None:
    """From now on libraries read no file of the current folder, also where numba was loaded before."""
    sys.meta_path.insert(0, Elsewhere())
    _without_file()


def _without_file() -> None:
    """Settings of numba are those of the environment alone."""
    if (config := sys.modules.get("numba.core.config")) is not None:
        vars(config)["_config_fname"] = os.devnull
        config.reload_config()


def is_trusted(path: str | Path) -> bool:
    """Whether a file or folder that is to be unpickled is of this user, of root or of whoever owns the package, and no
    more open to others than the package. True where the system does not say (Windows). Raises OSError as ``stat`` does.
    """
    if not hasattr(os, "geteuid"):
        return True
    found, package = os.stat(path), os.stat(__file__)
    return found.st_uid in (os.geteuid(), 0, package.st_uid) and not found.st_mode & ~package.st_mode & _FOR_ALL
