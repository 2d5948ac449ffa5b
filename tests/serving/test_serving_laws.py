"""Laws of serving: tokens and KV blocks are conserved, time runs forward, requests come in order, nothing is random."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import serving_oracle
from support.examples import examples, sampled
from support.serving import MS, closed, opened, pool

import archsim as ar
from archsim.base.errors import ArchsimError, TraceError
from archsim.serving import loop
from archsim.serving import simulate as simulation
from archsim.serving.compiled_scheduler import compile_scheduler
from archsim.serving.kv import with_outputs
from archsim.serving.measures import Slo, few_note, in_step_note, measure, saturation, times_ns, unsteadiness
from archsim.serving.records import KvTransfer
from archsim.serving.requests import Requests, gamma_arrivals, in_sessions, lengths, without_hashes
from archsim.serving.simulate import CHOICES, Fault, KvUnits, Scheduler, simulate
from archsim.serving.speculation import NO_DRAFTS, of
from archsim.specs.schedulers import SCHEDULERS

NAMES = st.sampled_from(sorted(SCHEDULERS))
ROWS = st.lists(st.tuples(st.floats(0, 500), st.integers(1, 300), st.integers(1, 60)), min_size=1, max_size=40)
MIXED = KvUnits(8, 20, ((20, 8), (100, 3)))  # a state, and layers of two windows
MIXED_POOL = pool(51)._replace(units=MIXED)
SMALL = {"max_num_seqs": 8, "max_num_batched_tokens": 128, "block_tokens": 16}


def served(rows, name="vllm_v1", blocks=60, ranks=1, instances=1, **more):
    return simulate(opened(rows), Scheduler(name, **SMALL), pool(blocks, instances, ranks), **more)


# ---- Laws of every deployment, by a table: rows of ``DEPLOYMENTS`` × ``LAWS``.


def tokens_and_blocks_are_conserved(found):
    requests, totals = found.requests, found.totals
    assert np.array_equal(requests["made"], requests["output"]) and requests["blocks"].sum() == 0
    assert np.all(requests["computed"] == requests["input"] + requests["output"] - 1)
    if not totals["drafted"] and not len(found.failed):
        assert found.gaps.sum() == (requests["output"] - 1).sum()
        least = requests["input"].sum() - requests["hit"].sum() + (requests["output"] - 1).sum()
        computed = totals["prefill_tokens"] + totals["decode_tokens"]
        assert computed == least if requests["preempted"].sum() == 0 else computed > least


def time_runs_forward(found):
    requests = found.requests
    assert np.all(requests["scheduled_ns"] >= requests["arrival_ns"])
    assert np.all(requests["first_ns"] > requests["scheduled_ns"])
    assert np.all(requests["last_ns"] >= requests["first_ns"])


PREFIXES = ("prefix_aware", "cache_aware", "session")  # refused without hash ids
# Number and name → (law, the field of a request that its mutant has one more or one second less of).
LAWS = {
    "INV-10 conservation of tokens": (tokens_and_blocks_are_conserved, "made", 1),
    "INV-11 order of times": (time_runs_forward, "last_ns", -1000 * MS),
}
FREE = KvTransfer(np.float64(0), np.float64(0))
# Name → (its pool, more of the simulation, more of the scheduler); a deployment joins by one row.
DEPLOYMENTS = {
    "one engine": ({}, {}, {}), "ranks": ({"ranks": 3}, {}, {}), "engines": ({"instances": 2, "ranks": 2}, {}, {}),
    "drafts": ({}, {"speculation": of(3, 0.6, 1, 3), "layers": 10}, {}),
    "useless drafts": ({"ranks": 2}, {"speculation": of(2, 0.0, 0, 0), "layers": 10}, {}),
    "pools apart": ({}, {"decode": pool(200), "transfer": KvTransfer(np.float64(MS), np.float64(1e4))}, {}),
    "late tokens": ({}, {"first_after": 3, "request_ns": 7 * MS, "front_end_ns": MS}, {}),
    "spaced prompts": ({"ranks": 2}, {}, {"prefill": "spaced", "prefill_every": 4}),
    "prompts together": ({"ranks": 2}, {}, {"prefill": "together", "prefill_every": 4}),
    "a rank that fails": ({"instances": 2}, {"faults": [Fault(21 * MS, 0, 0, 50 * MS, False)]}, {}),
    **{balance: ({"instances": 3}, {}, {"balance": balance}) for balance in CHOICES},
}  # fmt: skip


def asked_with_prefixes(rows):
    """Every prompt begins with the blocks of all."""
    requests = opened(rows)
    counts = -(-requests.input // 32)
    ids = np.concatenate([np.arange(count) for count in counts])
    return requests._replace(hash_ids=ids, hash_from=np.r_[0, np.cumsum(counts)], hash_tokens=32)


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
@settings(max_examples=examples(40, 3))
@given(ROWS, NAMES, st.integers(24, 200), st.booleans())
def test_every_deployment_obeys_all_laws_and_equal_runs_give_equal_bytes(deployment, rows, name, blocks, shared):
    machine, more, rules = DEPLOYMENTS[deployment]
    requests = asked_with_prefixes(rows) if shared or deployment in PREFIXES else opened(rows)
    one, same = (
        simulate(requests, Scheduler(name, **SMALL, **rules), pool(blocks, **machine), **more) for _ in range(2)
    )
    for law, *_ in LAWS.values():
        law(one)
    assert one.requests.tobytes() == same.requests.tobytes() and one.series.tobytes() == same.series.tobytes()


@pytest.mark.parametrize("name", LAWS)
def test_a_law_kills_its_mutant(name):
    (law, field, more), found = LAWS[name], served([(0.0, 40, 6), (1.0, 30, 4)])
    law(found)
    mutant = found.requests.copy()
    mutant[field][0] += more
    with pytest.raises(AssertionError):
        law(found._replace(requests=mutant))


@settings(max_examples=examples(60))
@given(ROWS, NAMES, st.integers(24, 80), st.booleans(), st.sampled_from([KvUnits(), MIXED]))
def test_all_kv_blocks_come_back(rows, name, blocks, shared, units):
    asked = asked_with_prefixes(rows) if shared else opened(rows)
    scheduler = Scheduler(name, **SMALL)
    machine = pool(blocks)._replace(units=units)
    try:
        asked = simulation.servable(asked, scheduler, machine)
    except TraceError:
        return
    limits = simulation._limits(asked, scheduler, 0.0, units=units)
    state = simulation._state(asked, scheduler, machine, None, limits)
    schedule = compile_scheduler(name, {}, state, limits)
    assert loop.run(state, machine.table, machine.table, limits, FREE, schedule) == loop.ENDED
    rank = state.ranks[0]
    cached = int(state.sizes[state.references[0] == 0].sum())
    assert np.all(state.references <= 0) and rank["unheld"] == cached
    assert rank["free"] + cached == rank["capacity"] == blocks * units.of_block
    assert state.requests["blocks"].sum() == 0 and state.held.sum() == 0


def test_what_a_window_takes_while_a_prompt_is_computed_is_promised():
    """Two prompts fit at their ends, not while the first is computed: the second one waits."""
    found = simulate(opened([(0.0, 289, 50), (0.0, 193, 1)]), Scheduler("trtllm", **SMALL), MIXED_POOL)
    assert found.totals["finished"] == 2 and found.totals["preemptions"] == 0


@pytest.mark.parametrize(("first_after", "late"), [(1, 0), (2, 1), (20, 4)])
def test_one_request_takes_its_iterations(first_after, late):
    """Its client may see tokens iterations late: the first one, and as much the last one."""
    found = served([(3.0, 100, 5)], first_after=first_after)
    request = found.requests[0]
    prefill, decode = 2 * MS + 100 * 1e4 + 1e3, 2 * MS + 1e4 + 1e3
    assert request["first_ns"] - request["arrival_ns"] == pytest.approx(prefill + late * decode)
    assert times_ns(found)["tpot"][0] == pytest.approx(decode)


def test_a_long_prompt_takes_chunks():
    found = served([(0.0, 300, 1)])
    assert found.totals["iterations"] == 3 and found.totals["prefill_tokens"] == 300


@settings(max_examples=examples(40))
@given(ROWS)
def test_first_come_first_served(rows):
    """Without preemption, requests are admitted in order of arrival."""
    found = served(rows, blocks=2000)
    assert np.all(np.diff(found.requests["scheduled_ns"]) >= 0)
    assert found.totals["preemptions"] == 0


def test_too_little_kv_preempts_and_still_ends():
    found = served([(0.0, 100, 60)] * 6, blocks=24)
    assert found.totals["preemptions"] > 0
    assert served([(0.0, 100, 60)] * 6, "trtllm", blocks=24).totals["preemptions"] == 0


@pytest.mark.parametrize("name", sorted(SCHEDULERS))
@pytest.mark.parametrize("more", [{"instances": 2}, {"blocks": 400}, {"token_ns": 5e3}])
def test_more_machine_serves_more(name, more):
    sizes = [(40 + 37 * at % 250, 5 + 11 * at % 50) for at in range(200)]
    rows = [(at * 4.0, *size) for at, size in enumerate(sizes)]
    scheduler = Scheduler(name, **SMALL)
    here, there = (
        measure(simulate(opened(rows), scheduler, pool(**each)), 1).goodput_per_s
        for each in ({"blocks": 100}, {"blocks": 100} | more)
    )
    assert there >= 0.98 * here


def test_sglang_admits_no_prompt_of_which_only_a_chunk_has_room():
    """KV for 9.67 prompts took four times as long as for 9.19, with 396 retractions."""
    asked = opened([(0.0, 4000, 200)] * 40)
    ends, retracted = zip(*(
        (float(found.totals["now_ns"]), int(found.totals["preemptions"]))
        for prompts in (9.19, 9.67, 10.14)
        for found in [simulate(asked, Scheduler("sglang", 64, 1000), pool(int(prompts * 4200 / 16)))]
    ), strict=True)  # fmt: skip
    assert max(ends) < 1.2 * min(ends) and max(retracted) <= 10


def _of_memory(seed):
    """(requests, scheduler's limits, KV blocks from what the longest one needs to eight times as much)."""
    draw = np.random.default_rng(seed)
    lengths_of = int(draw.integers(100, 3000)), int(draw.integers(5, 400))
    apart, at_once = float(draw.choice([0, 0.2, 0.6])), draw.random() < 0.5
    rows = [
        (0.0 if at_once else float(draw.integers(0, 3000)),
         *(max(1, int(each * (1 + apart * draw.uniform(-1, 1)))) for each in lengths_of))
        for _ in range(int(draw.integers(10, 50)))
    ]  # fmt: skip
    least = max(-(-(prompt + output) // 16) for _, prompt, output in rows)
    budget = int(draw.choice([512, 2048, 8192]))
    return opened(rows), (int(draw.choice([8, 64])), budget), [int(least * each) + 1 for each in np.linspace(1, 8, 15)]


@pytest.mark.parametrize(("name", "params", "share"), [
    ("sglang", {}, 0.25), ("sglang", {"kept_share": 1.0}, 0.0), ("trtllm", {}, 0.0)
])  # fmt: skip
@pytest.mark.parametrize("seed", sampled(range(60), lambda seed: seed % 20 == 0))
def test_more_memory_retracts_no_more_requests_and_is_not_slower(name, params, share, seed):
    """Where room is kept for whole outputs, nothing is retracted. SGLang keeps a share of them, so that it may admit a
    request more than all have room for at their ends: then a few are retracted, and little time is lost.
    """
    requests, limits, sizes = _of_memory(seed)
    least, fewest = np.inf, 0
    for at, blocks in enumerate(sizes):
        totals = simulate(requests, Scheduler(name, *limits, params=params), pool(blocks)).totals
        ends, retracted = float(totals["now_ns"]), int(totals["preemptions"])
        assert ends <= 1.02 * least and retracted <= (fewest if at else retracted) + share * len(requests.input)
        assert share or not retracted
        least, fewest = min(least, ends), min(fewest, retracted) if at else retracted


def test_sglang_does_not_mix_prompts_and_decodes():
    rows = [(float(at), 100, 20) for at in range(12)]
    mixed, apart = (served(rows, name, blocks=400) for name in ("vllm_v1", "sglang"))
    assert apart.totals["iterations"] > mixed.totals["iterations"]


def test_ranks_wait_for_each_other():
    rows = [(0.0, 100, 20), (0.0, 10, 20)]
    alone, together = served(rows, ranks=1, instances=2), served(rows, ranks=2)
    assert together.requests["first_ns"][1] == pytest.approx(together.requests["first_ns"][0])
    assert alone.requests["first_ns"][1] < together.requests["first_ns"][1]


def test_clients_send_the_next_request_when_the_last_ends():
    found = simulate(closed([(50, 10)] * 9, 3), Scheduler(**SMALL), pool(400))
    requests = found.requests
    assert np.all(requests["arrival_ns"][:3] == 0)
    ends = np.sort(requests["last_ns"])
    assert np.array_equal(requests["arrival_ns"][3:], ends[:6])


def test_the_host_takes_its_time_before_the_queue():
    rows = [(0.0, 100, 5)]
    here, later = served(rows), served(rows, request_ns=7 * MS)
    assert times_ns(later)["ttft"] == pytest.approx(times_ns(here)["ttft"] + 7 * MS)


def test_kv_moves_to_the_instances_that_decode():
    rows = [(at * 5.0, 100, 10) for at in range(8)]
    transfer = KvTransfer(np.float64(1 * MS), np.float64(1e4))
    requests = served(rows, decode=pool(60), transfer=transfer).requests
    prefill = 2 * MS + 100 * 1e4 + 1e3
    assert requests["first_ns"][0] - requests["arrival_ns"][0] == pytest.approx(prefill + 1 * MS + 100 * 1e4)


def test_requests_with_their_kv_hold_up_decodes_under_sglang_before_v0_5_10():
    """Where they join, each decode gets a token in every iteration of its rank, as under an engine that mixes all."""
    requests = opened([(at * 5.0, 100, 30) for at in range(8)])
    found = {
        (name, *own.values()): simulate(
            requests, Scheduler(name, 8, 128, params=own), pool(100), decode=pool(200), transfer=FREE
        ).requests["last_ns"]
        for name, own in (("sglang", {"join_decodes": 0}), ("sglang", {"join_decodes": 1}), ("vllm_v1", {}),
                          ("sglang", {"join_decodes": 1, "poll_every": 30}))
    }  # fmt: skip
    assert np.array_equal(found["sglang", 1], found["vllm_v1",])
    assert np.array_equal(found["sglang", 1], found["sglang", 1, 30])  # KV that arrives is looked for at once
    assert np.all(found["sglang", 0][:-1] > found["sglang", 1][:-1])


def test_windows_and_states_move_with_a_request():
    rows = [(0.0, 100, 10)]
    transfer = KvTransfer(np.float64(0), np.float64(1e4), np.float64(3e5), np.array([[40.0, 1e3], [400.0, 10.0]]))
    first, moved = (served(rows, decode=pool(60), transfer=each).requests[0]["first_ns"] for each in (FREE, transfer))
    assert moved - first == pytest.approx(100 * 1e4 + 3e5 + 40 * 1e3 + 100 * 10)


@pytest.mark.parametrize("name", sorted(SCHEDULERS))
def test_a_long_request_keeps_a_window_of_its_windowed_layers(name):
    """All layers take 63 blocks for 1000 tokens; half of them with a window of 20, 2 or 3 of these."""
    units = KvUnits(2, 0, ((20, 2),))
    machine = pool(80)._replace(units=units)
    found = simulate(opened([(0.0, 900, 100)]), Scheduler(name, **SMALL), machine)
    decoding = found.series[found.series[:, 0] > 0, 0].max()
    assert 57 / 80 < decoding <= (63 + 10) / 80
    wide = machine._replace(units=KvUnits(2, 0, ((1000, 2),)))  # both kinds keep all of it
    with pytest.raises(TraceError, match="KV cache holds"):
        simulate(opened([(0.0, 900, 100)]), Scheduler(name, **SMALL), wide)


def test_a_prefix_is_computed_once():
    ids = np.tile(np.arange(6), 5)
    asked = Requests(np.arange(5) * 100 * MS, np.full(5, 192), np.full(5, 4), ids, np.arange(6) * 6, hash_tokens=32)
    found = simulate(asked, Scheduler(**SMALL), pool(60))
    assert found.requests["hit"].tolist() == [0, 176, 176, 176, 176]  # the last block of 16 is computed for its token
    off = simulate(asked, Scheduler(**SMALL, prefix_caching=False), pool(60))
    assert off.requests["hit"].sum() == 0 and off.totals["prefill_tokens"] == 5 * 192


def test_what_can_never_be_served_is_refused():
    with pytest.raises(TraceError, match=r"holds 960 tokens. The first is requests: request 1: 2,000 prompt and"):
        served([(0.0, 10, 10), (1.0, 2000, 10)])
    whole = Scheduler(**SMALL, chunked_prefill=False)
    with pytest.raises(TraceError, match="iterations take 128 tokens, and prompts"):
        simulate(opened([(0.0, 200, 2)]), whole, pool())


def test_what_a_server_rejects_leaves_the_rest_to_be_served():
    """One of 400 that is too long refused the whole run. A session ends with the turn that is rejected."""
    asked = opened([(at * 9.0, 2000 if at == 7 else 10, 10) for at in range(400)])
    left = simulation.servable(asked, Scheduler(**SMALL), pool(60))
    assert [each.number for each in left.rejected] == [1] and "request 7: 2,000 prompt" in left.rejected[0].first
    assert simulate(left, Scheduler(**SMALL), pool(60)).totals["finished"] == 399
    none = np.zeros(2, np.int64)
    added = np.array([10, 2000, 10, 10, 10, 10])
    talks = in_sessions(np.zeros(2), np.array([3, 3]), added, np.full(6, 5), np.zeros(6), none, none)
    left = simulation.servable(talks, Scheduler(**SMALL), pool(60))
    assert left.rejected[0].number == 2 and left.follower.tolist() == [-1, 2, 3, -1]
    assert np.array_equal(left.hash_from[-1], len(left.hash_ids))


def test_saturation_is_said():
    fast = served([(at * 0.5, 100, 20) for at in range(200)])
    slow = served([(at * 100.0, 100, 20) for at in range(50)])
    assert "saturated" in measure(fast, 1).saturated and measure(slow, 1).saturated == ""


def test_rates_of_few_requests_on_a_saturated_engine_are_those_of_many():
    many, few = (served([(at * 0.5, 100, 20) for at in range(count)]) for count in (2000, 20))
    burst, told, steady = measure(few, 1), measure(few, 1, longer=many), measure(many, 1)
    assert told.requests_per_s == steady.requests_per_s and told.output_tokens_per_s == steady.output_tokens_per_s
    assert told.ttft == burst.ttft and told.saturated.endswith("The rates shown are those of 2,000 requests.")


def test_the_share_within_the_limits_is_of_the_run_whose_rates_count():
    """Three requests were "goodput 0.000 (100.0% within the limits)": the share was theirs, the rate that of 2,000."""
    many, few = (served([(at * 0.5, 100, 20) for at in range(count)]) for count in (2000, 3))
    limits = Slo(ttft_ns=2 * measure(few, 1).ttft.mean * MS)
    alone, found = measure(few, 1, limits), measure(few, 1, limits, longer=many)
    assert alone.within_slo == 1 and found.within_slo < 0.5
    assert found.goodput_per_s == pytest.approx(found.requests_per_s * found.within_slo)


@pytest.mark.parametrize("clients", [1, 4, 16])
@pytest.mark.parametrize("rounds", [2, 3, 10, 40])
@pytest.mark.parametrize("spread", [0, 80])
def test_clients_are_their_rate_times_the_time_of_a_request(clients, rounds, spread):
    """Little's law, in every closed loop that is steady; the others say that they are not."""
    draw = np.random.default_rng(clients)
    sizes = [
        (100 + int(draw.integers(0, spread + 1)), 40 + int(draw.integers(0, spread + 1) // 2))
        for _ in range(clients * rounds)
    ]
    found = measure(simulate(closed(sizes, clients), Scheduler(**SMALL), pool(4000), first_after=2), 1)
    inside = found.requests_per_s * found.e2e.mean / 1e3
    assert inside == pytest.approx(clients, rel=0.02) or found.unsteady
    assert found.output_tokens_per_s == pytest.approx(
        found.requests_per_s * found.output_tokens / found.requests, rel=0.03 if found.unsteady else 1e-6
    )
    if not spread:  # all requests alike: what was generated over the duration, but for one start
        assert found.output_tokens_per_s == pytest.approx(found.output_tokens / found.duration_s, rel=0.02 + 1 / rounds)


@pytest.mark.parametrize(
    ("clients", "turns", "sessions", "think_ms"), [(1, 6, 1, 20_000.0), (1, 6, 10, 0.0), (5, 3, 60, 700.0)]
)
def test_clients_of_sessions_are_their_rate_times_the_time_to_the_next_turn(clients, turns, sessions, think_ms):
    """Little's law: one client, six turns and 20 s of thinking had "1.843 a second", not 0.058."""
    many, none = turns * sessions, np.zeros(sessions, np.int64)
    draw = np.random.default_rng(3)
    asked = in_sessions(
        np.zeros(sessions), np.full(sessions, turns), draw.integers(50, 90, many), draw.integers(10, 30, many),
        np.full(many, think_ms * MS), none, none,
    )._replace(concurrency=clients)  # fmt: skip
    served = simulate(asked, Scheduler(**SMALL), pool(4000))
    found = measure(served, 1)
    cycle_s = (found.e2e.mean + think_ms * (turns - 1) / turns) / 1e3
    assert found.requests_per_s * cycle_s == pytest.approx(clients)
    assert ("session" in found.unsteady) == (sessions // clients < 6)
    if clients == 1:
        assert found.requests_per_s == pytest.approx(many / found.duration_s)


def test_a_rate_of_few_rounds_is_flagged_and_that_of_more_is_shown():
    """Two requests a client are at full load for less time than one takes."""
    draw = np.random.default_rng(5)
    sizes = list(zip(draw.integers(60, 140, 640), draw.integers(20, 40, 640), strict=True))
    short, long = (simulate(closed(sizes[:count], 64), Scheduler(max_num_batched_tokens=128), pool(9000))
                   for count in (128, 640))  # fmt: skip
    alone, beside, steady = measure(short, 1), measure(short, 1, longer=long), measure(long, 1)
    assert alone.requests_per_s > 1.02 * steady.requests_per_s and "requests.count" in alone.unsteady
    assert beside.requests_per_s == steady.requests_per_s and beside.unsteady.endswith("those of 640 requests.")
    assert steady.unsteady == ""


def test_a_run_with_a_fault_says_that_its_rate_is_of_the_whole_duration():
    rows = [(at * 4.0, 100, 20) for at in range(400)]
    found = measure(served(rows, blocks=400, instances=2, faults=[Fault(300 * MS, 0, 0, 200 * MS, False)]), 1)
    assert "fault" in found.unsteady and "whole duration" in found.unsteady
    assert found.requests_per_s == pytest.approx(found.requests / found.duration_s)


def test_clients_start_apart_and_those_in_step_are_told():
    """Requests of one length that begin together end together for ever: TTFT is several times as long."""
    asked = closed([(500, 400)] * 320, 32)
    together, apart, spread = (
        simulate(each, Scheduler("sglang", 64, 8192), pool(9000))
        for each in (asked, asked._replace(apart=True), asked._replace(
            apart=True, input=450 + np.arange(320) * 37 % 100, output=360 + np.arange(320) * 7 % 80))
    )  # fmt: skip
    assert np.ptp(together.requests["arrival_ns"][:32]) == 0
    begun = np.sort(apart.requests["arrival_ns"][:32])
    assert 0.5 * times_ns(apart)["e2e"].mean() < np.ptp(begun) < 1.5 * times_ns(apart)["e2e"].mean()
    assert times_ns(together)["ttft"].mean() > 2 * times_ns(apart)["ttft"].mean()
    assert "in step" in in_step_note(together) and not in_step_note(spread)
    for each in (together, apart, spread):
        found = measure(each, 1)
        assert found.requests_per_s * found.e2e.mean / 1e3 == pytest.approx(32, rel=0.02) or found.unsteady


@pytest.mark.parametrize("gap_ms", [30.0, 60.0])
def test_requests_inside_are_their_rate_times_the_time_of_a_request(gap_ms):
    """Little's law of an open loop: inside, while requests come."""
    arrivals = gamma_arrivals(3000, 1e3 / gap_ms, 1, 3) / 1e6
    rows = [(arrival, 60 + at % 90, 20 + at % 30) for at, arrival in enumerate(arrivals)]
    found = served(rows, blocks=4000)
    measured, requests = measure(found, 1), found.requests
    begin, end = requests["arrival_ns"].min(), requests["arrival_ns"].max()
    inside = (np.minimum(requests["last_ns"], end) - requests["arrival_ns"]).sum() / (end - begin)
    assert measured.requests_per_s * measured.e2e.mean / 1e3 == pytest.approx(inside, rel=0.02)
    assert measured.saturated == measured.unsteady == ""


def test_a_batch_has_the_rate_of_its_whole_duration():
    """Prompts alone: its clients over their mean time would be twice the rate."""
    asked = closed([(100, 1)] * 30, 30), opened([(0.0, 100, 9)] * 30)
    found = [simulate(each, Scheduler(**SMALL), pool(4000)) for each in asked]
    for each in found:
        measured = measure(each, 1)
        assert measured.requests_per_s == pytest.approx(30 / measured.duration_s)
    assert "batch" in measure(found[0], 1).unsteady


def test_prompts_that_wait_for_each_other_count_in_whole_rounds():
    """The first round of 16 waits half as long as those that come, so that Little's law would give too much."""
    found = measure(simulate(closed([(100, 1)] * 160, 16), Scheduler(**SMALL), pool(4000)), 1)
    assert found.unsteady and found.requests_per_s == pytest.approx(160 / found.duration_s, rel=0.01)


def test_a_run_whose_halves_differ_says_so():
    rows = [(at * 4.0, 100, 40) for at in range(100)] + [(400 + at * 200.0, 100, 40) for at in range(100)]
    told = measure(served(rows, blocks=4000), 1).unsteady
    assert told.startswith("The run is not steady: the time per output token is ") and "requests.count" in told


RATE = 256.0  # requests a second that the deployment below sustains, by a run whose requests come at once


def _poisson(requests, load, seed):
    """Requests of spread lengths that come at random, at a share of the rate that the deployment sustains."""
    draw = np.random.default_rng(seed + 1000)
    sizes = zip(draw.integers(60, 150, requests), draw.integers(20, 60, requests), strict=True)
    arrivals = gamma_arrivals(requests, load * RATE, 1.0, seed) / 1e6
    rows = [(at, prompt, output) for at, (prompt, output) in zip(arrivals, sizes, strict=True)]
    return simulate(opened(rows), Scheduler(max_num_seqs=32, max_num_batched_tokens=256), pool(4000))


@pytest.mark.parametrize("requests", [300, 1500])
@pytest.mark.parametrize("load", [0.5, 0.8])
def test_a_stable_deployment_is_hardly_ever_called_unsteady(requests, load):
    """1 % of false alarms on each of two tests: more than 2 of 16 runs come once in 300 cases."""
    found = [_poisson(requests, load, seed) for seed in range(16)]
    assert sum(bool(unsteadiness(each) or saturation(each)) for each in found) <= 2


@pytest.mark.parametrize("load", [1.1, 1.5])
def test_a_rate_above_capacity_is_always_called_so(load):
    """At 1.1 times the capacity, nine of ten requests have begun when the last one comes, and more where few come."""
    assert all(measure(_poisson(3000, load, seed), 1).saturated for seed in range(3))


def test_a_short_run_is_not_called_unsteady_for_chance():
    """The difference to a longer run is said, and that it is within chance."""
    found = [(_poisson(300, 0.6, seed), _poisson(2000, 0.6, seed)) for seed in range(8)]
    assert sum(bool(unsteadiness(few, longer)) for few, longer in found) <= 1
    told = [few_note(few, longer) for few, longer in found]
    assert any("in 2,000 at the same rate, which is within chance" in each for each in told) and not all(told)
    long = found[0][1]
    idle = served([(at * 60.0, 100, 40) for at in range(30)], blocks=4000)
    assert unsteadiness(idle, long) and not few_note(idle, long)


def test_a_time_that_no_request_has_is_no_number():
    found = measure(served([(0.0, 100, 1)] * 3), 1)
    assert found.tpot.mean != found.tpot.mean and found.itl == found.tpot and found.ttft.mean > 0


def test_gaps_are_gamma_and_lengths_as_asked():
    gaps = np.diff(gamma_arrivals(20_000, 4.0, 0.25, 1)) / 1e9
    assert gaps.mean() == pytest.approx(0.25, rel=0.05) and gaps.std() / gaps.mean() == pytest.approx(2.0, rel=0.05)
    even = lengths(20_000, "uniform", (80, 100), 1, 1)
    assert (even.min(), even.max()) == (80, 100) and even.mean() == pytest.approx(90, rel=0.01)
    spread = lengths(20_000, "lognormal", (1000, 0.5), 1, 2)
    assert spread.mean() == pytest.approx(1000, rel=0.03) and spread.std() / spread.mean() == pytest.approx(
        0.5, rel=0.05
    )


def test_time_series_hold_what_happened():
    found = served([(at * 20.0, 100, 20) for at in range(400)])
    assert found.series[:, 3].sum() * found.bin_ns / 1e9 == pytest.approx(400 * 119, rel=0.02)
    assert 0 < found.series[:, 0].max() <= 1 and found.bin_ns > 1e7


def test_requests_without_hashes_share_nothing():
    found = without_hashes(np.zeros(3), np.array([1, 2, 3]), np.array([1, 1, 1]))
    assert found.hash_tokens == 0 and found.hash_from.tolist() == [0, 0, 0, 0]


def test_sglang_looks_for_requests_now_and_then():
    rows = [(0.0, 50, 60), (30.0, 50, 5)]
    often, seldom = (
        simulate(opened(rows), Scheduler("sglang", **SMALL, params={"poll_every": every}), pool(400)).requests
        for every in (1, 20)
    )
    late = (seldom["scheduled_ns"] - often["scheduled_ns"]) / (2 * MS)  # iterations of about 2 ms
    assert late[0] == 0 and 2 < late[1] <= 20
    assert np.array_equal(seldom["made"], often["made"])


@pytest.mark.parametrize(("block", "hits"), [(16, 1008), (1, 1023), (48, 1008), (512, 512), (1024, 0)])
def test_a_prefix_hits_in_blocks_of_the_engine(block, hits):
    """Whatever the blocks of the trace; the block that has the last token of a prompt is computed."""
    twice = Requests(np.array([0.0, 6e10]), np.full(2, 1024), np.full(2, 4), np.tile([0, 1], 2), np.arange(3) * 2, 512)
    found = simulate(twice, Scheduler(block_tokens=block), pool(4000)).requests
    assert found["hit"].tolist() == [0, hits]


def test_prompts_that_end_in_one_hash_block_share_what_both_have():
    ends = np.array([1000, 1024, 992, 700])
    asked = Requests(np.arange(4) * 6e10, ends, np.full(4, 4), np.tile([0, 1], 4), np.arange(5) * 2, 512)
    found = simulate(asked, Scheduler(), pool(4000)).requests
    assert found["hit"].tolist() == [0, 992, 976, 688]


def test_a_prompt_is_admitted_when_all_of_it_fits():
    """vLLM of 2026: a first chunk is not admitted where its prompt would have to drive another out."""
    rows = [(0.0, 300, 20)] * 4
    whole, before = (
        simulate(opened(rows), Scheduler(**SMALL, params={"reserve_full_isl": on}), pool(66)).totals["preemptions"]
        for on in (1, 0)
    )
    assert whole == 0 < before


def test_a_client_sends_its_next_request_when_it_has_seen_the_last_token():
    found = simulate(closed([(50 + 9 * at, 10) for at in range(40)], 4), Scheduler(**SMALL), pool(400), first_after=3)
    requests = found.requests
    assert np.all(np.diff(requests["arrival_ns"]) >= 0)
    assert requests["arrival_ns"][4:] == pytest.approx(np.sort(requests["last_ns"])[:36])


# ---- The compiled loop against a slow and obvious one: every time, hit and preemption of random cases is the same.
# ``ARCHSIM_ORACLE_CASES=1000`` runs as many; each commit runs a sample of the three schedulers.

CASES = int(os.environ.get("ARCHSIM_ORACLE_CASES", "24"))


def case(seed):
    """(rows of (arrival, prompt, output, ids), rules, blocks of a rank, ranks, instances, clients)."""
    draw = np.random.default_rng(seed)
    name = sorted(SCHEDULERS)[seed % len(SCHEDULERS)]
    block = int(draw.choice([1, 4, 16]))
    rules = {
        "name": name, "max_num_seqs": int(draw.integers(1, 12)), "max_num_batched_tokens": int(draw.integers(8, 200)),
        "chunked_prefill": bool(draw.random() < (0.5 if name == "trtllm" else 0.9)),
        "prefix_caching": bool(draw.random() < 0.5), "block_tokens": block,
        "reserve_full_isl": int(draw.random() < 0.7), "poll_every": int(draw.choice([1, 1, 5])),
        "kept_share": float(draw.choice([0.0, 0.7, 1.0])),
    }  # fmt: skip
    longest = 150 if rules["chunked_prefill"] else rules["max_num_batched_tokens"] // 2
    count, clients = int(draw.integers(2, 40)), int(draw.choice([0, 0, 3]))
    rows, known = [], []
    for at in range(count):
        prompt, output = int(draw.integers(1, longest + 1)), int(draw.integers(1, 40 if longest > 40 else longest + 1))
        full = prompt // block
        ids = list(range(1000 * at, 1000 * at + full))
        if known and draw.random() < 0.6:  # as an earlier prompt begins
            like = known[draw.integers(len(known))]
            kept = int(draw.integers(0, len(like) + 1))
            ids = [*like[:kept], *ids][:full]
        known.append(ids)
        rows.append((0 if clients else int(draw.integers(0, 400)) * 1_000_000, prompt, output, ids))
    rows.sort(key=lambda row: row[0])
    most = max(-(-(prompt + output) // block) for _, prompt, output, _ in rows)
    return rows, rules, int(most * draw.uniform(1, 4)), int(draw.integers(1, 3)), int(draw.integers(1, 3)), clients


def asked(rows, block, clients):
    """A block that is not full has an id of its own, which nothing shares."""
    own = iter(range(10**6, 2 * 10**6))
    ids = [[*row[3], *([next(own)] if row[1] % block else [])] for row in rows]
    flat = np.array([each for row in ids for each in row], np.int64)
    first = np.cumsum([0, *map(len, ids)])
    dense = np.unique(flat, return_inverse=True)[1].astype(np.int64)
    arrival, prompt, output = (np.array([row[at] for row in rows]) for at in range(3))
    return Requests(arrival.astype(float), prompt, output, dense, first, block, clients)


def with_ids_of_outputs(rows, block, clients):
    """The rows with the ids of full blocks of outputs that later turns repeat (test_hand_cases.py has hand cases)."""
    chains = with_outputs(asked(rows, block, clients))
    ids = [chains.ids[chains.first[r] :][: tokens // block].tolist() for r, tokens in enumerate(chains.tokens)]
    return [(*row[:3], each) for row, each in zip(rows, ids, strict=True)]


def oracle_served(rows, rules, blocks, ranks, instances, clients):
    known = SCHEDULERS[rules["name"]].parameters
    params = {key: rules.get(key, 1) for key in known}
    names = [key for key in rules if key in Scheduler._fields]
    scheduler = Scheduler(**{key: rules[key] for key in names}, balance="least_loaded", params=params)
    machine = pool(blocks, instances, ranks, attention_ns=1.0)
    return simulate(asked(rows, rules["block_tokens"], clients), scheduler, machine).requests


FIELDS = {"arrival_ns": "arrival", "scheduled_ns": "scheduled", "first_ns": "first", "last_ns": "last", "hit": "hit",
          "preempted": "preempted"}  # fmt: skip


@pytest.mark.parametrize("part", range(3))
def test_every_request_is_served_as_the_rules_say(part):
    wrong = {}
    for seed in range(part, CASES, 3):
        rows, rules, *sizes, clients = case(seed)
        fast = oracle_served(rows, rules, *sizes, clients)
        known = with_ids_of_outputs(rows, rules["block_tokens"], clients)
        slow = serving_oracle.serve(known, rules, *sizes, clients)
        off = [name for name, other in FIELDS.items() if fast[name].tolist() != [getattr(each, other) for each in slow]]
        if off:
            wrong[seed] = rules["name"], off
    assert not wrong, f"{len(wrong)} of {len(range(part, CASES, 3))}: {dict(list(wrong.items())[:5])}"


# ---- Laws of speculation and of the cadence of prompts.

DRAFTED = [(at * 3.0, 20 + 13 * at % 90, 5 + 7 * at % 40) for at in range(40)]
FILE = {
    "system": "h200_node",
    "model": "qwen3-30b-a3b",
    "parallel": {"attention": {"tp": 4}},
    "requests": {"concurrency": 4, "input": {"fixed": 200}, "output": {"fixed": 64}, "count": 12},
}


def drafted(speculation=NO_DRAFTS, name="vllm_v1", rows=DRAFTED, ranks=1, blocks=400, layers=10, **more):
    return simulate(
        opened(rows), Scheduler(name, **SMALL, **more), pool(blocks, 1, ranks), speculation=speculation, layers=layers
    )


@pytest.mark.parametrize("name", sorted(SCHEDULERS))
@pytest.mark.parametrize("drafts", [1, 3])
def test_all_drafts_accepted_are_so_many_more_tokens_an_iteration(name, drafts):
    row = [(0.0, 50, 1 + 24)]
    plain, fast = drafted(name=name, rows=row), drafted(of(drafts, 1.0, 0, 0), name, row)
    assert (plain.totals["iterations"], fast.totals["iterations"]) == (25, 1 + 24 // (drafts + 1))
    assert fast.totals["accepted"] == fast.totals["drafted"] == 24 - 24 // (drafts + 1)


@pytest.mark.parametrize("layers", [0, 1])
def test_no_draft_accepted_gains_nothing_and_costs_the_drafts(layers):
    plain, slow = drafted(), drafted(of(3, 0.0, layers, 0))
    assert slow.totals["accepted"] == 0 and np.array_equal(slow.requests["made"], plain.requests["made"])
    assert slow.totals["now_ns"] > plain.totals["now_ns"]
    if layers:
        assert slow.totals["now_ns"] > drafted(of(3, 0.0, 0, 0)).totals["now_ns"]


def test_prompts_pass_the_layer_that_drafts():
    """One of ten: a tenth longer at most, and nothing where drafts come from n-grams."""
    plain, ngram, mtp = (
        float(drafted(each, rows=[(0.0, 100, 2)]).requests["first_ns"][0])
        for each in (NO_DRAFTS, of(2, 1.0, 0, 0), of(2, 1.0, 1, 0))
    )
    assert plain == ngram and plain < mtp <= 1.1 * plain


def test_more_accepted_is_faster():
    row = [(0.0, 50, 200)]
    ends = [float(drafted(of(3, rate, 1, 0), rows=row).totals["now_ns"]) for rate in (0.0, 0.3, 0.6, 0.9, 1.0)]
    assert ends == sorted(ends, reverse=True) and len(set(ends)) == 5


def test_rates_of_each_draft_and_the_mean_of_tokens():
    assert of(3, 0.5, 0, 0).tokens == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert of(2, (0.8, 0.5), 0, 0).tokens == pytest.approx(1 + 0.8 + 0.4)
    found = drafted(of(2, (0.8, 0.5), 0, 0), rows=[(0.0, 50, 4000)])
    assert found.totals["iterations"] == pytest.approx(4000 / (1 + 0.8 + 0.4), rel=0.05)


def test_a_tree_accepts_one_draft_a_depth_and_verifies_all():
    """Two depths of 4 and 8 drafts: 12 rows are verified beside the next token, and 2 at most are accepted."""
    tree, chain = of(2, 1.0, 1, 0, (4, 8)), of(2, 1.0, 1, 0)
    assert (tree.drafts, chain.drafts, tree.tokens) == (12, 2, chain.tokens)
    row = [(0.0, 50, 1 + 24)]
    wide, narrow = drafted(tree, rows=row), drafted(chain, rows=row)
    assert wide.totals["iterations"] == narrow.totals["iterations"] == 1 + 24 // 3
    assert wide.totals["accepted"] == narrow.totals["accepted"] == 16 and wide.totals["drafted"] > 4 * 16
    assert wide.totals["now_ns"] > narrow.totals["now_ns"]  # of the same acceptance, more rows are no faster
    likelier = drafted(of(2, 0.9, 1, 0, (2, 2)), rows=[(0.0, 50, 400)]).totals["now_ns"]
    assert likelier < drafted(of(2, 0.5, 1, 0), rows=[(0.0, 50, 400)]).totals["now_ns"]
    one_each = drafted(of(2, 0.7, 1, 0, (1, 1)), rows=row)
    assert one_each.totals["now_ns"] == drafted(of(2, 0.7, 1, 0), rows=row).totals["now_ns"]


def test_a_file_speculates():
    plain, fast, slow = (
        ar.serve(FILE | {"speculation": each})
        for each in ("none", {"draft_tokens": 3, "acceptance": 0.8}, {"draft_tokens": 3, "acceptance": [0, 0, 0]})
    )
    tpot = [each.measures.tpot.mean for each in (fast, plain, slow)]
    assert tpot == sorted(tpot) and tpot[0] < 0.7 * tpot[1]
    assert any("drafted tokens" in note for note in fast.notes)
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
    assert gaps["spaced"] < 0.9 * gaps["free"]


def test_one_iteration_between_prompts_is_free():
    assert drafted(prefill="spaced", prefill_every=1).requests.tobytes() == drafted().requests.tobytes()
