"""How long a copy of a slice between two GPUs takes, as it was measured."""

from __future__ import annotations

from pydantic import Field, model_validator

from archsim.base import fields
from archsim.laws.tables import Axis, Numbers, Positive
from archsim.machine import fabric


class CopyLaw(fields.Spec):
    """Measured time of copies between two GPUs: latency_ns[i] + bytes ns_per_byte[i] from from_bytes[i] on,
    float64[piece].

    ``bandwidth``: the nominal bandwidth of the measured link. ``first_bytes``, ``last_bytes``: range of measured
    sizes; None: not known.
    """

    from_bytes: Axis  # float64[piece], where a piece begins
    latency_ns: Numbers  # float64[piece]
    ns_per_byte: Numbers  # float64[piece]
    bandwidth_bytes_per_s: fabric.Bandwidth = Field(alias="bandwidth")  # nominal, of the measured link
    first_bytes: Positive | None = None  # smallest measured size; None: not known
    last_bytes: Positive | None = None  # largest measured size; None: not known

    @model_validator(mode="after")
    def _as_long(self) -> CopyLaw:
        if not len(self.from_bytes) == len(self.latency_ns) == len(self.ns_per_byte):
            raise ValueError("from_bytes, latency_ns and ns_per_byte need equally many numbers")
        return self

    def link(self, size_bytes: int) -> tuple[float, float]:
        """(hop latency in ns, bandwidth share) with which a read of this size takes as long as a measured copy."""
        from archsim.laws.transfers import law_of, link_of_copy

        return link_of_copy(law_of(self), self.bandwidth_bytes_per_s, size_bytes)

    def extrapolates(self, size_bytes: int) -> bool | None:
        """Whether the size is outside the measured range; None if that range is not known."""
        if self.first_bytes is None or self.last_bytes is None:
            return None
        return not self.first_bytes <= size_bytes <= self.last_bytes
