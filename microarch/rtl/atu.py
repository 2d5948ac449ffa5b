"""ATU of a die in RTL: tags of a set-associative table with true LRU in a set.

Tags and payload are memories behind ports: a set is read in the cycle of the look-up, and a way written at its end.
The order of use is a matrix in registers, one bit for each pair of ways. A look-up is answered in the next cycle; one
that misses takes the place of the least recently used way (``microarch.blocks.atu.knows``).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from amaranth.hdl import Array, Assert, Assume, Cat, Elaboratable, Module, Signal

from microarch.rtl import Memory

# ---- atu


@dataclass(frozen=True)
class Parameters:
    """``entries``: of the table; ``experts``: over all layers, whose numbers its tags tell apart."""

    entries: int = 512
    ways: int = 8
    experts: int = 512 * 64

    def __post_init__(self) -> None:
        """Raises ValueError for sets that are not a power of two."""
        if self.entries % self.ways or self.sets & (self.sets - 1):
            raise ValueError(f"expected entries / ways to be a power of two, got {self.entries} / {self.ways}")

    @property
    def sets(self) -> int:
        return self.entries // self.ways

    @property
    def index_bits(self) -> int:
        return (self.sets - 1).bit_length()

    @property
    def tag_bits(self) -> int:
        """Bits that tell apart the experts of one set."""
        return max(1, (-(-self.experts // self.sets) - 1).bit_length())


class Atu(Elaboratable):
    """Inputs: ``look_up``, ``expert``; ``stored``: tags of the set, each {valid, tag}. Outputs: ``set``; ``enters``:
    the way into which ``entered`` is written, one bit each; in the next cycle ``answered``, ``hit`` and ``way``.
    """

    def __init__(self, parameters: Parameters):
        p = self.parameters = parameters
        self.look_up, self.expert = Signal(), Signal(p.index_bits + p.tag_bits)
        self.stored = Signal(p.ways * (p.tag_bits + 1))
        self.set = Signal(max(1, p.index_bits))
        self.answered, self.hit, self.way = Signal(), Signal(), Signal(range(p.ways))
        self.enters, self.entered = Signal(p.ways), Signal(p.tag_bits + 1)

    @property
    def inputs(self) -> list[Signal]:
        return [self.look_up, self.expert, self.stored]

    @property
    def outputs(self) -> list[Signal]:
        return [self.set, self.answered, self.hit, self.way, self.enters, self.entered]

    @property
    def memories(self) -> list[Memory]:
        """The tags."""
        p = self.parameters
        bits = p.tag_bits + 1
        return [Memory("tags", p.entries * bits, p.ways * bits, ("stored",), ("set",), ("enters", "entered"))]

    def elaborate(self, platform) -> Module:
        m, p = Module(), self.parameters
        tag = self.expert[p.index_bits :]
        m.d.comb += self.set.eq(self.expert[: p.index_bits])
        entries = [self.stored.word_select(way, p.tag_bits + 1) for way in range(p.ways)]
        self.matches = Signal(p.ways)
        m.d.comb += self.matches.eq(Cat(entry == Cat(tag, 1) for entry in entries))
        pairs = [(older, newer) for newer in range(p.ways) for older in range(newer)]
        # bit (i, j), i < j: way i was used later than way j; 0 at the start: way 0 is the oldest
        orders = Array(Signal(max(1, len(pairs)), name=f"order_{i}") for i in range(p.sets))
        order, self.orders = orders[self.set], orders
        later = {pair: order[at] for at, pair in enumerate(pairs)}
        oldest = Signal(p.ways)
        for way in range(p.ways):
            others = [later[j, way] for j in range(way)] + [~later[way, j] for j in range(way + 1, p.ways)]
            m.d.comb += oldest[way].eq(Cat(others).all() if others else 1)
        chosen = Signal(p.ways)
        m.d.comb += chosen.eq(self.matches)
        with m.If(~self.matches.any()):
            m.d.comb += chosen.eq(oldest)
        new = [(chosen[i] | later[i, j]) & ~chosen[j] for i, j in pairs]
        m.d.comb += self.entered.eq(Cat(tag, 1))
        m.d.sync += self.answered.eq(self.look_up)
        with m.If(self.look_up):
            m.d.sync += self.hit.eq(self.matches.any())
            with m.If(~self.matches.any()):
                m.d.comb += self.enters.eq(oldest)
            if pairs:
                m.d.sync += order.eq(Cat(new))
            for way in range(p.ways):
                with m.If(chosen[way]):
                    m.d.sync += self.way.eq(way)
        return m


# ---- atu
# ATU: tags of a set differ, so that one way hits at most; the order of its ways is a permutation.

CLAIM = "at most one way hits; the order of use is a permutation"
SIZES = ({"entries": 8, "ways": 4, "experts": 16},)


def harness(dut: Atu, m: Module) -> list[Signal]:
    """Adds the memory of tags and the claim to ``m``."""
    p, width = dut.parameters, dut.parameters.tag_bits + 1
    stored = Array(Signal(p.ways * width, name=f"tags_{at}") for at in range(p.sets))
    m.d.comb += Assume(dut.stored == stored[dut.set])
    for way in range(p.ways):
        with m.If(dut.enters[way]):
            m.d.sync += stored[dut.set].word_select(way, width).eq(dut.entered)
    for at in range(p.sets):
        entries = [stored[at].word_select(way, width) for way in range(p.ways)]
        for one, other in combinations(entries, 2):
            m.d.comb += Assert(~(one[-1] & other[-1] & (one == other)))
        pairs = [(older, newer) for newer in range(p.ways) for older in range(newer)]
        later = {pair: dut.orders[at][i] for i, pair in enumerate(pairs)}
        for i, j, k in combinations(range(p.ways), 3):  # no cycle of three: the order is total
            m.d.comb += Assert(~(later[i, j] & later[j, k] & ~later[i, k]))
            m.d.comb += Assert(~(~later[i, j] & ~later[j, k] & later[i, k]))
    m.d.comb += Assert((dut.matches & (dut.matches - 1)) == 0)
    m.d.comb += Assert((dut.enters & (dut.enters - 1)) == 0)
    hit, used = Signal(), Signal(range(p.ways))
    m.d.sync += [hit.eq(dut.look_up), used.eq(dut.set)]
    for way in range(p.ways):  # what was used last is the newest of its set
        newest = [later_of(dut, used, p, way, other) for other in range(p.ways) if other != way]
        for after in newest:
            m.d.comb += Assert(~hit | (dut.way != way) | after)
    return []


def later_of(dut: Atu, at: Signal, p: Parameters, way: int, other: int):
    """Whether ``way`` of a set was used later than ``other``."""
    pairs = [(older, newer) for newer in range(p.ways) for older in range(newer)]
    order = dut.orders[at]
    return order[pairs.index((way, other))] if way < other else ~order[pairs.index((other, way))]
