"""JSON lines, one request per line, as serving engines log them.

A line is an object: ``topk_ids`` (or ``routed_experts``, as vLLM calls it): ids [token][layer][k], prompt first;
``prompt_tokens``: number of prompt tokens (0: decode only; required). Optional: ``layer_ids`` (default: the model's
MoE layers), ``model``, ``topk_weights``: the gate's scores, numbers of the same shape. ``routed_experts`` may be
base64, and both may stand where an engine's response has them (`archsim.workload.formats.routed_experts`). Other keys
are ignored. The subject is the file name, the number that of the line.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from archsim.base.errors import TraceError
from archsim.specs.model import ModelSpec
from archsim.workload import trace
from archsim.workload.formats.batches import Item, request_rows
from archsim.workload.formats.json_request import RequestRows
from archsim.workload.formats.routed_experts import decoded, flattened

IDS = ("topk_ids", "routed_experts")
SCORES = "topk_weights"
MOST_LINE_BYTES = 512 << 20


def jsonl_name(path: Path) -> str:
    """The model that the first line names, or ''."""
    with path.open("rb") as stream:
        first = _parse(stream.readline(MOST_LINE_BYTES), f"{path}: line 1")
    return str(first.get("model", ""))


def jsonl_items(path: Path) -> Iterator[Item]:
    """Raises TraceError for a file without lines; a line is parsed only when its item is read."""
    number = 0
    with path.open("rb") as stream:
        while line := stream.readline(MOST_LINE_BYTES + 1):
            number += 1
            where = f"{path}: line {number}"
            if len(line) > MOST_LINE_BYTES:
                raise TraceError(f"{where}: longer than {MOST_LINE_BYTES} bytes")
            if line.strip():
                yield Item(where, "", path.stem, number, len(line), partial(_read, line, where))
    if number == 0:
        raise TraceError(f"{path}: empty; expected one request per line")


def is_response(path: Path) -> bool:
    """Whether a ``.json`` file is one object, such as an engine's response, rather than a list of iterations."""
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(64).lstrip().startswith(b"{")


def response_name(path: Path) -> str:
    """The model that a response names, or ''."""
    return str(_response(path)[1].get("model", ""))


def response_items(path: Path) -> Iterator[Item]:
    """The request of one response. Raises TraceError."""
    content, _ = _response(path)
    yield Item(str(path), "", path.stem, 0, len(content), partial(_read, content, str(path)))


def _response(path: Path) -> tuple[bytes, dict]:
    if path.stat().st_size > MOST_LINE_BYTES:
        raise TraceError(f"{path}: longer than {MOST_LINE_BYTES} bytes")
    content = path.read_bytes()
    return content, _parse(content, str(path))


def _parse(line: bytes, where: str) -> dict:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}: not valid JSON ({error}); is the file truncated?") from error
    if not isinstance(data, dict):
        raise TraceError(f"{where}: expected an object with {' or '.join(IDS)}, and prompt_tokens")
    name = str(data.get("model", ""))
    if not name.isprintable():  # a lone surrogate or a control character cannot be written or shown
        raise TraceError(f"{where}: model is {name!a:.60}; expected a name of printable characters")
    return data


def _read(line: bytes, where: str, model: ModelSpec, layer_ids: np.ndarray | None) -> RequestRows:
    data = flattened(_parse(line, where))
    trace.check_name(where, model, str(data.get("model", "")))
    given = _integers(where, "layer_ids", data.get("layer_ids", list(model.moe_layer_ids)), 1)
    trace.check_layers(where, model, given)
    layers = given.astype(np.int32)
    name = next((name for name in IDS if name in data), None)
    if name is None:
        raise TraceError(f"{where}: has no {' or '.join(IDS)}")
    encoded = isinstance(data[name], str)
    experts = decoded(where, data[name], model) if encoded else _integers(where, name, data[name], 3)
    scores = _numbers(where, data[SCORES]) if SCORES in data else None
    return request_rows(where, model, experts, data.get("prompt_tokens"), layers, layer_ids, scores)


def _integers(where: str, name: str, values, dimensions: int) -> np.ndarray:
    """The numbers in nested lists. Raises TraceError if they are ragged, or not all integers."""
    try:
        found = np.array(values)
    except (ValueError, OverflowError):
        found = np.empty(0, object)
    if found.dtype.kind != "i" or found.ndim != dimensions or _has_boolean(values, dimensions):
        raise TraceError(f"{where}: {name}: expected integers in {dimensions} nested list(s) of even lengths")
    return found


def _numbers(where: str, values) -> np.ndarray:
    """Scores in nested lists. Raises TraceError if they are ragged, or not all numbers."""
    try:
        found = np.array(values)
    except (ValueError, OverflowError):
        found = np.empty(0, object)
    if found.dtype.kind not in "if" or found.ndim != 3:
        raise TraceError(f"{where}: {SCORES}: expected numbers in 3 nested lists of even lengths")
    return found


def _has_boolean(values, dimensions: int) -> bool:
    if dimensions == 1:
        return any(type(value) is bool for value in values)
    return any(_has_boolean(value, dimensions - 1) for value in values)
