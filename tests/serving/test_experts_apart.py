"""Attention–FFN disaggregation: experts on devices of their own, and pools on machines of different kinds."""

import numpy as np
import pytest

from archsim.base.errors import ArchsimError, CapacityError, SpecError
from archsim.iteration.overlap import micro_batched
from archsim.serving.serving import busy_of, deploy, machines_of, rooms_told, serve
from archsim.specs.serving_files import load_serving

FILE = {
    "system": "h200_node",
    "model": "olmoe-1b-7b",
    "engine": "none",
    "disaggregated": {
        "prefill": "none",
        "decode": {
            "parallel": {"attention": {"dp": 2}},
            "experts_on": {"system": "dojo", "micro_batches": 3, "links": {"bandwidth": "50 GB/s", "latency": "2 us"}},
        },
    },
    "routing": {"like": "model", "layers": 1, "requests": 8, "steps": 4},
    "requests": {"concurrency": 32, "input": {"fixed": 1000}, "output": {"fixed": 4}, "count": 32},
    "scheduler": {"max_num_seqs": 16, "max_num_batched_tokens": 16},
}
APART = "disaggregated.decode.experts_on"


def served(*overrides):
    return serve(load_serving(FILE, overrides))


def scheduled_ns(parts, layers, stages):
    """When the last micro-batch ends, of a list schedule: every stage serves one at a time, in order of arrival."""
    free, at = np.zeros(len(stages)), np.zeros(parts)
    for _ in range(layers):
        for part in range(parts):
            for stage, ns in enumerate(stages):
                at[part] = free[stage] = max(at[part], free[stage]) + ns
    return at.max()


@pytest.mark.parametrize("seed", range(5))
def test_the_closed_form_is_the_longest_path_of_the_schedule(seed):
    """Own stages and links differ; with alike micro-batches the order of arrival is that of the batch."""
    draw = np.random.default_rng(seed)
    for _ in range(40):
        parts, layers, stages = int(draw.integers(1, 9)), int(draw.integers(1, 30)), draw.exponential(100.0, 4)
        found = micro_batched.py_func(parts, layers, *(layers * stages))
        assert found == pytest.approx(scheduled_ns(parts, layers, stages), rel=1e-12)


def test_by_hand():
    """Two layers of three micro-batches; attention 4, there 1, experts 5, back 2 ns: the experts set the pace. The
    first vectors arrive at 5, six turns of 5 ns end at 35, the last goes back until 37.
    """
    assert micro_batched.py_func(3, 2, 8.0, 2.0, 10.0, 4.0) == 37.0
    assert micro_batched.py_func(1, 2, 8.0, 2.0, 10.0, 4.0) == 24.0  # nothing overlaps


@pytest.mark.parametrize(
    ("attention_ns", "experts_ns", "fixed_ns", "there_ns"),
    [(400.0, 0.10, 20.0, 0.01), (900.0, 0.20, 100.0, 0.02), (100.0, 0.05, 600.0, 0.01), (500.0, 0.05, 10.0, 0.20)],
)
def test_the_best_ratio_is_that_of_the_published_analysis(attention_ns, experts_ns, fixed_ns, there_ns):
    """arXiv 2601.21351: of r attention devices to one with experts, the best r for throughput a device is the largest
    of where experts, or the link, take as long as attention, and sqrt(fixed / (slope x batch)).
    """
    batch, parts, layers = 100, 4, 1000
    ratios = np.arange(1, 200)
    throughput = [
        ratio * batch * parts / (ratio + 1)
        / micro_batched.py_func(parts, layers, attention_ns, there_ns * ratio * batch,
                                experts_ns * ratio * batch + fixed_ns, there_ns * ratio * batch)
        for ratio in ratios
    ]  # fmt: skip
    best = ratios[int(np.argmax(throughput))]
    by_experts = (attention_ns - fixed_ns) / (experts_ns * batch)
    by_link = attention_ns / (there_ns * batch)
    peak = np.sqrt(fixed_ns / (experts_ns * batch))
    # A stage that is shorter than attention at some ratio bounds it from there on: the least of those that bind.
    published = max(min(by_experts, by_link), peak)
    assert abs(best - published) <= max(0.1 * published, 1)


@pytest.fixture(scope="module")
def outcome():
    return served()


def test_what_is_printed_is_the_longest_path(outcome):
    """Every token takes an iteration; its layers are those of the closed form, once the head is taken off."""
    built = outcome.deployment.prefill
    busy = busy_of(built, outcome.served.experts[-1], 16, 1002.0)
    assert max(busy) == pytest.approx(1.0, abs=0.15) and min(busy) > 0
    assert outcome.deployment.told == "2 devices of h200_node and 25 of dojo"
    assert any("experts apart, 3 micro-batches of 16 requests a rank" in note for note in outcome.notes)


def test_a_side_has_its_own_memory(outcome):
    """The attention side gains exactly what the experts took: 16 layers of 64 experts, on two ranks."""
    beside = {"prefill": "none", "decode": {"parallel": {"attention": {"dp": 2}}}}
    together = load_serving(FILE | {"disaggregated": beside, "system": "h200_node"})
    apart, model = load_serving(FILE), together.model
    rooms = [int(rooms_told(each)[0].split()[2].replace(",", "")) for each in (together, apart)]
    experts = 64 * 16 * 3 * model.hidden * model.expert_ffn / 2
    assert rooms[1] - rooms[0] == pytest.approx(experts / (16 * 2 * 16 * 128 * 2), rel=1e-3)
    assert machines_of(together) == (("h200_node", 2),)


def test_nothing_made_better_is_slower(outcome):
    """Nor faster than the slowest stage allows: the dead zone, where attention grows with context and experts idle."""
    tpot = outcome.measures.tpot.mean
    for better in (f"{APART}.links.bandwidth=100 TB/s", f"{APART}.links.latency=0 us"):
        assert served(better).measures.tpot.mean <= tpot
    assert served(f"{APART}.links.bandwidth=50 MB/s").measures.tpot.mean > 1.5 * tpot
    shares = []
    for context in (500, 4_000):
        found = served(f"requests.input.fixed={context}", "precision={kv: bf16}")
        shares.append(busy_of(found.deployment.prefill, found.served.experts[-1], 16, float(context)))
    assert shares[1].attention > shares[0].attention and shares[1].experts < shares[0].experts


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("routing=uniform", "routing: {like: model}"),
        ("speculation={draft_tokens: 1, acceptance: 0.5}", "speculation: none"),
        ("disaggregated.decode.instances=2", "one engine with more ranks"),
        ("disaggregated.decode.parallel={attention: {dp: 2}, experts: {ep: 2}}", "experts_on"),
        ("disaggregated.prefill={experts_on: {system: dojo}}", "prompts on two sides"),
        ("assumptions={overlap: two_batch}", "micro_batches"),
        ("precision={products: fp8_block, experts: bf16}", "compute.dtype"),
        ("model=qwen3-32b", "has no experts"),
        (f"{APART}.system=dojoo", "dojo"),
        (f"{APART}.micro_batches=0", "micro_batches"),
        ("disaggregated.decode.parallel={attention: {dp: 16}}", "h200_node has 8 devices"),
    ],
)
def test_what_nobody_runs_is_refused_by_name(override, told):
    with pytest.raises(ArchsimError, match="(?s).*".join(map(str, [told.replace("{", r"\{").replace("}", r"\}")]))):
        deploy(load_serving(FILE, [override]))


def test_experts_that_do_not_fit_say_what_would():
    small = {"like": "dojo", "name": "small", "hbm": {"capacity": "1 GB"}}
    overrides = [f"{APART}.system={small}", "model=deepseek-v3", "disaggregated.decode.parallel.attention.dp=8"]
    with pytest.raises(CapacityError, match=r"does not fit on small: its experts need .* or more instead of 25"):
        deploy(load_serving(FILE, overrides))


def test_an_axis_compares_places_of_experts():
    """The shipped question: experts on the same devices, or on others."""
    places = [None, FILE["disaggregated"]["decode"]["experts_on"]]
    file = FILE | {"sweep": {"grid": {APART: places}}}
    file["disaggregated"] = {"prefill": "none", "decode": {"parallel": {"attention": {"dp": 2}}}}
    apart = [load_serving(file, cell={APART: place}).spec.experts_on for place in places]
    assert apart[0] is None and apart[1].system == "dojo"
    assert [machines_of(load_serving(file, cell={APART: place})) for place in places] == [
        (("h200_node", 2),), (("h200_node", 2), ("dojo", 25)),
    ]  # fmt: skip


def test_pools_of_two_kinds(capsys):
    """Prompts on H200, decodes on a wafer: each with its own memory, and the KV over the links between them."""
    pools = {
        "prefill": {"parallel": {"attention": {"dp": 2}}},
        "decode": {"system": "dojo", "parallel": {"attention": {"dp": 25}}},
        "transfer": {"bandwidth": "50 GB/s"},
    }
    serving = load_serving(FILE | {"disaggregated": pools, "scheduler": {"max_num_seqs": 16}})
    assert machines_of(serving) == (("h200_node", 2), ("dojo", 25))
    deployment = deploy(serving)
    assert deployment.decode is not None and deployment.decode.pool.ranks == 25
    assert [each.partition(":")[0] for each in rooms_told(serving)] == ["prefill", "decode"]
    with pytest.raises(SpecError, match="dojo has 25 devices"):
        machines_of(load_serving(FILE | {"disaggregated": pools | {"decode": {"system": "dojo", "instances": 2,
                                                                              "parallel": {"attention": {"dp": 25}}}}}))
