"""The decision hardware in RTL (Amaranth): components, their simulation, and what holds them equal to the tables.

``archsim`` and ``microarch.blocks`` do not import this package; it needs the extra ``archsim[rtl]``.
"""

from __future__ import annotations

from importlib.util import find_spec

HOW_TO_INSTALL = "RTL: pip install 'archsim[rtl]'"


def missing(package: str = "amaranth") -> str | None:
    """What to install for RTL; None if the package is there."""
    return None if find_spec(package) else HOW_TO_INSTALL
