"""Less to wait for is never slower: no engine than an engine, no host than a host, a faster GPU than the shipped."""

from itertools import product

import numpy as np
import pytest
from support.examples import examples, sampled

from archsim.base.config_files import search_folders
from archsim.base.errors import ArchsimError
from archsim.iteration.constants import engines
from archsim.iteration.machine import calibration_on
from archsim.laws.scaling import HOPS
from archsim.laws.transfers import law_of
from archsim.serving.clock import HOST_CAPTURED
from archsim.serving.serving import deploy, serve
from archsim.specs.library import load_system
from archsim.specs.serving_files import load_serving

SYSTEMS = ("a100_cluster", "h100_node", "h200_node", "b200_node", "b300_node", "gb200_nvl72", "mi355x_node")
ROUNDED = 1 + 1e-9


def random_file(draw):
    """A model in dtypes on a machine, and a layout of it, that fit."""
    models = sorted(path.stem for path in search_folders("models", None)[-1].glob("*.yaml"))
    while True:
        dtype = str(draw.choice(["bf16", "fp8", "fp8_block"]))
        sizes = {"attention": {str(draw.choice(["tp", "dp"])): int(draw.choice([1, 2, 4, 8]))}}
        given = {
            "system": str(draw.choice(SYSTEMS)), "model": str(draw.choice(models)), "parallel": sizes,
            "precision": {"products": dtype, "experts": dtype, "kv": "bf16"},
            "scheduler": {"name": "vllm_v1", "max_num_seqs": 64, "max_num_batched_tokens": 512},
            "requests": {"concurrency": 1, "input": {"fixed": 1500}, "output": {"fixed": 8}, "count": 1},
        }  # fmt: skip
        try:
            deploy(load_serving(given | {"engine": "none"}))
            return given
        except ArchsimError:
            continue


def times_of(serving):
    """ns and ln ns by size of all parts of an iteration, float64[part], and (TTFT, TPOT) of a request alone."""
    table = deploy(serving).prefill.pool.table
    parts = (*table[:9], np.delete(table.host, HOST_CAPTURED), *table.links)
    measures = serve(serving).measures
    return np.concatenate([each.ravel() for each in parts]), (measures.ttft.mean, measures.tpot.mean)


def no_slower(one, other):
    parts = (one[0] <= other[0] + 1e-9 * np.abs(other[0])).all()
    return parts and (np.array(one[1]) <= ROUNDED * np.array(other[1])).all()


@pytest.mark.parametrize("number", range(examples(20, 1)))
def test_no_engine_is_never_slower_than_an_engine(number):
    given = random_file(np.random.default_rng(number))
    none = times_of(load_serving(given | {"engine": "none"}))
    for engine in engines():
        with_host = times_of(load_serving(given | {"engine": engine}))
        assert no_slower(none, with_host), (given, engine)
        alone = times_of(load_serving(given | {"engine": engine, "host": {"captured": 512}}))
        assert no_slower(alone, with_host), (given, engine)


@pytest.mark.parametrize(
    ("system", "model"), sampled(product(("h100_node", "b200_node", "a100_cluster"), ("qwen3-30b-a3b", "qwen3-32b")),
                                 {("h100_node", "qwen3-30b-a3b")}.__contains__)
)  # fmt: skip
def test_no_engine_is_never_slower_under_load(system, model):
    """More clients than a rank runs in `SchedulerSpec`: no limit is lower than an engine's."""
    given = {
        "system": system, "model": model, "parallel": {"attention": {"tp": 4}}, "precision": {"products": "bf16"},
        "requests": {"concurrency": 400, "start": "together", "input": {"fixed": 64}, "output": {"fixed": 8},
                     "count": 400},
    }  # fmt: skip
    none, *others = (serve(load_serving(given | {"engine": name})).measures for name in ("none", *engines()))
    for each in others:
        assert none.e2e.mean <= each.e2e.mean and none.ttft.mean <= each.ttft.mean
        assert none.output_tokens_per_s >= each.output_tokens_per_s


def levels_of(system, at, **changes):
    """A level of the fabric with other rates."""
    fabric = system.fabric
    levels = tuple(
        level.model_copy(update=changes) if place == at else level for place, level in enumerate(fabric.levels)
    )
    return system.model_copy(update={"fabric": fabric.model_copy(update={"levels": levels})})


def faster_machines(system, factor):
    """(what is faster, the machine) for each rate that a part of an iteration asks for."""
    hbm, compute = system.hbm, system.compute
    more = hbm.model_copy(update={"bandwidth_bytes_per_s": factor * hbm.bandwidth_bytes_per_s})
    yield "HBM", system.model_copy(update={"hbm": more})
    more = compute.model_copy(update={"peak_flop_per_s": factor * compute.peak_flop_per_s})
    yield "FLOP/s", system.model_copy(update={"compute": more})
    for at, level in enumerate(system.fabric.levels):
        yield f"links {at}", levels_of(system, at, bandwidth_bytes_per_s=factor * level.bandwidth_bytes_per_s)
        yield f"latency {at}", levels_of(system, at, hop_latency_ns=level.hop_latency_ns / factor)


@pytest.mark.parametrize(("name", "factor"), sampled(product(SYSTEMS, (1.1, 2, 4)), {("h100_node", 4)}.__contains__))
def test_no_transfer_is_slower_on_faster_links(name, factor):
    """Nor quicker than at the speed of its links: what bytes take is divided by the factor at most."""
    system = load_system(name)
    before = calibration_on(system)
    sizes = np.geomspace(1e3, 1e9, 200)
    for what, machine in faster_machines(system, factor):
        after = calibration_on(machine)
        for one, other in zip((*after.p2p, *after.collectives), (*before.p2p, *before.collectives), strict=True):
            least = law_of(other).time_ns(sizes) / factor - HOPS.get(one.of.get("op"), 1) * 300.0
            ns = law_of(one).time_ns(sizes)
            assert (ns <= ROUNDED * law_of(other).time_ns(sizes)).all(), (what, one.of)
            assert (ns >= np.maximum(least, 0) / ROUNDED).all(), (what, one.of)


KERNELS = ("local", "experts", "decode_up", "prefill_up", "decode", "prefill")
TRANSFERS = ("dispatch", "combine", "of_rank", "of_decodes", "of_prompts")


def parts_of(serving):
    """Part of an iteration → float64[...] ns."""
    table = deploy(serving).prefill.pool.table
    found = {**table._asdict(), **table.links._asdict()}
    return {name: np.exp(found[name]) if name in ("decode", "prefill") else found[name] for name in found
            if name in (*KERNELS, *TRANSFERS, "loaded")}  # fmt: skip


def edited(draw, system):
    """A machine whose rates are others."""
    for name, other in list(faster_machines(system, float(np.exp(draw.uniform(-1, 1))))):
        system = other if name == str(draw.choice(["HBM", "FLOP/s", "links 0", "links 1"])) else system
    return system


@pytest.mark.parametrize("number", sampled(range(30), {10}.__contains__))
def test_twice_a_rate_moves_its_own_parts_and_no_more_than_their_share(number):
    """HBM and FLOP/s those of kernels, links those of transfers, the host's link loads: exactly half of these."""
    draw = np.random.default_rng(1000 + number)
    given = random_file(draw)
    given |= {"engine": str(draw.choice(["none", *engines()])), "requests": given["requests"] | {"count": 1}}
    if draw.random() < 0.5 and load_serving(given).model.experts > 1:
        given["expert_offload"] = {"resident": 0.5}
    serving = load_serving(given)
    serving = serving._replace(system=edited(draw, serving.system))
    before, system = parts_of(serving), serving.system
    path = system.decision.host
    path = path.model_copy(update={"pcie_bandwidth_bytes_per_s": 2 * path.pcie_bandwidth_bytes_per_s})
    host = system.decision.model_copy(update={"host": path})
    for what, machine in (*faster_machines(system, 2.0), ("host", system.model_copy(update={"decision": host}))):
        after = parts_of(serving._replace(system=machine))
        moved = {"HBM": KERNELS, "FLOP/s": KERNELS, "host": ("loaded",)}.get(what, TRANSFERS)
        for name, ns in before.items():
            least = 0.5 * ns if name in moved else ns
            assert (after[name] <= ROUNDED * ns + 1e-9).all(), (given, what, name)
            assert (ROUNDED * after[name] + 1e-9 >= least).all(), (given, what, name)
        assert what != "host" or after["loaded"] == pytest.approx(0.5 * before["loaded"], rel=1e-9)


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(20))
def test_a_faster_machine_is_never_slower(number):
    draw = np.random.default_rng(100 + number)
    given, factor = random_file(draw), float(draw.choice([1.1, 2, 4]))
    given["engine"] = str(draw.choice(["none", *engines()]))
    serving = load_serving(given)
    shipped = times_of(serving)
    for what, machine in faster_machines(serving.system, factor):
        faster = times_of(serving._replace(system=machine))
        assert no_slower(faster, shipped), (given, what, factor)
