"""Invariants by induction: they hold of the shipped components, and of none with a planted error."""

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("amaranth", reason="RTL: pip install 'archsim[rtl]'")
pytest.importorskip("pyosys", reason="RTL: pip install 'archsim[rtl]'")

from support.examples import sampled  # noqa: E402
from support.rtl_mutants import SHOWN  # noqa: E402

from archsim.cli.main import main  # noqa: E402
from microarch.rtl.formal import PROPERTIES, prove  # noqa: E402

PLANTED = [
    ("allocator", "size = Mux(self.more, self.block_tokens, self.rest)", "size = self.block_tokens"),
    ("allocator", "takes_right.eq(right[0] < left[0])", "takes_right.eq(right[0] > left[0])"),
    ("allocator", "with m.If(~self.more):", "with m.If(self.more):"),
    ("atu", "& ~chosen[j]", ""),
    ("atu", "m.d.comb += self.enters.eq(oldest)", "m.d.comb += self.enters.eq(3)"),
    ("atu", "with m.If(~self.matches.any()):\n                m", "if True:\n                m"),
    ("heatmap", "self.state.eq(Mux(full, HALVE_READ, WRITE))", "self.state.eq(WRITE)"),
    ("heatmap", "Cat(counter[1:], 0)", "Cat(counter[2:], 0, counter[0])"),
    ("heatmap", "mask[i] & counter.all()", "mask[0] & counter.all()"),
    ("heatmap", "with m.If(halving == p.words - 1):", "with m.If(halving == p.words):"),
    ("select", "number == p.words - 1, 0, number + 1", "number == p.words, 0, number + 1"),
    ("select", "with m.If(total >= p.keep):", "with m.If(total > p.keep):"),
    ("sorter", "self.distance.eq(self.block), self.block", "self.distance.eq(self.block << 1), self.block"),
    ("sorter", "(self.block == self.whole)", "(self.block == self.whole << 1)"),
    ("allocator", "with m.If(self.group + 1 == self.groups):", "with m.If(self.group == self.groups):"),
    ("pdu", "& ~self.local.bit_select", "& self.local.bit_select"),
    ("pdu", "at == p.words - 1", "at == p.words - 2"),
    ("pdu", "Cat(self.gathered[:kept], self.word)", "self.gathered"),
]  # fmt: skip


AT_A_COMMIT = ("atu",)


@pytest.mark.parametrize("block", sampled(PROPERTIES, lambda block: block in AT_A_COMMIT))
def test_the_command_proves_every_claim(block, capfd):
    assert main(["rtl", "formal", block]) == 0
    said = capfd.readouterr().out
    assert said.count("proved") == len(PROPERTIES[block].SIZES) and "not proved" not in said


FIRST = [next(each for each in PLANTED if each[0] == block) for block in AT_A_COMMIT]


@pytest.mark.parametrize(("block", "written", "planted"), sampled(PLANTED, lambda each: each in FIRST))
def test_a_planted_error_is_not_proved(block, written, planted):
    shown = SHOWN[block]
    source = Path(shown.module.__file__).read_text(encoding="utf-8")
    assert written in source
    spec = importlib.util.spec_from_loader(f"planted_{block}", loader=None)
    copy = importlib.util.module_from_spec(spec)
    sys.modules[copy.__name__] = copy
    exec(compile(source.replace(written, planted), shown.module.__file__, "exec"), copy.__dict__)
    proof = prove(block, PROPERTIES[block].SIZES[0], getattr(copy, shown.component))
    assert not proof.proved and proof.counterexample


def test_an_unknown_block_is_refused(capsys):
    assert main(["rtl", "formal", "alocator"]) == 2
    assert "allocator" in capsys.readouterr().err
