"""ATU: tags of a set differ, so that one way hits at most; the order of its ways is a permutation."""

from __future__ import annotations

from itertools import combinations

from amaranth.hdl import Array, Assert, Assume, Module, Signal

from microarch.rtl import atu

CLAIM = "at most one way hits; the order of use is a permutation"
SIZES = ({"entries": 8, "ways": 4, "experts": 16},)


def harness(dut: atu.Atu, m: Module) -> list[Signal]:
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


def later_of(dut: atu.Atu, at: Signal, p: atu.Parameters, way: int, other: int):
    """Whether ``way`` of a set was used later than ``other``."""
    pairs = [(older, newer) for newer in range(p.ways) for older in range(newer)]
    order = dut.orders[at]
    return order[pairs.index((way, other))] if way < other else ~order[pairs.index((other, way))]
