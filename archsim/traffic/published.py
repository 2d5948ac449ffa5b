"""Statistics of a model's routing that papers print or recordings show: what they are, their file, and their limits.

A file has ``model`` and ``published``, a list of `PublishedStatistic`; a preset of configs/traffic has the same list,
with what its traffic gives beside each. What two statistics exclude is refused with the lines of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, field_validator, model_validator

from archsim.base import quantities, validation
from archsim.base.errors import SpecError, did_you_mean
from archsim.base.fields import KeyProblem, Spec
from archsim.base.sums import sum
from archsim.base.yaml import Tree, read_yaml
from archsim.traffic import statistics
from archsim.traffic.trace import Trace

SAMPLE_REQUESTS = 256
"""Requests of generated traffic that is measured. Of 57,000 tokens with eight of 256 experts a pair is seen 56 times,
so that chance adds less than 1 % to the share of the most frequent pairs; of 64 requests it adds 3 %."""


class Statistic(NamedTuple):
    """A number of a trace."""

    meaning: str  # in words
    of_trace: Callable[[Trace, float], float]  # of a trace, and ``at``
    low: float = 0.0  # no trace has less
    high: float = np.inf  # nor more
    at: str = ""  # what ``at`` is; '': it has none


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def _phases(trace: Trace) -> Iterator[tuple[float, np.ndarray]]:
    """(share of the tokens, loads [layer, expert]) of prompts and of decode steps, those that there are."""
    prefill = trace.iteration == 0
    for rows in (prefill, ~prefill):
        if rows.any():
            yield float(rows.mean()), statistics.loads(trace, rows)


def _by_phase(trace: Trace, of_loads: Callable[[np.ndarray], np.ndarray]) -> float:
    return sum(share * _mean(of_loads(loads)) for share, loads in _phases(trace))


def dropped_share(loads: np.ndarray, gamma: float) -> np.ndarray:
    """float64[layer]: pairs above gamma times the mean of an expert, of all (capacity-aware inference, equation 13)."""
    mean = loads.mean(axis=1, keepdims=True)
    return np.maximum(loads - gamma * mean, 0).sum(axis=1) / np.maximum(loads.sum(axis=1), 1)


def _by_rank(loads: np.ndarray, ranks: float) -> np.ndarray:
    """float64[layer, rank], experts contiguously on the ranks."""
    rank = np.arange(loads.shape[1]) * int(ranks) // loads.shape[1]
    found = np.zeros((len(loads), int(ranks)))
    for at, of_expert in enumerate(loads.T):
        found[:, rank[at]] += of_expert
    return found


def _of_rows(pairs: np.ndarray) -> np.ndarray:
    """float64[layer]: what the largest fifth of the entries of a row cover of it, as a mean over rows that are seen."""
    keep = max(1, round(statistics.TOP * pairs.shape[2]))
    total = pairs.sum(axis=2, dtype=np.float64)
    most = np.partition(pairs, pairs.shape[2] - keep, axis=2)[:, :, -keep:].sum(axis=2, dtype=np.float64)
    return np.nanmean(np.where(total > 0, most / np.maximum(total, 1), np.nan), axis=1)


def _largest(loads: np.ndarray, count: int) -> np.ndarray:
    ordered = np.sort(loads, axis=1)
    return ordered[:, -count:].sum(axis=1) / np.maximum(ordered.sum(axis=1), 1)


def _common_top(trace: Trace, count: float) -> float:
    """Of the ``count`` most loaded experts of decode steps, those among the ``count`` most loaded of prompts."""
    if len(phases := [loads for _, loads in _phases(trace)]) < 2:
        return float("nan")
    one, other = (np.argsort(-loads, axis=1, kind="stable")[:, : int(count)] for loads in phases)
    return float(np.mean([len(np.intersect1d(*pair)) for pair in zip(one, other, strict=True)]) / count)


def path_accuracy(trace: Trace, length: float) -> float:
    """Mean part of experts that rank-0 paths (Lina's) of half of the requests predict in the other, after layer 0."""
    one, other = statistics.halves(trace)
    found = []
    for layer in range(1, len(trace.layer_ids)):
        predicted = _followers(one, other, layer, int(length))
        found.append((other.experts[:, layer, :, None] == predicted[:, None, :]).any(axis=2).mean())
    return float(np.mean(found)) if found else float("nan")


def _followers(one: Trace, other: Trace, layer: int, length: int) -> np.ndarray:
    """int64[token of other, k]: most frequent followers in ``one`` of the longest known path, then of shorter."""
    size, top_k = one.num_experts, one.top_k
    after = one.experts[:, layer, 0].astype(np.int64)
    best = np.tile(np.arange(top_k), (len(other.experts), 1))
    known, keys = np.ones(len(best), bool), [np.zeros(len(each.experts), np.int64) for each in (one, other)]
    for back in range(min(layer, length) + 1):
        if back:
            keys = [key * size + each.experts[:, layer - back, 0] for key, each in zip(keys, (one, other), strict=True)]
        pair, count = np.unique(keys[0] * size + after, return_counts=True)
        order = np.lexsort((pair, -count, pair // size))
        path, first = np.unique(pair[order] // size, return_index=True)
        rank = np.arange(len(pair)) - np.repeat(first, np.diff(np.append(first, len(pair))))
        table = np.full((len(path), top_k), -1, np.int64)
        some = rank < top_k
        table[np.searchsorted(path, pair[order][some] // size), rank[some]] = pair[order][some] % size
        at = np.minimum(np.searchsorted(path, keys[1]), len(path) - 1)
        known &= path[at] == keys[1]
        every = np.concatenate([table[at], best], axis=1)
        again = np.tril(every[:, :, None] == every[:, None, :], -1).any(axis=2) | (every < 0)
        ahead = np.take_along_axis(every, np.argsort(again, axis=1, kind="stable")[:, :top_k], axis=1)
        best = np.where(known[:, None], ahead, best)
    return best


def popularity_accuracy(trace: Trace, _: float) -> float:
    """The same of the experts that one half of the requests chooses most, for all tokens of the other."""
    one, other = statistics.halves(trace)
    top = np.argsort(-statistics.loads(one), axis=1, kind="stable")[:, : trace.top_k]
    return float(np.mean([np.isin(other.experts[:, layer], top[layer]).mean() for layer in range(len(top))]))


def _table(trace: Trace, name: str) -> np.ndarray:
    return statistics.layer_statistics(trace).get(name, np.array([np.nan]))


_TOP = statistics.TOP
STATISTICS: dict[str, Statistic] = {
    "load_top20": Statistic("pairs of the most loaded 20 % of the experts, of all",
                            lambda t, _: _mean(statistics.coverage(statistics.loads(t))), _TOP, 1.0),
    "gini": Statistic("Gini coefficient of the loads", lambda t, _: _mean(statistics.gini(statistics.loads(t))), 0, 1),
    "max_over_mean": Statistic("load of the most loaded expert over the mean, mean over layers",
                               lambda t, _: _mean(statistics.max_over_mean(statistics.loads(t))), 1.0),
    "max_over_mean_most": Statistic("the same of the layer where it is most",
                                    lambda t, _: float(statistics.max_over_mean(statistics.loads(t)).max()), 1.0),
    "max_over_mean_least": Statistic("the same of the layer where it is least",
                                     lambda t, _: float(statistics.max_over_mean(statistics.loads(t)).min()), 1.0),
    "top2_share_most": Statistic("pairs of the two most loaded experts, of the layer where they have most",
                                 lambda t, _: float(_largest(statistics.loads(t), 2).max()), 0, 1),
    "dropped": Statistic("pairs above a capacity of an expert, of all; prompts and decode steps each by their loads",
                         lambda t, at: _by_phase(t, lambda loads: dropped_share(loads, at)), 0, 1,
                         "gamma, the capacity over the mean"),
    "rank_max_over_mean": Statistic("load of the busiest rank over the mean, experts contiguously on the ranks",
                                    lambda t, at: _mean(statistics.max_over_mean(_by_rank(statistics.loads(t), at))),
                                    1.0, np.inf, "ranks"),
    "rank_max_over_min": Statistic(
        "load of the busiest rank over the least busy one",
        lambda t, at: _mean(np.divide(*(f(_by_rank(statistics.loads(t), at), axis=1) for f in (np.max, np.min)))),
        1.0, np.inf, "ranks"),
    "cross_layer_top20": Statistic("token counts in the most frequent 20 % of pairs (expert, expert of the next layer)",
                                   lambda t, _: _mean(statistics.coverage(statistics.cross_layer(t))), _TOP, 1.0),
    "cross_token_top20": Statistic("the same of (expert, expert of the next token)",
                                   lambda t, _: _mean(statistics.coverage(statistics.cross_token(t))), _TOP, 1.0),
    "next_layer_top20": Statistic("conditional probability of the most probable 20 % of experts of the next layer",
                                  lambda t, _: _mean(_of_rows(statistics.cross_layer(t))), _TOP, 1.0),
    "next_token_top20": Statistic("the same of the next token", lambda t, _: _mean(_of_rows(statistics.cross_token(t))),
                                  _TOP, 1.0),
    "coactivation_top20": Statistic("co-selections in the most frequent 20 % of pairs of one layer",
                                    lambda t, _: _mean(_table(t, "coactivation_top20")), _TOP, 1.0),
    "coactivation_top10": Statistic("co-selections in the most frequent 10 % of pairs of one layer",
                                    lambda t, _: _mean(statistics.pair_coverage(statistics.coactivation(t), 0.1)),
                                    0.1, 1.0),
    "same_expert": Statistic("share of a token's experts that the token before it had",
                             lambda t, _: _mean(statistics.same_expert(t)), 0, 1),
    "same_expert_far": Statistic(f"the same of the token {statistics.FAR} before it",
                                 lambda t, _: _mean(statistics.same_expert(t, statistics.FAR)), 0, 1),
    "prefill_decode_spearman": Statistic("rank correlation of loads in prompts and in decode steps",
                                         lambda t, _: _mean(_table(t, "prefill_decode_spearman")), -1, 1),
    "top_prefill_in_decode": Statistic("most loaded experts of decode steps among as many of prompts", _common_top,
                                       0, 1, "how many experts"),
    "path_accuracy": Statistic("a token's experts that Lina's table of paths predicts for other requests",
                               path_accuracy, 0, 1, "layers of a path"),
    "popularity_accuracy": Statistic("a token's experts among the top_k that other requests choose most",
                                     popularity_accuracy, 0, 1),
    "active_experts": Statistic("experts that a decode step of a batch activates in a layer",
                                lambda t, at: _mean(statistics.working_set(t, (int(at),))), 1, np.inf, "requests"),
}  # fmt: skip

HOW = {"recorded": 0.25, "printed": 0.003, "figure": 0.05, "text": 0.1}
"""Least relative half width of an interval in a fit, by how a value was measured. Recorded loads are of a few subjects:
those of OLMoE's six text domains and of Llama-4's subjects differ by a quarter. Of a printed number half of its last
digit, of a figure what reading it adds, of an "about" or a "more than" in a text a tenth."""


class PublishedStatistic(Spec):
    """A statistic of a model's routing, with its source."""

    statistic: str  # one of `STATISTICS`
    # Where the statistic has a parameter (gamma, ranks, …).
    at: Annotated[float, quantities.number(0, 1e9)] | None = None
    value: Annotated[float, quantities.number(-1, 1e9)]  # a share from 0 to 1, or a ratio
    # From where to where it may lie: its rounding, or a spread. An end that is null is open ("more than").
    interval: tuple[
        Annotated[float, quantities.number(-1, 1e9)] | None,
        Annotated[float, quantities.number(-1, 1e9)] | None,
    ]
    how: Literal["recorded", "printed", "figure", "text"] = "printed"  # how it was measured, which is its weight
    source: Annotated[str, Field(min_length=1)]  # paper, recording or repository
    place: Annotated[str, Field(min_length=1)]  # section, figure or file in the source
    # Written by a fit: what the traffic gives; how far that is outside the interval, of its nearest end (null: within);
    # whether the fit did not see it.
    generated: Annotated[float, quantities.number(-1, 1e9)] | None = None
    miss: Annotated[float, quantities.number(-1e9, 1e9)] | None = None
    held_out: bool = False

    @field_validator("statistic")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in STATISTICS:
            raise ValueError(
                f"unknown statistic {name!r}{did_you_mean(name, STATISTICS)} (known: {', '.join(STATISTICS)})"
            )
        return name

    @model_validator(mode="after")
    def _consistent(self) -> PublishedStatistic:
        known = STATISTICS[self.statistic]
        if bool(known.at) != (self.at is not None):
            raise KeyProblem(("at",), f"is missing: {known.at}" if known.at else f"{self.statistic} has no parameter")
        low, high = self.ends
        if not low <= self.value <= high:
            raise KeyProblem(("interval",), f"{[*self.interval]} does not hold the value {self.value:g}")
        return self

    @property
    def ends(self) -> tuple[float, float]:
        low, high = self.interval
        return -np.inf if low is None else low, np.inf if high is None else high

    @property
    def label(self) -> str:
        return self.statistic + ("" if self.at is None else f" at {self.at:g}")

    def miss_of(self, found: float) -> float | None:
        """How far a value is outside the interval, relative to its nearest end; None: within."""
        low, high = self.ends
        if low <= found <= high or not np.isfinite(found):
            return None
        end = low if found < low else high
        return float((found - end) / abs(end)) if end else float(found)

    def measure(self, trace: Trace) -> float:
        """The statistic of a trace; nan where it has none."""
        return STATISTICS[self.statistic].of_trace(trace, self.at or 0.0)


class PublishedFile(Spec):
    """Statistics of the routing of one model."""

    model: Annotated[str, Field(min_length=1)]  # name of the model
    published: Annotated[tuple[PublishedStatistic, ...], Field(min_length=1)]  # its statistics


def read_published(file: Path) -> PublishedFile:
    """The statistics in a file: of its own, or a preset's. Raises SpecError for what is wrong or contradicts itself."""
    tree = read_yaml(file)
    if isinstance(tree.data, dict) and "groups" in tree.data:
        own = {key: tree.data[key] for key in ("model", "published") if key in tree.data}
        tree = Tree({"model": tree.data.get("name"), **own}, tree.places)
    check_sources(tree)
    found = validation.validate(PublishedFile, tree)
    check_contradictions(found.published, tree)
    return found


def check_sources(tree: Tree) -> None:
    """Raise SpecError, with the lines of the statistic and of its source, for a source without a place."""
    listed = tree.data.get("published") if isinstance(tree.data, dict) else None
    for index, each in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(each, dict) and each.get("source") and not each.get("place"):
            keys = ("published", index)
            raise SpecError(
                f"{tree.place((*keys, 'source'))}: the source {each['source']!r} has no `place`. Give it, the "
                f"section, table or figure where {each.get('statistic')} stands\n{tree.place(keys)}: the statistic"
            )


def check_contradictions(published: tuple[PublishedStatistic, ...], tree: Tree) -> None:
    """Raise SpecError, with the lines of both, for statistics that no traffic has together, or that none has."""
    lines = []
    for index, each in enumerate(published):
        known, at = STATISTICS[each.statistic], ("published", index)
        if not known.low <= each.value <= known.high:
            bound = f"at least {known.low:g}" if each.value < known.low else f"at most {known.high:g}"
            lines.append(
                f"{tree.place((*at, 'value'))}: {each.label} is {each.value:g}; {known.meaning}: {bound}\n"
                f"{tree.place((*at, 'statistic'))}: the statistic"
            )
        for other in range(index):
            if said := _excludes(published[other], each) or _excludes(each, published[other]):
                lines.append(
                    f"{tree.place(('published', other, 'value'))}: {published[other].label} is "
                    f"{published[other].value:g}, and\n{tree.place((*at, 'value'))}: {each.label} is {each.value:g}: "
                    f"{said}"
                )
    if lines:
        raise SpecError("\n".join(lines))


def _excludes(one: PublishedStatistic, other: PublishedStatistic) -> str:
    """Why no traffic has both, wherever in their intervals they lie; ''. Each relation holds in every layer, and so for
    means over layers. What was recorded is of other text than what is printed: there a difference is a miss.
    """
    if (one.how == "recorded") != (other.how == "recorded"):
        return ""
    pair, (least, most), (low, high) = (one.statistic, other.statistic), one.ends, other.ends
    if pair[0] == pair[1] and one.at == other.at and one.how != "recorded":
        return "" if least <= high and low <= most else "they exclude each other"
    if pair == ("load_top20", "max_over_mean") and least > _TOP * high * 1.05:  # 1.05: a fifth of 64 experts are 13
        return f"a fifth of the experts have at most a fifth of {high:g}"
    if pair == ("load_top20", "gini") and high < (least - _TOP) * 0.95:
        return f"the Gini coefficient is at least {least - _TOP:g}, the share above 20 %"
    if pair == ("max_over_mean_most", "max_over_mean") and most < low:
        return "the most of a layer is at least the mean over layers"
    if pair == ("max_over_mean_least", "max_over_mean") and least > high:
        return "the least of a layer is at most the mean over layers"
    if pair == ("dropped", "dropped") and (one.at or 0) < (other.at or 0) and most < low:
        return "a larger capacity drops no more"
    if pair == ("coactivation_top10", "coactivation_top20") and least > high:
        return "a tenth of the pairs has no more than a fifth of them"
    if pair == ("dropped", "max_over_mean_most") and least > 0 and (one.at or 0) >= high:
        return "nothing is dropped above the most loaded expert"
    return ""


def measure_statistics(published: tuple[PublishedStatistic, ...], trace: Trace) -> tuple[PublishedStatistic, ...]:
    """The statistics, each with what a trace has of it."""
    found = []
    for each in published:
        value = each.measure(trace)
        known = float(f"{value:.4g}") if np.isfinite(value) else None
        miss = None if known is None else each.miss_of(known)
        found.append(each.model_copy(update={"generated": known, "miss": None if miss is None else round(miss, 4)}))
    return tuple(found)


def rows_of(published: tuple[PublishedStatistic, ...]) -> list[dict[str, Any]]:
    """What a file keeps of them: no key that says nothing."""
    return [
        {key: list(value) if isinstance(value, tuple) else value
         for key, value in each.model_dump().items() if value is not None and value is not False}
        for each in published
    ]  # fmt: skip


def table_lines(published: tuple[PublishedStatistic, ...], column: str) -> list[str]:
    """Lines of a table: statistic, what ``column`` names, published, interval, miss, source and place."""
    if not published:
        return []
    lines = [f"{'statistic':<26} {column:>9} {'published':>9} {'interval':>15} {'miss':>8}  source"]
    for each in published:
        ends = ["" if end is None else f"{end:.4g}" for end in each.interval]
        found = "–" if each.generated is None else f"{each.generated:.4g}"
        miss = "" if each.miss is None else f"{each.miss:+.1%}"
        note = " (held out)" if each.held_out else ""
        lines.append(
            f"{each.label:<26} {found:>9} {each.value:>9.4g} {'–'.join(ends):>15} {miss:>8}  {each.source}, "
            f"{each.place}{note}"
        )
    return lines
