"""The machine: dies, each with HBM, an LLC and a compute array, and the D2D links between them.

Dies are identical but for what ``dies_as_built`` and its neighbours say (``archsim.machine.as_built``).

Default values are those that all configurations of the wafer-scale paper share (Yu et al., ISCA 2026, arXiv
2510.05497v4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_serializer, model_validator

from archsim.base import config_files
from archsim.base.fields import KeyProblem, Name, Spec
from archsim.base.quantities import (
    BANDWIDTH,
    CLOCK,
    COMPUTE,
    POWER,
    RESISTANCE,
    SIZE,
    TEMPERATURE,
    count,
    format_quantity,
    fraction,
    number,
    quantity,
)
from archsim.base.sums import sum
from archsim.base.units import WEIGHT_BYTES
from archsim.machine import copy_law, measured
from archsim.machine.as_built import DiesAsBuiltSpec, LinksAsBuiltSpec
from archsim.machine.blocks import BlockSpec
from archsim.machine.built import AsBuilt, as_built, places_of, refuse_impossible
from archsim.machine.decision import DecisionSpec
from archsim.machine.drawn_dies import DrawnSpec, SparesSpec
from archsim.machine.fabric import Bandwidth, FabricSpec, Latency, MeshSpec, TopologySpec
from archsim.machine.made import MONOLITHIC, MadeSpec, MemoryKind, MemorySpec
from archsim.machine.memory_owner import with_owner
from archsim.machine.terms import TERMS

if TYPE_CHECKING:
    from archsim.laws.gemm import Rates


Efficiency = Annotated[float, fraction(zero=False)]
Calibration = Annotated[str | None, AfterValidator(config_files.known_calibration)]


class HbmSpec(Spec):
    """The memory of one die that keeps its weights, KV cache and activations: HBM, or what ``kind`` says."""

    # JEDEC JESD238, HBM3, with dies of 24 Gb: 8 high
    WAYS: ClassVar[Mapping[str, str]] = {
        **TERMS,
        "stacks": "give the capacity and bandwidth of all stacks of a die; one of HBM3 has 24 GiB and 0.819 TB/s. "
        "Their number, for area and price, is stacks_on_carrier",
    }
    # Nominal, of a die; SRAM that keeps the weights reaches more than any HBM (21 PB/s on a wafer: Cerebras, WSE-3).
    bandwidth_bytes_per_s: Annotated[float, quantity(BANDWIDTH, "1 GB/s", "100 PB/s")] = Field(alias="bandwidth")
    capacity_bytes: Annotated[int, quantity(SIZE, "1 MB", "100 TB", int)] = Field(alias="capacity")  # of a die
    # Share of the capacity not available to weights and copies; the paper reserves 10 %.
    reserved_fraction: Annotated[float, fraction(zero=True)] = Field(0.1, alias="reserved")
    latency_ns: Latency = Field(300.0, alias="latency")  # of a read
    # Share of the bandwidth that transfers achieve; 0.9 in the published simulator.
    efficiency: Efficiency = 0.9
    # A name or path: latency and efficiency are those measured on that GPU, override given values, and are stored as
    # numbers.
    calibration: str | None = Field(None, exclude=True)
    # For area, price and power; null: stacks of HBM3.
    kind: MemoryKind | None = None
    # Of a die, for area and price alone; without it, as many of its kind as capacity and bandwidth need.
    stacks_on_carrier: Annotated[int, count(1, 1000)] | None = None
    # For price and power alone; null: those of the kind.
    usd_per_gb: Annotated[float, number(0, 10_000)] | None = None
    pj_per_bit: Annotated[float, number(0, 1000)] | None = None  # from the memory to the LLC
    source: str | None = None  # of these numbers

    @model_serializer(mode="wrap")
    def _as_given(self, written: Any) -> dict[str, Any]:
        absent = {key for key in ("kind", "usd_per_gb", "pj_per_bit") if getattr(self, key) is None}
        return {key: value for key, value in written(self).items() if key not in absent}

    @model_validator(mode="before")
    @classmethod
    def _fill_measured(cls, given: Any) -> Any:
        return measured.with_measured(given, measured.hbm_measured)


class OffCarrierSpec(Spec):
    """A link from a die on one carrier to one on the next; bandwidth is per direction, and no link is better than one
    on a carrier. The defaults are those between Tesla's training tiles: 9 TB/s across each edge of 5 dies, both
    directions together (Hot Chips 34, 2022); the latency is assumed (range 200 ns to 1 us).
    """

    bandwidth_bytes_per_s: Bandwidth = Field(0.9e12, alias="bandwidth")
    hop_latency_ns: Latency = Field(500.0, alias="hop_latency")


class D2DSpec(Spec):
    """The die-to-die link; bandwidth is per direction. The topology may give links their own bandwidth and latency."""

    WAYS: ClassVar[Mapping[str, str]] = TERMS
    bandwidth_bytes_per_s: Bandwidth = Field(alias="bandwidth")  # nominal, of a link in one direction
    hop_latency_ns: Latency = Field(200.0, alias="hop_latency")  # of a hop
    # Command and address of a remote request; requests take latency but do not share links with transfers.
    request_bytes: Annotated[int, quantity(SIZE, "1 B", "1 kB", int, zero=True)] = Field(16, alias="request")
    # Share of the bandwidth that transfers achieve; 0.9 in the published simulator.
    efficiency: Efficiency = 0.9
    # Where the dies need more than one carrier (assumption `carriers: as_needed`).
    off_carrier: OffCarrierSpec = OffCarrierSpec()
    # A name or path: copies are those measured on that GPU, and are stored as numbers.
    calibration: str | None = Field(None, exclude=True)
    # Measured copies: latency and efficiency are those at the model's slice size, and override given values.
    copies: copy_law.CopyLaw | None = None
    # Time of measured kernels of dispatch and combine, of collectives and of copies over that of their laws.
    measured_factor: Annotated[float, number(0.02, 50)] = 1.0
    source: str | None = None  # of these numbers

    @model_serializer(mode="wrap")
    def _as_given(self, written: Any) -> dict[str, Any]:
        absent = {"measured_factor"} if self.measured_factor == 1 else set()
        return {key: value for key, value in written(self).items() if key not in absent}

    @model_validator(mode="before")
    @classmethod
    def _fill_measured(cls, given: Any) -> Any:
        return measured.with_measured(given, measured.link_measured)

    def of_slices(self, size_bytes: int) -> D2DSpec:
        """This link with the latency and efficiency for slices of this size."""
        if self.copies is None:
            return self
        hop_latency_ns, efficiency = self.copies.link(size_bytes)
        if self.measured_factor != 1:
            hop_latency_ns, efficiency = hop_latency_ns * self.measured_factor, efficiency / self.measured_factor
            efficiency = min(efficiency, 1.0)
        return self.model_copy(update={"hop_latency_ns": hop_latency_ns, "efficiency": efficiency, "copies": None})


class LlcSpec(Spec):
    """The last-level cache of one die."""

    WAYS: ClassVar[Mapping[str, str]] = TERMS
    capacity_bytes: Annotated[int, quantity(SIZE, "1 KiB", "1 TB", int)] = Field(64 * 2**20, alias="capacity")
    hit_ns: Latency = Field(100.0, alias="hit")  # of a read that hits
    # A lookup that misses, before HBM or the mesh is accessed.
    miss_ns: Latency = Field(110.0, alias="miss")
    write_ns: Latency = Field(30.0, alias="write")  # of a write
    # 2 ways in the published simulator.
    ways: Annotated[int, count(1, 1024)] = 2
    # Streaming unit of slices under ``llc: segments``; archsim's choice.
    segment_bytes: Annotated[int, quantity(SIZE, "1 KiB", "1 GiB", int)] = Field(2**20, alias="segment")

    @model_validator(mode="after")
    def _holds_a_segment(self) -> LlcSpec:
        if self.capacity_bytes < self.segment_bytes:
            sizes = (format_quantity(size, SIZE) for size in (self.capacity_bytes, self.segment_bytes))
            raise KeyProblem(
                ("capacity",), "{} is less than a segment, which is {}. Give llc.segment as well".format(*sizes)
            )
        return self


class KernelsSpec(Spec):
    """Kernels of a die that is no GPU: times of the parts of a grouped expert kernel over those of the calibration's,
    scaled to the die. Without a range here, `archsim sure` takes that of `archsim.laws.die.kernel_bounds`.
    """

    # Rows copied to where their expert reads them.
    permute: Annotated[float, number(0.02, 50)] = 1.0
    # Activation, and what brings tokens and results of the first products to the dtype.
    quantise: Annotated[float, number(0.02, 50)] = 1.0
    # The sum of a token's results.
    finalise: Annotated[float, number(0.02, 50)] = 1.0
    # Products of routed experts, and the cost of every expert; never below FLOP over peak.
    multiply: Annotated[float, number(0.02, 50)] = 1.0
    # Products of their own: shared experts, and every expert under `gemm: calibrated`.
    single: Annotated[float, number(0.02, 50)] = 1.0


class ComputeSpec(Spec):
    """The compute array of one die; ``dtype`` is that of weights and activations, and ``peak`` is for it.

    fp8 has one scale per tensor; fp8_block one per 128 values of an activation and per 128 x 128 weights, as
    DeepSeek-V3 (arXiv 2412.19437). They differ only in which measured GEMMs represent them under ``gemm:
    calibrated``. else.
    """

    WAYS: ClassVar[Mapping[str, str]] = TERMS
    peak_flop_per_s: Annotated[float, quantity(COMPUTE, "1 GFLOP/s", "1000 PFLOP/s")] = Field(alias="peak")
    dtype: Literal["fp8", "fp8_block", "fp16", "bf16", "nvfp4", "mxfp4", "mxfp4_mxfp8", "int4"]  # of the products
    # Share of peak that expert GEMMs achieve under ``gemm: roofline``, and in the cost model of allocation (0.7 in the
    # published simulator).
    efficiency: Efficiency = 0.7
    # Whether the array multiplies in FP4, and so in FP8; null: as the calibration's GPU. Weights of a format that it
    # does not multiply are served by vLLM, in BF16.
    fp4: bool | None = None
    # GPU whose measured GEMMs represent this die's under ``gemm: calibrated``, scaled by the ratios of peaks and of
    # HBM bandwidths; the name of a file in configs/calibrations, or a path. None:
    # archsim.laws.calibration_files.DEFAULT_CALIBRATION.
    calibration: Calibration = None
    # Which library's GEMMs; default: the one with most measured shapes.
    library: str | None = None
    # Time of grouped expert kernels over that of the calibration's, of an engine whose kernels are others.
    kernel_factor: Annotated[float, number(0.05, 50)] = 1.0
    # The same by part, of a die that is no GPU.
    kernels: KernelsSpec = KernelsSpec()
    # Of every kernel of a die that is no GPU (launch: local_cp). After it, attention and dense layers take their
    # roofline at the efficiencies of compute and hbm, and experts the calibration's times; null: all take these.
    kernel_latency_ns: Latency | None = Field(None, alias="kernel_latency")
    # Lanes of the vector units of the die, each an element a cycle, and their clock; null: not known. They bound what
    # permutes, quantises and finalises from below.
    lanes: Annotated[int, count(1, 100_000_000)] | None = None
    clock_hz: Annotated[float, quantity(CLOCK, "1 MHz", "20 GHz")] | None = Field(
        None, alias="clock"
    )  # of the vector units

    @model_serializer(mode="wrap")
    def _as_given(self, written: Any) -> dict[str, Any]:
        absent = {"lanes"} if self.lanes is None else set()
        absent |= {"clock", "clock_hz"} if self.clock_hz is None else set()
        absent |= {"kernel_latency", "kernel_latency_ns"} if self.kernel_latency_ns is None else set()
        absent |= {"fp4"} if self.fp4 is None else set()
        absent |= {"kernels"} if self.kernels.has_values_of(KernelsSpec()) else set()
        return {key: value for key, value in written(self).items() if key not in absent}

    @property
    def dtype_bytes(self) -> float:
        """Bytes per weight; an integer but for weights of 4 bits."""
        return WEIGHT_BYTES[self.dtype]

    def bytes_of(self, weights: int) -> int:
        """The bytes that this number of weights takes."""
        return math.ceil(weights * self.dtype_bytes)


AS_BUILT = ("dies_as_built", "links_as_built", "spares", "drawn")  # keys


class PowerSpec(Spec):
    """What a machine and each of its dies may draw, HBM included; at a limit clock and voltage fall
    (``archsim.runs.clocks``). A decode iteration and a prefill each have their own clock, which all dies share, or with
    ``clocks: each`` a clock for each die.
    """

    LIMITS: ClassVar[tuple[str, ...]] = ("limit", "die_limit")  # keys of limits
    # Key that is no key → what to write.
    WAYS: ClassVar[Mapping[str, str]] = {
        **TERMS,
        "clock": "the clock is that at which compute.peak is reached, and falls at a limit; give compute.peak",
        "tdp": "give limit, of the machine, or die_limit, of a die",
        "budget": "give limit, of the machine, or die_limit, of a die",
    }
    # Of all dies and their HBM, mean over an iteration
    limit_w: Annotated[float, quantity(POWER, "1 W", "1000 MW")] | None = Field(None, alias="limit")
    # Of the die that draws most, with its HBM
    die_limit_w: Annotated[float, quantity(POWER, "1 W", "1 MW")] | None = Field(None, alias="die_limit")
    # One clock for all dies; or each die lowers its own clock where it draws too much or gets too hot.
    clocks: Literal["common", "each"] = "common"

    @model_validator(mode="after")
    def _limits(self) -> PowerSpec:
        if self.limit_w is None and self.die_limit_w is None and self.clocks == "common":
            raise ValueError("says no limit; expected power: {limit: 17 kW}, {die_limit: 600 W}, or both")
        return self


class CoolingSpec(Spec):
    """How heat leaves the dies: up, each into the coolant, and sideways through the silicon that they stand on
    (``microarch.silicon.energy``). Where a die or its HBM gets too hot, the clock falls.
    """

    LIMITS: ClassVar[tuple[str, ...]] = ("limit", "hbm_limit")  # keys of limits
    # Key that is no key → what to write.
    WAYS: ClassVar[Mapping[str, str]] = {
        **TERMS,
        "ambient": "give coolant: the temperature of the water or air that takes the heat",
        "air": "give coolant: the temperature of the air",
        "water": "give coolant: the temperature of the water",
    }
    coolant_c: Annotated[float, quantity(TEMPERATURE, "-200 C", "120 C")] = Field(alias="coolant")
    # From the junctions of a die, through its whole area, to the coolant. A stack of HBM has that of its own area.
    resistance_k_per_w: Annotated[float, quantity(RESISTANCE, "0.0001 K/W per die", "100 K/W per die")] = Field(
        alias="resistance"
    )
    # What conducts from die to die: a carrier of silicon below all of them, or nothing.
    lateral: Literal["none", "silicon"] = "none"
    # Of the hottest place of a die; 105 C: usual for logic of data centres
    limit_c: Annotated[float, quantity(TEMPERATURE, "0 C", "200 C")] = Field(105.0, alias="limit")
    # Of a stack of HBM; 95 C: JEDEC JESD238, with doubled refresh from 85 C on
    hbm_limit_c: Annotated[float, quantity(TEMPERATURE, "0 C", "200 C")] = Field(95.0, alias="hbm_limit")
    # Of the grid, on a side of a die; with 1, a die has one temperature
    cells: Annotated[int, count(1, 16)] = 1

    @model_validator(mode="after")
    def _cools(self) -> CoolingSpec:
        for key, limit_c in (("limit", self.limit_c), ("hbm_limit", self.hbm_limit_c)):
            if limit_c <= self.coolant_c:
                raise KeyProblem(
                    (key,), f"{limit_c:g} C is not above the coolant, {self.coolant_c:g} C. Give a higher {key}, or "
                    "a colder coolant"
                )  # fmt: skip
        return self


class SystemSpec(Spec):
    """A chiplet or wafer-scale GPU, or a cluster: dies and their links.

    ``dies`` counts those that work, ``sites`` those that were made.

    The dies are those of ``mesh`` (X × Y, linked as ``topology`` says), of ``fabric`` (levels), or of a ``topology``
    that is a user's own function with its number of ``dies``.
    """

    WAYS: ClassVar[Mapping[str, str]] = TERMS
    name: Name  # of the machine
    source: str = Field(min_length=1)  # of its numbers
    # Nothing was measured on it or a similar machine: laws of another GPU scaled by nominal rates, and all times
    # extrapolated.
    datasheet_only: bool = False
    mesh: MeshSpec | None = None  # sides of a mesh of dies
    topology: TopologySpec = TopologySpec()  # links of the dies
    fabric: FabricSpec | None = None  # levels of links, in place of a mesh
    hbm: HbmSpec  # of every die
    d2d: D2DSpec  # links between dies
    llc: LlcSpec = LlcSpec()  # of every die
    compute: ComputeSpec  # of every die
    # What starts kernels and transfers on a die (docs/decisions.md).
    launch: Literal["gpu", "local_cp"] = "gpu"
    # Measured kernels of a calibration of a fabric, MACHINE/VERSION such as blackhole/replay-2026-09-11: what dies send
    # and receive, whatever the assumption `endpoint`. Null: not known; `endpoint: as_measured` takes the share of a
    # link that a Blackhole chip has.
    endpoint: Annotated[str, Field(min_length=1)] | None = None
    decision: DecisionSpec = DecisionSpec()  # who decides, and how fast
    # A user's own blocks, which every weight slice passes on its die before the compute array.
    blocks: tuple[BlockSpec, ...] = ()
    # What differs from a perfect machine; null: nothing (archsim.machine.as_built).
    dies_as_built: DiesAsBuiltSpec | None = None
    links_as_built: LinksAsBuiltSpec | None = None  # dead and slow links
    spares: SparesSpec | None = None  # dies kept back
    drawn: DrawnSpec | None = None  # defects and speeds that are drawn
    # What it may draw, and how it is cooled; without these, every die keeps its clock.
    power: PowerSpec | None = None
    cooling: CoolingSpec | None = None  # of the carrier
    # How its dies are made; null: of 5 nm, as costs least.
    made: MadeSpec | None = None
    # Memories of a die. The one that keeps weights, KV cache and activations is its hbm.
    memory: tuple[MemorySpec, ...] = ()

    def in_tables(self) -> SystemSpec:
        """The system with tables in the place of RTL, which gives the same numbers (``tests/rtl/test_lockstep.py``)."""
        blocks = tuple(block for block in self.blocks if not block.name.startswith("microarch.rtl.blocks:"))
        if blocks == self.blocks and not self.decision.fsm.components:
            return self
        fsm = self.decision.fsm.model_copy(update={"implementation": "table"})
        return self.model_copy(update={"blocks": blocks, "decision": self.decision.model_copy(update={"fsm": fsm})})

    @model_validator(mode="before")
    @classmethod
    def _own_memory(cls, given: Any) -> Any:
        return with_owner(given)

    @model_validator(mode="before")
    @classmethod
    def _plain_link(cls, given: Any) -> Any:
        """If ``d2d`` is missing, use the links of the innermost level."""
        try:
            innermost = given["fabric"]["levels"][0]
            own = {key: innermost[key] for key in ("bandwidth", "hop_latency") if key in innermost}
        except (TypeError, KeyError, IndexError):
            return given
        return given if "d2d" in given or "bandwidth" not in own else given | {"d2d": own}

    @model_validator(mode="after")
    def _one_machine(self) -> SystemSpec:
        """Exactly one of mesh, fabric and topology gives the number of dies, and the rest is of these dies."""
        if self.fabric is not None:
            for key, given in (("mesh", self.mesh is not None), ("topology", self.topology != TopologySpec())):
                if given:
                    raise KeyProblem((key,), f"fabric already defines dies and links. Give either {key} or fabric")
        elif self.topology.dies is not None:
            if self.mesh is not None:
                raise KeyProblem(
                    ("topology", "dies"),
                    "the mesh already defines the number of dies. Give either mesh or topology.dies",
                )
        elif self.mesh is None:
            if self.topology.is_function:
                raise KeyProblem(
                    ("topology",),
                    f"the number of dies of {self.topology.name} is missing. "
                    "Give topology: {name: ..., dies: 12}, or mesh: {x: 4, y: 3}",
                )
            raise KeyProblem(
                ("mesh",),
                "required key is missing; expected mesh: {x: 5, y: 5}, or fabric: {levels: [{switch: 8, ...}]}",
            )
        self.topology.refuse_unconnected(self.sites)
        refuse_impossible(self)
        if (
            self.made is not None
            and self.made.carrier == MONOLITHIC
            and (self.hbm.kind is None or self.hbm.kind.startswith("hbm"))
        ):
            raise KeyProblem(
                ("made", "carrier"), "a wafer that is not cut has no place for stacks of HBM. Give hbm: {kind: sram}, "
                "memory on the board (gddr7, lpddr5x, cxl), or made.carrier: wafer"
            )  # fmt: skip
        if self.launch == "gpu" and self.compute.kernel_latency_ns is not None:
            raise KeyProblem(
                ("compute", "kernel_latency"), "kernels of a GPU take the times of its calibration. Give launch: "
                "local_cp, or leave it out"
            )  # fmt: skip
        power = self.power
        if self.cooling is not None and self.cooling.lateral != "none" and places_of(self) is None:
            raise KeyProblem(
                ("cooling", "lateral"),
                "heat flows from die to die only on a mesh or torus, and this system has none. Give lateral: none",
            )
        if power is not None and power.limit_w is None and power.die_limit_w is None and not self.cooling:
            raise KeyProblem(
                ("power", "clocks"),
                "no limit lowers a clock. Give power a limit or a die_limit, or the system cooling: {coolant: 30 C, "
                "resistance: 0.2 K/W per die}",
            )
        return self

    @model_serializer(mode="wrap")
    def _as_given(self, written: Any) -> dict[str, Any]:
        optional = ("mesh", "fabric", "endpoint", "power", "cooling", "made", *AS_BUILT)
        absent = {key for key in optional if getattr(self, key) is None} | ({"topology"} if self.fabric else set())
        absent |= set() if self.memory else {"memory"}
        return {key: value for key, value in written(self).items() if key not in absent}

    @property
    def as_made(self) -> SystemSpec:
        """The system without what makes it imperfect."""
        return self.model_copy(update=dict.fromkeys(AS_BUILT))

    @property
    def built(self) -> AsBuilt | None:
        """The dies as they are built. None for a perfect machine."""
        perfect = self.dies_as_built is None and self.spares is None and self.drawn is None
        return None if perfect else as_built(self)

    @property
    def kernel_rates(self) -> Rates:
        """Peak and bandwidth of a die as designed, for kernels of a measured GPU. Where reads reach a smaller share of
        its HBM than there, kernels are as much slower; no kernel is faster for a larger share. Kernels of the die's own
        (`compute.kernel_latency`) have the same share in `archsim.laws.gemm.OwnKernels`, its experts in these rates.
        """
        import numpy as np

        from archsim.laws.calibration_files import calibration_named
        from archsim.laws.gemm import Rates
        from archsim.laws.transfers import read_share

        share = np.minimum(self.hbm.efficiency / read_share(calibration_named(self.compute.calibration)), 1.0)
        return Rates(self.compute.peak_flop_per_s, self.hbm.bandwidth_bytes_per_s * share)

    @property
    def slowest(self) -> tuple[float, float]:
        """Least factor of the arrays and of the HBMs of its dies: those of work of which every die has as much."""
        return (1.0, 1.0) if self.built is None else (min(self.built.array), min(self.built.hbm))

    @property
    def has_dead_links(self) -> bool:
        """Whether a link of it is dead, both of whose ends may live."""
        failing = self.drawn is not None and self.drawn.link_failure > 0
        return failing or bool(self.links_as_built and self.links_as_built.dead)

    def weakest_link(self, level: int) -> float:
        """The least share of its bandwidth that a link of a level of its fabric has: collectives wait for it."""
        sizes = [each.size for each in self.fabric.levels] if self.fabric is not None else [self.sites]
        inner, outer = math.prod(sizes[:level]), math.prod(sizes[: level + 1])

        def is_of(a: int, b: int | str) -> bool:
            if isinstance(b, str):
                return b == f"level {level}"
            return a // inner != b // inner and a // outer == b // outer

        degraded = self.links_as_built.degraded if self.links_as_built is not None else ()
        return min((each.bandwidth for each in degraded if is_of(*each.link)), default=1.0)

    @property
    def whole(self) -> tuple[float, float]:
        """How many nominal arrays and HBMs all dies together are as fast as."""
        if self.built is None:
            return float(self.sites), float(self.sites)
        return sum(self.built.array), sum(self.built.hbm)

    @property
    def dies(self) -> int:
        """The number of dies that work. They are numbered from 0."""
        return self.sites if self.built is None else len(self.built.living)

    @property
    def sites(self) -> int:
        """Dies that were made, dead and spare ones included."""
        if self.fabric is not None:
            return self.fabric.dies
        return self.mesh.x * self.mesh.y if self.mesh is not None else self.topology.dies or 0

    @property
    def transfer_law(self) -> str | None:
        """The calibration of the innermost fabric level's ``law``, whose kernels move hidden vectors; or None."""
        law = self.fabric.levels[0].law if self.fabric is not None else None
        return law.rpartition("/")[0] if law else None

    @property
    def kind_of_fabric(self) -> str:
        """The topology by name, or the kinds of all levels; equal for systems that differ only in size."""
        return (
            self.topology.name
            if self.fabric is None
            else " of ".join(level.kind for level in reversed(self.fabric.levels))
        )

    @property
    def shape(self) -> str:
        """In words: ``5 × 5 mesh``, ``4 × 8 switch``, ``12 × module:function``, ``24 dies of 5 × 5 mesh``."""
        if self.built is None or len(self.built.living) == self.sites:
            return self.shape_as_made
        if self.built.sides is not None:
            return f"{' × '.join(map(str, self.built.sides))} of {self.shape_as_made}"
        return f"{self.dies} dies of {self.shape_as_made}"

    @property
    def shape_as_made(self) -> str:
        """Like ``shape``, but of all dies that were made."""
        if self.fabric is not None:
            return self.fabric.shape
        size = f"{self.mesh.x} × {self.mesh.y}" if self.mesh is not None else f"{self.sites} ×"
        return f"{size} {self.topology.name}"
