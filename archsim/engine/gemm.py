"""How long the products of weight slices occupy the array of a die: the strategies of the assumption ``gemm``."""

from __future__ import annotations

from copy import copy
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from archsim.base.compiled import kernel
from archsim.base.units import NS_PER_S
from archsim.engine.machine import effective_utilisation
from archsim.engine.state import SLICES, Machine
from archsim.laws.die import AS_MEASURED, DieFactors, GroupedLaw, GroupedTimes, Kernels, tables_of
from archsim.laws.gemm import ExpertGemm, Rates, choose_table
from archsim.laws.laws import Laws, MoeSizes
from archsim.specs.calibration_files import calibration_digest, calibration_named
from microarch.blocks.local_cp import launch_ns

# ---- times
# What every strategy of the assumption ``gemm`` gives: how long entries hold the arrays of their dies.


class GemmTimes(NamedTuple):
    """GEMM times of a step's entries, float64[entry] each, ns per slice; see ``archsim.engine.state.ENTRY``.

    ``compute_ns`` does not depend on how fast the engine reads; its parts
    are ``multiply_ns``, ``bytes_ns``, ``permute_ns``, ``started_ns`` (launch of a kernel of its own) and what is lost.
    ``alone_ns``: of a slice that nothing was read ahead of; 0 where that is what the engine simulates. ``low_ns`` and
    ``high_ns``: how much less and more a product would take at its 5 % and 95 % residual. ``launch_ns``: of every die,
    float64[die]; 0 where a launch is part of every slice, or free.
    """

    compute_ns: np.ndarray
    drain_ns: np.ndarray | float
    low_ns: np.ndarray | float
    high_ns: np.ndarray | float
    multiply_ns: np.ndarray
    bytes_ns: np.ndarray | float = 0.0
    permute_ns: np.ndarray | float = 0.0
    started_ns: np.ndarray | float = 0.0
    alone_ns: np.ndarray | float = 0.0
    launch_ns: np.ndarray | float = 0.0


def factors_of(machine: Machine) -> DieFactors:
    """The rates of the dies of a machine, relative to the nominal ones."""
    return DieFactors(machine.array_speeds, machine.hbm_rates / machine.hbm_bytes_per_ns)


def slowed(times: GemmTimes, clock: float | np.ndarray) -> GemmTimes:
    """The times on an array at ``clock``, a share of its full one, float64[entry] where arrays differ: all but waiting
    for bytes and launches, which have clocks of their own, takes longer.
    """
    by = 1 / clock
    more_ns = (times.compute_ns - times.bytes_ns - times.started_ns) * (by - 1)
    grown = np.divide(more_ns, times.compute_ns, out=np.zeros_like(more_ns), where=times.compute_ns > 0)
    return times._replace(
        compute_ns=times.compute_ns + more_ns,
        drain_ns=times.drain_ns * (1 + grown),
        alone_ns=np.where(np.asarray(times.alone_ns) > 0, times.alone_ns + more_ns, 0.0),
        **{name: getattr(times, name) * by for name in ("low_ns", "high_ns", "multiply_ns", "permute_ns")},
    )


class ManyTimes(NamedTuple):
    """What a walk reads of `GemmTimes`, of many machines side by side: float64[machine, entry] each; ``launch_ns``:
    float64[machine, die].
    """

    compute_ns: np.ndarray
    drain_ns: np.ndarray | float
    multiply_ns: np.ndarray
    alone_ns: np.ndarray | float = 0.0
    launch_ns: np.ndarray | float = 0.0


# ---- calibrated
# ``gemm: calibrated``: every slice is a GEMM of its own, as long as it was measured.
#
# A measured GEMM reads its weights from HBM, but the engine streams weights itself. To count nothing twice, a product
# is described by times of which none depends on how fast the engine reads (docs/engine.md):
#
# ======= =====================================================================================================
# compute the fitted law without the bytes of its weights: how long a slice that is there holds the array. Time in
#         which an idle array waits for bytes after the request counts towards the product already
# alone   the fitted time T: the product ends no sooner after it was asked for
# drain   the part of compute that the last segment takes: no product ends sooner after its last byte
# ======= =====================================================================================================
#
# A slice fetched alone takes T; one behind others, what of T does not read weights. Nothing is slower with less latency
# or more bandwidth.


class _Die(NamedTuple):
    """Properties of a die that the fitted times depend on."""

    dtype: str
    library: str | None
    rates: Rates


class CalibratedGemm:
    """``gemm: calibrated``: times fitted to measurements, scaled to the peak of the die and to its nominal bandwidth of
    HBM, without ``hbm.efficiency``.

    ``calibrated_ns``: total GEMM time; ``extrapolated_ns``: how much of it is at sizes that were not measured; ``law``:
    whose products these are.
    ``launched`` False: without the launch of a kernel, as what starts the products is not a GPU's. Raises LawMissing (a
    SpecError) where the calibration has no table for the die's dtype.
    """

    least_ns_per_token = None

    def __init__(self, system, model, machine: Machine, library: str | None = None, launched: bool = True):
        self.calibrated_ns = self.extrapolated_ns = 0.0
        self._machine, self._single = machine, system.compute.kernels.single
        widths = (model.expert_ffn, model.shared_ffn) if model.shared_experts else (model.expert_ffn,)
        compute = system.compute
        die = _Die(compute.dtype, library, system.nominal_rates)
        digest = calibration_digest(compute.calibration)
        self._nominal = [_expert(compute.calibration, digest, model.hidden, ffn, die) for ffn in widths]
        gpu, tables = calibration_named(compute.calibration).gpu, [each.table for each in self._nominal]
        self.law = ", ".join(dict.fromkeys(f"{gpu} {table.library} products in {table.dtype}" for table in tables))
        self._launched = launched
        peak = compute.peak_flop_per_s / NS_PER_S
        self._flop_per_token = [2.0 * model.hidden * ffn for ffn in widths]
        self._least_ns_per_token = np.array([flop / peak for flop in self._flop_per_token])
        self.run_at(factors_of(machine))

    def run_at(self, factors: DieFactors) -> None:
        """See ``ShareOfPeak.run_at``."""
        self._speeds = None if factors.equal else factors.array
        self._experts = self._nominal if factors.equal else [each.on(*factors) for each in self._nominal]

    def of(self, tokens: np.ndarray, routed, read_bytes, die, arrived: np.ndarray | None = None) -> GemmTimes:
        """See ``ShareOfPeak.of``."""
        alone_ns, compute_ns, started_ns, low, high = (np.empty(len(tokens)) for _ in range(5))
        kind = 1 - routed
        for which, expert in enumerate(self._experts):
            rows = np.flatnonzero(kind == which)
            left_out_ns = 0.0 if self._launched else expert.table.law.launch_ns
            on = None if self._speeds is None else die[rows]
            alone_ns[rows] = np.maximum(expert.times(tokens[rows], on) - left_out_ns, 0.0) * self._single
            compute_ns[rows] = np.maximum(expert.times_if_there(tokens[rows], on) - left_out_ns, 0.0) * self._single
            low[rows], high[rows] = expert.low, expert.high
            started_ns[rows] = expert.table.law.launch_ns - left_out_ns
            self.calibrated_ns += alone_ns[rows].sum()
            self.extrapolated_ns += alone_ns[rows][expert.extrapolates(tokens[rows])].sum()
        multiply_ns = tokens * self._least_ns_per_token[kind]
        if self._speeds is not None:
            multiply_ns = multiply_ns / self._speeds[die]
        compute_ns = np.maximum(compute_ns, multiply_ns)
        started_ns = np.minimum(started_ns, compute_ns - multiply_ns)
        drain_ns, spread = compute_ns * last_part(self._machine), (compute_ns * low, compute_ns * high)
        return GemmTimes(compute_ns, drain_ns, *spread, multiply_ns, started_ns=started_ns, alone_ns=alone_ns)

    def side_by_side(self, system, tokens, routed, read_bytes, die, arrived) -> ManyTimes:
        """See ``ShareOfPeak.side_by_side``."""
        rates = system.nominal_rates
        shape = len(rates.peak_flop_per_s), len(tokens)
        alone_ns, compute_ns, multiply_ns = (np.empty(shape) for _ in range(3))
        kind = 1 - routed
        for which, expert in enumerate(self._experts):
            rows = np.flatnonzero(kind == which)
            left_out_ns = 0.0 if self._launched else expert.table.law.launch_ns
            whole_ns, there_ns = expert.side_by_side(rates, tokens[rows])
            alone_ns[:, rows] = np.maximum(whole_ns - left_out_ns, 0.0) * self._single
            compute_ns[:, rows] = np.maximum(there_ns - left_out_ns, 0.0) * self._single
            least_ns = self._flop_per_token[which] / (rates.peak_flop_per_s / NS_PER_S)
            multiply_ns[:, rows] = tokens[rows] * least_ns[:, None]
        compute_ns = np.maximum(compute_ns, multiply_ns)
        return ManyTimes(compute_ns, compute_ns * last_part(self._machine), multiply_ns, alone_ns)


def last_part(machine: Machine) -> float:
    """Share of a slice that its last segment is; 0 where slices have none."""
    segment = machine.first_bytes / machine.slice_bytes
    return segment if segment < 1.0 else 0.0


@lru_cache(maxsize=64)
def _expert(name: str | None, digest: str, hidden: int, ffn: int, die: _Die) -> ExpertGemm:
    """The fitted GEMM, cached: kriging for a shape without measurements takes tenths of a second. ``digest``: of the
    calibration's file.
    """
    return Laws(calibration_named(name)).expert_gemm(hidden, ffn, dtype=die.dtype, rates=die.rates, library=die.library)


# ---- grouped
# ``gemm: grouped``: the routed experts of a die are one kernel, launched once a step.
#
# Its time T is the fitted law of a die with these pairs, active experts and tokens (``archsim.laws.die``): behind
# a dispatch those that it receives, under ``activations: replicated`` all of the group, which every die has. The engine
# streams the weights itself, slice by slice, and the kernel works on what is there:
#
# ====== ==============================================================================================================
# launch from the arrival of the die's tokens (or the start of the step) on; no routed slice is computed before its end.
#        A GPU's launch is the law's; a Local CP takes cycles, and the hops of its command are those of the decision
# slices share what is left of T, each in proportion to its part: FLOP, cost of pairs, cost of the expert, and what the
#        bytes add to the FLOP (p-norm; the same for every active expert)
# waits  for bytes are in T: a product counts as begun when it has been asked for, its tokens are there, the launch has
#        ended and the array is idle
# drain  the part of a slice's time that its last segment takes: no slice ends sooner after its last byte
# ====== ==============================================================================================================
#
# Alone on a die with local weights, a step takes T. Nothing is faster than FLOP over peak; where the engine streams
# more slowly than the law reads, the engine's time counts. Shared experts are products of their own, beside the kernel,
# as in the measured fused layers, which have routed experts only: they do not wait for tokens (``CalibratedGemm``).


class _Rank(NamedTuple):
    """What the law of a die depends on."""

    sizes: MoeSizes
    local: float | None
    dtype: str
    rates: Rates | None
    library: str | None
    launched: bool
    kernel_factor: float = 1.0
    kernels: Kernels = AS_MEASURED


class GroupedGemm:
    """The strategy; ``calibrated_ns``, ``extrapolated_ns``: as of ``CalibratedGemm``; ``law``: whose times these are.

    ``least_ns_per_token``: of one slice, FLOP over peak. Raises LawMissing (a SpecError) where the calibration has no
    fused layers of the die's dtype.
    """

    def __init__(self, system, model, assumptions, machine: Machine):
        self.calibrated_ns = self.extrapolated_ns = 0.0
        compute = system.compute
        self._machine, self._gpu, self._clock_hz = machine, system.launch == "gpu", system.decision.local_clock_hz
        self._nominal = law_of_ranks(system, model, machine.dies, assumptions.receives)
        self._peaks = system.nominal_rates
        self.law = self._nominal.named
        self._flop_per_token = 2.0 * model.hidden * model.expert_ffn
        self.least_ns_per_token = self._flop_per_token / compute.peak_flop_per_s * NS_PER_S
        self._shared = _shared(system, model, machine) if model.shared_experts else None
        self.run_at(factors_of(machine))

    def run_at(self, factors: DieFactors) -> None:
        """See ``ShareOfPeak.run_at``."""
        self._last: tuple[Any, GemmTimes, float, float] | None = None  # asked of the shared experts, and answered
        self._speeds = None if factors.equal else factors.array
        self._law = self._nominal if factors.equal else self._nominal.on(factors.rates(*self._peaks))
        if self._shared:
            self._shared.run_at(factors)

    def of(self, tokens: np.ndarray, routed, read_bytes, die, arrived: np.ndarray | None = None) -> GemmTimes:
        """See ``ShareOfPeak.of``."""
        found = _Rows(len(tokens))
        rows, others = np.flatnonzero(routed), np.flatnonzero(routed == 0)
        launch = np.full(self._machine.dies, self._law.idle_ns)
        if len(rows):
            self._routed(found, launch, rows, tokens[rows].astype(float), read_bytes[rows], die[rows], arrived)
        if len(others) and self._shared:
            found.put(others, self._of_shared(self._shared, tokens[others], read_bytes[others], die[others]))
        return GemmTimes(*found.columns)._replace(launch_ns=launch)

    def side_by_side(self, system, tokens, routed, read_bytes, die, arrived) -> ManyTimes:
        """See ``ShareOfPeak.side_by_side``."""
        rates = system.nominal_rates
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
                launch[:, used] = launch_ns(active[used], self._clock_hz)
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

    def _of_shared(self, shared: CalibratedGemm, tokens, read_bytes, die) -> GemmTimes:
        """Times of shared experts; from step to step they often have the same tokens."""
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

    def _routed(self, found: _Rows, launch, rows, tokens, read_bytes, die, arrived) -> None:
        """Fill the rows of routed experts, and ``launch`` of the dies that run any."""
        dies = self._machine.dies
        active = np.bincount(die, minlength=dies)
        used = np.flatnonzero(active)
        pairs = np.bincount(die, tokens, dies)[used]
        received = None if arrived is None else arrived[used]
        times = self._law.times(pairs, active[used].astype(float), received, used)
        self.calibrated_ns += times.ns.sum()
        self.extrapolated_ns += times.ns[times.extrapolated].sum()
        launch[used] = times.launch_ns if self._gpu else launch_ns(active[used], self._clock_hz)
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
        compute_ns = np.maximum(part_ns, least_ns) / SLICES
        whole_ns = (part_ns + times.launch_ns[of] * by_entries) / SLICES
        multiply_ns = np.minimum(np.maximum(times.multiply_ns[of] * by_tokens, least_ns) / SLICES, compute_ns)
        bytes_ns = np.minimum(times.excess_ns[of] * by_entries / SLICES, compute_ns - multiply_ns)
        permute_ns = np.minimum(times.permute_ns[of] * by_tokens / SLICES, compute_ns - multiply_ns - bytes_ns)
        low_ns, high_ns = whole_ns * times.low[of], whole_ns * times.high[of]
        drain_ns = compute_ns * last_part(self._machine)
        return GemmTimes(compute_ns, drain_ns, low_ns, high_ns, multiply_ns, bytes_ns, permute_ns)

    def _least(self, by_tokens, times: GroupedTimes, of) -> np.ndarray:
        """FLOP of every entry over peak, float64[entry] ns for its slices."""
        return SLICES * self.least_ns_per_token * times.pairs[of] * by_tokens


class _Rows:
    """Columns of GemmTimes without the launch, float64[entry] each, filled a set of rows at a time."""

    def __init__(self, entries: int):
        self.columns = [np.zeros(entries) for _ in GemmTimes._fields[:-1]]

    def put(self, rows: np.ndarray, times: GemmTimes) -> None:
        for column, values in zip(self.columns, times, strict=False):
            column[rows] = values


def law_of_ranks(system, model, dies: int, dispatched: bool) -> GroupedLaw:
    """The law of a die: behind a dispatch, or with its part of a model's experts where all dies see all tokens. Raises
    LawMissing (a SpecError).
    """
    compute = system.compute
    rank = _Rank(
        MoeSizes(model.hidden, model.expert_ffn, model.experts, model.top_k),
        None if dispatched else model.experts / dies,
        compute.dtype,
        system.nominal_rates,
        compute.library,
        system.launch == "gpu",
        compute.kernel_factor,
        Kernels(*(getattr(compute.kernels, part) for part in Kernels._fields)),
    )
    return _law(compute.calibration, calibration_digest(compute.calibration), rank)


def _shared(system, model, machine: Machine) -> CalibratedGemm:
    """The products of shared experts, by the named library if its products were measured."""
    compute = system.compute
    there = {table.library for table in calibration_named(compute.calibration).gemm}
    library = compute.library if compute.library in there else None
    return CalibratedGemm(system, model, machine, library, launched=system.launch == "gpu")


@lru_cache(maxsize=64)
def _law(name: str | None, digest: str, rank: _Rank) -> GroupedLaw:
    """The law, cached: interpolation between EP sizes takes a while, so that dies of all rates and kernels share it.
    ``digest``: of the calibration's file.
    """
    shared = _Rank(*rank[:3], None, *rank[4:6])
    if rank == shared:
        return GroupedLaw(calibration_named(name), *rank[:-1])
    return _law(name, digest, shared).on(rank.rates, rank.kernel_factor, rank.kernels)


# ---- share_of_peak
# ``gemm: tables`` and ``roofline``: a share of peak that depends on the number of tokens.


class ShareOfPeak:
    """``gemm: tables`` and ``roofline``: a share of peak that depends on the number of tokens."""

    calibrated_ns = extrapolated_ns = 0.0
    law = ""
    least_ns_per_token = None

    def __init__(self, system, model, assumptions, machine: Machine):
        self._model, self._assumptions = model, assumptions
        use = effective_utilisation(system, model, assumptions)
        self._bounds, self._share = np.array(use.bounds, np.int64), np.array(use.values)
        self._peak_flop_per_ns = system.compute.peak_flop_per_s / NS_PER_S
        self._flop_per_token = 2.0 * model.hidden * model.expert_ffn, 2.0 * model.hidden * model.shared_ffn
        self.run_at(factors_of(machine))

    def run_at(self, factors: DieFactors) -> None:
        """From now on, give times of dies with these rates, relative to the nominal ones."""
        self._speeds = None if factors.equal else factors.array

    def of(self, tokens: np.ndarray, routed, read_bytes, die, arrived: np.ndarray | None = None) -> GemmTimes:
        """tokens, routed (0 for shared experts), read_bytes (of a slice from the die's HBM), die: int64[entry].

        ``arrived``: float64[die], distinct tokens that a dispatch brings; None without one. Grouped kernels alone ask.
        """
        compute_ns = np.empty(len(tokens))
        _at_share(tokens, routed, self._bounds, self._share, self._peak_flop_per_ns, self._flop_per_token, compute_ns)
        if self._speeds is not None:
            compute_ns /= self._speeds[die]
        return GemmTimes(compute_ns, 0.0, 0.0, 0.0, compute_ns)

    def side_by_side(self, system, tokens, routed, read_bytes, die, arrived) -> ManyTimes:
        """What a walk reads of `of`, on many machines, one after the other. ``system``: with their rates,
        float64[machine] each.
        """
        use = effective_utilisation(system, self._model, self._assumptions)
        share = np.stack([np.broadcast_to(each, np.shape(system.compute.peak_flop_per_s)) for each in use.values], 1)
        flop = tokens * np.array(self._flop_per_token)[1 - routed]
        at = np.searchsorted(self._bounds, tokens)
        compute_ns = flop / (system.compute.peak_flop_per_s[:, None] / NS_PER_S * share[:, at])
        return ManyTimes(compute_ns, 0.0, compute_ns)


@kernel
def _at_share(tokens, routed, bounds, share, peak_flop_per_ns, flop_per_token, compute_ns):
    """``ShareOfPeak.of``. ``bounds``: int64[n], most tokens of the first n shares; ``share``: float64[n + 1].

    ``flop_per_token``: of routed and of shared experts.
    """
    for at in range(len(tokens)):
        use = 0
        while use < len(bounds) and bounds[use] < tokens[at]:
            use += 1
        compute_ns[at] = tokens[at] * flop_per_token[0 if routed[at] else 1] / (peak_flop_per_ns * share[use])


# ---- gemm


def gemm_model(system, model, assumptions, machine: Machine) -> ShareOfPeak | CalibratedGemm | GroupedGemm:
    """The GEMM strategy of a run."""
    if assumptions.gemm == "calibrated":
        return CalibratedGemm(system, model, machine, system.compute.library)
    if assumptions.gemm == "grouped":
        return GroupedGemm(system, model, assumptions, machine)
    return ShareOfPeak(system, model, assumptions, machine)


def refuse_unmeasured(system, assumptions) -> None:
    """Raises LawMissing (a SpecError), as `gemm_model` would, where the system's calibration lacks the tables that the
    assumption ``gemm`` reads.
    """
    compute = system.compute
    if assumptions.gemm == "calibrated":
        choose_table(calibration_named(compute.calibration), compute.dtype, compute.library)
    if assumptions.gemm == "grouped":
        tables_of(calibration_named(compute.calibration), compute.dtype, compute.library)
