"""Keys that a file of ``archsim serve`` gives and does not read: all changed at once, they change no measure."""

from copy import deepcopy

import pytest

import archsim as ar
from archsim.specs.serving_files import load_serving
from archsim.specs.unread import keys_of
from archsim.studies.serving.runs import serve_plan

DRAWN = {"concurrency": 4, "input": {"fixed": 256}, "output": {"fixed": 16}, "count": 12}
NODE = {"like": "h100_node", "name": "node"}
PLAIN = {"system": NODE, "model": "qwen3-30b-a3b", "parallel": {"attention": {"tp": 2}}, "requests": DRAWN,
         "scheduler": {"max_num_seqs": 16, "max_num_batched_tokens": 1024}}  # fmt: skip
SIDE = {"parallel": {"attention": {"tp": 2}}}
OF_MACHINE = {
    "system.llc.hit": "9 ns", "system.decision.fsm.lanes": 4, "system.compute.efficiency": 0.3,
    "system.compute.library": "vllm", "system.hbm.bandwidth": "9 TB/s", "system.hbm.latency": "900 ns",
    "system.hbm.efficiency": 0.3, "system.d2d.hop_latency": "9 us", "system.d2d.request": "64 B",
    "system.power.limit": "6 kW", "system.cooling.coolant": "20 C", "system.cooling.resistance": "0.1 K/W per die",
}  # fmt: skip
OF_REQUESTS = {
    "requests.input.cv": 0.5, "requests.output.cv": 0.5, "requests.seed": 5, "scheduler.prefill_every": 3,
    "scheduler.prefix_caching": False,
}  # fmt: skip
CASES = {
    "uniform": (
        PLAIN,
        OF_MACHINE | OF_REQUESTS | {"scheduler.balance": "round_robin", "system.d2d.bandwidth": "9 GB/s"},
    ),
    "given utilisation": (PLAIN | {"utilisation": 0.8}, {"system.hbm.reserved": 0.3}),
    "whole prompts": (
        PLAIN | {"scheduler": {**PLAIN["scheduler"], "chunked_prefill": False}}, {"scheduler.reserve_full_isl": 0}
    ),
    "disaggregated": (
        PLAIN | {"disaggregated": {"prefill": SIDE, "decode": SIDE}},
        {"parallel.attention.tp": 4, "instances": 2},
    ),
    "decodes": (
        {key: each for key, each in PLAIN.items() if key != "parallel"}
        | {"disaggregated": {"prefill": "none", "decode": SIDE}},
        {"disaggregated.transfer.bandwidth": "1 GB/s", "disaggregated.transfer.latency": "1 ms"},
    ),
    "sessions": (
        PLAIN | {"requests": DRAWN | {"sessions": {"turns": {"fixed": 2}}}, "kv_store": {"capacity": "9 GB"}},
        {"requests.sessions.think_cv": 1, "requests.seed": 5, "kv_store.shared": "all", "scheduler.prefill_every": 3},
    ),
    "dense": (PLAIN | {"model": "llama-3.1-8b"}, {"routing": "power_law_1.2"}),
    "traffic": (
        PLAIN | {"model": "olmoe-1b-7b", "routing": {"like": "model", "layers": 1}},
        {f"assumptions.{key}": value for key, value in (
            ("hops", "requests"), ("throughput", "nominal"), ("memory", "experts"), ("weights", "all"),
            ("llc", "slices"), ("reads", "together"), ("source", "queued"), ("order", "as_created"))}
        | {"system.compute.efficiency": 0.3, "system.llc.hit": "900 ns"},
    ),
}  # fmt: skip


def changed(given, changes):
    found = deepcopy(given)
    for key, value in changes.items():
        *above, last = key.split(".")
        at = found
        for name in above:
            at = at.setdefault(name, {})
        at[last] = value
    return found


@pytest.mark.parametrize("name", CASES)
def test_keys_that_are_told_as_unread_change_no_measure(name):
    given, changes = CASES[name]
    other = changed(given, changes)
    assert keys_of(load_serving(other).unread) == set(changes)
    before, after = ar.serve(given), ar.serve(other)
    assert before.measures == after.measures
    assert any(" not read: " in note for note in after.notes)


def test_a_file_with_axes_tells_its_trace_its_machine_and_axes_that_do_nothing(tmp_path):
    trace = tmp_path / "trace.jsonl"
    line = '{{"timestamp": {}, "input_length": 9, "output_length": 4, "hash_ids": [1]}}\n'
    trace.write_text(line.format(0) + line.format(900), encoding="utf-8")
    axes = {"scheduler.prefill_every": [4, 8], "requests.speed": [1, 2], "slo.ttft": ["8 s", "9 s"]}
    odd = {"system": NODE | {"hbm": {"capacity": "8 TB"}}, "requests": {"trace": str(trace)}, "sweep": {"grid": axes}}
    plan = serve_plan(PLAIN | odd)
    rows = [{"policy": "ep", "goodput_per_s": cell["requests.speed"]} | cell for cell in plan.cells]
    notes = plan.notes(rows)
    assert [note for note in notes if "hbm.capacity: 8 TB is taken as given" in note]
    assert [note for note in notes if "is read as mooncake: times are in ms" in note]
    assert [note for note in notes if note.startswith("scheduler.prefill_every is not read: ")]
    assert [note.partition(":")[0] for note in notes if "no number of these runs depends on it" in note] == ["slo.ttft"]
