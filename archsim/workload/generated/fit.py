"""Estimate the parameters of generated routing from a trace.

1. Kinds of tokens: tokens are clustered by the experts of all their layers (a mixture of independent selections, hard
   expectation maximisation).
2. Weights of the components, by expectation maximisation: how probable each component makes each recorded selection.
   Shares are counted from the *other* requests (taste: from the other tokens of the request), so that a component is
   credited only for how well it predicts routing from which it was not counted. The same for the sequence of kinds.
3. Simulation: traffic with the lengths of the recorded requests is generated and measured like the trace, and the
   parameter that governs each figure is moved until they agree: acceptance (loads of either phase, and how far they
   agree in a layer), keep (experts that
   neighbours share), taste (those of distant tokens), and how sharp the kinds are (coverage of pairs of experts).
"""

from dataclasses import replace

import numpy as np
from numba import njit

from archsim.workload.generated.generative import GenerativeTraffic, collect
from archsim.workload.generated.traffic_model import COMPONENTS, QUANTILES, TrafficModel
from archsim.workload.patterns import statistics
from archsim.workload.trace import Trace

LEAST_REQUESTS = 8
"""Minimum number of requests for a task to have its own shares; all others form one task, 'other'."""

OPENING = (0, 1, 2, 3, 5, 9, 17)
"""First iterations of the phases of a trace with decode steps: answers start alike, then diverge."""

KINDS, KIND_ROUNDS = 64, 12
LARGEST_TABLE = 400_000
"""Maximum size of the table of kinds; large models get fewer kinds."""

EM_ROUNDS, SIMULATED_ROUNDS = 25, 18
ROUNDS_OF_PHASES, SETTLED, TILT_STEP = 30, 5, 1.8
"""With two phases: rounds, the first that looks at their agreement, and by how much it then moves for each 1 of
excess.
"""

CHANCE = 0.07
"""Twice the standard deviation of a layer's Spearman coefficient of the phases over draws of 117 requests
(0.01–0.037).
"""

COPIES = 4
"""Number of times the recorded requests are generated per round, which halves the noise in the loads."""

_POPULARITY, _TASK, _TASTE, _KEEP, _KIND = range(len(COMPONENTS))


def fit_trace(
    trace: Trace, name: str, source: str, groups: int = 1, top_groups: int = 1, seed: int = 0
) -> TrafficModel:
    """A model of the routing of a trace. groups, top_groups: of the router, see `TrafficModel`; a trace does not show
    them.
    """
    names, task = known_tasks(trace)
    trace = replace(trace, request_subject=task, subject_names=names)
    kind, kind_counts = token_kinds(trace, min(KINDS, max(8, LARGEST_TABLE // kind_size(trace))), seed)
    by_task = statistics.subject_loads(trace).astype(np.float64)
    kinds = replace(trace, experts=kind[:, None, None].astype(np.int16), layer_ids=np.zeros(1, np.int32), top_k=1,
                    num_experts=len(kind_counts))  # fmt: skip
    task_kinds = statistics.subject_loads(kinds)[:, 0].astype(np.float64)
    following = statistics.cross_token(kinds)[0].astype(np.float64)
    kind_weights = _kind_weights(kinds, task_kinds, following)
    weights = np.stack(
        [_layer_weights(trace, layer, kind, by_task, kind_counts) for layer in range(len(trace.layer_ids))]
    )
    lengths, starts = trace.lengths, phase_starts(trace)
    at = np.linspace(0, 1, QUANTILES)
    model = TrafficModel(
        name=name,
        source=source,
        groups=groups,
        top_groups=top_groups,
        top_k=trace.top_k,
        task_names=names,
        layer_ids=trace.layer_ids,
        weights=weights,
        taste_size=_taste_size(trace, weights),
        phase_starts=starts,
        popularity=phase_shares(trace, starts),
        acceptance=np.full((len(starts), len(trace.layer_ids), trace.num_experts), 0.75),
        kind_experts=_draw_shares(kind_counts, trace.top_k),
        kind_weights=kind_weights,
        kind_taste_size=_taste_size(kinds, kind_weights[None]),
        kind_popularity=phase_shares(kinds, starts)[:, 0],
        kind_following=_smoothed(following, task_kinds.sum(axis=0)),
        task_share=np.bincount(task, minlength=len(names)) / len(task),
        task_popularity=_smoothed(by_task, by_task.sum(axis=0)),
        task_kinds=_smoothed(task_kinds, task_kinds.sum(axis=0)),
        prompt_tokens=np.quantile(lengths[:, 0], at),
        decode_steps=np.quantile(lengths[:, 1], at),
    )
    return adjust(model, trace, seed)


def fit_loads(model: TrafficModel, seed: int = 0, rounds: int = 10) -> TrafficModel:
    """A model built from loads only, with acceptance adjusted until generated traffic reproduces those loads."""
    lengths = np.tile([[32, 32]], (max(256, 4 * model.experts), 1))
    for step in range(rounds):
        simulated = simulate(model, lengths, np.zeros(len(lengths)), seed + step)
        got = phase_loads(simulated, model.phase_starts)
        model = model.changed(acceptance=_moved(model.acceptance, model.popularity, got, step))
    return model


def known_tasks(trace: Trace) -> tuple[tuple[str, ...], np.ndarray]:
    """Names, and int16[request] of them: subjects with LEAST_REQUESTS requests keep theirs, the rest is 'other'."""
    count = np.bincount(trace.request_subject, minlength=len(trace.subject_names))
    kept = np.flatnonzero(count >= LEAST_REQUESTS)
    index = np.full(len(count), len(kept), np.int16)
    index[kept] = np.arange(len(kept))
    task = index[trace.request_subject]
    names = [trace.subject_names[subject] for subject in kept]
    return tuple(names + ["other"] * bool((task == len(kept)).any())), task


def kind_size(trace: Trace) -> int:
    return len(trace.layer_ids) * trace.num_experts


def token_kinds(trace: Trace, kinds: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """int64[token]: the kind of every token; float64[kind, layer, expert]: selections by tokens of a kind."""
    tokens, layers, _ = trace.experts.shape
    base = (statistics.loads(trace) + 0.5) / tokens
    first = np.random.default_rng(seed).choice(tokens, min(kinds, tokens), replace=False)
    inclusion = np.tile(base * 0.5, (len(first), 1, 1))
    for kind, row in enumerate(first):
        for layer in range(layers):
            inclusion[kind, layer, trace.experts[row, layer]] += 0.5
    share, kind_of = np.full(len(first), 1 / len(first)), np.zeros(tokens, np.int64)
    for _ in range(KIND_ROUNDS):
        log = np.ascontiguousarray(np.log(inclusion).transpose(1, 2, 0)).astype(np.float32)
        _nearest(trace.experts, log, np.log(share).astype(np.float32), np.zeros(len(first), np.float32), kind_of)
        counts = np.zeros(inclusion.shape)
        _count_kinds(trace.experts, kind_of, counts)
        members = np.bincount(kind_of, minlength=len(first))
        inclusion = (counts + 2 * base) / (members + 2)[:, None, None]
        share = (members + 0.5) / (members + 0.5).sum()
    used = np.flatnonzero(members)
    return np.searchsorted(used, kind_of), counts[used]


def phase_starts(trace: Trace) -> np.ndarray:
    """int64[phase]: `OPENING` where there are decode steps, else one phase."""
    return np.array(OPENING if (trace.iteration > 0).any() else OPENING[:1], np.int64)


def phase_loads(trace: Trace, starts: np.ndarray) -> np.ndarray:
    """int64[phase, layer, expert]: selections of every phase."""
    phase = np.searchsorted(starts, trace.iteration, side="right") - 1
    return np.stack([statistics.loads(trace, phase == each) for each in range(len(starts))])


def phase_shares(trace: Trace, starts: np.ndarray) -> np.ndarray:
    """float64[phase, layer, expert], with so many selections of all phases together as a layer has experts chosen once.

    The first decode steps have a token a request. By Good and Turing (Good, Biometrika 40, 1953), the probability of
    what has not been seen is the share of what was seen once.
    """
    counts = phase_loads(trace, starts)
    once = np.maximum((counts == 1).sum(axis=2, keepdims=True), 1)
    return _smoothed(counts.astype(np.float64), counts.sum(axis=0), once)


def simulate(model: TrafficModel, lengths: np.ndarray, task: np.ndarray, seed: int) -> Trace:
    """Generated routing with the lengths int64[request, 2] and tasks int64[request] (of the model) of given requests.
    """
    return collect(GenerativeTraffic(model, len(task), seed, lengths=lengths, request_task=task))


def adjust(model: TrafficModel, trace: Trace, seed: int = 0) -> TrafficModel:
    """Move acceptance, keep, taste and the sharpness of kinds until generated traffic measures like the trace."""
    agreed = _decided(phase_agreement(trace))
    rounds, copies = (SIMULATED_ROUNDS, 1) if agreed is None else (ROUNDS_OF_PHASES, COPIES)
    requests, starts = trace.requests, model.phase_starts
    lengths, task = np.tile(trace.lengths, (copies, 1)), np.tile(trace.request_subject, copies)
    recorded, wanted = _without_chance(trace, phase_shares(trace, starts)), _moments(trace)
    kind_experts, sharpness, late = model.kind_experts, np.ones(len(model.layer_ids)), []
    tilt, least = np.zeros(len(model.layer_ids)), 1 / max(int(lengths[:requests, 0].sum()), 1)
    for step in range(rounds):
        simulated = simulate(model, lengths, task, seed + step)
        target, got = _tilted(recorded, tilt, least), phase_loads(simulated, starts)
        model = model.changed(acceptance=_moved(model.acceptance, target, got, step))
        late = [*late[-5:], model.acceptance]  # averaged at the end: a single draw of traffic is noisy
        parts = [statistics.subset(simulated, np.arange(requests) + requests * copy) for copy in range(copies)]
        if agreed is not None and step >= SETTLED:
            excess = np.mean([phase_agreement(part) for part in parts], axis=0) - agreed
            tilt = np.clip(tilt + TILT_STEP * excess / (1 + step / 20), -0.5, 1)
        if step < rounds - 2:
            near, far, pairs = wanted - _moments(parts[0])
            sharpness = np.clip(sharpness + 3 * pairs, 0.7, 3)
            model = model.changed(
                weights=_moved_weights(model.weights, near - far, far),
                kind_experts=_sharpened(model.kind_popularity[-1], kind_experts, sharpness),
            )
    return model.changed(acceptance=np.mean(late, axis=0))


def phase_agreement(trace: Trace) -> np.ndarray | None:
    """float64[layer]: Spearman coefficient of the loads in prefill and in decode; None if a phase is missing."""
    prefill = trace.iteration == 0
    if prefill.all() or not prefill.any():
        return None
    one, other = statistics.loads(trace, prefill), statistics.loads(trace, ~prefill)
    return np.nan_to_num(statistics.spearman(one, other), nan=1)


def _without_chance(trace: Trace, shares: np.ndarray) -> np.ndarray:
    """Shares [phase, layer, expert] with the spread of infinitely long traffic, as generation adds its own noise.

    Square roots of loads (where chance is alike for all experts) vary by what experts differ in, which two halves of
    the requests have in common, and by chance. Deviations from their mean are scaled so that the former alone is
    left.
    """
    one, other = (np.sqrt(_shares_of(statistics.loads(half))) for half in statistics.halves(trace))
    common = ((one - one.mean(axis=1, keepdims=True)) * (other - other.mean(axis=1, keepdims=True))).mean(axis=1)
    whole = np.sqrt(_shares_of(statistics.loads(trace)))
    real = np.sqrt(np.clip(common / np.maximum(whole.var(axis=1), 1e-12), 0, 1))[:, None]
    mean = whole.mean(axis=1, keepdims=True)
    ratio = ((mean + real * (whole - mean)) / np.maximum(whole, 1e-3)) ** 2
    changed = shares * np.clip(ratio, 0.25, 4)
    return changed / changed.sum(axis=2, keepdims=True)


def _shares_of(counts: np.ndarray) -> np.ndarray:
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def _decided(agreed: np.ndarray | None) -> np.ndarray | None:
    """Agreement of the phases, moved by at most CHANCE away from STRONG where it is nearer than that.

    A layer whose coefficient is STRONG but for chance would else be above it in half of all generated traffic,
    and the share of strong layers would depend on the seed.
    """
    if agreed is None:
        return None
    side = np.where(agreed >= statistics.STRONG, CHANCE, -CHANCE)
    return np.where(np.abs(agreed - statistics.STRONG) < CHANCE, statistics.STRONG + side, agreed)


def _tilted(shares: np.ndarray, tilt: np.ndarray, least: float) -> np.ndarray:
    """Shares whose prefill differs more (tilt > 0) or less (< 0) from the late decode steps, layer by layer."""
    if len(shares) == 1:
        return shares
    prefill = shares[0] * ((shares[0] + least) / (shares[-1] + least)) ** tilt[:, None]
    return np.concatenate([prefill[None] / prefill.sum(axis=1, keepdims=True), shares[1:]])


def _moments(trace: Trace) -> np.ndarray:
    """float64[3, layer]: experts shared with the previous token, with a distant one, and coverage of pairs."""
    if trace.top_k > 1:
        pairs = statistics.pair_coverage(statistics.coactivation(trace))
    else:
        across = statistics.coverage(statistics.cross_layer(trace))
        pairs = np.concatenate([across[:1], across])
    return np.nan_to_num([statistics.same_expert(trace), statistics.same_expert(trace, statistics.FAR), pairs])


def _moved(acceptance: np.ndarray, wanted: np.ndarray, got: np.ndarray, step: int) -> np.ndarray:
    """Acceptance moved from the loads it gave to the shares wanted, damped; 1 for the one popular expert that needs
    most.

    One selection is added to either, or experts too rare to be seen in a round would grow until they are.
    Rarely chosen experts do not set the scale, or most draws would be rejected.
    """
    ratio = (wanted * got.sum(axis=-1, keepdims=True) + 1) / (got + 1)
    moved = acceptance * np.clip(ratio, 0.5, 2) ** (0.9 if step < 3 else 0.5)
    popular = np.where(wanted * wanted.shape[-1] >= 1, moved, 0)
    return np.clip(moved / popular.max(axis=-1, keepdims=True), 0.001, 1)


def _moved_weights(weights: np.ndarray, keep: np.ndarray, taste: np.ndarray) -> np.ndarray:
    """Weights with keep and taste increased by these amounts; the others share the rest as before."""
    moved = weights.copy()
    moved[:, _KEEP] = np.clip(moved[:, _KEEP] + 0.7 * keep, 0, 0.9)
    moved[:, _TASTE] = np.clip(moved[:, _TASTE] + 0.7 * taste, 0, 0.9)
    fixed = moved[:, [_KEEP, _TASTE]].sum(axis=1)
    moved[:, [_KEEP, _TASTE]] *= (np.minimum(fixed, 0.95) / np.maximum(fixed, 1e-9))[:, None]
    others = [_POPULARITY, _TASK, _KIND]
    rest = np.maximum(moved[:, others].sum(axis=1), 1e-9)
    moved[:, others] *= (1 - np.minimum(fixed, 0.95))[:, None] / rest[:, None]
    return moved


def _sharpened(share: np.ndarray, kind_experts: np.ndarray, sharpness: np.ndarray) -> np.ndarray:
    """kind_experts to the power of sharpness [layer]; an expert's mean over the kinds, weighted by share, about as
    before.

    Otherwise rare experts would become rarer than acceptance, at most 1, can make up for.
    """
    powered = kind_experts ** sharpness[:, None]
    powered /= powered.sum(axis=2, keepdims=True)
    before, after = (np.tensordot(share, table, 1) for table in (kind_experts, powered))
    powered *= before / np.maximum(after, 1e-12)
    return powered / powered.sum(axis=2, keepdims=True)


def _taste_size(trace: Trace, weights: np.ndarray) -> np.ndarray:
    """float64[layer]: of items that `taste` draws from, for distant tokens to share as many as they do.

    Two tokens both use their taste with probability w², and then meet with probability top_k / size.
    """
    counts = statistics.loads(trace)
    share = counts / counts.sum(axis=1, keepdims=True)
    base = np.minimum(trace.top_k * (share**2).sum(axis=1), 1)
    excess = np.maximum(np.nan_to_num(statistics.same_expert(trace, statistics.FAR) - base, nan=0.02), 0.005)
    return np.clip(trace.top_k * weights[:, _TASTE] ** 2 * (1 - base) / excess, 2, 256)


def _draw_shares(counts: np.ndarray, top_k: int) -> np.ndarray:
    """float64[kind, layer, expert]: shares to draw from, one after the other without repeats, to get such counts.

    With exponential arrival times of rate w, the first top_k to arrive include an expert with probability close to
    1 − exp(−w).
    """
    base = counts.sum(axis=0) / counts.sum(axis=(0, 2))[:, None]
    tokens = counts.sum(axis=2, keepdims=True) / top_k
    inclusion = np.minimum((counts + top_k * base) / (tokens + 1), 0.99)
    rate = -np.log1p(-inclusion) if top_k > 1 else inclusion
    return rate / rate.sum(axis=2, keepdims=True)


def _smoothed(counts: np.ndarray, prior: np.ndarray, selections: float | np.ndarray = 1.0) -> np.ndarray:
    """Shares of the last axis, with a prior worth this many selections."""
    blended = counts + selections * prior / prior.sum(axis=-1, keepdims=True)
    return blended / blended.sum(axis=-1, keepdims=True)


def _layer_weights(trace: Trace, layer: int, kind: np.ndarray, by_task: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    density = np.zeros((len(trace.experts) * trace.top_k, len(COMPONENTS)), np.float32)
    chosen = np.ascontiguousarray(trace.experts[:, layer]).astype(np.int64)
    _densities(chosen, kind, trace.request_offsets, trace.request_subject.astype(np.int64),
               by_task[:, layer].astype(np.int64), kinds[:, layer].astype(np.int64), density)  # fmt: skip
    return _expectation_maximisation(density)


def _kind_weights(kinds: Trace, by_task: np.ndarray, following: np.ndarray) -> np.ndarray:
    """The weights by which kinds are drawn; transitions take the place of kinds."""
    kind = kinds.experts[:, :, 0].astype(np.int64)
    before, starts = np.concatenate([kind[:1, 0], kind[:-1, 0]]), kinds.request_offsets[:-1]
    density = np.zeros((len(kind), len(COMPONENTS)), np.float32)
    counts = following.astype(np.int64)
    np.add.at(counts, (before[starts], kind[starts, 0]), 1)  # no effect: the kernel subtracts them again
    _densities(kind, before, kinds.request_offsets, kinds.request_subject.astype(np.int64), by_task.astype(np.int64),
               counts, density)  # fmt: skip
    density[starts, _KIND] = 0
    return _expectation_maximisation(density)


def _expectation_maximisation(density: np.ndarray) -> np.ndarray:
    weights = np.full(density.shape[1], 1 / density.shape[1])
    for _ in range(EM_ROUNDS):
        _reweight(density, weights)
    return weights


@njit(cache=True)
def _reweight(density, weights):
    """One round of expectation maximisation of weights float64[component], given density float32[selection,
    component].
    """
    components = len(weights)
    moved = np.zeros(components)
    for row in range(len(density)):
        total = 0.0
        for each in range(components):
            total += weights[each] * max(density[row, each], 1e-12)
        for each in range(components):
            moved[each] += max(density[row, each], 1e-12) / total
    weights *= moved
    weights /= weights.sum()


@njit(cache=True)
def _nearest(experts, log, log_share, score, kind):
    """kind int64[token]: the kind whose log float32[layer, expert, kind] makes the token's experts most probable."""
    tokens, layers, top_k = experts.shape
    for row in range(tokens):
        score[:] = log_share
        for layer in range(layers):
            for rank in range(top_k):
                of_expert = log[layer, experts[row, layer, rank]]
                for each in range(len(score)):
                    score[each] += of_expert[each]
        kind[row] = np.argmax(score)


@njit(cache=True)
def _count_kinds(experts, kind, counts):
    tokens, layers, top_k = experts.shape
    for row in range(tokens):
        for layer in range(layers):
            for rank in range(top_k):
                counts[kind[row], layer, experts[row, layer, rank]] += 1.0


@njit(cache=True)
def _densities(chosen, kind, offsets, task, by_task, by_kind, out):
    """Fill out float32[token · k, component]: the probability of every selection of one layer under each component.

    chosen: int64[token, k], kind: int64[token], task: int64[request], by_task: int64[task, expert], by_kind:
    int64[kind, expert]; the request's own selections are taken out of these while it is looked at.
    """
    experts, top_k = by_task.shape[1], chosen.shape[1]
    total, own = by_task.sum(axis=0), np.zeros(experts, np.int64)
    everything, of_kind = total.sum(), by_kind.sum(axis=1)
    for request in range(len(offsets) - 1):
        first, end = offsets[request], offsets[request + 1]
        for row in range(first, end):
            for rank in range(top_k):
                own[chosen[row, rank]] += 1
                by_kind[kind[row], chosen[row, rank]] -= 1
                of_kind[kind[row]] -= 1
        mine = (end - first) * top_k
        same_task = by_task[task[request]]
        of_task = same_task.sum() - mine
        for row in range(first, end):
            for rank in range(top_k):
                expert, at = chosen[row, rank], row * top_k + rank
                out[at, 0] = (total[expert] - own[expert] + 0.5) / (everything - mine + 0.5 * experts)
                out[at, 1] = (same_task[expert] - own[expert]) / of_task if of_task > 0 else 0
                out[at, 2] = (own[expert] - 1) / (mine - top_k) if mine > top_k else 0
                for parent in range(top_k):
                    if row > first:
                        out[at, 3] += (chosen[row - 1, parent] == expert) / top_k
                if of_kind[kind[row]] > 0:
                    out[at, 4] = max(by_kind[kind[row], expert], 0) / of_kind[kind[row]]
        for row in range(first, end):
            for rank in range(top_k):
                own[chosen[row, rank]] -= 1
                by_kind[kind[row], chosen[row, rank]] += 1
                of_kind[kind[row]] += 1
