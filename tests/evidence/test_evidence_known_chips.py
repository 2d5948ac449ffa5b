"""Chips that exist beside what archsim says of them: area, pieces, price, power at work, and tokens as they serve."""

import pytest

from archsim.evidence.known_chips import _texts, known_figures, served_figures


@pytest.mark.nightly
def test_machines_that_exist_serve_within_a_factor_of_two_or_say_why():
    found = list(served_figures())
    outside = [each for each in found if not each.within]
    assert len(found) == 7 and not outside and all(each.source for each in found)
    assert all(each.low < each.found < each.high for each in found)


def test_an_error_follows_from_the_numbers_beside_it():
    for each in known_figures(served=False):
        texts = [text.replace(",", "").strip("%") for text in _texts(each)]
        public, found, error = map(float, (*texts[3:5], texts[7]))
        assert abs(100 * (found / public - 1) - error) < 0.051, each
