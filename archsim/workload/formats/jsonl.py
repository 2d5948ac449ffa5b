"""JSON lines, one request per line, as serving engines log them.

A line is an object: ``topk_ids`` (or ``routed_experts``, as vLLM calls it): ids [token][layer][k], prompt first;
``prompt_tokens``: number of prompt tokens (0: decode only; required). Optional: ``layer_ids`` (default: the model's
MoE layers), ``model``, ``topk_weights``: the gate's scores, numbers of the same shape. ``routed_experts`` may be
base64, and both may stand where an engine's response has them (below). Other keys
are ignored. The subject is the file name, the number that of the line.
"""

import base64
import binascii
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base.errors import TraceError
from archsim.base.files import UNREADABLE, read_npy
from archsim.specs.model import ModelSpec
from archsim.workload import trace
from archsim.workload.formats.npz import load_members, member_names
from archsim.workload.formats.requests import Item, RequestRows, request_rows

# ---- routed_experts
# Routing that engines return with a response: SGLang's and vLLM's ``routed_experts``.
#
# SGLang: base64 of int32 [token][layer][k] without a shape, in ``meta_info`` of ``/generate`` or ``choices[].sgl_ext``.
# vLLM: base64 of an ``.npy`` file [token, layer, k], or a member ``routed_experts`` of an ``.npz`` file. Layers are all
# layers of the model, or its MoE layers. The last token that is generated is never routed. Source: sgl-project/sglang,
# extract_routed_experts_from_meta_info; vllm-project/vllm, pull request 28284.

NAME = "routed_experts"
_PROMPT = ("prompt_tokens", "num_prompt_tokens", "prompt_len")
_NPY = b"\x93NUMPY"


def is_routed_npz(path: Path) -> bool:
    """Whether an ``.npz`` file has vLLM's member and not archsim's."""
    names = member_names(path) if path.suffix == ".npz" else set()
    return NAME in names and "experts" not in names


def routed_npz_items(path: Path, model: ModelSpec) -> Iterator[Item]:
    """The one request of a file. Raises TraceError."""
    where = str(path)
    members = load_members(path, {NAME, "prompt_token_ids", "model", *_PROMPT})
    trace.check_name(where, model, str(members.get("model", "")))
    stated = next((members[name] for name in _PROMPT if name in members), None)
    if stated is None and "prompt_token_ids" in members:
        stated = np.array(members["prompt_token_ids"].size)
    if stated is None or stated.size != 1 or stated.dtype.kind not in "iu":
        raise TraceError(f"{where}: expected a member prompt_tokens (one integer), or prompt_token_ids")
    yield Item(where, "", path.stem, 0, members[NAME].nbytes, partial(_rows, where, members[NAME], stated.item()))


def _rows(where: str, experts: np.ndarray, prompt: int, model: ModelSpec, layer_ids: np.ndarray | None) -> RequestRows:
    experts = moe_layers(where, experts, model)
    return request_rows(where, model, experts, prompt, np.array(model.moe_layer_ids, np.int32), layer_ids)


def flattened(response: dict) -> dict:
    """A line with ``routed_experts`` and ``prompt_tokens`` at the top, from an engine's response or as it is."""
    choices = response.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    inner = [response.get("meta_info"), choice.get("sgl_ext"), choice, response.get("usage")]
    found: dict[str, Any] = {}
    for part in (response, *(each for each in inner if isinstance(each, dict))):
        for name in (NAME, "prompt_tokens"):
            if name in part and name not in found:
                found[name] = part[name]
    return {**response, **found}


def decoded(where: str, text: str, model: ModelSpec) -> np.ndarray:
    """Integers [token, MoE layer, k] of base64 text. Raises TraceError."""
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise TraceError(f"{where}: {NAME} is not base64 ({error})") from None
    if content.startswith(_NPY):
        try:
            return moe_layers(where, read_npy(content), model)
        except UNREADABLE as error:
            raise TraceError(f"{where}: {NAME} is not a readable .npy file ({error})") from None
    if len(content) % 4:
        raise TraceError(f"{where}: {NAME} has {len(content)} bytes; expected int32, a multiple of 4")
    flat = np.frombuffer(content, "<i4")
    for layers in (model.layers, len(model.moe_layer_ids)):
        if flat.size and flat.size % (layers * model.top_k) == 0:
            return moe_layers(where, flat.reshape(-1, layers, model.top_k), model)
    raise TraceError(
        f"{where}: {NAME} has {flat.size} ids; expected a multiple of {model.layers} layers x top_k = {model.top_k} of "
        f"{model.name}"
    )


def moe_layers(where: str, experts: np.ndarray, model: ModelSpec) -> np.ndarray:
    """[token, MoE layer, k] of routing in all layers or in the MoE layers. Raises TraceError."""
    layers = experts.shape[1] if experts.ndim == 3 else 0
    moe = list(model.moe_layer_ids)
    if layers not in (model.layers, len(moe)):
        raise TraceError(
            f"{where}: {NAME} has shape {list(experts.shape)}; expected [tokens, {model.layers} layers or {len(moe)} "
            f"MoE layers, top_k = {model.top_k}] of {model.name}"
        )
    return experts if layers == len(moe) else experts[:, moe]


# ---- jsonl

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
