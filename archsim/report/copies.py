"""Runs whose copies of experts exceed HBM capacity, under assumptions that do not bound them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from archsim.engine.memory_fit import memory_fit
from archsim.policies.placement.placement import Placement
from archsim.policies.placement.rules import balanced
from archsim.report.data import Place, Report
from archsim.specs.machine.system import SystemSpec
from archsim.specs.model import ModelSpec


@dataclass(frozen=True)
class Excess:
    """Runs of a place whose copies exceed capacity: the most bytes that a die stores, and the room beside its homes."""

    place: Place
    policies: tuple[str, ...]
    most_bytes: float
    room_bytes: int


def beyond_memory(report: Report) -> Iterator[Excess]:
    """Every place with such runs where ``capacity`` is unbounded; elsewhere the engine enforces the bound."""
    for place in report.places():
        if report.assumptions[place.assumptions].capacity != "unbounded":
            continue
        room = _room_bytes(report, place)
        beyond = [run for run in report.at(place) if run["replicas_max_bytes_per_die"] > room]
        if beyond:
            policies = tuple(dict.fromkeys(run.policy for run in beyond))
            yield Excess(place, policies, max(run["replicas_max_bytes_per_die"] for run in beyond), room)


def _room_bytes(report: Report, place: Place) -> int:
    """Room of a die with the fewest homes, experts spread evenly; 0 if the homes alone exceed capacity."""
    system = SystemSpec.model_validate(report.systems[place.system])
    model = ModelSpec.model_validate(report.models[place.model])
    placement = Placement.of_homes(balanced(model.experts, system.dies), len(model.moe_layer_ids), system.dies)
    return max(0, int(memory_fit(system, model, report.assumptions[place.assumptions], placement).room_bytes.max()))
