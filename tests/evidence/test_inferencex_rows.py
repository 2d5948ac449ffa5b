"""Rows of InferenceX and aiconfigurator, each with the deployment that it was measured on."""

from archsim.evidence.serving.inferencex_rows import decode_batches


def rows(precision, workers, *clients, backend="trtllm"):
    one = {"backend": backend, "precision": precision, "decode_workers": workers, "decode_attention_dp": 1}
    return [one | {"concurrency": each} for each in clients]


def test_decode_batches_are_those_of_the_recipes():
    """Names of recipes: srt-slurm, trtllm/gb200-fp4 and gb200-fp8 (ctx1_gen4_tep8_batch32, ctx1_gen3_tep8_batch16)."""
    assert decode_batches(rows("fp4", 4, 12, 24, 48, 96, 192)) == [32] * 5
    assert decode_batches(rows("fp4", 4, 5, 12, 44, 76)) == [1, 16, 16, 16]
    assert decode_batches(rows("fp8", 3, 3, 6, 18, 27, 63)) == [1, 1, 4, 8, 16]
    assert decode_batches(rows("fp8", 8, 4301, 6144)) == [512, 768]
    assert decode_batches(rows("fp4", 4, 12, backend="sglang")) == [0]
