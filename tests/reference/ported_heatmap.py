"""The heatmap behind its port (``heatmap_update: limited``), slow and obvious: dictionaries of Python integers."""

from collections import defaultdict
from fractions import Fraction

from reference.demand_oracle import oracle_top_fraction, oracle_top_positive

FULL = 2**16 - 1


def port_transitions(step_ns, experts, top_k, port_bits, clock_hz):
    """Token transitions that the port has time for in a step: k rows each, of which k counters fall on so many
    words, twice.
    """
    words = max(1.0, experts * 16 / port_bits)
    touched = sum((1 - 1 / words) ** earlier for earlier in range(top_k))  # each counter's chance of a word of its own
    return int(step_ns / (2 * top_k * touched / clock_hz * 1e9))


class SlowHeatmap:
    """``routing``: all ``StepTokens`` of a run. Counts in ``counts[layer, before][after]``; ``top(counts) -> set of
    experts``.
    """

    def __init__(self, routing, layers, experts, top, per_word=32):
        self.per_word = per_word
        self.rows = defaultdict(list)  # by iteration: (request, experts by layer)
        for piece in routing:
            self.rows[piece.iteration] += zip(piece.request.tolist(), piece.experts.tolist(), strict=True)
        self.layers, self.experts, self.top = layers, experts, top
        self.counts = defaultdict(lambda: [0] * experts)
        self.last = {}  # request: (iteration, experts by layer)
        self.iteration = 0
        self.pairs = []

    def begin(self, iteration):
        self.iteration, self.pairs = iteration, []
        for request, now in self.rows[iteration]:
            at, before = self.last.get(request, (None, None))
            if iteration != 1 and (at == iteration or (iteration and at == iteration - 1)):
                self.pairs.append((before, now))
            self.last[request] = iteration, now

    def predicted(self, layer):
        """Experts expected after each expert, a list of sets; nothing in iteration 0."""
        if self.iteration == 0:
            return [set()] * self.experts
        return [self.top(self.counts[layer, expert]) for expert in range(self.experts)]

    def take_in(self, layer, transitions):
        """Returns how many transitions are dropped."""
        for before, now in self.pairs[:transitions]:
            for expert in before[layer]:
                row = self.counts[layer, expert]
                words = {}
                for following in now[layer]:
                    words.setdefault(following // self.per_word, []).append(following)
                for word in words.values():
                    if any(row[following] == FULL for following in word):
                        row[:] = [count // 2 for count in row]
                    for following in word:
                        if row[following] == FULL:
                            row[:] = [count // 2 for count in row]
                        row[following] += 1
        return len(self.pairs[transitions:])


def top_of(predictor):
    """The rule of a shipped predictor, told by the oracle."""
    if hasattr(predictor, "fraction"):
        return lambda counts: oracle_top_fraction(counts, Fraction(str(predictor.fraction)))
    return lambda counts: oracle_top_positive(counts, predictor.n)
