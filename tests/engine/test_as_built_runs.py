"""Runs on machines as they are built: laws that hold for every policy and both engines."""

import numpy as np
import pytest
from support.as_built import ROOFLINE, decode_ns, experiment_of, rows, table
from support.examples import sampled

from archsim.runs.plan import prepare, select
from archsim.runs.simulator import Simulator
from archsim.specs.library import load_experiment, load_planned


@pytest.mark.parametrize("engine", ["analytical", "event"])
def test_what_is_as_it_was_meant_changes_nothing(engine):
    perfect = rows(engine=engine)
    same = rows(engine=engine, dies_as_built={}, links_as_built={}, drawn={})
    for one, other in zip(perfect, same, strict=True):
        names = set(one["row"]) - {"system"}
        assert {name: one["row"][name] for name in names} == {name: other["row"][name] for name in names}
        assert one["dies"] == other["dies"] and one["links"] == other["links"]


POLICIES = ("ep", "allo", "allo-paper", "lplb")


@pytest.mark.parametrize("which", [0, 4])
@pytest.mark.parametrize("part", ["array", "hbm"])
def test_a_faster_die_never_slows_a_run(which, part):
    times = []
    for speed in (0.8, 1.0, 1.2):
        factors = [[1.0, 1.0] for _ in range(6)]
        factors[which][part == "hbm"] = speed
        times.append(decode_ns(policies=POLICIES, **table(*factors)))
    for slower, faster in zip(times, times[1:], strict=False):
        for before, after in zip(slower, faster, strict=True):
            assert after <= before * 1.005


@pytest.mark.parametrize("engine", ["analytical", "event"])
def test_a_slow_array_takes_its_time_and_a_slow_hbm_its_own(engine):
    slow_array = rows(engine=engine, **table((0.5, 1.0)))[0]["dies"]
    slow_hbm = rows(engine=engine, **table((1.0, 0.5)))[0]["dies"]
    perfect = rows(engine=engine)[0]["dies"]
    ratio = np.array(slow_array["compute_busy_ns"]) / np.array(perfect["compute_busy_ns"])
    assert ratio == pytest.approx([2.0, 1, 1, 1, 1, 1], rel=1e-6)
    ratio = np.array(slow_hbm["hbm_busy_ns"]) / np.array(perfect["hbm_busy_ns"])
    assert ratio[0] > 1.8 and ratio[1:] == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("engine", ["analytical", "event"])
def test_a_dead_die_has_no_experts_and_no_work(engine):
    found = rows(policies=("base", "ep", "allo"), engine=engine, dies_as_built={"dead": [4]})
    for each in found:
        assert len(each["dies"]["tokens"]) == 5 and (1, 1) not in zip(each["dies"]["x"], each["dies"]["y"], strict=True)
        assert sum(each["dies"]["tokens"]) == 600 * 2 * 2
        assert 4 not in {*each["links"]["src"], *each["links"]["dst"]} or max(each["links"]["src"]) == 4


def test_the_order_of_dead_dies_and_links_changes_nothing():
    links = [{"link": [1, 4], "bandwidth": "50 %"}, {"link": [4, 3], "bandwidth": "80 %"}]
    turned = [{"link": [3, 4], "bandwidth": 0.8}, {"link": [4, 1], "bandwidth": 0.5}]
    one = decode_ns(dies_as_built={"dead": [0, 2]}, links_as_built={"degraded": links})
    other = decode_ns(dies_as_built={"dead": [2, 0]}, links_as_built={"degraded": turned})
    assert one == other


def test_rules_that_see_speeds_cost_more_cycles_and_win_where_dies_differ():
    policies = ({"name": "plain", "allocation": "copy_aware"},
                {"name": "fast", "allocation": {"name": "copy_aware", "needs": "speeds"}})  # fmt: skip
    equal = rows(policies=policies)
    assert equal[1]["row"]["decision_ns"] > equal[0]["row"]["decision_ns"]
    free = ROOFLINE | {"decision_cost": "free"}
    plain, fast = decode_ns(policies=policies, assumptions=free, **table((0.6, 1.0), (0.8, 1.0)))
    assert fast < plain
    plain, fast = decode_ns(policies=policies, assumptions=free)
    assert fast == plain


def test_link_classes_are_seen_by_rules_that_ask():
    policies = ("allo-paper", {"name": "fast", "allocation": {"name": "paper", "needs": "speeds"}})
    free = ROOFLINE | {"decision_cost": "free"}
    broken = {"links_as_built": {"degraded": [{"link": [1, 4], "bandwidth": "2 %"}]}}
    plain, fast = decode_ns(policies=policies, assumptions=free, **broken)
    assert fast < plain


@pytest.mark.parametrize("gemm", ["grouped", "calibrated"])
def test_measured_kernels_have_the_rates_of_their_dies(gemm):
    system = {"compute": {"peak": "50 TFLOP/s", "dtype": "bf16"}}
    found = ROOFLINE | {"gemm": gemm}
    slow, equal = (
        rows(assumptions=found, **system, **table(*factors))[0]["dies"]["compute_busy_ns"]
        for factors in ([(0.5, 1.0)], [(1.0, 1.0)])
    )
    assert 1.3 < slow[0] / equal[0] <= 2.0 and slow[1:] == equal[1:]


def test_machines_that_differ_in_rates_alone_share_plans(monkeypatch):
    drawn = {"drawn": {"wafers": 3}, "dies_as_built": {"speed": {"sigma": "5 %", "hbm": {"sigma": "5 %"}}}}

    def times(shared):
        plan = load_planned(experiment_of(("allo",), **drawn))
        selection = select(plan)
        simulator = Simulator(selection.maker.traces)
        if not shared:
            monkeypatch.setattr(simulator, "_plans_of", lambda run: None)
        found = [simulator.record(run)["row"] for run in selection.runs()]
        return [each["decode_ns"] for each in found], len(simulator._plans)

    (together, books), (apart, none) = times(True), times(False)
    assert together == apart and len(set(apart)) == 3 and (books, none) == (1, 0)


SWITCHED = {
    "h100_node": ("level 0", "switch"), "h100_cluster": ("level 1", "level 1"), "mi300x_node": (None, 1),
}  # fmt: skip


@pytest.mark.parametrize("machine", sampled(SWITCHED, {"h100_node", "mi300x_node"}.__contains__))
def test_weak_ports_of_all_gpus_are_links_of_half_the_bandwidth(machine):
    """`[0, 8]` and `[0, 1]` refused each other in a circle, and measured kernels took either in silence."""
    level, end = SWITCHED[machine]
    whole = load_experiment({**experiment_of(), "systems": [machine]}).systems[0]
    ends = range(1 if level is None else whole.dies)
    weak = [{"link": [die, end], "bandwidth": "50 %"} for die in ends]

    def run_ns(degraded, levels=None):
        own = {"like": machine, "name": "own", "links_as_built": {"degraded": degraded}}
        own |= {} if levels is None else {"fabric": {"levels": levels}}
        free = "free" if level is None else "charged"
        found = {"set": "physical", "execution": "expert_parallel", "memory": "experts", "transfer_software": free}
        given = experiment_of(assumptions=found) | {"systems": [own], "models": ["olmoe-1b-7b"]}
        given["workload"] |= {"batch": [512 * whole.dies], "decode_steps": 1}
        found = prepare(load_experiment(given))
        return Simulator(found.traces).record(found.runs[0])["row"]["decode_ns"]

    one = run_ns(weak[:1])
    assert run_ns([{"link": [0, end], "bandwidth": 1.0}]) < one < run_ns([{"link": [0, end], "bandwidth": 0.2}])
    if level is not None:
        levels = [each.model_dump(by_alias=True) for each in whole.fabric.levels]
        number = int(level[-1])
        bandwidth = whole.fabric.levels[number].bandwidth_bytes_per_s / 2
        levels[number]["bandwidth"] = f"{bandwidth / 1e9} GB/s"
        assert run_ns(weak) == pytest.approx(run_ns([], levels), rel=1e-9)


def test_messages_go_around_a_dead_port_where_software_is_free():
    """The GPU without its NIC sends through another of its node, whose port carries both."""
    free = {"set": "physical", "execution": "expert_parallel", "transfer_software": "free", "memory": "experts"}

    def node_ns(**keys):
        given = experiment_of(assumptions=free) | {"systems": [{"like": "h100_cluster", "name": "own"} | keys]}
        found = prepare(load_experiment(given))
        return Simulator(found.traces).record(found.runs[0])["row"]["decode_ns"]

    assert node_ns(links_as_built={"dead": [[0, "level 1"]]}) > node_ns()
