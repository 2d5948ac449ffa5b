"""Formats of token-level routing: one row each, shared by ``open_trace`` and imports.

A user's own format is a function ``package.module:function`` (``workload.reader`` of an experiment, ``--reader`` of
an import): ``(path: pathlib.Path, model: ModelSpec) -> iterable of (experts, prompt_tokens)``, one pair per request;
``experts``: integers [token, MoE layer, rank], prompt first; ``prompt_tokens``: number of prompt tokens. A third
member of a pair are the gate's scores, numbers of the shape of ``experts``.
"""

import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base import errors, own_code
from archsim.model.spec import ModelSpec
from archsim.traffic.formats import jsonl, routed_experts
from archsim.traffic.formats.json_tree import ARCHIVES, archive_items, archive_name, tree_items, tree_name
from archsim.traffic.formats.npz import npz_items, npz_name
from archsim.traffic.formats.requests import Item, RequestRows, request_rows
from archsim.traffic.formats.source_destination import is_matrices, matrix_items


@dataclass(frozen=True)
class RoutingFormat:
    """One layout of token-level routing."""

    name: str  # for messages
    matches: Callable[[Path], bool]  # whether a path looks like it
    model_name: Callable[[Path], str]  # the model that a source names, or ''; raises TraceError
    items: Callable[[Path, ModelSpec], Iterator[Item]]  # requests of a source, still to be read; raises TraceError


def _is_tree(path: Path) -> bool:
    return path.is_dir() or path.suffix == ".json"


FORMATS = (
    RoutingFormat(
        "response of an engine", jsonl.is_response, jsonl.response_name, lambda path, model: jsonl.response_items(path)
    ),
    RoutingFormat("JSON tree", _is_tree, tree_name, lambda path, model: tree_items(path)),
    RoutingFormat(
        "archive of a JSON tree",
        lambda path: path.name.endswith(ARCHIVES),
        archive_name,
        lambda path, model: archive_items(path),
    ),
    RoutingFormat("routed experts in npz", routed_experts.is_routed_npz, npz_name, routed_experts.routed_npz_items),
    RoutingFormat("npz", lambda path: path.suffix == ".npz", npz_name, npz_items),
    RoutingFormat("matrices of assignments", is_matrices, lambda path: "", matrix_items),
    RoutingFormat(
        "JSON lines",
        lambda path: path.suffix == ".jsonl",
        jsonl.jsonl_name,
        lambda path, model: jsonl.jsonl_items(path),
    ),
)


def format_of(path: Path, reader: str | None = None) -> RoutingFormat:
    """The format of a source, or that of a user's own ``reader``. Raises TraceError if none matches."""
    if reader is not None:
        return own_format(reader)
    found = next((each for each in FORMATS if each.matches(path)), None)
    if found is None:
        raise errors.TraceError(
            f"{path}: unknown format; expected tokens: a directory or archive ({', '.join(ARCHIVES)}) of requests, "
            ".json, .jsonl or .npz; or expert loads: .pt, .json, .csv, .npy, .npz, .jsonl, rank*.safetensors"
            " (or name your own reader: package.module:function)"
        )
    return found


def own_format(reader: str) -> RoutingFormat:
    """The format that the function ``package.module:function`` reads. Raises TraceError if it cannot be imported."""
    try:
        function = own_code.import_function(reader)
    except ValueError as error:
        raise errors.TraceError(f"reader: {error}") from None
    return RoutingFormat(reader, lambda path: True, lambda path: "", partial(_own_items, reader, function))


def _own_items(reader: str, function: Callable[..., Iterable[Any]], path: Path, model: ModelSpec) -> Iterator[Item]:
    number = 0
    for given in _call(reader, path, function, model):
        where = f"{path}: request {number} of {reader}"
        if not isinstance(given, tuple) or len(given) not in (2, 3):
            raise errors.TraceError(f"{where}: is {type(given).__name__}; expected a pair (experts, prompt_tokens)")
        experts, prompt_tokens, scores = np.asarray(given[0]), given[1], np.asarray(given[2]) if given[2:] else None
        rows = partial(_own_rows, where, experts, prompt_tokens, scores)
        yield Item(where, "", path.stem, number, experts.nbytes, rows)
        number += 1
    if number == 0:
        raise errors.TraceError(f"{path}: {reader} yields no requests")


def _call(reader: str, path: Path, function: Callable[..., Iterable[Any]], model: ModelSpec) -> Iterator[Any]:
    """What a user's function yields; an exception becomes a TraceError with its type and place."""
    try:
        yield from function(path, model)
    except errors.ArchsimError:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise errors.TraceError(
            f"{path}: {reader}: {type(error).__name__}: {error} ({place.filename}:{place.lineno})"
        ) from error


def _own_rows(
    where: str,
    experts: np.ndarray,
    prompt_tokens: Any,
    scores: np.ndarray | None,
    model: ModelSpec,
    layer_ids: np.ndarray | None,
) -> RequestRows:
    layers = np.array(model.moe_layer_ids, np.int32)
    return request_rows(where, model, experts, prompt_tokens, layers, layer_ids, scores)
