"""PDU of a die in RTL: the prediction table and the decision to keep a passing slice.

The Global CP writes ``cp_en`` a word of ``port_bits`` at a time. With ``shadow``, words gather in a second register and
take effect together with the last one; without, each takes effect as it is written. A look-up is answered in the next
cycle: keep a slice whose expert is wanted and not local (``microarch.blocks.pdu.decide``).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from amaranth.hdl import Assert, Assume, Cat, Elaboratable, Module, Mux, Signal

# ---- pdu

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


# ---- pdu
# PDU: a look-up is that of one expert's own three bits, for any expert.

CLAIM = "a look-up answers as one expert's own bits, for any expert"
SIZES = ({"experts": 32, "port_bits": 8}, {"experts": 32, "port_bits": 8, "shadow": False})


def harness(dut: Pdu, m: Module) -> list[Signal]:
    """Adds the claim to ``m``; returns the inputs that are its own."""
    p = dut.parameters
    which, before, begun = Signal(range(p.experts)), Signal(range(p.experts)), Signal()
    m.d.sync += [before.eq(which), begun.eq(1)]
    m.d.comb += Assume(~begun | (which == before))
    enabled, gathered, local, keep = Signal(), Signal(), Signal(), Signal()
    word, bit = which // p.port_bits, which % p.port_bits
    with m.If(dut.write & (dut.at == word)):
        m.d.sync += (gathered if p.shadow else enabled).eq(dut.word.bit_select(bit, 1))
    if p.shadow:
        with m.If(dut.write & (dut.at == p.words - 1)):
            m.d.sync += enabled.eq(Mux(word == p.words - 1, dut.word.bit_select(bit, 1), gathered))
    with m.If(dut.place & (dut.placed == which)):
        m.d.sync += local.eq(dut.is_local)
    asked = Signal()
    m.d.sync += [asked.eq(dut.look_up & (dut.expert == which)), keep.eq(enabled & ~local)]
    m.d.comb += [
        Assert(dut.at < p.words),
        Assert((dut.state == LOADING) == (dut.at != 0)),
        Assert(~begun | (dut.enabled.bit_select(which, 1) == enabled)),
        Assert(~begun | (dut.local.bit_select(which, 1) == local)),
        Assert(~asked | (dut.keep == keep)),
        Assert(~dut.keep | dut.answered),
    ]
    if p.shadow:
        m.d.comb += Assert(~begun | (dut.gathered.bit_select(which, 1) == gathered))
    return [which]
