"""Global command processor: what it does in a step, state by state, and how long each state takes.

Paper: Yu et al., ISCA 2026 (arXiv 2510.05497v4), section V. The paper charges no time for it; the rules for its cost
are this project's (``docs/decisions.md``). Counts of work come from the policy functions themselves
(``archsim.policies.allocation.Effort``), which every executor runs; an executor only turns counts into time.

State layout: the tables of ``archsim hardware area`` (distribution table, heatmap, prediction table); work counts in
``DecisionWork``.

=========  ======================================================================================================
RECEIVE    the demand arrives, tokens per expert of every die (16 bits each), and is summed
READ       the expert distribution table, one entry per cycle
ORDER      experts are sorted by tokens
GENERATE   candidates of every expert are ranked
EVALUATE   every block of tokens goes to the cheapest candidate, ``lanes`` candidates in parallel; a solver's
multiply-adds
MERGE      blocks of an expert on a die become one sub-kernel
DISPATCH   sub-kernels (16 bytes each) travel to the Local CPs
ROWS       heatmap rows of the experts that run are read
SELECT     the top of each row is selected: a pass over the row for each of the 16 bits of its threshold, one to mark;
           one cycle more fetches its first word
WRITE      cp_en bits travel to the PDUs and are written
COLLECT    the dies report completion and the copies that they made
UPDATE     the copies are entered in the distribution table
=========  ======================================================================================================

RECEIVE, ORDER, GENERATE, EVALUATE, MERGE, DISPATCH and COLLECT are on the critical path. READ overlaps with the
previous step, UPDATE with this one: the excess is exposed. ROWS, SELECT and WRITE run in parallel with the step; their
bits take effect when they arrive.
"""

from dataclasses import dataclass
from enum import IntEnum
from math import ceil, log2
from typing import Any, NamedTuple

import numpy as np

from archsim.base import compiled, units
from microarch.blocks.block import CHOICE, PAPER, NextState, TransitionTable, parameter

COUNT_BYTES = 2  # tokens of an expert on a die: 16 bits, as a heatmap counter has (paper, table II)
COMMAND_BYTES = 16  # command and address of a request on the fabric (paper, table I)
ENTRY_BITS = 72  # of the expert distribution table (paper, table II: 4.5 KB for 512 experts)
SPEED_STAGES = 1  # of the pipeline, where evaluations multiply by the speed of a die: one 16-bit multiplier a lane
COUNTER_BITS = 16  # of a heatmap entry (paper, table II: 512 x 512 x 2 B per layer)


@dataclass(frozen=True)
class Parameters:
    """Datapath of the state machine; latencies in its table are cycles of ``clock_hz``, messages cross the fabric."""

    clock_hz: float = parameter(0.85e9, "decision.fsm.clock", "synthesis (docs/rtl.md)")  # of the state machine
    lanes: int = parameter(8, "decision.fsm.lanes", CHOICE)  # candidates evaluated in parallel
    pipeline: int = parameter(3, "decision.fsm.pipeline", CHOICE)  # further cycles of a block of tokens
    comparators: int = parameter(32, "decision.fsm.comparators", CHOICE)  # of sorter and selector
    # of the expert distribution table
    table_port_bits: int = parameter(72, "decision.fsm.table_port_bits", f"{PAPER}, table II")
    heatmap_port_bits: int = parameter(512, "decision.fsm.heatmap_port_bits", f"{PAPER}, table II")  # of the heatmap
    # of a PDU's table
    prediction_port_bits: int = parameter(16, "decision.fsm.prediction_port_bits", f"{PAPER}, table II")


class State(IntEnum):
    IDLE = 0
    RECEIVE = 1
    READ = 2
    ORDER = 3
    GENERATE = 4
    EVALUATE = 5
    MERGE = 6
    DISPATCH = 7
    ROWS = 8
    SELECT = 9
    WRITE = 10
    COLLECT = 11
    UPDATE = 12
    DONE = 13


class Event(IntEnum):
    START = 0  # the router of a layer has chosen experts
    READY = 1  # the state's work is done


TABLE = TransitionTable(
    name="global_cp",
    states=State,
    events=Event,
    initial=(State.IDLE,),
    final=State.DONE,
    steps={
        (State.IDLE, Event.START): NextState(State.RECEIVE, None, "request the demand", "waits"),
        (State.RECEIVE, Event.READY): NextState(State.READ, None, "sum the demand", "message + dies · experts / lanes"),
        (State.READ, Event.READY): NextState(State.ORDER, None, "read the table", "entries · 72 / table_port_bits"),
        (State.ORDER, Event.READY): NextState(
            State.GENERATE, None, "sort experts", "stages · experts / 2 / comparators"
        ),
        (State.GENERATE, Event.READY): NextState(State.EVALUATE, None, "rank candidates", "candidates"),
        (State.EVALUATE, Event.READY): NextState(
            State.MERGE, None, "assign blocks", "blocks · (candidates / lanes + log2 lanes + pipeline)"
        ),
        (State.MERGE, Event.READY): NextState(State.DISPATCH, State.ROWS, "form sub-kernels", "plan entries"),
        (State.ROWS, Event.READY): NextState(
            State.SELECT, None, "read heatmap rows", "rows · experts · 16 / heatmap_port_bits"
        ),
        (State.SELECT, Event.READY): NextState(
            State.WRITE, None, "select the top", "rows · (1 + 17 · experts / comparators)"
        ),
        (State.WRITE, Event.READY): NextState(
            State.DONE, None, "set cp_en bits", "message + experts / prediction_port_bits"
        ),
        (State.DISPATCH, Event.READY): NextState(State.COLLECT, None, "command the dies", "message"),
        (State.COLLECT, Event.READY): NextState(State.UPDATE, None, "receive reports", "message"),
        (State.UPDATE, Event.READY): NextState(State.DONE, None, "enter copies", "copies"),
    },
)
CRITICAL = (State.RECEIVE, State.ORDER, State.GENERATE, State.EVALUATE, State.MERGE, State.DISPATCH, State.COLLECT)
ON_THE_PATH = np.array(CRITICAL)


class DecisionWork(NamedTuple):
    """Work of one decision."""

    dies: int  # of the machine
    experts: int  # of the model
    demand_received: bool  # whether the policy needs the demand of all dies
    table_entries: int  # entries of the distribution table that were read
    sorted_experts: int  # experts that were ordered by tokens
    candidates: np.ndarray  # int64[expert placed]: candidates ranked
    blocks: np.ndarray  # int64[expert placed]: blocks assigned
    plan_entries: int  # sub-kernels that were formed
    rows: int  # rows of the heatmap that were read; 0 without prediction
    copies: int  # reported by the dies
    operations: int = 0  # multiply-adds of a solver
    statistics_bytes: int = 0  # counts of each die, beside its demand
    speeds: bool = False  # whether an evaluation multiplies by the speed of its die, read from a table of as many words

    @property
    def allocates(self) -> bool:
        """Whether an allocation decided anything, beside reading the demand."""
        return bool(self.sorted_experts or len(self.candidates) or len(self.blocks) or self.operations)

    @property
    def takes_part(self) -> bool:
        """Whether a host or a GPU has anything to do in the step: collect the demand, allocate, or predict."""
        return self.demand_received or self.allocates or self.rows > 0


class Reach(NamedTuple):
    """Cost of messages to and from the Global CP, which sits on the die nearest to the centre of the fabric; of many
    machines, float64[machine] each.
    """

    farthest_ns: Any  # latency of the route to the farthest die
    bytes_per_ns: Any  # of all links of its die together


def _travel_ns(reach: Reach, n_bytes: float) -> float:
    return reach.farthest_ns + n_bytes / reach.bytes_per_ns


def message_ns(counts: DecisionWork, reach: Reach) -> np.ndarray:
    """float64[State]: time of messages over the fabric, the same for every executor; of a ``reach`` of many machines,
    float64[machine, State].
    """
    ns = np.zeros((*np.shape(reach.farthest_ns), len(State)))
    if counts.demand_received:
        own = counts.experts * COUNT_BYTES + counts.statistics_bytes
        ns[..., State.RECEIVE] = _travel_ns(reach, counts.dies * own)
    ns[..., State.DISPATCH] = _travel_ns(reach, counts.plan_entries * COMMAND_BYTES)
    ns[..., State.COLLECT] = _travel_ns(reach, (counts.dies + counts.copies) * COMMAND_BYTES)
    if counts.rows:
        ns[..., State.WRITE] = _travel_ns(reach, counts.dies * counts.experts / 8)
    return ns


def comparisons(n: int) -> float:
    """Comparisons with which a merge sort orders n items: n log2 n."""
    return n * ceil(log2(n)) if n > 1 else 0.0


def sorting_cycles(n: int, sorter: str, comparators: int) -> int:
    """Cycles that sort n items with a power of two of comparators, of which not all can always work.

    ``bitonic``: log2 n (log2 n + 1)/2 stages of half the items (Batcher 1968), one after the other, as in RTL
    (``microarch.rtl.sorter``). ``merge``: a comparator merges two runs, one item a cycle; each level has half as many
    pairs of runs, of twice the length.
    """
    levels = ceil(log2(n)) if n > 1 else 0
    used = 1 << (comparators.bit_length() - 1)
    if sorter == "bitonic":
        return levels * (levels + 1) // 2 * max(1, 2**levels // 2 // used)
    return sum(ceil(2 ** (levels - level) / used) * 2**level for level in range(1, levels + 1))


def fsm_ns(counts: DecisionWork, fsm) -> np.ndarray:
    """float64[State]: time of the state machine's datapath, in ns."""
    return fsm_cycles(counts, fsm) * (units.NS_PER_S / fsm.clock_hz)


def fsm_cycles(counts: DecisionWork, fsm) -> np.ndarray:
    """float64[State]: cycles of the state machine's datapath (``archsim.machine.decision.FsmSpec``)."""
    cycles = np.zeros(len(State))
    if counts.demand_received:
        cycles[State.RECEIVE] = ceil(counts.dies * counts.experts / fsm.lanes)
    cycles[State.READ] = counts.table_entries * ceil(ENTRY_BITS / fsm.table_port_bits)
    cycles[State.ORDER] = sorting_cycles(counts.sorted_experts, fsm.sorter, fsm.comparators)
    cycles[State.GENERATE] = counts.candidates.sum()
    # A lane that evaluates one candidate per cycle does one multiply-add per cycle: optimistic for a solver, which
    # needs more.
    # A lane multiplies by a die's speed in a stage of its own: one cycle more for every block.
    pipeline = fsm.pipeline + SPEED_STAGES * counts.speeds
    cycles[State.EVALUATE] = _evaluation_cycles(counts.candidates, counts.blocks, fsm.lanes, pipeline) + ceil(
        counts.operations / fsm.lanes
    )
    cycles[State.MERGE] = counts.plan_entries if len(counts.blocks) else 0
    if counts.rows:
        cycles[State.ROWS] = counts.rows * ceil(counts.experts * COUNTER_BITS / fsm.heatmap_port_bits)
        cycles[State.SELECT] = counts.rows * (1 + (COUNTER_BITS + 1) * ceil(counts.experts / fsm.comparators))
        cycles[State.WRITE] = ceil(counts.experts / fsm.prediction_port_bits)
    cycles[State.UPDATE] = counts.copies
    return cycles


def dram_ns(counts: DecisionWork, latency_ns: float, bytes_per_ns: float) -> np.ndarray:
    """float64[State]: reading and writing tables in an HBM, each state as one stream; its traffic slows no other
    transfer.
    """
    ns = np.zeros(len(State))
    row_bytes = counts.experts * COUNTER_BITS / 8
    for state, n_bytes in (
        (State.READ, counts.table_entries * ENTRY_BITS / 8),
        (State.ROWS, counts.rows * row_bytes),
        (State.UPDATE, counts.copies * ENTRY_BITS / 8),
    ):
        if n_bytes:
            ns[state] = latency_ns + n_bytes / bytes_per_ns
    return ns


@compiled.kernel
def _evaluation_cycles(candidates, blocks, lanes, pipeline):
    """Cycles of all blocks: candidates ``lanes`` at a time, a tree of comparisons, the pipeline; int64."""
    cycles = np.int64(0)
    for expert in range(len(blocks)):
        levels = np.int64(0)
        while (np.int64(1) << levels) < min(candidates[expert], lanes):
            levels += 1
        cycles += blocks[expert] * (-(-candidates[expert] // lanes) + levels + pipeline)
    return cycles


def firmware_ns(counts: DecisionWork, firmware) -> np.ndarray:
    """float64[State]: instructions of the program (``archsim.machine.decision.FirmwareSpec``), in ns."""
    work = np.zeros(len(State))
    if counts.demand_received:
        work[State.RECEIVE] = counts.dies * counts.experts * firmware.per_table_entry
    work[State.READ] = counts.table_entries * firmware.per_table_entry
    work[State.ORDER] = comparisons(counts.sorted_experts) * firmware.per_comparison
    work[State.GENERATE] = counts.candidates.sum() * firmware.per_candidate
    work[State.EVALUATE] = (counts.blocks * counts.candidates).sum() * firmware.per_evaluation
    work[State.EVALUATE] += (counts.operations + _multiplications(counts)) * firmware.per_operation
    work[State.MERGE] = counts.plan_entries * firmware.per_plan_entry if len(counts.blocks) else 0
    work[State.ROWS] = counts.rows * counts.experts * firmware.per_heatmap_entry
    work[State.SELECT] = counts.rows * counts.experts * firmware.per_heatmap_entry
    work[State.WRITE] = counts.dies * counts.experts / 32 * firmware.per_table_entry if counts.rows else 0
    work[State.UPDATE] = counts.copies * firmware.per_table_entry
    return work * (units.NS_PER_S / (firmware.ipc * firmware.clock_hz))


def host_ns(counts: DecisionWork, host, decided_ns: float) -> np.ndarray:
    """float64[State]: the function's own time on a host and what crosses PCIe
    (``archsim.machine.decision.HostSpec``).

    Once per MoE layer: the host notices the end of gating, reads demand and copies back, decides (``decided_ns``: time
    of the policy function, allocation and prediction), sends plan and bits, and launches.
    """
    ns = np.zeros(len(State))
    if not counts.takes_part:
        return ns
    back = counts.dies * (counts.experts * COUNT_BYTES + counts.statistics_bytes) + counts.copies * COMMAND_BYTES
    there = counts.plan_entries * COMMAND_BYTES + (counts.dies * counts.experts / 8 if counts.rows else 0)
    bytes_per_ns = host.pcie_bandwidth_bytes_per_s / units.NS_PER_S
    ns[State.RECEIVE] = host.sync_ns + host.pcie_latency_ns + back / bytes_per_ns
    ns[State.EVALUATE] = decided_ns
    ns[State.DISPATCH] = host.pcie_latency_ns + there / bytes_per_ns + host.launch_ns
    return ns


def _multiplications(counts: DecisionWork) -> float:
    """By the speeds of dies: one for every evaluation."""
    return (counts.blocks * counts.candidates).sum() if counts.speeds else 0.0


def operations(counts: DecisionWork) -> float:
    """Comparisons that sort and rank, evaluations of blocks, multiply-adds of a solver, counters of a heatmap."""
    work = comparisons(counts.sorted_experts) + counts.candidates.sum() + counts.operations
    work = work + _multiplications(counts)
    return work + (counts.blocks * counts.candidates).sum() + counts.rows * counts.experts


def all_reduce_ns(n_bytes: float, dies: int, reach: Reach) -> float:
    """Recursive doubling over log2 D rounds, in each of which a die sends all counts to a partner."""
    rounds = ceil(log2(dies)) if dies > 1 else 0
    return rounds * _travel_ns(reach, n_bytes)


def gpu_ns(counts: DecisionWork, gpu, reach: Reach) -> np.ndarray:
    """float64[State]: an all-reduce of the counts and one kernel, the same on every GPU
    (``archsim.machine.decision.GpuSpec``). Nothing is sent back: each GPU knows the plan.

    Its operations are comparisons that sort and rank, evaluations of blocks, and those of a solver. A policy that needs
    no counts needs no kernel: the dispatch kernel looks up the home of an expert.
    """
    ns = np.zeros((*np.shape(reach.farthest_ns), len(State)))
    if not counts.takes_part:
        return ns
    own = counts.experts * COUNT_BYTES + counts.statistics_bytes
    ns[..., State.RECEIVE] = all_reduce_ns(own, counts.dies, reach) if counts.demand_received else 0.0
    ns[..., State.EVALUATE] = gpu.launch_ns + operations(counts) / gpu.operations_per_ns
    return ns


# An operation (a comparison or an addition on tables in cache) on a core of a server: about four instructions at
# 3 to 4 GHz and an IPC of 1 to 1.3 on data-dependent branches. An estimate; no source was found.
HOST_OPERATION_NS = 1.0


def aside_ns(operations: int, statistics_bytes: int, dies: int, spec, reach: Reach) -> float:
    """Time of a decision that is taken beside the steps, from ``statistics_bytes`` of counts of every die: collect
    them, decide. ``spec``: `archsim.machine.decision.DecisionSpec`.
    """
    if spec.executor == "gpu":
        gpu = spec.gpu
        return all_reduce_ns(statistics_bytes, dies, reach) + gpu.launch_ns + operations / gpu.operations_per_ns
    if spec.executor == "host":
        bytes_per_ns = spec.host.pcie_bandwidth_bytes_per_s / units.NS_PER_S
        there = spec.host.sync_ns + spec.host.pcie_latency_ns + dies * statistics_bytes / bytes_per_ns
        return there + operations * HOST_OPERATION_NS
    collect_ns = _travel_ns(reach, dies * statistics_bytes)
    if spec.executor == "fsm":
        return collect_ns + operations / spec.fsm.lanes * (units.NS_PER_S / spec.fsm.clock_hz)
    firmware = spec.firmware
    return collect_ns + operations * firmware.per_operation * (units.NS_PER_S / (firmware.ipc * firmware.clock_hz))


def exposed_ns(states_ns: np.ndarray, previous_ns: float, step_ns: float) -> np.ndarray:
    """float64[State]: time of each state on the critical path. ``previous_ns``, ``step_ns``: of the previous step and
    this one.
    """
    exposed = np.zeros(np.shape(states_ns))
    exposed[..., ON_THE_PATH] = states_ns[..., ON_THE_PATH]
    exposed[..., State.READ] = np.maximum(0.0, states_ns[..., State.READ] - previous_ns)
    exposed[..., State.UPDATE] = np.maximum(0.0, states_ns[..., State.UPDATE] - step_ns)
    return exposed
