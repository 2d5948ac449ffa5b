"""What a run needs of the HBM of each die, by kind, and what is left for copies of experts.

The assumption ``memory`` says what is counted: experts alone, or all that serving keeps in HBM:

================  ==================================================================================================
experts           routed experts, whole on the dies that hold them
shared experts    under ``all`` as serving keeps them; else whole on every die, if they run (assumption ``weights``)
execution         what a user's own execution keeps (``bytes_per_die``)
attention         attention, dense layers, routers and embeddings: the die's share of its tensor-parallel group, or of
                  all dies (``workload.attention_weights``)
KV cache          of the requests that live on the die, ``workload.context`` tokens each
activations       a token of every request, or a chunk of a prompt if that is more
================  ==================================================================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import numpy as np

from archsim.base import errors, sums
from archsim.iteration import rank_memory
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from archsim.policies.placement import Placement
from archsim.specs.assumptions import AssumptionsSpec, own_execution
from archsim.specs.deployment import DeploymentSpec
from archsim.specs.scenario import Scenario
from archsim.specs.workload import WorkloadSpec
from archsim.traffic.step_demand import dies_of_requests

KV, OWN = "KV cache", "execution"
# Longer prompts are cut into steps of so many tokens: max_num_batched_tokens of vLLM's server on an H100
# (vllm/engine/arg_utils.py, default of the V1 engine).
PREFILL_CHUNK_TOKENS = 8192
ANYHOW = DeploymentSpec()


@dataclass(frozen=True)
class Fit:
    """How a run fits in the HBM of a system.
    ``parts``: kind → int64[die] bytes; ``bound_bytes``: capacity of a die without what is reserved; ``context``:
    tokens of KV cache a request, ``kv_room``: what all dies leave for KV; None if nothing but experts is counted.
    """

    parts: Mapping[str, np.ndarray]
    bound_bytes: int
    context: int | None = None
    kv_room: rank_memory.KvRoom | None = None

    @property
    def needed_bytes(self) -> int:
        """Of the KV cache, as far as the fullest die has more than the one that is fullest without it."""
        return int(self.demand_bytes.max() - (self.demand_bytes - self.parts[KV]).max())

    @property
    def demand_bytes(self) -> np.ndarray:
        """All kinds together, int64[die]."""
        return np.asarray(sums.sum(self.parts.values()))

    @property
    def fits(self) -> bool:
        """Whether it may fit: as estimated or, where an engine's memory is not known, in some samples of it."""
        if self.kv_room is not None and self.kv_room.fits(self.needed_bytes):
            return True
        return bool(self.demand_bytes.max() <= self.bound_bytes)

    def doubtful(self, what: str) -> str:
        """The note of a run that fits in some samples alone; ''."""
        return "" if self.kv_room is None else self.kv_room.doubtful(self.needed_bytes, what)

    @property
    def room_bytes(self) -> np.ndarray:
        """Bytes left for cached copies, int64[die]."""
        return np.maximum(self.bound_bytes - self.demand_bytes, 0)

    def of(self, kind: str) -> int | None:
        """Bytes of a kind on the die that has most of it; None if it is not counted."""
        return int(self.parts[kind].max()) if kind in self.parts else None


def memory_fit(
    system: SystemSpec,
    model: ModelSpec,
    assumptions: AssumptionsSpec,
    placement: Placement | np.ndarray,
    workload: WorkloadSpec | None = None,
    batch: int = 0,
    deployment: DeploymentSpec = ANYHOW,
) -> Fit:
    """Demand and bound per die. Every MoE layer of the model counts, not those that a run simulates alone.

    ``placement``: or the number of experts that each die holds in all layers together, int64[die]. ``workload``,
    ``batch``: the requests; without them, weights alone count. Raises SpecError where the KV cache must be counted and
    nothing says how many tokens a request holds.
    """
    slots = placement if isinstance(placement, np.ndarray) else placement.slots
    bound = int(system.hbm.capacity_bytes * (1 - system.hbm.reserved_fraction))
    parallel, precision = deployment.sizes(len(slots)), deployment.dtypes(system.compute.dtype, model)
    own = getattr(own_execution(assumptions.execution), "bytes_per_die", None)
    parts = {OWN: np.full_like(slots, own(system, model, batch))} if own is not None else {}
    if not counts_all(model, assumptions):
        parts[rank_memory.EXPERTS] = slots * rank_memory.expert_bytes(model, precision)
        if assumptions.weights == "all" and model.shared_experts:  # every die runs them for its own tokens
            parts[rank_memory.SHARED] = np.full_like(slots, rank_memory.shared_bytes(model, precision, 1))
        return Fit(parts, bound)
    weights = rank_memory.weights_by_kind(model, parallel, precision, slots)
    if workload is not None and workload.attention_weights == "sharded":
        weights[rank_memory.ATTENTION] = rank_memory.other_bytes(model, precision, len(slots))
    parts |= {kind: np.broadcast_to(each, slots.shape) for kind, each in weights.items()}
    if workload is None or not batch:
        return Fit(parts, bound)
    groups = np.bincount(dies_of_requests(batch, parallel.dp), minlength=parallel.dp)
    requests = np.repeat(groups, -(-len(slots) // parallel.dp))[: len(slots)]
    tokens = np.maximum(requests, PREFILL_CHUNK_TOKENS) if workload.has_prompts else requests
    collectives = system.launch == "gpu"
    parts[rank_memory.ACTIVATIONS] = rank_memory.activation_bytes(
        model, parallel, precision, tokens, requests, collectives
    )
    kv = rank_memory.request_kv(model, parallel, precision)
    share = 1 - system.hbm.reserved_fraction
    budget = rank_memory.Budget(system.hbm.capacity_bytes, share, ranks=parallel.ranks, exact=not collectives)
    room = rank_memory.room_left(parts, budget, kv)
    context = _context(workload, assumptions)
    parts[KV] = requests * ceil(kv.held_bytes(context))
    return Fit(parts, bound, context, room)


def fit_of(scenario: Scenario, placement: Placement | np.ndarray) -> Fit:
    system, model, assumptions = scenario.system, scenario.model, scenario.assumptions
    return memory_fit(system, model, assumptions, placement, scenario.workload, scenario.batch, scenario.deployment)


def counts_all(model: ModelSpec, assumptions: AssumptionsSpec) -> bool:
    """Whether more than experts is counted: the assumption says so, and the model says how large it is."""
    return assumptions.memory == "all" and not model.missing_geometry


def depends_on_requests(model: ModelSpec, assumptions: AssumptionsSpec) -> bool:
    """Whether the batch counts, too."""
    return counts_all(model, assumptions) or hasattr(own_execution(assumptions.execution), "bytes_per_die")


def _context(workload: WorkloadSpec, assumptions: AssumptionsSpec) -> int:
    context = workload.context_tokens
    if context is None and assumptions.capacity == "finite":
        raise errors.SpecError(
            "workload.context: how many tokens of KV cache a request holds is not known, as its "
            "requests have no prompts. Give it (context: 4096), give 0 to leave the KV cache out, or set the "
            "assumption memory: experts"
        )
    return context or 0
