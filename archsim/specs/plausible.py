"""Values of a machine that a unit mistyped by a thousand may explain: taken as they are, and told on every page."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from archsim.base.fields import BANDWIDTH, COMPUTE, SIZE, TIME, Dimension, as_written, format_quantity
from archsim.base.fields import parse_quantity as parsed


class Usual(NamedTuple):
    """Ends between which the machines of 2017 to 2027 lie, with a factor of three or more to spare."""

    keys: tuple[str, ...]
    dimension: Dimension
    low: str
    high: str
    known: str


# Datasheets of V100 to Rubin, TPUs, MI355X, Cerebras and Dojo dies, and the wafers of the papers (configs/systems).
USUAL = (
    Usual(("hbm", "capacity"), SIZE, "1 GB", "2 TB", "16 GB (V100) to 432 GB (MI400) a die"),
    Usual(("hbm", "bandwidth"), BANDWIDTH, "50 GB/s", "100 TB/s", "0.3 TB/s (LPDDR) to 22 TB/s (Rubin)"),
    Usual(("hbm", "latency"), TIME, "10 ns", "5 us", "100 to 1,000 ns"),
    Usual(("d2d", "bandwidth"), BANDWIDTH, "4 GB/s", "50 TB/s", "12.5 GB/s (a NIC) to 10 TB/s (between dies)"),
    Usual(("d2d", "hop_latency"), TIME, "0.1 ns", "50 us", "1 ns (on a package) to 10 us (a network)"),
    Usual(("llc", "capacity"), SIZE, "100 kB", "2 GB", "4 MB to 512 MB"),
    Usual(("llc", "hit"), TIME, "0.3 ns", "2 us", "5 to 500 ns"),
    Usual(("llc", "miss"), TIME, "0.3 ns", "2 us", "5 to 500 ns"),
    Usual(("llc", "write"), TIME, "0.3 ns", "2 us", "5 to 500 ns"),
    Usual(("compute", "peak"), COMPUTE, "1 TFLOP/s", "200 PFLOP/s", "30 TFLOP/s to 50 PFLOP/s a die"),
)
_LEVEL = {("d2d", "bandwidth"): "bandwidth", ("d2d", "hop_latency"): "hop_latency"}


def plausibility_notes(name: str, system: dict[str, Any]) -> list[str]:
    """A sentence for every value outside what machines have. system: a SystemSpec as it is written, by alias."""
    return [
        f"{name}: {key}: {format_quantity(value, each.dimension)} is taken as given, but is far "
        f"{'below' if value < parsed(each.low, each.dimension) else 'above'} known machines ({each.known}): check its "
        "unit"
        for each in USUAL
        for key, value in _values(each, system)
        if value and not parsed(each.low, each.dimension) <= value <= parsed(each.high, each.dimension)
    ]


def _values(usual: Usual, system: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Keys and values, in the base unit, of the machine and of the levels of its fabric."""
    read: Callable[[Any], float | None] = lambda text: (  # noqa: E731
        float(parsed(text, usual.dimension)) if isinstance(text, str) and as_written(text) else None
    )
    part, key = usual.keys
    if (value := read((system.get(part) or {}).get(key))) is not None:
        yield f"{part}.{key}", value
    levels = (system.get("fabric") or {}).get("levels") or () if usual.keys in _LEVEL else ()
    for at, level in enumerate(levels):
        if (value := read(level.get(key))) is not None:
            yield f"fabric.levels.{at}.{key}", value
