"""The audit finds a point that stands apart, and no step between kernels; fits of fused layers leave it out."""

from functools import lru_cache

import numpy as np
import pandas as pd
import pytest
from support.made_up_layers import layers as made_up

from archsim.cli.main import main
from archsim.evidence.engine_layers import calibrations_shipped
from archsim.laws.calibration_files import calibration_named
from archsim.laws.tables import SECTIONS
from calibration.fit.audit import audit, page_of
from calibration.fit.isolated import apart, spread_of
from calibration.fit.moe import fit_moe

NOISE = 0.01


def rows(**changed):
    """Ten rows of twenty points that scatter by NOISE; one point of the first is moved."""
    found = [NOISE * np.random.default_rng(at).standard_normal(20) for at in range(10)]
    for at, by in changed.get("moved", {}).items():
        found[0][at] += by
    return found


@pytest.mark.parametrize("at", [0, 7, 19])
def test_a_point_far_from_its_neighbours_stands_apart_wherever_it_is(at):
    found = rows(moved={at: 0.3})
    assert np.flatnonzero(apart(found[0], spread_of(found))).tolist() == [at]
    assert not any(apart(row, spread_of(found)).any() for row in found[1:])


def test_a_step_between_kernels_and_what_sweeps_differ_by_are_no_findings():
    stepped = rows(moved=dict.fromkeys(range(10, 20), 0.5))
    assert not apart(stepped[0], spread_of(stepped)).any()
    little = rows(moved={7: 0.045})
    assert not apart(little[0], spread_of(little)).any()


def test_a_fit_leaves_out_what_one_sweep_alone_measured():
    measured = made_up()
    at = measured.index[(measured["ep"] == 4) & (measured["tokens_total"] == 64)]
    measured.loc[at, "latency_us_median"] *= 1.5
    (left_out,) = fit_moe(measured)
    again = measured.assign(run_id="2", latency_us_median=measured["latency_us_median"] * 1.001)
    (kept,) = fit_moe(pd.concat([measured, again], ignore_index=True))
    place = left_out.tokens.index(64.0)
    assert abs(left_out.ranks["4x1"][place]) < 500 < kept.ranks["4x1"][place]  # 10000 ln


def test_the_command_names_every_section_and_writes_the_page(tmp_path, capsys):
    assert main(["validate", "--audit", "--with", "a100", "--out", str(tmp_path / "audit.md")]) == 0
    said, page = capsys.readouterr().out, (tmp_path / "audit.md").read_text(encoding="utf-8")
    assert "a100 moe: 53 tables with " in said and "a100 collectives: 30 tables" in said
    assert page == page_of([calibration_named("a100")]) and "| a100 | moe | 53 | 9,771 | " in page
    assert main(["validate"]) == 2
    assert "missing DIR and --with (or --audit)" in capsys.readouterr().err


# vLLM 0.24.0's FP8 products are 520 to 540 of them, with the quantisation and without: its kernels change from shape to
# shape. The README of the set warns of B200's column, whose spikes it dropped and which is within the bound; it says
# nothing of these three, so that leaving the sweep out has no source yet.
AT_A_COMMIT = ("h100", "h20")


STAND_APART = {("b300", "gemm"): 675, ("gb200", "gemm"): 639, ("gb300", "gemm"): 697}


@lru_cache
def audited(gpu):
    return {each.section: each for each in audit(calibration_named(gpu)) if each.points}


def marks_of(gpu, section):
    """At each commit the first GPUs; an expected failure where the points that stand apart are known."""
    known = STAND_APART.get((gpu, section))
    failing = [pytest.mark.xfail(strict=True, reason=f"{known} points stand apart, mostly vLLM's FP8")] if known else []
    return failing if gpu in AT_A_COMMIT else [pytest.mark.nightly, *failing]


@pytest.mark.parametrize(
    ("gpu", "section"),
    [
        pytest.param(gpu, section, marks=marks_of(gpu, section))
        for gpu in sorted(calibrations_shipped())
        for section in SECTIONS
    ],
)
def test_few_points_of_shipped_tables_stand_apart(gpu, section):
    if each := audited(gpu).get(section):
        assert len(each.found) <= max(0.002 * each.points, 1)


@pytest.mark.nightly
@pytest.mark.parametrize(("place", "most"), STAND_APART.items())
def test_no_more_stand_apart_than_are_known(place, most):
    assert len(audited(place[0])[place[1]].found) <= most
