"""Selector of the Global CP in RTL: SELECT, the ``keep`` largest counters of a heatmap row.

The largest threshold that at least ``keep`` counters reach is found bit by bit, a pass over the row for each bit of a
counter; a last pass marks the counters above it, and as many of those equal to it as are missing. A pass takes
``⌈experts / comparators⌉`` cycles, one word of the heatmap's port each: ``count_bits + 1`` passes a row. A word is
held in a register before it is compared, so that the access time of the heatmap's memory and the comparison are in two
cycles: one cycle more a row (``microarch.blocks.global_cp.fsm_ns``). The marks are those of
``archsim.policies.heatmap.hot_rows``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from amaranth.hdl import Assert, Cat, Const, Elaboratable, Module, Mux, Signal

from microarch.rtl import Memory

IDLE, SELECT = range(2)


@dataclass(frozen=True)
class Parameters:
    """``larger_wins``: ties go to the larger expert, and zeros count (`TopFraction`); else to the smaller, and a
    counter of zero is never marked (`TopPositive`).
    """

    experts: int = 512
    comparators: int = 32
    count_bits: int = 16
    keep: int = 8
    larger_wins: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError for what cannot be selected."""
        if not 1 <= self.keep <= self.experts:
            raise ValueError(f"expected to keep 1 to {self.experts} of as many counters, got {self.keep}")

    @property
    def words(self) -> int:
        return ceil(self.experts / self.comparators)

    @property
    def cycles(self) -> int:
        """The cycles for a row: one to fetch its first word, then a pass for each bit and one that marks."""
        return 1 + (self.count_bits + 1) * self.words


class Selector(Elaboratable):
    """Inputs: ``start``; ``word``: the row's counters ``at``. Outputs: ``state``, ``at``; in the last pass ``marking``,
    ``marks`` of the word ``marked_at`` and the row's ``threshold``. Counters beyond the last expert are 0.
    """

    def __init__(self, parameters: Parameters):
        p = self.parameters = parameters
        self.start, self.word = Signal(), Signal(p.comparators * p.count_bits)
        self.state, self.at = Signal(), Signal(range(p.words))
        self.marking, self.marks, self.marked_at = Signal(), Signal(p.comparators), Signal(range(p.words))
        self.threshold = Signal(p.count_bits, reset_less=True)

    @property
    def inputs(self) -> list[Signal]:
        return [self.start, self.word]

    @property
    def outputs(self) -> list[Signal]:
        return [self.state, self.at, self.marking, self.marks, self.marked_at, self.threshold]

    @property
    def memories(self) -> list[Memory]:
        """The heatmap of a layer; the row stands still while it is selected."""
        p = self.parameters
        return [Memory("heatmap", p.experts**2 * p.count_bits, p.comparators * p.count_bits, ("word",), ("at",))]

    def elaborate(self, platform) -> Module:
        m, p = Module(), self.parameters
        bit = Signal(p.count_bits + 1)  # one-hot: the bit of the threshold that this pass finds; the top one: marking
        # counters that reach it, in the words of this pass before the last
        self.reaching = Signal(range((p.words - 1) * p.comparators + 1), reset_less=True)
        # counters above the threshold; in the last pass, and those equal to it in the words before
        self.above = Signal(range(p.experts + 1), reset_less=True)
        number, ends_pass, finished = Signal(range(p.words)), Signal(), Signal()
        self.held, fetched = Signal(p.comparators * p.count_bits, reset_less=True), Signal()  # the word to compare
        self.number, self.bit, self.fetched = number, bit, fetched
        m.d.comb += [
            self.at.eq(p.words - 1 - number if p.larger_wins else number),
            ends_pass.eq(self.marked_at == (0 if p.larger_wins else p.words - 1)),
            self.marking.eq(fetched & bit[-1]),
            finished.eq(fetched & ends_pass & bit[-1]),
        ]
        with m.If(self.state):
            m.d.sync += [number.eq(Mux(number == p.words - 1, 0, number + 1)), fetched.eq(1)]
            m.d.sync += [self.held.eq(self.word), self.marked_at.eq(self.at)]
        with m.If(fetched):
            self._pass(m, bit, ends_pass)
        with m.If(finished):
            m.d.sync += [self.state.eq(IDLE), fetched.eq(0)]
        with m.If(self.start & (~self.state | finished)):
            m.d.sync += [self.state.eq(SELECT), number.eq(0), bit.eq(1 << (p.count_bits - 1))]
            m.d.sync += [self.threshold.eq(0), self.reaching.eq(0), self.above.eq(0)]
        return m

    def _pass(self, m, bit, ends_pass):
        """One word: count the counters that reach the threshold with this pass's bit; mark them in the last pass."""
        p = self.parameters
        trial = Signal(p.count_bits)
        m.d.comb += trial.eq(self.threshold | bit[:-1])
        counters = [self.held.word_select(i, p.count_bits) for i in range(p.comparators)]
        reach = Signal(p.comparators)
        m.d.comb += reach.eq(Cat(counter >= trial for counter in counters))
        total = Signal(range(p.experts + 1))
        m.d.comb += total.eq(self.reaching + _sum([reach[i] for i in range(p.comparators)]))
        m.d.sync += self.reaching.eq(total)
        self._mark(m, counters, reach)
        with m.If(ends_pass):
            m.d.sync += [self.reaching.eq(0), bit.eq(Mux(bit[0], 1 << p.count_bits, bit >> 1))]
            with m.If(~bit[-1]):
                with m.If(total >= p.keep):
                    m.d.sync += self.threshold.eq(trial)
                with m.Else():
                    m.d.sync += self.above.eq(total)

    def _mark(self, m, counters, reach):
        """Of a word whose counters ``reach`` the threshold: all above it, and of those equal to it as many as are
        missing.
        """
        p = self.parameters
        equal = Cat(counter == self.threshold for counter in counters)
        counts = Signal(p.comparators)  # may fill what is missing
        last = p.experts - (p.words - 1) * p.comparators  # counters of the last word; zeros follow
        there = Mux(self.marked_at == p.words - 1, (1 << last) - 1, (1 << p.comparators) - 1)
        m.d.comb += counts.eq(equal & there if p.larger_wins else Mux(self.threshold.any(), equal, 0))
        order = list(reversed(range(p.comparators))) if p.larger_wins else list(range(p.comparators))
        before = _before([counts[i] for i in order])
        marks = [Const(0)] * p.comparators
        for i, earlier in zip(order, before, strict=True):
            marks[i] = (reach[i] & ~equal[i]) | (counts[i] & (self.above + earlier < p.keep))
        m.d.comb += self.marks.eq(Mux(self.marking, Cat(marks), 0))
        with m.If(self.marking):
            m.d.sync += self.above.eq(self.above + _sum([counts[i] for i in order]))


def _sum(bits):
    """Sum of bits, as a tree."""
    return bits[0] if len(bits) == 1 else _sum(bits[: len(bits) // 2]) + _sum(bits[len(bits) // 2 :])


def _before(bits):
    """For every bit the sum of those before it, as a tree."""
    if len(bits) == 1:
        return [Const(0, 1)]
    half = len(bits) // 2
    first = _sum(bits[:half])
    return [*_before(bits[:half]), *(first + more for more in _before(bits[half:]))]


# Selector: words of the row and of the marks stay in range, one bit of the threshold is found at a time, and as many
# counters are above the threshold as may be kept, at most.

CLAIM = "words stay in range; fewer counters are above the threshold than are kept"
SIZES = (
    {"experts": 12, "comparators": 4, "count_bits": 3, "keep": 3},
    {"experts": 10, "comparators": 4, "count_bits": 3, "keep": 3, "larger_wins": True},
)


def harness(dut: Selector, m: Module) -> list[Signal]:
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
