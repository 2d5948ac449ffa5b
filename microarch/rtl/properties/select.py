"""Selector: words of the row and of the marks stay in range, one bit of the threshold is found at a time, and as many
counters are above the threshold as may be kept, at most.
"""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Mux, Signal

from microarch.rtl import select

CLAIM = "words stay in range; fewer counters are above the threshold than are kept"
SIZES = (
    {"experts": 12, "comparators": 4, "count_bits": 3, "keep": 3},
    {"experts": 10, "comparators": 4, "count_bits": 3, "keep": 3, "larger_wins": True},
)


def harness(dut: select.Selector, m: Module) -> list[Signal]:
    """Adds the claim to ``m``."""
    p = dut.parameters
    done = p.words - 1 - dut.marked_at if p.larger_wins else dut.marked_at  # words of this pass before this one
    m.d.comb += [
        Assert(dut.number < p.words), Assert(dut.marked_at < p.words), Assert(dut.at < p.words),
        Assert(~dut.fetched | (dut.number == Mux(done == p.words - 1, 0, done + 1))),
        Assert(~dut.fetched | dut.state), Assert(dut.fetched | (dut.number == 0) | ~dut.state),
        Assert(~dut.state | ((dut.bit != 0) & ((dut.bit & (dut.bit - 1)) == 0))),
        Assert(dut.reaching <= Mux(dut.fetched, p.comparators * done, 0)),
        Assert(~dut.state | dut.bit[-1] | (dut.above < p.keep)),
        Assert(dut.marking | (dut.marks == 0)),
    ]  # fmt: skip
    return []
