"""Runs that differ only in how results are counted share a simulation, and have the results of their own."""

import numpy as np
import pytest
from support.tiny import tiny

from archsim.engine.loop import Replay
from archsim.runs.plan import prepare
from archsim.runs.results import NO_DETAILS
from archsim.runs.simulator import Remembered, Simulator
from archsim.specs.assumptions import ASSUMPTIONS, ONLY_OF_GROUPS
from archsim.specs.library import load_assumptions, load_model
from archsim.specs.workload import SyntheticSpec
from archsim.workload.generated import SyntheticTraffic

POLICIES = "policies=[ep, allo, allo+pred, eplb]"
SENT = {"transfer_software", "dispatch", "combine"}
COUNTED = {"hops", "throughput", "overlap"}
SHARED = {
    "published": COUNTED
    | {"arbitration", "reads", "rate_updates", "dispatch", "combine", "transfer_software", "migration"},
    "physical": COUNTED | {"ties", "migration"},
    "groups": COUNTED - {"overlap"} | {"ties", "migration"},
}
BASES = {"groups": ("physical", {"execution": "expert_parallel", "transfer_software": "free"})}  # others: shipped
OF_PREDICTORS = {"heatmap_update", "prediction_rows", "copy_writes", "tables"}


def changed(name):
    """The set, and every set in which one field has another of its values that any system can run."""
    shipped, changes = BASES.get(name, (name, {}))
    base = load_assumptions(shipped, **changes).model_copy(update={"set": name})
    skipped = {"execution", "gemm", "memory"} | (set() if name == "published" else {"arbitration", "reads"} | SENT)
    others = [
        base.model_copy(update={"set": f"{field}-{value}", field: value})
        for field, values in ASSUMPTIONS.items()
        for value in values
        if field not in skipped and value not in (getattr(base, field), *ONLY_OF_GROUPS)
    ]
    return base, others


@pytest.fixture(scope="module", params=sorted(SHARED))
def made(request, tmp_path_factory):
    """The name of a set, and its runs with those of all changed sets."""
    base, others = changed(request.param)
    experiment = tiny(tmp_path_factory.mktemp("shared"), POLICIES).model_copy(update={"assumptions": (base, *others)})
    return request.param, prepare(experiment)


def test_only_fields_that_count_are_shared(made):
    name, prepared = made
    own = {(run.policy.name, run.batch, run.system.name): run for run in prepared.runs if run.assumptions.set == name}
    alike: dict[str, set[str]] = {}
    for run in prepared.runs:
        if run.simulation == own[run.policy.name, run.batch, run.system.name].simulation:
            alike.setdefault(run.policy.name, set()).add(run.assumptions.set.partition("-")[0])
    expected = SHARED[name] | {name}
    plain = expected | OF_PREDICTORS
    assert alike == {"ep": plain, "allo": plain, "allo+pred": expected, "eplb": plain - {"migration"}}


def test_results_are_those_of_simulations_of_their_own(made, monkeypatch):
    _, prepared = made
    groups: dict[str, list] = {}
    for run in prepared.runs:
        groups.setdefault(run.simulation, []).append(run)
    twins = [runs for runs in groups.values() if len(runs) > 1 and runs[0].batch == prepared.runs[0].batch]
    assert len(twins) >= 3
    own = [[Simulator(prepared.traces).record(run) for run in runs] for runs in twins]
    ran = []
    run_once = Replay.run
    monkeypatch.setattr(Replay, "run", lambda replay: ran.append(1) or run_once(replay))
    simulator = Simulator(prepared.traces)
    shared = [[simulator.record(run) for run in runs] for runs in twins]
    assert [without_host(runs) for runs in shared] == [without_host(runs) for runs in own]
    assert len(ran) == len(twins)


def test_a_row_is_the_record_without_details(made):
    run = made[1].runs[0]
    whole, row = without_host([Simulator().record(run), Simulator().row(run)])
    assert all(whole[name] for name in ("dies", "links", "pairs", "steps"))
    assert row == {**whole, **NO_DETAILS}


def test_generated_traffic_is_drawn_once_for_demands_that_read_it_one_after_the_other():
    class Counted(SyntheticTraffic):
        drawn = 0

        def steps(self, requests, decode_steps):
            Counted.drawn += 1
            return super().steps(requests, decode_steps)

    model, spec = load_model("qwen3-235b-a22b"), SyntheticSpec(prompt_tokens=0, decode_steps=2)
    traffic, streams, requests = Counted(model, spec, 3), {}, np.arange(3)

    def read(most):
        pieces = Remembered(traffic, ("three",), streams, most).steps(requests, 2)
        return [(piece.iteration, piece.experts.tolist()) for piece in pieces]

    selections = 3 * 2 * 94 * 8
    first = read(selections)
    assert read(selections) == first and Counted.drawn == 1 and len(first) == 2
    streams.clear()
    assert read(selections - 1) == read(selections - 1) == first and Counted.drawn == 3 and not streams
    next(Remembered(traffic, ("three",), streams).steps(requests, 2))  # left before its end
    assert not streams
    remembered = Remembered(traffic, ("three",), streams)
    assert (remembered.digest, remembered.request_digest) == (traffic.digest, traffic.request_digest)


def without_host(records):
    """Records without times of the machine that simulates."""
    return [
        {**each, "host": None, "row": {name: value for name, value in each["row"].items() if name[:5] != "host_"}}
        for each in records
    ]
