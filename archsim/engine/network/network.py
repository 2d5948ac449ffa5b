"""The flows under way, stored so that a start or an end touches only its own neighbourhood.

A *resource* is whatever flows share: a directed link, a die's injection or ejection port, the HBM of a die. A *group*
is all flows over the same row of resources (same source, destination and kind): they have equal rates, so a group is
held once, with the number of its flows as ``weight``. Which groups can exist is fixed when the network is built; how
many flows each has changes with `enter` and `leave`. All functions but `build_network` are numba kernels.

A *position* is one resource on one route; group g has positions ``groups[g].first`` up to ``groups[g + 1].first``, in
travelling order.

=============  ==============================  =====================================================================
field          dtype[shape]                    meaning
=============  ==============================  =====================================================================
``resources``  RESOURCE[resource]              capacity, its users, and how much of it the solvers have assigned
``groups``     GROUP[group + 1]                flows under way and their rate; the last row only ends the positions
``positions``  POSITION[position]              resource and group of a position (no resource twice on one route)
``users``      USER[position]                  positions of groups under way, by resource: ``resources[r].users`` of
                                               them from ``resources[r].first_user`` on, in no order
``rounds``     ROUND[resource + 1]             of the last filling (`fair`), in the order of their levels
``changes``    CHANGE[position + 1]            resources that the rounds changed, round by round
``lists``      uint32[7, most + 1]             rows, filled up to a count: TOUCHED_GROUPS entered or left since the
                                               last recompute; COMPONENT_GROUPS that `touched_component` found, and
                                               REACHED, their resources; FIXED groups, round by round (`fair`); scratch
                                               of `fair`: OPEN, NEAR and TIGHTEST resources
``counts``     int64[6]                        TOUCHED, ROUNDS, FIXED_GROUPS and CHANGES, the lengths of these lists;
                                               STAMP, the number of recomputes; UNDER_WAY, groups with a flow
=============  ==============================  =====================================================================

Row numbers are unsigned: numba need not ask of each whether it counts from the end. Nothing is allocated after
`build_network`.
"""

from typing import NamedTuple

import numpy as np

from archsim.base.kernels import inner, kernel, outer

TOUCHED_GROUPS, COMPONENT_GROUPS, REACHED, FIXED, OPEN, NEAR, TIGHTEST = np.arange(7)
TOUCHED, STAMP, UNDER_WAY, ROUNDS, FIXED_GROUPS, CHANGES = np.arange(6)

RESOURCE = np.dtype(
    [
        ("capacity", "f8"),  # bytes/ns
        ("left", "f8"),  # unassigned capacity after the last recompute that reached the resource
        ("share", "f8"),  # left / waiting
        ("waiting", "i8"),  # flows whose rate is not fixed yet
        ("newly_fixed", "i8"),  # flows fixed in this round
        ("load", "i8"),  # flows under way through it
        ("first_user", "u4"),
        ("users", "u4"),  # groups under way through it
        ("stamp", "i8"),  # last recompute that reached it
    ],
    align=True,
)
GROUP = np.dtype(
    [
        ("rate", "f8"),  # result of the solvers: bytes/ns of *each* flow of the group
        ("weight", "i8"),  # flows under way
        # resource that limits it (a saturated one on which none is faster); -1: the solver does not report it
        ("bottleneck", "i8"),
        ("first", "u4"),  # of its positions
        ("stamp", "i8"),  # last recompute that wrote the rate
        ("round", "i8"),  # that fixed the rate; -1: none
        ("filled", "i8"),  # flows in the last filling
        ("touched", "i8"),  # whether it is in the list of touched groups
    ],
    align=True,
)
POSITION = np.dtype([("resource", "u4"), ("group", "u4"), ("slot", "u4")], align=True)  # slot: its row in ``users``
USER = np.dtype([("position", "u4"), ("group", "u4")], align=True)

ROUND = np.dtype(
    [
        ("level", "f8"),  # rate of the flows that it fixed
        ("first_group", "i8"),  # of FIXED
        ("first_change", "i8"),
    ],
    align=True,
)
CHANGE = np.dtype([("left", "f8"), ("resource", "u4"), ("fixed", "u4")], align=True)  # left: before; fixed: flows


class FlowNetwork(NamedTuple):
    """Arrays of records; see the module's table."""

    resources: np.ndarray
    groups: np.ndarray
    positions: np.ndarray
    users: np.ndarray
    rounds: np.ndarray
    changes: np.ndarray
    lists: np.ndarray
    counts: np.ndarray


def build_network(capacity, route_ptr, route_resources) -> FlowNetwork:
    """An empty network over ``capacity: float64[resource]`` (bytes/ns) and the routes of all groups (CSR).

    Raises ValueError for a capacity that is not positive and finite, or a route that passes a resource twice.
    """
    capacity = np.asarray(capacity, dtype=np.float64)
    route_resources = np.asarray(route_resources, dtype=np.int64)
    if not np.all(np.isfinite(capacity) & (capacity > 0)):
        raise ValueError("every capacity must be positive and finite")
    n_resources, n_groups, n_positions = len(capacity), len(route_ptr) - 1, len(route_resources)
    resources, groups = np.zeros(n_resources, RESOURCE), np.zeros(n_groups + 1, GROUP)
    positions = np.zeros(n_positions, POSITION)
    resources["capacity"] = resources["left"] = capacity
    room = np.bincount(route_resources, minlength=n_resources)
    resources["first_user"] = np.cumsum(room) - room
    groups["first"] = route_ptr
    groups["bottleneck"] = groups["round"] = -1
    route_ptr = np.asarray(route_ptr, dtype=np.int64)
    if not _take_places(positions, route_ptr, route_resources, np.full(n_resources, -1)):
        raise ValueError("a route passes the same resource twice")
    return FlowNetwork(
        resources, groups, positions, users=np.zeros(n_positions, USER),
        rounds=np.zeros(n_resources + 1, ROUND), changes=np.zeros(n_positions + 1, CHANGE),
        lists=np.zeros((7, max(n_groups, n_resources) + 1), np.uint32), counts=np.zeros(6, np.int64),
    )


@kernel
def _take_places(positions, route_ptr, route_resources, latest):
    """Fill in the resource and the group of every position; ``latest``: int64[resource] of -1. False where a route
    passes a resource twice.
    """
    for group in range(len(route_ptr) - 1):
        for at in range(route_ptr[group], route_ptr[group + 1]):
            resource = route_resources[at]
            if latest[resource] == group:
                return False
            latest[resource] = group
            positions[at].resource, positions[at].group = resource, group
    return True


@inner
def enter(net, group):
    """A flow of ``group`` starts."""
    _touch(net, group)
    row = net.groups[group]
    row.weight += 1
    first_flow = row.weight == 1
    if first_flow:
        net.counts[UNDER_WAY] += 1
    for p in range(row.first, net.groups[group + 1].first):
        resource = net.resources[net.positions[p].resource]
        resource.load += 1
        if first_flow:
            if resource.users == 1:  # it is no longer alone
                _touch(net, net.users[resource.first_user].group)
            slot = resource.first_user + resource.users
            net.users[slot].position, net.users[slot].group = p, group
            net.positions[p].slot = slot
            resource.users += 1


@inner
def leave(net, group):
    """A flow of ``group`` ends."""
    _touch(net, group)
    row = net.groups[group]
    row.weight -= 1
    last_flow = row.weight == 0
    if last_flow:
        net.counts[UNDER_WAY] -= 1
    for p in range(row.first, net.groups[group + 1].first):
        resource = net.resources[net.positions[p].resource]
        resource.load -= 1
        if last_flow:
            resource.users -= 1
            last, slot = net.users[resource.first_user + resource.users], net.positions[p].slot
            net.users[slot].position, net.users[slot].group = last.position, last.group
            net.positions[last.position].slot = slot


@inner
def _touch(net, group):
    if not net.groups[group].touched:
        net.groups[group].touched = 1
        net.lists[TOUCHED_GROUPS, net.counts[TOUCHED]] = group
        net.counts[TOUCHED] += 1


@outer
def touched_component(net):
    """Collect the groups under way that share a resource, directly or through others, with a touched one.

    Lists them and their resources, clears the touched list, and sets the rate of touched groups to 0 if they have no
    flow left and to infinity if they do (it stays so if they pass no resource). Returns the number of groups.
    """
    net.counts[STAMP] += 1
    found, reached = _start_from_touched(net)
    stamp, under_way = net.counts[STAMP], net.counts[UNDER_WAY]
    seen = 0
    while seen < reached and found < under_way:
        resource = net.resources[net.lists[REACHED, seen]]
        seen += 1
        for u in range(resource.first_user, resource.first_user + resource.users):
            group = net.users[u].group
            if net.groups[group].stamp != stamp:
                net.groups[group].stamp = stamp
                net.lists[COMPONENT_GROUPS, found] = group
                found += 1
                reached = _reach(net, group, stamp, reached)
    return found


@inner
def _start_from_touched(net):
    """Put touched groups and their resources first; returns the numbers of both."""
    stamp = net.counts[STAMP]
    found, reached = np.int64(0), np.int64(0)  # not literals: numba types each one separately
    for i in range(net.counts[TOUCHED]):
        group = net.lists[TOUCHED_GROUPS, i]
        row = net.groups[group]
        row.touched = 0
        reached = _reach(net, group, stamp, reached)
        if row.weight == 0:
            row.rate = 0.0
        else:
            row.rate = np.inf
            row.stamp = stamp
            net.lists[COMPONENT_GROUPS, found] = group
            found += 1
    net.counts[TOUCHED] = 0
    return found, reached


@inner
def _reach(net, group, stamp, reached):
    """Append the resources of a route that were not reached before; returns the new count."""
    for p in range(net.groups[group].first, net.groups[group + 1].first):
        r = net.positions[p].resource
        net.lists[REACHED, reached] = r
        reached += net.resources[r].stamp != stamp
        net.resources[r].stamp = stamp
    return reached
