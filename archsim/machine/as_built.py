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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, field_validator, model_validator

from archsim.base.fields import KeyProblem, Spec
from archsim.base.quantities import FRACTION, count, fraction, parse_quantity
from archsim.machine.terms import TERMS

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

    WAYS: ClassVar[Mapping[str, str]] = {
        **TERMS,
        **dict.fromkeys(("clock", "clocks", "sigma", "variation"), "write speed: {sigma: 3 %}, of the arrays' clocks"),
        **dict.fromkeys(
            ("hbm", "stacks"), "write speed: {hbm: {sigma: 1 %}}, or a file of each die: {table: speeds.csv}"
        ),
    }
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

    WAYS: ClassVar[Mapping[str, str]] = {
        **TERMS,
        **dict.fromkeys(("bandwidth", "lanes", "links", "ports", "slow", "weak", "failed"), TERMS["dead_links"]),
    }
    dead: tuple[Pair, ...] = ()
    degraded: tuple[DegradedSpec, ...] = ()

    @property
    def with_keys(self) -> Iterable[tuple[tuple[str | int, ...], Pair]]:
        yield from ((("dead", index), pair) for index, pair in enumerate(self.dead))
        yield from ((("degraded", index, "link"), each.link) for index, each in enumerate(self.degraded))


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
