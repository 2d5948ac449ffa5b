"""Energy of a component's registers and clock: activity of a run (``microarch.rtl.export``) times the library's
energies, with a free-running clock and with gated ones.

Counted: clock pins of flip-flops and clock gates, changes of flip-flops with the pins that they drive, leakage. Not
counted: logic between registers, wires, the clock tree, memories.
"""

from __future__ import annotations

from typing import NamedTuple

from microarch.silicon import synthesis, technology


class Energy(NamedTuple):
    """fJ a cycle in the library's node: ``free``: the clock runs at every flip-flop; ``gated``: behind clock gates only
    where bits are written; ``changes``: of outputs; ``leakage``: at a clock.
    """

    free: float
    gated: float
    changes: float
    leakage: float

    def mw(self, clock_hz: float, gated: bool) -> float:
        """The power in mW, in 5 nm and at a clock."""
        fj = (self.gated if gated else self.free) + self.changes + self.leakage
        return fj * technology.N5.energy_scale.value * clock_hz * 1e-12


def energy_of(found: synthesis.Synthesised, clocked: float, toggled: float, clock_hz: float) -> Energy:
    """``clocked``, ``toggled``: bits a cycle, means of a run."""
    pin_fj = found.free_running_fj / found.flip_flops
    never_gated = found.flip_flops - found.gated_flip_flops
    ticking = min(found.flip_flops, never_gated + clocked)  # bits without a gate tick whether written or not
    leakage_fj = found.leakage_nw * 1e6 / clock_hz
    return Energy(found.free_running_fj, ticking * pin_fj + found.gates_fj, toggled * found.change_fj, leakage_fj)
