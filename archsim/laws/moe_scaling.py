"""Laws of fused MoE layers on another GPU or die: what of them moves bytes, and what does not.

FLOP scale with the peak, weights with the HBM. Of the costs of a token and of a pair, bytes scale with the HBM: those
of the kernels around the products, at the bandwidth of the measured GPU (`token_bytes`, `pair_bytes`), and no more than
the whole cost. The rest, and the cost of an expert, gain by whichever of peak and HBM gained less; launch and floor
are software and stay.
"""

from typing import NamedTuple

from archsim.base.dtypes import WEIGHT_BYTES
from archsim.base.units import NS_PER_S
from archsim.laws.tables import MoeLaw

BF16_BYTES = 2


class Scale(NamedTuple):
    """Rates of a die relative to the measured GPU."""

    compute: float
    memory: float


class Layer(NamedTuple):
    """Sizes of a layer, its dtype, and the HBM bandwidth of the GPU that measured it."""

    hidden: int
    ffn: int
    dtype: str
    hbm_bytes_per_s: float


def token_bytes(layer: Layer) -> float:
    """Of a token that passes a rank: its result is written in BF16; where the dtype is narrower, it is read in BF16
    and written in the dtype by the quantisation.
    """
    operand = WEIGHT_BYTES[layer.dtype]
    quantised = BF16_BYTES + operand if operand < BF16_BYTES else 0
    return layer.hidden * (BF16_BYTES + quantised)


def pair_bytes(layer: Layer) -> float:
    """Of a token-expert pair: its row is copied in the dtype; the activation reads gate and up in BF16 and writes one
    of them in the dtype; the final sum reads the result in BF16.
    """
    operand = WEIGHT_BYTES[layer.dtype]
    return layer.hidden * (2 * operand + BF16_BYTES) + layer.ffn * (2 * BF16_BYTES + operand)


def scaled_law(law: MoeLaw, layer: Layer, scale: Scale) -> MoeLaw:
    least = min(scale)

    def moved(ns: float, n_bytes: float) -> float:
        of_bytes = min(ns, n_bytes / layer.hbm_bytes_per_s * NS_PER_S)
        return of_bytes / scale.memory + (ns - of_bytes) / least

    return law.model_copy(update={
        "flop_per_s": law.flop_per_s * scale.compute, "bytes_per_s": law.bytes_per_s * scale.memory,
        "ns_per_token": moved(law.ns_per_token, token_bytes(layer)),
        "ns_per_pair": moved(law.ns_per_pair, pair_bytes(layer)), "ns_per_expert": law.ns_per_expert / least,
    })
