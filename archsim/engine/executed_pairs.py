"""The demand that a policy's routing leaves: pairs of token and expert that are executed, and the gate mass lost."""

from pathlib import Path
from typing import Any

import numpy as np

from archsim.base import compiled, host
from archsim.policies.routing import Pass, RoutingRule
from archsim.traffic.stacked import Stacked
from archsim.traffic.step_demand import dies_of_requests
from archsim.traffic.trace import StepTokens, TokenSource


class ExecutedPairs:
    """Applies a routing to every pass of a batch: an iteration, or ``routing.pass_tokens`` tokens of it, in order."""

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

    def add(self, piece: StepTokens, layer_threads: host.LayerThreads) -> None:
        self._waiting.append(piece)
        if sum(len(each.request) for each in self._waiting) >= self._routing.pass_tokens:
            self._run_passes(piece.iteration, whole=True)

    def end(self, iteration: int, layer_threads: host.LayerThreads) -> None:
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


@compiled.kernel
def count_pairs(executed, die, origins):
    """Add tokens to int32[die, expert]; ``executed``: int[token, k], negative: not executed; ``die``: int32[token]."""
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
