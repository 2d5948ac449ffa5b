"""SGLang: ``--init-expert-location FILE.json`` with ``--ep-num-redundant-experts``.

``physical_to_logical_map`` [layer][slot] of all layers of the model, dense ones too (their rows are the default, slot i
holds expert i mod experts). Rules: slots divide by the EP size, every layer holds every expert. Source:
sgl-project/sglang, python/sglang/srt/eplb/expert_location.py @ 01fec5c2.
"""

import json
from pathlib import Path

import numpy as np

from archsim.base.errors import PlacementError
from archsim.specs.model import ModelSpec
from archsim.workload.placements.physical import PhysicalMap, check_row, read_text, slot_rows

FILE = "sglang_init_expert_location.json"
KEY = "physical_to_logical_map"


def written(placed: PhysicalMap, model: ModelSpec) -> str:
    rows = np.tile(default(placed.slots, model.experts), (model.layers, 1))
    rows[list(model.moe_layer_ids)] = placed.experts
    return json.dumps({KEY: rows.tolist()})


def default(slots: int, experts: int) -> np.ndarray:
    """int64[slot]: what SGLang (``init_trivial``) and vLLM start with."""
    return np.arange(slots) % experts


def read(path: Path, model: ModelSpec, ranks: int) -> PhysicalMap:
    """Raises PlacementError for what SGLang's loader would refuse."""
    try:
        data = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise PlacementError(f"{path}: not valid JSON ({error}); is the file truncated?") from None
    rows = data.get(KEY) if isinstance(data, dict) else None
    if not isinstance(rows, list) or len(rows) != model.layers:
        found = f"{len(rows)} rows" if isinstance(rows, list) else "none"
        expected = f"one for each of {model.name}'s {model.layers} layers"
        raise PlacementError(f"{path}: {KEY} has {found}; expected {expected}")
    slots = slot_rows(f"{path}: {KEY}", rows)
    for layer, row in enumerate(slots):
        check_row(f"{path}: layer {layer}", row, model.experts)
    return PhysicalMap(slots[list(model.moe_layer_ids)], model.experts, ranks, str(path))


def options(placed: PhysicalMap, path: Path) -> str:
    """How SGLang is started with the file."""
    more = placed.slots - placed.num_experts
    return f"--ep-size {placed.ranks} --ep-num-redundant-experts {more} --init-expert-location {path}"
