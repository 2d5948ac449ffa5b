"""Die-to-die links: requests, the slices that answer them, and hidden vectors, dispatched and combined.

State layout: none of their own; the kernels keep the use of a link with its resource (``CLAIM`` under ``reserved``,
``FLOW`` under ``shared``) and its traffic in ``archsim.engine.state.RESOURCE[resource]``.

Transitions of DATA are the PDU's, which checks what arrives.
"""

from dataclasses import dataclass

from microarch.blocks.block import PAPER, SIMULATOR, NextState, parameter
from microarch.blocks.request import Event, State, Unit

SERVES = {State.REQUEST: Unit.PATH, State.ACT_MOVE: Unit.PATH}
ASKED = "hops · hop_ns + request_bytes / bytes_per_ns"
STEPS = {
    (State.REQUEST, Event.HIT): NextState(State.REMOTE_LLC, action="read the home's LLC", latency=ASKED),
    (State.REQUEST, Event.MISS): NextState(State.REMOTE_HBM, action="read the home's HBM", latency=ASKED),
    (State.ACT_MOVE, Event.SERVED): NextState(
        State.ACT_WRITE, action="vectors arrive", latency="hops · hop_ns + bytes / bytes_per_ns"
    ),
}


@dataclass(frozen=True)
class Parameters:
    """Speed of the links; the bandwidth is that of one direction to one neighbour, by default Dojo's."""

    bandwidth_bytes_per_s: float = parameter(1.5e12, "d2d.bandwidth", f"{PAPER}, table I")
    efficiency: float = parameter(0.9, "d2d.efficiency", SIMULATOR)
    hop_ns: float = parameter(200.0, "d2d.hop_latency", PAPER)
    request_bytes: int = parameter(16, "d2d.request", PAPER)

    @property
    def bytes_per_ns(self) -> float:
        """What transfers reach."""
        return self.bandwidth_bytes_per_s / 1e9 * self.efficiency
