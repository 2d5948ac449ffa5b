"""``carriers: as_needed``: links from one carrier to the next are a class of their own."""

import numpy as np
import pytest
from support.small_runs import demand_of, policy, replay, scenario_of, small_model, small_system

from archsim.cli.main import main
from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.analytic.machines import record, walk_all_carriers, with_rates
from archsim.engine.engine import EventEngine
from archsim.engine.loop import Replay
from archsim.engine.machine import build_fabric, carriers_needed
from archsim.specs.library import load_assumptions, load_system
from archsim.uncertainty.worlds import quantities_of, ranges_of

MODEL = small_model(layers=4, moe_layers=small_model().moe_layers.model_copy(update={"last": 3}))


def large(peak=8e15, **blocks):
    """3 × 2 dies with 60 stacks each: one carrier has room for all at a peak of 1 PFLOP/s, and for four at 8."""
    system = small_system(compute={"peak_flop_per_s": peak}, **blocks)
    return system.model_copy(update={"hbm": system.hbm.model_copy(update={"stacks_on_carrier": 60})})


def test_links_of_the_enhanced_dojo_that_leave_a_carrier():
    """1.5 carriers: three rows of five dies on one, two on the other; five links each way lead across."""
    system = load_system("dojo_enhanced")
    within, across = (build_fabric(system, "row_major", carriers) for carriers in ("one", "as_needed"))
    slower = np.flatnonzero(across.link_bytes_per_ns < within.link_bytes_per_ns)
    ends = {tuple(sorted((int(across.link_src[at]), int(across.link_dst[at])))) for at in slower}
    assert ends == {(die, die + 5) for die in range(10, 15)} and len(slower) == 10
    assert across.link_bytes_per_ns[slower] == pytest.approx(900 * system.d2d.efficiency)
    assert (across.link_ns[slower] == 500).all() and (np.delete(across.link_ns, slower) == 200).all()


@pytest.mark.parametrize("name", ["dojo", "dojo_x4", "tsmc_sow", "sow_x", "h100_cluster", "tpu7x_2x2x4"])
def test_machines_with_room_on_their_carriers_stay_as_they_are(name):
    system = load_system(name)
    within, across = (build_fabric(system, "row_major", carriers) for carriers in ("one", "as_needed"))
    assert carriers_needed(system) == 1 and within.classes == across.classes


def test_levels_are_cut_within_themselves_alone():
    """Four wafers, whose dies then take two carriers each: links between wafers are as listed."""
    system = load_system("dojo_x4")
    system = system.model_copy(update={"compute": system.compute.model_copy(update={"peak_flop_per_s": 4.5e15})})
    assert carriers_needed(system) == 2
    fabric = build_fabric(system, "row_major", "as_needed")
    names = [fabric.classes[at].name for at in fabric.link_class]
    assert names.count("level 0, off carrier") == 4 * 10 and not names.count("level 1, off carrier")


@pytest.mark.parametrize("engine", [EventEngine, AnalyticalEngine])
def test_links_across_take_time_and_no_assumption_makes_them_faster(engine):
    slow = {"off_carrier": load_system("dojo").d2d.off_carrier.model_copy(update={"bandwidth_bytes_per_s": 1e10})}
    ns = {}
    for name, system in (("as_needed", large()), ("slow", large(d2d=slow)), ("one", large())):
        assumptions = load_assumptions("physical", carriers="one" if name == "one" else "as_needed")
        demand = demand_of(MODEL, system, policy("base"))
        ns[name] = replay(system, MODEL, policy("base"), assumptions, demand, engine=engine).run().decode_ns
    assert ns["one"] < ns["as_needed"] < ns["slow"]


def test_machines_on_unlike_numbers_of_carriers_are_walked_together():
    peaks, assumptions = np.array([1e15, 8e15, 1e14, 8e15]), load_assumptions("physical")
    demand = demand_of(MODEL, large(), policy("base"))

    def scenario(peak):
        return scenario_of(large(peak), MODEL, policy("base"), assumptions, demand.batch)

    assert len({carriers_needed(large(peak)) for peak in peaks}) == 2
    recorded = {carriers_needed(large(1e15)): record(scenario(1e15), demand)}
    system = with_rates(large(), {("compute", "peak"): peaks}, len(peaks))
    walked = walk_all_carriers(recorded, system, demand, "in_order")
    alone = [Replay(AnalyticalEngine(scenario(peak), demand.layer_ids), demand).run() for peak in peaks]
    assert walked.decode_ns.tolist() == [each.decode_ns for each in alone]
    assert walked.prefill_ns.tolist() == [each.prefill_ns for each in alone]


@pytest.mark.parametrize(("name", "needed"), [("dojo", 1), ("dojo_enhanced", 2)])
def test_what_links_between_carriers_may_be_counts_where_there_are_any(name, needed):
    """A quantity that no run reads would take a share of the variance by chance."""
    system = load_system(name)
    scenario = scenario_of(system, MODEL, policy("ep"), load_assumptions("physical"))
    drawn = {each.quantity.key for each in quantities_of(scenario)}
    listed = {each.key for each in ranges_of(system)}
    assert carriers_needed(system) == needed and "system.d2d.hop_latency" in drawn
    for keys in (drawn, listed):
        assert any(key.startswith("system.d2d.off_carrier.") for key in keys) == (needed > 1)


def test_check_says_so(capsys):
    changes = ["--set", "systems=[dojo_enhanced]", "--set", "models=[olmoe-1b-7b]"]
    assert main(["check", "configs/dojo.yaml", *changes]) == 0
    assert "d2d.off_carrier" in capsys.readouterr().err
