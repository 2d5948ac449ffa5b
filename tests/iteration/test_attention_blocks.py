"""Of archsim.iteration.attention_blocks."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from support.examples import examples, sampled

from archsim.iteration.attention_blocks import block_times
from archsim.laws.calibration_files import load_calibration
from archsim.laws.laws import Laws
from archsim.model.attention import read_kind

SHIPPED = sorted((Path(__file__).resolve().parents[2] / "configs" / "calibrations").glob("*.yaml"))


GPUS = [file.stem for file in SHIPPED]


SAMPLED = sampled(GPUS, lambda gpu: gpu == "gb200")


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


@lru_cache
def laws_of(gpu: str) -> Laws:
    return Laws(load_calibration(gpu))


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
