"""Checks before anything runs: models fit into the HBM of systems, fabrics match the assumptions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from archsim.base.errors import ArchsimError, CapacityError
from archsim.engine.event.transfers import port_ranks
from archsim.engine.fabric import build_fabric
from archsim.engine.machine import Fit, memory_fit, refuse_misfit
from archsim.policies.registry import place_experts
from archsim.runs.run import Run


@dataclass(frozen=True)
class Room:
    """Memory use of a run. problem: why it is refused, or None. bounded: whether the limit applies."""

    run: Run
    fit: Fit
    bounded: bool
    problem: str | None

    @property
    def fullest_die(self) -> int:
        return int(self.fit.demand_bytes.argmax())

    @property
    def demand_bytes(self) -> int:
        return int(self.fit.demand_bytes.max())


def rooms(runs: Iterable[Run]) -> Iterator[Room]:
    """The room of every run."""
    for run in runs:
        placement = place_experts(run.policy, run.model, run.system.dies)
        fit, problem = memory_fit(run.system, run.model, run.assumptions, placement), None
        try:
            refuse_misfit(run.scenario, placement)
        except CapacityError as error:
            problem = str(error)
        yield Room(run, fit, run.assumptions.capacity == "finite", problem)


def refuse_misroutes(runs: Iterable[Run]) -> None:
    """Raises ArchsimError with a line for every fabric that the assumption ``arbitration`` of its runs does not
    support.
    """
    problems = {}
    for run in runs:
        if run.assumptions.contention == "shared" and run.assumptions.arbitration == "round_robin":
            try:
                port_ranks(build_fabric(run.system, run.assumptions.numbering))
            except ArchsimError as error:
                problems[f"{run.system.name}: {error}"] = None
    if problems:
        raise ArchsimError("\n".join(problems))
