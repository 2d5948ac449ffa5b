"""Estimate the parameters of generated routing from a trace.

1. Kinds of tokens: tokens are clustered by the experts of all their layers (a mixture of independent selections, hard
   expectation maximisation).
2. Weights of the components, by expectation maximisation: how probable each component makes each recorded selection.
   Shares are counted from the *other* requests (taste: from the other tokens of the request), so that a component is
   credited only for how well it predicts routing from which it was not counted. The same for the sequence of kinds.
   An expert that stays counts as a repetition, which has no weight here. The script of a step is estimated likewise.
3. Simulation: what is generated is compared with the trace, and the parameters are moved towards it.
"""

from dataclasses import dataclass, replace

import numpy as np

from archsim.base.compiled import allocating
from archsim.workload import profile, traffic_model
from archsim.workload.generated import GenerativeTraffic, SeveralSubjects, between_subjects, collect, own_subjects
from archsim.workload.trace import Trace
from archsim.workload.traffic_model import PATH, TASTE, TrafficModel

# ---- adjust
# Simulation in fits of generated routing: parameters are moved until generated traffic measures like the trace.
#
# Traffic with the lengths of the recorded requests is generated; every figure has the parameter that governs it:
#
# ===========================================================  ==================================================
# loads of every phase, how far apart they are and phases agree acceptance
# experts shared with the token 1, 2, ... before, per lag       repeats
# experts shared with a distant token                           repeats, of long lags; of several: taste in kinds
# both, per layer                                               repeated
# how often each expert follows itself, of several              stays
# active experts of the first decode steps                      how far loads of the step are apart
# mutual information of experts at adjacent layers              weight of path
# the same, where tokens have several experts                    how sharp the kinds are
# ===========================================================  ==================================================
#
# No law gives the constants here, nor the factors inside the functions, which damp each move. But for CHANCE, which was
# counted, they were chosen by trial on the recorded traces of Llama-4-Maverick, gpt-oss-20b and DeepSeek-V2-Lite, both
# halves of the requests in sight; no study of other values is kept. How far generated traffic is from recorded traffic:
# docs/traces.md.

SIMULATED_ROUNDS = 36
"""Rounds of generating, measuring and moving. By trial."""

SETTLED = 5
"""With two phases, the first round that looks at their agreement: acceptance moves the loads most before. By trial on
Llama-4, the one trace of the three that has both phases.
"""

TILT_STEP = 1.8
"""By how much the exponent of `_tilted` moves for each 1 that the Spearman coefficient of the phases is too high. By
trial on Llama-4, as SETTLED.
"""

COPIES = {False: 3, True: 4}
"""Number of times the recorded requests are generated per round, with one phase and with two: the noise in the loads
falls as the square root. By trial; four on Llama-4.
"""

CHANCE = 0.07
"""Twice the standard deviation of a layer's Spearman coefficient of the phases over draws of 117 requests, half of
Llama-4's (0.01–0.037): `_decided` moves layers that are nearer to STRONG to this distance.
"""

LAGS, MOST_LAGS = 16, 64
"""Lags that have a probability of their own, and the largest lag. Recorded repetition falls as a power of the lag; the
largest is twice `statistics.FAR`, the lag of a distant token. By trial.
"""

FAR_LAGS = 1 / np.arange(LAGS + 1, MOST_LAGS + 1)
"""How what is repeated from far away is shared out among the lags beyond LAGS: as 1 over the lag (Zipf's law)."""

SEEN = 200
"""Pairs of experts of adjacent tokens that an expert's staying is given beside its own, as of all experts of the layer.
By trial."""

MOST_STAY = 0.9
"""Largest probability that an expert stays, or is refused, by its own chance: what `repeats` gives needs room. By
trial."""

MOST_MORE = 0.05
"""By how much the share of tokens that repeat others moves in a round, at most. By trial."""

SLOWER = 15
"""Rounds after which repetition and spread move by half as much for each difference. By trial."""

LATE = 8
"""Rounds over whose parameters the mean is taken at the end: a single draw of traffic is noisy. By trial."""

SHARPNESS = 0.5, 2.2
"""Smallest and largest power of the shares of kinds: beyond the largest, kinds tell less of one another's experts
again. By trial on the traces whose tokens have several experts, gpt-oss-20b and DeepSeek-V2-Lite.
"""

SPREAD = 0.7, 1.2
"""Smallest and largest power of the loads wanted: tokens that repeat others add to what they are apart by chance, which
a power below 1 makes up for. By trial.
"""

OPENING_POWER = 1.0, 2.0
"""Smallest and largest power of the loads of one decode step. A request that begins otherwise than the others brings
several rare experts at once, where generated requests bring one here and there: without a power 5 to 17 % more experts
are active than recorded (gpt-oss-20b).
"""

_BISECTIONS = 40

MOST_WEIGHT = 0.95
"""Largest weight of paths, and largest share of tokens that repeat others: what no path leads to must be reached too,
and not all tokens can repeat. By trial.
"""


@dataclass(frozen=True)
class Figures:
    """What generated traffic is to have as the trace has it; decode steps alone, where there are any.

    by_lag: float64[lag], share of a token's experts that the token 1, 2, ... before had too; near, far: float64[layer],
    the same for the previous token and a distant one; mutual: float64[layer - 1], bits; followed: float64[layer,
    expert], by how much more often than all an expert follows itself, see `_followed`.
    """

    by_lag: np.ndarray
    near: np.ndarray
    far: np.ndarray
    mutual: np.ndarray
    followed: np.ndarray

    @classmethod
    def of(cls, trace: Trace, lags: int) -> "Figures":
        decode = trace.iteration > 0
        rows = profile.rows_of(trace, decode) if decode.any() else trace
        shared = np.nan_to_num([profile.same_expert(rows, lag) for lag in range(1, lags + 1)])
        return cls(
            by_lag=shared.mean(axis=1),
            near=shared[0],
            far=np.nan_to_num(profile.same_expert(rows, profile.FAR)),
            mutual=profile.mutual_information(profile.cross_layer(rows)),
            followed=_followed(profile.cross_token(rows), trace.top_k),
        )


def _followed(pairs: np.ndarray, top_k: int) -> np.ndarray:
    """float64[layer, expert]: the share of an expert's tokens after which the next token has it, less that of all
    experts of the layer. pairs: int64[layer, expert, expert], experts of adjacent tokens.

    An expert of few tokens is moved towards all, as if SEEN further pairs of it had been like theirs.
    """
    own, all_pairs = np.diagonal(pairs, axis1=1, axis2=2).astype(np.float64), pairs.sum(axis=2, dtype=np.float64)
    mean = own.sum(axis=1, keepdims=True) / np.maximum(all_pairs.sum(axis=1, keepdims=True), 1)
    return top_k * (own - mean * all_pairs) / (all_pairs + SEEN)


def simulate(model: TrafficModel, lengths: np.ndarray, task: np.ndarray, seed: int) -> Trace:
    """Generated routing with the lengths int64[request, 2] and tasks int64[request] (of the model) of
    given requests.
    """
    return collect(GenerativeTraffic(model, len(task), seed, lengths=lengths, request_task=task))


def adjust(model: TrafficModel, trace: Trace, shares: np.ndarray, seed: int = 0) -> TrafficModel:
    """Move the parameters until generated traffic measures like the trace, whose loads have the shares [phase, layer,
    expert].
    """
    agreed = _decided(phase_agreement(trace))
    copies = COPIES[agreed is not None]
    requests, starts = trace.requests, model.phase_starts
    lengths, task = np.tile(trace.lengths, (copies, 1)), np.tile(trace.request_subject, copies)
    recorded, wanted = _without_chance(trace, shares), Figures.of(trace, LAGS)
    kind_experts, sharpness = model.kind_experts, np.ones(len(model.layer_ids))
    late: list[TrafficModel] = []
    gini, spread = profile.gini(profile.loads(trace)), np.ones(len(model.layer_ids))
    tilt, least = np.zeros(len(model.layer_ids)), 1 / max(int(lengths[:requests, 0].sum()), 1)
    active, power = active_experts(trace, starts), np.ones(len(starts))
    for step in range(SIMULATED_ROUNDS):
        simulated = simulate(model, lengths, task, seed + step)
        target = _tilted(_concentrated(_spread(recorded, spread), power, trace.top_k), tilt, least)
        got = phase_loads(simulated, starts)
        model = replace(model, acceptance=moved_acceptance(model.acceptance, target, got, step))
        late = [*late[1 - LATE :], model]
        parts = [profile.subset(simulated, np.arange(requests) + requests * copy) for copy in range(copies)]
        drawn = np.mean([profile.gini(profile.loads(part)) for part in parts], axis=0)
        spread = np.clip(spread + 0.5 * (gini - drawn) / (1 + step / SLOWER), *SPREAD)
        drawn_active = np.mean([active_experts(part, starts) for part in parts], axis=0)
        more = np.where(active > 0, drawn_active / np.maximum(active, 1) - 1, 0)
        power = np.clip(power + 0.7 * more / (1 + step / SLOWER), *OPENING_POWER)
        if agreed is not None and step >= SETTLED:
            agreements = [each for part in parts if (each := phase_agreement(part)) is not None]
            excess = np.mean(agreements, axis=0) - agreed
            tilt = np.clip(tilt + TILT_STEP * excess / (1 + step / 20), -0.5, 1)
        found = Figures.of(parts[0], LAGS)
        if trace.top_k > 1:
            sharpness = np.clip(sharpness + 0.3 * _of_layers(_relative(wanted.mutual, found.mutual)), *SHARPNESS)
        sharpened = _sharpened(model.kind_popularity[-1], kind_experts, sharpness)
        model = replace(_moved(model, wanted, found, 1 / (1 + step / SLOWER)), kind_experts=sharpened)
    averaged = ("acceptance", "repeats", "repeated", "stays", "kind_weights", "weights", "kind_experts")
    return replace(model, **{name: np.mean([getattr(each, name) for each in late], axis=0) for name in averaged})


def _spread(shares: np.ndarray, power: np.ndarray) -> np.ndarray:
    """Shares [phase, layer, expert] to a power of each layer: how far the loads of experts are apart."""
    powered = shares ** power[:, None]
    return powered / powered.sum(axis=2, keepdims=True)


def _concentrated(shares: np.ndarray, power: np.ndarray, top_k: int) -> np.ndarray:
    """Shares [phase, layer, expert] whose odds, of a token to choose the expert, are to a power of each phase; of no
    expert more than a token can choose, 1 / top_k.
    """
    changed = shares.copy()
    for phase in np.flatnonzero(power != 1):
        chance = np.clip(top_k * shares[phase], 1e-9, 1 - 1e-6)
        odds = power[phase] * np.log(chance / (1 - chance))
        low, high = np.full((len(odds), 1), -60.0), np.full((len(odds), 1), 60.0)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            much = _logistic(odds + middle).sum(axis=1, keepdims=True) > top_k
            low, high = np.where(much, low, middle), np.where(much, middle, high)
        changed[phase] = _logistic(odds + low) / top_k
    return changed / changed.sum(axis=2, keepdims=True)


def _logistic(odds: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(odds, -500, 500)))


def _relative(wanted: np.ndarray, found: np.ndarray) -> np.ndarray:
    """What is lacking in bits [layer - 1], relative to those wanted; to 0.1 where there are fewer."""
    return (wanted - found) / np.maximum(wanted, 0.1)


def _of_layers(between: np.ndarray) -> np.ndarray:
    """float64[layer]: means of what lies before and behind every layer."""
    if not len(between):
        return np.zeros(1)
    return (np.append(between, between[-1]) + np.insert(between, 0, between[0])) / 2


def _moved(model: TrafficModel, wanted: Figures, found: Figures, pace: float) -> TrafficModel:
    """The model with repetition and path moved towards the figures wanted."""
    lacking, far, several = wanted.by_lag - found.by_lag, wanted.far - found.far, len(model.stays) > 0
    fresh = 1 - model.repeats.sum()  # repetitions of repetitions count: the fewer tokens are fresh, the more they do
    near_lags = 0.7 * pace * max(fresh, 0.3) * (lacking - far.mean()) / model.repeated.mean()
    far_lags = 3 * pace * max(fresh, 0.2) * far.mean() * FAR_LAGS / FAR_LAGS.sum() * (not several)
    more = np.concatenate([near_lags, far_lags])
    more *= min(1, MOST_MORE / max(abs(more.sum()), 1e-9))
    repeats = np.maximum(model.repeats + more, 0)
    of_layer = (wanted.near - found.near + far) / 2
    of_layer -= np.quantile(of_layer, 0.25)  # most layers repeat as much as they can: few tokens need to
    repeated = np.clip(model.repeated + 0.7 * of_layer / max(repeats.sum(), 0.05), 0.05, 1)
    stays, kind_weights = model.stays, model.kind_weights
    if several:  # repetition at long lags would blur what follows what, as a request's taste in kinds does not
        stays = np.clip(stays + 0.7 * pace * (wanted.followed - found.followed), -MOST_STAY, MOST_STAY)
        kind_weights = _moved_weights(kind_weights[None], TASTE, 1.5 * pace * far.mean())[0]
    mutual = np.insert(_relative(wanted.mutual, found.mutual), 0, 0)
    return replace(
        model,
        repeats=repeats * min(1, MOST_WEIGHT / max(repeats.sum(), 1e-9)),
        repeated=repeated,
        stays=stays,
        kind_weights=kind_weights,
        weights=_moved_weights(model.weights, PATH, 0.6 * mutual * (model.top_k == 1)),
    )


def phase_loads(trace: Trace, starts: np.ndarray) -> np.ndarray:
    """int64[phase, layer, expert]: selections of every phase."""
    phase = np.searchsorted(starts, trace.iteration, side="right") - 1
    return np.stack([profile.loads(trace, phase == each) for each in range(len(starts))])


def active_experts(trace: Trace, starts: np.ndarray) -> np.ndarray:
    """float64[phase]: experts that a phase of one decode step uses, mean over layers; 0 for other phases."""
    found = np.zeros(len(starts))
    for phase in np.flatnonzero(np.diff(starts) == 1)[1:]:
        found[phase] = (profile.loads(trace, trace.iteration == starts[phase]) > 0).sum(axis=1).mean()
    return found


def phase_agreement(trace: Trace) -> np.ndarray | None:
    """float64[layer]: Spearman coefficient of the loads in prefill and in decode; None if a phase is missing."""
    prefill = trace.iteration == 0
    if prefill.all() or not prefill.any():
        return None
    one, other = profile.loads(trace, prefill), profile.loads(trace, ~prefill)
    return np.nan_to_num(profile.spearman(one, other), nan=1)


def _without_chance(trace: Trace, shares: np.ndarray) -> np.ndarray:
    """Shares [phase, layer, expert] with the spread of infinitely long traffic, as generation adds its own noise.

    Square roots of loads (where chance is alike for all experts) vary by what experts differ in, which two halves of
    the requests have in common, and by chance. Deviations from their mean are scaled so that the former alone is
    left.
    """
    one, other = (np.sqrt(_shares_of(profile.loads(half))) for half in profile.halves(trace))
    common = ((one - one.mean(axis=1, keepdims=True)) * (other - other.mean(axis=1, keepdims=True))).mean(axis=1)
    whole = np.sqrt(_shares_of(profile.loads(trace)))
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
    side = np.where(agreed >= profile.STRONG, CHANCE, -CHANCE)
    return np.where(np.abs(agreed - profile.STRONG) < CHANCE, profile.STRONG + side, agreed)


def _tilted(shares: np.ndarray, tilt: np.ndarray, least: float) -> np.ndarray:
    """Shares whose prefill differs more (tilt > 0) or less (< 0) from the late decode steps, layer by layer."""
    if len(shares) == 1:
        return shares
    prefill = shares[0] * ((shares[0] + least) / (shares[-1] + least)) ** tilt[:, None]
    return np.concatenate([prefill[None] / prefill.sum(axis=1, keepdims=True), shares[1:]])


def moved_acceptance(acceptance: np.ndarray, wanted: np.ndarray, got: np.ndarray, step: int) -> np.ndarray:
    """Acceptance moved from the loads it gave to the shares wanted, damped; 1 for the one popular expert that needs
    most.

    One selection is added to either, or experts too rare to be seen in a round would grow until they are.
    Rarely chosen experts do not set the scale, or most draws would be rejected.
    """
    ratio = (wanted * got.sum(axis=-1, keepdims=True) + 0.5) / (got + 0.5)
    moved = acceptance * np.clip(ratio, 0.5, 2) ** (0.9 if step < 3 else 0.5)
    popular = np.where(wanted * wanted.shape[-1] >= 1, moved, 0)
    return np.clip(moved / popular.max(axis=-1, keepdims=True), 0.001, 1)


def _moved_weights(weights: np.ndarray, component: int, more: np.ndarray) -> np.ndarray:
    """Weights [layer, component] with one increased by float64[layer]; the others share the rest as before."""
    moved = weights.copy()
    moved[:, component] = np.clip(weights[:, component] + more, 0, MOST_WEIGHT)
    others = np.arange(weights.shape[1]) != component
    rest = np.maximum(weights[:, others].sum(axis=1), 1e-9)
    moved[:, others] *= ((1 - moved[:, component]) / rest)[:, None]
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


# ---- densities
# Counting for fits of generated routing: kinds of tokens, and how probable components make what was chosen.


@allocating
def reweight(density, weights):
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


@allocating
def nearest(experts, log, log_share, score, kind):
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


@allocating
def count_kinds(experts, kind, counts):
    tokens, layers, top_k = experts.shape
    for row in range(tokens):
        for layer in range(layers):
            for rank in range(top_k):
                counts[kind[row], layer, experts[row, layer, rank]] += 1.0


@allocating
def densities(chosen, kind, offsets, task, by_task, by_kind, out):
    """Fill the first columns of out float32[token · k, component] (`KIND_COMPONENTS`): the probability of every
    selection of one layer under each component.

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


@allocating
def path_density(before, chosen, offsets, paths, out):
    """Fill out float32[token · k]: the probability of every selection of a layer after a token's experts of the layer
    before.

    before, chosen: int64[token, k]; paths: int64[expert, expert], pairs of both; the request's own pairs are taken out
    while it is looked at.
    """
    top_k = chosen.shape[1]
    of_expert = paths.sum(axis=1)
    for request in range(len(offsets) - 1):
        rows = (offsets[request], offsets[request + 1])
        _add_pairs(before, chosen, rows, -1, paths, of_expert)
        for row in range(rows[0], rows[1]):
            for rank in range(top_k):
                density = 0.0
                for parent in before[row]:
                    if of_expert[parent] > 0:
                        density += paths[parent, chosen[row, rank]] / of_expert[parent]
                out[row * top_k + rank] = density / top_k
        _add_pairs(before, chosen, rows, 1, paths, of_expert)


@allocating
def _add_pairs(before, chosen, rows, sign, paths, of_expert):
    for row in range(rows[0], rows[1]):
        for one in before[row]:
            for other in chosen[row]:
                paths[one, other] += sign
                of_expert[one] += sign


# ---- fit

LEAST_REQUESTS = 8
"""Minimum number of requests for a task to have its own shares; all others form one task, 'other'."""

OPENING = (*range(10), 17, 49)
"""First iterations of the phases of a trace with decode steps: answers start alike, then diverge."""

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
    by_task = profile.subject_loads(trace).astype(np.float64)
    kinds = replace(trace, experts=kind[:, None, None].astype(np.int16), layer_ids=np.zeros(1, np.int32), top_k=1,
                    num_experts=len(kind_counts))  # fmt: skip
    task_kinds = profile.subject_loads(kinds)[:, 0].astype(np.float64)
    following = profile.cross_token(kinds)[0].astype(np.float64)
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
        kind_following=_smoothed(following, task_kinds.sum(axis=0)),
        paths=path_shares(trace),
        repeats=FIRST_REPEATS * (0.1 if trace.top_k > 1 else 1),
        repeated=np.full(len(trace.layer_ids), FIRST_REPEATED),
        stays=np.zeros((len(trace.layer_ids) if trace.top_k > 1 else 0, trace.num_experts)),
        script=script,
        task_share=np.bincount(task, minlength=len(names)) / len(task),
        task_popularity=_smoothed(by_task, by_task.sum(axis=0)),
        task_kinds=_smoothed(task_kinds, task_kinds.sum(axis=0)),
        prompt_tokens=np.quantile(lengths[:, 0], at),
        decode_steps=np.quantile(lengths[:, 1], at),
    )
    return adjust(model, trace, shares, seed)


def fit_subjects(trace: Trace, name: str, source: str, seed: int = 0) -> traffic_model.TrafficModel | SeveralSubjects:
    """A model for each of the subjects of a trace with enough requests, or one of all, where fewer than two have."""
    rows = own_subjects(trace)
    if len(rows) < 2:
        return fit_trace(trace, name, source, seed=seed)
    parts = {subject: profile.subset(trace, of) for subject, of in rows.items()}
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
    base = (profile.loads(trace) + 0.5) / tokens
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
    return _smoothed(np.where(counts == 1, kept, counts), prior, np.maximum(0.5 * once, 0.5))


def _taste_size(trace: Trace, weights: np.ndarray) -> np.ndarray:
    """float64[layer]: of items that `taste` draws from, for distant tokens to share as many as they do.

    Two tokens both use their taste with probability w², and then meet with probability top_k / size.
    """
    counts = profile.loads(trace)
    share = counts / counts.sum(axis=1, keepdims=True)
    base = np.minimum(trace.top_k * (share**2).sum(axis=1), 1)
    excess = np.maximum(np.nan_to_num(profile.same_expert(trace, profile.FAR) - base, nan=0.02), 0.005)
    return np.clip(trace.top_k * weights[:, traffic_model.TASTE] ** 2 * (1 - base) / excess, 2, 256)


def first_acceptance(shares: np.ndarray, top_k: int) -> np.ndarray:
    """Acceptance with which draws from shares [phase, layer, expert], without repeats, include experts about as often.

    See `_draw_shares`; the simulation corrects it.
    """
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


def _smoothed(counts: np.ndarray, prior: np.ndarray, selections: float | np.ndarray = 1.0) -> np.ndarray:
    """Shares of the last axis, with a prior worth this many selections."""
    blended = counts + selections * prior / prior.sum(axis=-1, keepdims=True)
    return blended / blended.sum(axis=-1, keepdims=True)


def path_shares(trace: Trace) -> np.ndarray:
    """float64[layer - 1, i, j]: shares of j after i; none where tokens have several experts, as one of them tells less
    of the next than the kind of the token.
    """
    if trace.top_k > 1:
        return np.zeros((0, trace.num_experts, trace.num_experts))
    pairs = profile.cross_layer(trace).astype(np.float64)
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
        script[phase] = _mixed(np.concatenate([each[phase] for each in scripted], axis=1))
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
    """{phase of one decode step: float64[2, selection]}: the probability of every selection by the popularity of its
    step among the other requests, and by the components.
    """
    found = {}
    for phase in np.flatnonzero(np.diff(starts) == 1)[1:]:
        rows = np.flatnonzero(trace.iteration == starts[phase])
        chosen = trace.experts[rows, layer]
        count = np.bincount(chosen.ravel(), minlength=trace.num_experts)
        others = (count[chosen] - 1) / max((len(rows) - 1) * trace.top_k, 1)
        found[phase] = np.stack([others.ravel(), otherwise.reshape(-1, trace.top_k)[rows].ravel()])
    return found


def _mixed(density: np.ndarray) -> float:
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
