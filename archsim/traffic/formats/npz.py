"""The token-level ``.npz`` layout: one array per column."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from archsim.base.errors import TraceError
from archsim.base.packed_files import npz_names
from archsim.base.packed_files import read_npz as read_npz_archives
from archsim.model.spec import ModelSpec
from archsim.traffic import trace_checks
from archsim.traffic.formats.requests import Item, RequestRows
from archsim.traffic.trace import Trace

# Members of untrusted ``.npz`` files of routing and loads.

member_names = npz_names


def load_members(path: Path, wanted: set[str]) -> dict[str, np.ndarray]:
    """Loads those of the wanted members that a file has. Raises TraceError."""
    try:
        return read_npz_archives(path, wanted)
    except Exception as error:  # zipfile, zlib and numpy's header parser raise a dozen different exceptions
        raise TraceError(f"{path}: not a readable .npz file ({error})") from error


COLUMNS = {"experts": 3, "request_offsets": 1, "iteration": 1, "layer_ids": 1}
"""Required members and their numbers of dimensions; all hold integers."""

SHAPE = {"experts": "num_experts", "top_k": "top_k", "layers": "num_layers_total"}
"""Attributes of a ModelSpec and the members that may state them."""

OPTIONAL = {*SHAPE.values(), "model", "request_subject", "subject_names", "scores"}


def read_npz(path: Path, model: ModelSpec, source: str) -> Trace:
    """Read and check a token-level ``.npz`` file against a model.

    Required: experts int16[T, L, k], request_offsets [R+1], iteration [T], layer_ids [L]. Optional: num_experts,
    top_k, num_layers_total, model, request_subject [R], subject_names [S], scores float[T, L, k]. Other members (phase,
    request_id, …) are not read: the phase of a row follows from its iteration. Raises TraceError.
    """
    members = load_members(path, {*COLUMNS, *OPTIONAL})
    where = str(path)
    if not members:
        raise TraceError(
            f"{where}: has neither a member 'experts' (tokens, with {', '.join([*COLUMNS][1:])}) nor a member 'counts' "
            f"(loads); it has {', '.join(sorted(member_names(path))) or 'none'}"
        )
    columns = {name: _column(where, members, name, dimensions) for name, dimensions in COLUMNS.items()}
    experts, offsets, iteration, layer_ids = columns.values()
    name = str(members["model"]) if "model" in members else ""
    trace_checks.check_name(where, model, name)
    trace_checks.check_shape(
        where, model, **{attribute: _scalar(where, members, key) for attribute, key in SHAPE.items()}
    )
    trace_checks.check_shape(where, model, top_k=experts.shape[2])
    _check_lengths(where, experts, iteration, layer_ids)
    trace_checks.check_layers(where, model, layer_ids)
    trace_checks.check_offsets(where, offsets, len(experts))
    trace_checks.check_iterations(where, iteration, offsets)

    def row_place(row: int, column: int) -> str:
        request = str(trace_checks.owner(offsets, row))
        return trace_checks.place(where, request, int(iteration[row]), int(layer_ids[column]))

    trace_checks.check_experts(where, experts, model.experts, row_place)
    trace_checks.check_distinct(where, experts, row_place)
    for at, last in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        trace_checks.check_recorded(where, experts[at:last], lambda row, column, at=at: row_place(at + row, column))
    scores = members.get("scores")
    subject, names = _subjects(where, members, len(offsets) - 1)
    return Trace(
        experts=np.ascontiguousarray(experts, np.int16),
        request_offsets=offsets.astype(np.int64),
        iteration=iteration.astype(np.int16),
        layer_ids=layer_ids.astype(np.int32),
        num_experts=model.experts,
        top_k=model.top_k,
        model=name,
        source=source,
        request_subject=subject,
        subject_names=names,
        scores=None if scores is None else trace_checks.checked_scores(where, "scores", scores, experts),
    )


def _column(where: str, members: dict[str, np.ndarray], name: str, dimensions: int) -> np.ndarray:
    if name not in members:
        raise TraceError(f"{where}: member '{name}' is missing; expected {', '.join(COLUMNS)} (token-level layout)")
    column = members[name]
    if column.dtype.kind not in "iu":
        raise TraceError(f"{where}: member '{name}' has dtype {column.dtype}; expected integers")
    if column.ndim != dimensions:
        raise TraceError(f"{where}: member '{name}' has shape {column.shape}; expected {dimensions} dimension(s)")
    return column


def _check_lengths(where: str, experts: np.ndarray, iteration: np.ndarray, layer_ids: np.ndarray) -> None:
    tokens, layers, _ = experts.shape
    if len(iteration) != tokens:
        raise TraceError(f"{where}: member 'iteration' has {len(iteration)} rows; expected {tokens}, as 'experts'")
    if len(layer_ids) != layers:
        raise TraceError(f"{where}: member 'layer_ids' has {len(layer_ids)} entries; 'experts' has {layers} layers")


def _scalar(where: str, members: dict[str, np.ndarray], name: str) -> int | None:
    if name not in members:
        return None
    if members[name].dtype.kind not in "iu" or members[name].size != 1:
        raise TraceError(f"{where}: member '{name}' is {members[name]!r}; expected one integer")
    return int(members[name])


def _subjects(where: str, members: dict[str, np.ndarray], requests: int) -> tuple[np.ndarray, tuple[str, ...]]:
    subject = members.get("request_subject", np.zeros(requests, np.int16))
    names = tuple(str(name) for name in members.get("subject_names", np.array([""])))
    if subject.shape != (requests,):
        raise TraceError(f"{where}: member 'request_subject' has shape {subject.shape}; expected ({requests},)")
    if subject.dtype.kind not in "iu":
        raise TraceError(f"{where}: member 'request_subject' has dtype {subject.dtype}; expected integers")
    if requests and not 0 <= subject.min() <= subject.max() < len(names):
        r = int(np.flatnonzero((subject < 0) | (subject >= len(names)))[0])
        raise TraceError(
            f"{trace_checks.place(where, str(r))}: subject {subject[r]} has no name; expected 0 to {len(names) - 1}"
        )
    return subject.astype(np.int16), names


# Token-level ``.npz`` files (`read_npz` lists their members), in batches of requests.


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
