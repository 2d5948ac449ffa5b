"""Tables scaled from another GPU: rates by nominal ratios, flagged, never in place of measured ones."""

import pytest

from archsim.laws.laws import Laws
from archsim.laws.scaling import KEYS, with_scaled
from archsim.specs.calibration_files import calibration_digest, calibration_named, load_calibration
from calibration.measurements.schema import DATASHEETS, SCALED

DECODE = {"heads": 64, "kv_heads": 8, "head_dim": 128, "dtype": "bf16"}


@pytest.fixture(scope="module")
def h20():
    return Laws(calibration_named("h20"))


@pytest.fixture(scope="module")
def h100():
    return Laws(calibration_named("h100"))


def test_what_is_bound_by_memory_or_compute_scales_with_its_rate(h20, h100):
    long = {"tokens": 1, "context_tokens": 16384, "requests": 64}
    assert h20.attention(**long, **DECODE).ns / h100.attention(**long, **DECODE).ns == pytest.approx(
        3.35 / 4.0, rel=0.05
    )
    large = {"m": 16384, "n": 8192, "k": 8192, "dtype": "bf16"}
    assert h20.gemm(**large).ns / h100.gemm(**large).ns == pytest.approx(989 / 148, rel=0.05)


def test_all_times_of_scaled_tables_are_flagged(h20):
    assert h20.calibration.gemm and {table.scaled_from for table in h20.calibration.gemm} == {"h100"}
    assert h20.gemm(64, 4096, 4096, dtype="bf16").extrapolated
    assert h20.attention(1, 1024, 8, **DECODE).extrapolated
    assert h20.fused_moe(64, 8, dtype="fp8_block", model="DeepSeek-V3").extrapolated
    assert h20.collective("all_reduce", 2**20, ranks=8).extrapolated


def test_collectives_within_a_node_scale_with_its_links_and_between_nodes_do_not():
    h800, h100 = Laws(calibration_named("h800")), Laws(calibration_named("h100"))
    large = 2**28
    ratio = h800.collective("all_gather", large, ranks=8).ns / h100.collective("all_gather", large, ranks=8).ns
    assert ratio == pytest.approx(450 / 200, rel=0.05)
    layer = {"kernel": "low_latency", "ranks": 64, "hidden": 7168, "top_k": 8, "experts": 256}
    assert h800.dispatch_combine("dispatch", 128, **layer).ns == h100.dispatch_combine("dispatch", 128, **layer).ns


def test_measured_tables_come_first():
    h800 = Laws(calibration_named("h800"))
    assert h800.gemm(64, 4096, 7168, dtype="fp8_block").table.library == "deepgemm-dense"
    assert h800.gemm(64, 4096, 7168, dtype="bf16").table.scaled_from == "h100"
    h200 = Laws(calibration_named("h200"))
    assert h200.fused_moe(64, 8, dtype="fp8_block", model="DeepSeek-V3").table.scaled_from == ""
    assert h200.fused_moe(64, 8, dtype="bf16", model="Qwen3-235B-A22B").table.scaled_from == "h100"


def test_a_gpu_scaled_to_itself_keeps_its_laws(h100):
    calibration = h100.calibration
    bare = calibration.model_copy(update={"moe": (), "attention": (), "gemm": (), "scaled": SCALED["h20"]})
    found = with_scaled(bare, calibration)
    assert [table.law for table in found.gemm] == [table.law for table in calibration.gemm]
    assert [table.law for table in found.attention] == [table.law for table in calibration.attention]
    assert found.collectives == calibration.collectives


def test_files_name_what_they_take_and_a_digest_holds_both():
    for gpu, scaled in SCALED.items():
        found = load_calibration(gpu)
        assert found.scaled == scaled and found.reference == DATASHEETS[gpu] and set(scaled.sections) <= set(KEYS)
        assert calibration_digest(gpu) != calibration_digest("h100")


def test_kernels_that_the_host_starts_one_by_one_take_longer_beside_a_grace_cpu():
    """GB300 has vLLM's own, GB200 takes those of B200: 20 us on x86, 44 on Grace; a graph waits for no host."""
    times = {
        gpu: [
            float(Laws(calibration_named(gpu)).collective("all_reduce", 4096, ranks=2, library="vllm", variant=each).ns)
            for each in ("vllm_eager", "vllm_graph")
        ]
        for gpu in ("b200", "gb200", "gb300")
    }
    assert times["gb200"][0] == pytest.approx(times["gb300"][0], rel=0.2) and times["gb200"][0] > 2 * times["b200"][0]
    assert times["gb200"][1] == pytest.approx(times["b200"][1])
