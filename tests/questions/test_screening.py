"""Screened points have the values of single runs, whatever they differ in; without shared plans,
nothing is screened.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from support.examples import examples, sampled
from support.explorations import EXPLORED, unwatched
from support.small_runs import demand_of, policy, scenario_of, small_model, small_system
from support.tables import read_beside

from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.analytic.machines import shares_plan, walk_machines
from archsim.engine.analytic.rates import PARTS, RATES, with_rates
from archsim.engine.analytic.recorded_steps import record
from archsim.engine.analytic.walk import walk_strategy
from archsim.engine.loop import Replay
from archsim.engine.state import UNITS
from archsim.machine.fabric import TopologySpec
from archsim.questions.exploration.explore import explore
from archsim.questions.exploration.pareto import pareto
from archsim.questions.exploration.screened import FILE, nearest
from archsim.questions.exploration.screening import Screen
from archsim.runs.plan import RunMaker, select
from archsim.runs.prices import Coefficients
from archsim.runs.simulator import Simulator
from archsim.specs.library import load_assumptions, load_exploration

FIELDS = {
    ("compute", "peak"): ("peak_flop_per_s", 1e14, 1e15),
    ("compute", "efficiency"): ("efficiency", 0.3, 1.0),
    ("hbm", "bandwidth"): ("bandwidth_bytes_per_s", 5e11, 8e12),
    ("hbm", "efficiency"): ("efficiency", 0.3, 1.0),
    ("hbm", "latency"): ("latency_ns", 50.0, 900.0),
    ("d2d", "bandwidth"): ("bandwidth_bytes_per_s", 1e11, 4e12),
    ("d2d", "hop_latency"): ("hop_latency_ns", 5.0, 400.0),
    ("d2d", "efficiency"): ("efficiency", 0.3, 1.0),
    ("llc", "hit"): ("hit_ns", 10.0, 300.0),
    ("llc", "miss"): ("miss_ns", 10.0, 300.0),
    ("llc", "write"): ("write_ns", 10.0, 300.0),
}
CHANGES = (
    {}, {"contention": "reserved"}, {"reads": "together"}, {"gemm": "roofline"}, {"gemm": "calibrated"},
    {"decision_cost": "free"}, {"llc": "slices"}, {"activations": "ignored"}, {"weights": "routed"},
    {"dispatch": "per_token_expert"}, {"order": "as_created"}, {"copy_writes": "barrier"},
)  # fmt: skip
MODEL = small_model(layers=4, moe_layers=small_model().moe_layers.model_copy(update={"last": 3}))


def drawn(rng, part):
    """A system's blocks with fields of a part drawn at random."""
    blocks = {}
    for (block, _), (field, low, high) in ((key, FIELDS[key]) for key in part):
        blocks.setdefault(block, {})[field] = float(np.exp(rng.uniform(np.log(low), np.log(high))))
    return blocks


def changed(system, *changes):
    for blocks in changes:
        update = {name: getattr(system, name).model_copy(update=fields) for name, fields in blocks.items()}
        system = system.model_copy(update=update)
    return system


def merged(parts):
    """One mapping of block → fields of several."""
    found = {}
    for blocks in parts:
        for block, fields in blocks.items():
            found.setdefault(block, {}).update(fields)
    return found


def test_every_rate_is_drawn():
    assert set(FIELDS) == RATES


@settings(max_examples=examples(25, 2))
@given(
    st.integers(0, 2**32),
    st.sampled_from(CHANGES),
    st.sampled_from(("base", "ep")),
    st.sampled_from(("gpu", "local_cp")),
    st.sampled_from(("mesh", "ring", "switch")),
)
def test_machines_walked_together_take_the_times_of_single_runs(seed, changes, name, launch, topology):
    rng, assumptions = np.random.default_rng(seed), load_assumptions("physical", **changes)
    system = small_system().model_copy(update={"launch": launch, "topology": TopologySpec(name=topology)})
    demand = demand_of(MODEL, system, policy(name), seed=seed % 1000)

    def run_of(*blocks):
        return scenario_of(changed(system, *blocks), MODEL, policy(name), assumptions, demand.batch)

    assert shares_plan(run_of())
    works, links, llc = ([drawn(rng, PARTS[part]) for _ in range(2)] for part in ("work", "links", "llc"))
    llc.append({"llc": llc[0]["llc"] | {"hit_ns": 7.0}})  # one walk, if nothing hits
    llc += [{"llc": llc[0]["llc"] | {name: 7.0}} for name in ("miss_ns", "write_ns")]  # walks of their own
    machines = [(work, link, cache) for work in works for link in links for cache in llc]
    rates = {
        (block, key): np.array([merged(each)[block][name] for each in machines])
        for (block, key), (name, *_) in FIELDS.items()
    }
    recorded = record(run_of(), demand)
    walked = walk_machines(recorded, with_rates(system, rates, len(machines)), walk_strategy(assumptions))
    for at, blocks in enumerate(machines):
        alone = Replay(AnalyticalEngine(run_of(*blocks), demand.layer_ids), demand).run()
        dies, moved = alone.machine.dies, alone.tally.resources["bytes"]
        read = alone.tally.dies["local_read_bytes"].sum() + alone.tally.dies["remote_read_bytes"].sum()
        counted = [moved[dies : 2 * dies].sum(), moved[UNITS * dies :].sum(), read, alone.tally.llc_hits.sum()]
        assert walked.counted[at].tolist() == counted
        assert walked.prefill_ns[at] == alone.prefill_ns and walked.decode_ns[at] == alone.decode_ns
        assert walked.decision_ns[at] == alone.decision.states_ns.sum()


def test_plans_that_read_costs_or_predict_are_not_shared():
    system, assumptions = small_system(), load_assumptions("physical")
    for name, shares in (("ep", True), ("base", True), ("allo", False), ("pred", False)):
        assert shares_plan(scenario_of(system, MODEL, policy(name), assumptions)) == shares
    warm = scenario_of(system, MODEL, policy("ep"), assumptions)
    warm = replace(warm, workload=warm.workload.model_copy(update={"warmup_steps": 1}))
    assert not shares_plan(warm)


SPACE = """\
sweep:
  grid:
    system.hbm.bandwidth: {from: 1 TB/s, to: 8 TB/s, log: 4}
    d2d.bandwidth: {from: 250 GB/s, to: 4 TB/s, log: 3}
    topology: [mesh, ring]
    llc.hit: [50 ns, 100 ns]
  zip: {compute.peak: [100 TFLOP/s, 300 TFLOP/s], d2d.hop_latency: [50 ns, 200 ns]}
  where: [hbm.bandwidth >= 2 * d2d.bandwidth, cost_usd < 1e6]
explore:
  objectives: [throughput / cost, energy]
  where: [cost <= 100000]
  event_runs: 4
  analytical_runs: 100
  screened_runs: 20
"""


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    file = tmp_path_factory.mktemp("screen") / "space.yaml"
    file.write_text(EXPLORED[: EXPLORED.index("sweep:")] + SPACE, encoding="utf-8")
    return load_exploration(
        file, ["policies=[base, ep]", "engine=analytical", "assumptions=physical", "workload.batch=40"]
    )


def test_screened_columns_are_those_of_single_runs(space, monkeypatch):
    monkeypatch.setattr("archsim.engine.analytic.recorded_steps.MOST_MACHINES", 16)  # several calls a family
    plan, _ = space
    blocks = list(Screen(plan, Coefficients()).blocks())
    numbers = np.concatenate([block.numbers for block in blocks])
    assert sorted(numbers.tolist()) == list(select(plan).kept)
    simulator, maker = Simulator(), RunMaker(plan=plan)
    for block in blocks[:: len(blocks) // 8]:
        at = len(block.numbers) // 2
        point = plan.point(int(block.numbers[at]))
        (run,) = maker.runs([point])
        row, cells = simulator.record(run, details=False)["row"], plan.cells(point)
        for name, column in {**block.columns, **block.axes}.items():
            found = column[at] if isinstance(column, np.ndarray) else column
            expected = row[name] if name in row else cells[name]
            if name in ("model", "policy", "batch", "layers", "decode_ns", "tokens_per_s") or name in cells:
                assert found == expected, name
            else:
                assert found == pytest.approx(expected, rel=1e-14), name


SHAPES = read_beside(__file__, "tables.yaml")["shapes"]
AT_A_COMMIT = ("one axis of the LLC", "groups")


@pytest.mark.parametrize("shape", sampled(SHAPES, lambda shape: shape in AT_A_COMMIT))
def test_of_any_shape_screened_values_are_those_of_single_runs(space, shape):
    tree = space[0].given() | {"sweep": SHAPES[shape], "explore": {"objectives": ["time"]}}
    plan, _ = load_exploration(tree)
    simulator, maker, seen = Simulator(), RunMaker(plan=plan), []
    for block in Screen(plan, Coefficients()).blocks():
        for at, number in enumerate(block.numbers.tolist()):
            (run,) = maker.runs([plan.point(number)])
            row, cells = simulator.record(run, details=False)["row"], plan.cells(plan.point(number))
            seen.append(number)
            for name, column in {**block.columns, **block.axes}.items():
                found = column[at] if isinstance(column, np.ndarray) and column.ndim else column
                expected = row[name] if name in row else cells[name]
                if name == "decode_ns" or isinstance(expected, str):
                    assert found == expected, name
                else:
                    assert found == pytest.approx(expected, rel=1e-14), name
    assert sorted(seen) == list(select(plan).kept)


@pytest.mark.parametrize("shape", ["one axis of work", "one sample", "all"])
def test_a_space_of_any_shape_is_explored(space, shape, tmp_path, monkeypatch):
    monkeypatch.setattr("archsim.questions.exploration.screening.LEAST_SHARED", 2)
    explored = {"objectives": ["time"], "event_runs": 2, "analytical_runs": 1, "screened_runs": 2}
    plan, spec = load_exploration(space[0].given() | {"sweep": SHAPES[shape], "explore": explored})
    assert Screen(plan, Coefficients()).applies
    assert explore(plan, spec, tmp_path, 1, unwatched).front


def test_a_screened_space_finds_the_front_of_all_its_points(space, tmp_path, monkeypatch):
    monkeypatch.setattr("archsim.questions.exploration.screening.LEAST_SHARED", 48)
    plan, spec = space
    assert Screen(plan, Coefficients()).applies and plan.combinations > spec.analytical_runs
    found = explore(plan, spec, tmp_path, 1, unwatched)
    written = parquet.read_table(tmp_path / "analytical" / FILE).to_pandas()
    assert len(written) == len(select(plan).kept) and (written["cost_usd"] > 0).all()
    costs = np.stack([-written["tokens_per_s"] / written["cost_usd"], written["energy_per_token_j"]], axis=1)
    front = set(written["point"][pareto(costs)])
    assert front and front <= {point.index for point in found.points}
    assert len(found.points) == spec.screened_runs and "screened" in found.notes[0]


def test_a_space_whose_plans_differ_is_not_screened(space):
    plan, _ = space
    tree = plan.given() | {"policies": ["allo"], "explore": {"objectives": ["time"]}}
    assert not Screen(load_exploration(tree, ["engine=analytical"])[0], Coefficients()).applies


def test_the_points_nearest_to_a_front_are_those_that_lack_least():
    costs = np.array([[1.0, 4.0], [2.0, 2.0], [4.0, 1.0], [2.1, 2.1], [8.0, 8.0], [1.05, 4.1], [-1.0, 9.0]])
    front = pareto(costs)
    assert np.flatnonzero(front).tolist() == [0, 1, 2, 6]
    assert nearest(costs, front, 6).tolist() == [0, 1, 2, 3, 5, 6]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 40, 190])
def test_of_a_front_that_is_larger_the_best_by_every_objective_are_kept_and_no_point_twice(count):
    at = np.linspace(0.1, 1.5, 200)
    costs = np.stack([np.cos(at), np.sin(at), np.full(200, 7.0)], axis=1)[np.random.default_rng(1).permutation(200)]
    every = np.repeat(costs, 3, axis=0)  # three points of equal costs each
    assert pareto(every).all()
    chosen = nearest(every, pareto(every), count)
    assert len(set(chosen.tolist())) == count and chosen.tolist() == sorted(chosen)
    assert len({tuple(each) for each in every[chosen].tolist()}) == count
    assert every[:, 0].argmin() in chosen and (count < 2 or every[:, 1].argmin() in chosen)
    largest = np.diff(np.sort(np.arctan2(every[chosen, 1], every[chosen, 0]))).max(initial=0.0)
    assert count < 5 or largest < 6 * 1.4 / count  # spread


def test_of_equal_points_there_are_several_only_where_others_lack():
    costs = np.repeat(np.array([[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]]), 4, axis=0)
    assert nearest(costs, pareto(costs), 5).tolist() == [0, 1, 2, 4, 8]
