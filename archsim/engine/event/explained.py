"""The critical path of a step by cause (``archsim.base.causes``), and what a product on it was doing."""

from archsim.base import causes, compiled
from archsim.engine.state import CAUSE_OF, launching_ns
from microarch.blocks.block import codes
from microarch.blocks.hbm import SLICES
from microarch.blocks.request import COMPUTE as MULTIPLIED
from microarch.blocks.request import DATA

COMPUTE, INEFFICIENCY, PERMUTE, LAUNCH, BLOCKS, HBM, *_ = codes(causes.Cause)

ROUNDING = 1e-9  # a share of less is none


@compiled.inner
def explain_product(tally, work, entry, since, until):
    """Add the part from ``since`` to ``until`` of the time of a slice's product to ``bound_ns``, and its residuals.

    The launch of the die's kernel comes first; what a product takes beyond ``compute_ns`` it reads; the rest is split
    as ``compute_ns`` is.
    """
    launch_ns, bound_ns = min(launching_ns(work, entry, since), until - since), tally.bound_ns
    rest_ns = min(until - since - launch_ns, entry.compute_ns)
    share = rest_ns / entry.compute_ns if entry.compute_ns > 0.0 else 0.0
    named_ns = entry.bytes_ns + entry.permute_ns + entry.started_ns + entry.block_ns
    lost_ns = entry.compute_ns - named_ns - entry.multiply_ns
    if lost_ns < ROUNDING * entry.compute_ns:
        lost_ns = 0.0
    bound_ns[COMPUTE] += share * (entry.compute_ns - named_ns - lost_ns)
    bound_ns[INEFFICIENCY] += share * lost_ns
    bound_ns[PERMUTE] += share * entry.permute_ns
    bound_ns[LAUNCH] += launch_ns + share * entry.started_ns
    bound_ns[BLOCKS] += share * entry.block_ns
    bound_ns[HBM] += until - since - launch_ns - rest_ns + share * entry.bytes_ns
    longer = (until - since - launch_ns) / entry.compute_ns if entry.alone_ns > entry.compute_ns else 1.0
    tally.residual_ns[0] += entry.low_ns * max(1.0, longer)
    tally.residual_ns[1] += entry.high_ns * max(1.0, longer)


@compiled.outer
def trace_back(stages, work, tally, stage):
    """Add the critical path that ends with ``stage``, and its residuals, to ``bound_ns`` by cause (an HBM: a read)."""
    until = stages[stage].end
    while stage >= 0 and until > 0.0:
        row = stages[stage]
        since = max(min(row.bound_from, until), 0.0)
        length = until - since
        reading = min(length, row.hbm_ns) if row.kind == DATA else 0.0
        if row.kind == MULTIPLIED:
            explain_product(tally, work, work.entries[row.item // SLICES], since, until)
        else:
            tally.bound_ns[CAUSE_OF[row.kind]] += length - reading
        tally.bound_ns[HBM] += reading
        until = since
        stage = row.cause
