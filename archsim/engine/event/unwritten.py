"""Copies that a step leaves to be written while the next one runs (``copy_writes: background``)."""

import numpy as np

from archsim.base.kernels import outer
from archsim.engine.event.groups import OWN_COPIES
from archsim.engine.event.stages import describe_flow, new_stage
from archsim.engine.event.transfers import NOBODY, STAGES, send
from archsim.engine.state import SLICES
from microarch.blocks.codes import COPY


@outer
def resume_copies(s):
    """Begin with the bytes of copies that the step before left to be written: item -1 - die."""
    for die in range(s.machine.dies):
        left = s.memory.copies.room[die].unwritten_bytes
        if left > 0:
            stage = new_stage(s.traffic.pool, COPY, -1 - die, NOBODY, 0.0)
            group = OWN_COPIES * s.machine.dies + die
            describe_flow(s.traffic, s.traffic.pool.stages[stage], group, left, left, s.machine.hbm_latency_ns)
            send(s.traffic, stage, 0.0)


@outer
def leave_copies(s, end):
    """Leave what is not written when the step ends to the next one.

    From then on only copies use an HBM, so that it is busy until the last of them has left.
    """
    pool, machine, room = s.traffic.pool, s.machine, s.memory.copies.room
    for die in range(machine.dies):
        room[die].unwritten_bytes = 0
    for stage in range(pool.count[STAGES]):
        row = pool.stages[stage]
        if row.kind == COPY:
            die = -1 - row.item if row.item < 0 else s.work.entries[row.item // SLICES].die
            left = np.int64((row.end - row.latency - end) * machine.hbm_bytes_per_ns)
            room[die].unwritten_bytes = max(room[die].unwritten_bytes, left)
    for die in range(machine.dies):
        row = s.tally.resources[machine.dies + die]
        row.bytes -= room[die].unwritten_bytes
        row.busy_ns -= room[die].unwritten_bytes / machine.hbm_bytes_per_ns
