"""Predictive Data Unit of a die's D2D controller: keeps a cached copy of a passing slice if the Global CP predicts its
use.

Paper: Yu et al., ISCA 2026 (arXiv 2510.05497v4), section V: when remote data returns, the PDU checks the ``cp_en`` bit
of the expert and whether it is already local, and may write the slice to the local HBM and enter it in the ATU. The
LLC needs no word of the PDU: every slice that a die computes with, kept or not, streams through it (``llc: segments``
keeps it there while it has room). Under ``published`` the die's LLC keeps none that came from another die, as the
published simulator stores those in HBM alone.

State layout: ``cp_en: uint8[die, expert]``, one bit of hardware each.
"""

from dataclasses import dataclass

from archsim.base.compiled import inner
from microarch.blocks.block import PAPER, NextState, parameter
from microarch.blocks.request import KEEP, SERVED, Event, State, Unit

SERVES = {State.DATA: Unit.PATH}
MOVED = "hops · link.hop_ns + bytes / link.bytes_per_ns"
STEPS = {
    (State.DATA, Event.SERVED): NextState(State.COMPUTE, action="pass the slice on", latency=MOVED),
    (State.DATA, Event.KEEP): NextState(State.COMPUTE, State.COPY, action="pass it on and keep a copy", latency=MOVED),
}


@dataclass(frozen=True)
class Parameters:
    """A PDU keeps up with its link; its bottleneck is the port through which the Global CP writes its bits."""

    bits_port_bits: int = parameter(16, "decision.fsm.prediction_port_bits", f"{PAPER}, table II")


@inner
def decide(cp_en, ready_ns, copies, entry, key, now):
    """KEEP or SERVED for a slice that arrives from another die. ``cp_en: uint8[die, expert]``, valid from
    ``ready_ns`` on.
    """
    if now >= ready_ns and cp_en[entry.die, entry.expert] and not copies.present[entry.die, key]:
        return KEEP
    return SERVED
