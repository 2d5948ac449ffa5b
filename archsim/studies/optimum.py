"""Run every combination of an experiment step by step; bound its steps from below."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from archsim.base import errors, files, tables
from archsim.engine import loop, state, work
from archsim.engine.demand import RunDemand
from archsim.engine.machine import build_machine
from archsim.engine.moves import send_tokens, vector_bytes
from archsim.policies.allocation import Plan
from archsim.policies.placement import Placement
from archsim.report import maps, page
from archsim.report.die_map import DieMap
from archsim.report.units import TIME_UNITS, listed, percent, scaled
from archsim.runs.columns import DIE_COLUMNS
from archsim.runs.plan import select
from archsim.runs.results import Layers, Row, layers_that_ran, layers_told
from archsim.runs.run import Run
from archsim.runs.simulator import Simulator
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.scenario import Scenario
from archsim.workload.demand import StepDemand
from microarch.blocks.hbm import SLICES
from microarch.fabric.fabric import Fabric

if TYPE_CHECKING:
    import pandas


# ---- problem
# One step as a min–max problem: under any allocation, no resource finishes before it has served its load.
#
# The variables are how many tokens of each expert each die runs. The loads are linear in them, and hold for every
# allocation:
#
# ========================  ============================================================================================
# load                      is at least
# ========================  ============================================================================================
# compute array             its tokens, at the best rate that any number of the expert's tokens reaches
# HBM, weights              a slice that a die does not have at the start of the step is read at the home once, however
#                           many dies request it (later ones may hit in the LLC); a die's own copy is read once;
#                           what is in an LLC at the start of the step costs nothing
# links, weights            a slice crosses the route from its home to every other die that runs the expert without
#                           a copy
# HBM, hidden vectors       dispatch and combine each read or write a vector at the origin of its token; if the token
#                           is executed on another die, there too
# links, hidden vectors     there and back, for tokens that are executed on another die
# ========================  ============================================================================================
#
# Resources are numbered HBM ``0..D``, compute array ``D..2D``, then the links of the engine's machine. Their loads are
# in ns. Under ``contention: shared`` a load is bytes over bandwidth; under ``reserved`` weights also hold links and HBM
# for their latency, and a request holds the links of its route. Effects that are not certain (evictions, the rounding
# of transfers, hidden vectors carried along with weights, the LLC port, new cached copies) are left out.

MOST_DIES = 128  # die × die × link tables are dense: 128 dies take about 60 MB


class StepConstants(NamedTuple):
    """Constants of all steps; times in ns."""

    dies: int
    read_ns: float  # an HBM reads one slice
    fetch_ns: np.ndarray  # float64[home, die, link]: a slice from home to die
    move_ns: np.ndarray  # float64[src, dst, link]: the hidden vector of a token there and back
    vector_ns: float  # an HBM reads or writes one hidden vector; 0 if activations are ignored

    @property
    def resources(self) -> int:
        return 2 * self.dies + self.fetch_ns.shape[2]


class AllocationProblem(NamedTuple):
    """One step. Rows are the experts that have tokens."""

    fabric: StepConstants
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
        """``copies``: whether dies look for cached copies; ``most_tokens``: of one expert in one step.

        Raises ArchsimError for more than 128 dies.
        """
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
        """The problem of a step.

        ``layer``: of the run; ``row``: of the placement; ``memory``: at the start of the step.

        Raises ArchsimError for experts with several holders.
        """
        if placement.replicated:
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
            self.fabric,
            expert,
            tokens[expert].astype(np.int64),
            home[expert],
            token_ns,
            asks,
            reads,
            fetches,
            None if origins is None or not dispatched else origins.T[expert].astype(np.int64),
            base_ns,
            start_ns,
            sure_ns,
        )

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
    """Bytes that a selection certainly moves in one direction, if it moves any: under ``dispatch: per_rank`` its share
    of a vector that serves all of a token's experts.
    """
    if assumptions.activations != "dispatched":
        return 0.0
    least = min(vector_bytes(model.hidden, system.compute.dtype, assumptions.combine))
    return least / model.top_k if assumptions.dispatch == "per_rank" else float(least)


def _fabric(machine: state.Machine, vector_bytes: float) -> StepConstants:
    """Times of one slice and of one hidden vector on every resource."""
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


# ---- bound
# A lower bound of a step: multipliers from a linear programme (SciPy's HiGHS), and a proof that needs only them.
#
# Multipliers λ ≥ 0 of the resources that sum to 1 prove a bound: no step is shorter than Σ λ · load, and the minimum of
# that sum separates into one minimum per expert (Lagrangian duality; Geoffrion, Mathematical Programming Study 2,
# 1974).
# Good multipliers come from the linear relaxation, in which dies run shares of experts and fetch the same share of the
# weights. It ignores the origins of tokens and starts from a few choices (home, holders of copies, neighbours of the
# home); the proof searches all dies and adds the cheaper ones (column generation). If hidden vectors move, multipliers
# that grow with a power of the load of the relaxation's plan, vectors included, are tried as well. So the bound holds
# whatever the programme leaves out, and whatever the solver's tolerances are.

ROUNDS = 4
GAIN = 1e-3  # relative gap between programme and proof at which column generation stops
POWERS = (2.0, 8.0)  # of loads; a choice, any values are valid
# subtracted: rates under ``arbitration: round_robin`` converge to it, and flows finish at that share of their bytes
MARGIN = 1e-6
HALVINGS = 6  # of the bisection for dual prices


class StepBound(NamedTuple):
    """``ns``: no allocation is faster.

    ``share``: the relaxation's plan, whose loads (hidden vectors included) are ``loads_ns``.
    """

    ns: float
    multipliers: np.ndarray  # float64[resource], sum 1: those that prove the bound
    share: np.ndarray  # float64[row, die]: share of an expert's tokens
    loads_ns: np.ndarray  # float64[resource]
    iterations: int  # of the solver


class Prices(NamedTuple):
    """Prices of the parts of a plan at given multipliers."""

    opening: np.ndarray  # float64[row, die]: of fetching the expert to a die, or reading a copy there
    asking: np.ndarray  # float64[row, die]: of the reads at the home
    token: np.ndarray  # float64[row, die or 1, die]: of running a token from the first die on the second

    def alone(self, problem: AllocationProblem) -> np.ndarray:
        """Price of an expert that runs entirely on one die, float64[row, die]."""
        count = problem.tokens[:, None] if problem.origins is None else problem.origins
        return self.opening + self.asking + np.einsum("ej,ejd->ed", count, self.token)


def lower_bound(problem: AllocationProblem) -> StepBound:
    """The bound of a step, as this section proves it."""
    multipliers, share, iterations = _relaxation(problem._replace(origins=None))
    flow = None if problem.origins is None else problem.origins.T @ share
    loads_ns = loads(problem, share, share, flow)
    best_ns = proved_by(problem, multipliers)
    if problem.origins is not None:
        for other in _softer(problem, loads_ns):
            ns = proved_by(problem, other, best_ns)
            if ns > best_ns:
                best_ns, multipliers = ns, other
    return StepBound(max(best_ns, problem.sure_ns) * (1 - MARGIN), multipliers, share, loads_ns, iterations)


def proved_by(problem: AllocationProblem, multipliers: np.ndarray, known_ns: float = -np.inf) -> float:
    """The bound that multipliers (float64[resource], not negative, sum 1) prove, ns.

    -inf if it cannot exceed ``known_ns``.
    """
    prices = prices_at(problem, multipliers)
    every_ns, alone = multipliers @ (problem.base_ns + problem.start_ns), prices.alone(problem)
    if every_ns + alone.min(axis=1).sum() <= known_ns:
        return -np.inf
    return float(every_ns + _least(problem, prices, alone).sum())


def prices_at(problem: AllocationProblem, multipliers: np.ndarray) -> Prices:
    """Prices of every decision."""
    fabric, dies = problem.fabric, problem.fabric.dies
    hbm, array, link = multipliers[:dies], multipliers[dies : 2 * dies], multipliers[2 * dies :]
    token = problem.token_ns[:, None, None] * array
    if problem.origins is not None:
        token = token + fabric.move_ns @ link + 2 * fabric.vector_ns * hbm * (1 - np.eye(dies))
    return Prices(
        problem.reads * fabric.read_ns * hbm + problem.fetches * (fabric.fetch_ns @ link)[problem.home],
        problem.asks.sum(axis=2) * (fabric.read_ns * hbm[problem.home])[:, None],
        token,
    )


def _least(problem: AllocationProblem, prices: Prices, alone: np.ndarray) -> np.ndarray:
    """A lower bound of the price of any division of an expert, float64[row].

    Dividing an expert among dies is facility location: any dual prices v of tokens with Σ max(0, v - token) ≤ opening
    on every die prove the bound Σ v (Erlenkotter, Operations Research 26(6), 1978). Here v is between a token's nearest
    die and the best single die of the expert, as close to the latter as that condition allows.
    """
    if problem.origins is None:  # the price of a token does not depend on its origin: one die is best
        return alone.min(axis=1)
    rows, best = np.arange(len(alone)), alone.argmin(axis=1)
    nearest = prices.token.min(axis=2)
    wanted = prices.token[rows, :, best] + (prices.opening[rows, best] / problem.tokens)[:, None] - nearest
    low, high = np.zeros(len(alone)), np.ones(len(alone))
    for halving in range(HALVINGS + 1):
        part = high if halving == 0 else (low + high) / 2
        dual = nearest + part[:, None] * wanted
        spent = np.einsum("ej,ejd->ed", problem.origins, np.maximum(dual[:, :, None] - prices.token, 0.0))
        fits = (spent <= prices.opening * (1 + 1e-12)).all(axis=1)
        low = np.where(fits, part, low)
        if halving == 0 and fits.all():
            break
        high = np.where(fits, high, part)
    return prices.asking.min(axis=1) + (problem.origins * (nearest + low[:, None] * wanted)).sum(axis=1)


def _softer(problem: AllocationProblem, loads_ns: np.ndarray):
    """Multipliers that grow with powers of the loads: of all resources, and of links alone."""
    links = np.arange(len(loads_ns)) >= 2 * problem.fabric.dies
    for among in (np.ones(len(loads_ns), bool), links):
        if loads_ns[among].max(initial=0.0) > 0:
            for power in POWERS:
                weights = np.where(among, loads_ns / loads_ns[among].max(), 0.0) ** power
                yield weights / weights.sum()


def _relaxation(problem: AllocationProblem) -> tuple[np.ndarray, np.ndarray, int]:
    """(multipliers, share, iterations) of a step without hidden vectors."""
    chosen, iterations = _first_choices(problem), 0
    for _ in range(ROUNDS):
        programme_ns, multipliers, share, used = _programme(problem, chosen)
        iterations += used
        alone = prices_at(problem, multipliers).alone(problem)
        cheaper = alone < np.where(chosen, alone, np.inf).min(axis=1, keepdims=True) * (1 - GAIN)
        proved_ns = multipliers @ (problem.base_ns + problem.start_ns) + alone.min(axis=1).sum()
        if proved_ns >= programme_ns * (1 - GAIN) or not cheaper.any():
            break
        chosen = chosen | cheaper
    return multipliers, share, iterations


def _first_choices(problem: AllocationProblem) -> np.ndarray:
    """Home, holders of any slice, and the dies nearest to the home, bool[row, die]."""
    links = (problem.fabric.fetch_ns > 0).sum(axis=2)
    near = np.where(links > 0, links, links.max(initial=0) + 1).min(axis=1, keepdims=True)
    return (links <= near)[problem.home] | (problem.fetches < problem.fetches.max(axis=1, keepdims=True))


def _programme(problem: AllocationProblem, chosen: np.ndarray) -> tuple[float, np.ndarray, np.ndarray, int]:
    """(value in ns, multipliers, share, iterations) of the linear programme over the chosen (row, die)."""
    from scipy.optimize import linprog
    from scipy.sparse import csc_array, hstack

    (row, die), rows = np.nonzero(chosen), len(chosen)
    load, floor, columns = _whole_loads(problem, row, die), problem.base_ns + problem.start_ns, np.arange(len(row))
    scale = float(floor.max() + load.max())
    solved = linprog(
        np.append(np.zeros(len(row)), 1.0),
        hstack([load / scale, csc_array(-np.ones((len(floor), 1)))], format="csc"),
        -floor / scale,
        csc_array((np.ones(len(row)), (row, columns)), shape=(rows, len(row) + 1)),
        np.ones(rows),
        method="highs-ds",
    )
    if solved.status != 0:
        raise RuntimeError(f"linear programme of a step: {solved.message}")
    multipliers, share = np.maximum(-solved.ineqlin.marginals, 0.0), np.zeros(chosen.shape)
    share[row, die] = np.maximum(solved.x[:-1], 0.0)
    return solved.fun * scale, multipliers / multipliers.sum(), share / share.sum(axis=1, keepdims=True), solved.nit


def _whole_loads(problem: AllocationProblem, row, die):
    """Load of experts that run entirely on one die: sparse[resource, column]."""
    from scipy.sparse import csc_array, vstack

    fabric, dies, column = problem.fabric, problem.fabric.dies, np.arange(len(row))
    own = problem.reads[row, die] * fabric.read_ns
    asked = problem.asks[row, die].sum(axis=1) * fabric.read_ns
    array = (problem.tokens * problem.token_ns)[row]
    place = np.concatenate([die, problem.home[row], dies + die]), np.tile(column, 3)
    units = csc_array((np.concatenate([own, asked, array]), place), shape=(2 * dies, len(row)))
    links = csc_array(fabric.fetch_ns.reshape(dies * dies, -1).T)[:, problem.home[row] * dies + die]
    return vstack([units, links * problem.fetches[row, die]], format="csc")


# ---- exact
# The exact optimum of a small step: a mixed-integer programme over tokens and fetches, by SciPy's HiGHS.
#
# It divides by single tokens, finer than any policy, so its optimum bounds every policy.

SMALL = 24  # most (expert, die) pairs of a small step: 6 experts on 4 dies
NODES = 300  # of the search; the bound holds even if the search stops there


class _Columns(NamedTuple):
    """Indices of the variables: tokens (row, lives, die), fetches (row, die), reads at the home (row, slice), time."""

    tokens: np.ndarray
    opened: np.ndarray
    asked: np.ndarray
    time: int


def exact_bound(problem: AllocationProblem, bound: StepBound, most_nodes: int = NODES) -> StepBound:
    """The bound of a small step, raised to the optimum over integers (or to what the search proved)."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    lives = problem.tokens[:, None] if problem.origins is None else problem.origins
    rows, homes = lives.shape
    columns = _columns(rows, homes, problem.fabric.dies)
    count, scale = columns.time + 1, bound.ns
    upper, whole = np.full(count, np.inf), np.zeros(count)
    upper[columns.opened] = upper[columns.asked] = 1.0
    whole[columns.tokens] = whole[columns.opened] = 1
    cost = np.zeros(count)
    cost[columns.time] = 1.0
    once = np.zeros((lives.size, count))  # every token
    once[np.arange(lives.size)[:, None], columns.tokens.reshape(lives.size, -1)] = 1
    solved = milp(
        cost,
        integrality=whole,
        bounds=Bounds(0.0, upper),
        options={"node_limit": most_nodes, "mip_rel_gap": MARGIN},
        constraints=[
            LinearConstraint(once, lives.ravel(), lives.ravel()),
            LinearConstraint(*_weights_are_there(problem, lives, columns, count)),
            LinearConstraint(
                _loads_less_time(problem, columns, scale), -np.inf, -(problem.base_ns + problem.start_ns) / scale
            ),
        ],
    )
    if solved.mip_dual_bound is None:
        return bound
    return bound._replace(ns=max(bound.ns, solved.mip_dual_bound * scale * (1 - MARGIN)))


def _columns(rows: int, lives: int, dies: int) -> _Columns:
    tokens = np.arange(rows * lives * dies).reshape(rows, lives, dies)
    opened = tokens.size + np.arange(rows * dies).reshape(rows, dies)
    asked = tokens.size + opened.size + np.arange(rows * SLICES).reshape(rows, SLICES)
    return _Columns(tokens, opened, asked, tokens.size + opened.size + asked.size)


def _weights_are_there(problem, lives, columns, count):
    """Rows ``tokens - lives · opened ≤ 0`` and ``opened - asked ≤ 0`` where a die requests a slice from the home."""
    lines = []
    for row, home, die in np.ndindex(columns.tokens.shape):
        line = np.zeros(count)
        line[columns.tokens[row, home, die]], line[columns.opened[row, die]] = 1, -lives[row, home]
        lines.append(line)
    for row, die, each in zip(*np.nonzero(problem.asks), strict=True):
        line = np.zeros(count)
        line[columns.opened[row, die]], line[columns.asked[row, each]] = 1, -1
        lines.append(line)
    return np.array(lines), -np.inf, 0.0


def _loads_less_time(problem, columns, scale):
    """float64[resource, variable], in units of ``scale`` ns."""
    fabric, dies = problem.fabric, problem.fabric.dies
    load = np.zeros((fabric.resources, columns.time + 1))
    for row, (home, token_ns) in enumerate(zip(problem.home, problem.token_ns, strict=True)):
        load[home, columns.asked[row]] += fabric.read_ns
        for die in range(dies):
            load[die, columns.opened[row, die]] += problem.reads[row, die] * fabric.read_ns
            load[2 * dies :, columns.opened[row, die]] += problem.fetches[row, die] * fabric.fetch_ns[home, die]
            load[dies + die, columns.tokens[row, :, die]] += token_ns
            for lives in range(columns.tokens.shape[1] if problem.origins is not None else 0):
                load[2 * dies :, columns.tokens[row, lives, die]] += fabric.move_ns[lives, die]
                load[die, columns.tokens[row, lives, die]] += 2 * fabric.vector_ns * (lives != die)
    load /= scale
    load[:, columns.time] = -1
    return load


# ---- distances
# How far a run's steps are from the best possible allocation under the same placement, copies and caches.

KINDS = ("hbm", "compute", "link")


@dataclass(frozen=True)
class StepDistance:
    """One step.

    ``step_ns``: engine time without the decision, which adds ``exposed_ns``; ``loads_ns``: of the policy's plan.
    """

    step: int
    layer: int  # index among the demand's MoE layers
    step_ns: float
    exposed_ns: float
    bound: StepBound
    problem: AllocationProblem
    loads_ns: np.ndarray  # float64[resource]

    @property
    def plan_ns(self) -> float:
        """Minimum time of the plan: that of its fullest resource."""
        return float((self.loads_ns + self.problem.start_ns).max())

    @property
    def distance(self) -> float:
        """Step time, decision included, over the bound, less one; 0.1 is 10 %."""
        return (self.step_ns + self.exposed_ns) / self.bound.ns - 1

    @property
    def parts(self) -> dict[str, float]:
        """What the distance is made of, as shares of the bound: ``allocation`` (the fullest resource of the plan
        against the bound), ``waiting`` (for order, latency and other dies), ``decision`` (exposed).
        """
        waiting = max(self.step_ns - self.plan_ns, 0.0) / self.bound.ns
        decision = self.exposed_ns / self.bound.ns
        return {"allocation": self.distance - waiting - decision, "waiting": waiting, "decision": decision}

    @property
    def bound_by(self) -> str:
        """The kind of resource with the largest share in the proof of the bound."""
        dies = self.problem.fabric.dies
        parts = np.split(self.bound.multipliers, [dies, 2 * dies])
        return KINDS[int(np.argmax([part.sum() for part in parts]))]

    @property
    def plan_by(self) -> str:
        """The kind of the plan's fullest resource."""
        return KINDS[min(int(self.loads_ns.argmax()) // self.problem.fabric.dies, 2)]


@dataclass
class Bounds:
    """Bounds of the steps of one demand on one machine, shared by policies with the same placement."""

    known: dict[tuple, StepBound] = field(default_factory=dict)

    def of(self, at: tuple[int, int], problem: AllocationProblem) -> StepBound:
        arrays = (problem.home, problem.asks, problem.reads, problem.fetches, problem.base_ns, problem.start_ns)
        key = (at, *(array.tobytes() for array in arrays))
        if key not in self.known:
            bound = lower_bound(problem)
            small = len(problem.tokens) * problem.fabric.dies <= SMALL
            self.known[key] = exact_bound(problem, bound) if small else bound
        return self.known[key]


def distances(replay: loop.Replay, most_steps: int | None, bounds: Bounds) -> Iterator[StepDistance]:
    """Run all steps; bound at most ``most_steps`` of them, evenly spread over the run (None: all).

    ``replay``: of `Simulator.replay`, so that its demands are a ``RunDemand``. Raises ArchsimError for more than 128
    dies, and for experts with several holders.
    """
    engine, demand = replay.engine, replay.demands
    assert isinstance(demand, RunDemand)
    builder = ProblemBuilder(engine.scenario, engine.policy.predictor is not None, int(demand.tokens.max()))
    routed = [tuple(map(int, at)) for at in np.argwhere(demand.tokens.any(axis=2))]
    asked = set(
        range(len(routed))
        if most_steps is None
        else np.linspace(0, len(routed) - 1, min(most_steps, len(routed))).round().astype(int).tolist()
    )
    results = replay.steps()
    for index, (step, layer) in enumerate(routed):
        problem = None
        if index in asked:  # memory is as at the start of the step
            problem = builder.build(
                demand.at(step, layer), layer, int(engine.rows[layer]), engine.placement, engine.memory
            )
        result = next(results)
        if problem is not None:
            yield _compare(result, problem, bounds.of((step, layer), problem), engine.fabric.hops)


def _compare(result: loop.StepResult, problem: AllocationProblem, bound: StepBound, hops: np.ndarray) -> StepDistance:
    times = result.times
    return StepDistance(
        result.step,
        result.layer,
        times.end_ns - times.begin_ns,
        times.exposed_ns,
        bound,
        problem,
        plan_loads(problem, times.plan, hops),
    )


def plan_loads(problem: AllocationProblem, plan: Plan, hops: np.ndarray) -> np.ndarray:
    """Loads of a policy's plan (hidden vectors sent as the engine sends them), float64[resource] in ns."""
    row = np.searchsorted(problem.expert, plan.expert)
    given = np.zeros((len(problem.expert), problem.fabric.dies))
    np.add.at(given, (row, plan.die), plan.tokens)
    flow = None
    if problem.origins is not None:
        flow = send_tokens(row, plan.die, plan.tokens, np.ascontiguousarray(problem.origins.T), hops)
    return loads(problem, given / problem.tokens[:, None], given > 0, flow)


# ---- page
# The page of ``archsim why --bound``: distance of every policy from the bound.
#
# Worst steps beside the relaxation's plan.

NAMES = {"hbm": "HBM", "compute": "compute", "link": "links"}  # of resources, in sentences
CLOSE = 0.005  # share of the bound: policies this close to the nearest are named with it
NO_FASTER = 1.001  # times as fast; what is nearer to 1 reads as 1×
MOST_SHOWN = 24  # worst steps that are drawn
COLUMNS = {
    **dict.fromkeys(("system", "model"), tables.TEXT),
    "batch": tables.INTEGER,
    "assumptions": tables.TEXT,
    "policy": tables.TEXT,
    "iteration": tables.INTEGER,
    "layer": tables.INTEGER,
    **dict.fromkeys(("bound_ns", "plan_ns", "step_ns", "exposed_ns", "distance"), tables.REAL),
    **dict.fromkeys(("allocation", "waiting", "decision"), tables.REAL),
    **dict.fromkeys(("bound_by", "plan_by"), tables.TEXT),
}


@dataclass(frozen=True)
class Measured:
    """The bounded steps of one run. ``layer_ids``: the model's numbering of its MoE layers."""

    run: Run
    layer_ids: np.ndarray
    fabric: Fabric
    steps: tuple[StepDistance, ...]

    def summary(self) -> tuple[float, float, float]:
        """Distance from the bound: mean, 95th percentile and worst step."""
        far = [each.distance for each in self.steps]
        return float(np.mean(far)), float(np.percentile(far, 95)), float(max(far))

    @property
    def parts(self) -> dict[str, float]:
        """Mean of what the distance is made of, see ``StepDistance.parts``."""
        every = [each.parts for each in self.steps]
        return {name: float(np.mean([parts[name] for parts in every])) for name in every[0]}

    @property
    def worst(self) -> StepDistance:
        return max(self.steps, key=lambda each: each.distance)

    def name_of(self, step: StepDistance) -> str:
        return f"iteration {step.step}, layer {int(self.layer_ids[step.layer])}"


def write_optimum(found: list[Measured], name: str, folder: Path, notes: Sequence[str] = ()) -> Path:
    """Write ``index.html`` and ``optimum.csv``; returns the path of the page. Equal results give equal bytes.

    ``notes``: on what the runs do not read.
    """
    files.own_folder(folder)
    table_of(found).write_csv(folder / "optimum.csv")
    files.write_text(folder / "index.html", render(found, name, notes))
    return folder / "index.html"


def table_of(found: list[Measured]) -> tables.Table:
    """One row per bounded step; ``distance``: step plus decision above the bound, 0.1 is 10 %."""
    rows = []
    for each in found:
        run = each.run
        for step in each.steps:
            values = (
                run.system.name,
                run.model.name,
                run.batch,
                run.assumptions.label,
                run.policy.name,
                step.step,
                int(each.layer_ids[step.layer]),
                step.bound.ns,
                step.plan_ns,
                float(step.step_ns),
                float(step.exposed_ns),
                float(step.distance),
                *step.parts.values(),
                step.bound_by,
                step.plan_by,
            )
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return tables.Table(COLUMNS, tuple(rows))


def render(found: list[Measured], name: str, notes: Sequence[str] = ()) -> str:
    worst = sorted(found, key=lambda each: -each.worst.distance)[:MOST_SHOWN]
    context = {
        "notes": notes,
        "name": name,
        "sentences": sentences(found),
        "layers": layers_told(_layers(found)),
        "rows": [_row(each) for each in found],
        "short": list(answers(found)),
        "worst": [_picture(each) for each in worst],
    }
    return page.rendered("optimum.html.j2", context)


def sentences(found: list[Measured]) -> list[str]:
    """The runs nearest to and farthest from the bound, and what their distances are made of."""
    ordered = sorted(found, key=lambda each: each.summary()[0])
    several = {"Nearest to": ordered[0], "Farthest from": ordered[-1]}
    ends = several if len(ordered) > 1 else {"Compared with": ordered[0]}
    said = []
    for which, each in ends.items():
        parts = listed(f"{percent(share, 1)} by {part}" for part, share in each.parts.items())
        said.append(
            f"{which} the bound is {each.run.policy.name} ({_place(each)}). Its layer-steps take "
            f"{percent(each.summary()[0], 1)} longer than the bound: {parts}."
        )
    return said


def _layers(found: list[Measured]) -> Layers:
    rows = [{"model": each.run.model.name, "layers": len(each.layer_ids)} for each in found]
    return layers_that_ran(rows, {each.run.model.name: len(each.run.model.moe_layer_ids) for each in found})


def _place(each: Measured) -> str:
    run = each.run
    return f"{run.model.name} on {run.system.name}, batch {run.batch:,}, under {run.assumptions.label}"


def answers(found: list[Measured]) -> Iterator[tuple[str, str]]:
    """(system, model, batch and assumptions; what any allocation could gain over the policy nearest to the bound, by
    the mean over steps, what that is made of, and the policy farthest away).
    """
    for place in dict.fromkeys(map(_place, found)):
        here = [each for each in found if _place(each) == place]
        means = sorted((each.summary()[0], each.run.policy.name) for each in here)
        least, most = means[0][0], means[-1]
        near = [name for mean, name in means if mean <= least + CLOSE]
        parts = next(each for each in here if each.run.policy.name == means[0][1]).parts
        largest = max(parts, key=lambda part: parts[part])
        if 1 + least < NO_FASTER:
            said = f"no allocation is faster than {' or '.join(near)}."
        else:
            said = f"no allocation is more than {1 + least:.3g}× as fast as {' or '.join(near)}."
            said += f" Most of that distance is {largest}." if least > CLOSE else ""
        far = f" Farthest from the bound is {most[1]}, {1 + most[0]:.3g}×." if most[0] > least + CLOSE else ""
        yield place, f"{said}{far}"


def _row(each: Measured) -> dict:
    run, steps = each.run, each.steps
    by = Counter(step.bound_by for step in steps)
    plan = float(np.mean([step.plan_ns / step.bound.ns - 1 for step in steps]))
    bare = float(np.mean([step.step_ns / step.bound.ns - 1 for step in steps]))
    return {
        "system": run.system.name,
        "model": run.model.name,
        "batch": run.batch,
        "assumptions": run.assumptions.label,
        "policy": run.policy.name,
        "numbers": [(value, percent(value, 1)) for value in (*each.summary(), bare, plan)],
        "worst": each.name_of(each.worst),
        "steps": len(steps),
        "by": ", ".join(f"{NAMES[kind]} {percent(by[kind] / len(steps))}" for kind in KINDS if by[kind]),
    }


def _picture(each: Measured) -> dict:
    worst = each.worst
    bound, plan, step, decision = (
        scaled(ns, TIME_UNITS) for ns in (worst.bound.ns, worst.plan_ns, worst.step_ns, worst.exposed_ns)
    )
    return {
        "heading": (
            f"{_place(each)}, {each.run.policy.name}: {each.name_of(worst)}, {percent(worst.distance, 1)} above the "
            f"bound"
        ),
        "times": (
            f"Bound {bound} (by {NAMES[worst.bound_by]}); fullest resource of the plan {plan} "
            f"({NAMES[worst.plan_by]}); step {step}; decision exposed {decision}."
        ),
        "map": _map(each.fabric, worst),
    }


def _map(fabric: Fabric, step: StepDistance) -> DieMap:
    """Loads under the policy's plan and under the relaxation's, as shares of the bound."""
    plans = (("the policy's plan", step.loads_ns), ("the relaxation's plan", step.bound.loads_ns))
    placed = [maps.MappedRun({"plan": name}, *_loads(fabric, loads_ns / step.bound.ns)) for name, loads_ns in plans]
    return maps.die_map("How loaded are dies and links, in percent of the bound?", placed)


def _loads(fabric: Fabric, use: np.ndarray) -> tuple[Sequence[Row], Sequence[Row]]:
    """Rows of the tables of dies and links: where each is, and how much of the bound it is used."""
    dies = fabric.dies
    x: list[int | None] = [None] * fabric.nodes
    y = x
    if fabric.node_x is not None and fabric.node_y is not None:
        x, y = fabric.node_x.tolist(), fabric.node_y.tolist()
    both_ways = len(use) - 2 * dies < fabric.links
    names = np.unique(fabric.link_edge, return_index=True)[1] if both_ways else np.arange(fabric.links)
    ends = zip(fabric.link_src[names].tolist(), fabric.link_dst[names].tolist(), use[2 * dies :].tolist(), strict=True)
    links = [
        {"src": src, "dst": dst, "src_x": x[src], "src_y": y[src], "dst_x": x[dst], "dst_y": y[dst]}
        | {"direction": maps.BOTH_WAYS if both_ways else "one way", "utilisation": part}
        for src, dst, part in ends
    ]
    return [
        dict.fromkeys(DIE_COLUMNS)
        | {"die": die, "x": x[die], "y": y[die]}
        | {"hbm_utilisation": float(use[die]), "compute_utilisation": float(use[dies + die])}
        for die in range(dies)
    ], links


# ---- study


@dataclass(frozen=True)
class Optimum(tables.Shown):
    """The bounded steps of every run of an experiment."""

    name: str
    runs: tuple[Measured, ...]

    def __repr__(self) -> str:
        return f"Optimum({self.name!r}, {len(self.runs)} runs, {sum(len(each.steps) for each in self.runs)} steps)"

    def to_pandas(self) -> pandas.DataFrame:
        """One row per bounded step; columns `archsim.studies.optimum.COLUMNS`; distance: share above the bound."""
        return table_of(list(self.runs)).to_pandas()


def measure_optimum(experiment: ExperimentSpec, most_steps: int, told: Callable[[Measured], None]) -> Optimum:
    """Bound at most ``most_steps`` steps of every run, evenly spread; call ``told`` for every finished run.

    Raises CapacityError if the weights do not fit, ArchsimError for more than 128 dies.
    """
    selection = select(experiment)
    simulator, found, bounds, machine = Simulator(selection.maker.traces), [], Bounds(), None
    for run in selection.runs():
        replay = simulator.replay(run)
        same = (run.system, run.model, run.batch, run.assumptions)
        if same != machine:
            bounds, machine = Bounds(), same
        steps = tuple(distances(replay, most_steps, bounds))
        found.append(Measured(run, np.array(run.model.moe_layer_ids)[replay.engine.rows], replay.engine.fabric, steps))
        told(found[-1])
    return Optimum(experiment.name, tuple(found))
