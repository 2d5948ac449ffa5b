"""The seam between what is to be measured and what measures it: on a GPU ``torch_backend``, in tests a fake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from archsim.base.errors import ArchsimError

Point = Mapping[str, str | int]  # the columns of the schema that say what is measured


class MeasureError(ArchsimError):
    """Nothing can be measured here."""


class PointError(ArchsimError):
    """This point cannot be measured here; others can."""


@dataclass(frozen=True)
class Machine:
    """Where measurements come from. ``l2_bytes``: of one GPU; ``free_bytes``: of its memory, before anything is run."""

    gpu_name: str
    gpus: int
    library: str
    library_version: str
    driver: str
    has_fp8: bool
    l2_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Timing:
    """Time of one operation, us, over the repeats; ``notes``: further columns (clocks, weight_copies, ...)."""

    median_us: float
    p10_us: float
    p90_us: float
    repeats: int
    notes: Mapping[str, str | int | float] = field(default_factory=dict)


class Backend(Protocol):
    """What times points. One GPU is used at a time, but for copies between two."""

    @property
    def machine(self) -> Machine: ...

    def time(self, kind: str, point: Point) -> Timing:
        """Warm up and measure one point of a table of the schema. Raises PointError where that is not possible."""
        ...
