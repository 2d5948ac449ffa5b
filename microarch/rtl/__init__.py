"""The decision hardware in RTL (Amaranth): components, their simulation, and what holds them equal to the tables.

``archsim`` and ``microarch.blocks`` do not import this package; it needs the extra ``archsim[rtl]``.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, NamedTuple

HOW_TO_INSTALL = "RTL: pip install 'archsim[rtl]'"


class Memory(NamedTuple):
    """A memory behind ports of a component, which is no part of it: ``bits``, of which ``port_bits`` are read in a
    cycle. ``data``: inputs with what is read; ``address``: outputs that name it, in the same cycle; ``written``:
    outputs that it takes over at the end of the cycle. ``selections``: 2:1 selections between it and the component,
    beside those between its macros.
    """

    name: str
    bits: int
    port_bits: int
    data: tuple[str, ...]
    address: tuple[str, ...]
    written: tuple[str, ...] = ()
    selections: int = 0


def ports_of(component: Any) -> dict[str, Any]:
    """Inputs and outputs of a component (Amaranth's signals) by name: that of its attribute, or their own. Those
    without a bit are left out.
    """
    names = {id(value): name for name, value in vars(component).items()}
    return {names.get(id(each), each.name): each for each in [*component.inputs, *component.outputs] if len(each)}


def missing(package: str = "amaranth") -> str | None:
    """What to install for RTL; None if the package is there."""
    return None if find_spec(package) else HOW_TO_INSTALL
