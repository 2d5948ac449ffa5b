"""Traffic presets as files, from expert loads alone or fitted to a recording, and traces drawn from them."""

from pathlib import Path

import numpy as np
import yaml

from archsim.base.errors import TraceError
from archsim.base.files import write_text
from archsim.specs.library import load_model
from archsim.specs.model import ModelSpec
from archsim.workload import traffic_heads, traffic_model
from archsim.workload.subjects import SeveralSubjects, collect, traffic_of
from archsim.workload.trace import Trace
from archsim.workload.trace_store import LOADS, is_store, open_store
from archsim.workload.traffic_presets import from_statistics, load_traffic, model_of, shape_of, traffic_file

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
    [matrix] (0 prefill, 1 decode) if there are several; matrices of a phase count equally. A layer of the model without
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
    write(fit_loads(from_statistics(traffic_heads.TrafficStatistics(**head), out, shape_of(model))).acceptance)
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
