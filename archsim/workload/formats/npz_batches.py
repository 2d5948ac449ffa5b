"""Token-level ``.npz`` files; see `archsim.workload.formats.npz`."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from archsim.base.errors import TraceError
from archsim.specs.model import ModelSpec
from archsim.workload.formats.batches import Item
from archsim.workload.formats.json_request import RequestRows
from archsim.workload.formats.npz import read_npz
from archsim.workload.formats.npz_members import load_members
from archsim.workload.trace import Trace


def npz_name(path: Path) -> str:
    """The model named in a file, or ''."""
    return str(load_members(path, {"model"}).get("model", ""))


def npz_items(path: Path, model: ModelSpec) -> Iterator[Item]:
    """The requests of a file, read as a whole. Raises TraceError."""
    trace = read_npz(path, model, str(path))
    more = load_members(path, {"request_id", "dataset"})
    number = more.get("request_id", np.arange(trace.requests))
    if number.shape != (trace.requests,) or number.dtype.kind not in "iu" or number.min(initial=0) < 0:
        raise TraceError(f"{path}: member 'request_id': expected {trace.requests} natural numbers, one per request")
    dataset = str(more.get("dataset", "")).rsplit("/", 1)[-1]
    row_bytes = 2 * trace.experts[:1].size
    for r in range(trace.requests):
        subject = trace.subject_names[trace.request_subject[r]]
        size = int(np.diff(trace.request_offsets[r : r + 2])[0]) * row_bytes
        yield Item(f"{path}: request {r}", dataset, subject, int(number[r]), size, partial(_rows, trace, path, r))


def _rows(trace: Trace, path: Path, r: int, model: ModelSpec, layer_ids: np.ndarray | None) -> RequestRows:
    if layer_ids is not None and not np.array_equal(layer_ids, trace.layer_ids):
        raise TraceError(
            f"{path}: has layers {trace.layer_ids.tolist()}; expected {layer_ids.tolist()}, as in the request before it"
        )
    rows = slice(trace.request_offsets[r], trace.request_offsets[r + 1])
    scores = None if trace.scores is None else trace.scores[rows]
    return RequestRows(trace.experts[rows], trace.iteration[rows], trace.layer_ids, scores)
