"""How a die is made, and which memories it has: for area, price, power and heat. Times follow from rates alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_serializer, model_validator

from archsim.base.fields import KeyProblem, Spec
from archsim.base.quantities import AREA, SIZE, count, number, quantity
from archsim.base.units import RETICLE_MM2
from archsim.machine.fabric import Bandwidth
from archsim.machine.terms import TERMS

NodeName = Literal["n16", "n12", "n7", "n6", "n5", "n4", "n3", "n2"]
MemoryKind = Literal["hbm2e", "hbm3", "hbm3e", "hbm4", "gddr7", "lpddr5x", "cxl", "sram"]
MONOLITHIC = "monolithic"  # carrier: the wafer in which the dies were made
DieArea = Annotated[float, quantity(AREA, "1 mm2", "50000 mm2")]


class IoDiesSpec(Spec):
    """Dies of another kind that belong to each compute die: they cost area, price and waiting power, and no time."""

    WAYS: ClassVar[Mapping[str, str]] = TERMS
    number: Annotated[int, count(1, 64)]  # of each die
    area_mm2: Annotated[float, quantity(AREA, "1 mm2", f"{RETICLE_MM2:g} mm2")] = Field(alias="area")  # of one
    node: NodeName  # of their process
    # Under the compute dies, so that they take no room of their own on the carrier beyond their area; or beside them.
    place: Literal["below", "beside"] = "beside"


class MadeSpec(Spec):
    """How a die is made. Without these keys it is one of 5 nm, its area follows from its rates, and its pieces are
    those that make it cheapest.
    """

    WAYS: ClassVar[Mapping[str, str]] = TERMS
    # package: a finished one for the dies that are linked as on one carrier, its assembly priced; wafer: they stand on
    # whole wafers; monolithic: they are parts of a wafer that is not cut, so there are no bonds, and defects switch off
    # cores. Null: a wafer, or a share of one where all of it fits the largest package.
    carrier: Literal["package", "wafer", "monolithic"] | None = None
    node: NodeName | None = None  # process of the die; null: 5 nm
    area_mm2: DieArea | None = Field(None, alias="area")  # of all its pieces, IO dies apart; null: from its rates
    pieces: Annotated[int, count(1, 1000)] | None = None  # of a die; null: as many as make it cheapest
    io_dies: IoDiesSpec | None = None  # null: none

    @model_validator(mode="after")
    def _can_be_made(self) -> MadeSpec:
        if self.area_mm2 is not None and self.pieces is not None and self.area_mm2 > self.pieces * RETICLE_MM2:
            least = int(-(-self.area_mm2 // RETICLE_MM2))
            what = f"a piece of {self.area_mm2:g} mm2 / {self.pieces} is larger than a reticle, {RETICLE_MM2:g} mm2"
            raise KeyProblem(("pieces",), f"{what}. Give {least} pieces or more")
        if self.carrier == MONOLITHIC and (self.pieces or 1) > 1:
            raise KeyProblem(("pieces",), f"dies of a wafer that is not cut are in one piece, not {self.pieces}")
        return self

    @model_serializer(mode="wrap")
    def _as_given(self, written: Any) -> dict[str, Any]:
        return {key: value for key, value in written(self).items() if value is not None}


class MemorySpec(Spec):
    """A memory of every die beside the one that keeps its weights: it counts in area, price and power that it takes
    while it waits, and no time is spent on it.
    """

    WAYS: ClassVar[Mapping[str, str]] = TERMS
    kind: MemoryKind
    capacity_bytes: Annotated[int, quantity(SIZE, "1 MB", "100 TB", int)] = Field(alias="capacity")  # of a die
    bandwidth_bytes_per_s: Bandwidth = Field(alias="bandwidth")  # nominal, of a die
    keeps: tuple[Literal["weights", "kv", "activations"], ...] = ()  # nothing: else it is the system's hbm
    usd_per_gb: Annotated[float, number(0, 10_000)] | None = None  # null: that of its kind
