"""PDU of a die in RTL: the prediction table and the decision to keep a passing slice.

The Global CP writes ``cp_en`` a word of ``port_bits`` at a time. With ``shadow``, words gather in a second register and
take effect together with the last one; without, each takes effect as it is written. A look-up is answered in the next
cycle: keep a slice whose expert is wanted and not local (``microarch.blocks.pdu.decide``).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from amaranth.hdl import Cat, Elaboratable, Module, Signal

IDLE, LOADING = range(2)


@dataclass(frozen=True)
class Parameters:
    experts: int = 512
    port_bits: int = 16
    shadow: bool = True

    def __post_init__(self) -> None:
        """Raises ValueError for a port that does not divide the experts."""
        if self.experts < 2 or self.experts % self.port_bits:
            raise ValueError(f"experts must be a multiple of port_bits, got {self.experts} and {self.port_bits}")

    @property
    def words(self) -> int:
        return ceil(self.experts / self.port_bits)


class Pdu(Elaboratable):
    """Inputs: ``write``, ``word`` (words come in order, from the first); ``look_up``, ``expert``; ``place``,
    ``placed`` and ``is_local`` (a copy of an expert was entered or evicted). Outputs: ``state``, ``answered``,
    ``keep``.
    """

    def __init__(self, parameters: Parameters):
        p = self.parameters = parameters
        self.write, self.word = Signal(), Signal(p.port_bits)
        self.look_up, self.expert = Signal(), Signal(range(p.experts))
        self.place, self.placed, self.is_local = Signal(), Signal(range(p.experts)), Signal()
        self.state, self.answered, self.keep = Signal(), Signal(), Signal()

    @property
    def inputs(self) -> list[Signal]:
        return [self.write, self.word, self.look_up, self.expert, self.place, self.placed, self.is_local]

    @property
    def outputs(self) -> list[Signal]:
        return [self.state, self.answered, self.keep]

    def elaborate(self, platform) -> Module:
        m, p = Module(), self.parameters
        self.enabled, self.local = Signal(p.experts), Signal(p.experts)
        at, last = Signal(range(p.words)), Signal()
        self.at = at
        m.d.comb += last.eq(at == p.words - 1)
        with m.If(self.write):
            m.d.sync += [at.eq(at + 1), self.state.eq(LOADING)]
            self._store(m, at)
            with m.If(last):
                m.d.sync += [at.eq(0), self.state.eq(IDLE)]
                if p.shadow:
                    kept = p.experts - p.port_bits
                    m.d.sync += self.enabled.eq(Cat(self.gathered[:kept], self.word))
        with m.If(self.place):
            m.d.sync += self.local.bit_select(self.placed, 1).eq(self.is_local)
        m.d.sync += self.answered.eq(self.look_up)
        wanted = self.enabled.bit_select(self.expert, 1) & ~self.local.bit_select(self.expert, 1)
        m.d.sync += self.keep.eq(self.look_up & wanted)
        return m

    def _store(self, m, at):
        """A word enters the second register, or the one in use."""
        p = self.parameters
        self.gathered = Signal(p.experts, reset_less=True)
        into = self.gathered if p.shadow else self.enabled
        m.d.sync += into.word_select(at, p.port_bits).eq(self.word)
