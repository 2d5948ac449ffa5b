"""The columns of results: one row each, read by whoever measures, stores, shows or documents them.

To add one, add a row to the table of its topic (a file of `archsim.runs.measures`), its value to the function below it, and its
name to `ORDER`. A user's own is a function
``(outcome, scenario) -> value`` that the experiment names::

    columns: [my_columns:longest_step_ns]

Its name is the function's, its kind what the function is annotated to return (``int``, ``float`` or ``str``; default
``float``), its meaning the first line of its docstring, its unit the end of its name (``_ns``, ``_bytes``, …).
"""

# ruff: noqa: E501  (one row a column: a table is read across)

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from archsim.base.errors import ArchsimError, SpecError
from archsim.base.own_code import import_function
from archsim.base.tables import INTEGER, REAL, TEXT
from archsim.runs.finished import Column, Finished, plain
from archsim.runs.measures import (
    decisions,
    energy,
    inputs,
    iteration,
    laws,
    limits,
    loads,
    memory,
    requests,
    times,
    traffic,
)
from archsim.runs.measures.units import DIES, LINKS, PAIRS, STEPS, measure_dies, measure_links
from archsim.specs.assumptions import columns_of

TOPICS = (
    inputs.inputs, times.times, traffic.traffic, times.critical_path, decisions.decisions, loads.loads,
    requests.requests, laws.laws, limits.limits, memory.memory, iteration.whole_iteration,
)  # fmt: skip
OF_ROWS = (loads.use, energy.energy)  # topics that measure by what others have found
LAYOUT = 8  # of results: raised when columns are added or change meaning; stored in manifests
# Of the columns, whichever topic's they are
ORDER = """
system mesh_x mesh_y model trace batch policy engine assumptions decode_steps prefill_ns decode_ns
throughput_tokens_per_s speedup_vs_base speedup_vs_ep hop_messages hop_bytes local_hbm_read_bytes
remote_hbm_read_bytes local_hbm_write_bytes activation_bytes die_utilisation load_max_over_mean
replicas_max_bytes_per_die events hop_request_messages hop_data_messages hop_activation_messages replicas_evicted
copies_saved_bytes copies_evicted_unused_bytes copies_evicted_used_bytes copies_held_bytes bound_compute
bound_inefficiency bound_permute bound_launch bound_blocks bound_hbm bound_link bound_llc bound_activations
bound_decision bounded_by bounded_by_margin decision_ns decision_exposed_ns decision_overhead_percent
decision_overhead_percent_p50 decision_overhead_percent_p99 host_p10_ns host_p50_ns host_p90_ns host_p99_ns host_calls
exposed_read_ns exposed_update_ns exposed_receive_ns exposed_order_ns exposed_generate_ns exposed_evaluate_ns
exposed_merge_ns exposed_dispatch_ns exposed_collect_ns heatmap_dropped atu_misses expert_tokens hbm_bytes link_bytes
flop padded_flop decode_ns_low decode_ns_high gemm_law transfer_law transfer_extrapolated stand_ins gemm_extrapolated
copies_extrapolated dispatch_bytes combine_bytes drawn_from extend active_experts active_if_distinct
energy_per_token_j power_w die_mm2 silicon_mm2 cost_usd carrier_share iteration_energy_per_token_j
iteration_energy_per_token_j_low iteration_energy_per_token_j_high iteration_ns iteration_attention_ns
iteration_projections_ns iteration_dense_ns iteration_experts_ns iteration_transfers_ns iteration_all_reduce_ns
iteration_head_ns iteration_host_ns prefill_iteration_ns prefill_iteration_attention_ns
prefill_iteration_projections_ns prefill_iteration_dense_ns prefill_iteration_experts_ns
prefill_iteration_transfers_ns prefill_iteration_all_reduce_ns prefill_iteration_head_ns prefill_iteration_host_ns
energy_per_token_j_low energy_per_token_j_high power_w_low power_w_high hbm_all_counted approximate memory_doubt
first_steps attention_law context_tokens context_from hbm_kv_bytes hbm_attention_bytes hbm_activation_bytes
copy_room_bytes load_ceiling_slots load_ceiling_placement migrated_bytes migration_exposed_ns under_way_bytes
prefetched_bytes prefetch_exposed_ns pairs_lost gate_mass_lost uncharged replica_hbm_bytes run layers tokens_per_s
decode_step_ns decode_batch_token_ns mfu hbm_bandwidth_utilisation over_roofline clock prefill_clock plans_by_speeds
held_by throttled_share die_power_max_w die_temperature_max_c hbm_temperature_max_c core_energy_factor
idle_energy_factor model_layers layers_error broken_laws
""".split()
# What follows from other rows, or from `archsim.runs.energy.work_of`
DERIVED: tuple[Column, ...] = (
    Column("speedup_vs_base", REAL, "×", "decode throughput relative to policy base, with all else equal; empty without such a run",
           "speed-up over base", optional=True),
    Column("speedup_vs_ep", REAL, "×", "decode throughput relative to policy ep, with all else equal; empty without such a run",
           "speed-up over ep", optional=True, after="decode_ns"),
    Column("expert_tokens", INTEGER, "tokens", "pairs of token and routed expert that ran, over all layers, prefill included"),
    Column("hbm_bytes", INTEGER, "bytes", "what HBM reads and writes, hidden vectors included"),
    Column("link_bytes", INTEGER, "bytes", "bytes multiplied by the links that they crossed"),
    Column("flop", REAL, "flop", "FLOP of expert GEMMs"),
    Column("padded_flop", REAL, "flop", "of rows that are empty in the tiles of 64 rows of expert GEMMs; energy counts them, times do not"),
    Column("broken_laws", TEXT, "", "laws of physics that the row, or its dies and links, disobey, by a defect of archsim; else empty", optional=True),
    inputs.RUN,
)  # fmt: skip
TABLED: Mapping[str, Column] = {
    column.name: column for table in (*(topic.columns for topic in (*TOPICS, *OF_ROWS)), DERIVED) for column in table
}
if sorted(TABLED) != sorted(ORDER):
    raise ImportError(f"columns in a table or in ORDER alone: {', '.join(sorted(TABLED.keys() ^ set(ORDER)))}")
COLUMNS = tuple(TABLED[name] for name in ORDER)
# Facts of the host, which differ from run to run.
TIMINGS: tuple[Column, ...] = (
    Column("run", TEXT, "", "key of the run"),
    Column("wall_s", REAL, "s", "time of the simulation, without that of the demand"),
    Column("host", TEXT, "", "where it ran"),
    Column("started", TEXT, "", "when it started, in UTC"),
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
    """An experiment's columns with its functions', last. SpecError for a used name or a return type without kind."""
    own = tuple(column for target in functions for column in _own_columns(target))
    for column in own:
        if column.name in BY_NAME or column.name in TIMING_COLUMNS:
            raise SpecError(
                f"columns: {column.name!r} is a column of the results already. Give the function another name"
            )
    return COLUMNS + own


def row_of(run: Finished) -> tuple[dict[str, Any], dict[str, list], dict[str, list]]:
    """(row without columns that need others, over dies, over links). ArchsimError if a user's function fails."""
    from archsim.runs.energy import work_of

    dies, links = measure_dies(run), measure_links(run.outcome)
    padded = int(run.outcome.counts.padded.sum())
    row: dict[str, Any] = {**work_of(run.run.model, run.run.assumptions, dies, links, padded)}
    for topic in TOPICS:
        row |= {name: plain(value) for name, value in topic(run).items()}
    for topic in OF_ROWS:
        row |= {name: plain(value) for name, value in topic(run, row).items()}
    columns = columns_with(run.run.columns)
    row |= {column.name: plain(column.measure(run)) for column in columns if column.measure is not None}
    return {column.name: row[column.name] for column in columns if column.name in row}, dies, links


def shown_columns() -> tuple[Column, ...]:
    """The columns that tables on the page and in the terminal show, in their order there."""
    order: list[Column] = []
    waiting = [column for column in COLUMNS if column.header]
    for column in waiting:
        names = [each.name for each in order]
        order.insert(names.index(column.after) + 1 if column.after in names else len(order), column)
    return tuple(order)


_KINDS = MappingProxyType({int: INTEGER, float: REAL, str: TEXT})
_UNITS = ("ns", "bytes", "percent", "flop")


def _own_columns(target: str) -> list[Column]:
    if isinstance(import_function(target), type):
        return [_count_column(target, name, meaning) for name, meaning in columns_of(target).items()]
    return [_own_column(target)]


def _count_column(target: str, name: str, meaning: str) -> Column:
    def value(run: Finished) -> float | None:
        found = run.outcome.counted.get(name)
        if found is None and run.run.assumptions.execution == target:
            raise ArchsimError(f"{target}: counted() gives {', '.join(run.outcome.counted) or 'nothing'}; lacks {name}")
        return None if found is None else float(found)

    return Column(name, REAL, _unit_of(name), meaning, optional=True, measure=value)


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
            found = function(run.outcome, run.run)
            return None if found is None else returned(found)
        except Exception as error:  # a user's function may raise anything
            raise ArchsimError(f"{target}: {type(error).__name__}: {error}") from error

    return Column(name, _KINDS[returned], _unit_of(name), meaning, optional=True, measure=value)
