"""Allocator: tokens that are handed out, placed and left add up to an expert's; states follow one another as in the
table.
"""

from __future__ import annotations

from amaranth.hdl import Assert, Assume, Module, Mux, Signal

from microarch.rtl import allocator

CLAIM = "placed tokens add up to an expert's; one state after the other, as in the table"
SIZES = ({"dies": 4, "lanes": 2, "cost_bits": 4, "token_bits": 4, "pipeline": 0},)
AFTER = {
    allocator.IDLE: (allocator.IDLE, allocator.GENERATE),
    allocator.GENERATE: (allocator.GENERATE, allocator.EVALUATE),
    allocator.EVALUATE: (allocator.EVALUATE, allocator.MERGE),
    allocator.MERGE: (allocator.MERGE, allocator.IDLE, allocator.GENERATE),
}


def harness(dut: allocator.Allocator, m: Module) -> list[Signal]:
    """Adds the claim to ``m``. Inputs that belong to an expert are held while it is placed."""
    p, state = dut.parameters, dut.state
    begun = Signal()
    m.d.sync += begun.eq(1)
    for given in (dut.groups, dut.levels, dut.block_tokens):
        before = Signal.like(given, name=f"{given.name}_before")
        m.d.sync += before.eq(given)
        m.d.comb += Assume(~begun | (state == allocator.IDLE) | (state == allocator.GENERATE) | (given == before))
    m.d.comb += [
        Assume(dut.candidates >= 1), Assume((dut.groups >= 1) & (dut.groups <= p.groups)),
        Assume(dut.levels <= p.levels), Assume(~dut.clear),
    ]  # fmt: skip
    total, out = Signal(p.token_bits), Signal(p.token_bits)
    merging = state == allocator.MERGE
    last = merging & ((dut.pending & (dut.pending - 1)) == 0)
    with m.If(dut.start & ((state == allocator.IDLE) | last)):
        m.d.sync += [total.eq(dut.tokens), out.eq(0)]
    with m.Elif(merging):
        m.d.sync += out.eq(out + dut.entry_tokens)
    left = Mux(merging, 0, dut.rest)
    placed = sum(Mux(dut.pending[dut._slot(*at)], dut.placed[at[0]][at[1]], 0) for at in dut._slots())
    with m.If(state != allocator.IDLE):
        m.d.comb += Assert((out + placed + left)[: p.token_bits] == total)
    with m.If(last):
        m.d.comb += Assert((out + dut.entry_tokens)[: p.token_bits] == total)
    with m.If(state == allocator.GENERATE):
        m.d.comb += Assert((dut.pending == 0) & (out == 0))
        m.d.comb += Assert(dut.filled[0] | ((dut.lane == 0) & (dut.group == 0)))
        m.d.comb += Assert(dut.left >= 1)
    for lane, group in dut._slots():
        at = dut._slot(lane, group)
        with m.If((state == allocator.GENERATE) | (state == allocator.EVALUATE)):
            m.d.comb += Assert(~dut.filled[at] | dut.pending[at] | (dut.placed[lane][group] == 0))
            m.d.comb += Assert(~dut.pending[at] | dut.filled[at])
    with m.If(state == allocator.EVALUATE):
        m.d.comb += Assert(dut.filled[0] & (dut.at < dut.groups + dut.levels + p.pipeline) & (out == 0))
    with m.Else():
        m.d.comb += Assert(dut.at == 0)
    with m.If(merging):
        m.d.comb += Assert(dut.pending != 0)
    was = Signal.like(state, name="was")
    m.d.sync += was.eq(state)
    for one, following in AFTER.items():
        with m.If(begun & (was == one)):
            m.d.comb += Assert(sum(state == each for each in following) == 1)
    return []
