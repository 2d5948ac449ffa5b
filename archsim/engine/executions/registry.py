"""Executions by name: those that archsim ships, or a user's own ``package.module:class``."""

from __future__ import annotations

from archsim.engine.executions.execution import Execution, Setup
from archsim.engine.executions.weight_streaming import WeightStreaming
from archsim.specs.policies import import_function

EXECUTIONS = {"weight_streaming": WeightStreaming}


def build_execution(name: str, setup: Setup) -> Execution:
    """The execution that the assumption ``execution`` names. Raises ValueError if a user's own cannot be imported."""
    build = import_function(name) if ":" in name else EXECUTIONS[name]
    return build(setup)
