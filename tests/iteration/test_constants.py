"""Fitted constants of serving engines: the time of their host, and how far laws and served points are off."""

from archsim.iteration.constants import FactorRow, host_file, host_of, shape_of
from archsim.specs.library import load_model

GLM = shape_of(load_model("glm-5"))


def test_rows_of_factors_multiply_where_their_keys_agree():
    rows = (
        FactorRow(engine="vllm", experts=True, decodes=2.0),
        FactorRow(engine="vllm", experts=True, shape=GLM, request=0.5),
        FactorRow(gpu="h200", dtype="fp8_block", experts=True, routed=3.0),
        FactorRow(engine="vllm", experts=True, gpu="h200", dtype="fp8_block", shape=GLM, decodes=5.0),
    )
    known = host_file().model_copy(update={"factors": rows})
    host = host_of("vllm", load_model("qwen3-235b-a22b"), "h200", "fp8_block", "bf16", known)
    assert (host.decodes, host.prompts, host.experts) == (2.0, 1.0, 3.0)
    other = host_of("vllm", load_model("glm-5"), "h200", "fp8_block", "bf16", known)
    assert (other.decodes, other.request_ns) == (10.0, host.request_ns / 2)
