"""The demand of a run: step demands of a batch (`archsim.traffic.demand`), with origins and predictions added."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from archsim.base import compiled, host
from archsim.engine.executed_pairs import ExecutedPairs
from archsim.policies import free_heatmap, heatmap, registry
from archsim.policies.seen_routing import SeenRouting
from archsim.specs.policies import PATHS, PolicySpec
from archsim.traffic.demand import BatchSum, Demand, sum_together
from archsim.traffic.stacked import Stacked, let_go
from archsim.traffic.step_demand import Predicted, StepDemand, TokenRouting, dies_of_requests
from archsim.traffic.trace import StepTokens, TokenSource, draw_requests

if TYPE_CHECKING:
    from archsim.policies.lina import PathForecast


MOST_ROUTED = 1 << 14
"""Tokens of a step whose single routing is kept: 15 MB a step of DeepSeek-V3."""


@dataclass(frozen=True)
class RunDemand(Demand):
    """A batch's demand on a machine, under a policy. Iterating gives (MoE layer, `StepDemand`) in the order of time.
    Where the policy's routing executes other pairs than the chosen ones, tokens, first_seen and origins are those of
    executed pairs, see `ExecutedPairs`. Fields are None where nothing of the run needs them.
    """

    # uint16 or int32[step, layer, die, expert]: tokens by the die their request lives on (position·dies//batch)
    origins: np.ndarray | None = None
    predicted_rows: np.ndarray | None = None  # uint8[step, layer, expert, ceil(E/8)], see `FreeHeatmap`
    routed: np.ndarray | None = None  # int16[token, layer, k]: routing of single tokens, see `RoutedTokens`
    routed_die: np.ndarray | None = None  # int32[token]: where each lives
    routed_from: np.ndarray | None = None  # int64[step + 1]: where the tokens of each step begin
    # int32[step, die]: tokens that live on a die, executed or not; with the next three, where pairs are not those
    # chosen
    residents: np.ndarray | None = None
    rows: np.ndarray | None = None  # int64[step]: all of them
    lost_pairs: np.ndarray | None = None  # int64[step, layer]: fewer pairs than chosen
    lost_mass: np.ndarray | None = None  # float64[step, layer]: share of the gate mass that is not executed
    expected: np.ndarray | None = None  # float32[step, layer, expert], see `PathForecast`
    seen: SeenRouting | None = None  # tokens of all steps, for rules that ask for them

    def __iter__(self) -> Iterator[tuple[int, StepDemand]]:
        iteration = 0
        for step, layer in np.argwhere(self.tokens.any(axis=2)).tolist():
            if step != iteration:
                self._let_go()
                iteration = step
            yield layer, self.at(step, layer)
        self._let_go()

    def _let_go(self) -> None:
        for field in fields(self):
            if isinstance(column := getattr(self, field.name), np.ndarray):
                let_go(column)

    def at(self, step: int, layer: int) -> StepDemand:
        """The demand of a step."""
        tokens = self.tokens[step, layer]
        prefill = step == 0 and self.has_prefill
        routing = None
        if self.routed is not None and self.routed_die is not None and self.routed_from is not None:
            rows = slice(*self.routed_from[step : step + 2])
            if rows.start != rows.stop:
                routing = TokenRouting(np.ascontiguousarray(self.routed[rows, layer]), self.routed_die[rows])
        return StepDemand(
            step, tokens, tokens if prefill else np.zeros_like(tokens), self.first_seen[step, layer], self.top_k,
            origins=None if self.origins is None else self.origins[step, layer],
            predicted=None if self.predicted_rows is None else Predicted(self.predicted_rows[step, layer]),
            routing=routing, residents=None if self.residents is None else self.residents[step],
            expected=None if self.expected is None else self.expected[step, layer],
            seen=None if self.seen is None else self._seen_at(step),
        )  # fmt: skip

    def _seen_at(self, step: int) -> SeenRouting:
        assert self.seen is not None
        rows = slice(*np.searchsorted(self.seen.step, [step, step + 1]).tolist())
        return self.seen.rows(rows)

    @property
    def tokens_of_step(self) -> np.ndarray:
        """Tokens of every step, int64[step], whether all their pairs are executed or not."""
        if self.rows is not None:
            return self.rows
        return self.tokens[:, 0].sum(axis=1, dtype=np.int64) // self.top_k


class RunSum(BatchSum):
    """Sums what a `RunDemand` has of a batch as its routing passes: `origins` on ``origin_dies`` dies, the rows of a
    predictor, (``routing``, with origins) the routing of single tokens, and what the routing and replication of the
    policy ``shaped_by`` make of it. Where that executes other pairs than the chosen ones, no single routing is kept.
    """

    def __init__(
        self, source: TokenSource, batch: int, decode_steps: int, seed: int, *, origin_dies: int | None = None,
        predictor: heatmap.Predictor | None = None, routing: bool = False, shaped_by: PolicySpec | None = None,
        folder: Path | None = None, seen: bool = False,
    ) -> None:  # fmt: skip
        rule = registry.build_policy(shaped_by).routing if shaped_by else None
        self._has_origins = bool(origin_dies)
        self._executed = ExecutedPairs(source, batch, origin_dies or 1, rule, folder) if rule else None
        chosen = origin_dies if not self._executed else None
        self._routed = RoutedTokens(source, batch, chosen) if routing and chosen else None
        self._origins = Origins(source, batch, chosen, folder) if chosen else None
        self._heatmap = free_heatmap.FreeHeatmap(source, batch, predictor, folder) if predictor else None
        self._forecast = _forecast(source, shaped_by) if shaped_by else None
        self._tokens_seen = SeenTokens(source, batch, origin_dies or 1, seed) if seen else None
        every = self._origins, self._heatmap, self._routed, self._executed, self._forecast, self._tokens_seen
        watchers = [watcher for watcher in every if watcher]
        super().__init__(source, batch, decode_steps, seed, watchers, None if self._executed else folder)

    def demand(self) -> RunDemand:
        """The sums of a batch that has passed, which are forgotten here."""
        demand = super().demand()
        known: dict[str, Any] = {field.name: getattr(demand, field.name) for field in fields(demand)}
        if self._origins:
            known["origins"] = self._origins.take_counts()
        if self._executed:
            known |= self._executed.take(self._has_origins)
        if self._routed:
            known |= self._routed.take()
        return RunDemand(
            **known,
            predicted_rows=self._heatmap.take_rows() if self._heatmap else None,
            expected=self._forecast.take_expected() if self._forecast else None,
            seen=self._tokens_seen.take() if self._tokens_seen else None,
        )


def build_run_demand(
    source: TokenSource, batch: int, decode_steps: int, seed: int, *, threads: int | None = None, **parts: Any
) -> RunDemand:
    """The demand of a batch, summed alone; ``parts``: see `RunSum`."""
    one = RunSum(source, batch, decode_steps, seed, **parts)
    sum_together([one], threads)
    return one.demand()


def _forecast(source: TokenSource, policy: PolicySpec) -> "PathForecast | None":
    rule = policy.replication
    if rule.name != "lina" or rule.params["accuracy"]:
        return None
    from archsim.policies.lina import PathForecast

    return PathForecast(source, *(rule.params[name] for name in PATHS))


class Origins:
    """Counts tokens by the die on which they live: requests live in contiguous blocks of equal size."""

    def __init__(self, source: TokenSource, batch: int, dies: int, folder: Path | None = None):
        self._die = dies_of_requests(batch, dies)
        self._shape = len(source.layer_ids), dies, source.num_experts
        self._now = np.zeros(self._shape, np.int32)
        self._steps = Stacked(self._shape, np.uint16, folder and folder / "origins")

    def take_counts(self) -> np.ndarray:
        """Return the counts of all steps so far and clear them: uint16 or int32[step, layer, die, expert]."""
        return self._steps.take()

    def add(self, piece: StepTokens, layer_threads: host.LayerThreads) -> None:
        layer_threads.run(_count_origins, piece.experts, self._die[piece.request], self._now)

    def end(self, iteration: int, layer_threads: host.LayerThreads) -> None:
        self._steps.append(_narrow(self._now))
        self._now = np.zeros(self._shape, np.int32)


class RoutedTokens:
    """Keeps the routing of single tokens, of steps with at most MOST_ROUTED; larger steps would fill the memory."""

    def __init__(self, source: TokenSource, batch: int, dies: int):
        self._die = dies_of_requests(batch, dies)
        self._pieces: list[np.ndarray] = [np.empty((0, len(source.layer_ids), source.top_k), np.int16)]
        self._dies: list[np.ndarray] = [np.empty(0, np.int32)]
        self._now: list[StepTokens] = []
        self._tokens, self._from = 0, [0]

    def take(self) -> dict[str, np.ndarray]:
        """Return what `RunDemand` keeps of all steps so far, by name, and clear it."""
        kept = {
            "routed": np.concatenate(self._pieces),
            "routed_die": np.concatenate(self._dies),
            "routed_from": np.array(self._from, np.int64),
        }
        del self._pieces[1:], self._dies[1:], self._from[1:]
        return kept

    def add(self, piece: StepTokens, layer_threads: host.LayerThreads) -> None:
        self._tokens += len(piece.request)
        self._now = [*self._now, piece] if self._tokens <= MOST_ROUTED else []

    def end(self, iteration: int, layer_threads: host.LayerThreads) -> None:
        self._pieces += [piece.experts.copy() for piece in self._now]
        self._dies += [self._die[piece.request] for piece in self._now]
        self._from.append(self._from[-1] + sum(len(piece.request) for piece in self._now))
        self._tokens, self._now = 0, []


class SeenTokens:
    """Keeps every token for rules that see them (`SeenRouting`)."""

    def __init__(self, source: TokenSource, batch: int, dies: int, seed: int):
        requests = draw_requests(source.requests, batch, seed)
        subject = getattr(source, "request_task", getattr(source, "request_subject", None))
        names = getattr(source, "tasks", getattr(source, "subject_names", None))
        self._subject = np.zeros(batch, np.int16) if subject is None else np.asarray(subject)[requests].astype(np.int16)
        self._names = ("",) if subject is None or names is None else tuple(map(str, names))
        self._source, self._dies, self._die = source, dies, dies_of_requests(batch, dies)
        self._pieces: list[StepTokens] = []
        self._prefill_rows = np.zeros(batch, np.int64)

    def add(self, piece: StepTokens, layer_threads: host.LayerThreads) -> None:
        scores = None if piece.scores is None else piece.scores.copy()
        self._pieces.append(StepTokens(piece.iteration, piece.request.copy(), piece.experts.copy(), scores))
        if piece.iteration == 0:
            self._prefill_rows += np.bincount(piece.request, minlength=len(self._prefill_rows))

    def end(self, iteration: int, layer_threads: host.LayerThreads) -> None:
        """Nothing is left to do."""

    def take(self) -> SeenRouting:
        """All tokens so far, which are forgotten here."""
        pieces, self._pieces = self._pieces, []
        shape = (0, len(self._source.layer_ids), self._source.top_k)
        experts = np.concatenate([np.empty(shape, np.int16), *(each.experts for each in pieces)])
        request = np.concatenate([np.empty(0, np.int32), *(each.request for each in pieces)])
        step = np.repeat([each.iteration for each in pieces], [len(each.request) for each in pieces]).astype(np.int32)
        scores = [each.scores for each in pieces if each.scores is not None]
        prompt = (step == 0) & bool(self._prefill_rows.max(initial=0) > 1)
        return SeenRouting(
            experts=experts,
            die=self._die[request],
            request=request,
            step=step,
            prompt=prompt,
            dies=self._dies,
            num_experts=self._source.num_experts,
            subject_of=self._subject,
            subjects=self._names,
            scores=np.concatenate(scores) if scores and len(scores) == len(pieces) else None,
        )


def _narrow(counts: np.ndarray) -> np.ndarray:
    return counts.astype(np.uint16) if counts.max(initial=0) < 1 << 16 else counts


@compiled.kernel
def _count_origins(experts, first, end, die, origins):
    """Add experts int16[n, layer, k] of rows that live on die int32[n] to origins int32[layer, die, expert]."""
    rows, _, top_k = experts.shape
    for layer in range(first, end):
        for row in range(rows):
            for rank in range(top_k):
                origins[layer, die[row], experts[row, layer, rank]] += 1
