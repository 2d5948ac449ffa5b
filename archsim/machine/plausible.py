"""Values of a machine that a unit mistyped by a thousand may explain: taken as they are, and named on every page."""

from __future__ import annotations

from typing import NamedTuple

from archsim.base.quantities import BANDWIDTH, COMPUTE, SIZE, TIME, Dimension, format_quantity
from archsim.base.quantities import parse_quantity as parsed
from archsim.machine.system import SystemSpec


class Usual(NamedTuple):
    """Ends between which the machines of 2017 to 2027 lie, with a factor of three or more to spare."""

    keys: tuple[str, ...]  # path of the value in a system
    dimension: Dimension  # of its unit
    low: str  # least, with its unit
    high: str  # most, with its unit
    known: str  # values of known machines, in words


SRAM = "sram"
# Datasheets of V100 to Rubin, TPUs, MI355X, Cerebras and Dojo dies, and the wafers of the papers (configs/systems).
USUAL = (
    Usual(("hbm", "capacity_bytes"), SIZE, "1 GB", "2 TB", "16 GB (V100) to 432 GB (MI400) per die"),
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
    Usual(("compute", "peak_flop_per_s"), COMPUTE, "1 TFLOP/s", "200 PFLOP/s", "30 TFLOP/s to 50 PFLOP/s per die"),
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
        of_die = part == "hbm" and system.hbm.kind == SRAM  # memory of its own die: from kB to PB/s
        for place, value in [] if of_die else given:
            if value and not low <= value <= high:
                notes.append(
                    f"{system.name}: {place}: {format_quantity(value, usual.dimension)} is taken as given, but is far "
                    f"{'below' if value < low else 'above'} known machines ({usual.known}): check its unit"
                )
    return notes
