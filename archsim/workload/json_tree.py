"""The raw layout ``<org>/<model>/<dataset>/<subject>/<n>.json``: one file per request.

A file is a list of iterations; an iteration maps layer ids (as strings) to null (a layer without routing) or to rows
of `top_k` expert ids. Iteration 0 is the prefill, one row per prompt token; later iterations are decode steps of one
row. The data set is published as core12345/MoE_expert_selection_trace (Yu et al., ISCA 2026, arXiv 2510.05497v4).
"""

import json
from pathlib import Path

import numpy as np

from archsim.specs.errors import TraceError
from archsim.specs.model import ModelSpec
from archsim.workload import checks
from archsim.workload.trace import Trace


def read_json_tree(root: Path, model: ModelSpec, source: str) -> Trace:
    """Read every request below a directory (any level of the layout), or one file. Raises TraceError.

    Requests are ordered by (dataset, subject, number).
    """
    files = request_files(root)
    name = _model_name(root, files)
    checks.check_name(str(root), model, name)
    layer_ids: np.ndarray | None = None
    experts, iterations, subjects = [], [], []
    for file in files:
        data = _parse(file)
        if layer_ids is None:
            layer_ids = _layer_ids(file, data, model)
        rows, iteration = _columns(file, data, layer_ids, model)
        experts.append(rows)
        iterations.append(iteration)
        subjects.append(file.absolute().parent.name)
    names = tuple(dict.fromkeys(subjects))
    return Trace(
        experts=np.concatenate(experts),
        request_offsets=np.concatenate([[0], np.cumsum([len(rows) for rows in experts])]).astype(np.int64),
        iteration=np.concatenate(iterations),
        layer_ids=layer_ids,
        num_experts=model.experts,
        top_k=model.top_k,
        model=name,
        source=source,
        request_subject=np.array([names.index(subject) for subject in subjects], np.int16),
        subject_names=names,
    )


def request_files(root: Path) -> list[Path]:
    """The request files at or below `root`, by (…, dataset, subject, number). Raises TraceError if there is none."""
    files = [root] if root.is_file() else sorted(root.rglob("*.json"))
    if not files:
        raise TraceError(f"{root}: no request files; expected <dataset>/<subject>/<n>.json below this directory")
    for file in files:
        if not file.stem.isdecimal():
            raise TraceError(f"{file}: the name of a request file is its number; expected <n>.json")
    return sorted(files, key=lambda file: (file.parent.parts, int(file.stem)))


def _model_name(root: Path, files: list[Path]) -> str:
    """'<org>/<model>' of <org>/<model>/<dataset>/<subject>/<n>.json. Raises TraceError if there are several."""
    names = sorted({"/".join(file.absolute().parts[-5:-3]) for file in files})
    if len(names) > 1:
        raise TraceError(f"{root}: holds requests of {names[0]} and of {names[1]}; expected those of one model")
    return names[0]


def _parse(file: Path) -> list[dict]:
    try:
        data = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{_place(file)}: not valid JSON ({error}); is the file truncated?") from error
    if not isinstance(data, list) or not 0 < len(data) <= checks.MAX_ITERATION + 1:
        raise TraceError(f"{_place(file)}: expected a list of 1 to {checks.MAX_ITERATION + 1} iterations")
    for t, iteration in enumerate(data):
        if not isinstance(iteration, dict):
            raise TraceError(f"{_place(file, t)}: expected an object of layers, found {_kind(iteration)}")
    return data


def _layer_ids(file: Path, data: list[dict], model: ModelSpec) -> np.ndarray:
    """int32[layer]: the layers that have routing in the first iteration, checked against the model."""
    for key in data[0]:
        if not key.isdecimal():
            raise TraceError(f"{_place(file, 0)}: layer id {key!r} is not a number")
    present = sorted(map(int, data[0]))
    routed = np.array([layer for layer in present if data[0][str(layer)] is not None], np.int32)
    checks.check_layers(_place(file, 0), model, routed)
    for layer in model.moe_layer_ids:
        if str(layer) not in data[0] and present[0] < layer < present[-1]:
            raise TraceError(f"{_place(file, 0, layer)}: the layer is missing; a layer without routing is written null")
    return routed


def _columns(file: Path, data: list[dict], layer_ids: np.ndarray, model: ModelSpec) -> tuple[np.ndarray, np.ndarray]:
    """experts int16[token, layer, k] and iteration int16[token] of one request."""
    keys = [str(layer) for layer in layer_ids]
    experts = [_iteration(file, t, iteration, keys, model) for t, iteration in enumerate(data)]
    rows = [part.shape[0] for part in experts]
    return np.concatenate(experts), np.repeat(np.arange(len(rows), dtype=np.int16), rows)


def _iteration(file: Path, t: int, iteration: dict, keys: list[str], model: ModelSpec) -> np.ndarray:
    """int16[row, layer, k] of one iteration."""
    extra = {key for key, rows in iteration.items() if rows is not None} - set(keys)
    if extra:
        layer = min(extra)
        raise TraceError(f"{_place(file, t, layer)}: has routing, but had none in the first iteration of the trace")
    try:
        block = np.array([iteration[key] for key in keys])
    except (KeyError, ValueError, TypeError, OverflowError):
        block = None
    if block is None or block.dtype.kind != "i" or block.ndim != 3 or block.shape[2] != model.top_k:
        if t == 0 and all(iteration.get(key) == [] for key in keys):
            return np.empty((0, len(keys), model.top_k), np.int16)
        raise _malformed(file, t, iteration, keys, model)
    if t > 0 and block.shape[1] != 1:
        raise TraceError(f"{_place(file, t, keys[0])}: {block.shape[1]} rows; expected 1 row in a decode step")
    block = block.transpose(1, 0, 2)
    checks.check_experts(str(file), block, model.experts, lambda row, column: _place(file, t, keys[column]))
    return block.astype(np.int16)


def _malformed(file: Path, t: int, iteration: dict, keys: list[str], model: ModelSpec) -> TraceError:
    """Find what is wrong with an iteration that does not form a block [layer, row, k] of integers."""
    height = None
    for key in keys:
        where = _place(file, t, key)
        if key not in iteration:
            return TraceError(f"{where}: the layer is missing; expected layers {', '.join(keys)} in every iteration")
        rows = iteration[key]
        if not isinstance(rows, list) or not rows:
            return TraceError(f"{where}: expected a list of rows, found {_kind(rows)}")
        height = height or len(rows)
        if len(rows) != height:
            return TraceError(f"{where}: {len(rows)} rows; expected {height}, as in layer {keys[0]}")
        for number, row in enumerate(rows):
            if not isinstance(row, list) or len(row) != model.top_k:
                found = f"{len(row)} ids" if isinstance(row, list) else _kind(row)
                return TraceError(f"{where}: row {number} has {found}; expected top_k = {model.top_k} of {model.name}")
            for rank, expert in enumerate(row):
                if type(expert) is not int or not 0 <= expert < model.experts:
                    return TraceError(
                        f"{where}: expert id {expert!r} at rank {rank} of row {number}; "
                        f"expected an integer from 0 to {model.experts - 1}"
                    )
    return TraceError(f"{_place(file, t)}: expected rows of {model.top_k} expert ids in every layer")


def _place(file: Path, iteration: int | None = None, layer: int | str | None = None) -> str:
    return checks.place(str(file), f"{file.absolute().parent.name}/{file.stem}", iteration, layer)


def _kind(value) -> str:
    if isinstance(value, (list, dict)) and not value:
        return "nothing"
    return {type(None): "null", dict: "an object", list: "a list", str: "a string"}.get(type(value), repr(value))
