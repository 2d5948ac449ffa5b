"""Models of generated routing by name: files in configs/traffic, fitted (with tables) or built from statistics.

A file of statistics states what is known about a model without a trace: `TrafficStatistics`.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from archsim.base.config_files import named_files
from archsim.base.errors import TraceError, did_you_mean
from archsim.base.packed_files import UNREADABLE, read_npz
from archsim.traffic import traffic_heads, traffic_model
from archsim.traffic.imbalance import skew_of
from archsim.traffic.layer_subset import representative_layers, spread_layers
from archsim.traffic.subjects import SeveralSubjects, traffic_of
from archsim.traffic.synthetic import SyntheticTraffic, popularity, skew_of_layers, skews_of
from archsim.traffic.trace import TokenSource

Parameters = traffic_model.TrafficModel | SeveralSubjects


class _Shape(NamedTuple):
    layer_ids: np.ndarray
    experts: int
    top_k: int

    @property
    def moe_layer_ids(self) -> tuple[int, ...]:
        return tuple(self.layer_ids.tolist())


def generated_traffic(model, spec, largest_batch: int, layers: int | None = None) -> TokenSource:
    """The traffic of a SyntheticSpec for a ModelSpec; see `SyntheticTraffic` and `GenerativeTraffic`. Raises
    TraceError.

    layers: so many of the model's MoE layers, which represent all (`archsim.traffic.layer_subset`) and have the
    routing that they have among all; None: all.
    """
    shape = shape_of(model)
    like = spec.preset_of(model.name)
    if like is None and spec.imbalance is not None:  # a layer has what is stated for its depth
        if layers is not None:
            shape = shape._replace(layer_ids=shape.layer_ids[spread_layers(len(shape.layer_ids), layers)])
        skew = skew_of(spec, shape.layer_ids, shape.experts, shape.top_k)
        return SyntheticTraffic(shape, spec, largest_batch, skew)
    if like is None:
        skew = skew_of_layers(skews_of(spec), shape.layer_ids)
        if layers is not None:
            shares = popularity(spec.seed, shape.layer_ids, shape.experts, skew)
            chosen = representative_layers(shares[None], layers)
            shape, skew = shape._replace(layer_ids=shape.layer_ids[chosen]), skew[chosen]
        return SyntheticTraffic(shape, spec, largest_batch, skew)
    parameters = load_traffic(like, model)
    if layers is not None:
        chosen = representative_layers(_phases(parameters, spec.prompt_tokens != 0), layers)
        shape = shape._replace(layer_ids=shape.layer_ids[chosen])
        parameters = map_models(parameters, lambda each: of_layers(each, shape.layer_ids, traffic_file(like)))
    if spec.phase == "settled":
        parameters = map_models(parameters, lambda each: replace(each, first_step=each.settled_after))
    return traffic_of(with_lengths(parameters, spec, like), spec.requests or largest_batch, spec.seed, spec.mix)


def _phases(parameters: Parameters, prompts: bool) -> np.ndarray:
    """Shares float64[phase, layer, expert] of prompts, where there are any, and of decode steps."""
    if isinstance(parameters, SeveralSubjects):
        of_each = [_phases(each, prompts) for each in parameters.models.values()]
        return np.average(of_each, axis=0, weights=parameters.shares)
    decode = parameters.popularity[1:] if len(parameters.popularity) > 1 else parameters.popularity
    phases = [parameters.popularity[0]] * prompts + [decode.mean(axis=0)]
    return np.stack(phases)


def map_models(
    found: Parameters, change: Callable[[traffic_model.TrafficModel], traffic_model.TrafficModel]
) -> Parameters:
    """Traffic of either kind with another model, for each subject where there are several."""
    return found.map_models(change) if isinstance(found, SeveralSubjects) else change(found)


def with_lengths(parameters: Parameters, spec, like: str) -> Parameters:
    """A preset's traffic with the prompts and decode steps of a SyntheticSpec. Raises TraceError: neither is left."""
    given = {"prompt_tokens": spec.prompt_tokens, "decode_steps": spec.decode_steps}
    changes: dict[str, Any] = {
        name: np.full(traffic_model.QUANTILES, float(value)) for name, value in given.items() if value is not None
    }

    def with_changes(model: traffic_model.TrafficModel) -> traffic_model.TrafficModel:
        found = replace(model, **changes)
        if not (found.prompt_tokens.any() or found.decode_steps.any()):
            raise TraceError(
                f"{traffic_file(like)}: its requests have no decode steps, and prompt_tokens: 0 leaves out the "
                "prompts: nothing would run. Give trace.synthetic.decode_steps, or more prompt_tokens"
            )
        return found

    return map_models(parameters, with_changes)


def traffic_file(like: str) -> Path:
    """The .yaml file of a preset's name, or the path itself. Raises TraceError."""
    if like.endswith((".yaml", ".yml")):
        return Path(like)
    files = named_files("traffic")
    if like not in files:
        raise TraceError(f"no traffic preset {like!r}{did_you_mean(like, files)} (known: {', '.join(files)})")
    return files[like]


def preset_digest(like: str) -> str:
    """sha256 of the files of a preset. Raises TraceError, SpecError."""
    file = traffic_file(like)
    digest = hashlib.sha256()
    files = [file]
    if file.exists() and isinstance(head := traffic_heads.read_head(file)[0], traffic_heads.TrafficSubjects):
        files += [file.parent / part.like for part in head.subjects.values()]
    for part in (each for one in files for each in (one, one.with_suffix(".npz"))):
        digest.update(part.read_bytes() if part.exists() else b"")
    return digest.hexdigest()


def shape_of(model) -> _Shape:
    return _Shape(np.array(model.moe_layer_ids, np.int32), model.experts, model.top_k)


def load_traffic(like: str, model) -> Parameters:
    """The parameters of a preset for the layers of a ModelSpec. Raises SpecError for a file with problems, TraceError
    if its parameters cannot be read or are of another shape.
    """
    file = traffic_file(like)
    (head, tree), shape = traffic_heads.read_head(file), shape_of(model)
    if isinstance(head, traffic_heads.TrafficSubjects):
        models: dict[str, traffic_model.TrafficModel] = {}
        for name, part in head.subjects.items():
            if isinstance(traffic_heads.read_head(inner := file.parent / part.like)[0], traffic_heads.TrafficSubjects):
                raise TraceError(
                    f"{tree.place(('subjects', name))}: {inner} has subjects, too; expected traffic of one"
                )
            one = load_traffic(str(inner), model)
            assert isinstance(one, traffic_model.TrafficModel), "it has no subjects"
            models[name] = one
        shares = tuple(part.share for part in head.subjects.values())
        return SeveralSubjects(head.name, head.source, models, shares, dict(head.spread))
    try:
        found = _read(head, file, shape)
    except (*UNREADABLE, TypeError, IndexError) as error:
        raise TraceError(f"{tree.place(())}: not a readable traffic model ({error})") from error
    if (found.experts, found.top_k) != (model.experts, model.top_k):
        raise TraceError(
            f"{tree.place(())}: traffic of {found.experts} experts, top-{found.top_k}; model {model.name} has "
            f"{model.experts}, top-{model.top_k}"
        )
    return of_layers(found, shape.layer_ids, file)


_MOST_READ = 8
_have_read: dict[
    tuple, traffic_model.TrafficModel
] = {}  # the latest, by content and shape: every batch of a sweep asks for them


def _read(
    head: traffic_heads.TrafficTables | traffic_heads.TrafficStatistics, file: Path, shape: _Shape
) -> traffic_model.TrafficModel:
    """A model of traffic from its file; its arrays are not to be written. Raises what reading it raises."""
    arrays = head.tables if isinstance(head, traffic_heads.TrafficTables) else head.loads
    content = hashlib.sha256(file.read_bytes())
    content.update((file.parent / arrays).read_bytes() if arrays else b"")
    key = str(file), content.digest(), shape.layer_ids.tobytes(), *shape[1:]
    if key not in _have_read:
        found = (
            traffic_model.read_tables(head, file)
            if isinstance(head, traffic_heads.TrafficTables)
            else from_statistics(head, file, shape)
        )
        while len(_have_read) >= _MOST_READ:
            del _have_read[next(iter(_have_read))]
        _have_read[key] = found
    return _have_read[key]


def model_of(like: str) -> str:
    """The name of a preset's model. Raises TraceError if the preset does not state it."""
    file = traffic_file(like)
    name = traffic_heads.stated_model(file)
    known = isinstance(name, str) and (name in named_files("models") or os.path.isfile(name))
    if not known:
        raise TraceError(f"{file}:1: does not name its model. Give --model")
    return name


def from_statistics(head: traffic_heads.TrafficStatistics, file: Path, shape: _Shape) -> traffic_model.TrafficModel:
    """A model of traffic from the numbers in ``file``. Raises ValueError, or what reading its loads raises."""
    if shape.experts % head.groups or head.top_groups * (shape.experts // head.groups) < shape.top_k:
        raise ValueError(
            f"{head.top_groups} of {head.groups} groups of {shape.experts} experts: expected equal groups, with at "
            f"least {shape.top_k} experts (top_k) in those taken"
        )
    shares, acceptance, layer_ids = _shares(head, file, shape)
    weights, kind_weights = np.array(head.weights.values), np.array(head.kind_weights.values)
    mean, kinds, layers = shares.mean(axis=0), head.kinds, len(layer_ids)
    return traffic_model.TrafficModel(
        name=head.name,
        source=head.source,
        groups=head.groups,
        top_groups=head.top_groups,
        top_k=shape.top_k,
        settled_after=head.settled_after,
        task_names=("any",),
        first_step=0,
        layer_ids=layer_ids,
        weights=np.tile(np.append(weights / weights.sum(), 0), (layers, 1)),
        taste_size=np.full(layers, head.taste_size),
        phase_starts=np.arange(2),
        popularity=shares,
        acceptance=acceptance,
        kind_experts=_kind_shares(mean, layer_ids, kinds, head.kind_spread, head.groups),
        kind_weights=kind_weights / kind_weights.sum(),
        kind_taste_size=np.array([head.kind_taste_size]),
        kind_popularity=np.full((2, kinds), 1 / kinds),
        kind_following=np.roll(np.eye(kinds), 1, axis=1),
        **traffic_model.without_paths(2, layers, shape.experts),
        task_share=np.ones(1),
        task_popularity=mean[None],
        task_kinds=np.full((1, kinds), 1 / kinds),
        prompt_tokens=_quantiles(head.prompt_tokens),
        decode_steps=_quantiles(head.decode_steps),
    )


def _shares(
    head: traffic_heads.TrafficStatistics, file: Path, shape: _Shape
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Popularity and acceptance float64[phase, layer, expert], and the layers they are of."""
    if head.loads is not None:
        archive = read_npz(file.parent / head.loads, {"loads", "acceptance", "layer_ids"}, traffic_model.MOST_BYTES)
        loads = archive["loads"].astype(np.float64) ** head.loads_power
        loads /= loads.sum(axis=2, keepdims=True)
        return loads, archive["acceptance"] / 255, archive["layer_ids"].astype(np.int32)
    skew, agreement = head.popularity_skew, head.phase_agreement
    assert skew is not None and agreement is not None, "as there are no loads"
    of_layer = skew * np.exp(head.skew_spread * spread_evenly(shape.layer_ids))[:, None]
    logs = [np.log(popularity(seed, shape.layer_ids, shape.experts, of_layer)) for seed in (1, 2)]
    decode = np.exp(agreement * logs[0] + np.sqrt(1 - agreement**2) * logs[1])
    shares = np.stack([np.exp(logs[0]), decode])
    shares /= shares.sum(axis=2, keepdims=True)
    tilt = shares / shares.mean(axis=0)  # kinds have the mean of the phases: acceptance makes them differ
    return shares, tilt / tilt.max(axis=2, keepdims=True), shape.layer_ids


def spread_evenly(layer_ids: np.ndarray) -> np.ndarray:
    """float64[layer] of mean 0 and deviation 1: normal quantiles dealt to layers by the golden ratio."""
    from scipy.special import ndtri

    return ndtri(np.clip((layer_ids * 0.6180339887498949 + 0.5) % 1.0, 0.01, 0.99))


def _kind_shares(mean: np.ndarray, layer_ids: np.ndarray, kinds: int, spread: float, groups: int) -> np.ndarray:
    """float64[kind, layer, expert]: shares whose mean over kinds is `mean` float64[layer, expert].

    Log-normal about the popularity; where experts lie in groups, half of the variance is common to a group. Rows and
    columns are scaled in turn until both sums hold (Sinkhorn).
    """
    layers, experts = mean.shape
    each = np.log(popularity(11, np.arange(kinds * layers, dtype=np.int32), experts, 1.0))
    if groups > 1:
        common = np.log(popularity(12, np.arange(kinds * layers, dtype=np.int32), groups, 1.0))
        each = np.sqrt(0.5) * (each + np.repeat(common, experts // groups, axis=1))
    table = np.exp(spread * each).reshape(kinds, layers, experts) * mean
    for _ in range(30):
        table *= mean / np.maximum(table.mean(axis=0), 1e-300)
        table /= table.sum(axis=2, keepdims=True)
    return table


def _quantiles(three: tuple[int, ...]) -> np.ndarray:
    """Quantiles of lengths from the shortest, the median and the longest."""
    return np.interp(np.linspace(0, 1, traffic_model.QUANTILES), [0, 0.5, 1], np.array(three, float))


def of_layers(found: traffic_model.TrafficModel, layer_ids: np.ndarray, file: Path | str) -> traffic_model.TrafficModel:
    """The parameters of some layers, in their order. file: for the message. Raises TraceError for other layers."""
    at = {int(layer): index for index, layer in enumerate(found.layer_ids)}
    missing = [int(layer) for layer in layer_ids if int(layer) not in at]
    if missing:
        raise TraceError(f"{file}: no parameters of layer {missing[0]}; there are those of {len(at)} layers")
    rows = [at[int(layer)] for layer in layer_ids]
    return replace(
        found,
        layer_ids=layer_ids,
        weights=found.weights[rows],
        taste_size=found.taste_size[rows],
        repeated=found.repeated[rows],
        stays=found.stays[rows if len(found.stays) else []],
        paths=_between(found.paths, rows),
        **{
            key: getattr(found, key)[:, rows] for key in ("popularity", "acceptance", "kind_experts", "task_popularity")
        },
    )


def _between(paths: np.ndarray, rows: list[int]) -> np.ndarray:
    """Paths float64[layer - 1, expert, expert] between some of the layers: over those left out, products."""
    if not len(paths):
        return paths
    steps = [np.linalg.multi_dot([*paths[one:other], np.eye(paths.shape[1])]) for one, other in pairwise(rows)]
    return np.stack(steps) if steps else paths[:0]
