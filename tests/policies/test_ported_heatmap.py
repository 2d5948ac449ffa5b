"""Of archsim.policies.ported_heatmap."""

import numpy as np
import pytest
from reference.ported_heatmap import SlowHeatmap
from support.examples import sampled

from archsim.policies.ported_heatmap import COUNTER_LIMIT, PortedHeatmap
from archsim.traffic.trace import StepTokens


def prompt(experts):
    """One request whose prompt tokens choose these experts, int[token, rank], in one layer; then one decode token."""
    tokens = np.array(experts, np.int16)[:, None, :]
    yield StepTokens(0, np.zeros(len(tokens), np.int32), tokens)
    yield StepTokens(1, np.zeros(1, np.int32), tokens[:1])


@pytest.mark.parametrize(("top_k", "tokens", "limit"), sampled(
    [(1, 150_000, 150_000), (2, 90_000, 80_000), (3, 500, 90), (2, 0, 5)], lambda case: case[0] > 1
))  # fmt: skip
def test_heatmap_counts_as_the_slow_one_does_also_where_counters_are_full(top_k, tokens, limit):
    """A full counter halves its row; experts that follow themselves, and one that stands twice in a token, count
    each time.
    """
    rng = np.random.default_rng(tokens)
    experts = np.minimum(rng.geometric(0.8, (tokens + 1, top_k)) - 1, 4)
    seen = []
    heatmap = PortedHeatmap(prompt(experts), 1, 1, 5, top_k, lambda heat, changed, out: seen.append(heat[0].tolist()))
    slow = SlowHeatmap(prompt(experts), 1, 5, None)
    heatmap.begin(0)
    slow.begin(0)
    assert heatmap.take_in(0, limit) == slow.take_in(0, limit)
    heatmap.begin(1)
    heatmap.hot(0)
    assert seen == [[slow.counts[0, before] for before in range(5)]]
    largest = max(map(max, seen[0]))
    assert largest <= COUNTER_LIMIT
    if tokens > 80_000:
        assert 0 < sum(seen[0][0]) < 0.7 * (experts[:-1] == 0).sum()  # its row was halved
