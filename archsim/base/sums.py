"""One summation of floats for every Python: since 3.12, ``sum`` compensates errors of adding floats, so that last
digits would depend on the version (docs.python.org, *Built-in Functions*).
"""

from collections.abc import Iterable
from functools import reduce
from operator import add
from typing import Any


def sum(values: Iterable[Any], start: Any = 0) -> Any:
    """``start`` and the values, added one after the other, as Python up to 3.11 does."""
    return reduce(add, values, start)
