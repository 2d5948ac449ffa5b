"""Blocks of a die as Python objects: what the interpreted engine asks when a request reaches one.

``serve(request, now)`` returns the event that ends the request's state and how long the block holds the request, in
ns, beside the bytes that it moves (those are the strategy's: exclusive under ``reserved``, shared under ``shared``).
A block whose event depends on what holds at the end returns None, and is asked again: ``finish(request, now)``.

A user's block is a class with ``serve``. Without ``SERVES`` it stands before the compute array of every die, holds
each slice for its ns and may remember whatever it likes. With ``SERVES = (State.DATA, ...)`` it takes the place of
the shipped block in these states, which it gets as its first argument.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from archsim.engine.interpreted.memory import DieMemory
from archsim.engine.state import Machine
from microarch.blocks.request import Event, State


class Request(NamedTuple):
    """A weight slice (``expert`` >= 0) or a bundle of hidden vectors in a state of ``microarch.blocks.request``."""

    state: int  # that it is in
    die: int  # that runs the slice; target of a bundle
    home: int  # where the slice is read; source of a bundle
    expert: int  # -1: hidden vectors
    key: int  # of the slice, -1: hidden vectors
    n_bytes: int  # of the slice or the bundle
    tokens: int = 0  # that the slice multiplies
    look_here: bool = True  # whether the die searches its own LLC and HBM first
    reader: int = -1  # LLC_FILL: the die whose HBM the slice came from
    phase: int = -1  # of a bundle: dispatch 0, combine 1


class InterpretedBlock(Protocol):
    """What the engine calls."""

    def serve(self, request: Request, now: float) -> tuple[Event | None, float]:
        """A request arrives: (event that ends its state, ns for which the block holds it)."""


@runtime_checkable
class LateBlock(InterpretedBlock, Protocol):
    """A block whose event may depend on what holds at the end of a state."""

    def finish(self, request: Request, now: float) -> Event:
        """The event that ends the request's state, for which ``serve`` gave None."""


class Network(Protocol):
    """A packet-level network in the place of links (``contention: shared``), from two touch points."""

    def send(self, message: int, src: int, dst: int, n_bytes: int, now: float) -> None:
        """``n_bytes`` leave the HBM of ``src`` for ``dst`` at ``now``."""

    def poll(self, until: float) -> tuple[float, int] | None:
        """(time, message) of the earliest arrival no later than ``until``, once; None if there is none."""


class Port:
    """ATU and LLC port: finds the slice."""

    SERVES = (State.LOOKUP,)

    def __init__(self, machine: Machine, memory: DieMemory) -> None:
        self.machine, self.memory = machine, memory
        self.translate = memory.translate  # whether the ATU knows a slice

    def serve(self, request: Request, now: float) -> tuple[Event | None, float]:
        event = self._found(request)
        if event == Event.HIT:
            return event, self.machine.llc_hit_ns
        redirected = self.memory.atu_entries and request.look_here and request.die != request.home
        walks = redirected and not self.translate(request.die, request.key)
        return event, self.machine.llc_miss_ns + (self.machine.hbm_latency_ns if walks else 0)

    def _found(self, request: Request) -> Event:
        die, memory = request.die, self.memory
        if not request.look_here:
            return Event.AWAY
        if memory.in_llc(die, request.expert, request.key):
            memory.hits[die] += die != request.home
            return Event.HIT
        if die == request.home:
            return Event.HERE
        if request.key in memory.copies[die]:
            memory.read_copy(die, request.key)
            return Event.HERE
        return Event.AWAY


class RequestPath:
    """D2D links: latency of the route; their bytes are the strategy's. A request finds the home's LLC or its HBM."""

    SERVES = (State.REQUEST, State.ACT_MOVE)

    def __init__(self, machine: Machine, memory: DieMemory) -> None:
        self.machine, self.memory = machine, memory

    def serve(self, request: Request, now: float) -> tuple[Event | None, float]:
        if request.state == State.ACT_MOVE:
            return Event.SERVED, self.machine.route_ns[request.home, request.die]
        return None, self.machine.route_ns[request.die, request.home]

    def finish(self, request: Request, now: float) -> Event:
        return Event.HIT if self.memory.in_llc(request.home, request.expert, request.key) else Event.MISS


class ReturnPath:
    """Links on the way back, and the PDU: whether a slice that has arrived is kept."""

    SERVES = (State.DATA,)

    def __init__(self, machine: Machine, memory: DieMemory) -> None:
        self.machine, self.memory = machine, memory

    def serve(self, request: Request, now: float) -> tuple[Event | None, float]:
        return None, self.machine.route_ns[request.home, request.die]

    def finish(self, request: Request, now: float) -> Event:
        wanted = now >= self.memory.bits_ready_ns and self.memory.cp_en[request.die, request.expert]
        return Event.KEEP if wanted and request.key not in self.memory.copies[request.die] else Event.SERVED


class Llc:
    """LLC: read for another die, filled from an HBM."""

    SERVES = (State.REMOTE_LLC, State.LLC_FILL)

    def __init__(self, machine: Machine, memory: DieMemory) -> None:
        self.machine, self.memory = machine, memory

    def serve(self, request: Request, now: float) -> tuple[Event | None, float]:
        if request.state == State.REMOTE_LLC:
            return Event.SERVED, self.machine.llc_hit_ns
        return None, self.machine.llc_write_ns

    def finish(self, request: Request, now: float) -> Event:
        self.memory.store(request.reader, request.expert, request.key)
        return Event.SERVED


class Hbm:
    """HBM: reads and writes; a copy is entered when it is written."""

    SERVES = (State.LOCAL_HBM, State.REMOTE_HBM, State.COPY, State.ACT_READ, State.ACT_WRITE)

    def __init__(self, machine: Machine, memory: DieMemory) -> None:
        self.machine, self.memory = machine, memory

    def serve(self, request: Request, now: float) -> tuple[Event | None, float]:
        if request.state == State.COPY:
            return None, self.machine.hbm_latency_ns
        here = request.state == State.ACT_READ and request.die == request.home
        return Event.HERE if here else Event.SERVED, self.machine.hbm_latency_ns

    def finish(self, request: Request, now: float) -> Event:
        self.memory.keep(request.die, request.key)
        return Event.SERVED


class Array:
    """Compute array: its time is the GEMM's, which the work of the step says."""

    SERVES = (State.COMPUTE,)

    def serve(self, request: Request, now: float) -> tuple[Event | None, float]:
        return Event.SERVED, 0.0


def shipped_blocks(machine: Machine, memory: DieMemory) -> dict[int, InterpretedBlock]:
    """The blocks of all dies, by state."""
    blocks = (*(kind(machine, memory) for kind in (Port, RequestPath, ReturnPath, Llc, Hbm)), Array())
    return {state: block for block in blocks for state in block.SERVES}
