"""When the bytes of a phase have passed all ports, given when each port may begin to send.

Ports are the only bottleneck. If all begin together, the last byte arrives after the time of the fullest port: a
schedule that interrupts transfers reaches this bound (Gonzalez and Sahni, Open shop scheduling to minimize finish
time, J. ACM 23, 1976), and no other can beat it. Both engines take it. If they begin at different times (a combine,
as ranks finish their experts at different times):

===========  =========================================================================================================
event        into a port: the busy period of one server, max over k of (the k-th begin + bytes of all that begin then
             or later); out of a port: its begin + its bytes; a target waits for every source that sends to it
analytical   the same with two of the terms into a port: all bytes from the first begin on, and none after the last
===========  =========================================================================================================
"""

from __future__ import annotations

import numpy as np

from archsim.base.compiled import inner, kernel
from archsim.engine.cluster.laws import PortLaw


def arrivals(flows: np.ndarray, begin_ns: np.ndarray, law: PortLaw, share: np.ndarray) -> np.ndarray:
    """float64[network, target] ns: when a target has all of ``flows``, bytes float64[network, source, target].
    ``begin_ns``: float64[network, source]; ``share``: float64[network, port] of a port's bandwidth.
    """
    out_ns = begin_ns + law.busy(flows.sum(axis=2)) / share
    found = np.zeros(flows.shape[::2])
    slope = law.last_ns_per_byte
    flows, begin_ns, out_ns, share = (np.ascontiguousarray(each) for each in (flows, begin_ns, out_ns, share))
    latest_first = np.ascontiguousarray(np.argsort(-begin_ns, axis=1))
    _busy_periods(flows, begin_ns, out_ns, latest_first, share, law.at_bytes, law.busy_ns, slope, found)
    return found + np.where(found > 0, law.fixed_ns, 0.0)


def bounds(flows: np.ndarray, begin_ns: np.ndarray, law: PortLaw, share: np.ndarray) -> np.ndarray:
    """As `arrivals`, by the analytical rule."""
    out, into = flows.sum(axis=2), flows.sum(axis=1)
    last = np.where(out > 0, begin_ns + law.busy(out) / share, 0.0).max(axis=1, keepdims=True)
    first = begin_ns.min(axis=1, keepdims=True)
    return np.where(into > 0, np.maximum(last, first + law.busy(into) / share) + law.fixed_ns, 0.0)


@kernel
def _busy_periods(flows, begin_ns, out_ns, latest_first, share, at_bytes, busy_ns, slope, found):
    """Fill ``found``; ``latest_first``: int64[network, source], in order of descending begin."""
    for network in range(len(flows)):
        for target in range(flows.shape[2]):
            total, end = 0.0, 0.0
            for place in range(flows.shape[1]):
                source = latest_first[network, place]
                n_bytes = flows[network, source, target]
                if n_bytes > 0.0:
                    total += n_bytes
                    busy = begin_ns[network, source] + _busy(total, at_bytes, busy_ns, slope) / share[network, target]
                    end = max(end, out_ns[network, source], busy)
            found[network, target] = end


@inner
def _busy(n_bytes, at_bytes, busy_ns, slope):
    """``PortLaw.busy`` of one number."""
    low, high = 0, len(at_bytes) - 1
    if n_bytes >= at_bytes[high]:
        return busy_ns[high] + (n_bytes - at_bytes[high]) * slope
    while high - low > 1:
        middle = (low + high) // 2
        if at_bytes[middle] <= n_bytes:
            low = middle
        else:
            high = middle
    share = (n_bytes - at_bytes[low]) / (at_bytes[high] - at_bytes[low])
    return busy_ns[low] + share * (busy_ns[high] - busy_ns[low])
