"""Sorter: distance, block and whole are one power of two each, in order, and the words of a cycle are two of those that
are sorted.
"""

from __future__ import annotations

from amaranth.hdl import Assert, Assume, Module, Mux, Signal

from microarch.rtl import sorter

CLAIM = "twice the distance ≤ block ≤ keys; two words, both of these keys"
SIZES = ({"experts": 16, "comparators": 2, "count_bits": 2},)


def harness(dut: sorter.Sorter, m: Module) -> list[Signal]:
    """Adds the claim to ``m``."""
    p = dut.parameters
    m.d.comb += [Assume(_is_power(dut.size)), Assume(~dut.size[0])]
    words = dut.whole >> p.within
    first, second = dut.at
    with m.If(dut.state):
        m.d.comb += [Assert(_is_power(each)) for each in (dut.distance, dut.block, dut.whole)]
        m.d.comb += [
            Assert((dut.distance << 1) <= dut.block), Assert(dut.block <= dut.whole),
            Assert((dut.pair == 0) | ((dut.pair << 1) + 1 < words)),
            Assert(first < second), Assert(second < Mux(words < 2, 2, words)),
        ]  # fmt: skip
    return []


def _is_power(number: Signal):
    return (number != 0) & ((number & (number - 1)) == 0)
