"""Routing that engines return with a response: SGLang's and vLLM's ``routed_experts``.

SGLang: base64 of int32 [token][layer][k] without a shape, in ``meta_info`` of ``/generate`` or ``choices[].sgl_ext``.
vLLM: base64 of an ``.npy`` file [token, layer, k], or a member ``routed_experts`` of an ``.npz`` file. Layers are all
layers of the model, or its MoE layers. The last token that is generated is never routed. Source: sgl-project/sglang,
extract_routed_experts_from_meta_info; vllm-project/vllm, pull request 28284.
"""

import base64
import binascii
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from archsim.base import evidence, packed_files
from archsim.base.errors import TraceError
from archsim.model.spec import ModelSpec
from archsim.traffic import trace_checks
from archsim.traffic.formats.npz import load_members, member_names
from archsim.traffic.formats.requests import Item, RequestRows, request_rows

NAME = "routed_experts"
_PROMPT = ("prompt_tokens", "num_prompt_tokens", "prompt_len")
_NPY = b"\x93NUMPY"


def is_routed_npz(path: Path) -> bool:
    names = member_names(path) if path.suffix == ".npz" else set()
    return NAME in names and "experts" not in names


def routed_npz_items(path: Path, model: ModelSpec) -> Iterator[Item]:
    """The one request of a file. Raises TraceError."""
    where = str(path)
    members = load_members(path, {NAME, "prompt_token_ids", "completion_tokens", "model", *_PROMPT})
    trace_checks.check_name(where, model, str(members.get("model", "")))
    stated = next((members[name] for name in _PROMPT if name in members), None)
    if stated is None and "prompt_token_ids" in members:
        stated = np.array(members["prompt_token_ids"].size)
    if stated is None or stated.size != 1 or stated.dtype.kind not in "iu":
        raise TraceError(f"{where}: expected a member prompt_tokens (one integer), or prompt_token_ids")
    if (made := members.get("completion_tokens", np.zeros(0))).size == 1:
        evidence.refuse_broken(where, [_said(len(members[NAME]), stated.item(), made.item(), 1)])
    yield Item(where, "", path.stem, 0, members[NAME].nbytes, partial(_rows, where, members[NAME], stated.item()))


def _rows(where: str, experts: np.ndarray, prompt: int, model: ModelSpec, layer_ids: np.ndarray | None) -> RequestRows:
    experts = moe_layers(where, experts, model)
    return request_rows(where, model, experts, prompt, np.array(model.moe_layer_ids, np.int32), layer_ids)


class Choice(NamedTuple):
    """One request of a response."""

    place: str  # which one, in words; '' of a single one
    line: dict  # the keys of the response and its choice that say anything of it
    choices: list[Any]  # ids as the response has them, of this one first and then of the others
    rows: int | None  # tokens of all of them together; None: not said


def choices_of(where: str, data: dict | list) -> list[Choice]:
    """The requests of a response: one for each member of a list, and for each of its choices. Raises TraceError."""
    if isinstance(data, list):
        each = [(f"response {n}", choices_of(f"{where}: response {n}", one)) for n, one in enumerate(data)]
        return [it._replace(place=", ".join(filter(None, (at, it.place)))) for at, of in each for it in of]
    if not isinstance(data, dict):
        raise TraceError(f"{where}: expected an object with {' or '.join(IDS)}, and prompt_tokens")
    given = data.get("choices")
    choices = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
    found = []
    for choice in choices or [{}]:
        parts = (data, data.get("meta_info"), choice.get("sgl_ext"), choice, data.get("usage"))
        line: dict[str, Any] = {}
        for part in reversed([each for each in parts if isinstance(each, dict)]):
            line |= {key: part[key] for key in (NAME, "prompt_tokens", "completion_tokens") if key in part}
        found.append({**data, **line})
    prompt, made = found[0].get("prompt_tokens"), found[0].get("completion_tokens")
    whole = isinstance(prompt, int) and isinstance(made, int) and made > 0
    rows = len(found) * (prompt - 1) + made if whole else None  # type: ignore[operator]
    names = [next((name for name in IDS if name in line), None) for line in found]
    for n, name in enumerate(names):
        if name is None:
            at = f": choice {n} of {len(names)}" if len(names) > 1 else ""
            raise TraceError(f"{where}{at}: has no {' or '.join(IDS)}")
    ids = [line[name] for line, name in zip(found, names, strict=True)]
    return [
        Choice(f"choice {n}" if len(found) > 1 else "", line, [ids[n], *ids[:n], *ids[n + 1 :]], rows)
        for n, line in enumerate(found)
    ]


def read_choice(where: str, choice: Choice, model: ModelSpec) -> np.ndarray:
    """Integers [token, layer, k] of a choice; of base64 those of the MoE layers. Raises TraceError where a response has
    another number of tokens than it says, or does not say which of two shapes it has.
    """
    name = next(name for name in IDS if name in choice.line)
    found = [_decode(where, each) if isinstance(each, str) else integers(where, name, each, 3)
             for each in choice.choices]  # fmt: skip
    if found[0].ndim == 1:  # without a shape
        sizes = sorted({model.layers, len(model.moe_layer_ids)}, reverse=True)
        ids = sum(each.size for each in found)
        fitting = [n for n in sizes if ids and all(each.size % (n * model.top_k) == 0 for each in found)]
        of_rows = [n for n in fitting if choice.rows is not None and ids == choice.rows * n * model.top_k]
        if not fitting:
            raise TraceError(
                f"{where}: {NAME} has {found[0].size} ids; expected a multiple of {' or '.join(map(str, sizes))} "
                f"layers x top_k = {model.top_k} of {model.name}"
            )
        if len(fitting) > 1 and choice.rows is None:
            either = " or ".join(f"{found[0].size // (n * model.top_k)} tokens of {n} layers" for n in fitting)
            raise TraceError(f"{where}: {NAME} has {found[0].size} ids: {either}; expected completion_tokens beside it")
        layers = next(iter(of_rows or fitting))
        found = [each.reshape(-1, layers, model.top_k) for each in found]
    if choice.rows is not None:
        said = choice.line["prompt_tokens"], choice.line["completion_tokens"]
        evidence.refuse_broken(where, [_said(sum(map(len, found)), *said, len(found))])
    return moe_layers(where, found[0], model) if isinstance(choice.choices[0], str) else found[0]


def _said(tokens: int, prompt: int, made: int, choices: int) -> evidence.Claim:
    of = f" of {choices} choices" if choices > 1 else ""
    why = f"{prompt} prompt_tokens and {made} completion_tokens, of which the last of a choice is never routed"
    expected = choices * (prompt - 1) + made
    return evidence.Claim(f"tokens with routing{of}", tokens, why, expected, expected)


def _decode(where: str, text: str) -> np.ndarray:
    """Integers of base64 text, in the shape that it has, or none. Raises TraceError."""
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise TraceError(f"{where}: {NAME} is not base64 ({error})") from None
    if content.startswith(_NPY):
        try:
            found = packed_files.read_npy(content)
        except packed_files.UNREADABLE as error:
            raise TraceError(f"{where}: {NAME} is not a readable .npy file ({error})") from None
        if found.ndim != 3:
            raise TraceError(f"{where}: {NAME} has shape {list(found.shape)}; expected [token, layer, k]")
        return found
    if len(content) % 4:
        raise TraceError(f"{where}: {NAME} has {len(content)} bytes; expected int32, a multiple of 4")
    return np.frombuffer(content, "<i4")


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


IDS = ("topk_ids", "routed_experts")


def integers(where: str, name: str, values, dimensions: int) -> np.ndarray:
    """The numbers in nested lists. Raises TraceError if they are ragged, or not all integers."""
    try:
        found = np.array(values)
    except (ValueError, OverflowError):
        found = np.empty(0, object)
    if found.dtype.kind != "i" or found.ndim != dimensions or _has_boolean(values, dimensions):
        raise TraceError(f"{where}: {name}: expected integers in {dimensions} nested list(s) of even lengths")
    return found


def _has_boolean(values, dimensions: int) -> bool:
    if dimensions == 1:
        return any(type(value) is bool for value in values)
    return any(_has_boolean(value, dimensions - 1) for value in values)
