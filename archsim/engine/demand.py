"""The demand of a run, as a stream of step demands: a batch's tokens, with origins and predictions added.

Tokens live on dies (``origins``) only once there is a machine, and experts are predicted (``predicted_rows``) only
under a policy that predicts: neither is part of the workload (`archsim.workload.demand`), whose pass over the routing
they watch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from math import ceil, log2
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from archsim.base.compiled import kernel
from archsim.base.host import LayerThreads
from archsim.engine.state import (
    COMBINE,
    DATA_MESSAGES,
    DISPATCH,
    HIDDEN,
    REPLICAS,
    REQUESTS,
    STATISTICS,
    Machine,
    Tally,
)
from archsim.policies.prediction import FreeHeatmap, Predictor
from archsim.policies.registry import build_policy
from archsim.policies.routing import Pass, RoutingRule
from archsim.specs.policies import PATHS, PolicySpec
from archsim.workload.demand import (
    BatchSum,
    Demand,
    Predicted,
    Stacked,
    StepDemand,
    TokenRouting,
    dies_of_requests,
    let_go,
    sum_together,
)
from archsim.workload.trace import StepTokens, TokenSource

if TYPE_CHECKING:
    from archsim.policies.lina import PathForecast

# ---- executed_pairs
# The demand that a policy's routing leaves: pairs of token and expert that are executed, and the gate mass lost.


class ExecutedPairs:
    """Applies a routing to every forward pass of a batch; a `Watcher` of the demand.

    An iteration is one pass, or as many of ``routing.pass_tokens`` tokens as it takes, in the order of tokens.
    """

    def __init__(
        self, source: TokenSource, batch: int, dies: int, routing: RoutingRule, folder: Path | None = None
    ) -> None:
        self._layers, self._experts, self._dies = len(source.layer_ids), source.num_experts, dies
        self._routing, self._die = routing, dies_of_requests(batch, dies)
        self._waiting: list[StepTokens] = []
        self._begin()
        self._steps = {name: Stacked(now.shape, now.dtype, folder and folder / name) for name, now in self._now.items()}

    def _begin(self) -> None:
        layers, experts = self._layers, self._experts
        self._now: dict[str, np.ndarray] = {
            "tokens": np.zeros((layers, experts), np.int32),
            "first_seen": np.full((layers, experts), -1, np.int16),
            "origins": np.zeros((layers, self._dies, experts), np.int32),
            "residents": np.zeros(self._dies, np.int32),
            "rows": np.zeros((), np.int64),
            "lost_pairs": np.zeros(layers, np.int64),
            "mass": np.zeros(layers),
            "lost": np.zeros(layers),
        }
        self._passes = 0

    def add(self, piece: StepTokens, layer_threads: LayerThreads) -> None:
        self._waiting.append(piece)
        if sum(len(each.request) for each in self._waiting) >= self._routing.pass_tokens:
            self._run_passes(piece.iteration, whole=True)

    def end(self, iteration: int, layer_threads: LayerThreads) -> None:
        self._run_passes(iteration, whole=False)
        for name, value in self._now.items():
            self._steps[name].append(value)
        self._begin()

    def take(self, with_origins: bool) -> dict[str, Any]:
        """Fields of the demand (`archsim.engine.demand.RunDemand`) of all steps so far."""
        every: dict[str, Any] = {name: steps.take() for name, steps in self._steps.items()}
        lost, mass = every.pop("lost"), every.pop("mass")
        every["lost_mass"] = np.divide(lost, mass, out=np.zeros_like(lost), where=mass > 0)
        if not with_origins:
            every |= {"origins": None, "residents": None}
        return every

    def _run_passes(self, iteration: int, whole: bool) -> None:
        """Run the passes that are complete, or (not ``whole``) all that wait."""
        if not self._waiting:
            return
        request = np.concatenate([each.request for each in self._waiting])
        experts = np.concatenate([each.experts for each in self._waiting])
        scores = _scores_of(self._waiting)
        size = self._routing.pass_tokens
        end = len(request) // size * size if whole else len(request)
        for start in range(0, end, size):
            piece = slice(start, min(end, start + size))
            self._run_pass(iteration, request[piece], experts[piece], None if scores is None else scores[piece])
        left = StepTokens(iteration, request[end:], experts[end:], None if scores is None else scores[end:])
        self._waiting = [left] if end < len(request) else []

    def _run_pass(self, iteration: int, request: np.ndarray, experts: np.ndarray, scores: np.ndarray | None) -> None:
        now, die = self._now, self._die[request]
        now["residents"] += np.bincount(die, minlength=self._dies).astype(np.int32)
        now["rows"] += len(request)
        for layer in range(self._layers):
            chosen = experts[:, layer]
            of_layer = None if scores is None else scores[:, layer].astype(np.float64)
            done = self._routing.rule(Pass(chosen, self._experts, (iteration, self._passes, layer), of_layer))
            executed = np.ascontiguousarray(done.experts)
            count_pairs(executed, die, now["origins"][layer])
            expert = executed[executed >= 0].astype(np.int64)
            _append_new(now["first_seen"][layer], now["tokens"][layer], expert)
            now["tokens"][layer] += np.bincount(expert, minlength=self._experts).astype(np.int32)
            now["lost_pairs"][layer] += chosen.size - len(expert)
            now["mass"][layer] += done.chosen_mass
            now["lost"][layer] += done.chosen_mass - done.executed_mass
        self._passes += 1


@kernel
def count_pairs(executed, die, origins):
    """Add the tokens of every die and expert to int32[die, expert]; ``executed``: experts int[token, k], negative where
    a pair is not executed; ``die``: int32[token].
    """
    for token in range(len(executed)):
        for at in range(executed.shape[1]):
            if executed[token, at] >= 0:
                origins[die[token], executed[token, at]] += 1


def _scores_of(pieces: list[StepTokens]) -> np.ndarray | None:
    """Those of consecutive pieces of one source: all have scores, or none."""
    scores = [each.scores for each in pieces if each.scores is not None]
    return np.concatenate(scores) if scores else None


def _append_new(first_seen: np.ndarray, tokens: np.ndarray, expert: np.ndarray) -> None:
    """Append experts that have no tokens yet to ``first_seen: int16[expert]``, in order of appearance."""
    found, where = np.unique(expert, return_index=True)
    new = found[np.argsort(where, kind="stable")]
    new = new[tokens[new] == 0]
    begin = np.count_nonzero(tokens)
    first_seen[begin : begin + len(new)] = new


# ---- run_demand

MOST_ROUTED = 1 << 14
"""Tokens of a step whose single routing is kept: 15 MB a step of DeepSeek-V3."""


@dataclass(frozen=True)
class RunDemand(Demand):
    """A batch's demand on a machine, under a policy. Iterating gives (MoE layer, `StepDemand`) in the order of time.

    origins: uint16 or int32[step, layer, die, expert], tokens by the die their request lives on
    (position·dies//batch); or None. predicted_rows: uint8[step, layer, expert, ceil(E/8)], see `FreeHeatmap`; or
    None. routed: int16[token, layer, k], the routing of single tokens, routed_die: int32[token], where each lives, and
    routed_from: int64[step + 1], where the tokens of each step begin; or None. See `RoutedTokens`.

    Where the policy's routing executes other pairs than the chosen ones, tokens, first_seen and origins are those of
    executed pairs, see `ExecutedPairs`; else the next four are None. residents: int32[step, die] tokens that live on
    a die, executed or not; rows: int64[step] all of them; lost_pairs: int64[step, layer] fewer pairs than chosen;
    lost_mass: float64[step, layer] share of the gate mass that is not executed. expected: float32[step, layer, expert],
    see `PathForecast`; or None.
    """

    origins: np.ndarray | None = None
    predicted_rows: np.ndarray | None = None
    routed: np.ndarray | None = None
    routed_die: np.ndarray | None = None
    routed_from: np.ndarray | None = None
    residents: np.ndarray | None = None
    rows: np.ndarray | None = None
    lost_pairs: np.ndarray | None = None
    lost_mass: np.ndarray | None = None
    expected: np.ndarray | None = None

    def __iter__(self) -> Iterator[tuple[int, StepDemand]]:
        iteration = 0
        for step, layer in np.argwhere(self.tokens.any(axis=2)).tolist():
            if step != iteration:
                self._let_go()
                iteration = step
            yield layer, self.at(step, layer)
        self._let_go()

    def _let_go(self) -> None:
        """An iteration is over: what was read of it is not needed in memory."""
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
            step,
            tokens,
            tokens if prefill else np.zeros_like(tokens),
            self.first_seen[step, layer],
            self.top_k,
            origins=None if self.origins is None else self.origins[step, layer],
            predicted=None if self.predicted_rows is None else Predicted(self.predicted_rows[step, layer]),
            routing=routing,
            residents=None if self.residents is None else self.residents[step],
            expected=None if self.expected is None else self.expected[step, layer],
        )

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
        predictor: Predictor | None = None, routing: bool = False, shaped_by: PolicySpec | None = None,
        folder: Path | None = None,
    ) -> None:  # fmt: skip
        rule = build_policy(shaped_by).routing if shaped_by else None
        self._has_origins = bool(origin_dies)
        self._executed = ExecutedPairs(source, batch, origin_dies or 1, rule, folder) if rule else None
        chosen = origin_dies if not self._executed else None
        self._routed = RoutedTokens(source, batch, chosen) if routing and chosen else None
        self._origins = Origins(source, batch, chosen, folder) if chosen else None
        self._heatmap = FreeHeatmap(source, batch, predictor, folder) if predictor else None
        self._forecast = _forecast(source, shaped_by) if shaped_by else None
        every = self._origins, self._heatmap, self._routed, self._executed, self._forecast
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
        )


def build_run_demand(
    source: TokenSource, batch: int, decode_steps: int, seed: int, *, threads: int | None = None, **parts: Any
) -> RunDemand:
    """The demand of a batch, see `build_demand`; ``parts``: see `RunSum`."""
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
    """Counts tokens by the die on which they live; a `Watcher` of the demand. Requests live on dies in contiguous
    blocks of equal size.
    """

    def __init__(self, source: TokenSource, batch: int, dies: int, folder: Path | None = None):
        self._die = dies_of_requests(batch, dies)
        self._shape = len(source.layer_ids), dies, source.num_experts
        self._now = np.zeros(self._shape, np.int32)
        self._steps = Stacked(self._shape, np.uint16, folder and folder / "origins")

    def take_counts(self) -> np.ndarray:
        """Return the counts of all steps so far and clear them: uint16 or int32[step, layer, die, expert]."""
        return self._steps.take()

    def add(self, piece: StepTokens, layer_threads: LayerThreads) -> None:
        layer_threads.run(_count_origins, piece.experts, self._die[piece.request], self._now)

    def end(self, iteration: int, layer_threads: LayerThreads) -> None:
        self._steps.append(_narrow(self._now))
        self._now = np.zeros(self._shape, np.int32)


class RoutedTokens:
    """Keeps the routing of single tokens, of steps with at most MOST_ROUTED; a `Watcher` of the demand. Larger steps
    have none: it would fill the memory, and among so many tokens the expected number of dies is as good.
    """

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

    def add(self, piece: StepTokens, layer_threads: LayerThreads) -> None:
        self._tokens += len(piece.request)
        self._now = [*self._now, piece] if self._tokens <= MOST_ROUTED else []

    def end(self, iteration: int, layer_threads: LayerThreads) -> None:
        self._pieces += [piece.experts.copy() for piece in self._now]
        self._dies += [self._die[piece.request] for piece in self._now]
        self._from.append(self._from[-1] + sum(len(piece.request) for piece in self._now))
        self._tokens, self._now = 0, []


def _narrow(counts: np.ndarray) -> np.ndarray:
    return counts.astype(np.uint16) if counts.max(initial=0) < 1 << 16 else counts


@kernel
def _count_origins(experts, first, end, die, origins):
    """Add experts int16[n, layer, k] of rows that live on die int32[n] to origins int32[layer, die, expert]."""
    rows, _, top_k = experts.shape
    for layer in range(first, end):
        for row in range(rows):
            for rank in range(top_k):
                origins[layer, die[row], experts[row, layer, rank]] += 1


# ---- pair_traffic
# What moved between which dies and over which links, by class: weights, hidden vectors, replicas, statistics.
#
# The kernels count bytes by pair of dies (``Tally.pair_bytes``); those of a link follow from the routes, which are
# fixed.
# Expert parallelism counts what dispatch and combine put on links by itself (``Tally.phase_links``): a node forwards
# vectors that it received once, and a kernel gathers all of them, so pairs say who sent what for whom, not which way.
# Counts of loads (statistics) pass the fabric as latency and take part in no sharing, as a decision's messages do: the
# kernels do not see them, and they are added where links are measured (``archsim.runs.columns.measure_links``).

CLASSES: Mapping[str, int] = {
    "request": int(REQUESTS),
    "weight": int(DATA_MESSAGES),
    "dispatch": int(HIDDEN + DISPATCH),
    "combine": int(HIDDEN + COMBINE),
    "replica": int(REPLICAS),
    "statistics": int(STATISTICS),
}
"""Name of a class of messages → its row of ``Tally.pair_bytes``."""
PHASES: Mapping[int, str] = {int(DISPATCH): "dispatch", int(COMBINE): "combine"}


def pair_bytes(tally: Tally) -> dict[str, np.ndarray]:
    """Class → bytes sent from the first die to the second, int64[die, die]."""
    return {name: tally.pair_bytes[row] for name, row in CLASSES.items()}


class LinkTraffic(NamedTuple):
    """What one class put on every link; under ``contention: reserved`` links are edges."""

    n_bytes: np.ndarray  # int64[link]
    ns: np.ndarray  # float64[link] that they held it


def link_traffic(machine: Machine, tally: Tally, rates: np.ndarray) -> dict[str, LinkTraffic]:
    """Class → what it put on links. ``rates``: float64[link] bytes per ns."""
    crossed = np.zeros((len(CLASSES), machine.link_resources), np.int64)  # by the pairs of each class, on their routes
    cross_links(tally.pair_bytes.reshape(len(CLASSES), -1), machine.route_ptr, machine.route_links, crossed)
    found = {name: LinkTraffic(crossed[row], crossed[row] / rates) for name, row in CLASSES.items()}
    for phase in (DISPATCH, COMBINE):
        counted = tally.phase_links[phase]
        if counted["bytes"].any():
            found[PHASES[int(phase)]] = LinkTraffic(counted["bytes"], counted["busy_ns"])
    return found


def statistics_bytes(machine: Machine, tally: Tally) -> np.ndarray:
    """What counts of loads put on every link of a run, int64[link]."""
    crossed = np.zeros((1, machine.link_resources), np.int64)
    cross_links(tally.pair_bytes[STATISTICS].reshape(1, -1), machine.route_ptr, machine.route_links, crossed)
    return crossed[0]


@kernel
def cross_links(pair_bytes, route_ptr, route_links, crossed):
    """Add int64[class, pair] to int64[class, link] of the routes of the pairs."""
    for row in range(len(pair_bytes)):
        for pair in range(pair_bytes.shape[1]):
            if pair_bytes[row, pair] != 0:
                for at in range(route_ptr[pair], route_ptr[pair + 1]):
                    crossed[row, route_links[at]] += pair_bytes[row, pair]


def send_statistics(sent: np.ndarray, n_bytes: int, global_die: int, executor: str) -> None:
    """Add ``n_bytes`` of counts of every die to ``sent``, int64[die, die]: to the Global CP's die, or, if GPUs decide,
    to a partner in each of log2 D rounds of an all-reduce (``microarch.blocks.global_cp.all_reduce_ns``).
    """
    dies = len(sent)
    every = np.arange(dies)
    if executor != "gpu":
        sent[every != global_die, global_die] += n_bytes
        return
    for bit in range(ceil(log2(dies)) if dies > 1 else 0):
        partner = every ^ (1 << bit)
        there = partner < dies
        sent[every[there], partner[there]] += n_bytes
