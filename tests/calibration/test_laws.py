"""The entry point to calibrations: every shipped table can be evaluated, and a missing one is reported with the available ones."""  # noqa: E501

import numpy as np
import pytest
from support.calibrations import GPUS, SECTIONS, laws_of, positive, who
from support.tables import table_of

from archsim.base.errors import SpecError
from archsim.laws.gemm import Rates
from archsim.laws.laws import Laws
from archsim.laws.moe import MoeSizes, outside_ranks
from archsim.laws.tables import CalibrationSpec, LawMissing, ReferenceRates
from archsim.laws.transfers import dispatches, sent_bytes

DEEPSEEK = MoeSizes(7168, 2048, 256, 8)


def test_there_are_tables_to_reach_in_every_section():
    assert GPUS == ["a100", "b200", "b300", "gb200", "gb300", "h100", "h20", "h200", "h800", "rtx-pro-6000-server"]
    for section in SECTIONS:
        assert any(getattr(laws_of(gpu).calibration, section) for gpu in ("h100", "gb200"))
    assert set(CalibrationSpec.model_fields) == {"gpu", "reference", "scaled", "blocks", *SECTIONS}


class TestDefaults:
    """Of what is not named: the library with most measurements, and its newest version."""

    def test_products(self):
        assert who(laws_of("h100").gemm(64, 2048, 7168, dtype="bf16").table) == {
            "library": "trtllm",
            "version": "1.3.0",
        }
        assert laws_of("h100").gemm(64, 2048, 7168, dtype="fp8").table.quantisation == "apart"

    def test_transfers(self):
        laws = laws_of("h100")
        assert laws.copy(2**20).table is laws.link().table  # the copy engine was measured at one size alone
        assert laws.copy(2**20, method="ce").extrapolated
        assert who(laws.collective("all_to_all", 2**20, ranks=8).table) == {"library": "nccl", "version": "2.29.2"}
        assert laws_of("b200").copy(2**20).table.library == "nccl-xla"  # there is no other

    def test_layers(self):
        times = laws_of("h100").fused_moe([64, 1024], 8, dtype="fp8_block", sizes=DEEPSEEK)
        assert times.table.model == "DeepSeek-V3" and times.ns[1] > times.ns[0]

    def test_ranks_in_the_fewest_nodes_and_the_newest_build(self):
        layer = {"kernel": "low_latency", "hidden": 7168, "top_k": 8, "experts": 256}
        within = laws_of("h100").dispatch_combine("dispatch", 64, ranks=8, **layer)
        assert who(within.table)["version"] == "sglang-0.5.12" and within.table.of["nodes"] == "1"
        between = laws_of("h100").dispatch_combine("dispatch", 64, ranks=16, **layer)
        assert between.table.of["nodes"] == "2" and between.ns > within.ns
        far = laws_of("h100").dispatch_combine("dispatch", 64, ranks=64, nodes=8, **layer)
        assert far.table.of["nodes"] == "8" and far.ns > between.ns

    def test_what_an_all_to_all_sends(self):
        layer = {"kernel": "nvlink_two_sided", "ranks": 64, "hidden": 7168, "top_k": 8, "experts": 256}
        times = {
            dtype: laws_of("gb200").dispatch_combine("dispatch", 16384, dtype=dtype, **layer).ns
            for dtype in ("bf16", "fp8", "nvfp4")
        }
        assert times["nvfp4"] < times["fp8"] < times["bf16"]
        assert laws_of("gb200").dispatch_combine("dispatch", 16384, **layer).ns == times["fp8"]

    def test_experts_that_stay_and_whole_layers_first(self):
        layer = {"dtype": "fp8_block", "model": "DeepSeek-V3", "distribution": "power_law_1.2"}
        skewed = laws_of("h100").fused_moe(4096, 32, library="trtllm-wideep", **layer)
        spread = laws_of("h100").fused_moe(4096, 32, library="trtllm-wideep", eplb_slots=288, **layer)
        assert (skewed.table.eplb_slots, spread.table.eplb_slots) == (0, 288) and spread.ns < skewed.ns
        assert laws_of("h100").fused_moe(4096, 32, **layer).table.library != "trtllm-wideep"

    def test_names_without_case(self):
        named = laws_of("h100").fused_moe(64, 8, dtype="fp8_block", model="deepseek-v3")
        assert named.ns == laws_of("h100").fused_moe(64, 8, dtype="fp8_block", sizes=DEEPSEEK).ns


def test_ranks_in_several_nodes_have_laws_of_their_own():
    found = {(table.of["num_gpus"], table.of["nodes"]) for table in dispatches(laws_of("h100").calibration)}
    assert found == {("8", "1"), ("16", "2"), ("64", "8")}
    assert {table.of["nodes"] for table in laws_of("gb200").calibration.collectives} == {"1"}  # one NVLink domain


def test_arrays_broadcast():
    laws = laws_of("h100")
    m, n = np.array([[1], [64]]), np.array([2048, 4096, 7168])
    positive(laws.gemm(m, n, 2048, dtype="bf16"), (2, 3))
    positive(laws.gemm(64, 2048, 7168, dtype="bf16"), ())
    positive(
        laws.fused_moe(np.array([[64], [128]]), np.array([1, 8, 32]), dtype="fp8_block", model="DeepSeek-V3"), (2, 3)
    )


def test_another_die_scales():
    laws = laws_of("h100")
    reference = laws.calibration.reference
    same = Rates(reference.peak_flop_per_s["bf16"], reference.hbm_bytes_per_s)
    plain = laws.gemm([1, 4096], 2048, 7168, dtype="bf16").ns
    assert laws.gemm([1, 4096], 2048, 7168, dtype="bf16", rates=same).ns.tolist() == plain.tolist()
    faster = laws.gemm(
        [1, 4096], 2048, 7168, dtype="bf16", rates=same._replace(peak_flop_per_s=2 * same.peak_flop_per_s)
    ).ns
    assert faster[1] < 0.7 * plain[1]


def test_ranks_between_measured_ones_are_kriged():
    laws = laws_of("h100")
    measured = laws.fused_moe(512, [8, 16], dtype="fp8_block", model="DeepSeek-V3")
    between = laws.fused_moe(512, 12, dtype="fp8_block", model="DeepSeek-V3")
    assert not between.extrapolated and 0.7 * measured.ns.min() < between.ns < 1.3 * measured.ns.max()
    assert not outside_ranks(measured.table, np.array([12.0]), np.array([1.0]), np.array([512.0])).any()


@table_of(__file__, "not_measured")
def test_what_was_not_measured_is_reported_with_what_was(law, given, named, said):
    with pytest.raises(LawMissing) as raised:
        getattr(laws_of("h100"), law)(*given, **named)
    assert said in str(raised.value) and isinstance(raised.value, SpecError)


def test_a_payload_of_unknown_size_is_reported():
    with pytest.raises(LawMissing, match="unknown payload 'int2'"):
        sent_bytes("int2", 1, 8, 7168)


def test_nothing_at_all():
    empty = Laws(CalibrationSpec(gpu="own", reference=ReferenceRates(peak_flop_per_s={}, hbm_bytes_per_s=1e12, sms=1)))
    with pytest.raises(LawMissing, match="own has no copy"):
        empty.copy(1)
    assert empty.link().table is None and "no measurements of copies" in empty.link().why
    assert empty.hbm_reads() == (None, None)


def test_calls_that_make_no_sense_are_refused():
    laws = laws_of("h100")
    with pytest.raises(ValueError, match="a model or the sizes"):
        laws.fused_moe(1, 1, dtype="bf16")
    with pytest.raises(ValueError, match="both pairs and active_experts"):
        laws.fused_moe(1, 1, dtype="bf16", model="Kimi-K2", pairs=1)
    with pytest.raises(ValueError, match="m must be positive"):
        laws.gemm(0, 1, 1, dtype="bf16")
