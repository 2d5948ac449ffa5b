"""Bytes of a value in every dtype that archsim knows, of weights and of vectors that travel."""

from types import MappingProxyType
from typing import NamedTuple

BF16 = "bf16"
BF16_BYTES = 2


class Dtype(NamedTuple):
    """``weight``: bytes of a weight with its scales, but for a scale of 4 bytes to 128 x 128 weights or a whole tensor;
    ``vector``: of a value of an activation as it is sent; ``computes``: dtype whose peak its products have.
    """

    weight: float
    vector: float
    computes: str


# FP8: one FP32 scale for 128 values of a vector (deepseek-ai/DeepEP, README). NVFP4: one FP8 scale for 16 values
# (NVIDIA, "Introducing NVFP4"). MXFP4 and MXFP8: one E8M0 scale for 32 values (OCP Microscaling Formats 1.0, 5.1);
# mxfp4 are weights alone (w4a16), mxfp4_mxfp8 has MXFP8 activations. INT4: weights alone, one 16-bit scale for 32
# (moonshotai/Kimi-K2-Thinking, config.json, group_size). FORMAT_bf16: weights alone, too, of a GPU that does not
# multiply in the format (Marlin, in vLLM's layers/quantization/utils/marlin_utils_fp8.py and marlin_utils_fp4.py).
DTYPES: MappingProxyType[str, Dtype] = MappingProxyType(
    {
        "bf16": Dtype(2, 2, "bf16"),
        "fp16": Dtype(2, 2, "fp16"),
        "fp8": Dtype(1, 1 + 4 / 128, "fp8"),
        "fp8_block": Dtype(1, 1 + 4 / 128, "fp8"),
        "nvfp4": Dtype(0.5 + 1 / 16, 0.5 + 1 / 16, "nvfp4"),
        "mxfp4": Dtype(0.5 + 1 / 32, 2, "bf16"),
        "mxfp4_mxfp8": Dtype(0.5 + 1 / 32, 1 + 1 / 32, "fp8"),
        "int4": Dtype(0.5 + 2 / 32, 2, "bf16"),
        "fp8_bf16": Dtype(1, 2, "bf16"),
        "fp8_block_bf16": Dtype(1, 2, "bf16"),
        "nvfp4_bf16": Dtype(0.5 + 1 / 16, 2, "bf16"),
    }
)
# Formats → themselves as weights alone.
WEIGHTS_ALONE = MappingProxyType(
    {"fp8": "fp8_bf16", "fp8_block": "fp8_block_bf16", "nvfp4": "nvfp4_bf16", "mxfp4_mxfp8": "mxfp4"}
)
WEIGHT_BYTES = MappingProxyType({name: dtype.weight for name, dtype in DTYPES.items()})
VECTOR_BYTES = MappingProxyType({name: dtype.vector for name, dtype in DTYPES.items()})


# Nanoseconds of other units of time.

NS_PER_S, NS_PER_MS, NS_PER_US = 1e9, 1e6, 1e3
RETICLE_MM2 = 26.0 * 33.0  # largest field of a stepper
