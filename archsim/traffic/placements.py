"""A placement in the formats of all engines: written, and read back by the rules of each engine's own loader."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base.errors import PlacementError
from archsim.base.files import regular, write_draft
from archsim.model.spec import ModelSpec

# The expert in every slot, as serving engines see a placement, and the rules that all of their loaders share.

MOST_BYTES = 256 << 20


@dataclass(frozen=True, eq=False)
class PhysicalMap:
    """experts: int32[MoE layer, slot]. Rank r owns the slots r * slots / ranks to (r + 1) * slots / ranks - 1.

    Raises PlacementError unless every layer holds every expert and the slots divide among the ranks.
    """

    experts: np.ndarray
    num_experts: int
    ranks: int
    where: str = "placement"

    def __post_init__(self) -> None:
        check_slots(self.where, self.slots, self.num_experts, self.ranks)
        for layer, row in enumerate(self.experts):
            check_row(f"{self.where}: MoE layer {layer}", row, self.num_experts)

    @property
    def slots(self) -> int:
        return self.experts.shape[1]

    @property
    def slots_per_rank(self) -> int:
        return self.slots // self.ranks

    def copies(self) -> np.ndarray:
        """int64[layer, expert, rank]: how many slots of a rank hold an expert."""
        layers = len(self.experts)
        rank = np.broadcast_to(np.arange(self.slots) // self.slots_per_rank, self.experts.shape)
        found = np.zeros((layers, self.num_experts, self.ranks), np.int64)
        np.add.at(found, (np.arange(layers)[:, None], self.experts, rank), 1)
        return found


def check_slots(where: str, slots: int, experts: int, ranks: int) -> None:
    """Raise PlacementError as `misfit_of` says."""
    if misfit := misfit_of(slots, experts, ranks):
        raise PlacementError(f"{where}: {misfit}")


def misfit_of(slots: int, experts: int, ranks: int) -> str:
    """Why ``slots`` do not hold all experts or do not divide among ``ranks``, and what would fit; '' where they do."""
    least = -(-experts // ranks) * ranks
    if slots < experts:
        return (
            f"{slots} slots cannot hold {experts} experts; the fewest for {ranks} ranks are {least} "
            f"({least - experts} more than experts)"
        )
    if slots % ranks == 0:
        return ""
    below, above = slots // ranks * ranks, -(-slots // ranks) * ranks
    fits = f"{below} or {above}" if below >= least else str(above)
    more = f"{below - experts} or {above - experts}" if below >= least else str(above - experts)
    return (
        f"{slots} slots ({experts} experts and {slots - experts} more) do not divide among {ranks} ranks; {fits} would "
        f"({more} more)"
    )


def check_row(where: str, row: np.ndarray, experts: int) -> None:
    """Raise PlacementError unless a layer's slots hold ids of experts, and every expert."""
    if row.size and (row.min() < 0 or row.max() >= experts):
        slot = int(np.flatnonzero((row < 0) | (row >= experts))[0])
        raise PlacementError(f"{where}: slot {slot} holds expert {row[slot]}; expected 0 to {experts - 1}")
    missing = np.flatnonzero(np.bincount(row, minlength=experts) == 0)
    if len(missing):
        raise PlacementError(f"{where}: no slot holds expert {missing[0]}; every expert needs one")


def read_text(path: Path) -> str:
    """Raises PlacementError."""
    try:
        if regular(path).stat().st_size > MOST_BYTES:
            raise PlacementError(f"{path}: {path.stat().st_size} bytes; expected at most {MOST_BYTES} for a placement")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlacementError(f"{path}: cannot be read ({error})") from None


def slot_rows(where: str, rows: Sequence[Any]) -> np.ndarray:
    """int32[layer, slot] of nested lists. Raises PlacementError."""
    whole = all(isinstance(row, list) and all(type(expert) is int for expert in row) for row in rows)
    lengths = sorted({len(row) for row in rows}) if whole else []
    if len(lengths) != 1:
        found = f"lists of {lengths[0]} to {lengths[-1]}" if lengths else "something else"
        raise PlacementError(f"{where}: expected one list of expert ids per layer, all of one length; found {found}")
    if any(not -(2**31) <= expert < 2**31 for row in rows for expert in row):
        raise PlacementError(f"{where}: an expert id is out of range")
    return np.array(rows, np.int32)


# SGLang: ``--init-expert-location FILE.json`` with ``--ep-num-redundant-experts``.
#
# ``physical_to_logical_map`` [layer][slot] of all layers of the model, dense ones too (their rows are the default, slot
# i holds expert i mod experts). Rules: slots divide by the EP size, every layer holds every expert. Source:
# sgl-project/sglang, python/sglang/srt/eplb/expert_location.py @ 01fec5c2.

SGLANG_FILE = "sglang_init_expert_location.json"
KEY = "physical_to_logical_map"


def written_for_sglang(placed: PhysicalMap, model: ModelSpec) -> str:
    rows = np.tile(sglang_default(placed.slots, model.experts), (model.layers, 1))
    rows[list(model.moe_layer_ids)] = placed.experts
    return json.dumps({KEY: rows.tolist()})


def sglang_default(slots: int, experts: int) -> np.ndarray:
    """int64[slot]: what SGLang (``init_trivial``) and vLLM start with."""
    return np.arange(slots) % experts


def read_sglang(path: Path, model: ModelSpec, ranks: int) -> PhysicalMap:
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


def sglang_options(placed: PhysicalMap, path: Path) -> str:
    more = placed.slots - placed.num_experts
    return f"--ep-size {placed.ranks} --ep-num-redundant-experts {more} --init-expert-location {path}"


# TensorRT-LLM: ``moe_config.load_balancer``, YAML.
#
# ``num_slots``, ``initial_global_assignments`` {model layer: [expert in a slot]}, ``layer_updates_per_iter`` 0
# (static). Rules: slots divide by the EP size, every MoE layer is assigned, with ``num_slots`` experts and every expert
# among them. Source: NVIDIA/TensorRT-LLM, MoeLoadBalancerConfig (tensorrt_llm/llmapi/llm_args.py) and the checks where
# layers use it (_torch/modules/fused_moe/).

TRTLLM_FILE = "trtllm_moe_load_balancer.yaml"


def written_for_trtllm(placed: PhysicalMap, model: ModelSpec) -> str:
    lines = ["initial_global_assignments:"]
    lines += [f"  {layer}: {row}" for layer, row in zip(model.moe_layer_ids, placed.experts.tolist(), strict=True)]
    return "\n".join([*lines, "layer_updates_per_iter: 0", f"num_slots: {placed.slots}", ""])


def trtllm_default(slots: int, experts: int, ranks: int) -> np.ndarray:
    """int64[slot]: what TensorRT-LLM starts with: consecutive experts on every rank."""
    rank, place = np.divmod(np.arange(slots), slots // ranks)
    return (rank * experts // ranks + place) % experts


def read_trtllm(path: Path, model: ModelSpec, ranks: int) -> PhysicalMap:
    """Raises PlacementError for what TensorRT-LLM's loader would refuse."""
    data = _trtllm_yaml(path)
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


def _trtllm_yaml(path: Path) -> dict[Any, Any]:
    import yaml

    try:
        data = yaml.load(read_text(path), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise PlacementError(f"{path}: not valid YAML ({error}); is the file truncated?") from None
    if not isinstance(data, dict):
        raise PlacementError(f"{path}: expected num_slots and initial_global_assignments")
    return data


def trtllm_options(placed: PhysicalMap, path: Path) -> str:
    return f"moe_expert_parallel_size: {placed.ranks}, moe_config: {{load_balancer: {path}}} in --extra_llm_api_options"


# vLLM: a static EPLB mapping, ``initial_mapping_path`` of ``eplb_config`` (pull request 41141), JSON lines.
#
# One record ``eplb_initial_mapping``: ``num_slots``, ``num_redundant_experts`` and ``initial_global_assignments``,
# whose keys count the MoE layers from 0. Rules: all MoE layers, ``num_slots`` experts each, as many redundant ones as
# configured, every expert at least once, slots divide by the EP size. Source: the pull request's tests.

VLLM_FILE = "vllm_eplb_initial_mapping.jsonl"
RECORD = "eplb_initial_mapping"


def written_for_vllm(placed: PhysicalMap, model: ModelSpec) -> str:
    record = {
        "record_type": RECORD,
        "version": 1,
        "num_redundant_experts": placed.slots - model.experts,
        "num_slots": placed.slots,
        "initial_global_assignments": {str(n): row for n, row in enumerate(placed.experts.tolist())},
    }
    return json.dumps(record) + "\n"


def read_vllm(path: Path, model: ModelSpec, ranks: int) -> PhysicalMap:
    """Raises PlacementError for what vLLM's loader would refuse."""
    record = _vllm_record(path)
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


def _vllm_record(path: Path) -> dict:
    for number, line in enumerate(read_text(path).splitlines(), 1):
        try:
            record = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError) as error:
            raise PlacementError(f"{path}: line {number}: not valid JSON ({error}); is the file truncated?") from None
        if isinstance(record, dict) and record.get("record_type") == RECORD:
            return record
    raise PlacementError(f"{path}: has no {RECORD} record")


def vllm_options(placed: PhysicalMap, path: Path) -> str:
    """How vLLM is started with the file."""
    more = placed.slots - placed.num_experts
    config = json.dumps({"num_redundant_experts": more, "initial_mapping_path": str(path)})
    return f"--enable-expert-parallel --enable-eplb --eplb-config '{config}'"


@dataclass(frozen=True)
class PlacementFormat:
    """How an engine is given a placement."""

    name: str  # of the engine
    file: str  # name of the file
    written: Callable[[PhysicalMap, ModelSpec], str]  # text of a file
    # (path, model, ranks); raises PlacementError as the engine's loader would
    read: Callable[[Path, ModelSpec, int], PhysicalMap]
    options: Callable[[PhysicalMap, Path], str]  # (map, path): how the engine is started with the file


ENGINES = (
    PlacementFormat("SGLang", SGLANG_FILE, written_for_sglang, read_sglang, sglang_options),
    PlacementFormat("vLLM", VLLM_FILE, written_for_vllm, read_vllm, vllm_options),
    PlacementFormat("TensorRT-LLM", TRTLLM_FILE, written_for_trtllm, read_trtllm, trtllm_options),
)
_BY_SUFFIX = {".json": read_sglang, ".jsonl": read_vllm, ".yaml": read_trtllm, ".yml": read_trtllm}


def write_placement(placed: PhysicalMap, model: ModelSpec, folder: Path) -> list[Path]:
    """One file per engine; each appears only when it has been read back. Raises PlacementError if one differs."""
    paths = [folder / engine.file for engine in ENGINES]
    for engine, path in zip(ENGINES, paths, strict=True):
        with write_draft(path, durable=True) as draft:
            draft.write_text(engine.written(placed, model), encoding="utf-8")
            if not np.array_equal(engine.read(draft, model, placed.ranks).experts, placed.experts):
                raise PlacementError(f"{path}: what was written is not what {engine.name} would read")
    return paths


def read_placement(path: Path, model: ModelSpec, ranks: int) -> PhysicalMap:
    """A placement in the format of any engine, by its suffix. Raises PlacementError."""
    if path.suffix not in _BY_SUFFIX:
        raise PlacementError(f"{path}: unknown format; expected SGLang's .json, vLLM's .jsonl or TensorRT-LLM's .yaml")
    return _BY_SUFFIX[path.suffix](path, model, ranks)
