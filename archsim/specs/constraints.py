"""Constraints of a sweep: which points are kept. They have their own grammar; nothing is evaluated as code.

    constraint := test { "and" test }
    test       := NAME "fits"  |  sum OP sum { OP sum }          OP: <= < >= > == !=
    sum        := product { ("+" | "-") product }
    product    := atom { ("*" | "/") atom }
    atom       := NUMBER [UNIT]  |  NAME  |  'text'  |  "(" sum ")"  |  "-" atom

A NAME is a key of the experiment by its dotted path, or a measure of the machine that needs no run. Numbers with
units are compared in base units (B, B/s, FLOP/s, ns, Hz). Put blanks around operators, as names may contain ``-`` and
``+``. A word that is not a name is text to the right of == and != (``system.topology.name == torus``). Text has no
other comparison.
"""

import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

from archsim.base.quantities import DIMENSIONS, parse_quantity

_COMPARE = {
    "<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_REAL = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_UNITS = sorted({unit for dimension in DIMENSIONS for unit in dimension.units if unit}, key=len, reverse=True)
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+)(?:\s*(?P<unit>"
    + "|".join(map(re.escape, _UNITS))
    + r")(?![\w/]))?"
    r"|(?P<name>[A-Za-z_]\w*(?:[.+-]?\w+)*)|'(?P<text>[^']*)'|(?P<sign><=|>=|==|!=|[-+*/()<>]))",
    re.ASCII,
)

MOST_WORDS = 200  # of a constraint: its parser descends with every bracket

Lookup = Callable[[str], Any]


"""Value of a name: number (base unit), text, boolean (for ``fits``), or None if the point has no such key."""


class Absent(Exception):
    """The point does not have the key, so the constraint does not apply to it."""


@dataclass(frozen=True)
class Constraint:
    """``text`` as written, its ``names``; ``words``: names that may be text; ``tests``: trees; all must hold."""

    text: str
    names: tuple[str, ...]
    words: frozenset[str]
    tests: tuple[tuple, ...]

    def holds(self, lookup: Lookup) -> Any:
        """Whether a point is kept (of many points bool[point]); constraints on keys it lacks do not apply. Raises
        ValueError for bad comparisons.
        """
        kept: Any = True
        try:
            for test in self.tests:
                kept = kept & _test(test, lookup)
                if not any_of(kept):
                    break
        except Absent:
            pass
        return kept


def parse_constraint(text: str) -> Constraint:
    """Parse a constraint. Raises ValueError that says where the text is invalid and what was expected."""
    parser = _Parser(text)
    tests = [parser.test()]
    while parser.take("name", "and"):
        tests.append(parser.test())
    parser.end()
    names = tuple(dict.fromkeys(name for test in tests for name in _names(test)))
    words = {
        sides[1][1]
        for test in tests
        if test[0] == "compare" and set(test[2]) <= {"==", "!="}
        for sides in [test[1]]
        if sides[1][0] == "name"
    }
    return Constraint(text, names, frozenset(words), tuple(tests))


@dataclass(frozen=True)
class Expression:
    """A sum of a constraint alone: ``text`` as written, the ``names`` in it, its ``tree``."""

    text: str
    names: tuple[str, ...]
    tree: tuple

    @property
    def has_text(self) -> bool:
        return "'" in self.text

    def value(self, lookup: Lookup) -> Any:
        """NaN where a name has no value, and for a division by zero; of many points, float64[point]."""
        try:
            return 1.0 * _value(self.tree, lookup)
        except (Absent, ValueError):
            return math.nan


def parse_expression(text: str) -> Expression:
    """Parse a sum, such as ``throughput / area``. Raises ValueError as `parse_constraint` does."""
    parser = _Parser(text)
    tree = parser.sum()
    parser.end()
    return Expression(text, tuple(dict.fromkeys(_names(tree))), tree)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, Any, int]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise ValueError(f"{text!r}: not understood from {text[at:].strip()[:20]!r} on")
            kind = str(match.lastgroup if match.lastgroup != "unit" else "number")
            value = _quantity(match["number"], match["unit"]) if kind == "number" else match[kind]
            self._tokens.append((kind, value, at))
            at = match.end()
            if len(self._tokens) > MOST_WORDS:
                raise ValueError(f"{text[:40]!r}...: more than {MOST_WORDS} words and signs")
        self._next = 0

    def test(self) -> tuple:
        first = self.sum()
        if first[0] == "name" and self.take("name", "fits"):
            return "fits", first[1]
        sums, signs = [first], []
        while (sign := self._one_of(_COMPARE)) is not None:
            signs.append(sign)
            sums.append(self.sum())
        if not signs:
            raise self._syntax_error(f"one of {' '.join(_COMPARE)}")
        return "compare", tuple(sums), tuple(signs)

    def sum(self) -> tuple:
        return self._chain(self._product, ("+", "-"))

    def _product(self) -> tuple:
        return self._chain(self._atom, ("*", "/"))

    def _chain(self, part: Callable[[], tuple], signs: tuple[str, ...]) -> tuple:
        tree = part()
        while (sign := self._one_of(signs)) is not None:
            tree = (sign, tree, part())
        return tree

    def _atom(self) -> tuple:
        if self._one_of(("(",)):
            tree = self.sum()
            if not self._one_of((")",)):
                raise self._syntax_error("')'")
            return tree
        if self._one_of(("-",)):
            return "-", ("number", 0.0), self._atom()
        if self._next < len(self._tokens) and self._tokens[self._next][0] != "sign":
            kind, value, _ = self._tokens[self._next]
            self._next += 1
            return kind, value
        raise self._syntax_error("a number, a name or '('")

    def take(self, kind: str, value: str) -> bool:
        found = self._next < len(self._tokens) and self._tokens[self._next][:2] == (kind, value)
        self._next += found
        return found

    def _one_of(self, signs) -> str | None:
        return next((sign for sign in signs if self.take("sign", sign)), None)

    def end(self) -> None:
        if self._next < len(self._tokens):
            raise self._syntax_error("the end, or `and`")

    def _syntax_error(self, expected: str) -> ValueError:
        rest = self._text[self._tokens[self._next][2] :].strip() if self._next < len(self._tokens) else ""
        return ValueError(f"{self._text!r}: expected {expected}{f' instead of {rest!r}' if rest else ' at the end'}")


def any_of(found: Any) -> bool:
    """Whether a truth holds; of many points, for any of them."""
    return bool(found.any() if hasattr(found, "any") else found)


def _quantity(number: str, unit: str | None) -> float:
    if unit is None:
        return float(number)
    dimension = next(each for each in DIMENSIONS if unit in each.units)
    return float(parse_quantity(f"{number} {unit}", dimension))


def _names(tree: tuple) -> Iterator[str]:
    if tree[0] in ("name", "fits"):
        yield tree[1]
    elif tree[0] == "compare":
        for each in tree[1]:
            yield from _names(each)
    elif tree[0] in _REAL:
        yield from _names(tree[1])
        yield from _names(tree[2])


def _test(test: tuple, lookup: Lookup) -> Any:
    if test[0] == "fits":
        return bool(_known(test[1], lookup))
    _, sums, signs = test
    values = [_value(each, lookup) for each in sums]
    for sign, left, right in zip(signs, values, values[1:], strict=False):
        if isinstance(left, str) != isinstance(right, str) or (isinstance(left, str) and sign not in ("==", "!=")):
            raise ValueError(f"{left!r} {sign} {right!r}: cannot be compared with {sign}")
    holding = (_COMPARE[sign](left, right) for sign, left, right in zip(signs, values, values[1:], strict=False))
    return reduce(operator.and_, holding)


def _value(tree: tuple, lookup: Lookup) -> Any:
    if tree[0] == "name":
        return _known(tree[1], lookup)
    if tree[0] in ("number", "text"):
        return tree[1]
    left, right = _value(tree[1], lookup), _value(tree[2], lookup)
    if isinstance(left, str) or isinstance(right, str):
        raise ValueError(f"{left!r} {tree[0]} {right!r}: text has no arithmetic; compare it with == or !=")
    if tree[0] == "/" and any_of(right == 0):
        raise ValueError("division by zero")
    return _REAL[tree[0]](left, right)


def _known(name: str, lookup: Lookup) -> Any:
    value = lookup(name)
    if value is None:
        raise Absent(name)
    return value
