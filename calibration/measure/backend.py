"""The interface between measurement plans and the device: ``torch_backend`` on a GPU, a fake in tests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from archsim.base.errors import ArchsimError

Point = Mapping[str, Any]  # the columns of the schema that define what is measured: text or numbers, by column


class MeasureError(ArchsimError):
    """No measurement is possible on this machine."""


class PointError(ArchsimError):
    """This point cannot be measured on this machine; others can."""


@dataclass(frozen=True)
class MeasuredMachine:
    """The measured machine. ``l2_bytes``: L2 of one GPU; ``free_bytes``: its free memory before the first
    measurement.
    """

    gpu_name: str
    gpus: int
    library: str
    library_version: str
    driver: str
    has_fp8: bool
    l2_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class MeasuredTime:
    """Time of one operation, us, over the repeats; ``notes``: further columns (clocks, weight_copies, ...)."""

    median_us: float
    p10_us: float
    p90_us: float
    repeats: int
    notes: Mapping[str, str | int | float] = field(default_factory=dict)


class Backend(Protocol):
    """Measures points. One GPU is used at a time, except for copies between two."""

    @property
    def machine(self) -> MeasuredMachine: ...

    def time(self, kind: str, point: Point) -> MeasuredTime:
        """Warm up and measure one point of a table of the schema. Raises PointError if that is not possible."""
        ...
