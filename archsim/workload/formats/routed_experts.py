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
from typing import Any

import numpy as np

from archsim.base.errors import TraceError
from archsim.base.files import UNREADABLE, read_npy
from archsim.specs.model import ModelSpec
from archsim.workload import trace
from archsim.workload.formats.batches import Item, request_rows
from archsim.workload.formats.json_request import RequestRows
from archsim.workload.formats.npz import load_members, member_names

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
