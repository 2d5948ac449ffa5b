"""What is under way in a step under ``contention: shared``: stages, flows, and the queues of arrays and lines."""

from typing import NamedTuple

import numpy as np

from archsim.engine.event.heaps import BOOKING
from archsim.engine.flows import network
from archsim.engine.state import Machine

STAGES_PER_CHAIN, STAGES_PER_MOVE, TIMERS_PER_STAGE = 9, 4, 2
STAGE = np.dtype(
    [
        ("time", "f8"),  # start
        ("end", "f8"),
        ("bound_from", "f8"),  # from when on the step waited for this stage; before, for its cause
        ("hbm_ns", "f8"),  # time in which an HBM, not a link, limited its flow
        ("bytes", "f8"),  # of its flow
        ("first_bytes", "f8"),  # their arrival is an event of its own
        ("latency", "f8"),  # added at the flow's end
        ("least_ns", "f8"),  # the flow takes no less, its time in a queue included
        ("group", "i8"),  # of flows, see archsim.engine.event.flows
        ("item", "i8"),  # chain, or move for the ACT_ states
        ("parent", "i8"),  # stage that created it, -1 at the start of a step
        ("cause", "i8"),  # stage that it had to wait for
        ("next_in_line", "i8"),  # -1 if none
        ("kind", "i8"),  # microarch.blocks.request.State
        ("event", "i8"),  # microarch.blocks.request.Event that ends it; a look-up's is known at its start
    ]
)
FLOW = np.dtype(
    [
        ("start", "f8"),
        ("left", "f8"),  # bytes at the last change of rate
        ("since", "f8"),  # time of that change, from the start
        ("goal", "f8"),  # bytes left at the flow's next event: first segment arrived, or 0
        ("takes", "f8"),  # time of that event, from the start
        ("size", "f8"),
        ("stage", "i8"),
        ("hbm_bound", "i8"),  # whether an HBM is its bottleneck now
    ]
)
CHAIN = np.dtype(
    [
        ("stage", "i8"),  # its compute stage
        ("next", "i8"),  # next in the array's queue
        ("ready", "f8"),  # from when on its product counts as begun if the array is idle
        ("ends_from", "f8"),  # earliest end of its GEMM
        ("last", "i8"),  # stage that completed the slice
        ("taken", "f8"),  # room that it takes now
        ("arrived", "i8"),  # whether the whole slice is there
        ("computed", "i8"),  # whether its GEMM has run for its full duration
    ]
)
ARRAY_QUEUE = np.dtype(
    [
        ("first", "i8"),  # chain that the compute array takes next, -1 if none waits
        ("last", "i8"),
        ("running", "i8"),  # chain that it works on
        ("latest", "i8"),  # stage that it worked on last
        ("free", "f8"),  # since when it is idle
        ("begun", "f8"),  # when the product that it works on counts as begun
        ("room", "f8"),  # left for slices, see archsim.engine.state.room_for_slices
        ("ask_from", "f8"),  # room with which it asks for its next slice
        ("unasked", "i8"),  # slices that it has not asked for
    ]
)
LINE = np.dtype(
    [
        ("first", "i8"),  # stage whose flow starts next, -1 if none waits
        ("last", "i8"),
        ("busy", "i8"),  # whether a flow of the line is under way
    ]
)


class FlowPool(NamedTuple):
    """The step's stages and their queues."""

    stages: np.ndarray  # STAGE[stage]
    calendar: np.ndarray  # BOOKING[timer]: heap of those that wait; ``stage``: stage << TELLS_BITS | event
    flows: np.ndarray  # FLOW[flow], the first count[FLOWS] are under way; what is read of all of them at every event:
    groups: np.ndarray  # uint32[flow]
    rates: np.ndarray  # float64[flow] bytes/ns
    ends: np.ndarray  # float64[flow]: time of its next event
    not_before: np.ndarray  # float64[flow]: it has no event before this time, whatever rounding does
    changed: np.ndarray  # uint32[flow]: scratch of `apply_rates`
    chains: np.ndarray  # CHAIN[chain]
    dies: np.ndarray  # ARRAY_QUEUE[die]: queues for the compute array
    count: np.ndarray  # int64[4]


class Traffic(NamedTuple):
    """State of the flows of a step."""

    pool: FlowPool  # stages, timers and flows
    net: network.FlowNetwork  # network of the step: rates
    resources: np.ndarray  # Tally.resources
    metered: np.ndarray  # float64[network resource]: until when busy and waiting time are counted
    lines: np.ndarray  # LINE[line]
    line_of: np.ndarray  # int32[row]: the line in which its flows wait for each other; -1: they do not
    row_of: np.ndarray  # int32[group]: its row in the network
    flow_of: np.ndarray  # int64[row]: sum of the numbers of its flows; where it has one, this flow
    dies: int  # of the machine
    share_every_ns: float  # least time between two recomputes of rates


def new_pool(machine: Machine, chains: int, moves: int) -> FlowPool:
    """An empty pool for steps of at most ``chains`` chains, ``moves`` moves and a copy to be written a die."""
    stages = STAGES_PER_CHAIN * chains + STAGES_PER_MOVE * moves + machine.dies
    flows = 2 * chains + moves + machine.dies
    return FlowPool(
        stages=np.zeros(stages, STAGE), calendar=np.zeros(TIMERS_PER_STAGE * stages, BOOKING),
        flows=np.zeros(flows, FLOW), groups=np.zeros(flows, np.uint32), rates=np.zeros(flows), ends=np.zeros(flows),
        not_before=np.zeros(flows), changed=np.zeros(flows + 1, np.uint32), chains=np.zeros(chains, CHAIN),
        dies=np.zeros(machine.dies, ARRAY_QUEUE), count=np.zeros(4, np.int64),
    )  # fmt: skip
