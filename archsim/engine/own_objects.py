"""Users' classes among a system's blocks, and which engine refuses what: classes, or a state machine in RTL."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from archsim.base.errors import ArchsimError
from archsim.base.own_code import import_function
from archsim.machine import blocks
from archsim.machine.system import SystemSpec
from archsim.specs import policies
from archsim.specs.assumptions import AssumptionsSpec
from microarch.blocks.global_cp import COUNTER_BITS
from microarch.rtl import missing

INTERPRETED = "interpreted"


class OwnObject(NamedTuple):
    """A user's class: ``kind`` as in ``archsim.machine.system``; ``build`` makes one, for a run."""

    name: str
    kind: str
    build: partial[Any]
    serves: tuple[int, ...]


def objects_of(specs: Sequence[blocks.BlockSpec]) -> tuple[OwnObject, ...]:
    """The blocks of a system that are classes. Raises ValueError for one that cannot be imported."""
    named = ((spec, import_function(spec.name)) for spec in specs)
    return tuple(
        OwnObject(spec.name, kind, partial(each, **spec.params), tuple(getattr(each, "SERVES", ())))
        for spec, each in named
        if (kind := blocks.kind_of(each))
    )


def refuse_engine(engine: str, system: SystemSpec, assumptions: AssumptionsSpec, policy: policies.PolicySpec) -> None:
    """Raise ArchsimError for what the engine cannot run: block classes, RTL, or (interpreted) other executions."""
    if system.decision.executor == "fsm" and system.decision.fsm.implementation == "rtl":
        _refuse_rtl(engine, system, assumptions, policy)
    objects = objects_of(system.blocks)
    for own in objects:
        if (refuses := getattr(own.build.func, "refuse", None)) is not None:
            refuses(system)
    if engine == INTERPRETED:
        if assumptions.execution != "weight_streaming":
            raise ArchsimError(
                f"engine: interpreted runs execution: weight_streaming, not {assumptions.execution}. Take engine: event"
            )
        if assumptions.contention == "shared" and assumptions.arbitration == "head_of_line":
            raise ArchsimError(
                "engine: interpreted runs arbitration: fair and round_robin, not head_of_line. Take engine: event"
            )
        if assumptions.contention != "shared" and any(own.kind == blocks.NETWORK for own in objects):
            raise ArchsimError("blocks: a network needs contention: shared; under reserved, transfers claim links")
    elif objects:
        raise ArchsimError(
            f"blocks: {objects[0].name} is a class, with states; engine: {engine} runs functions alone. "
            "Take engine: interpreted, which runs both"
        )


def _refuse_rtl(engine: str, system: SystemSpec, assumptions: AssumptionsSpec, policy: policies.PolicySpec) -> None:
    """Raise ArchsimError for what the state machine's components cannot decide."""
    fsm = system.decision.fsm
    refused = (
        (engine != INTERPRETED, f"runs on engine: interpreted alone, not {engine}"),
        (missing() is not None, f"needs an extra. {missing()}"),
        (assumptions.decision_cost != "charged", f"needs decision_cost: charged, not {assumptions.decision_cost}"),
        (fsm.sorter != "bitonic", "needs sorter: bitonic; a merge sorter is not in RTL"),
        (fsm.comparators & (fsm.comparators - 1) != 0, f"needs a power of two of comparators, not {fsm.comparators}"),
        (
            policy.allocation.name not in ("paper", "home", "first_seen"),
            f"has an allocator for allocation: paper, not for {policy.allocation.name} of {policy.name}",
        ),
        (
            policy.prediction.is_function,
            f"has a selector for prediction: heatmap, not for {policy.prediction.name} of {policy.name}",
        ),
        (
            fsm.heatmap_port_bits % COUNTER_BITS != 0,
            f"needs a heatmap_port_bits that is a multiple of {COUNTER_BITS}, not {fsm.heatmap_port_bits}",
        ),
    )
    for is_so, why in refused:
        if is_so:
            raise ArchsimError(f"decision.fsm.implementation: rtl {why}")
