"""What a step moves, counted in the columns of ``archsim.engine.state.Tally``."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING

from archsim.base.causes import Cause
from archsim.engine.state import CAUSE_OF, DATA_MESSAGES, HIDDEN, REQUESTS, Machine, Tally
from microarch.blocks.request import Event, State

if TYPE_CHECKING:
    from archsim.engine.interpreted.blocks import Request
    from archsim.engine.interpreted.stage import Stage

ROUNDING = 1e-9  # a share of less is none


class StepCounter:
    """Counts of one step, in integers and in the order of events; ``leave`` adds them to a tally."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.messages: list[tuple[int, int, int, int]] = []  # (class, source, target, bytes)
        self.dies: list[tuple[str, int, int]] = []  # (column, die, bytes)
        self.hits = [0, 0]
        self.use: dict[int, list[tuple[str, float]]] = {}  # by resource: (column, amount), in order

    def count_request(self, request: Request, event: Event | None) -> None:
        """A block takes a request."""
        state, n_bytes = request.state, request.n_bytes
        if state == State.LOOKUP:
            self.hits[0] += event == Event.HIT
        elif state == State.REMOTE_LLC:
            self.hits[1] += 1
        elif state == State.LOCAL_HBM:
            self.dies.append(("local_read_bytes", request.die, n_bytes))
        elif state == State.REMOTE_HBM:
            self.dies.append(("remote_read_bytes", request.home, n_bytes))
        elif state == State.ACT_READ:
            self.dies.append(("activation_bytes", request.home, n_bytes))
        elif state == State.REQUEST:
            self.messages.append((int(REQUESTS), request.die, request.home, int(self.machine.request_bytes)))
        elif state == State.DATA:
            self.messages.append((int(DATA_MESSAGES), request.home, request.die, n_bytes))
        elif state == State.ACT_MOVE:
            self.dies.append(("activation_bytes", request.die, n_bytes))
            self.messages.append((int(HIDDEN) + request.phase, request.home, request.die, n_bytes))

    def uses(self, resource: int, **amounts: float) -> None:
        """A resource was busy, waited for, or passed bytes."""
        self.use.setdefault(resource, []).extend(amounts.items())

    def leave(self, tally: Tally, kept_bytes: list[int], events: int) -> None:
        """Add all to a tally. ``kept_bytes``: of copies that each die has entered."""
        for what, src, dst, n_bytes in self.messages:
            hops, kind = int(self.machine.hops[src, dst]), min(what, int(HIDDEN))
            tally.hops[kind] += hops, hops * n_bytes
            tally.pair_bytes[what, src, dst] += n_bytes
            if what >= HIDDEN:
                tally.moved_bytes[what - int(HIDDEN)] += n_bytes
        for column, die, n_bytes in self.dies:
            tally.dies[column][die] += n_bytes
        tally.dies["write_bytes"] += kept_bytes
        tally.llc_hits[:] += self.hits
        for resource, amounts in self.use.items():
            for column, amount in amounts:
                tally.resources[column][resource] += amount
        tally.events[0] += events


def trace_back(
    tally: Tally,
    last: Stage | None,
    begin: float,
    since_of: Callable[[Stage], float],
    explain: Callable[[Stage, float, float], None],
) -> None:
    """Add the critical path that ends with the stage ``last`` to ``bound_ns``, by cause.

    ``since_of(stage)``: from when on the step waited for it; ``explain(stage, since, until)``: of a product.
    """
    stage, until = last, last.end if last else begin
    while stage is not None and until > begin:
        since = max(min(since_of(stage), until), begin)
        length = until - since
        reading = min(length, stage.hbm_ns) if stage.state == State.DATA else 0.0
        if stage.state == State.COMPUTE:
            explain(stage, since, until)
        else:
            tally.bound_ns[CAUSE_OF[stage.state]] += length - reading
        tally.bound_ns[Cause.HBM] += reading
        until, stage = since, stage.cause


def explain_product(
    tally: Tally, entry: SimpleNamespace, launching_ns: float, held_ns: float, since: float, until: float
) -> None:
    """What a product on the critical path was doing, by cause."""
    launch_ns, compute_ns, bound_ns = min(launching_ns, until - since), entry.compute_ns + held_ns, tally.bound_ns
    rest_ns = min(until - since - launch_ns, compute_ns)
    share = rest_ns / compute_ns if compute_ns > 0.0 else 0.0
    named_ns = entry.bytes_ns + entry.permute_ns + entry.started_ns + held_ns
    lost_ns = compute_ns - named_ns - entry.multiply_ns
    lost_ns = 0.0 if lost_ns < ROUNDING * compute_ns else lost_ns
    bound_ns[Cause.COMPUTE] += share * (compute_ns - named_ns - lost_ns)
    bound_ns[Cause.INEFFICIENCY] += share * lost_ns
    bound_ns[Cause.PERMUTE] += share * entry.permute_ns
    bound_ns[Cause.LAUNCH] += launch_ns + share * entry.started_ns
    bound_ns[Cause.BLOCKS] += share * held_ns
    bound_ns[Cause.HBM] += until - since - launch_ns - rest_ns + share * entry.bytes_ns
    longer = (until - since - launch_ns) / compute_ns if entry.alone_ns > entry.compute_ns else 1.0
    tally.residual_ns[:] += entry.low_ns * max(1.0, longer), entry.high_ns * max(1.0, longer)
