"""One step as a min–max problem: under any allocation, no resource finishes before it has served its load.

The variables are how many tokens of each expert each die runs. The loads are linear in them, and hold for every
allocation:

========================  ============================================================================================
load                      is at least
========================  ============================================================================================
compute array             its tokens, at the best rate that any number of the expert's tokens reaches
HBM, weights              a slice that a die does not have at the start of the step is read at the home once, however
                          many dies request it (later ones may hit in the LLC); a die's own copy is read once;
                          what is in an LLC at the start of the step costs nothing
links, weights            a slice crosses the route from its home to every other die that runs the expert without
                          a copy
HBM, hidden vectors       dispatch and combine each read or write a vector at the origin of its token; if the token
                          is executed on another die, there too
links, hidden vectors     there and back, for tokens that are executed on another die
========================  ============================================================================================

Resources are numbered HBM ``0..D``, compute array ``D..2D``, then the links of the engine's machine. Their loads are
in ns. Under ``contention: shared`` a load is bytes over bandwidth; under ``reserved`` weights also hold links and HBM
for their latency, and a request holds the links of its route. Effects that are not certain (evictions, the rounding
of transfers, hidden vectors carried along with weights, the LLC port, new cached copies) are left out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from archsim.base import errors
from archsim.engine import state, work
from archsim.engine.machine import build_machine
from archsim.engine.moves import vector_bytes
from archsim.policies.allocation import Plan
from archsim.policies.placement import Placement
from archsim.specs.scenario import Scenario
from archsim.traffic.step_demand import StepDemand
from microarch.blocks.hbm import SLICES

MOST_DIES = 128  # die × die × link tables are dense: 128 dies take about 60 MB


class StepConstants(NamedTuple):
    """Constants of all steps; times in ns."""

    dies: int  # number of dies
    read_ns: float  # an HBM reads one slice
    fetch_ns: np.ndarray  # float64[home, die, link]: a slice from home to die
    move_ns: np.ndarray  # float64[src, dst, link]: the hidden vector of a token there and back
    vector_ns: float  # an HBM reads or writes one hidden vector; 0 if activations are ignored

    @property
    def resources(self) -> int:
        return 2 * self.dies + self.fetch_ns.shape[2]


class AllocationProblem(NamedTuple):
    """One step. Rows are the experts that have tokens."""

    fabric: StepConstants  # what a slice and a vector take
    expert: np.ndarray  # int64[row]
    tokens: np.ndarray  # int64[row]
    home: np.ndarray  # int64[row]
    token_ns: np.ndarray  # float64[row]: a compute array runs one token
    asks: np.ndarray  # bool[row, die, slice]: if the die runs the expert, the home's HBM reads the slice
    reads: np.ndarray  # int64[row, die]: slices that the die reads from its own copy
    fetches: np.ndarray  # int64[row, die]: slices that cross the fabric to it
    origins: np.ndarray | None  # int64[row, die]: tokens by origin; None if activations are ignored
    base_ns: np.ndarray  # float64[resource]: load under every allocation
    start_ns: np.ndarray  # float64[resource]: time in which the resource is certainly idle
    sure_ns: float  # no step is shorter


class ProblemBuilder:
    """Builds the problems of the steps of a scenario."""

    def __init__(self, scenario: Scenario, copies: bool, most_tokens: int):
        """``copies``: dies look for cached ones; ``most_tokens``: of an expert a step. ArchsimError above 128 dies."""
        system, model, assumptions = scenario.system, scenario.model, scenario.assumptions
        if system.whole != (system.dies, system.dies):
            raise errors.ArchsimError(f"{system.name}: bounds are of equal dies. Omit dies_as_built.speed and harvest")
        if limits := [key for key in ("power", "cooling") if getattr(system, key) is not None]:
            raise errors.ArchsimError(
                f"{system.name}: bounds are at the full clock, and {' and '.join(limits)} may lower it. Omit "
                f"{' and '.join(limits)}"
            )
        if system.dies > MOST_DIES:
            raise errors.ArchsimError(f"{system.name}: {system.dies} dies; bounds support at most {MOST_DIES}")
        self._machine, self._network = build_machine(scenario)
        self._work = work.WorkBuilder(scenario, self._machine, self._network, copies)
        self._copies, self._assumptions = copies, assumptions
        self._ids, self._experts = model.experts + model.shared_experts, model.experts
        self.fabric = _fabric(self._machine, _least_vector_bytes(system, model, assumptions))
        self._most_tokens = most_tokens
        self._token_ns: np.ndarray | None = None

    def build(
        self, demand: StepDemand, layer: int, row: int, placement: Placement, memory: state.Memory
    ) -> AllocationProblem:
        """The problem of a step. ``layer``: of the run; ``row``: of the placement; ``memory``: at the start of the
        step. Raises ArchsimError for experts with several holders.
        """
        if placement.has_replicas:
            raise errors.ArchsimError("the placement replicates experts; bounds support one holder per expert")
        tokens, origins, top_k = demand.tokens, demand.origins, demand.top_k
        expert, home = np.flatnonzero(tokens), placement.home[row].astype(np.int64)
        if self._token_ns is None:
            self._token_ns = self._best_rates(placement, memory)
        cached, copied = self._held(layer, memory)
        asks, reads, fetches = _sources(home[expert], cached[expert], copied[expert], self._copies)
        dispatched = self._assumptions.activations == "dispatched"
        base_ns = self._base(layer, placement, origins, top_k, memory, cached)
        token_ns = SLICES * self._token_ns[tokens[expert]]
        start_ns, sure_ns = self._latencies(bool(cached.any()), float(token_ns.min()))
        return AllocationProblem(
            fabric=self.fabric, expert=expert, tokens=tokens[expert].astype(np.int64), home=home[expert],
            token_ns=token_ns, asks=asks, reads=reads, fetches=fetches,
            origins=None if origins is None or not dispatched else origins.T[expert].astype(np.int64), base_ns=base_ns,
            start_ns=start_ns, sure_ns=sure_ns,
        )  # fmt: skip

    def _best_rates(self, placement: Placement, memory: state.Memory) -> np.ndarray:
        """ns per token of one slice's GEMM, from the engine's work builder: float64[n + 1], best of 1 to n tokens."""
        least_ns = self._work.gemm.least_ns_per_token
        if least_ns is not None:  # one kernel for all experts of a die: no expert has a time of its own
            return np.concatenate([[0.0], np.full(self._most_tokens, least_ns)])
        count = np.arange(1, self._most_tokens + 1, dtype=np.int32)
        one = np.zeros(len(count), np.int32)
        nobody = np.zeros((self.fabric.dies, self._experts), np.int32)
        entries = self._work.build(0, 0, Plan(one, one, count), placement, nobody, 1, None, memory).entries
        return np.concatenate([[0.0], np.minimum.accumulate(entries["compute_ns"] / count)])

    def _held(self, layer: int, memory: state.Memory) -> tuple[np.ndarray, np.ndarray]:
        """The layer's slices that LLCs and HBMs hold: (slices in LLCs, copies), bool[expert, die, slice] each."""
        first, count = layer * self._ids * SLICES, self._ids * SLICES
        cached = np.zeros((self.fabric.dies, count), bool)
        tags = memory.llc_tags.reshape(self.fabric.dies, -1) - first
        die, way = np.nonzero((tags >= 0) & (tags < count))
        cached[die, tags[die, way]] = True
        copied = memory.copies.present[:, first : first + count] > 0
        shape = self.fabric.dies, self._ids, SLICES
        return cached.reshape(shape).transpose(1, 0, 2), copied.reshape(shape).transpose(1, 0, 2)

    def _base(self, layer, placement, origins, top_k, memory, cached) -> np.ndarray:
        """Load of shared experts and of hidden vectors at their origins, float64[resource]."""
        dies, base_ns = self.fabric.dies, np.zeros(self.fabric.resources)
        if not self._work.needs_origins:
            return base_ns
        nothing = Plan(*(np.zeros(0, np.int32),) * 3)
        # of shared experts
        entries = self._work.build(layer, 0, nothing, placement, origins, top_k, None, memory).entries
        die, slices = entries["die"], SLICES - cached[entries["expert"], entries["die"]].sum(axis=1)
        np.add.at(base_ns, die, slices * entries["read_bytes"] / self._machine.hbm_bytes_per_ns)
        np.add.at(base_ns, dies + die, SLICES * entries["compute_ns"])
        base_ns[:dies] += 2 * self.fabric.vector_ns * origins.sum(axis=1)
        return base_ns

    def _latencies(self, cached: bool, token_ns: float) -> tuple[np.ndarray, float]:
        """Time in which each resource is certainly idle, float64[resource], and time that any step takes.

        No compute starts before a look-up has finished. If no slice of the layer is ``cached`` in an LLC, the first one
        must come from an HBM. An HBM idles while its last data are in flight, and during the first look-up miss, unless
        hidden vectors come sooner; a link idles while its first data are requested or read, and for one hop after its
        last. An unused resource has this time, too, as no step is shorter than ``sure_ns``.
        """
        m, dies = self._machine, self.fabric.dies
        lookup_ns = min(m.llc_hit_ns, m.llc_miss_ns)
        sure_ns = lookup_ns + token_ns
        if not cached:
            lookup_ns = m.llc_miss_ns + m.hbm_latency_ns
            sure_ns = lookup_ns + max(token_ns, m.slice_bytes / m.hbm_bytes_per_ns)
        hbm_ns = link_ns = 0.0
        if not m.whole_ns:  # under ``reserved`` latencies already count as load of HBM and links
            hop_ns = float((m.route_ns + np.where(np.eye(dies), np.inf, 0.0)).min())  # infinite on one die
            hbm_ns = m.llc_miss_ns + min(m.hbm_latency_ns, hop_ns)
            link_ns = m.llc_miss_ns + hop_ns + min(m.llc_hit_ns, m.hbm_latency_ns)
            if self._assumptions.activations == "dispatched":
                hbm_ns, link_ns = hbm_ns - m.llc_miss_ns, min(link_ns, m.hbm_latency_ns)
            link_ns += hop_ns
        return np.minimum(np.repeat([hbm_ns, lookup_ns, link_ns], [dies, dies, m.link_resources]), sure_ns), sure_ns


def loads(problem: AllocationProblem, share: np.ndarray, opened: np.ndarray, flow: np.ndarray | None) -> np.ndarray:
    """Load of a plan on every resource, float64[resource] in ns.

    ``share``: float64[row, die], the share of an expert's tokens that the die runs; ``opened``: whether it needs the
    weights (``share > 0``, or ``share`` itself in the relaxation); ``flow``: float64[die, die], tokens from the first
    die (origin) that run on the second, or None.
    """
    fabric, dies = problem.fabric, problem.fabric.dies
    opened, load = np.asarray(opened, np.float64), problem.base_ns.copy()
    asked = np.minimum(np.einsum("ed,eds->es", opened, problem.asks), 1.0).sum(axis=1)
    load[:dies] += fabric.read_ns * ((opened * problem.reads).sum(axis=0) + np.bincount(problem.home, asked, dies))
    load[dies : 2 * dies] += (share * (problem.tokens * problem.token_ns)[:, None]).sum(axis=0)
    fetched = np.zeros((dies, dies))
    np.add.at(fetched, problem.home, opened * problem.fetches)
    load[2 * dies :] += np.einsum("hd,hdl->l", fetched, fabric.fetch_ns)
    if flow is not None and problem.origins is not None:
        load[:dies] += 2 * fabric.vector_ns * (flow.sum(axis=0) - np.diag(flow))
        load[2 * dies :] += np.einsum("jd,jdl->l", flow, fabric.move_ns)
    return load


def _least_vector_bytes(system, model, assumptions) -> float:
    """Bytes that a selection certainly moves one way, if any: under ``dispatch: per_rank`` its share of a vector."""
    if assumptions.activations != "dispatched":
        return 0.0
    least = min(vector_bytes(model.hidden, system.compute.dtype, assumptions.combine))
    return least / model.top_k if assumptions.dispatch == "per_rank" else float(least)


def _fabric(machine: state.Machine, vector_bytes: float) -> StepConstants:
    dies, links = machine.dies, machine.link_resources
    of_pair = np.zeros((dies * dies, links))
    for pair in range(dies * dies):
        of_pair[pair, machine.route(*divmod(pair, dies))] = 1.0
    passes = of_pair.reshape(dies, dies, links)
    back, read_ns = passes.transpose(1, 0, 2), machine.slice_bytes / machine.hbm_bytes_per_ns
    # reserved: every link of a route is held for the latency and for the time of the narrowest link
    if machine.whole_ns:
        rate, latency_ns = machine.route_bytes_per_ns[:, :, None], machine.route_ns[:, :, None]
        read_ns = machine.hbm_latency_ns + np.ceil(read_ns)
        fetch_ns = passes * (latency_ns + np.ceil(machine.slice_bytes / rate))
        fetch_ns += (passes * (latency_ns + np.ceil(machine.request_bytes / rate))).transpose(1, 0, 2)
        move_ns = passes * (vector_bytes / rate)
        move_ns = move_ns + move_ns.transpose(1, 0, 2)
    else:
        fetch_ns = passes * (machine.slice_bytes / machine.link_rates)
        move_ns = (passes + back) * (vector_bytes / machine.link_rates)
    return StepConstants(dies, float(read_ns), fetch_ns, move_ns, vector_bytes / machine.hbm_bytes_per_ns)


def _sources(home, cached, copied, copies: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(asks, reads, fetches) of `AllocationProblem`. ``cached``, ``copied``: bool[row, die, slice]."""
    row = np.arange(len(home))
    at_home = np.zeros(cached.shape, bool)
    at_home[row, home] = True
    in_home_llc = cached[row, home][:, None]
    here = cached & at_home | (cached | copied if copies else False)  # found on the die itself
    fetches = ~here & ~at_home
    asks = (fetches | at_home) & ~in_home_llc
    reads = here & copied & ~cached & ~at_home
    return asks, reads.sum(axis=2), fetches.sum(axis=2)
