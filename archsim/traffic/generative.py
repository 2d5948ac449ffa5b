"""Generated routing that has the patterns of recorded routing: popular experts, tastes, kinds of tokens.

A token is of a *kind*, the same at all layers: that couples the layers and makes experts be chosen together. For each
of the top_k experts of a token at a layer, one component is picked by the weights of the layer and proposes an
expert; one that the token has already, or that its groups exclude, or that is refused by the acceptance of the
expert, is drawn again. Components (`archsim.traffic.traffic_model.COMPONENTS`):

popularity  an expert by its share at this layer, in this phase (prefill, and stretches of the decode steps).
task        by its share in tokens of the request's task; a task that the model does not know has shares of its own,
            made of draws from the popularity by its name.
taste       one of the few experts that this request prefers, themselves drawn from the shares of its task.
keep        an expert of the previous token: experts stay, with a probability that decays geometrically with the lag.
kind        by its share in tokens of this kind.
path        by how often tokens choose it that choose an expert of this token's at the MoE layer before.

The kind of a token is drawn by the same components; there, *kind* means by what follows the previous token's kind.
Tokens *repeat* earlier ones of their request: a token takes the kind and the random numbers of the one ``lag`` before
it with the probability `repeats[lag - 1]`, and so its experts, each with the probability `repeated` of the layer; what
it repeats may itself have been repeated. Answers begin with the same experts: in the first decode steps an expert is
drawn from the popularity of its step, with the probability `script` of the step, and only else by the components.

Where tokens have several experts, every expert of every layer *stays* more or less often than others: one that the
previous token had is taken at once with the probability `stays`, where that is above 0, and refused with its opposite,
where it is below; one random number of the token decides in all layers. A token that repeats none takes the random
numbers of the last one of its kind, so that what follows what is kept: tokens that repeat others at random lags would
blur it.

Tastes are dealt out by Latin hypercube sampling over BLOCK requests of a task, so that loads depend little on the
seed. Acceptance, of each phase its own, settles how far the loads of the phases agree, and corrects what distinct
experts of a token change of the shares. Numbers are counter-based: the
routing of a request depends on the seed, its number, and, in the last block of a task, on how many requests that
block has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

import numpy as np

from archsim.base.compiled import GOLDEN, MIX_1, allocating, inner, mix_bits, unsigned
from archsim.traffic.synthetic import alias_table, remix, scatter
from archsim.traffic.trace import StepTokens, rows_per_piece
from archsim.traffic.traffic_model import COMPONENTS, OTHER, TrafficModel

TASK_SIZE = 64
"""Experts, drawn with repeats, that form the shares of a task or language unknown to the model."""

BLOCK = 256
"""Requests of a task over which tastes are spread evenly."""

MOST_TASTES = 64
"""Experts of a request's taste at a layer, at most; stored for every request of a batch."""

_ATTEMPTS = np.int64(256)
TOGETHER = 4  # experts proposed at a time; a divisor of _ATTEMPTS
_BITS_16 = np.uint64(0xFFFF)
_POPULARITY, _TASK, _TASTE, _KEEP, _KIND, _PATH = range(len(COMPONENTS))


class GenerativeTraffic:
    """Routing generated from a `TrafficModel`; a `TokenSource`.
    requests: their number. mix: task → weight; None: the tasks of the model. lengths: int64[request, 2], prompt
    tokens and decode steps of every request; None: drawn from the quantiles of the model.
    """

    def __init__(
        self,
        model: TrafficModel,
        requests: int,
        seed: int,
        mix: Mapping[str, float] | None = None,
        lengths: np.ndarray | None = None,
        request_task: np.ndarray | None = None,
    ):
        self.model, self.requests, self.seed = model, requests, seed
        self.layer_ids = np.ascontiguousarray(model.layer_ids)
        self.num_experts, self.top_k = model.experts, model.top_k
        share = dict(mix) if mix else dict(zip(model.task_names, model.task_share.tolist(), strict=True))
        self.tasks = tuple(share)
        self.lengths = model_lengths(model, requests, seed) if lengths is None else np.asarray(lengths, np.int64)
        drawn = drawn_tasks(share, seed, requests) if request_task is None else request_task
        self.request_task = np.asarray(drawn, np.int64)

    @property
    def label(self) -> str:
        return f"synthetic like={self.model.name} seed={self.seed} tasks={'+'.join(self.tasks)}"

    @property
    def digest(self) -> str:
        digest = hashlib.sha256(f"{self.label} {self.requests} {self.model.digest}".encode())
        for array in (self.lengths, self.request_task):
            digest.update(array.tobytes())
        return digest.hexdigest()

    def identical(self, other: object) -> np.ndarray:
        """bool[request]: routed as that number in other traffic: all but a task's last, where the other has more."""
        found = np.zeros(self.requests, bool)
        if isinstance(other, GenerativeTraffic) and self.label == other.label:
            both = min(self.requests, other.requests)
            one, two = (np.column_stack([each.lengths, each.request_task, _strata(each.request_task)])[:both]
                        for each in (self, other))  # fmt: skip
            if np.array_equal(one[:, :3], two[:, :3]) and self.model.digest == other.model.digest:
                found[:both] = (one == two).all(axis=1)
        return found

    def longest(self, requests: np.ndarray, decode_steps: int) -> int:
        prompt, decode = self.lengths[requests].T
        return int((prompt + np.minimum(decode, decode_steps)).max(initial=0))

    def steps(self, requests: np.ndarray, decode_steps: int) -> Iterator[StepTokens]:
        """See `archsim.traffic.trace.TokenSource.steps`. Holds only the last token of every request."""
        draw = self.drawing(requests)
        for iteration, position, token in pieces_of(
            self.lengths[requests], decode_steps, len(self.layer_ids), self.top_k
        ):
            yield StepTokens(iteration, position, draw(iteration, position, token))

    @cached_property
    def _tables(self) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
        """Of `_tables`, when routing is drawn: a run whose demand is cached draws none."""
        return _tables(self.model, self.tasks)

    def drawing(self, requests: np.ndarray) -> Callable[[int, np.ndarray, np.ndarray], np.ndarray]:
        """(iteration, position int32[n], token int64[n] in its request, in order) → int16[n, layer, k]."""
        layers = len(self.layer_ids)
        history = np.zeros((2, len(requests), max(len(self.model.repeats), 1)), np.int32)
        group = np.arange(self.num_experts) * self.model.groups // self.num_experts
        most = np.int64(self.model.top_groups if self.model.groups > 1 else 2)
        tastes, starts, kinds = self._tastes(requests)
        own = np.concatenate([tastes, np.zeros((len(requests), layers * self.top_k), np.int16)], axis=1)
        *of_kinds, limits, tables = self._tables[0][:6]
        others = self._tables[0][6:]
        tables = np.concatenate([tables, np.zeros(own.shape[1], np.uint32)])

        def draw(iteration: int, position: np.ndarray, token: np.ndarray) -> np.ndarray:
            experts = np.empty((len(position), layers, self.top_k), np.int16)
            request = requests[position]
            step = iteration + self.model.first_step * (iteration > 0)
            phase = np.searchsorted(self.model.phase_starts, step, side="right") - 1
            _generate(
                np.uint64(self.seed), np.int64(phase), group, most, request, token, position,
                self.request_task[request], self.layer_ids, starts, kinds, *of_kinds, limits, tables, *others, history,
                own, experts,
            )  # fmt: skip
            return experts

        return draw

    def _tastes(self, requests: np.ndarray) -> tuple[np.ndarray, ...]:
        """What requests prefer: experts int16[request, item], where in a row each layer begins, and kinds."""
        task = self.request_task[requests]
        starts = np.concatenate([[0], np.cumsum(_sizes(self.model.taste_size))])
        experts = np.empty((len(requests), starts[-1]), np.int16)
        kinds = np.empty((len(requests), int(_sizes(self.model.kind_taste_size)[0])), np.int16)
        of_experts, of_kinds = self._tables[1]
        key, strata = np.uint64(self.seed), _strata(self.request_task)[requests]
        _fill_tastes(key, strata, task, self.layer_ids + 1, starts, of_experts, experts)
        _fill_tastes(key, strata, task, np.zeros(1, np.int32), np.array([0, kinds.shape[1]]), of_kinds, kinds)
        return experts, starts, kinds


def pieces_of(
    lengths: np.ndarray, decode_steps: int, layers: int, top_k: int
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """(iteration, position int32[n], token int64[n]) of every piece; lengths: int64[request, 2], prompt and decode."""
    prompt, decode = lengths.T
    size = rows_per_piece(layers, top_k)
    for iteration in range(min(decode_steps, int(decode.max(initial=0))) + 1):
        count = prompt if iteration == 0 else (decode >= iteration).astype(np.int64)
        ends = np.cumsum(count)
        total = int(ends[-1]) if len(ends) else 0
        for start in range(0, total, size):
            row = np.arange(start, min(start + size, total))
            position = np.searchsorted(ends, row, side="right").astype(np.int32)
            token = row - (ends - count)[position] + (prompt[position] + iteration - 1 if iteration else 0)
            yield iteration, position, token


def shares_of_task(known: np.ndarray, names: tuple[str, ...], popularity: np.ndarray, name: str) -> np.ndarray:
    """float64[row, item]: shares of a task. known: float64[task, row, item] of `names`; popularity: float64[row, item].

    An unknown task has those of OTHER, the subjects without shares of their own, where the model has them. Else, such
    as `mmlu_zh`, it is half its own (`mmlu`) and half its language's (`zh`), each of TASK_SIZE draws from the
    popularity, by its name.
    """
    if name in names or OTHER in names:
        return known[names.index(name if name in names else OTHER)]
    base, _, language = name.rpartition("_")
    parts = [base, f"language {language}"] if base and len(language) == 2 else [name]
    return np.mean(
        [known[names.index(part)] if part in names else _drawn_task(popularity, part) for part in parts], axis=0
    )


def model_lengths(model: TrafficModel, requests: int, seed: int) -> np.ndarray:
    """int64[request, 2]: prompt tokens and decode steps, each drawn from its quantiles."""
    found = []
    for stream, quantiles in ((2, model.prompt_tokens), (3, model.decode_steps)):
        at = _uniform(seed, stream, requests) * (len(quantiles) - 1)
        found.append(np.round(np.interp(at, np.arange(len(quantiles)), quantiles)))
    return np.stack(found, axis=1).astype(np.int64)


def drawn_tasks(share: Mapping[str, float], seed: int, requests: int) -> np.ndarray:
    """int64[request]: the task of every request, an index into those of ``share``."""
    return _pick(np.array(list(share.values())), _uniform(seed, 1, requests))


def _drawn_task(popularity: np.ndarray, name: str) -> np.ndarray:
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little")
    drawn = [_pick(row, _uniform(key, 16 + index, TASK_SIZE)) for index, row in enumerate(popularity)]
    return np.stack([np.bincount(each, minlength=popularity.shape[1]) for each in drawn]) / TASK_SIZE


def _uniform(seed: int, stream: int, count: int) -> np.ndarray:
    """float64[count] in [0, 1): a function of (seed, stream, index)."""
    with np.errstate(over="ignore"):
        origin = mix_bits(mix_bits(np.uint64(seed) + GOLDEN) ^ np.uint64(stream << 40))
        return (mix_bits(origin + np.arange(count, dtype=np.uint64) * GOLDEN) >> np.uint64(11)) * 2.0**-53


def _pick(weights: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """int64[n]: indices drawn by weights."""
    ends = np.cumsum(weights)
    return np.minimum(np.searchsorted(ends, uniform * ends[-1], side="right"), len(weights) - 1)


def _tables(model: TrafficModel, tasks: tuple[str, ...]) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """What `_generate` draws from, kinds first, and what tastes are made of: `_ends` of experts and of kinds."""
    mean = model.popularity.mean(axis=0)
    task = np.stack([shares_of_task(model.task_popularity, model.task_names, mean, name) for name in tasks])
    of_kinds = model.task_kinds[:, None], model.task_names, model.kind_popularity.mean(axis=0)[None]
    kinds = np.stack([shares_of_task(*of_kinds, name)[0] for name in tasks])
    weights = model.weights.copy()
    weights[0, _PATH] = 0  # no layer is before the first
    of_tokens = np.cumsum(model.repeats), model.repeated, model.script
    tables = [_compact(each) for each in (model.popularity, task, model.kind_experts)]
    drawn = (
        _thresholds(model.kind_weights[None], [_KEEP, _KIND])[0],
        _compact(model.kind_popularity),
        _compact(kinds),
        _compact(model.kind_following),
        _thresholds(weights, [_KEEP]).astype(np.int64),
        np.concatenate([each.reshape(-1) for each in tables]),
        np.cumsum([0, *(each.size for each in tables[:2])]),
        _compact(model.paths),
        np.round(model.acceptance * 65536).astype(np.uint32, order="C"),
        *(np.round(65536 * each).astype(np.uint64) for each in of_tokens),
        np.round(65536 * model.stays).astype(np.int64),
        np.bool_(len(model.stays)),
    )
    return drawn, (_ends(task), _ends(kinds[:, None]))


def _thresholds(weights: np.ndarray, needs_previous: list[int]) -> np.ndarray:
    """uint64[layer, case, component]: cumulative weights times 65536. Case 1: there is no previous token."""
    first = weights.copy()
    first[:, needs_previous] = 0
    both = np.stack([weights, first], axis=1)
    both[:, :, _POPULARITY] += 1e-9
    return np.round(np.cumsum(both / both.sum(axis=2, keepdims=True), axis=2) * 65536).astype(np.uint64)


def _compact(shares: np.ndarray) -> np.ndarray:
    """uint32[..., item]: `alias_table` of shares [..., item], with a limit of 16 bits: limit << 16 | other."""
    table = alias_table(shares.reshape(-1, shares.shape[-1]))
    own = np.arange(shares.shape[-1], dtype=np.uint64)
    limit = table >> np.uint64(20)
    other = np.where(limit >> np.uint64(16), own, table & _BITS_16)
    return (np.minimum(limit, _BITS_16) << np.uint64(16) | other).astype(np.uint32).reshape(shares.shape)


def _ends(shares: np.ndarray) -> np.ndarray:
    """uint32[..., item]: cumulative shares times 2**32, less 1."""
    ends = np.cumsum(shares, axis=-1)
    return np.maximum(np.round(ends / ends[..., -1:] * 2.0**32) - 1, 0).astype(np.uint32)


def _strata(task: np.ndarray) -> np.ndarray:
    """int64[request, 3]: block, place in the block and size of the block of every request.

    A block is BLOCK consecutive requests of one task; the last one is what is left.
    """
    found = np.empty((len(task), 3), np.int64)
    for each in np.unique(task):
        rows = np.flatnonzero(task == each)
        place = np.arange(len(rows))
        first = place // BLOCK * BLOCK
        found[rows] = np.stack([place // BLOCK, place - first, np.minimum(len(rows) - first, BLOCK)], axis=1)
    return found


@allocating
def _generate(
    seed, phase, group, most_groups, request, token, position, task, layer_ids, taste_starts, kind_tastes, kind_limits,
    kind_popular, kind_tasked, kind_next, limits, tables, begins, paths, acceptance, repeats, repeated, script, stays,
    resumes, history, own, out,
):  # fmt: skip
    """Fill out int16[n, layer, k]; leave each request's latest token in the last columns of own, and in history
    int32[2, batch, lag] whose random numbers its latest tokens have, and their kinds.

    group: int64[expert], a token uses most_groups of them. request, token, task int64[n], position int32[n]: of every
    row. kind_limits, limits: `_thresholds`. Alias tables: paths[layer - 1, expert before]; of popularity
    [phase, layer], of tasks [task, layer] and of kinds [kind, layer] in ``tables``, where those of each begin at begins
    int64[3]; and the same of kinds. Of 65536: acceptance uint32[phase, layer, expert], repeats uint64[lag]
    (cumulative), repeated uint64[layer], script uint64[phase]; stays int64[layer, expert], or none of a layer. resumes:
    whether tokens take up the last one of their kind. own: int16[batch, ...], what a request prefers, by taste_starts,
    and then experts[layer, k] of its latest token; the end of ``tables`` holds that of a token as its items are drawn.

    Which component proposes an expert, and whether it is taken, cannot be foreseen. A branch would be taken wrongly
    every other time, so there are none: TOGETHER experts are proposed at a time, and then taken or not.
    """
    rows, layers, top_k = out.shape
    experts = acceptance.shape[2]
    n_tastes, width = taste_starts[layers], own.shape[1]
    owned = len(tables) - width
    marks = np.zeros(experts, np.int64)  # at least ``fresh``: refused by this token at this layer; above: taken
    into, accepts = out.reshape(-1), acceptance.reshape(-1)
    starts, sizes = np.zeros(6, np.int64), np.ones(6, np.uint32)  # of the table of each component
    sizes[_POPULARITY] = sizes[_TASK] = sizes[_KIND] = experts
    sizes[_KEEP] = top_k
    picks, proposed = np.empty(TOGETHER, np.uint64), np.empty(TOGETHER, np.int64)
    scripts = np.int64(script[phase])
    for row in range(rows):
        now, batch_row = token[row], position[row]
        first = np.int64(now == 0)
        origin = scatter(scatter(seed + GOLDEN) ^ np.uint64(request[row]))
        mine, sources, kinds = own[batch_row], history[0, batch_row], history[1, batch_row]
        for at in range(width):
            tables[unsigned(owned + at)] = mine[unsigned(at)]
        source, kind = _source_of(origin, now, repeats, sources, kinds)
        if source == now:
            kind = _kind_of(
                origin, now, kind_limits[first], kind_tastes[batch_row], kind_popular[phase],
                kind_tasked[task[row]], kind_next, np.int64(kinds[(now - 1) % len(kinds)]),
            )  # fmt: skip
            for back in range(min(len(repeats), now) if resumes else 0):
                if kinds[(now - 1 - back) % len(kinds)] == kind:
                    source = np.int64(sources[(now - 1 - back) % len(sources)])
                    break
        sources[now % len(sources)], kinds[now % len(kinds)] = source, kind
        number = scatter(origin + np.uint64(now + 1) * MIX_1)
        clinging, scripted = np.int64(number & _BITS_16), np.int64((number >> np.uint64(16)) & _BITS_16) < scripts
        for layer in range(layers):
            fresh = 2 * (row * layers + layer) + 2
            here = (row * layers + layer) * top_k
            accepting = (phase * layers + layer) * experts
            starts[_POPULARITY] = begins[0] + (phase * layers + layer) * experts
            starts[_TASK] = begins[1] + (task[row] * layers + layer) * experts
            starts[_KIND] = begins[2] + (kind * layers + layer) * experts
            starts[_TASTE], starts[_KEEP] = owned + taste_starts[layer], owned + n_tastes + layer * top_k
            sizes[_TASTE] = taste_starts[layer + 1] - taste_starts[layer]
            numbers = scatter(origin + np.uint64(layer_ids[layer] + 1) * GOLDEN)
            stream = scatter(numbers ^ (np.uint64(now) + GOLDEN))
            chosen, attempts, used, groups_used = 0, 0, np.uint64(0), 0
            for rank in range(top_k if len(stays) and now > 0 else 0):
                expert = np.int64(mine[n_tastes + layer * top_k + rank])
                chance = stays[layer, expert]
                if scripted or 0 <= chance <= clinging or clinging - 65536 <= chance < 0:
                    continue
                if chance > 0:
                    bit = np.uint64(1) << np.uint64(group[expert])
                    marks[expert] = fresh + 1
                    into[here + chosen] = expert
                    groups_used += (used & bit) == 0
                    used |= bit
                    chosen += 1
                else:
                    marks[expert] = fresh
            while source == now and chosen < top_k and attempts < _ATTEMPTS:
                for at in range(TOGETHER):
                    picks[at] = stream + np.uint64(at + 1) * GOLDEN
                stream += np.uint64(TOGETHER) * GOLDEN
                attempts += TOGETHER
                _propose(TOGETHER, picks, proposed, limits[layer, first], scripts, starts, sizes, tables)
                if layer > 0 and len(paths):
                    before = into[here - top_k : here]
                    _follow(TOGETHER, picks, proposed, limits[layer, first], scripts, paths[layer - 1], before)
                at = 0
                while at < TOGETHER and chosen < top_k:
                    expert = unsigned(proposed[at])
                    bit = np.uint64(1) << np.uint64(group[expert])
                    is_new = (used & bit) == 0
                    mark = marks[expert]
                    taken = (
                        (mark < fresh) & ((picks[at] >> np.uint64(48)) < accepts[unsigned(accepting) + expert])
                        & ((groups_used < most_groups) | (not is_new))
                    )  # fmt: skip
                    into[unsigned(here + chosen)] = expert
                    marks[expert] = fresh + 1 if taken else mark
                    used |= bit if taken else np.uint64(0)
                    groups_used += is_new & taken
                    chosen += taken
                    at += 1
            if chosen == top_k:
                continue
            # A token that repeats another, whose random numbers depend on what is taken; or one that tried all it may.
            earlier = scatter(numbers ^ (np.uint64(source) + GOLDEN))
            repeats_it = source != now and _coin(stream, chosen) < repeated[layer]
            while chosen < top_k:
                if repeats_it:
                    earlier += GOLDEN
                    picks[0] = earlier
                else:
                    stream += GOLDEN
                    picks[0] = stream
                _propose(1, picks, proposed, limits[layer, first], scripts, starts, sizes, tables)
                if layer > 0 and len(paths):
                    before = into[here - top_k : here]
                    _follow(1, picks, proposed, limits[layer, first], scripts, paths[layer - 1], before)
                candidate = proposed[0]
                attempts += 1
                forced = attempts > _ATTEMPTS  # the tables may hold fewer than top_k experts: then all in turn
                if forced:
                    candidate = (attempts + np.int64(numbers >> np.uint64(40))) % experts
                bit = np.uint64(1) << np.uint64(group[candidate])
                in_groups = groups_used < most_groups or (used & bit) != 0
                accepted = (picks[0] >> np.uint64(48)) < accepts[accepting + candidate] and marks[candidate] != fresh
                if marks[candidate] <= fresh and (forced or accepted) and in_groups:
                    marks[candidate] = fresh + 1
                    into[here + chosen] = candidate
                    groups_used += (used & bit) == 0
                    used |= bit
                    chosen += 1
                    repeats_it = source != now and _coin(stream, chosen) < repeated[layer]
        for at in range(layers * top_k):  # not by slices: numba compiles a message for shapes that differ, for 3 s
            mine[n_tastes + at] = into[row * layers * top_k + at]


@inner
def _propose(count, picks, proposed, limits, script, starts, sizes, tables):
    """Scatter the first ``count`` of the random numbers ``picks``, and fill in the experts that they propose.

    limits: int64[component], script of 65536: see `_generate`. starts, sizes: of the components' tables in ``tables``.
    """
    for at in range(count):
        pick = scatter(picks[at])
        draw = remix(pick)
        component = _component_of(pick, limits, script)
        column = np.int64(((draw >> np.uint64(40)) * np.uint64(sizes[component])) >> np.uint64(24))
        entry = np.int64(tables[unsigned(starts[component] + column)])
        picks[at] = pick
        proposed[at] = column if np.int64(draw & _BITS_16) < entry >> 16 else entry & 0xFFFF


@inner
def _component_of(pick, limits, script):
    """The component that a random number picks, without branches; see `_propose`."""
    low = np.int64(pick & _BITS_16)
    component = np.int64(low >= limits[0])
    for at in range(1, _PATH):
        component += np.int64(low >= limits[at])
    return unsigned(np.int64(0) if np.int64((pick >> np.uint64(16)) & _BITS_16) < script else component)


@inner
def _follow(count, picks, proposed, limits, script, paths, before):
    """Fill in the experts proposed by ``paths`` [expert, expert] from those of the token at the layer before."""
    for at in range(count):
        if _component_of(picks[at], limits, script) == np.uint64(_PATH):
            draw = remix(picks[at])
            proposed[at] = _column(scatter(draw), paths[_item(draw, before)])


@allocating
def _source_of(origin, token, repeats, sources, kinds):
    """The token whose random numbers a token has, itself or an earlier one, and the kind of that one."""
    if len(repeats):
        number = scatter(scatter(origin + GOLDEN) ^ np.uint64(token)) & _BITS_16
        for back in range(min(len(repeats), token)):
            if number < repeats[back]:
                slot = (token - 1 - back) % len(sources)
                return np.int64(sources[slot]), np.int64(kinds[slot])
    return np.int64(token), np.int64(0)


@allocating
def _coin(stream, chosen):
    """16 random bits for every expert of a token at a layer."""
    return scatter(stream ^ (np.uint64(chosen + 1) << np.uint64(32))) & _BITS_16


@allocating
def _kind_of(origin, token, limits, tastes, popular, tasked, following, before):
    """The kind of a token; see `_generate`. before: that of the previous one."""
    pick = scatter(scatter(origin) ^ (np.uint64(token) + GOLDEN))
    draw = scatter(pick)
    component = _component(pick, limits)
    if component == _KEEP:
        return before
    if component == _KIND:
        return _column(draw, following[before])
    if component == _TASTE:
        return np.int64(_item(draw, tastes))
    return _column(draw, tasked if component == _TASK else popular)


@allocating
def _component(number, limits):
    """The component that the lower 16 bits of a random number pick."""
    component = 0
    while (number & _BITS_16) >= limits[component]:
        component += 1
    return component


def _sizes(taste_size: np.ndarray) -> np.ndarray:
    return np.clip(np.round(taste_size), 1, MOST_TASTES).astype(np.int64)


@allocating
def _fill_tastes(seed, strata, task, layer_ids, starts, ends, out):
    """Fill out int16[request, item]: columns starts[layer] to starts[layer + 1] are of a layer.

    strata: see `_strata`. task: int64[request]. ends: `_ends` of [task, layer, expert].
    """
    numbers, found = np.empty(MOST_TASTES, np.uint64), np.empty(MOST_TASTES, np.int64)
    for row in range(len(out)):
        for layer in range(len(layer_ids)):
            key = scatter(scatter(seed - GOLDEN) + np.uint64(layer_ids[layer]) * GOLDEN) + np.uint64(task[row] << 32)
            first, items = starts[layer], starts[layer + 1] - starts[layer]
            for at in range(items):
                numbers[at], found[at] = _draw_evenly(key + np.uint64(at), strata[row]), 0
            # The item of `_ends` whose interval each falls into; all are sought at once, without branches.
            left, of_layer = ends.shape[2], ends[task[row], layer]
            while left > 1:
                half = left >> 1
                for at in range(items):
                    found[at] += half * np.int64(np.uint64(of_layer[unsigned(found[at] + half - 1)]) < numbers[at])
                left -= half
            for at in range(items):
                out[row, first + at] = found[at]


@inner
def _draw_evenly(key, stratum):
    """A random number of 32 bits, uniform for each request, evenly spread over the requests of a block.

    The block is cut into as many equal intervals as it has requests, dealt out by a permutation of its own for every
    key (Latin hypercube sampling, McKay et al., Technometrics 21, 1979).
    """
    block, place, size = stratum
    bits = 1
    while (1 << bits) < size:
        bits += 1
    mask, half = np.uint64((1 << bits) - 1), np.uint64((bits + 1) // 2)
    key = scatter(key ^ scatter(np.uint64(block) + GOLDEN))
    item = np.uint64(place)
    while True:  # a bijection of `bits` bits, until it falls below the size: a permutation of the places
        for step in range(4):
            turn = key >> np.uint64(13 * step)
            item = ((item ^ (turn & mask)) * ((turn >> np.uint64(1)) | np.uint64(1))) & mask
            item ^= item >> half
        if item < np.uint64(size):
            break
    within = scatter(key + np.uint64(place)) >> np.uint64(32)
    whole = (item << np.uint64(32)) + within
    return whole >> np.uint64(bits) if size == 1 << bits else whole // np.uint64(size)


@allocating
def _item(number, items):
    """One of some items, by the upper 24 bits of a random number."""
    return items[np.int64((number >> np.uint64(40)) * np.uint64(len(items)) >> np.uint64(24))]


@allocating
def _column(number, table):
    """An item drawn from a row of `_compact` by the upper 24 and lower 16 bits of a random number."""
    column = ((number >> np.uint64(40)) * np.uint64(len(table))) >> np.uint64(24)
    entry = np.uint64(table[column])
    return np.int64(column if (number & _BITS_16) < (entry >> np.uint64(16)) else entry & _BITS_16)
