"""Measures of the dies and the links of a finished run: columns, list[die] and list[link]."""

import numpy as np

from archsim.engine.loop import Outcome
from archsim.engine.pair_traffic import link_traffic, pair_bytes
from archsim.engine.state import UNITS
from archsim.engine.step_counts import DECODE, PREFILL

LLC_PORTS, HBM, ARRAYS = range(UNITS)
MOST_DIES = 32  # of a machine whose pairs of dies are kept: 992 rows a run


def measure_dies(outcome: Outcome) -> dict[str, list]:
    """Columns over the dies of a run, list[die] each."""
    total_ns = outcome.prefill_ns + outcome.decode_ns
    port, hbm, compute = (per_die(outcome, unit) for unit in (LLC_PORTS, HBM, ARRAYS))
    dies, fabric = outcome.tally.dies, outcome.fabric
    columns = {
        "die": np.arange(fabric.dies),
        "x": _at(fabric.node_x, np.arange(fabric.dies)),
        "y": _at(fabric.node_y, np.arange(fabric.dies)),
        "compute_busy_ns": compute["busy_ns"],
        "compute_wait_ns": compute["wait_ns"],
        "hbm_busy_ns": hbm["busy_ns"],
        "hbm_wait_ns": hbm["wait_ns"],
        "hbm_bytes": hbm["bytes"],
        "llc_busy_ns": port["busy_ns"],
        "llc_wait_ns": port["wait_ns"],
        "compute_utilisation": share_of_time(compute["busy_ns"], total_ns),
        "hbm_utilisation": share_of_time(hbm["bytes"] / outcome.machine.hbm_bytes_per_ns, total_ns),
        "tokens": outcome.load.sum(axis=(0, 1)),
        "local_hbm_read_bytes": dies["local_read_bytes"],
        "remote_hbm_read_bytes": dies["remote_read_bytes"],
        "local_hbm_write_bytes": dies["write_bytes"],
        "activation_bytes": dies["activation_bytes"],
        "replica_peak_bytes": outcome.memory.copies.room["peak_bytes"],
    }
    for phase, row in (("prefill", PREFILL), ("decode", DECODE)):
        columns[f"{phase}_hbm_bytes"] = outcome.counts.hbm_bytes[row]
        columns[f"{phase}_tokens"] = outcome.counts.tokens[row]
    return {name: _as_list(column) for name, column in columns.items()}


def measure_links(outcome: Outcome) -> dict[str, list]:
    """Columns over the links of a run, list[link] each: one way each, or edges that are held both ways at once."""
    fabric, total_ns = outcome.fabric, outcome.prefill_ns + outcome.decode_ns
    counted = outcome.tally.resources[UNITS * fabric.dies :]
    one_way, shown = len(counted) == fabric.links, shown_links(outcome)
    src, dst = fabric.link_src[shown], fabric.link_dst[shown]
    columns = {
        "link": np.arange(len(counted)),
        "src": src,
        "dst": dst,
        "src_x": _at(fabric.node_x, src),
        "src_y": _at(fabric.node_y, src),
        "dst_x": _at(fabric.node_x, dst),
        "dst_y": _at(fabric.node_y, dst),
        "bytes": counted["bytes"],
        "busy_ns": counted["busy_ns"],
        "wait_ns": counted["wait_ns"],
        "utilisation": share_of_time(counted["busy_ns"], total_ns),
    }
    rates = _rates_of_links(outcome, one_way)
    for name, (n_bytes, ns) in link_traffic(outcome.machine, outcome.tally, rates).items():
        columns |= {f"{name}_bytes": n_bytes, f"{name}_ns": ns}
    direction = np.where(src == dst, "port", "one way" if one_way else "both ways").tolist()
    return {name: _as_list(column) for name, column in columns.items()} | {"direction": direction}


def shown_links(outcome: Outcome) -> np.ndarray:
    """int64[resource]: the link of the fabric by which each is named; of an edge, the one from the lower die."""
    one_way = outcome.machine.link_resources == outcome.fabric.links
    return np.arange(outcome.fabric.links) if one_way else _first_link_of_edges(outcome.fabric)


def measure_pairs(outcome: Outcome) -> dict[str, list]:
    """Columns over the ordered pairs of dies between which anything moved, list[pair] each; none for more than
    MOST_DIES.
    """
    moved = pair_bytes(outcome.tally)
    if outcome.fabric.dies > MOST_DIES:
        moved = {name: n_bytes[:0] for name, n_bytes in moved.items()}
    src, dst = np.nonzero(sum(moved.values()))
    columns = {"src": src, "dst": dst} | {f"{name}_bytes": n_bytes[src, dst] for name, n_bytes in moved.items()}
    return {name: _as_list(column) for name, column in columns.items()}


def _rates_of_links(outcome: Outcome, one_way: bool) -> np.ndarray:
    """float64[link]: bytes per ns; of an edge that is held both ways, those of its narrower link."""
    fabric = outcome.fabric
    if one_way:
        return fabric.link_bytes_per_ns
    rates = np.full(fabric.edges, np.inf)
    np.minimum.at(rates, fabric.link_edge, fabric.link_bytes_per_ns)
    return rates


def _as_list(column: np.ndarray) -> list:
    """Plain values; None where the engine reports none (NaN)."""
    values = column.tolist()
    return values if column.dtype.kind in "iu" else [None if value != value else value for value in values]


def per_die(outcome: Outcome, unit: int) -> np.ndarray:
    """RESOURCE[die]: LLC ports (0), HBM (1) or compute arrays (2)."""
    return outcome.tally.resources[unit * outcome.fabric.dies : (unit + 1) * outcome.fabric.dies]


def share_of_time(busy_ns: np.ndarray, total_ns: float) -> np.ndarray:
    return busy_ns / total_ns if total_ns else np.zeros(len(busy_ns))


def _at(place: np.ndarray | None, nodes: np.ndarray) -> np.ndarray:
    """Column or row of some nodes, NaN in a fabric without coordinates."""
    return np.full(len(nodes), np.nan) if place is None else place[nodes]


def _first_link_of_edges(fabric) -> np.ndarray:
    """int64[edge]: the link of each edge that leaves the lower node; of the two ports of a die, the one out of it."""
    return np.unique(fabric.link_edge, return_index=True)[1]
