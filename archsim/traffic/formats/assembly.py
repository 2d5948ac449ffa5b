"""A trace from the rows that a reader yields."""

from collections.abc import Iterable

import numpy as np

from archsim.model.spec import ModelSpec
from archsim.traffic.formats.requests import Item, joined_scores
from archsim.traffic.trace import Trace


def assemble(items: Iterable[Item], model: ModelSpec, name: str, source: str) -> Trace:
    """A trace of all requests, in order. Raises TraceError for the first malformed one."""
    experts, iterations, subjects, scores = [], [], [], []
    layer_ids: np.ndarray | None = None
    for item in items:
        request = item.read(model, layer_ids)
        layer_ids = request.layer_ids
        experts.append(request.experts)
        iterations.append(request.iteration)
        subjects.append(item.subject)
        scores.append(request.scores)
    names = tuple(dict.fromkeys(subjects))
    assert layer_ids is not None, "there are requests"
    return Trace(
        experts=np.concatenate(experts),
        request_offsets=np.concatenate([[0], np.cumsum([len(rows) for rows in experts])]).astype(np.int64),
        iteration=np.concatenate(iterations),
        layer_ids=layer_ids,
        num_experts=model.experts,
        top_k=model.top_k,
        model=name,
        source=source,
        request_subject=np.array([names.index(subject) for subject in subjects], np.int16),
        subject_names=names,
        scores=joined_scores(source, scores),
    )
