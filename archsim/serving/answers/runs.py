"""One run of a plan of ``archsim serve``: a deployment with its requests under one policy; its key, code and row."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, get_type_hints

import numpy as np

from archsim.base import code_digest, config_files, errors, fields, tables
from archsim.laws import calibration_files
from archsim.machine import plausible
from archsim.runs import physical_laws, results
from archsim.runs.calibration_notes import datasheet_note
from archsim.runs.notes import SAME_NUMBERS, changes_nothing
from archsim.runs.run import KEY_DIGITS, Job, Record, Workspace, code_of
from archsim.serving.file_requests import notes_of_requests, requests_of
from archsim.serving.groups import MigrationCost
from archsim.serving.measures import NO_NUMBER, PERCENTILES, Measures, Spread, number
from archsim.serving.outcome import Deployment, Outcome
from archsim.serving.requests import Requests
from archsim.serving.requests import first as first_of
from archsim.serving.serving import check_serving, deploy, requests_on, serve_requests, simulate_requests
from archsim.serving.simulate import Failed, Progress, Served
from archsim.specs import library, policies, schedulers, serving_files
from archsim.specs.serving import ArrivalSpec, LengthSpec, RoutingSpec
from archsim.specs.unread import UNREAD, keys_of, unread_everywhere
from archsim.traffic import open_trace, traffic_presets

# Of a file: what no run depends on, and what its parts and digests say without names and paths.
_BESIDE = {"search", "loads", "policies", "sweep", "system", "model", "assumptions"}
_OFFERED = ("requests.arrivals.rate", "requests.concurrency")  # axes that ``offered`` shows
_SERVING = (*code_digest.DECIDING, "archsim/serving/*.py")
_HINTS = get_type_hints(Measures)
_KINDS = {int: tables.INTEGER, float: tables.REAL, str: tables.TEXT}
SPREAD = ("mean", "std", *(f"p{each}" for each in PERCENTILES))


def _columns() -> dict[str, str]:
    found: dict[str, str] = {}
    for name, kind in _HINTS.items():
        found |= {f"{name}_{each}_ms": tables.REAL for each in SPREAD} if kind is Spread else {name: _KINDS[kind]}
    return found


MEASURES: Mapping[str, str] = _columns()
_OF_DEPLOYMENT = {"policy": tables.TEXT, "offered": tables.REAL, "devices": tables.INTEGER, "kv_blocks": tables.INTEGER}
COLUMNS: Mapping[str, str] = _OF_DEPLOYMENT | dict(MEASURES) | {"refused": tables.TEXT, "broken_laws": tables.TEXT}


@dataclass(frozen=True, eq=False)
class ServeRun(Job):
    """``cells``: of its axes; ``point``: number among those of the plan; ``offered``: requests a second, or clients.

    ``details``: all that happened is kept (``served`` of its record, see `pack`), not its measures alone.
    """

    serving: serving_files.Serving
    cells: Mapping[str, Any]
    point: int
    offered: float
    details: bool = False

    @cached_property
    def key(self) -> str:
        """12 hex digits: a digest of all that is served, on what and how."""
        return key_of(self.serving)

    @cached_property
    def code(self) -> str:
        return code_of_serving(self.functions)

    @property
    def cacheable(self) -> bool:
        return not self.functions

    @cached_property
    def group(self) -> str:
        """What its engines are built from: all but requests, if these are no static batch, and what only pages show."""
        serving = self.serving
        beside = _OF_REQUESTS - ({"requests"} if serving.spec.static_batch is not None else set())
        world = f" {_text(serving.system)} {_world(serving)}" if serving.off else ""
        return f"{serving.spec.model_dump_json(exclude=beside | {'sweep'})} {serving.policy.model_dump_json()}{world}"

    @property
    def kernel(self) -> str:
        return "serving"

    def simulate(self, workspace: Workspace) -> Record:
        """What comes of serving the requests, or why they are refused. The workspace keeps a `Server`."""
        began = perf_counter()
        try:
            outcome = workspace.of(Server).serve(self)
        except errors.ArchsimError as error:
            return self.record(None, perf_counter() - began, str(error))
        record = self.record(outcome, perf_counter() - began)
        return record | {"served": pack(outcome.served)} if self.details else record

    def record(self, outcome: Outcome | None, wall_s: float, refused: str = "") -> dict[str, Any]:
        row = self.row(outcome.measures, outcome.deployment) if outcome else self.row(None, None, refused)
        row["broken_laws"] = physical_laws.find_broken(iter(outcome.broken_laws), self.name) if outcome else None
        return {"run": self.key, "row": row, "host": {"wall_s": wall_s}}

    def warm_up(self, workspace: Workspace) -> None:
        deployment = workspace.of(Server).deployment(self)
        simulate_requests(self.serving, deployment, first_of(requests_on(self.serving, deployment), _WARM))

    @property
    def functions(self) -> tuple[str, ...]:
        return functions_of(self.serving)

    @property
    def name(self) -> str:
        """``point 3: ep, 4 requests/s, scheduler.name sglang``."""
        one, several = ("client", "clients") if self.serving.spec.requests.concurrency else ("request/s", "requests/s")
        what = one if self.offered == 1 else several
        cells = [f"{path} {value}" for path, value in self.cells.items() if path not in _OFFERED]
        return ", ".join([self.serving.policy.name, f"{self.offered:g} {what}", *cells])

    def summary(self, row: Mapping[str, Any]) -> str:
        """The result in one line."""
        if row["refused"]:
            return f"refused: {row['refused']}"
        ttft, tpot = (_number(row[f"{name}_mean_ms"]) for name in ("ttft", "tpot"))
        return (
            f"goodput {row['goodput_per_s']:.3f} of {row['requests_per_s']:.3f} requests/s, "
            f"TTFT {number(ttft, ',.0f')} ms, TPOT {number(tpot, '.1f')} ms"
        )

    def row(self, measures: Measures | None, deployment: Deployment | None, refused: str = "") -> dict[str, Any]:
        """COLUMNS of it."""
        found: dict[str, Any] = {"policy": self.serving.policy.name, "offered": self.offered}
        found["devices"] = deployment.devices if deployment else None
        found["kv_blocks"] = deployment.prefill.pool.kv_blocks if deployment else None  # of a rank
        return found | flat(measures) | {"refused": refused}


def key_of(serving: serving_files.Serving, *more: Any) -> str:
    """12 hex digits: a digest of all that is served, on what and how, and of ``more`` that JSON can hold."""
    parts = [_text(each) for each in (serving.system, serving.model, serving.policy, serving.assumptions)]
    spec = serving.spec.model_dump(mode="json", by_alias=True, exclude=_BESIDE)
    for part in (spec["requests"], spec["routing"]):
        if isinstance(part, dict):
            part.pop("trace", None)
    files = [
        calibration_files.calibration_digest(serving.system.compute.calibration),
        _routing(serving),
        _trace(serving),
    ]
    if serving.off:
        files.append(_world(serving))
    return hashlib.sha256(json.dumps([spec, *parts, *files, *more], sort_keys=True).encode()).hexdigest()[:KEY_DIGITS]


def functions_of(serving: serving_files.Serving) -> tuple[str, ...]:
    """The functions of the user's that take part when the policy of a file is served."""
    scheduler, policy = serving.spec.scheduler.name, serving.policy
    rules = [rule.name for each in policies.RULE_TYPES if (rule := getattr(policy, each)).is_function]
    return (*rules, *([scheduler] if schedulers.is_function(scheduler) else []))


def code_of_serving(functions: tuple[str, ...], *more: str) -> str:
    """12 hex digits of code and host constants that decide what comes of serving. ``functions``: of the user's;
    ``more``: further source files, relative to the checkout.
    """
    text = f"{_digest()} {code_of(functions)}" + (f" {code_digest.digest_here(more)}" if more else "")
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def flat(measures: Measures | None) -> dict[str, Any]:
    """MEASURES of a run; empty where it was refused."""
    if measures is None:
        return dict.fromkeys(MEASURES)
    found: dict[str, Any] = {}
    for name, value in measures._asdict().items():
        if isinstance(value, Spread):
            each = (value.mean, value.std, *value.percentiles)
            found |= {f"{name}_{part}_ms": _known(ms) for part, ms in zip(SPREAD, each, strict=True)}
        else:
            found[name] = _known(value) if isinstance(value, float) else value
    return found


def _known(value: float) -> float | None:
    return None if value != value else value


def measures_of(row: Mapping[str, Any]) -> Measures:
    found: dict[str, Any] = {}
    for name, kind in _HINTS.items():
        if kind is Spread:
            mean, std, *percentiles = (_number(row[f"{name}_{each}_ms"]) for each in SPREAD)
            found[name] = Spread(mean, std, tuple(percentiles))
        else:
            found[name] = _number(row[name])
    return Measures(**found)


def _number(value: Any) -> Any:
    return NO_NUMBER if value is None else value


@lru_cache(maxsize=1)
def _digest() -> str:
    hosts = [folder / "hosts.yaml" for folder in config_files.search_folders("serving", None)]
    return code_digest.digest_here(_SERVING) + "".join(each.read_text() for each in hosts if each.is_file())


def _text(spec: fields.Spec) -> str:
    return spec.model_dump_json(by_alias=True)


def _world(serving: serving_files.Serving) -> str:
    """What differs between worlds (`archsim.serving.answers.sure`) beside the system of the file."""
    off = {side: dict(factors) for side, factors in serving.off.items()}
    return json.dumps([off, {side: _text(each.system) for side, each in serving.machines.items()}], sort_keys=True)


def _routing(serving: serving_files.Serving) -> str:
    if not isinstance(serving.spec.routing, RoutingSpec):
        return ""
    if serving.routed is not None:
        return open_trace(str(serving.routed), serving.model).digest
    like = serving.spec.routing.synthetic_traffic.preset_of(serving.model.name)
    return traffic_presets.preset_digest(like) if like else ""


def _trace(serving: serving_files.Serving) -> str:
    return hashlib.sha256(serving.trace.read_bytes()).hexdigest() if serving.trace else ""


# The runs of a file of ``archsim serve``: every point of its ``sweep:``, under every policy; a plain file has one
# point, and besides the loads that its page shows.


class OfferedLoad(NamedTuple):
    """``offered``: requests a second, or clients of a closed loop."""

    offered: float
    measures: Measures


class ByInput(NamedTuple):
    """Mean TTFT in ms, float64[input, load], of prompts of ``inputs`` tokens at ``offered`` loads."""

    inputs: tuple[int, ...]
    offered: tuple[float, ...]
    ttft_ms: np.ndarray


SHARES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  # of the traffic, where a file has no loads


class ServePlan(NamedTuple):
    """``points``: the served files, one for each combination of the axes; ``cells``: the values of their axes."""

    points: tuple[serving_files.Serving, ...]
    cells: tuple[dict[str, Any], ...]

    @property
    def first(self) -> serving_files.Serving:
        return self.points[0]

    @property
    def has_axes(self) -> bool:
        """Whether the file has a ``sweep:``."""
        return bool(self.first.axes)

    @property
    def unread(self) -> tuple[str, ...]:
        """A sentence for each key that the file gives and no point reads, with the reason at the first point."""
        return unread_everywhere([point.unread for point in self.points])

    def notes(self, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """What a reader has to know of a file with axes: how requests were read, machines far from known ones, keys
        that nothing reads, axes that change nothing. ``rows``: of the table of runs.
        """
        systems = {point.system.name: point.system for point in self.points}
        found = [datasheet_note(names)] if (names := [n for n, each in systems.items() if each.datasheet_only]) else []
        found += [note for system in systems.values() for note in plausible.plausibility_notes(system)]
        asked = {(point.trace, point.model.name, point.spec.requests): point for point in self.points}
        for point in asked.values():
            with suppress(errors.TraceError):  # its runs say why they were refused
                found += notes_of_requests(point, requests_of(point))
        found += [f"{p.model.name} is approximate: {each}" for p in self.points for each in p.model.approximate]
        found = [*(physical_laws.law_sentence(row["broken_laws"]) for row in rows if row.get("broken_laws")), *found]
        return tuple(dict.fromkeys((*found, *self.unread, *self._idle(rows))))

    def _idle(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """A sentence for every axis that changes no result, unless `unread` says why."""
        sweep = self.first.spec.sweep
        said = keys_of(self.unread)
        for names in ([name] for name in sweep.grid) if sweep else ():
            yield from _idle(names, rows, self.first.axes, said, self._why(names))
        if sweep and sweep.zip:
            yield from _idle(list(sweep.zip), rows, self.first.axes, said, self._why(list(sweep.zip)))

    def _why(self, names: list[str]) -> str:
        if names == ["scheduler.chunked_prefill"]:
            budgets = [(each, each.spec.scheduler.max_num_batched_tokens) for each in self.points]
            if all(int(requests_of(each).input.max()) <= budget for each, budget in budgets):
                return "no prompt exceeds the budget of an iteration, scheduler.max_num_batched_tokens"
        return SAME_NUMBERS

    def names(self) -> tuple[str, ...]:
        """What each run is called beside the others: its policy, where there are several, and its axes' values."""
        several = len(self.first.policies) > 1 or not self.has_axes
        return tuple(
            ", ".join(filter(None, [run.serving.policy.name if several else "", describe_values(run.cells)]))
            for run in self.runs()
        )

    def __repr__(self) -> str:
        serving = self.first
        axes = "".join(f"\n  {path}: {len(values)} values" for path, values in serving.axes.items())
        return (
            f"ServePlan({serving.model.name} on {serving.system.name}, {len(self.points)} points, "
            f"{len(serving.policies)} policies){axes}"
        )

    def runs(self) -> tuple[ServeRun, ...]:
        """The runs of all points under all policies, in order. Raises TraceError."""
        return tuple(
            ServeRun(serving._replace(policy=policy), cells, at, offered_rate(serving), not self.has_axes)
            for at, (serving, cells) in enumerate(zip(self.points, self.cells, strict=True))
            for policy in serving.policies
        )


def _idle(
    names: Sequence[str], rows: Sequence[Mapping[str, Any]], axes: Iterable[str], said: Iterable[str], why: str
) -> Iterator[str]:
    """A sentence where linked axes ``names`` change no result of ``rows``. ``why``: if so."""
    others = [path for path in axes if path not in names]
    keys = [(row["policy"], *(str(row[path]) for path in others)) for row in rows]
    beside = {"point", "run", *axes}
    values = [tuple(str(value) for name, value in row.items() if name not in beside) for row in rows]
    if changes_nothing(keys, values) and not set(names) <= set(said):
        yield f"{' and '.join(names)} {'have' if names[1:] else 'has'} no effect here: {why}"


def serve_plan(source: library.Source, overrides: Sequence[str] = (), *, first: bool = False) -> ServePlan:
    """``first``: the first point and policy alone. Raises SpecError, with the point, for invalid values of axes."""
    begin = serving_files.load_serving(source, overrides)
    if first:
        return ServePlan((begin._replace(policies=begin.policies[:1], axes={}),), ({},))
    if begin.spec.sweep is None:
        return ServePlan((begin,), ({},))
    points, cells = [], []
    for cell in begin.spec.sweep.cells:
        points.append(serving_files.load_serving(source, overrides, cell))
        cells.append({path: shown(value) for path, value in cell.items()})
    return ServePlan(tuple(points), tuple(cells))


def refused_points(plan: ServePlan) -> Iterator[str]:
    """A line for each run that would be refused before a request is served: axes, point, and why."""
    built: dict[str, str] = {}

    def problem(check: Callable[[serving_files.Serving], object], serving: serving_files.Serving) -> str:
        try:
            check(serving)
        except errors.ArchsimError as error:
            return str(error)
        return ""

    for run in plan.runs():
        alone = run.serving._replace(policies=(run.serving.policy,))
        if not (why := problem(requests_of, alone)):
            if run.group not in built:
                built[run.group] = problem(check_serving, alone)
            why = built[run.group]
        if why:
            at = f"point {run.point} ({describe_values(run.cells)})"
            yield f"{run.serving.axes_at}: {at}, {run.serving.policy.name}: {why}"


def shown(value: Any) -> Any:
    """A value of an axis, as a cell: a number, or text on one line."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return str(value).replace("'", "")


def describe_values(cells: Mapping[str, Any]) -> str:
    """``scheduler.name sglang, requests.concurrency 8``."""
    return ", ".join(f"{path} {value}" for path, value in cells.items())


def offered_rate(serving: serving_files.Serving, requests: Requests | None = None) -> float:
    """Clients of a closed loop, or requests a second: those that the file says, or those of its trace."""
    given = serving.spec.requests
    if given.concurrency:
        return float(given.concurrency)
    return given.arrivals.rate if given.arrivals else (requests or requests_of(serving)).offered_per_s


def load_runs(run: ServeRun) -> Iterator[ServeRun]:
    """The same deployment at the file's rates or clients, or else at shares of its traffic, but for its own."""
    for load in asked_loads(run):
        if load != run.offered:
            yield at_load(run, load)


def input_runs(run: ServeRun) -> Iterator[tuple[int, ServeRun]]:
    """(prompt tokens, run) for every one of ``inputs`` of the file and every load."""
    for tokens in run.serving.spec.loads.inputs:
        spec = run.serving.spec
        fixed = spec.requests.model_copy(update={"input": LengthSpec(fixed=tokens)})
        longer = run.serving._replace(spec=spec.model_copy(update={"requests": fixed}))
        for load in input_loads(run):
            yield tokens, at_load(ServeRun(longer, {"input": tokens}, run.point, run.offered), load)


def asked_loads(run: ServeRun) -> tuple[float, ...]:
    """The loads of the page."""
    given = run.serving.spec.loads
    shares = tuple(run.offered * share for share in SHARES)
    if run.serving.spec.requests.concurrency:
        shares = tuple(dict.fromkeys(float(max(1, round(each))) for each in shares))
    return tuple(given.rates or tuple(map(float, given.clients)) or shares) if run.offered else ()


def input_loads(run: ServeRun) -> tuple[float, ...]:
    """The loads of the table by length of prompts."""
    given = run.serving.spec.loads
    return tuple(given.rates or tuple(map(float, given.clients)) or (run.offered,))


def at_load(run: ServeRun, load: float) -> ServeRun:
    """The run with the same number of requests, at ``load``."""
    spec = run.serving.spec
    given = spec.requests
    if given.concurrency:
        change: dict[str, Any] = {"concurrency": int(load), "total": given.total or len(requests_of(run.serving).input)}
    elif given.arrivals:
        change = {"arrivals": ArrivalSpec(rate=f"{load}/s", burstiness=given.arrivals.burstiness)}
    else:
        change = {"speed": given.speed * load / run.offered}
    changed = spec.model_copy(update={"requests": given.model_copy(update=change)})
    return ServeRun(run.serving._replace(spec=changed), run.cells, run.point, load)


# What a process keeps of runs that it serves, and all that happened in a run as text.

_OF_REQUESTS = {"requests", "slo", "loads", "search", "policies"}
_WARM = 8  # requests that compile what serving needs
_ARRAYS = ("requests", "gaps", "series", "balance", "log")


class Server:
    """Serves runs. One deployment is built for runs that share it. ``outcomes``: of runs with details, by key."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._built: dict[str, Deployment] = {}
        self.outcomes: dict[str, Outcome] = {}

    def serve(self, run: ServeRun) -> Outcome:
        """The outcome of a run. Raises ArchsimError."""
        self._workspace.tell(f"{run.name}: sampling the requests", 0.0)
        deployment = self.deployment(run)
        requests = requests_on(run.serving, deployment)
        progress = Progress(self._workspace.tell).of(run.name)
        outcome = serve_requests(run.serving, deployment, requests, progress=progress)
        if run.details:
            self.outcomes[run.key] = outcome
        return outcome

    def outcome(self, run: ServeRun, record: Record) -> Outcome:
        """The outcome of a run with details: from its record, if it was not served here."""
        if run.key not in self.outcomes:
            measures, served = measures_of(record["row"]), unpack(record["served"])
            deployment = self.deployment(run)
            parts = run.serving, deployment, requests_on(run.serving, deployment)
            self.outcomes[run.key] = Outcome(*parts, served, measures)
        return self.outcomes[run.key]

    def deployment(self, run: ServeRun) -> Deployment:
        """The engines of a run. Raises as `archsim.serving.serving.deploy`."""
        if run.group not in self._built:
            self._workspace.tell(f"{run.name}: times of an iteration", 0.0)
            if not run.details:
                self._built.clear()
            self._built[run.group] = deploy(run.serving)
        return self._built[run.group]


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """A compressed ``.npz``, in base 64."""
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]  # numpy types **kwds as the flag before them
    return base64.b64encode(stream.getvalue()).decode()


def unpack_arrays(text: str) -> dict[str, Any]:
    with np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False) as kept:
        return {name: kept[name] for name in kept.files}


def pack(served: Served) -> str:
    """All that happened, as text."""
    arrays = {name: np.asarray(getattr(served, name)) for name in _ARRAYS}
    if served.experts is not None:
        arrays["experts"] = served.experts
    arrays["totals"] = np.asarray(served.totals)
    arrays["moves"] = np.array([tuple(each) for each in served.moves], float).reshape(-1, len(MigrationCost._fields))
    arrays["failed"] = np.array([tuple(each) for each in served.failed], float).reshape(-1, len(Failed._fields))
    arrays["scalars"] = np.array([served.bin_ns, served.concurrency, served.ttft])
    return pack_arrays(arrays)


def unpack(text: str) -> Served:
    """What `pack` packed."""
    found = unpack_arrays(text)
    bin_ns, concurrency, ttft = found["scalars"].tolist()
    return Served(
        **{name: found[name] for name in _ARRAYS},
        bin_ns=bin_ns, totals=found["totals"][()], concurrency=int(concurrency),
        moves=tuple(MigrationCost(row[0], int(row[1]), int(row[2]), row[3], row[4]) for row in found["moves"].tolist()),
        experts=found.get("experts"), ttft=bool(ttft),
        failed=tuple(Failed(at_ns, int(lost)) for at_ns, lost in found["failed"].tolist()),
    )  # fmt: skip


# The folder of ``archsim serve --out``: what a sweep promises of its own (``archsim.runs.store``).
#
# =================== =================================================================================================
# ``manifest.yaml``   the file; ``archsim serve manifest.yaml`` reproduces the results
# ``runs/``           ``<key>.json``: the row of a run, and all that happened, of runs that have a page
# ``results.csv``     all rows in order, ``results.parquet``; ``index.html``, ``bench.json`` and ``requests.csv``: last
# =================== =================================================================================================

TABLES = ("results.csv", "results.parquet")
MADE_LAST = (*TABLES, "index.html", "bench.json", "requests.csv")


def write_manifest(folder: Path, plan: ServePlan, runs: Sequence[ServeRun]) -> None:
    """The file with what it names, and what it was made with."""
    about: dict[str, Any] = {"code": sorted({run.code for run in runs}), "runs": len(runs)}
    if unread := plan.unread:
        about[UNREAD] = list(unread)
    results.write_manifest(folder, plan.first.given, about, sorted({each for run in runs for each in run.functions}))


def table_of(plan: ServePlan, runs: Sequence[ServeRun], records: Mapping[str, Record]) -> tables.Table:
    axes = {path: _kind(plan, path) for path in plan.first.axes}
    columns = {"point": "integer"} | axes | dict(COLUMNS) | {"run": tables.TEXT}
    rows = [{"point": run.point} | dict(run.cells) | records[run.key]["row"] | {"run": run.key} for run in runs]
    return tables.Table(columns, tuple(rows))


def _kind(plan: ServePlan, path: str) -> str:
    numbers = all(isinstance(cells[path], int | float) for cells in plan.cells)
    return tables.REAL if numbers else tables.TEXT
