"""From a file to the groups of ranks that share its experts: their machine, their scenario, and their tokens."""

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from archsim.base.errors import SpecError
from archsim.engine.cluster.transfers import sms_share
from archsim.iteration.overlap import NONE
from archsim.policies.registry import place_experts
from archsim.serving.deployment import Built, Engine, gathered
from archsim.serving.groups import Group, Parts, Say, refuse_unserved, slots_of
from archsim.serving.simulate import Scheduler
from archsim.serving.tables import Host, Overlap
from archsim.serving.traffic import TokenPool, token_pool
from archsim.specs.assumptions import AssumptionsSpec
from archsim.specs.deployment import ParallelSpec
from archsim.specs.loading.serving import Serving
from archsim.specs.machine.system import SystemSpec
from archsim.specs.model import ModelSpec
from archsim.specs.scenario import Scenario
from archsim.specs.serving import RoutingSpec
from archsim.specs.workload import SyntheticSpec, SyntheticTrace, WorkloadSpec
from archsim.workload import open_trace
from archsim.workload.generated.traffic_presets import preset_digest

WITH_KERNELS = "gpu"  # launch of systems whose collectives and transfers were measured
NOT_MOVED = "; every rank has every token (attention dp 1), so dispatch and combine take no time, whatever is assumed"
GATHERED, BY_RANK = "all_gather", "per_rank"


class Groups(NamedTuple):
    """Builds the group of instance i."""

    scenario: Scenario
    pool: TokenPool
    parts: Parts
    every: int
    alike: bool  # all ranks have all tokens
    made: dict[int, Group]  # as they begin, by instance: drawing experts takes longer than serving few requests

    def group(self, instance: int, say: Say = lambda text: None) -> Group:
        """Of instance i; ``say``: told what it draws."""
        if instance not in self.made:
            self.made[instance] = Group(self.scenario, self.pool, self.parts, self.every, instance, say)
        return self.made[instance].copy(say)

    @property
    def note(self) -> str:
        """What stands behind the times of experts."""
        layers, sampled = len(self.scenario.model.moe_layer_ids), len(self.pool.layer_ids)
        return (
            f"experts from traffic ({self.pool.label}): {sampled} of {layers} MoE layers are simulated, with "
            f"{len(self.pool.decodes):,} decoded and {len(self.pool.prompts):,} prompt tokens, drawn anew every "
            f"{self.every} iterations" + (NOT_MOVED if self.alike else "")
        )


def groups_of(serving: Serving, engine: Engine, built: Built, scheduler: Scheduler, host: Host) -> Groups:
    """Groups of an engine under the policy that is served. Raises SpecError, TraceError."""
    spec, parallel = serving.spec.routing, engine.parallel
    assert isinstance(spec, RoutingSpec)
    refuse_unserved(serving.policy)
    if parallel.expert_tp > 1:
        raise SpecError(
            f"parallel.experts: tp {parallel.expert_tp}: routing from traffic places whole experts; give ep: "
            f"{parallel.tp * parallel.dp}, or routing: uniform"
        )
    system = part_of(serving.system, parallel.ep)
    if engine.precision.experts != system.compute.dtype:
        raise SpecError(
            f"precision.experts: {engine.precision.experts}: under routing from traffic experts have the dtype of "
            f"the system, {system.compute.dtype}; give system: {{like: {serving.system.name}, name: mine, "
            "compute: {dtype: bf16, peak: 989 TFLOP/s}}"
        )
    # The clock composes whole iterations (`archsim.iteration.overlap`), with the shared experts.
    apart = {"overlap": NONE, "weights": "routed"}
    assumptions = assumptions_of(serving, system, parallel.dp).model_copy(update=apart)
    scenario = Scenario(system, serving.model, assumptions, serving.policy, _WORKLOAD, 1)
    together = system.launch == WITH_KERNELS and (parallel.dp == 1 or assumptions.dispatch == GATHERED)
    moved = gathered(engine, built.laws.sizes) if together else None
    rest = built.pool.table.local / len(serving.model.moe_layer_ids)
    most = parallel.dp * (scheduler.max_num_batched_tokens + scheduler.max_num_seqs)
    parts = Parts(moved, rest, host.experts, parallel.dp, parallel.dp * scheduler.max_num_seqs, most)
    alike = system.launch == WITH_KERNELS and parallel.dp == 1
    return Groups(scenario, pool_of(serving), parts, spec.every, alike, {})


def part_of(system: SystemSpec, ranks: int) -> SystemSpec:
    """The devices of one engine. Raises SpecError where they are no part of the system."""
    if system.dies == ranks:
        return system
    levels = system.fabric.levels if system.fabric is not None else ()
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
    if given.overlap == NONE:
        return Overlap()
    if given.execution != "expert_parallel":
        raise SpecError(
            f"assumptions.overlap: {given.overlap}: execution: {given.execution} has no dispatch, kernels and combine "
            "that follow each other; give overlap: none"
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
        return found.model_copy(update={"dispatch": BY_RANK if several else GATHERED})
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
        like = spec.generated.preset_of(model.name)
        content = preset_digest(like) if like else ""
    return _pool(model.model_dump_json(by_alias=True), spec.model_dump_json(by_alias=True), trace, content)


@lru_cache(maxsize=4)
def _pool(model: str, spec: str, trace: Path | None, content: str) -> TokenPool:
    """``content``: digest of the files that are read, since they may change."""
    return token_pool(ModelSpec.model_validate_json(model), RoutingSpec.model_validate_json(spec), trace)


def slots_of_rank(serving: Serving, parallel: ParallelSpec) -> int:
    """Expert slots of the fullest rank under the policy that is served."""
    placement = place_experts(serving.policy, serving.model, parallel.ranks)
    return slots_of(serving.policy, placement, len(serving.model.moe_layer_ids))


def refuse_on_wafer(serving: Serving, parallel: ParallelSpec) -> None:
    """Raise SpecError for what was measured on GPUs alone."""
    system, attention = serving.system, parallel.attention
    if attention.tp > 1:
        raise SpecError(
            f"parallel.attention: tp {attention.tp}: collectives were measured on GPUs, not on {system.name}; give "
            f"{{tp: 1, dp: {system.dies}}}"
        )
    if not serving.has_traffic:
        raise SpecError(
            f"routing: {serving.spec.routing}: fused layers were measured on GPUs; {system.name} runs experts by the "
            "engine: give routing: {like: model}, or {synthetic: {popularity_skew: 0}}"
        )
