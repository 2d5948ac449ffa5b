"""A placement in the formats of all engines: written, and read back by the rules of each engine's own loader."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from archsim.base.errors import PlacementError
from archsim.base.files import drafted
from archsim.specs.model import ModelSpec
from archsim.workload.placements import sglang, trtllm, vllm
from archsim.workload.placements.physical import PhysicalMap


@dataclass(frozen=True)
class Engine:
    """``written(map, model)``: text of a file. ``read(path, model, ranks)``: raises PlacementError as the engine's
    loader would. ``options(map, path)``: how the engine is started with the file.
    """

    name: str
    file: str
    written: Callable[[PhysicalMap, ModelSpec], str]
    read: Callable[[Path, ModelSpec, int], PhysicalMap]
    options: Callable[[PhysicalMap, Path], str]


ENGINES = tuple(
    Engine(name, each.FILE, each.written, each.read, each.options)
    for name, each in (("SGLang", sglang), ("vLLM", vllm), ("TensorRT-LLM", trtllm))
)
_BY_SUFFIX = {".json": sglang.read, ".jsonl": vllm.read, ".yaml": trtllm.read, ".yml": trtllm.read}


def write_placement(placed: PhysicalMap, model: ModelSpec, folder: Path) -> list[Path]:
    """One file per engine; each appears only when it has been read back. Raises PlacementError if one differs."""
    paths = [folder / engine.file for engine in ENGINES]
    for engine, path in zip(ENGINES, paths, strict=True):
        with drafted(path, durable=True) as draft:
            draft.write_text(engine.written(placed, model), encoding="utf-8")
            if not np.array_equal(engine.read(draft, model, placed.ranks).experts, placed.experts):
                raise PlacementError(f"{path}: what was written is not what {engine.name} would read")
    return paths


def read_placement(path: Path, model: ModelSpec, ranks: int) -> PhysicalMap:
    """A placement in the format of any engine, by its suffix. Raises PlacementError."""
    if path.suffix not in _BY_SUFFIX:
        raise PlacementError(f"{path}: unknown format; expected SGLang's .json, vLLM's .jsonl or TensorRT-LLM's .yaml")
    return _BY_SUFFIX[path.suffix](path, model, ranks)
