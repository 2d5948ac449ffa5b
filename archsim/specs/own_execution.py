"""A user's own execution, ``execution: package.module:class``: what it says of itself beside running steps.

All are optional attributes of the class: its docstring, for pages; ``columns``, result columns with their meanings, of
which its method ``counted()`` gives the values; ``bytes_per_die(system, model, batch)``, what it keeps in HBM beside
weights and KV; ``refuse_undeployed(scenario)``, in place of the usual checks of parallel sizes.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from archsim.base.own_code import import_function


def own_execution(name: str) -> Any:
    """The class or function that an assumption ``execution`` names; None for a shipped one. Raises ValueError."""
    return import_function(name) if ":" in name else None


def meaning_of(name: str) -> str:
    """The first paragraph of its docstring."""
    text = inspect.getdoc(own_execution(name)) or "A user's own execution, without a docstring."
    return " ".join(text.partition("\n\n")[0].split())


def columns_of(name: str) -> Mapping[str, str]:
    """Result columns with their meanings; {} for those without."""
    return getattr(own_execution(name), "columns", {})
