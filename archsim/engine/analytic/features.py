"""What the law (``archsim.engine.analytic.law``) needs of a run's steps: loads of dies, HBMs and links, from one pass over its plans.

A pass is an analytical run at *reference* rates. Everything in ``Features`` is in ns at those rates; design points that share
traffic, plans and caches with it differ in rates alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from archsim.base.kernels import inner, kernel, outer
from archsim.engine.analytic.count import OF_COMBINE, OF_DISPATCH, OF_SLICES
from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.analytic.slices import ARRAYS, FROM_HOME_HBM, FROM_HOME_LLC, FROM_LLC, HBMS, route_group
from archsim.engine.state import COMBINE, DISPATCH, SLICES

# Rows of ``Features.dies``, float64[step, field, die].
FIELDS = (
    "compute",  # all that the array computes
    "routed",  # what of it waits for dispatched tokens
    "slice",  # one slice, on average
    "hbm",  # the most loaded HBM of those that the die's slices come from, hidden vectors of dispatch included
    "link",  # the most loaded link on the ways of its slices, likewise
    "slots_llc",  # look-ups of its slices, over the slices in flight
    "slots_hbm",  # HBM latencies, likewise
    "slots_route",  # latencies of routes there and back, likewise
    "fill",  # a slice's own latency over those three together: slices in flight over slices
    "in_hbm",  # dispatch: the most loaded HBM on the ways of the die's tokens
    "in_link",
    "in_route",  # the longest latency of them
    "out_hbm",  # combine: likewise, on the ways of its results
    "out_link",
    "out_route",
    "in_any",  # 1 where tokens are sent to the die
    "out_any",
)
(COMPUTE, ROUTED, SLICE, HBM, LINK, SLOTS_LLC, SLOTS_HBM, SLOTS_ROUTE, FILL, IN_HBM, IN_LINK, IN_ROUTE, OUT_HBM, OUT_LINK,
 OUT_ROUTE, IN_ANY, OUT_ANY) = (np.int64(i) for i in range(len(FIELDS)))
# Columns of ``Features.most``, float64[step, column].
MOST = ("hbm", "link")  # the most loaded HBM and link of the step, all phases


@dataclass(frozen=True)
class Features:
    """Steps of a run at reference rates, in ns.

    ``dies: float64[step, FIELDS, die]``; ``most: float64[step, MOST]``; ``walked_ns: float64[step]`` what the walk took;
    ``exposed_ns: float64[step]`` what decisions added; ``decode: bool[step]`` whether the step is one of decode.
    """

    dies: np.ndarray
    most: np.ndarray
    walked_ns: np.ndarray
    exposed_ns: np.ndarray
    decode: np.ndarray


def features_of(system, model, policy_spec, assumptions, demand, routing=None) -> Features:
    """Run the analytical engine at the system's rates and keep what the law needs of every step."""
    dies, most, walked_ns = [], [], []

    def watch(work, walked, loads):
        row = np.zeros((len(FIELDS), engine.machine.dies))
        fill_dies(engine.machine, work, walked.fetches, loads, row)
        every = loads.sum(axis=0)
        hbms, links = every[HBMS * len(row[0]) : ARRAYS * len(row[0])], every[(ARRAYS + 1) * len(row[0]) :]
        dies.append(row)
        most.append((hbms.max(), links.max(initial=0.0)))
        walked_ns.append(walked.ns)

    engine = AnalyticalEngine(system, model, policy_spec, assumptions, demand, routing, watch)
    exposed_ns, decode = [], []
    for result in engine.steps():
        exposed_ns.append(result.exposed_ns)
        decode.append(not (result.step == 0 and demand.has_prefill))
    shape = len(walked_ns), len(FIELDS), engine.machine.dies
    return Features(
        np.array(dies).reshape(shape), np.array(most).reshape(-1, len(MOST)), np.array(walked_ns), np.array(exposed_ns),
        np.array(decode, bool),
    )  # fmt: skip


@inner
def _most(loads, phase, resource):
    return loads[OF_SLICES, resource] * (phase == OF_SLICES) + (
        loads[OF_COMBINE, resource] if phase == OF_COMBINE else loads[OF_DISPATCH, resource]
    )


@outer
def _raise_route(machine, loads, phase, src, dst, row, field, die):
    """Raise ``row[field]`` to the most loaded link between two dies."""
    route = route_group(machine, src, dst)
    for i in range(machine.group_ptr[route], machine.group_ptr[route + 1]):
        row[field, die] = max(row[field, die], _most(loads, phase, machine.group_resources[i]))


@outer
def _add_moves(machine, moves, loads, phase, row, hbm_field, any_field):
    """Of dispatch by target, of combine by source. The three fields of a phase follow each other: HBM, link, route."""
    for move in moves:
        die = move.dst if phase == OF_DISPATCH else move.src
        row[any_field, die] = 1.0
        for end in (move.src, move.dst):
            row[hbm_field, die] = max(row[hbm_field, die], _most(loads, phase, HBMS * machine.dies + end))
        _raise_route(machine, loads, phase, move.src, move.dst, row, hbm_field + 1, die)
        row[hbm_field + 2, die] = max(row[hbm_field + 2, die], machine.route_ns[move.src, move.dst])


@kernel
def fill_dies(machine, work, fetches, loads, row):
    """Fill ``row: float64[FIELDS, die]``, zero before, for a step that was walked."""
    for chain in range(len(fetches)):
        entry, way = work.entries[chain // SLICES], fetches[chain].way
        die = entry.die
        row[COMPUTE, die] += entry.compute_ns
        row[ROUTED, die] += entry.compute_ns * entry.routed
        row[SLICE, die] += 1.0  # counted first
        row[SLOTS_HBM, die] += fetches[chain].unknown * machine.hbm_latency_ns
        if way == FROM_LLC:
            row[SLOTS_LLC, die] += machine.llc_hit_ns
            continue
        row[SLOTS_LLC, die] += machine.llc_miss_ns + machine.llc_hit_ns * (way == FROM_HOME_LLC)
        row[SLOTS_HBM, die] += machine.hbm_latency_ns * (way != FROM_HOME_LLC)
        if way != FROM_HOME_LLC:
            source = entry.home if way == FROM_HOME_HBM else die
            row[HBM, die] = max(row[HBM, die], _most(loads, OF_SLICES, HBMS * machine.dies + source))
        if way >= FROM_HOME_LLC:
            row[SLOTS_ROUTE, die] += machine.route_ns[die, entry.home] + machine.route_ns[entry.home, die]
            _raise_route(machine, loads, OF_SLICES, entry.home, die, row, LINK, die)
    for die in range(machine.dies):
        slices = row[SLICE, die]
        if slices > 0:
            window = min(float(machine.window), slices)
            for field in (SLOTS_LLC, SLOTS_HBM, SLOTS_ROUTE):
                row[field, die] /= window
            row[FILL, die], row[SLICE, die] = window / slices, row[COMPUTE, die] / slices
    _add_moves(machine, work.moves[DISPATCH], loads, OF_DISPATCH, row, IN_HBM, IN_ANY)
    _add_moves(machine, work.moves[COMBINE], loads, OF_COMBINE, row, OUT_HBM, OUT_ANY)
