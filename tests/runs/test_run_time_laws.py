"""Laws of physics are asked of every record, and random experiments of all kinds obey them."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from support.examples import sampled
from support.random_experiments import TOY, random_deployment, random_experiment, records_from, run_of

from archsim.base.errors import ArchsimError
from archsim.runs.notes import law_notes
from archsim.runs.physical_laws import REFUSE, SWITCH, LawBroken, broken_laws, find_broken
from archsim.runs.run import Workspace
from archsim.runs.simulator import Simulator
from archsim.serving.answers.runs import serve_plan

EACH = 10  # experiments of a case


@pytest.mark.parametrize("first", sampled(range(0, 1000, 2 * EACH), lambda first: first == 2 * EACH))
def test_records_of_random_experiments_obey_every_law(first):
    """Of every engine, execution, policy and set of assumptions, on perfect, built, limited and clustered machines."""
    simulator = Simulator()
    for run, record in islice(records_from(first, simulator), EACH):
        assert record["row"]["broken_laws"] is None, run.name  # the first broken law raises LawBroken


@pytest.mark.parametrize(
    ("first", "count"), sampled([(4, 2), *((first, 4) for first in range(0, 240, 4))], lambda case: case[1] == 2)
)
def test_records_of_random_deployments_obey_every_law(first, count):
    served = 0
    for number in range(first, first + count):
        try:
            (run,) = serve_plan(random_deployment(number)).runs()
        except ArchsimError:
            continue
        row = run.simulate(Workspace())["row"]  # the first broken law raises LawBroken
        served += not row["refused"]
        assert row["broken_laws"] is None
    assert served


def small(**workload):
    made = random_experiment(0) | {"systems": [{"like": "dojo", "name": "wafer", "mesh": "2x2"}], "models": [TOY]}
    changes = {"policies": ["eplb"], "assumptions": ["physical"], "engine": "analytical"}
    trace = {"synthetic": {"prompt_tokens": workload.pop("prompt_tokens", 0)}}
    return run_of(made | changes | {"workload": {"trace": trace, "batch": 12, "decode_steps": 3} | workload})


# Table → columns, and by how much more or how many times as much makes them false.
MORE = {
    "row": ("link_bytes", "hbm_bytes", "bound_hbm", "migrated_bytes", "local_hbm_read_bytes"),
    "dies": ("hbm_bytes", "activation_bytes", "tokens", "decode_hbm_bytes", "hbm_busy_ns", "llc_busy_ns"),
    "links": ("bytes", "statistics_bytes", "dispatch_bytes", "utilisation", "dispatch_ns"),
}
TIMES = {
    "row": {"over_roofline": 1e-9, "local_hbm_read_bytes": 0.1},
    "dies": dict.fromkeys(("hbm_utilisation", "compute_utilisation"), 1e9),
    "frames": dict.fromkeys(("hbm", "array", "link"), 1e9),
}


def test_what_cannot_be_is_said_in_words_and_refused_in_tests(monkeypatch):
    """One number of each kind that is wrong is enough."""
    found = []
    monkeypatch.setattr("archsim.runs.simulator.broken_laws", lambda *made: found.append(made) or iter(()))
    Simulator().record(small())
    ((finished, record),) = found
    assert not list(broken_laws(finished, record))
    changes = [(table, name, 1.0, 1e10) for table, names in MORE.items() for name in names]
    changes += [(table, name, times, 0) for table, of in TIMES.items() for name, times in of.items()]
    for table, column, times, more in changes:
        values = np.asarray(record[table][column]) * times + more
        false = record | {table: record[table] | {column: values.tolist()}}
        assert list(broken_laws(finished, false)), (table, column)
    with pytest.raises(LawBroken, match="the run: 2 is 3"):
        find_broken(iter(["2 is 3"]), "the run")
    monkeypatch.delenv(SWITCH)
    row = record["row"] | {"broken_laws": find_broken(iter(["2 is 3"]), "the run")}
    (note,) = law_notes([row, record["row"]])
    assert "1 of 2 runs disobeys" in note and "2 is 3" in note and not law_notes([record["row"]])
    assert REFUSE == "refuse"


# (prompt tokens, warm-up) → iterations. A prompt of one token is like a decode, of which the warm-up leaves one out.
COUNTED = {(0, 0): 3, (1, 0): 4, (2, 0): 4, (0, 1): 2, (1, 1): 3, (2, 1): 2}


@pytest.mark.parametrize(("prompt_tokens", "warmup_steps"), COUNTED)
def test_means_are_taken_over_iterations_that_ran_and_count(prompt_tokens, warmup_steps):
    """A request alone has top_k active experts in every iteration; ``nominal`` counts it once an iteration."""
    run = small(prompt_tokens=prompt_tokens, warmup_steps=warmup_steps, batch=1)
    nominal = replace(run, assumptions=run.assumptions.model_copy(update={"throughput": "nominal"}))
    row, iterations = Simulator().record(nominal)["row"], COUNTED[prompt_tokens, warmup_steps]
    assert row["active_experts"] == run.model.top_k
    assert row["throughput_tokens_per_s"] * row["decode_ns"] / 1e9 == pytest.approx(iterations)
