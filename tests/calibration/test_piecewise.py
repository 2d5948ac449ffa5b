"""The law of transfers: pieces, and what it says of sizes that were not measured."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archsim.laws.tables import Quantiles, TransferTable
from archsim.laws.transfers import PiecewiseLaw, law_of

LAW = PiecewiseLaw((64.0, 4096.0), (2000.0, 3000.0), (0.5, 0.1), 64.0, 2.0**20)


def test_a_piece_begins_at_its_size():
    assert LAW.time_ns([64, 4095, 4096, 2**20]).tolist() == [
        2032.0, 2000 + 4095 * 0.5, 3000 + 4096 * 0.1, 3000 + 2**20 * 0.1
    ]
    assert float(LAW.time_ns(4096)) == 3000 + 4096 * 0.1


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_times_have_the_shape_of_sizes(shape):
    assert LAW.time_ns(np.full(shape, 128)).shape == shape == LAW.extrapolates(np.full(shape, 128)).shape


def test_below_the_smallest_size_the_time_holds_and_above_the_largest_the_line_goes_on():
    below, above = 1.0, 2.0**30
    assert LAW.time_ns(below) == LAW.time_ns(64)
    assert LAW.time_ns(above) == 3000 + above * 0.1
    assert LAW.extrapolates([63, 64, 2**20, 2**20 + 1]).tolist() == [True, False, False, True]


@given(
    st.lists(st.integers(1, 2**30), min_size=1, max_size=5, unique=True).map(sorted),
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1)), min_size=5, max_size=5),
    st.floats(1, 2**31),
)
def test_a_time_is_that_of_the_last_piece_that_has_begun(begins, pieces, size):
    latency_ns, ns_per_byte = zip(*pieces[: len(begins)], strict=True)
    table = TransferTable(
        library="made up", version="1", source="none", of={}, from_bytes=begins, latency_ns=latency_ns, ns_per_byte=ns_per_byte,  # noqa: E501
        first_bytes=begins[0], last_bytes=2**30, residuals=Quantiles(p05=0, p50=0, p95=0, points=1),
    )  # fmt: skip
    at = max(size, begins[0])
    piece = max(i for i, begin in enumerate(begins) if begin <= at)
    assert float(law_of(table).time_ns(size)) == latency_ns[piece] + at * ns_per_byte[piece]
