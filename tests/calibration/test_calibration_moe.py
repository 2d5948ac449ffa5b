"""Laws of fused MoE layers: loads of ranks are conserved, what layers were made of is found again, outliers stay alone."""  # noqa: E501

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.made_up_layers import LAW, MODEL, layers

from archsim.laws import moe as routing
from archsim.laws.moe import POINT
from archsim.laws.tables import CalibrationSpec, Reference
from archsim.studies.validation import errors
from archsim.studies.validation import errors as validate
from calibration.fit import moe
from calibration.fit.fit import fit_measurements
from calibration.fit.moe import draw_noise, fit_moe, left_out_errors, moe_ns, moe_pools
from calibration.measurements.reading import Measurements

SKEWED = "power_law_1.2"
ROUTINGS = [("balanced", name) for name in (routing.BALANCED, routing.GROUPED)] + [
    (SKEWED, name) for name in (routing.RANK_BY_RANK, routing.SMALLEST_FIRST, routing.GROUPED_DRAWS)
]


def loads(how, ep, tokens, distribution=SKEWED):
    return routing.rank_loads({**MODEL, "distribution": distribution}, how, LAW, np.array([ep]), np.array([tokens]))


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

    @pytest.mark.parametrize("how", [routing.RANK_BY_RANK, routing.SMALLEST_FIRST])
    def test_more_ranks_have_less_each(self, how):
        pairs = [loads(how, ep, 512)[0][0] for ep in (1, 2, 4, 8, 16, 32, 64, 128)]
        assert pairs == sorted(set(pairs), reverse=True)

    def test_few_tokens_smallest_first_are_on_one_rank_and_rank_by_rank_on_all(self):
        assert loads(routing.SMALLEST_FIRST, 16, 1)[1] > 0.9 * 8
        assert loads(routing.RANK_BY_RANK, 8, 1)[1] < 2

    def test_groups_send_half_of_each_token_to_the_first_experts(self):
        pairs, active = loads(routing.GROUPED, 32, 1600, "balanced")
        assert active == 4 and pairs[0] == pytest.approx(1600 * (4 + 4 * 4 / 64), rel=0.1)

    def test_what_a_distribution_may_stand_for(self):
        assert routing.candidates("qwen", "balanced") == (routing.BALANCED,)
        assert routing.candidates("qwen", "measured") == (routing.BY_CHANCE,)
        assert routing.GROUPED_DRAWS in routing.candidates("DeepSeek-V3", "power_law_0.6")
        assert routing.candidates("DeepSeek-V3", "balanced", "deepepmoe-context") == (routing.TILED,)

    @given(st.sampled_from([1, 2, 4, 16, 128]), st.integers(1, 100_000))
    def test_with_an_expert_a_tile_weights_are_read_for_every_tile_at_most(self, ep, tokens):
        (pairs,), (active,) = loads(routing.TILED, ep, tokens, "balanced")
        assert pairs == tokens * 8 / ep
        assert (
            active
            == min(max(pairs / routing.ROWS_OF_TILE, 1), 128 / ep)
            <= loads(routing.BALANCED, ep, tokens, "balanced")[1]
        )


class TestFit:
    @pytest.mark.parametrize("distribution, how", ROUTINGS)
    def test_routing_is_found_and_layers_again(self, distribution, how):
        rows = layers(distribution, how)
        (table,) = fit_moe(rows)
        assert table.routing == how
        times = moe_ns(table, *(rows[name].to_numpy() for name in POINT))
        assert times == pytest.approx(rows["latency_us_median"] * 1e3, rel=0.001)

    def test_what_the_host_takes_to_launch_is_a_floor_and_is_found(self):
        floored = LAW.model_copy(update={"floor_ns": 400_000.0})
        rows = layers(how=routing.TILED, law=floored).assign(kernel="deepepmoe-context")
        (table,) = fit_moe(rows)
        assert table.law.floor_ns == pytest.approx(400_000, rel=0.01)
        ((named, sweeps),) = moe_pools(rows)
        assert left_out_errors(sweeps, named)["error"].abs().mean() < 0.03
        assert fit_moe(layers())[0].law.floor_ns == 0

    def test_ranks_left_out(self):
        ((named, sweeps),) = moe_pools(layers())
        errors = left_out_errors(sweeps, named)
        assert len(errors) == 5 * 14 and errors["error"].abs().mean() < 0.03
        assert errors["floor"].isna().all()

    def test_a_rank_with_another_kernel_says_little_about_its_neighbours(self):
        rows = layers()
        rows.loc[(rows["ep"] == 8), "latency_us_median"] *= 3
        ((named, sweeps),) = moe_pools(rows)
        errors = left_out_errors(sweeps, named)["error"].abs().groupby("ep").mean()
        assert errors[[1, 2, 4]].max() < 0.01 and errors[16] < 0.25 and errors[8] > 0.5

    def test_repeats_of_one_version_are_one_table_though_they_disagree(self):
        again = layers().assign(run_id="again")
        again["latency_us_median"] *= 1.2
        (table,) = fit_moe(pd.concat([layers(), again]))
        assert len(table.sweeps) == 2 and {name.partition("/")[2] for name in table.sweeps} >= {"again"}

    def test_releases_that_route_differently_are_apart(self):
        rows = pd.concat(
            [layers(SKEWED, routing.SMALLEST_FIRST, "1.0rc1"), layers(SKEWED, routing.RANK_BY_RANK, "1.0rc2")]
        )
        assert {(t.version, t.routing) for t in fit_moe(rows)} == {
            ("1.0rc1", routing.SMALLEST_FIRST), ("1.0rc2", routing.RANK_BY_RANK)
        }

    def test_kernels_are_apart(self):
        rows = pd.concat([layers().assign(kernel="a"), layers().assign(kernel="b")])
        rows.loc[rows["kernel"] == "b", "latency_us_median"] *= 2
        slow, fast = (moe_ns(table, [4.0], [1.0], [64.0])[0] for table in reversed(fit_moe(rows)))
        assert slow == pytest.approx(2 * fast, rel=0.01)

    def test_draws_scatter_only_where_something_is_drawn(self):
        (drawn,), (balanced,) = fit_moe(layers(SKEWED, routing.RANK_BY_RANK)), fit_moe(layers())
        at = np.array([16.0]), np.array([1.0]), np.array([4096.0])
        assert 0.02 < draw_noise(drawn, *at)[0] < 0.5
        assert np.isnan(draw_noise(balanced, *at)[0])

    def test_equal_measurements_equal_bytes(self):
        rows = layers(SKEWED, routing.RANK_BY_RANK, powers=8)
        first = fit_measurements(Measurements({"moe": rows}), "h100")
        routing._rank_draws.cache_clear()
        routing._counts.cache_clear()
        assert fit_measurements(Measurements({"moe": rows.iloc[::-1]}), "h100") == first


def test_of_noise_between_ranks_none_is_carried():
    """Corrections drawn again at every rank: interpolating them must not be worse than the law alone."""
    generator = np.random.default_rng(3)
    points = tuple(np.array([(ep, 1, 2.0**p) for ep in (1, 2, 4, 8, 16, 32) for p in range(10)], float).T)
    corrections = np.repeat(generator.standard_normal(6) * 0.3, 10)
    _, errors = moe.choose(points, corrections)
    assert np.abs(np.expm1(errors)).mean() <= np.abs(np.expm1(-corrections)).mean() + 1e-9


def test_rows_are_judged_by_the_table_of_their_kernel():
    rows = pd.concat([layers().assign(kernel="a"), layers().assign(kernel="b")], ignore_index=True)
    rows.loc[rows["kernel"] == "b", "latency_us_median"] *= 2
    reference = Reference(peak_flop_per_s={"bf16": 1e15}, hbm_bytes_per_s=3e12, sms=132)
    calibration = CalibrationSpec(gpu="h100", reference=reference, moe=fit_moe(rows))
    cases = validate.moe_cases(calibration, Measurements({"moe": rows}))
    assert len(cases) == len(rows) and cases["error"].abs().max() < 0.01


def test_groups_say_what_is_met():
    cases = validate.rank_out_cases(Measurements({"moe": layers()}), "h100")
    (group,) = errors.layer_groups(cases).to_dict("records")
    assert (group["met"], group["aim"], group["cases"]) == ("yes", errors.AIM_OF["DeepSeek-V3"], 70)
    far = errors.layer_groups(cases.assign(error=0.5)).to_dict("records")[0]
    near = errors.layer_groups(cases.assign(error=0.07, floor=0.08)).to_dict("records")[0]
    assert (far["met"], near["met"]) == ("no", "floor")
    assert not len(errors.layer_groups(cases.iloc[:0]))


def test_the_stricter_aim_is_for_a_model_however_its_name_is_written():
    cases = validate.rank_out_cases(Measurements({"moe": layers()}), "h100")
    two = pd.concat(
        [cases.assign(model=name) for name in ("deepseek-v3", "DeepSeek-V3", "Own", "own")], ignore_index=True
    )
    found = errors.layer_groups(two).set_index("model")
    assert list(found["cases"]) == [140, 140]
    assert dict(found["aim"]) == {"DeepSeek-V3": errors.AIM_OF["DeepSeek-V3"], "Own": errors.AIM}
