"""The race of searches and recommendations: rounds, and the rate of an engine's sizes, batch limits and pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import log
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from archsim.base import errors, units
from archsim.base.files import own_folder
from archsim.runs import store, sweep
from archsim.runs.clocks import has_limits
from archsim.runs.pool import Failure
from archsim.runs.run import Job, Record, Workspace
from archsim.serving.answers import configuration, highest_rate, question
from archsim.serving.answers.engines import PartOfSearch, SharedEngines, build_sides, deployment_of, estimate_of
from archsim.serving.answers.highest_rate import WITHIN, Curve, curve_at, highest, limits_of, share_of
from archsim.serving.answers.runs import key_of, pack_arrays, unpack_arrays
from archsim.serving.deployment import Built
from archsim.serving.engine import ServingEngine
from archsim.serving.file_engines import host_for
from archsim.serving.measures import times_ns
from archsim.serving.outcome import Deployment
from archsim.serving.power import BOARD_W, Upkeep, upkeep
from archsim.serving.requests import Requests, first, repeated, scale_rate
from archsim.serving.serving import at_its_clock, serve_at_clock, simulate_requests
from archsim.serving.simulate import Served

RESIDENCES = 3.0  # of the requests that are in an engine at a time, a run has so many
FEWEST = 320  # requests of a run
QUICK_CLOSE = 0.06  # to which a rate is found among sizes
LEFT_BELOW = 0.7  # of the best rate a GPU: sizes that serve no more are left after a run
BETTER = 1.02  # batch limits are better by so much
ROOM = 1.3  # of the requests that an engine has: a batch limit beyond that changes nothing
GRID = (0.6, 0.8, 0.9, 1.0, 1.12, 1.3)  # of the rate found


Row = Mapping[str, Any]


class Tried(NamedTuple):
    """One engine's sizes with the best batch limits so far."""

    kind: int  # place of its kind in those of the race
    choice: configuration.Configuration
    rate: float  # requests a second of one instance, or of all where `choice` has pools; 0: none, or far below others
    residence_ns: float  # about the time of a request in it
    simulated: int = 0  # runs
    configurations: int = 1  # sizes and limits that were looked at
    refused: str = ""  # why none runs, or ''

    @property
    def devices(self) -> int:
        """Those that serve at `rate`."""
        return self.choice.devices if self.choice.prefill else self.choice.parallel.devices

    def per_gpu(self) -> float:
        """Requests a second."""
        return self.rate / self.devices


AnyPart = TypeVar("AnyPart", bound=PartOfSearch)


class _Tracebacks(sweep.Unwatched):
    """Adds the traceback, where the program is at fault, to the last of ``failures``."""

    def __init__(self, failures: list[str]) -> None:
        self._failures = failures

    def on_failed(self, job: Job, failure: Failure) -> None:
        if failure.details:
            self._failures[-1] += f"\n{failure.details}"


@dataclass
class Rounds:
    """The rounds of a race. ``folder``: keeps what was found for a later race, also after Ctrl-C."""

    report: Callable[[str], None]  # gets what is done, of how many
    jobs: int  # processes
    folder: Path | None
    compares: bool = False  # whether Ctrl-C ends a round alone, as what was found so far is compared
    ended: bool = False  # whether it did
    workspace: Workspace = field(default_factory=Workspace)

    def rows(
        self, parts: Sequence[AnyPart], what: str, found: Callable[[AnyPart, Row], None] = lambda part, row: None
    ) -> list[tuple[AnyPart, Row]]:
        """The finished parts with their rows, in order. ``what``: names the parts in reports; ``found``: gets each as
        it ends. Raises FailedRuns.
        """
        rows: dict[str, Row] = {}
        failures: list[str] = []
        kept = None if self.folder is None else store.RecordStore(own_folder(self.folder))

        def end(part: AnyPart, record: Record) -> None:
            rows[part.key] = record["row"]
            found(part, record["row"])
            self.report(f"{len(rows)} of the {len(parts)} {what}")

        try:
            sweep.complete(
                parts, kept, _Tracebacks(failures), failures, self.jobs, workspace=self.workspace,
                kept_from_s=sweep.KEPT_ALONE_S, found=end,
            )  # fmt: skip
        except KeyboardInterrupt:
            if not self.compares:
                raise
            self.ended = True
            self.report("ended: what was found so far is compared")
        sweep.refuse_failed(failures, len(parts), self.folder)
        store.remove_oldest()
        return [(part, rows[part.key]) for part in parts if part.key in rows]

    def tried(self, parts: Sequence[PartOfRace], what: str) -> list[Tried]:
        return [part.found(row) for part, row in self.rows(parts, what)]


class Race(NamedTuple):
    """What is asked, the kinds that may answer it, their requests."""

    asked: question.Asked
    kinds: Sequence[question.SearchedServing]
    requests: Requests

    def part(self, how: Find, tried: Tried, best: float = 0.0) -> PartOfRace:
        kind = self.kinds[tried.kind]
        return PartOfRace(kind.serving, how, tried, best, kind.offer.gpu, kind.offer.devices)

    def deployment(self, tried: Tried, choice: configuration.Configuration, engines: SharedEngines) -> Deployment:
        """Raises ArchsimError."""
        return self.part(find_rate, tried).deployment(engines, choice)


Serve = Callable[[Requests], Served | None]  # None: a limit of power or heat is exceeded at every clock


@dataclass(frozen=True, eq=False)
class PartOfRace(PartOfSearch):
    """What is found of an engine with sizes ``tried``. Its row: changes of `Tried`, or a `Curve` and the `Upkeep`."""

    how: Find
    tried: Tried
    best: float = 0.0  # requests a second that others serve: those far below it are left after a run
    gpu: str = ""  # of its board's limit
    offered: int = 0  # GPUs, of which those of its machine serve at once

    @cached_property
    def key(self) -> str:
        tried, held_to = repr(self.tried._replace(kind=0)), (highest_rate.ENOUGH, highest_rate.SUSTAINED)
        return key_of(self.serving, self.limits, self.how.__name__, tried, self.best, self.gpu, self.offered, held_to)

    @property
    def name(self) -> str:
        return self.tried.choice.name

    def find(self, engines: SharedEngines) -> dict[str, Any]:
        """See `PartOfSearch.find`."""
        try:
            return self.how(self, engines)
        except errors.ArchsimError as error:
            if self.how is find_sustained:  # it has been served before
                raise
            return _row(self.tried._replace(rate=0.0, refused=str(error)))

    def found(self, row: Row) -> Tried:
        """What was found, but for curves."""
        limits = {name: row[name] for name in _LIMITS}
        residence_ns = np.inf if row["residence_ns"] is None else row["residence_ns"]
        more = {name: row[name] for name in _CHANGING} | {"residence_ns": residence_ns}
        return self.tried._replace(choice=self.tried.choice._replace(**limits), **more)

    def sides(
        self, engines: SharedEngines, choice: configuration.Configuration
    ) -> tuple[tuple[ServingEngine, Built], ...]:
        """The engines of a choice. Raises ArchsimError."""
        known = engines.known.setdefault(self.group, {})
        return build_sides(self.serving, choice.parallel, choice.decode, choice.prefill > 0, known)

    def deployment(self, engines: SharedEngines, choice: configuration.Configuration) -> Deployment:
        """Raises ArchsimError."""
        return deployment_of(self.serving, self.sides(engines, choice), choice, self.offered)

    def clocked(
        self, engines: SharedEngines, choice: configuration.Configuration, known: dict[float, Deployment] | None = None
    ) -> Serve:
        """Serves at the clock that power and heat allow. ``known``: as of `serve_at_clock`. Raises ArchsimError."""
        engine = None if choice.prefill else self.sides(engines, choice)[0][0]
        of_choice = configuration.serving_of(self.serving, choice)
        return at_its_clock(of_choice, self.deployment(engines, choice), engine, known)

    def requests_at(self, engines: SharedEngines, rate: float) -> Requests:
        """As many requests at a rate as are needed to see a queue grow."""
        every = engines.requests(self.serving)
        count = RESIDENCES * rate * self.tried.residence_ns / units.NS_PER_S
        number = int(min(max(count, FEWEST), question.MOST_REQUESTS))
        some = first(repeated(every, number), number)
        return scale_rate(some, rate / some.offered_per_s)

    def rate(
        self, engines: SharedEngines, choice: configuration.Configuration, least: float, guess: float,
        serve: Serve | None = None,
    ) -> Tried:  # fmt: skip
        """The rate by bisection, if at least ``least`` is within limits. ``serve``: `clocked` if None. Raises
        ArchsimError.
        """
        serve, runs = serve or self.clocked(engines, choice), 0

        def fits(rate: float) -> bool:
            nonlocal runs
            runs += 1
            return share_of(self.serving, serve(self.requests_at(engines, rate))) >= WITHIN

        low = 0.0
        if not least or fits(least):
            start = max(guess, least * BETTER)
            low = highest(fits, start, step=STEP, least=least, close=1 + QUICK_CLOSE)
        return self.tried._replace(choice=choice, rate=low, simulated=runs, configurations=1)


Find = Callable[[PartOfRace, SharedEngines], dict[str, Any]]
_CHANGING = ("rate", "simulated", "configurations", "refused")
_LIMITS = ("max_num_seqs", "max_num_batched_tokens")


def _row(tried: Tried) -> dict[str, Any]:
    """As JSON gives it back: keys of later parts have it."""
    row: dict[str, Any] = {name: getattr(tried, name) for name in _CHANGING} | {"rate": float(tried.rate)}
    row |= {name: getattr(tried.choice, name) for name in _LIMITS}
    return row | {"residence_ns": float(tried.residence_ns) if tried.residence_ns < np.inf else None}


def estimate(part: PartOfRace, engines: SharedEngines) -> dict[str, Any]:
    """The rate of some sizes by their laws, or a bound of it that is below ``best`` requests a second a GPU."""
    parallel, requests = part.tried.choice.parallel, engines.requests(part.serving)
    least = part.best * part.tried.devices
    rate, residence_ns, refused = estimate_of(part.serving, parallel, requests, engines.grids(part.group), least)
    return _row(part.tried._replace(rate=rate, residence_ns=residence_ns, refused=refused))


def serve_few(part: PartOfRace, engines: SharedEngines) -> dict[str, Any]:
    """Serves a few requests, so that processes begin with compiled functions."""
    few = first(engines.requests(part.serving), 8)
    simulate_requests(part.serving, part.deployment(engines, part.tried.choice), few)
    return estimate(part, engines)


def find_rate(part: PartOfRace, engines: SharedEngines) -> dict[str, Any]:
    """The rate of sizes with the usual batch limits, and the fewest requests that bound neither it nor the captured
    graph (`Host.of_iterations`); ``best``: requests a second a GPU that are known to be served.
    """
    given, tried = part.serving.spec.search, part.tried
    dp, devices = tried.choice.parallel.attention.dp, tried.devices
    running = ROOM * tried.rate * tried.residence_ns / units.NS_PER_S / dp
    fewest = max(running, host_for(part.serving).captured / 2)
    enough = [each for each in sorted(given.max_num_seqs) if each >= fewest]
    choice = tried.choice._replace(
        max_num_seqs=enough[0] if enough else max(given.max_num_seqs),
        max_num_batched_tokens=_nearest(given.max_num_batched_tokens, question.USUAL_TOKENS),
    )
    return _row(part.rate(engines, choice, LEFT_BELOW * part.best * devices, tried.rate))


def find_limits(part: PartOfRace, engines: SharedEngines) -> dict[str, Any]:
    """The best batch limits of sizes whose rate with the usual ones is known. A limit of requests that is beyond what
    the engine has changes nothing, as `find_rate` leaves the graph its size, and is not served.
    """
    given, tried, runs, seen = part.serving.spec.search, part.tried, 0, 0
    best = tried
    for seqs, tokens in product(given.max_num_seqs, given.max_num_batched_tokens):
        choice = tried.choice._replace(max_num_seqs=seqs, max_num_batched_tokens=tokens)
        if choice == tried.choice:
            continue
        seen += 1
        if seqs > tried.choice.max_num_seqs or 2 * seqs < tried.choice.max_num_seqs:
            continue
        try:
            found = part.rate(engines, choice, best.rate * BETTER, best.rate * (1 + 2 * QUICK_CLOSE))
        except errors.ArchsimError:
            continue
        runs += found.simulated
        if found.rate > best.rate * BETTER:
            best = found
    return _row(best._replace(simulated=runs, configurations=seen))


def find_pool_rate(part: PartOfRace, engines: SharedEngines) -> dict[str, Any]:
    """The rate of prefill and decode engines together; ``best``: requests a second of other pools of these GPUs."""
    tried = part.tried
    return _row(part.rate(engines, tried.choice, max(0.5 * tried.rate, POOLS_LEFT_BELOW * part.best), tried.rate))


def find_sustained(part: PartOfRace, engines: SharedEngines) -> dict[str, Any]:
    choice, requests = part.tried.choice, engines.requests(part.serving)
    sides = build_sides(part.serving, choice.parallel, choice.decode, choice.prefill > 0, {})
    serving = configuration.serving_of(part.serving, choice)
    rate = highest_rate.highest_rate(serving, deployment_of(part.serving, sides, choice, part.offered), requests)
    return _row(part.tried._replace(rate=float(rate)))


def find_curve(part: PartOfRace, engines: SharedEngines) -> dict[str, Any]:
    """For one of the best: times of the same requests at rates around that found, and its energy at its rate."""
    tried, sides, known = part.tried, part.sides(engines, part.tried.choice), dict[float, Deployment]()
    serving, deployment = configuration.serving_of(part.serving, tried.choice), part.deployment(engines, tried.choice)
    engine, serve = None if tried.choice.prefill else sides[0][0], part.clocked(engines, tried.choice, known)
    if has_limits(serving.system) and not tried.rate:
        raise errors.CapacityError(f"{serving.system.name}: no rate is within the limits of power, heat and times")
    curve = curve_at(np.array(GRID) * tried.rate, GRID, serve, part.requests_at(engines, tried.rate))
    loaded = part.requests_at(engines, max(curve.highest(limits_of(serving)), 1e-3))
    served, _, clocked = serve_at_clock(serving, deployment, engine, loaded, logged=MOST_LOGGED, known=known)
    kept = upkeep(
        served, sides[0][0], serving.system, tried.choice.devices, BOARD_W.get(part.gpu, np.inf),
        clocked.w_per_die if clocked else None,
    )  # fmt: skip
    return {"curve": pack_arrays(curve._asdict() | kept._asdict())}


def find_alone(part: PartOfRace, engines: SharedEngines) -> dict[str, Any]:
    """The ns of TIMES within which WITHIN of a few requests keep all limits, where each comes when the one before has
    ended (``alone_ns``), and where one is in the engine at a time on average, at the row's rate (``often_ns``).
    """
    few, deployment = first(engines.requests(part.serving), FEWEST), part.deployment(engines, part.tried.choice)
    limited = np.isfinite(limits_of(part.serving)).sum()
    share = 1 - (1 - WITHIN) / max(limited, 1)  # of each time, so that WITHIN keep all, whichever exceed one

    def serve(per_s: float) -> Served:
        return simulate_requests(part.serving, deployment, scale_rate(few, per_s / few.offered_per_s))

    def kept_ns(served: Served) -> list[float]:
        found = times_ns(served)
        return [float(np.quantile(found[name], share)) for name in highest_rate.TIMES]

    alone = serve(ALONE_PER_S)
    residence_ns = float(times_ns(alone)["e2e"].mean())
    often = part.tried._replace(rate=units.NS_PER_S / residence_ns, residence_ns=residence_ns)
    return _row(often) | {
        "alone_ns": kept_ns(alone), "often_ns": kept_ns(serve(often.rate)),
        "keeps": share_of(part.serving, alone) >= WITHIN,
    }  # fmt: skip


def curve_and_upkeep(row: Row) -> tuple[Curve, Upkeep]:
    found = unpack_arrays(row["curve"])
    watts, joules = (tuple(found[name].tolist()) for name in ("w_per_gpu", "j_per_token"))
    return Curve(found["rates"], found["times_ns"]), Upkeep(watts, joules, bool(found["limited"]))


ALONE_PER_S = 1e-3  # requests a second, of which each comes when the one before has ended
STEP = 1.3  # by which a rate is raised or lowered until it is bracketed
MOST_LOGGED = 500_000


def _nearest(values: Sequence[int], usual: int) -> int:
    return min(values, key=lambda each: abs(log(each / usual)))


POOLS_LEFT_BELOW = 0.9  # of the best pools of the same GPUs: those that serve no more are left after a run
