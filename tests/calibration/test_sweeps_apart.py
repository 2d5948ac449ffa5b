"""Sweeps of one release: what counts where they disagree, and which times a table is known to be fitted to."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.measurements.reading import MOST_APART, PLAINLY_SLOWER, consensus, note_of
from calibration.measurements.schema import fingerprints, in_fit

TIMES = st.floats(1.0, 1e6)


def sweeps_of(*columns):
    """Sweeps of one row of cells: ln us, the newest first; None where not measured."""
    index = pd.MultiIndex.from_product([[1.0], range(len(columns[0]))], names=["ep", "tokens"])
    logs = [np.log(np.array(column, float)) for column in columns]
    return pd.DataFrame(dict(zip("cba", logs, strict=False)), index=index)


@given(st.lists(TIMES, min_size=1, max_size=3), st.floats(1.0, MOST_APART - 0.001))
def test_sweeps_that_agree_count_by_their_median(times, factor):
    sweeps = sweeps_of(times, [time * factor for time in times], [None] * len(times))
    assert np.exp(consensus(sweeps)).tolist() == pytest.approx([time * factor**0.5 for time in times])
    assert note_of(sweeps) == ""


@given(TIMES, st.floats(MOST_APART + 0.001, 100))
def test_of_two_that_disagree_the_newer_counts(time, factor):
    for newest, other in ((time, time * factor), (time * factor, time)):
        sweeps = sweeps_of([newest, 1.0], [other, 1.0])
        assert np.exp(consensus(sweeps)).tolist() == pytest.approx([newest, 1.0])
        assert "apart at 1 of 2 points" in note_of(sweeps) and note_of(sweeps).endswith("as in c")


@given(TIMES, st.floats(PLAINLY_SLOWER + 0.001, 100), st.booleans())
def test_of_two_of_one_version_the_faster_counts_at_each_point(time, factor, swapped):
    columns = [time, time * factor, time], [time * factor, time, time]
    sweeps = sweeps_of(*columns[:: -1 if swapped else 1]).rename(columns={"c": "2.8/2", "b": "2.8/1"})
    assert np.exp(consensus(sweeps)).tolist() == pytest.approx([time] * 3)
    assert "apart at 2 of 3 points" in note_of(sweeps)


@given(TIMES, st.floats(2.3, 100), st.permutations(range(3)))
def test_of_three_those_that_agree_count(time, factor, order):
    times = np.array([time, time * 1.01, time * factor])[list(order)]
    sweeps = sweeps_of(*([each] for each in times))
    assert np.exp(consensus(sweeps)).tolist() == pytest.approx([time * 1.01**0.5])
    odd = "cba"[list(order).index(2)]
    assert note_of(sweeps).endswith("as in " + ", ".join(name for name in "cba" if name != odd))


@given(st.lists(st.one_of(st.none(), TIMES), min_size=1, max_size=20))
def test_a_fitted_time_is_known_and_a_missing_one_is_not(times):
    sweeps = sweeps_of(times, [None] * len(times))
    logs = np.log(np.array(times, float))
    at = np.arange(len(times))
    known = in_fit(fingerprints(sweeps), np.zeros(len(times), int), at, np.nan_to_num(logs))
    assert known.tolist() == [time is not None for time in times]
    assert not in_fit(fingerprints(sweeps), np.full(len(times), -1), at, logs).any()
    assert not in_fit((), np.zeros(len(times), int), at, logs).any()


def test_other_times_are_taken_for_fitted_ones_once_in_four_thousand():
    times = np.geomspace(1, 1e6, 4000)
    prints = fingerprints(sweeps_of(times))
    cells = np.zeros(len(times), int), np.arange(len(times))
    assert in_fit(prints, *cells, np.log(times)).all()
    mistaken = [in_fit(prints, *cells, np.log(times * factor)).sum() for factor in (1.0001, 1.01, 2.0)]
    assert max(mistaken) <= 6


def test_fingerprints_forgive_the_last_digits_of_a_logarithm():
    logs = sweeps_of(np.geomspace(1, 1e6, 1000))
    assert fingerprints(logs) == fingerprints(logs * (1 + 1e-15))
