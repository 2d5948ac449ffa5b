"""Batches that are larger than their trace: what the requests beyond the recorded ones do.

============  ===========================================================================================
``redraw``    all requests are drawn with replacement; copies of one choose the same experts at each step
``shifted``   copies of a request decode the same steps, each from another one on, and go on at its first
``fitted``    all requests are generated from a traffic model that is fitted to the trace
============  ===========================================================================================
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from archsim.traffic import subjects
from archsim.traffic.layer_subset import SomeLayers
from archsim.traffic.trace import Derived, StepTokens, TokenSource, Trace, rows_per_piece

REDRAW, SHIFTED, FITTED = "redraw", "shifted", "fitted"


@dataclass(frozen=True)
class Shifted(Derived):
    """A `TokenSource`: request i repeats recorded i modulo their number; copy c of C begins c/C of its steps later."""

    source: Trace
    batch: int

    @property
    def requests(self) -> int:
        return self.batch

    @property
    def recordings(self) -> int:
        return self.source.requests

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.source.digest} shifted {self.batch}".encode()).hexdigest()

    def longest(self, requests: np.ndarray, decode_steps: int) -> int:
        return self.source.longest(requests % self.recordings, decode_steps)

    def steps(self, requests: np.ndarray, decode_steps: int) -> Iterator[StepTokens]:
        """See `TokenSource.steps`."""
        trace, original = self.source, requests % self.recordings
        yield from trace.steps(original, 0)
        prompt, length = trace.lengths[original].T
        begin = trace.request_offsets[original] + prompt
        shift = requests // self.recordings * length // -(-self.batch // self.recordings)
        size = rows_per_piece(len(trace.layer_ids), trace.top_k)
        for iteration in range(1, min(decode_steps, int(length.max(initial=0))) + 1):
            decoding = np.flatnonzero(length >= iteration).astype(np.int32)
            row = begin[decoding] + (iteration - 1 + shift[decoding]) % length[decoding]
            for start in range(0, len(row), size):
                piece = row[start : start + size]
                scores = None if trace.scores is None else trace.scores[piece]
                yield StepTokens(iteration, decoding[start : start + size], trace.experts[piece], scores)


@dataclass(frozen=True)
class FittedRequests(Derived):
    """Generated requests with the statistics of a trace; lengths and subjects are drawn from the recorded ones."""

    source: subjects.Traffic
    recordings: int

    @property
    def digest(self) -> str:
        return self.source.digest

    def longest(self, requests: np.ndarray, decode_steps: int) -> int:
        return self.source.longest(requests, decode_steps)

    def steps(self, requests: np.ndarray, decode_steps: int) -> Iterator[StepTokens]:
        return self.source.steps(requests, decode_steps)


def _fit(trace: Trace, batch: int, seed: int) -> FittedRequests:
    from archsim.traffic.traffic_fit import fit_subjects

    drawn = np.random.default_rng(seed).integers(trace.requests, size=batch)
    model = fit_subjects(trace, FITTED, f"fit of digest {trace.digest[:12]}", seed)
    subject = trace.request_subject[drawn]
    used = np.unique(subject)
    names = [subjects.task_of(model, trace.subject_names[each]) for each in used]
    tasks = list(dict.fromkeys(names))
    task = np.array([tasks.index(name) for name in names])[np.searchsorted(used, subject)]
    mix = dict.fromkeys(tasks, 1.0)
    return FittedRequests(subjects.traffic_of(model, batch, seed, mix, trace.lengths[drawn], task), trace.requests)


def extend_trace(trace: Trace, batch: int, extend: str, seed: int) -> TokenSource:
    """The source of a batch: the trace itself unless the batch is larger and ``extend`` is not ``redraw``."""
    if batch <= trace.requests or extend == REDRAW:
        return trace
    return Shifted(trace, batch) if extend == SHIFTED else _fit(trace, batch, seed)


def recorded_requests(source: TokenSource) -> int:
    """Requests that a source has, or was extended from."""
    whole = source.source if isinstance(source, SomeLayers) else source
    return whole.recordings if isinstance(whole, Shifted | FittedRequests) else whole.requests
