"""The flows that are under way, kept so that a start or an end touches only its own neighbourhood.

A *resource* is whatever flows share: a directed link, a die's injection or ejection port, the HBM of a die. A *group*
is all flows over the same row of resources (same source, destination and kind): they have equal rates, so a group is
held once, with the number of its flows as ``weight``. Which groups can exist is fixed when the network is built; how
many flows each has changes with `enter` and `leave`. All functions but `build_network` are numba kernels.

====================  ====================  ==========================================================================
field                 dtype[shape]          meaning
====================  ====================  ==========================================================================
``capacity``          float64[resource]     bytes/ns
``route_ptr``         int64[group + 1]      a *position* is one resource on one route; group g has positions
                                            ``route_ptr[g]:route_ptr[g + 1]``, in travelling order
``route_resources``   int32[position]       resource at a position (no resource twice on one route)
``route_group``       int32[position]       group of a position
``weight``            int32[group]          flows of a group under way
``load``              int64[resource]       flows under way through a resource
``rate``              float64[group]        result of the solvers: bytes/ns of *each* flow of the group
``touched``           int32[group]          groups entered or left since the last recompute (first ``counts[TOUCHED]``)
``component``         int32[group]          groups whose rate the last recompute wrote (first ``counts[COMPONENT]``)
``reached``           int32[resource + 1]   resources of that component (first ``counts[REACHED]``)
``user_ptr``          int64[resource + 1]   room in ``users`` for every position of a resource
``users``             int64[position]       positions of groups under way: the first ``user_count[r]`` of r's room
``user_group``        int32[position]       group of each of ``users``
``user_count``        int32[resource]
``slot``              int64[position]       where a position under way stands in ``users``
``counts``            int64[5]              lengths TOUCHED, COMPONENT and REACHED of the lists above; STAMP, the number
                                            of recomputes; UNDER_WAY, groups with a flow
====================  ====================  ==========================================================================

The other fields are scratch of the solvers. Nothing is allocated after `build_network`. Kernels bind the fields that
their loops use to local names first: reading an array out of a tuple counts references each time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from archsim.engine.state import kernel

TOUCHED, COMPONENT, REACHED, STAMP, UNDER_WAY = range(5)


class FlowNetwork(NamedTuple):
    """Structure of arrays; see the module's table."""

    capacity: np.ndarray
    route_ptr: np.ndarray
    route_resources: np.ndarray
    route_group: np.ndarray
    weight: np.ndarray
    load: np.ndarray
    rate: np.ndarray
    touched: np.ndarray
    component: np.ndarray
    reached: np.ndarray
    user_ptr: np.ndarray
    users: np.ndarray
    user_group: np.ndarray
    user_count: np.ndarray
    slot: np.ndarray
    counts: np.ndarray
    is_touched: np.ndarray  # bool[group]
    group_stamp: np.ndarray  # int64[group]: last recompute that saw the group
    resource_stamp: np.ndarray  # int64[resource]
    fixed_stamp: np.ndarray  # int64[group]: last recompute that has fixed the group's rate
    open: np.ndarray  # int32[resource]: resources that still have flows to fill
    tightest: np.ndarray  # int32[resource]: those with the least share
    left: np.ndarray  # float64[resource]: capacity not given out yet
    share: np.ndarray  # float64[resource]: left / waiting
    waiting: np.ndarray  # int64[resource]: flows whose rate is not fixed yet
    newly_fixed: np.ndarray  # int64[resource]: flows fixed in this round
    changed: np.ndarray  # int32[resource + 1]: resources with newly fixed flows


def build_network(capacity, route_ptr, route_resources) -> FlowNetwork:
    """An empty network over ``capacity: float64[resource]`` (bytes/ns) and the routes of all groups (CSR).

    Raises ValueError for a capacity that is not positive and finite, or a route that passes a resource twice.
    """
    capacity = np.ascontiguousarray(capacity, dtype=np.float64)
    route_ptr = np.ascontiguousarray(route_ptr, dtype=np.int64)
    route_resources = np.ascontiguousarray(route_resources, dtype=np.int32)
    if not np.all(np.isfinite(capacity) & (capacity > 0)):
        raise ValueError("every capacity must be positive and finite")
    groups, resources, positions = len(route_ptr) - 1, len(capacity), len(route_resources)
    route_group = np.repeat(np.arange(groups, dtype=np.int32), np.diff(route_ptr))
    if len(np.unique(route_group.astype(np.int64) * resources + route_resources)) < positions:
        raise ValueError("a route passes the same resource twice")
    user_ptr = np.concatenate([[0], np.cumsum(np.bincount(route_resources, minlength=resources))]).astype(np.int64)

    zeros = np.zeros
    return FlowNetwork(
        capacity, route_ptr, route_resources, route_group,
        weight=zeros(groups, np.int32), load=zeros(resources, np.int64), rate=zeros(groups, np.float64),
        touched=zeros(groups, np.int32), component=zeros(groups, np.int32), reached=zeros(resources + 1, np.int32),
        user_ptr=user_ptr, users=zeros(positions, np.int64),
        user_group=zeros(positions, np.int32), user_count=zeros(resources, np.int32),
        slot=zeros(positions, np.int64), counts=zeros(5, np.int64), is_touched=zeros(groups, np.bool_),
        group_stamp=zeros(groups, np.int64), resource_stamp=zeros(resources, np.int64),
        fixed_stamp=zeros(groups, np.int64), open=zeros(resources, np.int32),
        tightest=zeros(resources, np.int32), left=zeros(resources, np.float64),
        share=zeros(resources, np.float64), waiting=zeros(resources, np.int64),
        newly_fixed=zeros(resources, np.int64), changed=zeros(resources + 1, np.int32),
    )


@kernel
def enter(net, group):
    """A flow of ``group`` starts."""
    load, users, user_group, user_ptr = net.load, net.users, net.user_group, net.user_ptr
    user_count, slot, route_resources = net.user_count, net.slot, net.route_resources
    _touch(net, group)
    net.weight[group] += 1
    first_flow = net.weight[group] == 1
    if first_flow:
        net.counts[UNDER_WAY] += 1
    for p in range(net.route_ptr[group], net.route_ptr[group + 1]):
        r = route_resources[p]
        load[r] += 1
        if first_flow:
            at = user_ptr[r] + user_count[r]
            users[at] = p
            user_group[at] = group
            slot[p] = at
            user_count[r] += 1


@kernel
def leave(net, group):
    """A flow of ``group`` ends."""
    load, users, user_group, user_ptr = net.load, net.users, net.user_group, net.user_ptr
    user_count, slot, route_resources = net.user_count, net.slot, net.route_resources
    _touch(net, group)
    net.weight[group] -= 1
    last_flow = net.weight[group] == 0
    if last_flow:
        net.counts[UNDER_WAY] -= 1
    for p in range(net.route_ptr[group], net.route_ptr[group + 1]):
        r = route_resources[p]
        load[r] -= 1
        if last_flow:
            user_count[r] -= 1
            last = user_ptr[r] + user_count[r]
            at = slot[p]
            users[at] = users[last]
            user_group[at] = user_group[last]
            slot[users[at]] = at


@kernel
def _touch(net, group):
    if not net.is_touched[group]:
        net.is_touched[group] = True
        net.touched[net.counts[TOUCHED]] = group
        net.counts[TOUCHED] += 1


@kernel
def touched_component(net):
    """Collect the groups under way that share a resource, directly or through others, with a touched one.

    Fills ``component`` and ``reached``, forgets what was touched, and sets the rate of touched groups that have no
    flow left to 0. Returns the number of groups.
    """
    net.counts[STAMP] += 1
    found, reached = _start_from_touched(net)
    route_ptr, route_resources = net.route_ptr, net.route_resources
    resource_stamp, reached_resources, group_stamp = net.resource_stamp, net.reached, net.group_stamp
    user_ptr, user_group, user_count, component = net.user_ptr, net.user_group, net.user_count, net.component
    stamp, under_way = net.counts[STAMP], net.counts[UNDER_WAY]
    seen = 0
    while seen < reached and found < under_way:
        r = reached_resources[seen]
        seen += 1
        for u in range(user_ptr[r], user_ptr[r] + user_count[r]):
            group = user_group[u]
            if group_stamp[group] != stamp:
                group_stamp[group] = stamp
                component[found] = group
                found += 1
                reached = _reach(route_ptr, route_resources, resource_stamp, reached_resources, group, stamp, reached)
    net.counts[COMPONENT] = found
    net.counts[REACHED] = reached
    return found


@kernel
def _start_from_touched(net):
    """Put touched groups and their resources first; returns the numbers of both."""
    stamp = net.counts[STAMP]
    found, reached = 0, 0
    for i in range(net.counts[TOUCHED]):
        group = net.touched[i]
        net.is_touched[group] = False
        reached = _reach(net.route_ptr, net.route_resources, net.resource_stamp, net.reached, group, stamp, reached)
        if net.weight[group] == 0:
            net.rate[group] = 0.0
        else:
            net.group_stamp[group] = stamp
            net.component[found] = group
            found += 1
    net.counts[TOUCHED] = 0
    return found, reached


@kernel
def _reach(route_ptr, route_resources, resource_stamp, reached_resources, group, stamp, reached):
    """Append the resources of a route that were not seen yet; returns the new count."""
    for p in range(route_ptr[group], route_ptr[group + 1]):
        r = route_resources[p]
        reached_resources[reached] = r
        reached += resource_stamp[r] != stamp
        resource_stamp[r] = stamp
    return reached
