"""Laws of the analytical engine, and how far it is from the event engine on random points that it was not fitted to."""

from itertools import product

import numpy as np
import pytest
from support.examples import sampled
from support.html_page import text_of_report
from support.random_points import HELD_OUT, random_point
from support.random_systems import OVERTAKEN, random_large_system, run_system
from support.small_runs import demand_of, policy, replay, small_model, small_system
from support.tiny import archsim as run_archsim
from support.tiny import tiny, tiny_file

import archsim
from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.engine import EventEngine
from archsim.runs.engine_comparison import Compared, errors, read_comparison
from archsim.specs.library import load_assumptions

FEW = 20  # points of each kind; benchmarks/analytical.py takes hundreds


def both(system, model, spec, **assumptions):
    """Outcomes of the event engine and of the analytical engine."""
    assumptions = load_assumptions("physical", **assumptions)
    demand = demand_of(model, system, spec)
    return [
        replay(system, model, spec, assumptions, demand, engine=engine).run()
        for engine in (EventEngine, AnalyticalEngine)
    ]


FREE = {"decision_cost": "free", "heatmap_update": "free"}


BOTH_WAYS = tuple(product(("shared", "reserved"), (1e12, 1e15)))  # contention, and peak: memory- or compute-bound
EXACT = [  # (experts, dies, policy, slices that fit into the LLC, segments of a slice, peak, assumptions)
    *((1, (1, 1), "ep", window, 1, peak, {"contention": how}) for window in (1, 3, 4) for how, peak in BOTH_WAYS),
    *((6, (3, 2), "ep", 1, 1, peak, {"contention": how}) for how, peak in BOTH_WAYS),  # one a die, at home
    *((1, (2, 1), "base", 1, 1, None, {"contention": how}) for how in ("shared", "reserved")),  # beside its home
    *((1, (1, 1), "ep", slices, 8, peak, {"reads": "in_order", "gemm": "roofline"})
      for slices in (0.5, 1, 1.5, 2, 3, 8) for peak in (1e12, 1e15)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("experts", "dies", "name", "slices", "segments", "peak", "changes"), sampled(EXACT, EXACT[::2].__contains__)
)
def test_both_engines_take_the_same_where_nothing_contends(experts, dies, name, slices, segments, peak, changes):
    """No hidden vectors on the mesh, and no two transfers at once over one resource."""
    model = small_model(experts=experts, top_k=min(2, experts), shared_experts=0)
    slice_bytes = model.hidden * model.expert_ffn
    compute = {"compute": {"peak_flop_per_s": peak}} if peak else {}
    llc = {"capacity_bytes": int(slices * slice_bytes), "segment_bytes": slice_bytes // segments}
    event, analytical = both(
        small_system(*dies, llc=llc, **compute), model, policy(name), activations="ignored", **FREE | changes
    )
    assert analytical.step_ns == pytest.approx(event.step_ns, rel=1e-12)
    assert (event.tally.dies["remote_read_bytes"].sum() > 0) == (name == "base")


@pytest.mark.parametrize(
    ("contention", "median", "p95", "rank"), [("shared", 0.05, 0.15, 0.97), ("reserved", 0.15, None, 0.97)]
)
def test_errors_on_points_held_out(contention, median, p95, rank):
    from scipy.stats import spearmanr

    pairs = []
    for number in range(HELD_OUT, HELD_OUT + FEW):
        point = random_point(number, contention)
        pairs.append([point.run(engine).decode_ns for engine in (EventEngine, AnalyticalEngine)])
    event, analytical = np.array(pairs).T
    error = np.abs(analytical / event - 1)
    assert np.median(error) <= median
    assert p95 is None or np.percentile(error, 95) <= p95
    assert spearmanr(event, analytical).statistic >= rank


def test_copies_are_those_of_the_event_engine_where_bits_come_late():
    event, analytical = (
        [run_system(each, engine, random_large_system).tally.dies["write_bytes"].sum() for each in OVERTAKEN]
        for engine in (EventEngine, AnalyticalEngine)
    )
    assert min(event) > 0
    assert np.median(np.abs(np.divide(analytical, event) - 1)) <= 0.05
    assert sum(analytical) == pytest.approx(sum(event), rel=0.1)


def test_same_columns_as_the_event_engine(tmp_path):
    """Every column that the event engine fills is filled, but for waiting times, which bookings do not tell."""
    rows, waits = [], []
    for engine in ("event", "analytical"):
        results = archsim.run(tiny(tmp_path, f"engine={engine}", "assumptions=physical"))
        rows.append(results.runs.rows[0])
        waits.append({row["hbm_wait_ns"] for row in results.dies.rows} | {row["wait_ns"] for row in results.links.rows})
    event, analytical = rows
    assert event["engine"] == "event" and analytical["engine"] == "analytical"
    assert event["run"] != analytical["run"]
    assert event.keys() == analytical.keys()
    assert {name for name in event if (event[name] is None) != (analytical[name] is None)} == set()
    assert analytical["events"] == 0
    assert None not in waits[0] and waits[1] == {None}
    for name in ("hop_messages", "hop_bytes", "local_hbm_read_bytes", "remote_hbm_read_bytes", "activation_bytes"):
        assert analytical[name] == event[name]


def test_a_timeline_needs_the_event_engine():
    system, model, spec = small_system(), small_model(), policy("ep")
    assumptions = load_assumptions("physical", **FREE)
    engine = replay(system, model, spec, assumptions, demand_of(model, system, spec), engine=AnalyticalEngine)
    with pytest.raises(archsim.base.errors.ArchsimError, match="engine: event"):
        engine.trace_step(1, 0)


def test_an_analytical_sweep_carries_a_sample_of_both_engines(tmp_path):
    swept = run_archsim(
        tmp_path, "sweep", tiny_file(tmp_path), "--set", "engine=analytical", "--jobs", 1, "--out", "out"
    )
    assert swept.returncode == 0, swept.stderr
    assert "12 of 20 runs also run on the event engine" in swept.stdout
    page = text_of_report(tmp_path / "out")
    assert "Analytical and event engine" in page and "rank correlation" in page
    kept, about = read_comparison(tmp_path / "out")
    assert len(kept) == 12 and about == {"decode_steps": 1, "of": 20}


def test_compare_names_the_bound_that_was_misjudged(tmp_path):
    done = run_archsim(tmp_path, "engines", tiny_file(tmp_path), "--sample", 6, "--steps", 2)
    assert done.returncode == 0, done.stderr
    first = " ".join(done.stdout.partition(".\n")[0].split())
    assert first.startswith("The analytical engine differs by ") and first.endswith(
        "of 6 of 20 runs of tiny, with at most 2 decode steps"
    )
    assert "error of decode time" in done.stdout and "median" in done.stdout
    bounds = {"hbm": 60.0, "link": 40.0}
    slow = Compared("a run", "published", 100.0, 130.0, bounds, {"hbm": 50.0, "link": 80.0})
    assert slow.error == pytest.approx(0.3)
    assert slow.reason == "link estimated too long, by 40% of the time"
    assert errors([slow])["rank"].isna().all() and errors([slow])["bias"][0] == pytest.approx(0.3)
