# ruff: noqa: E501  (one row a column: a table is read across)
"""The columns of results: one row each, read by whoever measures, stores, shows or documents them.

To add one, add a row with its function; a user's own is a function ``(outcome, scenario) -> value`` that the
experiment names::

    columns: [my_columns:longest_step_ns]

Its name is the function's, its kind what the function is annotated to return (``int``, ``float`` or ``str``; default
``float``), its meaning the first line of its docstring, its unit the end of its name (``_ns``, ``_bytes``, …).
"""

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from archsim.base.causes import CAUSES, Cause
from archsim.base.errors import ArchsimError, SpecError
from archsim.base.own_code import import_function
from archsim.base.tables import INTEGER, REAL, TEXT
from archsim.runs import measure, measure_rates, measure_steps
from archsim.runs.measure import Finished, bound, exposed, hop_messages, host_percentile, over_dies, overhead_percentile
from archsim.runs.measure_iteration import (
    DECODE,
    PARTS_OF_ITERATION,
    PREFILL,
    attention_law,
    iteration_energy,
    of_iteration,
    whole_iteration,
)
from archsim.specs.own_execution import columns_of

Measure = Callable[[Finished], Any]
LAYOUT = 5  # of results: raised when columns are added or change meaning; stored in manifests
# Layouts of results from which on a cause has a column, where not from the first
_SINCE = MappingProxyType({Cause.LAUNCH: 3, Cause.INEFFICIENCY: 5, Cause.PERMUTE: 5, Cause.BLOCKS: 5})


@dataclass(frozen=True)
class Column:
    """A column of the results.

    ``kind``: INTEGER, REAL or TEXT. ``unit``: as in names (``ns``, ``bytes``, ``share`` of 1, ``percent``, …).
    ``measure``: returns its value for a finished run; None if it follows from other rows. ``optional``: the cell is
    empty where ``meaning`` says so. ``since``: the first layout that has it. ``header``: what tables of the page and
    the terminal call it, '' for those that leave it out; ``after``: the column that it stands behind there, if that is
    another than here. ``page``: the page's figures read it.
    """

    name: str
    kind: str
    unit: str
    meaning: str
    measure: Measure | None
    header: str = ""
    page: bool = False
    optional: bool = False
    since: int = 1
    after: str = ""


COLUMNS: tuple[Column, ...] = (
    Column("system", TEXT, "", "name of the system", lambda run: run.run.system.name),
    Column("mesh_x", INTEGER, "dies", "dies along x; empty for a system without a mesh", measure.mesh_side("x"), page=True, optional=True),
    Column("mesh_y", INTEGER, "dies", "dies along y; empty for a system without a mesh", measure.mesh_side("y"), page=True, optional=True),
    Column("model", TEXT, "", "name of the model", lambda run: run.run.model.name),
    Column("trace", TEXT, "", "the routing: last two names of the trace's path, or what was generated", measure.trace),
    Column("batch", INTEGER, "requests", "requests that are served together", lambda run: run.run.batch),
    Column("policy", TEXT, "", "name of the policy", lambda run: run.run.policy.name),
    Column("engine", TEXT, "", "event or analytical", lambda run: run.run.engine),
    Column("assumptions", TEXT, "", "label of the assumption set", lambda run: run.run.assumptions.label),
    Column("decode_steps", INTEGER, "steps", "iterations that ran, without prefill and warm-up", lambda run: len(run.decode), "decode steps", True),
    Column("prefill_ns", REAL, "ns", "0 where no prefill ran, or a warm-up follows it", lambda run: run.outcome.prefill_ns, "prefill", True),
    Column("decode_ns", REAL, "ns", "time of decode", lambda run: run.outcome.decode_ns, "decode", True),
    Column("throughput_tokens_per_s", REAL, "tokens/s", "of decode, as the assumption throughput counts, of the layers that ran; tables show tokens_per_s; empty without decode",
           measure.throughput, page=True, optional=True),
    Column("speedup_vs_base", REAL, "×", "decode throughput over that of policy base, all else equal; empty without such a run", None,
           "speed-up over base", True, True),
    Column("speedup_vs_ep", REAL, "×", "decode throughput over that of policy ep, all else equal; empty without such a run", None,
           "speed-up over ep", True, True, 2, "decode_ns"),
    Column("hop_messages", INTEGER, "message hops", "messages times hops (dies entered), of the types that the assumption hops counts",
           measure.hops(measure.MESSAGES), "hops, messages", True),
    Column("hop_bytes", INTEGER, "byte hops", "bytes times hops of these messages", measure.hops(measure.BYTES), "hops, bytes", True),
    Column("local_hbm_read_bytes", INTEGER, "bytes", "read by a die from its own HBM", over_dies("local_read_bytes"), "local HBM reads", True),
    Column("remote_hbm_read_bytes", INTEGER, "bytes", "read by a die from the HBM of another", over_dies("remote_read_bytes"), "remote HBM reads", True),
    Column("local_hbm_write_bytes", INTEGER, "bytes", "written to HBM as cached copies", over_dies("write_bytes"), "HBM writes of copies", True),
    Column("activation_bytes", INTEGER, "bytes", "hidden vectors sent from die to die", lambda run: run.outcome.tally.moved_bytes.sum(),
           "activations between dies", True),
    Column("die_utilisation", REAL, "share", "time that the compute array is busy, mean over dies", measure.die_utilisation, "die utilisation", True),
    Column("load_max_over_mean", REAL, "×", "tokens of the busiest over those of the average die, mean over steps; empty without decode",
           measure.load_max_over_mean, "load, max over mean", True, True),
    Column("replicas_max_bytes_per_die", INTEGER, "bytes", "peak size of cached copies on a die",
           lambda run: run.outcome.memory.copies.room["peak_bytes"].max(), "copies on the fullest die", True),
    Column("events", INTEGER, "events", "events of the event engine; steps of the analytical one's walk", lambda run: run.outcome.tally.events[0], "events", True),
    Column("hop_request_messages", INTEGER, "message hops", "requests for slices, times hops", hop_messages("REQUESTS")),
    Column("hop_data_messages", INTEGER, "message hops", "slices, times hops", hop_messages("DATA_MESSAGES")),
    Column("hop_activation_messages", INTEGER, "message hops", "messages of hidden vectors, times hops", hop_messages("HIDDEN")),
    Column("replicas_evicted", INTEGER, "replicas", "cached copies that were evicted", lambda run: run.outcome.memory.copies.room["evictions"].sum()),
    *(
        Column(f"copies_{name}_bytes", INTEGER, "bytes", meaning, measure.copies(name), page=True, since=2)
        for name, meaning in (
            ("saved", "slices of other dies' experts that a die found among its cached copies, and did not read remotely"),
            ("evicted_unused", "cached copies that were evicted without having been read"),
            ("evicted_used", "cached copies that were evicted after having been read"),
            ("held", "cached copies on all dies at the end of the run"),
        )
    ),
    *(
        Column(f"bound_{cause.column}", REAL, "share", f"time on the critical path that {about.meaning} takes; empty for a run without time",
               bound(cause.column), page=True, optional=True, since=_SINCE.get(cause, 1))
        for cause, about in CAUSES.items()
    ),
    Column("bounded_by", TEXT, "", "the largest of these shares, by name; empty for a run without time", measure.bounded_by, optional=True),
    Column("bounded_by_margin", REAL, "share", "by how much it is larger than the next", measure.bounded_by_margin, optional=True),
    Column("decision_ns", REAL, "ns", "time of decisions, hidden or not", lambda run: run.outcome.decision.states_ns.sum()),
    Column("decision_exposed_ns", REAL, "ns", "time of decisions that the machine waits for", measure.decision_exposed_ns, page=True),
    Column("decision_overhead_percent", REAL, "percent", "exposed time of decisions over the rest of each step, mean", measure.overhead_mean,
           "overhead of decisions", True, True, after="replicas_max_bytes_per_die"),
    *(
        Column(f"decision_overhead_percent_p{at}", REAL, "percent", f"as above, {at}th percentile over steps", overhead_percentile(at), page=True, optional=True)
        for at in (50, 99)
    ),
    *(
        Column(f"host_p{at}_ns", REAL, "ns", f"{at}th percentile of the calls of a policy function timed on this machine; empty where none was",
               host_percentile(at), page=True, optional=True)
        for at in measure.HOST_PERCENTILES
    ),
    Column("host_calls", INTEGER, "calls", "calls of a policy function that were timed", lambda run: len(run.outcome.decision.called_ns)),
    *(
        Column(f"exposed_{state.lower()}_ns", REAL, "ns", f"exposed time of decisions in state {state}", exposed(state), page=state == "EVALUATE")
        for state in ("READ", "UPDATE", "RECEIVE", "ORDER", "GENERATE", "EVALUATE", "MERGE", "DISPATCH", "COLLECT")
    ),
    Column("heatmap_dropped", INTEGER, "transitions", "token transitions that the heatmap dropped", lambda run: run.outcome.heatmap_dropped, page=True),
    Column("atu_misses", INTEGER, "misses", "of the address translation units", lambda run: run.outcome.memory.atu.misses.sum(), page=True),
    Column("expert_tokens", INTEGER, "tokens", "pairs of token and routed expert that ran, over all layers, prefill included", lambda run: run.work["expert_tokens"], page=True, since=2),
    Column("hbm_bytes", INTEGER, "bytes", "read and written, hidden vectors included", lambda run: run.work["hbm_bytes"], since=2),
    Column("link_bytes", INTEGER, "bytes", "bytes times the links that they crossed", lambda run: run.work["link_bytes"], since=2),
    Column("flop", REAL, "flop", "of expert GEMMs", lambda run: run.work["flop"], page=True, since=2),
    Column("decode_ns_low", REAL, "ns", "GEMMs at the 5 % residual of their calibration; empty without one", measure.decode_low_ns,
           "decode, low", True, True, 2, "decode_ns"),
    Column("decode_ns_high", REAL, "ns", "GEMMs at the 95 % residual of their calibration; empty without one", measure.decode_high_ns,
           "decode, high", True, True, 2, "decode_ns_low"),
    Column("gemm_law", TEXT, "", "measured fused layers whose fitted laws time the experts; empty unless gemm is grouped",
           lambda run: run.outcome.gemm_law or None, optional=True, since=3),
    Column("transfer_law", TEXT, "", "measured kernels that hidden vectors wait for; empty unless a GPU's transfer software is charged",
           measure.transfer_law, optional=True, since=3),
    Column("gemm_extrapolated", REAL, "share", "GEMM time at sizes that were not measured; empty without a calibration", measure.gemm_extrapolated,
           "GEMMs extrapolated", True, True, 2, "decode_ns_high"),
    Column("copies_extrapolated", REAL, "share", "slices of a size whose copies were not measured; empty where links are not calibrated",
           measure.copies_extrapolated, "copies extrapolated", True, True, 2, "gemm_extrapolated"),
    Column("dispatch_bytes", INTEGER, "bytes", "hidden vectors sent from die to die, to experts", lambda run: run.outcome.tally.moved_bytes[0],
           "dispatched between dies", True, False, 2, "activation_bytes"),
    Column("combine_bytes", INTEGER, "bytes", "results of experts sent from die to die, back to their tokens", lambda run: run.outcome.tally.moved_bytes[1],
           "combined between dies", True, False, 2, "dispatch_bytes"),
    Column("drawn_from", REAL, "requests", "requests of the trace that the batch, which is larger, is made from; else empty",
           measure.drawn_from, page=True, optional=True, since=2),
    Column("extend", TEXT, "", "how it is made from them: redraw, shifted or fitted; else empty", measure.extended_by, optional=True, since=4),
    Column("active_experts", REAL, "experts", "experts with tokens, mean over decode steps and layers; empty without decode steps",
           measure.active_experts, optional=True, since=4),
    Column("active_if_distinct", REAL, "experts", "upper estimate of the same if all requests of such a batch were different ones; else empty",
           measure.active_if_distinct, optional=True, since=4),
    *(
        Column(name, REAL, unit, meaning, lambda run, name=name: run.economics[name], optional=name in ("energy_per_token_j", "power_w"), since=2)
        for name, unit, meaning in (
            ("energy_per_token_j", "J/token", "of MoE layers alone, prefill included, over tokens that passed all of them; empty without tokens"),
            ("power_w", "W", "mean of the whole run, MoE layers alone; empty for a run without time"),
            ("die_mm2", "mm²", "estimated area of one die"),
            ("silicon_mm2", "mm²", "of all dies, without HBM"),
            ("cost_usd", "USD", "estimated price of making one machine"),
        )
    ),
    *(
        Column(f"iteration_energy_per_token_j{end}", REAL, "J/token", meaning, iteration_energy(bound), optional=True, since=5)
        for end, bound, meaning in (
            ("", "value", "of a whole decode iteration: attention, dense layers, head and waiting included; empty where it is not known"),
            ("_low", "low", "as iteration_energy_per_token_j, all coefficients of energy at their low bound"),
            ("_high", "high", "as iteration_energy_per_token_j, all coefficients of energy at their high bound"),
        )
    ),
    *(
        column
        for phase, prefix, what, since in ((DECODE, "", "decode iteration", 3), (PREFILL, "prefill_", "prefill", 5))
        for column in (
            Column(f"{prefix}iteration_ns", REAL, "ns", f"a whole {what} under execution: expert_parallel, attention and head included; else empty",
                   whole_iteration(phase), optional=True, since=since),
            *(
                Column(f"{prefix}iteration_{part}_ns", REAL, "ns", f"of it: {meaning}", of_iteration(part, phase), optional=True, since=since)
                for part, meaning in PARTS_OF_ITERATION.items()
            ),
        )
    ),
    *(
        Column(f"{name}_{bound}", REAL, unit, f"as {name}, all coefficients of energy at their {bound} bound", lambda run, name=f"{name}_{bound}": run.economics[name], optional=True, since=3)
        for name, unit in (("energy_per_token_j", "J/token"), ("power_w", "W"))
        for bound in ("low", "high")
    ),
    Column("hbm_all_counted", INTEGER, "", "1: KV cache, attention and activations are counted in HBM beside experts; 0: the model lacks what that needs; empty under memory: experts",
           measure.hbm_all_counted, page=True, optional=True, since=3),
    Column("approximate", TEXT, "", "what the model has and nothing here reads, of a model imported with --accept-approximate; else empty",
           measure.approximate, optional=True, since=3),
    Column("attention_law", TEXT, "", "what the times of attention rest on where its kind was not measured; else empty",
           attention_law, optional=True, since=5),
    Column("context_tokens", INTEGER, "tokens", "KV cache of a request; empty where experts alone are counted", lambda run: run.beside_experts.context, page=True, optional=True, since=3),
    Column("context_from", TEXT, "", "what says it: the workload, or the longest request of the batch; empty where experts alone are counted",
           measure.context_from, optional=True, since=3),
    *(
        Column(name, INTEGER, "bytes", f"{what} on the die with most of it; empty where experts alone are counted", measure.beside_experts(kind), optional=True, since=3)
        for name, kind, what in (
            ("hbm_kv_bytes", "KV cache", "KV cache"),
            ("hbm_attention_bytes", "attention", "weights of attention, dense layers, routers and embeddings"),
            ("hbm_activation_bytes", "activations", "bound for activations of a step"),
        )
    ),
    Column("copy_room_bytes", INTEGER, "bytes", "left for cached copies on the die with least; empty where capacity is unbounded", measure.copy_room, optional=True, since=3),
    *(
        Column(f"load_ceiling_{name}", REAL, "×", f"least load of the busiest die over the mean, {meaning}; mean over steps, empty without decode",
               measure.load_ceiling(name), page=True, optional=True, since=3)
        for name, meaning in (
            ("slots", "with any placement of as many slots: a lower bound"),
            ("placement", "with tokens divided at best among holders"),
        )
    ),
    Column("migrated_bytes", INTEGER, "bytes", "weights that rebalancing moved", measure.balancing("migrated_bytes"), page=True, since=3),
    Column("migration_exposed_ns", REAL, "ns", "time that steps waited for them and for the decision", measure.balancing("migration_exposed_ns"), page=True, since=3),
    Column("prefetched_bytes", INTEGER, "bytes", "weights fetched as replicas for the next layer", measure.balancing("replicated_bytes"), page=True, since=3),
    Column("prefetch_exposed_ns", REAL, "ns", "time that steps waited for them and for the decision", measure.balancing("replication_exposed_ns"), page=True, since=3),
    Column("pairs_lost", INTEGER, "pairs", "pairs of token and expert that the router chose and nobody executed", measure.pairs_lost, page=True, since=3),
    Column("gate_mass_lost", REAL, "share", "gate mass of pairs that are not executed, less that of those executed instead; scores are the trace's, else generated",
           measure.gate_mass_lost, page=True, since=3),
    Column("uncharged", TEXT, "", "own functions of the policy that return no Effort, so that their decisions take no time; empty: none", measure.uncharged, optional=True, since=3),
    Column("replica_hbm_bytes", INTEGER, "bytes", "HBM of all dies for slots beyond one for each expert, of all MoE layers of the model, at the end", measure.replica_hbm,
           page=True, since=3),
    Column("run", TEXT, "", "key of the run: names everything that it is made of", None),
    Column("layers", INTEGER, "layers", "MoE layers that ran; times, counts and throughput_tokens_per_s are those of these, unscaled", lambda run: run.demand.layers, page=True, since=2),
    Column("tokens_per_s", REAL, "tokens/s", "tokens that decode generates over its time, scaled to all MoE layers of the model; empty without decode",
           measure_rates.tokens_per_s, "throughput", True, True, 4, "copies_extrapolated"),
    Column("decode_step_ns", REAL, "ns", "a decode step through all MoE layers of the model, mean; empty without decode",
           measure_rates.decode_step_ns, "a decode step", True, True, 4, "tokens_per_s"),
    Column("decode_batch_token_ns", REAL, "ns", "that over the requests of the batch: time a token of the batch, not of a request, whose TPOT is that of whole iterations; empty without decode", measure_rates.decode_batch_token_ns, "time a token of the batch", True, True, 4, "decode_step_ns"),
    Column("mfu", REAL, "share", "FLOP of experts over the peak of all dies in the time, prefill included", measure_rates.mfu, "MFU", True, True, 4, "decode_batch_token_ns"),
    Column("hbm_bandwidth_utilisation", REAL, "share", "bytes of HBM over the nominal bandwidth of all dies in the time, prefill included",
           measure_rates.hbm_use, "HBM bandwidth used", True, True, 4, "mfu"),
    Column("over_roofline", REAL, "×", "time over the least in which evenly loaded dies could do the same FLOP and move the same bytes of HBM",
           measure_rates.over_roofline, "over its roofline", True, True, 4, "hbm_bandwidth_utilisation"),
)  # fmt: skip

_OF_RUN = tuple(
    column
    for name in ("run", "system", "model", "batch", "policy", "assumptions")
    for column in COLUMNS
    if column.name == name
)


def _each(kind: str, unit: str, **meanings: str) -> tuple[Column, ...]:
    return tuple(Column(name, kind, unit, meaning, None) for name, meaning in meanings.items())


_MOVED = {
    "request": "requests for slices of weights",
    "weight": "slices of weights that were streamed",
    "dispatch": "hidden vectors on their way to experts",
    "combine": "results of experts",
    "replica": "weights of experts that rebalancing moved or replication fetched",
    "statistics": "counts of loads for decisions (latency alone, not among the bytes of a link)",
}  # class of archsim.engine.pair_traffic → meaning
DIES: tuple[Column, ...] = (
    *_OF_RUN,
    *_each(INTEGER, "", die="number of the die", x="its column", y="its row"),
    *_each(REAL, "ns", compute_busy_ns="the compute array works", compute_wait_ns="work waits for it", hbm_busy_ns="HBM works", hbm_wait_ns="transfers wait for it"),
    *_each(INTEGER, "bytes", hbm_bytes="that HBM moves"),
    *_each(REAL, "ns", llc_busy_ns="the port of the LLC works", llc_wait_ns="transfers wait for it"),
    *_each(REAL, "share", compute_utilisation="time that the compute array is busy", hbm_utilisation="bytes moved, as a share of what HBM could move in this time"),
    *_each(INTEGER, "tokens", tokens="pairs of token and expert assigned to the die"),
    *_each(INTEGER, "bytes", local_hbm_read_bytes="read from its own HBM", remote_hbm_read_bytes="read from its HBM by other dies", local_hbm_write_bytes="written as cached copies"),
    *_each(INTEGER, "bytes", activation_bytes="hidden vectors sent and received", replica_peak_bytes="peak size of cached copies"),
    *(column for phase in ("prefill", "decode") for column in (
        Column(f"{phase}_hbm_bytes", INTEGER, "bytes", f"of hbm_bytes, in {phase}", None),
        Column(f"{phase}_tokens", INTEGER, "tokens", f"of tokens, in {phase}", None),
    )),
)  # fmt: skip
LINKS: tuple[Column, ...] = (
    *_OF_RUN,
    *_each(INTEGER, "", link="number of the link", src="from die (or switch)", dst="to die (or switch)", src_x="", src_y="", dst_x="", dst_y=""),
    *_each(TEXT, "", direction="one way, or both ways for an edge that is held as a whole"),
    *_each(INTEGER, "bytes", bytes="that crossed it"),
    *_each(REAL, "ns", busy_ns="it is held or transfers", wait_ns="transfers wait for it; empty for engines that do not measure it"),
    *_each(REAL, "share", utilisation="time that it is busy"),
    *(column for name, meaning in _MOVED.items() for column in (
        Column(f"{name}_bytes", INTEGER, "bytes", f"that crossed it: {meaning}", None),
        Column(f"{name}_ns", REAL, "ns", "time that they take at its full rate", None),
    )),
)  # fmt: skip
PAIRS: tuple[Column, ...] = (
    *_OF_RUN,
    *_each(INTEGER, "", src="from die", dst="to die"),
    *(Column(f"{name}_bytes", INTEGER, "bytes", meaning, None) for name, meaning in _MOVED.items()),
)
STEPS: tuple[Column, ...] = (
    *_OF_RUN,
    *_each(INTEGER, "", step="iteration; 0 is the prefill, where there is one", layer="the model's number of the MoE layer"),
    *_each(REAL, "ns", time_ns="of the layer in this iteration, exposed time of decisions included"),
    *(Column(f"bound_{cause.column}_ns", REAL, "ns", f"of the critical path: {about.meaning}", None) for cause, about in CAUSES.items()),
    *_each(INTEGER, "bytes", hbm_local_read_bytes="weights read by dies from their own HBM", hbm_remote_read_bytes="weights read from the HBM of others",
           hbm_write_bytes="cached copies written", hbm_activation_bytes="hidden vectors through HBM"),
    *(Column(f"{name}_bytes", INTEGER, "bytes", f"sent from die to die: {_MOVED[name]}; 0 for more than 128 dies", None) for name in measure_steps.CLASSES),
    *_each(INTEGER, "", link="number of the busiest link, as in links.csv; empty where none was busy", link_src="from die (or switch)", link_dst="to die (or switch)"),
    *_each(INTEGER, "bytes", link_bytes="that crossed it"),
    *_each(REAL, "ns", link_busy_ns="it is held or transfers"),
    *_each(INTEGER, "", die="the die with most tokens"),
    *_each(INTEGER, "tokens", die_tokens="its pairs of token and expert", tokens="those of all dies"),
    *_each(INTEGER, "", expert="the expert with most tokens"),
    *_each(INTEGER, "tokens", expert_tokens="its tokens"),
)  # fmt: skip
# Facts of the host, which differ from run to run.
TIMINGS: tuple[Column, ...] = (
    Column("run", TEXT, "", "key of the run", None),
    Column("wall_s", REAL, "s", "time of the simulation, without that of the demand", None),
    *_each(TEXT, "", host="where it ran", started="when it started, in UTC"),
)

Kinds = Mapping[str, str]
"""Name of a column → its kind; see `archsim.base.tables.Table`."""


def kinds_of(columns: Iterable[Column]) -> Kinds:
    return MappingProxyType({column.name: column.kind for column in columns})


BY_NAME: Mapping[str, Column] = MappingProxyType({column.name: column for column in COLUMNS})
RUN_COLUMNS, DIE_COLUMNS, LINK_COLUMNS, PAIR_COLUMNS, STEP_COLUMNS, TIMING_COLUMNS = map(
    kinds_of, (COLUMNS, DIES, LINKS, PAIRS, STEPS, TIMINGS)
)


@lru_cache(maxsize=64)
def columns_with(functions: tuple[str, ...]) -> tuple[Column, ...]:
    """The columns of an experiment that measures more by ``functions`` (``package.module:function``), theirs last.

    Raises SpecError for a name already in use, or a return type without a kind.
    """
    own = tuple(column for target in functions for column in _own_columns(target))
    for column in own:
        if column.name in BY_NAME or column.name in TIMING_COLUMNS:
            raise SpecError(
                f"columns: {column.name!r} is a column of the results already; give the function another name"
            )
    return COLUMNS + own


def measured(run: Finished) -> dict[str, Any]:
    """The row of a finished run, without the columns that need other rows. Raises ArchsimError if a user's function
    fails.
    """
    columns = columns_with(run.run.columns)
    return {column.name: measure.plain(column.measure(run)) for column in columns if column.measure is not None}


def shown_columns() -> tuple[Column, ...]:
    """Those of tables on the page and the terminal, in their order there."""
    order: list[Column] = []
    waiting = [column for column in COLUMNS if column.header]
    for column in waiting:
        names = [each.name for each in order]
        order.insert(names.index(column.after) + 1 if column.after in names else len(order), column)
    return tuple(order)


_KINDS = MappingProxyType({int: INTEGER, float: REAL, str: TEXT})
_UNITS = ("ns", "bytes", "percent", "flop")


def _own_columns(target: str) -> list[Column]:
    """Of a function, or of a user's own execution."""
    if isinstance(import_function(target), type):
        return [_counted(target, name, meaning) for name, meaning in columns_of(target).items()]
    return [_own_column(target)]


def _counted(target: str, name: str, meaning: str) -> Column:
    def value(run: Finished) -> float | None:
        found = run.outcome.counted.get(name)
        if found is None and run.scenario.assumptions.execution == target:
            raise ArchsimError(f"{target}: counted() gives {', '.join(run.outcome.counted) or 'nothing'}; lacks {name}")
        return None if found is None else float(found)

    return Column(name, REAL, _unit_of(name), meaning, value, optional=True, since=LAYOUT)


def _unit_of(name: str) -> str:
    return next((unit for unit in _UNITS if name.endswith(f"_{unit}")), "")


def _own_column(target: str) -> Column:
    function, name = import_function(target), target.partition(":")[2]
    returned = typing.get_type_hints(function).get("return", float)
    if returned not in _KINDS:
        raise SpecError(f"columns: {target}: returns {returned!r}; a column holds int, float or str")
    meaning = (inspect.getdoc(function) or "").partition("\n")[0]

    def value(run: Finished) -> Any:
        try:
            found = function(run.outcome, run.scenario)
            return None if found is None else returned(found)
        except Exception as error:  # a user's function may raise anything
            raise ArchsimError(f"{target}: {type(error).__name__}: {error}") from error

    return Column(name, _KINDS[returned], _unit_of(name), meaning, value, optional=True, since=LAYOUT)
