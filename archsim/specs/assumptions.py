# ruff: noqa: E501  (one row a column: a table is read across)
"""Modelling assumptions: every choice that changes a number is a field with a documented set of values.

:data:`ASSUMPTIONS` is their only table; ``archsim list assumptions`` prints it and docs/assumptions.md repeats it (a
test compares the two). The two named sets, ``physical`` and ``published``, are files in configs/assumptions.
"""

from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator, model_validator

from archsim.base.nearest import did_you_mean
from archsim.base.text.fields import KeyProblem, Name, Spec, count
from archsim.base.text.quantities import describe
from archsim.base.text.validation import validate
from archsim.base.text.yaml import read_yaml
from archsim.specs.loading.config_files import shipped_configs
from archsim.specs.machine.system import Efficiency
from archsim.specs.model import ModelSpec
from archsim.specs.own_execution import own_execution
from archsim.specs.policies import PolicySpec

ASSUMPTIONS: MappingProxyType[str, MappingProxyType[str, str]] = MappingProxyType(
    {
        field: MappingProxyType(values)
        for field, values in {
            "execution": {
                "weight_streaming": (
                    "A die fetches the weight slices of the experts that it runs, and computes as they arrive."
                ),
                "expert_parallel": "A die keeps its experts and runs them as one grouped kernel between a dispatch and a combine of "
                "hidden vectors, which pass the ports of GPUs and nodes as measured kernels do; a barrier ends the layer.",
            },
            "contention": {
                "shared": "Links are full duplex. Concurrent transfers share links and HBM, and rates are recomputed whenever a "
                "transfer starts or ends; latency is added per hop.",
                "reserved": "A transfer holds every link of its path, in both directions, from start to end; LLC ports, HBM and "
                "compute units are held likewise, and one stage is booked ahead (published simulator).",
            },
            "arbitration": {
                "fair": "Transfers that share a link or HBM get max-min fair rates.",
                "round_robin": "At every link, input ports take turns, however many transfers wait behind each; within "
                "a port, traffic leaves in the mix in which it arrived.",
            },
            "reads": {
                "in_order": "What a die reads from one HBM arrives slice by slice, in the order of its requests; the LLC gives "
                "room segment by segment, half of it to slices on their way, half to slices that it keeps.",
                "together": "All slices that a die has asked for arrive side by side, and share links and HBM like those of other "
                "dies; the whole LLC is room for them, slice by slice, and for slices that it keeps.",
            },
            "capacity": {
                "finite": "Homes and copies must fit in 90 % of HBM. Homes are never evicted, copies by LRU; a model that does "
                "not fit is refused.",
                "unbounded": "HBM holds any number of copies, and they are never evicted.",
            },
            "memory": {
                "experts": "Experts alone take HBM. KV cache, attention and all else are assumed to fit in `hbm.reserved`.",
                "all": "KV cache, attention, dense layers, embeddings and activations take HBM beside experts; `hbm.reserved` is what "
                "the runtime keeps beyond them.",
            },
            "activations": {
                "dispatched": "Tokens live on a home die. Hidden vectors go to the executing die and results come back, over the "
                "same links and through HBM.",
                "ignored": (
                    "Activations do not cross the mesh. Local HBM reads of weights include them, remote reads do not."
                ),
            },
            "dispatch": {
                "per_token_expert": "A hidden vector is sent once for every token and expert (on a GPU: DeepEP's low_latency kernels).",
                "per_rank": "A hidden vector is sent once for every token and die that runs some of its experts, and partial "
                "results are summed before they return (on a GPU: DeepEP's normal kernels).",
                "all_to_all": "As per_token_expert, by NCCL's all-to-all (execution: expert_parallel).",
                "all_to_all_padded": "As all_to_all, of equal parts: what a rank sends to another is padded to the largest of all (execution: expert_parallel).",
                "all_gather": "Every die gets every token by an all-gather, and a reduce-scatter sums the results (execution: expert_parallel).",
            },
            "overlap": {
                "none": "Dispatch, shared experts, routed experts and combine follow each other (execution: expert_parallel).",
                "shared_expert": "Shared experts run while hidden vectors are dispatched.",
                "two_batch": "The tokens of a step are two halves; while one half computes, hidden vectors of the other move.",
            },
            "combine": {
                "bf16": "Hidden vectors are dispatched in the dtype of the weights, FP8 with a scale for every 128 values; "
                "results return in BF16.",
                "weights_dtype": "Hidden vectors and results have the dtype of the weights, without scales.",
            },
            "transfer_software": {
                "charged": "Starting a transfer of hidden vectors takes time, and a die's port passes at most what the kernel "
                "achieves: as measured on a GPU (launch: gpu), or a cycle a bundle (launch: local_cp).",
                "free": "Hidden vectors move at the rates of HBM and links, as soon as they may.",
            },
            "decision_cost": {
                "charged": "Whatever cannot overlap with the previous step or the step itself is on the critical path: demand to the "
                "Global CP, its decision, commands to the dies, reports back. cp_en bits act once they arrive.",
                "free": "Allocation and prediction take no time.",
            },
            "heatmap_update": {
                "limited": "The heatmap accepts as many pairs as its port can update during the step, in request order; the others are "
                "dropped and counted. Counters have 16 bits; when one is full, its row is halved.",
                "free": "The heatmap accepts every pair of a step at once.",
            },
            "weights": {"all": "Shared experts run too: every die runs them for its own tokens.", "routed": "Only routed experts run."},
            "llc": {
                "segments": "Weights stream through the LLC in segments; as many slices are in flight as fit, and compute "
                "starts with the first segment.",
                "slices": "One line holds a slice. Sets of 2 ways, set = expert id mod sets, LRU by store.",
            },
            "hops": {"all": "Data and requests both count, each with its Manhattan distance.", "requests": "Only request messages count, each with its Manhattan distance."},
            "source": {"interleaved": "The outgoing transfers of a die share its HBM and links.", "queued": "The outgoing transfers of a die are served one at a time."},
            "gemm": {
                "tables": "Expert GEMMs reach the share of peak that the published simulator's tables list for their number of "
                "tokens.",
                "roofline": "Expert GEMMs run at a fixed share of peak compute (the system's compute.efficiency); the memory side of "
                "the roofline is simulated, not assumed.",
                "calibrated": "Expert GEMMs take the time that was fitted to measurements of the GPU that the system's compute.calibration "
                "names, scaled to the die's peak and HBM; reading the weights is subtracted, as the engine simulates "
                "it.",
                "grouped": "The routed experts of a die are one kernel a step, launched once by what the system's launch names. It takes the "
                "time fitted to measured fused MoE layers, for the die's tokens and active experts, scaled as for calibrated; weights "
                "arrive as the engine simulates it.",
            },
            "numbering": {"row_major": "Die id = x + X·y.", "column_major": "Die id = y + Y·x; homes, and ties broken by die id, follow it (published simulator)."},
            "order": {
                "local_first": (
                    "A die first runs sub-kernels whose weights it holds, then the others as their operands arrive."
                ),
                "as_created": "A die runs sub-kernels by expert id, then by plan entry, then by slice.",
            },
            "tables": {
                "finite": "The ATU of a die holds one expert per entry and evicts the least recently used; a miss costs one HBM "
                "latency.",
                "unbounded": "The ATU holds all experts.",
            },
            "copy_writes": {
                "barrier": "A step ends when its copies are written, too.",
                "background": "A step does not wait for its copies to be written; bytes still to be written share the HBM with "
                "the next step.",
            },
            "prediction_rows": {
                "all": "The predictor reads the heatmap rows of all experts that a die runs in the step.",
                "until_own_id": "Its list of experts ends at the one whose id equals the die's, if there is one (an error in the "
                "published simulator).",
            },
            "migration": {
                "overlapped": "Weights that a balancer moves use what steps leave of links and HBM; a new placement holds once they have "
                "arrived, and replicas for a layer are waited for where the step before did not leave enough.",
                "blocking": "The next step waits until the weights that a balancer moves have arrived over the links and through HBM.",
                "free": "Weights that a balancer moves take no time.",
            },
            "throughput": {
                "generated": "Tokens that the decode steps generate, divided by their time.",
                "nominal": "Batch times iterations, including the prefill and requests that end early, divided by the time of the "
                "decode steps (published simulator).",
            },
            "ties": {
                "sequence": "Simultaneous events happen in the order in which they were scheduled.",
                "heapq": "Simultaneous events happen in the order in which binary heaps that work like Python's heapq "
                "pop them (published simulator).",
            },
        }.items()
    }
)


ONLY_OF_GROUPS = (
    "all_to_all", "all_to_all_padded", "all_gather"
)  # ways to dispatch that only execution: expert_parallel has
OPEN = ("execution",)  # may also name a user's own package.module:class


class AssumptionsSpec(Spec):
    """One value of every assumption; ``set`` names the set they started from."""

    set: Name
    execution: str = "weight_streaming"
    contention: str
    arbitration: str
    reads: str
    capacity: str
    memory: str
    activations: str
    dispatch: str
    overlap: str = "none"
    combine: str
    transfer_software: str
    decision_cost: str
    heatmap_update: str
    weights: str
    llc: str
    hops: str
    source: str
    gemm: str
    numbering: str
    order: str
    tables: str
    copy_writes: str = "barrier"
    prediction_rows: str
    migration: str
    throughput: str
    ties: str

    @field_validator(*ASSUMPTIONS, mode="before")
    @classmethod
    def _documented(cls, value: Any, info: ValidationInfo) -> str:
        field = info.field_name or ""
        valid = ASSUMPTIONS[field]
        if isinstance(value, str) and field in OPEN and ":" in value:
            if info.context:
                own_execution(value)
            return value
        if isinstance(value, str) and value in valid:
            return value
        listed = f"valid: {', '.join(valid)}"
        if not isinstance(value, str):
            raise ValueError(f"expected one of its values, not {describe(value)}; {listed}")
        raise ValueError(f"unknown value {value!r}{did_you_mean(value, valid)} ({listed})")

    @model_validator(mode="after")
    def _moved_by_the_execution(self) -> "AssumptionsSpec":
        if self.dispatch in ONLY_OF_GROUPS and self.execution == "weight_streaming":
            raise KeyProblem(
                ("dispatch",),
                f"{self.dispatch} needs execution: expert_parallel; with weight_streaming take per_rank or "
                "per_token_expert",
            )
        return self

    def needs_origins(self, model: ModelSpec) -> bool:
        """Whether a step needs the die on which each token lives: to send its hidden vector, or to run shared experts
        there; ranks of an expert-parallel group always do.
        """
        groups = self.activations == "dispatched" or self.execution == "expert_parallel"
        return groups or (self.weights == "all" and model.shared_experts > 0)

    def simulated(self, policy: PolicySpec) -> "AssumptionsSpec":
        """The set without what one simulation of a policy serves alike: fields that only count its results, and those
        that do nothing under the others or for this policy.
        """
        inert = {"set": "any", "hops": "all", "throughput": "generated"}
        if self.contention == "reserved":
            inert |= {"arbitration": "fair", "reads": "together"}  # of shared links and HBM
        else:
            inert["ties"] = "sequence"  # heaps are of the reserved links alone
        if self.execution == "weight_streaming":
            inert["overlap"] = "none"  # of dispatch and combine between groups
            if self.activations == "ignored":
                inert |= {"dispatch": "per_rank", "combine": "bf16", "transfer_software": "free"}
        if not policy.predicts:
            inert |= {"heatmap_update": "free", "prediction_rows": "all", "copy_writes": "barrier", "tables": "finite"}
        if not policy.moves_experts:
            inert["migration"] = "free"
        return self.model_copy(update=inert)

    @property
    def needs_routing(self) -> bool:
        """Whether a step counts the dies that single tokens are sent to."""
        return self.activations == "dispatched" and self.dispatch == "per_rank"

    @property
    def label(self) -> str:
        """``physical``, or ``physical+contention=reserved`` if fields differ from the shipped set of that name."""
        shipped = shipped_sets().get(self.set)
        if shipped is None:
            return self.set
        changed = [
            f"{field}={value}" for field in ASSUMPTIONS if (value := getattr(self, field)) != getattr(shipped, field)
        ]
        return "+".join([self.set, *changed])


class UtilisationSpec(Spec):
    """Shares of peak that the published simulator assumes for a model; see archsim.specs.machine.utilisation."""

    hbm: Efficiency
    # values[i] applies up to bounds[i] tokens, the last value above that.
    bounds: tuple[Annotated[int, count(1, 10_000_000)], ...]
    values: tuple[Efficiency, ...]

    @field_validator("values")
    @classmethod
    def _one_more_than_bounds(cls, values: tuple[float, ...], info: ValidationInfo) -> tuple[float, ...]:
        bounds = info.data.get("bounds", ())
        if len(values) != len(bounds) + 1 or list(bounds) != sorted(set(bounds)):
            raise ValueError("expected ascending bounds, and one more value than bounds")
        return values


class NamedSet(AssumptionsSpec):
    """A file of configs/assumptions: the values, their source, and tables that go with them."""

    origin: str = Field(min_length=1)
    # By model name; 'default' for models without a row.
    utilisation: dict[str, UtilisationSpec] = Field(default_factory=dict)


@lru_cache
def shipped_sets() -> MappingProxyType[str, NamedSet]:
    """Set name → set, from the shipped files in configs/assumptions."""
    files = sorted((shipped_configs() / "assumptions").glob("*.yaml"))
    sets = [validate(NamedSet, read_yaml(file)) for file in files]
    return MappingProxyType({each.set: each for each in sets})
