"""Converts a Hugging Face ``config.json`` of a mixture-of-experts model to a ModelSpec: all of it, or not at all.

The reader of its family (``archsim.models.families``) says what its keys mean. A type that is not known, and a key
with a value that no reader asks for and that is not known to be harmless, are refused by name: each may change
attention, experts or layers. ``accept_approximate`` goes on without them and notes them in the model.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from archsim.base.errors import SpecError
from archsim.models.config_keys import ConfigKeys, read_keys
from archsim.models.families import KNOWN, as_others, reader_of
from archsim.models.onnx_import import FLAGS
from archsim.specs.model import ModelSpec

# Keys of config.json that hold the longest sequence, as vLLM looks for them.
_POSITIONS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_sequence_length",
    "max_seq_length", "seq_len",
)  # fmt: skip
_GO_ON = "--accept-approximate goes on without, and every page says so"


def import_config(
    path: Path, name: str | None = None, given: Mapping[str, Any] | None = None, accept_approximate: bool = False
) -> ModelSpec:
    """The model of a ``config.json``. given: fields of the ModelSpec that replace those of the file.

    Raises SpecError for a file that cannot be read, a model without experts, keys that are missing, and, unless
    ``accept_approximate``, a type or keys that are not known.
    """
    keys = read_keys(path)
    asked = {key: value for key, value in (given or {}).items() if value is not None}
    reader = reader_of(keys.model_type)
    unknown = []
    if reader is None:
        unknown.append(f"model_type {keys.model_type!r} is not known")
        if not accept_approximate:
            raise SpecError(f"{path}: {unknown[0]} (known: {', '.join(KNOWN)}); {_GO_ON}")
    fields = {"positions": _positions(keys)} | (reader or as_others)(keys) | asked
    unknown += [f"{each} is not read" for each in keys.unread()]
    if unknown and not accept_approximate:
        lines = (f"{path}: {each}: it may change attention, experts or layers; {_GO_ON}" for each in unknown)
        raise SpecError("\n".join(lines))
    needed = ("layers", "moe_layers", "hidden", "expert_ffn", "experts", "top_k")
    if missing := [field for field in needed if fields.get(field) is None]:
        raise SpecError("\n".join(f"{path}: does not say {field}; give {FLAGS[field]}" for field in missing))
    return _model(keys, name, fields | {"approximate": tuple(unknown)})


def _positions(keys: ConfigKeys) -> int | None:
    """Of the longest sequence that engines take: the least that a key says, times the factor of a scaling that the key
    does not include (vLLM, `_get_and_verify_max_len`: llama3 and longrope are within it; YaRN starts from the original
    positions). None without a key.
    """
    named = [keys.any(name) for name in _POSITIONS]
    most = min((each for each in named if isinstance(each, int | float) and each > 0), default=None)
    scaling = keys.any("rope_scaling", "rope_parameters")
    if isinstance(scaling, dict) and isinstance(scaling.get("full_attention"), dict):  # one for each kind of layer
        scaling = scaling["full_attention"]
    factor = scaling.get("factor") if isinstance(scaling, dict) else None
    kind = (scaling.get("rope_type") or scaling.get("type")) if isinstance(scaling, dict) else None
    if most is None or not isinstance(factor, int | float) or factor <= 1:
        return None if most is None else int(most)
    if kind == "yarn":
        original = scaling.get("original_max_position_embeddings") or keys.any("original_max_position_embeddings")
        return int(original * factor) if isinstance(original, int) else int(most)
    return int(most * factor) if kind in ("linear", "dynamic") else int(most)


def _model(keys: ConfigKeys, name: str | None, fields: Mapping[str, Any]) -> ModelSpec:
    origin = keys.keys.get("_name_or_path") or keys.outer.get("model_type") or keys.model_type or keys.path.parent.name
    called = name or str(origin).rstrip("/").rpartition("/")[2].lower()
    stated = {field: value for field, value in fields.items() if value is not None}
    try:
        return ModelSpec(name=called, source=f"{origin}, {keys.path.name} (Hugging Face)", **stated)
    except ValidationError as error:
        text = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise SpecError(f"{keys.path}: the keys found do not form a valid model: {text}") from error
