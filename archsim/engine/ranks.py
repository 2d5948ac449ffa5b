"""What the GPUs of an expert-parallel group compute in one step: a grouped kernel each, and the shared experts."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from archsim.base import sums, units
from archsim.base.causes import Cause
from archsim.engine import gemm_times, grouped_gemm, state
from archsim.laws.calibration_files import calibration_named
from archsim.laws.gemm import DenseProduct, Rates, dense_product
from archsim.policies.allocation import Plan
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
)  # of ``archsim.laws.die.GroupedTimes``
OF_ARRAYS = (Cause.COMPUTE, Cause.INEFFICIENCY, Cause.PERMUTE)  # which a lower clock of the arrays makes longer

_OF_KERNELS = ("kernel_ns", "low_ns", "high_ns", "pairs", "active", "extrapolated_ns")  # add up over kernels


class RankTimes(NamedTuple):
    """What the ranks of a layer compute."""

    kernel_ns: np.ndarray  # float64[die]: the grouped kernel; of a rank without pairs its launch
    causes: Mapping[Cause, np.ndarray]  # cause → float64[die]: what the kernel does; their sum is its time
    low_ns: np.ndarray  # float64[die]: how much shorter it is at the 5 % residual of the law
    high_ns: np.ndarray  # float64[die]: how much longer at the 95 % residual
    shared_ns: np.ndarray  # float64[die]: shared experts
    shared_lost: np.ndarray  # float64[die]: the share of ``shared_ns`` that is lost against peak
    pairs: np.ndarray  # float64[die]: tokens, once for each expert
    active: np.ndarray  # float64[die]: experts with tokens
    extrapolated_ns: float  # of all kernels, outside the measured sizes
    first_ns: np.ndarray  # float64[die]: the part of ``kernel_ns`` that does not wait for a dispatch


class Ranks:
    """Times of the ranks of a scenario. Raises LawMissing (a SpecError) for layers that were not measured."""

    def __init__(self, scenario: Scenario, machine: state.Machine):
        system, model = scenario.system, scenario.model
        self._dies, self._gpu = system.dies, system.launch == "gpu"
        self._clock_hz = system.decision.local_clock_hz
        # where all have all tokens, or behind an all-gather, every rank sees all of them, as in the measured layers
        self._law = grouped_gemm.law_of_ranks(system, model, system.dies, scenario.assumptions.receives)
        self.named, factors = self._law.named, gemm_times.factors_of(machine)
        self._speeds = None if factors.equal else factors.array
        if not factors.equal:
            self._law = self._law.on(factors.rates(system.kernel_rates))
        self.clock: float | np.ndarray = 1.0  # of the arrays, a share of the full one; or float64[die]
        self._shared: tuple[DenseProduct | _OnEveryDie, ...] = ()
        self._shared_ns_per_token = 0.0
        self._count = model.shared_experts if scenario.assumptions.weights == "all" else 0
        if self._count:
            compute = system.compute
            rates = system.kernel_rates
            calibration = calibration_named(compute.calibration)
            shapes = (GATE_AND_UP * model.shared_ffn, model.hidden), (model.hidden, model.shared_ffn)
            self._shared = tuple(dense_product(calibration, n, k, compute.dtype, rates) for n, k in shapes)
            if not factors.equal:  # a law for every die
                own = [Rates(*each) for each in zip(*factors.rates(rates)[:2], strict=True)]
                laws = ([dense_product(calibration, n, k, compute.dtype, each) for each in own] for n, k in shapes)
                self._shared = tuple(_OnEveryDie(each) for each in laws)
            flop = 2.0 * self._count * sums.sum(n * k for n, k in shapes)
            self._shared_ns_per_token = flop / compute.peak_flop_per_s * units.NS_PER_S

    def times(self, plan: Plan, tokens: np.ndarray, arrived: np.ndarray, share: float = 1.0) -> RankTimes:
        """Of a plan; ``tokens``: float64[die] that live on each, ``arrived``: that each has after the dispatch.
        ``share``: of tokens and pairs of the plan. A plan in two stages has two kernels, the first of own tokens alone.
        """
        if plan.first is not None:
            one = self.times(plan._replace(tokens=plan.first, first=None), np.zeros_like(tokens), tokens, share)
            two = self.times(plan._replace(tokens=plan.tokens - plan.first, first=None), tokens, arrived, share)
            causes = {cause: ns + two.causes[cause] for cause, ns in one.causes.items()}
            both = {name: getattr(one, name) + getattr(two, name) for name in _OF_KERNELS}
            return two._replace(causes=causes, first_ns=one.kernel_ns, **both)
        pairs = np.bincount(plan.die, plan.tokens, self._dies) * share
        active = np.minimum(np.bincount(plan.die, plan.tokens > 0, self._dies), pairs)
        used, slow = np.flatnonzero(pairs), bool(np.any(self.clock != 1.0))
        clock = np.broadcast_to(self.clock, self._dies)
        causes = {cause: np.zeros(self._dies) for cause in PARTS}
        causes[Cause.LAUNCH][:] = self._law.idle_ns
        low_ns, high_ns, extrapolated_ns = np.zeros(self._dies), np.zeros(self._dies), 0.0
        if len(used):
            load = [np.maximum(each, 1.0) for each in (pairs[used], active[used], arrived[used])]
            at = self._law.times(load[0], load[1], load[2], used)
            for cause, parts in PARTS.items():
                causes[cause][used] = sums.sum(getattr(at, part) for part in parts)
                if cause in OF_ARRAYS and slow:
                    causes[cause][used] /= clock[used]
            if not self._gpu:
                causes[Cause.LAUNCH][used] += launch_ns(active[used], self._clock_hz)
            low_ns[used], high_ns[used] = at.ns * at.low, at.ns * at.high
            extrapolated_ns = float(at.ns[at.extrapolated].sum())
        kernel_ns = np.sum(list(causes.values()), axis=0)
        shared_ns = np.zeros(self._dies)
        for product in self._shared:
            shared_ns = shared_ns + self._count * product.ns(tokens * share)
        multiply_ns = tokens * share * self._shared_ns_per_token
        if self._speeds is not None:
            multiply_ns = multiply_ns / self._speeds
        multiply_ns = np.minimum(multiply_ns, shared_ns)
        if slow:
            shared_ns = shared_ns + multiply_ns * (1 / clock - 1)
            multiply_ns = multiply_ns / clock
        lost = 1 - np.divide(multiply_ns, shared_ns, out=np.ones(self._dies), where=shared_ns > 0)
        return RankTimes(
            kernel_ns=kernel_ns, causes=causes, low_ns=low_ns, high_ns=high_ns, shared_ns=shared_ns, shared_lost=lost,
            pairs=pairs, active=active, extrapolated_ns=extrapolated_ns, first_ns=np.zeros(self._dies),
        )  # fmt: skip


class _OnEveryDie:
    """A product of a dense layer on unequal dies; ``laws``: one a die."""

    def __init__(self, laws: Sequence[DenseProduct]):
        self._laws = laws

    def ns(self, rows: np.ndarray) -> np.ndarray:
        """float64[die]; ``rows``: float64[die]."""
        return np.array([float(law.ns(rows[die : die + 1])[0]) for die, law in enumerate(self._laws)])
