"""Loads of ranks: all pairs are conserved, whatever the routing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.made_up_layers import LAW, MODEL

from archsim.laws import rank_load

SKEWED = "power_law_1.2"
ROUTINGS = [("balanced", name) for name in (rank_load.BALANCED, rank_load.GROUPED)] + [
    (SKEWED, name) for name in (rank_load.RANK_BY_RANK, rank_load.SMALLEST_FIRST, rank_load.GROUPED_DRAWS)
]


def loads(how, ep, tokens, distribution=SKEWED):
    return rank_load.rank_loads({**MODEL, "distribution": distribution}, how, LAW, np.array([ep]), np.array([tokens]))


class TestLoads:
    @settings(max_examples=25)
    @given(st.sampled_from(ROUTINGS), st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128]), st.integers(1, 3000))
    def test_a_rank_has_at_least_its_share_and_at_most_all(self, of, ep, tokens):
        distribution, how = of
        (pairs,), (active,) = loads(how, ep, tokens, distribution)
        total = tokens * MODEL["top_k"]
        assert total / ep * 0.99 - 1 <= pairs <= total * 1.01 + 1
        assert 1 <= active <= 128 / ep
        assert active <= max(pairs, 1) + 1e-9

    @pytest.mark.parametrize("distribution, how", ROUTINGS)
    def test_one_rank_computes_all(self, distribution, how):
        assert loads(how, 1, 512, distribution)[0] == pytest.approx(512 * 8, rel=0.01)

    @pytest.mark.parametrize("how", [rank_load.RANK_BY_RANK, rank_load.SMALLEST_FIRST])
    def test_more_ranks_have_less_each(self, how):
        pairs = [loads(how, ep, 512)[0][0] for ep in (1, 2, 4, 8, 16, 32, 64, 128)]
        assert pairs == sorted(set(pairs), reverse=True)

    def test_few_tokens_smallest_first_are_on_one_rank_and_rank_by_rank_on_all(self):
        assert loads(rank_load.SMALLEST_FIRST, 16, 1)[1] > 0.9 * 8
        assert loads(rank_load.RANK_BY_RANK, 8, 1)[1] < 2

    def test_groups_send_half_of_each_token_to_the_first_experts(self):
        pairs, active = loads(rank_load.GROUPED, 32, 1600, "balanced")
        assert active == 4 and pairs[0] == pytest.approx(1600 * (4 + 4 * 4 / 64), rel=0.1)

    def test_what_a_distribution_may_stand_for(self):
        assert rank_load.candidates("qwen", "balanced") == (rank_load.BALANCED,)
        assert rank_load.candidates("qwen", "measured") == (rank_load.BY_CHANCE,)
        assert rank_load.GROUPED_DRAWS in rank_load.candidates("DeepSeek-V3", "power_law_0.6")
        assert rank_load.candidates("DeepSeek-V3", "balanced", "deepepmoe-context") == (rank_load.TILED,)

    @given(st.sampled_from([1, 2, 4, 16, 128]), st.integers(1, 100_000))
    def test_with_an_expert_a_tile_weights_are_read_for_every_tile_at_most(self, ep, tokens):
        (pairs,), (active,) = loads(rank_load.TILED, ep, tokens, "balanced")
        assert pairs == tokens * 8 / ep
        assert (
            active
            == min(max(pairs / rank_load.ROWS_OF_TILE, 1), 128 / ep)
            <= loads(rank_load.BALANCED, ep, tokens, "balanced")[1]
        )

    def test_draws_are_the_same_whenever_they_are_made(self):
        first = loads(rank_load.RANK_BY_RANK, 16, 300)
        rank_load._rank_draws.cache_clear()
        rank_load._counts.cache_clear()
        assert np.array_equal(first, loads(rank_load.RANK_BY_RANK, 16, 300))
