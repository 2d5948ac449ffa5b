"""The parameters of generated routing, and the files that store them.

How they act: `archsim.traffic.generative`. A model fitted to a trace stores its arrays in an .npz file of
about 100 kB beside its .yaml file; one known only from loads or published statistics has a few numbers, from which
`from_statistics` builds the arrays.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from archsim.base import packed_files
from archsim.traffic.traffic_heads import TrafficTables

KIND_COMPONENTS = ("popularity", "task", "taste", "keep", "kind")
"""Ways in which the kind of a token is chosen; the last by what follows the kind of the token before."""

COMPONENTS = (*KIND_COMPONENTS, "path")
"""Ways in which an expert is chosen."""

TASTE, KEEP, KIND, PATH = range(2, len(COMPONENTS))

QUANTILES = 21

MOST_BYTES = 64 << 20
"""Of the arrays of a model, as float64; those of the largest shipped one take 5 MB."""

OTHER = "other"
"""The task of all requests of subjects that have too few for shares of their own."""


@dataclass(frozen=True)
class TrafficModel:
    """Parameters of generated routing of one model. Shares of a row sum to 1."""

    name: str  # of the preset or fit
    source: str  # where the numbers come from, in words
    groups: int  # experts are in so many groups of equal size; 1: no limit
    top_groups: int  # a token uses experts of at most so many groups
    top_k: int  # experts per token
    settled_after: int  # decode steps after which loads are stationary
    task_names: tuple[str, ...]  # the known tasks
    layer_ids: np.ndarray  # int32[layer], the model's numbers
    weights: np.ndarray  # float64[layer, component], rows sum to 1; see `COMPONENTS`
    taste_size: np.ndarray  # float64[layer], experts that make up the taste of a request, drawn with repeats
    # int64[phase], first iteration of each phase: 0 is the prefill; answers begin with the same experts, so the first
    # steps have phases of their own
    phase_starts: np.ndarray
    popularity: np.ndarray  # float64[phase, layer, expert], shares
    acceptance: np.ndarray  # float64[phase, layer, expert], probability that a drawn expert is taken
    kind_experts: np.ndarray  # float64[kind, layer, expert], shares
    kind_weights: np.ndarray  # float64[component], weights of what chooses the kind of a token
    kind_taste_size: np.ndarray  # float64[1], kinds that make up the taste of a request
    kind_popularity: np.ndarray  # float64[phase, kind], shares
    kind_following: np.ndarray  # float64[kind, kind], shares of kinds after one of the previous token
    # float64[layer - 1, expert, expert], shares of experts after one of the layer before; no layers: none are known
    paths: np.ndarray
    repeats: np.ndarray  # float64[lag], probability that a token repeats the one `lag` before it
    repeated: np.ndarray  # float64[layer], probability that it then repeats an expert
    # float64[layer, expert] from -1 to 1, probability that an expert of the previous token is taken at once or, below
    # 0, refused; no layers: all the same, and tokens do not take up the last one of their kind
    stays: np.ndarray
    # float64[phase], probability that an expert is drawn from the popularity of its phase before components
    script: np.ndarray
    task_share: np.ndarray  # float64[task], of the requests
    task_popularity: np.ndarray  # float64[task, layer, expert], shares
    task_kinds: np.ndarray  # float64[task, kind], shares
    prompt_tokens: np.ndarray  # float64[QUANTILES], quantiles of the length of prompts at 0, 5, ..., 100 %
    decode_steps: np.ndarray  # float64[QUANTILES], the same of decode steps
    first_step: int = 0  # decode steps that have passed when traffic begins; a run that is settled: ``settled_after``

    @property
    def experts(self) -> int:
        return self.popularity.shape[2]

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    @cached_property
    def digest(self) -> str:
        """sha256 of everything that affects the routing."""
        digest = hashlib.sha256(f"{self.groups} {self.top_groups} {self.top_k} {self.task_names}".encode())
        if self.first_step:
            digest.update(f" from {self.first_step}".encode())
        for name, array in sorted(self.arrays.items()):
            if name == "stays" and not len(array):
                continue  # of files that were written before experts differed in it: their routing is as it was
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def save_model(model: TrafficModel, path: Path, of: str = "") -> None:
    """Write `path` (.yaml) and the arrays beside it (.npz), shares rounded to 8 or 16 bits. of: whose routing it is."""
    tables = path.with_suffix(".npz")
    coded: dict[str, Any] = {name: _encode(name, array) for name, array in model.arrays.items()}
    np.savez_compressed(tables, **coded)
    head = {
        "name": model.name,
        **({"model": of} if of else {}),
        "source": model.source,
        "top_k": int(model.top_k),
        "groups": model.groups,
        "top_groups": model.top_groups,
        "tasks": list(model.task_names),
        **({"settled_after": int(model.settled_after)} if model.settled_after else {}),
        "tables": tables.name,
    }
    path.write_text(yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=120), encoding="utf-8")


def read_tables(head: TrafficTables, path: Path) -> TrafficModel:
    """The model of a .yaml file (`head`, at `path`) with tables. Raises what reading raises, or ValueError, KeyError,
    TypeError or IndexError if they do not fit.
    """
    read = packed_files.read_npz(path.parent / head.tables, most_bytes=MOST_BYTES)
    arrays = _complete({name: _decode(name, array) for name, array in read.items()})
    model = TrafficModel(
        name=head.name,
        source=head.source,
        groups=head.groups,
        top_groups=head.top_groups,
        top_k=head.top_k,
        settled_after=head.settled_after,
        task_names=head.tasks,
        first_step=0,
        **arrays,
    )
    _check(model)
    return model


def without_paths(phases: int, layers: int, experts: int) -> dict[str, np.ndarray]:
    """The arrays of a model whose tokens repeat none and follow no paths, and whose experts stay equally often."""
    return {
        "paths": np.zeros((0, experts, experts)),
        "repeats": np.zeros(0),
        "repeated": np.zeros(layers),
        "stays": np.zeros((0, experts)),
        "script": np.zeros(phases),
    }


def _complete(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a file, also one of before paths, repeats, stays and script."""
    missing = without_paths(*arrays["popularity"].shape)
    weights = arrays["weights"]
    if weights.shape[1] == len(KIND_COMPONENTS):
        weights = np.pad(weights, ((0, 0), (0, 1)))
    return missing | arrays | {"weights": weights}


def _check(model: TrafficModel) -> None:
    kinds, layers, experts = model.kind_experts.shape
    tasks, phases = len(model.task_names), len(model.phase_starts)
    expected = {
        "layer_ids": (layers,), "weights": (layers, len(COMPONENTS)), "taste_size": (layers,),
        "popularity": (phases, layers, experts), "acceptance": (phases, layers, experts),
        "kind_weights": (len(KIND_COMPONENTS),), "paths": (len(model.paths) and layers - 1, experts, experts),
        "repeats": model.repeats.shape[:1], "repeated": (layers,), "stays": (len(model.stays) and layers, experts),
        "script": (phases,),
        "kind_taste_size": (1,), "kind_popularity": (phases, kinds), "kind_following": (kinds, kinds),
        "task_share": (tasks,), "task_popularity": (tasks, layers, experts), "task_kinds": (tasks, kinds),
        "prompt_tokens": (QUANTILES,), "decode_steps": (QUANTILES,),
    }  # fmt: skip
    for name, shape in expected.items():
        array = getattr(model, name)
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}; expected {shape}")
        if not (np.isfinite(array).all() and (array >= (-1 if name == "stays" else 0)).all()):
            raise ValueError(f"{name} has values that are negative or no numbers")
    if (np.abs(model.stays) > 1).any():
        raise ValueError("stays has values that are not between -1 and 1")
    if model.phase_starts[0] != 0 or (np.diff(model.phase_starts) <= 0).any():
        raise ValueError(f"phase_starts is {model.phase_starts.tolist()}; expected to rise from 0")
    if model.repeats.sum() > 1 or (model.weights[:, -1].any() and not len(model.paths)):
        raise ValueError("repeats exceed 1, or there are weights of paths but no paths")
    if not 1 <= model.top_k <= experts:
        raise ValueError(f"top_k is {model.top_k}; expected 1 to {experts}")
    if model.groups > 1 and (experts % model.groups or model.top_groups * experts // model.groups < model.top_k):
        raise ValueError(f"{model.top_groups} of {model.groups} groups hold fewer than {model.top_k} experts")


def _is_shares(name: str) -> bool:
    return name in (
        "popularity", "task_popularity", "kind_experts", "kind_following", "kind_popularity", "task_kinds", "paths",
    )  # fmt: skip


def _encode(name: str, array: np.ndarray) -> np.ndarray:
    """Shares relative to the largest of their row: 16 bits, those of kinds 8 bits of the square root."""
    if name in ("kind_experts", "task_popularity", "paths"):
        return np.round(np.sqrt(array / array.max(axis=-1, keepdims=True)) * 255).astype(np.uint8)
    if _is_shares(name):
        return np.round(array / array.max(axis=-1, keepdims=True) * 65535).astype(np.uint16)
    if name == "acceptance":
        return np.round(array * 255).astype(np.uint8)
    if name == "stays":
        return np.round(array * 127).astype(np.int8)
    return array.astype(np.float32) if array.dtype.kind == "f" else array


def _decode(name: str, array: np.ndarray) -> np.ndarray:
    if _is_shares(name):
        shares = array.astype(np.float64) ** (2 if array.dtype == np.uint8 else 1)
        return shares / shares.sum(axis=-1, keepdims=True)
    if name == "acceptance":
        return array / 255
    if name == "stays":
        return array / 127
    return array.astype(np.float64) if array.dtype.kind == "f" else array
