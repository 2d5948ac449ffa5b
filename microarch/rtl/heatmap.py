"""Heatmap store of the Global CP in RTL: counters behind a port, updated a word at a time.

A request adds 1 to the counters of one word of a row that ``mask`` names. It takes two accesses of the port: READ and
WRITE. If one of these counters is full, the row is halved first, word by word: ``2 · words`` accesses more, then the
word is read again (``archsim.policies.prediction``).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from amaranth.hdl import Assert, Assume, Cat, Elaboratable, Module, Mux, Signal

from microarch.rtl import Memory

# ---- heatmap

IDLE, READ, WRITE, HALVE_READ, HALVE_WRITE = range(5)


@dataclass(frozen=True)
class Parameters:
    experts: int = 512
    port_bits: int = 512
    count_bits: int = 16

    def __post_init__(self) -> None:
        """Raises ValueError for a port that is narrower than a counter."""
        if self.port_bits % self.count_bits:
            raise ValueError(f"port_bits must be a multiple of {self.count_bits}, got {self.port_bits}")

    @property
    def per_word(self) -> int:
        return self.port_bits // self.count_bits

    @property
    def words(self) -> int:
        """The number of words of a row."""
        return ceil(self.experts / self.per_word)


class HeatmapStore(Elaboratable):
    """Inputs: ``start`` with ``row``, ``word``, ``mask``; ``loaded``: the word that the memory has at ``at``. Outputs:
    ``state``, ``row_at``, ``at``, ``writes``, ``stored``.
    """

    def __init__(self, parameters: Parameters):
        p = self.parameters = parameters
        self.start = Signal()
        self.row, self.word = Signal(range(p.experts)), Signal(range(p.words))
        self.mask, self.loaded = Signal(p.per_word), Signal(p.port_bits)
        self.state, self.writes = Signal(3), Signal()
        self.row_at, self.at = Signal(range(p.experts)), Signal(range(p.words))
        self.stored = Signal(p.port_bits)

    @property
    def inputs(self) -> list[Signal]:
        return [self.start, self.row, self.word, self.mask, self.loaded]

    @property
    def outputs(self) -> list[Signal]:
        return [self.state, self.row_at, self.at, self.writes, self.stored]

    @property
    def memories(self) -> list[Memory]:
        """The heatmap of a layer."""
        p, address, written = self.parameters, ("row_at", "at"), ("writes", "stored")
        return [Memory("heatmap", p.experts**2 * p.count_bits, p.port_bits, ("loaded",), address, written)]

    def elaborate(self, platform) -> Module:
        m, p = Module(), self.parameters
        held, mask = Signal(p.port_bits, reset_less=True), Signal(p.per_word, reset_less=True)
        word, halving = Signal(range(p.words), reset_less=True), Signal(range(p.words), reset_less=True)
        self.held, self.adding, self.word_at, self.halving = held, mask, word, halving
        counters = [held.word_select(i, p.count_bits) for i in range(p.per_word)]
        full = Signal()
        loaded = [self.loaded.word_select(i, p.count_bits) for i in range(p.per_word)]
        m.d.comb += full.eq(Cat(mask[i] & counter.all() for i, counter in enumerate(loaded)).any())
        added = Cat((counter + mask[i])[: p.count_bits] for i, counter in enumerate(counters))
        halved = Cat(Cat(counter[1:], 0) for counter in counters)
        halves = self.state >= HALVE_READ
        m.d.comb += [
            self.at.eq(Mux(halves, halving, word)),
            self.writes.eq((self.state == WRITE) | (self.state == HALVE_WRITE)),
            self.stored.eq(Mux(halves, halved, added)),
        ]
        with m.Switch(self.state):
            with m.Case(READ):
                m.d.sync += [held.eq(self.loaded), halving.eq(0), self.state.eq(Mux(full, HALVE_READ, WRITE))]
            with m.Case(HALVE_READ):
                m.d.sync += [held.eq(self.loaded), self.state.eq(HALVE_WRITE)]
            with m.Case(HALVE_WRITE):
                m.d.sync += [halving.eq(halving + 1), self.state.eq(HALVE_READ)]
                with m.If(halving == p.words - 1):
                    m.d.sync += self.state.eq(READ)
            with m.Case(WRITE):
                m.d.sync += self.state.eq(IDLE)
        with m.If(self.start & ((self.state == IDLE) | (self.state == WRITE))):
            m.d.sync += [self.state.eq(READ), self.row_at.eq(self.row), word.eq(self.word), mask.eq(self.mask)]
        return m


# ---- heatmap
# Heatmap store: no counter passes its largest value, halving keeps the order of a word's counters, and it addresses
# rows and words that there are.

CLAIM = "no counter passes 65,535; halving keeps order; rows and words stay in range"
SIZES = ({"experts": 12, "port_bits": 64},)


def harness(dut: HeatmapStore, m: Module) -> list[Signal]:
    """Adds the claim to ``m``."""
    p = dut.parameters
    held = [dut.held.word_select(i, p.count_bits) for i in range(p.per_word)]
    stored = [dut.stored.word_select(i, p.count_bits) for i in range(p.per_word)]
    m.d.comb += Assert(dut.state <= HALVE_WRITE)
    m.d.comb += Assert(dut.writes == ((dut.state == WRITE) | (dut.state == HALVE_WRITE)))
    for i, (before, after) in enumerate(zip(held, stored, strict=True)):
        with m.If(dut.state == WRITE):
            m.d.comb += Assert(after == before + dut.adding[i])  # with the carry: it does not wrap
        with m.If(dut.state == HALVE_WRITE):
            m.d.comb += Assert((after == before >> 1) & ~after[-1])
            for j in range(i):
                m.d.comb += Assert((held[j] > before) | (stored[j] <= after))
    m.d.comb += [Assume(dut.row < p.experts), Assume(dut.word < p.words)]
    m.d.comb += [Assert(dut.row_at < p.experts), Assert(dut.word_at < p.words), Assert(dut.at < p.words)]
    return []
