"""The results of an experiment: one row a run, the dies and links of every run, and the files that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from archsim.base.errors import ArchsimError
from archsim.base.tables import INTEGER, REAL, TEXT, Table, read_csv

BASE_POLICY = "base"
RUN_COLUMNS = MappingProxyType(
    {
        "system": TEXT,
        "mesh_x": INTEGER,
        "mesh_y": INTEGER,
        "model": TEXT,
        "trace": TEXT,
        "batch": INTEGER,
        "policy": TEXT,
        "engine": TEXT,
        "assumptions": TEXT,
        "decode_steps": INTEGER,  # iterations that ran, the prefill not counted
        "prefill_ns": REAL,  # 0 where no prefill ran
        "decode_ns": REAL,
        "throughput_tokens_per_s": REAL,  # of decode
        "speedup_vs_base": REAL,  # of decode throughput, over policy base and all else equal
        "hop_messages": INTEGER,  # messages times hops (dies entered), of the kinds that the assumption ``hops`` counts
        "hop_bytes": INTEGER,
        "local_hbm_read_bytes": INTEGER,
        "remote_hbm_read_bytes": INTEGER,
        "local_hbm_write_bytes": INTEGER,
        "activation_bytes": INTEGER,  # hidden vectors sent from die to die
        "die_utilisation": REAL,  # mean over dies of the time that the compute array is busy
        "load_max_over_mean": REAL,  # tokens of the busiest over those of the average die; mean over steps
        "replicas_max_bytes_per_die": INTEGER,
        "events": INTEGER,
        "hop_request_messages": INTEGER,
        "hop_data_messages": INTEGER,
        "hop_activation_messages": INTEGER,
        "replicas_evicted": INTEGER,
        "bound_llc": REAL,  # shares of the time on the critical path
        "bound_hbm": REAL,
        "bound_link": REAL,
        "bound_compute": REAL,
        "bound_activations": REAL,
        "bound_decision": REAL,
        "bounded_by": TEXT,  # the largest of these shares, by name
        "bounded_by_margin": REAL,  # by how much it is larger than the next
        "decision_ns": REAL,
        "decision_exposed_ns": REAL,
        "decision_overhead_percent": REAL,
        "decision_overhead_percent_p50": REAL,
        "decision_overhead_percent_p99": REAL,
        "host_p10_ns": REAL,  # of the calls of a policy function that was timed on this machine; empty where none was
        "host_p50_ns": REAL,
        "host_p90_ns": REAL,
        "host_p99_ns": REAL,
        "host_calls": INTEGER,
        "exposed_read_ns": REAL,
        "exposed_update_ns": REAL,
        "exposed_receive_ns": REAL,
        "exposed_order_ns": REAL,
        "exposed_generate_ns": REAL,
        "exposed_evaluate_ns": REAL,
        "exposed_merge_ns": REAL,
        "exposed_dispatch_ns": REAL,
        "exposed_collect_ns": REAL,
        "heatmap_dropped": INTEGER,
        "atu_misses": INTEGER,
        "expert_tokens": INTEGER,  # pairs of token and routed expert that ran, over all layers, prefill included
        "hbm_bytes": INTEGER,  # read and written, hidden vectors included
        "link_bytes": INTEGER,  # bytes times the links that they crossed
        "flop": REAL,  # of expert GEMMs
        "decode_ns_low": REAL,  # with GEMMs at the 5 % and 95 % residual of their calibration; empty without one
        "decode_ns_high": REAL,
        "gemm_extrapolated": REAL,  # share of the GEMMs' time at sizes outside the measured ones
        "copies_extrapolated": REAL,  # 1: slices of a size outside the measured ones of the links' copies; empty: links without
        "drawn_from": REAL,  # requests of the trace that the batch, which is larger, is drawn from with replacement; else empty
        "energy_per_token_j": REAL,  # of the whole run; see ``archsim.runs.economics`` for this and the four below
        "power_w": REAL,  # mean
        "die_mm2": REAL,  # estimated area of one die
        "silicon_mm2": REAL,  # of all dies, without HBM
        "cost_usd": REAL,  # to make one
        "run": TEXT,  # key of the run: names everything it is made of
        "layers": INTEGER,  # MoE layers that ran; times, counts and throughput are those of these, unscaled
    }
)
_OF_RUN = ("run", "system", "model", "batch", "policy", "assumptions")
DIE_COLUMNS = MappingProxyType(
    {name: RUN_COLUMNS[name] for name in _OF_RUN}
    | {"die": INTEGER, "x": INTEGER, "y": INTEGER}
    | dict.fromkeys(("compute_busy_ns", "compute_wait_ns", "hbm_busy_ns", "hbm_wait_ns"), REAL)
    | {
        "hbm_bytes": INTEGER,
        "llc_busy_ns": REAL,
        "llc_wait_ns": REAL,
        "compute_utilisation": REAL,
        "hbm_utilisation": REAL,
    }
    | dict.fromkeys(("tokens", "local_hbm_read_bytes", "remote_hbm_read_bytes", "local_hbm_write_bytes"), INTEGER)
    | {"activation_bytes": INTEGER, "replica_peak_bytes": INTEGER}
)
LINK_COLUMNS = MappingProxyType(
    {name: RUN_COLUMNS[name] for name in _OF_RUN}
    | dict.fromkeys(("link", "src", "dst", "src_x", "src_y", "dst_x", "dst_y"), INTEGER)
    | {"direction": TEXT, "bytes": INTEGER, "busy_ns": REAL, "wait_ns": REAL, "utilisation": REAL}
)
# Facts of the host, which differ from one time to the next. wall_s: of the simulation, the demand not counted.
TIMING_COLUMNS = MappingProxyType({"run": TEXT, "wall_s": REAL, "host": TEXT, "started": TEXT})
_FILES = MappingProxyType({"runs": RUN_COLUMNS, "dies": DIE_COLUMNS, "links": LINK_COLUMNS, "timings": TIMING_COLUMNS})

Record = Mapping[str, Any]
"""What is kept of a run: its key ``run``, ``row`` (columns of RUN_COLUMNS but run and speedup_vs_base), ``dies`` and
``links`` (name → list over dies, links) and ``host`` (columns of TIMING_COLUMNS but run)."""


@dataclass(frozen=True)
class Results:
    """Tables of an experiment, or of as many of its runs as have finished.

    ``results.runs.to_pandas()`` is one row a run; ``results.runs.rows`` the same as mappings.
    """

    runs: Table
    dies: Table
    links: Table
    timings: Table

    def __repr__(self) -> str:
        tables = ", ".join(f"{name}: {len(getattr(self, name)):,} rows" for name in _FILES)
        return f"Results({tables})"

    def write(self, folder: str | Path) -> None:
        """Write results.csv and .parquet, dies.csv, links.csv and timings.csv; each is replaced as a whole."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            getattr(self, name).write_csv(folder / _file(name))
        self.runs.write_parquet(folder / "results.parquet")

    @classmethod
    def load(cls, folder: str | Path) -> Results:
        """The results in a report's folder. Raises ArchsimError if a file is missing."""
        try:
            return cls(**{name: read_csv(Path(folder) / _file(name), columns) for name, columns in _FILES.items()})
        except FileNotFoundError as error:
            raise ArchsimError(
                f"{error.filename}: no such file; are these the results of a sweep that ended?"
            ) from None


def collect(records: Sequence[Record]) -> Results:
    """The tables of finished runs, in the order given."""
    rows = run_table(records).rows
    return Results(
        runs=Table(RUN_COLUMNS, rows),
        dies=Table(DIE_COLUMNS, tuple(_spread(rows, records, "dies"))),
        links=Table(LINK_COLUMNS, tuple(_spread(rows, records, "links"))),
        timings=Table(TIMING_COLUMNS, tuple({"run": record["run"], **record["host"]} for record in records)),
    )


def run_table(records: Sequence[Record]) -> Table:
    """One row a run; speed-ups where the base run is among them."""
    base = base_of(record["row"] for record in records)
    return Table(RUN_COLUMNS, tuple(with_speedup({**record["row"], "run": record["run"]}, base) for record in records))


def base_of(rows: Iterable[Mapping[str, Any]]) -> dict[tuple, Mapping[str, Any]]:
    """What runs are compared by → the row of policy base."""
    return {_compared(row): row for row in rows if row["policy"] == BASE_POLICY}


def with_speedup(row: Mapping[str, Any], base: Mapping[tuple, Mapping[str, Any]]) -> dict[str, Any]:
    """The row with its speed-up over ``base`` (see `base_of`), None where that was not run."""
    return {**row, "speedup_vs_base": _speedup(row, base.get(_compared(row)))}


def layers_that_ran(rows: Iterable[Mapping[str, Any]], models: Mapping[str, int]) -> dict[str, tuple[tuple[int, ...], int]]:
    """Model → (how many MoE layers its runs had, ascending; how many it has). ``models``: name → how many it has.

    Rows of older versions, which lack ``layers``, count as those of all.
    """
    ran: dict[str, set[int]] = {}
    for row in rows:
        ran.setdefault(row["model"], set()).add(int(row.get("layers") or models[row["model"]]))
    return {model: (tuple(sorted(ran[model])), every) for model, every in models.items() if model in ran}


def _compared(row: Mapping[str, Any]) -> tuple:
    """What two runs share whose policies are compared."""
    return tuple(row[name] for name in ("system", "model", "trace", "batch", "engine", "assumptions"))


def _speedup(row: Mapping[str, Any], base: Mapping[str, Any] | None) -> float | None:
    if base is None or not base["throughput_tokens_per_s"]:
        return None
    return row["throughput_tokens_per_s"] / base["throughput_tokens_per_s"]


def _spread(rows: Sequence[Mapping[str, Any]], records: Sequence[Record], part: str) -> Iterable[dict[str, Any]]:
    """One row for every die or link of every run."""
    for row, record in zip(rows, records, strict=True):
        of_run = {name: row[name] for name in _OF_RUN}
        columns = record[part]
        for values in zip(*columns.values(), strict=True):
            yield of_run | dict(zip(columns, values, strict=True))


def _file(name: str) -> str:
    return f"{'results' if name == 'runs' else name}.csv"
