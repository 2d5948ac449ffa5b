"""What an engine takes besides weights and KV, against what vLLM and SGLang logged at their start, each by the others.

The table has bytes in GiB: of a GPU as CUDA reports it, of loaded weights, of the peak of activations in a profiled
step, of what is neither (contexts, collectives, in later versions graphs), and of KV.
"""

import csv
from pathlib import Path

import numpy as np
import pytest

from archsim.iteration.memory import COLLECTIVE_BYTES, SAMPLED_BYTES
from archsim.serving.deployment import kept, kv_room
from archsim.serving.serving import engine_of
from archsim.serving.simulate import Scheduler
from archsim.specs.serving_files import load_serving

TABLE = Path(__file__).parents[2] / "calibration" / "measurements" / "engine_memory.csv"
GIB = 2**30
with TABLE.open(encoding="utf-8") as stream:
    ROWS = [row for row in csv.DictReader(stream) if row["weights_gib"] and float(row["kv_gib"]) > 5]


def columns():
    """bound - weights, entries that are sampled, whether there are collectives (not over PCIe), and KV: GB."""
    number = {key: np.array([float(row[key]) for row in ROWS]) for key in (
        "hbm_gib", "utilisation", "weights_gib", "vocabulary", "max_num_seqs", "tp", "kv_gib",
    )}  # fmt: skip
    free = (number["hbm_gib"] * number["utilisation"] - number["weights_gib"]) * GIB / 1e9
    together = (number["tp"] > 1) & np.array([row["gpu"] != "l40s" for row in ROWS])
    return free, number["vocabulary"] * number["max_num_seqs"] / 1e9, together, number["kv_gib"] * GIB / 1e9


def errors(of_entry, collectives):
    """Relative errors of the room for KV."""
    free, entries, together, kv = columns()
    return (free - of_entry * entries - collectives * together) / kv - 1


def fitted(left_out):
    """The pair of constants with the least sum of errors over all other logs."""
    tried = [(of_entry, each) for of_entry in np.arange(15, 50, 2.5) for each in np.arange(0, 4, 0.25)]
    others = [at for at in range(len(ROWS)) if at != left_out]
    return min(tried, key=lambda pair: np.abs(errors(*pair)[others]).sum())


def test_room_for_kv_is_within_five_percent_of_logs():
    found = np.abs(errors(SAMPLED_BYTES, COLLECTIVE_BYTES / 1e9))
    by_others = np.abs([errors(*fitted(at))[at] for at in range(len(ROWS))])
    assert np.median(found) < 0.03 and np.quantile(found, 0.8) < 0.06 and found.max() < 0.12
    assert np.median(by_others) < 0.03 and np.quantile(by_others, 0.8) < 0.06


def deployment(model, system, tp, experts, engine="vllm", utilisation=0.9, **more):
    products = "bf16" if experts == "mxfp4" else experts
    return load_serving({
        "system": system, "model": model, "parallel": {"attention": {"tp": tp}, "experts": {"tp": tp, "ep": 1}},
        "precision": {"products": products, "experts": experts, "kv": "bf16"},
        "engine": engine, "utilisation": utilisation,
        "requests": {"concurrency": 2, "input": {"fixed": 32}, "output": {"fixed": 2}, "count": 4}, **more,
    })  # fmt: skip


@pytest.mark.parametrize(("given", "tokens"), [
    (deployment("qwen3-235b-a22b", "h100_node", 4, "fp8_block"), 178_880),  # vllm-project/vllm#21348, vLLM
    (deployment("qwen3-235b-a22b", "h100_node", 4, "fp8_block", "sglang", 0.93), 367_404),  # and SGLang
])
def test_tokens_of_kv_are_those_that_servers_logged(given, tokens):
    engine = engine_of(given, given.spec.parallel)
    assert kv_room(engine, Scheduler.of(given.spec.scheduler)).tokens == pytest.approx(tokens, rel=0.05)


def test_gpt_oss_120b_loads_padded_weights_and_leaves_nothing_on_one_h100():
    """65.97 GiB were loaded, and -2.14 GiB were left (vllm-project/vllm#23278); fewer requests leave some."""
    given = deployment("gpt-oss-120b", "h100_node", 1, "mxfp4")
    few = deployment("gpt-oss-120b", "h100_node", 1, "mxfp4", scheduler={"max_num_seqs": 128})
    engine, left = engine_of(given, given.spec.parallel), []
    for each in (given, few):
        left.append(kv_room(engine_of(each, each.spec.parallel), Scheduler.of(each.spec.scheduler)).free_bytes)
    weights = kept(engine, Scheduler()) | {"activations": 0}
    assert sum(weights.values()) / GIB == pytest.approx(65.97, rel=0.005)
    assert left[0] / GIB == pytest.approx(-2.14, abs=0.2) and left[1] > 3e9
