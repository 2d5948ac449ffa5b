"""What would help a deployment most."""

from types import SimpleNamespace

import archsim as ar
from archsim.cli.main import main
from archsim.search.served_why import ServedLever, ServedWhy
from archsim.uncertainty.estimate import Interval


def test_a_lever_that_shortens_a_token_more_than_the_best_of_both_is_named():
    """Ordered by both times; the largest gain of TPOT alone may be another's."""
    host, experts = ServedLever("half the host", -0.34, -0.18, 0.0), ServedLever("faster experts", -0.11, -0.24, 0.0)
    said = [ServedWhy("d", None, {"experts": Interval(0.2, 0.4, 0.6)}, levers).sentence
            for levers in ((host, experts), (host, experts._replace(tpot=-0.1)))]  # fmt: skip
    assert ["faster experts" in each for each in said] == [True, False]


def test_a_change_of_nothing_has_no_sign_and_no_note_is_said_twice(monkeypatch, capsys):
    outcome = SimpleNamespace(why_slow=("the host is slow",), notes=("the host is slow", "a caveat"))
    levers = (ServedLever("faster links", -0.0001, -0.0, 0.031),)
    found = ServedWhy("d", outcome, {"experts": Interval(0.2, 0.4, 0.6)}, levers)
    assert found.changes == [("faster links", "0\u00a0%", "0\u00a0%", "+3.1\u00a0%")]
    monkeypatch.setattr(ar, "why", lambda *_, **__: found)
    assert main(["why", "serve_olmoe"]) == 0
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("the host is slow") == 1 and "a caveat" in printed.err
