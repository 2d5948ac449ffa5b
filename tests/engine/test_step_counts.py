"""What every step counted: the difference of the run's tally before and after it, one row a step of a layer."""

import numpy as np

from archsim.engine.step_counts import MOST_FRAMES, StepCounts


def test_a_long_run_keeps_few_frames_the_last_one_among_them():
    dies = 4
    counts = object.__new__(StepCounts)
    counts._frames, counts._iteration, counts._wait_ns = [], -1, np.zeros(dies)
    counts._ended, counts._together, counts._end_ns = 0, 1, 0.0
    counts.tokens, counts.resource_bytes, counts.busy_ns = np.zeros((3, 2, dies))
    counts.time_ns = np.zeros(2)
    for step in range(1000):
        counts._end_iteration(step)
    ends = [frame.step for frame in counts.frames()]
    assert ends[-1] == 999 and 8 <= len(ends) <= MOST_FRAMES and ends == sorted(set(ends))
    assert len(set(np.diff(ends)[:-1])) == 1
