"""Less to wait for is never slower: no engine on the host than any engine, a host without times than a host."""

import numpy as np
import pytest
from support.examples import examples

from archsim.base.errors import ArchsimError
from archsim.serving.clock import HOST_CAPTURED
from archsim.serving.constants import engines
from archsim.serving.serving import deploy, serve
from archsim.specs.config_files import search_folders
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
            "scheduler": {"name": "vllm_v1", "max_num_seqs": 64, "max_num_batched_tokens": 2048},
            "requests": {"concurrency": 1, "input": {"fixed": 1500}, "output": {"fixed": 8}, "count": 1},
        }  # fmt: skip
        try:
            deploy(load_serving(given | {"engine": "none"}))
            return given
        except ArchsimError:
            continue


def times_of(given, **changes):
    """ns and ln ns by size of all parts of an iteration, float64[part], and (TTFT, TPOT) of a request alone."""
    serving = load_serving(given | changes)
    table = deploy(serving).prefill.pool.table
    parts = (*table[:9], np.delete(table.host, HOST_CAPTURED), *table.links)
    measures = serve(serving).measures
    return np.concatenate([each.ravel() for each in parts]), (measures.ttft.mean, measures.tpot.mean)


def no_slower(one, other):
    parts = (one[0] <= other[0] + 1e-9 * np.abs(other[0])).all()
    return parts and (np.array(one[1]) <= ROUNDED * np.array(other[1])).all()


@pytest.mark.parametrize("number", range(examples(20, 2)))
def test_no_engine_is_never_slower_than_an_engine(number):
    given = random_file(np.random.default_rng(number))
    none = times_of(given, engine="none")
    for engine in engines():
        with_host = times_of(given, engine=engine)
        assert no_slower(none, with_host), (given, engine)
        assert no_slower(times_of(given, engine=engine, host={"captured": 512}), with_host), (given, engine)
