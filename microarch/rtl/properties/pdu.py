"""PDU: a look-up is that of one expert's own three bits, for any expert."""

from __future__ import annotations

from amaranth.hdl import Assert, Assume, Module, Mux, Signal

from microarch.rtl import pdu

CLAIM = "a look-up answers as one expert's own bits, for any expert"
SIZES = ({"experts": 64, "port_bits": 8}, {"experts": 64, "port_bits": 8, "shadow": False})


def harness(dut: pdu.Pdu, m: Module) -> list[Signal]:
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
        Assert((dut.state == pdu.LOADING) == (dut.at != 0)),
        Assert(~begun | (dut.enabled.bit_select(which, 1) == enabled)),
        Assert(~begun | (dut.local.bit_select(which, 1) == local)),
        Assert(~asked | (dut.keep == keep)),
        Assert(~dut.keep | dut.answered),
    ]
    if p.shadow:
        m.d.comb += Assert(~begun | (dut.gathered.bit_select(which, 1) == gathered))
    return [which]
