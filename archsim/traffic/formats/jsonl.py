"""JSON lines, one request per line, as serving engines log them.

A line is an object: ``topk_ids`` (or ``routed_experts``, as vLLM calls it): ids [token][layer][k], prompt first;
``prompt_tokens``: number of prompt tokens (0: decode only; required). Optional: ``layer_ids`` (default: the model's
MoE layers), ``model``, ``topk_weights``: the gate's scores, numbers of the same shape. ``routed_experts`` may be
base64, and both may stand where an engine's response has them (`archsim.traffic.formats.routed_experts`). Other keys
are ignored. The subject is the file name, the number that of the line.
"""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from archsim.base.errors import TraceError
from archsim.model.spec import ModelSpec
from archsim.traffic import trace_checks
from archsim.traffic.formats.requests import Item, RequestRows, request_rows
from archsim.traffic.formats.routed_experts import IDS, choices_of, integers, read_choice

SCORES = "topk_weights"
MOST_LINE_BYTES = 512 << 20


def jsonl_name(path: Path) -> str:
    """The model that the first line names, or ''."""
    with path.open("rb") as stream:
        return _model_name(_parse(stream.readline(MOST_LINE_BYTES), f"{path}: line 1"))


def jsonl_items(path: Path) -> Iterator[Item]:
    """Raises TraceError for a file without lines; a line is parsed when its item is read, or has choices."""
    line_number = number = 0
    with path.open("rb") as stream:
        while line := stream.readline(MOST_LINE_BYTES + 1):
            line_number += 1
            where = f"{path}: line {line_number}"
            if len(line) > MOST_LINE_BYTES:
                raise TraceError(f"{where}: longer than {MOST_LINE_BYTES} bytes")
            for item in _items(path, where, max(line_number, number + 1), line) if line.strip() else ():
                number = item.number
                yield item
    if line_number == 0:
        raise TraceError(f"{path}: empty; expected one request per line")


def _items(path: Path, where: str, number: int, content: bytes) -> Iterator[Item]:
    """The requests of one line or file."""
    several = content.count(b'"routed_experts"') > 1 or content.lstrip().startswith(b"[")
    count = len(choices_of(where, _parse(content, where))) if several else 1
    for at in range(count):
        yield Item(where, "", path.stem, number + at, len(content) // count, partial(_read, content, where, at))


_REQUESTS = re.compile(rb'\s*(\{|\[\s*\{\s*"(?!\d+"))')  # an iteration of the data set's tree begins with a layer's id


def is_response(path: Path) -> bool:
    """Whether a ``.json`` file is an engine's response, or a list of them, rather than a list of iterations."""
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as stream:
        return _REQUESTS.match(stream.read(256)) is not None


def response_name(path: Path) -> str:
    """The model that a response names, or ''."""
    return _model_name(_response(path)[1])


def response_items(path: Path) -> Iterator[Item]:
    """The requests of one response, or of a list of them. Raises TraceError."""
    yield from _items(path, str(path), 0, _response(path)[0])


def _response(path: Path) -> tuple[bytes, dict | list]:
    if path.stat().st_size > MOST_LINE_BYTES:
        raise TraceError(f"{path}: longer than {MOST_LINE_BYTES} bytes")
    content = path.read_bytes()
    return content, _parse(content, str(path))


def _model_name(data: dict | list) -> str:
    first = data[0] if isinstance(data, list) else data
    return str(first.get("model", ""))


def _parse(line: bytes, where: str) -> dict | list:
    """An object, or objects in a list."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}: not valid JSON ({error}); is the file truncated?") from error
    every = data if isinstance(data, list) else [data]
    if not every or not all(isinstance(each, dict) for each in every):
        raise TraceError(f"{where}: expected an object with {' or '.join(IDS)}, and prompt_tokens")
    for each in every:
        name = str(each.get("model", ""))
        if not name.isprintable():  # a lone surrogate or a control character cannot be written or shown
            raise TraceError(f"{where}: model is {name!a:.60}; expected a name of printable characters")
    return data


def _read(line: bytes, where: str, at: int, model: ModelSpec, layer_ids: np.ndarray | None) -> RequestRows:
    choice = choices_of(where, _parse(line, where))[at]
    data, where = choice.line, ": ".join(filter(None, (where, choice.place)))
    trace_checks.check_name(where, model, str(data.get("model", "")))
    given = integers(where, "layer_ids", data.get("layer_ids", list(model.moe_layer_ids)), 1)
    trace_checks.check_layers(where, model, given)
    experts = read_choice(where, choice, model)
    scores = _numbers(where, data[SCORES]) if SCORES in data else None
    return request_rows(where, model, experts, data.get("prompt_tokens"), given.astype(np.int32), layer_ids, scores)


def _numbers(where: str, values) -> np.ndarray:
    """Scores in nested lists. Raises TraceError if they are ragged, or not all numbers."""
    try:
        found = np.array(values)
    except (ValueError, OverflowError):
        found = np.empty(0, object)
    if found.dtype.kind not in "if" or found.ndim != 3:
        raise TraceError(f"{where}: {SCORES}: expected numbers in 3 nested lists of even lengths")
    return found
