"""Users' own hardware blocks: stages that every weight slice passes on a die on its way to the compute array."""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field, ValidationInfo, field_validator, model_serializer, model_validator

from archsim.base.fields import KeyProblem, Spec, check_parameters
from archsim.base.own_code import import_function
from archsim.base.quantities import BANDWIDTH, format_quantity
from archsim.machine import fabric

_KEYS = ("name", "bandwidth")
BEFORE_ARRAY, REPLACES, NETWORK = "before_array", "replaces", "network"  # kinds of classes


def kind_of(named: object) -> str | None:
    """What a user's class does in ``engine: interpreted``; None: a function."""
    if not isinstance(named, type):
        return None
    if hasattr(named, "send"):
        return NETWORK
    return REPLACES if hasattr(named, "SERVES") else BEFORE_ARRAY


class BlockSpec(Spec):
    """``package.module:function``, or ``{name: ..., bandwidth: ..., parameter: value, ...}``.

    The function returns how long the block holds slices: ``(n_bytes: int64[entry], **parameters) -> ns:
    float64[entry]``. ``bandwidth``, if given, adds bytes / bandwidth. See ``archsim.engine.machine`` for how the
    engine uses it. ``package.module:class`` is a block with states of its own, for ``engine: interpreted``.
    """

    name: str
    bandwidth_bytes_per_s: fabric.Bandwidth | None = Field(None, alias="bandwidth")
    params: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, given: Any, info: ValidationInfo) -> Any:
        if isinstance(given, str):
            return {"name": given}
        if isinstance(given, dict) and "params" not in given:
            named = {key: value for key, value in given.items() if key in (*_KEYS, "bandwidth_bytes_per_s")}
            return named | {"params": {key: value for key, value in given.items() if key not in named}}
        return given

    @field_validator("name")
    @classmethod
    def _importable(cls, name: str, info: ValidationInfo) -> str:
        if info.context:  # loaded from a file; when it is loaded again later, the module may be missing
            import_function(name)
        return name

    @model_validator(mode="after")
    def _has_these_parameters(self, info: ValidationInfo) -> BlockSpec:
        if info.context:
            named = import_function(self.name)
            kind = kind_of(named)
            check_parameters(self.name, named, 0 if kind == BEFORE_ARRAY else 1, self.params)
            if kind and self.bandwidth_bytes_per_s is not None:
                raise KeyProblem(("bandwidth",), f"{self.name} is a class, which says its own time. Omit bandwidth")
        return self

    def __hash__(self) -> int:
        return hash((self.name, self.bandwidth_bytes_per_s, json.dumps(self.params, sort_keys=True, default=str)))

    @model_serializer
    def _flat(self) -> dict[str, Any]:
        rate = self.bandwidth_bytes_per_s
        given = {} if rate is None else {"bandwidth": format_quantity(rate, BANDWIDTH)}
        return {"name": self.name, **given, **self.params}
