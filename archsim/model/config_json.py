"""Converts a Hugging Face ``config.json`` of a mixture-of-experts model to a ModelSpec: all of it, or not at all.

The reader of its family (``config_families``) says what its keys mean. A type that is not known, and a key with a value
that no reader asks for and that is not known to be harmless, are refused by name: each may change attention, experts or
layers. ``accept_approximate`` goes on without them and notes them in the model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from archsim.base.config_files import schema_line
from archsim.base.errors import SpecError
from archsim.base.files import write_text
from archsim.base.yaml import dump_yaml
from archsim.model import config_families
from archsim.model.config_keys import EXPERTS, FLAGS, TOP_K, ConfigKeys, read_keys
from archsim.model.kept_parts import kept_parts
from archsim.model.spec import ModelSpec

# Keys of config.json that hold the longest sequence, as vLLM looks for them.
_POSITIONS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_sequence_length",
    "max_seq_length", "seq_len",
)  # fmt: skip
# Scalings that multiply positions, and those that are within them (ROPE_INIT_FUNCTIONS of transformers; others by vLLM,
# model_executor/layers/rotary_embedding).
_MULTIPLY = ("linear", "dynamic", "yarn")
_WITHIN = ("default", "llama3", "longrope", "su", "mrope", "proportional", "deepseek_yarn", "xdrope")
_GO_ON = "--accept-approximate goes on without, and every page says so"


def import_config(
    path: Path, name: str | None = None, given: Mapping[str, Any] | None = None, accept_approximate: bool = False
) -> ModelSpec:
    """The model of a ``config.json``. given: fields of the ModelSpec that replace those of the file.

    Raises SpecError for a file that cannot be read, a model without experts, keys that are missing or have a value that
    cannot be, and, unless ``accept_approximate``, a type or keys that are not known.
    """
    keys = read_keys(path)
    asked = {key: value for key, value in (given or {}).items() if value is not None}
    reader = config_families.reader_of(keys.model_type)
    unknown = []
    if reader is None:
        unknown.append(f"model_type {keys.model_type!r} is not known")
        if not accept_approximate:
            raise SpecError(f"{path}: {unknown[0]} (known: {', '.join(config_families.KNOWN)}); {_GO_ON}")
        keys.guessed = []
    _refuse_odd_text(keys)
    drafting = keys.whole("num_mtp_modules", "num_nextn_predict_layers", least=0)
    if keys.flag("use_mtp") is False:
        drafting = 0
    fields = (
        {"positions": _positions(keys), "mtp_layers": drafting} | (reader or config_families.as_others)(keys) | asked
    )
    unknown += [f"{each} is not supported" for each in keys.unread()]
    _refuse(path, () if accept_approximate else unknown)
    if missing := [field for field in ("expert_ffn", "experts", "top_k") if fields.get(field) is None]:
        widths = "moe_intermediate_size", "intermediate_size", "expert_ffn_hidden_size"
        named = {"experts": EXPERTS, "top_k": TOP_K, "expert_ffn": widths}
        lines = (f"{each}. Give {FLAGS[each]}, or write {' or '.join(named[each])}" for each in missing)
        raise SpecError("\n".join(f"{path}: does not say {line}" for line in lines))
    model = _model(keys, name, fields)
    kept, partly = kept_parts(keys, model)
    _refuse(path, () if accept_approximate else partly)
    return model.model_copy(update={"kept_bf16": kept, "approximate": (*unknown, *partly, *(keys.guessed or ()))})


def _refuse(path: Path, unknown: Collection[str]) -> None:
    if unknown:
        lines = (f"{path}: {each}: it may change attention, experts or layers; {_GO_ON}" for each in unknown)
        raise SpecError("\n".join(lines))


def _refuse_odd_text(keys: ConfigKeys) -> None:
    """Raise SpecError for a name or number formats that cannot be; which formats a run has is said elsewhere."""
    formats = ConfigKeys(keys.path, {**keys.outer, **keys.keys})
    method = formats.part("quantization_config")
    named = (formats, "_name_or_path"), (formats, "torch_dtype"), (formats, "dtype"), (method, "quant_method")
    for part, name in named:
        if part.said(name) and not isinstance(part.keys[name], str):
            raise part.wrong(name, "text")


def _positions(keys: ConfigKeys) -> int | None:
    """The longest sequence that engines take: the smallest number that a key gives, multiplied by the factor of a
    scaling that the key does not include (vLLM, `_get_and_verify_max_len`: llama3 and longrope are within it; YaRN
    starts from the original positions). None without a key. Raises SpecError for a length or a factor that cannot be.
    """
    named = [keys.whole(name) for name in _POSITIONS if name in keys.keys]
    most = min((each for each in named if each), default=None) or keys.whole(_POSITIONS[0])
    scaling = keys.part("rope_scaling" if keys.said("rope_scaling") else "rope_parameters")
    if scaling.said("full_attention"):  # one for each kind of layer
        scaling = scaling.part("full_attention")
    kind = scaling.any("rope_type") or scaling.any("type")
    factor = scaling.factor("factor", 1.0)
    if most is None or factor <= 1 or kind in _WITHIN:
        return most
    if kind not in _MULTIPLY:
        raise scaling.wrong(scaling.said("rope_type") or "type", f"one of {', '.join(_MULTIPLY + _WITHIN)}")
    if kind == "yarn":
        name = "original_max_position_embeddings"
        original = scaling.whole(name) or keys.whole(name)
        return int(original * factor) if original else most
    return int(most * factor)


def _model(keys: ConfigKeys, name: str | None, fields: Mapping[str, Any]) -> ModelSpec:
    origin = keys.keys.get("_name_or_path") or keys.outer.get("model_type") or keys.model_type or keys.path.parent.name
    called = name or str(origin).rstrip("/").rpartition("/")[2].lower()
    stated = {field: value for field, value in fields.items() if value is not None}
    try:
        return ModelSpec(name=called, source=f"{origin}, {keys.path.name} (Hugging Face)", **stated)
    except ValidationError as error:
        text = "; ".join(
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}{keys.giving(each['input'])}" for each in error.errors()
        )
        raise SpecError(f"{keys.path}: the keys found do not form a valid model: {text}") from error


def write_model(model: ModelSpec, path: Path) -> None:
    written = model.model_dump(mode="json", by_alias=True, exclude={"aliases"}, exclude_none=True)
    write_text(path, schema_line("model", path) + dump_yaml(written))
