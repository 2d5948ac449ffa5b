"""What readers of token-level routing return: requests as items, in batches that can be read in parallel."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from archsim.base.compiled import inner, kernel
from archsim.base.errors import TraceError
from archsim.specs.model import ModelSpec
from archsim.workload import trace

# ---- json_request
# One request in the raw JSON layout: the scanner for plain text, and the exact reader for everything else.
#
# Both accept the same requests; the exact reader is slow and says what is wrong with the others.

# ---- json_scan
# A scanner for requests in the raw JSON layout that accepts only well-formed text, many times faster than json.
#
# It knows one layout (see `archsim.workload.formats.json_tree`): a list of objects, the same layer keys in the same
# order in each, values null or lists of rows of `top_k` ids. Everything else, whether damaged or just unusual (keys in
# another order, escapes), is left to the exact reader, which has the error messages.

MOST_KEYS = 1024
"""Maximum number of layers per iteration that the scanner supports."""

_SPACE, _TAB, _FEED, _RETURN = 32, 9, 10, 13
_QUOTE, _COMMA, _COLON, _ZERO, _NINE = 34, 44, 58, 48, 57
_OPEN, _CLOSE, _BEGIN, _END = 91, 93, 123, 125
_LARGEST = 1 << 30


@dataclass(frozen=True)
class Scanned:
    """keys: int64[key], layer ids in the order of the text. routed: bool[key], False where null.

    experts: int16[token, layer, k], layers ascending. rows: int64[iteration], tokens of every iteration.
    """

    keys: np.ndarray
    routed: np.ndarray
    experts: np.ndarray
    rows: np.ndarray


def scan(content: bytes, experts: int, top_k: int, most_iterations: int) -> Scanned | None:
    """A request whose ids are all below `experts`; None if the text is not in the plain layout."""
    text = np.frombuffer(content, np.uint8)
    keys = np.empty(MOST_KEYS, np.int64)
    routed = np.zeros(MOST_KEYS, np.bool_)
    found = _scan_keys(text, keys, routed)
    if found <= 0:
        return None
    keys, routed = keys[:found], routed[:found]
    layers = np.sort(keys[routed])
    if len(layers) == 0 or len(np.unique(keys)) < found:
        return None
    column = np.where(routed, np.searchsorted(layers, keys), -1)
    # An id takes at least a digit and a mark.
    out = np.empty((len(content) // (2 * len(layers) * top_k) + 1, len(layers), top_k), np.int16)
    rows = np.empty(min(most_iterations, len(content) // (4 * found) + 1), np.int64)
    iterations = _scan_request(text, keys, column, experts, out, rows)
    if iterations <= 0:
        return None
    rows = rows[:iterations]
    return Scanned(keys, routed, out[: rows.sum()], rows)


@inner
def _skip(text, at):
    """The next position that is no white space."""
    while at < text.size and text[at] <= _SPACE:
        mark = text[at]
        if mark != _SPACE and mark != _FEED and mark != _RETURN and mark != _TAB:
            break
        at += 1
    return at


@inner
def _number(text, at):
    """(value, position after it) of a plain natural number; value −1 if there is none."""
    if at >= text.size or text[at] < _ZERO or text[at] > _NINE:
        return -1, at
    value = np.int64(text[at]) - _ZERO
    at += 1
    leading_zero = value == 0
    while at < text.size and _ZERO <= text[at] <= _NINE:
        value = value * 10 + (np.int64(text[at]) - _ZERO)
        at += 1
        if leading_zero or value > _LARGEST:
            return -1, at
    return value, at


@inner
def _expect(text, at, mark):
    """Position after white space and a mark, or −1."""
    at = _skip(text, at)
    return at + 1 if at < text.size and text[at] == mark else -1


@inner
def _key(text, at):
    """(layer id, position after its colon) of '"12":'; id −1 if there is none."""
    at = _expect(text, at, _QUOTE)
    if at < 0:
        return -1, at
    value, at = _number(text, at)
    if value < 0 or at >= text.size or text[at] != _QUOTE:
        return -1, at
    at = _expect(text, at + 1, _COLON)
    return (value if at >= 0 else -1), at


@inner
def _is_null(text, at):
    return (
        at + 4 <= text.size and text[at] == 110 and text[at + 1] == 117 and text[at + 2] == 108 and text[at + 3] == 108
    )


@kernel
def _scan_keys(text, keys, routed):
    """Layer ids of the first object into keys and routed; their number, or −1. Values are only skipped here."""
    at = _expect(text, 0, _OPEN)
    if at >= 0:
        at = _expect(text, at, _BEGIN)
    found = 0
    while 0 <= at and found < keys.size:
        layer, at = _key(text, at)
        if layer < 0:
            return -1
        at = _skip(text, at)
        keys[found] = layer
        routed[found] = not _is_null(text, at)
        found += 1
        depth = 0
        while at < text.size:
            mark = text[at]
            if depth == 0 and (mark == _COMMA or mark == _END):
                break
            depth += np.int64(mark == _OPEN) - np.int64(mark == _CLOSE)  # type: ignore[assignment]
            at += 1
        if at >= text.size:
            return -1
        if text[at] == _END:
            return found
        at += 1
    return -1


@inner
def _scan_rows(text, at, experts, column, first, out):
    """Rows '[[1,2],[3,4]]' into out[first:, column]; (rows, position after them), or −1 if they have another form."""
    top_k = out.shape[2]
    at = _expect(text, at, _OPEN)
    if at < 0:
        return -1, at
    at = _skip(text, at)
    if at < text.size and text[at] == _CLOSE:
        return 0, at + 1
    row = first
    while row < out.shape[0]:
        at = _expect(text, at, _OPEN)
        if at < 0:
            return -1, at
        for rank in range(top_k):
            value, at = _number(text, _skip(text, at))
            if value < 0 or value >= experts:
                return -1, at
            out[row, column, rank] = value
            at = _expect(text, at, _CLOSE if rank == top_k - 1 else _COMMA)
            if at < 0:
                return -1, at
        row += 1
        at = _skip(text, at)
        if at >= text.size:
            return -1, at
        if text[at] == _CLOSE:
            return row - first, at + 1
        if text[at] != _COMMA:
            return -1, at
        at += 1
    return -1, at


@inner
def _scan_iteration(text, at, keys, column, experts, first, out):
    """One object into out[first:]; (rows, position after it), or −1 rows if it is not as expected."""
    rows = -1
    at = _expect(text, at, _BEGIN)
    for index in range(keys.size):
        if at < 0:
            return -1, at
        layer, at = _key(text, at)
        if layer != keys[index]:
            return -1, at
        at = _skip(text, at)
        if column[index] < 0:
            if not _is_null(text, at):
                return -1, at
            at += 4
        else:
            number, at = _scan_rows(text, at, experts, column[index], first, out)
            if number < 0 or (rows >= 0 and number != rows):
                return -1, at
            rows = number
        at = _expect(text, at, _COMMA if index < keys.size - 1 else _END)
    return (rows if at >= 0 else -1), at


@kernel
def _scan_request(text, keys, column, experts, out, rows):
    """All objects into out int16[token, layer, k] and rows int64[iteration]; the number of iterations, or −1."""
    at = _expect(text, 0, _OPEN)
    first = 0
    iteration = 0
    while 0 <= at and iteration < rows.size:
        number, at = _scan_iteration(text, at, keys, column, experts, first, out)
        if number < 0 or (iteration > 0 and number != 1):
            return -1
        rows[iteration] = number
        first += number
        iteration += 1
        at = _skip(text, at)
        if at >= text.size:
            return -1
        if text[at] == _CLOSE:
            return iteration if _skip(text, at + 1) == text.size else -1
        if text[at] != _COMMA:
            return -1
        at += 1
    return -1


# ---- json_request


@dataclass(frozen=True)
class Origin:
    """Where a request comes from, for messages. where: file, or archive and member. name: 'subject/number'."""

    where: str
    name: str

    def place(self, iteration: int | None = None, layer: int | str | None = None) -> str:
        return trace.place(self.where, self.name, iteration, layer)


@dataclass(frozen=True)
class RequestRows:
    """experts: int16[token, layer, k]. iteration: int16[token]. layer_ids: int32[layer]. scores: float32[token, layer,
    k], the gate's, or None.
    """

    experts: np.ndarray
    iteration: np.ndarray
    layer_ids: np.ndarray
    scores: np.ndarray | None = None


def read_request(content: bytes, origin: Origin, model: ModelSpec, layer_ids: np.ndarray | None) -> RequestRows:
    """Read and check one request. layer_ids: the layers it must have, or None for those it has. Raises TraceError."""
    found = _read(content, origin, model, layer_ids)

    def row_place(row: int, column: int) -> str:
        return origin.place(int(found.iteration[row]), int(found.layer_ids[column]))

    trace.check_distinct(origin.where, found.experts, row_place)
    trace.check_recorded(origin.where, found.experts, row_place)
    return found


def _read(content: bytes, origin: Origin, model: ModelSpec, layer_ids: np.ndarray | None) -> RequestRows:
    scanned = scan(content, model.experts, model.top_k, trace.MAX_ITERATION + 1)
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
    if not isinstance(data, list) or not 0 < len(data) <= trace.MAX_ITERATION + 1:
        raise TraceError(f"{origin.place()}: expected a list of 1 to {trace.MAX_ITERATION + 1} iterations")
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
    trace.check_layers(origin.place(0), model, routed)
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


# ---- batches


@dataclass(frozen=True)
class Item:
    """One request still to be read. where: for messages, and to recognise it when an import resumes.

    read(model, layer_ids or None) -> RequestRows; raises TraceError.
    """

    where: str
    dataset: str
    subject: str
    number: int
    size: int
    read: Callable[[ModelSpec, np.ndarray | None], RequestRows]


def joined_scores(where: str, scores: list[np.ndarray | None]) -> np.ndarray | None:
    """float32[token, layer, k] of all requests, or None if none has any. Raises TraceError if some
    have and some not.
    """
    given = [each for each in scores if each is not None]
    if given and len(given) < len(scores):
        raise TraceError(f"{where}: {len(given)} of {len(scores)} requests have scores; expected all or none of them")
    return np.concatenate(given) if given else None


def request_rows(
    where: str,
    model: ModelSpec,
    experts: np.ndarray,
    prompt_tokens: Any,
    layers: np.ndarray,
    layer_ids: np.ndarray | None,
    scores: np.ndarray | None = None,
) -> RequestRows:
    """One request, checked. experts: integers [token, layer, rank], prompt first; layers: int32[layer], their layer
    ids.

    layer_ids: the layers it must have, or None. scores: of the experts, or None. Raises TraceError.
    """
    trace.check_layers(where, model, layers)
    if layer_ids is not None and not np.array_equal(layers, layer_ids):
        raise TraceError(
            f"{where}: has layers {layers.tolist()}; expected {layer_ids.tolist()}, as in the request before it"
        )
    if experts.dtype.kind not in "iu" or experts.ndim != 3:
        raise TraceError(
            f"{where}: experts are {experts.dtype} of shape {list(experts.shape)}; expected integers [token, layer, "
            f"rank]"
        )
    if experts.shape[1:] != (len(layers), model.top_k):
        raise TraceError(
            f"{where}: experts have shape {list(experts.shape)}; expected [tokens, {len(layers)} layers, top_k = "
            f"{model.top_k}]"
        )

    def row_place(row: int, column: int) -> str:
        return f"{where}: token {row}, layer {layers[column]}"

    trace.check_experts(where, experts, model.experts, row_place)
    trace.check_distinct(where, experts, row_place)
    trace.check_recorded(where, experts, row_place)
    if not len(experts):
        raise TraceError(f"{where}: has no tokens; expected one or more")
    if type(prompt_tokens) is not int or not 0 <= prompt_tokens <= len(experts):
        raise TraceError(
            f"{where}: prompt_tokens is {prompt_tokens!r}; expected a number from 0 to {len(experts)}, the tokens"
        )
    decode_steps = len(experts) - prompt_tokens
    if decode_steps > trace.MAX_ITERATION:
        raise TraceError(f"{where}: {decode_steps} decode steps; expected at most {trace.MAX_ITERATION}")
    iteration = np.r_[np.zeros(prompt_tokens, np.int16), np.arange(1, decode_steps + 1, dtype=np.int16)]
    if scores is not None:
        scores = trace.checked_scores(where, "scores", scores, experts)
    return RequestRows(np.ascontiguousarray(experts, np.int16), iteration, layers, scores)
