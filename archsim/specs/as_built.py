"""The machine as it is built: dead and unequal dies, dead and slow links, spares, and how all of these are drawn.

Dies of the machine that was made are *sites*, numbered as the dies of a perfect one: x + X·y in a mesh, whatever the
assumption ``numbering`` says. What works of them are the dies of the machine, numbered from 0. Everything behind the
specification (placements, policies, engines, capacity) sees these alone, so that a dead die cannot be used.

``spares: {rows: 1}`` keeps one row of the mesh back: in every column the living dies move up to fill the rows that are
left, over wires that pass a dead die. ``spares: {dies: 2}`` switches off the slowest living dies, so that every machine
has as many; without ``spares`` a machine has every die that lives, and holes where others are.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_serializer, model_validator

from archsim.base.fields import KeyProblem, Spec
from archsim.base.quantities import AREA, FRACTION, count, fraction, number, parse_quantity, quantity

Site = Annotated[int, count(0, 4095)]


def _read_end(given: Any) -> Any:
    """A die, or the network of a level: ``level 1``, ``switch`` for ``level 0``."""
    if not isinstance(given, str):
        return given
    level = re.fullmatch(r"level (\d{1,2})", given.strip(), re.ASCII)
    if not level and given != "switch":
        raise ValueError(f"expected a die, or the network of a level such as 'level 1', not {given!r}")
    return f"level {int(level[1]) if level else 0}"


End = Annotated[Site | str, BeforeValidator(_read_end)]
Pair = tuple[Site, End]
_SLOWEST, _FASTEST = 0.05, 4.0  # of factors in a table: a die outside is dead, or has another nominal rate
GRIDS = ("mesh", "torus", "torus_x", "torus_y")
LISTED = 12  # dies that a message names


class VariationSpec(Spec):
    """How a rate differs from die to die: ``sigma`` of a normal law, and the fall from the centre to the edge."""

    sigma: Annotated[float, fraction(zero=True, most=0.15)] = 0.0
    radial: Annotated[float, fraction(zero=True, most=0.5)] = 0.0


class SpeedSpec(VariationSpec):
    """Factors of the clock of the arrays, and in ``hbm`` of the HBM bandwidth; drawn, or those of a table.

    ``table``: a CSV file with the columns ``die``, ``speed`` and, if HBM differs, ``hbm``; dies that it leaves out have
    factor 1. Stored as (speed, hbm) of every die.
    """

    hbm: VariationSpec | None = None
    table: tuple[tuple[float, float], ...] | None = None

    @field_validator("table", mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        return read_speeds(given) if isinstance(given, str) else given

    @model_validator(mode="after")
    def _one_source(self) -> SpeedSpec:
        if self.table is not None and (self.sigma or self.radial or self.hbm):
            raise KeyProblem(("table",), "gives the speed of every die. Omit either it, or sigma, radial and hbm")
        for site, factors in enumerate(self.table or ()):
            for name, factor in zip(("speed", "hbm"), factors, strict=True):
                if not _SLOWEST <= factor <= _FASTEST:
                    raise KeyProblem(
                        ("table",),
                        f"die {site}: {name} {factor:g} is out of range; expected {_SLOWEST} to {_FASTEST:g}, 1 for "
                        "the nominal rate",
                    )
        return self


class HarvestSpec(Spec):
    """A die of ``cores`` cores works with at least ``needed`` good ones, as fast as the share that is good."""

    cores: Annotated[int, count(1, 1_000_000)]
    needed: Annotated[int, count(1, 1_000_000)]

    @model_validator(mode="after")
    def _no_more_than_there_are(self) -> HarvestSpec:
        if self.needed > self.cores:
            raise KeyProblem(("needed",), f"{self.needed} of {self.cores} cores: expected at most {self.cores}")
        return self


class DiesAsBuiltSpec(Spec):
    """``router`` of a dead die: ``dead``, so that routes avoid it, or ``bypass``, so that they pass."""

    dead: tuple[Site, ...] = ()
    speed: SpeedSpec | None = None
    harvest: HarvestSpec | None = None
    router: Literal["dead", "bypass"] = "dead"

    @field_validator("dead")
    @classmethod
    def _each_once(cls, dead: tuple[int, ...]) -> tuple[int, ...]:
        for index, site in enumerate(dead):
            if site in dead[:index]:
                raise KeyProblem((index,), f"die {site} is listed twice")
        return dead


class DegradedSpec(Spec):
    """A link with a share of its bandwidth, each way."""

    link: Pair
    bandwidth: Annotated[float, fraction(zero=False)]


class LinksAsBuiltSpec(Spec):
    """Links both ways between two dies, ``[3, 4]``, or from a die to the switch of a level, ``[3, level 1]``: its port
    there, or the one that its group shares. ``dead`` ones carry nothing.
    """

    dead: tuple[Pair, ...] = ()
    degraded: tuple[DegradedSpec, ...] = ()

    @property
    def with_keys(self) -> Iterable[tuple[tuple[str | int, ...], Pair]]:
        """Every link with its keys."""
        yield from ((("dead", index), pair) for index, pair in enumerate(self.dead))
        yield from ((("degraded", index, "link"), each.link) for index, each in enumerate(self.degraded))


class SparesSpec(Spec):
    """Rows, columns or dies of the machine that was made that are kept back to take the places of dead ones."""

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
        """Without the keys that say nothing."""
        absent = {key for key, value in (("cluster_side", 1), ("bond_failure", 0.0), ("bonds", None))
                  if getattr(self, key) == value}  # fmt: skip
        return {key: value for key, value in written(self).items() if key not in absent}


def read_speeds(path: str) -> tuple[tuple[float, float], ...]:
    """(speed, hbm) of every die of a CSV file, up to the last that it names. Raises ValueError with the line."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        missing = isinstance(error, FileNotFoundError)
        raise ValueError(f"no such file: {path!r}" if missing else f"{path}: {error}") from None
    rows = csv.DictReader(text.splitlines())
    known = ("die", "speed", "hbm")
    names = [str(name).strip() for name in rows.fieldnames or ()]
    rows.fieldnames = names
    if not {"die", "speed"} <= set(names) <= set(known):
        columns = ", ".join(names)
        raise ValueError(f"{path}: line 1: expected the columns die, speed and, if HBM differs, hbm; not {columns}")
    found: dict[int, tuple[float, float]] = {}
    for row in rows:
        line = rows.line_num
        try:
            die = int(row["die"])
            speed, hbm = (float(parse_quantity((row.get(key) or "1").strip(), FRACTION)) for key in ("speed", "hbm"))
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: line {line}: {error}") from None
        if not 0 <= die < 4096 or die in found:
            what = "is listed twice" if die in found else "is no number of a die"
            raise ValueError(f"{path}: line {line}: die {die} {what}")
        found[die] = speed, hbm
    return tuple(found.get(die, (1.0, 1.0)) for die in range(max(found, default=-1) + 1))
