"""Copies between two dies on the event engine, against the fitted law and measurements."""

from pathlib import Path

from archsim.engine.demand import build_run_demand
from archsim.evidence.engine_copies import COPY_SIZES
from archsim.specs.library import load_experiment
from archsim.traffic.synthetic import SyntheticTraffic

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def test_the_shipped_validation_experiments_are_one_expert_on_one_die_and_a_copy_between_two():
    experts, copies = (load_experiment(CONFIGS / f"{name}.yaml") for name in ("validate_h100", "validate_h100_copies"))
    assert {system.dies for system in experts.systems} == {1} and {system.dies for system in copies.systems} == {2}
    assert {system.compute.calibration for system in experts.systems} == {"h100"} and copies.systems[
        0
    ].d2d.copies is not None
    assert {each.gemm for each in experts.assumptions} == {"calibrated"}
    assert {model.slice_weights for model in copies.models} == set(COPY_SIZES[::2])
    for experiment in (experts, copies):
        model, synthetic = experiment.models[0], experiment.workload.trace.synthetic
        assert {each.experts for each in experiment.models} == {1}
        demand = build_run_demand(SyntheticTraffic(model, synthetic, 2), 2, 1, 0, origin_dies=None, predictor=None)
        assert demand.has_prefill and demand.tokens[1:].ravel().tolist() == [2]  # decode_ns is one step
