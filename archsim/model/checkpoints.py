"""Names of published checkpoints, as Hugging Face writes them: ``Qwen/Qwen3-32B-FP8`` is a model and a precision."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

# Ends of names that say the precision of the weights. FP4 in names of NVIDIA's checkpoints is NVFP4; W4A16 has integer
# weights of 4 bits (compressed-tensors).
PRECISIONS: Mapping[str, str] = MappingProxyType({
    "bf16": "bf16", "fp8": "fp8", "fp8-dynamic": "fp8", "nvfp4": "nvfp4", "fp4": "nvfp4", "mxfp4": "mxfp4",
    "int4": "int4", "w4a16": "int4",
})  # fmt: skip
_ENDS = "|".join(sorted(PRECISIONS, key=len, reverse=True))
_NAMED = re.compile(rf"(?P<model>.+?)-(?P<precision>{_ENDS})(-v\d+)?", re.I)
_OTHERS = re.compile(r".*[-_](awq|gptq(-int[48])?|int8|w8a8|gguf|bnb-4bit|[3468]bit)(-.*)?", re.I)
# Ends of names of other weights for the same shape: a date, and what the weights were tuned for.
_SAME_SHAPE = (re.compile(r"-\d{4}$"), re.compile(r"-(instruct|chat|base|it)$", re.I))
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]*\w")
_FILES = (".yaml", ".yml", ".json", ".onnx")


class Checkpoint(NamedTuple):
    """What the name of a checkpoint says."""

    models: tuple[str, ...]  # names that its model may have, in lower case, the most exact first
    precision: str | None  # a value of PRECISIONS; None: the name does not say


def is_hub_id(name: object) -> bool:
    """Whether this is ``org/Name``. The path of a file of a model may look alike where it has no known ending."""
    return isinstance(name, str) and _HUB_ID.fullmatch(name) is not None and not name.endswith(_FILES)


def checkpoint_of(name: str) -> Checkpoint:
    """``org/Name-PRECISION``, both optional. Raises ValueError for a kind of weights that is not modelled."""
    own = name.rpartition("/")[2]
    if other := _OTHERS.fullmatch(own):
        raise ValueError(f"weights in {other[1]} are not modelled (modelled: {', '.join(dict.fromkeys(PRECISIONS))})")
    named = _NAMED.fullmatch(own)
    models = [(named["model"] if named else own).lower()]
    for end in _SAME_SHAPE:
        models.append(end.sub("", models[-1]))
    return Checkpoint(tuple(dict.fromkeys(models)), PRECISIONS[named["precision"].lower()] if named else None)


def precision_named(model: object, found: str) -> str | None:
    """The precision that a checkpoint's name says; None for paths, mappings and the model's own name (``found``)."""
    if not isinstance(model, str) or model.endswith(_FILES) or model == found:
        return None
    try:
        return checkpoint_of(model).precision
    except ValueError:
        return None


def dtypes_in(precision: str, has_experts: bool) -> tuple[str, str]:
    """dtypes of GEMMs and of experts in the checkpoints that are published: FP8 of mixtures of experts has a scale for
    a block, that of dense models one for a tensor; MXFP4 is of experts alone.
    """
    if precision == "mxfp4":
        return "bf16", precision if has_experts else "bf16"
    both = {"fp8": "fp8_block" if has_experts else "fp8"}.get(precision, precision)
    return both, both
