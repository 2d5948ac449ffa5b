"""Sorter of the Global CP in RTL: ORDER, experts by tokens, in place (Batcher's bitonic network, 1968).

The buffer is a memory behind ports: two words of ``comparators`` keys are read in a cycle, compared, and written at its
end. A key is {tokens, expert}, so that ties go to the smaller expert; keys beyond the last are all ones. Stage (k, j)
compares keys 2^j apart in blocks of 2^k: across two words where 2^j is a word or more, else within each of them. The
words of a cycle differ in one bit of their number: two banks, by parity, serve both.

Cycles: ``k (k + 1) / 2 · max(1, 2^k / 2 / comparators)`` for 2^k keys (``microarch.blocks.global_cp.sorting_cycles``).
"""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import Assert, Assume, Cat, Elaboratable, Module, Mux, Signal

from microarch.rtl import Memory

IDLE, ORDER = range(2)


@dataclass(frozen=True)
class Parameters:
    experts: int = 512
    comparators: int = 32
    count_bits: int = 16

    def __post_init__(self) -> None:
        """Raises ValueError for what cannot be built."""
        for name in ("experts", "comparators"):
            number = getattr(self, name)
            if number < 1 or number & (number - 1):
                raise ValueError(f"{name} must be a power of two, got {number}")
        if self.experts < 2 * self.comparators:
            raise ValueError(f"expected at least {2 * self.comparators} experts, got {self.experts}")

    @property
    def levels(self) -> int:
        return self.experts.bit_length() - 1

    @property
    def within(self) -> int:
        """Distances, as powers of two, that stay within a word."""
        return self.comparators.bit_length() - 1

    @property
    def key_bits(self) -> int:
        return self.count_bits + self.levels


class Sorter(Elaboratable):
    """Inputs: ``start`` with ``size`` (one-hot: bit k for 2^k keys, k >= 1); ``loaded``: the two words of ``at``.
    Outputs: ``state``; ``at``: numbers of two words; ``stored``: what they become.
    """

    def __init__(self, parameters: Parameters):
        p = self.parameters = parameters
        self.start, self.size = Signal(), Signal(p.levels + 1)
        word, number = p.comparators * p.key_bits, p.levels - p.within
        self.loaded = [Signal(word, name=f"loaded_{i}") for i in range(2)]
        self.state = Signal()
        self.at = [Signal(number, name=f"at_{i}") for i in range(2)]
        self.stored = [Signal(word, name=f"stored_{i}") for i in range(2)]

    @property
    def inputs(self) -> list[Signal]:
        return [self.start, self.size, *self.loaded]

    @property
    def outputs(self) -> list[Signal]:
        return [self.state, *self.at, *self.stored]

    @property
    def memories(self) -> list[Memory]:
        """Two banks of the buffer; each of the two words is in the one or the other."""
        p, sides = self.parameters, range(2)
        data, address, written = (tuple(f"{name}_{i}" for i in sides) for name in ("loaded", "at", "stored"))
        return [Memory("buffer", p.experts * p.key_bits // 2, p.comparators * p.key_bits, data, address, written, 1)]

    def elaborate(self, platform) -> Module:
        m, p = Module(), self.parameters
        self.pair = Signal(p.levels - p.within - 1, reset_less=True)  # of words
        # one-hot: 2^j, 2^k, and 2^k of the last stages
        self.distance = Signal(p.levels, reset_less=True)
        self.block = Signal(p.levels + 1, reset_less=True)
        self.whole = Signal(p.levels + 1, reset_less=True)
        self._address(m)
        self._compare(m)
        ends_stage, finished = Signal(), Signal()
        m.d.comb += [
            ends_stage.eq(self.at[1] == Mux(self.whole[: p.within + 1].any(), 1, (self.whole >> p.within) - 1)),
            finished.eq(ends_stage & self.distance[0] & (self.block == self.whole)),
        ]
        with m.If(self.state):
            m.d.sync += self.pair.eq(self.pair + 1)
            with m.If(ends_stage):
                m.d.sync += [self.pair.eq(0), self.distance.eq(self.distance >> 1)]
                with m.If(self.distance[0]):
                    m.d.sync += [self.distance.eq(self.block), self.block.eq(self.block << 1)]
            with m.If(finished):
                m.d.sync += self.state.eq(IDLE)
        with m.If(self.start & (~self.state | finished)):
            m.d.sync += [self.state.eq(ORDER), self.pair.eq(0), self.distance.eq(1), self.block.eq(2)]
            m.d.sync += self.whole.eq(self.size)
        return m

    def _address(self, m):
        """The words of the pair: its number with a 0, or a 1, put in at the bit of the distance."""
        p = self.parameters
        across = Signal(p.levels - p.within)  # distance in words; next to each other if it stays within them
        self.is_across = Signal()
        m.d.comb += [
            self.is_across.eq(self.distance[p.within :].any()),
            across.eq(Mux(self.is_across, self.distance[p.within :], 1)),
        ]
        low = Signal.like(across, name="low")
        m.d.comb += low.eq(across - 1)
        m.d.comb += self.at[0].eq(((self.pair & ~low) << 1) | (self.pair & low))
        m.d.comb += self.at[1].eq(self.at[0] | across)

    def _compare(self, m):
        """Every comparator takes its two keys, and gives the smaller and the larger to their places."""
        p, half = self.parameters, self.parameters.comparators // 2
        words = [[each.word_select(lane, p.key_bits) for lane in range(p.comparators)] for each in self.loaded]
        placed: list[list[list]] = [[[] for _ in range(p.comparators)] for _ in words]
        falls_in = [(at & self.block[p.within :]).any() for at in self.at]  # blocks that fall, by the word's number
        for each in range(p.comparators):
            # (condition, ((word, lane) of the two keys), whether they fall)
            modes = [(self.is_across, ((0, each), (1, each)), falls_in[0])]
            for j in range(p.within):
                word, i = divmod(each, half)
                low = ((i >> j) << j + 1) | (i & ((1 << j) - 1))
                falls = falls_in[word] | (self.block[: p.within] & low).any()
                modes.append((self.distance[j], ((word, low), (word, low | 1 << j)), falls))
            one, other, swap = self._chosen(m, each, words, modes)
            results = Mux(swap, other, one), Mux(swap, one, other)
            for condition, places, _ in modes:
                for (word, lane), result in zip(places, results, strict=True):
                    placed[word][lane].append(Mux(condition, result, 0))
        for word, lanes in enumerate(placed):
            m.d.comb += self.stored[word].eq(Cat(_or(results) for results in lanes))

    def _chosen(self, m, number, words, modes):
        """(keys of a comparator, whether they change places)."""
        keys = [Signal(self.parameters.key_bits, name=f"key_{number}_{side}") for side in range(2)]
        for side, key in enumerate(keys):
            taken = ((condition, places[side]) for condition, places, _ in modes)
            m.d.comb += key.eq(_or([Mux(condition, words[word][lane], 0) for condition, (word, lane) in taken]))
        falls, swap = _or([condition & falls for condition, _, falls in modes]), Signal(name=f"swap_{number}")
        m.d.comb += swap.eq((keys[0] > keys[1]) ^ falls)
        return *keys, swap


def _or(values):
    """All of them together, as a tree."""
    return values[0] if len(values) == 1 else _or(values[: len(values) // 2]) | _or(values[len(values) // 2 :])


# Sorter: distance, block and whole are one power of two each, in order, and the words of a cycle are two of those
# that are sorted.

CLAIM = "twice the distance ≤ block ≤ keys; two words, both of these keys"
SIZES = ({"experts": 16, "comparators": 2, "count_bits": 2},)


def harness(dut: Sorter, m: Module) -> list[Signal]:
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
