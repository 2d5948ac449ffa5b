"""The entry point to calibrations: every shipped table can be evaluated, and a missing one is reported with the available ones."""  # noqa: E501

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from support.examples import examples, sampled
from support.tables import table_of

from archsim.base.errors import SpecError
from archsim.base.units import VECTOR_BYTES
from archsim.iteration.attention_blocks import block_times
from archsim.laws.calibration_files import load_calibration
from archsim.laws.gemm import Rates, law_ns
from archsim.laws.laws import Laws, Times
from archsim.laws.moe import MoeSizes, named_of, outside_ranks
from archsim.laws.rank_load import rank_loads, routing_of
from archsim.laws.tables import CalibrationSpec, LawMissing, ReferenceRates, TransferTable, shape_of
from archsim.laws.transfers import PAYLOAD_OF, dispatches, law_of, payload_of, sent_bytes
from archsim.model.attention import read_kind

SHIPPED = sorted((Path(__file__).resolve().parents[2] / "configs" / "calibrations").glob("*.yaml"))
GPUS = [file.stem for file in SHIPPED]
SAMPLED = sampled(GPUS, lambda gpu: gpu in ("h100", "gb200"))  # of the kinds of tables there are
SECTIONS = ("gemm", "moe", "attention", "p2p", "collectives", "pcie", "hbm", "launch")
_LATENT = {"heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
           "v_head_dim": 128, "index_heads": 64, "index_head_dim": 128, "index_topk": 2048}  # fmt: skip
_COMPRESSED = {"heads": 64, "head_dim": 512, "q_lora_rank": 1024, "o_lora_rank": 1024, "o_groups": 8, "window": 128}
BLOCKS = {
    kind.measured_as: kind
    for kind in (
        read_kind({"kind": "sparse", **_LATENT}),
        read_kind({"kind": "sparse", **_LATENT, "own_indexer": False}),
        read_kind({"kind": "compressed", **_COMPRESSED, "ratio": 128}),
        read_kind(
            {
                "kind": "compressed",
                **_COMPRESSED,
                "ratio": 4,
                "index_topk": 512,
                "index_heads": 64,
                "index_head_dim": 128,
            }  # fmt: skip
        ),
        read_kind(
            {
                "kind": "block_sparse",
                "heads": 64,
                "kv_heads": 4,
                "head_dim": 128,
                "index_heads": 64,
                "index_head_dim": 128,
                "index_topk": 2048,
            }
        ),  # fmt: skip
        read_kind({"kind": "gated_delta_net", "k_heads": 16, "v_heads": 32, "k_dim": 128, "v_dim": 128}),
        read_kind({"kind": "kda", "heads": 32, "head_dim": 128}),
        read_kind({"kind": "mamba2", "heads": 64, "head_dim": 64, "groups": 8, "state": 128, "state_value_bytes": 4}),
    )
}
YIELDING = {
    # of another kernel of the same part with more measurements
    ("kda", "rule", "decode", "sglang", "kda_fused_decode"),
    ("kda", "rule", "decode", "vllm", "fused_recurrent_kda_packed_decode"),
    # a part without the other of its library: the convolution, or the rule
    ("gated_delta_net", "rule", "prefill", "trtllm", "chunk_gated_delta_rule"),
    ("kda", "rule", "verify", "sglang", "fused_kda_decode_mtp_dspark"),
    ("mamba2", "convolution", "decode", "trtllm", "causal_conv1d_update"),
    ("mamba2", "convolution", "prefill", "trtllm", "causal_conv1d_fn"),
}
DEEPSEEK = MoeSizes(7168, 2048, 256, 8)


@lru_cache
def laws_of(gpu: str) -> Laws:
    return Laws(load_calibration(gpu))


def who(table) -> dict[str, str]:
    return {"library": table.library, "version": table.version}


def positive(times, shape) -> None:
    assert times.ns.shape == times.extrapolated.shape == shape
    assert np.all(np.isfinite(times.ns)) and np.all(times.ns > 0)


def flagged(table, outside: list[bool]) -> list[bool]:
    """Every time of a scaled table is."""
    return [bool(table.scaled_from) or each for each in outside]


def asked_gemm(laws, table):
    n, k = table.sizes[len(table.sizes) // 2]
    m = np.array([1, 2, 64, 4096, 2**20])
    how = {"dtype": table.dtype, "quantisation": table.quantisation, **who(table)}
    times = laws.grouped_gemm(m, n, k, table.groups, **how) if table.groups > 1 else laws.gemm(m, n, k, **how)
    positive(times, m.shape)
    law = law_ns(table.law, m, n, k, table.dtype, table.groups)
    assert np.all(np.diff(law) >= 0) and times.ns[-1] > times.ns[0]
    assert times.extrapolated[-1]
    return times.table


def asked_moe(laws, table):
    ep, tp = shape_of(next(iter(table.ranks)))
    tokens = np.array([table.tokens[0], table.tokens[-1], 4 * table.tokens[-1]])
    how = {
        "model": table.model,
        "dtype": table.dtype,
        "distribution": table.distribution,
        "kernel": table.kernel,
        "eplb_slots": table.eplb_slots,
        **who(table),
    }
    times = laws.fused_moe(tokens, ep, tp, **how)
    positive(times, tokens.shape)
    assert times.extrapolated.tolist() == flagged(table, [False, False, True])
    points = np.array([float(ep)] * 3), np.array([float(tp)] * 3), tokens
    pairs, active = rank_loads(named_of(table), routing_of(table), table.law, points[0], tokens)
    given = laws.fused_moe(tokens, ep, tp, pairs=pairs, active_experts=active, **how)
    assert given.ns.tolist() == times.ns.tolist()
    more = laws.fused_moe(tokens, ep, tp, pairs=2 * pairs, active_experts=active, **how)
    assert np.all(more.ns >= given.ns)
    return times.table


def asked_attention(laws, table):
    heads, kv_heads = table.sizes[-1]
    how = {key: getattr(table, key) for key in ("phase", "kind", "dtype", "kv_dtype", "products", "head_dim", "window")}
    how |= {"heads": heads, "kv_heads": kv_heads, **who(table)}
    tokens = np.array([table.tokens[0], table.most_tokens[0], 4 * table.tokens[-1]])
    times = laws.attention(1 if table.phase == "decode" else tokens, tokens, table.batch[0], **how)
    positive(times, (3,))
    least = 0.8 if table.window else 0.9  # where a window reads no more, times step by 2 us (timers of sglang 0.5.14)
    assert times.extrapolated.tolist() == flagged(table, [False, False, True]) and times.ns[-1] > least * times.ns[0]
    return times.table


def sizes_of(table: TransferTable) -> np.ndarray:
    return np.array(
        [table.first_bytes / 2, table.first_bytes, table.last_bytes, 2 * table.last_bytes, 4 * table.last_bytes]
    )


def judged_transfer(times, table):
    """Monotone where the law is: held below the smallest size, never falling beyond the largest."""
    positive(times, (5,))
    assert times.ns[0] == times.ns[1] and np.all(np.diff(times.ns[2:]) >= 0)
    assert times.extrapolated.tolist() == flagged(table, [True, False, False, True, True])
    return times.table


def asked_copy(laws, table):
    of = {key: table.of[key] for key in ("placement", "direction", "concurrent_pairs", "method")}
    return judged_transfer(laws.copy(sizes_of(table), **of, **who(table)), table)


def asked_collective(laws, table):
    of, where = table.of, {"ranks": int(table.of["num_gpus"]), "nodes": int(table.of["nodes"])}
    if of["op"] not in PAYLOAD_OF:
        times = laws.collective(of["op"], sizes_of(table), **where, variant=of.get("variant"), **who(table))
        return judged_transfer(times, table)
    layer = {key: int(of[key]) for key in ("hidden", "top_k", "experts")}
    tokens = sizes_of(table) / (layer["hidden"] * layer["top_k"] * VECTOR_BYTES[payload_of(table)])
    tokens[1:3] = np.round(tokens[1:3])
    sms = int(of["sms"]) if "sms" in of else None
    how = {"kernel": of["variant"], "dtype": of["dtype"], "sms": sms, **where, **layer, **who(table)}
    times = laws.dispatch_combine(of["op"], tokens, **how)
    positive(times, (5,))
    assert times.ns[-1] >= times.ns[0]
    return times.table


def asked_host(laws, table):
    return judged_transfer(
        laws.host(sizes_of(table), table.of["direction"], method=table.of["method"], **who(table)), table
    )


def asked_memory(laws, table):
    if isinstance(table, TransferTable):
        law, sizes = law_of(table), sizes_of(table)
        return judged_transfer(Times(law.time_ns(sizes), law.extrapolates(sizes), table), table)
    found = laws.memory(table.of["level"], table.of["op"], table.of["quantity"], **who(table))
    assert found.low <= found.value <= found.high
    return found


def asked_launch(laws, table):
    return laws.launch(table.of["kind"])


ASK = dict(
    zip(
        SECTIONS,
        (asked_gemm, asked_moe, asked_attention, asked_copy, asked_collective, asked_host, asked_memory, asked_launch),
        strict=True,
    )
)


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("gpu", SAMPLED)
def test_every_shipped_table_is_reached(gpu, section):
    """By its own names the door gives that very table (every fourth at a commit), and times that are positive."""
    laws = laws_of(gpu)
    tables = getattr(laws.calibration, section)[:: 1 if examples(100) == 100 else 4]
    assert [ASK[section](laws, table) is table for table in tables] == [True] * len(tables)


def test_there_are_tables_to_reach_in_every_section():
    assert GPUS == ["a100", "b200", "b300", "gb200", "gb300", "h100", "h20", "h200", "h800", "rtx-pro-6000-server"]
    for section in SECTIONS:
        assert any(getattr(laws_of(gpu).calibration, section) for gpu in ("h100", "gb200"))
    assert set(CalibrationSpec.model_fields) == {"gpu", "reference", "scaled", "blocks", *SECTIONS}


@pytest.mark.parametrize("gpu", SAMPLED)
def test_every_block_is_reached_but_those_that_yield(gpu):
    """A query by library takes, of each part, the kernel measured most; a library without all parts is not taken."""
    laws = laws_of(gpu)
    for table in laws.calibration.blocks[:: 1 if examples(100) == 100 else 4]:
        kind = BLOCKS[table.kind]
        found = block_times(kind, laws, table.phase, 4096, 1, ("bf16", table.kv_dtype or "bf16"), table.library, None)
        if found is None or table not in found.tables:
            assert (table.kind, table.part, table.phase, table.library, table.kernel) in YIELDING
            continue
        new = 1.0 if table.phase == "decode" else np.array([4.0, 64.0, 1024.0])
        contexts = np.full(3, 512.0 if table.reach == "short" else 4096.0)
        ns = found.ns(1.0, new, contexts)
        assert np.all(np.isfinite(ns)) and np.all(ns > 0) and np.all(np.diff(ns) >= 0)
        assert np.all(found.ns(8.0, new, contexts) >= ns)
        assert found.outside(2.0 * table.most_requests, contexts).all()


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
