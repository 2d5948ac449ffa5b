"""What would help a deployment most."""

from archsim.search.served_why import ServedLever, ServedWhy
from archsim.uncertainty.estimate import Interval


def test_a_lever_that_shortens_a_token_more_than_the_best_of_both_is_named():
    """Ordered by both times; the largest gain of TPOT alone may be another's."""
    host, experts = ServedLever("half the host", -0.34, -0.18, 0.0), ServedLever("faster experts", -0.11, -0.24, 0.0)
    said = [ServedWhy("d", None, {"experts": Interval(0.2, 0.4, 0.6)}, levers).sentence
            for levers in ((host, experts), (host, experts._replace(tpot=-0.1)))]  # fmt: skip
    assert ["faster experts" in each for each in said] == [True, False]
