"""A scenario: one machine that serves one model's traffic under one policy and one set of assumptions."""

from __future__ import annotations

from dataclasses import dataclass

from archsim.specs.assumptions import AssumptionsSpec
from archsim.specs.machine.system import SystemSpec
from archsim.specs.model import ModelSpec
from archsim.specs.policies import PolicySpec
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
