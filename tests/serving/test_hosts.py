"""What the host charges, and when: iterations outside captured graphs, requests at the front end."""

import numpy as np
import pytest
from support.serving import MS, opened, pool

from archsim.serving.clock import HOST_CAPTURED, HOST_EAGER
from archsim.serving.deployment import Host
from archsim.serving.hosts import host_file
from archsim.serving.simulate import Scheduler, simulate
from archsim.specs.serving_files import load_serving

EAGER_NS = 50 * MS


def served(rows, graph, **more):
    """On an engine that captures graphs of ``graph`` tokens with prompts."""
    machine = pool(blocks=2000)
    host = machine.table.host.copy()
    host[HOST_EAGER], host[HOST_CAPTURED] = EAGER_NS, graph
    return simulate(opened(rows), Scheduler(), machine._replace(table=machine.table._replace(host=host)), **more)


@pytest.mark.parametrize(
    ("graph", "prompt", "charged"),
    [(512, 13, 0), (512, 512, 0), (512, 513, 1), (0, 13, 1), (0, 513, 1), (256, 300, 1)],
)
def test_only_iterations_outside_captured_graphs_are_charged(graph, prompt, charged):
    """A short tail of a prompt is inside vLLM's graphs; engines that capture decodes alone charge every prompt."""
    found, free = served([(0.0, prompt, 1)], graph), simulate(opened([(0.0, prompt, 1)]), Scheduler(), pool(2000))
    late = found.requests["first_ns"] - free.requests["first_ns"]
    assert late[0] == pytest.approx(charged * EAGER_NS)


def test_decodes_alone_are_captured_up_to_the_largest_graph():
    found = served([(0.0, 2, 3)] * 4, graph=3)
    ends, first = found.requests["last_ns"], found.requests["first_ns"]
    assert (ends - first > 2 * EAGER_NS).all()  # four tokens an iteration
    within = served([(0.0, 2, 3)] * 3, graph=6)
    assert (within.requests["last_ns"] - within.requests["first_ns"] < EAGER_NS).all()


def test_the_largest_graph_follows_the_batch_as_in_vllm():
    assert [Host(captured=512).of_iterations(seqs)[HOST_CAPTURED] for seqs in (8, 128, 256, 1024)] == [
        16, 256, 512, 512
    ]
    assert {row.captured for row in host_file().hosts if row.engine == "vllm"} == {512}
    assert {row.captured for row in host_file().hosts if row.engine != "vllm"} == {0}


def test_a_first_token_reaches_its_client_an_iteration_later_whatever_runs_in_it():
    """SGLang runs prompts before decodes: of two prompts in turn, the first one's token is out with the second."""
    found, free = (
        simulate(opened([(0.0, 100, 5)] * 2), Scheduler("sglang", max_num_batched_tokens=100), pool(), first_after=late)
        for late in (2, 1)
    )
    prompt, decode = 2 * MS + 100 * 1e4 + 1e3, 2 * MS + 2 * 1e4 + 1e3
    late = found.requests["first_ns"] - free.requests["first_ns"]
    assert late == pytest.approx([prompt, decode])


def test_requests_pass_the_front_end_one_after_the_other():
    """Four at once wait for each other, four that come apart do not; all wait as long behind it."""
    burst, apart = (
        simulate(opened([(gap * i, 1, 1) for i in range(4)]), Scheduler(), pool(), front_end_ns=5 * MS, request_ns=MS)
        for gap in (0.0, 100.0)
    )
    waited = burst.requests["scheduled_ns"] - burst.requests["arrival_ns"]
    assert np.all(waited >= np.arange(1, 5) * 5 * MS + MS) and waited[0] == pytest.approx(6 * MS)
    assert apart.requests["scheduled_ns"] - apart.requests["arrival_ns"] == pytest.approx(np.full(4, 6 * MS))


def test_less_than_a_nanosecond_of_the_host_is_told_as_none():
    """What a fit leaves of a constant at its bound; it can be written in a file."""
    told = Host(iteration_ns=7.6e-10, request_ns=2e6).told
    assert told.startswith("{iteration: 0 ms, sequence: 0 ms, prompt: 0 ms, request: 2 ms")


PLAIN = {
    "model": "deepseek-v3", "parallel": {"attention": {"tp": 8}, "experts": {"ep": 8}},
    "requests": {"concurrency": 32, "input": {"mean": 1000}, "output": {"mean": 100}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("system", "engine", "products", "kv", "scheduler"),
    [
        ("h200_node", "vllm", "fp8_block", "bf16", ("vllm_v1", 8192, {"reserve_full_isl": 1})),
        ("h200_node", "trtllm", "fp8_block", "fp8", ("trtllm", 8192, {})),
        ("h200_node", "sglang", "fp8_block", "bf16", ("sglang", 32768, {"poll_every": 1, "kept_share": 0.7})),
        ("b200_node", "sglang", "nvfp4", "fp8", ("sglang", 16384, {"poll_every": 30, "kept_share": 0.7})),
    ],
)
def test_a_plain_file_is_served_as_its_engine_is_started(system, engine, products, kv, scheduler):
    given = PLAIN | {"system": system, "engine": engine, "precision": {"products": products}}
    found = load_serving(given)
    own = found.spec.scheduler
    assert (own.name, own.max_num_batched_tokens, own.params) == scheduler
    assert found.spec.precision.dtypes("bf16").kv == kv
    varied = ("lognormal", (1000, 0.0)) if engine == "sglang" else ("uniform", (900, 1100))
    assert found.spec.requests.input.drawn == varied
    said = "; ".join(found.recipe)
    assert ("precision.kv: fp8" in said) == (kv == "fp8")
    assert ("max_num_batched_tokens" in said) == (scheduler[1] != 8192)
    assert load_serving(given, ["precision.kv=bf16"]).spec.precision.kv == "bf16"
    kept = load_serving(given | {"scheduler": {"name": scheduler[0], "max_num_batched_tokens": 4096}}).spec.scheduler
    assert kept.max_num_batched_tokens == 4096
