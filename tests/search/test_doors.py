"""One iteration at the doors that a user takes: `compare`, `run` and `serve` (`recommend`: tests/serving)."""

from itertools import product

import pytest
from support.examples import sampled
from support.rates import MOVED, RATES, pair, rates_move_their_share

import archsim as ar
from archsim.iteration.times import batches_of, iteration_times
from archsim.search.machines import Estimates, base_of, experiment_of, ways_of
from archsim.search.options import Requests, side_of
from archsim.serving.serving import deploy
from archsim.specs.serving_files import load_serving

MODEL, BATCH, REQUESTS = "olmoe-1b-7b", 64, Requests()
OF_RUNS = {"dense": ("dense_ffn", "router", "elementwise"), "head": ("lm_head", "sampling")}  # parts of several causes


def compared(system):
    """The estimates of a side of `compare`, and one way to use it."""
    base = base_of(side_of(system, machine=True), MODEL)
    (way,) = (each for each in ways_of(base, {"policy": "ep"}) if each.tp == 2 and not each.gathers)
    return Estimates(base, REQUESTS, None), way


def of_compare(system):
    estimates, way = compared(system)
    return dict(estimates.batch(way, BATCH).parts_ns)


def of_serve(system):
    given = {"concurrency": BATCH, "input": {"fixed": 1024}, "output": {"fixed": 2}, "count": BATCH}
    built = deploy(load_serving({
        "system": system, "model": MODEL, "parallel": {"attention": {"tp": 2}}, "precision": {"kv": "bf16"},
        "requests": given, "engine": "none",
    })).prefill  # fmt: skip
    found = iteration_times(built.laws, batches_of([1] * BATCH, [REQUESTS.context] * BATCH))
    return {cause: float(ns[0]) for cause, ns in found.ns.items()}


@pytest.mark.parametrize(("door", "rates"), sampled(
    product((of_compare, of_serve), MOVED), lambda case: (case[0] is of_serve) == (case[1] is RATES),
))  # fmt: skip
def test_a_rate_moves_its_share_of_an_iteration(door, rates):
    rates_move_their_share(door, rates)


def test_compare_run_and_serve_have_one_iteration():
    """But for experts and what brings them tokens, which `serve` has by chance and the others by traffic."""
    estimates, way = compared(pair())
    found, served = estimates.batch(way, BATCH), of_serve(pair())
    (row,) = ar.run(experiment_of(estimates.base, way, BATCH, REQUESTS)).runs.rows
    assert row["iteration_ns"] == found.ns == pytest.approx(sum(found.parts_ns.values()), rel=1e-9)
    for part in ("attention", "projections", "dense", "head"):
        ns = sum(served[cause] for cause in OF_RUNS.get(part, (part,)))
        assert row[f"iteration_{part}_ns"] == found.parts_ns[part] == pytest.approx(ns, rel=1e-12), part
