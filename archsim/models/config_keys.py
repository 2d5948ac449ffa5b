"""The keys of a ``config.json``: read with their types, and remembered, so that what nobody read can be refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archsim.base.errors import SpecError
from archsim.specs.model import MOST_LAYERS

# Keys that change neither attention, experts, layers nor parameters by 0.1 %: names, tokens, initial values, dropout,
# training, positions, norms' epsilon, activation limits, scores of routers, number formats, and MTP, which is counted
# nowhere (its layers are extra).
HARMLESS = frozenset(Path(__file__).with_name("harmless_keys.txt").read_text("utf-8").split())

EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")


class ConfigKeys:
    """The keys of one configuration; every key that is asked for counts as read."""

    def __init__(self, path: Path, keys: Mapping[str, Any], outer: Mapping[str, Any] | None = None) -> None:
        """``outer``: of the file around a language model's own keys, which may say whether embeddings are tied."""
        self.path, self.keys, self.outer = path, keys, outer or {}
        self._read: set[str] = set()

    @property
    def model_type(self) -> str:
        """That of the language model, else of the file around it; without one, from the name of its architecture. Empty
        if it has neither.
        """
        if kind := self.keys.get("model_type") or self.outer.get("model_type"):
            return str(kind)
        named = self.keys.get("architectures") or self.outer.get("architectures") or [""]
        return str(named[0]).removesuffix("ForCausalLM").removesuffix("ForConditionalGeneration")

    @property
    def has_experts(self) -> bool:
        """Whether a key says how many experts a layer has; a dense model has none."""
        return any(self.keys.get(each) for each in EXPERTS)

    def any(self, *names: str) -> Any:
        """The first of the keys that has a value, else None; all count as read."""
        self._read.update(names)
        return next((self.keys[name] for name in names if self.keys.get(name) is not None), None)

    def whole(self, *names: str, default: int | None = None) -> int | None:
        """A whole number. Raises SpecError for anything else."""
        value = self.any(*names)
        if value is None:
            return default
        if type(value) is not int or value < 0:
            name = next(name for name in names if self.keys.get(name) is not None)
            raise SpecError(f"{self.path}: {name} is {value!r}; expected a whole number")
        return value

    def size(self, *names: str) -> int:
        """A whole number that the file must state. Raises SpecError without it."""
        value = self.whole(*names)
        if not value:
            raise SpecError(f"{self.path}: does not say {' or '.join(names)}")
        return value

    def layers(self, *names: str) -> int:
        """The number of layers. Raises SpecError without it, or for more than a ModelSpec can have."""
        layers = self.size(*names)
        if layers > MOST_LAYERS:
            name = next(name for name in names if self.keys.get(name))
            raise SpecError(f"{self.path}: {name} is {layers}; expected at most {MOST_LAYERS}")
        return layers

    def one(self, *names: str) -> int | None:
        """A whole number, or a list with one for each layer, all the same. Raises SpecError for a list that differs."""
        value = self.any(*names)
        if not isinstance(value, list):
            return self.whole(*names)
        if len(set(map(str, value))) != 1:
            name = next(name for name in names if self.keys.get(name) is not None)
            raise SpecError(f"{self.path}: {name} differs from layer to layer: {value}; no model file can say this")
        return ConfigKeys(self.path, {names[0]: value[0]}).whole(names[0])

    def listed(self, *names: str) -> list[Any]:
        """A list; empty without one. Raises SpecError for anything else."""
        value = self.any(*names)
        if value is not None and not isinstance(value, list):
            raise SpecError(f"{self.path}: {names[0]} is {value!r}; expected a list")
        return value or []

    def part(self, name: str) -> ConfigKeys:
        """The keys of a mapping inside; none without it. What is not read of them is named with its place."""
        value = self.any(name)
        if value is not None and not isinstance(value, dict):
            raise SpecError(f"{self.path}: {name} is {value!r}; expected an object")
        inside = ConfigKeys(self.path, value or {})
        return inside

    def unread(self) -> list[str]:
        """Keys with a value that nobody has read and that are not known to be harmless: ``name = value``."""
        return [
            f"{name} = {_short(value)}"
            for name, value in self.keys.items()
            if name not in self._read
            and name not in HARMLESS
            and not (value is None or value is False or value == [] or value == {})
        ]


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_keys(path: Path) -> ConfigKeys:
    """The keys of the language model: those of ``text_config`` where there is one. Raises SpecError."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise SpecError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(config, dict):
        raise SpecError(f"{path}: expected an object with keys such as num_hidden_layers")
    for name in ("text_config", "llm_config", "language_config", "thinker_config"):
        if isinstance(config.get(name), dict):
            inner = config[name]
            if isinstance(inner.get("text_config"), dict):
                inner = inner["text_config"]
            return ConfigKeys(path, {"_name_or_path": config.get("_name_or_path")} | inner, config)
    return ConfigKeys(path, config)
