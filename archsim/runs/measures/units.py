"""What dies, links, pairs of dies and steps of a finished run did, and what each of their columns means."""

# ruff: noqa: E501  (one row a column: a table is read across)

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from archsim.base.causes import CAUSES, Cause
from archsim.base.tables import INTEGER, REAL, TEXT
from archsim.runs.finished import ARRAYS, HBM, LLC_PORTS, Column, Finished, per_die, share_of_time, untimed_bytes
from archsim.runs.measures.inputs import OF_RUN
from archsim.runs.packed_steps import NO_LINK

if TYPE_CHECKING:
    from archsim.engine.loop import RunOutcome


def _each(kind: str, unit: str, **meanings: str) -> tuple[Column, ...]:
    return tuple(Column(name, kind, unit, meaning) for name, meaning in meanings.items())


_MOVED = {  # class of archsim.engine.demand → meaning
    "request": "requests for slices of weights",
    "weight": "slices of weights that were streamed",
    "dispatch": "hidden vectors on their way to experts",
    "combine": "results of experts",
    "replica": "weights of experts that rebalancing moved or replication fetched",
    "statistics": "counts of loads for decisions (a decision waits for them, and they slow no transfer)",
}
# Classes of archsim.engine.demand, without requests, whose bytes are next to nothing.
_AS_COUNTED = ("link_bytes", "link_busy_ns", "die", "die_tokens", "tokens", "expert", "expert_tokens")
CLASSES = ("weight", "dispatch", "combine", "replica", "statistics")


STEPS: tuple[Column, ...] = (
    *OF_RUN,
    *_each(INTEGER, "", step="iteration; 0 is the prefill, where there is one", layer="the model's number of the MoE layer"),
    *_each(REAL, "ns", time_ns="of the layer in this iteration, exposed time of decisions included"),
    *(Column(f"bound_{cause.column}_ns", REAL, "ns", f"of the critical path: {about.meaning}") for cause, about in CAUSES.items()),
    *_each(INTEGER, "bytes", hbm_local_read_bytes="weights read by dies from their own HBM", hbm_remote_read_bytes="weights read from the HBM of others",
           hbm_write_bytes="cached copies written", hbm_activation_bytes="hidden vectors through HBM"),
    *(Column(f"{name}_bytes", INTEGER, "bytes", f"sent from die to die: {_MOVED[name]}; 0 for more than 128 dies") for name in CLASSES),
    *_each(INTEGER, "", link="number of the busiest link, as in links.csv; empty where none was busy", link_src="from die (or switch)", link_dst="to die (or switch)"),
    *_each(INTEGER, "bytes", link_bytes="that crossed it"),
    *_each(REAL, "ns", link_busy_ns="it is held or transfers"),
    *_each(INTEGER, "", die="the die with most tokens"),
    *_each(INTEGER, "tokens", die_tokens="its pairs of token and expert", tokens="those of all dies"),
    *_each(INTEGER, "", expert="the expert with most tokens"),
    *_each(INTEGER, "tokens", expert_tokens="its tokens"),
)  # fmt: skip


def measure_steps(run: Finished) -> dict[str, np.ndarray]:
    """Columns over the steps, one row a layer of an iteration. Empty where none
    are kept: of more than `archsim.engine.step_counts.MOST_STEPS` steps."""
    from archsim.engine.step_counts import MOVED

    counts = run.outcome.counts.columns()
    if not len(counts["step"]):
        return {}
    layers, bound_ns = np.array(run.demand.layer_ids), counts["bound_ns"]
    columns = {"step": counts["step"], "layer": layers[counts["layer"]], "time_ns": counts["time_ns"]}
    columns |= {f"bound_{cause.column}_ns": bound_ns[:, cause] for cause in CAUSES}
    columns[f"bound_{Cause.DECISION.column}_ns"] = counts["decision_ns"]
    for at, name in enumerate(("local_read", "remote_read", "write", "activation")):
        columns[f"hbm_{name}_bytes"] = counts["hbm_bytes"][:, at]
    for name in CLASSES:
        columns[f"{name}_bytes"] = counts["moved"][:, MOVED.index(name)]
    busiest, shown, fabric = counts["link"], shown_links(run.outcome), run.outcome.fabric
    columns["link"] = busiest
    for name, ends in (("link_src", fabric.link_src), ("link_dst", fabric.link_dst)):
        columns[name] = busiest
        if len(shown):
            columns[name] = np.where(busiest >= 0, ends[shown[np.maximum(busiest, 0)]], NO_LINK).astype(np.int64)
    return columns | {name: counts[name] for name in _AS_COUNTED}


MOST_DIES = 32  # of a machine whose pairs of dies are kept: 992 rows a run


DIES: tuple[Column, ...] = (
    *OF_RUN,
    *_each(INTEGER, "", die="number of the die", x="its column", y="its row"),
    *_each(REAL, "ns", compute_busy_ns="the compute array works", compute_wait_ns="work waits for it", hbm_busy_ns="HBM works", hbm_wait_ns="transfers wait for it"),
    *_each(INTEGER, "bytes", hbm_bytes="that HBM moves"),
    *_each(REAL, "ns", llc_busy_ns="the port of the LLC works", llc_wait_ns="transfers wait for it"),
    *_each(REAL, "share", compute_utilisation="time that the compute array is busy", hbm_utilisation="bytes moved, as a share of what HBM could move in this time"),
    *_each(INTEGER, "tokens", tokens="pairs of token and expert assigned to the die"),
    *_each(INTEGER, "bytes", local_hbm_read_bytes="read from its own HBM", remote_hbm_read_bytes="read from its HBM by other dies", local_hbm_write_bytes="written as cached copies"),
    *_each(INTEGER, "bytes", activation_bytes="hidden vectors sent and received", moved_weight_bytes="weights that rebalancing, replication or a step's fetches read and wrote, beside those reads and copies", replica_peak_bytes="peak size of cached copies"),
    Column("power_w", REAL, "W", "mean of the run, with its HBM; empty for a system without power and cooling", optional=True),
    Column("temperature_c", REAL, "C", "of its hottest spot, in the hotter of prefill and decode; empty without cooling", optional=True),
    Column("hbm_temperature_c", REAL, "C", "of its HBM, likewise", optional=True),
    Column("site", INTEGER, "", "its number in the perfect machine; dead and spare dies have no row"),
    Column("array_speed", REAL, "share", "clock of its array over the nominal one, as it was built"),
    Column("hbm_speed", REAL, "share", "bandwidth of its HBM over the nominal one, as it was built"),
    *(Column(f"{prefix}clock", REAL, "share", f"to which limits lower the clock of its array in {phase}; empty for a system without power and cooling", optional=True)
      for prefix, phase in (("", "decode"), ("prefill_", "the prefill"))),
    *(column for phase in ("prefill", "decode") for column in (
        Column(f"{phase}_hbm_bytes", INTEGER, "bytes", f"of hbm_bytes, in {phase}, without weights that move in no time (migration: free)"),
        Column(f"{phase}_tokens", INTEGER, "tokens", f"of tokens, in {phase}"),
    )),
)  # fmt: skip


def measure_dies(run: Finished) -> dict[str, list]:
    """Columns over the dies of a run, list[die] each."""
    from archsim.engine.pair_traffic import pair_bytes
    from archsim.engine.step_counts import DECODE, PREFILL

    outcome, built = run.outcome, run.run.system.built
    total_ns = outcome.prefill_ns + outcome.decode_ns
    port, hbm, compute = (per_die(outcome, unit) for unit in (LLC_PORTS, HBM, ARRAYS))
    dies, fabric, sent = outcome.tally.dies, outcome.fabric, pair_bytes(outcome.tally)
    moved = sent["replica"].sum(axis=0) + sent["replica"].sum(axis=1)
    if run.run.assumptions.execution == "expert_parallel":  # which keeps what it fetches for a step in HBM
        moved += sent["weight"].sum(axis=0)
    columns = {
        "die": np.arange(fabric.dies),
        "x": _at(fabric.node_x, np.arange(fabric.dies)),
        "y": _at(fabric.node_y, np.arange(fabric.dies)),
        "compute_busy_ns": compute["busy_ns"],
        "compute_wait_ns": compute["wait_ns"],
        "hbm_busy_ns": hbm["busy_ns"],
        "hbm_wait_ns": hbm["wait_ns"],
        "hbm_bytes": hbm["bytes"] + untimed_bytes(outcome)[HBM * fabric.dies : ARRAYS * fabric.dies],
        "llc_busy_ns": port["busy_ns"],
        "llc_wait_ns": port["wait_ns"],
        "compute_utilisation": share_of_time(compute["busy_ns"], total_ns),
        "hbm_utilisation": share_of_time(hbm["bytes"] / outcome.machine.hbm_rates, total_ns),
        "tokens": outcome.load.sum(axis=(0, 1)),
        "local_hbm_read_bytes": dies["local_read_bytes"],
        "remote_hbm_read_bytes": dies["remote_read_bytes"],
        "local_hbm_write_bytes": dies["write_bytes"],
        "activation_bytes": dies["activation_bytes"],
        "moved_weight_bytes": moved,
        "replica_peak_bytes": outcome.memory.copies.room["peak_bytes"],
    }
    nothing, power = np.full(fabric.dies, np.nan), outcome.power
    kelvin = [
        None if power is None else power.most(get)
        for get in (lambda each: each.heat and each.heat.die_c, lambda each: each.heat and each.heat.hbm_c)
    ]
    columns["power_w"] = nothing if power is None or not power.classes else power.die_w
    columns |= {
        name: nothing if each is None else each
        for name, each in zip(("temperature_c", "hbm_temperature_c"), kelvin, strict=True)
    }
    machine = outcome.machine
    columns["site"] = np.arange(fabric.dies) if built is None else np.array(built.living)
    columns["array_speed"], columns["hbm_speed"] = machine.array_speeds, machine.hbm_rates / machine.hbm_bytes_per_ns
    for prefix, row in (("", DECODE), ("prefill_", PREFILL)):
        known = power is not None and row in power.classes
        columns[f"{prefix}clock"] = power.classes[row].die_clock if known else nothing
    for phase, row in (("prefill", PREFILL), ("decode", DECODE)):
        columns[f"{phase}_hbm_bytes"] = outcome.counts.hbm_bytes[row]
        columns[f"{phase}_tokens"] = outcome.counts.tokens[row]
    return {name: _as_list(column) for name, column in columns.items()}


LINKS: tuple[Column, ...] = (
    *OF_RUN,
    *_each(INTEGER, "", link="number of the link", src="from die (or switch)", dst="to die (or switch)", src_x="", src_y="", dst_x="", dst_y=""),
    *_each(TEXT, "", direction="one way, or both ways for an edge that is held as a whole"),
    *_each(INTEGER, "bytes", bytes="that crossed it"),
    *_each(REAL, "ns", busy_ns="it is held or transfers", wait_ns="transfers wait for it; empty for engines that do not measure it"),
    *_each(REAL, "share", utilisation="time that it is busy"),
    *(column for name, meaning in _MOVED.items() for column in (
        Column(f"{name}_bytes", INTEGER, "bytes", f"that crossed it: {meaning}"),
        Column(f"{name}_ns", REAL, "ns", "time that they take at its full rate"),
    )),
)  # fmt: skip


def measure_links(outcome: RunOutcome) -> dict[str, list]:
    """Columns over the links of a run, list[link] each: one way each, or edges that are held both ways at once."""
    from archsim.engine.pair_traffic import link_traffic
    from archsim.engine.state import UNITS

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
    rates = fabric.link_bytes_per_ns
    if not one_way:  # of an edge that is held both ways, those of its narrower link
        rates = np.full(fabric.edges, np.inf)
        np.minimum.at(rates, fabric.link_edge, fabric.link_bytes_per_ns)
    for name, (n_bytes, ns) in link_traffic(outcome.machine, outcome.tally, rates).items():
        columns |= {f"{name}_bytes": n_bytes, f"{name}_ns": ns}
    # engines put neither statistics on links, nor weights that take no time
    columns["bytes"] = counted["bytes"] + untimed_bytes(outcome)[UNITS * fabric.dies :] + columns["statistics_bytes"]
    direction = np.where(src == dst, "port", "one way" if one_way else "both ways").tolist()
    return {name: _as_list(column) for name, column in columns.items()} | {"direction": direction}


def shown_links(outcome: RunOutcome) -> np.ndarray:
    """int64[resource]: the link of the fabric by which each is named; of an edge, the one from the lower die."""
    one_way = outcome.machine.link_resources == outcome.fabric.links
    if one_way:
        return np.arange(outcome.fabric.links)
    return np.unique(outcome.fabric.link_edge, return_index=True)[1]  # of a die's two ports, the one out of it


PAIRS: tuple[Column, ...] = (
    *OF_RUN,
    *_each(INTEGER, "", src="from die", dst="to die"),
    *(Column(f"{name}_bytes", INTEGER, "bytes", meaning) for name, meaning in _MOVED.items()),
)


def measure_pairs(outcome: RunOutcome) -> dict[str, list]:
    """Columns over the ordered pairs of dies between which anything moved, list[pair] each; none for more than
    MOST_DIES.
    """
    from archsim.engine.pair_traffic import pair_bytes

    moved = pair_bytes(outcome.tally)
    if outcome.fabric.dies > MOST_DIES:
        moved = {name: n_bytes[:0] for name, n_bytes in moved.items()}
    src, dst = np.nonzero(np.sum(list(moved.values()), axis=0))
    columns = {"src": src, "dst": dst} | {f"{name}_bytes": n_bytes[src, dst] for name, n_bytes in moved.items()}
    return {name: _as_list(column) for name, column in columns.items()}


def _as_list(column: np.ndarray) -> list:
    """Plain values; None where the engine reports none (NaN)."""
    values = column.tolist()
    return values if column.dtype.kind in "iu" else [None if value != value else value for value in values]


def _at(place: np.ndarray | None, nodes: np.ndarray) -> np.ndarray:
    """Column or row of some nodes, NaN in a fabric without coordinates."""
    return np.full(len(nodes), np.nan) if place is None else place[nodes]
