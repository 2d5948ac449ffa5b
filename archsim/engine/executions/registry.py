"""Executions by name: the module of that name in this package, or a user's own ``package.module:class``."""

from importlib import import_module

from archsim.base.own_code import import_function
from archsim.engine.executions.execution import Execution, Setup


def build_execution(name: str, setup: Setup) -> Execution:
    """The execution that the assumption ``execution`` names: ``build(setup)`` of its module, or of a user's function.

    Raises ValueError if a user's function cannot be imported.
    """
    build = import_function(name) if ":" in name else import_module(f"{__package__}.{name}").build
    return build(setup)
