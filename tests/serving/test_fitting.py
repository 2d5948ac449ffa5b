"""Constants of engines from measured means: parts of a simulation, folds, and what a fit finds again."""

import numpy as np
import pytest
from measured_serving.accuracy import case_of, host_of_case, pool_of, serve_point
from measured_serving.fitting import FOLDS, HOST, PARTS, Means, fitted, fold_of, means_of

from archsim.base.units import NS_PER_MS
from archsim.serving.hosts import FactorRow, host_file, host_of
from archsim.serving.measures import times_ns
from archsim.specs.library import load_model

ROW = {
    "model": "Llama-3.1-8B", "system": "H100-SXM5-80GB", "backend": "sglang", "precision": "bf16", "group": "A",
    "concurrency": 6, "isl_tokens": 1024, "osl_tokens": 32, "gpus": 1, "tp": 1, "attention_dp": 1, "is_moe": 0,
    "tpot_ms": 10.0, "ttft_ms": 100.0, "gemm_quant": "", "moe_quant": "", "origin": "inferencex_db", "warmed_up": "no",
}  # fmt: skip
KEYS = {"engine": "vllm", "experts": True, "gpu": "h200", "dtype": "fp8_block", "model": "qwen3-235b-a22b"}


def constants(host):
    """In the order of PARTS, where experts are none."""
    row = next(each for each in host_file().hosts if (each.engine, each.experts) == ("sglang", False))
    laws = [host.decodes, host.prompts, 1.0, 1.0]
    return np.array([*laws, *(getattr(row, name) / NS_PER_MS for name in HOST)])


def test_parts_of_a_point_sum_to_what_is_simulated_and_tell_derivatives():
    case = case_of([ROW])
    host = host_of_case(case)
    found = next(means_of(case)).parts @ constants(host)

    def means(pool):
        times = times_ns(serve_point(pool, host, ROW))
        return np.array([times[name].mean() / NS_PER_MS for name in ("ttft", "tpot")])

    pool = pool_of(case, host)
    simulated = means(pool)
    assert found == pytest.approx(simulated, rel=0.01)
    more = pool.table.host.copy()
    more[0] += 0.1 * NS_PER_MS
    slopes = (means(pool._replace(table=pool.table._replace(host=more))) - simulated) / 0.1
    tpot = next(means_of(case)).parts[1, PARTS.index("iteration")]
    assert tpot == pytest.approx(slopes[1], rel=0.1)  # that of TTFT is less smooth: the schedule moves, too


def measured(rng, groups, factor):
    """Points whose times are those of the starting constants, with prompts ``factor`` times as long."""
    unit = np.array([1, factor, 1, factor, 0.6, 0.005, 0.015, 0.35, 20, 0.6])
    for group in groups:
        for _ in range(3):
            parts = rng.uniform(0.1, 1.0, (2, len(PARTS))) * np.array([30, 200, 30, 200, 20, 900, 500, 900, 1, 1])
            yield Means(KEYS, group, parts, parts @ unit)


def test_a_fit_finds_what_prompts_take():
    found = fitted(list(measured(np.random.default_rng(0), map(str, range(24)), 1.2)))
    host = host_of("vllm", load_model("qwen3-235b-a22b"), "h200", "fp8_block", "bf16", found)
    assert (host.decodes, host.prompts) == (pytest.approx(1.0, abs=0.05), pytest.approx(1.2, abs=0.07))
    assert found.groups == 24
    other = host_of("trtllm", load_model("llama-3.1-8b"), "h100", "bf16", "bf16", found)
    assert (other.decodes, other.prompts, other.experts) == (1.0, 1.0, 1.0)


def test_a_group_that_is_far_off_hardly_counts():
    rng = np.random.default_rng(1)
    many = [*measured(rng, map(str, range(12)), 1.0), *measured(rng, ["odd"], 20.0)]
    host = host_of("vllm", load_model("qwen3-235b-a22b"), "h200", "fp8_block", "bf16", fitted(many))
    assert host.prompts == pytest.approx(1.0, abs=0.05)


def test_folds_part_groups_evenly_and_whole():
    found = fold_of(["b", "a", "a", "c", *map(str, range(12))])
    assert sorted(found.values()) == sorted(at % FOLDS for at in range(15))


def test_rows_of_factors_multiply_where_their_keys_agree():
    rows = (
        FactorRow(engine="vllm", experts=True, decodes=2.0),
        FactorRow(engine="vllm", experts=True, model="glm-5", request=0.5),
        FactorRow(gpu="h200", dtype="fp8_block", experts=True, routed=3.0),
        FactorRow(engine="vllm", experts=True, gpu="h200", dtype="fp8_block", model="glm-5", decodes=5.0),
    )
    known = host_file().model_copy(update={"factors": rows})
    host = host_of("vllm", load_model("qwen3-235b-a22b"), "h200", "fp8_block", "bf16", known)
    assert (host.decodes, host.prompts, host.experts) == (2.0, 1.0, 3.0)
    other = host_of("vllm", load_model("glm-5"), "h200", "fp8_block", "bf16", known)
    assert (other.decodes, other.request_ns) == (10.0, host.request_ns / 2)
