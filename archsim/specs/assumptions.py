"""Modelling assumptions: every choice that changes a number is a field with a documented set of values.

:data:`ASSUMPTIONS` (``assumptions.yaml``) is their only table; ``archsim list assumptions`` prints it and
docs/assumptions.md repeats it (a test compares the two). The two named sets, ``physical`` and ``published``, are files
in configs/assumptions.
"""

import inspect
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator, model_validator

from archsim.base import config_files, errors, fields, own_code, quantities, validation, yaml
from archsim.machine import system
from archsim.model.spec import ModelSpec
from archsim.specs import policies

# A user's own execution, ``execution: package.module:class``: what it says of itself beside running steps.
#
# All are optional attributes of the class: its docstring, for pages; ``columns``, result columns with their meanings,
# of which its method ``counted()`` gives the values; ``bytes_per_die(system, model, batch)``, what it keeps in HBM
# beside weights and KV; ``refuse_undeployed(scenario)``, in place of the usual checks of parallel sizes.


def own_execution(name: str) -> Any:
    """The class or function that an assumption ``execution`` names; None for a shipped one. Raises ValueError."""
    return own_code.import_function(name) if ":" in name else None


def meaning_of(name: str) -> str:
    """The first paragraph of its docstring."""
    text = inspect.getdoc(own_execution(name)) or "A user's own execution, without a docstring."
    return " ".join(text.partition("\n\n")[0].split())


def columns_of(name: str) -> Mapping[str, str]:
    """Result columns with their meanings; {} for those without."""
    return getattr(own_execution(name), "columns", {})


_TABLE = Path(__file__).with_suffix(".yaml")
ASSUMPTIONS: MappingProxyType[str, MappingProxyType[str, str]] = MappingProxyType(
    {field: MappingProxyType(values) for field, values in yaml.read_yaml(_TABLE, _TABLE.name).data.items()}
)

# Ways to dispatch that only execution: expert_parallel has.
ONLY_OF_GROUPS = ("all_to_all", "all_to_all_padded", "all_gather", "all_gather_all_reduce")
# Those that give every token to every die: dispatch → the collective that sums the results.
GATHERING = MappingProxyType({"all_gather": "reduce_scatter", "all_gather_all_reduce": "all_reduce"})
OPEN = ("execution",)  # may also name a user's own package.module:class


class AssumptionsSpec(fields.Spec):
    """One value of every assumption; ``set`` names the set they started from."""

    set: fields.Name  # that they started from
    execution: str = "weight_streaming"  # how a layer runs
    contention: str  # how transfers share links and HBM
    arbitration: str  # who gets a shared link
    reads: str  # order in which slices arrive
    rate_updates: str = "instant"  # when shared rates are recomputed
    endpoint: str = "unlimited"  # what a die can send and receive
    carriers: str = "one"  # how many the dies stand on
    capacity: str  # whether HBM is finite
    memory: str  # what HBM holds
    activations: str  # whether hidden vectors travel
    dispatch: str  # how often a hidden vector is sent
    overlap: str = "none"  # of dispatch, experts and combine
    combine: str  # type of the results that return
    transfer_software: str  # whether starting a transfer takes time
    decision_cost: str  # whether decisions take time
    heatmap_update: str  # how many pairs the heatmap takes in
    weights: str  # which experts run
    llc: str  # how weights pass it
    hops: str  # which messages take latency by distance
    source: str  # how the outgoing transfers of a die share
    gemm: str  # where the times of expert GEMMs come from
    numbering: str  # of dies
    order: str  # of the sub-kernels of a die
    tables: str  # whether the ATU is finite
    copy_writes: str = "barrier"  # whether a step waits for them
    prediction_rows: str  # rows that the predictor reads
    migration: str  # how weights that move share links and HBM
    throughput: str  # which tokens and times count
    ties: str  # order of simultaneous events

    @field_validator(*ASSUMPTIONS, mode="before")
    @classmethod
    def _check_value(cls, value: Any, info: ValidationInfo) -> str:
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
            raise ValueError(f"expected one of its values, not {quantities.describe(value)}; {listed}")
        raise ValueError(f"unknown value {value!r}{errors.did_you_mean(value, valid)} ({listed})")

    @property
    def counts_attention(self) -> bool:
        """Whether runs whose layers count as equal have whole iterations."""
        return self.execution == "weight_streaming" and self.memory == "all"

    @model_validator(mode="after")
    def _moved_by_the_execution(self) -> "AssumptionsSpec":
        if self.dispatch in ONLY_OF_GROUPS and self.execution == "weight_streaming":
            raise fields.KeyProblem(
                ("dispatch",),
                f"{self.dispatch} needs execution: expert_parallel; with weight_streaming take per_rank or "
                "per_token_expert",
            )
        return self

    def needs_origins(self, model: ModelSpec) -> bool:
        """Whether a step needs the die on which each token lives: to send its hidden vector, or to run shared experts
        there; ranks of an expert-parallel group always do.
        """
        received = self.activations == "dispatched" or self.receives or self.execution == "expert_parallel"
        return received or (self.weights == "all" and model.shared_experts > 0)

    @property
    def receives(self) -> bool:
        """Whether the time of a die depends on the distinct tokens that a dispatch brings it, or would bring it."""
        return self.gemm == "grouped" and self.activations != "replicated" and self.dispatch not in GATHERING

    def for_simulation(self, policy: policies.PolicySpec) -> "AssumptionsSpec":
        """The set without fields that only count the results of a policy's simulation, or do nothing for it."""
        inert = {"set": "any", "hops": "all", "throughput": "generated"}
        if self.contention == "reserved":
            inert |= {"arbitration": "fair", "reads": "together", "rate_updates": "instant"}  # of shared links and HBM
        else:
            inert["ties"] = "sequence"  # heaps are of the reserved links alone
        if self.execution == "weight_streaming":
            inert["overlap"] = "none"  # of dispatch and combine between groups
            if self.activations != "dispatched":
                inert |= {"combine": "bf16", "transfer_software": "free"}
                if not self.receives:
                    inert["dispatch"] = "per_rank"
        if not policy.predicts:
            inert |= {"heatmap_update": "free", "prediction_rows": "all", "copy_writes": "barrier", "tables": "finite"}
        if not policy.moves_experts:
            inert["migration"] = "free"
        return self.model_copy(update=inert)

    @property
    def needs_routing(self) -> bool:
        """Whether a step counts the dies that single tokens are sent to."""
        return (self.activations == "dispatched" or self.receives) and self.dispatch == "per_rank"

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


class UtilisationSpec(fields.Spec):
    """Shares of peak that the published simulator assumes for a model; see archsim.specs.assumptions."""

    # Of HBM bandwidth.
    hbm: system.Efficiency
    # Of peak compute: values[i] of a task of up to bounds[i] tokens, the last value of larger ones.
    bounds: tuple[Annotated[int, quantities.count(1, 10_000_000)], ...]
    values: tuple[system.Efficiency, ...]

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
    files = sorted((config_files.shipped_configs() / "assumptions").glob("*.yaml"))
    sets = [validation.validate(NamedSet, yaml.read_yaml(file)) for file in files]
    return MappingProxyType({each.set: each for each in sets})


# Shares of peak that the published simulator assumes (assumption ``gemm: tables``).

DEFAULT_ROW = "default"


def published_utilisation(model_name: str) -> UtilisationSpec:
    """The published simulator's table for a model; models without one get the default row, DeepSeek-V3's."""
    table = shipped_sets()["published"].utilisation
    return table.get(model_name, table[DEFAULT_ROW])
