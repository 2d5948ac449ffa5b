"""Dies that work and dies that do not, sampled from defects and spares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_serializer, model_validator

from archsim.base.fields import KeyProblem, Spec
from archsim.base.quantities import AREA, count, fraction, number, quantity
from archsim.machine.terms import TERMS


class SparesSpec(Spec):
    """Rows, columns or dies of the machine that was made that are kept back to take the places of dead ones."""

    WAYS: ClassVar[Mapping[str, str]] = {"cores": TERMS["spare_cores"], "": TERMS["spare_links"]} | dict.fromkeys(
        ("links", "lanes", "ports"), TERMS["spare_links"]
    )
    rows: Annotated[int, count(0, 4096)] = 0
    columns: Annotated[int, count(0, 4096)] = 0
    dies: Annotated[int, count(0, 4096)] = 0

    @model_validator(mode="after")
    def _one_kind(self) -> SparesSpec:
        given = [key for key in ("rows", "columns", "dies") if getattr(self, key)]
        if len(given) > 1:
            raise KeyProblem((given[1],), f"spares are {given[0]} already; expected one of rows, columns and dies")
        return self


class DrawnSpec(Spec):
    """Machines that are drawn: ``wafers`` of them, of which a run takes number ``wafer``.

    ``die_area`` and ``core_area`` (of a die, its cores): null: those of the price of the die (``archsim hardware
    cost``). A die one of whose bonds fails is dead, and its router with it unless `router` says bypass.
    """

    WAYS: ClassVar[Mapping[str, str]] = {
        **TERMS,
        **dict.fromkeys(("samples", "wafer_count", "count", "number"), "write wafers, the number of samples"),
        "link_loss": "write link_failure, the share of links that fail",
    }
    defects_per_cm2: Annotated[float, number(0, 100)] = 0.0  # of the process
    # ITRS: 2, as in the price.
    cluster: Annotated[float, number(0.05, 1000)] = 2.0
    # Squares of so many dies on a side have one rate of defects; 64: all dies of a wafer.
    cluster_side: Annotated[int, count(1, 64)] = 1
    link_failure: Annotated[float, fraction(zero=True)] = 0.0  # share of links that fail
    bond_failure: Annotated[float, fraction(zero=True)] = 0.0  # share of bonds to the carrier that fail, each of a die
    bonds: Annotated[int, count(1, 100_000)] | None = None  # of a die: its pieces and stacks; null: those of its price
    wafers: Annotated[int, count(1, 100_000)] = 1  # that are drawn
    seed: Annotated[int, count(0, 2**31 - 1)] = 0  # of the draws
    wafer: Annotated[int, count(0, 99_999)] = 0  # number of the draw
    die_area_mm2: Annotated[float, quantity(AREA, "0.01 mm2", "100000 mm2")] | None = Field(None, alias="die_area")
    core_area_mm2: Annotated[float, quantity(AREA, "0.001 mm2", "100000 mm2")] | None = Field(None, alias="core_area")

    @model_validator(mode="after")
    def _is_one_of_them(self) -> DrawnSpec:
        if self.wafer >= self.wafers:
            raise KeyProblem(("wafer",), f"{self.wafer}: {self.wafers} are sampled; expected 0 to {self.wafers - 1}")
        if self.core_area_mm2 and self.core_area_mm2 > (self.die_area_mm2 or self.core_area_mm2):
            raise KeyProblem(("core_area",), f"{self.core_area_mm2:g} mm2 of cores are more than the die has")
        return self

    @property
    def needs_area(self) -> bool:
        """Whether the areas decide, and are not known yet."""
        areas = self.defects_per_cm2 > 0 and (self.die_area_mm2 is None or self.core_area_mm2 is None)
        return areas or self.needs_bonds

    @property
    def needs_bonds(self) -> bool:
        """Whether the bonds of a die decide, and are not known yet."""
        return self.bond_failure > 0 and self.bonds is None

    @model_serializer(mode="wrap")
    def _as_given(self, written: Any) -> dict[str, Any]:
        absent = {key for key, value in (("cluster_side", 1), ("bond_failure", 0.0), ("bonds", None))
                  if getattr(self, key) == value}  # fmt: skip
        return {key: value for key, value in written(self).items() if key not in absent}
