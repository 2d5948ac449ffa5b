"""Estimate the parameters of generated routing from a trace.

1. Kinds of tokens: tokens are clustered by the experts of all their layers (a mixture of independent selections, hard
   expectation maximisation).
2. Weights of the components, by expectation maximisation: how probable each component makes each recorded selection.
   Shares are counted from the *other* requests (taste: from the other tokens of the request), so that a component is
   credited only for how well it predicts routing from which it was not counted. The same for the sequence of kinds.
   An expert that stays counts as a repetition, which has no weight here. The script of a step is estimated likewise.
3. Simulation: what is generated is compared with the trace, and the parameters are moved towards it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from archsim.traffic import statistics, traffic_model
from archsim.traffic.demand import active_by_step, unsettled_steps
from archsim.traffic.path_density import path_density
from archsim.traffic.subjects import SeveralSubjects
from archsim.traffic.trace import Trace
from archsim.traffic.traffic_adjust import MOST_LAGS, adjust, moved_acceptance, phase_loads, simulate
from archsim.traffic.traffic_densities import count_kinds, densities, nearest, reweight
from archsim.traffic.traffic_model import OTHER

LEAST_REQUESTS = 8
"""Minimum number of requests for a task to have its own shares; all others form one task, 'other'."""

OPENING = (*range(10), 17, 49)
"""First iterations of the phases of a trace with decode steps: answers start with the same experts, then diverge."""

SCRIPTED = 0.5
"""Script from which a step has no experts of its own that were seen once: other components choose those."""

KINDS, KIND_ROUNDS = 64, 12
LARGEST_TABLE = 400_000
"""Maximum size of the table of kinds; large models get fewer kinds."""

EM_ROUNDS, SCRIPT_ROUNDS = 25, 20

FIRST_REPEATS = 0.2 / np.arange(1, MOST_LAGS + 1) / (1 / np.arange(1, MOST_LAGS + 1)).sum()
FIRST_REPEATED = 0.8
"""Where the simulation begins: a fifth of the tokens repeat another, with Zipf's law of the lag; of several experts a
token a fiftieth, as tokens take up the last one of their kind beside that.
"""


def fit_trace(
    trace: Trace, name: str, source: str, groups: int = 1, top_groups: int = 1, seed: int = 0
) -> traffic_model.TrafficModel:
    """A model of a trace's routing. groups, top_groups: of the router, see `TrafficModel`; traces lack them."""
    names, task = known_tasks(trace)
    trace = replace(trace, request_subject=task, subject_names=names)
    kind, kind_counts = token_kinds(trace, min(KINDS, max(8, LARGEST_TABLE // kind_size(trace))), seed)
    by_task = statistics.subject_loads(trace).astype(np.float64)
    kinds = replace(trace, experts=kind[:, None, None].astype(np.int16), layer_ids=np.zeros(1, np.int32), top_k=1,
                    num_experts=len(kind_counts))  # fmt: skip
    task_kinds = statistics.subject_loads(kinds)[:, 0].astype(np.float64)
    following = statistics.cross_token(kinds)[0].astype(np.float64)
    kind_weights = _kind_weights(kinds, task_kinds, following)
    lengths, starts = trace.lengths, phase_starts(trace)
    weights, script = _expert_weights(trace, starts, kind, by_task, kind_counts)
    at, shares = np.linspace(0, 1, traffic_model.QUANTILES), phase_shares(trace, starts)
    model = traffic_model.TrafficModel(
        name=name,
        source=source,
        groups=groups,
        top_groups=top_groups,
        top_k=trace.top_k,
        settled_after=unsettled_steps(active_by_step(trace, np.arange(trace.requests))),
        task_names=names,
        layer_ids=trace.layer_ids,
        weights=weights,
        taste_size=_taste_size(trace, weights),
        phase_starts=starts,
        popularity=np.where((script > SCRIPTED)[:, None, None], phase_shares(trace, starts, least=2), shares),
        acceptance=first_acceptance(shares, trace.top_k),
        kind_experts=_draw_shares(kind_counts, trace.top_k),
        kind_weights=kind_weights,
        kind_taste_size=_taste_size(kinds, kind_weights[None]),
        kind_popularity=phase_shares(kinds, starts)[:, 0],
        kind_following=_smooth(following, task_kinds.sum(axis=0)),
        paths=path_shares(trace),
        repeats=FIRST_REPEATS * (0.1 if trace.top_k > 1 else 1),
        repeated=np.full(len(trace.layer_ids), FIRST_REPEATED),
        stays=np.zeros((len(trace.layer_ids) if trace.top_k > 1 else 0, trace.num_experts)),
        script=script,
        task_share=np.bincount(task, minlength=len(names)) / len(task),
        task_popularity=_smooth(by_task, by_task.sum(axis=0)),
        task_kinds=_smooth(task_kinds, task_kinds.sum(axis=0)),
        prompt_tokens=np.quantile(lengths[:, 0], at),
        decode_steps=np.quantile(lengths[:, 1], at),
    )
    return adjust(model, trace, shares, seed)


def fit_subjects(trace: Trace, name: str, source: str, seed: int = 0) -> traffic_model.TrafficModel | SeveralSubjects:
    """A model for each of the subjects of a trace with enough requests, or one of all, where fewer than two have."""
    rows = own_subjects(trace)
    if len(rows) < 2:
        return fit_trace(trace, name, source, seed=seed)
    parts = {subject: statistics.subset(trace, of) for subject, of in rows.items()}
    models = {
        subject: fit_trace(part, f"{name}.{number}", f"{source}: {subject}", seed=seed)
        for number, (subject, part) in enumerate(parts.items(), 1)
    }
    shares = tuple(float(part.requests) for part in parts.values())
    return SeveralSubjects(name, source, models, shares, between_subjects(list(parts.values())))


def fit_loads(model: traffic_model.TrafficModel, seed: int = 0, rounds: int = 10) -> traffic_model.TrafficModel:
    """A model built from loads only, with acceptance adjusted until generated traffic reproduces those loads."""
    lengths = np.tile([[32, 32]], (max(256, 4 * model.experts), 1))
    for step in range(rounds):
        simulated = simulate(model, lengths, np.zeros(len(lengths)), seed + step)
        got = phase_loads(simulated, model.phase_starts)
        model = replace(model, acceptance=moved_acceptance(model.acceptance, model.popularity, got, step))
    return model


def known_tasks(trace: Trace) -> tuple[tuple[str, ...], np.ndarray]:
    """Names, and int16[request] of them: subjects with LEAST_REQUESTS requests keep theirs, the rest is 'other'."""
    count = np.bincount(trace.request_subject, minlength=len(trace.subject_names))
    kept = np.flatnonzero(count >= LEAST_REQUESTS)
    index = np.full(len(count), len(kept), np.int16)
    index[kept] = np.arange(len(kept))
    task = index[trace.request_subject]
    names = [trace.subject_names[subject] for subject in kept]
    return tuple(names + [traffic_model.OTHER] * bool((task == len(kept)).any())), task


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
        nearest(trace.experts, log, np.log(share).astype(np.float32), np.zeros(len(first), np.float32), kind_of)
        counts = np.zeros(inclusion.shape)
        count_kinds(trace.experts, kind_of, counts)
        members = np.bincount(kind_of, minlength=len(first))
        inclusion = (counts + 2 * base) / (members + 2)[:, None, None]
        share = (members + 0.5) / (members + 0.5).sum()
    used = np.flatnonzero(members)
    return np.searchsorted(used, kind_of), counts[used]


def phase_starts(trace: Trace) -> np.ndarray:
    """int64[phase]: `OPENING` where there are decode steps, else one phase."""
    return np.array(OPENING if (trace.iteration > 0).any() else OPENING[:1], np.int64)


def phase_shares(trace: Trace, starts: np.ndarray, least: int = 0) -> np.ndarray:
    """float64[phase, layer, expert]: shares of loads, corrected for experts that a phase has once or never.

    The first decode steps have a token a request. By Good and Turing (Good, Biometrika 40, 1953), what was seen once
    counts 2·n₂/n₁ times (experts seen twice and once, in all layers of a phase), and unseen experts have the share of
    what was seen once: half of it here, in proportion to the loads of all phases, as components reach them too.
    least: experts seen less often have no share instead.
    """
    counts = phase_loads(trace, starts)
    if least:
        counts = np.where(counts >= least, counts, 0) + 1e-9 * counts.sum(axis=0)
        return counts / counts.sum(axis=2, keepdims=True)
    once, twice = ((counts == times).sum(axis=2, keepdims=True) for times in (1, 2))
    kept = np.minimum(2 * twice.sum(axis=1, keepdims=True) / np.maximum(once.sum(axis=1, keepdims=True), 1), 1)
    total = np.broadcast_to(counts.sum(axis=0), counts.shape)
    unseen = np.where(counts == 0, total, 0)
    prior = np.where(unseen.any(axis=2, keepdims=True), unseen, total)
    return _smooth(np.where(counts == 1, kept, counts), prior, np.maximum(0.5 * once, 0.5))


def _taste_size(trace: Trace, weights: np.ndarray) -> np.ndarray:
    """float64[layer]: items of `taste`: two distant tokens meet with probability w² · top_k / size."""
    counts = statistics.loads(trace)
    share = counts / counts.sum(axis=1, keepdims=True)
    base = np.minimum(trace.top_k * (share**2).sum(axis=1), 1)
    excess = np.maximum(np.nan_to_num(statistics.same_expert(trace, statistics.FAR) - base, nan=0.02), 0.005)
    return np.clip(trace.top_k * weights[:, traffic_model.TASTE] ** 2 * (1 - base) / excess, 2, 256)


def first_acceptance(shares: np.ndarray, top_k: int) -> np.ndarray:
    """Acceptance with which draws from shares [phase, layer, expert] have experts about as often (`_draw_shares`)."""
    ratio = _rates(shares * top_k, top_k) / np.maximum(shares, 1e-12)
    return 0.9 * ratio / ratio.max(axis=2, keepdims=True)


def _rates(inclusion: np.ndarray, top_k: int) -> np.ndarray:
    """Rates of arrival at which an expert is among the first top_k with about these probabilities."""
    return -np.log1p(-np.minimum(inclusion, 0.99)) if top_k > 1 else inclusion


def _draw_shares(counts: np.ndarray, top_k: int) -> np.ndarray:
    """float64[kind, layer, expert]: shares to draw from, one after the other without repeats, to get such counts.

    With exponential arrival times of rate w, the first top_k to arrive include an expert with probability close to
    1 − exp(−w).
    """
    base = counts.sum(axis=0) / counts.sum(axis=(0, 2))[:, None]
    tokens = counts.sum(axis=2, keepdims=True) / top_k
    rate = _rates((counts + top_k * base) / (tokens + 1), top_k)
    return rate / rate.sum(axis=2, keepdims=True)


def _smooth(counts: np.ndarray, prior: np.ndarray, selections: float | np.ndarray = 1.0) -> np.ndarray:
    """Shares of the last axis, with a prior worth this many selections."""
    blended = counts + selections * prior / prior.sum(axis=-1, keepdims=True)
    return blended / blended.sum(axis=-1, keepdims=True)


def path_shares(trace: Trace) -> np.ndarray:
    """float64[layer - 1, i, j]: shares of j after i; none for top_k > 1, where kinds tell more."""
    if trace.top_k > 1:
        return np.zeros((0, trace.num_experts, trace.num_experts))
    pairs = statistics.cross_layer(trace).astype(np.float64)
    rows, columns = (pairs.sum(axis=axis, keepdims=True) for axis in (2, 1))
    return np.where(rows > 0, pairs / np.maximum(rows, 1), columns / columns.sum(axis=2, keepdims=True))


def _expert_weights(
    trace: Trace, starts: np.ndarray, kind: np.ndarray, by_task: np.ndarray, kinds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Weights float64[layer, component], and the script float64[phase]."""
    of_layers, scripted = [], []
    for layer in range(len(trace.layer_ids)):
        density = _layer_densities(trace, layer, kind, by_task, kinds)
        of_layers.append(_expectation_maximisation(density))
        scripted.append(_script_densities(trace, layer, starts, density @ of_layers[-1]))
    script = np.zeros(len(starts))
    for phase in np.flatnonzero(np.diff(starts) == 1)[1:]:
        script[phase] = _weight_of_first(np.concatenate([each[phase] for each in scripted], axis=1))
    weights = np.array(of_layers)
    weights[:, [traffic_model.KEEP, traffic_model.TASTE]] = 0
    weights[: 1 if trace.top_k == 1 else None, traffic_model.PATH] = 0
    return weights / weights.sum(axis=1, keepdims=True), script


def _layer_densities(trace: Trace, layer: int, kind: np.ndarray, by_task: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """float32[selection, component]: how probable each component makes each selection of a layer."""
    density = np.zeros((len(trace.experts) * trace.top_k, len(traffic_model.COMPONENTS)), np.float32)
    chosen = np.ascontiguousarray(trace.experts[:, layer]).astype(np.int64)
    densities(chosen, kind, trace.request_offsets, trace.request_subject.astype(np.int64),
              by_task[:, layer].astype(np.int64), kinds[:, layer].astype(np.int64), density)  # fmt: skip
    if layer and trace.top_k == 1:
        before = np.ascontiguousarray(trace.experts[:, layer - 1]).astype(np.int64)
        pairs = np.zeros((trace.num_experts, trace.num_experts), np.int64)
        np.add.at(pairs, (before[:, :, None], chosen[:, None, :]), 1)
        path_density(before, chosen, trace.request_offsets, pairs, density[:, traffic_model.PATH])
    return density


def _script_densities(trace: Trace, layer: int, starts: np.ndarray, otherwise: np.ndarray) -> dict[int, np.ndarray]:
    """float64[2, selection] by decode step: probability by the step's popularity elsewhere, and by the components."""
    found = {}
    for phase in np.flatnonzero(np.diff(starts) == 1)[1:]:
        rows = np.flatnonzero(trace.iteration == starts[phase])
        chosen = trace.experts[rows, layer]
        count = np.bincount(chosen.ravel(), minlength=trace.num_experts)
        others = (count[chosen] - 1) / max((len(rows) - 1) * trace.top_k, 1)
        found[phase] = np.stack([others.ravel(), otherwise.reshape(-1, trace.top_k)[rows].ravel()])
    return found


def _weight_of_first(density: np.ndarray) -> float:
    """The weight of the first of two components, from float64[2, selection]."""
    share = 0.5
    for _ in range(SCRIPT_ROUNDS):
        first, other = share * density[0], (1 - share) * np.maximum(density[1], 1e-12)
        share = float((first / (first + other)).mean()) if density.size else 0.0
    return share


def _kind_weights(kinds: Trace, by_task: np.ndarray, following: np.ndarray) -> np.ndarray:
    """The weights by which kinds are drawn; transitions take the place of kinds."""
    kind = kinds.experts[:, :, 0].astype(np.int64)
    before, starts = np.concatenate([kind[:1, 0], kind[:-1, 0]]), kinds.request_offsets[:-1]
    density = np.zeros((len(kind), len(traffic_model.KIND_COMPONENTS)), np.float32)
    counts = following.astype(np.int64)
    np.add.at(counts, (before[starts], kind[starts, 0]), 1)  # no effect: the kernel subtracts them again
    densities(kind, before, kinds.request_offsets, kinds.request_subject.astype(np.int64), by_task.astype(np.int64),
               counts, density)  # fmt: skip
    density[starts, traffic_model.KIND] = 0
    return _expectation_maximisation(density)


def _expectation_maximisation(density: np.ndarray) -> np.ndarray:
    weights = np.full(density.shape[1], 1 / density.shape[1])
    for _ in range(EM_ROUNDS):
        reweight(density, weights)
    return weights


LEAST_OWN = 32
"""Requests from which a subject has a model of its own. Of 100 to 135 requests (Llama-4's subjects) figures of a model
are within 3 % of the recorded ones, but for the active experts of late steps; of fewer than 8 a task has no shares."""

_LAGS, _STEPS = (1, 4, 8, 16, 32), (1, 2, 3)


def own_subjects(trace: Trace) -> dict[str, np.ndarray]:
    """Subject → its requests: those with LEAST_OWN requests or more, and OTHER with the rest, if that many."""
    count = np.bincount(trace.request_subject, minlength=len(trace.subject_names))
    found = {trace.subject_names[at]: np.flatnonzero(trace.request_subject == at)
             for at in np.flatnonzero(count >= LEAST_OWN)}  # fmt: skip
    rest = np.flatnonzero(count[trace.request_subject] < LEAST_OWN)
    return found | ({OTHER: rest} if len(rest) >= LEAST_OWN else {})


def between_subjects(parts: list[Trace]) -> dict[str, float]:
    """{figure: %}: standard deviation between recorded subjects over their mean, of as many requests of each."""

    least = min(part.requests for part in parts)
    found = [subject_figures(statistics.subset(part, np.arange(least))) for part in parts]
    return {
        name: round(100 * float(np.std(values, ddof=1) / np.mean(values)), 1)
        for name in found[0]
        if (values := [each[name] for each in found]) and np.all(np.isfinite(values)) and np.mean(values) > 0
    }


def subject_figures(trace: Trace) -> dict[str, float]:
    """{figure: number}, means over layers: what is stated of how subjects differ. Decode steps, where there are any."""

    decode = trace.iteration > 0
    rows = statistics.rows_of(trace, decode) if decode.any() else trace
    found = {"largest over mean load": statistics.max_over_mean(statistics.loads(rows)).mean()}
    found |= {f"repeated at lag {lag}": statistics.same_expert(rows, lag).mean() for lag in _LAGS}
    for step in _STEPS if decode.any() else ():
        counts = statistics.loads(trace, trace.iteration == step)
        found[f"active experts at step {step}"] = (counts > 0).sum(axis=1).mean()
    return {name: float(value) for name, value in found.items()}
