"""vLLM: a static EPLB mapping, ``initial_mapping_path`` of ``eplb_config`` (pull request 41141), JSON lines.

One record ``eplb_initial_mapping``: ``num_slots``, ``num_redundant_experts`` and ``initial_global_assignments``, whose
keys count the MoE layers from 0. Rules: all MoE layers, ``num_slots`` experts each, as many redundant ones as
configured, every expert at least once, slots divide by the EP size. Source: the pull request's tests.
"""

import json
from pathlib import Path

from archsim.base.errors import PlacementError
from archsim.specs.model import ModelSpec
from archsim.workload.placements.physical import PhysicalMap, read_text, slot_rows

FILE = "vllm_eplb_initial_mapping.jsonl"
RECORD = "eplb_initial_mapping"


def written(placed: PhysicalMap, model: ModelSpec) -> str:
    record = {
        "record_type": RECORD,
        "version": 1,
        "num_redundant_experts": placed.slots - model.experts,
        "num_slots": placed.slots,
        "initial_global_assignments": {str(n): row for n, row in enumerate(placed.experts.tolist())},
    }
    return json.dumps(record) + "\n"


def read(path: Path, model: ModelSpec, ranks: int) -> PhysicalMap:
    """Raises PlacementError for what vLLM's loader would refuse."""
    record = _record(path)
    layers = len(model.moe_layer_ids)
    assigned = record.get("initial_global_assignments")
    if not isinstance(assigned, dict) or set(assigned) != {str(n) for n in range(layers)}:
        raise PlacementError(
            f"{path}: initial_global_assignments: expected the keys 0 to {layers - 1}, the MoE layers of {model.name}"
        )
    slots = slot_rows(f"{path}: initial_global_assignments", [assigned[str(n)] for n in range(layers)])
    for name, expected in (("num_slots", slots.shape[1]), ("num_redundant_experts", slots.shape[1] - model.experts)):
        if record.get(name) != expected:
            raise PlacementError(f"{path}: {name} is {record.get(name)!r}, but the layers have {expected}")
    return PhysicalMap(slots, model.experts, ranks, str(path))


def _record(path: Path) -> dict:
    for number, line in enumerate(read_text(path).splitlines(), 1):
        try:
            record = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError) as error:
            raise PlacementError(f"{path}: line {number}: not valid JSON ({error}); is the file truncated?") from None
        if isinstance(record, dict) and record.get("record_type") == RECORD:
            return record
    raise PlacementError(f"{path}: has no {RECORD} record")


def options(placed: PhysicalMap, path: Path) -> str:
    """How vLLM is started with the file."""
    more = placed.slots - placed.num_experts
    config = json.dumps({"num_redundant_experts": more, "initial_mapping_path": str(path)})
    return f"--enable-expert-parallel --enable-eplb --eplb-config '{config}'"
