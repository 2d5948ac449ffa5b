"""Who decides, and how fast: the Global CP's state machine, firmware on an embedded core, or a host CPU over PCIe.

The decision itself (which die runs what, what is copied) is the same for all three; only its cost differs, and only under
``decision_cost: charged``. What each number means for the time of a decision is in ``microarch.global_cp``.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field, model_validator

from archsim.specs.base import Spec, count, number
from archsim.specs.quantities import BANDWIDTH, CLOCK, TIME, quantity

Clock = quantity(CLOCK, "1 MHz", "20 GHz")
Latency = quantity(TIME, "1e-3 ns", "1 s", zero=True)


class FsmSpec(Spec):
    """Datapath of the Global CP as a state machine."""

    # Of the die's logic; an H100 boosts to 1.98 GHz (NVIDIA H100 datasheet), and control logic follows it.
    clock_hz: Clock = Field(2e9, alias="clock")
    # Candidates evaluated side by side. Five (a home and its neighbours) are there unless copies were made; 8 is the next
    # power of two. A choice of archsim, swept in configs/decision_cost.yaml.
    lanes: count(1, 4096) = 8
    # Comparators of the sorter and of the selection of heatmap entries; one word of the heatmap port has 32 counters.
    comparators: count(1, 65536) = 32
    # merge: n log2 n comparisons; bitonic: n/2 log2 n (log2 n + 1)/2 (Batcher 1968), but no buffers.
    sorter: Literal["merge", "bitonic"] = "merge"
    # Widths of the tables' ports (published simulator's paper, table II): distribution table, heatmap, prediction table.
    table_port_bits: count(1, 65536) = 72
    heatmap_port_bits: count(1, 65536) = 512
    prediction_port_bits: count(1, 65536) = 16


# Clock and sustained IPC on integer code of cores that the paper names: Arm Cortex-A76 3.0 GHz (Arm, 2018: 7 nm, 3 GHz; IPC about
# 2 in SPECint: AnandTech, Kirin 980 review), Cortex-A72 2.5 GHz in 16 nm (Arm, 2015), IPC about 1.3 (same source, A72 columns).
CORES = MappingProxyType({"a76": {"clock": "3 GHz", "ipc": 2.0}, "a72": {"clock": "2.5 GHz", "ipc": 1.3}})


class FirmwareSpec(Spec):
    """The same decision as a program on an embedded core; instructions per unit of work are counts of the inner loops."""

    core: Literal["a76", "a72"] = "a76"
    clock_hz: Clock = Field(alias="clock")
    ipc: number(0.01, 16)
    # Estimates by hand-counting the compiled inner loops of archsim.policies.allocation (loads, compares, adds, branch).
    per_table_entry: number(0, 1e6) = 6
    per_comparison: number(0, 1e6) = 8
    per_candidate: number(0, 1e6) = 25
    per_evaluation: number(0, 1e6) = 30
    per_plan_entry: number(0, 1e6) = 12
    per_heatmap_entry: number(0, 1e6) = 1.5

    @model_validator(mode="before")
    @classmethod
    def _core_defaults(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("core", "a76") not in CORES:
            return given
        return CORES[given.get("core", "a76")] | given


class HostSpec(Spec):
    """The same decision on a host CPU, once per MoE layer: read back, decide, send, launch."""

    # null: the policy function is timed on the machine that runs archsim (median of repeats); results then differ from
    # machine to machine and from run to run.
    time_ns: quantity(TIME, "1 ns", "10 s") | None = Field(None, alias="time")
    # PCIe Gen5 x16, host to device and back, as measured (NVIDIA nvbandwidth issue 24: 55.3 GB/s).
    pcie_bandwidth_bytes_per_s: quantity(BANDWIDTH, "1 MB/s", "10 TB/s") = Field(55.3e9, alias="pcie_bandwidth")
    # Of one small copy-engine transfer (measured 2.3 to 3.4 us on H100; middle of the range).
    pcie_latency_ns: Latency = Field(2800.0, alias="pcie_latency")
    # Kernel launch on a stream, back to back (te42kyfo/gpu-benches, H200: 2.46 us).
    launch_ns: Latency = Field(2460.0, alias="launch")
    # The host notices that the device is done: about one more launch-size round trip (same source).
    sync_ns: Latency = Field(2460.0, alias="sync")


class DecisionSpec(Spec):
    """``decision: {executor: fsm | firmware | host, ...}`` of a system."""

    executor: Literal["fsm", "firmware", "host"] = "fsm"
    fsm: FsmSpec = FsmSpec()
    firmware: FirmwareSpec = Field(default_factory=lambda: FirmwareSpec.model_validate({}))
    host: HostSpec = HostSpec()
    # Entries of the ATU of a die (paper, table II).
    atu_entries: count(1, 1_000_000) = 512
