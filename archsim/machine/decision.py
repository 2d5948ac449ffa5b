"""The executor of decisions and its speed: the Global CP's state machine, firmware on an embedded core, a host CPU over
PCIe, or a kernel on every GPU.

The decision itself (which die runs what, what is copied) is the same for all of them; only its cost differs, and only
under ``decision_cost: charged``. How each number enters the time of a decision: ``microarch.blocks.global_cp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from archsim.base.errors import SpecError
from archsim.base.fields import KeyProblem, Spec
from archsim.base.quantities import BANDWIDTH, CLOCK, TIME, count, format_quantity, number, quantity
from archsim.laws.calibration_files import calibration_named
from archsim.machine.terms import TERMS

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
    cost_bits: Annotated[int, count(8, 64)] = 24  # width of a cost
    # A PDU gathers its cp_en bits in a second register, so that they take effect together; else it writes each word
    # through. The engine takes them with the last word either way; area and RTL have both.
    shadow: bool = True
    # Widths of the tables' ports (published simulator's paper, table II): distribution table, heatmap, prediction
    # table.
    table_port_bits: Annotated[int, count(1, 65536)] = 72
    heatmap_port_bits: Annotated[int, count(1, 65536)] = 512  # of the heatmap
    prediction_port_bits: Annotated[int, count(1, 65536)] = 16  # of the prediction table
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

    core: Literal["a76", "a72"] = "a76"  # that runs it
    clock_hz: Clock = Field(alias="clock")  # of the core
    ipc: Annotated[float, number(0.01, 16)]  # sustained instructions per cycle
    # Estimates, hand-counted in the compiled inner loops of archsim.policies.allocation (loads, compares, adds,
    # branch).
    per_table_entry: Annotated[float, number(0, 1e6)] = 6
    per_comparison: Annotated[float, number(0, 1e6)] = 8  # instructions
    per_candidate: Annotated[float, number(0, 1e6)] = 25  # instructions
    per_evaluation: Annotated[float, number(0, 1e6)] = 30  # instructions
    per_plan_entry: Annotated[float, number(0, 1e6)] = 12  # instructions
    per_heatmap_entry: Annotated[float, number(0, 1e6)] = 1.5  # instructions
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
    source: str = "cited defaults, and what is given"  # of these numbers
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
    def _fill_from_calibration(cls, given: Any) -> Any:
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
            key: format_quantity(float(f"{getattr(path, field):.4g}"), dimension)
            for key, (field, dimension) in _PATH.items()
            if key in wanted
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

    WAYS: ClassVar[Mapping[str, str]] = {
        "latency": "time follows from what the executor does; write host.time for that of a program on the host",
        "area": "area follows from tables and lanes: `archsim hardware area FILE`",
        "sram": "the tables are in SRAM with fsm.tables: on_chip, and in HBM with dram",
        **dict.fromkeys(("clock", "frequency"), "write fsm.clock, firmware.clock or local_clock"),
        **dict.fromkeys(("cpu", "pcie", "host_latency"), TERMS["host"]),
    }
    executor: Literal["fsm", "firmware", "host", "gpu"] = "fsm"  # of decisions
    # Clock of the Local CPs, PDUs and ATUs, which are logic of the dies: an H100 SXM runs at up to 1.98 GHz (as its
    # driver reports).
    local_clock_hz: Clock = Field(2e9, alias="local_clock")
    fsm: FsmSpec = FsmSpec()  # datapath of the state machine
    firmware: FirmwareSpec = Field(default_factory=lambda: FirmwareSpec.model_validate({}))  # of the embedded core
    host: HostSpec = HostSpec()  # PCIe, launch and sync of the CPU
    gpu: GpuSpec = Field(default_factory=lambda: GpuSpec.model_validate({}))  # the kernel
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
