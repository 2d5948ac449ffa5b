"""How a die is made, and which memories it has: for area, price, power and heat. Times follow from rates alone."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_serializer, model_validator

from archsim.base.fields import KeyProblem, Spec
from archsim.base.quantities import AREA, SIZE, count, number, quantity
from archsim.base.units import RETICLE_MM2
from archsim.specs.fabric import Bandwidth
from archsim.specs.terms import TERMS

NodeName = Literal["n16", "n12", "n7", "n6", "n5", "n4", "n3", "n2"]
MemoryKind = Literal["hbm2e", "hbm3", "hbm3e", "hbm4", "gddr7", "lpddr5x", "cxl", "sram"]
DieArea = Annotated[float, quantity(AREA, "1 mm2", "50000 mm2")]
# What the memory of a die keeps; one memory keeps all of it in all times.
KEPT = ("weights", "kv", "activations")
# Of a read, ns, where a file gives none; assumed, stacks as of the other wafers.
LATENCIES_NS: Mapping[str, float] = MappingProxyType({
    "hbm2e": 300.0, "hbm3": 300.0, "hbm3e": 300.0, "hbm4": 300.0, "gddr7": 300.0, "lpddr5x": 350.0, "cxl": 700.0,
    "sram": 10.0,
})  # fmt: skip


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
    # whole wafers. Null: a wafer, or a share of one where all of it fits the largest package.
    carrier: Literal["package", "wafer"] | None = None
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
        return self

    @model_serializer(mode="wrap")
    def _as_given(self, written: Any) -> dict[str, Any]:
        """Without the keys that say nothing."""
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


def with_owner(given: Any) -> Any:
    """A system's keys with the one memory of ``memory`` that keeps weights, KV cache and activations as ``hbm``.

    Raises KeyProblem for two that keep the same, and where different ones keep them.
    """
    tiers = given.get("memory") if isinstance(given, dict) else None
    if not isinstance(tiers, list | tuple) or not all(isinstance(each, dict) for each in tiers):
        return given
    for at, tier in enumerate(tiers):
        for key, example in (("kind", "hbm3e"), ("capacity", "80 GB"), ("bandwidth", "3.35 TB/s")):
            if key not in tier and f"{key}_bytes" not in tier and f"{key}_bytes_per_s" not in tier:
                raise KeyProblem(("memory", at, key), f"required key is missing; expected a value such as {example}")
    owners: dict[str, list[int]] = {
        what: [at for at, tier in enumerate(tiers) if what in (tier.get("keeps") or ())] for what in KEPT
    }
    if "hbm" in given:
        for what, at in ((what, each[0]) for what, each in owners.items() if each):
            raise KeyProblem(
                ("memory", at, "keeps"), f"{what}: two memories keep them, this one and hbm. Leave out hbm, or keeps"
            )
        return given
    if not tiers:
        return given
    if not any(owners.values()):
        owners = {what: [0] for what in KEPT}
    for what, of in owners.items():
        if len(of) > 1:
            both = " and ".join(f"memory.{at}" for at in of)
            raise KeyProblem(("memory", of[1], "keeps"), f"{what}: two memories keep them, {both}. Name one")
    whose = {what: of[0] for what, of in owners.items() if of}
    (first, *_) = whose.values()
    apart = next((what for what in KEPT if whose.get(what, first) != first), None)
    if apart is not None:
        raise KeyProblem(
            ("memory", whose[apart], "keeps"),
            f"one memory keeps weights, KV cache and activations in all times, and {apart} are kept separate from the "
            f"rest here. Let memory.{first} keep all three; experts in memory of the host are serving's offload",
        )
    own = {key: value for key, value in tiers[first].items() if key != "keeps"}
    if "latency" not in own:
        own["latency"] = f"{LATENCIES_NS.get(str(own['kind']), 300.0):g} ns"
    rest = [tier for at, tier in enumerate(tiers) if at != first]
    return {key: value for key, value in given.items() if key != "memory"} | {"hbm": own} | (
        {"memory": rest} if rest else {}
    )  # fmt: skip
