"""``sum`` of floats as before Python 3.12, which compensates errors: the same last digits in every version."""

from collections.abc import Iterable
from functools import reduce
from operator import add
from typing import Any


def sum(values: Iterable[Any], start: Any = 0) -> Any:
    """``start`` and the values, added one after the other, as Python up to 3.11 does."""
    return reduce(add, values, start)
