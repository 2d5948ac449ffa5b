"""Generated routing for models without a trace: popular experts, tastes of requests, experts that stay.

Every choice is a function of (seed, request, token, layer) and of the token before it: the numbers are counter-based
(SplitMix64: Steele, Lea and Flood, OOPSLA 2014), so the routing of a request does not depend on the batch it is in,
on how the stream is cut into pieces, or on the process that draws it.

A token's experts at a layer are chosen in two rounds, which is also their order:

1. every expert the previous token of the request had is kept with probability `stickiness`;
2. candidates are drawn from the popularity of the layer until there are top_k experts. A fraction `PREFERRED` of the
   experts, other ones for every request and layer, is always accepted, the others with probability
   1 − `request_taste`; an expert the token has already is not.

The defaults are measured on recorded routing (medians over layers; none of them holds for every model):

* popularity_skew = 0.7, standard deviation of log popularity. Loads of the 58 layers of DeepSeek-V3/R1 serving
  decode (SGLang's published load matrices, four workloads): largest over mean load 5.2–5.8, coefficient of variation
  0.79–0.83, standard deviation of log load 0.60–0.67; prefill workloads 5.4–8.2. Generated: 5.3, 0.75 and 0.68.
* request_taste = 0.75. Two distant tokens (≥ 32 apart) of one request share 1.36 (DeepSeek-V2-Lite, chat prompts),
  1.44 (the same model, ESFT tasks), 1.56 (gpt-oss-20b, MMLU) and 2.5 times (Llama-4-Maverick, MMLU, top-1) as many
  experts as tokens of two requests do. Generated: 1.49.
* stickiness = 0.15. Consecutive tokens share a fraction of experts above that of distant tokens of the same request:
  (near − far)/(1 − far) is 0.12–0.18 on the same four traces. Generated: 0.14.
* prompt_tokens = 16: archsim's choice, small because a prefill is one step whatever its length; the Llama-4 trace has
  2–59.

Popularity may move while requests run. With `drift` its logarithm turns from one log-normal table towards another
that is independent, by so many radians a decode step: its spread stays, and its correlation with that of n steps
before is cos(drift · n). With `switch_step` every request takes up another subject at that decode step: popularity
and tastes are those of another seed from then on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from archsim.base.compiled import GOLDEN, MIX_1, MIX_2, allocating, inner, mix_bits
from archsim.specs.workload import PROMPT_TOKENS
from archsim.traffic.trace import StepTokens, rows_per_piece

PREFERRED = 0.25
"""Fraction of the experts that a request prefers at a layer."""

_SYNTHETIC_ATTEMPTS = 512
"""Candidates tried for one token and layer; then the lowest free experts are taken. Reached only if top_k ≈ experts."""

_BITS_20 = np.uint64((1 << 20) - 1)
_OTHER_SUBJECT = 0x5EED
"""Added to the seed for popularity and tastes after `switch_step`."""

_TURNED_TO = 0x7A11
"""Added to the seed for the popularity towards which it drifts."""

_PREFERRED_20 = np.uint64(round(PREFERRED * (1 << 20)))


class SyntheticTraffic:
    """Generated routing of a model; a `TokenSource`.

    model: a ModelSpec (name, moe_layer_ids, experts, top_k are used). spec: a SyntheticSpec. largest_batch: number of
    requests where spec.requests is None. All requests have the same length: spec.prompt_tokens in iteration 0 (none:
    there is no iteration 0), then spec.decode_steps decode steps (None: as many as are requested). skew: float64[layer,
    1], fitted to spec.imbalance (`archsim.traffic.traffic_presets`); None: spec.popularity_skew.
    """

    def __init__(self, model, spec, largest_batch: int, skew: np.ndarray | None = None):
        self.requests = spec.requests or largest_batch
        self.layer_ids = np.array(model.moe_layer_ids, np.int32)
        self.num_experts = model.experts
        self.top_k = model.top_k
        self._spec = spec
        self._skew = skew_of_layers(skews_of(spec), self.layer_ids) if skew is None else skew
        self._prompt_tokens = PROMPT_TOKENS if spec.prompt_tokens is None else spec.prompt_tokens

    @property
    def label(self) -> str:
        spec = self._spec
        return (
            f"synthetic seed={spec.seed} prompt={self._prompt_tokens} "
            f"{spec.imbalance or 'skew=' + '/'.join(f'{each:g}' for each in skews_of(spec))} "
            f"taste={spec.request_taste:g} stickiness={spec.stickiness:g}"
            f"{f' drift={spec.drift:g}' if spec.drift else ''}"
            f"{f' switch={spec.switch_step}' if spec.switch_step else ''}"
            f"{f' chunk={spec.chunk_tokens}' if spec.chunk_tokens else ''}"
        )

    @property
    def digest(self) -> str:
        shape = (self.layer_ids.tolist(), self.num_experts, self.top_k, self.requests, self._spec.decode_steps)
        return hashlib.sha256(f"{self.label} {shape}".encode()).hexdigest()

    @property
    def request_digest(self) -> str:
        """Names the routing of single requests, which does not depend on their number."""
        shape = (self.layer_ids.tolist(), self.num_experts, self.top_k, self._spec.decode_steps)
        return hashlib.sha256(f"requests of {self.label} {shape}".encode()).hexdigest()

    def _popularity(self, seed: int, iteration: int) -> np.ndarray:
        """Shares of experts in an iteration, float64[layer, expert]."""
        now = popularity(seed, self.layer_ids, self.num_experts, self._skew)
        if not self._spec.drift or not iteration:
            return now
        return turn_shares(
            now,
            popularity(seed + _TURNED_TO, self.layer_ids, self.num_experts, self._skew),
            self._spec.drift * iteration,
        )

    def steps(self, requests: np.ndarray, decode_steps: int) -> Iterator[StepTokens]:
        """See `archsim.traffic.trace.TokenSource.steps`. Holds only the last token of every request."""
        spec = self._spec
        last = np.zeros((len(requests), len(self.layer_ids), self.top_k), np.int16)
        alias = alias_table(self._popularity(spec.seed, 0))
        prompt = np.arange(self._prompt_tokens)
        chunks, place = np.divmod(requests, spec.chunk_tokens or 1)
        _, chunk = np.unique(chunks, return_inverse=True)
        for iteration in range(min(decode_steps, decode_steps if spec.decode_steps is None else spec.decode_steps) + 1):
            tokens = prompt if iteration == 0 else np.array([self._prompt_tokens + iteration - 1])
            switched = spec.switch_step is not None and iteration >= spec.switch_step
            seed = spec.seed + _OTHER_SUBJECT * switched
            if spec.drift or (switched and iteration == spec.switch_step):
                alias = alias_table(self._popularity(seed, iteration))
            for position, token in _rows(len(requests), tokens, rows_per_piece(len(self.layer_ids), self.top_k)):
                experts = np.empty((len(position), len(self.layer_ids), self.top_k), np.int16)
                request, of_last = requests[position], position
                if spec.chunk_tokens:  # a prompt of this step alone, and the place in it
                    request, token, of_last = (iteration << 32) + chunks[position], place[position], chunk[position]
                _generate_synthetic(
                    np.uint64(seed),
                    request,
                    token,
                    of_last,
                    self.layer_ids,
                    alias,
                    np.uint64(round(spec.stickiness * (1 << 20))),
                    np.uint64(round((1 - spec.request_taste) * (1 << 20))),
                    last,
                    experts,
                )
                yield StepTokens(iteration, position, experts)


def turn_shares(one: np.ndarray, other: np.ndarray, angle: float) -> np.ndarray:
    """Shares float64[layer, expert] whose logarithms are turned by ``angle`` from those of ``one`` to ``other``."""
    logs = [np.log(each) - np.log(each).mean(axis=1, keepdims=True) for each in (one, other)]
    weight = np.exp(np.cos(angle) * logs[0] + np.sin(angle) * logs[1])
    return weight / weight.sum(axis=1, keepdims=True)


def skews_of(spec) -> tuple[float, ...]:
    """The skews of a SyntheticSpec: one, or one for each part of the model."""
    skew = spec.popularity_skew
    return skew if isinstance(skew, tuple) else (skew,)


def skew_of_layers(skews: tuple[float, ...], layer_ids: np.ndarray) -> np.ndarray:
    """float64[layer, 1] of layers whose depth falls into as many equal parts; first and last are the model's."""
    depth = (layer_ids - layer_ids[0]) / (layer_ids[-1] - layer_ids[0] + 1)
    return np.array(skews)[(depth * len(skews)).astype(int)][:, None]


def popularity(seed: int, layer_ids: np.ndarray, experts: int, skew: float | np.ndarray) -> np.ndarray:
    """float64[layer, expert], rows sum to 1: log-normal of deviation `skew`, a number or float64[layer, 1]."""
    counter = np.arange(experts, dtype=np.uint64) + (layer_ids.astype(np.uint64)[:, None] << np.uint64(32))
    first = mix_bits(mix_bits(np.uint64(seed) + GOLDEN) ^ counter)
    radius, angle = (
        (mix_bits(first + step * GOLDEN) >> np.uint64(11)) * 2.0**-53 for step in np.arange(2, dtype=np.uint64)
    )
    normal = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)
    weight = np.exp(skew * normal)
    return weight / weight.sum(axis=1, keepdims=True)


def alias_table(shares: np.ndarray) -> np.ndarray:
    """Table to draw from shares float64[layer, expert] in constant time (Vose, IEEE Trans. Software Eng. 17, 1991).

    Returns uint64[layer, expert], limit << 16 | other: a column, drawn uniformly, stands for its own expert if another
    uniform number of 20 bits is below its limit, for the expert `other` else.
    """
    table = np.empty(shares.shape, np.uint64)
    _fill_alias(np.ascontiguousarray(shares, np.float64), table)
    return table


@allocating
def _fill_alias(shares, table):
    layers, experts = shares.shape
    poor, rich = np.empty(experts, np.int64), np.empty(experts, np.int64)
    for layer in range(layers):
        rest = shares[layer] * experts
        poors, riches = 0, 0
        for expert in range(experts):
            if rest[expert] < 1:
                poor[poors] = expert
                poors += 1
            else:
                rich[riches] = expert
                riches += 1
            table[layer, expert] = np.uint64(1 << 36)
        while poors and riches:
            poors -= 1
            column, donor = poor[poors], rich[riches - 1]
            limit = np.uint64(np.rint(rest[column] * (1 << 20)))
            table[layer, column] = limit << np.uint64(16) | np.uint64(donor)
            rest[donor] -= 1 - rest[column]
            if rest[donor] < 1:
                poor[poors] = donor
                poors, riches = poors + 1, riches - 1


def _rows(requests: int, tokens: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(position int32[n], token int64[n]) of all tokens of all requests, at most `size` rows at a time."""
    for start in range(0, requests * len(tokens), size):
        row = np.arange(start, min(start + size, requests * len(tokens)))
        yield (row // len(tokens)).astype(np.int32), tokens[row % len(tokens)]


@allocating
def scatter(x):
    """`mix_bits` for compiled code."""
    x = (x ^ (x >> np.uint64(30))) * MIX_1
    x = (x ^ (x >> np.uint64(27))) * MIX_2
    return x ^ (x >> np.uint64(31))


@allocating
def _generate_synthetic(seed, request, token, position, layer_ids, alias, stick, lenience, last, out):
    """Fill out int16[n, layer, k] and leave each request's latest token in last int16[batch, layer, k].

    request int64[n], token int64[n], position int32[n]: of every row. alias: see `alias_table`.
    stick, lenience: probabilities of keeping an expert and of accepting one that is not preferred, times 2**20.
    """
    rows, layers, top_k = out.shape
    taken_by = np.full(alias.shape[1], -1, np.int64)
    for row in range(rows):
        origin = scatter(scatter(seed + GOLDEN) ^ np.uint64(request[row]))
        keep = stick if token[row] > 0 else np.uint64(0)
        for layer in range(layers):
            owner = row * layers + layer
            taste = scatter(origin + np.uint64(layer_ids[layer]) * GOLDEN)
            stream = scatter(taste ^ (np.uint64(token[row]) + GOLDEN))
            chosen = 0
            for rank in range(top_k):
                stream += GOLDEN
                expert = np.uint64(last[position[row], layer, rank])
                kept = (scatter(stream) & _BITS_20) < keep
                out[row, layer, chosen] = expert
                taken_by[expert] = owner if kept else -1
                chosen += kept
            attempts = 0
            while chosen < top_k and attempts < _SYNTHETIC_ATTEMPTS:
                stream += GOLDEN
                number = scatter(stream)
                expert = _candidate(number, alias, layer)
                lenient = ((number >> np.uint64(20)) & _BITS_20) < lenience
                holder = taken_by[expert]
                accepted = (lenient | _is_preferred(taste, expert)) & (holder != owner)
                out[row, layer, chosen] = expert
                taken_by[expert] = owner if accepted else holder
                chosen += accepted
                attempts += 1
            for free in range(alias.shape[1] if chosen < top_k else 0):
                if chosen < top_k and taken_by[free] != owner:
                    out[row, layer, chosen] = free
                    chosen += 1
            for rank in range(top_k):
                last[position[row], layer, rank] = out[row, layer, rank]


@allocating
def _candidate(number, alias, layer):
    """An expert drawn from the alias table of a layer by the upper 24 and the lower 20 bits of a random number."""
    column = ((number >> np.uint64(40)) * np.uint64(alias.shape[1])) >> np.uint64(24)
    entry = alias[layer, column]
    other = entry & np.uint64(0xFFFF)
    return column if (number & _BITS_20) < (entry >> np.uint64(16)) else other


@allocating
def _is_preferred(taste, expert):
    """True for the fraction PREFERRED of experts, other ones for every `taste`."""
    x = (taste ^ (expert * GOLDEN)) * MIX_1
    return remix(x) >> np.uint64(44) < _PREFERRED_20


@inner
def remix(number):
    """Another random number of one, by half of SplitMix64's finaliser: its upper bits depend on all of the first."""
    return (number ^ (number >> np.uint64(32))) * MIX_2
