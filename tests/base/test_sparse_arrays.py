"""Arrays that take memory where they are written."""

import numpy as np

from archsim.base.host import machine_bytes, sparse_zeros


def test_rows_that_nobody_writes_take_no_memory():
    rows = 1 << 20
    columns = 1 << 14 if machine_bytes() is None else 2 * machine_bytes() // (8 * rows)
    array = sparse_zeros((rows, columns))
    array[rows // 2, -1] = 7
    assert array.shape == (rows, columns) and array.dtype == np.int64
    assert array[rows // 2, -1] == 7 and not array[rows // 2 + 1].any() and not array[-1].any()


def test_no_rows():
    assert sparse_zeros((3, 0)).shape == (3, 0)
