"""Weight streaming, as on a wafer: a die fetches the slices (three chains an entry), and computes as they arrive."""

from functools import cached_property

import numpy as np

from archsim.engine import execution, state
from archsim.engine.analytic.walk import walk_step, walk_strategy
from archsim.engine.work import WorkBuilder
from microarch.blocks import atu, hbm


class WeightStreaming:
    """``execution: weight_streaming``."""

    def __init__(self, setup: execution.Setup):
        self._setup, self._memory, self._tally = setup, setup.memory, setup.tally
        self.builder = WorkBuilder(setup.scenario, setup.machine, setup.fabric, setup.copies)
        self.kernel = setup.build_kernel()
        self.clocks = execution.FULL_CLOCKS

    def step(self, order: execution.Order, now_ns: float) -> float:
        work = self._work(self.builder, order)
        work = work._replace(cp_ready_ns=order.cp_ready_ns, notes=order.notes)
        return self.kernel.step(work, self._memory, self._tally, now_ns)

    def _work(self, builder: WorkBuilder, order: execution.Order) -> state.StepWork:
        demand = order.demand
        return builder.build(
            order.layer, order.row, order.plan, order.placement, demand.origins if builder.needs_origins else None,
            demand.top_k, order.cp_en, self._memory, demand.routing, demand.residents,
            self.clocks[execution.phase_of(order)],
        )  # fmt: skip

    def log(self, begin_ns: float) -> dict[str, np.ndarray]:
        return self.kernel.log(begin_ns)

    def gemm_time(self) -> execution.GemmTime:
        gemm = self.builder.gemm
        return execution.GemmTime(gemm.calibrated_ns, gemm.extrapolated_ns, gemm.law)

    @cached_property
    def _estimating(self) -> WorkBuilder:
        """A builder whose work counts for nothing. It looks for no copies; ``time_of`` does."""
        return WorkBuilder(self._setup.scenario, self._setup.machine, self._setup.fabric, copies=False)

    def time_of(self, order: execution.Order) -> float:
        machine, copies = self._setup.machine, self._memory.copies
        work = self._work(self._estimating, order)
        if self._setup.copies:  # a die that has copied all of an expert reads it as its home does
            entries, routed = work.entries, work.entries["routed"] > 0
            first = order.layer * self._estimating.ids
            copied = routed & (copies.slices[first + entries["expert"], entries["die"]] == hbm.SLICES)
            entries["home"] = np.where(copied, entries["die"], entries["home"])
            entries["look_here"] |= copied
        room = copies.room.copy()
        atus = atu.no_translations(machine.dies, 0, 1)
        memory = state.Memory(self._memory.llc_tags.copy(), copies._replace(room=room), atus)
        return walk_step(machine, work, memory, walk_strategy(self._setup.scenario.assumptions)).ns

    def kernel_ns(self, tokens: int, experts: int) -> float:
        every = np.full(experts, tokens, np.int64)
        first, routed = np.zeros(experts, np.int64), np.ones(experts, np.int64)
        read_bytes = np.full(experts, self._setup.machine.slice_bytes, np.int64)
        arrived = self._estimating.arrivals(experts, tokens)
        return hbm.SLICES * float(self._estimating.gemm.of(every, routed, read_bytes, first, arrived).compute_ns.sum())


build = WeightStreaming  # the execution of a run: archsim.engine.execution.build_execution
