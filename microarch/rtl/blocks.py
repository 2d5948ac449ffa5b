"""Blocks in RTL for ``engine: interpreted``: they take the place of the shipped ones on every die (``blocks`` of a
system), and a run with them gives the same files.

``microarch.rtl.blocks:Atu``: its component says whether a slice's translation is known. ``microarch.rtl.blocks:Pdu``:
its component says whether an arriving slice is kept; the bits of a step are written when the Global CP's arrive.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from archsim.base.errors import ArchsimError
from archsim.machine.system import SystemSpec
from archsim.model.spec import SLICES
from microarch.blocks.request import Event, State
from microarch.rtl import drive, missing


class InRtl:
    """A component for each die, made when the die first asks it."""

    @classmethod
    def refuse(cls, system: SystemSpec) -> None:
        """Raise ArchsimError where a system's component cannot be built."""
        if (lacking := missing()) is not None:
            raise ArchsimError(f"blocks: {cls.__module__}:{cls.__name__} needs an extra. {lacking}")

    def __init__(self, shipped: Any):
        self.shipped, self.memory = shipped, shipped.memory
        self._of_die: dict[int, Any] = {}

    def serve(self, request: Any, now: float) -> tuple[Event | None, float]:
        return self.shipped.serve(request, now)

    def driven(self, die: int) -> Any:
        if die not in self._of_die:
            from microarch.rtl.drive import Driven

            self._of_die[die] = Driven(self.component())
        return self._of_die[die]

    def component(self) -> Any:
        raise NotImplementedError


class Atu(InRtl):
    """Tags and order of use of the ATU."""

    SERVES = (State.LOOKUP,)

    @classmethod
    def refuse(cls, system: SystemSpec) -> None:
        super().refuse(system)
        from microarch.rtl.atu import Parameters

        decision = system.decision
        try:
            Parameters(decision.atu_entries, min(decision.atu_ways, decision.atu_entries))
        except ValueError as error:
            raise ArchsimError(f"blocks: microarch.rtl.blocks:Atu: {error}") from None

    def __init__(self, shipped: Any):
        super().__init__(shipped)
        self._stored: dict[int, list[int]] = {}
        shipped.translate = self.translate

    @property
    def sizes(self) -> dict[str, int]:
        memory = self.memory
        return {"entries": memory.atu_entries, "ways": memory.atu_ways, "experts": max(2, memory.experts)}

    def component(self) -> Any:
        from microarch.rtl import atu

        return atu.Atu(atu.Parameters(**self.sizes))

    def translate(self, die: int, key: int) -> bool:
        """Whether the component knows the slice's expert; the tables keep what the rest of the engine reads."""
        hit, knew = self.look_up(die, key // SLICES), self.memory.translate(die, key)
        self.memory.misses[die] += int(knew) - hit
        return bool(hit)

    def look_up(self, die: int, expert: int) -> int:

        driven = self.driven(die)
        stored = self._stored.setdefault(die, [0] * driven.component.parameters.sets)
        return driven.ask(lambda ctx, dut: drive.look_up(ctx, dut, expert, stored))[1]


class Pdu(InRtl):
    """Prediction table of the PDU."""

    SERVES = (State.DATA,)
    PORT_BITS = 16

    def __init__(self, shipped: Any):
        super().__init__(shipped)
        self._begun: dict[int, Any] = {}  # by die: the step's bits, and whether they are written

    @property
    def sizes(self) -> dict[str, int]:
        return {"experts": self._experts, "port_bits": self.PORT_BITS}

    @cached_property
    def _experts(self) -> int:
        return max(2, -(-self.memory.cp_en.shape[1] // self.PORT_BITS)) * self.PORT_BITS

    def component(self) -> Any:
        from microarch.rtl import pdu

        return pdu.Pdu(pdu.Parameters(experts=self._experts, port_bits=self.PORT_BITS))

    def finish(self, request: Any, now: float) -> Event:
        """Whether the component keeps the slice."""
        die, expert, ready = request.die, request.expert, now >= self.memory.bits_ready_ns
        bits, written = self._begun.get(die, (None, False))
        if bits is not self.memory.cp_en:  # a step begins: no bits of the one before
            bits, written = self.memory.cp_en, False
            self._write(die, [0] * self._experts)
        if ready and not written:
            self._write(die, bits[die].tolist())
        self._begun[die] = bits, ready or written
        is_local = int(request.key in self.memory.copies[die])
        self.cycle(die, (0, 0, 0, 0, 1, expert, is_local))
        _, _, keep = self.cycle(die, (0, 0, 1, expert, 0, 0, 0))
        return Event.KEEP if keep else Event.SERVED

    def _write(self, die, bits):
        bits = bits + [0] * (self._experts - len(bits))
        for first in range(0, self._experts, self.PORT_BITS):
            word = sum(bit << at for at, bit in enumerate(bits[first : first + self.PORT_BITS]))
            self.cycle(die, (1, word, 0, 0, 0, 0, 0))

    def cycle(self, die: int, given: tuple[int, ...]) -> tuple[int, ...]:
        """(loading, answered, keep) after a cycle with these inputs."""

        return self.driven(die).ask(lambda ctx, dut: drive.cycle(ctx, dut, given))
