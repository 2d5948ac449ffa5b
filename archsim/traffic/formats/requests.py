"""What readers of token-level routing return: requests as items, in batches that can be read in parallel."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from archsim.base.errors import TraceError
from archsim.model.spec import ModelSpec
from archsim.traffic import trace_checks


@dataclass(frozen=True)
class RequestRows:
    """The routing of one request."""

    experts: np.ndarray  # int16[token, layer, k]
    iteration: np.ndarray  # int16[token]
    layer_ids: np.ndarray  # int32[layer]
    scores: np.ndarray | None = None  # float32[token, layer, k], the gate's


@dataclass(frozen=True)
class Item:
    """One request still to be read."""

    where: str  # for messages, and to recognise it when an import resumes
    dataset: str  # '' if it has none
    subject: str  # within the data set
    number: int  # within the subject
    size: int  # bytes
    read: Callable[[ModelSpec, np.ndarray | None], RequestRows]  # (model, layer ids or None); raises TraceError


def joined_scores(where: str, scores: list[np.ndarray | None]) -> np.ndarray | None:
    """float32[token, layer, k] of all requests, or None if none has any. Raises TraceError if only some have."""
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
    trace_checks.check_layers(where, model, layers)
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

    trace_checks.check_experts(where, experts, model.experts, row_place)
    trace_checks.check_distinct(where, experts, row_place)
    trace_checks.check_recorded(where, experts, row_place)
    if not len(experts):
        raise TraceError(f"{where}: has no tokens; expected one or more")
    if type(prompt_tokens) is not int or not 0 <= prompt_tokens <= len(experts):
        raise TraceError(
            f"{where}: prompt_tokens is {prompt_tokens!r}; expected a number from 0 to {len(experts)}, the tokens"
        )
    decode_steps = len(experts) - prompt_tokens
    if decode_steps > trace_checks.MAX_ITERATION:
        raise TraceError(f"{where}: {decode_steps} decode steps; expected at most {trace_checks.MAX_ITERATION}")
    iteration = np.r_[np.zeros(prompt_tokens, np.int16), np.arange(1, decode_steps + 1, dtype=np.int16)]
    if scores is not None:
        scores = trace_checks.checked_scores(where, "scores", scores, experts)
    return RequestRows(np.ascontiguousarray(experts, np.int16), iteration, layers, scores)
