"""State of the event kernels: one machine, the work of one step, memory, and the tallies of a run.

Everything is an array with a declared layout, or a named tuple of such arrays and numbers, so that compiled kernels
accept it directly. Rows are records, because a kernel touches most fields of a row at once and one argument per table
is cheaper to compile than one per field. Integers are int64 throughout: mixed types would compile functions several
times.

A *chain* is one weight slice of one plan entry: ``chain = entry * 3 + slice``. A *move* is a bundle of hidden vectors
from one die to another. Resources are numbered ``LLC port 0..D``, ``HBM D..2D``, ``compute array 2D..3D``, then the
links (``contention: shared``: one each way; ``reserved``: one per edge of the fabric).
"""

from typing import NamedTuple

import numpy as np

from archsim.base import causes, compiled
from microarch.blocks.atu import Translations
from microarch.blocks.hbm import Copies
from microarch.blocks.request import State as RequestState

PARTS = ("dispatch", "shared experts", "experts", "combine")  # phases of an expert-parallel layer
UNITS = 3  # LLC port, HBM, compute array: the resources a die has of its own
REQUESTS, DATA_MESSAGES, HIDDEN = np.int64(0), np.int64(1), np.int64(2)  # types of messages on the fabric
DISPATCH, COMBINE = np.int64(0), np.int64(1)  # types of moves
# Classes of ``Tally.pair_bytes``: REQUESTS, DATA_MESSAGES, HIDDEN + phase (dispatch, combine), then those that no
# kernel moves: weights that rebalancing and replication move, and counts of loads.
REPLICAS, STATISTICS, CLASSES = 4, 5, 6

ENTRY = np.dtype(
    [
        ("compute_ns", "f8"),  # time the array holds a slice that is there: the system's own blocks, then the GEMM
        ("least_ns", "f8"),  # part of compute_ns that does not begin before the slice's first segment
        ("alone_ns", "f8"),  # least time from asking for the slice to the end of the GEMM
        ("drain_ns", "f8"),  # least time from the arrival of the slice's last byte to the end of the GEMM
        ("multiply_ns", "f8"),  # parts of compute_ns; what they leave is what kernels lose against peak: multiplication
        ("bytes_ns", "f8"),  # waiting for the bytes of weights
        ("permute_ns", "f8"),  # permuting, quantising and finalising tokens
        ("started_ns", "f8"),  # launching a kernel of its own
        ("block_ns", "f8"),  # in the system's own blocks
        ("low_ns", "f8"),  # how much shorter the GEMM is at the 5 % residual of its calibration
        ("high_ns", "f8"),  # how much longer, at the 95 % residual
        ("read_bytes", "i8"),  # of a local HBM read of one slice
        ("expert", "i8"),
        ("die", "i8"),  # executing die
        ("home", "i8"),  # die whose HBM it reads the expert from: the nearest holder by placement
        ("tokens", "i8"),
        ("key", "i8"),  # of the first slice
        ("routed", "i8"),  # 0 for a shared expert, which needs no dispatched tokens
        ("look_here", "i8"),  # whether the executing die searches its own LLC and HBM first
    ],
    align=True,
)
MOVE = np.dtype(
    [
        ("bytes", "i8"),
        ("src", "i8"),
        ("dst", "i8"),
        ("port_bytes", "i8"),  # with it through its fuller port (out of src, into dst) in the phase; 0 if it stays
    ],
    align=True,
)
RESOURCE = np.dtype(
    [
        ("busy_ns", "f8"),
        ("wait_ns", "f8"),  # time that stages waited for it
        ("bytes", "i8"),
    ],
    align=True,
)
DIE = np.dtype(
    [
        ("local_read_bytes", "i8"),  # by the die's HBM for itself
        ("remote_read_bytes", "i8"),  # by the die's HBM for others
        ("write_bytes", "i8"),  # copies made
        ("activation_bytes", "i8"),  # hidden vectors through the die's HBM
    ],
    align=True,
)


class Machine(NamedTuple):
    """Constants of a run. Bandwidths are effective (nominal times efficiency), in bytes per ns."""

    dies: int  # of all carriers
    hops: np.ndarray  # int32[die, die]
    route_ptr: np.ndarray  # int64[die·die + 1]: where the links of a route begin, by pair; the fabric's own array
    # uint16 or uint32[...]: links of all routes (``shared``: the fabric's own array), or their edges (``reserved``)
    route_links: np.ndarray
    link_resources: int  # how many resources are links
    hbm_bytes_per_ns: float  # of a die as designed; ``hbm_rates`` has that of each die as built
    link_bytes_per_ns: float  # of links that specify none
    hbm_latency_ns: float  # of a read or write
    hop_ns: float  # of links that specify none
    link_rates: np.ndarray  # float64[link]: bytes per ns
    route_bytes_per_ns: np.ndarray  # float64[die, die]: of the narrowest link of a route
    route_ns: np.ndarray  # float64[die, die]: total latency of the links of a route
    request_bytes: int  # of a request for a slice
    llc_hit_ns: float  # of a look-up that finds the slice
    llc_miss_ns: float  # of one that does not
    llc_write_ns: float  # of a slice into the LLC
    slice_bytes: int  # of weights: a third of an expert
    first_bytes: int  # compute may start once this much of a slice has arrived (llc: segments); else the whole slice
    window: int  # slices in flight on a die, where ``stream_bytes`` is 0
    stream_bytes: int  # room of a die for slices that are asked for and not yet multiplied; 0: ``window`` counts them
    array_waits: bool  # the array waits for the last byte of the slice that it has taken, though others are there
    copies_in_background: bool  # a step does not wait for its copies to be written
    whole_ns: bool  # transfers are rounded up to whole nanoseconds (published simulator)
    # of hidden vectors, float64[2], dispatch and combine: archsim.engine.transfer_kernels.Software
    transfer_ns: np.ndarray  # before a bundle moves
    transfer_bytes_per_ns: np.ndarray  # most that a die's port passes; infinite if software does not limit it
    hbm_rates: np.ndarray  # float64[die]: bytes per ns of the HBM of every die
    array_speeds: np.ndarray  # float64[die]: clock of the array of every die over the nominal one

    def route(self, src: int, dst: int) -> np.ndarray:
        """Links (``reserved``: edges) from one die to another, in travelling order."""
        pair = src * self.dies + dst
        return self.route_links[self.route_ptr[pair] : self.route_ptr[pair + 1]]

    @property
    def resources(self) -> int:
        return UNITS * self.dies + self.link_resources


class StepWork(NamedTuple):
    """The work of one step (iteration, MoE layer), in the order in which chains are created."""

    entries: np.ndarray  # ENTRY[entry]
    cp_en: np.ndarray  # uint8[die, expert] the PDUs' bits
    cp_ready_ns: float  # when the bits are ready
    moves: np.ndarray  # MOVE[2, move] dispatch, combine; each sorted by source
    move_ptr: np.ndarray  # int64[2, die + 1] start of the moves of a source
    chains: np.ndarray  # int64[chain] in issue order, by die
    local: np.ndarray  # LOCAL_CP[die]
    held: np.ndarray  # HELD[chain]
    # NOTE[n]: transitions of the Local CPs; ``next`` of the last row counts them; no rows without a transition log
    notes: np.ndarray


class Memory(NamedTuple):
    """State that persists from step to step."""

    llc_tags: np.ndarray  # int64[die, set, way]
    copies: Copies
    atu: Translations


def counted_in(memory: Memory) -> Memory:
    """What a run that has ended counted in its memory: without the tables, which are larger than all else it leaves."""
    few = {name: getattr(memory.copies, name)[:0].copy() for name in ("present", "was_read", "slices", "ring")}
    tags, atu = memory.llc_tags[:0].copy(), memory.atu._replace(tags=memory.atu.tags[:0].copy())
    return Memory(tags, memory.copies._replace(**few), atu)


class Tally(NamedTuple):
    """Counted over a run."""

    hops: np.ndarray  # int64[3, 2]: requests, data, hidden vectors × (messages, bytes), each times hops
    dies: np.ndarray  # DIE[die]
    resources: np.ndarray  # RESOURCE[resource]
    llc_hits: np.ndarray  # int64[2] local, remote
    moved_bytes: np.ndarray  # int64[2] hidden vectors sent from die to die: dispatch, combine
    pair_bytes: np.ndarray  # int64[CLASSES, die, die] sent from the first die to the second
    # RESOURCE[2, link] dispatch, combine, where they do not pass the routes of their pairs (expert parallelism)
    phase_links: np.ndarray
    bound_ns: np.ndarray  # float64[Cause] time on the critical path of steps; that of decisions is elsewhere
    part_ns: np.ndarray  # float64[PARTS]: of it, where an execution has these phases
    sms_ns: np.ndarray  # float64[2]: of it, while dispatch and combine take all SMs
    residual_ns: np.ndarray  # float64[2]: sums of low_ns and high_ns of the GEMMs on it
    events: np.ndarray  # int64[1]


@compiled.inner
def route_of(machine, src, dst):
    """(begin, end) of a route, for `link_at`."""
    pair = compiled.unsigned(src * machine.dies + dst)
    return machine.route_ptr[pair], machine.route_ptr[pair + compiled.unsigned(1)]


@compiled.inner
def link_at(machine, at):
    """The resource that a row of ``route_links`` is."""
    return UNITS * machine.dies + np.int64(machine.route_links[compiled.unsigned(at)])


@compiled.inner
def room_for_slices(machine):
    """Room of a die for slices that are asked for and not yet multiplied, in bytes, or in slices of ``window``."""
    return float(machine.stream_bytes) if machine.stream_bytes > 0 else float(machine.window)


@compiled.inner
def room_to_ask(machine):
    """Least room with which a die asks for its next slice: one segment, or a slice of ``window``."""
    return float(machine.first_bytes) if machine.stream_bytes > 0 else 1.0


@compiled.inner
def room_of(machine, entry):
    """Room that a slice takes from its request on until it is multiplied."""
    return float(entry.read_bytes) if machine.stream_bytes > 0 else 1.0


@compiled.inner
def launched_ns(work, entry):
    """When the launch of a product's kernel ends: of the die's, for routed experts."""
    return work.local[entry.die].launched_ns if entry.routed else 0.0


@compiled.inner
def launching_ns(work, entry, now):
    """How long a product that could begin now waits for the launch of its die's kernel."""
    return max(0.0, launched_ns(work, entry) - now)


@compiled.inner
def begun_ns(free, ready, launched):
    """When a product counts as begun on an array that is ``free`` from then on. Measured times have waits for bytes, so
    it is ``ready`` once its slice has been asked for and its tokens are there; it multiplies when bytes are, too.
    """
    return max(free, ready, launched)


@compiled.inner
def multiplied_ns(entry, begun, now):
    """When the array has spent its time on a product that counts as begun then, if it can multiply from ``now`` on."""
    return max(begun + entry.compute_ns, now + entry.least_ns)


@compiled.inner
def move_of(work, item):
    """Record of a move: dispatch moves are numbered first, then those of combine."""
    columns = work.moves.shape[1]
    return work.moves[item // columns, item % columns]


@compiled.inner
def phase_of(work, item):
    """DISPATCH or COMBINE: the phase of a move."""
    return item // work.moves.shape[1]


def new_tally(machine: Machine) -> Tally:
    """A tally of zeros; arrays have as many rows as the machine has dies, resources and links, see `Tally`."""
    return Tally(
        hops=np.zeros((3, 2), np.int64), dies=np.zeros(machine.dies, DIE),
        resources=np.zeros(machine.resources, RESOURCE), llc_hits=np.zeros(2, np.int64),
        moved_bytes=np.zeros(2, np.int64), pair_bytes=np.zeros((CLASSES, machine.dies, machine.dies), np.int64),
        phase_links=np.zeros((2, machine.link_resources), RESOURCE), bound_ns=np.zeros(len(causes.Cause)),
        part_ns=np.zeros(len(PARTS)), sms_ns=np.zeros(2), residual_ns=np.zeros(2), events=np.zeros(1, np.int64),
    )  # fmt: skip


# Which cause the time of a state of a request has.

_CAUSES = {
    RequestState.LOOKUP: causes.Cause.LLC,
    RequestState.LOCAL_HBM: causes.Cause.HBM,
    RequestState.REQUEST: causes.Cause.LINK,
    RequestState.REMOTE_LLC: causes.Cause.LLC,
    RequestState.REMOTE_HBM: causes.Cause.HBM,
    RequestState.DATA: causes.Cause.LINK,
    RequestState.COMPUTE: causes.Cause.COMPUTE,
    RequestState.LLC_FILL: causes.Cause.LLC,
    RequestState.COPY: causes.Cause.HBM,
    RequestState.ACT_READ: causes.Cause.ACTIVATIONS,
    RequestState.ACT_MOVE: causes.Cause.ACTIVATIONS,
    RequestState.ACT_WRITE: causes.Cause.ACTIVATIONS,
    RequestState.DONE: causes.Cause.LLC,  # takes no time
}
CAUSE_OF = np.array([_CAUSES[state] for state in RequestState], np.int64)  # by state, for kernels
