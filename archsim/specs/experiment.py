"""An experiment: each of its system × model × batch × policy × assumption set combinations is one run."""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from archsim.base import config_files
from archsim.base.errors import did_you_mean
from archsim.base.fields import KeyProblem, Name, Spec, refuse_duplicates, with_ranges
from archsim.base.own_code import import_function
from archsim.base.validation import keys_of
from archsim.machine import system
from archsim.machine.terms import TERMS
from archsim.model.spec import UNMODELLED, ModelSpec
from archsim.specs.assumptions import AssumptionsSpec, columns_of
from archsim.specs.deployment import DeploymentSpec, ParallelSpec, PrecisionSpec
from archsim.specs.engines import ENGINES
from archsim.specs.policies import PolicySpec
from archsim.specs.workload import OF_MODEL, WorkloadSpec


class ExperimentSpec(Spec):
    """What ``archsim sweep`` runs, with every reference resolved."""

    # Key of a machine or a workload, or term of machines → where and what to write.
    WAYS: ClassVar[Mapping[str, str]] = {
        **{term: f"of a machine (systems.0): {way}" for term, way in TERMS.items() if term},
        **{key: f"write it in systems, such as [{{like: dojo, {key}: ...}}]" for key in keys_of(system.SystemSpec)},
        **{term: f"of workload: {way}" for term, way in WorkloadSpec.WAYS.items() if term not in keys_of(WorkloadSpec)},
        **{key: f"write it in workload: {{{key}: ...}}" for key in keys_of(WorkloadSpec)},
        **{key: ParallelSpec.WAYS[key] for key in ("tp", "ep", "dp", "pipeline")},
        **dict.fromkeys(("quantization", "dtype", "weights"), PrecisionSpec.WAYS["quantization"]),
        **dict.fromkeys(
            ("threshold", "interval", "replication", "placement", "balancing"),
            "it is of a policy, such as {name: mine, allocation: even, rebalancing: {name: eplb, every_steps: 64}}",
        ),
    }

    name: Name  # of the experiment
    systems: tuple[system.SystemSpec, ...] = Field(min_length=1)  # machines
    models: tuple[ModelSpec, ...] = Field(min_length=1)  # MoE models
    workload: WorkloadSpec  # traffic, batches and steps
    policies: tuple[PolicySpec, ...] = Field(min_length=1)  # each is run
    assumptions: tuple[AssumptionsSpec, ...] = Field(min_length=1)  # sets, each is run
    engine: Literal[tuple(ENGINES)] = "event"  # type: ignore[valid-type]  # that simulates
    # As in serve files; null: every device has requests of its own and its share of the experts.
    parallel: ParallelSpec | None = None
    precision: PrecisionSpec = PrecisionSpec()  # of weights, activations and KV
    # Additional result columns, measured by a user's own functions: package.module:function.
    columns: tuple[str, ...] = ()
    # Files per die and per link: kept, dropped, or kept if there are few runs (archsim.runs.store).
    details: Literal["few_runs", "kept", "dropped"] = "few_runs"

    @field_validator("systems", "models", "policies", "assumptions")
    @classmethod
    def _each_once(cls, specs: tuple[Any, ...], info: ValidationInfo) -> tuple[Any, ...]:
        kinds = {"systems": "system", "models": "model", "policies": "policy", "assumptions": "assumption set"}
        names = [spec.label if isinstance(spec, AssumptionsSpec) else spec.name for spec in specs]
        refuse_duplicates(kinds[str(info.field_name)], names)
        return specs

    @field_validator("columns")
    @classmethod
    def _known_functions(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for place, name in enumerate(names if info.context else ()):
            try:
                import_function(name)
            except ValueError as error:
                raise KeyProblem((place,), str(error)) from None
        refuse_duplicates("column", [name.partition(":")[2] for name in names])
        return names

    @cached_property
    def unread(self) -> tuple[str, ...]:
        """A sentence for each key of its file that no run reads (`archsim.specs.unread`); none without a file."""
        return ()

    @cached_property
    def limits_at(self) -> Mapping[tuple[str, str], str]:
        """(system, ``power.limit`` or another limit; '' for the system) → where its file says it, if any."""
        return {}

    @property
    def all_columns(self) -> tuple[str, ...]:
        """``columns``, and own executions that have some."""
        executions = dict.fromkeys(each.execution for each in self.assumptions if columns_of(each.execution))
        return tuple(dict.fromkeys((*self.columns, *executions)))

    @model_validator(mode="after")
    def _every_model_can_run(self) -> "ExperimentSpec":
        """Each has the layers that are asked for, experts that are modelled, and traffic."""
        for model in self.models:
            if (problem := layers_problem(model, self.workload)) is not None:
                raise KeyProblem(("workload", "layers"), problem)
        for at, model in enumerate(self.models):
            for key in model.unmodelled_experts:
                raise KeyProblem(("models", at, key), f"{model.name}: {UNMODELLED}")
        trace = self.workload.trace
        if not isinstance(trace, str) and trace.synthetic.like == OF_MODEL:
            known = config_files.named_files("traffic")
            for model in self.models:
                if model.name not in known:
                    problem = f"no traffic preset has the name of model {model.name!r}{did_you_mean(model.name, known)}"
                    raise KeyProblem(
                        ("workload", "trace", "synthetic", "like"), f"{problem} (known: {', '.join(known)}). Name one"
                    )
        return self

    @property
    def deployment(self) -> DeploymentSpec:
        """How models are spread over the devices of a system."""
        return DeploymentSpec(parallel=self.parallel, precision=self.precision)

    def __repr__(self) -> str:
        systems, models = (", ".join(each.name for each in specs) for specs in (self.systems, self.models))
        policies = ", ".join(each.name for each in self.policies)
        return f"ExperimentSpec({self.name!r}, {self.runs:,} runs of {models} on {systems} by {policies})"

    __str__ = __repr__

    @property
    def runs(self) -> int:
        lists = (self.systems, self.models, self.workload.batch, self.policies, self.assumptions)
        return math.prod(map(len, lists))

    def resolved(self) -> dict[str, Any]:
        """A tree without references and with defaults, which loads as an equal experiment."""
        dumped: dict[str, Any] = with_ranges(self, self.model_dump(mode="json", by_alias=True))
        return dumped


def layers_problem(model: ModelSpec, workload: WorkloadSpec) -> str | None:
    have = len(model.moe_layer_ids)
    if workload.layers is None or workload.layers <= have:
        return None
    return f"{workload.layers} is out of range; {model.name} has {have} MoE layers"
