"""Simulation in fits of generated routing: parameters are moved until generated traffic measures like the trace.

Traffic with the lengths of the recorded requests is generated; every figure has the parameter that governs it:

===========================================================  ==================================================
loads of every phase, how far apart they are and phases agree acceptance
experts shared with the token 1, 2, ... before, per lag       repeats
experts shared with a distant token                           repeats, of long lags; of several: taste in kinds
both, per layer                                               repeated
how often each expert follows itself, of several              stays
active experts of the first decode steps                      how far loads of the step are apart
mutual information of experts at adjacent layers              weight of path
the same, where tokens have several experts                    how sharp the kinds are
===========================================================  ==================================================

No law gives the constants here, nor the factors inside the functions, which damp each move. But for CHANCE, which was
counted, they were chosen by trial on the recorded traces of Llama-4-Maverick, gpt-oss-20b and DeepSeek-V2-Lite, both
halves of the requests in sight; no study of other values is kept. How far generated traffic is from recorded traffic:
docs/traces.md.
"""

from dataclasses import dataclass, replace

import numpy as np

from archsim.traffic import statistics
from archsim.traffic.generative import GenerativeTraffic
from archsim.traffic.subjects import collect
from archsim.traffic.trace import Trace
from archsim.traffic.traffic_model import PATH, TASTE, TrafficModel

SIMULATED_ROUNDS = 36
"""Rounds of generating, measuring and moving. By trial."""

SETTLED = 5
"""With two phases, the first round that looks at their agreement: acceptance moves the loads most before. By trial on
Llama-4, the one trace of the three that has both phases.
"""

TILT_STEP = 1.8
"""By how much the exponent of `_tilt` moves for each 1 that the Spearman coefficient of the phases is too high. By
trial on Llama-4, as SETTLED.
"""

COPIES = {False: 3, True: 4}
"""Number of times the recorded requests are generated per round, with one phase and with two: the noise in the loads
falls as the square root. By trial; four on Llama-4.
"""

CHANCE = 0.07
"""Twice the standard deviation of a layer's Spearman coefficient of the phases over draws of 117 requests, half of
Llama-4's (0.01–0.037): `_decide` moves layers that are nearer to STRONG to this distance.
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
    """What generated traffic is to have as the trace has it; decode steps alone, where there are any."""

    by_lag: np.ndarray  # float64[lag], share of a token's experts that the token 1, 2, ... before had too
    near: np.ndarray  # float64[layer], the same for the previous token
    far: np.ndarray  # float64[layer], the same for a distant token
    mutual: np.ndarray  # float64[layer - 1], mutual information of adjacent layers, bits
    followed: np.ndarray  # float64[layer, expert], see `_follow_shares`

    @classmethod
    def of(cls, trace: Trace, lags: int) -> "Figures":
        decode = trace.iteration > 0
        rows = statistics.rows_of(trace, decode) if decode.any() else trace
        shared = np.nan_to_num([statistics.same_expert(rows, lag) for lag in range(1, lags + 1)])
        return cls(
            by_lag=shared.mean(axis=1),
            near=shared[0],
            far=np.nan_to_num(statistics.same_expert(rows, statistics.FAR)),
            mutual=statistics.mutual_information(statistics.cross_layer(rows)),
            followed=_follow_shares(statistics.cross_token(rows), trace.top_k),
        )


def _follow_shares(pairs: np.ndarray, top_k: int) -> np.ndarray:
    """float64[layer, expert]: the share of an expert's tokens after which the next token has it, less that of all
    experts of the layer. pairs: int64[layer, expert, expert], experts of adjacent tokens.

    An expert of few tokens is moved towards all, as if SEEN further pairs of it had been like theirs.
    """
    own, all_pairs = np.diagonal(pairs, axis1=1, axis2=2).astype(np.float64), pairs.sum(axis=2, dtype=np.float64)
    mean = own.sum(axis=1, keepdims=True) / np.maximum(all_pairs.sum(axis=1, keepdims=True), 1)
    return top_k * (own - mean * all_pairs) / (all_pairs + SEEN)


def simulate(model: TrafficModel, lengths: np.ndarray, task: np.ndarray, seed: int) -> Trace:
    """Generated routing with the lengths int64[request, 2] and tasks int64[request] of given requests."""
    return collect(GenerativeTraffic(model, len(task), seed, lengths=lengths, request_task=task))


def adjust(model: TrafficModel, trace: Trace, shares: np.ndarray, seed: int = 0) -> TrafficModel:
    """Move parameters until generated traffic measures like the trace, of load ``shares`` [phase, layer, expert]."""
    agreed = _decide(phase_agreement(trace))
    copies = COPIES[agreed is not None]
    requests, starts = trace.requests, model.phase_starts
    lengths, task = np.tile(trace.lengths, (copies, 1)), np.tile(trace.request_subject, copies)
    recorded, wanted = _without_chance(trace, shares), Figures.of(trace, LAGS)
    kind_experts, sharpness = model.kind_experts, np.ones(len(model.layer_ids))
    late: list[TrafficModel] = []
    gini, spread = statistics.gini(statistics.loads(trace)), np.ones(len(model.layer_ids))
    tilt, least = np.zeros(len(model.layer_ids)), 1 / max(int(lengths[:requests, 0].sum()), 1)
    active, power = active_experts(trace, starts), np.ones(len(starts))
    for step in range(SIMULATED_ROUNDS):
        simulated = simulate(model, lengths, task, seed + step)
        target = _tilt(_concentrate(_spread(recorded, spread), power, trace.top_k), tilt, least)
        got = phase_loads(simulated, starts)
        model = replace(model, acceptance=moved_acceptance(model.acceptance, target, got, step))
        late = [*late[1 - LATE :], model]
        parts = [statistics.subset(simulated, np.arange(requests) + requests * copy) for copy in range(copies)]
        drawn = np.mean([statistics.gini(statistics.loads(part)) for part in parts], axis=0)
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
        sharpened = _sharpen(model.kind_popularity[-1], kind_experts, sharpness)
        model = replace(_move(model, wanted, found, 1 / (1 + step / SLOWER)), kind_experts=sharpened)
    averaged = ("acceptance", "repeats", "repeated", "stays", "kind_weights", "weights", "kind_experts")
    return replace(model, **{name: np.mean([getattr(each, name) for each in late], axis=0) for name in averaged})


def _spread(shares: np.ndarray, power: np.ndarray) -> np.ndarray:
    """Shares [phase, layer, expert] to a power of each layer: how far the loads of experts are apart."""
    powered = shares ** power[:, None]
    return powered / powered.sum(axis=2, keepdims=True)


def _concentrate(shares: np.ndarray, power: np.ndarray, top_k: int) -> np.ndarray:
    """Shares [phase, layer, expert] whose odds are to a power of each phase; none above 1 / top_k."""
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


def _move(model: TrafficModel, wanted: Figures, found: Figures, pace: float) -> TrafficModel:
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
    return np.stack([statistics.loads(trace, phase == each) for each in range(len(starts))])


def active_experts(trace: Trace, starts: np.ndarray) -> np.ndarray:
    """float64[phase]: experts that a phase of one decode step uses, mean over layers; 0 for other phases."""
    found = np.zeros(len(starts))
    for phase in np.flatnonzero(np.diff(starts) == 1)[1:]:
        found[phase] = (statistics.loads(trace, trace.iteration == starts[phase]) > 0).sum(axis=1).mean()
    return found


def phase_agreement(trace: Trace) -> np.ndarray | None:
    """float64[layer]: Spearman coefficient of the loads in prefill and in decode; None if a phase is missing."""
    prefill = trace.iteration == 0
    if prefill.all() or not prefill.any():
        return None
    one, other = statistics.loads(trace, prefill), statistics.loads(trace, ~prefill)
    return np.nan_to_num(statistics.spearman(one, other), nan=1)


def _without_chance(trace: Trace, shares: np.ndarray) -> np.ndarray:
    """Shares [phase, layer, expert] with the spread of infinitely long traffic, as generation adds its own noise.

    Square roots of loads (where chance is the same for all experts) vary by what experts differ in, which two halves of
    the requests have in common, and by chance. Deviations from their mean are scaled so that the former alone is left.
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


def _decide(agreed: np.ndarray | None) -> np.ndarray | None:
    """Agreement of the phases, moved by at most CHANCE away from STRONG where it is nearer than that.

    A layer whose coefficient is STRONG but for chance would else be above it in half of all generated traffic,
    and the share of strong layers would depend on the seed.
    """
    if agreed is None:
        return None
    side = np.where(agreed >= statistics.STRONG, CHANCE, -CHANCE)
    return np.where(np.abs(agreed - statistics.STRONG) < CHANCE, statistics.STRONG + side, agreed)


def _tilt(shares: np.ndarray, tilt: np.ndarray, least: float) -> np.ndarray:
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


def _sharpen(share: np.ndarray, kind_experts: np.ndarray, sharpness: np.ndarray) -> np.ndarray:
    """kind_experts to the power of sharpness [layer]; an expert's mean over the kinds, weighted by share, about as
    before.

    Otherwise rare experts would become rarer than acceptance, at most 1, can make up for.
    """
    powered = kind_experts ** sharpness[:, None]
    powered /= powered.sum(axis=2, keepdims=True)
    before, after = (np.tensordot(share, table, 1) for table in (kind_experts, powered))
    powered *= before / np.maximum(after, 1e-12)
    return powered / powered.sum(axis=2, keepdims=True)
