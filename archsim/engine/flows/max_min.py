"""Max–min fair rates by progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2).

All rates rise together; the resource with the least capacity per flow saturates first and fixes the flows through it
at that share; their rates are subtracted everywhere, and the others keep rising. So every flow ends with a
bottleneck: a saturated resource on which no flow is faster.

Contract of the incremental recompute, the same for `fair_rates` and `archsim.engine.flows.port_fair.round_robin_rates`:

1. `network.enter(net, group)` and `network.leave(net, group)` for all flows that start and end at an instant, in any
   order;
2. ``n = fair_rates(net, ())`` recomputes the n groups whose rates can change;
3. ``net.groups[g].stamp == net.counts[STAMP]`` marks them and those that were entered or left, and
   ``net.groups[g].rate`` is the rate of each flow of a group in bytes/ns; a group without flows has rate 0. A route
   without resources has rate infinity. ``net.resources[r].left`` is what groups leave of a resource that they share.

The network keeps the rounds of the last filling. A flow that ends has changed nothing below its own level, and one
that starts changes nothing below the level at which the first resource of its route now saturates: only the rounds
from there on are undone and filled again. A group alone on its route is not filled until another joins it.

Levels change at almost every recompute, and bottlenecks hardly: of the groups that are filled again, 96 % keep theirs
(DeepSeek-V3 on 5 x 5 dies). So a resource keeps the groups that it limits, and how many of their flows pass which
resource. When it saturates, and as many flows wait on it as it limits, these are the same flows, and no route is
walked. Only those bottlenecks are watched for the least share. Whether another resource would have saturated is asked
when its waiting flows become fewer: its share, the same since the last time, must be beyond the level. If it is not,
it is watched, too, and the rounds from its share on are filled again. Rates are those of watching all, to the bit.

Rates depend only on which flows are under way, not on the order in which they started: flows are counted in integers
and each round subtracts once per resource. There is no absolute tolerance: capacities multiplied by a power of two
give rates multiplied by exactly that.
"""

import numpy as np

from archsim.base.compiled import inner, outer, unsigned
from archsim.engine.flows import network

NEAR = 1.0 + 1e-9  # what is beyond a level by this factor is greater, however it was rounded
ALL = np.int64(2**62)


@outer
def fair_rates(net, ports):
    """Max–min rates; returns how many groups were recomputed. ``ports``, a parameter of all solvers, is not used."""
    net.counts[network.STAMP] += 1
    net.counts[network.FOUND] = 0
    watched = _undo_rounds(net)
    kept = net.counts[network.FILLED]
    _fill(net, watched)
    net.counts[network.TOUCHED] = 0
    return net.counts[network.FILLED] - kept


@inner
def _undo_rounds(net):
    """Undo the rounds that touched groups can change and count these groups anew; returns the resources to watch."""
    touched, watched, kept = (
        net.lists[network.TOUCHED_GROUPS],
        np.int64(0),
        min(net.counts[network.ROUNDS], net.counts[network.KEPT_ROUNDS]),
    )
    for i in range(net.counts[network.TOUCHED]):
        row = net.groups[touched[unsigned(i)]]
        if row.limit >= 0 and row.filled != _flows_to_fill(net, touched[unsigned(i)]):
            kept = min(kept, np.int64(net.resources[row.limit].round))
    net.counts[network.KEPT_ROUNDS] = ALL
    while net.counts[network.ROUNDS] > kept:
        watched = _undo_round(net, watched)
    for i in range(net.counts[network.TOUCHED]):
        _count_anew(net, touched[unsigned(i)])
    for i in range(net.counts[network.TOUCHED]):
        while _saturates_before(net, touched[unsigned(i)]):
            watched = _undo_round(net, watched)
    return watched


@inner
def _undo_round(net, watched):
    """Undo the last round; returns the number of resources to watch, with its bottlenecks."""
    net.counts[network.ROUNDS] -= 1
    undone = net.rounds[unsigned(net.counts[network.ROUNDS])]
    for i in range(undone.first_change, net.counts[network.CHANGES]):
        change = net.changes[unsigned(i)]
        resource = net.resources[change.resource]
        resource.left = change.left
        resource.waiting += change.fixed
    for i in range(undone.first, net.counts[network.BOTTLENECKS]):
        r = net.lists[network.SATURATED, unsigned(i)]
        net.resources[r].round = -1
        net.counts[network.FILLED] -= net.resources[r].limits
        net.lists[network.WATCHED, unsigned(watched)] = r
        watched += 1
    net.counts[network.CHANGES], net.counts[network.BOTTLENECKS] = undone.first_change, undone.first
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
    row.touched, row.stamp = 0, net.counts[network.STAMP]
    net.lists[network.RECOMPUTED, unsigned(net.counts[network.FOUND])] = group
    net.counts[network.FOUND] += 1
    if flows == 0:
        _rate_alone(net, group)
    more = flows - row.filled
    if more != 0:
        if row.limit >= 0:
            if flows == 0:
                network.free(net, group)
            else:
                network.count_passed(net, group, more)
        net.counts[network.TO_FILL] += np.int64(flows > 0) - np.int64(row.filled > 0)
        row.filled = flows
        for p in range(row.first, row.end):
            net.resources[net.routes[p]].waiting += more


@inner
def _saturates_before(net, group):
    """Whether a resource of the group's route saturates before the last round."""
    if net.counts[network.ROUNDS] == 0:
        return False
    level = net.rounds[net.counts[network.ROUNDS] - 1].level
    for p in range(net.groups[group].first, net.groups[group].end):
        resource = net.resources[net.routes[p]]
        if resource.waiting > 0 and resource.left / resource.waiting <= level:
            return True
    return False


@inner
def _fill(net, n):
    """Progressive filling from the last round's level on; the first n resources of the list are watched."""
    kept = net.counts[network.ROUNDS]
    for i in range(n):
        _watch(net, i)
    while net.counts[network.FILLED] < net.counts[network.TO_FILL]:
        floor = net.rounds[net.counts[network.ROUNDS] - 1].level if net.counts[network.ROUNDS] > 0 else 0.0
        n_tightest, level = _find_tightest(net, n, floor)
        first = n
        if n_tightest > 0:
            begun = net.rounds[unsigned(net.counts[network.ROUNDS])]
            begun.level, begun.first, begun.first_change = (
                level,
                net.counts[network.BOTTLENECKS],
                net.counts[network.CHANGES],
            )
            near = _saturate(net, level, n_tightest, begun.first_change)
            net.counts[network.ROUNDS] += 1
            if near:
                n = _watch_passed(net, level, begun.first_change, n)
        else:
            n = _watch_new(net, n)
        if n > first:
            _undo_near(net, kept, first, n)
            for i in range(n):
                _watch(net, i)
    for i in range(n):
        net.resources[net.lists[network.WATCHED, unsigned(i)]].watched = 0


@inner
def _watch(net, i):
    resource = net.resources[net.lists[network.WATCHED, unsigned(i)]]
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
        resource = net.resources[net.lists[network.WATCHED, unsigned(i)]]
        while net.counts[network.ROUNDS] > kept and (
            resource.waiting == 0
            or resource.left <= NEAR * net.rounds[unsigned(net.counts[network.ROUNDS] - 1)].level * resource.waiting
        ):
            _undo_round(net, n)


@inner
def _find_tightest(net, n, floor):
    """List the watched resources of least share, last first; returns their number and it, no less than ``floor``."""
    watched, tightest, shares = net.lists[network.WATCHED], net.lists[network.TIGHTEST], net.share
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
    """Fix the flows of the tightest; returns whether a resource not watched may have saturated before."""
    near, beyond = False, NEAR * level
    if n_tightest == 1:
        r = net.lists[network.TIGHTEST, 0]
        _limit(net, r, level)
        if net.resources[r].passed >= 0:
            passed, end = net.passed[r], first_change + net.resources[r].passed
            for at in range(first_change, end):
                entry = passed[unsigned(at - first_change)]
                net.changes[unsigned(at)].resource = entry.resource
                near |= _subtract(net, at, level, beyond, entry.flows)
            net.counts[network.CHANGES] = end
            return near
        _note_limited(net, r)
    else:
        for i in range(n_tightest):
            r = net.lists[network.TIGHTEST, unsigned(i)]
            _limit(net, r, level)
            _note_limited(net, r)
    for at in range(first_change, net.counts[network.CHANGES]):
        resource = net.resources[net.changes[unsigned(at)].resource]
        near |= _subtract(net, at, level, beyond, resource.newly_fixed)
        resource.newly_fixed = 0
    return near


@inner
def _limit(net, r, level):
    resource, stamp, found = net.resources[r], net.counts[network.STAMP], net.counts[network.FOUND]
    if resource.waiting - resource.newly_fixed != resource.limited:
        _take_open(net, r)
    resource.round = net.counts[network.ROUNDS]
    net.lists[network.SATURATED, unsigned(net.counts[network.BOTTLENECKS])] = r
    net.counts[network.BOTTLENECKS] += 1
    net.counts[network.FILLED] += resource.limits
    for u in range(resource.first_user, resource.first_user + resource.limits):
        group = net.users[u].group
        row = net.groups[group]
        net.lists[network.RECOMPUTED, unsigned(found)] = group
        found += row.stamp != stamp
        row.rate, row.stamp = level, stamp
    net.counts[network.FOUND] = found


@outer
def _note_limited(net, r):
    """Note the resources that the flows of a bottleneck pass, among those of other bottlenecks of the round."""
    resource, n_changed = net.resources[r], net.counts[network.CHANGES]
    if resource.passed >= 0:
        passed = net.passed[r]
        for at in range(resource.passed):
            n_changed = _note(net, passed[unsigned(at)].resource, passed[unsigned(at)].flows, n_changed)
    else:
        for u in range(resource.first_user, resource.first_user + resource.limits):
            row = net.groups[net.users[u].group]
            for p in range(row.first, row.end):
                n_changed = _note(net, net.routes[p], row.filled, n_changed)
    net.counts[network.CHANGES] = n_changed


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
            network.free(net, group)
        row.limit = row.bottleneck = r
        network.exchange(net, np.uint32(u), resource.first_user + resource.limits)
        resource.limits += 1
        network.count_passed(net, group, row.filled)


@inner
def _subtract(net, at, level, beyond, fixed):
    """Remove fixed flows from a resource; returns whether it is not watched and may have saturated before."""
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
    for i in range(first_change, net.counts[network.CHANGES]):
        change = net.changes[unsigned(i)]
        resource = net.resources[change.resource]
        if resource.watched == 0 and change.left <= NEAR * level * (resource.waiting + change.fixed):
            resource.watched = 1
            net.lists[network.WATCHED, unsigned(n)] = change.resource
            n += 1
    return n


@outer
def _watch_new(net, n):
    """Watch the resources of groups that nothing has limited yet; returns the number of those watched."""
    for i in range(net.counts[network.TOUCHED]):
        row = net.groups[net.lists[network.TOUCHED_GROUPS, unsigned(i)]]
        if row.limit < 0 and row.filled > 0:
            for p in range(row.first, row.end):
                resource = net.resources[net.routes[p]]
                if resource.watched == 0:
                    resource.watched = 1
                    net.lists[network.WATCHED, unsigned(n)] = net.routes[p]
                    n += 1
    return n
