"""Clocked and toggled bits of a component, counted beside its registers, and the energy that follows from them."""

import pytest
from support.tiny import TINY

from archsim.cli.main import main
from microarch.silicon.energy import energy_of
from microarch.silicon.synthesis import read_result

pytest.importorskip("amaranth", reason="RTL: pip install 'archsim[rtl]'")

from microarch.rtl import lockstep, pdu  # noqa: E402
from microarch.rtl.activity import Watched  # noqa: E402

WORDS = 32  # of a PDU's bits


def activity_of(stimulus):
    watched = Watched(pdu.Pdu(pdu.Parameters()))

    async def bench(ctx):
        for given in stimulus:
            await lockstep.cycle(ctx, watched, given)

    lockstep.simulate(watched, bench)
    return watched.activity


def test_bits_that_are_written_are_clocked_and_those_that_change_toggle():
    always = 2  # answered, keep
    idle = activity_of([(0,) * 7] * 10)
    assert (idle.cycles, idle.clocked, idle.toggled) == (10, 10 * always, 0)
    zeros = activity_of([(1, 0, 0, 0, 0, 0, 0)] * 2 * WORDS)
    counter = 5 + 1  # which word; loading
    assert zeros.clocked == 2 * WORDS * (16 + counter + always) + 2 * 512
    ones = activity_of([(1, 2**16 - 1, 0, 0, 0, 0, 0)] * 2 * WORDS)
    assert ones.toggled - zeros.toggled == 512 + 512  # once into the second register, once into the one in use
    placed = activity_of([(0, 0, 0, 0, 1, 7, 1)] * 3)
    assert (placed.clocked, placed.toggled) == (3 * (1 + always), 1)


def test_a_gated_clock_takes_less_and_a_free_one_what_table_ii_has():
    found = read_result("pdu")
    busy, idle = (energy_of(found, bits, bits / 4, 2e9) for bits in (400, 4))
    assert idle.free == busy.free == pytest.approx(found.flip_flops * 1.17, rel=0.01)
    assert idle.gated < busy.gated < busy.free and idle.changes < busy.changes
    tables_mw = found.free_running_fj / found.flip_flops * 1024 * 25 * 0.7 * 2.5e9 * 1e-12
    assert tables_mw == pytest.approx(55.75, rel=0.1)  # table II, prediction tables


def test_commands_take_the_stimulus_of_a_run(tmp_path, capfd):
    file = tmp_path / "small.yaml"
    text = TINY.replace("assumptions: published", "assumptions: physical")
    text = text.replace("policies: [base, ep, allo, pred, allo+pred]", "policies: [ep, allo-paper]")
    file.write_text(text.replace("batch: [12, 40]", "batch: 12"), encoding="utf-8")
    assert main(["rtl", "lockstep", "sorter", "--events", "60", "--run", str(file)]) == 0
    assert "recorded in small toy batch 12 allo-paper" in (out := capfd.readouterr().out) and "0 differences" in out
    assert main(["rtl", "energy", "sorter", "--events", "40", "--run", str(file)]) == 0
    assert "sorter" in capfd.readouterr().out
    assert main(["rtl", "lockstep", "select", "--run", str(file)]) == 2
    assert "no run has a stimulus for select: it needs prediction" in capfd.readouterr().err
