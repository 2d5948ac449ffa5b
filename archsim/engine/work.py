"""The work of one step: from a plan and the demand to the chains and moves that an event kernel runs."""

import numpy as np

from archsim.base.compiled import inner, kernel
from archsim.engine import gemm, gemm_times, local_cp, own_blocks, state
from archsim.engine.moves import SENDS, Sizes, received_of_experts, send_once, vector_bytes
from archsim.policies.allocation import Plan
from archsim.policies.placement import Placement
from archsim.specs.scenario import Scenario
from archsim.traffic.step_demand import TokenRouting
from microarch.blocks.hbm import SLICES
from microarch.fabric.fabric import Fabric

NO_MOVES = np.zeros((2, 0), state.MOVE)
NO_SHARED = (np.zeros(0, np.int64),) * 3
PRECEDENCES = 4  # of entries on a die: local or not, shared or routed


class WorkBuilder:
    """Builds the ``StepWork`` of the steps of a scenario."""

    def __init__(self, scenario: Scenario, machine: state.Machine, fabric: Fabric, copies: bool):
        system, model, assumptions = scenario.system, scenario.model, scenario.assumptions
        self._machine, self._fabric, self._copies = machine, fabric, copies
        bytes_of = system.compute.bytes_of
        self._blocks = own_blocks.OwnBlocks(system.blocks) if system.blocks else None
        self.gemm = gemm.gemm_model(system, model, assumptions, machine)
        self._receives = assumptions.receives
        self._experts, self.ids = model.experts, model.experts + model.shared_experts
        self._vector_bytes = vector_bytes(model.hidden, system.compute.dtype, assumptions.combine)
        self._send = SENDS[assumptions.dispatch]
        self._sizes = Sizes(model.experts, model.top_k, model.expert_groups, model.top_groups)
        self._shared_experts = model.shared_experts if assumptions.weights == "all" else 0
        self._slice_bytes = machine.slice_bytes, bytes_of(model.hidden * model.shared_ffn)
        self._dispatched = assumptions.activations == "dispatched"
        carried = assumptions.activations == "replicated"
        self._carried_bytes = bytes_of(model.hidden + model.expert_ffn) if carried else 0
        self._local_first = assumptions.order == "local_first"
        self.needs_origins = assumptions.needs_origins(model)
        self._no_move_ptr = np.zeros((2, machine.dies + 1), np.int64)
        self._no_bits = np.zeros((machine.dies, self.ids), np.uint8)

    def build(
        self,
        layer: int,
        row: int,
        plan: Plan,
        placement: Placement,
        origins: np.ndarray | None,
        top_k: int,
        cp_en: np.ndarray | None,
        memory: state.Memory,
        routing: TokenRouting | None = None,
        residents: np.ndarray | None = None,
        clock: float | np.ndarray = 1.0,
    ) -> state.StepWork:
        """The step's work. ``row``: layer of the placement; ``origins``: tokens by home die, int[die, expert];
        ``cp_en``: uint8[die, expert] or None; ``routing``: of the same tokens, None if only counts are known;
        ``residents``: tokens that live on a die, int[die], if other than ``origins`` / ``top_k``; ``clock``: of the
        arrays, a share of the full one; float64[die] where dies have clocks of their own.

        A die reads an expert from its nearest holder: itself, if it is one.
        """
        shared = self._shared_entries(plan, origins, top_k, residents) if self._shared_experts else NO_SHARED
        entries = np.zeros(len(plan.expert) + len(shared[0]), state.ENTRY)
        n, dies = len(entries), self._machine.dies
        moves, arrived = self._moves(plan, origins, routing)
        move_ptr = self._no_move_ptr
        if self._dispatched:
            move_ptr = np.stack([np.searchsorted(row, np.arange(dies + 1)) for row in moves["src"]])
        chains, local = np.empty(n * SLICES, np.int64), np.zeros(dies, local_cp.LOCAL_CP)
        _complete(
            entries,
            (plan.expert, plan.die, plan.tokens, placement.sources(row, plan.expert, plan.die, self._fabric.hops)),
            shared, layer * self.ids, self._slice_bytes, self._carried_bytes, self._copies, self._local_first,
            memory.copies.present, moves, np.zeros(dies * PRECEDENCES + 1, np.int64), chains, local,
        )  # fmt: skip
        self._take_time(entries, local, arrived, clock)
        return state.StepWork(
            entries=entries, cp_en=self._no_bits if cp_en is None else cp_en, cp_ready_ns=0.0, moves=moves,
            move_ptr=move_ptr, chains=chains, local=local, held=np.zeros(len(chains), local_cp.HELD),
            notes=local_cp.NO_NOTES,
        )  # fmt: skip

    def arrivals(self, experts: int, tokens: int) -> np.ndarray | None:
        """float64[die]: distinct tokens on dies of ``experts`` with ``tokens`` each; None: no time depends on it."""
        if not self._receives:
            return None
        return np.full(self._machine.dies, received_of_experts(self._sizes, experts, tokens))

    def _take_time(self, entries, local, arrived, clock):
        """How long the array holds a slice of each entry, and a launch delays the first one."""
        times = self.gemm.of(entries["tokens"], entries["routed"], entries["read_bytes"], entries["die"], arrived)
        if np.ndim(clock):
            times = gemm_times.slow_down(times, clock[entries["die"]])
        elif clock != 1.0:
            times = gemm_times.slow_down(times, clock)
        _set_all(local, launch_ns=times.launch_ns, launched_ns=times.launch_ns)
        block_ns = self._blocks.service_ns(np.where(entries["routed"], *self._slice_bytes)) if self._blocks else 0.0
        compute_ns = times.compute_ns + block_ns
        whole_ns = np.ceil(compute_ns) if self._machine.whole_ns else compute_ns
        _set_all(
            entries,
            compute_ns=whole_ns,
            drain_ns=times.drain_ns + block_ns,
            alone_ns=times.alone_ns + block_ns,
            low_ns=times.low_ns,
            high_ns=times.high_ns,
            least_ns=whole_ns - (times.compute_ns - times.multiply_ns),
            multiply_ns=times.multiply_ns + (whole_ns - compute_ns),  # and what is rounded up
            bytes_ns=times.bytes_ns,
            permute_ns=times.permute_ns,
            started_ns=times.started_ns,
            block_ns=block_ns,
        )

    def _shared_entries(self, plan, origins, top_k, residents):
        """Entries of the shared experts: on every die, for the tokens that live there, or that the plan sends there."""
        here = origins.sum(axis=1, dtype=np.int64) // top_k if residents is None else residents
        here = here if plan.shared is None else plan.shared.sum(axis=0)
        dies = np.flatnonzero(here)
        ids = np.repeat(np.arange(self._experts, self._experts + self._shared_experts), len(dies))
        return ids, np.tile(dies, self._shared_experts), np.tile(here[dies].astype(np.int64), self._shared_experts)

    def _moves(self, plan, origins, routing):
        """Bundles of hidden vectors, MOVE[2, move]: dispatch and combine, each row sorted by source; and the distinct
        tokens that each die receives, or would receive were they dispatched, float64[die], None where no time depends
        on them.
        """
        hops, sent, arrived = self._fabric.hops, None, None
        if self._dispatched:
            sent = self._send(plan, origins, routing, self._sizes, hops)
        if self._receives:
            once = sent if self._send is send_once else None
            if once is None:
                once = send_once(plan, origins, routing, self._sizes, hops)
            arrived = once.sum(axis=0).astype(float)
        if sent is None:
            return NO_MOVES, arrived
        if plan.shared is not None:  # once a token, however many shared experts there are
            sent = sent + plan.shared
        moves = np.zeros((2, np.count_nonzero(sent)), state.MOVE)
        for row, vectors in ((state.DISPATCH, sent), (state.COMBINE, sent.T)):
            moves[row] = _bundles(vectors, self._vector_bytes[row])
        return moves, arrived


def _set_all(rows: np.ndarray, **fields: np.ndarray | float) -> None:
    """Set fields of ``rows``, which are 0: most of the times of a law are, and a field takes a microsecond."""
    for name, values in fields.items():
        if not (isinstance(values, float) and values == 0.0):
            rows[name] = values


def _bundles(vectors: np.ndarray, vector_bytes: int) -> np.ndarray:
    """MOVE[move] of ``vectors: [src, dst]``, sorted by source."""
    every = np.multiply(vectors, vector_bytes, dtype=np.float64, order="C")
    np.ceil(every, out=every)
    moves = np.zeros(np.count_nonzero(every), state.MOVE)
    _fill_bundles(every, np.zeros((2, len(every)), np.int64), moves)
    return moves


@kernel
def _fill_bundles(every, ports, moves):
    """``every``: float64[src, dst] whole bytes; ``ports``: int64[2, die] of zeros: bytes out of a die, and into it."""
    dies, at = len(every), 0
    for src in range(dies):
        for dst in range(dies):
            if src != dst:
                ports[0, src] += np.int64(every[src, dst])
                ports[1, dst] += np.int64(every[src, dst])
    for src in range(dies):
        for dst in range(dies):
            if every[src, dst] != 0:
                move = moves[at]
                move.src, move.dst, move.bytes = src, dst, every[src, dst]
                move.port_bytes = 0 if src == dst else max(ports[0, src], ports[1, dst])
                at += 1


@kernel
def _complete(
    entries, given, shared, first_id, slice_bytes, carried_bytes, makes_copies, local_first, present, moves, begins, chains, local  # noqa: E501
):  # fmt: skip
    """Fill in the entries: those ``given`` (expert, die, tokens, home), then the ``shared`` experts (id, die, tokens).

    ``chains``: int64[chain], by die in the order in which the Local CPs start them: as the entries come, or
    (``local_first``) those whose weights the die has before the others, shared experts first among either; ``local``:
    LOCAL_CP[die] when the step begins. ``first_id``: of the layer's experts; ``begins``: int64[die · PRECEDENCES + 1],
    zero.
    """
    routed = len(given[0])
    for at in range(len(entries)):
        entry = entries[at]
        entry.routed = at < routed
        if entry.routed:
            entry.expert, entry.die, entry.tokens, entry.home = given[0][at], given[1][at], given[2][at], given[3][at]
        else:
            own = at - routed
            entry.expert, entry.tokens = shared[0][own], shared[2][own]
            entry.die = entry.home = shared[1][own]
        entry.read_bytes = slice_bytes[0 if entry.routed else 1] + entry.tokens * carried_bytes
        entry.key = (first_id + entry.expert) * SLICES
        entry.look_here = makes_copies or entry.die == entry.home
        begins[_precedence(entry, local_first, present) + 1] += 1
        local[entry.die].end_chain += SLICES
        local[entry.die].routed_left += SLICES * entry.routed
    for at in range(1, len(begins)):
        begins[at] += begins[at - 1]
    for at in range(len(entries)):
        place = _precedence(entries[at], local_first, present)
        for each in range(SLICES):
            chains[begins[place] * SLICES + each] = at * SLICES + each
        begins[place] += 1
    for move in range(moves.shape[1]):
        local[moves[state.DISPATCH, move].dst].moves_left += 1
    ended = 0
    for die in range(len(local)):
        cp = local[die]
        cp.next_chain, ended = ended, ended + cp.end_chain
        cp.end_chain, cp.held, cp.held_last = ended, -1, -1
        cp.state = local_cp.FETCH if cp.moves_left else local_cp.EXECUTE


@inner
def _precedence(entry, local_first, present):
    """Entries are started in ascending order of this: by die first."""
    if not local_first:
        return entry.die * PRECEDENCES
    far = entry.die != entry.home and not present[entry.die, entry.key]
    return entry.die * PRECEDENCES + 2 * far + entry.routed
