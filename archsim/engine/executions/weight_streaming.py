"""Weight streaming, as on a wafer: a die fetches the slices of the experts that it runs, and computes as they arrive.

Every plan entry is three chains, one per slice (``archsim.engine.work``); hidden vectors are dispatched and combined
if the assumption ``activations`` says so. The engine's kernel runs them.
"""

from __future__ import annotations

import numpy as np

from archsim.engine.executions.execution import GemmTime, Order, Setup
from archsim.engine.work import WorkBuilder


class WeightStreaming:
    """``execution: weight_streaming``."""

    def __init__(self, setup: Setup):
        self._memory, self._tally = setup.memory, setup.tally
        self.builder = WorkBuilder(setup.scenario, setup.machine, setup.fabric, setup.copies)
        self.kernel = setup.build_kernel()

    def step(self, order: Order, now_ns: float) -> float:
        demand = order.demand
        origins = demand.origins if self.builder.needs_origins else None
        work = self.builder.build(
            order.layer,
            order.row,
            order.plan,
            order.placement,
            origins,
            demand.top_k,
            order.cp_en,
            self._memory,
            demand.routing,
            demand.residents,
        )
        work = work._replace(cp_ready_ns=order.cp_ready_ns, notes=order.notes)
        return self.kernel.step(work, self._memory, self._tally, now_ns)

    def log(self, begin_ns: float) -> dict[str, np.ndarray]:
        return self.kernel.log(begin_ns)

    def gemm_time(self) -> GemmTime:
        gemm = self.builder.gemm
        return GemmTime(gemm.calibrated_ns, gemm.extrapolated_ns, gemm.law)


def build(setup: Setup) -> WeightStreaming:
    """The execution of a run."""
    return WeightStreaming(setup)
