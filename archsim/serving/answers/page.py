"""The page of a serving run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from archsim.base import errors, files, host, tables, units
from archsim.base.tables import DataFrame
from archsim.runs import results, sweep
from archsim.runs import store as cache
from archsim.runs.run import Record, Workspace
from archsim.runs.store import RecordStore
from archsim.serving.answers import bench_json, sure
from archsim.serving.answers.runs import (
    MADE_LAST,
    TABLES,
    ByInput,
    OfferedLoad,
    ServePlan,
    Server,
    ServeRun,
    asked_loads,
    at_load,
    input_loads,
    input_runs,
    load_runs,
    measures_of,
    table_of,
    write_manifest,
)
from archsim.serving.measures import PERCENTILES, UNDEFINED, Measures, number, times_ns
from archsim.serving.outcome import Outcome, measured_residual
from archsim.show.figures import Line, lines_of, shares_below
from archsim.show.plots import KINDS, Colours, PlotAxis, Points
from archsim.show.rendering import render
from archsim.show.units import carried_digits, interval, percent, significant
from archsim.specs.library import MANIFEST
from archsim.specs.serving_files import Serving
from archsim.uncertainty.estimate import Interval
from archsim.uncertainty.sure_files import FILE, JSON, PAGE


class Loaded(NamedTuple):
    """A policy at other loads; ``by_input``: None where the file asks for none."""

    policy: str
    around: Sequence[OfferedLoad]
    by_input: ByInput | None


def intervals_in(folder: Path, table: tables.Table) -> dict[str, Any] | None:
    """What worlds say of the runs of a table (``serve --samples``); None where the folder has none of theirs."""
    file, headlines = folder / JSON, list(sure.HEADLINES)
    if not file.is_file():
        return None
    found = json.loads(file.read_text(encoding="utf-8"))
    runs = {tuple(row[column] for column in headlines) for row in table.rows}
    options = found.get("options", ())
    if not options or any(tuple(each.get(column) for column in headlines) not in runs for each in options):
        return None  # of another file, or of other numbers
    rows = [
        [each["option"], percent(each["best_share"]), *(_interval(each, column) for column in headlines)]
        for each in options
    ]
    headers = ["run", "best in", *(f"{name}{unit and f', {unit}'}" for unit, name in sure.HEADLINES.values())]
    return {"told": found["sentence"], "samples": found["samples"], "headers": headers, "rows": rows}


def _interval(option: Mapping[str, Any], column: str) -> str:
    """``12.3 (11.4 to 13.9)``."""
    ends = [option[f"{column}_{end}"] for end in ("p50", "p05", "p95")]
    return "–" if None in ends else "{} ({} to {})".format(*interval(*ends))


def write_outcome(
    outcome: Outcome,
    loaded: Sequence[Loaded],
    folder: Path,
    policies: Sequence[Outcome] = (),
    beside: Sequence[str] = (),
    table: tables.Table | None = None,
    answer: str = "",
) -> None:
    """``index.html``, ``bench.json`` and ``requests.csv``, in a folder that is made. ``loaded``: loads of the outcome
    and those beside it; ``policies``: outcomes, the first its own; ``beside``: further files; ``table``: of its runs;
    ``answer``: its first sentence.
    """
    files.own_folder(folder)
    tables.write_csv_stream(folder / "requests.csv", bench_json.REQUEST_COLUMNS, bench_json.request_rows(outcome))
    bench_json.write_bench(outcome, folder / "bench.json")
    page = context(outcome, loaded, policies) | {"files": ("requests.csv", "bench.json", *beside), "answer": answer}
    page["intervals"] = None if table is None else intervals_in(folder, table)
    files.write_text(folder / "index.html", render("serving.html.j2", page))


def context(outcome: Outcome, loaded: Sequence[Loaded], policies: Sequence[Outcome] = ()) -> dict[str, Any]:
    measures, serving = outcome.measures, outcome.serving
    rows = time_rows(outcome)
    return {
        "model": serving.model.name,
        "system": serving.system.name,
        "engine": serving.spec.engine,
        "scheduler": serving.spec.scheduler.name,
        "devices": outcome.deployment.devices,
        "m": measures,
        "notes": outcome.notes,
        "percentiles": PERCENTILES,
        "rows": rows,
        "user": number(measures.tokens_per_s_user, ".1f"),
        "unsteady": _first(measures),
        "policy": serving.policy.name if serving.has_traffic else "",
        "policies": [_policy_row(each, outcome) for each in policies] if len(policies) > 1 else [],
        "over_time": _over_time(outcome),
        "distributions": _distributions(outcome),
        "policy_columns": POLICY_COLUMNS,
        "why": outcome.why_slow,
        "loads": _loads(outcome, loaded),
        "shape": _shape(outcome, loaded),
        "within": all(each.measures.within_slo == 1 for one in loaded for each in one.around) if loaded else False,
        "loads_key": "clients" if outcome.requests.concurrency else "rates",
        "by_input": _by_input(outcome, loaded),
    }


def time_rows(outcome: Outcome) -> list[tuple[str, ...]]:
    """Name, mean and PERCENTILES of TTFT, TPOT, ITL and E2E in ms, with as many digits as their range carries, where
    engines were measured.
    """
    measures, serving = outcome.measures, outcome.serving
    found = measured_residual(serving) if serving.spec.host is None else None
    rows = []
    for name, spread in (
        ("TTFT", measures.ttft), ("TPOT", measures.tpot), ("ITL", measures.itl), ("E2E", measures.e2e)
    ):  # fmt: skip
        ends = None if found is None else found.ttft if name == "TTFT" else found.tpot
        sentences = (
            number(each, ",.2f")
            if ends is None or each != each
            else carried_digits(each, *(end * each for end in ends))
            for each in (spread.mean, *spread.percentiles)
        )
        rows.append((name, *sentences))
    return rows


def _first(measures: Measures) -> str:
    return " ".join(each for each in (measures.saturated, measures.unsteady) if each)


def _over_time(outcome: Outcome) -> list[Points]:
    series = outcome.served.series
    seconds = (np.arange(len(series)) + 0.5) * outcome.served.bin_ns / units.NS_PER_S
    found = []
    for question, y, columns in (
        ("How many requests run, and how many wait?", "requests", {"running": series[:, 1], "waiting": series[:, 2]}),
        ("How full is the KV cache?", "KV blocks in use, %", {"in use": 100 * series[:, 0]}),
        ("How many tokens are computed per second?", "tokens per second", {"tokens": series[:, 3]}),
    ):
        lines = [Line(name, tuple(zip(seconds, values, strict=True))) for name, values in columns.items()]
        found.append(lines_of(question, lines, "time, s", y))
    balance = outcome.served.balance
    if len(balance) > 1:
        line = Line("balance", tuple(zip(balance[:, 0] / units.NS_PER_S, 100 * balance[:, 1], strict=True)))
        found.append(lines_of("How evenly are ranks loaded?", [line], "time, s", "mean over largest load of a rank, %"))
    return found


POLICY_COLUMNS = (
    *("TTFT ms", "TPOT ms", "ITL p99 ms", "goodput /s", "KV blocks per rank", "balancedness", "migrations", "moved GB"),
    "stalled s",
)


def policy_values(outcome: Outcome) -> tuple[str, ...]:
    m = outcome.measures
    return (
        number(m.ttft.mean, ",.1f"), number(m.tpot.mean, ",.2f"), number(m.itl.percentiles[-1], ",.1f"),
        significant(m.goodput_per_s),
        f"{outcome.deployment.prefill.pool.kv_blocks:,}", significant(m.balancedness), str(m.migrations),
        f"{m.moved_bytes / 1e9:,.1f}", significant(m.stalled_ns / units.NS_PER_S),
    )  # fmt: skip


def _policy_row(outcome: Outcome, shown: Outcome) -> tuple[str, str, tuple[str, ...]]:
    """(name, page, values)."""
    name = outcome.serving.policy.name
    return name, "" if outcome is shown else f"{name}/index.html", policy_values(outcome)


def _distributions(outcome: Outcome) -> list[Points]:
    times = times_ns(outcome.served)
    return [
        shares_below(name, question, title, {title: times[name] / units.NS_PER_MS})
        for name, title, question in (
            ("ttft", "TTFT, ms", "How long do requests wait for their first token?"),
            ("tpot", "TPOT, ms", "How long does each further token take?"),
        )
    ]


def _loads(outcome: Outcome, loaded: Sequence[Loaded]) -> list[Points]:
    if not loaded or len(loaded[0].around) < 2:
        return []
    offered = _offered_text(outcome)
    good = [
        Line(f"goodput, {each.policy}" if len(loaded) > 1 else "goodput",
             tuple((load.offered, load.measures.goodput_per_s) for load in each.around))
        for each in loaded
    ]  # fmt: skip
    done = Line("throughput", tuple((load.offered, load.measures.requests_per_s) for load in loaded[0].around))
    users = [
        (
            each.policy,
            [
                (load.measures.tokens_per_s_user, load.measures.output_tokens_per_s_device)
                for load in each.around
                if load.measures.tpot != UNDEFINED
            ],
        )
        for each in loaded
    ]
    lines = [Line(name, tuple(points[at] for at in front(points))) for name, points in users]
    return [
        lines_of("How many requests per second are served within the limits?",
                 good if len(loaded) > 1 else [*good, done], offered, "requests per second", dots=True),
        lines_of("What does speed for a user cost in throughput? (Pareto-optimal loads)", lines, "tokens/s of a user",
                 "output tokens/s per device", dots=True),
    ]  # fmt: skip


def _shape(outcome: Outcome, loaded: Sequence[Loaded]) -> list[str]:
    """Where the time per token of the first policy falls with the load, or its goodput is not monotone, and why."""
    return (
        load_sentences(loaded[0].around, _offered_text(outcome), outcome.deployment.prefill.pool.ranks)
        if loaded
        else []
    )


_MOVED = 0.03  # of a value: less gives no sentence


def load_sentences(around: Sequence[OfferedLoad], offered: str, ranks: int) -> list[str]:
    loads = sorted(around, key=lambda load: load.offered)
    sentences, pairs = [], list(zip(loads, loads[1:], strict=False))
    tpots = [(a, b, a.measures.tpot.mean, b.measures.tpot.mean) for a, b in pairs]
    falls = [(a, b, was, now) for a, b, was, now in tpots if now < (1 - _MOVED) * was]
    if falls:
        a, b, was, now = max(falls, key=lambda each: each[2] / each[3])
        sentences.append(
            f"A token takes less time at the higher load: {was:,.1f} ms at {a.offered:g} {offered}, {now:,.1f} ms at "
            f"{b.offered:g}."
        )
    goods = [(a, b, a.measures.goodput_per_s, b.measures.goodput_per_s) for a, b in pairs]
    drops = [at for at, (_, _, was, now) in enumerate(goods) if now < (1 - _MOVED) * was]
    for at in drops:
        again = [b for _, b, was, now in goods[at + 1 :] if now > (1 + _MOVED) * was]
        if again:
            a, b, was, now = goods[at]
            sentences.append(
                f"The goodput falls from {was:.3g} to {now:.3g} requests per second between {a.offered:g} and "
                f"{b.offered:g} {offered}, and rises again up to {again[-1].measures.goodput_per_s:.3g} at "
                f"{again[-1].offered:g}."
            )
            break
    if sentences and ranks > 1:
        sentences.append(
            f"The {ranks} ranks of an engine iterate together, so a prompt on one of them holds up the decodes of all. "
            "At a higher load, prompts of several ranks meet in one iteration and hold up the decodes once. How many "
            "meet changes from load to load, and with it the share of requests within the limits "
            "(scheduler.prefill: spaced or together changes this)."
        )
    elif sentences:
        sentences.append(
            "Iterations that compute prompts hold up decodes. Prompts that come together share such an iteration and "
            "hold up decodes once. How many do changes from load to load, and with it the share of requests within the "
            "limits."
        )
    return sentences


def _by_input(outcome: Outcome, loaded: Sequence[Loaded]) -> dict[str, Any]:
    """Rows of mean TTFT by length of prompts and load: of every policy, and beside that of the first."""
    shown = [(each.policy, each.by_input) for each in loaded if each.by_input is not None]
    if not shown:
        return {}
    first = shown[0][1]
    rows = []
    for name, table in shown:
        for at, tokens in enumerate(table.inputs):
            change = table.ttft_ms[at] / first.ttft_ms[at] - 1
            cells = [f"{ms:,.1f}" for ms in table.ttft_ms[at]]
            if table is not first:
                cells = [f"{cell} ({part:+.0%})" for cell, part in zip(cells, change, strict=True)]
            rows.append((name, f"{tokens:,}", cells))
    return {"what": _offered_text(outcome), "loads": [f"{each:g}" for each in first.offered], "rows": rows}


def _offered_text(outcome: Outcome) -> str:
    return "clients" if outcome.requests.concurrency else "requests/s offered"


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of points that no other beats in both coordinates, by the first."""
    order = sorted(range(len(points)), key=lambda at: (-points[at][0], -points[at][1]))
    best, found = float("-inf"), []
    for at in order:
        if points[at][1] > best:
            best = points[at][1]
            found.append(at)
    return found[::-1]


# The page of a plan with axes: its best points, goodput over each axis of numbers, and every point.

SHOWN = (
    ("goodput_per_s", "goodput /s"), ("requests_per_s", "requests /s"), ("within_slo", "within limits"),
    ("output_tokens_per_s_device", "tokens/s per device"), ("tokens_per_s_user", "tokens/s per user"),
    ("ttft_mean_ms", "TTFT ms"), ("ttft_p99_ms", "TTFT p99 ms"), ("tpot_mean_ms", "TPOT ms"),
    ("itl_p99_ms", "ITL p99 ms"), ("kv_peak", "KV peak"),
)  # fmt: skip
FEW = tuple(SHOWN[at] for at in (0, 1, 3, 5, 7))  # on a terminal


def write_points_page(
    plan: ServePlan, table: tables.Table, folder: Path, answer: str = "", found: sure.ServedSure | None = None
) -> Path:
    """``index.html``. ``answer``: its first sentence; ``found``: ranges of runs by the names of the plan."""
    serving, target = plan.first, folder / "index.html"
    ranges = ranges_of(plan, table, found)
    numbers = [path for path in serving.axes if _is_number(table.rows, path)]
    served = [row for row in table.rows if not row["refused"]]
    keys = ("point", *serving.axes, "policy")
    context = {
        "model": serving.model.name,
        "system": serving.system.name,
        "points": len(plan.points),
        "answer": answer,
        "title": "Points, most goodput first",
        "intervals": intervals_in(folder, table),
        "files": ("results.csv", "results.parquet", "manifest.yaml"),
        "policies": ", ".join(policy.name for policy in serving.policies),
        "headers": [*keys, *(header for _, header in SHOWN), "note"],
        "rows": [cells(row, keys, ranges=ranges.get(row["run"], {})) for row in order_rows(table.rows)],
        "notes": plan.notes(table.rows),
        "texts": len(keys),
        "refused": len(table.rows) - len(served),
        "plots": [_over(path, served, serving, ranges) for path in numbers],
    }
    if not numbers and found is not None and (bars := sure.whiskers(found)) is not None:
        context["plots"] = [bars]
    files.write_text(target, render("serving_points.html.j2", context))
    return target


def order_rows(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(rows, key=_order)


def _order(row: Mapping[str, Any]) -> tuple:
    return (bool(row["refused"]), -(row["goodput_per_s"] or 0.0), row["point"], row["policy"])


def ranges_of(plan: ServePlan, table: tables.Table, found: sure.ServedSure | None) -> dict[str, Mapping[str, Interval]]:
    """Run → column → its interval, of runs that were sampled."""
    options = {} if found is None else {each.name: each.intervals for each in found.options}
    return {
        row["run"]: options[name] for name, row in zip(plan.names(), table.rows, strict=True) if name in options
    }  # fmt: skip


def cells(
    row: Mapping[str, Any], keys: Sequence[str], shown: Sequence[tuple[str, str]] = SHOWN,
    ranges: Mapping[str, Interval] = MappingProxyType({}),
) -> list[str]:  # fmt: skip
    """The ``keys`` of a row, the columns ``shown`` with their ``ranges``, and why it was refused or is saturated."""
    values = ["–" if row[name] is None else significant(row[name]) for name, _ in shown]
    for at, (name, _) in enumerate(shown):
        if (ends := ranges.get(name)) is not None and row[name] is not None:
            low, high = significant(ends.p05), significant(ends.p95)
            values[at] += "" if low == high else f" ({low}–{high})"
    note = row["refused"] or ", ".join(key for key in ("saturated", "unsteady") if row[key])
    if row["rejected"]:
        note = ", ".join(filter(None, [note, f"{row['rejected']:,} rejected"]))
    return [*(str(row[key]) for key in keys), *values, note]


def _is_number(rows: Sequence[Mapping[str, Any]], path: str) -> bool:
    return len({row[path] for row in rows}) > 1 and all(isinstance(row[path], int | float) for row in rows)


def _over(
    path: str, rows: Sequence[Mapping[str, Any]], serving: Serving, ranges: Mapping[str, Mapping[str, Interval]]
) -> Points:
    """What runs are judged by over an axis, a line for every policy and value of the other axes, with its band."""
    judged, _ = sure.judged_by(serving)
    unit, what = sure.HEADLINES[judged]
    found = []
    for row in sorted(rows, key=lambda row: row[path]):
        others = [str(row[each]) for each in serving.axes if each != path]
        line = ", ".join([*([row["policy"]] if len(serving.policies) > 1 or not others else []), *others])
        ends = ranges.get(row["run"], {}).get(judged)
        low, high = (ends.p05, ends.p95) if ends is not None else (row[judged], row[judged])
        text = significant(row[judged])
        found.append({"line": line, "x": row[path], "y": row[judged], "low": low, "high": high, "tip": text})
    lines = dict.fromkeys(row["line"] for row in found)
    title = f"{what}, {unit}"
    return Points(
        question=f"How does {path} change {what}, and how sure is that?", rows=found, x=PlotAxis("x", path),
        y=PlotAxis("y", title), lines=True, dots=True, low="low", high="high",
        colours=Colours("line", {line: KINDS[(at + 2) % len(KINDS)] for at, line in enumerate(lines)}),
        tips=(("line", "line"), ("x", path), ("tip", title), ("low", "5 %"), ("high", "95 %")),
    )  # fmt: skip


# From a plan of ``archsim serve`` to its folder: run what is not kept, then write tables and pages.


@dataclass(frozen=True, eq=False)
class ServedPlan(tables.Shown):
    """``outcomes``: of a plain file, one a policy; none of a file with axes. ``table``: a row a run. ``answer``: the
    best of the points, with its range; ``sampled``: runs in worlds, where they were drawn.
    """

    plan: ServePlan
    outcomes: tuple[Outcome, ...]
    table: tables.Table
    answer: str = ""
    sampled: sure.ServedSure | None = None

    def __repr__(self) -> str:
        return f"ServedPlan({self.plan!r}, {self.table!r})"

    def to_pandas(self) -> DataFrame:
        """One row per run: its point, axes, policy and measures."""
        return self.table.to_pandas()


def serve_all(plan: ServePlan, watcher: sweep.Watcher | None = None) -> ServedPlan:
    """Serve every run of a plan in this process; nothing is written. ArchsimError if a plain file cannot be served."""
    watching = watcher or sweep.Unwatched()
    workspace = Workspace(watching.at)
    server, runs = workspace.of(Server), plan.runs()
    records: dict[str, Record] = {}
    watching.begin(len(runs))
    for run in runs:
        began = perf_counter()  # of a plain file, what the record would only say is raised
        served = run.record(server.serve(run), perf_counter() - began) if run.details else run.simulate(workspace)
        records[run.key] = served
        watching.on_finished(run, served)
    outcomes = tuple(server.outcomes[run.key] for run in runs if run.details)
    return ServedPlan(plan, outcomes, table_of(plan, runs, records))


def serve_into(
    plan: ServePlan, folder: Path, watcher: sweep.Watcher | None = None, around: bool = True, jobs: int | None = None,
    answer: Callable[[tables.Table], str] = lambda table: "",
) -> ServedPlan:  # fmt: skip
    """Like ``serve_all``, but into a folder whose finished runs are kept. ``around``: it also serves at the loads of
    its page; ``jobs``: runs that are served at a time (default: available cores); ``answer``: the first sentence of a
    plain file's page, of the table of its runs.
    """
    watching = watcher or sweep.Unwatched()
    with files.sole_writer(folder):
        store, workspace = RecordStore(folder), Workspace(watching.at)
        server, runs = workspace.of(Server), plan.runs()
        others = _others(runs) if around and not plan.has_axes else ()
        write_manifest(folder, plan, runs)
        watching.begin(len(runs) + len(others))
        for run in runs:
            if run.details:
                server.deployment(run)  # refused before anything runs; copies of this process begin with it

        def outdate() -> None:
            for name in MADE_LAST:
                (folder / name).unlink(missing_ok=True)

        def refuse(run: ServeRun, record: Record) -> None:
            if record["row"]["refused"] and not plan.has_axes:
                raise errors.ArchsimError(record["row"]["refused"])

        failures: list[str] = []
        records = sweep.complete(
            (*runs, *others), store, watching, failures, jobs or host.available_cores(),
            workspace=workspace, found=refuse, outdate=outdate,
        )  # fmt: skip
        cache.remove_oldest()
        sweep.refuse_failed(failures, len(runs) + len(others), folder)
        watching.phase("writing the tables and the page")
        found = tuple(server.outcome(run, store.load(run) or {}) for run in runs if run.details)
        table = table_of(plan, runs, records)
        table.write_parquet(folder / "results.parquet")
        if plan.has_axes:
            write_points_page(plan, table, folder)
        else:
            _write_pages(folder, runs, found, records, around, table, answer(table))
        table.write_csv(folder / "results.csv")
        results.seal(folder, "results.csv")
    return ServedPlan(plan, found, table)


def _others(runs: Sequence[ServeRun]) -> tuple[ServeRun, ...]:
    """The runs at the loads of the page and by length of prompts, each once."""
    found = [each for run in runs for each in (*load_runs(run), *(longer for _, longer in input_runs(run)))]
    here = {run.key for run in runs}
    return tuple({each.key: each for each in found if each.key not in here}.values())


def _write_pages(
    folder: Path,
    runs: Sequence[ServeRun],
    outcomes: Sequence[Outcome],
    records: dict[str, Record],
    around: bool,
    table: tables.Table,
    answer: str,
) -> None:
    loaded = [_loads_of(run, records) for run in runs] if around else []
    for at, outcome in enumerate(outcomes[1:], 1):
        write_outcome(outcome, loaded[at : at + 1], folder / outcome.serving.policy.name)
    beside = [*TABLES, MANIFEST, *(name for name in (FILE, JSON, PAGE) if (folder / name).is_file())]
    write_outcome(outcomes[0], loaded, folder, outcomes, beside, table, answer)


def _loads_of(run: ServeRun, records: dict[str, Record]) -> Loaded:
    own = {run.offered: run}
    around = [own.get(load) or at_load(run, load) for load in asked_loads(run)]
    loads = [OfferedLoad(each.offered, measures_of(records[each.key]["row"])) for each in around]
    return Loaded(run.serving.policy.name, loads, _rows_by_input(run, records))


def _rows_by_input(run: ServeRun, records: dict[str, Record]) -> ByInput | None:
    inputs, asked = run.serving.spec.loads.inputs, input_loads(run)
    if not inputs:
        return None
    ttft = [records[each.key]["row"]["ttft_mean_ms"] for _, each in input_runs(run)]
    return ByInput(inputs, asked, np.array(ttft).reshape(len(inputs), len(asked)))
