"""The work of one step: from a plan and the demand to the chains and moves that an event kernel runs."""

from __future__ import annotations

import numpy as np
from numba import njit

from archsim.base.kernels import inner, kernel
from archsim.engine.gemm import gemm_model
from archsim.engine.own_blocks import OwnBlocks
from archsim.engine.state import (
    COMBINE,
    DISPATCH,
    ENTRY,
    EXECUTE,
    FETCH,
    HELD,
    LOCAL_CP,
    MOVE,
    NO_NOTES,
    SLICES,
    Machine,
    Memory,
    Work,
)
from archsim.policies.allocation.rules import Plan
from archsim.policies.placement.placement import Placement
from archsim.specs.scenario import Scenario
from microarch.fabric.fabric import Fabric

NO_MOVES = np.zeros((2, 0), MOVE)
NO_ENTRIES = np.zeros(0, np.int32)
PRECEDENCES = 4  # of entries on a die: local or not, shared or routed


class WorkBuilder:
    """Builds the ``Work`` of the steps of a scenario."""

    def __init__(self, scenario: Scenario, machine: Machine, fabric: Fabric, copies: bool):
        system, model, assumptions = scenario.system, scenario.model, scenario.assumptions
        self._machine, self._fabric, self._copies = machine, fabric, copies
        dtype_bytes = system.compute.dtype_bytes
        self._blocks = OwnBlocks(system.blocks)
        self.gemm = gemm_model(system, model, assumptions, machine)
        self._experts, self._ids = model.experts, model.experts + model.shared_experts
        self._hidden_bytes = model.hidden * dtype_bytes
        self._shared_experts = model.shared_experts if assumptions.weights == "all" else 0
        self._slice_bytes = machine.slice_bytes, model.hidden * model.shared_ffn * dtype_bytes
        self._dispatched = assumptions.activations == "dispatched"
        self._carried_bytes = 0 if self._dispatched else (model.hidden + model.expert_ffn) * dtype_bytes
        self._local_first = assumptions.order == "local_first"
        self.needs_origins = assumptions.needs_origins(model)
        self._no_move_ptr = np.zeros((2, machine.dies + 1), np.int64)
        self._no_bits = np.zeros((machine.dies, self._ids), np.uint8)

    def build(
        self,
        layer: int,
        row: int,
        plan: Plan,
        placement: Placement,
        origins: np.ndarray | None,
        top_k: int,
        cp_en: np.ndarray | None,
        memory: Memory,
        residents: np.ndarray | None = None,
    ) -> Work:
        """The step's work. ``row``: layer of the placement; ``origins``: tokens by home die, int[die, expert];
        ``residents``: tokens that live on a die, int[die], if other than ``origins`` / ``top_k``;
        ``cp_en``: uint8[die, expert] or None.

        A die reads an expert from its nearest holder: itself, if it is one.
        """
        routed = len(plan.expert)
        shared_id, shared_die, shared_tokens = self._shared(plan, origins, top_k, residents)
        n, dies = routed + len(shared_id), self._machine.dies
        entries = np.zeros(n, ENTRY)
        given = entries[:routed]
        given["expert"], given["die"], given["tokens"] = plan.expert, plan.die, plan.tokens
        given["home"] = placement.sources(row, plan.expert, plan.die, self._fabric.hops)
        if n > routed:
            shared = entries[routed:]
            shared["expert"], shared["die"], shared["tokens"], shared["home"] = (
                shared_id,
                shared_die,
                shared_tokens,
                shared_die,
            )
        moves = self._moves(plan, origins)
        chains, local = np.empty(n * SLICES, np.int64), np.zeros(dies, LOCAL_CP)
        _complete(
            entries,
            routed,
            layer * self._ids,
            self._slice_bytes,
            self._carried_bytes,
            self._copies,
            self._local_first,
            memory.copies.present,
            moves,
            np.zeros(dies * PRECEDENCES + 1, np.int64),
            chains,
            local,
        )
        self._take_time(entries)
        return Work(
            entries=entries,
            cp_en=self._no_bits if cp_en is None else cp_en,
            cp_ready_ns=0.0,
            moves=moves,
            move_ptr=self._move_ptr(moves),
            chains=chains,
            local=local,
            held=np.zeros(len(chains), HELD),
            notes=NO_NOTES,
        )

    def _take_time(self, entries):
        """How long the array holds a slice of each entry."""
        times = self.gemm.of(entries["tokens"], entries["routed"], entries["read_bytes"])
        block_ns = self._blocks.service_ns(np.where(entries["routed"], *self._slice_bytes)) if self._blocks else 0.0
        compute_ns = times.compute_ns + block_ns
        entries["compute_ns"] = np.ceil(compute_ns) if self._machine.whole_ns else compute_ns
        entries["drain_ns"], entries["low_ns"], entries["high_ns"] = (
            times.drain_ns + block_ns,
            times.low_ns,
            times.high_ns,
        )

    def _shared(self, plan, origins, top_k, residents):
        """Entries of the shared experts: on every die, for the tokens that live there, or that the plan sends there."""
        if not self._shared_experts:
            return NO_ENTRIES, NO_ENTRIES, NO_ENTRIES
        here = origins.sum(axis=1, dtype=np.int64) // top_k if residents is None else residents
        here = here if plan.shared is None else plan.shared.sum(axis=0)
        dies = np.flatnonzero(here)
        ids = np.repeat(np.arange(self._experts, self._experts + self._shared_experts), len(dies))
        return ids, np.tile(dies, self._shared_experts), np.tile(here[dies], self._shared_experts)

    def _moves(self, plan, origins):
        """Bundles of hidden vectors, MOVE[2, move]: dispatch and combine, each row sorted by source."""
        if not self._dispatched:
            return NO_MOVES
        sent = send_tokens(plan.expert, plan.die, plan.tokens, origins, self._fabric.hops)
        if plan.shared is not None:  # once a token, however many shared experts there are
            sent += plan.shared
        moves = np.zeros((2, np.count_nonzero(sent)), MOVE)
        for row, tokens in ((DISPATCH, sent), (COMBINE, sent.T)):
            moves["src"][row], moves["dst"][row] = np.nonzero(tokens)
            moves["bytes"][row] = tokens[tokens > 0] * self._hidden_bytes
        return moves

    def _move_ptr(self, moves):
        """Start of the moves of each source, int64[2, die + 1]."""
        if not self._dispatched:
            return self._no_move_ptr
        return np.stack([np.searchsorted(row, np.arange(self._machine.dies + 1)) for row in moves["src"]])


@kernel
def _complete(
    entries, routed, first_id, slice_bytes, carried_bytes, makes_copies, local_first, present, moves, begins, chains, local  # noqa: E501
):  # fmt: skip
    """What follows from expert, die, tokens and home of the entries, of which the first ``routed`` are routed experts.

    ``chains``: int64[chain], by die in the order in which the Local CPs start them: as the entries come, or
    (``local_first``) those whose
    weights the die has before the others, shared experts first among either; ``local``: LOCAL_CP[die] when the step
    begins.
    ``first_id``: of the layer's experts; ``begins``: int64[die · PRECEDENCES + 1], zero.
    """
    for at in range(len(entries)):
        entry = entries[at]
        entry.routed = at < routed
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
        local[moves[DISPATCH, move].dst].moves_left += 1
    ended = 0
    for die in range(len(local)):
        cp = local[die]
        cp.next_chain, ended = ended, ended + cp.end_chain
        cp.end_chain, cp.held, cp.held_last = ended, -1, -1
        cp.state = FETCH if cp.moves_left else EXECUTE


@inner
def _precedence(entry, local_first, present):
    """Entries are started in ascending order of this: by die first."""
    if not local_first:
        return entry.die * PRECEDENCES
    far = entry.die != entry.home and not present[entry.die, entry.key]
    return entry.die * PRECEDENCES + 2 * far + entry.routed


@njit(cache=True)
def send_tokens(plan_expert, plan_die, plan_tokens, origins, hops):
    """Tokens (one per token and expert) that home dies send to executing dies, int64[home, die].

    An entry takes tokens that live on its own die first, then from the nearest dies (ties to the lower id).
    """
    dies = len(hops)
    sent = np.zeros((dies, dies), np.int64)
    left = np.zeros(dies, np.int64)
    wanted = plan_tokens.astype(np.int64)
    begin = 0
    while begin < len(plan_expert):
        end = begin
        while end < len(plan_expert) and plan_expert[end] == plan_expert[begin]:
            end += 1
        left[:] = origins[:, plan_expert[begin]]
        for reach in range(hops.max() + 1):
            for entry in range(begin, end):
                die = plan_die[entry]
                for home in range(dies):
                    if hops[home, die] == reach and left[home] > 0 and wanted[entry] > 0:
                        tokens = min(left[home], wanted[entry])
                        sent[home, die] += tokens
                        left[home] -= tokens
                        wanted[entry] -= tokens
        begin = end
    return sent
