"""Ranges of runs that a sweep's first sentences name (`archsim.uncertainty.ranges`): pairs in ``ranges.json``, the
central 90 % of throughput and speed-up over ep in the table, empty for other runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.base.files import write_text
from archsim.base.host import available_cores
from archsim.base.tables import REAL, Table
from archsim.runs.plan import Selection
from archsim.runs.results import CSV, PARQUET, Results, Row, seal
from archsim.runs.run import Run
from archsim.runs.simulator import Simulator
from archsim.runs.sweep import Watcher
from archsim.show.answers import in_question, iteration_at
from archsim.show.own_answers import system_pairs
from archsim.show.report import RANGES, Report
from archsim.show.units import damage_text
from archsim.uncertainty.estimate import Interval, interval, pair
from archsim.uncertainty.ranges import quick_worlds, tie

MOST_RUNS = 18  # that get a range: with short runs of three layers, 10 s of a core
COLUMNS = tuple(f"{name}_{end}" for name in ("tokens_per_s", "speedup_vs_ep") for end in ("p05", "p95"))


def write_ranges(
    selection: Selection, folder: Path, samples: int, jobs: int | None, watcher: Watcher
) -> tuple[str, ...]:
    """Draw the samples and write them to ``folder``; returns why runs have no range. 0 samples: nothing has one."""
    (folder / RANGES).unlink(missing_ok=True)
    asked: list[list[Row]] = []
    for group in in_question(Report(folder)) if samples else ():
        if sum(map(len, asked)) + len(group) <= MOST_RUNS:
            asked.append(group)
    if not asked:
        return ()
    rows = {row["run"]: row for group in asked for row in group}
    runs = [run for run in selection.runs() if run.key in rows]
    watcher.phase(f"ranges of {len(runs)} runs in {samples} samples")
    try:
        found = quick_worlds(
            runs, [rows[run.key] for run in runs], selection.maker.traces, samples, jobs or available_cores()
        )
    except ArchsimError as error:
        return (f"No run has a range, as one of its samples cannot run: {error}",)
    ns = {each.run.key: each.ns for each in found}
    compared = [(group[0], other) for group in asked for other in group[1:]] + list(system_pairs(asked))
    pairs = [_pair(faster, slower, ns, samples) for faster, slower in compared]
    left_out: tuple[str, ...] = ()
    try:
        damage = _damage(selection, runs, rows, samples)
    except ArchsimError as error:
        damage, left_out = "", (f"What defects cost is not known, as the perfect machine cannot run: {error}",)
    facts = {"samples": samples, "pairs": pairs, "damage": damage}
    kept = {name: each for name, each in facts.items() if each != ""}
    text = json.dumps(kept, ensure_ascii=False, indent=1, allow_nan=False)
    write_text(folder / RANGES, text + "\n")
    _write_columns(folder, {key: cells for group in asked for key, cells in _cells(group, ns).items()})
    return left_out


def range_of(selection: Selection, row: Row, samples: int) -> dict[str, float]:
    """Ends of tokens/s of the run; {} where nothing is decoded. Raises ArchsimError for a sample that cannot run."""
    if not samples or not row["tokens_per_s"]:
        return {}
    (found,) = quick_worlds(selection.runs(), [row], selection.maker.traces, samples, 1)
    cells = _cells([row], {row["run"]: found.ns})[row["run"]]
    return {name: cells[name] for name in COLUMNS if name in cells}


def _damage(selection: Selection, runs: Sequence[Run], rows: Mapping[str, Row], samples: int) -> str:
    """What defects of a machine cost its fastest run at the largest batch, against the perfect machine; '' without."""
    damaged = [run for run in runs if run.system.as_made != run.system and rows[run.key]["tokens_per_s"]]
    if not damaged:
        return ""
    most = max(run.batch for run in damaged)
    worst = max((run for run in damaged if run.batch == most), key=lambda run: rows[run.key]["tokens_per_s"])
    number = next(at for at, run in zip(selection.kept, selection.runs(), strict=True) if run.key == worst.key)
    point = selection.plan.point(number)
    (perfect,) = selection.maker.runs([point._replace(system=worst.system.as_made)])  # tokens live on all of its dies
    record = Simulator(selection.maker.traces).record(perfect, details=False)["row"]
    found = quick_worlds([worst, perfect], [rows[worst.key], record], selection.maker.traces, samples, 1)
    lost = interval(1 - found[0].tokens_per_s / found[1].tokens_per_s)
    value = 1 - rows[worst.key]["throughput_tokens_per_s"] / record["throughput_tokens_per_s"]
    ends = Interval(min(lost.p05, value), value, max(lost.p95, value))
    dead = len(worst.system.built.dead) if worst.system.built is not None else 0
    what = f"The {dead} dead {'die' if dead == 1 else 'dies'}" if dead else "The defects and spare dies"
    effect = damage_text(ends, "costs", "adds") if dead == 1 else damage_text(ends)
    return (
        f"{what} of {worst.system.name} {effect} of {worst.model.name} at batch "
        f"{worst.batch:,} under {worst.policy.name}, against the perfect machine."
    )


def _pair(faster: Row, slower: Row, ns: Mapping[str, np.ndarray], samples: int) -> dict[str, Any]:
    """Two runs of a place: how much as fast the first is as the second, and whether that is sure."""
    found = pair(faster["run"], slower["run"], ns)
    value = faster["throughput_tokens_per_s"] / slower["throughput_tokens_per_s"]
    named = {name: faster[name] for name in ("assumptions", "system", "model", "batch")}
    return named | {
        "faster": faster["policy"], "slower": slower["policy"], "slower_system": slower["system"],
        "faster_run": faster["run"], "slower_run": slower["run"], "ratio": value,
        "ratio_p05": found.ratio.p05, "ratio_p50": found.ratio.p50,
        "ratio_p95": found.ratio.p95, "probability": found.probability, "reverse": found.reverse,
        "tie": tie(found, samples),
    } | _whole_pair(faster, slower, ns, samples)  # fmt: skip


def _whole_pair(faster: Row, slower: Row, ns: Mapping[str, np.ndarray], samples: int) -> dict[str, Any]:
    if not faster.get("iteration_ns") or not slower.get("iteration_ns"):
        return {}
    whole = {row["run"]: iteration_at(row, ns[row["run"]] / float(row["decode_ns"])) for row in (faster, slower)}
    found, value = pair(faster["run"], slower["run"], whole), slower["iteration_ns"] / faster["iteration_ns"]
    ends = {"ratio": value, "ratio_p05": found.ratio.p05, "ratio_p95": found.ratio.p95, "tie": tie(found, samples)}
    return {f"whole_{name}": each for name, each in ends.items()}


def _cells(group: Sequence[Row], ns: Mapping[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Run → `COLUMNS`, of the runs of a place."""
    ep = next((row for row in group if row["policy"] == "ep"), None)
    found: dict[str, dict[str, float]] = {}
    for row in group:
        own = float(row["decode_ns"]) / ns[row["run"]]
        values = {"tokens_per_s": row["tokens_per_s"] * own} if row["tokens_per_s"] else {}
        if ep is not None and len(group) > 1:
            values["speedup_vs_ep"] = row["speedup_vs_ep"] * own / (float(ep["decode_ns"]) / ns[ep["run"]])
        ends = {name: interval(value) for name, value in values.items()}
        found[row["run"]] = {
            f"{name}_{end}": getattr(each, end) for name, each in ends.items() for end in ("p05", "p95")
        }
    return found


def _write_columns(folder: Path, cells: Mapping[str, Mapping[str, float]]) -> None:
    runs = Results.load(folder).runs
    rows = tuple({**row, **dict.fromkeys(COLUMNS), **cells.get(row["run"], {})} for row in runs.rows)
    table = Table({**runs.columns, **dict.fromkeys(COLUMNS, REAL)}, rows)
    table.write_parquet(folder / PARQUET)
    table.write_csv(folder / CSV)
    seal(folder, CSV)
