"""The keys of a ``config.json``: read with their types and ranges, and remembered, so that what nobody read is refused.

A key that the file leaves out has the value that the configuration class of its type gives it. Where no class is known,
a key that decides is asked for by name (`ConfigKeys.stated_whole`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from archsim.base.errors import SpecError
from archsim.model.spec import MOST_LAYERS

# Keys that change neither attention, experts, layers nor parameters by 0.1 %: names, tokens, initial values, dropout,
# training, positions, norms' epsilon, activation limits, scores of routers, number formats, and MTP, which is counted
# nowhere (its layers are extra).
HARMLESS = frozenset(Path(__file__).with_name("harmless_keys.txt").read_text("utf-8").split())

EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
SHARED = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
TOP_K = (
    *("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_k", "moe_top_k"),
    "top_k_experts",
)
FLAGS = {
    "layers": "--layers", "moe_layers": "--moe-layers", "hidden": "--hidden", "expert_ffn": "--expert-ffn",
    "gated": "--gated", "experts": "--experts", "top_k": "--top-k", "shared_experts": "--shared-experts",
    "shared_ffn": "--shared-ffn",
}  # fmt: skip
"""Field of a ModelSpec → the option of ``archsim new --from`` that supplies it."""
# Keys that mean the same; num_local_experts does not (Step3p7TextConfig of transformers has it beside another number).
_ROUTED = tuple(name for name in EXPERTS if name != "num_local_experts")
_SAME = MappingProxyType({name: group for group in (SHARED, TOP_K, _ROUTED) for name in group})
_INNER = ("text_config", "llm_config", "language_config", "thinker_config")
# Layers of multi-token prediction that a list by layer may have at its end, where the file does not say how many
# (Step-3.5 and MiMo-V2 have three, DeepSeek-V4 one).
_MOST_MTP = 3
# Up to so many heads, ranks, experts or values of a vector; tokens and rows have ranges of their own, as in ModelSpec.
_MOST = 1_000_000
_MOST_TOKENS = 1_000_000_000
_OF_TOKENS = frozenset(
    "max_position_embeddings n_positions max_seq_len seq_length model_max_length max_sequence_length max_seq_length "
    "seq_len original_max_position_embeddings sliding_window sliding_window_size attention_chunk_size index_topk "
    "vocab_size".split()
)
# Factors of positions, widths and vocabularies; published ones are up to 128.
_MOST_FACTOR = 10_000


class ClassDefaults(NamedTuple):
    """``values``: defaults of a configuration class; ``never_null``: those of them that it refuses to be null."""

    values: Mapping[str, Any]
    never_null: frozenset[str]


@cache
def class_defaults() -> Mapping[str, ClassDefaults]:
    """Type without underscores → the defaults of its class; ``class_defaults.txt`` says where they are from."""
    found: dict[str, ClassDefaults] = {}
    for line in Path(__file__).with_name("class_defaults.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            names, *pairs = line.split()
            given = {key: value for key, _, value in (pair.partition("=") for pair in pairs)}
            values = {key: json.loads(value.removesuffix("!")) for key, value in given.items()}
            own = ClassDefaults(values, frozenset(key for key, value in given.items() if value.endswith("!")))
            found |= dict.fromkeys((squeeze_name(name) for name in names.split(",")), own)
    return MappingProxyType(found)


def squeeze_name(model_type: str) -> str:
    """A type or the name of an architecture, as they are compared: ``DeepseekV3`` is ``deepseek_v3``."""
    return model_type.lower().replace("_", "")


class ConfigKeys:
    """The keys of one configuration; every key that is asked for counts as read."""

    def __init__(
        self, path: Path, keys: Mapping[str, Any], outer: Mapping[str, Any] | None = None, place: str = ""
    ) -> None:
        """``outer``: the file around a language model's keys (tied embeddings); ``place``: before the names of keys."""
        self.path, self.keys, self.outer, self._place = path, keys, outer or {}, place
        self._read: set[str] = set()
        self._class = class_defaults().get(squeeze_name(self.model_type))
        # Of a type that is not known: what was taken to be absent. None: such a key is refused.
        self.guessed: list[str] | None = None

    @property
    def model_type(self) -> str:
        """The type of the language model, else of the file around it, else by its architecture; or ''."""
        if kind := self.keys.get("model_type") or self.outer.get("model_type"):
            return str(kind)
        named = self.keys.get("architectures") or self.outer.get("architectures") or [""]
        first = str(named[0] if isinstance(named, list) else named)
        return first.removesuffix("ForCausalLM").removesuffix("ForConditionalGeneration")

    @property
    def has_experts(self) -> bool:
        """Whether a key says how many experts a layer has; a dense model has none."""
        return self.said(*EXPERTS) is not None

    def wrong(self, name: str, expected: str) -> SpecError:
        """The error of a key whose value is not what was ``expected``."""
        return SpecError(f"{self.path}: {self._place}{name} is {short(self.keys.get(name))}; expected {expected}")

    def unsaid(self, *names: str) -> SpecError:
        """The error of a key that the file must state."""
        return SpecError(f"{self.path}: does not say {' or '.join(self._place + name for name in names)}")

    def said(self, *names: str) -> str | None:
        """The first of the names to which the file gives a value."""
        return next((name for name in names if self.keys.get(name) is not None), None)

    def any(self, *names: str) -> Any:
        """The first key with a value, else the class's for keys left out (not null), else None; all count as read."""
        self._read.update(names)
        if name := self.said(*names):
            for other in _SAME.get(name, ()):
                if other in names and self.keys.get(other) not in (None, self.keys[name]):
                    raise self.wrong(other, f"the same as {name}, which means the same and is {short(self.keys[name])}")
            return self.keys[name]
        own = self._class or ClassDefaults({}, frozenset())
        null = next((name for name in names if name in self.keys), None)
        for name in names if null else ():
            if name in own.never_null:
                raise self.wrong(null or name, f"a value, as that of {self.model_type}, {own.values[name]}")
        return None if null else next((own.values[name] for name in names if name in own.values), None)

    def whole(self, *names: str, default: int | None = None, least: int = 1) -> int | None:
        """A whole number of at least ``least``. Raises SpecError for anything else."""
        value = self.any(*names)
        if value is None:
            return default
        most = _MOST_TOKENS if _OF_TOKENS & set(names) else _MOST
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(self.said(*names) or names[0], f"a whole number, {least} or more, up to {most:,}")
        return value

    def stated_whole(self, *names: str, least: int = 1) -> int | None:
        """As ``whole``, of a key that decides: where no class is known, the file must state it, if with null."""
        self.decides(*names)
        return self.whole(*names, least=least)

    def decides(self, *names: str) -> None:
        """Raise SpecError where the file leaves out all of the keys and the class of its type is not known."""
        if self._class is not None or any(name in self.keys for name in names):
            return
        if self.guessed is None:
            raise SpecError(
                f"{self.unsaid(*names)}, and the defaults of {self.model_type or 'its class'!r} are not known. Write "
                f"{names[0]}: null if there is none"
            )
        self.guessed.append(f"{names[0]} is not said, and taken to be null")

    def size(self, *names: str) -> int:
        """A whole number that the file must state. Raises SpecError without it."""
        self._read.update(names)
        if not self.said(*names):
            raise self.unsaid(*names)
        return self.whole(*names) or 0

    def layers(self, *names: str) -> int:
        """The number of layers. Raises SpecError without it, or for more than a ModelSpec can have."""
        layers = self.size(*names)
        if layers > MOST_LAYERS:
            raise self.wrong(self.said(*names) or names[0], f"at most {MOST_LAYERS}")
        return layers

    def one(self, *names: str, least: int = 1) -> int | None:
        """A whole number, or a list with one for each layer, all the same. Raises SpecError for a list that differs."""
        value = self.any(*names)
        if not isinstance(value, list):
            return self.whole(*names, least=least)
        name = self.said(*names) or names[0]
        if len(set(map(str, value))) != 1 or value[0] is None:
            raise self.wrong(name, "the same number for every layer; no model file can say anything else")
        return ConfigKeys(self.path, {name: value[0]}, place=self._place).whole(name, least=least)

    def flag(self, *names: str) -> bool | None:
        """True or false; None without it. Raises SpecError for anything else."""
        value = self.any(*names)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(self.said(*names) or names[0], "true or false")
        return value

    def factor(self, name: str, default: float) -> float:
        """A number above 0. Raises SpecError for anything else."""
        value = self.any(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST_FACTOR:
            raise self.wrong(name, f"a number above 0, up to {_MOST_FACTOR}")
        return value

    def chosen(self, name: str, options: Mapping[str, Any], default: Any) -> Any:
        """What one of the words in ``options`` stands for. Raises SpecError for another word."""
        value = self.any(name)
        if value is None:
            return default
        if not isinstance(value, str) or value not in options:
            raise self.wrong(name, f"one of {', '.join(options)}")
        return options[value]

    def list_of(self, *names: str) -> list[Any]:
        """A list; empty without one. Raises SpecError for anything else."""
        value = self.any(*names)
        if value is not None and not isinstance(value, list):
            raise self.wrong(self.said(*names) or names[0], "a list")
        return value or []

    def by_layer(self, name: str, layers: int) -> list[Any]:
        """A list by layer, without multi-token prediction; empty without it. Raises SpecError for other lengths."""
        found = self.list_of(name)
        most = layers + max(_MOST_MTP, self.whole("num_nextn_predict_layers", least=0) or 0)
        if found and not layers <= len(found) <= most:
            raise SpecError(f"{self.path}: {self._place}{name} has {len(found)} layers of {layers}")
        return found[:layers]

    def flags(self, name: str, layers: int) -> list[bool]:
        """0 or 1 for each layer; empty without the key."""
        found = self.by_layer(name, layers)
        if any(type(each) not in (int, bool) or each not in (0, 1) for each in found):
            raise self.wrong(name, "0 or 1 for each layer")
        return [bool(each) for each in found]

    def ids(self, name: str, first: int, last: int) -> list[int]:
        """Numbers of layers, each once; empty without the key."""
        found = self.list_of(name)
        if any(type(each) is not int or not first <= each <= last for each in found) or len(set(found)) < len(found):
            raise self.wrong(name, f"numbers of layers from {first} to {last}, each once")
        return found

    def part(self, name: str) -> ConfigKeys:
        """The keys of a mapping inside; none without it. What is not read of them is named with its place."""
        value = self.any(name)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return ConfigKeys(self.path, value or {}, place=f"{self._place}{name}.")

    def unread(self) -> list[str]:
        """Keys with a value that nobody has read and that are not known to be harmless: ``name = value``."""
        return [
            f"{self._place}{name} = {short(value)}"
            for name, value in self.keys.items()
            if name not in self._read
            and name not in HARMLESS
            and not (value is None or value is False or value == [] or value == {})
        ]

    def refuse_unread(self) -> None:
        """Raise SpecError for the first key that nobody has read."""
        if unread := self.unread():
            raise SpecError(f"{self.path}: {unread[0]}: archsim does not know this key")

    def giving(self, value: Any) -> str:
        """The keys that were read and have a value, for a message about it; empty without one."""
        named = [name for name in sorted(self._read) if type(value) is int and self.any(name) == value]
        return f" ({', '.join(named)})" if named else ""


def short(value: Any) -> str:
    """A value as JSON, cut off after 60 characters; text in single quotes."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_keys(path: Path) -> ConfigKeys:
    """The keys of the language model: those of ``text_config`` where there is one. Raises SpecError."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise SpecError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(config, dict):
        raise SpecError(f"{path}: expected an object with keys such as num_hidden_layers")
    for name in _INNER:
        inner = config.get(name)
        if inner and not isinstance(inner, dict):
            raise ConfigKeys(path, config).wrong(name, "an object with the keys of the language model")
        if inner:
            if isinstance(inner.get("text_config"), dict):
                inner = inner["text_config"]
            return ConfigKeys(path, {"_name_or_path": config.get("_name_or_path")} | inner, config)
    return ConfigKeys(path, config)
