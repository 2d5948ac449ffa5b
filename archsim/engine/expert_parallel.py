"""Expert parallelism, as on nodes of GPUs: dispatch, a grouped kernel a rank, combine, a barrier of all ranks.

Experts stay in the HBM of their GPUs; one that a plan runs elsewhere is fetched for the step
(``archsim.engine.cluster.moves``). Hidden vectors move as ``archsim.engine.cluster.moves`` says; a rank starts
its kernel when it has its tokens, and returns results when it has run all of them. Both engines share the flows and
the laws; they differ in how begins at different times meet at a port (``archsim.engine.cluster.moves``).

What runs beside what: ``archsim.iteration.overlap``.
"""

from typing import NamedTuple

import numpy as np

from archsim.base.causes import Cause
from archsim.base.compiled import kernel
from archsim.base.errors import ArchsimError, SpecError
from archsim.engine.cluster.fetches import FetchedWeights, Fetches
from archsim.engine.cluster.moves import Moves, Sent, build_moves, origins_of, sms_share
from archsim.engine.cluster.ports import refuse_unequal
from archsim.engine.execution import FULL_CLOCKS, GemmTime, Order, Setup, phase_of
from archsim.engine.machine import links_of
from archsim.engine.moves import Sizes, received_of_experts
from archsim.engine.ranks import Ranks, RankTimes
from archsim.engine.state import COMBINE, DISPATCH, HIDDEN, UNITS
from archsim.iteration import overlap
from archsim.iteration.overlap import DECODES, HOW, NOTHING, PROMPTS, TWO_BATCH, beside, compose
from archsim.iteration.run_iteration import rest_of
from archsim.policies.allocation import Plan
from microarch.blocks.hbm import SLICES


class LayerTimes(NamedTuple):
    """Of one layer. ``parts``: float64[PARTS] on the critical path; ``last``: the rank that ends last; ``waits``: the
    share of its experts' part that waits for fetched weights.
    """

    ns: float
    parts: np.ndarray
    last: int
    waits: float = 0.0


def _with_expert(plan: Plan, pairs: np.ndarray) -> Plan:
    """A plan of one more expert a rank, of its last kernel, which computes so many ``pairs: float64[die]``."""
    dies = np.flatnonzero(pairs >= 1)
    expert = np.full(len(dies), plan.expert.max(initial=-1) + 1, np.int32)
    return plan._replace(
        expert=np.append(plan.expert, expert), die=np.append(plan.die, dies.astype(np.int32)),
        tokens=np.append(plan.tokens, np.rint(pairs[dies]).astype(np.int32)),
        first=None if plan.first is None else np.append(plan.first, np.zeros(len(dies), np.int32)),
    )  # fmt: skip


def _seen(arrived: np.ndarray, times: RankTimes) -> np.ndarray:
    """What the first of two kernels does not hide of a dispatch: float64[die] ns."""
    return np.maximum(arrived - times.first_ns, 0.0)


class ExpertParallel:
    """``execution: expert_parallel``."""

    def __init__(self, setup: Setup):
        scenario = setup.scenario
        _refuse(scenario.assumptions)
        if scenario.system.launch == "gpu" and scenario.assumptions.transfer_software == "charged":
            assert setup.placement is not None, "the engine's"
            refuse_unequal(setup.placement.layer_slots, scenario.model.experts)
        self._machine, self._fabric, self._tally = setup.machine, setup.fabric, setup.tally
        model = scenario.model
        self._sizes = Sizes(model.experts, model.top_k, model.expert_groups, model.top_groups)
        self._ranks = Ranks(scenario, setup.machine)
        self._fetches = Fetches(setup.machine, setup.fabric, setup.tally)
        self._moves: Moves = build_moves(scenario, setup.machine, setup.fabric, setup.analytical)
        self._layer = OVERLAPS[scenario.assumptions.overlap]
        self._rest, self._group = setup.rest, scenario.parallel.tp
        if self._rest is None and scenario.assumptions.overlap == TWO_BATCH:
            self._rest = rest_of(
                scenario,
                sms_share(scenario.system, scenario.assumptions),
                links_of(scenario.system, scenario.assumptions),
            )
        fused = scenario.policy.shared.params.get("kernel") == "fused"
        # routed pairs that are as long as a token's shared experts; 0: those are products of their own
        self._fused_pairs = model.shared_experts * model.shared_ffn / model.expert_ffn if fused else 0.0
        self._calibrated_ns = self._extrapolated_ns = 0.0
        self.first_ns = 0.0  # of first kernels so far, on the ranks that ended last: a dispatch hides beside them
        self.clocks = FULL_CLOCKS

    def step(self, order: Order, now_ns: float) -> float:
        sent, times, fetched, layer = self._run(order)
        self._fetches.count(fetched)
        self._tally.part_ns[:] += layer.parts
        self._tally.sms_ns[:] += [each.ns for each in self._moves.sms(sent)]
        self._calibrated_ns += float(times.kernel_ns.sum())
        self._extrapolated_ns += times.extrapolated_ns
        self.first_ns += float(times.first_ns[layer.last])
        self._count(sent, times, layer)
        return now_ns + layer.ns

    def time_of(self, order: Order) -> float:
        return self._run(order)[-1].ns

    def kernel_ns(self, tokens: int, experts: int) -> float:
        first = np.zeros(experts, np.int32)
        plan = Plan(np.arange(experts, dtype=np.int32), first, np.full(experts, tokens, np.int32))
        nobody = np.zeros(self._machine.dies)
        arrived = np.full(self._machine.dies, received_of_experts(self._sizes, experts, tokens))
        return float(self._ranks.times(plan, nobody, arrived).kernel_ns[0])

    def _run(self, order: Order) -> tuple[Sent, RankTimes, FetchedWeights, LayerTimes]:
        demand = order.demand
        tokens, computed = origins_of(demand).sum(axis=1, dtype=np.int64) / demand.top_k, order.plan
        if order.plan.shared is not None:
            tokens = order.plan.shared.sum(axis=0).astype(float)
            if self._fused_pairs:  # an expert more in the kernel of every rank
                computed, tokens = _with_expert(order.plan, tokens * self._fused_pairs), np.zeros_like(tokens)
        sent = self._moves.sent(order.plan, demand)
        self._ranks.clock = self.clocks[phase_of(order)]
        times = self._ranks.times(computed, tokens, sent.arrived)
        fetched = self._fetches.of(order)
        layer = self._layer(self, order._replace(plan=computed), tokens, sent, times, fetched)
        return sent, times, fetched, layer

    def in_turn(self, order: Order, tokens, sent: Sent, times: RankTimes, fetched: FetchedWeights) -> LayerTimes:
        arrived = self._moves.dispatch_ns(sent)
        return self._after(sent, times, arrived, _seen(arrived, times) + times.shared_ns, fetched)

    def beside_shared(self, order: Order, tokens, sent: Sent, times: RankTimes, fetched: FetchedWeights) -> LayerTimes:
        """``overlap: shared_expert``."""
        arrived, (sms, _) = self._moves.dispatch_ns(sent), self._moves.sms(sent)
        seen = _seen(arrived, times)
        both = beside.py_func(seen, times.shared_ns, sms)
        return self._after(sent, times, arrived, np.where(times.shared_ns > 0, both, seen), fetched)

    def by_halves(self, order: Order, tokens, sent: Sent, times: RankTimes, fetched: FetchedWeights) -> LayerTimes:
        """``overlap: two_batch``; attention and all else of a layer hide transfers, too, but are no part of it. In turn
        where no group of ranks has two tokens to halve.
        """
        whole, demand = self.in_turn(order, tokens, sent, times, fetched), order.demand
        living = float(origins_of(demand).sum(axis=1, dtype=np.int64).max() / demand.top_k)
        if living * self._group < overlap.LEAST_HALVED:
            return whole
        half, prompts = sent.part(0.5), bool(demand.prefill_tokens.any())
        half_times = self._ranks.times(order.plan, tokens, half.arrived, 0.5)
        one = self.in_turn(order, tokens, half, half_times, fetched)
        sms = self._moves.sms(half)
        rest = self._rest(living, prompts) if self._rest else NOTHING
        last = one.last
        multiply = (
            float(half_times.shared_ns[last] * (1 - half_times.shared_lost[last])),
            float(half_times.causes[Cause.COMPUTE][last]),
        )
        both, phase = (overlap.ExpertLayer(*each.parts) for each in (whole, one)), PROMPTS if prompts else DECODES
        found = compose(HOW[TWO_BATCH], *both, multiply, rest, sms, phase)
        return LayerTimes(found.total, np.array(found), one.last, one.waits)

    def _after(self, sent: Sent, times: RankTimes, arrived, begin, fetched: FetchedWeights) -> LayerTimes:
        """The layer from the kernels on, which take their time without a break from ``begin`` on: float64[die]."""
        complete = np.where(fetched.share > 0, arrived + fetched.ns, 0.0)  # weights follow the tokens
        end = np.maximum(begin + times.kernel_ns, complete + times.kernel_ns * fetched.share)
        done = self._moves.combine_ns(sent, end)
        last, ns = int(end.argmax()), float(max(done.max(), end.max()))
        experts_ns = end[last] - begin[last]
        shared_ns = min(times.shared_ns[last], begin[last])  # whole; what it hides is no part of the dispatch
        parts = [begin[last] - shared_ns, shared_ns, experts_ns, ns - end[last]]
        waits = max(0.0, 1 - times.kernel_ns[last] / experts_ns) if experts_ns else 0.0
        return LayerTimes(ns, np.array(parts), last, waits)

    def _count(self, sent: Sent, times: RankTimes, layer: LayerTimes) -> None:
        """Add the step to the tally: what each die, port and link did, and what the layer waited for."""
        machine, tally, fabric = self._machine, self._tally, self._fabric
        dies = machine.dies
        away = np.array(sent.vectors, float)
        np.fill_diagonal(away, 0.0)
        activation_bytes, vectors = np.zeros(dies), sent.vectors.sum(axis=1) + sent.vectors.sum(axis=0)
        count, moved = away.sum(), np.empty_like(away)
        for phase in (DISPATCH, COMBINE):
            n_bytes, sent_bytes = self._moves.vector_bytes[phase], tally.pair_bytes[HIDDEN + phase]
            tally.moved_bytes[phase] += int(count * n_bytes)
            np.multiply(away, n_bytes, out=moved)
            hops = _add_rounded(moved, fabric.hops, sent_bytes, phase == COMBINE)
            moved *= fabric.hops
            tally.hops[HIDDEN] += hops, int(moved.sum())
            activation_bytes += vectors * n_bytes
        weights = times.active * (SLICES * machine.slice_bytes)
        tally.dies["local_read_bytes"] += weights.astype(np.int64)
        tally.dies["activation_bytes"] += activation_bytes.astype(np.int64)
        hbm, arrays = tally.resources[dies : 2 * dies], tally.resources[2 * dies : UNITS * dies]
        hbm["bytes"] += (weights + activation_bytes).astype(np.int64)
        hbm["busy_ns"] += (weights + activation_bytes) / machine.hbm_rates
        arrays["busy_ns"] += times.kernel_ns + times.shared_ns
        links = tally.resources[UNITS * dies :]
        for number, (link_bytes, ns) in enumerate(self._moves.on_links(sent)):
            for counted in (links, tally.phase_links[number]):
                counted["bytes"] += np.rint(link_bytes).astype(np.int64)
                counted["busy_ns"] += ns
        self._explain(times, layer)

    def _explain(self, times: RankTimes, layer: LayerTimes) -> None:
        """Time of the step by cause: of the rank that ends its kernel last."""
        bound_ns, last = self._tally.bound_ns, layer.last
        dispatch, shared, experts, combine = layer.parts
        kernel = experts * (1 - layer.waits)
        share = kernel / times.kernel_ns[last] if times.kernel_ns[last] else 0.0
        for cause, ns in times.causes.items():
            bound_ns[cause] += share * ns[last]
        lost = shared * times.shared_lost[last]
        bound_ns[Cause.COMPUTE] += shared - lost
        bound_ns[Cause.INEFFICIENCY] += lost
        bound_ns[Cause.LINK] += experts * layer.waits
        bound_ns[Cause.ACTIVATIONS] += dispatch + combine
        self._tally.residual_ns[:] += np.array([times.low_ns[last], times.high_ns[last]]) * share

    def log(self, begin_ns: float) -> dict[str, np.ndarray]:
        raise ArchsimError("execution: expert_parallel keeps no log of a step; a timeline needs weight_streaming")

    def gemm_time(self) -> GemmTime:
        return GemmTime(self._calibrated_ns, self._extrapolated_ns, self._ranks.named)


@kernel
def _add_rounded(moved, hops, to, back):
    """Add ``moved: float64[source, target]`` to int64 ``to`` (``back``: transposed); returns the hops of all pairs."""
    crossed = 0
    for source in range(len(moved)):
        for target in range(len(moved)):
            if moved[source, target] != 0.0:
                n_bytes = np.int64(np.rint(moved[source, target]))
                if back:
                    to[target, source] += n_bytes
                else:
                    to[source, target] += n_bytes
                crossed += hops[source, target]
    return crossed


OVERLAPS = {
    "none": ExpertParallel.in_turn,
    "shared_expert": ExpertParallel.beside_shared,
    "two_batch": ExpertParallel.by_halves,
}


def _refuse(assumptions) -> None:
    """Raise SpecError for assumptions that the execution cannot follow."""
    for field, wanted in (("gemm", "grouped"), ("contention", "shared")):
        if getattr(assumptions, field) != wanted:
            raise SpecError(
                f"execution: expert_parallel needs {field}: {wanted}, not {getattr(assumptions, field)}: experts of a "
                "rank are one grouped kernel between a dispatch and a combine"
            )


def build(setup: Setup) -> ExpertParallel:
    """The execution of a run. Raises SpecError for assumptions that it cannot follow."""
    return ExpertParallel(setup)
