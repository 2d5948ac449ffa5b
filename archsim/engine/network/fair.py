"""Max–min fair rates by progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2).

All rates rise together; the resource with the least capacity per flow saturates first and fixes the flows through it
at that share; their rates are subtracted everywhere, and the others keep rising. So every flow ends with a
bottleneck: a saturated resource on which no flow is faster.

Contract of the incremental recompute, the same for `fair_rates` and `round_robin.round_robin_rates`:

1. `network.enter(net, group)` and `network.leave(net, group)` for all flows that start and end at an instant, in any
   order;
2. ``n = fair_rates(net, ())`` recomputes the n groups whose rates can change;
3. ``net.groups[g].stamp == net.counts[STAMP]`` marks them and those that were entered or left, and
   ``net.groups[g].rate`` is the rate of each flow of a group in bytes/ns; a group without flows has rate 0. A route
   without resources has rate infinity. ``net.resources[r].left`` is what groups leave of a resource that they share.

The network keeps the rounds of the last filling. A flow that ends has changed nothing below its own level, and one that
starts changes nothing below the level at which the first resource of its route now saturates: only the rounds from
there on are undone and filled again. A group that starts alone on its route is not filled until another joins it.

Rates depend only on which flows are under way, not on the order in which they started: flows are counted in integers
and each round subtracts once per resource. There is no absolute tolerance: capacities multiplied by a power of two
give rates multiplied by exactly that.
"""

import numpy as np

from archsim.base.kernels import inner, outer, unsigned
from archsim.engine.network.network import (
    CHANGES,
    FIXED,
    FIXED_GROUPS,
    NEAR,
    OPEN,
    ROUNDS,
    STAMP,
    TIGHTEST,
    TOUCHED,
    TOUCHED_GROUPS,
)

HORIZON = 1.25  # the short list holds the resources with up to this multiple of the least share


@outer
def fair_rates(net, ports):
    """Max–min rates (`network.FlowNetwork`); returns how many groups were recomputed.

    ``ports`` is not used: all solvers are called alike.
    """
    net.counts[STAMP] += 1
    n_open = _undo_rounds(net)
    kept = net.counts[FIXED_GROUPS]
    _fill(net, n_open)
    return net.counts[FIXED_GROUPS] - kept


@inner
def _undo_rounds(net):
    """Undo the rounds that the touched groups can change, and count these groups anew. Returns the number of open
    resources, those with flows whose rates are to be fixed.
    """
    touched, n_open, kept = net.lists[TOUCHED_GROUPS], np.int64(0), net.counts[ROUNDS]
    for i in range(net.counts[TOUCHED]):
        row = net.groups[touched[unsigned(i)]]
        if row.round >= 0 and row.filled != _flows_to_fill(net, touched[unsigned(i)]):
            kept = min(kept, row.round)
    while net.counts[ROUNDS] > kept:
        n_open = _undo_round(net, n_open)
    for i in range(net.counts[TOUCHED]):
        n_open = _count_anew(net, touched[unsigned(i)], n_open)
    for i in range(net.counts[TOUCHED]):
        while _saturates_before(net, touched[unsigned(i)]):
            n_open = _undo_round(net, n_open)
    net.counts[TOUCHED] = 0
    for i in range(n_open):
        resource = net.resources[net.lists[OPEN, unsigned(i)]]
        resource.share = resource.left / max(resource.waiting, 1)
    return n_open


@inner
def _undo_round(net, n_open):
    """Undo the last round; returns the number of open resources."""
    net.counts[ROUNDS] -= 1
    undone = net.rounds[unsigned(net.counts[ROUNDS])]
    for i in range(undone.first_change, net.counts[CHANGES]):
        change = net.changes[unsigned(i)]
        net.resources[change.resource].left = change.left
        net.resources[change.resource].waiting += change.fixed
        n_open = _open(net, change.resource, n_open)
    for i in range(undone.first_group, net.counts[FIXED_GROUPS]):
        net.groups[net.lists[FIXED, unsigned(i)]].round = -1
    net.counts[CHANGES], net.counts[FIXED_GROUPS] = undone.first_change, undone.first_group
    return n_open


@inner
def _open(net, r, n_open):
    """Append a resource to the open ones if it is not there; returns their number."""
    net.lists[OPEN, unsigned(n_open)] = r
    n_open += net.resources[r].stamp != net.counts[STAMP]
    net.resources[r].stamp = net.counts[STAMP]
    return n_open


@inner
def _flows_to_fill(net, group):
    """Flows of a group that share a resource with another group: all of them, or none."""
    for p in range(net.groups[group].first, net.groups[group + 1].first):
        if net.resources[net.positions[p].resource].users > 1:
            return net.groups[group].weight
    return np.int64(0)


@inner
def _rate_alone(net, group):
    """Set the rate of a group that shares no resource."""
    row = net.groups[group]
    row.rate = 0.0 if row.weight == 0 else np.inf
    if row.weight > 0:
        for p in range(row.first, net.groups[group + 1].first):
            share = net.resources[net.positions[p].resource].capacity / row.weight
            if share <= row.rate:
                row.rate, row.bottleneck = share, net.positions[p].resource


@inner
def _count_anew(net, group, n_open):
    """A touched group waits with the flows that it has now; returns the number of open resources."""
    row, flows = net.groups[group], _flows_to_fill(net, group)
    row.touched, row.stamp = 0, net.counts[STAMP]
    if flows == 0:
        _rate_alone(net, group)
    more = flows - row.filled
    if more != 0:
        row.filled = flows
        for p in range(row.first, net.groups[group + 1].first):
            r = net.positions[p].resource
            net.resources[r].waiting += more
            n_open = _open(net, r, n_open)
    return n_open


@inner
def _saturates_before(net, group):
    """Whether a resource of the group's route saturates before the last round."""
    if net.counts[ROUNDS] == 0:
        return False
    level = net.rounds[net.counts[ROUNDS] - 1].level
    for p in range(net.groups[group].first, net.groups[group + 1].first):
        resource = net.resources[net.positions[p].resource]
        if resource.waiting > 0 and resource.left / resource.waiting <= level:
            return True
    return False


@inner
def _fill(net, n_open):
    """Progressive filling of the open resources, from the level of the last round on."""
    n_near, horizon = np.int64(0), 0.0
    floor = net.rounds[net.counts[ROUNDS] - 1].level if net.counts[ROUNDS] > 0 else 0.0
    while n_open > 0:
        n_near, n_tightest, level = _find_tightest(net, n_near, floor)
        if level <= horizon:
            begun = net.rounds[unsigned(net.counts[ROUNDS])]
            begun.level, begun.first_group, begun.first_change = level, net.counts[FIXED_GROUPS], net.counts[CHANGES]
            _fix_tightest(net, level, n_tightest)
            horizon = _subtract(net, level, horizon, begun.first_change)
            net.counts[ROUNDS] += 1
            floor = level
        else:
            n_open, n_near, horizon = _draw_short_list(net, n_open)


@inner
def _draw_short_list(net, n_open):
    """Drop the resources without waiting flows, and list those with a share up to a horizon.

    Returns how many stay open, how many are near, and the horizon. No share falls, so the least of all is near as
    long as the least near one is not beyond the horizon.
    """
    open_resources, near = net.lists[OPEN], net.lists[NEAR]
    least = np.inf
    i = 0
    while i < n_open:
        resource = net.resources[open_resources[unsigned(i)]]
        if resource.waiting == 0:
            n_open -= 1
            open_resources[unsigned(i)] = open_resources[unsigned(n_open)]
        else:
            least = min(least, resource.share)
            i += 1
    horizon = HORIZON * least
    n_near = 0
    for i in range(n_open):
        near[unsigned(n_near)] = open_resources[unsigned(i)]
        n_near += net.resources[open_resources[unsigned(i)]].share <= horizon
    return n_open, n_near, horizon


@inner
def _find_tightest(net, n_near, floor):
    """Returns how many of the short list stay open, how many of them have the least share, and this share: it is no
    less than ``floor``, whatever rounding does.
    """
    near, tightest = net.lists[NEAR], net.lists[TIGHTEST]
    level = np.inf
    found = 0
    i = 0
    while i < n_near:
        r = near[unsigned(i)]
        resource = net.resources[r]
        if resource.waiting == 0:
            n_near -= 1
            near[unsigned(i)] = near[unsigned(n_near)]
            continue
        share = max(floor, resource.share)
        if share < level:
            level = share
            found = 0
        if share == level:
            tightest[unsigned(found)] = r
            found += 1
        i += 1
    return n_near, found, level


@inner
def _fix_tightest(net, level, n_tightest):
    """Fix the flows through the tightest resources, and note the resources that they pass."""
    this, stamp = net.counts[ROUNDS], net.counts[STAMP]
    n_fixed, n_changed = net.counts[FIXED_GROUPS], net.counts[CHANGES]
    for i in range(n_tightest):
        bottleneck = net.lists[TIGHTEST, unsigned(i)]
        resource = net.resources[bottleneck]
        for u in range(resource.first_user, resource.first_user + resource.users):
            group = net.users[u].group
            row = net.groups[group]
            if row.round >= 0:
                if row.round == this:  # of several, the last: a link rather than an HBM
                    row.bottleneck = max(row.bottleneck, bottleneck)
                continue
            row.round, row.stamp, row.rate, row.bottleneck = this, stamp, level, bottleneck
            net.lists[FIXED, unsigned(n_fixed)] = group
            n_fixed += 1
            weight = row.weight
            for p in range(row.first, net.groups[group + 1].first):
                r = net.positions[p].resource
                net.changes[unsigned(n_changed)].resource = r
                n_changed += net.resources[r].newly_fixed == 0
                net.resources[r].newly_fixed += weight
    net.counts[FIXED_GROUPS], net.counts[CHANGES] = n_fixed, n_changed


@inner
def _subtract(net, level, horizon, first_change):
    """Remove the newly fixed flows from the resources that they pass; returns the horizon of the short list."""
    for i in range(first_change, net.counts[CHANGES]):
        change = net.changes[unsigned(i)]
        resource = net.resources[change.resource]
        change.left, change.fixed = resource.left, resource.newly_fixed
        resource.left -= level * resource.newly_fixed
        resource.waiting -= resource.newly_fixed
        resource.newly_fixed = 0
        if resource.waiting > 0:
            share = resource.left / resource.waiting
            if share <= horizon < resource.share:
                horizon = 0.0  # rounding has brought it near: draw the short list again
            resource.share = share
    return horizon
