"""Generated routing of several subjects, each by a traffic model of its own.

Subjects of one model differ in their loads, in how often experts repeat, and in how their answers begin; one model
fitted to all of them together has more active experts in its first steps, and flatter loads, than any of them. A
subject that no model is of is taken to be like one of those that are, chosen by its name: over many names, what is
generated differs as the recorded subjects do (`spread`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from archsim.base.sums import sum
from archsim.traffic.generative import GenerativeTraffic, drawn_tasks, pieces_of
from archsim.traffic.trace import StepTokens, Trace
from archsim.traffic.traffic_model import OTHER, TrafficModel


def collect(source: GenerativeTraffic | SubjectTraffic) -> Trace:
    """All requests of generated routing as a `Trace` in memory."""
    pieces = list(source.steps(np.arange(source.requests), int(source.lengths[:, 1].max(initial=0))))
    owner = np.concatenate([piece.request for piece in pieces])
    iteration = np.concatenate([np.full(len(piece.request), piece.iteration, np.int16) for piece in pieces])
    order = np.argsort(owner, kind="stable")
    return Trace(
        experts=np.concatenate([piece.experts for piece in pieces])[order],
        request_offsets=np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=source.requests))]),
        iteration=iteration[order],
        layer_ids=source.layer_ids,
        num_experts=source.num_experts,
        top_k=source.top_k,
        model=source.model.name,
        source=source.label,
        request_subject=source.request_task.astype(np.int16),
        subject_names=source.tasks,
    )


@dataclass(frozen=True)
class SeveralSubjects:
    """Traffic of several subjects, each with a model."""

    name: str  # of the preset or fit
    source: str  # where the numbers come from, in words
    models: Mapping[str, TrafficModel]  # by subject
    shares: tuple[float, ...]  # of the requests, by subject
    spread: Mapping[str, float]  # figure → standard deviation between recorded subjects, %

    @property
    def experts(self) -> int:
        return next(iter(self.models.values())).experts

    @property
    def top_k(self) -> int:
        return next(iter(self.models.values())).top_k

    def map_models(self, change: Callable[[TrafficModel], TrafficModel]) -> SeveralSubjects:
        """The traffic with another model for each subject."""
        return replace(self, models={name: change(each) for name, each in self.models.items()})

    def subject_of(self, task: str) -> tuple[str, dict[str, float] | None]:
        """(subject whose model a task has, what that model mixes): its own, or one chosen by its name."""
        for name, model in self.models.items():
            if task in (name, *model.task_names):
                return name, {task: 1.0} if task in model.task_names else None
        at = int.from_bytes(hashlib.sha256(task.encode()).digest()[:7], "little") / 2**56
        chosen = int(np.searchsorted(np.cumsum(self.shares) / sum(self.shares), at, side="right"))
        return list(self.models)[min(chosen, len(self.models) - 1)], None


class SubjectTraffic:
    """Routing generated from `SeveralSubjects`; a `TokenSource`. Arguments: as those of `GenerativeTraffic`."""

    def __init__(
        self,
        model: SeveralSubjects,
        requests: int,
        seed: int,
        mix: Mapping[str, float] | None = None,
        lengths: np.ndarray | None = None,
        request_task: np.ndarray | None = None,
    ) -> None:
        self.model, self.requests, self.seed = model, requests, seed
        share = dict(mix) if mix else dict(zip(model.models, model.shares, strict=True))
        self.tasks = tuple(share)
        self.request_task = drawn_tasks(share, seed, requests) if request_task is None else np.asarray(request_task)
        self.lengths = np.zeros((requests, 2), np.int64) if lengths is None else np.asarray(lengths, np.int64)
        self._number = np.zeros(requests, np.int64)
        self._parts: list[GenerativeTraffic] = []
        for index, task in enumerate(self.tasks):
            rows = np.flatnonzero(self.request_task == index)
            subject, mixed = model.subject_of(task)
            self._number[rows] = np.arange(len(rows))
            own = None if lengths is None else self.lengths[rows]
            key = int.from_bytes(hashlib.sha256(task.encode()).digest()[:6], "little")
            part = GenerativeTraffic(model.models[subject], len(rows), (seed + key) % 2**63, mixed, own)
            self.lengths[rows] = part.lengths
            self._parts.append(part)
        first = self._parts[0]
        self.layer_ids, self.num_experts, self.top_k = first.layer_ids, first.num_experts, first.top_k

    @property
    def label(self) -> str:
        return f"synthetic like={self.model.name} seed={self.seed} tasks={'+'.join(self.tasks)}"

    @property
    def digest(self) -> str:
        digest = hashlib.sha256(self.label.encode())
        digest.update(np.ascontiguousarray(self.request_task, np.int64).tobytes())
        for part in self._parts:
            digest.update(part.digest.encode())
        return digest.hexdigest()

    def identical(self, other: object) -> np.ndarray:
        """See `GenerativeTraffic.identical`."""
        found = np.zeros(self.requests, bool)
        if isinstance(other, SubjectTraffic) and self.label == other.label:
            both = min(self.requests, other.requests)
            if np.array_equal(self.request_task[:both], other.request_task[:both]):
                for index, (one, two) in enumerate(zip(self._parts, other._parts, strict=True)):
                    found[self.request_task == index] = one.identical(two)
        return found

    def longest(self, requests: np.ndarray, decode_steps: int) -> int:
        prompt, decode = self.lengths[requests].T
        return int((prompt + np.minimum(decode, decode_steps)).max(initial=0))

    def steps(self, requests: np.ndarray, decode_steps: int) -> Iterator[StepTokens]:
        """See `archsim.traffic.trace.TokenSource.steps`."""
        owner = self.request_task[requests]
        place, drawing = np.zeros(len(requests), np.int32), []
        for index, part in enumerate(self._parts):
            rows = np.flatnonzero(owner == index)
            place[rows] = np.arange(len(rows))
            drawing.append(part.drawing(self._number[requests[rows]]))
        shape = len(self.layer_ids), self.top_k
        for iteration, position, token in pieces_of(self.lengths[requests], decode_steps, *shape):
            experts = np.empty((len(position), *shape), np.int16)
            for index, draw in enumerate(drawing):
                if len(rows := np.flatnonzero(owner[position] == index)):
                    experts[rows] = draw(iteration, place[position[rows]], token[rows])
            yield StepTokens(iteration, position, experts)


Traffic = GenerativeTraffic | SubjectTraffic


def traffic_of(
    model: TrafficModel | SeveralSubjects,
    requests: int,
    seed: int,
    mix: Mapping[str, float] | None = None,
    lengths: np.ndarray | None = None,
    request_task: np.ndarray | None = None,
) -> Traffic:
    """Routing generated from either kind of model; see `GenerativeTraffic`."""
    kind = SubjectTraffic if isinstance(model, SeveralSubjects) else GenerativeTraffic
    return kind(model, requests, seed, mix, lengths, request_task)  # type: ignore[arg-type]


def task_of(model: TrafficModel | SeveralSubjects, subject: str) -> str:
    """The task of a recorded subject: its own, else the one of all subjects with few requests."""
    models = model.models if isinstance(model, SeveralSubjects) else {model.name: model}
    tasks = {task for name, each in models.items() for task in (name, *each.task_names)}
    return subject if subject in tasks or OTHER not in tasks else OTHER
