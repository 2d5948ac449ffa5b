"""Every experiment on a paper runs, small, and shows what the paper states."""

from pathlib import Path

import numpy as np
import pandas
import pytest
import yaml

from archsim.report.balancers import section
from archsim.report.claims import BALANCERS, Claim
from archsim.report.data import read_report
from archsim.report.published import CLAIMS, Comparison, compare
from archsim.runs.plan import select
from archsim.runs.sweep import sweep
from archsim.specs.loading.library import load_experiment, load_model, load_planned, load_system
from archsim.specs.sweeps.plan import SweepPlan, plan_without_axes

ROOT = Path(__file__).resolve().parents[2]
PAPERS = sorted((ROOT / "configs" / "papers").glob("*.yaml"))
SMALL = ("workload.layers=1", "workload.decode_steps=2", "workload.warmup_steps=1", "workload.batch=256")


@pytest.mark.parametrize("file", PAPERS, ids=lambda file: file.stem)
def test_a_paper_has_an_experiment_that_covers_its_claims(file):
    experiment = load_experiment(file)
    systems, models = ({each.name for each in part} for part in (experiment.systems, experiment.models))
    policies = {each.name for each in experiment.policies}
    covered = [
        claim
        for claim in CLAIMS
        if set(claim.systems) <= systems and set(claim.models) & models and {claim.policy, claim.against} <= policies
    ]
    assert covered


@pytest.mark.parametrize("file", [*PAPERS, ROOT / "configs" / "balancers.yaml"], ids=lambda file: file.stem)
def test_every_run_fits_as_shipped(file):
    planned = load_planned(file)
    plan = planned if isinstance(planned, SweepPlan) else plan_without_axes(planned)
    assert select(plan).plan.combinations >= 3  # refused where one does not fit


def test_a_small_study_of_balancers_says_which_wins_where(tmp_path):
    given = yaml.safe_load((ROOT / "configs" / "balancers.yaml").read_text())
    assert len(given.pop("sweep")["zip"]) == 3
    given |= {"systems": ["dojo", "h200_node"], "models": ["qwen3-235b-a22b"], "policies": ["ep", "craft", "eplb"]}
    given["workload"] |= {"batch": 256, "context": 1, "layers": 1, "decode_steps": 2}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(given))
    sweep(load_experiment(tmp_path / "small.yaml"), tmp_path / "out", jobs=1)
    results = pandas.read_csv(tmp_path / "out" / "results.csv").replace({np.nan: None})
    glances = section(results.to_dict("records"))["glances"]
    assert [each.shared for each in glances] == ["dojo", "h200_node"]
    assert all(float(each.gain.removesuffix("×")) >= 1 for each in glances)


@pytest.mark.parametrize("name", ["capacity", "libra", "remap_dup"])
def test_a_small_run_of_a_paper_has_a_claims_table(name, tmp_path):
    experiment = load_experiment(ROOT / "configs" / "papers" / f"{name}.yaml", SMALL)
    sweep(experiment, tmp_path, jobs=1)
    found = compare(read_report(tmp_path))
    assert {claim.edition for claim in found} <= {claim.edition for claim in BALANCERS} and found
    for claim, (comparison,) in found.items():
        assert comparison.simulated > 0 and any("MoE layers" in each for each in comparison.conditions)
        assert not claim.lacks or claim.lacks in comparison.conditions


def test_claims_name_what_is_shipped():
    assert len(BALANCERS) >= 14
    for claim in BALANCERS:
        assert [load_system(name).name for name in claim.systems] == list(claim.systems)
        assert [load_model(name).name for name in claim.models] == list(claim.models)


def test_a_range_is_met_inside_alone():
    claim = Claim("made up", "a range", "throughput", "eplb", 1.01, ("m",), ("s",), "ep", most=1.05)
    verdicts = [Comparison(claim, "physical", value, 1, ()).kind for value in (1.0, 1.01, 1.03, 1.05, 1.1)]
    assert verdicts == ["below", "met", "met", "met", "above"]
    assert "5" in Comparison(claim, "physical", 1.1, 1, ()).verdict  # above its upper end
