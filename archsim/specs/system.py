"""The machine: dies, each with HBM, an LLC and a compute array, and the D2D links between them.

Dies are identical but for what ``dies_as_built`` and its neighbours say (``archsim.specs.as_built``).

Default values are those that all configurations of the wafer-scale paper share (Yu et al., ISCA 2026, arXiv
2510.05497v4).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_serializer, model_validator

from archsim.base.errors import SpecError
from archsim.base.fields import (
    BANDWIDTH,
    CLOCK,
    COMPUTE,
    POWER,
    RESISTANCE,
    SIZE,
    TEMPERATURE,
    TIME,
    Dimension,
    KeyProblem,
    Name,
    Spec,
    count,
    format_quantity,
    fraction,
    number,
    quantity,
)
from archsim.base.fields import parse_quantity as parsed
from archsim.base.own_code import import_function
from archsim.base.sums import sum
from archsim.base.units import WEIGHT_BYTES
from archsim.laws.tables import HBM, Axis, CalibrationSpec, Numbers, Positive
from archsim.specs.as_built import (
    AsBuilt,
    DiesAsBuiltSpec,
    DrawnSpec,
    LinksAsBuiltSpec,
    SparesSpec,
    as_built,
    places_of,
    refuse_impossible,
)
from archsim.specs.calibration_files import calibration_named
from archsim.specs.config_files import known_calibration
from archsim.specs.fabric import Bandwidth, FabricSpec, Latency, MeshSpec, TopologySpec
from archsim.specs.policies import check_parameters

if TYPE_CHECKING:
    from archsim.laws.gemm import Rates

# ---- decision
# The executor of decisions and its speed: the Global CP's state machine, firmware on an embedded core, a host CPU over
# PCIe, or a kernel on every GPU.
#
# The decision itself (which die runs what, what is copied) is the same for all of them; only its cost differs, and only
# under ``decision_cost: charged``. How each number enters the time of a decision: ``microarch.blocks.global_cp``.

Clock = Annotated[float, quantity(CLOCK, "1 MHz", "20 GHz")]
DecisionLatency = Annotated[float, quantity(TIME, "1e-3 ns", "1 s", zero=True)]


class FsmSpec(Spec):
    """Datapath of the Global CP as a state machine."""

    # What synthesis reaches at these parameters: the longest path of `microarch/silicon/results` (select; allocator
    # beside it), 15 % faster in 5 nm, with 25 % for wires and clock. A higher clock is a warning that names the path.
    clock_hz: Clock = Field(0.85e9, alias="clock")
    # Candidates evaluated in parallel: five (a home and its neighbours) unless copies exist; 8 is the next power of
    # two (archsim's choice).
    lanes: Annotated[int, count(1, 4096)] = 8
    # Comparators of the sorter and of the selection of heatmap entries; one word of the heatmap port has 32 counters.
    comparators: Annotated[int, count(1, 65536)] = 32
    # bitonic: all comparators work, in place (Batcher 1968; in RTL). merge: fewer comparisons, but the last pairs of
    # runs keep few comparators busy, and a second buffer.
    sorter: Literal["bitonic", "merge"] = "bitonic"
    # Registers between the operands of a block of tokens, its costs and the loads: as many further cycles a block.
    # Three bring the path of the 8 lanes from 1.61 to 1.04 ns (ASAP7, docs/rtl.md).
    pipeline: Annotated[int, count(0, 3)] = 3
    # Unit of the costs that `paper` compares: integers of cost_bits.
    cost_quantum_ns: Annotated[float, quantity(TIME, "1e-3 ns", "1 us")] = Field(1.0, alias="cost_quantum")
    cost_bits: Annotated[int, count(8, 64)] = 24
    # A PDU gathers its cp_en bits in a second register, so that they take effect together; else it writes each word
    # through. The engine takes them with the last word either way; area and RTL have both.
    shadow: bool = True
    # Widths of the tables' ports (published simulator's paper, table II): distribution table, heatmap, prediction
    # table.
    table_port_bits: Annotated[int, count(1, 65536)] = 72
    heatmap_port_bits: Annotated[int, count(1, 65536)] = 512
    prediction_port_bits: Annotated[int, count(1, 65536)] = 16
    # Cycles and plans of the tables and policy functions, or of the components in RTL (docs/rtl.md).
    implementation: Literal["table", "rtl"] = "table"
    # Where the distribution table and the heatmap rows are stored: SRAM of the Global CP, as in table II, or HBM of
    # its die.
    tables: Literal["on_chip", "dram"] = "on_chip"

    @property
    def components(self) -> tuple[str, ...]:
        """What runs in RTL, each as ``package.module:class``."""
        names = ("sorter:Sorter", "allocator:Allocator", "select:Selector", "heatmap:HeatmapStore")
        return tuple(f"microarch.rtl.{name}" for name in names) if self.implementation == "rtl" else ()


# Clocks of the cores that the paper names: Cortex-A76 3 GHz in 7 nm (Arm's projection, AnandTech, Cortex-A76
# Unveiled, 2018; the first chip reached 2.6 GHz), Cortex-A72 2.5 GHz in 16 nm (Kirin 955: AnandTech, HiSilicon Kirin
# 960, 2017). Sustained IPC on integer code is assumed: 2.0 (1.5 to 2.5) and 1.3 (1.0 to 1.6); no source was found.
CORES = MappingProxyType({"a76": {"clock": "3 GHz", "ipc": 2.0}, "a72": {"clock": "2.5 GHz", "ipc": 1.3}})


class FirmwareSpec(Spec):
    """The same decision as a program on an embedded core; instructions per unit of work are counted in the inner
    loops.
    """

    core: Literal["a76", "a72"] = "a76"
    clock_hz: Clock = Field(alias="clock")
    ipc: Annotated[float, number(0.01, 16)]
    # Estimates, hand-counted in the compiled inner loops of archsim.policies.allocation (loads, compares, adds,
    # branch).
    per_table_entry: Annotated[float, number(0, 1e6)] = 6
    per_comparison: Annotated[float, number(0, 1e6)] = 8
    per_candidate: Annotated[float, number(0, 1e6)] = 25
    per_evaluation: Annotated[float, number(0, 1e6)] = 30
    per_plan_entry: Annotated[float, number(0, 1e6)] = 12
    per_heatmap_entry: Annotated[float, number(0, 1e6)] = 1.5
    # A multiply-add of a solver: two loads, the operation, a store (hand-counted like the above).
    per_operation: Annotated[float, number(0, 1e6)] = 4

    @model_validator(mode="before")
    @classmethod
    def _core_defaults(cls, given: Any) -> Any:
        core = given.get("core", "a76") if isinstance(given, dict) else None
        if not isinstance(core, str) or core not in CORES:
            return given
        return {key: value for key, value in CORES[core].items() if f"{key}_hz" not in given} | given


# YAML key → attribute and dimension of the values that a calibration can give.
_PATH = MappingProxyType(
    {
        "pcie_bandwidth": ("pcie_bandwidth_bytes_per_s", BANDWIDTH),
        "pcie_latency": ("pcie_latency_ns", TIME),
        "launch": ("launch_ns", TIME),
        "sync": ("sync_ns", TIME),
    }
)


def _fitted(value: float, dimension: Dimension) -> str:
    """Four significant digits; no fit of transfers is more accurate."""
    return format_quantity(float(f"{value:.4g}"), dimension)


class HostSpec(Spec):
    """The same decision on a host CPU, once per MoE layer: read back, decide, send, launch.

    ``calibration`` (in ``configs/calibrations``, or a file) gives the missing values of PCIe, launch and sync. They
    never fall back to the defaults: a value that the calibration lacks is an error. The numbers are stored, and
    ``source`` states their origin, so that a manifest does not depend on the calibration.
    """

    # null: the policy function is timed on the machine that runs archsim (a shipped one in three calls a step, one of
    # your own in one call); results then differ from machine to machine and from run to run.
    time_ns: Annotated[float, quantity(TIME, "1 ns", "10 s")] | None = Field(None, alias="time")
    calibration: Annotated[str, Field(min_length=1)] | None = None
    source: str = "cited defaults, and what is given"
    # PCIe Gen5 x16, copy engine, pinned: 55.2 to 55.4 GB/s on an H100 node (nvbandwidth 0.10; measured by an unknown
    # party).
    pcie_bandwidth_bytes_per_s: Annotated[float, quantity(BANDWIDTH, "1 MB/s", "10 TB/s")] = Field(
        55.3e9, alias="pcie_bandwidth"
    )
    # One small copy by a copy engine. No public figure of the host's path was found: 2.3 to 3.4 us to a peer on an
    # H100 node (p2pBandwidthLatencyTest; measured by an unknown party), 2.3 us per call on H20 (FlexKV pull request
    # 193); middle of the range.
    pcie_latency_ns: DecisionLatency = Field(2800.0, alias="pcie_latency")
    # Kernel launch on a stream, back to back (te42kyfo/gpu-benches, H200: 2.46 us).
    launch_ns: DecisionLatency = Field(2460.0, alias="launch")
    # Until the host notices that the device is done: about one more launch-size round trip (same source).
    sync_ns: DecisionLatency = Field(2460.0, alias="sync")

    @model_validator(mode="before")
    @classmethod
    def _calibrated(cls, given: Any) -> Any:
        name = given.get("calibration") if isinstance(given, dict) else None
        if not isinstance(name, str) or not name:
            return given
        wanted = [key for key, (field, _) in _PATH.items() if key not in given and field not in given]
        if not wanted:
            raise KeyProblem(
                ("calibration",), f"{', '.join(_PATH)} are all given. Omit those that the calibration should give"
            )
        from archsim.laws.laws import Laws

        try:
            path = Laws(calibration_named(name)).host_path()
        except SpecError as error:
            raise KeyProblem(("calibration",), str(error)) from None
        lacking = {key: path.missing[key] for key in wanted if key in path.missing}
        if lacking:
            whys = "; ".join(dict.fromkeys(lacking.values()))
            raise KeyProblem(
                ("calibration",), f"{name!r} has {whys}. Give {' and '.join(lacking)} here, or recalibrate"
            )
        rest = {key: value for key, value in given.items() if key != "calibration"}
        fitted = {
            key: _fitted(getattr(path, field), dimension) for key, (field, dimension) in _PATH.items() if key in wanted
        }
        own = [key for key in _PATH if key not in wanted]
        return {"source": path.source + (f"; given: {', '.join(own)}" if own else "")} | rest | fitted


class GpuSpec(Spec):
    """The same decision as a kernel on every GPU: counts are added up by an all-reduce, then all find the same plan."""

    # Kernel launch on a stream, back to back (te42kyfo/gpu-benches, H200: 2.46 us).
    launch_ns: DecisionLatency = Field(2460.0, alias="launch")
    # Operations of one thread block. LPLB states about 100 us for its solver within a node (deepseek-ai/LPLB, README);
    # five interior-point steps over 64 replicated experts and 64 ranks are about 1.9e7 multiply-adds here.
    operations_per_ns: Annotated[float, number(1e-3, 1e6)] = 190.0


class DecisionSpec(Spec):
    """``decision: {executor: fsm | firmware | host | gpu, ...}`` of a system."""

    executor: Literal["fsm", "firmware", "host", "gpu"] = "fsm"
    # Clock of the Local CPs, PDUs and ATUs, which are logic of the dies: an H100 SXM runs at up to 1.98 GHz (as its
    # driver reports).
    local_clock_hz: Clock = Field(2e9, alias="local_clock")
    fsm: FsmSpec = FsmSpec()
    firmware: FirmwareSpec = Field(default_factory=lambda: FirmwareSpec.model_validate({}))
    host: HostSpec = HostSpec()
    gpu: GpuSpec = Field(default_factory=lambda: GpuSpec.model_validate({}))
    # Entries of the ATU of a die (paper, table II).
    atu_entries: Annotated[int, count(1, 1_000_000)] = 512
    # Entries of a set of the ATU, with LRU. archsim's choice: order in a set of 8 is 28 bits, in one of 512 it is no
    # hardware.
    atu_ways: Annotated[int, count(1, 1_000_000)] = 8

    @model_validator(mode="after")
    def _whole_sets(self) -> DecisionSpec:
        if self.atu_entries % min(self.atu_ways, self.atu_entries):
            raise KeyProblem(
                ("atu_ways",),
                f"{self.atu_entries} entries are not whole sets of {self.atu_ways} ways. Take "
                f"{self.atu_entries - self.atu_entries % self.atu_ways} entries, or atu_ways: {self.atu_entries}",
            )
        return self


# ---- measured
# What HBM and die-to-die links take from a calibration, as numbers that a manifest stores.
#
# A ``calibration`` in ``hbm`` or ``d2d`` is replaced by what was measured on that GPU (also in ``decision.host``).
# HBM gets the latency and the share of nominal bandwidth of reads. A link follows
# the law of one-way copies between two GPUs of a server node, with its rate as a share of the link's nominal rate. A
# run has slices of one size, and its links use the rate around that size, so that a slice takes the time of a measured
# copy. ``archsim.laws`` chooses the tables and evaluates the laws.


class FromCalibration(NamedTuple):
    """What a calibration gives to ``hbm`` or ``d2d``: the keys, and a note on their source; without keys, ``why``
    not.
    """

    values: dict[str, Any]
    note: str
    why: str = ""


class CopyLaw(Spec):
    """Measured time of copies between two GPUs: latency_ns[i] + bytes ns_per_byte[i] from from_bytes[i] on,
    float64[piece].

    ``bandwidth``: the nominal bandwidth of the measured link. ``first_bytes``, ``last_bytes``: range of measured
    sizes; None: not known.
    """

    from_bytes: Axis
    latency_ns: Numbers
    ns_per_byte: Numbers
    bandwidth_bytes_per_s: Bandwidth = Field(alias="bandwidth")
    first_bytes: Positive | None = None
    last_bytes: Positive | None = None

    @model_validator(mode="after")
    def _as_long(self) -> CopyLaw:
        if not len(self.from_bytes) == len(self.latency_ns) == len(self.ns_per_byte):
            raise ValueError("from_bytes, latency_ns and ns_per_byte need equally many numbers")
        return self

    def link(self, size_bytes: int) -> tuple[float, float]:
        """(hop latency in ns, share of the bandwidth) with which a remote read of this size takes as long as a
        measured copy.
        """
        from archsim.laws.transfers import law_of, link_of_copy

        return link_of_copy(law_of(self), self.bandwidth_bytes_per_s, size_bytes)

    def extrapolates(self, size_bytes: int) -> bool | None:
        """Whether the size is outside the measured range; None if that range is not known."""
        if self.first_bytes is None or self.last_bytes is None:
            return None
        return not self.first_bytes <= size_bytes <= self.last_bytes


def hbm_measured(calibration: CalibrationSpec) -> FromCalibration:
    """``latency`` and ``efficiency``, if measured."""
    from archsim.laws.laws import Laws

    values: dict[str, Any] = {}
    latency_ns, efficiency = Laws(calibration).hbm_reads()
    if latency_ns is not None:
        values["latency"] = f"{latency_ns:.4g} ns"
    if efficiency is not None:
        values["efficiency"] = float(f"{min(efficiency, 1.0):.4g}")
    note, reference = ", ".join(values), calibration.reference
    if efficiency is not None and HBM in reference.fitted:
        note += f" (of {format_quantity(reference.hbm_bytes_per_s, BANDWIDTH)}, which was fitted)"
    return FromCalibration(values, note, "no HBM measurements, neither latency nor reads (memory.csv)")


def link_measured(calibration: CalibrationSpec) -> FromCalibration:
    """``copies``, the keys of a CopyLaw; nothing if no suitable copies were measured."""
    from archsim.laws.laws import Laws
    from archsim.laws.transfers import NVLINK_BYTES_PER_S

    link = Laws(calibration).link()
    if link.table is None:
        return FromCalibration({}, "", link.why)
    rate = format_quantity(link.nominal_bytes_per_s, BANDWIDTH)
    pieces = {
        key: " ".join(f"{value:.12g}" for value in getattr(link.table, key))
        for key in ("from_bytes", "latency_ns", "ns_per_byte")
    }
    measured = {"bandwidth": rate, "first_bytes": link.table.first_bytes, "last_bytes": link.table.last_bytes}
    known = calibration.gpu in NVLINK_BYTES_PER_S
    note = (
        "copies"
        if known
        else f"copies, as a share of {rate}: the fastest copy, as no nominal rate of {calibration.gpu} is known"
    )
    return FromCalibration({"copies": pieces | measured}, note)


def with_measured(given: Any, measured: Callable[[CalibrationSpec], FromCalibration]) -> Any:
    """A mapping of ``hbm`` or ``d2d`` whose ``calibration`` is replaced by the values that it gives.

    ``measured``: ``hbm_measured`` or ``link_measured``. Raises KeyProblem at ``calibration``.
    """
    name = given.get("calibration") if isinstance(given, dict) else None
    if not isinstance(name, str):
        return given
    try:
        calibration = calibration_named(name)
    except (SpecError, OSError) as error:
        raise KeyProblem(("calibration",), str(error)) from None
    found = measured(calibration)
    if not found.values:
        raise KeyProblem(("calibration",), f"{name!r} has {found.why}")
    rest = {key: value for key, value in given.items() if key not in ("calibration", "latency_ns")}
    return rest | found.values | {"source": f"calibration {name}: {found.note}"}


# ---- blocks
# Users' own hardware blocks: stages that every weight slice passes on a die on its way to the compute array.

_KEYS = ("name", "bandwidth")
BEFORE_ARRAY, REPLACES, NETWORK = "before_array", "replaces", "network"  # kinds of classes


def kind_of(named: object) -> str | None:
    """What a user's class does in ``engine: interpreted`` (``archsim.engine.interpreted.interpreter``); None: a
    function.
    """
    if not isinstance(named, type):
        return None
    if hasattr(named, "send"):
        return NETWORK
    return REPLACES if hasattr(named, "SERVES") else BEFORE_ARRAY


class BlockSpec(Spec):
    """``package.module:function``, or ``{name: ..., bandwidth: ..., parameter: value, ...}``.

    The function returns how long the block holds slices: ``(n_bytes: int64[entry], **parameters) -> ns:
    float64[entry]``. ``bandwidth``, if given, adds bytes / bandwidth. See ``archsim.engine.machine`` for how the
    engine uses it. ``package.module:class`` is a block with states of its own, for ``engine: interpreted``.
    """

    name: str
    bandwidth_bytes_per_s: Bandwidth | None = Field(None, alias="bandwidth")
    params: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, given: Any, info: ValidationInfo) -> Any:
        if isinstance(given, str):
            return {"name": given}
        if isinstance(given, dict) and "params" not in given:
            named = {key: value for key, value in given.items() if key in (*_KEYS, "bandwidth_bytes_per_s")}
            return named | {"params": {key: value for key, value in given.items() if key not in named}}
        return given

    @field_validator("name")
    @classmethod
    def _importable(cls, name: str, info: ValidationInfo) -> str:
        if info.context:  # loaded from a file; when it is loaded again later, the module may be missing
            import_function(name)
        return name

    @model_validator(mode="after")
    def _has_these_parameters(self, info: ValidationInfo) -> BlockSpec:
        if info.context:
            named = import_function(self.name)
            kind = kind_of(named)
            check_parameters(self.name, named, 0 if kind == BEFORE_ARRAY else 1, self.params)
            if kind and self.bandwidth_bytes_per_s is not None:
                raise KeyProblem(("bandwidth",), f"{self.name} is a class, which says its own time. Omit bandwidth")
        return self

    def __hash__(self) -> int:
        return hash((self.name, self.bandwidth_bytes_per_s, json.dumps(self.params, sort_keys=True, default=str)))

    @model_serializer
    def _flat(self) -> dict[str, Any]:
        rate = self.bandwidth_bytes_per_s
        given = {} if rate is None else {"bandwidth": format_quantity(rate, BANDWIDTH)}
        return {"name": self.name, **given, **self.params}


# ---- system

Efficiency = Annotated[float, fraction(zero=False)]
Calibration = Annotated[str | None, AfterValidator(known_calibration)]


class HbmSpec(Spec):
    """The HBM of one die."""

    # JEDEC JESD238, HBM3, with dies of 24 Gb: 8 high
    WAYS: ClassVar[Mapping[str, str]] = {
        "stacks": "give the capacity and bandwidth of all stacks of a die; one of HBM3 has 24 GB and 0.819 TB/s"
    }
    bandwidth_bytes_per_s: Bandwidth = Field(alias="bandwidth")
    capacity_bytes: Annotated[int, quantity(SIZE, "1 MB", "100 TB", int)] = Field(alias="capacity")
    # Share of the capacity not available to weights and copies; the paper reserves 10 %.
    reserved_fraction: Annotated[float, fraction(zero=True)] = Field(0.1, alias="reserved")
    latency_ns: Latency = Field(300.0, alias="latency")
    # Share of the bandwidth that transfers achieve; 0.9 in the published simulator.
    efficiency: Efficiency = 0.9
    # A name or path: latency and efficiency are those measured on that GPU, override given values, and are stored as
    # numbers.
    calibration: str | None = Field(None, exclude=True)
    # Of a die, for area and price alone; without it, as many of HBM3 as capacity and bandwidth need.
    stacks_on_carrier: Annotated[int, count(1, 1000)] | None = None
    source: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _calibrated(cls, given: Any) -> Any:
        return with_measured(given, hbm_measured)


class OffCarrierSpec(Spec):
    """A link from a die on one carrier to one on the next; bandwidth is per direction, and no link is better than one
    on a carrier. The defaults are those between Tesla's training tiles: 9 TB/s across each edge of 5 dies, both
    directions together (Hot Chips 34, 2022); the latency is assumed (range 200 ns to 1 us).
    """

    bandwidth_bytes_per_s: Bandwidth = Field(0.9e12, alias="bandwidth")
    hop_latency_ns: Latency = Field(500.0, alias="hop_latency")


class D2DSpec(Spec):
    """The die-to-die link; bandwidth is per direction. The topology may give links their own bandwidth and latency."""

    bandwidth_bytes_per_s: Bandwidth = Field(alias="bandwidth")
    hop_latency_ns: Latency = Field(200.0, alias="hop_latency")
    # Command and address of a remote request; requests take latency but do not share links with transfers.
    request_bytes: Annotated[int, quantity(SIZE, "1 B", "1 kB", int, zero=True)] = Field(16, alias="request")
    # Share of the bandwidth that transfers achieve; 0.9 in the published simulator.
    efficiency: Efficiency = 0.9
    # Where the dies need more than one carrier (assumption `carriers: as_needed`).
    off_carrier: OffCarrierSpec = OffCarrierSpec()
    # A name or path: copies are those measured on that GPU, and are stored as numbers.
    calibration: str | None = Field(None, exclude=True)
    # Measured copies: latency and efficiency are those at the model's slice size, and override given values.
    copies: CopyLaw | None = None
    # Time of measured kernels of dispatch and combine, of collectives and of copies over that of their laws.
    measured_factor: Annotated[float, number(0.02, 50)] = 1.0
    source: str | None = None

    @model_serializer(mode="wrap")
    def _as_given(self, written: Any) -> dict[str, Any]:
        """Without the keys that say nothing."""
        absent = {"measured_factor"} if self.measured_factor == 1 else set()
        return {key: value for key, value in written(self).items() if key not in absent}

    @model_validator(mode="before")
    @classmethod
    def _calibrated(cls, given: Any) -> Any:
        return with_measured(given, link_measured)

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

    capacity_bytes: Annotated[int, quantity(SIZE, "1 KiB", "1 TB", int)] = Field(64 * 2**20, alias="capacity")
    hit_ns: Latency = Field(100.0, alias="hit")
    # A lookup that misses, before HBM or the mesh is accessed.
    miss_ns: Latency = Field(110.0, alias="miss")
    write_ns: Latency = Field(30.0, alias="write")
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

    peak_flop_per_s: Annotated[float, quantity(COMPUTE, "1 GFLOP/s", "1000 PFLOP/s")] = Field(alias="peak")
    dtype: Literal["fp8", "fp8_block", "fp16", "bf16", "nvfp4", "mxfp4", "mxfp4_mxfp8", "int4"]
    # Share of peak that expert GEMMs achieve under ``gemm: roofline``, and in the cost model of allocation (0.7 in the
    # published simulator).
    efficiency: Efficiency = 0.7
    # GPU whose measured GEMMs represent this die's under ``gemm: calibrated``, scaled by the ratios of peaks and of
    # HBM bandwidths; the name of a file in configs/calibrations, or a path. None:
    # archsim.specs.calibration_files.DEFAULT_CALIBRATION.
    calibration: Calibration = None
    # Which library's GEMMs; default: the one with most measured shapes.
    library: str | None = None
    # Time of grouped expert kernels over that of the calibration's, of an engine whose kernels are others.
    kernel_factor: Annotated[float, number(0.05, 50)] = 1.0
    # The same by part, of a die that is no GPU.
    kernels: KernelsSpec = KernelsSpec()
    # Lanes of the vector units of the die, each an element a cycle, and their clock; null: not known. They bound what
    # permutes, quantises and finalises from below.
    lanes: Annotated[int, count(1, 100_000_000)] | None = None
    clock_hz: Annotated[float, quantity(CLOCK, "1 MHz", "20 GHz")] | None = Field(None, alias="clock")

    @model_serializer(mode="wrap")
    def _as_given(self, written: Any) -> dict[str, Any]:
        """Without the keys that say nothing."""
        absent = {"lanes"} if self.lanes is None else set()
        absent |= {"clock", "clock_hz"} if self.clock_hz is None else set()
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
    (``archsim.runs.energy``). A decode iteration and a prefill each have their own clock, which all dies share, or with
    ``clocks: each`` a clock for each die.
    """

    LIMITS: ClassVar[tuple[str, ...]] = ("limit", "die_limit")
    WAYS: ClassVar[Mapping[str, str]] = {
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

    LIMITS: ClassVar[tuple[str, ...]] = ("limit", "hbm_limit")
    WAYS: ClassVar[Mapping[str, str]] = {
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

    name: Name
    source: str = Field(min_length=1)
    # Nothing was measured on it or a machine alike: laws of another GPU scaled by nominal rates, and all times
    # extrapolated.
    datasheet_only: bool = False
    mesh: MeshSpec | None = None
    topology: TopologySpec = TopologySpec()
    fabric: FabricSpec | None = None
    hbm: HbmSpec
    d2d: D2DSpec
    llc: LlcSpec = LlcSpec()
    compute: ComputeSpec
    # What starts kernels and transfers on a die (docs/decisions.md).
    launch: Literal["gpu", "local_cp"] = "gpu"
    # Measured kernels of a calibration of a fabric, MACHINE/VERSION such as blackhole/replay-2026-09-11: what dies send
    # and receive under `endpoint: as_measured`. Null: the share of a link that a Blackhole chip has.
    endpoint: Annotated[str, Field(min_length=1)] | None = None
    decision: DecisionSpec = DecisionSpec()
    # A user's own blocks, which every weight slice passes on its die before the compute array.
    blocks: tuple[BlockSpec, ...] = ()
    # What differs from a perfect machine; null: nothing (archsim.specs.as_built).
    dies_as_built: DiesAsBuiltSpec | None = None
    links_as_built: LinksAsBuiltSpec | None = None
    spares: SparesSpec | None = None
    drawn: DrawnSpec | None = None
    # What it may draw, and how it is cooled; without these, every die keeps its clock.
    power: PowerSpec | None = None
    cooling: CoolingSpec | None = None

    def in_tables(self) -> SystemSpec:
        """The system with tables in the place of RTL, which gives the same numbers (``tests/rtl/test_lockstep.py``)."""
        blocks = tuple(block for block in self.blocks if not block.name.startswith("microarch.rtl.blocks:"))
        if blocks == self.blocks and not self.decision.fsm.components:
            return self
        fsm = self.decision.fsm.model_copy(update={"implementation": "table"})
        return self.model_copy(update={"blocks": blocks, "decision": self.decision.model_copy(update={"fsm": fsm})})

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
        """Without the keys of the other ways to describe a fabric."""
        optional = ("mesh", "fabric", "endpoint", "power", "cooling", *AS_BUILT)
        absent = {key for key in optional if getattr(self, key) is None} | ({"topology"} if self.fabric else set())
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
    def nominal_rates(self) -> Rates:
        """Peak and bandwidth of a die as designed, without ``efficiency``; fitted laws take these."""
        from archsim.laws.gemm import Rates

        return Rates(self.compute.peak_flop_per_s, self.hbm.bandwidth_bytes_per_s)

    @property
    def slowest(self) -> tuple[float, float]:
        """Least factor of the arrays and of the HBMs of its dies: those of work of which every die has as much."""
        return (1.0, 1.0) if self.built is None else (min(self.built.array), min(self.built.hbm))

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
        """The calibration that the innermost fabric level's ``law`` names, whose kernels move hidden vectors; or
        None.
        """
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
        """Dies and links in words: ``5 × 5 mesh``, ``4 × 8 switch``, ``12 × package.module:function``, ``24 dies of 5 ×
        5 mesh``.
        """
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


# ---- plausible
# Values of a machine that a unit mistyped by a thousand may explain: taken as they are, and told on every page.


class Usual(NamedTuple):
    """Ends between which the machines of 2017 to 2027 lie, with a factor of three or more to spare."""

    keys: tuple[str, ...]
    dimension: Dimension
    low: str
    high: str
    known: str


# Datasheets of V100 to Rubin, TPUs, MI355X, Cerebras and Dojo dies, and the wafers of the papers (configs/systems).
USUAL = (
    Usual(("hbm", "capacity_bytes"), SIZE, "1 GB", "2 TB", "16 GB (V100) to 432 GB (MI400) a die"),
    Usual(("hbm", "bandwidth_bytes_per_s"), BANDWIDTH, "50 GB/s", "100 TB/s", "0.3 TB/s (LPDDR) to 22 TB/s (Rubin)"),
    Usual(("hbm", "latency_ns"), TIME, "10 ns", "5 us", "100 to 1,000 ns"),
    Usual(
        ("d2d", "bandwidth_bytes_per_s"), BANDWIDTH, "4 GB/s", "50 TB/s", "12.5 GB/s (a NIC) to 10 TB/s (between dies)"
    ),
    Usual(("d2d", "hop_latency_ns"), TIME, "0.1 ns", "50 us", "1 ns (on a package) to 10 us (a network)"),
    Usual(("llc", "capacity_bytes"), SIZE, "100 kB", "2 GB", "4 MB to 512 MB"),
    Usual(("llc", "hit_ns"), TIME, "0.3 ns", "2 us", "5 to 500 ns"),
    Usual(("llc", "miss_ns"), TIME, "0.3 ns", "2 us", "5 to 500 ns"),
    Usual(("llc", "write_ns"), TIME, "0.3 ns", "2 us", "5 to 500 ns"),
    Usual(("compute", "peak_flop_per_s"), COMPUTE, "1 TFLOP/s", "200 PFLOP/s", "30 TFLOP/s to 50 PFLOP/s a die"),
)
_LEVEL = (("d2d", "bandwidth_bytes_per_s"), ("d2d", "hop_latency_ns"))  # that a level of a fabric has, too


def plausibility_notes(system: SystemSpec) -> list[str]:
    """A sentence for every value outside what machines have."""
    notes = []
    for usual in USUAL:
        part, field = usual.keys
        of = getattr(system, part)
        key = type(of).model_fields[field].alias
        given = [(f"{part}.{key}", getattr(of, field))]
        levels = system.fabric.levels if system.fabric and usual.keys in _LEVEL else ()
        given += [(f"fabric.levels.{at}.{key}", getattr(level, field)) for at, level in enumerate(levels)]
        low, high = parsed(usual.low, usual.dimension), parsed(usual.high, usual.dimension)
        for place, value in given:
            if value and not low <= value <= high:
                notes.append(
                    f"{system.name}: {place}: {format_quantity(value, usual.dimension)} is taken as given, but is far "
                    f"{'below' if value < low else 'above'} known machines ({usual.known}): check its unit"
                )
    return notes
