"""vLLM's ``eplb_load_stats`` records (pull request 41141), JSON lines.

Read are ``eplb_load_stats``: ``step``, ``expert_load`` [layer][slot] and ``p2l_map`` [layer][slot], and of
``eplb_load_meta`` the name of the model; records of other types are skipped. Layers are the MoE layers, from 0.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base.errors import TraceError
from archsim.model.spec import ModelSpec
from archsim.traffic import trace_checks
from archsim.traffic.loads import MOST_BYTES, UNKNOWN_PHASE, Loads, made_loads
from archsim.traffic.logical_counts import logical_counts, numbers

STATS, VLLM_META = "eplb_load_stats", "eplb_load_meta"
_PEEK_BYTES = 1 << 16


def is_load_stats(path: Path) -> bool:
    """Whether the first line has a ``record_type``."""
    with path.open("rb") as stream:
        return b'"record_type"' in stream.readline(_PEEK_BYTES)


def model_named(path: Path) -> str:
    """The model that ``eplb_load_meta`` names in the first line, or ''."""
    with path.open("rb") as stream:
        try:
            first = json.loads(stream.readline(_PEEK_BYTES))
        except (ValueError, RecursionError):
            return ""
    return str(first.get("model", "")) if isinstance(first, dict) and first.get("record_type") == VLLM_META else ""


def read_load_stats(path: Path, model: ModelSpec) -> Loads:
    """Raises TraceError."""
    counts: list[np.ndarray] = []
    names: list[str] = []
    if path.stat().st_size > MOST_BYTES:
        raise TraceError(f"{path}: {path.stat().st_size} bytes; expected at most {MOST_BYTES} for load statistics")
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            where = f"{path}: line {number}"
            record = _record(where, line) if line.strip() else {}
            if record.get("record_type") == VLLM_META:
                trace_checks.check_name(where, model, str(record.get("model", "")))
            elif record.get("record_type") == STATS:
                counts.append(_counts(where, record, model))
                names.append(f"{path.stem} step {record.get('step', len(names))}")
    if not counts:
        raise TraceError(f"{path}: has no {STATS} records")
    if len({each.shape for each in counts}) > 1:
        raise TraceError(f"{path}: the number of layers differs between records")
    return made_loads(str(path), model, np.stack(counts), names, [path.stem] * len(names), [UNKNOWN_PHASE] * len(names))


def _record(where: str, line: bytes) -> dict:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(
            f"{where}: not valid JSON ({error}); is the file truncated? Without its last line it can be read"
        ) from error
    if not isinstance(record, dict):
        raise TraceError(f"{where}: expected an object with record_type")
    return record


def _counts(where: str, record: dict[str, Any], model: ModelSpec) -> np.ndarray:
    """[layer, expert]"""
    if "expert_load" not in record:
        raise TraceError(f"{where}: has no expert_load")
    slots = numbers(where, "expert_load", record["expert_load"], 2)
    stated = record.get("num_layers", len(slots))
    if stated != len(slots):
        raise TraceError(f"{where}: num_layers is {stated!r}, but expert_load has {len(slots)} layers")
    return logical_counts(where, model, slots[None], record.get("p2l_map"), "p2l_map")[0]
