"""Max–min fair rates by progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2).

All rates rise together; the resource with the least capacity per flow saturates first and fixes the flows through it
at that share; what they take is subtracted everywhere, and the rest rises on. So every flow ends with a bottleneck: a
saturated resource on which no flow is faster.

Contract of the incremental recompute, the same for `fair_rates` and `round_robin.round_robin_rates`:

1. `network.enter(net, group)` and `network.leave(net, group)` for all flows that start and end at an instant, in any
   order;
2. ``n = fair_rates(net)`` recomputes the groups that share a resource, directly or through other groups, with those
   that started or ended, and no others (no other rate can change);
3. ``net.component[:n]`` lists them and ``net.rate[group]`` is the rate of each flow of a group in bytes/ns; a group
   without flows has rate 0. A route without resources has rate infinity.

Rates depend only on which flows are under way, not on the order in which they came: flows are counted in integers and
each round subtracts once per resource. There is no absolute tolerance: capacities multiplied by a power of two give
rates multiplied by exactly that.
"""

from __future__ import annotations

import numpy as np
from archsim.engine.state import kernel

from archsim.engine.network import REACHED, STAMP, touched_component


@kernel
def fair_rates(net):
    """Max–min rates of the touched component (`network.FlowNetwork`); returns its number of groups."""
    found = touched_component(net)
    rate, weight, fixed_stamp, stamp = net.rate, net.weight, net.fixed_stamp, net.counts[STAMP]
    user_ptr, user_group, user_count = net.user_ptr, net.user_group, net.user_count
    route_ptr, route_resources = net.route_ptr, net.route_resources
    open_resources, tightest, changed = net.open, net.tightest, net.changed
    left, share, waiting, newly_fixed = net.left, net.share, net.waiting, net.newly_fixed
    still_open = net.counts[REACHED]
    _start_filling(net, found, still_open)
    while True:
        still_open, n_tightest = _find_tightest(open_resources, tightest, waiting, share, still_open)
        if n_tightest == 0:
            return found
        level = share[tightest[0]]
        n_changed = 0
        for i in range(n_tightest):
            r = tightest[i]
            for u in range(user_ptr[r], user_ptr[r] + user_count[r]):
                group = user_group[u]
                if fixed_stamp[group] == stamp:
                    continue
                fixed_stamp[group] = stamp
                rate[group] = level
                for p in range(route_ptr[group], route_ptr[group + 1]):
                    passed = route_resources[p]
                    changed[n_changed] = passed
                    n_changed += newly_fixed[passed] == 0
                    newly_fixed[passed] += weight[group]
        _subtract(changed, n_changed, level, left, waiting, newly_fixed, share)


@kernel
def _start_filling(net, found, reached):
    """Nothing is given out yet; a group that passes no resource keeps rate infinity."""
    for i in range(found):
        net.rate[net.component[i]] = np.inf
    capacity, load, left, share, waiting = net.capacity, net.load, net.left, net.share, net.waiting
    for i in range(reached):
        r = net.reached[i]
        net.open[i] = r
        left[r] = capacity[r]
        waiting[r] = load[r]
        share[r] = left[r] / max(waiting[r], 1)


@kernel
def _find_tightest(open_resources, tightest, waiting, share, still_open):
    """Drop the resources without waiting flows; returns how many stay open, and how many have the least share."""
    level = np.inf
    found = 0
    i = 0
    while i < still_open:
        r = open_resources[i]
        if waiting[r] == 0:
            still_open -= 1
            open_resources[i] = open_resources[still_open]
            continue
        if share[r] < level:
            level = share[r]
            found = 0
        if share[r] == level:
            tightest[found] = r
            found += 1
        i += 1
    return still_open, found


@kernel
def _subtract(changed, n_changed, level, left, waiting, newly_fixed, share):
    """Take the newly fixed flows off the resources that they pass."""
    for i in range(n_changed):
        r = changed[i]
        left[r] -= level * newly_fixed[r]
        waiting[r] -= newly_fixed[r]
        newly_fixed[r] = 0
        if waiting[r] > 0:
            share[r] = max(level, left[r] / waiting[r])  # rounding must not lower the level
