"""Machines in many samples: by what factor iterations take longer where numbers and laws are off. Equal sections of
systems, laws of one GPU, and variants of one design share their draws; other parts are independent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from archsim.base import errors
from archsim.base.sums import sum
from archsim.base.uncertain import Quantity
from archsim.iteration.layers import kind_of_attention
from archsim.iteration.machine import has_measured_links, is_measured
from archsim.machine.system import SystemSpec
from archsim.search.machines import Estimates, Used, Way, experiment_of, parts_of, run_of
from archsim.serving.expert_groups import WITH_KERNELS
from archsim.specs.scenario import Scenario
from archsim.specs.uncertainty import load_widths
from archsim.uncertainty.system_quantities import SystemQuantity, measured_off, quantities_of
from archsim.uncertainty.worlds import drawn, draws_of, value_of

# Table of measured laws → parts of an iteration that it times beside MoE layers (`archsim.search.machines.PARTS`).
_REST: Mapping[str, tuple[str, ...]] = {
    "gemm": ("projections", "dense", "head"), "attention": ("attention",), "sparse": ("attention",),
    "linear": ("attention",), "all_reduce": ("all_reduce",), "host": ("host",),
}  # fmt: skip


class Off(NamedTuple):
    """What may be off in a machine."""

    machine: tuple[SystemQuantity, ...]  # numbers of the system and laws of MoE layers
    rest: tuple[tuple[str, Quantity], ...]  # (table of _REST, factor) of all else

    @property
    def names(self) -> set[str]:
        return {each.quantity.draws_as for each in self.machine} | {each.draws_as for _, each in self.rest}


def off_of(scenario: Scenario, design: SystemSpec) -> Off:
    """``design``: whose parts the draws are of: the system itself, or that of which it is a variant."""
    widths, system = load_widths(), scenario.system
    machine = [
        each._replace(quantity=_of_part(each.quantity, design)) for each in quantities_of(scenario, "event", widths)
    ]
    known = {each.quantity.key.split(".")[1] for each in machine if each.quantity.key.startswith("measured.")}
    rest = [(table, each.quantity) for table in _REST for each in machine if table in known
            and each.quantity.key.startswith(f"measured.{table}.")]  # fmt: skip
    scaled = system.launch != WITH_KERNELS or not is_measured(system)
    reduced = ("all_reduce",) if system.launch == WITH_KERNELS else ()
    for table in ("gemm", kind_of_attention(scenario.model), *reduced):
        if table in known:
            continue
        other = scaled or (table == "all_reduce" and not has_measured_links(system))
        way = "scaled" if other else "fit" if table == "all_reduce" else "nearest_shape"
        rest += [(table, _of_part(each, design)) for each in measured_off(widths, table, way, scenario.model.name)]
    host = widths.defaults["host"]
    rest.append(("host", _of_part(Quantity("system.decision.whole", 1.0, "", host.source, host.of(1.0)), design)))
    return Off(tuple(machine), tuple((table, each) for table, each in rest if not each.exact))


def _of_part(quantity: Quantity, design: SystemSpec) -> Quantity:
    """With a draw that only machines with the same part share."""
    name = quantity.draws_as
    if quantity.key.startswith("measured."):
        part: Any = design.compute.calibration
    else:
        section = "compute" if name.startswith("kernels.") else name.split(".")[1]
        section = "d2d" if section == "fabric" else section
        found = design.model_dump(mode="json", by_alias=True)
        part = [found.get(each) for each in (("d2d", "fabric") if section == "d2d" else (section,))]
        if section == "d2d" and design.fabric is not None:
            part = [[level.bandwidth_bytes_per_s, level.hop_latency_ns, level.law] for level in design.fabric.levels]
    digest = hashlib.sha256(json.dumps(part, sort_keys=True, default=str).encode()).hexdigest()[:8]
    return replace(quantity, group=f"{name}@{digest}")


def shared_parts(one: SystemSpec, other: SystemSpec) -> tuple[list[str], list[str]]:
    """(sections that are the same in both, sections that differ), of those that are drawn."""
    a, b = (each.model_dump(mode="json", by_alias=True) for each in (one, other))
    same = [name for name in ("hbm", "d2d", "compute", "llc") if a.get(name) == b.get(name)]
    return same, [name for name in ("hbm", "d2d", "compute", "llc") if name not in same]


def draws(offs: Sequence[Off], samples: int) -> dict[str, np.ndarray]:
    """Name of a draw → float64[world]."""
    return draws_of(sorted(set().union(*(each.names for each in offs))), samples)


class InWorlds(NamedTuple):
    """What times batches in worlds."""

    estimates: Estimates
    off: Off
    drawn: Mapping[str, np.ndarray]

    def batches(self, way: Way, batches: Sequence[int], among: Sequence[int]) -> np.ndarray:
        """float64[world, batch] ns of an iteration over that without a draw; NaN where it cannot hold a limit of power.
        ``among``: the samples.
        """
        of = self.estimates
        runs = [run_of(experiment_of(of.base, way, each, of.requests, context=of.context), False) for each in batches]
        own = [sum(parts_of(simulator.iteration(run)).values()) for run, simulator in runs]
        found = np.empty((len(among), len(batches)))
        for row, world in zip(found, among, strict=True):
            system = drawn(runs[0][0].system, self.off.machine, self.drawn, world)
            for at, (run, simulator) in enumerate(runs):
                try:
                    row[at] = self._longer(parts_of(simulator.iteration(replace(run, system=system))), world)
                except errors.CapacityError:
                    row[at] = np.nan
        return found / own

    def _longer(self, parts_ns: Mapping[str, float], world: int) -> float:
        factors = dict.fromkeys(parts_ns, 1.0)
        for table, quantity in self.off.rest:
            for part in _REST[table]:
                factors[part] *= value_of(quantity, self.drawn, world)
        return sum(ns * factors[part] for part, ns in parts_ns.items())


def factors_of(used: Used, anchors: Sequence[int], known: np.ndarray) -> np.ndarray:
    """float64[world, batch], interpolated in logarithms between ``anchors``; ``known: float64[world, anchor]``."""
    at, every = np.log(np.array(anchors, float)), np.log([each.batch for each in used.batches])
    return np.exp(np.stack([np.interp(every, at, one) for one in np.log(known)]))
