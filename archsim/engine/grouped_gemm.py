"""``gemm: grouped``: the routed experts of a die are one kernel, launched once a step.

Its time T is the fitted law of a die with these pairs, active experts and tokens (``archsim.laws.die``): behind
a dispatch those that it receives, under ``activations: replicated`` all of the group, which every die has. The engine
streams the weights itself, slice by slice, and the kernel works on what is there:

====== ==============================================================================================================
launch from the arrival of the die's tokens (or the start of the step) on; no routed slice is computed before its end.
       A GPU's launch is the law's; a Local CP takes cycles, and the hops of its command are those of the decision
slices share what is left of T, each in proportion to its part: FLOP, cost of pairs, cost of the expert, and what the
       bytes add to the FLOP (p-norm; the same for every active expert)
waits  for bytes are in T: a product counts as begun when it has been asked for, its tokens are there, the launch has
       ended and the array is idle
drain  the part of a slice's time that its last segment takes: no slice ends sooner after its last byte
====== ==============================================================================================================

Alone on a die with local weights, a step takes T. Nothing is faster than FLOP over peak; where the engine streams
more slowly than the law reads, the engine's time counts. Shared experts are products of their own, beside the kernel,
as in the measured fused layers, which have routed experts only: they do not wait for tokens (``CalibratedGemm``).
"""

from __future__ import annotations

from copy import copy
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from archsim.base.units import NS_PER_S
from archsim.engine.calibrated_gemm import CalibratedGemm, last_part
from archsim.engine.gemm_times import GemmTimes, ManyTimes, factors_of
from archsim.engine.state import Machine
from archsim.laws import gemm, moe
from archsim.laws.calibration_files import calibration_digest, calibration_named
from archsim.laws.die import AS_MEASURED, DieFactors, GroupedLaw, GroupedTimes, Kernels
from microarch.blocks import hbm, local_cp

KERNELS = 3  # of experts, one after the other: both products and the activation, as of a dense FFN


class _Rank(NamedTuple):
    """What the law of a die depends on."""

    sizes: moe.MoeSizes  # of the model
    local: float | None  # experts of a die that sees all tokens; None behind a dispatch
    dtype: str  # of the products
    rates: gemm.Rates | None  # of the die; None: the measured GPU's
    library: str | None  # whose kernels; None: any
    launched: bool  # whether a GPU launches them
    kernel_factor: float = 1.0  # of all their times
    kernels: Kernels = AS_MEASURED  # factors of their parts


class GroupedGemm:
    """The strategy; ``calibrated_ns``, ``extrapolated_ns``: as of ``CalibratedGemm``; ``law``: whose times these are.

    ``least_ns_per_token``: of one slice, FLOP over peak. Raises LawMissing (a SpecError) where the calibration has no
    fused layers of the die's dtype.
    """

    def __init__(self, system, model, assumptions, machine: Machine):
        self.calibrated_ns = self.extrapolated_ns = 0.0
        compute = system.compute
        self._machine, self._gpu, self._clock_hz = machine, system.launch == "gpu", system.decision.local_clock_hz
        self._own_ns = KERNELS * (compute.kernel_latency_ns or 0.0)
        self._nominal = law_of_ranks(system, model, machine.dies, assumptions.receives)
        self._peaks = system.kernel_rates
        self.law = self._nominal.named
        self._flop_per_token = 2.0 * model.hidden * model.expert_ffn
        self.least_ns_per_token = self._flop_per_token / compute.peak_flop_per_s * NS_PER_S
        self._shared = _shared_products(system, model, machine) if model.shared_experts else None
        self.run_at(factors_of(machine))

    def run_at(self, factors: DieFactors) -> None:
        """See ``archsim.engine.gemm.ShareOfPeak.run_at``."""
        self._last: tuple[Any, GemmTimes, float, float] | None = None  # asked of the shared experts, and answered
        self._speeds = None if factors.equal else factors.array
        self._law = self._nominal if factors.equal else self._nominal.on(factors.rates(self._peaks))
        if self._shared:
            self._shared.run_at(factors)

    def of(self, tokens: np.ndarray, routed, read_bytes, die, arrived: np.ndarray | None = None) -> GemmTimes:
        """See ``archsim.engine.gemm.ShareOfPeak.of``."""
        found = _Rows(len(tokens))
        rows, others = np.flatnonzero(routed), np.flatnonzero(routed == 0)
        launch = np.full(self._machine.dies, self._law.idle_ns)
        if len(rows):
            self._fill_routed(found, launch, rows, tokens[rows].astype(float), read_bytes[rows], die[rows], arrived)
        if len(others) and self._shared:
            found.put(others, self._of_shared(self._shared, tokens[others], read_bytes[others], die[others]))
        return GemmTimes(*found.columns)._replace(launch_ns=launch)

    def side_by_side(self, system, tokens, routed, read_bytes, die, arrived) -> ManyTimes:
        """See ``archsim.engine.gemm.ShareOfPeak.side_by_side``."""
        rates = system.kernel_rates
        machines, dies = len(rates.peak_flop_per_s), self._machine.dies
        columns = [np.zeros((machines, len(tokens))) for _ in range(4)]
        rows, others = np.flatnonzero(routed), np.flatnonzero(routed == 0)
        launch = np.full((machines, dies), self._law.idle_ns)
        if len(rows):
            own, on = tokens[rows].astype(float), die[rows]
            active = np.bincount(on, minlength=dies)
            used = np.flatnonzero(active)
            pairs = np.bincount(on, own, dies)[used]
            came = None if arrived is None else arrived[used]
            times = self._law.side_by_side(rates, pairs, active[used].astype(float), came)
            if self._gpu:
                launch[:, used] = times.launch_ns.reshape(machines, -1)
            else:
                launch[:, used] = self._launch_ns(active[used])
            at = np.zeros(dies, np.int64)
            at[used] = np.arange(len(used))
            of = (at[on] + len(used) * np.arange(machines)[:, None]).ravel()
            shares = np.tile(own / pairs[at[on]], machines), np.tile(1 / active[on], machines)
            law = copy(self)  # whose least time is that of each machine
            law.least_ns_per_token = np.repeat(self._flop_per_token / rates.peak_flop_per_s * NS_PER_S, len(rows))
            found = law._shares(times, of, *shares, None)
            for column, values in zip(columns, (found.compute_ns, found.drain_ns, found.multiply_ns), strict=False):
                column[:, rows] = np.reshape(values, (machines, -1))
        if len(others) and self._shared:
            nobody = np.zeros(len(others), np.int64)
            shared = self._shared.side_by_side(system, tokens[others], nobody, read_bytes[others], nobody, None)
            for column, values in zip(columns, shared, strict=False):
                column[:, others] = values
        compute_ns, drain_ns, multiply_ns, alone_ns = columns
        return ManyTimes(compute_ns, drain_ns, multiply_ns, alone_ns, launch)

    def _launch_ns(self, active: np.ndarray) -> np.ndarray:
        """Of dies that are no GPUs, by their active experts."""
        return local_cp.launch_ns(active, self._clock_hz) + self._own_ns

    def _of_shared(self, shared: CalibratedGemm, tokens, read_bytes, die) -> GemmTimes:
        asked = tokens.tobytes(), read_bytes.tobytes(), die.tobytes()
        if self._last is None or self._last[0] != asked:
            shared.calibrated_ns = shared.extrapolated_ns = 0.0
            nobody = np.zeros(len(tokens), np.int64)
            times = shared.of(tokens, nobody, read_bytes, die)
            self._last = asked, times, shared.calibrated_ns, shared.extrapolated_ns
        _, times, calibrated_ns, extrapolated_ns = self._last
        self.calibrated_ns += calibrated_ns
        self.extrapolated_ns += extrapolated_ns
        return times

    def _fill_routed(self, found: _Rows, launch, rows, tokens, read_bytes, die, arrived) -> None:
        """Fill the rows of routed experts, and ``launch`` of the dies that run any."""
        dies = self._machine.dies
        active = np.bincount(die, minlength=dies)
        used = np.flatnonzero(active)
        pairs = np.bincount(die, tokens, dies)[used]
        received = None if arrived is None else arrived[used]
        times = self._law.times(pairs, active[used].astype(float), received, used)
        self.calibrated_ns += times.ns.sum()
        self.extrapolated_ns += times.ns[times.extrapolated].sum()
        launch[used] = times.launch_ns if self._gpu else self._launch_ns(active[used])
        at = np.zeros(dies, np.int64)
        at[used] = np.arange(len(used))
        of = at[die]  # of each entry: its row in ``times``
        found.put(rows, self._shares(times, of, tokens / pairs[of], 1 / active[die], die))

    def _shares(self, times: GroupedTimes, of, by_tokens, by_entries, die) -> GemmTimes:
        """The part of every entry in the dies' ``times``; ``by_tokens``, ``by_entries``: its shares, float64[entry]."""
        of_tokens = (times.multiply_ns + times.inefficiency_ns + times.permute_ns)[of]
        of_entries = (times.expert_ns + times.excess_ns)[of]
        part_ns = of_tokens * by_tokens + of_entries * by_entries
        least_ns = self._least(by_tokens, times, of)
        if self._speeds is not None:
            least_ns = least_ns / self._speeds[die]
        compute_ns = np.maximum(part_ns, least_ns) / hbm.SLICES
        whole_ns = (part_ns + times.launch_ns[of] * by_entries) / hbm.SLICES
        multiply_ns = np.minimum(np.maximum(times.multiply_ns[of] * by_tokens, least_ns) / hbm.SLICES, compute_ns)
        bytes_ns = np.minimum(times.excess_ns[of] * by_entries / hbm.SLICES, compute_ns - multiply_ns)
        permute_ns = np.minimum(times.permute_ns[of] * by_tokens / hbm.SLICES, compute_ns - multiply_ns - bytes_ns)
        low_ns, high_ns = whole_ns * times.low[of], whole_ns * times.high[of]
        drain_ns = compute_ns * last_part(self._machine)
        return GemmTimes(compute_ns, drain_ns, low_ns, high_ns, multiply_ns, bytes_ns, permute_ns)

    def _least(self, by_tokens, times: GroupedTimes, of) -> np.ndarray:
        """FLOP of every entry over peak, float64[entry] ns for its slices."""
        return hbm.SLICES * self.least_ns_per_token * times.pairs[of] * by_tokens


class _Rows:
    """Columns of GemmTimes without the launch, float64[entry] each, filled a set of rows at a time."""

    def __init__(self, entries: int):
        self.columns = [np.zeros(entries) for _ in GemmTimes._fields[:-1]]

    def put(self, rows: np.ndarray, times: GemmTimes) -> None:
        for column, values in zip(self.columns, times, strict=False):
            column[rows] = values


def law_of_ranks(system, model, dies: int, dispatched: bool) -> GroupedLaw:
    """The law of a die: behind a dispatch, or its part of experts where all see all tokens. Raises LawMissing."""
    compute = system.compute
    rank = _Rank(
        moe.MoeSizes(model.hidden, model.expert_ffn, model.experts, model.top_k),
        None if dispatched else model.experts / dies, compute.dtype, system.kernel_rates, compute.library,
        system.launch == "gpu", compute.kernel_factor,
        Kernels(*(getattr(compute.kernels, part) for part in Kernels._fields)),
    )  # fmt: skip
    return _law(compute.calibration, calibration_digest(compute.calibration), rank)


def _shared_products(system, model, machine: Machine) -> CalibratedGemm:
    """The products of shared experts, by the named library if its products were measured."""
    compute = system.compute
    there = {table.library for table in calibration_named(compute.calibration).gemm}
    library = compute.library if compute.library in there else None
    return CalibratedGemm(system, model, machine, library, launched=system.launch == "gpu")


@lru_cache(maxsize=64)
def _law(name: str | None, digest: str, rank: _Rank) -> GroupedLaw:
    """The law, cached, as interpolation takes a while. ``digest``: of the calibration's file."""
    shared = _Rank(*rank[:3], None, *rank[4:6])
    if rank == shared:
        return GroupedLaw(calibration_named(name), *rank[:-1])
    return _law(name, digest, shared).on(rank.rates, rank.kernel_factor, rank.kernels)
