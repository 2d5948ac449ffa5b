"""Laws of speculation and of the cadence of prompts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.serving import MS, opened, pool

import archsim as ar
from archsim.base.errors import ArchsimError
from archsim.iteration.times import NO_DRAFTS, of
from archsim.serving.measures import measure, times_ns
from archsim.serving.simulate import Scheduler, simulate
from archsim.specs.serving import SCHEDULERS

SMALL = {"max_num_seqs": 8, "max_num_batched_tokens": 128, "block_tokens": 16}
ROWS = [(at * 3.0, 20 + 13 * at % 90, 5 + 7 * at % 40) for at in range(40)]
FILE = {
    "system": "h200_node",
    "model": "qwen3-30b-a3b",
    "parallel": {"attention": {"tp": 4}},
    "requests": {"concurrency": 4, "input": {"fixed": 200}, "output": {"fixed": 64}, "count": 12},
}


def served(speculation=NO_DRAFTS, name="vllm_v1", rows=ROWS, ranks=1, blocks=400, layers=10, **more):
    return simulate(
        opened(rows), Scheduler(name, **SMALL, **more), pool(blocks, 1, ranks), speculation=speculation, layers=layers
    )


@pytest.mark.parametrize("name", sorted(SCHEDULERS))
@pytest.mark.parametrize("drafts", [1, 3])
def test_all_drafts_accepted_are_so_many_more_tokens_an_iteration(name, drafts):
    row = [(0.0, 50, 1 + 24)]
    plain, fast = served(name=name, rows=row), served(of(drafts, 1.0, 0, 0), name, row)
    assert (plain.totals["iterations"], fast.totals["iterations"]) == (25, 1 + 24 // (drafts + 1))
    assert fast.totals["accepted"] == fast.totals["drafted"] == 24 - 24 // (drafts + 1)


@pytest.mark.parametrize("layers", [0, 1])
def test_no_draft_accepted_gains_nothing_and_costs_the_drafts(layers):
    plain, slow = served(), served(of(3, 0.0, layers, 0))
    assert slow.totals["accepted"] == 0 and np.array_equal(slow.requests["made"], plain.requests["made"])
    assert slow.totals["now_ns"] > plain.totals["now_ns"]
    if layers:
        assert slow.totals["now_ns"] > served(of(3, 0.0, 0, 0)).totals["now_ns"]


@settings(max_examples=25)
@given(st.sampled_from(sorted(SCHEDULERS)), st.integers(1, 4), st.floats(0, 1), st.integers(30, 100))
def test_tokens_and_blocks_are_conserved_with_drafts(name, drafts, rate, blocks):
    found = served(of(drafts, rate, 1, 3), name, blocks=blocks)
    requests = found.requests
    assert np.array_equal(requests["made"], requests["output"]) and requests["blocks"].sum() == 0
    assert np.all(requests["computed"] == requests["input"] + requests["output"] - 1)
    assert np.all(requests["last_ns"] >= requests["first_ns"])


def test_prompts_pass_the_layer_that_drafts():
    """One of ten: a tenth longer at most, and nothing where drafts come from n-grams."""
    plain, ngram, mtp = (
        float(served(each, rows=[(0.0, 100, 2)]).requests["first_ns"][0])
        for each in (NO_DRAFTS, of(2, 1.0, 0, 0), of(2, 1.0, 1, 0))
    )
    assert plain == ngram and plain < mtp <= 1.1 * plain


def test_more_accepted_is_faster():
    row = [(0.0, 50, 200)]
    ends = [float(served(of(3, rate, 1, 0), rows=row).totals["now_ns"]) for rate in (0.0, 0.3, 0.6, 0.9, 1.0)]
    assert ends == sorted(ends, reverse=True) and len(set(ends)) == 5


def test_rates_of_each_draft_and_the_mean_of_tokens():
    assert of(3, 0.5, 0, 0).tokens == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert of(2, (0.8, 0.5), 0, 0).tokens == pytest.approx(1 + 0.8 + 0.4)
    found = served(of(2, (0.8, 0.5), 0, 0), rows=[(0.0, 50, 4000)])
    assert found.totals["iterations"] == pytest.approx(4000 / (1 + 0.8 + 0.4), rel=0.05)


def test_a_tree_accepts_one_draft_a_depth_and_verifies_all():
    """Two depths of 4 and 8 drafts: 12 rows are verified beside the next token, and 2 at most are accepted."""
    tree, chain = of(2, 1.0, 1, 0, (4, 8)), of(2, 1.0, 1, 0)
    assert (tree.drafts, chain.drafts, tree.tokens) == (12, 2, chain.tokens)
    row = [(0.0, 50, 1 + 24)]
    wide, narrow = served(tree, rows=row), served(chain, rows=row)
    assert wide.totals["iterations"] == narrow.totals["iterations"] == 1 + 24 // 3
    assert wide.totals["accepted"] == narrow.totals["accepted"] == 16 and wide.totals["drafted"] > 4 * 16
    assert wide.totals["now_ns"] > narrow.totals["now_ns"]  # of the same acceptance, more rows are no faster
    likelier = served(of(2, 0.9, 1, 0, (2, 2)), rows=[(0.0, 50, 400)]).totals["now_ns"]
    assert likelier < served(of(2, 0.5, 1, 0), rows=[(0.0, 50, 400)]).totals["now_ns"]
    one_each = served(of(2, 0.7, 1, 0, (1, 1)), rows=row)
    assert one_each.totals["now_ns"] == served(of(2, 0.7, 1, 0), rows=row).totals["now_ns"]


def test_a_file_speculates():
    plain, fast, slow = (
        ar.serve(FILE | {"speculation": each})
        for each in ("none", {"draft_tokens": 3, "acceptance": 0.8}, {"draft_tokens": 3, "acceptance": [0, 0, 0]})
    )
    tpot = [each.measures.tpot.mean for each in (fast, plain, slow)]
    assert tpot == sorted(tpot) and tpot[0] < 0.7 * tpot[1]
    assert any("speculation" in note for note in fast.notes)
    with pytest.raises(ArchsimError, match="2 depths for 3 draft_tokens"):
        ar.serve(FILE | {"speculation": {"draft_tokens": 3, "acceptance": 0.5, "tree": [4, 4]}})
    with pytest.raises(ArchsimError, match="2 rates for 3 drafts"):
        ar.serve(FILE | {"speculation": {"draft_tokens": 3, "acceptance": [0.5, 0.4]}})


def test_prompts_of_ranks_that_wait_for_each_other_are_grouped():
    """Some rank has a prompt in most iterations; grouped, most gaps are those of decodes alone."""
    rows = [(at * 4.0, 20, 20) for at in range(300)]
    machine = pool(2000, 1, 4, token_ns=1e5)
    found = {
        rule: simulate(opened(rows), Scheduler(**SMALL, prefill=rule, prefill_every=8), machine)
        for rule in ("free", "spaced", "together")
    }
    gaps = {rule: measure(each, 4).itl.percentiles[0] for rule, each in found.items()}
    ttft = {rule: times_ns(each)["ttft"].mean() / MS for rule, each in found.items()}
    for rule in ("spaced", "together"):
        assert gaps[rule] <= gaps["free"] and ttft[rule] > ttft["free"]
        assert found[rule].totals["prompts"] < found["free"].totals["prompts"]
        assert np.array_equal(found[rule].requests["made"], found[rule].requests["output"])
    assert gaps["spaced"] < 0.9 * gaps["free"]


def test_one_iteration_between_prompts_is_free():
    assert served(prefill="spaced", prefill_every=1).requests.tobytes() == served().requests.tobytes()
