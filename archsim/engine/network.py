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
                                               groups that it limits (`fair`) come first
``rounds``     ROUND[resource + 1]             of the last filling (`fair`), in the order of their levels
``changes``    CHANGE[position + 1]            resources that the rounds changed, round by round
``passed``     PASSED[resource, most]          which resources the flows that a resource limits pass, and how many of
                                               these flows pass each: the first ``resources[r].passed`` are in use
``hints``      uint8[resource, HINTS]          where a resource stands in a row of ``passed``, by its last digits
``share``      int64[resource + 1]             `_share` of the watched resources, from 1 on; 0: of any other
``lists``      uint32[6, most + 1]             rows, filled up to a count: TOUCHED_GROUPS entered or left since the
                                               last recompute; RECOMPUTED groups, whose rate may have changed;
                                               REACHED, the resources of a component; SATURATED resources, round by
                                               round, WATCHED ones, and TIGHTEST, scratch (`fair`)
``counts``     int64[10]                       TOUCHED, FOUND (recomputed groups), ROUNDS, BOTTLENECKS (saturated
                                               resources) and CHANGES, the lengths of these lists; STAMP, the number
                                               of recomputes; UNDER_WAY, groups with a flow; TO_FILL and FILLED, the
                                               groups that a filling has to fix, and has; KEPT_ROUNDS, which of its
                                               rounds stay whatever groups have ended since
=============  ==============================  =====================================================================

Row numbers are unsigned: numba need not ask of each whether it counts from the end. Nothing is allocated after
`build_network`.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from archsim.base.compiled import inner, kernel, outer, reference, unsigned
from archsim.base.units import NS_PER_S
from microarch.fabric.fabric import Fabric, Graph, link_rank, narrowest, per_route
from microarch.fabric.topology import build_mesh

# ---- network

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

    resources: np.ndarray
    groups: np.ndarray
    routes: np.ndarray
    positions: np.ndarray
    users: np.ndarray
    rounds: np.ndarray
    changes: np.ndarray
    passed: np.ndarray
    hints: np.ndarray
    share: np.ndarray
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
        resources,
        groups,
        routes,
        positions,
        users=np.zeros(n_positions, USER),
        rounds=np.zeros(n_resources + 1, ROUND),
        changes=np.zeros(n_positions + 1, CHANGE),
        passed=np.zeros((n_resources, min(n_resources, MOST_PASSED)), PASSED),
        hints=np.zeros((n_resources, HINTS), np.uint8),
        share=np.zeros(n_resources + 1, np.int64),
        lists=np.zeros((6, max(n_groups, 2 * n_resources) + 1), np.uint32),
        counts=np.zeros(10, np.int64),
    )


@kernel
def _take_places(positions, route_ptr, route_resources, latest):
    """Fill in the group of every position; ``latest``: int64[resource] of -1. False where a route
    passes a resource twice.
    """
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
            _free(net, group)
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


# ---- fair
# Max–min fair rates by progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2).
#
# All rates rise together; the resource with the least capacity per flow saturates first and fixes the flows through it
# at that share; their rates are subtracted everywhere, and the others keep rising. So every flow ends with a
# bottleneck: a saturated resource on which no flow is faster.
#
# Contract of the incremental recompute, the same for `fair_rates` and `round_robin.round_robin_rates`:
#
# 1. `network.enter(net, group)` and `network.leave(net, group)` for all flows that start and end at an instant, in any
#    order;
# 2. ``n = fair_rates(net, ())`` recomputes the n groups whose rates can change;
# 3. ``net.groups[g].stamp == net.counts[STAMP]`` marks them and those that were entered or left, and
#    ``net.groups[g].rate`` is the rate of each flow of a group in bytes/ns; a group without flows has rate 0. A route
#    without resources has rate infinity. ``net.resources[r].left`` is what groups leave of a resource that they share.
#
# The network keeps the rounds of the last filling. A flow that ends has changed nothing below its own level, and one
# that starts changes nothing below the level at which the first resource of its route now saturates: only the rounds
# from there on are undone and filled again. A group alone on its route is not filled until another joins it.
#
# Levels change at almost every recompute, and bottlenecks hardly: of the groups that are filled again, 96 % keep theirs
# (DeepSeek-V3 on 5 x 5 dies). So a resource keeps the groups that it limits, and how many of their flows pass which
# resource. When it saturates, and as many flows wait on it as it limits, these are the same flows, and no route is
# walked. Only those bottlenecks are watched for the least share. Whether another resource would have saturated is asked
# when its waiting flows become fewer: its share, the same since the last time, must be beyond the level. If it is not,
# it is watched, too, and the rounds from its share on are filled again. Rates are those of watching all, to the bit.
#
# Rates depend only on which flows are under way, not on the order in which they started: flows are counted in integers
# and each round subtracts once per resource. There is no absolute tolerance: capacities multiplied by a power of two
# give rates multiplied by exactly that.

NEAR = 1.0 + 1e-9  # what is beyond a level by this factor is greater, however it was rounded
ALL = np.int64(2**62)


@outer
def fair_rates(net, ports):
    """Max–min rates (`network.FlowNetwork`); returns how many groups were recomputed.

    ``ports`` is not used: all solvers are called alike.
    """
    net.counts[STAMP] += 1
    net.counts[FOUND] = 0
    watched = _undo_rounds(net)
    kept = net.counts[FILLED]
    _fill(net, watched)
    net.counts[TOUCHED] = 0
    return net.counts[FILLED] - kept


@outer
def _free(net, group):
    """The group has no bottleneck any more; its round is to be undone."""
    row = net.groups[group]
    resource = net.resources[row.limit]
    if resource.round >= 0:
        net.counts[KEPT_ROUNDS] = min(net.counts[KEPT_ROUNDS], np.int64(resource.round))
        net.counts[FILLED] -= 1
    _count_passed(net, group, -row.filled)
    resource.limits -= 1
    for p in range(row.first, row.end):
        if net.routes[p] == row.limit:
            _exchange(net, net.positions[p].slot, resource.first_user + resource.limits)
    row.limit = -1
    if resource.limits == 0:
        resource.passed = 0


@inner
def _exchange(net, a, b):
    """Two rows of the users of a resource change places."""
    position, group = net.users[a].position, net.users[a].group
    net.users[a].position, net.users[a].group = net.users[b].position, net.users[b].group
    net.users[b].position, net.users[b].group = position, group
    net.positions[net.users[a].position].slot = a
    net.positions[net.users[b].position].slot = b


@outer
def _count_passed(net, group, flows):
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


@inner
def _undo_rounds(net):
    """Undo the rounds that the touched groups can change, and count these groups anew. Returns the number of resources
    to watch: the bottlenecks of these rounds.
    """
    touched, watched, kept = net.lists[TOUCHED_GROUPS], np.int64(0), min(net.counts[ROUNDS], net.counts[KEPT_ROUNDS])
    for i in range(net.counts[TOUCHED]):
        row = net.groups[touched[unsigned(i)]]
        if row.limit >= 0 and row.filled != _flows_to_fill(net, touched[unsigned(i)]):
            kept = min(kept, np.int64(net.resources[row.limit].round))
    net.counts[KEPT_ROUNDS] = ALL
    while net.counts[ROUNDS] > kept:
        watched = _undo_round(net, watched)
    for i in range(net.counts[TOUCHED]):
        _count_anew(net, touched[unsigned(i)])
    for i in range(net.counts[TOUCHED]):
        while _saturates_before(net, touched[unsigned(i)]):
            watched = _undo_round(net, watched)
    return watched


@inner
def _undo_round(net, watched):
    """Undo the last round; returns the number of resources to watch, with its bottlenecks."""
    net.counts[ROUNDS] -= 1
    undone = net.rounds[unsigned(net.counts[ROUNDS])]
    for i in range(undone.first_change, net.counts[CHANGES]):
        change = net.changes[unsigned(i)]
        resource = net.resources[change.resource]
        resource.left = change.left
        resource.waiting += change.fixed
    for i in range(undone.first, net.counts[BOTTLENECKS]):
        r = net.lists[SATURATED, unsigned(i)]
        net.resources[r].round = -1
        net.counts[FILLED] -= net.resources[r].limits
        net.lists[WATCHED, unsigned(watched)] = r
        watched += 1
    net.counts[CHANGES], net.counts[BOTTLENECKS] = undone.first_change, undone.first
    return watched


@inner
def _flows_to_fill(net, group):
    """Flows of a group that share a resource with another group: all of them, or none."""
    for p in range(net.groups[group].first, net.groups[group].end):
        if net.resources[net.routes[p]].users > 1:
            return net.groups[group].weight
    return np.int64(0)


@inner
def _rate_alone(net, group):
    """Set the rate of a group that shares no resource."""
    row = net.groups[group]
    row.rate = 0.0 if row.weight == 0 else np.inf
    if row.weight > 0:
        for p in range(row.first, row.end):
            share = net.resources[net.routes[p]].capacity / row.weight
            if share <= row.rate:
                row.rate, row.bottleneck = share, net.routes[p]


@inner
def _count_anew(net, group):
    """A touched group waits with the flows that it has now."""
    row, flows = net.groups[group], _flows_to_fill(net, group)
    row.touched, row.stamp = 0, net.counts[STAMP]
    net.lists[RECOMPUTED, unsigned(net.counts[FOUND])] = group
    net.counts[FOUND] += 1
    if flows == 0:
        _rate_alone(net, group)
    more = flows - row.filled
    if more != 0:
        if row.limit >= 0:
            if flows == 0:
                _free(net, group)
            else:
                _count_passed(net, group, more)
        net.counts[TO_FILL] += np.int64(flows > 0) - np.int64(row.filled > 0)
        row.filled = flows
        for p in range(row.first, row.end):
            net.resources[net.routes[p]].waiting += more


@inner
def _saturates_before(net, group):
    """Whether a resource of the group's route saturates before the last round."""
    if net.counts[ROUNDS] == 0:
        return False
    level = net.rounds[net.counts[ROUNDS] - 1].level
    for p in range(net.groups[group].first, net.groups[group].end):
        resource = net.resources[net.routes[p]]
        if resource.waiting > 0 and resource.left / resource.waiting <= level:
            return True
    return False


@inner
def _fill(net, n):
    """Progressive filling from the level of the last round on.

    Most resources that saturate did so in the last filling, too. Only these, the first n of the list, are watched, and
    others when they have come as near.
    """
    kept = net.counts[ROUNDS]
    for i in range(n):
        _watch(net, i)
    while net.counts[FILLED] < net.counts[TO_FILL]:
        floor = net.rounds[net.counts[ROUNDS] - 1].level if net.counts[ROUNDS] > 0 else 0.0
        n_tightest, level = _find_tightest(net, n, floor)
        first = n
        if n_tightest > 0:
            begun = net.rounds[unsigned(net.counts[ROUNDS])]
            begun.level, begun.first, begun.first_change = level, net.counts[BOTTLENECKS], net.counts[CHANGES]
            near = _saturate(net, level, n_tightest, begun.first_change)
            net.counts[ROUNDS] += 1
            if near:
                n = _watch_passed(net, level, begun.first_change, n)
        else:
            n = _watch_new(net, n)
        if n > first:
            _undo_near(net, kept, first, n)
            for i in range(n):
                _watch(net, i)
    for i in range(n):
        net.resources[net.lists[WATCHED, unsigned(i)]].watched = 0


@inner
def _watch(net, i):
    """Watch the resource in a place of the list."""
    resource = net.resources[net.lists[WATCHED, unsigned(i)]]
    resource.watched = i + 1
    net.share[unsigned(i + 1)] = _share(resource.left, resource.waiting)


@inner
def _share(left, waiting):
    """Bits of what each waiting flow gets: an integer of the same order, of which processors take the least fast."""
    return np.float64(left / max(waiting, 1) if waiting > 0 else np.inf).view(np.int64)


@outer
def _undo_near(net, kept, first, n):
    """Undo the rounds in which resources that are watched from now on may have saturated."""
    for i in range(first, n):
        resource = net.resources[net.lists[WATCHED, unsigned(i)]]
        while net.counts[ROUNDS] > kept and (
            resource.waiting == 0
            or resource.left <= NEAR * net.rounds[unsigned(net.counts[ROUNDS] - 1)].level * resource.waiting
        ):
            _undo_round(net, n)


@inner
def _find_tightest(net, n, floor):
    """List the watched resources with the least share, the last resource first; returns their number and this share:
    it is no less than ``floor``, whatever rounding does.
    """
    watched, tightest, shares = net.lists[WATCHED], net.lists[TIGHTEST], net.share
    least, found = shares[1], np.int64(0)
    for i in range(2, n + 1):
        least = min(least, shares[unsigned(i)])
    level = max(floor, np.int64(least).view(np.float64))
    bits = np.float64(level).view(np.int64)
    if n == 0 or level == np.inf:
        return found, level
    for i in range(n):
        if shares[unsigned(i + 1)] <= bits:
            r, at = watched[unsigned(i)], found
            while at > 0 and tightest[unsigned(at - 1)] < r:
                tightest[unsigned(at)] = tightest[unsigned(at - 1)]
                at -= 1
            tightest[unsigned(at)] = r
            found += 1
    return found, level


@inner
def _saturate(net, level, n_tightest, first_change):
    """Fix the flows through the tightest resources, and remove them from the resources that they pass; returns whether
    one that is not watched may have saturated before.
    """
    near, beyond = False, NEAR * level
    if n_tightest == 1:
        r = net.lists[TIGHTEST, 0]
        _limit(net, r, level)
        if net.resources[r].passed >= 0:
            passed, end = net.passed[r], first_change + net.resources[r].passed
            for at in range(first_change, end):
                entry = passed[unsigned(at - first_change)]
                net.changes[unsigned(at)].resource = entry.resource
                near |= _subtract(net, at, level, beyond, entry.flows)
            net.counts[CHANGES] = end
            return near
        _note_limited(net, r)
    else:
        for i in range(n_tightest):
            r = net.lists[TIGHTEST, unsigned(i)]
            _limit(net, r, level)
            _note_limited(net, r)
    for at in range(first_change, net.counts[CHANGES]):
        resource = net.resources[net.changes[unsigned(at)].resource]
        near |= _subtract(net, at, level, beyond, resource.newly_fixed)
        resource.newly_fixed = 0
    return near


@inner
def _limit(net, r, level):
    """The resource saturates: it limits all of its flows that are not fixed yet."""
    resource, stamp, found = net.resources[r], net.counts[STAMP], net.counts[FOUND]
    if resource.waiting - resource.newly_fixed != resource.limited:
        _take_open(net, r)
    resource.round = net.counts[ROUNDS]
    net.lists[SATURATED, unsigned(net.counts[BOTTLENECKS])] = r
    net.counts[BOTTLENECKS] += 1
    net.counts[FILLED] += resource.limits
    for u in range(resource.first_user, resource.first_user + resource.limits):
        group = net.users[u].group
        row = net.groups[group]
        net.lists[RECOMPUTED, unsigned(found)] = group
        found += row.stamp != stamp
        row.rate, row.stamp = level, stamp
    net.counts[FOUND] = found


@outer
def _note_limited(net, r):
    """Note the resources that the flows of a bottleneck pass, among those of other bottlenecks of the round."""
    resource, n_changed = net.resources[r], net.counts[CHANGES]
    if resource.passed >= 0:
        passed = net.passed[r]
        for at in range(resource.passed):
            n_changed = _note(net, passed[unsigned(at)].resource, passed[unsigned(at)].flows, n_changed)
    else:
        for u in range(resource.first_user, resource.first_user + resource.limits):
            row = net.groups[net.users[u].group]
            for p in range(row.first, row.end):
                n_changed = _note(net, net.routes[p], row.filled, n_changed)
    net.counts[CHANGES] = n_changed


@inner
def _note(net, r, flows, n_changed):
    """Flows through a resource are fixed; returns the number of changes."""
    net.changes[unsigned(n_changed)].resource = r
    resource = net.resources[r]
    n_changed += resource.newly_fixed == 0
    resource.newly_fixed += flows
    return n_changed


@outer
def _take_open(net, r):
    """The resource limits all of its flows that are not fixed yet."""
    resource = net.resources[r]
    for u in range(resource.first_user + resource.limits, resource.first_user + resource.users):
        group = net.users[u].group
        row = net.groups[group]
        if row.limit >= 0:
            if net.resources[row.limit].round >= 0:
                continue
            _free(net, group)
        row.limit = row.bottleneck = r
        _exchange(net, np.uint32(u), resource.first_user + resource.limits)
        resource.limits += 1
        _count_passed(net, group, row.filled)


@inner
def _subtract(net, at, level, beyond, fixed):
    """Remove fixed flows from a resource, as a row of the changes; returns whether it is not watched and may have
    saturated before.
    """
    change = net.changes[unsigned(at)]
    resource = net.resources[change.resource]
    left, waiting = resource.left, resource.waiting
    near = (resource.watched == 0) & (left <= beyond * waiting)
    change.left, change.fixed = left, fixed
    left -= level * fixed
    waiting -= fixed
    resource.left, resource.waiting = left, waiting
    net.share[unsigned(resource.watched)] = _share(left, waiting)
    return near


@outer
def _watch_passed(net, level, first_change, n):
    """Watch the resources that may have saturated before the round; returns the number of those watched."""
    for i in range(first_change, net.counts[CHANGES]):
        change = net.changes[unsigned(i)]
        resource = net.resources[change.resource]
        if resource.watched == 0 and change.left <= NEAR * level * (resource.waiting + change.fixed):
            resource.watched = 1
            net.lists[WATCHED, unsigned(n)] = change.resource
            n += 1
    return n


@outer
def _watch_new(net, n):
    """Watch the resources of groups that nothing has limited yet; returns the number of those watched."""
    for i in range(net.counts[TOUCHED]):
        row = net.groups[net.lists[TOUCHED_GROUPS, unsigned(i)]]
        if row.limit < 0 and row.filled > 0:
            for p in range(row.first, row.end):
                resource = net.resources[net.routes[p]]
                if resource.watched == 0:
                    resource.watched = 1
                    net.lists[WATCHED, unsigned(n)] = net.routes[p]
                    n += 1
    return n


# ---- round_robin
# Rates if routers serve their input ports in turn and the flows of a port share one buffer (port-fair, coupled FIFOs).
#
# The capacity of a link is shared max–min among its *input ports*: the links upstream, and the die itself, which is one
# input however many flows it sources (its own flows are queued separately and share that input max–min). Inside a port
# traffic leaves in the mix in which it arrived, so a flow that is blocked downstream slows all that share its buffer:
# the throughput of port q is at most, for every link l that its traffic takes next,
#
#     limit(q) = share of q at l · (all traffic of q) / (the share of q's traffic that goes to l).
#
# Rates follow from shares in travelling order (forward), limits from shares against it (backward), over the acyclic
# order that XY routing gives the links; limits are damped, 0.6 old + 0.4 new, until none moves by more than `SETTLED`
# of its capacity (rates are then within a few tenths of a percent of the fixed point). Rates are those of the steady
# state: what buffers hold when a flow starts or ends is not modelled.
#
# Resources with a rank are coupled as above (links, and injection and ejection ports, which are one FIFO each). Those
# with rank -1 (HBM) queue every flow separately: they limit a flow at its source to the level of a max–min fill of the
# requested rates, within the same fixed point, and never block others in a buffer.
#
# =============  ===================  ================================================================================
# field          dtype[shape]         meaning
# =============  ===================  ================================================================================
# ``buffers``    BUFFER[resource+1]   limit of a resource, its ports, the ports that it feeds; the last row only ends
#                                     them
# ``ports``      PORT[port]           input ports by resource; an uncoupled resource has one, for all its flows
# ``enters``     int64[position]      port by which a position enters its resource
# ``entries``    int64[position]      groups of the component that enter by a port, ascending: from its ``first_entry``
#                                     up to its ``end_entry``
# ``order``      int64[resource]      coupled resources by rank, then the uncoupled ones
# ``sweep``      int64[resource]      those of the component, in this order
# ``source``     float64[group]       rate at which a flow leaves its source
# =============  ===================  ================================================================================
#
# Where routes wait for each other in a cycle, as around a ring, there is no such order. ``arbitration: head_of_line``
# breaks a cycle at one link (`ranks_in_cycles`): there, what passes shares the input of the die, whose flows do not
# block each other. Rings without deadlock have such a place: two free buffers to inject (bubble flow control; Puente et
# al., Adaptive bubble router, ICPP 1999), or a dateline with buffers of its own.
#
# The contract of the incremental recompute is that of `fair`. All tolerances are relative.

UNCOUPLED = -1
KEPT = 0.6  # share of the old limit that damping keeps
SETTLED = 1e-4
MAX_SWEEPS = 200

BUFFER = np.dtype(
    [
        ("limit", "f8"),  # throughput of the port's buffer; level of an uncoupled resource
        ("first_port", "i8"),
        ("first_fed", "i8"),  # start of the ports that it feeds in ``ports.fed``
        ("coupled", "i8"),
    ],
    align=True,
)
PORT = np.dtype(
    [
        ("asked", "f8"),  # rate that arrives at the port
        ("granted", "f8"),
        ("resource", "i8"),  # resource that the port belongs to
        ("upstream", "i8"),  # resource that feeds the port; -1: the die itself
        ("first_entry", "i8"),
        ("end_entry", "i8"),
        ("fed", "i8"),  # a separate list: ports with an upstream resource, sorted by it
    ],
    align=True,
)


class Ports(NamedTuple):
    """Input ports of the coupled resources, and the solver's scratch; see the module's table."""

    buffers: np.ndarray
    ports: np.ndarray
    enters: np.ndarray
    entries: np.ndarray
    order: np.ndarray
    sweep: np.ndarray
    source: np.ndarray


NO_ROWS = np.zeros(0, np.int64)


def rank_links(graph: Graph) -> np.ndarray:
    """int32[link]: an order of the links along which every route rises, from 0.

    Raises ValueError where routes wait for each other in a cycle: the rates of round-robin routers then depend on their
    buffers, which are not modelled.
    """
    ports = getattr(graph, "ports", 0)
    if not ports:
        return xy_rank(graph) if graph.kind == "mesh" else link_rank(graph)
    if graph.kind != "mesh":
        return link_rank(graph)
    rank = xy_rank(graph)[:-ports] + 1
    out, into = np.zeros(ports // 2, np.int32), np.full(ports // 2, rank.max(initial=0) + 1, np.int32)
    return np.concatenate([rank, out, into])


def xy_rank(mesh: Graph) -> np.ndarray:
    """int32[link]: an order of a mesh's links along which every XY route rises, from 0."""
    if mesh.x_of is None or mesh.y_of is None:
        raise ValueError(f"a {mesh.kind} has no columns and rows")
    x, y = int(mesh.x_of.max()) + 1, int(mesh.y_of.max()) + 1
    from_x, from_y = mesh.x_of[mesh.link_src], mesh.y_of[mesh.link_src]
    step_x, step_y = mesh.x_of[mesh.link_dst] - from_x, mesh.y_of[mesh.link_dst] - from_y
    along_x = np.where(step_x > 0, from_x, x - 1 - from_x)
    along_y = x + np.where(step_y > 0, from_y, y - 1 - from_y)
    return np.where(step_x != 0, along_x, along_y).astype(np.int32)


def ranks_in_cycles(graph: Graph) -> np.ndarray:
    """int32[link]: an order of the links that every route follows, but for one step of every cycle of routes: where all
    links that are left wait for others, that with the lowest number comes first.
    """
    first, same = graph.route_links[:-1], np.ones(max(0, len(graph.route_links) - 1), bool)
    same[graph.route_ptr[(graph.route_ptr > 0) & (graph.route_ptr < len(graph.route_links))] - 1] = False
    pairs = np.unique(np.stack([first[same], graph.route_links[1:][same]], axis=1).astype(np.int64), axis=0)
    waits = np.bincount(pairs[:, 1], minlength=graph.links)
    ptr = np.searchsorted(pairs[:, 0], np.arange(graph.links + 1))
    rank, left = np.full(graph.links, -1, np.int32), np.ones(graph.links, bool)
    for place in range(graph.links):
        free = np.flatnonzero(left & (waits == 0))
        link = int(free[0] if len(free) else np.flatnonzero(left)[0])
        rank[link], left[link] = place, False
        waits[pairs[ptr[link] : ptr[link + 1], 1]] -= 1
    return rank


def build_ports(net: FlowNetwork, rank, cycles: bool = False) -> Ports:
    """Input ports for ``rank: int64[resource]`` (-1: uncoupled), which must rise along the coupled part of every route,
    unless there may be ``cycles``.

    Raises ValueError if it does not.
    """
    rank, route_resources = np.asarray(rank, dtype=np.int64), net.routes
    resources, positions = len(net.resources), len(route_resources)
    keys = route_resources * (resources + 1) + _upstream(net, rank, cycles) + 1
    keys, enters, room = np.unique(keys, return_inverse=True, return_counts=True)

    ports, buffers = np.zeros(len(keys), PORT), np.zeros(resources + 1, BUFFER)
    ports["resource"], ports["upstream"] = keys // (resources + 1), keys % (resources + 1) - 1
    ports["first_entry"] = np.cumsum(room) - room
    fed = np.flatnonzero(ports["upstream"] >= 0)
    upstream = ports["upstream"][fed]
    ports["fed"][: len(fed)] = fed[np.argsort(upstream, kind="stable")]
    buffers["first_port"], buffers["first_fed"] = _csr_ptr(ports["resource"], resources), _csr_ptr(upstream, resources)
    buffers["coupled"][:-1] = rank != UNCOUPLED
    by_rank = np.argsort(rank, kind="stable")
    uncoupled = rank[by_rank] == UNCOUPLED
    return Ports(
        buffers,
        ports,
        enters.astype(np.int64),
        entries=np.zeros(positions, np.int64),
        order=np.concatenate([by_rank[~uncoupled], by_rank[uncoupled]]),
        sweep=np.zeros(resources, np.int64),
        source=np.zeros(len(net.groups) - 1),
    )


def _upstream(net, rank, cycles) -> np.ndarray:
    """int64[position]: the coupled resource before each coupled one on its route; -1 where there is none."""
    route_resources, route_group = net.routes, net.positions["group"]
    coupled = np.flatnonzero(rank[route_resources] != UNCOUPLED)
    before, after = coupled[:-1], coupled[1:]
    same_route = route_group[before] == route_group[after]
    before, after = before[same_route], after[same_route]
    falls = np.flatnonzero(rank[route_resources[before]] >= rank[route_resources[after]])
    if len(falls) and not cycles:
        p, q = before[falls[0]], after[falls[0]]
        raise ValueError(
            f"route {route_group[p]}: rank falls from resource {route_resources[p]} to resource {route_resources[q]}"
        )
    upstream = np.full(len(route_resources), -1, dtype=np.int64)
    upstream[after] = route_resources[before]
    upstream[after[falls]] = -1
    return upstream


def _csr_ptr(owner, owners) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=owners))]).astype(np.int64)


NO_PORTS = Ports(np.zeros(0, BUFFER), np.zeros(0, PORT), NO_ROWS, NO_ROWS, NO_ROWS, NO_ROWS, np.zeros(0))


@outer
def solve_rates(net, ports, fair):
    """`fair_rates`, or else `round_robin_rates`. Kernels have both, so that none is compiled twice for it; ``ports``:
    NO_PORTS where rates are fair.
    """
    if fair:
        fair_rates(net, ports)
    else:
        round_robin_rates(net, ports)


@outer
def round_robin_rates(net, ports):
    """Steady-state rates of the touched component; returns its number of groups. See `fair` for the contract."""
    found = net.counts[FOUND] = touched_component(net)
    coupled, reached = _collect_resources(net, ports)
    _collect_entries(net, ports)
    for _ in range(MAX_SWEEPS):
        _forward(net, ports, found, coupled, reached)
        moved = max(_backward(net, ports, coupled), _fill_uncoupled(net, ports, coupled, reached))
        if moved <= SETTLED:
            break
    _forward(net, ports, found, coupled, reached)
    _clip_uncoupled(net, ports, coupled, reached)
    _count_left(net, ports, reached)
    return found


@inner
def _collect_resources(net, ports):
    """Resources of the component, with empty ports; returns the numbers of the coupled ones and of all."""
    stamp = net.counts[STAMP]
    coupled, reached = 0, 0
    for i in range(len(ports.order)):
        r = ports.order[i]
        if net.resources[r].stamp == stamp:
            buffer = ports.buffers[r]
            buffer.limit = net.resources[r].capacity
            coupled += buffer.coupled
            ports.sweep[reached] = r
            reached += 1
            for k in range(buffer.first_port, ports.buffers[r + 1].first_port):
                ports.ports[k].end_entry = ports.ports[k].first_entry
    return coupled, reached


@inner
def _collect_entries(net, ports):
    """Lay out the component by port. Groups ascend, so that sums, and rates, do not depend on the order of arrival."""
    stamp = net.counts[STAMP]
    for group in range(len(net.groups) - 1):
        if net.groups[group].stamp == stamp:
            for p in range(net.groups[group].first, net.groups[group].end):
                port = ports.ports[ports.enters[p]]
                ports.entries[port.end_entry] = group
                port.end_entry += 1


@outer
def _forward(net, ports, found, coupled, reached):
    """Rates from limits, in travelling order. A flow's rate can only fall on its way, so the last is feasible."""
    _limit_sources(net, ports, found, coupled, reached)
    for i in range(coupled):
        r = ports.sweep[i]
        first, last = ports.buffers[r].first_port, ports.buffers[r + 1].first_port
        for k in range(first, last):
            ports.ports[k].asked = _taken(net, ports, k)
        level = _water_level(ports.ports, first, last, ports.buffers[r].limit)
        for k in range(first, last):
            port = ports.ports[k]
            port.granted = min(port.asked, level)
            if port.asked > level:
                if port.upstream < 0:
                    _share_die_input(net, ports, k, level)
                else:
                    _slow_down(net, ports, k, level / port.asked)


@inner
def _taken(net, ports, k):
    """Bytes/ns of all flows that enter by port ``k``."""
    total = 0.0
    for e in range(ports.ports[k].first_entry, ports.ports[k].end_entry):
        group = net.groups[ports.entries[e]]
        total += group.rate * group.weight
    return total


@inner
def _slow_down(net, ports, k, factor):
    """Multiply the rates of the flows that enter by port ``k``."""
    for e in range(ports.ports[k].first_entry, ports.ports[k].end_entry):
        net.groups[ports.entries[e]].rate *= factor


@inner
def _limit_sources(net, ports, found, coupled, reached):
    """A flow leaves its source at the least level of the uncoupled resources on its route."""
    for i in range(found):
        ports.source[net.lists[RECOMPUTED, i]] = np.inf
    for i in range(coupled, reached):
        buffer = ports.buffers[ports.sweep[i]]
        port = ports.ports[buffer.first_port]
        for e in range(port.first_entry, port.end_entry):
            group = ports.entries[e]
            ports.source[group] = min(ports.source[group], buffer.limit)
    for i in range(found):
        group = net.lists[RECOMPUTED, i]
        net.groups[group].rate = ports.source[group]


@inner
def _water_level(ports, first, last, capacity):
    """Max–min level at which the requests of ``ports[first:last]`` fill ``capacity``; infinity if they do not."""
    level, before = 0.0, -1
    while True:
        left, sharing = capacity, 0
        for k in range(first, last):
            if ports[k].asked <= level:
                left -= ports[k].asked
            else:
                sharing += 1
        if sharing == 0:
            return np.inf
        if sharing == before:
            return level
        level = max(level, left / sharing)
        before = sharing


@inner
def _offer(ports, first, last, capacity, k):
    """Share of ``capacity`` that port ``k`` would get if it requested all of it and the others what they request
    now.
    """
    kept = ports[k].asked
    ports[k].asked = np.inf
    level = _water_level(ports, first, last, capacity)
    ports[k].asked = kept
    return level


@outer
def _share_die_input(net, ports, k, granted):
    """Max–min fill of a die's own input ``k``, whose flows are queued separately and may be slower at their source."""
    begin, end = ports.ports[k].first_entry, ports.ports[k].end_entry
    level, before = 0.0, -1
    while True:
        left, sharing = granted, 0
        for e in range(begin, end):
            group = ports.entries[e]
            if ports.source[group] <= level:
                left -= ports.source[group] * net.groups[group].weight
            else:
                sharing += net.groups[group].weight
        if sharing == before or sharing == 0:
            break
        level = max(level, left / sharing)
        before = sharing
    for e in range(begin, end):
        group = ports.entries[e]
        net.groups[group].rate = min(ports.source[group], level)


@outer
def _backward(net, ports, coupled):
    """Limits from shares, against the travelling order; returns the largest move relative to capacity."""
    stamp = net.counts[STAMP]
    moved = 0.0
    for i in range(coupled - 1, -1, -1):
        r = ports.sweep[i]
        total = 0.0
        for k in range(ports.buffers[r].first_port, ports.buffers[r + 1].first_port):
            total += ports.ports[k].granted
        new = net.resources[r].capacity
        for i_fed in range(ports.buffers[r].first_fed, ports.buffers[r + 1].first_fed):
            k = ports.ports[i_fed].fed
            after = ports.ports[k].resource
            if net.resources[after].stamp == stamp and ports.ports[k].asked > 0.0:
                first, last = ports.buffers[after].first_port, ports.buffers[after + 1].first_port
                offer = _offer(ports.ports, first, last, ports.buffers[after].limit, k)
                new = min(new, offer * (total / ports.ports[k].asked))
        moved = max(moved, _damp(ports.buffers[r], net.resources[r].capacity, new))
    return moved


@inner
def _fill_uncoupled(net, ports, coupled, reached):
    """Levels of the uncoupled resources, where a flow that nothing else slows requests all, any other its rate.

    Returns the largest move relative to capacity.
    """
    moved = 0.0
    for i in range(coupled, reached):
        r = ports.sweep[i]
        capacity, buffer = net.resources[r].capacity, ports.buffers[r]
        port = ports.ports[buffer.first_port]
        level, before = 0.0, -1
        while True:
            left, sharing = capacity, 0
            for e in range(port.first_entry, port.end_entry):
                group = net.groups[ports.entries[e]]
                if group.rate < buffer.limit and group.rate <= level:
                    left -= group.rate * group.weight
                else:
                    sharing += group.weight
            if sharing == before:
                break
            if sharing == 0:
                level = capacity
                break
            level = max(level, left / sharing)
            before = sharing
        moved = max(moved, _damp(buffer, capacity, level))
    return moved


@inner
def _damp(buffer, capacity, new):
    """Move a limit towards its new value; returns the move relative to capacity."""
    move = (1.0 - KEPT) * (new - buffer.limit)
    buffer.limit += move
    return abs(move) / capacity


@inner
def _clip_uncoupled(net, ports, coupled, reached):
    """Scale flows down where the remaining error of the fixed point puts an uncoupled resource over its capacity."""
    for i in range(coupled, reached):
        r = ports.sweep[i]
        capacity, k = net.resources[r].capacity, ports.buffers[r].first_port
        total = _taken(net, ports, k)
        if total > capacity:
            _slow_down(net, ports, k, capacity / total)


@inner
def _count_left(net, ports, reached):
    """Capacity that the flows leave on the resources."""
    for i in range(reached):
        r = ports.sweep[i]
        left = net.resources[r].capacity
        for k in range(ports.buffers[r].first_port, ports.buffers[r + 1].first_port):
            left -= _taken(net, ports, k)
        net.resources[r].left = left


# ---- flows
# When concurrent transfers over a fabric finish: `simulate_flows`.
#
# A transfer uses the links of its route from its start and moves at the rate that contention leaves it; the latency
# of its links is added once, at the end. Rates are constant between events (a start or an end), so a transfer's end is
# known as soon as its rate is, and only those whose rate changes are updated.
#
# Under ``shared`` contention rates come from `fair` or `round_robin`. Under ``reserved`` a transfer holds every
# undirected edge of its route, exclusively, from its start to its end; transfers are booked in the order of (start,
# index), each at the earliest time at which all its edges are free, as in the published simulator.

CONTENTIONS = ("shared", "reserved")
ARBITRATIONS = ("fair", "round_robin", "head_of_line")
SPENT = 1e-12  # a transfer with less than this share of its bytes left is complete
RUN = np.dtype(
    [
        ("rate", "f8"),  # bytes/ns
        ("left", "f8"),  # bytes at the last change of rate
        ("since", "f8"),  # time of that change, from the flow's start
        ("takes", "f8"),  # time of the end, from the flow's start
    ]
)


def simulate_flows(
    fabric: tuple[int, int] | Graph,
    flows: Iterable[Sequence[float]],
    link_bytes_per_s: float | None = None,
    hop_ns: float | None = None,
    contention: str = "shared",
    arbitration: str = "fair",
    die_port_bytes_per_s: float | None = None,
) -> np.ndarray:
    """Finish times, float64[flow] in ns, of transfers that share the links of a fabric.

    fabric: an X × Y mesh as ``(x, y)`` (die = x + X·y, XY routes), a ``Graph``, or a ``Fabric``, whose links have
    their own bandwidths and latencies (``archsim.engine.machine.build_fabric(system, "row_major")``). Links are full
    duplex. flows: rows (src, dst, size_bytes, start_ns), dies and real numbers. link_bytes_per_s, hop_ns: bandwidth of
    one direction of a link, and the latency that every link adds to a route; for a ``Fabric`` they may be left out, or
    replace its own. contention: ``shared``, transfers share the links of their routes; ``reserved``, a transfer has its
    route to itself, both ways. arbitration: of ``shared``. ``fair``: rates are max-min fair over transfers.
    ``round_robin``: routers serve their input ports in turn, which favours sources near the destination.
    ``head_of_line``: the same also on rings and tori, whose routes wait for each other in a cycle.
    die_port_bytes_per_s: total bandwidth at which a die can inject, and eject; None: no limit.

    A transfer that meets no other finishes at start + latency of its route + size / bandwidth, with the least bandwidth
    of links and die port. One of size 0 takes the latency alone. One from a die to itself uses no link and meets no
    other: it finishes at start + size / die port, or at its start if the ports have no limit.

    Raises ValueError for an unknown name, a bandwidth that is missing or not positive, a size, start or hop time that
    is negative or not finite, a die outside the fabric (the message names the flow by its index), and ``round_robin``
    on a fabric whose routes wait for each other in a cycle.

    >>> simulate_flows((3, 1), [(0, 2, 1000, 0), (1, 2, 1000, 0)], 1e9, 20.0).tolist()
    [2040.0, 2020.0]
    """
    _check_name("contention", contention, CONTENTIONS)
    _check_name("arbitration", arbitration, ARBITRATIONS)
    port = math.inf if die_port_bytes_per_s is None else _bytes_per_ns("die_port_bytes_per_s", die_port_bytes_per_s)
    graph = fabric if isinstance(fabric, Graph) else build_mesh(*fabric)
    link_bytes_per_ns, link_ns = _link_properties(graph, link_bytes_per_s, hop_ns)
    rates, latencies = (np.broadcast_to(each, graph.links).astype(np.float64) for each in (link_bytes_per_ns, link_ns))
    src, dst, size, start = _flow_columns(flows, graph.dies)
    latency = per_route(graph, latencies)[src, dst]
    alone = np.minimum(narrowest(graph, rates, here=math.inf)[src, dst], port)
    if contention == "reserved":
        return _reserved(graph, src, dst, start, latency, size / alone)
    finish = start + latency + size / alone
    meets = np.flatnonzero((src != dst) & (size > 0))
    if len(meets):
        finish[meets] = _shared(
            graph, src[meets], dst[meets], size[meets], start[meets], latency[meets], rates, port, arbitration
        )
    return finish


def _link_properties(
    graph: Graph, link_bytes_per_s: float | None, hop_ns: float | None
) -> tuple[float | np.ndarray, float | np.ndarray]:
    """(bytes/ns, ns) of links: those given, else the fabric's own."""
    if hop_ns is not None and not (math.isfinite(hop_ns) and hop_ns >= 0):
        raise ValueError(f"hop_ns {hop_ns!r}: expected a finite number that is not negative")
    name = "link_bytes_per_s"
    rates = _own(graph, name).link_bytes_per_ns if link_bytes_per_s is None else _bytes_per_ns(name, link_bytes_per_s)
    return rates, _own(graph, "hop_ns").link_ns if hop_ns is None else float(hop_ns)


def _own(graph: Graph, missing: str) -> Fabric:
    """The graph, where its links have bandwidths and latencies."""
    if not isinstance(graph, Fabric):
        raise ValueError(f"{missing} is missing; only a Fabric has bandwidths and latencies of its own")
    return graph


def _check_name(what, name, valid):
    if name not in valid:
        raise ValueError(f"{what} {name!r}: expected one of {', '.join(map(repr, valid))}")


def _bytes_per_ns(what, bytes_per_s) -> float:
    if not (math.isfinite(bytes_per_s) and bytes_per_s > 0):
        raise ValueError(f"{what} {bytes_per_s!r}: expected a positive, finite number")
    return float(bytes_per_s) / NS_PER_S


def _flow_columns(flows, dies):
    """Columns src, dst: int64[n], size_bytes, start_ns: float64[n] of valid flows."""
    rows = [tuple(flow) for flow in flows]
    for i, row in enumerate(rows):
        if len(row) != 4:
            raise ValueError(f"flow {i}: expected (src, dst, size_bytes, start_ns), got {len(row)} values")
    table = np.array(rows, dtype=np.float64).reshape(len(rows), 4)
    for column, what in enumerate(("src", "dst")):
        ends = table[:, column]
        _refuse(~((ends >= 0) & (ends < dies) & (ends == np.floor(ends))), ends, what, f"a die from 0 to {dies - 1}")
    for column, what in ((2, "size_bytes"), (3, "start_ns")):
        values = table[:, column]
        _refuse(~(np.isfinite(values) & (values >= 0)), values, what, "a finite number that is not negative")
    return table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2], table[:, 3]


def _refuse(bad, values, what, expected):
    if bad.any():
        i = int(np.argmax(bad))
        raise ValueError(f"flow {i}: {what} {values[i]:g}: expected {expected}")


def _reserved(graph: Graph, src, dst, start, latency, transfer) -> np.ndarray:
    """Finish times when a path is held as a whole for ``latency + transfer: float64[n]`` ns."""
    free = np.zeros(graph.edges)
    finish = np.empty(len(start))
    for i in np.argsort(start, kind="stable"):
        edges = graph.link_edge[graph.route(src[i], dst[i])]
        begin = max(start[i], free[edges].max(initial=0.0))
        finish[i] = begin + latency[i] + transfer[i]
        free[edges] = finish[i]
    return finish


def _shared(graph: Graph, src, dst, size, start, latency, rates, port, arbitration) -> np.ndarray:
    """Finish times of flows that use links. Groups are the distinct (src, dst), ascending."""
    pairs, group = np.unique(src * graph.dies + dst, return_inverse=True)
    net = _network(graph, pairs, rates, port)
    order = np.argsort(start, kind="stable")
    runs = np.zeros(len(size), RUN)
    runs["left"], runs["takes"] = size, np.inf
    finish, active = np.empty(len(size)), np.empty(len(size), np.int64)
    flows = group.astype(np.int64), size, start, latency, order, runs, active, finish
    fair, cycles = arbitration == "fair", arbitration == "head_of_line"
    ports = NO_PORTS if fair else build_ports(net, _port_rank(graph, port, cycles), cycles)
    _run_events(net, ports, *flows, fair)
    return finish


def _network(graph: Graph, pairs, rates, port):
    """Network over the routes of ``pairs: int64[group]`` (src · dies + dst).

    Resources: links as in the graph; with a port limit also injection (links + die) and ejection (links + dies + die).
    """
    dies, links = graph.dies, graph.links
    routes = [graph.route(*divmod(int(pair), dies)) for pair in pairs]
    if not math.isinf(port):
        rates = np.concatenate([rates, np.full(2 * dies, port)])
        routes = [
            np.concatenate([[links + pair // dies], route, [links + dies + pair % dies]])
            for pair, route in zip(pairs, routes, strict=True)
        ]
    route_ptr = np.concatenate([[0], np.cumsum([len(route) for route in routes])])
    return build_network(rates, route_ptr, np.concatenate(routes))


def _port_rank(graph: Graph, port, cycles: bool) -> np.ndarray:
    """Rank of the resources of `_network`: injection, links along every route, ejection."""
    rank = ranks_in_cycles(graph) if cycles else rank_links(graph)
    if math.isinf(port):
        return rank
    return np.concatenate([rank + 1, np.repeat([0, rank.max(initial=0) + 2], graph.dies)])


@kernel
def _run_events(net, ports, group, size, start, latency, order, runs, active, finish, fair):
    """Fill ``finish: float64[n]`` of flows ``group: int64[n]``; ``order: int64[n]`` is the order of their starts.

    ``fair``: whether rates are max–min fair, see `solve_rates`.

    Times of a flow are kept relative to its start, and its bytes left are updated only when its rate changes, so a flow
    whose rate never changes finishes exactly after size / rate. ``runs: RUN[n]``, ``active: int64[n]`` are scratch.
    """
    net, ports, n = reference(net), reference(ports), len(group)
    running, started = 0, 0
    while running > 0 or started < n:
        now = start[order[started]] if started < n else np.inf
        for i in range(running):
            f = active[i]
            now = min(now, start[f] + runs[f].takes)
        i = 0
        while i < running:
            f = active[i]
            takes = runs[f].takes
            if start[f] + takes <= now or (takes - (now - start[f])) * runs[f].rate <= SPENT * size[f]:
                finish[f] = start[f] + latency[f] + takes
                leave(net, group[f])
                running -= 1
                active[i] = active[running]
            else:
                i += 1
        while started < n and start[order[started]] <= now:
            active[running] = order[started]
            enter(net, group[order[started]])
            running += 1
            started += 1
        solve_rates(net, ports, fair)
        stamp = net.counts[STAMP]
        for i in range(running):
            f = active[i]
            row = net.groups[group[f]]
            if row.stamp == stamp and row.rate != runs[f].rate:
                run = runs[f]
                run.left = max(0.0, run.left - run.rate * (now - start[f] - run.since))
                run.since = now - start[f]
                run.rate = row.rate
                run.takes = run.since + run.left / run.rate
