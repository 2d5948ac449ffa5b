"""Models of generated routing by name: files in configs/traffic, fitted (with tables) or built from statistics.

A file of statistics states what is known about a model without a trace: `TrafficStatistics`.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import yaml

from archsim.base.errors import TraceError, did_you_mean
from archsim.base.files import UNREADABLE, read_npz, write_text
from archsim.base.packing import pack, replicate
from archsim.base.yaml import read_yaml
from archsim.specs.config_files import named_files
from archsim.specs.library import load_model
from archsim.specs.model import ModelSpec
from archsim.specs.workload import SyntheticSpec
from archsim.workload import traffic_model
from archsim.workload.generated import (
    PREFERRED,
    SeveralSubjects,
    SyntheticTraffic,
    collect,
    popularity,
    skew_of_layers,
    skews_of,
    traffic_of,
)
from archsim.workload.store import LOADS, is_store, open_store
from archsim.workload.trace import TokenSource, Trace, representative_layers, spread_layers

# ---- imbalance
# Popularity fitted to a published imbalance: for every layer the skew with which generated traffic has it.
#
# A first skew comes from the expected loads, by bisection; then traffic is generated, its loads are measured, and the
# skew is moved, a few times. Experts lie contiguously on the ranks, as every engine starts.

TOKENS = 8192
"""Tokens of a step that is generated to measure loads: an expert's of 256, top-8, has 256 pairs, 6 % by chance."""

MOST_SKEW = 8.0
_BISECTIONS, _CORRECTIONS = 30, 6


@lru_cache(maxsize=64)
def fitted_skew(spec: SyntheticSpec, layer_ids: tuple[int, ...], experts: int, top_k: int) -> tuple[float, ...]:
    """The standard deviation of log popularity of every layer, for traffic with ``spec.imbalance``. Raises TraceError
    where no skew gives it.
    """
    wanted = spec.imbalance
    assert wanted is not None
    ids = np.array(layer_ids, np.int32)
    kind, levels = wanted.level
    target = skew_of_layers(levels, ids)[:, 0]
    if wanted.ranks is not None and experts % wanted.ranks:
        raise TraceError(f"imbalance: {experts} experts do not divide among {wanted.ranks} ranks")
    slots = experts + wanted.slots * (wanted.ranks or 0)

    def measured(loads: np.ndarray) -> np.ndarray:
        return measure(loads, kind, wanted.ranks or 1, slots)

    def expected(skew: np.ndarray) -> np.ndarray:
        shares = popularity(spec.seed, ids, experts, skew[:, None])
        return measured(expected_loads(shares, top_k, spec.request_taste, spec.stickiness))

    low, high = np.zeros(len(ids)), np.full(len(ids), MOST_SKEW)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        below = expected(middle) < target
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    if (worst := int(np.argmax(low))) >= 0 and low[worst] > MOST_SKEW * 0.999:
        most = float(expected(np.full(len(ids), MOST_SKEW))[worst])
        raise TraceError(f"imbalance: {kind} {target[worst]:g} in layer {ids[worst]}: no popularity of {experts} "
                         f"experts, top-{top_k}, gives it; at most {most:.3g}")  # fmt: skip
    skew = (low + high) / 2
    for _ in range(_CORRECTIONS):
        found = measured(_generated(spec, ids, experts, top_k, skew))
        skew = np.clip(skew * (np.log(target + 0.01) / np.log(np.maximum(found, 1.0) + 0.01)) ** 0.8, 0, MOST_SKEW)
    return tuple(skew.tolist())


def measure(loads: np.ndarray, kind: str, ranks: int, slots: int) -> np.ndarray:
    """float64[layer] of loads [layer, expert]. eplb_gain: the largest load of a rank over that after EPLB, which places
    ``slots`` instances of experts by these loads (one group, one node).
    """
    layers, experts = loads.shape
    if kind == "hottest_expert":
        return loads.max(axis=1) / loads.mean(axis=1)
    of_rank = loads.reshape(layers, ranks, experts // ranks).sum(axis=2)
    if kind == "max_over_mean":
        return of_rank.max(axis=1) / of_rank.mean(axis=1)
    if kind == "max_over_min":
        return of_rank.max(axis=1) / np.maximum(of_rank.min(axis=1), 1e-12)
    copies = replicate(loads.astype(np.float64), slots)
    into, _ = pack(copies.load, np.full(ranks, slots // ranks))
    placed = np.zeros((layers, ranks))
    np.add.at(placed, (np.arange(layers)[:, None], into), copies.load)
    return of_rank.max(axis=1) / placed.max(axis=1)


def expected_loads(shares: np.ndarray, top_k: int, taste: float, stickiness: float) -> np.ndarray:
    """float64[layer, expert], about: how often a token has an expert, drawn from shares [layer, expert] until it has
    top_k. By exponential arrival times (1 − exp(−rate) of those that arrive before a common time); an expert that a
    request does not prefer arrives less often, and one of the token before stays.
    """
    if top_k == 1:
        return shares

    def included(time: np.ndarray) -> np.ndarray:
        fresh = -PREFERRED * np.expm1(-shares * time) - (1 - PREFERRED) * np.expm1(-shares * time * (1 - taste))
        return fresh / np.maximum(1 - stickiness + stickiness * fresh, 1e-12)

    low, high = np.zeros((len(shares), 1)), np.full((len(shares), 1), 1e9)
    for _ in range(60):
        middle = np.sqrt(np.maximum(low, 1e-6) * high)
        enough = included(middle).sum(axis=1, keepdims=True) > top_k
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return included(high)


def _generated(spec: SyntheticSpec, ids: np.ndarray, experts: int, top_k: int, skew: np.ndarray) -> np.ndarray:
    """Loads [layer, expert] of the second decode step of TOKENS requests; in the first, nothing stays."""
    from archsim.workload.profile import loads_of

    plain = spec.model_copy(
        update={"imbalance": None, "prompt_tokens": 0, "decode_steps": None, "drift": 0, "switch_step": None}
    )
    shape = SimpleNamespace(moe_layer_ids=ids, experts=experts, top_k=top_k)
    traffic = SyntheticTraffic(shape, plain, TOKENS, skew[:, None])
    loads = np.zeros((len(ids), experts))
    for piece in traffic.steps(np.arange(TOKENS), 2):
        if piece.iteration == 2:
            loads += loads_of(piece.experts, experts)
    return loads


def skew_of(spec: SyntheticSpec, layer_ids: np.ndarray, experts: int, top_k: int) -> np.ndarray | None:
    """float64[layer, 1], fitted to the stated imbalance; None where none is stated. Raises TraceError."""
    if spec.imbalance is None:
        return None
    alike = spec.model_copy(
        update={"prompt_tokens": 0, "decode_steps": None, "requests": None, "drift": 0, "switch_step": None}
    )
    return np.array(fitted_skew(alike, tuple(layer_ids.tolist()), experts, top_k))[:, None]


# ---- traffic_presets

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

    layers: so many of the model's MoE layers, which represent all (`archsim.workload.trace`) and have the routing that
    they have among all; None: all.
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
        parameters = mapped(parameters, lambda each: of_layers(each, shape.layer_ids, traffic_file(like)))
    return traffic_of(with_lengths(parameters, spec, like), spec.requests or largest_batch, spec.seed, spec.mix)


def _phases(parameters: Parameters, prompts: bool) -> np.ndarray:
    """Shares float64[phase, layer, expert] of prompts, where there are any, and of decode steps."""
    if isinstance(parameters, SeveralSubjects):
        of_each = [_phases(each, prompts) for each in parameters.models.values()]
        return np.average(of_each, axis=0, weights=parameters.shares)
    decode = parameters.popularity[1:] if len(parameters.popularity) > 1 else parameters.popularity
    phases = [parameters.popularity[0]] * prompts + [decode.mean(axis=0)]
    return np.stack(phases)


def mapped(found: Parameters, change: Callable[[traffic_model.TrafficModel], traffic_model.TrafficModel]) -> Parameters:
    """Traffic of either kind with another model, for each subject where there are several."""
    return found.mapped(change) if isinstance(found, SeveralSubjects) else change(found)


def with_lengths(parameters: Parameters, spec, like: str) -> Parameters:
    """A preset's traffic with the prompts and decode steps of a SyntheticSpec. Raises TraceError: neither is left."""
    given = {"prompt_tokens": spec.prompt_tokens, "decode_steps": spec.decode_steps}
    changes: dict[str, Any] = {
        name: np.full(traffic_model.QUANTILES, float(value)) for name, value in given.items() if value is not None
    }

    def changed(model: traffic_model.TrafficModel) -> traffic_model.TrafficModel:
        found = replace(model, **changes)
        if not (found.prompt_tokens.any() or found.decode_steps.any()):
            raise TraceError(
                f"{traffic_file(like)}: its requests have no decode steps, and prompt_tokens: 0 leaves out the "
                "prompts: nothing would run. Give trace.synthetic.decode_steps, or more prompt_tokens"
            )
        return found

    return mapped(parameters, changed)


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
    if file.exists() and "subjects" in read_yaml(file).data:
        head = traffic_model.read_head(file)[0]
        assert isinstance(head, traffic_model.TrafficSubjects)
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
    (head, tree), shape = traffic_model.read_head(file), shape_of(model)
    if isinstance(head, traffic_model.TrafficSubjects):
        models: dict[str, traffic_model.TrafficModel] = {}
        for name, part in head.subjects.items():
            if "subjects" in read_yaml(inner := file.parent / part.like).data:
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
    head: traffic_model.TrafficTables | traffic_model.TrafficStatistics, file: Path, shape: _Shape
) -> traffic_model.TrafficModel:
    """A model of traffic from its file; its arrays are not to be written. Raises what reading it raises."""
    arrays = head.tables if isinstance(head, traffic_model.TrafficTables) else head.loads
    content = hashlib.sha256(file.read_bytes())
    content.update((file.parent / arrays).read_bytes() if arrays else b"")
    key = str(file), content.digest(), shape.layer_ids.tobytes(), *shape[1:]
    if key not in _have_read:
        found = (
            traffic_model.read_tables(head, file)
            if isinstance(head, traffic_model.TrafficTables)
            else from_statistics(head, file, shape)
        )
        while len(_have_read) >= _MOST_READ:
            del _have_read[next(iter(_have_read))]
        _have_read[key] = found
    return _have_read[key]


def model_of(like: str) -> str:
    """The name of a preset's model. Raises TraceError if the preset does not state it."""
    file = traffic_file(like)
    name = traffic_model.stated_model(file)
    known = isinstance(name, str) and (name in named_files("models") or os.path.isfile(name))
    if not known:
        raise TraceError(f"{file}:1: does not name its model. Give --model")
    return name


def from_statistics(head: traffic_model.TrafficStatistics, file: Path, shape: _Shape) -> traffic_model.TrafficModel:
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
        task_names=("any",),
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
    head: traffic_model.TrafficStatistics, file: Path, shape: _Shape
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Popularity and acceptance float64[phase, layer, expert], and the layers they are of."""
    if head.loads is not None:
        archive = read_npz(file.parent / head.loads, {"loads", "acceptance", "layer_ids"}, traffic_model.MOST_BYTES)
        loads = archive["loads"] / archive["loads"].sum(axis=2, keepdims=True, dtype=np.float64)
        return loads, archive["acceptance"] / 255, archive["layer_ids"].astype(np.int32)
    skew, agreement = head.popularity_skew, head.phase_agreement
    assert skew is not None and agreement is not None, "as there are no loads"
    logs = [np.log(popularity(seed, shape.layer_ids, shape.experts, skew)) for seed in (1, 2)]
    decode = np.exp(agreement * logs[0] + np.sqrt(1 - agreement**2) * logs[1])
    shares = np.stack([np.exp(logs[0]), decode])
    shares /= shares.sum(axis=2, keepdims=True)
    tilt = shares / shares.mean(axis=0)  # kinds have the mean of the phases: acceptance makes them differ
    return shares, tilt / tilt.max(axis=2, keepdims=True), shape.layer_ids


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


# ---- load_preset
# A traffic preset from expert loads only: popularity from the loads, the rest assumed.

ASSUMED = {
    "groups": 1,
    "top_groups": 1,
    "kinds": 64,
    "kind_spread": 0.9,
    "weights": {"popularity": 0.05, "task": 0.05, "taste": 0.05, "keep": 0.05, "kind": 0.8},
    "taste_size": 8,
    "kind_weights": {"popularity": 0.05, "task": 0.05, "taste": 0.3, "keep": 0.05, "kind": 0.55},
    "kind_taste_size": 4,
    "prompt_tokens": [16, 64, 256],
    "decode_steps": [128, 128, 128],
}
"""Parameters that loads do not show: typical of fits to traces of DeepSeek-V2-Lite, gpt-oss-20b and Llama-4."""


def is_load_matrix(path: str | Path) -> bool:
    """Whether a path is a store of loads, or an .npz file with a member `counts`."""
    if is_store(Path(path)):
        return open_store(path).kind == LOADS
    from archsim.workload.formats.npz import member_names

    return str(path).endswith(".npz") and Path(path).is_file() and "counts" in member_names(Path(path))


def write_load_preset(source: Path, model: ModelSpec, out: Path) -> Path:
    """Write a preset (.yaml, and .npz beside it) with loads; returns its path.

    source: a store of loads; or an .npz with counts [layer, expert] or [matrix, layer, expert], layer_ids, and phase
    [matrix] (0 prefill, 1 decode) if there are several; matrices of a phase count alike. A layer of the model without
    loads gets those of the nearest one, experts permuted, and the preset's source says so. Raises TraceError.
    """
    from archsim.workload.traffic_fit import fit_loads

    counts, layer_ids, phase = _loads_of(source)
    missing = _check(source, model, counts, layer_ids)
    shares = counts / counts.sum(axis=2, keepdims=True)
    of_phase = [shares[phase == each] if (phase == each).any() else shares for each in (0, 1)]
    mean = _of_all_layers(np.stack([each.mean(axis=0) for each in of_phase]), layer_ids, model.moe_layer_ids)
    codes = np.round(mean / mean.max(axis=2, keepdims=True) * 65535).astype(np.uint16)
    tables, about = out.with_suffix(".npz"), f"loads: {source.name}; the rest assumed"
    if missing:
        about += f"; {len(missing)} layers without loads ({missing[0]}–{missing[-1]}): those of the nearest, experts permuted"  # noqa: E501
    head = {"name": out.stem, "model": model.name, "source": about, "loads": tables.name, **ASSUMED}

    def write(acceptance: np.ndarray) -> None:
        code = np.round(acceptance * 255).astype(np.uint8)
        np.savez_compressed(tables, layer_ids=np.array(model.moe_layer_ids, np.int32), loads=codes, acceptance=code)

    out.parent.mkdir(parents=True, exist_ok=True)
    write(np.ones(mean.shape))
    write(fit_loads(from_statistics(traffic_model.TrafficStatistics(**head), out, shape_of(model))).acceptance)
    out.write_text(yaml.safe_dump(head, sort_keys=False, width=120, allow_unicode=True), encoding="utf-8")
    return out


def _loads_of(source: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """float64[matrix, layer, expert], int[layer], and the phase of every matrix (-1: not known). Raises TraceError."""
    if is_store(source):
        store = open_store(source)
        columns, about = store.loads()
        counts, phase = _summed_over_time(columns["counts"].astype(np.float64), columns["phase"], about)
        return counts, np.array(store.shape.layer_ids), phase
    from archsim.workload.formats.npz import load_members

    members = load_members(Path(source), {"counts", "layer_ids", "phase"})
    if missing := {"counts", "layer_ids"} - members.keys():
        raise TraceError(f"{source}: not a readable load matrix (without {', '.join(sorted(missing))})")
    counts = members["counts"].astype(np.float64)
    counts = counts[None] if counts.ndim == 2 else counts
    return counts, members["layer_ids"], members.get("phase", np.full(len(counts), -1))


def _summed_over_time(counts: np.ndarray, phase: np.ndarray, about: dict) -> tuple[np.ndarray, np.ndarray]:
    """One matrix for each series and phase; stores without series have one matrix in each."""
    keys = list(zip(about.get("series", about["names"]), phase.tolist(), strict=True))
    kept = list(dict.fromkeys(keys))
    summed = np.zeros((len(kept), *counts.shape[1:]))
    np.add.at(summed, [kept.index(key) for key in keys], counts)
    return summed, np.array([each for _, each in kept])


def _check(source: Path, model: ModelSpec, counts: np.ndarray, layer_ids: np.ndarray) -> list[int]:
    """The model's MoE layers without loads. Raises TraceError if the loads do not belong to the model."""
    if counts.ndim != 3 or counts.shape[1:] != (len(layer_ids), model.experts):
        raise TraceError(
            f"{source}: loads of shape {counts.shape}; expected {len(layer_ids)} layers, {model.experts} experts"
        )
    for layer, total in zip(layer_ids.tolist(), counts.sum(axis=2).min(axis=0), strict=True):
        if layer not in model.moe_layer_ids:
            raise TraceError(f"{source}: loads of layer {layer}; model {model.name} has no MoE layer of that number")
        if total <= 0:
            raise TraceError(f"{source}: no loads in layer {layer}; expected some in every layer and matrix")
    return [layer for layer in model.moe_layer_ids if layer not in layer_ids]


def _of_all_layers(mean: np.ndarray, layer_ids: np.ndarray, wanted: tuple[int, ...]) -> np.ndarray:
    """float64[phase, layer, expert] of the layers wanted; see `write_load_preset`."""
    nearest = np.abs(np.array(wanted)[:, None] - layer_ids).argmin(axis=1)
    found = mean[:, nearest]
    for row, layer in enumerate(wanted):
        if layer not in layer_ids:
            found[:, row] = found[:, row, np.random.default_rng(layer).permutation(mean.shape[2])]
    return found


# ---- files
# Generated routing in files: parameters fitted to a recording, and a trace drawn from them.


def fit_preset(source: str, model: ModelSpec, out: Path, seed: int) -> Path:
    """Write the traffic preset of a trace, or of a matrix of loads, to ``out``; its tables lie beside it as .npz."""
    if is_load_matrix(source):
        return write_load_preset(Path(source), model, out)
    from archsim.workload.formats.readers import open_trace
    from archsim.workload.traffic_fit import fit_subjects

    trace = open_trace(source, model)
    out.parent.mkdir(parents=True, exist_ok=True)
    origin = f"archsim trace fit of {trace.requests} requests, {len(trace.experts)} tokens, digest {trace.digest[:12]}"
    save_traffic(fit_subjects(trace, out.stem, origin, seed), out, model.name)
    return out


def save_traffic(found: traffic_model.TrafficModel | SeveralSubjects, out: Path, of: str) -> None:
    """Write a preset; subjects lie in a folder beside it that has its name. of: name of the model."""
    if isinstance(found, traffic_model.TrafficModel):
        return traffic_model.save_model(found, out, of=of)
    folder = out.with_suffix("")
    folder.mkdir(exist_ok=True)
    subjects = {}
    for number, (name, model) in enumerate(found.models.items(), 1):
        traffic_model.save_model(model, folder / f"{number}.yaml", of=of)
        subjects[name] = {"like": f"{folder.name}/{number}.yaml", "share": found.shares[number - 1]}
    head = {"name": found.name, "model": of, "source": found.source, "subjects": subjects, "spread": found.spread}
    return write_text(out, yaml.safe_dump(head, sort_keys=False, width=120, allow_unicode=True))


def generate_trace(like: str, model_name: str | None, requests: int, seed: int, out: str) -> Trace:
    """Draw requests from a traffic preset and write them to ``out``, .npz. Raises TraceError.

    like: name or file of the preset; model_name: None for the model that the preset is of.
    """
    if Path(out).resolve() == traffic_file(like).with_suffix(".npz").resolve():
        raise TraceError(f"{out}: holds the tables of {like}; expected another name")
    model = load_model(model_name or model_of(like))
    trace = collect(traffic_of(load_traffic(like, model), requests, seed))
    np.savez_compressed(
        out, experts=trace.experts, request_offsets=trace.request_offsets, iteration=trace.iteration,
        layer_ids=trace.layer_ids, num_experts=model.experts, top_k=model.top_k, num_layers_total=model.layers,
        model=model.name, request_subject=trace.request_subject, subject_names=np.array(trace.subject_names),
    )  # fmt: skip
    return trace
