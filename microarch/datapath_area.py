"""Area of the Global CP's datapath as a state machine: lanes that evaluate candidates, and comparators that sort.

Logic is counted in flip-flops of the technology; how many a lane and a comparator take are this project's estimates.
"""

from __future__ import annotations

from microarch.area_power import UM2_PER_MM2
from microarch.technology import N5, Coefficient, Technology

_GATES = "a flip-flop is about 5 gates"
LANE = Coefficient(500.0, "flip-flops a lane", f"assumed: a 16 × 32 bit multiplier of 2,000 gates, two adders of 32 bits; {_GATES}")
COMPARATOR = Coefficient(50.0, "flip-flops a comparator", f"assumed: two registers of 16 bits, comparison and exchange; {_GATES}")


def datapath_mm2(lanes: int, comparators: int, technology: Technology = N5) -> float:
    """Area of ``lanes`` and ``comparators``, placed."""
    flops = lanes * LANE.value + comparators * COMPARATOR.value
    return flops * technology.flop.value / technology.placement.value / UM2_PER_MM2
