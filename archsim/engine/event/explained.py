"""The critical path of a step by activity, and what a product on it was doing: multiplying, waiting for bytes, or being
launched and filled.
"""

from __future__ import annotations

from archsim.base.kernels import inner, outer
from archsim.engine.state import LAUNCH, SLICES, launching_ns
from microarch.blocks.request import State
from microarch.blocks.state_machine import codes

(_, LOCAL_HBM, _, _, REMOTE_HBM, DATA, COMPUTE, _, _, ACT_READ, ACT_MOVE, *_) = codes(State)

ALL = 1 - 1e-9  # a share of more is 1, but for rounding


@inner
def explain_product(tally, work, entry, since, until):
    """Add the part from ``since`` to ``until`` of the time of a slice's product to ``bound_ns``, and its residuals.

    The launch comes first; what a product takes beyond ``compute_ns`` it reads; the rest is split as ``compute_ns`` is.
    """
    launch_ns = min(launching_ns(work, entry, since), until - since)
    rest_ns = min(until - since - launch_ns, entry.compute_ns)
    tally.bound_ns[LOCAL_HBM] += until - since - launch_ns - rest_ns
    multiply = entry.multiply_ns / entry.compute_ns if entry.compute_ns > 0.0 else 1.0
    if multiply > ALL:
        multiply = 1.0
    reading = entry.bytes_ns / entry.compute_ns if entry.compute_ns > 0.0 else 0.0
    tally.bound_ns[COMPUTE] += rest_ns * multiply
    tally.bound_ns[LOCAL_HBM] += rest_ns * reading
    tally.bound_ns[LAUNCH] += launch_ns + rest_ns * max(0.0, 1.0 - multiply - reading)
    longer = (until - since - launch_ns) / entry.compute_ns if entry.alone_ns > entry.compute_ns else 1.0
    tally.residual_ns[0] += entry.low_ns * max(1.0, longer)
    tally.residual_ns[1] += entry.high_ns * max(1.0, longer)


@outer
def trace_back(stages, work, tally, stage):
    """Add the critical path that ends with ``stage`` to ``bound_ns``, by activity, and its residuals.

    The part of a transfer in which an HBM was its bottleneck counts as a read.
    """
    until = stages[stage].end
    while stage >= 0 and until > 0.0:
        row = stages[stage]
        since = max(min(row.bound_from, until), 0.0)
        length = until - since
        reading = min(length, row.hbm_ns) if row.kind == DATA or row.kind == ACT_MOVE else 0.0
        if row.kind == COMPUTE:
            explain_product(tally, work, work.entries[row.item // SLICES], since, until)
        else:
            tally.bound_ns[row.kind] += length - reading
        if reading > 0.0:
            tally.bound_ns[REMOTE_HBM if row.kind == DATA else ACT_READ] += reading
        until = since
        stage = row.cause
