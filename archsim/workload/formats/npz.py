"""The token-level ``.npz`` layout: one array per column."""

from pathlib import Path

import numpy as np

from archsim.base.errors import TraceError
from archsim.specs.model import ModelSpec
from archsim.workload import checks
from archsim.workload.formats.npz_members import load_members, member_names
from archsim.workload.trace import Trace

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
            f"{where}: has neither experts (tokens: with {', '.join([*COLUMNS][1:])}) nor counts (loads), but "
            f"{', '.join(sorted(member_names(path))) or 'no member'}"
        )
    columns = {name: _column(where, members, name, dimensions) for name, dimensions in COLUMNS.items()}
    experts, offsets, iteration, layer_ids = columns.values()
    name = str(members["model"]) if "model" in members else ""
    checks.check_name(where, model, name)
    checks.check_shape(where, model, **{attribute: _scalar(where, members, key) for attribute, key in SHAPE.items()})
    checks.check_shape(where, model, top_k=experts.shape[2])
    _check_lengths(where, experts, iteration, layer_ids)
    checks.check_layers(where, model, layer_ids)
    checks.check_offsets(where, offsets, len(experts))
    checks.check_iterations(where, iteration, offsets)

    def row_place(row: int, column: int) -> str:
        request = str(checks.owner(offsets, row))
        return checks.place(where, request, int(iteration[row]), int(layer_ids[column]))

    checks.check_experts(where, experts, model.experts, row_place)
    checks.check_distinct(where, experts, row_place)
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
        scores=None if scores is None else checks.checked_scores(where, "scores", scores, experts),
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
            f"{checks.place(where, str(r))}: subject {subject[r]} has no name; expected 0 to {len(names) - 1}"
        )
    return subject.astype(np.int16), names
