"""Functions of users, named ``package.module:function`` in their files: the one place where such code is imported,
unless ``ARCHSIM_NO_CODE`` is set (docs/trust.md).

A module is looked for below the current folder (``verify``: below ``code/`` of the report), then among installed ones.
The folder is never on ``sys.path``: its modules are parts of a package of a private name.
"""

import builtins
import hashlib
import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from archsim.base.errors import ArchsimError, did_you_mean

NO_CODE = "ARCHSIM_NO_CODE"
CODE_FOLDER = "ARCHSIM_CODE_FOLDER"
"""Environment variable: the folder whose files are users' modules, if it is not the current one; workers inherit it."""
LOG = logging.getLogger(__name__)
_OURS = ("archsim", "microarch", "calibration")
_PRIVATE = "_archsim_own_"
_STAMP = "__archsim_stamp__"  # of the file that a module was run from
_INSTALLED = ("site-packages", "dist-packages")


class CodeNotImported(ArchsimError):
    """Something needs a function that was not to be imported."""

    def __init__(self, target: str) -> None:
        super().__init__(f"{target} is code that the file names, and code is not to be imported")


def import_function(target: str) -> Callable[..., Any]:
    """Import the function ``package.module:function``. Raises ValueError that says whether module or function is
    missing. Where code is not to be imported, the function returned raises ArchsimError when it is called.
    """
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute.isidentifier():
        raise ValueError(f"{target!r} does not name a function; expected package.module:function")
    if not is_ours(module_name) and os.environ.get(NO_CODE):
        return _not_imported(target)
    try:
        module = module_of(module_name)
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything while it is imported
        said = str(error).replace(_private_name(code_folder()) + ".", "")
        raise ValueError(f"cannot import module {module_name!r}: {type(error).__name__}: {said}") from None
    function = getattr(module, attribute, None)
    if function is None:
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ValueError(f"module {module_name!r} has no function {attribute!r}{did_you_mean(attribute, names)}")
    if not callable(function):
        raise ValueError(f"{target!r} is not a function but {type(function).__name__}")
    return function


def is_ours(module_name: str) -> bool:
    """Whether a module is one of archsim's own, which are never looked for in the folder of users' code."""
    return module_name.partition(".")[0] in _OURS


def module_of(module_name: str) -> ModuleType:
    """The module that users' functions are named in, imported anew with its neighbours if a file of theirs was edited.
    Raises what importing it raises.
    """
    folder = code_folder()
    name = f"{_private_name(folder)}.{module_name}"
    if is_ours(module_name) or not _is_below(folder, module_name):
        name = module_name
    if name != module_name:
        _forget_edited(_private_name(folder))
    if not is_ours(module_name) and name not in sys.modules:
        LOG.info("imports and runs the module %s, which a file names (docs/trust.md; --no-code)", module_name)
    if name != module_name:
        _add_package(folder)
    return importlib.import_module(name)


def _forget_edited(package: str) -> None:
    """Drop the loaded modules of a folder of users' code if a file of theirs is no longer what was run."""
    loaded = {name: module for name, module in sys.modules.items() if name.startswith(f"{package}.")}
    if any(vars(module).get(_STAMP) != _stamp(vars(module).get("__file__")) for module in loaded.values()):
        for name in loaded:
            del sys.modules[name]


def stamp_of(module_name: str) -> tuple[int, int] | None:
    """When the file of a user's module was written, and its size, without importing it; None for an installed one."""
    return _stamp(str(Path(code_folder(), *module_name.split(".")).with_suffix(".py")))


def _stamp(file: str | None) -> tuple[int, int] | None:
    """When a file was written, and its size. None for a folder, or for a file that is gone."""
    try:
        found = os.stat(file) if file else None
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size)


def is_in_folder(module: ModuleType) -> bool:
    """Whether a module was loaded from the folder of users' code, not from an installed package."""
    return module.__name__.startswith(_PRIVATE)


def code_folder() -> str:
    """Where the files of users' modules are."""
    return os.environ.get(CODE_FOLDER) or os.getcwd()


def _private_name(folder: str) -> str:
    return _PRIVATE + hashlib.sha256(folder.encode(errors="surrogateescape")).hexdigest()[:12]


def _is_below(folder: str, module_name: str) -> bool:
    base = Path(folder, *module_name.split("."))
    spec = PathFinder.find_spec(base.name, [str(base.parent)]) if base.name and base.parent.is_dir() else None
    return spec is not None and spec.origin is not None


def _add_package(folder: str) -> None:
    if (name := _private_name(folder)) not in sys.modules:
        package = ModuleType(name)
        package.__path__ = [folder]
        sys.modules[name] = package
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


class _Finder:
    """Finds modules of folders of users' code. They are run from their source: kept bytecode could be of another."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not name.startswith(_PRIVATE) or path is None:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader, spec.cached = _Loader(name, spec.loader.path), None
        return spec


class _Loader(SourceFileLoader):
    def path_stats(self, path: Any) -> Any:
        raise OSError("bytecode is neither read nor written")

    def exec_module(self, module: ModuleType) -> None:
        package = module.__name__.partition(".")[0]
        vars(module)["__builtins__"] = vars(builtins) | {"__import__": _import_beside(package)}
        vars(module)[_STAMP] = _stamp(self.path)
        super().exec_module(module)


def _import_beside(package: str) -> Callable[..., Any]:
    """``__import__`` of users' modules: it also finds their neighbours, after what is installed."""

    def find(name: str, globals=None, locals=None, fromlist=(), level=0) -> Any:
        top = name.partition(".")[0]
        (folder,) = sys.modules[package].__path__
        if level or is_ours(top) or not _is_near(folder, top) or _is_installed(top):
            return builtins.__import__(name, globals, locals, fromlist, level)
        found = builtins.__import__(f"{package}.{name}", globals, locals, fromlist, 0)
        return found if fromlist else getattr(found, top)

    return find


def _is_near(folder: str, top: str) -> bool:
    return PathFinder.find_spec(top, [folder]) is not None


def _is_installed(top: str) -> bool:
    if top in sys.stdlib_module_names:
        return True
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    places = [spec.origin or "", *(spec.submodule_search_locations or ())] if spec else []
    return any(part in Path(place).parts for place in places for part in _INSTALLED)


def _not_imported(target: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise CodeNotImported(target)

    return refuse


@contextmanager
def code_below(folder: Path) -> Iterator[None]:
    """Inside the block, files of users' modules are those below ``folder``, in worker processes, too."""
    with variable(CODE_FOLDER, str(folder.resolve())):
        yield


@contextmanager
def without_code() -> Iterator[None]:
    """Import no code of users inside the block."""
    with variable(NO_CODE, "1"):
        yield


@contextmanager
def safe_path() -> Iterator[None]:
    """Interpreters that are started inside the block do not search the current folder."""
    with variable("PYTHONSAFEPATH", "1"):
        yield


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """Set a variable of the environment inside the block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


@contextmanager
def code_note(stream: Any) -> Iterator[None]:
    """Write a line to ``stream`` for every module of users that is imported inside the block."""
    handler, level = logging.StreamHandler(stream), LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        LOG.setLevel(level)
