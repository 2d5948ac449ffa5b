"""References of kernels: a named tuple that is handed on as one address."""

from typing import NamedTuple

import numpy as np

from archsim.base.compiled import inner, kernel, outer, reference

ROW = np.dtype([("real", "f8"), ("whole", "i8")], align=True)


class Inside(NamedTuple):
    values: np.ndarray  # float64[n]
    each: int
    wanted: bool


class Outside(NamedTuple):
    inside: Inside
    rows: np.ndarray  # ROW[n]
    pair: tuple
    table: np.ndarray  # int64[n, 2]


@inner
def _value(inside, at):
    return inside.values[at]


@outer
def _work(s, at):
    s.inside.values[at] += s.inside.each
    if s.inside.wanted:
        s.rows[at].real += 1.5
        s.rows[at].whole -= at
    s.table[at, 1] += len(s.pair[0]) + s.pair[1]
    return _value(s.inside, at)


@kernel
def by_value(s):
    total = 0.0
    for at in range(len(s.rows)):
        total += _work(s, at)
    return total


@kernel
def by_reference(s):
    s = reference(reference(s))
    total = 0.0
    for at in range(len(s.rows)):
        total += _work(s, at)
    return total


def test_a_kernel_reads_through_a_reference_what_it_would_read_of_the_tuple():
    def state():
        inside = Inside(np.arange(4.0), 3, True)
        return Outside(inside, np.zeros(4, ROW), (np.zeros(3), 2), np.zeros((4, 2), np.int64))

    one, other = state(), state()
    assert by_value(one) == by_reference(other) == 18.0
    assert other.inside.values.tolist() == [3.0, 4.0, 5.0, 6.0] and other.table[:, 1].tolist() == [5] * 4
    assert other.rows.tolist() == one.rows.tolist() == [(1.5, -at) for at in range(4)]


def test_two_references_in_one_kernel_are_apart():
    @kernel
    def both(one, other):
        one, other = reference(one), reference(other)
        return one.each * 10 + other.each

    assert both(Inside(np.zeros(1), 1, True), Inside(np.zeros(1), 2, False)) == 12
