"""The profile of a trace: every statistic, its sampling error, and its verdict on the paper's six insights."""

from dataclasses import dataclass

import numpy as np

from archsim.traffic import statistics
from archsim.traffic.statistics import coverage, halves, loads, subject_loads, working_set
from archsim.traffic.trace import Trace

POINTS = np.array([0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
BATCHES = (1, 4, 16, 64, 256, 1024)
LONGEST_REUSE = 64
POPULAR = 10

DEFINITIONS = {
    "cross_layer_top20": "Tokens are counted by the pair (expert at a MoE layer, expert at the next one). Part of all "
    "selections in the most frequent 20 % of the E² pairs, ranked on the same data.",
    "cross_token_top20": "The same for (expert of a token, expert of the next token of the request) at one layer.",
    "cross_layer_conditional": "As cross_layer_top20, but pairs are ranked by the conditional probability of the second "  # noqa: E501
    "expert given the first, as the heatmaps show it. The paper counts the most frequent pairs: that is the figure "
    "above.",
    "cross_token_conditional": "As cross_token_top20, pairs ranked by conditional probability.",
    "prefill_decode_spearman": "Spearman rank correlation, over all experts of a layer (ties share their mean rank), of "  # noqa: E501
    "their loads in prefill and in decode.",
    "cross_layer_agreement": "Spearman rank correlation, over all pairs of experts, of the heatmaps across layers of "
    "prefill and of decode (figure 6). Most pairs are rare, so it is low unless a trace is long.",
    "cross_token_agreement": "The same of the heatmaps across tokens.",
    "cross_layer_ceiling": "The same of the heatmaps across layers of two halves of the requests: what a trace of this "
    "length can show.",
    "cross_token_ceiling": "The same of the heatmaps across tokens.",
    "max_over_mean": "Load of the most loaded expert over the mean load.",
    "gini": "Gini coefficient of the loads: 0 for equal loads, 1 − 1/E where one expert has all.",
    "load_top20": "Part of all selections that the most loaded 20 % of the experts get.",
    "coactivation_top20": "Part of all co-selections by one token in the most frequent 20 % of pairs i < j.",
    "same_expert": "Share of a token's experts that the token before it had too.",
    "same_expert_far": f"The same for the token {statistics.FAR} before it: what a request prefers, no phrase.",
    "cross_layer_null": "cross_layer_top20 of as many pairs sampled from the loads alone, layers independent.",
    "cross_token_null": "cross_token_top20 of as many pairs sampled from the loads alone, tokens independent.",
    "predictable_ceiling": "Pairs (token, next token) whose second expert is in the 20 % that a heatmap of the same "
    "pairs marks for the first: no fixed choice of as many experts does better.",
    "predictable_unseen": "The same with the heatmap of one half of the requests on the pairs of the other half.",
    "predictable_load": "The same with the most loaded 20 % of experts for all: what popularity alone predicts.",
    "drift": "Total variation distance of the loads of the last quarter of the requests' steps from the first quarter.",
    "subject_distance": "Mean total variation distance of the loads of pairs of topics.",
}


@dataclass(frozen=True)
class Insight:
    """One of the six insights of Yu et al., ISCA 2026 (arXiv 2510.05497v4), section III."""

    number: int
    claim: str
    measured: str
    verdict: str


@dataclass(frozen=True)
class Profile:
    """The statistics of a trace."""

    trace: Trace  # that was measured
    layers: dict[str, np.ndarray]  # name of `DEFINITIONS` → float64[layer] (shorter across layers)
    # name → means of the two halves; of pairs of experts, those of one half that the other half ranks highest
    halves: dict[str, tuple[float, float]]
    coverage: dict[str, np.ndarray]  # name → float64[point] over `POINTS`, mean over layers
    heat: dict[str, np.ndarray]  # name → float64[i, j], conditional probabilities of the layer in the middle
    loads: np.ndarray  # int64[layer, expert]
    subject_loads: np.ndarray  # int64[subject, layer, expert]
    reuse: np.ndarray  # int64[distance + 1]
    working_set: np.ndarray  # float64[batch, layer], NaN where no step has so many requests

    def mean(self, name: str) -> float:
        return _mean(self.layers[name]) if name in self.layers else float("nan")


def profile(trace: Trace) -> Profile:
    """Measure a trace; see `Profile`."""
    one, other = halves(trace)
    counts, across = loads(trace), statistics.cross_layer(trace)
    following = statistics.cross_token(trace)
    tables = {"cross_layer": across, "cross_token": following}
    if trace.top_k > 1:
        tables["coactivation"] = statistics.coactivation(trace)
    subjects = subject_loads(trace)
    agreement = statistics.heatmap_agreement(trace)
    ceiling = statistics.heatmap_ceiling(trace) if agreement else {}
    following_of_one, following_of_other = statistics.cross_token(one), statistics.cross_token(other)
    layers = statistics.layer_statistics(trace) | {
        "cross_layer_conditional": statistics.conditional_coverage(across),
        "cross_token_conditional": statistics.conditional_coverage(following),
        **{f"{name}_agreement": ranks for name, ranks in agreement.items()},
        **{f"{name}_ceiling": ranks for name, ranks in ceiling.items()},
        "cross_layer_null": _null(counts[:-1], counts[1:], across),
        "cross_token_null": _null(counts, counts, following),
        "predictable_ceiling": statistics.predictable(following, following),
        "predictable_unseen": statistics.predictable(following_of_one, following_of_other),
        "predictable_load": statistics.predictable(np.repeat(counts[:, None], trace.num_experts, axis=1), following),
        "drift": statistics.drift(trace)[-1],
    }
    if len(subjects) > 1:
        layers["subject_distance"] = _mean_distance(subjects)
    of_one, of_other = statistics.layer_statistics(one), statistics.layer_statistics(other)
    pairs = {"cross_token_top20": [following_of_one, following_of_other]}
    pairs["cross_layer_top20"] = [statistics.cross_layer(half) for half in (one, other)]
    if trace.top_k > 1:
        pairs["coactivation_top20"] = [statistics.coactivation(half) for half in (one, other)]
    middle = len(trace.layer_ids) // 2
    return Profile(
        trace=trace,
        layers=layers,
        halves={name: (_mean(of_one[name]), _mean(of_other[name])) for name in of_one.keys() & of_other.keys()}
        | {name: _each_by_the_other(*tables) for name, tables in pairs.items()},
        coverage={name: np.nanmean(statistics.cumulative_coverage(table, POINTS), axis=0) for name, table in tables.items() if len(table)},  # noqa: E501
        heat={name: _conditional(table[min(middle, len(table) - 1)]) for name, table in tables.items() if len(table)},
        loads=counts,
        subject_loads=subjects,
        reuse=statistics.reuse_distances(trace, LONGEST_REUSE),
        working_set=working_set(trace, BATCHES),
    )  # fmt: skip


def _mean(values: np.ndarray) -> float:
    """Over layers that have a value; nan if none has."""
    return float(np.mean(values[~np.isnan(values)])) if (~np.isnan(values)).any() else float("nan")


def _each_by_the_other(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Coverage of each half by the pairs that the other ranks highest, mean over layers."""
    return _mean(statistics.coverage_unseen(other, one)), _mean(statistics.coverage_unseen(one, other))


def insights(found: Profile) -> list[Insight]:
    """The six insights, each with this trace's verdict."""
    reuse = found.reuse / found.reuse.sum()
    near = float(reuse[1:9].sum())
    top = found.mean("load_top20")
    ceiling, load = found.mean("predictable_ceiling"), found.mean("predictable_load")
    return [
        _agreement(found),
        Insight(
            2,
            "Experts repeat across layers and tokens: prefetch and cache them in a hierarchy.",
            f"top 20 % of pairs: {found.mean('cross_layer_top20'):.0%} across layers, "
            f"{found.mean('cross_token_top20'):.0%} "
            f"across tokens (popularity alone: {found.mean('cross_token_null'):.0%}); {near:.0%} of selections reuse "
            f"an "
            f"expert of the last 8 tokens; a heatmap predicts at most {ceiling:.0%}, popularity {load:.0%}",
            _verdict(found.mean("cross_token_top20") >= 0.4 and ceiling > load),
        ),
        Insight(
            3,
            "Loads differ between experts: distribute work by where experts are.",
            f"Gini coefficient {found.mean('gini'):.2f}; the top 20 % of experts get {top:.0%}",
            _verdict(top > 0.3),
        ),
        Insight(
            4,
            "Duplicate or decentralise popular experts.",
            f"most loaded over mean: {found.mean('max_over_mean'):.1f} (mean of layers), "
            f"{float(np.nanmax(found.layers['max_over_mean'])):.1f} (worst layer)",
            _verdict(found.mean("max_over_mean") >= 2),
        ),
        _separation(found),
        _subjects(found),
    ]


def _agreement(found: Profile) -> Insight:
    """By the heatmaps, as the paper has it (section III-B3)."""
    claim = "Experts chosen in prefill are chosen in decode: predict from the prefill."
    if "cross_token_agreement" not in found.layers:
        return Insight(1, claim, "the trace has only one of the phases", "not measurable")
    values, most = (
        np.concatenate([found.layers[f"{name}_{kind}"] for name in ("cross_layer", "cross_token")])
        for kind in ("agreement", "ceiling")
    )
    strong, agree = float((values >= statistics.STRONG).mean()), _mean(most)
    if np.isnan(agree):
        return Insight(1, claim, "the trace has no two halves that have both phases", "not measurable")
    measured = (
        f"Spearman of the heatmaps {np.nanmean(values):.2f} (mean), at least {statistics.STRONG} in {strong:.0%} of "
        f"them; two halves of the requests agree by {agree:.2f}, more no trace of this length can show; "
        f"Spearman of the loads {found.mean('prefill_decode_spearman'):.2f}"
    )
    if strong < 0.5 and agree < statistics.STRONG:
        return Insight(1, claim, f"{measured}: the trace is too short", "not measurable")
    return Insight(1, claim, measured, _verdict(strong >= 0.5))


def _separation(found: Profile) -> Insight:
    claim = "Some pairs of experts are chosen together: place them on different dies."
    if found.trace.top_k == 1:
        return Insight(5, claim, "tokens have one expert per layer", "not measurable")
    value = found.mean("coactivation_top20")
    measured = f"top 20 % of pairs: {value:.0%} of co-selections (equal pairs: 20 %); tables are symmetric"
    return Insight(5, claim, measured, _verdict(value > 0.4))


def _subjects(found: Profile) -> Insight:
    claim = "Tasks and languages prefer different experts: place experts by the workload."
    if len(found.subject_loads) < 2:
        return Insight(6, claim, "the trace has one topic", "not measurable")
    first, second = np.argsort(-found.subject_loads, axis=2)[:2, :, :POPULAR]
    common = np.mean([len(np.intersect1d(*pair)) for pair in zip(first, second, strict=True)])
    measured = (
        f"loads of two topics differ by {found.mean('subject_distance'):.2f} (total variation); the first two share "
        f"{common:.1f} of their {POPULAR} most popular experts"
    )
    return Insight(6, claim, measured, _verdict(found.mean("subject_distance") > 0.1))


def _verdict(supported: bool) -> str:
    return "supported" if supported else "not supported"


def _null(first: np.ndarray, second: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    return coverage(statistics.null_pairs(first, second, pairs.sum(axis=(1, 2), dtype=np.int64)))


def _mean_distance(subjects: np.ndarray) -> np.ndarray:
    """float64[layer]: mean total variation distance of all pairs of (at most 16) subjects."""
    shares = [counts / np.maximum(counts.sum(axis=1, keepdims=True), 1) for counts in subjects[:16]]
    pairs = [(one, other) for index, one in enumerate(shares) for other in shares[:index]]
    return np.mean([np.abs(one - other).sum(axis=1) / 2 for one, other in pairs], axis=0)


def _conditional(counts: np.ndarray) -> np.ndarray:
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
