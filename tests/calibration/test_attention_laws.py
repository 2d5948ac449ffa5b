"""Attention tables: laws of work, corrections of measured heads, kriging between them, fits, and what is missing."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archsim.laws.attention import AttentionSizes, attention_grid, choose_attention, grid_ns, law_ns, work_of
from archsim.laws.calibration_files import calibration_named
from archsim.laws.gemm import Rates
from archsim.laws.laws import Laws
from archsim.laws.tables import AttentionLaw, LawMissing
from calibration.fit.attention import fit_attention
from calibration.measurements.reading import read_measurements

QWEN = {"heads": 16, "kv_heads": 1, "head_dim": 128, "dtype": "bf16"}
LAW = AttentionLaw(launch_ns=5000, ns_per_request=20, ns_per_head=2, flop_per_s=5e14, bytes_per_s=3e12, order=2)


@pytest.fixture(scope="module")
def h100():
    return Laws(calibration_named("h100"))


def test_work_of_a_causal_prompt_is_half_of_a_square():
    sizes = AttentionSizes(4, 2, 64)
    flop, moved = work_of("prefill", sizes, 3, 100, 100, "bf16")
    assert flop == 3 * 4 * 64 * 4 * (100 * 101 / 2)
    assert moved == 3 * (100 * 2 * 2 * 64 * 2 + 100 * 4 * 2 * 64 * 2)


def test_work_of_chunks_adds_up_to_that_of_the_prompt():
    sizes = AttentionSizes(8, 1, 128, window=300)
    whole, _ = work_of("prefill", sizes, 1, 1024, 1024, "bf16")
    chunks, _ = work_of("prefill", sizes, 1, 256, np.array([256, 512, 768, 1024]), "bf16")
    assert chunks.sum() == pytest.approx(float(whole))


def test_work_of_a_decode_sees_no_more_than_its_window():
    sizes = AttentionSizes(8, 1, 128, window=128)
    flop, moved = work_of("decode", sizes, 1, 1, np.array([128.0, 4096.0]), "fp8")
    assert flop[0] == flop[1] and moved[1] < moved[0] * 1.02


def test_latent_kv_is_read_once_for_all_heads():
    few, many = (work_of("decode", AttentionSizes(h, 1, 576, kind="mla"), 1, 1, 10**6, "bf16") for h in (1, 128))
    assert many[0] == 128 * few[0] == 2 * 128 * (576 + 512) * 10**6
    assert many[1] < 1.01 * few[1]


@given(st.integers(1, 512), st.integers(1, 20000), st.integers(0, 5000), st.sampled_from(["prefill", "decode"]))
def test_the_law_never_falls_with_more_work(batch, context, more, phase):
    sizes = AttentionSizes(16, 2, 128)
    new = context if phase == "prefill" else 1
    here = law_ns(LAW, phase, sizes, batch, new, context, "bf16")
    assert law_ns(LAW, phase, sizes, batch, new, context + more, "bf16") >= here
    assert law_ns(LAW, phase, sizes, batch + 1, new, context, "bf16") > here
    assert law_ns(LAW, phase, sizes, batch, new, context, "bf16", compute=2.0, memory=2.0) < here


def test_arguments_broadcast_and_extrapolation_is_flagged(h100):
    times = h100.attention(1, [[128], [10**6]], [1, 64, 10**4], **QWEN)
    assert times.ns.shape == times.extrapolated.shape == (2, 3)
    assert times.extrapolated.tolist() == [[False, False, True], [True, True, True]]
    assert np.all(np.diff(times.ns, axis=1) > 0) and np.all(times.ns[1] > times.ns[0])


def test_heads_between_measured_ones_are_kriged_between_them(h100):
    few, between, many = (
        h100.attention(1, 8192, 64, **QWEN | {"heads": heads, "kv_heads": 4}).ns for heads in (24, 28, 32)
    )
    assert few * 0.9 < between < many * 1.1
    assert h100.attention(1, 8192, 64, **QWEN | {"heads": 512, "kv_heads": 4}).extrapolated
    assert h100.attention(1, 8192, 64, **QWEN | {"head_dim": 96}).extrapolated


def test_long_decodes_take_the_time_to_read_their_cache(h100):
    ns = h100.attention(1, 16384, 64, **QWEN | {"heads": 64, "kv_heads": 8}).ns
    least = 64 * 16384 * 8 * 2 * 128 * 2 / 3.35e12 * 1e9
    assert least < ns < 1.35 * least
    fp8 = h100.attention(1, 16384, 64, **QWEN | {"heads": 64, "kv_heads": 8, "kv_dtype": "fp8"}).ns
    assert 0.4 * ns < fp8 < 0.95 * ns


def test_twice_the_bandwidth_halves_what_is_limited_by_it(h100):
    peak = {"peak_flop_per_s": 989e12, "hbm_bytes_per_s": 3.35e12}
    here = h100.attention(1, 16384, 64, **QWEN, rates=Rates(**peak)).ns
    fast = h100.attention(1, 16384, 64, **QWEN, rates=Rates(**peak | {"hbm_bytes_per_s": 6.7e12})).ns
    assert here == h100.attention(1, 16384, 64, **QWEN).ns
    assert 0.45 * here < fast < 0.75 * here


def test_what_was_not_measured_is_reported(h100):
    with pytest.raises(LawMissing, match="a100 has no attention table for decode gqa fp8"):
        Laws(calibration_named("a100")).attention(1, 128, 4, **QWEN | {"dtype": "fp8"})
    with pytest.raises(LawMissing, match="it has: sglang decode gqa bf16"):
        h100.attention(1, 128, 4, **QWEN, library="none")
    with pytest.raises(ValueError, match="cannot be fewer"):
        h100.attention(10, 5, 4, **QWEN)


def test_no_requests_take_no_time(h100):
    sizes = AttentionSizes(16, 1, 128)
    grid = attention_grid(choose_attention(h100.calibration, "decode", sizes, "bf16"), sizes)
    assert grid_ns(grid, [0, 4], 1, [1, 100])[0] == 0


def test_corrections_change_little_between_measured_points(h100):
    """Times between the points of the grid stay between those of their neighbours, within the noise."""
    tokens = np.geomspace(256, 16384, 200)
    ns = h100.attention(1, tokens, 32, **QWEN).ns
    assert np.all(ns[1:] > ns[:-1] * 0.98)


def swept(heads: list[tuple[int, int]]) -> pd.DataFrame:
    """Measurements by LAW, a third slower for 4 KV heads, with one outlier."""
    rows = []
    for h, g in heads:
        for batch in (1, 4, 16, 64):
            for tokens in (64, 512, 4096):
                us = law_ns(LAW, "decode", AttentionSizes(h, g, 128), batch, 1, tokens, "bf16") / 1e3
                rows.append((h, g, batch, tokens, float(us) * (4 / 3 if g == 4 else 1)))
    found = pd.DataFrame(rows, columns=["heads", "kv_heads", "batch", "tokens", "latency_us_median"])
    found.loc[5, "latency_us_median"] *= 50
    return found.assign(
        run_id="1", library="own", library_version="1.0", phase="decode", kind="gqa", dtype="bf16", kv_dtype="bf16",
        head_dim=128.0, window=0.0, gpu_name="H100", file="own.csv",
    )  # fmt: skip


def test_a_fit_returns_the_law_and_its_corrections():
    heads = [(8, 1), (16, 2), (32, 4), (64, 8), (16, 1), (32, 2), (64, 4)]
    rows = swept(heads)
    (table,) = fit_attention(rows)
    assert table.sizes == tuple(sorted(heads)) and table.most_tokens == (4096,) * 4
    assert table.unseen.points == len(rows) - 1
    for h, g in heads:
        mine = rows.drop(5).query("heads == @h and kv_heads == @g")
        ns = grid_ns(attention_grid(table, AttentionSizes(h, g, 128)), mine["batch"], 1, mine["tokens"])
        assert ns == pytest.approx(mine["latency_us_median"].to_numpy() * 1e3, rel=2e-3)
    outlier = rows.loc[5]
    ns = grid_ns(attention_grid(table, AttentionSizes(8, 1, 128)), outlier["batch"], 1, outlier["tokens"])
    assert float(ns) == pytest.approx(outlier["latency_us_median"] * 1e3 / 50, rel=0.2)


def test_public_layouts_are_read(tmp_path):
    (tmp_path / "gqa.csv").write_text(
        "gpu,framework,attn_dtype,kv_dtype,q_heads,kv_heads,head_dim,window,batch,context_tokens,latency_us\n"
        "A100-SXM4-80GB,vllm,bfloat16,fp8,8,1,64,128,1,2,9.277\n"
    )
    (tmp_path / "mla.csv").write_text(
        "gpu,phase,mla_dtype,kv_cache_dtype,num_heads,tp_size,batch_size,isl,step,latency_us\n"
        "H100-SXM5-80GB,generation,bfloat16,fp8,16,8,4,1,1023,14.5\n"
    )
    found = read_measurements(tmp_path)
    assert found.problems == [] and found.skipped == {}
    columns = ["gpu", "library_version", "phase", "kind", "kv_dtype", "heads", "kv_heads", "window", "batch", "tokens"]
    assert found.table("attention")[columns].to_numpy().tolist() == [
        ["a100", "0.14.0", "decode", "gqa", "fp8", 8, 1, 128, 1, 2],
        ["h100", "1.3.0rc20", "decode", "mla", "fp8", 16, 1, 0, 4, 1024],
    ]


def test_prompts_take_a_kernel_of_their_geometry_before_one_of_their_kv_cache():
    """SGLang's prompts over FP8 KV were measured with heads of 128 alone; those of 64 take its kernel over BF16 KV."""
    b200 = calibration_named("b200")

    def chosen(phase, head_dim, kv_dtype, library):
        sizes = AttentionSizes(8, 1, head_dim)
        table = choose_attention(b200, phase, sizes, "bf16", kv_dtype, library)
        return table.head_dim, table.dtype, table.kv_dtype

    assert chosen("prefill", 128, "fp8", "sglang") == (128, "bf16", "fp8")
    assert chosen("prefill", 64, "fp8", "sglang") == (64, "bf16", "bf16")
    assert chosen("prefill", 64, "fp8", "vllm") == (64, "bf16", "fp8")
    assert chosen("decode", 64, "fp8", "sglang")[2] == "fp8"
