"""From a file to the groups of ranks that share its experts: their machine, their scenario, and their tokens."""

from functools import lru_cache
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from archsim.base.config_files import named_files
from archsim.base.errors import CapacityError, SpecError
from archsim.base.sums import sum
from archsim.base.units import NS_PER_S
from archsim.engine.cluster.moves import sms_share
from archsim.engine.moves import vector_bytes
from archsim.iteration import memory
from archsim.iteration.constants import Host
from archsim.iteration.layers import EXPERTS, ONCE, has_experts
from archsim.iteration.overlap import NONE as NO_OVERLAP
from archsim.iteration.overlap import micro_batched
from archsim.iteration.times import Batches, iteration_times
from archsim.laws.tables import CalibrationSpec
from archsim.machine.system import SystemSpec
from archsim.model.spec import UNMODELLED, ModelSpec
from archsim.policies.registry import place_experts
from archsim.serving.deployment import BY_RANK, GATHERED, GATHERED_RANKS, Built, gathering_of
from archsim.serving.engine import ServingEngine
from archsim.serving.groups import DECODES as DECODE_ROW
from archsim.serving.groups import FEWEST_PROMPT_TOKENS, ExpertGroup, Gathered, Parts, Say, slots_of
from archsim.serving.requests import TokenPool, token_pool
from archsim.serving.simulate import Scheduler
from archsim.serving.tabulated import Overlap
from archsim.specs.assumptions import GATHERING, AssumptionsSpec
from archsim.specs.deployment import ParallelSpec
from archsim.specs.scenario import Scenario
from archsim.specs.serving import RoutingSpec
from archsim.specs.serving_files import EXPERTS_SIDE, Serving, refuse_unserved
from archsim.specs.workload import SyntheticSpec, SyntheticTrace, WorkloadSpec
from archsim.traffic import open_trace, traffic_presets

WITH_KERNELS = "gpu"  # launch of systems whose collectives and transfers were measured
FROM_TRAFFIC = "Experts are chosen as in traffic"  # how the note on routing begins
NOT_MOVED = " Every rank has every token (attention dp 1), so dispatch and combine take no time under any assumption."


class GroupBuilder(NamedTuple):
    """Builds the group of instance i."""

    scenario: Scenario
    pool: TokenPool
    parts: Parts
    every: int
    shared: bool  # all ranks have all tokens
    made: dict[int, ExpertGroup]  # as they begin, by instance: drawing experts takes longer than serving few requests

    def group(self, instance: int, say: Say = lambda text: None) -> ExpertGroup:
        """The group of instance i. ``say`` is called with what it draws."""
        if instance not in self.made:
            self.made[instance] = ExpertGroup(self.scenario, self.pool, self.parts, self.every, instance, say)
        return self.made[instance].copy(say)

    @property
    def note(self) -> str:
        """What stands behind the times of experts."""
        layers, sampled = len(self.scenario.model.moe_layer_ids), len(self.pool.layer_ids)
        return (
            f"{FROM_TRAFFIC} ({self.pool.label}). {sampled} of {layers} MoE layers are simulated. Every {self.every:,} "
            f"iterations, tokens are sampled again from {len(self.pool.decodes):,} decoded and "
            f"{len(self.pool.prompts):,} prompt tokens." + (NOT_MOVED if self.shared else "")
        )


def groups_of(serving: Serving, engine: ServingEngine, built: Built, scheduler: Scheduler, host: Host) -> GroupBuilder:
    """Groups of an engine under the policy that is served. Raises SpecError, TraceError."""
    spec, parallel = serving.spec.routing, engine.parallel
    assert isinstance(spec, RoutingSpec)
    _refuse_unmodelled(serving.model)
    refuse_unserved(serving.policy)
    if parallel.expert_tp > 1:
        raise SpecError(
            f"parallel.experts: tp {parallel.expert_tp}: routing from traffic places whole experts. Give ep: "
            f"{parallel.tp * parallel.dp}, or routing: uniform"
        )
    system = part_of(serving.system, parallel.ep)
    system = in_dtype(system, engine.precision.experts, engine.calibration)
    # The clock composes whole iterations (`archsim.iteration.overlap`), with the shared experts.
    apart = {"overlap": NO_OVERLAP, "weights": "routed"}
    assumptions = assumptions_of(serving, system, parallel.dp).model_copy(update=apart)
    scenario = Scenario(system, serving.model, assumptions, serving.policy, _WORKLOAD, 1)
    together = system.launch == WITH_KERNELS and (parallel.dp == 1 or assumptions.dispatch in GATHERING)
    sums = GATHERING.get(assumptions.dispatch, GATHERING[GATHERED])
    moved = gathering_of(engine, built.laws.sizes, sums) if together else None
    parts = _parts(built, scheduler, serving.model, moved, host.experts, host.moves)
    parts = parts._replace(most_decodes=parts.most_decodes * (1 + engine.drafts))
    shared = system.launch == WITH_KERNELS and parallel.dp == 1
    return GroupBuilder(scenario, pool_of(serving), parts, spec.every, shared, {})


def _parts(
    built: Built, scheduler: Scheduler, model: ModelSpec, moved: Gathered | None, factor: float, moves: float = 1.0
) -> Parts:
    """What ranks add to layers with experts. ``factor``, ``moves``: of experts and ``moved``, over their laws."""
    if moved is not None:
        moved = Gathered(moves * moved.dispatch, moves * moved.combine)
    table, ranks = built.pool.table, built.laws.parallel.dp
    rest_ns = (table.local + table.links.of_rank) / len(model.moe_layer_ids)
    most = ranks * (scheduler.max_num_batched_tokens + scheduler.max_num_seqs)
    decodes = max(ranks * scheduler.max_num_seqs, FEWEST_PROMPT_TOKENS // 2)
    return Parts(moved, rest_ns, factor, ranks, decodes, most)


def _refuse_unmodelled(model: ModelSpec) -> None:
    """Raise SpecError for experts that the engine does not run."""
    for key in model.unmodelled_experts:
        raise SpecError(f"{model.name}: {key}: {UNMODELLED}")


def groups_apart(
    serving: Serving, engine: ServingEngine, built: Built, scheduler: Scheduler, host: Host
) -> GroupBuilder:
    """Groups of an engine whose experts are on another machine (attention–FFN disaggregation). All of its devices share
    the routed and shared experts. GPUs get the vectors of their experts straight from those that have attention, as in
    MegaScale-Infer (arXiv 2504.02263, section 5); a wafer gets a vector once, and its fabric spreads it. Raises
    SpecError, TraceError; CapacityError where the experts do not fit.
    """
    routing, apart, model, parallel = serving.spec.routing, serving.spec.experts_on, serving.model, engine.parallel
    assert isinstance(routing, RoutingSpec) and apart is not None
    _refuse_unmodelled(model)
    refuse_unserved(serving.policy)
    there = serving.on(EXPERTS_SIDE)
    system, assumptions = there.system, there.assumptions
    given = serving.spec.precision.experts
    if given not in (None, system.compute.dtype):
        raise SpecError(
            f"precision.experts: {given}: the experts have the dtype of their machine, {system.name}: "
            f"{system.compute.dtype}. Leave it out, or give the machine another compute.dtype and peak"
        )
    straight = system.launch == WITH_KERNELS
    changed = {"overlap": NO_OVERLAP, "weights": "all" if model.shared_experts else "routed"}
    if straight:
        changed["activations"] = "ignored"
    assumptions = assumptions.model_copy(update=changed)
    placement = place_experts(serving.policy, model, system.dies)
    counted = assumptions.model_copy(update={"memory": "experts"})
    fit = memory.memory_fit(system, model, counted, placement)
    if not fit.fits:
        needed = int(fit.demand_bytes.max())
        raise CapacityError(
            f"disaggregated.decode.experts_on: {model.name} does not fit on {system.name}: its experts need "
            f"{needed / 1e9:.1f} GB of a device, which has {fit.bound_bytes / 1e9:.1f} GB. It would fit with about "
            f"{-(-needed * system.dies // fit.bound_bytes)} devices or more instead of {system.dies}"
        )
    pool, layers = pool_of(serving), len(model.moe_layer_ids)
    copies = _devices_of_token(pool, placement) if straight else 1.0
    sizes = vector_bytes(model.hidden, system.compute.dtype, assumptions.combine)
    links, each = apart.links, np.arange(built.laws.sizes)
    # Of the fuller side: a rank's tokens over the links of its devices, or those of all ranks over the others' links.
    fuller = np.maximum(each / parallel.tp, each * parallel.dp / (links.expert_links or system.dies))

    def carry(n_bytes: int) -> np.ndarray:
        ns = links.latency_ns + fuller * copies * n_bytes / links.bandwidth_bytes_per_s * NS_PER_S
        return layers * np.where(each > 0, ns, 0.0)

    moved = Gathered(carry(sizes.dispatch), carry(sizes.combine))
    scenario = Scenario(system, model, assumptions, serving.policy, _WORKLOAD, 1)
    factor = host.experts if straight else 1.0
    parts = _parts(built, scheduler, model, moved, factor)._replace(inside=True)
    return GroupBuilder(scenario, pool, parts, routing.every, False, {})


def _devices_of_token(pool: TokenPool, placement) -> float:
    """Devices that hold some of a token's experts, each counted once: mean over the decodes of the traffic."""
    found = []
    for layer in range(pool.decodes.shape[1]):
        dies = np.sort(placement.home[min(layer, len(placement.home) - 1)][pool.decodes[:, layer]], axis=1)
        found.append(1 + (np.diff(dies, axis=1) > 0).sum(axis=1).mean())
    return float(np.mean(found))


class Busy(NamedTuple):
    """Shares of the time of a layer in which each stage of decodes with experts apart works."""

    attention: float
    there: float
    experts: float
    back: float


def busy_of(built: Built, table: np.ndarray, decodes: float, context: float) -> Busy:
    """How busy each stage is, ``decodes`` requests of ``context`` tokens a rank. table: EXPERTS[phase, point]."""
    beside, ranks = built.pool.table.beside, built.laws.parallel.dp
    part = max(decodes / float(beside.parts), 1.0)
    one, none = np.ones(1), np.zeros(1)
    times = iteration_times(built.laws, Batches(part * one, context * one, none, one, one, part * one))
    own = float(sum(ns[0] for cause, ns in times.ns.items() if cause not in (EXPERTS, *ONCE))) * float(beside.moe_share)
    at = np.log2(max(part * ranks, 1.0))
    points = np.arange(table.shape[1])
    ns = float(np.exp(np.interp(at, points, table[DECODE_ROW]["ln_ns"])))
    there, back = (ns * float(np.interp(at, points, table[DECODE_ROW][way])) for way in ("dispatch", "combine"))
    experts, parts = ns - there - back, float(beside.parts)
    whole = micro_batched.py_func(parts, float(beside.moe_layers), own, there, experts, back)
    return Busy(*(parts * each / whole for each in (own, there, experts, back)))


def in_dtype(system: SystemSpec, dtype: str, calibration: CalibrationSpec) -> SystemSpec:
    """The machine whose experts have this dtype, at its calibration's relative peak. Raises SpecError without one."""
    own, peaks = system.compute.dtype, calibration.reference.peak_flop_per_s
    if dtype == own:
        return system
    if dtype not in peaks or own not in peaks:
        raise SpecError(
            f"precision.experts: {dtype}: calibration {calibration.gpu} has no peak of it beside {own}, the dtype of "
            f"{system.name}. Give routing: uniform, or a machine whose compute.dtype and peak are those of the experts"
        )
    peak = system.compute.peak_flop_per_s * peaks[dtype] / peaks[own]
    compute = system.compute.model_copy(update={"dtype": dtype, "peak_flop_per_s": peak})
    return system.model_copy(update={"compute": compute})


def part_of(system: SystemSpec, ranks: int) -> SystemSpec:
    """The devices of one engine. Raises SpecError where they are no part of the system."""
    if system.dies == ranks:
        return system
    levels = system.fabric.levels if system.fabric is not None else ()
    for whole in range(1, len(levels)):
        if prod(level.size for level in levels[:whole]) == ranks:
            return _with_levels(system, levels[:whole])
    sizes = [level.switch or 0 for level in levels]
    if sizes and all(sizes):
        if ranks <= sizes[0]:
            return _with_levels(system, (levels[0].model_copy(update={"switch": ranks}),))
        nodes, rest = divmod(ranks, sizes[0])
        if len(levels) > 1 and not rest:
            return _with_levels(system, (levels[0], levels[1].model_copy(update={"switch": nodes})))
    raise SpecError(
        f"parallel: {ranks} ranks are no part of {system.name} ({system.shape}); an engine takes all {system.dies} dies"
        + (", or some of a node, or whole nodes" if levels else "")
    )


def _with_levels(system: SystemSpec, levels) -> SystemSpec:
    assert system.fabric is not None
    return system.model_copy(update={"fabric": system.fabric.model_copy(update={"levels": levels})})


def overlap_of(serving: Serving, ranks: int, dp: int) -> Overlap:
    """What runs beside what on so many ranks. Raises SpecError where no kernels follow each other."""
    given = serving.assumptions
    if given.overlap == NO_OVERLAP:
        return Overlap()
    if given.execution != "expert_parallel":
        raise SpecError(
            f"assumptions.overlap: {given.overlap}: execution: {given.execution} has no dispatch, kernels and combine "
            "that follow each other. Give overlap: none"
        )
    system = part_of(serving.system, ranks)
    share = sms_share(system, assumptions_of(serving, system, dp))
    return Overlap(given.overlap, share, system.compute.peak_flop_per_s)


def assumptions_of(serving: Serving, system: SystemSpec, dp: int) -> AssumptionsSpec:
    """Where all ranks of an engine have all tokens, nothing is dispatched: transfers are left out, and so are free."""
    found, given = serving.assumptions, serving.spec.assumptions
    if system.launch != WITH_KERNELS:
        return found
    if dp == 1:
        return found.model_copy(update={"activations": "replicated"})
    if given is None or (isinstance(given, dict) and not {"dispatch", "set"} & set(given)):
        several = len(system.fabric.levels) > 1 if system.fabric is not None else False
        sends = several or system.dies > GATHERED_RANKS
        return found.model_copy(update={"dispatch": BY_RANK if sends else GATHERED})
    return found


# What an engine reads of it is nothing: demand comes from requests, and KV is counted in blocks.
_WORKLOAD = WorkloadSpec(trace=SyntheticTrace(synthetic=SyntheticSpec()), batch=(1,), context=0)


def pool_of(serving: Serving) -> TokenPool:
    """The tokens of a file's traffic; read once for all engines and policies."""
    assert isinstance(serving.spec.routing, RoutingSpec)
    model, spec, trace = serving.model, serving.spec.routing, serving.routed
    if trace is not None:
        content = open_trace(str(trace), model).digest
    else:
        like = spec.synthetic_traffic.preset_of(model.name)
        content = traffic_presets.preset_digest(like) if like else ""
    return _pool(model.model_dump_json(by_alias=True), spec.model_dump_json(by_alias=True), trace, content)


@lru_cache(maxsize=4)
def _pool(model: str, spec: str, trace: Path | None, content: str) -> TokenPool:
    """``content``: digest of the files that are read, since they may change."""
    return token_pool(ModelSpec.model_validate_json(model), RoutingSpec.model_validate_json(spec), trace)


def slots_of_rank(serving: Serving, parallel: ParallelSpec) -> int:
    """Expert slots of the fullest rank under the policy that is served."""
    placement = place_experts(serving.policy, serving.model, parallel.ranks)
    return slots_of(serving.policy, placement, len(serving.model.moe_layer_ids))


def refuse_on_wafer(serving: Serving) -> None:
    """Raise SpecError for what was measured on GPUs alone."""
    if not serving.has_traffic and has_experts(serving.model):
        own = "{like: model}, or " if serving.model.name in named_files("traffic") else ""
        raise SpecError(
            f"routing: {serving.spec.routing}: fused layers were measured on GPUs; {serving.system.name} runs experts "
            f"by the engine: give routing: {own}{{synthetic: {{popularity_skew: 0}}}}"
        )
