"""A scenario: one machine serving one model's traffic under one policy and one assumption set."""

from __future__ import annotations

from dataclasses import dataclass

from archsim.specs.assumptions import AssumptionsSpec
from archsim.specs.machine.system import SystemSpec
from archsim.specs.model import ModelSpec
from archsim.specs.policies import RULE_TYPES, PolicySpec
from archsim.specs.workload import WorkloadSpec


@dataclass(frozen=True)
class Scenario:
    """What an engine simulates. ``batch``: requests served together, one of ``workload.batch``."""

    system: SystemSpec
    model: ModelSpec
    assumptions: AssumptionsSpec
    policy: PolicySpec
    workload: WorkloadSpec
    batch: int

    @property
    def own_functions(self) -> tuple[str, ...]:
        """The users' own functions that run, each as ``package.module:function``."""
        return own_functions(self.system, self.policy, self.assumptions)


def own_functions(system: SystemSpec, policy: PolicySpec, assumptions: AssumptionsSpec) -> tuple[str, ...]:
    """Users' own functions in a scenario: rules of the policy, topology and blocks of the system, the execution."""
    rules = [rule.name for rule_type in RULE_TYPES if (rule := getattr(policy, rule_type)).is_function]
    topology = [system.topology.name] if system.topology.is_function else []
    executions = [assumptions.execution] if ":" in assumptions.execution else []
    return (*rules, *topology, *executions, *(block.name for block in system.blocks))
