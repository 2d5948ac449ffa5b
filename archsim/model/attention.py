"""The attention of a model: kinds by name, which layers have them, their weights and what the cache keeps.

A kind is one class: of the table ``KINDS``, or a user's own ``package.module:Class``. Its fields are the keys that a
model file gives; what it takes to run ``archsim.iteration.attention.Kind`` knows, the base of all of them.
"""

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    PlainSerializer,
    TypeAdapter,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)

from archsim.base.errors import did_you_mean
from archsim.base.fields import Few, KeyProblem, Spec
from archsim.base.own_code import import_function
from archsim.base.quantities import count, describe


class LayerSet(Spec):
    """Layers ``first``, ``first + every``, … up to ``last``, or a list of layers; layer ids start at 0."""

    first: Annotated[int, count(0, 9999)]
    last: Annotated[int, count(0, 9999)]
    every: Annotated[int, count(1, 9999)] = 1
    # The layers themselves, in order, where they are not spaced evenly.
    listed: tuple[int, ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, given: Any) -> Any:
        return cls.keys_of(given) if isinstance(given, list | tuple) else given

    @field_validator("last")
    @classmethod
    def _not_before_first(cls, last: int, info: ValidationInfo) -> int:
        first = info.data.get("first", 0)
        if last < first:
            raise ValueError(f"last layer {last} is before the first, {first}")
        return last

    @staticmethod
    def keys_of(ids: Any) -> dict[str, Any]:
        """The keys of the set of these layers: evenly spaced where they are."""
        for at, each in enumerate(ids):
            if type(each) is not int or not 0 <= each <= 9999:
                raise KeyProblem((at,), f"expected a layer, 0 to 9999, not {each!r}")
        ordered = sorted(set(ids))
        if len(ordered) != len(ids):
            raise ValueError("a layer is listed twice")
        if not ordered:
            return {"first": 0, "last": 0, "listed": ()}
        every = ordered[1] - ordered[0] if len(ordered) > 1 else 1
        spaced = {"first": ordered[0], "last": ordered[-1], "every": every}
        return spaced if ordered == list(range(ordered[0], ordered[-1] + 1, every)) else spaced | {
            "every": 1, "listed": tuple(ordered)
        }  # fmt: skip

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(range(self.first, self.last + 1, self.every)) if self.listed is None else self.listed

    @model_serializer
    def _as_written(self) -> Any:
        if self.listed is not None:
            return list(self.listed)
        return {"first": self.first, "last": self.last, "every": self.every}


_HERE = "archsim.iteration"
KINDS = MappingProxyType(
    {
        "grouped": f"{_HERE}.grouped:Grouped",
        "latent": f"{_HERE}.latent:Latent",
        "sparse": f"{_HERE}.sparse:Sparse",
        "block_sparse": f"{_HERE}.sparse:BlockSparse",
        "compressed": f"{_HERE}.compressed:Compressed",
        "gated_delta_net": f"{_HERE}.delta:GatedDeltaNet",
        "kda": f"{_HERE}.delta:KimiDelta",
        "short_conv": f"{_HERE}.linear:ShortConv",
        "lightning": f"{_HERE}.linear:Lightning",
        "mamba": f"{_HERE}.mamba:Mamba",
        "mamba2": f"{_HERE}.mamba:Mamba2",
    }
)


class AttentionKind(Spec):
    """What every kind has: the layers that have it, its weights, and what a request keeps."""

    # A name of KINDS, or a user's own package.module:Class.
    kind: str
    # Layers with this attention; null: all that no other entry names.
    layers: LayerSet | None = None
    # Attentions of this kind in one layer, one after the other (LongCat-Flash has two).
    per_layer: Few = 1

    @property
    def split_heads(self) -> int:
        """Heads that the ranks of one request share: tensor parallelism must divide them."""
        raise NotImplementedError

    def shard_widths(self, tp: int) -> dict[str, int]:
        """Product → values of its weights that each of ``tp`` ranks has along the side on which they are divided."""
        return {}

    def weights(self, hidden: int) -> int:
        """Weights of one attention; norms, biases and sinks may be left out (below 0.1 %)."""
        raise NotImplementedError

    def kv_bytes_per_token(self, value_bytes: int = 2) -> float:
        """KV cache of a token in one attention while it is kept; 0 without a cache."""
        raise NotImplementedError

    def kept_bytes_per_token(self, value_bytes: int = 2) -> float:
        """The part of it that is kept for good: 0 of a window."""
        return self.kv_bytes_per_token(value_bytes)

    @property
    def kept_window(self) -> int:
        """Tokens of which it keeps what it does not keep for good; 0 where it keeps all for good."""
        return 0

    def kv_bytes(self, context: int, value_bytes: int = 2) -> int:
        """KV cache of a request of ``context`` tokens in one attention."""
        kept = self.kept_bytes_per_token(value_bytes)
        near = self.kv_bytes_per_token(value_bytes) - kept
        return int(context * kept + min(context, self.kept_window or context) * near)

    def kv_ranks(self, tp: int) -> int:
        """Over how many of ``tp`` ranks a request's cache is spread; the others hold copies."""
        return tp

    @property
    def state_bytes(self) -> int:
        """What a request keeps in one attention, however long it is: states, and the convolution's tail."""
        return 0


def kind_class(kind: str) -> type[AttentionKind]:
    """The class of a kind. Raises ValueError for one that is not known or cannot be imported."""
    if kind not in KINDS and ":" not in kind:
        raise ValueError(
            f"unknown kind {kind!r}{did_you_mean(kind, list(KINDS))} (known: {', '.join(KINDS)}; or your own class as "
            "package.module:Class)"
        )
    found = import_function(KINDS.get(kind, kind))
    if not (isinstance(found, type) and issubclass(found, AttentionKind)):
        raise ValueError(f"{kind!r} is not a kind of attention; expected a class below archsim's AttentionKind")
    return found


def read_kind(given: Any, info: ValidationInfo | None = None) -> AttentionKind:
    """The attention of one mapping. Without ``kind``, keys of ranks make it latent, all else grouped."""
    if isinstance(given, AttentionKind):
        return given
    if not isinstance(given, dict):
        raise ValueError(f"expected a mapping with a kind and its keys, not {describe(given)}")
    kind = given.get("kind") or ("latent" if {"kv_lora_rank", "q_lora_rank"} & set(given) else "grouped")
    if not isinstance(kind, str):
        raise KeyProblem(("kind",), f"expected text, not {describe(kind)}")
    try:
        found = kind_class(kind)
    except ValueError as error:
        raise KeyProblem(("kind",), str(error)) from None
    keys = list(found.model_fields)
    for key in given:
        if key not in keys:
            hint = did_you_mean(str(key), keys) or f" (it has {', '.join(keys)})"
            raise KeyProblem((key,), f"unknown key of {kind} attention{hint}")
    return found.model_validate({**given, "kind": kind}, context=info.context if info else None)


_ITEMS: TypeAdapter[tuple[AttentionKind, ...]] = TypeAdapter(
    tuple[Annotated[AttentionKind, BeforeValidator(read_kind)], ...]
)


def _read_all(given: Any, info: ValidationInfo) -> Any:
    if isinstance(given, dict | AttentionKind):
        return (read_kind(given, info),)
    return _ITEMS.validate_python(given, context=info.context) if isinstance(given, list | tuple) else given


def _written(kinds: Iterable[AttentionKind] | None) -> Any:
    if kinds is None:
        return None
    each = [kind.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True) for kind in kinds]
    return each[0] if len(each) == 1 else each


Attention = Annotated[
    tuple[AttentionKind, ...] | None,
    BeforeValidator(_read_all),
    PlainSerializer(_written),
    WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}, {"type": "null"}]}),
]


@lru_cache(maxsize=64)
def count_of_layers(kinds: tuple[AttentionKind, ...], layers: int) -> tuple[tuple[AttentionKind, int], ...]:
    """Every attention of a model and how many of it there are."""
    found = Counter(kind for kind in by_layer(kinds, layers) if kind is not None)
    return tuple((kind, kind.per_layer * number) for kind, number in found.items())


def by_layer(kinds: tuple[AttentionKind, ...], layers: int) -> tuple[AttentionKind | None, ...]:
    """The attention of each layer; None where it has none. Raises KeyProblem where layers are named twice."""
    found: list[AttentionKind | None] = [None] * layers
    for at, kind in enumerate(kinds):
        for layer in kind.layers.ids if kind.layers else ():
            if layer >= layers:
                raise KeyProblem((at, "layers"), f"layer {layer} is out of range; the model has 0 to {layers - 1}")
            if found[layer] is not None:
                raise KeyProblem((at, "layers"), f"layer {layer} has an attention already")
            found[layer] = kind
    rest = [at for at, kind in enumerate(kinds) if kind.layers is None]
    if len(rest) > 1:
        raise KeyProblem((rest[1], "layers"), "required key is missing: one entry alone may have the remaining layers")
    return tuple(kinds[rest[0]] if kind is None and rest else kind for kind in found)
