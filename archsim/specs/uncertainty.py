"""The ranges of numbers that have no range of their own, from configs/uncertainty/widths.yaml."""

from __future__ import annotations

from functools import lru_cache
from math import log
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field, model_validator

from archsim.base import errors, fields, quantities, validation, yaml
from archsim.base.config_files import display, search_folders
from archsim.base.uncertain import KNOTS, Distribution, Quantiles

KINDS_OF_NUMBERS = ("peak", "bandwidth", "efficiency", "latency", "clock", "price", "energy", "host")
# Kind of kernel with widths of its own → the table of all kinds together, for how its law was never had.
KINDS_OF_KERNELS = MappingProxyType({
    "sparse": "attention", "linear": "attention", "nccl": "collectives", "all_reduce": "collectives",
    "dispatch": "collectives", "wide_ep": "moe",
})  # fmt: skip
BY_QUANTILES = ("sparse", "linear")  # learned from three quantiles of each table alone
WIDE_EP = 16  # ranks of experts from which curves of other shapes are further off
TABLES = ("gemm", "moe", "attention", "copies", "collectives", "launches", *KINDS_OF_KERNELS)
KERNELS = ("vectors", "multiply")
SUBSTITUTIONS = ("fit", "nearest_shape", "sibling_gpu", "scaled", "roofline")
Factor = Annotated[float, quantities.number(0.001, 1000)]
Range = tuple[Factor, Factor]
FiveFactors = tuple[Factor, Factor, Factor, Factor, Factor]


class WidthSpec(fields.Spec):
    """A range relative to a value, its shape and its source."""

    range: Range
    distribution: str = "lognormal"
    source: str = Field(min_length=1)

    @model_validator(mode="after")
    def _contains_one(self) -> WidthSpec:
        _check_ends(self.distribution, self.range, "range")
        return self

    def of(self, value: float) -> Distribution:
        low, high = self.range
        return Distribution(self.distribution, low * value, value, high * value)


class LevelsSpec(fields.Spec):
    """Measured over predicted, of both levels: ``common`` to a table, and of a ``shape``. Two factors are the central
    90 %, five the quantiles `KNOTS` (5, 25, 50, 75 and 95 %).

    ``points``: how many measurements that no fit saw it was learned from; 0: a placeholder, or quantiles of tables.
    """

    common: Range | FiveFactors
    shape: Range | FiveFactors
    points: Annotated[int, quantities.count(0, 100_000_000)] = 0
    source: str = Field(min_length=1)

    @model_validator(mode="after")
    def _contain_one(self) -> LevelsSpec:
        for key in ("common", "shape"):
            given = getattr(self, key)
            if list(given) != sorted(given):
                raise fields.KeyProblem((key,), f"{list(given)}: expected ascending factors")
            _check_ends("lognormal", (given[0], given[-1]), key)
        return self

    @property
    def learned(self) -> str:
        return f"{self.source} ({self.points} points that no fit saw)" if self.points else self.source

    @property
    def spread(self) -> float:
        """Of both levels, ln of the upper over the lower end."""
        return log(self.common[-1] / self.common[0]) + log(self.shape[-1] / self.shape[0])

    def level(self, name: str) -> Distribution:
        """The distribution of ``common`` or ``shape``, around 1."""
        given = getattr(self, name)
        if len(given) == len(KNOTS):
            return Quantiles.of(given)
        low, high = given
        return Distribution("lognormal", low, min(max(1.0, low), high), high)


class SlowestSpec(fields.Spec):
    """Share of the roofline that measured kernels of GPUs reach at least, most of them."""

    slowest: Annotated[float, quantities.number(0.001, 1)]
    source: str = Field(min_length=1)


class CommandSpec(fields.Spec):
    """What one command measures. ``of``: in words; ``simulated``: what else tells it of a die that does not exist."""

    run: str = Field(min_length=1)
    minutes: Annotated[float, quantities.number(0.1, 100_000)]
    of: str = Field(min_length=1)
    simulated: str = "them from a simulation of the die"


class UncertaintySpec(fields.Spec):
    """How wide the numbers of a system and its calibration are."""

    defaults: dict[str, WidthSpec]  # kind of a number → its width
    measured: dict[str, dict[str, LevelsSpec]]  # table → how its law was had → widths of two levels
    kernels: dict[str, SlowestSpec]  # of dies that are no GPUs: ``vectors``, ``multiply``
    # draws of the traffic that are run, of which each world has one; 0: its own
    traffic: Annotated[int, quantities.count(0, 64)] = 0
    commands: dict[str, CommandSpec] = Field(default_factory=dict)  # name → what measures it

    def levels(self, table: str, way: str) -> LevelsSpec:
        """How far a law that was had in a ``way`` is off, by its kind of kernel. Where that is not known, as all kinds
        together, and no less than the kind itself in other ways.
        """
        own = self.measured.get(table, {})
        if way in own:
            return own[way]
        all_kinds = self.measured[KINDS_OF_KERNELS.get(table, table)]
        others = own.values() if table in KINDS_OF_KERNELS else ()
        return max((all_kinds.get(way) or all_kinds["fit"], *others), key=lambda each: each.spread)

    @staticmethod
    def table_of_experts(way: str, ranks: int) -> str:
        return "wide_ep" if way == "nearest_shape" and ranks >= WIDE_EP else "moe"

    @model_validator(mode="after")
    def _known(self) -> UncertaintySpec:
        _refuse_unknown(("defaults",), self.defaults, KINDS_OF_NUMBERS)
        _refuse_unknown(("measured",), self.measured, TABLES)
        _refuse_unknown(("kernels",), self.kernels, KERNELS)
        for kind in KINDS_OF_NUMBERS:
            if kind not in self.defaults:
                raise fields.KeyProblem(("defaults", kind), "required key is missing")
        for kind in KERNELS:
            if kind not in self.kernels:
                raise fields.KeyProblem(("kernels", kind), "required key is missing")
        for table, ways in self.measured.items():
            _refuse_unknown(("measured", table), ways, SUBSTITUTIONS)
        return self


def load_widths() -> UncertaintySpec:
    """``./configs/uncertainty/widths.yaml``, else the shipped one. Raises SpecError."""
    file = search_folders("uncertainty", None)[0] / "widths.yaml"
    return _read(file, file.stat().st_mtime_ns if file.is_file() else 0)


@lru_cache(maxsize=4)
def _read(file: Path, changed: int) -> UncertaintySpec:
    return validation.validate(UncertaintySpec, yaml.read_yaml(file, display(file)))


def _refuse_unknown(at: tuple[str, ...], given: dict[str, Any], known: tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            raise fields.KeyProblem(
                (*at, key), f"unknown key{errors.did_you_mean(key, known)} (known: {', '.join(known)})"
            )


def _check_ends(shape: str, ends: Range, key: str) -> None:
    low, high = ends
    if low > high:
        raise fields.KeyProblem((key,), f"{low:g} to {high:g}: expected the lower end first")
    try:
        Distribution(shape, low, min(max(1.0, low), high), high)
    except ValueError as error:
        raise fields.KeyProblem(("distribution",), str(error)) from None
