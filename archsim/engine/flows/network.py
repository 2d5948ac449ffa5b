"""The flows under way, stored so that a start or an end touches only its own neighbourhood.

A *resource* is whatever flows share: a directed link, a die's injection or ejection port, the HBM of a die. A *group*
is all flows over the same row of resources (same source, destination and kind): they have equal rates, so a group is
held once, with the number of its flows as ``weight``. Which groups can exist is fixed when the network is built; how
many flows each has changes with `enter` and `leave`. All functions but `build_network` are numba kernels.

A *position* is one resource on one route; group g has positions ``groups[g].first`` up to ``groups[g].end``, in
travelling order.

=============  ==============================  =====================================================================
field          dtype[shape]                    meaning
=============  ==============================  =====================================================================
``resources``  RESOURCE[resource]              capacity, its users, and how much of it the solvers have assigned
``groups``     GROUP[group + 1]                flows under way and their rate; the last row is of no group
``routes``     uint32[position]                resource of a position (no resource twice on one route)
``positions``  POSITION[position]              its group, and its row in ``users``
``users``      USER[position]                  positions of groups under way, by resource: ``resources[r].users`` of
                                               them from ``resources[r].first_user`` on, in no order but that the
                                               groups that it limits (max–min) come first
``rounds``     ROUND[resource + 1]             of the last filling (max–min), in the order of their levels
``changes``    CHANGE[position + 1]            resources that the rounds changed, round by round
``passed``     PASSED[resource, most]          which resources the flows that a resource limits pass, and how many of
                                               these flows pass each: the first ``resources[r].passed`` are in use
``hints``      uint8[resource, HINTS]          where a resource stands in a row of ``passed``, by its last digits
``share``      int64[resource + 1]             bits of the share of the watched resources, from 1 on; 0: of any other
``lists``      uint32[6, most + 1]             rows, filled up to a count: TOUCHED_GROUPS entered or left since the
                                               last recompute; RECOMPUTED groups, whose rate may have changed;
                                               REACHED, the resources of a component; SATURATED resources, round by
                                               round, WATCHED ones, and TIGHTEST, scratch (max–min)
``counts``     int64[10]                       TOUCHED, FOUND (recomputed groups), ROUNDS, BOTTLENECKS (saturated
                                               resources) and CHANGES, the lengths of these lists; STAMP, the number
                                               of recomputes; UNDER_WAY, groups with a flow; TO_FILL and FILLED, the
                                               groups that a filling has to fix, and has; KEPT_ROUNDS, which of its
                                               rounds stay whatever groups have ended since
=============  ==============================  =====================================================================

Row numbers are unsigned: numba need not ask of each whether it counts from the end. Nothing is allocated after
`build_network`.
"""

from typing import NamedTuple

import numpy as np

from archsim.base.compiled import inner, kernel, outer, unsigned

TOUCHED_GROUPS, RECOMPUTED, REACHED, SATURATED, WATCHED, TIGHTEST = np.arange(6)
TOUCHED, STAMP, UNDER_WAY, ROUNDS, BOTTLENECKS, CHANGES, KEPT_ROUNDS, TO_FILL, FILLED, FOUND = np.arange(10)
HINTS = 256  # a power of two
MOST_PASSED = 128  # resources that the flows of one may pass for these to be kept; with more, routes are walked

RESOURCE = np.dtype(
    [
        ("capacity", "f8"),  # bytes/ns
        ("left", "f8"),  # unassigned capacity after the last recompute that reached the resource
        ("stamp", "i8"),  # last recompute that reached it
        ("waiting", "i4"),  # flows whose rate is not fixed yet
        ("newly_fixed", "i4"),  # flows fixed in this round
        ("load", "i4"),  # flows under way through it
        ("first_user", "u4"),
        ("users", "u4"),  # groups under way through it
        ("limits", "u4"),  # of these, the groups whose bottleneck it was in the last filling
        ("limited", "i4"),  # their flows
        ("passed", "i4"),  # resources that these flows pass; -1: more than are kept
        ("round", "i4"),  # in which it saturated; -1: it has not
        ("watched", "i4"),  # its row in ``share``; 0: it is not watched
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
        ("end", "u4"),  # where they end: beside, as the next row would be another line of the cache
        ("stamp", "i8"),  # last recompute that wrote the rate
        ("limit", "i8"),  # resource that fixed the rate in the last filling; -1: none
        ("filled", "i8"),  # flows in the last filling
        ("touched", "i8"),  # whether it is in the list of touched groups
    ],
    align=True,
)
POSITION = np.dtype([("group", "u4"), ("slot", "u4")], align=True)  # slot: its row in ``users``
USER = np.dtype([("position", "u4"), ("group", "u4")], align=True)

ROUND = np.dtype(
    [
        ("level", "f8"),  # rate of the flows that it fixed
        ("first", "i8"),  # of SATURATED
        ("first_change", "i8"),
    ],
    align=True,
)
PASSED = np.dtype([("resource", "u4"), ("flows", "i4")], align=True)
CHANGE = np.dtype([("left", "f8"), ("resource", "u4"), ("fixed", "u4")], align=True)  # left: before; fixed: flows


class FlowNetwork(NamedTuple):
    """Arrays of records; see the module's table."""

    resources: np.ndarray  # RESOURCE[resource]
    groups: np.ndarray  # GROUP[group + 1]
    routes: np.ndarray  # uint32[position]
    positions: np.ndarray  # POSITION[position]
    users: np.ndarray  # USER[position]
    rounds: np.ndarray  # ROUND[resource + 1]
    changes: np.ndarray  # CHANGE[position + 1]
    passed: np.ndarray  # PASSED[resource, most]
    hints: np.ndarray  # uint8[resource, HINTS]
    share: np.ndarray  # int64[resource + 1]
    lists: np.ndarray  # uint32[6, most + 1]
    counts: np.ndarray  # int64[10]


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
    positions, routes = np.zeros(n_positions, POSITION), route_resources.astype(np.uint32)
    resources["capacity"] = resources["left"] = capacity
    room = np.bincount(route_resources, minlength=n_resources)
    resources["first_user"] = np.cumsum(room) - room
    groups["first"], groups["end"][:-1] = route_ptr, route_ptr[1:]
    groups["bottleneck"] = groups["limit"] = resources["round"] = -1
    route_ptr = np.asarray(route_ptr, dtype=np.int64)
    if not _take_places(positions, route_ptr, route_resources, np.full(n_resources, -1)):
        raise ValueError("a route passes the same resource twice")
    return FlowNetwork(
        resources, groups, routes, positions, users=np.zeros(n_positions, USER),
        rounds=np.zeros(n_resources + 1, ROUND), changes=np.zeros(n_positions + 1, CHANGE),
        passed=np.zeros((n_resources, min(n_resources, MOST_PASSED)), PASSED),
        hints=np.zeros((n_resources, HINTS), np.uint8), share=np.zeros(n_resources + 1, np.int64),
        lists=np.zeros((6, max(n_groups, 2 * n_resources) + 1), np.uint32), counts=np.zeros(10, np.int64),
    )  # fmt: skip


@kernel
def _take_places(positions, route_ptr, route_resources, latest):
    """Fill in the group of every position; ``latest``: int64[resource] of -1. False: a route passes one twice."""
    for group in range(len(route_ptr) - 1):
        for at in range(route_ptr[group], route_ptr[group + 1]):
            resource = route_resources[at]
            if latest[resource] == group:
                return False
            latest[resource] = group
            positions[at].group = group
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
    for p in range(row.first, row.end):
        resource = net.resources[net.routes[p]]
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
        if row.limit >= 0:
            free(net, group)
    for p in range(row.first, row.end):
        resource = net.resources[net.routes[p]]
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
                net.lists[RECOMPUTED, found] = group
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
            net.lists[RECOMPUTED, found] = group
            found += 1
    net.counts[TOUCHED] = 0
    return found, reached


@inner
def _reach(net, group, stamp, reached):
    """Append the resources of a route that were not reached before; returns the new count."""
    for p in range(net.groups[group].first, net.groups[group].end):
        r = net.routes[p]
        net.lists[REACHED, reached] = r
        reached += net.resources[r].stamp != stamp
        net.resources[r].stamp = stamp
    return reached


@outer
def free(net, group):
    """The group has no bottleneck any more; its round is to be undone."""
    row = net.groups[group]
    resource = net.resources[row.limit]
    if resource.round >= 0:
        net.counts[KEPT_ROUNDS] = min(net.counts[KEPT_ROUNDS], np.int64(resource.round))
        net.counts[FILLED] -= 1
    count_passed(net, group, -row.filled)
    resource.limits -= 1
    for p in range(row.first, row.end):
        if net.routes[p] == row.limit:
            exchange(net, net.positions[p].slot, resource.first_user + resource.limits)
    row.limit = -1
    if resource.limits == 0:
        resource.passed = 0


@inner
def exchange(net, a, b):
    """Two rows of the users of a resource change places."""
    position, group = net.users[a].position, net.users[a].group
    net.users[a].position, net.users[a].group = net.users[b].position, net.users[b].group
    net.users[b].position, net.users[b].group = position, group
    net.positions[net.users[a].position].slot = a
    net.positions[net.users[b].position].slot = b


@outer
def count_passed(net, group, flows):
    """Count more flows of a group among those that its bottleneck limits."""
    row = net.groups[group]
    resource, passed, hints = net.resources[row.limit], net.passed[row.limit], net.hints[row.limit]
    resource.limited += flows
    if resource.passed < 0:
        return
    n = np.int64(resource.passed)
    for p in range(row.first, row.end):
        r = net.routes[p]
        at = np.int64(hints[r % np.uint32(HINTS)])
        if at >= n or passed[unsigned(at)].resource != r:
            at = n if len(net.resources) <= HINTS else 0
            while at < n and passed[unsigned(at)].resource != r:
                at += 1
            if at == n:
                if n == len(passed):
                    resource.passed = -1
                    return
                passed[unsigned(n)].resource, passed[unsigned(n)].flows = r, 0
                n += 1
            hints[r % np.uint32(HINTS)] = at
        passed[unsigned(at)].flows += flows
        if passed[unsigned(at)].flows == 0:
            n -= 1
            last = passed[unsigned(n)].resource
            passed[unsigned(at)].resource, passed[unsigned(at)].flows = last, passed[unsigned(n)].flows
            hints[last % np.uint32(HINTS)] = at
    resource.passed = n
