"""A scenario: one machine serving one model's traffic under one policy and one assumption set."""

from dataclasses import dataclass

from archsim.base.errors import SpecError
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from archsim.specs.assumptions import AssumptionsSpec, own_execution
from archsim.specs.deployment import DeploymentSpec, Parallelism, Precision, refuse_cut_blocks, refuse_uneven
from archsim.specs.policies import RULE_TYPES, PolicySpec
from archsim.specs.workload import WorkloadSpec


@dataclass(frozen=True)
class Scenario:
    """What an engine simulates."""

    system: SystemSpec  # the machine
    model: ModelSpec  # the MoE model
    assumptions: AssumptionsSpec  # one value for every open question
    policy: PolicySpec  # a rule for each part
    workload: WorkloadSpec  # traffic and steps
    batch: int  # requests served together, one of ``workload.batch``
    deployment: DeploymentSpec = DeploymentSpec()  # parallel sizes and precision

    @property
    def parallel(self) -> Parallelism:
        """Parallel sizes; ``refuse_undeployed`` says whether the machine can have them."""
        return self.deployment.sizes(self.system.dies)

    @property
    def precision(self) -> Precision:
        return self.deployment.dtypes(self.system.compute.dtype, self.model)

    def refuse_undeployed(self) -> None:
        """Raise SpecError for a deployment that the machine cannot have, or that experiments do not model."""
        self.model.refuse_longer(self.workload.context_tokens or 0, "workload.context")
        if (own := getattr(own_execution(self.assumptions.execution), "refuse_undeployed", None)) is not None:
            own(self)
            return
        parallel, system, given = self.parallel, self.system, self.deployment.precision
        for key, ranks, what in (
            ("pp", parallel.stages, "stages: pipeline parallelism"),
            ("attention.context", parallel.context, "ranks share the tokens of a request: this"),
        ):
            if ranks > 1:
                raise SpecError(
                    f"parallel.{key}: {ranks} {what} is not modelled in an experiment, which runs one batch through "
                    "all layers. Leave it out, or serve the model (archsim serve)"
                )
        if self.deployment.parallel is not None and self.deployment.parallel.attention.prompts == "shared":
            raise SpecError(
                "parallel.attention.prompts: shared: ranks that share prompts are of engines that only prefill "
                "(archsim serve, disaggregated.prefill). Leave it out"
            )
        if parallel.ranks != system.dies:
            raise SpecError(
                f"parallel: attention tp {parallel.tp} x dp {parallel.dp} is {parallel.ranks} ranks, but {system.name} "
                f"has {system.dies} dies, and an experiment uses all: give attention: {{tp: {parallel.tp}, dp: "
                f"{max(system.dies // parallel.tp, 1)}}}, or a system of {parallel.ranks} dies"
            )
        if parallel.tp > 1:
            refuse_uneven(self.model, parallel, experts=False)
            refuse_cut_blocks(self.model, parallel, self.precision, experts=False)
        if parallel.expert_tp > 1:
            raise SpecError(
                f"parallel.experts: tp {parallel.expert_tp}: experiments place whole experts. Give ep: {system.dies}, "
                "or serve the model (archsim serve) with routing: uniform"
            )
        if given.experts not in (None, system.compute.dtype):
            raise SpecError(
                f"precision.experts: {given.experts}: experts of an experiment have the dtype of the system, "
                f"{system.compute.dtype}. Give the system compute: {{dtype: {given.experts}, peak: ...}}"
            )
        if "shared_experts" in (given.bf16 or ()) and self.assumptions.weights == "all" and self.model.shared_experts:
            raise SpecError(
                "precision.bf16: shared_experts: with assumptions.weights: all, shared experts run with the routed "
                f"ones, in the dtype of the system, {system.compute.dtype}. Leave it out, or serve the model "
                "(archsim serve)"
            )

    @property
    def own_functions(self) -> tuple[str, ...]:
        """The users' own functions that run, each as ``package.module:function``."""
        return own_functions(self.system, self.policy, self.assumptions)


def own_functions(system: SystemSpec, policy: PolicySpec, assumptions: AssumptionsSpec) -> tuple[str, ...]:
    """Users' functions in a scenario: rules, topology, blocks, execution, components in RTL."""
    rules = [rule.name for rule_type in RULE_TYPES if (rule := getattr(policy, rule_type)).is_function]
    topology = [system.topology.name] if system.topology.is_function else []
    executions = [assumptions.execution] if ":" in assumptions.execution else []
    return (*rules, *topology, *executions, *(block.name for block in system.blocks), *system.decision.fsm.components)
