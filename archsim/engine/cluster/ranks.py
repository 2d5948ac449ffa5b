"""What the GPUs of an expert-parallel group compute in one step: a grouped kernel each, and the shared experts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from archsim.engine.gemm.grouped import law_of_ranks
from archsim.policies.allocation.rules import Plan
from archsim.specs.loading.calibrations import calibration_named
from archsim.specs.scenario import Scenario
from calibration.laws.dense import dense_product
from calibration.laws.expert_gemm import Rates
from microarch.blocks.local_cp import launch_ns

GATE_AND_UP = 2


class RankTimes(NamedTuple):
    """float64[die] ns: the grouped kernel (of a rank without pairs its launch), of it the multiplication and the bytes
    that it waits for; ``low_ns``,
    ``high_ns``: how much shorter and longer at the residuals of the law; shared experts. ``pairs``, ``active``:
    float64[die] of tokens and experts.
    """

    kernel_ns: np.ndarray
    multiply_ns: np.ndarray
    bytes_ns: np.ndarray
    low_ns: np.ndarray
    high_ns: np.ndarray
    shared_ns: np.ndarray
    pairs: np.ndarray
    active: np.ndarray
    extrapolated_ns: float


class Ranks:
    """Times of the ranks of a scenario. Raises LawMissing (a SpecError) for layers that were not measured."""

    def __init__(self, scenario: Scenario):
        system, model = scenario.system, scenario.model
        self._dies, self._gpu = system.dies, system.launch == "gpu"
        self._clock_hz = system.decision.fsm.clock_hz
        # without a dispatch, or behind an all-gather, every rank sees all tokens, as in the measured layers
        chosen = scenario.assumptions
        received = chosen.activations == "dispatched" and chosen.dispatch != "all_gather"
        self._law = law_of_ranks(system, model, system.dies, received)
        self.named = self._law.named
        self._shared = ()
        self._count = model.shared_experts if scenario.assumptions.weights == "all" else 0
        if self._count:
            compute = system.compute
            rates = Rates(compute.peak_flop_per_s, system.hbm.bandwidth_bytes_per_s)
            calibration = calibration_named(compute.calibration)
            shapes = (GATE_AND_UP * model.shared_ffn, model.hidden), (model.hidden, model.shared_ffn)
            self._shared = tuple(dense_product(calibration, n, k, compute.dtype, rates) for n, k in shapes)

    def times(self, plan: Plan, tokens: np.ndarray, arrived: np.ndarray, share: float = 1.0) -> RankTimes:
        """Of a plan; ``tokens``: float64[die] that live on each, ``arrived``: that each has after the dispatch.
        ``share``: of tokens and pairs of the plan.
        """
        pairs = np.bincount(plan.die, plan.tokens, self._dies) * share
        active = np.minimum(np.bincount(plan.die, minlength=self._dies).astype(float), pairs)
        used = np.flatnonzero(pairs)
        columns = [np.full(self._dies, self._law.idle_ns), *(np.zeros(self._dies) for _ in range(4))]
        extrapolated_ns = 0.0
        if len(used):
            load = pairs[used], active[used], arrived[used]
            at = self._law.times(*(np.maximum(each, 1.0) for each in load))
            ns = at.ns if self._gpu else at.ns + launch_ns(active[used], self._clock_hz)
            waits_ns = np.minimum(at.excess_ns, at.ns - at.multiply_ns)
            found = ns, at.multiply_ns, waits_ns, at.ns * at.low, at.ns * at.high
            for column, values in zip(columns, found, strict=True):
                column[used] = values
            extrapolated_ns = float(at.ns[at.extrapolated].sum())
        shared_ns = sum((self._count * product.ns(tokens * share) for product in self._shared), np.zeros(self._dies))
        return RankTimes(*columns, shared_ns, pairs, active, extrapolated_ns)
