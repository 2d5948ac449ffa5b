"""Checks of routing data, each with its error message."""

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import numpy as np

from archsim.base.config_files import shipped_configs
from archsim.base.errors import TraceError
from archsim.base.evidence import Claim, refuse_broken
from archsim.model.spec import ModelSpec
from archsim.specs.library import load_model

MAX_ITERATION = 32766
"""Iterations are kept as int16."""


def place(
    where: str, request: str | None = None, iteration: int | None = None, layer: int | str | None = None
) -> str:  # fmt: skip
    """'file: request 3, iteration 5, layer 7' of what is known."""
    parts = [
        f"{name} {value}"
        for name, value in (("request", request), ("iteration", iteration), ("layer", layer))
        if value is not None
    ]
    return f"{where}: {', '.join(parts)}" if parts else where


def refuse_special(source: Path) -> None:
    """Raise TraceError for a device or a pipe, whose reading may never end."""
    if not (source.is_file() or source.is_dir()):
        raise TraceError(f"{source}: neither a file nor a directory")


def nearest(value: int, choices: Iterable[int]) -> int:
    return min(choices, key=lambda choice: (abs(choice - value), choice))


def check_shape(where: str, model: ModelSpec, **stated: int | None) -> None:
    """Raise TraceError unless the stated experts, top_k and layers (None: not stated) match the model."""
    for name, found in stated.items():
        expected = getattr(model, name)
        if found is not None and found != expected:
            raise TraceError(f"{where}: the trace has {name} = {found}, but model {model.name} has {name} = {expected}")


def check_layers(where: str, model: ModelSpec, layer_ids: np.ndarray) -> None:
    """Raise TraceError unless `layer_ids` ascend and each is an MoE layer of the model (some may be missing)."""
    allowed = model.moe_layer_ids
    if len(layer_ids) == 0:
        raise TraceError(f"{where}: no MoE layer; model {model.name} has layers {span(allowed)}")
    for layer in map(int, layer_ids):
        if layer not in allowed:
            kind = "is dense in" if 0 <= layer < model.layers else "is not a layer of"
            raise TraceError(
                f"{where}: layer {layer} {kind} model {model.name}; nearest MoE layer {nearest(layer, allowed)}, "
                f"valid are {span(allowed)}"
            )
    disorder = np.flatnonzero(layer_ids[1:] <= layer_ids[:-1])
    if len(disorder):
        before, after = layer_ids[disorder[0] : disorder[0] + 2]
        raise TraceError(f"{where}: layer {after} follows layer {before}; expected ascending layer ids")


def check_name(where: str, model: ModelSpec, name: str) -> None:
    """Raise TraceError if the data names one shipped model and `model` is another of them.

    Names and aliases are compared by letters and digits alone, and either may say more ('meta-llama/Llama-4-Maverick-
    17B-128E-Instruct' is llama-4-maverick). A name that no shipped model has is ignored, and a model of the user's
    own is checked by shape only.
    """
    if not _plain(name) or is_named(model, name):
        return
    shipped = shipped_models()
    named = [other.name for other in shipped if is_named(other, name)]
    if named and model.name in {other.name for other in shipped}:
        raise TraceError(f"{where}: the trace is of {named[0]} ({name!r}), the model is {model.name}")


@lru_cache
def shipped_models() -> tuple[ModelSpec, ...]:
    return tuple(load_model(str(file)) for file in sorted((shipped_configs() / "models").glob("*.yaml")))


def is_named(model: ModelSpec, name: str) -> bool:
    """Whether a name found in data refers to a model."""
    own = [_plain(alias) for alias in (model.name, *model.aliases)]
    found = _plain(name.rsplit("/", 1)[-1])
    return any(alias in _plain(name) or (len(found) > 5 and found in alias) for alias in own)


def check_offsets(where: str, offsets: np.ndarray, tokens: int) -> None:
    """Raise TraceError unless offsets ascend from 0 to the number of tokens, and no request is empty."""
    if len(offsets) < 2:
        raise TraceError(f"{where}: no requests (request_offsets has {len(offsets)} entries; expected at least 2)")
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if len(falls):
        r = int(falls[0])
        raise TraceError(
            f"{place(where, str(r))}: request_offsets falls from {offsets[r]} to {offsets[r + 1]}; "
            "expected offsets that never decrease"
        )
    empty = np.flatnonzero(offsets[1:] == offsets[:-1])
    if len(empty):
        raise TraceError(f"{place(where, str(empty[0]))}: has no rows; expected one or more")
    if offsets[0] != 0 or offsets[-1] != tokens:
        raise TraceError(
            f"{where}: request_offsets runs from {offsets[0]} to {offsets[-1]}; expected 0 to {tokens} (all tokens)"
        )


def check_iterations(where: str, iteration: np.ndarray, offsets: np.ndarray) -> None:
    """Raise TraceError unless iterations start at 0 or later and ascend, except for the rows of the prefill (0)."""
    late = np.flatnonzero(iteration > MAX_ITERATION)
    if len(late):
        request = str(owner(offsets, int(late[0])))
        raise TraceError(
            f"{place(where, request)}: iteration {iteration[late[0]]} is out of range; expected at most {MAX_ITERATION}"
        )
    same_request = np.ones(len(iteration), bool)
    same_request[offsets[:-1][offsets[:-1] < len(iteration)]] = False
    iteration = iteration.astype(np.int64)
    previous = np.concatenate([[-1], iteration[:-1]])
    good = (iteration > previous) | ((iteration == 0) & (previous == 0))
    bad = np.flatnonzero(np.where(same_request, ~good, iteration < 0))
    if len(bad):
        row = int(bad[0])
        request = str(owner(offsets, row))
        found = f"iteration {iteration[row]}"
        if not same_request[row]:
            raise TraceError(f"{place(where, request)}: starts with {found}; expected 0 or later")
        raise TraceError(
            f"{place(where, request)}: {found} follows iteration {previous[row]}; expected a later one "
            "(only iteration 0, the prefill, has more than one row)"
        )


def check_experts(where: str, experts: np.ndarray, num_experts: int, row_place) -> None:
    """Raise TraceError at an id outside 0 … num_experts − 1 of experts[token, layer, k], at row_place(row, column)."""
    if experts.size and (experts.min() < 0 or experts.max() >= num_experts):
        row, column, rank = np.argwhere((experts < 0) | (experts >= num_experts))[0]
        raise TraceError(
            f"{row_place(int(row), int(column))}: expert id {experts[row, column, rank]} at rank {rank} is out of "
            f"range; expected 0 to {num_experts - 1}"
        )


def checked_scores(where: str, name: str, scores: np.ndarray, experts: np.ndarray) -> np.ndarray:
    """float32 scores of ``experts[token, layer, k]``. Raises TraceError unless each has a number >= 0."""
    if scores.dtype.kind not in "iuf" or scores.shape != experts.shape:
        raise TraceError(
            f"{where}: {name}: {scores.dtype} of shape {list(scores.shape)}; expected a number for every expert, "
            f"{list(experts.shape)}"
        )
    scores = np.ascontiguousarray(scores, np.float32)
    if scores.size and not (np.isfinite(scores).all() and scores.min() >= 0):
        at = tuple(np.argwhere(~(np.isfinite(scores) & (scores >= 0)))[0].tolist())
        raise TraceError(f"{where}: {name}: {scores[at]} at {list(at)}; expected finite scores >= 0")
    return scores


def check_distinct(where: str, experts: np.ndarray, row_place) -> None:
    """Raise TraceError at the first token that chooses an expert twice in a layer of experts[token, layer, k]."""
    ranks = np.ascontiguousarray(experts.transpose(2, 0, 1))
    for later in range(1, len(ranks)):
        for earlier in range(later):
            if (twice := ranks[later] == ranks[earlier]).any():
                row, column = np.argwhere(twice)[0]
                raise TraceError(
                    f"{row_place(int(row), int(column))}: expert {experts[row, column, later]} is chosen twice, at "
                    f"ranks {earlier} and {later}; expected different experts for a token"
                )


REPEATED = 8  # rows; of 39,000 public tokens in 24 layers of one expert each, four in a row agree at most


def check_recorded(where: str, experts: np.ndarray, row_place) -> None:
    """Raise TraceError for experts[token, layer, k] that no router chooses: equal in REPEATED tokens, or all layers."""
    tokens, layers, k = experts.shape
    if layers < 2 or tokens < REPEATED:
        return
    same = np.flatnonzero((experts[1:, 0] == experts[:-1, 0]).all(axis=1))
    same = same[(experts[same + 1] == experts[same]).all(axis=(1, 2))]
    ends = np.flatnonzero(np.diff(same, append=tokens + 1) > 1)
    runs = np.diff(ends, prepend=-1) + 1  # rows of each run
    if len(runs) and runs.max() >= REPEATED:
        first = int(same[ends[runs.argmax()]]) - int(runs.max()) + 2
        what = Claim("tokens in a row with the same experts", int(runs.max()), most=REPEATED - 1, why=(
            f"no router chooses the same {k} in each of {layers} layers so often; was this recorded under CUDA graphs?"
        ))  # fmt: skip
        refuse_broken(row_place(first, 0), [what])
    if np.array_equal(experts[:, 1:], np.broadcast_to(experts[:, :1], experts[:, 1:].shape)):
        what = Claim("layers with the same experts", layers, most=1, why=f"in each of {tokens} tokens they are equal")
        refuse_broken(where, [what])


def span(ids: tuple[int, ...]) -> str:
    """'3 to 60', or '1, 3, … 47' where ids are not consecutive."""
    if len(ids) > 3 and ids[-1] - ids[0] + 1 != len(ids):
        return f"{ids[0]}, {ids[1]}, … {ids[-1]}"
    return f"{ids[0]} to {ids[-1]}"


def owner(offsets: np.ndarray, row: int) -> int:
    return int(np.searchsorted(offsets, row, side="right")) - 1


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
