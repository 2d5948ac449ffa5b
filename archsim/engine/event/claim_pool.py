"""What is under way in a step under ``contention: reserved``: stages, and the claims and queues of resources."""

from typing import NamedTuple

import numpy as np

from archsim.base.host import sparse_zeros
from archsim.engine.event import heaps
from archsim.engine.state import Machine, Memory, StepWork, Tally

STAGES_PER_CHAIN = 11  # the longest walk through the request table, spawned stages included
STAGES_PER_MOVE = 4
WAITS_PER_CHAIN = 3  # stages of a chain that may be in one resource's queue, stale entries included

STAGE = np.dtype(
    [
        ("time", "f8"),  # earliest time; from admission on the start
        ("end", "f8"),  # start + duration, set when processed
        ("floor", "f8"),  # earliest end of a compute stage: its last segment has arrived and been processed
        ("item", "i8"),  # chain, or move for the ACT_ states
        ("group", "i8"),  # its resources: a unit (unit · D + die), or the links of a route (3 · D + pair)
        ("parent", "i8"),  # stage that created it, -1 at the start of a step
        ("cause", "i8"),  # stage that it had to wait for: its parent, or the last user of a resource
        ("kind", "i8"),  # microarch.blocks.request.State
        ("event", "i8"),  # microarch.blocks.request.Event that ended it, set when processed
        ("priority", "i8"),  # 1 where the expert's home is another die (published simulator)
        ("home_hit", "i8"),  # of a look-up: 1 if the home's LLC has the slice; the request goes there, else to the HBM
    ],
    align=True,
)
CLAIM = np.dtype([("free_at", "f8"), ("queued", "i8"), ("last_user", "i8"), ("claimed", "i8")], align=True)


class QueuePool(NamedTuple):
    """Stages of the step and the queues they wait in."""

    stages: np.ndarray  # STAGE[stage]
    keys: np.ndarray  # int64[stage]: archsim.engine.event.heaps.queue_key
    waits_for: np.ndarray  # int64[stage]: its group while it waits in queues, NOBODY once it is admitted
    claims: np.ndarray  # CLAIM[resource]
    queue: np.ndarray  # int64[resource, waiting]: heaps of the stages that wait
    calendar: np.ndarray  # BOOKING[stage]: heap of admitted stages
    offers: np.ndarray  # int64[resource]: heap of the stages that are offered something
    count: np.ndarray  # int64[3]


class ReservedState(NamedTuple):
    """State of a step, as its kernels use it."""

    machine: Machine  # constants of the run
    work: StepWork  # of the step
    memory: Memory  # LLCs, copies, translations
    tally: Tally  # counts of the run
    pool: QueuePool  # stages and queues of the step
    # int64[group]: the links of a route, one bit each; empty where there are more than MOST_BITS links
    link_bits: np.ndarray
    tie_bits: int  # of stages that are compared where times are equal: 0 (ties: heapq) or -1 (ties: sequence)


def new_pool(resources: int, stages: int, waiting: int) -> QueuePool:
    """An empty pool for ``stages`` stages of which at most ``waiting`` wait for one resource."""
    return QueuePool(
        stages=np.zeros(stages, STAGE),
        keys=np.zeros(stages, np.int64),
        waits_for=np.zeros(stages, np.int64),
        claims=np.zeros(resources, CLAIM),
        queue=sparse_zeros((resources, waiting)),  # few wait for most links
        calendar=np.zeros(stages, heaps.BOOKING),
        offers=np.zeros(resources + 1, np.int64),
        count=np.zeros(3, np.int64),
    )
