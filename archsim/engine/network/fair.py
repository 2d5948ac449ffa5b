"""Max–min fair rates by progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2).

All rates rise together; the resource with the least capacity per flow saturates first and fixes the flows through it
at that share; their rates are subtracted everywhere, and the others keep rising. So every flow ends with a
bottleneck: a saturated resource on which no flow is faster.

Contract of the incremental recompute, the same for `fair_rates` and `round_robin.round_robin_rates`:

1. `network.enter(net, group)` and `network.leave(net, group)` for all flows that start and end at an instant, in any
   order;
2. ``n = fair_rates(net, ())`` recomputes the groups that share a resource, directly or through other groups, with those
   that started or ended, and no others (no other rate can change);
3. ``net.lists[COMPONENT_GROUPS, :n]`` lists them, ``net.groups[g].stamp == net.counts[STAMP]`` marks them, and
   ``net.groups[g].rate`` is the rate of each flow of a group in bytes/ns; a group without flows has rate 0. A route
   without resources has rate infinity. ``net.resources[r].left`` is the capacity that they leave on the resources
   that they reach.

Rates depend only on which flows are under way, not on the order in which they started: flows are counted in integers
and each round subtracts once per resource. There is no absolute tolerance: capacities multiplied by a power of two
give rates multiplied by exactly that.
"""

from __future__ import annotations

import numpy as np

from archsim.base.kernels import inner, outer
from archsim.engine.network.network import (
    CHANGED,
    COMPONENT,
    NEAR,
    OPEN,
    REACHED,
    REACHED_COUNT,
    STAMP,
    TIGHTEST,
    UNDER_WAY,
    touched_component,
    whole_network,
)

SEARCH_EVERY = 8
HORIZON = 1.25  # the short list holds the resources with up to this multiple of the least share


@outer
def fair_rates(net, ports):
    """Max–min rates of the touched component (`network.FlowNetwork`); returns its number of groups.

    ``ports`` is not used: all solvers are called alike.
    """
    found = touched_component(net)
    _fill(net)
    return found


@outer
def fair_rates_of_most(net, ports):
    """The same rates as `fair_rates`, without a search if most groups belonged to the last component that was searched.

    In that case the whole network is filled: other components keep their rates. Every 8th call searches again.
    The touched groups are not reported; compare rates.
    """
    if net.counts[STAMP] % SEARCH_EVERY == 0 or 2 * net.counts[COMPONENT] < net.counts[UNDER_WAY]:
        touched_component(net)
    else:
        whole_network(net)
    _fill(net)


@outer
def _fill(net):
    """Progressive filling of the reached resources."""
    n_open, n_near, horizon = _start_filling(net), np.int64(0), 0.0
    while n_open > 0:
        n_near, n_tightest, level = _find_tightest(net, n_near)
        if level <= horizon:
            horizon = _subtract(net, level, horizon, _fix_tightest(net, level, n_tightest))
        else:
            n_open, n_near, horizon = _draw_short_list(net, n_open)


@inner
def _start_filling(net):
    """Reset: nothing is assigned yet. Returns the number of open resources."""
    reached = net.counts[REACHED_COUNT]
    for i in range(reached):
        r = net.lists[REACHED, i]
        net.lists[OPEN, i] = r
        resource = net.resources[r]
        resource.left, resource.waiting = resource.capacity, resource.load
        resource.share = resource.left / max(resource.waiting, 1)
    return reached


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
        resource = net.resources[open_resources[i]]
        if resource.waiting == 0:
            n_open -= 1
            open_resources[i] = open_resources[n_open]
        else:
            least = min(least, resource.share)
            i += 1
    horizon = HORIZON * least
    n_near = 0
    for i in range(n_open):
        near[n_near] = open_resources[i]
        n_near += net.resources[open_resources[i]].share <= horizon
    return n_open, n_near, horizon


@inner
def _find_tightest(net, n_near):
    """Returns how many of the short list stay open, how many of them have the least share, and this share."""
    near, tightest = net.lists[NEAR], net.lists[TIGHTEST]
    level = np.inf
    found = 0
    i = 0
    while i < n_near:
        r = near[i]
        resource = net.resources[r]
        if resource.waiting == 0:
            n_near -= 1
            near[i] = near[n_near]
            continue
        if resource.share < level:
            level = resource.share
            found = 0
        if resource.share == level:
            tightest[found] = r
            found += 1
        i += 1
    return n_near, found, level


@inner
def _fix_tightest(net, level, n_tightest):
    """Fix the flows through the tightest resources; returns how many resources they pass."""
    stamp, changed = net.counts[STAMP], net.lists[CHANGED]
    n_changed = 0
    for i in range(n_tightest):
        bottleneck = net.lists[TIGHTEST, i]
        resource = net.resources[bottleneck]
        for u in range(resource.first_user, resource.first_user + resource.users):
            group = net.users[u].group
            row = net.groups[group]
            if row.fixed_stamp == stamp:
                continue
            row.fixed_stamp = stamp
            row.rate, row.bottleneck = level, bottleneck
            weight = row.weight
            for p in range(row.first, net.groups[group + 1].first):
                r = net.positions[p].resource
                changed[n_changed] = r
                n_changed += net.resources[r].newly_fixed == 0
                net.resources[r].newly_fixed += weight
    return n_changed


@inner
def _subtract(net, level, horizon, n_changed):
    """Remove the newly fixed flows from the resources that they pass; returns the horizon of the short list."""
    for i in range(n_changed):
        resource = net.resources[net.lists[CHANGED, i]]
        resource.left -= level * resource.newly_fixed
        resource.waiting -= resource.newly_fixed
        resource.newly_fixed = 0
        if resource.waiting > 0:
            share = max(level, resource.left / resource.waiting)  # rounding must not lower the level
            if share <= horizon < resource.share:
                horizon = 0.0  # rounding has brought it near: draw the short list again
            resource.share = share
    return horizon
