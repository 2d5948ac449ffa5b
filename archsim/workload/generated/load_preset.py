"""A traffic preset from expert loads only: popularity from the loads, the rest assumed."""

from pathlib import Path

import numpy as np
import yaml

from archsim.base.errors import TraceError
from archsim.specs.model import ModelSpec
from archsim.workload.formats.npz_members import load_members, member_names
from archsim.workload.generated.fit import fit_loads
from archsim.workload.generated.traffic_heads import TrafficStatistics
from archsim.workload.generated.traffic_presets import from_statistics, shape_of
from archsim.workload.store.store import LOADS, is_store, open_store

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
    return str(path).endswith(".npz") and Path(path).is_file() and "counts" in member_names(Path(path))


def write_load_preset(source: Path, model: ModelSpec, out: Path) -> Path:
    """Write a preset (.yaml, and .npz beside it) with loads; returns its path.

    source: a store of loads; or an .npz with counts [layer, expert] or [matrix, layer, expert], layer_ids, and phase
    [matrix] (0 prefill, 1 decode) if there are several; matrices of a phase count alike. A layer of the model without
    loads gets those of the nearest one, experts permuted, and the preset's source says so. Raises TraceError.
    """
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
    write(fit_loads(from_statistics(TrafficStatistics(**head), out, shape_of(model))).acceptance)
    out.write_text(yaml.safe_dump(head, sort_keys=False, width=120, allow_unicode=True), encoding="utf-8")
    return out


def _loads_of(source: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """float64[matrix, layer, expert], int[layer], and the phase of every matrix (-1: not known). Raises TraceError."""
    if is_store(source):
        store = open_store(source)
        columns, about = store.loads()
        counts, phase = _summed_over_time(columns["counts"].astype(np.float64), columns["phase"], about)
        return counts, np.array(store.shape.layer_ids), phase
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
