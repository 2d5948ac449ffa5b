"""The dispatch or the combine of hidden vectors alone, as a measured kernel: all vectors of a layer begin at once,
links are shared as ``contention`` and ``arbitration`` say, with the ports of ``endpoint``. HBM, software and the
experts take no part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from archsim.base.errors import ArchsimError, SpecError, did_you_mean
from archsim.base.tables import Shown
from archsim.engine.flows.simulation import simulate_flows
from archsim.engine.loop import Replay
from archsim.engine.mesh_laws import measured_law, mesh_of, neighbour_bytes_per_s
from archsim.engine.moves import SENDS, Sizes, vector_bytes
from archsim.laws.mesh import DISPATCH, KERNELS, EndpointLaw, quantities

if TYPE_CHECKING:
    import pandas


class PhaseLayer(NamedTuple):
    """Dispatch or combine of an iteration and layer, between different dies."""

    iteration: int  # number of the step
    layer: int  # the model's number of the MoE layer
    vectors: float  # between different dies
    n_bytes: float  # of them
    busiest_die: int  # that sends most
    busiest_vectors: float  # that it sends
    ns: float  # on the fabric
    law_ns: float | None  # by the law; None without one


@dataclass(frozen=True)
class PhaseTimes(Shown):
    """Times of a phase, one `PhaseLayer` for each iteration and MoE layer."""

    phase: str
    law: EndpointLaw | None
    layers: tuple[PhaseLayer, ...]

    def __repr__(self) -> str:
        return f"PhaseTimes({self.phase}, {len(self.layers)} layers)"

    def to_pandas(self) -> pandas.DataFrame:
        """Columns as of `PhaseLayer`; bytes as ``bytes``."""
        import pandas

        return pandas.DataFrame(self.layers, columns=list(PhaseLayer._fields)).rename(columns={"n_bytes": "bytes"})

    def lines(self) -> list[str]:
        """A table as aligned text."""
        head = [
            "iteration", "layer", "vectors", "MB", "busiest die", "its vectors", "fabric, us",
            *(["fitted, us"] if self.law else []),
        ]  # fmt: skip
        rows = [
            [
                str(each.iteration), str(each.layer), f"{each.vectors:,.0f}", f"{each.n_bytes / 1e6:,.2f}",
                str(each.busiest_die), f"{each.busiest_vectors:,.0f}", f"{each.ns / 1e3:,.1f}",
                *([f"{each.law_ns / 1e3:,.1f}"] if each.law_ns is not None else []),
            ]
            for each in self.layers
        ]  # fmt: skip
        widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
        table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
        times_us = [each.ns / 1e3 for each in self.layers]
        said = (
            f"The {self.phase} takes {np.mean(times_us):,.2f} µs per MoE layer on average, on idle "
            f"links ({min(times_us):,.2f} to {max(times_us):,.2f} over {len(times_us)} layer-steps)."
        )
        return [said, *table]


def time_phase(replay: Replay, phase: str, law: str | None = None) -> PhaseTimes:
    """Times of ``phase`` in every step of a run that has not started. ``law``: ``MACHINE/VERSION``; None: of the
    system's ``endpoint``. Raises ArchsimError for an unknown phase or law, a law of another topology, and assumptions
    under which no hidden vectors move.
    """
    if phase not in KERNELS:
        raise ArchsimError(f"unknown phase {phase!r}{did_you_mean(phase, KERNELS)} (known: {', '.join(KERNELS)})")
    engine = replay.engine
    scenario, fabric = engine.scenario, engine.fabric
    assumptions, model, system = scenario.assumptions, scenario.model, scenario.system
    if assumptions.activations != "dispatched" or assumptions.dispatch not in SENDS:
        raise SpecError(
            f"--phase {phase}: hidden vectors move alone under activations: dispatched and dispatch: "
            f"{' or '.join(SENDS)}, not activations: {assumptions.activations} and dispatch: {assumptions.dispatch}"
        )
    law = law or system.endpoint
    known = None if law is None else measured_law(law, phase, system)
    sizes = Sizes(model.experts, model.top_k, model.expert_groups, model.top_groups)
    bytes_each = vector_bytes(model.hidden, system.compute.dtype, assumptions.combine)
    size = bytes_each.dispatch if phase == DISPATCH else bytes_each.combine
    found = []
    for layer, demand in replay.demands:
        placement, row = engine.placement, int(engine.rows[layer])
        plan = engine.plan(layer, demand, placement, row)
        assert demand.origins is not None
        vectors = SENDS[assumptions.dispatch](plan, demand.origins, demand.routing, sizes, fabric.hops)
        sent = np.array(vectors, np.float64)
        law_ns = None
        if known is not None:
            rate = neighbour_bytes_per_s(str(law), system, fabric)
            found_at = quantities(sent, *mesh_of(system)[1:], phase)
            law_ns = known.time_ns(found_at, size, rate=rate)
        np.fill_diagonal(sent, 0.0)
        over = sent if phase == DISPATCH else sent.T
        pairs = np.argwhere(over > 0)
        ends = [0.0]
        if len(pairs):
            flows = [(s, d, over[s, d] * size, 0.0) for s, d in pairs.tolist()]
            ends = simulate_flows(
                fabric, flows, contention=assumptions.contention, arbitration=assumptions.arbitration
            ).tolist()
        out = over.sum(axis=1)
        found.append(
            PhaseLayer(
                iteration=demand.step,
                layer=int(model.moe_layer_ids[row]),
                vectors=float(over.sum()),
                n_bytes=float(over.sum() * size),
                busiest_die=int(out.argmax()),
                busiest_vectors=float(out.max()),
                ns=max(ends),
                law_ns=law_ns,
            )  # fmt: skip
        )
    return PhaseTimes(phase, known, tuple(found))
