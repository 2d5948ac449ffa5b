"""A traffic preset from expert loads alone: popularity from the loads, the rest assumed."""

from pathlib import Path

import numpy as np
import yaml

from archsim.specs.errors import TraceError
from archsim.workload.fit import fit_loads
from archsim.workload.traffic_presets import from_statistics, shape_of

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
"""What loads do not tell: of the size that fits on traces of DeepSeek-V2-Lite, gpt-oss-20b and Llama-4 gave."""


def is_load_matrix(path: str | Path) -> bool:
    """Whether a file is an .npz with a member `counts`."""
    if not str(path).endswith(".npz") or not Path(path).is_file():
        return False
    try:
        with np.load(path, allow_pickle=False) as archive:
            return "counts" in archive.files
    except (OSError, ValueError):
        return False


def write_load_preset(source: Path, model, out: Path) -> Path:
    """Write a preset (.yaml, and .npz beside it) with the loads of an .npz file; returns its path.

    source: counts [layer, expert] or [matrix, layer, expert], layer_ids, and phase [matrix] (0 prefill, 1 decode) if
    there are several; matrices of a phase count alike. Raises TraceError if a layer of the model is missing.
    """
    try:
        with np.load(source, allow_pickle=False) as archive:
            counts, layer_ids = archive["counts"].astype(np.float64), archive["layer_ids"]
            counts = counts[None] if counts.ndim == 2 else counts
            phase = archive["phase"] if "phase" in archive.files else None
    except (OSError, ValueError, KeyError) as error:
        raise TraceError(f"{source}: not a readable load matrix ({error})") from error
    if counts.shape[1:] != (len(layer_ids), model.experts):
        raise TraceError(
            f"{source}: loads of shape {counts.shape}; expected {len(layer_ids)} layers, {model.experts} experts"
        )
    shares = counts / counts.sum(axis=2, keepdims=True)
    of_phase = [shares[phase == each] if phase is not None and (phase == each).any() else shares for each in (0, 1)]
    mean = np.stack([each.mean(axis=0) for each in of_phase])
    codes = np.round(mean / mean.max(axis=2, keepdims=True) * 65535).astype(np.uint16)
    tables = out.with_suffix(".npz")
    head = {"name": out.stem, "model": model.name, "source": f"loads: {source.name}; the rest assumed", "loads": tables.name, **ASSUMED}

    def write(acceptance: np.ndarray) -> None:
        code = np.round(acceptance * 255).astype(np.uint8)
        np.savez_compressed(tables, layer_ids=layer_ids.astype(np.int32), loads=codes, acceptance=code)

    out.parent.mkdir(parents=True, exist_ok=True)
    write(np.ones(mean.shape))
    write(fit_loads(from_statistics(head, out, shape_of(model))).acceptance)
    out.write_text(yaml.safe_dump(head, sort_keys=False, width=120), encoding="utf-8")
    return out
