"""Routing as columns: which experts every token of every request chose, and how a batch streams out of it.

A *token source* is anything that can replay a batch iteration by iteration: a recorded `Trace`, or the generated
traffic of `archsim.workload.generated`. Nothing here holds an object per token.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np

from archsim.base.errors import TraceError
from archsim.base.evidence import Claim, refuse_broken
from archsim.specs.config_files import shipped_configs
from archsim.specs.library import load_model
from archsim.specs.model import ModelSpec

# ---- trace

CHUNK_BYTES = 4 << 20
"""Upper bound of the experts array of one `StepTokens` (unless one row alone is larger): stays within a large cache."""


@dataclass(frozen=True)
class StepTokens:
    """Consecutive rows of one iteration of a batch, every MoE layer of each.

    iteration: 0 is the prefill, 1, 2, ... are decode steps.
    request: int32[n], position of the row's request in the batch; ascending, rows of one request in token order.
    experts: int16[n, layer, k], in the rank order of the source.
    scores: float32[n, layer, k], the gate's; None where the source has none.
    """

    iteration: int
    request: np.ndarray
    experts: np.ndarray
    scores: np.ndarray | None = None

    def first(self, rows: int) -> "StepTokens":
        """The first rows alone, without a copy."""
        if rows == len(self.request):
            return self
        scores = None if self.scores is None else self.scores[:rows]
        return StepTokens(self.iteration, self.request[:rows], self.experts[:rows], scores)


class TokenSource(Protocol):
    """What `build_demand` needs of routing data.

    requests: number of distinct requests. layer_ids: int32[layer], the model's number of every column.
    num_experts, top_k: shape of the model. digest: names the content. label: for the `trace` column of results.
    """

    @property
    def requests(self) -> int: ...

    @property
    def layer_ids(self) -> np.ndarray: ...

    @property
    def num_experts(self) -> int: ...

    @property
    def top_k(self) -> int: ...

    @property
    def digest(self) -> str: ...

    @property
    def label(self) -> str: ...

    def steps(self, requests: np.ndarray, decode_steps: int) -> Iterator[StepTokens]:
        """Stream the batch `requests: int64[n]` (indices, repeats allowed) through iterations 0 to `decode_steps`.

        Iterations come in ascending order; within one, rows are ordered by position in the batch, then by token. A
        long iteration comes in several consecutive pieces; one in which no request has a row is skipped.
        """


@dataclass(frozen=True)
class Derived:
    """A `TokenSource` made from another: like it, but for what a subclass defines."""

    source: TokenSource

    @property
    def requests(self) -> int:
        return self.source.requests

    @property
    def layer_ids(self) -> np.ndarray:
        return self.source.layer_ids

    @property
    def num_experts(self) -> int:
        return self.source.num_experts

    @property
    def top_k(self) -> int:
        return self.source.top_k

    @property
    def label(self) -> str:
        return self.source.label


@dataclass(frozen=True)
class Trace:
    """Recorded routing in columns; a `TokenSource`.

    experts: int16[token, layer, k], possibly memory-mapped. request_offsets: int64[R+1], request r owns the rows
    from request_offsets[r] to request_offsets[r+1]. iteration: int16[token], inside its request; not decreasing, and
    only iteration 0 (the prefill) has more than one row. A trace of decode steps only has no rows of iteration 0, a
    trace of prompts only has no others; the numbering stays as recorded. layer_ids: int32[layer].
    model: name found with the data ('' if none). source: path as given. request_subject: int16[R], index into
    subject_names. digest: sha256 of the columns, so equal routing has equal digests whatever format it came in;
    known_digest: the digest, if already computed. stored_as: name of the columns in the cache, '' if not cached.
    scores: float32[token, layer, k], the gate's scores of the chosen experts; None if they were not recorded.
    """

    experts: np.ndarray
    request_offsets: np.ndarray
    iteration: np.ndarray
    layer_ids: np.ndarray
    num_experts: int
    top_k: int
    model: str
    source: str
    request_subject: np.ndarray
    subject_names: tuple[str, ...]
    known_digest: str = ""
    stored_as: str = ""
    scores: np.ndarray | None = None

    @property
    def requests(self) -> int:
        return len(self.request_offsets) - 1

    @property
    def label(self) -> str:
        return self.source

    @cached_property
    def digest(self) -> str:
        return self.known_digest or content_digest(self, [self.experts]).hexdigest()

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64[R, 2]: rows of iteration 0 of every request, and others."""
        before = np.concatenate([[0], np.cumsum(self.iteration == 0)])
        prompt = np.diff(before[self.request_offsets])
        return np.stack([prompt, np.diff(self.request_offsets) - prompt], axis=1)

    def longest(self, requests: np.ndarray, decode_steps: int) -> int:
        """Most rows that one of `requests: int64[n]` has until its decode step `decode_steps`, its prompt included."""
        before = np.concatenate([[0], np.cumsum(self.iteration <= decode_steps)])
        return int(np.diff(before[self.request_offsets])[requests].max(initial=0))

    def steps(self, requests: np.ndarray, decode_steps: int) -> Iterator[StepTokens]:
        """See `TokenSource.steps`. A request that has ended stops contributing."""
        cursor = self.request_offsets[requests]
        end = self.request_offsets[requests + 1]
        last = int(self.iteration.max(initial=0))
        for iteration in range(min(last, decode_steps) + 1):
            rows = self.lengths[requests, 0] if iteration == 0 else self._decode_rows(cursor, end, iteration)
            yield from self._pieces(iteration, cursor, rows)
            cursor = cursor + rows

    def _decode_rows(self, cursor: np.ndarray, end: np.ndarray, iteration: int) -> np.ndarray:
        """int64[n]: 1 where the next row of a request is one of `iteration`, else 0."""
        rows = np.zeros(len(cursor), np.int64)
        running = np.flatnonzero(cursor < end)
        rows[running] = self.iteration[cursor[running]] == iteration
        return rows

    def _pieces(self, iteration: int, cursor: np.ndarray, rows: np.ndarray) -> Iterator[StepTokens]:
        position = np.repeat(np.arange(len(rows), dtype=np.int32), rows)
        first = cursor - (np.cumsum(rows) - rows)
        row = first[position] + np.arange(len(position))
        size = rows_per_piece(len(self.layer_ids), self.top_k)
        for start in range(0, len(row), size):
            piece = slice(start, start + size)
            scores = None if self.scores is None else self.scores[row[piece]]
            yield StepTokens(iteration, position[piece], self.experts[row[piece]], scores)


def content_digest(trace: Trace, blocks: Iterable[np.ndarray]):
    """The hash object of a trace whose experts come in blocks int16[token, layer, k]."""
    digest = hashlib.sha256(f"{trace.num_experts} {trace.experts.shape}".encode())
    for column in (trace.layer_ids, trace.request_offsets, trace.iteration):
        digest.update(np.ascontiguousarray(column).data)
    for block in blocks:
        digest.update(np.ascontiguousarray(block).data)
    if trace.scores is not None:
        digest.update(np.ascontiguousarray(trace.scores).data)
    return digest


def rows_per_piece(layers: int, top_k: int) -> int:
    """Rows whose experts (int16) fill `CHUNK_BYTES`; at least one."""
    return max(1, CHUNK_BYTES // (2 * layers * top_k))


def draw_requests(available: int, batch: int, seed: int) -> np.ndarray:
    """The requests of a batch: int64[batch].

    The first `batch` in file order; if there are fewer, all `batch` are drawn uniformly with replacement by
    ``numpy.random.default_rng(seed)``. A request drawn twice counts as two requests with equal routing.
    """
    if batch <= available:
        return np.arange(batch, dtype=np.int64)
    return np.random.default_rng(seed).integers(available, size=batch, dtype=np.int64)


def is_first_of(source: TokenSource, batch: int, whole: TokenSource, of: int, seed: int) -> bool:
    """Whether a batch consists of the first requests of the batch ``of`` of another source, and they
    are routed alike.
    """
    first = draw_requests(whole.requests, of, seed)[:batch]
    same = np.array_equal(draw_requests(source.requests, batch, seed), first)
    return same and bool(routed_alike(source, whole)[first].all())


def routed_alike(source: TokenSource, whole: TokenSource) -> np.ndarray:
    """bool[request]: the requests of a source that are routed as those of the same number in another one.

    A source whose requests depend on how many it has says so (``alike``); others may name the routing of single
    requests (``request_digest``), where they differ only in how many they have.
    """
    alike = getattr(source, "alike", None)
    if alike is not None:
        found: np.ndarray = alike(getattr(whole, "itself", whole))
        return found
    same = _of_requests(source) == _of_requests(whole)
    return np.arange(source.requests) < (whole.requests if same else 0)


def _of_requests(source: TokenSource) -> str:
    return getattr(source, "request_digest", None) or source.digest


# ---- checks
# Checks of routing data, each with its error message.

MAX_ITERATION = 32766
"""Iterations are kept as int16."""


def place(
    where: str, request: str | None = None, iteration: int | None = None, layer: int | str | None = None
) -> str:  # fmt: skip
    """'file: request 3, iteration 5, layer 7' of what is known."""
    parts = [
        f"{name} {value}"
        for name, value in (("request", request), ("iteration", iteration), ("layer", layer))
        if value is not None
    ]
    return f"{where}: {', '.join(parts)}" if parts else where


def refuse_special(source: Path) -> None:
    """Raise TraceError for a device or a pipe, whose reading may never end."""
    if not (source.is_file() or source.is_dir()):
        raise TraceError(f"{source}: neither a file nor a directory")


def nearest(value: int, choices: Iterable[int]) -> int:
    return min(choices, key=lambda choice: (abs(choice - value), choice))


def check_shape(where: str, model: ModelSpec, **stated: int | None) -> None:
    """Raise TraceError unless the stated experts, top_k and layers (None: not stated) match the model."""
    for name, found in stated.items():
        expected = getattr(model, name)
        if found is not None and found != expected:
            raise TraceError(f"{where}: the trace has {name} = {found}, but model {model.name} has {name} = {expected}")


def check_layers(where: str, model: ModelSpec, layer_ids: np.ndarray) -> None:
    """Raise TraceError unless `layer_ids` ascend and each is an MoE layer of the model (some may be missing)."""
    allowed = model.moe_layer_ids
    if len(layer_ids) == 0:
        raise TraceError(f"{where}: no MoE layer; model {model.name} has layers {span(allowed)}")
    for layer in map(int, layer_ids):
        if layer not in allowed:
            kind = "is dense in" if 0 <= layer < model.layers else "is not a layer of"
            raise TraceError(
                f"{where}: layer {layer} {kind} model {model.name}; nearest MoE layer {nearest(layer, allowed)}, "
                f"valid are {span(allowed)}"
            )
    disorder = np.flatnonzero(layer_ids[1:] <= layer_ids[:-1])
    if len(disorder):
        before, after = layer_ids[disorder[0] : disorder[0] + 2]
        raise TraceError(f"{where}: layer {after} follows layer {before}; expected ascending layer ids")


def check_name(where: str, model: ModelSpec, name: str) -> None:
    """Raise TraceError if the data names one shipped model and `model` is another of them.

    Names and aliases are compared by letters and digits alone, and either may say more ('meta-llama/Llama-4-Maverick-
    17B-128E-Instruct' is llama-4-maverick). A name that no shipped model has is ignored, and a model of the user's
    own is checked by shape only.
    """
    if not _plain(name) or is_named(model, name):
        return
    shipped = shipped_models()
    named = [other.name for other in shipped if is_named(other, name)]
    if named and model.name in {other.name for other in shipped}:
        raise TraceError(f"{where}: the trace is of {named[0]} ({name!r}), the model is {model.name}")


@lru_cache
def shipped_models() -> tuple[ModelSpec, ...]:
    return tuple(load_model(str(file)) for file in sorted((shipped_configs() / "models").glob("*.yaml")))


def is_named(model: ModelSpec, name: str) -> bool:
    """Whether a name found in data refers to a model."""
    own = [_plain(alias) for alias in (model.name, *model.aliases)]
    found = _plain(name.rsplit("/", 1)[-1])
    return any(alias in _plain(name) or (len(found) > 5 and found in alias) for alias in own)


def check_offsets(where: str, offsets: np.ndarray, tokens: int) -> None:
    """Raise TraceError unless offsets ascend from 0 to the number of tokens, and no request is empty."""
    if len(offsets) < 2:
        raise TraceError(f"{where}: no requests (request_offsets has {len(offsets)} entries; expected at least 2)")
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if len(falls):
        r = int(falls[0])
        raise TraceError(
            f"{place(where, str(r))}: request_offsets falls from {offsets[r]} to {offsets[r + 1]}; "
            "expected offsets that never decrease"
        )
    empty = np.flatnonzero(offsets[1:] == offsets[:-1])
    if len(empty):
        raise TraceError(f"{place(where, str(empty[0]))}: has no rows; expected one or more")
    if offsets[0] != 0 or offsets[-1] != tokens:
        raise TraceError(
            f"{where}: request_offsets runs from {offsets[0]} to {offsets[-1]}; expected 0 to {tokens} (all tokens)"
        )


def check_iterations(where: str, iteration: np.ndarray, offsets: np.ndarray) -> None:
    """Raise TraceError unless iterations start at 0 or later and ascend, except for the rows of the prefill (0)."""
    late = np.flatnonzero(iteration > MAX_ITERATION)
    if len(late):
        request = str(owner(offsets, int(late[0])))
        raise TraceError(
            f"{place(where, request)}: iteration {iteration[late[0]]} is out of range; expected at most {MAX_ITERATION}"
        )
    same_request = np.ones(len(iteration), bool)
    same_request[offsets[:-1][offsets[:-1] < len(iteration)]] = False
    iteration = iteration.astype(np.int64)
    previous = np.concatenate([[-1], iteration[:-1]])
    good = (iteration > previous) | ((iteration == 0) & (previous == 0))
    bad = np.flatnonzero(np.where(same_request, ~good, iteration < 0))
    if len(bad):
        row = int(bad[0])
        request = str(owner(offsets, row))
        found = f"iteration {iteration[row]}"
        if not same_request[row]:
            raise TraceError(f"{place(where, request)}: starts with {found}; expected 0 or later")
        raise TraceError(
            f"{place(where, request)}: {found} follows iteration {previous[row]}; expected a later one "
            "(only iteration 0, the prefill, has more than one row)"
        )


def check_experts(where: str, experts: np.ndarray, num_experts: int, row_place) -> None:
    """Raise TraceError at the first id outside 0 … num_experts − 1 of experts[token, layer, k].

    row_place(row, column) -> str names request, iteration and layer of a row and column.
    """
    if experts.size and (experts.min() < 0 or experts.max() >= num_experts):
        row, column, rank = np.argwhere((experts < 0) | (experts >= num_experts))[0]
        raise TraceError(
            f"{row_place(int(row), int(column))}: expert id {experts[row, column, rank]} at rank {rank} is out of "
            f"range; expected 0 to {num_experts - 1}"
        )


def checked_scores(where: str, name: str, scores: np.ndarray, experts: np.ndarray) -> np.ndarray:
    """The gate's scores of ``experts[token, layer, k]`` as float32. Raises TraceError unless there is one number >= 0
    for each.
    """
    if scores.dtype.kind not in "iuf" or scores.shape != experts.shape:
        raise TraceError(
            f"{where}: {name}: {scores.dtype} of shape {list(scores.shape)}; expected a number for every expert, "
            f"{list(experts.shape)}"
        )
    scores = np.ascontiguousarray(scores, np.float32)
    if scores.size and not (np.isfinite(scores).all() and scores.min() >= 0):
        at = tuple(np.argwhere(~(np.isfinite(scores) & (scores >= 0)))[0].tolist())
        raise TraceError(f"{where}: {name}: {scores[at]} at {list(at)}; expected finite scores >= 0")
    return scores


def check_distinct(where: str, experts: np.ndarray, row_place) -> None:
    """Raise TraceError at the first token that chooses an expert twice in a layer of experts[token, layer, k]."""
    ranks = np.ascontiguousarray(experts.transpose(2, 0, 1))
    for later in range(1, len(ranks)):
        for earlier in range(later):
            if (twice := ranks[later] == ranks[earlier]).any():
                row, column = np.argwhere(twice)[0]
                raise TraceError(
                    f"{row_place(int(row), int(column))}: expert {experts[row, column, later]} is chosen twice, at "
                    f"ranks {earlier} and {later}; expected different experts for a token"
                )


REPEATED = 8  # rows; of 39,000 public tokens in 24 layers of one expert each, four in a row agree at most


def check_recorded(where: str, experts: np.ndarray, row_place) -> None:
    """Raise TraceError for experts[token, layer, k] that no router chooses: in every layer the same ones in REPEATED
    successive tokens, as a recorder under CUDA graphs wrote what was in its buffer, or the same ones in all layers.
    """
    tokens, layers, k = experts.shape
    if layers < 2 or tokens < REPEATED:
        return
    alike = np.flatnonzero((experts[1:, 0] == experts[:-1, 0]).all(axis=1))
    alike = alike[(experts[alike + 1] == experts[alike]).all(axis=(1, 2))]
    ends = np.flatnonzero(np.diff(alike, append=tokens + 1) > 1)
    runs = np.diff(ends, prepend=-1) + 1  # rows of each run
    if len(runs) and runs.max() >= REPEATED:
        first = int(alike[ends[runs.argmax()]]) - int(runs.max()) + 2
        what = Claim("tokens in a row with the same experts", int(runs.max()), most=REPEATED - 1, why=(
            f"no router chooses the same {k} in each of {layers} layers so often; was this recorded under CUDA graphs?"
        ))  # fmt: skip
        refuse_broken(row_place(first, 0), [what])
    if np.array_equal(experts[:, 1:], np.broadcast_to(experts[:, :1], experts[:, 1:].shape)):
        what = Claim("layers with the same experts", layers, most=1, why=f"in each of {tokens} tokens they are equal")
        refuse_broken(where, [what])


def span(ids: tuple[int, ...]) -> str:
    """'3 to 60', or '1, 3, … 47' where ids are not consecutive."""
    if len(ids) > 3 and ids[-1] - ids[0] + 1 != len(ids):
        return f"{ids[0]}, {ids[1]}, … {ids[-1]}"
    return f"{ids[0]} to {ids[-1]}"


def owner(offsets: np.ndarray, row: int) -> int:
    return int(np.searchsorted(offsets, row, side="right")) - 1


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


# ---- layers
# A subset of the layers of routing that represents all of them: runs take less time, and their means are close.
#
# What the time of a layer depends on is how unequal its loads are, whatever runs its experts: the fullest of several
# equal groups of neighbouring experts (the dies of expert parallelism, one expert at last), and how many experts have
# any token. Layers are chosen so that the means of these over them are close to the means over all layers (balanced
# sampling: Deville and Tillé, Biometrika 91, 2004, here by exchanging one layer for another as long as that helps).
# Evenly spread layers, which were taken before, had 18 % less time than all for 2 of the 58 of DeepSeek-V3 under expert
# parallelism, as depths are not alike.

_GROUPS = 13  # numbers of groups of experts whose fullest counts, in equal ratios from 4 to one for every expert
# Tokens that are looked at to choose among the layers of a source: of so many requests, evenly spread over it, up to
# this decode step, and so many of their prompts.
_SEEN_REQUESTS, _SEEN_STEPS, _SEEN_PROMPT_TOKENS = 64, 16, 32_768


def spread_layers(available: int, layers: int) -> np.ndarray:
    """Indices int64[layers] of `layers` out of `available`, evenly spread and including first and last; for 1, the
    first.
    """
    return np.round(np.linspace(0, available - 1, layers)).astype(np.int64)


def representative_layers(shares: np.ndarray, layers: int) -> np.ndarray:
    """Indices int64[layers], ascending, of layers whose loads are on average as unequal as those of all.

    shares: float64[phase, layer, expert], of the tokens of a layer in a phase (prompts, decode steps) that each expert
    has; phases without tokens are 0 throughout.
    """
    traits = np.concatenate([_traits(each) for each in shares], axis=1)
    spread = traits.std(axis=0)
    apart = (traits - traits.mean(axis=0))[:, spread > 0] / spread[spread > 0]
    every, order = len(apart), np.argsort(apart.sum(axis=1), kind="stable")
    taken = np.zeros(every, bool)
    taken[order[(2 * np.arange(layers) + 1) * every // (2 * layers)]] = True  # the middle of each of equal strata
    while True:
        out, into, summed = np.flatnonzero(taken), np.flatnonzero(~taken), apart[taken].sum(axis=0)
        if not len(into):
            return out
        off = ((summed - apart[out][:, None] + apart[into][None]) ** 2).sum(axis=2)
        one, other = np.unravel_index(off.argmin(), off.shape)
        if off[one, other] >= (summed**2).sum() - 1e-9:
            return out
        taken[out[one]], taken[into[other]] = False, True


def _traits(shares: np.ndarray) -> np.ndarray:
    """float64[layer, trait] of one phase, as this section describes them."""
    experts = shares.shape[1]
    before = np.concatenate([np.zeros((len(shares), 1)), shares.cumsum(axis=1)], axis=1)
    numbers = np.unique(np.round(np.geomspace(min(4, experts), experts, _GROUPS)).astype(np.int64))
    ends = [np.arange(groups + 1) * experts // groups for groups in numbers]
    fullest = [np.diff(before[:, each], axis=1).max(axis=1) * (len(each) - 1) for each in ends]
    active = 1 - np.exp(-experts * shares).mean(axis=1)  # of one token an expert, on average
    return np.stack([*fullest, active], axis=1)


def seen_shares(source: TokenSource) -> np.ndarray:
    """float64[2, layer, expert]: shares of experts in some prompts and decode steps of a source."""
    requests = np.unique(np.linspace(0, source.requests - 1, _SEEN_REQUESTS).astype(np.int64))
    counts, prompts = np.zeros((2, len(source.layer_ids), source.num_experts)), 0
    for piece in source.steps(requests, _SEEN_STEPS):
        experts = piece.experts if piece.iteration else piece.experts[: max(0, _SEEN_PROMPT_TOKENS - prompts)]
        prompts += len(experts) * (piece.iteration == 0)
        for layer, chosen in enumerate(experts.transpose(1, 0, 2)):
            counts[int(piece.iteration > 0), layer] += np.bincount(chosen.ravel(), minlength=source.num_experts)
    return counts / np.maximum(counts.sum(axis=2, keepdims=True), 1)


@dataclass(frozen=True)
class SomeLayers(Derived):
    """A `TokenSource` with some of the layers of another. columns: int64[layer], their indices there."""

    columns: np.ndarray

    @property
    def layer_ids(self) -> np.ndarray:
        return self.source.layer_ids[self.columns]

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.source.digest} layers {self.columns.tolist()}".encode()).hexdigest()

    def steps(self, requests: np.ndarray, decode_steps: int) -> Iterator[StepTokens]:
        """See `TokenSource.steps`."""
        for piece in self.source.steps(requests, decode_steps):
            scores = None if piece.scores is None else piece.scores[:, self.columns]
            yield replace(piece, experts=np.ascontiguousarray(piece.experts[:, self.columns]), scores=scores)


def some_layers(source: TokenSource, layers: int | None) -> TokenSource:
    """The source with `layers` of its layers, which represent all; None: all. Raises TraceError if it has fewer."""
    if layers is None:
        return source
    refuse_more_layers(source, layers)
    if layers == len(source.layer_ids):
        return SomeLayers(source, np.arange(layers))
    key = source.digest, layers
    if key not in _CHOSEN:
        _CHOSEN[key] = representative_layers(seen_shares(source), layers)
    return SomeLayers(source, _CHOSEN[key])


_CHOSEN: dict[tuple[str, int], np.ndarray] = {}  # by digest of the source, and number


def refuse_more_layers(source: TokenSource, layers: int | None) -> None:
    """Raise TraceError if a source has fewer layers than `layers`."""
    available = len(source.layer_ids)
    if layers is not None and layers > available:
        raise TraceError(f"{source.label}: workload.layers: {layers} is out of range; the trace has {available} layers")
