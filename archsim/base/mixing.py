"""A hash of whole numbers, by which draws depend on a counter alone (SplitMix64: Steele et al., OOPSLA 2014)."""

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mix_bits(x):
    """SplitMix64's finaliser: a bijection of 64-bit numbers that scatters neighbours. Scalars or arrays."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * MIX_1
        x = (x ^ (x >> np.uint64(27))) * MIX_2
    return x ^ (x >> np.uint64(31))
