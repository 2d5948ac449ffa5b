"""The laws of a machine: the calibration that it names, read as efficiencies at the machine's own rates."""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType

from archsim.base.units import DTYPES, WEIGHT_BYTES
from archsim.laws import scaling, transfers
from archsim.laws.calibration_files import calibration_digest, calibration_named
from archsim.laws.tables import CalibrationSpec, ReferenceRates
from archsim.machine.system import SystemSpec

# The latency of a hop of measured nodes where it is not that of an H100 (configs/systems/rtx_pro_6000_pair.yaml;
# h100_node.yaml). Latencies of parts of one kind differ by 0.7 to 1.5 (configs/uncertainty/widths.yaml). It decides
# where a machine's own number is another: ranges are then those of scaled laws (`has_measured_links`).
HOPS_NS, HOP_NS = MappingProxyType({"rtx-pro-6000-server": 1000.0}), 300.0  # 700 to 1500, and 210 to 450
NIC_HOP_NS = 2000.0  # between measured nodes (h100_cluster.yaml), 1400 to 3000


def calibration_on(system: SystemSpec) -> CalibrationSpec:
    """The calibration that a machine of GPUs names, at the machine's peak, HBM bandwidth, links and latencies of links.
    The calibration itself where the machine has the rates of the GPU that was measured. Raises SpecError for an unknown
    calibration.
    """
    return links_on(system, system.compute.calibration)


def links_on(system: SystemSpec, name: str | None) -> CalibrationSpec:
    """A calibration by name, such as that of a machine's links, at the rates of the machine."""
    return calibration_at(name, calibration_digest(name), rates_of(system, calibration_named(name)))


@lru_cache(maxsize=16)
def calibration_at(name: str | None, digest: str, rates: scaling.MachineRates) -> CalibrationSpec:
    """A calibration at the rates of a machine; ``digest``: of its file, since it may change."""
    return scaling.at_rates(calibration_named(name), rates)


def rates_of(system: SystemSpec, calibration: CalibrationSpec) -> scaling.MachineRates:
    """The rates of a machine of GPUs beside those of the GPU that was measured. A machine without a second level of
    links has the NICs of the measured nodes, which it does not use. Every collective of a level waits for its weakest
    link.
    """
    gpu, levels = calibration.gpu, system.fabric.levels if system.fabric is not None else ()
    peak = measured_peak(calibration.reference, system.compute.dtype)
    pair = (levels[0].bandwidth_bytes_per_s if levels else None) or system.d2d.bandwidth_bytes_per_s
    pair *= system.weakest_link(0)
    hop_ns = (levels[0].hop_latency_ns if levels else None) or system.d2d.hop_latency_ns
    nic_hop_ns = (levels[1].hop_latency_ns if len(levels) > 1 else None) or NIC_HOP_NS
    members = levels[0].size if levels else system.dies
    linked = bool(levels) and levels[0].kind == "fully_connected" and members > 1
    nic = (levels[1].bandwidth_bytes_per_s if len(levels) > 1 else None) or transfers.NIC_BYTES_PER_S
    return scaling.MachineRates(
        compute=system.compute.peak_flop_per_s / peak,
        memory=system.hbm.bandwidth_bytes_per_s / calibration.reference.hbm_bytes_per_s
        * (system.hbm.efficiency / transfers.read_share(calibration)),
        link_bytes_per_s=pair * (members - 1) if linked else pair,
        pair_bytes_per_s=pair,
        nic_bytes_per_s=nic * (system.weakest_link(1) if len(levels) > 1 else 1.0),
        hop_ns=hop_ns - HOPS_NS.get(gpu, HOP_NS),
        nic_hop_ns=nic_hop_ns - NIC_HOP_NS,
        domain=members,
        linked=linked,
    )  # fmt: skip


def measured_peak(reference: ReferenceRates, dtype: str) -> float:
    """FLOP/s of the measured GPU in a dtype, or in what its products compute in; of one that it lacks, BF16's, times as
    much as values are narrower.
    """
    peaks = reference.peak_flop_per_s
    of = dtype if dtype in peaks else DTYPES[dtype].computes
    return peaks[of] if of in peaks else peaks["bf16"] * WEIGHT_BYTES["bf16"] / WEIGHT_BYTES[of]


def scaled_report(system: SystemSpec) -> str:
    """How far a machine's rates are from those of the GPU whose times it takes; '' if they are equal."""
    calibration = calibration_named(system.compute.calibration)
    rates = rates_of(system, calibration)
    link, _, nic = scaling.link_ratios(calibration.gpu, rates)
    named = {"peak": rates.compute, "HBM bandwidth": rates.memory, "links of a node": link, "links between nodes": nic}
    other = [f"{ratio:.3g} times the {what}" for what, ratio in named.items() if ratio != 1]
    if not other:
        return ""
    said = " and ".join(filter(None, [", ".join(other[:-1]), other[-1]]))
    return f"Kernels and collectives of {system.name} take the times of {calibration.gpu} at {said}."


def has_measured_links(system: SystemSpec) -> bool:
    """Whether collectives of a node were measured on links of the machine's rate and latency."""
    calibration = calibration_named(system.compute.calibration)
    rates = rates_of(system, calibration)
    return scaling.link_ratios(calibration.gpu, rates)[:2] == (1.0, 1.0) and rates.hop_ns == 0


def is_measured(system: SystemSpec) -> bool:
    """Whether times were measured on a GPU of the machine's rates."""
    own = calibration_named(system.compute.calibration).reference
    return not system.datasheet_only and calibration_on(system).reference == own
