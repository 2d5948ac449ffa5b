"""One summation of floats for every Python. Since 3.12, ``sum`` compensates the errors of adding floats, so that the
last digits of results would depend on the version that runs (docs.python.org, *Built-in Functions*).
"""

from collections.abc import Iterable
from functools import reduce
from operator import add
from typing import Any


def sum(values: Iterable[Any], start: Any = 0) -> Any:
    """``start`` and the values, added one after the other, as Python up to 3.11 does."""
    return reduce(add, values, start)
