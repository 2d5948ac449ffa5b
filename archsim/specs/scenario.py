"""A scenario: one machine that serves one model's traffic under one policy and one set of assumptions."""

from __future__ import annotations

from dataclasses import dataclass

from archsim.specs.assumptions import AssumptionsSpec
from archsim.specs.machine.system import SystemSpec
from archsim.specs.model import ModelSpec
from archsim.specs.policies import PARTS, PolicySpec
from archsim.specs.workload import WorkloadSpec


@dataclass(frozen=True)
class Scenario:
    """What an engine simulates. ``batch``: requests served side by side, one of ``workload.batch``."""

    system: SystemSpec
    model: ModelSpec
    assumptions: AssumptionsSpec
    policy: PolicySpec
    workload: WorkloadSpec
    batch: int

    @property
    def own_functions(self) -> tuple[str, ...]:
        """Users' own code that runs, ``package.module:function`` each: rules of the policy, the topology, the execution, blocks of the system."""
        rules = [rule.name for part in PARTS if (rule := getattr(self.policy, part)).is_function]
        topology = [self.system.topology.name] if self.system.topology.is_function else []
        executions = [self.assumptions.execution] if ":" in self.assumptions.execution else []
        return (*rules, *topology, *executions, *(block.name for block in self.system.blocks))
