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
    """The measured machine."""

    gpu_name: str  # as the driver reports it
    gpus: int  # how many of them
    library: str  # that is timed: torch
    library_version: str  # as the library reports it
    driver: str  # version
    has_fp8: bool  # whether products in FP8 run
    l2_bytes: int  # L2 of one GPU
    free_bytes: int  # free memory of one GPU before the first measurement


@dataclass(frozen=True)
class MeasuredTime:
    """Time of one operation over its repeats."""

    median_us: float  # of the repeats
    p10_us: float  # 10th percentile
    p90_us: float  # 90th percentile
    repeats: int  # how many
    notes: Mapping[str, str | int | float] = field(default_factory=dict)  # further columns: clocks, weight_copies, ...


class Backend(Protocol):
    """Measures points. One GPU is used at a time, except for copies between two."""

    @property
    def machine(self) -> MeasuredMachine: ...

    def time(self, kind: str, point: Point) -> MeasuredTime:
        """Warm up and measure one point of a table of the schema. Raises PointError if that is not possible."""
        ...
