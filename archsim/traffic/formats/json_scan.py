"""A scanner for requests in the raw JSON layout that accepts only well-formed text, many times faster than json.

It knows one layout (see `archsim.traffic.formats.json_tree`): a list of objects, the same layer keys in the same
order in each, values null or lists of rows of `top_k` ids. Everything else, whether damaged or just unusual (keys in
another order, escapes), is left to the exact reader, which has the error messages.
"""

from dataclasses import dataclass

import numpy as np

from archsim.base.compiled import inner, kernel

MOST_KEYS = 1024
"""Maximum number of layers per iteration that the scanner supports."""

_SPACE, _TAB, _FEED, _RETURN = 32, 9, 10, 13
_QUOTE, _COMMA, _COLON, _ZERO, _NINE = 34, 44, 58, 48, 57
_OPEN, _CLOSE, _BEGIN, _END = 91, 93, 123, 125
_LARGEST = 1 << 30


@dataclass(frozen=True)
class Scanned:
    """A request as its text has it."""

    keys: np.ndarray  # int64[key], layer ids in the order of the text
    routed: np.ndarray  # bool[key], False where null
    experts: np.ndarray  # int16[token, layer, k], layers ascending
    rows: np.ndarray  # int64[iteration], tokens of every iteration


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
