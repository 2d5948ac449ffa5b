"""What a sweep takes is told before it is spent; what this machine cannot hold is refused."""

import pytest

import archsim as ar
from archsim.base.errors import CapacityError
from archsim.cli.main import main
from archsim.engine.machine import build_fabric, extent_of
from archsim.runs.feasibility import cost_of, refuse_unheld, told
from archsim.runs.plan import plan_of
from archsim.specs.library import load_system


def plan(**changes):
    """A small experiment; ``engine``, ``assumptions``, ``batch``, ``side`` or ``topology`` changed."""
    side, topology = changes.pop("side", 4), changes.pop("topology", "mesh")
    workload = {"trace": {"synthetic": {"like": "model", "prompt_tokens": 0}}, "batch": [changes.pop("batch", 64)]}
    system = {"like": "dojo", "name": "square", "mesh": {"x": side, "y": side}, "topology": topology}
    own = {"name": "small", "systems": [system], "models": ["olmoe-1b-7b"], "policies": ["ep"]}
    workload |= {"context": 64, "decode_steps": 2, "layers": 2}
    return plan_of(ar.load_experiment(own | {"workload": workload} | changes))


@pytest.mark.parametrize("system", ["dojo", "dojo_x4", "h200_node", "h200_cluster", "gb200_nvl72", "tsmc_sow", "sow_x"])
def test_links_are_counted_without_the_fabric(system):
    spec = load_system(system)
    links, route_links = extent_of(spec)
    fabric = build_fabric(spec, "row_major")
    assert (links, round(route_links)) == (fabric.links, len(fabric.route_links))


def test_more_of_anything_costs_more():
    physical = {"assumptions": ["physical"]}
    least = cost_of(plan(**physical).point(0))
    for changes in ({"batch": 256}, {"side": 6}):
        more = cost_of(plan(**physical | changes).point(0))
        assert more.events > least.events and more.host_ns > least.host_ns and more.host_bytes >= least.host_bytes
    published = cost_of(plan(assumptions=["published"]).point(0))
    assert published.events < least.events and published.host_bytes < least.host_bytes
    assert cost_of(plan(engine="analytical").point(0)).events == 0


def test_events_are_those_of_a_run_within_a_factor_of_two():
    for assumptions in ("published", "physical"):
        planned = plan(assumptions=[assumptions])
        (row,) = ar.run(planned.experiment).runs.rows
        assert 0.5 < cost_of(planned.point(0)).events / row["events"] < 2


def test_what_the_machine_cannot_hold_is_refused_with_what_fits():
    point = plan(side=16, assumptions=["physical"]).point(0)
    needed = int(cost_of(point).host_bytes)
    refuse_unheld(point, lambda: needed + 1)
    refuse_unheld(point, lambda: None)
    with pytest.raises(CapacityError, match=r"square: simulating 256 dies .* about 15 × 15 dies fit"):
        refuse_unheld(point, lambda: needed - 1_000_000)


@pytest.mark.parametrize(("assumptions", "side", "measured_gb"), [
    ("physical", 24, 0.72), ("physical", 32, 1.81), ("physical", 40, 4.12), ("published", 24, 0.46),
    ("published", 32, 1.04),
])
def test_links_of_fully_connected_dies_take_memory(assumptions, side, measured_gb):
    """Measured: ``benchmarks/big_fabrics.py --topology fully_connected``."""
    point = plan(side=side, topology="fully_connected", assumptions=[assumptions]).point(0)
    assert measured_gb / 1.34 < cost_of(point).host_bytes / 1e9 < measured_gb * 1.34


def test_a_refusal_names_all_that_it_counts():
    point = plan(side=64, topology="fully_connected", assumptions=["physical"]).point(0)
    counts = "about 24 GiB of memory: for 16.8 million links, 16.8 million pairs of dies and 16.8 million links on"
    with pytest.raises(CapacityError, match=counts):
        refuse_unheld(point, lambda: 16 * 2**30)


def test_a_sentence_says_runs_events_time_and_memory():
    said = told(plan(batch=64), 2)
    assert said.startswith("about ") and " events, 1 s on 1 core when compiled, 0.3 GB a process" in said


def test_check_and_dry_run_say_it(capsys, tmp_path):
    file = tmp_path / "one.yaml"
    file.write_text(
        "name: one\nsystems: [dojo]\nmodels: [olmoe-1b-7b]\npolicies: [ep]\nengine: analytical\n"
        "workload: {trace: {synthetic: {like: model}}, batch: 64, decode_steps: 2, layers: 1}\n"
        "sweep: {grid: {workload.batch: {from: 1, to: 200, linear: 200}}}\n"
    )
    for command in ("check", "sweep --dry-run"):
        assert main([*command.split(), str(file)]) == 0
        told = capsys.readouterr().out
        assert "200 points" in told and "no events, " in told and "runs, no events" not in told
