"""A chain of dependent loads, as a Triton kernel. Imported only if PyTorch and Triton are installed."""

import triton
import triton.language as tl

LINE_BYTES = 128  # one load per L2 line
LOADS = 4096


@triton.jit
def _follow(ring, place, loads: tl.constexpr):
    at = tl.load(place)
    for _ in range(loads):
        at = tl.load(ring + at)
    tl.store(place, at)


def chase(ring, place) -> None:
    """Follow LOADS links of ``ring`` (int64: index of the next), starting at ``place`` (int64[1]), which is updated."""
    _follow[(1,)](ring, place, loads=LOADS, num_warps=1)
