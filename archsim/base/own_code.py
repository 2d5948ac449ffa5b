"""Functions of users, named ``package.module:function`` in their files: the one place where such code is imported.

Importing a module executes it (docs/trust.md). With ``ARCHSIM_NO_CODE`` set nothing is imported: a file that names
code can be read, and what would call the code is refused.
"""

import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from archsim.base.errors import ArchsimError
from archsim.base.nearest import did_you_mean

NO_CODE = "ARCHSIM_NO_CODE"
LOG = logging.getLogger(__name__)
_OURS = ("archsim", "microarch", "calibration")


class CodeNotImported(ArchsimError):
    """Something needs a function that was not to be imported."""

    def __init__(self, target: str) -> None:
        super().__init__(f"{target} is code that the file names, and code is not to be imported")


def import_function(target: str) -> Callable[..., Any]:
    """Import the function ``package.module:function``; the current directory is searched, too.

    Raises ValueError that says whether the module or the function is missing. Where code is not to be imported, the
    function returned raises ArchsimError when it is called.
    """
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute.isidentifier():
        raise ValueError(f"{target!r} does not name a function; expected package.module:function")
    if module_name.partition(".")[0] not in _OURS:
        if os.environ.get(NO_CODE):
            return _not_imported(target)
        if module_name not in sys.modules:
            LOG.info("imports and runs the module %s, which a file names (docs/trust.md; --no-code)", module_name)
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything while it is imported
        raise ValueError(f"cannot import module {module_name!r}: {type(error).__name__}: {error}") from None
    function = getattr(module, attribute, None)
    if function is None:
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ValueError(f"module {module_name!r} has no function {attribute!r}{did_you_mean(attribute, names)}")
    if not callable(function):
        raise ValueError(f"{target!r} is not a function but {type(function).__name__}")
    return function


def _not_imported(target: str) -> Callable[..., Any]:
    def refused(*_: Any, **__: Any) -> Any:
        raise CodeNotImported(target)

    return refused


@contextmanager
def without_code() -> Iterator[None]:
    """Import no code of users inside the block."""
    before = os.environ.get(NO_CODE)
    os.environ[NO_CODE] = "1"
    try:
        yield
    finally:
        os.environ.pop(NO_CODE)
        if before is not None:
            os.environ[NO_CODE] = before


@contextmanager
def code_told(stream: Any) -> Iterator[None]:
    """Write a line to ``stream`` for every module of users that is imported inside the block."""
    handler, level = logging.StreamHandler(stream), LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        LOG.setLevel(level)
