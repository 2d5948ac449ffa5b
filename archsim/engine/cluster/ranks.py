"""What the GPUs of an expert-parallel group compute in one step: a grouped kernel each, and the shared experts."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from archsim.base.causes import Cause
from archsim.base.units import NS_PER_S
from archsim.engine.gemm.grouped import law_of_ranks
from archsim.laws.dense import dense_product
from archsim.laws.expert_gemm import Rates
from archsim.policies.allocation.rules import Plan
from archsim.specs.loading.calibrations import calibration_named
from archsim.specs.scenario import Scenario
from microarch.blocks.local_cp import launch_ns

GATE_AND_UP = 2
PARTS = MappingProxyType(
    {
        Cause.COMPUTE: ("multiply_ns",),
        Cause.INEFFICIENCY: ("inefficiency_ns", "expert_ns"),
        Cause.PERMUTE: ("permute_ns",),
        Cause.LAUNCH: ("launch_ns",),
        Cause.HBM: ("excess_ns",),
    }
)  # of ``GroupedTimes``


class RankTimes(NamedTuple):
    """float64[die] ns: the grouped kernel (of a rank without pairs its launch), ``causes``: what it does (their sum);
    ``low_ns``, ``high_ns``: how much shorter and longer at the residuals of the law; shared experts, ``shared_lost``:
    the share that they lose against peak. ``pairs``, ``active``: float64[die] of tokens and experts.
    """

    kernel_ns: np.ndarray
    causes: Mapping[Cause, np.ndarray]
    low_ns: np.ndarray
    high_ns: np.ndarray
    shared_ns: np.ndarray
    shared_lost: np.ndarray
    pairs: np.ndarray
    active: np.ndarray
    extrapolated_ns: float


class Ranks:
    """Times of the ranks of a scenario. Raises LawMissing (a SpecError) for layers that were not measured."""

    def __init__(self, scenario: Scenario):
        system, model = scenario.system, scenario.model
        self._dies, self._gpu = system.dies, system.launch == "gpu"
        self._clock_hz = system.decision.local_clock_hz
        # where all have all tokens, or behind an all-gather, every rank sees all of them, as in the measured layers
        self._law = law_of_ranks(system, model, system.dies, scenario.assumptions.receives)
        self.named = self._law.named
        self._shared, self._shared_ns_per_token = (), 0.0
        self._count = model.shared_experts if scenario.assumptions.weights == "all" else 0
        if self._count:
            compute = system.compute
            rates = Rates(compute.peak_flop_per_s, system.hbm.bandwidth_bytes_per_s)
            calibration = calibration_named(compute.calibration)
            shapes = (GATE_AND_UP * model.shared_ffn, model.hidden), (model.hidden, model.shared_ffn)
            self._shared = tuple(dense_product(calibration, n, k, compute.dtype, rates) for n, k in shapes)
            flop = 2.0 * self._count * sum(n * k for n, k in shapes)
            self._shared_ns_per_token = flop / compute.peak_flop_per_s * NS_PER_S

    def times(self, plan: Plan, tokens: np.ndarray, arrived: np.ndarray, share: float = 1.0) -> RankTimes:
        """Of a plan; ``tokens``: float64[die] that live on each, ``arrived``: that each has after the dispatch.
        ``share``: of tokens and pairs of the plan.
        """
        pairs = np.bincount(plan.die, plan.tokens, self._dies) * share
        active = np.minimum(np.bincount(plan.die, minlength=self._dies).astype(float), pairs)
        used = np.flatnonzero(pairs)
        causes = {cause: np.zeros(self._dies) for cause in PARTS}
        causes[Cause.LAUNCH][:] = self._law.idle_ns
        low_ns, high_ns, extrapolated_ns = np.zeros(self._dies), np.zeros(self._dies), 0.0
        if len(used):
            load = pairs[used], active[used], arrived[used]
            at = self._law.times(*(np.maximum(each, 1.0) for each in load))
            for cause, parts in PARTS.items():
                causes[cause][used] = sum(getattr(at, part) for part in parts)
            if not self._gpu:
                causes[Cause.LAUNCH][used] += launch_ns(active[used], self._clock_hz)
            low_ns[used], high_ns[used] = at.ns * at.low, at.ns * at.high
            extrapolated_ns = float(at.ns[at.extrapolated].sum())
        kernel_ns = np.sum(list(causes.values()), axis=0)
        shared_ns = sum((self._count * product.ns(tokens * share) for product in self._shared), np.zeros(self._dies))
        multiply_ns = np.minimum(tokens * share * self._shared_ns_per_token, shared_ns)
        lost = 1 - np.divide(multiply_ns, shared_ns, out=np.ones(self._dies), where=shared_ns > 0)
        return RankTimes(kernel_ns, causes, low_ns, high_ns, shared_ns, lost, pairs, active, extrapolated_ns)
