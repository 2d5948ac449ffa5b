"""Compute array of a die: multiplies a sub-kernel's tokens with one weight slice at a time.

State layout: none of its own; under ``shared`` ``archsim.engine.event.flows.DIE[die]`` has the chain that it works
on and its queue.
"""

from dataclasses import dataclass

from microarch.blocks.block import PAPER, SIMULATOR, NextState, parameter
from microarch.blocks.request import Event, State, Unit

SERVES = {State.COMPUTE: Unit.COMPUTE}
STEPS = {(State.COMPUTE, Event.SERVED): NextState(State.DONE, action="multiply", latency="flop / flop_per_ns")}


@dataclass(frozen=True)
class Parameters:
    """Speed of the array; the peak defaults to Dojo's (FP8). ``gemm: tables`` has its own shares of it."""

    peak_flop_per_s: float = parameter(1e15, "compute.peak", f"{PAPER}, table I")
    efficiency: float = parameter(0.7, "compute.efficiency", SIMULATOR)

    @property
    def flop_per_ns(self) -> float:
        """Effective rate of an expert's GEMM."""
        return self.peak_flop_per_s / 1e9 * self.efficiency
