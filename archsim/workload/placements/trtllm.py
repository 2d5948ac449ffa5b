"""TensorRT-LLM: ``moe_config.load_balancer``, YAML.

``num_slots``, ``initial_global_assignments`` {model layer: [expert in a slot]}, ``layer_updates_per_iter`` 0 (static).
Rules: slots divide by the EP size, every MoE layer is assigned, with ``num_slots`` experts and every expert among them.
Source: NVIDIA/TensorRT-LLM, MoeLoadBalancerConfig (tensorrt_llm/llmapi/llm_args.py) and the checks where layers use it
(_torch/modules/fused_moe/).
"""

from pathlib import Path
from typing import Any

import numpy as np

from archsim.base.errors import PlacementError
from archsim.specs.model import ModelSpec
from archsim.workload.placements.physical import PhysicalMap, read_text, slot_rows

FILE = "trtllm_moe_load_balancer.yaml"


def written(placed: PhysicalMap, model: ModelSpec) -> str:
    lines = ["initial_global_assignments:"]
    lines += [f"  {layer}: {row}" for layer, row in zip(model.moe_layer_ids, placed.experts.tolist(), strict=True)]
    return "\n".join([*lines, "layer_updates_per_iter: 0", f"num_slots: {placed.slots}", ""])


def default(slots: int, experts: int, ranks: int) -> np.ndarray:
    """int64[slot]: what TensorRT-LLM starts with: consecutive experts on every rank."""
    rank, place = np.divmod(np.arange(slots), slots // ranks)
    return (rank * experts // ranks + place) % experts


def read(path: Path, model: ModelSpec, ranks: int) -> PhysicalMap:
    """Raises PlacementError for what TensorRT-LLM's loader would refuse."""
    data = _yaml(path)
    unknown = set(data) - {"num_slots", "initial_global_assignments", "layer_updates_per_iter"}
    if unknown:
        raise PlacementError(f"{path}: unknown key {sorted(map(str, unknown))[0]!r}")
    assigned, stated = data.get("initial_global_assignments"), data.get("num_slots")
    if not isinstance(assigned, dict):
        raise PlacementError(f"{path}: has no initial_global_assignments, so it states no placement")
    missing = [layer for layer in model.moe_layer_ids if layer not in assigned]
    if missing or len(assigned) != len(model.moe_layer_ids):
        about = f"layer {missing[0]} is missing" if missing else "there are others"
        raise PlacementError(f"{path}: initial_global_assignments: expected the MoE layers of {model.name}; {about}")
    slots = slot_rows(f"{path}: initial_global_assignments", [assigned[layer] for layer in model.moe_layer_ids])
    if stated != slots.shape[1]:
        raise PlacementError(f"{path}: num_slots is {stated!r}, but the layers have {slots.shape[1]} slots")
    return PhysicalMap(slots, model.experts, ranks, str(path))


def _yaml(path: Path) -> dict[Any, Any]:
    import yaml

    try:
        data = yaml.load(read_text(path), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise PlacementError(f"{path}: not valid YAML ({error}); is the file truncated?") from None
    if not isinstance(data, dict):
        raise PlacementError(f"{path}: expected num_slots and initial_global_assignments")
    return data


def options(placed: PhysicalMap, path: Path) -> str:
    """How TensorRT-LLM is started with the file."""
    return f"moe_expert_parallel_size: {placed.ranks}, moe_config: {{load_balancer: {path}}} in --extra_llm_api_options"
