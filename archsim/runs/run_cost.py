"""What simulating takes on this machine, before it is spent: events, time and memory, by formula.

The constants are fits to ``benchmarks/estimates.py``, which prints estimate and measurement of runs on 3 × 3 to 9 × 9
dies beside each other, and to ``benchmarks/big_fabrics.py``: meshes of up to 64 × 64 dies, tori, rings and switches
of up to 32 × 32, fully connected dies of up to 40 × 40. Of these, events and memory are within a third; time within a
factor of `SPREAD`, without the second or two in which a command starts. A user's own fabric function may make more
links than are counted.
"""

from collections.abc import Callable
from math import exp
from typing import NamedTuple

import numpy as np

from archsim.base.errors import CapacityError, in_words, spoken
from archsim.base.host import machine_bytes
from archsim.base.sums import sum
from archsim.engine.fabrics import extent_of
from archsim.specs.engines import ENGINES
from archsim.specs.plan import Point, SweepPlan, spread
from microarch.fabric.fabric import number_type

SPREAD = 3.0  # of time, either way
_RUN_NS, _STEP_NS = 25e6, 0.5e6  # a run and a step of a layer, whatever happens in them
_EVENTS_PER_EXPERT = 20.0  # an expert's reads, multiplication and reports, under any assumptions
_EVENTS_PER_PAIR = 4.0  # hidden vectors from one die to another and back
_ROUTE_LINK_NS = 20.0  # a link of a route, when the fabric is built; 64 × 64 dies
# A link of the fabric, whose ends, class, counts and share of the network are built; fully connected dies.
_LINK_NS = {"reserved": 2e3, "shared": 4e3}
_LINK_BYTES = {"reserved": 730.0, "shared": 1440.0}
_PROCESS_BYTES = 0.3e9  # Python with its libraries and compiled kernels
# Numbers kept of a link of a route, with its edge where links are reserved; and a pair of dies: costs, counts, and
# groups of flows.
_ROUTE_LINK_NUMBERS = {"reserved": 2, "shared": 1}
_PAIR_BYTES = {"reserved": 60.0, "shared": 80.0}
_ASKED = 64  # points from which those of a sweep are estimated
_GB, _GIB = 1e9, 2**30


class RunCost(NamedTuple):
    """events: 0 for the analytical engine; host_ns: on one core, without compilation; host_bytes: of its process."""

    events: float
    host_ns: float
    host_bytes: float


def cost_of(point: Point) -> RunCost:
    """What a run takes: events of active experts at even popularity, and of pairs of dies that exchange vectors."""
    workload, kind, dies = point.workload, point.assumptions.contention, point.system.dies
    layers, (links, route_links) = len(point.model.moe_layer_ids), extent_of(point.system)
    steps = (workload.decode_steps + workload.has_prompts) * min(workload.layers or layers, layers)
    events = each_ns = 0.0
    if (event_ns := ENGINES[point.engine].event_ns) is not None:
        experts, chosen = point.model.experts, point.batch * point.model.top_k
        active = experts * (1 - exp(-chosen / experts))
        pairs = dies**2 * (1 - exp(-chosen / dies**2)) if kind == "shared" else 0.0
        events = steps * (_EVENTS_PER_EXPERT * active + _EVENTS_PER_PAIR * pairs)
        each_ns = event_ns[kind]
    return RunCost(
        events,
        _RUN_NS + steps * _STEP_NS + events * each_ns + links * _LINK_NS[kind] + route_links * _ROUTE_LINK_NS,
        _PROCESS_BYTES
        + links * _LINK_BYTES[kind]
        + route_links * _ROUTE_LINK_NUMBERS[kind] * np.dtype(number_type(links)).itemsize
        + dies**2 * _PAIR_BYTES[kind],
    )


def refuse_unheld(point: Point, bound_bytes: Callable[[], int | None] = machine_bytes) -> None:
    """CapacityError for a system whose simulation exceeds bound_bytes, the memory of this machine."""
    needed, bound = cost_of(point).host_bytes, bound_bytes()
    if bound is None or needed <= bound:
        return
    dies, (links, route_links) = point.system.dies, extent_of(point.system)
    share = (bound - _PROCESS_BYTES) / (needed - _PROCESS_BYTES)
    # Pairs of dies × links between them: the fourth power of a side, and one more in a mesh.
    side = int(dies**0.5 * max(share, 0.0) ** 0.25)
    raise CapacityError(
        f"{point.system.name}: simulating {dies:,} dies ({point.engine} engine, {point.assumptions.contention} links) "
        f"takes about {needed / _GIB:,.0f} GiB of memory, for {in_words(links)} links, {in_words(dies**2)} pairs of "
        f"dies and {in_words(route_links)} links on their routes. This machine has {bound / _GIB:,.1f} GiB, "
        f"{(needed - bound) / _GIB:,.0f} GiB too few. About {side} × {side} dies would fit"
    )


def cost_sentence(plan: SweepPlan, cores: int) -> str:
    """``about 3.2 million events, which takes 40 s to 6 min on 2 cores when compiled and 0.4 GB of memory …``"""
    of = plan.combinations
    costs = [cost_of(plan.point(index)) for index in spread(of, _ASKED)]
    at_a_time = min(cores, of)
    events = sum(each.events for each in costs) / len(costs) * of
    seconds = sum(each.host_ns for each in costs) / len(costs) * of / at_a_time / 1e9
    most, bound = max(each.host_bytes for each in costs), machine_bytes()
    low, high = (spoken(max(each, 1)) for each in (seconds / SPREAD, seconds * SPREAD))
    said = (
        f"{f'about {in_words(events)} events' if events else 'no events'}, which takes "
        f"{low if low == high else f'{low} to {high}'} on {at_a_time} {'core' if at_a_time == 1 else 'cores'} when "
        f"compiled and {most / _GB:.1f} GB of memory per process"
    )
    if bound is not None and at_a_time * most > bound:
        said += (
            f". {at_a_time} at a time would take {at_a_time * most / _GB:.0f} GB, but this machine has "
            f"{bound / _GB:.0f} GB: give --jobs {max(1, int(bound / most))}"
        )
    return said
