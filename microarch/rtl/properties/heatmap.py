"""Heatmap store: no counter passes its largest value, and halving keeps the order of a word's counters."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Signal

from microarch.rtl import heatmap

CLAIM = "no counter passes 65,535; halving keeps order"
SIZES = ({"experts": 8, "port_bits": 64},)


def harness(dut: heatmap.HeatmapStore, m: Module) -> list[Signal]:
    """Adds the claim to ``m``."""
    p = dut.parameters
    held = [dut.held.word_select(i, p.count_bits) for i in range(p.per_word)]
    stored = [dut.stored.word_select(i, p.count_bits) for i in range(p.per_word)]
    m.d.comb += Assert(dut.state <= heatmap.HALVE_WRITE)
    m.d.comb += Assert(dut.writes == ((dut.state == heatmap.WRITE) | (dut.state == heatmap.HALVE_WRITE)))
    for i, (before, after) in enumerate(zip(held, stored, strict=True)):
        with m.If(dut.state == heatmap.WRITE):
            m.d.comb += Assert(after == before + dut.adding[i])  # with the carry: it does not wrap
        with m.If(dut.state == heatmap.HALVE_WRITE):
            m.d.comb += Assert((after == before >> 1) & ~after[-1])
            for j in range(i):
                m.d.comb += Assert((held[j] > before) | (stored[j] <= after))
    return []
