"""A system whose rates are arrays: of many machines."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from archsim.base.units import NS_PER_S
from archsim.engine import fabrics, machine, transfer_kernels
from archsim.engine.analytic.recorded_steps import RecordedSteps, RecordingDecision
from archsim.engine.decision import global_die
from archsim.machine.system import SystemSpec
from microarch.blocks.global_cp import Reach, State, exposed_ns
from microarch.fabric.fabric import Fabric

PARTS: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        "work": (("compute", "peak"), ("compute", "efficiency"), ("hbm", "bandwidth"), ("hbm", "efficiency")),
        "links": (("d2d", "bandwidth"), ("d2d", "hop_latency"), ("d2d", "efficiency"), ("hbm", "latency")),
        "llc": (("llc", "hit"), ("llc", "miss"), ("llc", "write")),
    }
)
RATES = frozenset(key for keys in PARTS.values() for key in keys)
_FIELDS = MappingProxyType(
    {
        (block, key): next(
            name
            for name, field in SystemSpec.model_fields[block].annotation.model_fields.items()  # type: ignore[union-attr]
            if (field.alias or name) == key
        )
        for block, key in sorted(RATES)
    }
)


def with_rates(system: SystemSpec, rates: Mapping[tuple[str, str], np.ndarray], machines: int) -> SystemSpec:
    """A system that stands for many (no valid spec): each of its `RATES` is float64[machine], given or its own."""
    changed: dict[str, dict[str, np.ndarray]] = {}
    for (block, key), name in _FIELDS.items():
        value = rates.get((block, key), getattr(getattr(system, block), name))
        changed.setdefault(block, {})[name] = np.broadcast_to(np.asarray(value, np.float64), machines)
    return system.model_copy(
        update={block: getattr(system, block).model_copy(update=fields) for block, fields in changed.items()}
    )


def machines_of(system: SystemSpec) -> int:
    return int(np.size(system.hbm.latency_ns))


def pick(system: SystemSpec, at: np.ndarray) -> SystemSpec:
    rates = {key: getattr(getattr(system, key[0]), name)[at] for key, name in _FIELDS.items()}
    return with_rates(system, rates, len(at))


def one_of(system: SystemSpec, at: int) -> SystemSpec:
    """One of the machines that a system stands for, as a specification."""
    changed: dict[str, dict[str, float]] = {}
    for (block, _), name in _FIELDS.items():
        changed.setdefault(block, {})[name] = float(getattr(getattr(system, block), name)[at])
    return system.model_copy(
        update={block: getattr(system, block).model_copy(update=fields) for block, fields in changed.items()}
    )


def distinct(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Machines by values of these columns, [machine] each: the first of every kind, and that of each machine."""
    kind = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, at = np.unique(column, return_inverse=True)
        if len(values) > 1:
            _, kind = np.unique(kind * len(values) + at.reshape(-1), return_inverse=True)
            kind = kind.reshape(-1)
    _, first, of = np.unique(kind, return_index=True, return_inverse=True)
    return first, of.reshape(-1)


def by_part(system: SystemSpec, part: str) -> tuple[np.ndarray, np.ndarray]:
    return distinct(*(getattr(getattr(system, block), _FIELDS[block, key]) for block, key in PARTS[part]))


def own(values: np.ndarray) -> np.ndarray:
    """A copy in rows: kernels are compiled anew for arrays that may not be written, or that lie in columns."""
    return np.array(values, np.float64, order="C")


class Links(NamedTuple):
    """What the part ``links`` decides, of machines: fields of `archsim.engine.state.Machine`, [machine, ...] each."""

    hbm_latency_ns: np.ndarray  # float64[row]
    link_bytes_per_ns: np.ndarray  # float64[row]: of links that specify none
    hop_ns: np.ndarray  # float64[row]: of links that specify none
    link_rates: np.ndarray  # float64[row, link]: bytes per ns
    route_bytes_per_ns: np.ndarray  # float64[row, die, die]: of the narrowest link of a route
    route_ns: np.ndarray  # float64[row, die, die]: latency of a route
    transfer_ns: np.ndarray  # float64[row, 2]: before a bundle moves, dispatch and combine
    transfer_bytes_per_ns: np.ndarray  # float64[row, 2]: most that a port of a die passes


def _of_classes(fabric: Fabric, system: SystemSpec, machines: int) -> tuple[np.ndarray, np.ndarray]:
    """Bytes per ns, and latency in ns, of the classes of links, float64[machine, class] each; ports come last."""
    classes = fabrics.link_classes(system)
    if len(fabric.classes) - (fabric.ports > 0) > len(classes):
        classes += fabrics.off_carrier(system, classes)
    rates, latencies = [each.bytes_per_ns for each in classes], [each.latency_ns for each in classes]
    if fabric.ports:
        rates, latencies = [*rates, machine.endpoint_bytes_per_s(system) / NS_PER_S], [*latencies, 0.0]
    stacked = (np.stack([np.broadcast_to(each, machines) for each in of], axis=1) for of in (rates, latencies))
    return tuple(np.asarray(each, np.float64) for each in stacked)  # type: ignore[return-value]


def _sum_links(values: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Sums of ``values: float64[machine, class]``, each as often as ``count: int64[sum, class]`` says: float64[machine,
    sum]. Equal values are counted and multiplied, smaller ones come first, as in `microarch.fabric.fabric.per_route`.
    """
    order, rank = np.argsort(values, axis=1, kind="stable"), np.zeros(values.shape, np.int64)
    larger = np.diff(np.take_along_axis(values, order, axis=1), axis=1) > 0
    np.put_along_axis(rank, order[:, 1:], np.cumsum(larger, axis=1), axis=1)
    total = np.zeros((len(values), len(count)))
    firsts, of = distinct(*rank.T)
    for kind, first in enumerate(firsts):
        own_rank, own = rank[first], np.flatnonzero(of == kind)
        for each in range(own_rank.max() + 1):
            same = np.flatnonzero(own_rank == each)
            total[own] += count[:, same].sum(axis=1) * values[own, same[0]][:, None]
    return total


def links_of(recorded: RecordedSteps, system: SystemSpec) -> tuple[Links, Reach]:
    """Of all machines of a system, and how far messages of their decisions go."""
    fabric, dies, machines = recorded.fabric, recorded.fabric.dies, machines_of(system)
    rates, latencies = _of_classes(fabric, system, machines)
    kinds, pairs = rates.shape[1], dies * dies
    pair = np.repeat(np.arange(pairs), np.diff(fabric.route_ptr))
    count = np.bincount(pair * kinds + fabric.link_class[fabric.route_links], minlength=pairs * kinds)
    count = count.reshape(pairs, kinds)
    route_ns = _sum_links(latencies, count).reshape(machines, dies, dies)
    plain = np.asarray(fabrics.plain_link_bytes_per_ns(system), np.float64)
    narrowest = np.full((machines, pairs), np.inf)
    for kind in range(kinds):
        has = count[:, kind] > 0
        narrowest[:, has] = np.minimum(narrowest[:, has], rates[:, kind, None])
    narrowest[:, ~count.any(axis=1)] = plain[:, None]
    away = ~np.eye(dies, dtype=bool)
    away_ns = route_ns[:, away].min(axis=1) if dies > 1 else 0.0
    transfers = transfer_kernels.software(recorded.scenario, np.asarray(system.hbm.latency_ns + away_ns)[:, None])
    die, links = global_die(fabric), fabric.links - fabric.ports
    leaving = np.bincount(fabric.link_class[:links][fabric.link_src[:links] == die], minlength=kinds)
    bytes_per_ns = _sum_links(rates, leaving[None])[:, 0]
    if fabric.ports:
        bytes_per_ns = np.minimum(bytes_per_ns, rates[:, -1])
    software_ns, software_bytes_per_ns = (np.broadcast_to(each, (machines, 2)) for each in transfers)
    found = Links(
        *(
            own(np.asarray(each))
            for each in (
                system.hbm.latency_ns,
                plain,
                system.d2d.hop_latency_ns,
                rates[:, fabric.link_class],
                narrowest.reshape(machines, dies, dies),
                route_ns,
                software_ns,
                software_bytes_per_ns,
            )
        )
    )
    return found, Reach(route_ns[:, die].max(axis=1), np.where(bytes_per_ns > 0, bytes_per_ns, plain))


def decisions_of(recorded: RecordedSteps, reach: Reach) -> tuple[np.ndarray, np.ndarray]:
    """What decisions add to every step, float64[machine, step], and take in all, float64[machine]; in ns."""
    machines, decision = len(reach.farthest_ns), recorded.decision
    added, total = np.zeros((machines, len(recorded.works))), np.zeros((machines, len(State)))
    if isinstance(decision, RecordingDecision):
        for step, (counts, decided_ns) in enumerate(decision.decided):
            states_ns = decision.states_of(counts, decided_ns, reach)
            total += states_ns
            added[:, step] = exposed_ns(states_ns, 0.0, 0.0).sum(axis=1)
    return added, total.sum(axis=1)
