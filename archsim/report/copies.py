"""What prediction did with copies of experts: bytes written, saved and evicted by every run; and runs whose copies
exceed HBM capacity, under assumptions that do not bound them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from archsim.iteration.memory import memory_fit
from archsim.policies.placement.placement import Placement
from archsim.policies.placement.rules import balanced
from archsim.report.data import Place, Report, RunRow
from archsim.specs.machine.system import SystemSpec
from archsim.specs.model import ModelSpec


@dataclass(frozen=True)
class Copied:
    """What a run did with copies, in bytes over its counted steps. ``saved``: what dies read from their own copies
    instead of another die's HBM; ``decode_step_ns``: mean time of a decode step over all layers, None without decode.
    """

    run: RunRow
    written: float
    saved: float
    evicted_unused: float
    evicted_used: float
    held: float
    decode_step_ns: float | None

    @property
    def saved_over_written(self) -> float | None:
        return self.saved / self.written if self.written else None


def copied(report: Report) -> list[Copied]:
    """The runs that wrote or held copies, in the order of places, batches and policies; empty for folders of older
    versions.
    """
    runs = [run for place in report.places() for run in report.at(place) if run.get("copies_held_bytes") is not None]
    return [_copied(run) for run in runs if run["local_hbm_write_bytes"] or run["replicas_max_bytes_per_die"]]


def _copied(run: RunRow) -> Copied:
    parts = [run[f"copies_{name}_bytes"] for name in ("saved", "evicted_unused", "evicted_used", "held")]
    steps = run["decode_steps"]
    return Copied(run, run["local_hbm_write_bytes"], *parts, run["decode_ns"] / steps if steps else None)


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
