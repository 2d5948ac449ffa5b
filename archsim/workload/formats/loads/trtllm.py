"""TensorRT-LLM's expert statistics (``EXPERT_STATISTIC_PATH``).

A folder of ``meta_info.json`` (num_experts, num_experts_per_token) and ``rank<r>.safetensors``: tensors
``<iteration>_<model layer>`` of counts [expert], of that rank's tokens. ``rank<r>_raw.safetensors`` hold the same
tokens' choices and are not read. Source: NVIDIA/TensorRT-LLM, tensorrt_llm/_torch/expert_statistic.py @ 0fccc5b9.
"""

import json
import re
from pathlib import Path

import numpy as np

from archsim.base.errors import TraceError
from archsim.specs.model import ModelSpec
from archsim.workload import checks
from archsim.workload.formats.loads.loads import UNKNOWN_PHASE, Loads, made_loads, numbers
from archsim.workload.formats.loads.safetensors import read_safetensors

_FILE = re.compile(r"rank(\d+)\.safetensors")
_KEY = re.compile(r"(\d{1,15})_(\d{1,9})")
META = "meta_info.json"


def statistic_files(folder: Path) -> list[Path]:
    """The statistics of all ranks in a folder, by rank; [] if there are none."""
    found = {int(match[1]): file for file in folder.iterdir() if (match := _FILE.fullmatch(file.name))}
    return [found[rank] for rank in sorted(found)]


def read_statistics(path: Path, model: ModelSpec) -> Loads:
    """The statistics of one rank. Raises TraceError."""
    match = _FILE.fullmatch(path.name)
    if match is None:
        raise TraceError(
            f"{path}: expected rank<number>.safetensors, as TensorRT-LLM names counts (rank<number>_raw.safetensors "
            "hold the choices of the same tokens)"
        )
    _check_meta(path.with_name(META), model)
    counts: dict[int, dict[int, np.ndarray]] = {}
    for name, tensor in read_safetensors(path).items():
        key = _KEY.fullmatch(name)
        if key is None:
            raise TraceError(f"{path}: tensor {name!r}; expected names <iteration>_<layer>")
        each = numbers(f"{path}: tensor {name!r}", "counts", tensor, 1)
        checks.check_shape(f"{path}: tensor {name!r}", model, experts=len(each))
        counts.setdefault(int(key[1]), {})[int(key[2])] = each
    if not counts:
        raise TraceError(f"{path}: holds no counts; expected tensors <iteration>_<layer>")
    steps = sorted(counts)
    layers = sorted(counts[steps[0]])
    for step in steps:
        if sorted(counts[step]) != layers:
            raise TraceError(f"{path}: iteration {step} has layers {sorted(counts[step])}; expected {layers}")
    matrices = np.stack([np.stack([counts[step][layer] for layer in layers]) for step in steps])
    series = path.absolute().parent.name
    names = [f"{series} iteration {step}" for step in steps]
    return made_loads(
        str(path), model, matrices, names, [series] * len(steps), [UNKNOWN_PHASE] * len(steps), layers, int(match[1])
    )


def _check_meta(path: Path, model: ModelSpec) -> None:
    """Raise TraceError if ``meta_info.json`` is of another model."""
    if not path.is_file():
        return
    try:
        stated = json.loads(path.read_bytes())
        experts, top_k = stated["num_experts"], stated["num_experts_per_token"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TraceError(f"{path}: expected num_experts and num_experts_per_token ({error!r})") from error
    checks.check_shape(str(path), model, experts=experts, top_k=top_k)
