"""One request in the raw JSON layout: the scanner for plain text, and the exact reader for everything else.

Both accept the same requests; the exact reader is slow and says what is wrong with the others.
"""

import json
from dataclasses import dataclass

import numpy as np

from archsim.base.errors import TraceError
from archsim.model.spec import ModelSpec
from archsim.traffic import trace_checks
from archsim.traffic.formats.json_scan import scan
from archsim.traffic.formats.requests import RequestRows


@dataclass(frozen=True)
class Origin:
    """Where a request comes from, for messages. where: file, or archive and member. name: 'subject/number'."""

    where: str
    name: str

    def place(self, iteration: int | None = None, layer: int | str | None = None) -> str:
        return trace_checks.place(self.where, self.name, iteration, layer)


def read_request(content: bytes, origin: Origin, model: ModelSpec, layer_ids: np.ndarray | None) -> RequestRows:
    """Read and check one request. layer_ids: the layers it must have, or None for those it has. Raises TraceError."""
    found = _read(content, origin, model, layer_ids)

    def row_place(row: int, column: int) -> str:
        return origin.place(int(found.iteration[row]), int(found.layer_ids[column]))

    trace_checks.check_distinct(origin.where, found.experts, row_place)
    trace_checks.check_recorded(origin.where, found.experts, row_place)
    return found


def _read(content: bytes, origin: Origin, model: ModelSpec, layer_ids: np.ndarray | None) -> RequestRows:
    scanned = scan(content, model.experts, model.top_k, trace_checks.MAX_ITERATION + 1)
    if scanned is None:
        return _read_exactly(content, origin, model, layer_ids)
    found = np.sort(scanned.keys[scanned.routed]).astype(np.int32)
    if layer_ids is None:
        _check_layers(origin, model, sorted(scanned.keys.tolist()), found)
    elif not np.array_equal(found, layer_ids):
        return _read_exactly(content, origin, model, layer_ids)
    iteration = np.repeat(np.arange(len(scanned.rows), dtype=np.int16), scanned.rows)
    return RequestRows(scanned.experts, iteration, found)


def _read_exactly(content: bytes, origin: Origin, model: ModelSpec, layer_ids: np.ndarray | None) -> RequestRows:
    data = _parse(content, origin)
    if layer_ids is None:
        layer_ids = _layer_ids(origin, data, model)
    keys = [str(layer) for layer in layer_ids]
    blocks = [_iteration(origin, t, iteration, keys, model) for t, iteration in enumerate(data)]
    rows = [len(block) for block in blocks]
    return RequestRows(np.concatenate(blocks), np.repeat(np.arange(len(rows), dtype=np.int16), rows), layer_ids)


def _parse(content: bytes, origin: Origin) -> list[dict]:
    def once(pairs: list[tuple]) -> dict:
        members = dict(pairs)
        if len(members) < len(pairs):
            repeated = next(key for n, (key, _) in enumerate(pairs) if any(key == other for other, _ in pairs[:n]))
            raise TraceError(f"{origin.place()}: layer id {repeated!r} appears twice in one iteration")
        return members

    try:
        data = json.loads(content, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{origin.place()}: not valid JSON ({error}); is the file truncated?") from error
    if not isinstance(data, list) or not 0 < len(data) <= trace_checks.MAX_ITERATION + 1:
        raise TraceError(f"{origin.place()}: expected a list of 1 to {trace_checks.MAX_ITERATION + 1} iterations")
    for t, iteration in enumerate(data):
        if not isinstance(iteration, dict):
            raise TraceError(f"{origin.place(t)}: expected an object of layers, found {_kind(iteration)}")
    return data


def _layer_ids(origin: Origin, data: list[dict], model: ModelSpec) -> np.ndarray:
    """int32[layer]: the layers that have routing in the first iteration, checked against the model."""
    for key in data[0]:
        if not (key.isascii() and key.isdecimal() and len(key) < 10 and key == str(int(key))):
            raise TraceError(f"{origin.place(0)}: layer id {key!r} is not a number")
    present = sorted(map(int, data[0]))
    routed = np.array([layer for layer in present if data[0][str(layer)] is not None], np.int32)
    _check_layers(origin, model, present, routed)
    return routed


def _check_layers(origin: Origin, model: ModelSpec, present: list[int], routed: np.ndarray) -> None:
    """present: all layers of the first iteration, ascending. routed: int32[layer], those that have routing."""
    trace_checks.check_layers(origin.place(0), model, routed)
    for layer in model.moe_layer_ids:
        if layer not in present and present[0] < layer < present[-1]:
            raise TraceError(f"{origin.place(0, layer)}: the layer is missing; a layer without routing is written null")


def _iteration(origin: Origin, t: int, iteration: dict, keys: list[str], model: ModelSpec) -> np.ndarray:
    """int16[row, layer, k] of one iteration."""
    extra = {key for key, rows in iteration.items() if rows is not None} - set(keys)
    if extra:
        layer = min(extra)
        raise TraceError(f"{origin.place(t, layer)}: has routing, but had none in the first iteration of the trace")
    if t == 0 and all(iteration.get(key) == [] for key in keys):
        return np.empty((0, len(keys), model.top_k), np.int16)
    height = None
    for key in keys:
        if key not in iteration:
            found = f"the layer is missing; expected layers {', '.join(keys)} in every iteration"
            raise TraceError(f"{origin.place(t, key)}: {found}")
        rows = iteration[key]
        if not isinstance(rows, list) or not rows:
            raise TraceError(f"{origin.place(t, key)}: expected a list of rows, found {_kind(rows)}")
        height = height or len(rows)
        if len(rows) != height:
            raise TraceError(f"{origin.place(t, key)}: {len(rows)} rows; expected {height}, as in layer {keys[0]}")
        for number, row in enumerate(rows):
            _check_row(origin.place(t, key), number, row, model)
    if t > 0 and height != 1:
        raise TraceError(f"{origin.place(t, keys[0])}: {height} rows; expected 1 row in a decode step")
    return np.array([iteration[key] for key in keys], np.int16).transpose(1, 0, 2)


def _check_row(where: str, number: int, row, model: ModelSpec) -> None:
    if not isinstance(row, list) or len(row) != model.top_k:
        found = f"{len(row)} ids" if isinstance(row, list) else _kind(row)
        raise TraceError(f"{where}: row {number} has {found}; expected top_k = {model.top_k} of {model.name}")
    for rank, expert in enumerate(row):
        if type(expert) is not int:
            raise TraceError(
                f"{where}: expert id {expert!r} at rank {rank} of row {number}; "
                f"expected an integer from 0 to {model.experts - 1}"
            )
        if not 0 <= expert < model.experts:
            raise TraceError(
                f"{where}: expert id {expert} at rank {rank} is out of range; expected 0 to {model.experts - 1}"
            )


def _kind(value) -> str:
    if isinstance(value, (list, dict)) and not value:
        return "nothing"
    return {type(None): "null", dict: "an object", list: "a list", str: "a string"}.get(type(value), repr(value))
