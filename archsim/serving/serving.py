"""A file of ``archsim serve`` as a deployment and requests, and what comes of serving them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from archsim.base.errors import SpecError, TraceError, capital
from archsim.base.tables import Shown
from archsim.base.units import NS_PER_MS, NS_PER_S
from archsim.engine.machine import links_of
from archsim.iteration.layers import has_experts
from archsim.iteration.machine import calibration_on, is_measured, scaled_report
from archsim.iteration.overlap import MICRO_BATCHES
from archsim.iteration.overlap import NONE as NO_OVERLAP
from archsim.iteration.run_iteration import rates_of
from archsim.iteration.speculation import NO_DRAFTS, Speculation
from archsim.iteration.speculation import of as drafts_of
from archsim.runs.calibration_notes import datasheet_note
from archsim.runs.clocks import has_limits
from archsim.runs.physical_laws import law_sentence
from archsim.serving import requests as drawn
from archsim.serving.clocks import Clocked, at_clock, run_within
from archsim.serving.constants import ANY, DECODE, NONE, PREFILL, Host, ResidualRow, host_of, residual_of
from archsim.serving.deployment import LOW_LATENCY, Built, build
from archsim.serving.engine import Offload, ServingEngine, StaticBatch, missing_of
from archsim.serving.expert_groups import (
    WITH_KERNELS,
    busy_of,
    groups_apart,
    groups_of,
    overlap_of,
    part_of,
    pool_of,
    refuse_on_wafer,
    slots_of_rank,
)
from archsim.serving.groups import Fixed
from archsim.serving.kv_room import doubt_of, handed_over, kv_room, store_of
from archsim.serving.measures import (
    PERCENTILES,
    UNDEFINED,
    Measures,
    Slo,
    few_told,
    in_step_told,
    measure,
    number,
    times_ns,
    within_limits,
)
from archsim.serving.physical_laws import broken_laws
from archsim.serving.power import BOARD_W, energy, upkeep
from archsim.serving.records import KvTransfer
from archsim.serving.requests import Requests, format_of, read_requests
from archsim.serving.simulate import SILENT, Fault, KvStore, Pool, Progress, Scheduler, Served, servable, simulate
from archsim.serving.tabulated import Overlap
from archsim.specs.calibration_files import DEFAULT_CALIBRATION, calibration_named
from archsim.specs.deployment import ParallelSpec
from archsim.specs.plausible import plausibility_notes
from archsim.specs.serving import ExpertsOnSpec, RequestSpec, SideSpec, TransferSpec
from archsim.specs.serving_files import EXPERTS_SIDE, Serving, refuse_unserved
from archsim.specs.system import SystemSpec
from archsim.workload.formats.load_files import holds_loads
from microarch.silicon.energy import Activity

if TYPE_CHECKING:
    import pandas


QUEUED_MS, FULL, STALLED = 50.0, 0.97, 1.15  # from which on a run says why it is slow
RECOVERED = 100  # requests by whose times to first token a recovery is judged
ENOUGH = 2000  # requests by which a queue that grows shows
MOST_LONGER = 20_000  # requests of a closed loop that are served to see its steady state
OPEN_REQUESTS, REQUESTS_A_CLIENT = 1000, 10  # as `vllm bench serve`, and InferenceX
FIRST = "ttft"  # factor of a world on the time to first tokens, beside those on fields of `Host`
# Of random numbers; 3 and 5 are of prefixes, and 8 of classes (`archsim.serving.requests`).
INPUT_STREAM, OUTPUT_STREAM, PREFIX_LENGTHS, TURNS_STREAM, THINK_STREAM = 1, 2, 4, 6, 7


@dataclass(frozen=True, eq=False)
class Deployment:
    """``prefill`` serves everything unless there is ``decode``; ``devices`` of all instances."""

    scheduler: Scheduler
    host: Host
    prefill: Built
    decode: Built | None
    transfer: KvTransfer | None
    devices: int
    notes: tuple[str, ...]
    machines: tuple[tuple[str, int], ...] = ()  # name, devices of it that are used
    store: KvStore | None = None
    faults: tuple[Fault, ...] = ()

    @property
    def summary(self) -> str:
        """Devices, and of which machines."""
        (name, devices), *others = self.machines
        return " and ".join([f"{devices} devices of {name}", *(f"{count} of {other}" for other, count in others)])

    def __repr__(self) -> str:
        sides = ", then others that decode" if self.decode else ""
        return f"Deployment({self.devices} devices, scheduler {self.scheduler.name}{sides})"


@dataclass(frozen=True, eq=False)
class Outcome(Shown):
    """A deployment, its requests, and what happened. ``longer``: what happened to more requests of the file, by which
    it was judged whether few are steady.
    """

    serving: Serving
    deployment: Deployment
    requests: Requests
    served: Served
    measures: Measures
    longer: Served | None = None

    def __repr__(self) -> str:
        m, serving = self.measures, self.serving
        return (
            f"Outcome({serving.model.name} on {self.deployment.summary}, "
            f"{serving.policy.name}: {m.requests:,} requests\n"
            f"  TTFT {number(m.ttft.mean, ',.1f')} ms, TPOT {number(m.tpot.mean, ',.2f')} ms (means); "
            f"{m.within_slo:.1%} within the limits\n"
            f"  {m.requests_per_s:.3f} requests/s, goodput {m.goodput_per_s:.3f}, "
            f"{m.output_tokens_per_s:,.0f} output tokens/s{'; saturated' if m.saturated else ''}"
            f"{'; unsteady' if m.unsteady else ''})"
        )

    def to_pandas(self) -> pandas.DataFrame:
        """One row per time a client sees (ms): name, mean, p50, p90, p95, p99."""
        import pandas

        times = {name: getattr(self.measures, name) for name in ("ttft", "tpot", "itl", "e2e")}
        return pandas.DataFrame([
            {"ms": name, "mean": each.mean} | dict(zip((f"p{p}" for p in PERCENTILES), each.percentiles, strict=True))
            for name, each in times.items()
        ])  # fmt: skip

    @property
    def busy_told(self) -> str:
        """How busy the stages of decodes with experts apart are; '' where they are not apart."""
        apart, tables, totals = self.serving.spec.experts_on, self.served.experts, self.served.totals
        if apart is None or tables is None or not totals["iterations"]:
            return ""
        decodes = float(totals["sequences"]) / float(totals["iterations"])
        context = float(np.mean(self.requests.input) + np.mean(self.requests.output) / 2)
        built = self.deployment.decode or self.deployment.prefill
        busy = busy_of(built, tables[-1], decodes, context)
        stage = max(busy._fields, key=lambda name: getattr(busy, name))
        longest = {"attention": "attention sets", "there": "the way to the experts sets", "experts": "the experts set",
                   "back": "the way back sets"}[stage]  # fmt: skip
        return (
            f"With experts on separate devices, a rank decodes {apart.micro_batches} micro-batches of "
            f"{decodes:,.0f} requests at {context:,.0f} tokens each. In a layer, attention is busy for "
            f"{busy.attention:.0%} of the time, the experts for {busy.experts:.0%}, the links to them for "
            f"{busy.there:.0%} and the links back for {busy.back:.0%}. {capital(longest)} the pace."
            + ("" if busy.experts > 0.5 or stage == "experts" else " More or faster devices for experts gain nothing.")
        )

    @property
    def unsteady_told(self) -> tuple[str, ...]:
        """Why its numbers are not those of a steady state."""
        return tuple(each for each in (self.measures.saturated, self.measures.unsteady) if each)

    @property
    def broken_laws(self) -> tuple[str, ...]:
        """Laws of physics that do not hold, in words."""
        deployment = self.deployment
        built = (each for each in (deployment.prefill, deployment.decode) if each is not None)
        served = broken_laws(self.served, self.measures, deployment.devices, bool(self.serving.off))
        return (*(law for each in built for law in each.broken_laws), *served)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know before the numbers."""
        few, step = few_told(self.served, self.longer), in_step_told(self.served)
        said = (*self.unsteady_told, *filter(None, [few, step, range_of(self.serving, self.measures), self.busy_told]))
        drafted = int(self.served.totals["drafted"])
        if drafted:
            share = self.served.totals["accepted"] / drafted
            said = (*said, f"Of {drafted:,} drafted tokens, {share:.1%} are accepted. Each takes one token to verify.")
        of_requests = notes_of_requests(self.serving, self.requests)
        return (
            *map(law_sentence, self.broken_laws), *said, *self.why_slow, *self._classes_told(), *self._events_told(),
            *of_requests, *self.deployment.notes,
        )  # fmt: skip

    @property
    def why_slow(self) -> tuple[str, ...]:
        """What most of the time to the first token, and between tokens, passes with, in sentences."""
        return tuple(filter(None, (self._queue_told(), self._stalls_told())))

    def _queue_told(self) -> str:
        requests, measures = self.served.requests, self.measures
        if not self.served.ttft or self.deployment.decode is not None:
            return ""
        queued = float((requests["scheduled_ns"] - requests["arrival_ns"]).mean()) / NS_PER_MS
        if queued < max(0.5 * measures.ttft.mean, QUEUED_MS):
            return ""
        scheduler = self.deployment.scheduler
        running = _running_at_once(requests, self.deployment.prefill.pool)
        if measures.kv_peak > FULL or measures.preemptions:
            cause = (
                "The KV cache is full, so requests wait until others end. More devices or an FP8 KV cache would give "
                "room."
            )
        elif running >= scheduler.max_num_seqs:
            most = scheduler.max_num_seqs
            at_once = f"{most} request{'' if most == 1 else 's'} at a time"
            cause = f"The reason is that a rank runs at most {at_once} (scheduler.max_num_seqs)."
        else:
            cause = (
                "The reason is that prompts wait for earlier prompts. A rank computes at most "
                f"{scheduler.max_num_batched_tokens:,} tokens in an iteration (scheduler.max_num_batched_tokens)."
            )
        return (
            f"A request waits {queued:,.0f} ms until it is admitted, which is {queued / measures.ttft.mean:.0%} of its "
            f"time to first token of {measures.ttft.mean:,.0f} ms. {cause}"
        )

    def _stalls_told(self) -> str:
        totals, tpot = self.served.totals, self.measures.tpot.mean
        prompts, others = int(totals["prompts"]), int(totals["iterations"] - totals["prompts"])
        if self.deployment.decode is not None or not (prompts and others) or tpot != tpot:
            return ""
        alone = float(totals["busy_ns"] - totals["prompts_ns"]) / others / NS_PER_MS
        if tpot < STALLED * alone:
            return ""
        ranks = self.deployment.prefill.pool.ranks
        text = (
            f"A token takes {tpot:,.1f} ms on average, although an iteration without prompts takes {alone:,.1f} ms. "
            f"The reason is that {prompts / totals['iterations']:.0%} of the iterations compute prompts, and these "
            f"take {float(totals['prompts_ns']) / prompts / NS_PER_MS:,.1f} ms."
        )
        if ranks > 1:
            text += (
                f" A prompt on one of the {ranks} ranks delays the decodes on every rank. The time per token may even "
                "fall as the load grows, because the prompts of several ranks then share an iteration "
                "(scheduler.prefill: spaced or together)."
            )
        return text

    def _classes_told(self) -> Iterator[str]:
        """For each class of requests, how many are within its limits, and their times."""
        within, times = within_limits(self.served, slo_of(self.serving)), times_ns(self.served)
        for at, each in enumerate(self.serving.spec.requests.classes):
            mine = self.served.requests["kind"] == at
            if mine.any():
                ttft, tpot = (np.percentile(times[name][mine], 90) / NS_PER_MS for name in ("ttft", "tpot"))
                yield (
                    f"Of the {mine.sum():,} requests of class {each.name}, {within[mine].mean():.1%} are within its "
                    f"limits. Nine in ten of them have at most {ttft:,.0f} ms TTFT and {tpot:,.1f} ms TPOT."
                )

    def _events_told(self) -> Iterator[str]:
        """What a store gave, and what faults took."""
        totals, prompt = self.served.totals, int(self.requests.input.sum())
        if self.deployment.store is not None:
            loaded = int(totals["loaded_tokens"])
            yield f"{loaded / prompt:.1%} of the prompt tokens were loaded from the KV store instead of being computed."
        requests = self.served.requests
        for each in self.served.failed:
            yield (
                f"A fault after {each.at_ns / NS_PER_S:,.1f} s cost {each.lost:,} requests their KV cache, which was "
                f"computed again. {_recovery_told(requests, each.at_ns)}"
            )


def _running_at_once(requests: np.ndarray, pool: Pool) -> int:
    """Requests that the fullest rank runs at a time, at most."""
    most = 0
    for rank in range(pool.instances * pool.ranks):
        mine = requests["rank"] == rank
        begin, end = np.sort(requests["scheduled_ns"][mine]), np.sort(requests["last_ns"][mine])
        over = np.arange(1, len(begin) + 1) - np.searchsorted(end, begin, side="right")
        most = max(most, int(over.max(initial=0)))
    return most


def _recovery_told(requests: np.ndarray, at_ns: float) -> str:
    """When a hundred requests have as low times to first token again as those before a fault."""
    ttft = (requests["first_ns"] - requests["arrival_ns"])[np.argsort(requests["arrival_ns"], kind="stable")]
    arrivals = np.sort(requests["arrival_ns"])
    before, after = ttft[arrivals < at_ns], np.flatnonzero(arrivals >= at_ns)
    if len(before) < RECOVERED or len(after) < RECOVERED:
        return "Too few requests come before or after it to say when times are normal again."
    usual = float(np.percentile(before, 90))
    lots = [after[at : at + RECOVERED] for at in range(0, len(after) - RECOVERED + 1, RECOVERED)]
    high = [at for at, each in enumerate(lots) if np.percentile(ttft[each], 90) > 1.1 * usual]
    if high == [] or high[0] > 1:
        return "Times to first token stay as they were."
    ends = next((at for at in range(high[0], len(lots)) if at not in high), None)
    if ends is None:
        return "Times to first token stay longer until the end."
    after_s = (arrivals[lots[ends][0]] - at_ns) / NS_PER_S
    return f"Times to first token are normal again after {after_s:,.1f} s."


def serve(serving: Serving, logged: int = 0) -> Outcome:
    """Simulate; ``logged``: iterations to keep a log of.

    Raises ArchsimError for what does not fit, was not measured, or can never be served.
    """
    deployment = deploy(serving)
    return serve_requests(serving, deployment, requests_on(serving, deployment), logged)


def serve_requests(
    serving: Serving, deployment: Deployment, requests: Requests, logged: int = 0, progress: Progress = SILENT
) -> Outcome:
    """Like ``serve``, but for a deployment and requests that are built already. ``logged``: how many iterations to keep
    a log of.
    """
    served, deployment, clocked = _clocked(serving, deployment, requests, max(logged, LOGGED), progress)
    power = _power(serving, deployment, served, clocked)
    if not logged:
        served = served._replace(log=served.log[:0])
    longer = _longer(serving, deployment, requests, served)
    if serving.off:
        late = prod(factors.get(FIRST, 1.0) for factors in serving.off.values())
        served, longer = _late(served, late), None if longer is None else _late(longer, late)
    rejected = sum(each.number for each in requests.rejected)
    measures = measure(served, deployment.devices, slo_of(serving), longer, rejected)._replace(**power)
    return Outcome(serving, deployment, requests, served, measures, longer)


LOGGED = 100_000  # iterations whose work gives the power of a run


def _clocked(
    serving: Serving, deployment: Deployment, requests: Requests, logged: int, progress: Progress
) -> tuple[Served, Deployment, Clocked | None]:
    """What happens at the highest clock within the limits of the machine, and the deployment at that clock; at the full
    one, and None, where it has no limits or engines are not identical.
    """
    spec, system, parallel = serving.spec, serving.system, serving.spec.parallel
    if not has_limits(system) or parallel is None or spec.disaggregated != "none":
        return simulate_requests(serving, deployment, requests, logged, progress), deployment, None

    def run(clock: float) -> tuple[Served, Deployment]:
        own = deployment if clock == 1 else deploy(serving._replace(system=at_clock(system, clock)))
        return simulate_requests(serving, own, requests, logged, progress), own

    def joule_of(ran: tuple[Served, Deployment]) -> tuple[dict[str, float], Activity]:
        joule, done = energy(ran[0], engine_of(serving, parallel), system, deployment.devices)
        return {name: each / deployment.devices for name, each in joule.items()}, done

    (served, own), clocked = run_within(system, run, joule_of)
    return served, replace(own, notes=(*deployment.notes, clocked.told(system))), clocked


def _power(serving: Serving, deployment: Deployment, served: Served, clocked: Clocked | None = None) -> dict[str, Any]:
    """Fields of `Measures` on power; {} where engines are not identical."""
    spec, system = serving.spec, serving.system
    apart = deployment.decode is not None or spec.experts_on is not None
    if apart or spec.parallel is None or not len(served.log):
        return {}
    engine = engine_of(serving, spec.parallel)
    limit_w = system.power.die_limit_w if system.power is not None else None
    if limit_w is None:
        limit_w = BOARD_W.get(system.compute.calibration or "", np.inf) if is_measured(system) else np.inf
    found = upkeep(served, engine, system, deployment.devices, limit_w, clocked.w_per_die if clocked else None)
    ends = ("", "_low", "_high")
    return {
        f"{name}{end}": value
        for name, values in (("device_w", found.w_per_gpu), ("output_token_j", found.j_per_token))
        for end, value in zip(ends, values, strict=True)
    }


def _late(served: Served, factor: float) -> Served:
    """With first tokens, and the wait before them, ``factor`` times as long after their request, and all later tokens
    as long after the first.
    """
    requests = served.requests.copy()
    more = (factor - 1) * (requests["first_ns"] - requests["arrival_ns"])
    requests["scheduled_ns"] = requests["arrival_ns"] + factor * (requests["scheduled_ns"] - requests["arrival_ns"])
    for name in ("first_ns", "last_ns"):
        requests[name] = requests[name] + more
    return served._replace(requests=requests)


def simulate_requests(
    serving: Serving, deployment: Deployment, requests: Requests, logged: int = 0, progress: Progress = SILENT
) -> Served:
    """What happens to requests on a deployment, without measures."""
    decode = deployment.decode.pool if deployment.decode else None
    return simulate(
        requests, deployment.scheduler, deployment.prefill.pool, decode=decode, transfer=deployment.transfer,
        **deployment.host.of_requests, speculation=speculation_of(serving), layers=serving.model.layers,
        whose=str(serving.trace or "requests"), logged=logged, progress=progress, store=deployment.store,
        faults=deployment.faults,
    )  # fmt: skip


def _longer(serving: Serving, deployment: Deployment, requests: Requests, served: Served) -> Served | None:
    """More requests of the file, at the same rate, where it serves few: ENOUGH of an open loop, since a queue takes
    time to grow; as many as a closed loop serves by default. Experts stay as they were at the end. None where the file
    serves enough, or has no more.
    """
    if deployment.faults:  # which are of this run
        return None
    count, clients = ENOUGH, requests.concurrency
    if clients:
        turns = len(requests.input) / (len(requests.input) - (requests.follower >= 0).sum())
        count = int(np.ceil(REQUESTS_A_CLIENT * clients * turns))
        if not clients <= len(requests.input) < count or count > MOST_LONGER:
            return None
    elif len(requests.input) >= ENOUGH or not requests.offered_per_s:
        return None
    given = serving.spec.requests.model_copy(update={"total": count})
    try:
        more = requests_on(serving._replace(spec=serving.spec.model_copy(update={"requests": given})), deployment)
    except TraceError:
        return None
    own = len(requests.input)
    if len(more.input) <= own or not np.array_equal(more.input[:own], requests.input):  # requests of a measured run
        return None
    if not clients:
        more = drawn.scale_rate(more, requests.offered_per_s / more.offered_per_s)
    pools = [built.pool for built in (deployment.prefill, deployment.decode) if built]
    tables = served.experts
    if tables is not None and tables.shape[2]:
        pools = [pool._replace(experts=lambda i, say: Fixed(tables[i])) for pool in pools]
    return simulate(
        more, deployment.scheduler, pools[0], decode=pools[1] if len(pools) > 1 else None,
        transfer=deployment.transfer, **deployment.host.of_requests,
        speculation=speculation_of(serving), layers=serving.model.layers, store=deployment.store,
    )  # fmt: skip


def speculation_of(serving: Serving) -> Speculation:
    """Drafts of a file; those of a multi-token-prediction head run one layer each."""
    given = serving.spec.speculation
    if given == "none":
        return NO_DRAFTS
    layers = 1 if given.method == "mtp" else 0
    return drafts_of(given.draft_tokens, given.acceptance, layers, given.seed, given.tree or ())


def slo_of(serving: Serving) -> Slo:
    """The limits, of each class where there are several; infinite where none is given."""
    given, classes = serving.spec.slo, serving.spec.requests.classes
    names = ("ttft_ns", "tpot_ns", "e2e_ns")
    of_all = {name: np.inf if getattr(given, name) is None else float(getattr(given, name)) for name in names}
    if not classes:
        return Slo(**of_all)
    own = {name: [getattr(each, name) for each in classes] for name in names}
    return Slo(**{name: np.array([of_all[name] if ns is None else ns for ns in own[name]]) for name in names})


def requests_of(serving: Serving) -> Requests:
    """The requests of a file, without those beyond the model's positions. Raises TraceError."""
    given = serving.spec.requests
    apart = given.start == "apart" and serving.spec.static_batch is None
    if serving.trace is None:
        found = _drawn(given)._replace(apart=apart)
    else:
        read = read_requests(serving.trace, given.format, given.time_unit, given.hash_tokens)
        found = drawn.scale_rate(read, given.speed)
        found = found._replace(concurrency=given.concurrency or 0, apart=apart, outputs_kept=given.outputs_kept)
        if serving.spec.loads.rates and not found.offered_per_s:
            raise TraceError(
                f"{serving.trace}: all requests arrive at once: there is no rate that loads.rates could change; "
                "leave rates out, or give requests.concurrency and loads.clients"
            )
        found = drawn.first(found, given.total) if given.total else found
    found = _in_classes(found, given, serving.spec.scheduler.order, serving.spec.slo.ttft_ns)
    return drawn.within_positions(found, serving.model, str(serving.trace or "requests"))


def requests_on(serving: Serving, deployment: Deployment) -> Requests:
    """The requests of a file that a deployment serves: without those that are too long for it. Raises TraceError."""
    decode = deployment.decode.pool if deployment.decode else None
    whose = str(serving.trace or "requests")
    return servable(requests_of(serving), deployment.scheduler, deployment.prefill.pool, decode, whose)


def _in_classes(found: Requests, given: RequestSpec, order: str, ttft_ns: float | None) -> Requests:
    """With the class of each request, or session, drawn by shares, and what it waits by."""
    if not given.classes:
        return found
    shares = np.array([each.share for each in given.classes])
    kinds = drawn.kinds(found, shares, given.seed)
    keys = {
        "priority": [float(each.priority) for each in given.classes],
        "deadline": [each.ttft_ns or ttft_ns or 0.0 for each in given.classes],
    }
    waits = np.array(keys[order])[kinds] if order in keys else np.zeros(0)
    return found._replace(kinds=kinds, order=waits)


def _drawn(given: RequestSpec) -> Requests:
    assert given.input is not None and given.output is not None
    if given.sessions is not None:
        return _drawn_sessions(given)
    count = given.total or (REQUESTS_A_CLIENT * given.concurrency if given.concurrency else OPEN_REQUESTS)
    prompt = drawn.lengths(count, *given.input.drawn, given.seed, INPUT_STREAM)
    output = drawn.lengths(count, *given.output.drawn, given.seed, OUTPUT_STREAM)
    arrivals = np.zeros(count)
    if given.arrivals is not None:
        arrivals = drawn.gamma_arrivals(count, given.arrivals.rate, given.arrivals.burstiness, given.seed)
    found = drawn.without_hashes(arrivals, prompt, output, given.concurrency or 0)
    if given.prefixes is None:
        return found
    shared = drawn.lengths(given.prefixes.different, *given.prefixes.tokens.drawn, given.seed, PREFIX_LENGTHS)
    return drawn.with_prefixes(found, shared, given.prefixes.share, given.prefixes.skew, given.seed)


def _drawn_sessions(given: RequestSpec) -> Requests:
    """Draws as many sessions as are needed for the number of turns. The last session may be cut short."""
    assert given.sessions is not None and given.input is not None and given.output is not None
    asked, seed = given.sessions, given.seed
    count = given.total or (REQUESTS_A_CLIENT * given.concurrency if given.concurrency else OPEN_REQUESTS)
    turns = drawn.lengths(count, *asked.turns.drawn, seed, TURNS_STREAM)
    if given.concurrency and not given.total:  # as many sessions as a client has requests elsewhere
        count = int(turns.sum())
    turns = turns[: int(np.searchsorted(np.cumsum(turns), count)) + 1]
    turns[-1] -= int(turns.sum()) - count
    arrivals = np.zeros(len(turns))
    if given.arrivals is not None:
        arrivals = drawn.gamma_arrivals(len(turns), given.arrivals.rate, given.arrivals.burstiness, seed)
    before, which = np.zeros(len(turns), np.int64), np.zeros(len(turns), np.int64)
    if given.prefixes is not None:
        asked_for = given.prefixes
        tokens = drawn.lengths(asked_for.different, *asked_for.tokens.drawn, seed, PREFIX_LENGTHS)
        before, which = drawn.prefixes(len(turns), tokens, asked_for.share, asked_for.skew, seed)
    added = drawn.lengths(count, *given.input.drawn, seed, INPUT_STREAM)
    output = drawn.lengths(count, *given.output.drawn, seed, OUTPUT_STREAM)
    think_ns = drawn.times_ns(count, asked.think_ns, asked.think_cv, seed, THINK_STREAM)
    found = drawn.in_sessions(arrivals, turns, added, output, think_ns, before, which, given.outputs_kept)
    return found._replace(concurrency=given.concurrency or 0)


def notes_of_requests(serving: Serving, requests: Requests) -> tuple[str, ...]:
    """What a reader has to know of the requests: as what a trace was read, which are rejected, and which need scaled
    positions.
    """
    scaled = drawn.scaled_positions_told(requests, serving.model)
    return tuple(each for each in (requests.read_as, *drawn.rejected_told(requests), scaled) if each)


def deploy(serving: Serving) -> Deployment:
    """The engines of a file. Raises SpecError, LawMissing, CapacityError."""
    spec, scheduler = serving.spec, Scheduler.of(serving.spec.scheduler)
    host = host_for(serving)
    decode, transfer = None, None
    machines = machines_of(serving)
    if spec.disaggregated == "none":
        prefill = _built(serving, spec.pools[0], scheduler, host)
    else:
        sides, prefilled = spec.disaggregated, spec.disaggregated.prefill
        decodes = serving.on("decode")
        if sides.decode.experts_on is None:
            decodes = decodes_alone(decodes, sides.decode.parallel)
        alone = host_for(decodes, DECODE, sides.decode.parallel.attention.dp)
        decode = _built(decodes, sides.decode, scheduler, alone, alone=True)
        if isinstance(prefilled, SideSpec):
            prefills = serving.on("prefill")
            host = host_for(prefills, PREFILL)
            prefill = _built(prefills, prefilled, scheduler, host)
            transfer = transfer_of(prefills, engine_of(prefills, prefilled.parallel), sides.transfer, host)
        else:
            host = alone
            prefill, decode = decode._replace(pool=decode.pool._replace(prefilled=True)), None
    notes, devices = _notes(serving, prefill, decode), sum(devices for _, devices in machines)
    faults = tuple(
        Fault(each.at_ns, each.engine, each.rank, each.recovery_ns, each.elastic,
              np.inf if each.back_ns is None else each.back_ns)
        for each in spec.faults
    )  # fmt: skip
    return Deployment(
        scheduler=scheduler,
        host=host,
        prefill=prefill,
        decode=decode,
        transfer=transfer,
        devices=devices,
        notes=notes,
        machines=machines,
        store=kv_store_of(serving, scheduler),
        faults=faults,
    )


def kv_store_of(serving: Serving, scheduler: Scheduler, parallel: ParallelSpec | None = None) -> KvStore | None:
    """The KV store of the engines that take prompts, or of an engine with other sizes. None where the file has none."""
    given, side = serving.spec.kv_store, next(iter(serving.spec.sides.items()))
    if given == "none":
        return None
    on, sizes = serving.on(side[0]) if side[0] else serving, parallel or side[1].parallel
    rate = given.bandwidth_bytes_per_s or host_bytes_per_s(on.system)
    return store_of(engine_of(on, sizes), scheduler.block_tokens, given, side[1].instances, rate)


def host_bytes_per_s(system: SystemSpec) -> float:
    """Of a device's link to the memory of its host."""
    return system.decision.host.pcie_bandwidth_bytes_per_s


def machines_of(serving: Serving) -> tuple[tuple[str, int], ...]:
    """(name, devices) of the machines that a file uses. Raises SpecError where it asks for more than one has."""
    used: dict[str, int] = {}
    has: dict[str, int] = {}
    for name, side in serving.spec.sides.items():
        system = serving.on(name).system
        used[system.name] = used.get(system.name, 0) + side.instances * side.parallel.devices
        has[system.name] = system.dies
    if serving.spec.experts_on is not None:
        system = serving.on(EXPERTS_SIDE).system
        used[system.name] = used.get(system.name, 0) + system.dies
        has[system.name] = has.get(system.name, 0) + system.dies  # further ones, even of the same kind
    for name, devices in used.items():
        if devices > has[name]:
            raise SpecError(
                f"{name} has {has[name]} devices, but the file asks for {devices} (`instances` times the ranks of "
                f"`parallel`). Use fewer of either, or name a larger system"
            )
    return tuple(used.items())


def decodes_alone(serving: Serving, parallel: ParallelSpec) -> Serving:
    """The file as engines see it that only decode. Between nodes they take DeepEP's low-latency kernels, as SGLang's
    and vLLM's do, unless the file names a dispatch.
    """
    given, traffic = serving.spec.assumptions, serving.has_traffic and has_experts(serving.model)
    if not traffic or not (given is None or (isinstance(given, dict) and not {"dispatch", "set"} & set(given))):
        return serving
    fabric = part_of(serving.system, parallel.ranks).fabric
    if parallel.attention.dp == 1 or fabric is None or len(fabric.levels) == 1:
        return serving
    spec = serving.spec.model_copy(update={"assumptions": {**(given or {}), "dispatch": LOW_LATENCY}})
    return serving._replace(spec=spec, assumptions=serving.assumptions.model_copy(update={"dispatch": LOW_LATENCY}))


def _built(serving: Serving, side: SideSpec, scheduler: Scheduler, host: Host, alone: bool = False) -> Built:
    """``alone``: prompts are computed by other engines."""
    engine = engine_of(serving, side.parallel, side.experts_on)._replace(decodes_alone=alone)
    built = build(engine, scheduler, host, side.instances)
    built = built._replace(pool=built.pool._replace(most=side.max_num_seqs or 0))
    return with_experts(serving, engine, built, scheduler, host)


def with_experts(serving: Serving, engine: ServingEngine, built: Built, scheduler: Scheduler, host: Host) -> Built:
    """The engine with groups of experts, where experts are chosen as in traffic. Raises SpecError, TraceError."""
    if engine.routing is not None or not has_experts(engine.model):
        return built
    groups_in = groups_of if engine.overlap.how != MICRO_BATCHES else groups_apart
    groups = groups_in(serving, engine, built, scheduler, host)
    return built._replace(pool=built.pool._replace(experts=groups.group), notes=(*built.notes, groups.note))


def engine_of(serving: Serving, parallel: ParallelSpec, apart: ExpertsOnSpec | None = None) -> ServingEngine:
    """One engine on the machine of ``serving``; ``apart``: where its experts are, if not on its own devices. Raises
    SpecError for a wafer without routing from traffic, and for what does not go with experts apart.
    """
    spec, system, model = serving.spec, serving.system, serving.model
    if apart is not None:
        if not has_experts(model):
            raise SpecError(f"disaggregated.decode.experts_on: {model.name} has no experts. Leave it out")
        if serving.assumptions.overlap != NO_OVERLAP:
            raise SpecError(
                f"assumptions.overlap: {serving.assumptions.overlap}: with experts on separate devices, "
                "micro-batches overlap (experts_on.micro_batches). Give overlap: none"
            )
        model = model.model_copy(update={"shared_experts": 0})  # they are with the routed ones
    traffic = serving.has_traffic and has_experts(serving.model)
    rates, links = None, links_of(system, serving.assumptions)
    if system.compute.kernel_factor != 1 and not traffic:
        raise SpecError(
            f"compute.kernel_factor: {system.compute.kernel_factor:g} is of experts that the engine runs. Give "
            "routing: {like: model}, or leave it out"
        )
    if system.drawn is not None and (system.drawn.wafers > 1 or system.drawn.needs_area):
        raise SpecError(
            f"{system.name}: drawn: archsim serve runs one machine. Give what `archsim sweep` sampled as "
            "dies_as_built and links_as_built"
        )
    array, hbm = system.slowest
    if system.launch == WITH_KERNELS and system.has_dead_links:
        raise SpecError(
            f"{system.name}: links_as_built.dead: collectives were measured where all links work. List the GPU under "
            "dies_as_built.dead, or give the link a share of its bandwidth (links_as_built.degraded)"
        )
    if system.launch != WITH_KERNELS:
        refuse_on_wafer(serving)
        rates = rates_of(system)
    elif (array, hbm) != (1.0, 1.0):
        raise SpecError(
            f"{system.name}: dies_as_built: archsim serve has the measured times of equal GPUs. Omit speed and "
            "harvest, or take an experiment (archsim sweep)"
        )
    precision = spec.precision.dtypes(system.compute.dtype)
    utilisation = spec.utilisation if spec.utilisation is not None else 1 - system.hbm.reserved_fraction
    overlap = overlap_of(serving, parallel.ranks, parallel.attention.dp)
    if parallel.pp > 1:
        _refuse_beside_stages(serving, parallel.pp, apart)
    if apart is not None:
        overlap = Overlap(MICRO_BATCHES, parts=apart.micro_batches)
    slots = 0 if apart is not None else slots_of_rank(serving, parallel) if traffic else _slots_kept(serving, parallel)
    shares = parallel.attention.prompts == "shared" and parallel.attention.dp > 1
    if shares and (system.launch != WITH_KERNELS or serving.assumptions.overlap != NO_OVERLAP):
        raise SpecError(
            "parallel.attention.prompts: shared: modelled on GPUs and without overlap of batches (assumptions.overlap: "
            "none). Give own"
        )
    return ServingEngine(
        model=model,
        calibration=calibration_named(system.compute.calibration) if rates is not None else calibration_on(system),
        hbm_bytes=system.hbm.capacity_bytes,
        parallel=parallel.sizes(has_experts(serving.model)),
        precision=precision,
        routing=None if traffic else str(spec.routing),
        library=None if spec.engine == NONE or rates is not None else spec.engine,
        utilisation=utilisation,
        rates=rates,
        expert_slots=slots,
        overlap=overlap,
        mtp_layers=speculation_of(serving).layers,
        static=static_batch(serving, parallel),
        offload=_offload_of(serving, parallel),
        shares_prompts=shares,
        utilised=spec.utilisation is not None,
        links=links,
    )


def _slots_kept(serving: Serving, parallel: ParallelSpec) -> int | None:
    """Expert slots of a rank, all layers together, where they are not its share: experts that stay in HBM and room for
    those of two layers that are loaded; or spare ones for ranks that fail. None: its share.
    """
    spec, sizes, model = serving.spec, parallel.sizes(), serving.model
    if not has_experts(model):
        return None
    layers, mine = len(model.moe_layer_ids), -(-model.experts // (sizes.ep * sizes.expert_tp))
    if spec.expert_offload != "none":
        resident = _resident(serving, parallel)
        of_rank = -(-model.experts // sizes.ep)
        held = resident * layers + min(2, layers) * (of_rank - resident)
        return -(-held // sizes.expert_tp)
    failing = max((sum(each.elastic and each.engine == engine for each in spec.faults)
                   for engine in {each.engine for each in spec.faults}), default=0)  # fmt: skip
    if not failing:
        return None
    left = sizes.dp - failing
    if left < 1:
        raise SpecError(f"faults: {failing} of {sizes.dp} ranks of an engine fail, and none is left. Give fewer faults")
    return layers * -(-mine * sizes.dp // left)


def _resident(serving: Serving, parallel: ParallelSpec) -> int:
    """Experts of a layer that stay in the HBM of a rank."""
    given = serving.spec.expert_offload
    assert given != "none"
    return int(given.resident * (serving.model.experts // parallel.sizes().ep))


def _offload_of(serving: Serving, parallel: ParallelSpec) -> Offload | None:
    """Experts in memory of the host. Raises SpecError for a dense model and a wafer, TraceError."""
    given, model = serving.spec.expert_offload, serving.model
    if given == "none":
        return None
    if not has_experts(model) or serving.system.launch != WITH_KERNELS:
        what = "has no experts" if not has_experts(model) else "is on a wafer, which has no memory of a host"
        raise SpecError(f"expert_offload: {model.name} {what}. Leave it out")
    ep, resident = parallel.sizes().ep, _resident(serving, parallel)
    pool = None
    if given.popularity is not None:
        pool = pool_of(serving._replace(spec=serving.spec.model_copy(update={"routing": given.popularity})))
    missing = missing_of(model, ep, resident, pool)
    one = float(missing(np.array([1]))[0])
    text = (
        f"A rank keeps {resident} of its {model.experts // ep} experts of a layer in HBM (expert_offload). A single "
        f"token lacks {one * ep:.2f} of its {model.top_k} experts there, on average."
    )
    rate = given.bandwidth_bytes_per_s or host_bytes_per_s(serving.system)
    return Offload(model.experts // ep - resident, rate, given.prefetch, missing, text)


def _refuse_beside_stages(serving: Serving, stages: int, apart: ExpertsOnSpec | None) -> None:
    """Raise SpecError for what nobody runs, or what is not modelled, with a pipeline."""
    spec = serving.spec
    for odd, what in (
        (apart is not None, "experts on separate devices (experts_on)"),
        (serving.assumptions.overlap != NO_OVERLAP, f"assumptions.overlap: {serving.assumptions.overlap}"),
        (spec.speculation != "none", "speculation"),
        (spec.static_batch is not None, "a static batch"),
    ):
        if odd:
            raise SpecError(f"parallel.pp: {stages} stages: a pipeline with {what} is not modelled. Give pp: 1")


def static_batch(serving: Serving, parallel: ParallelSpec) -> StaticBatch | None:
    """The batch of a file with ``static_batch``. Raises SpecError where its size is not stated."""
    given, requests = serving.spec.static_batch, serving.spec.requests
    if given is None:
        return None
    prompt, output = (getattr(each, "fixed", None) for each in (requests.input, requests.output))
    if requests.concurrency is None or prompt is None or output is None:
        raise SpecError(
            "static_batch: a batch has a size and prompts of one length. Give requests: {concurrency: 32, input: "
            "{fixed: 1024}, output: {fixed: 1}, count: 32}"
        )
    fetches = serving.policy.replication.name != NONE
    home = -(-serving.model.experts // parallel.ranks)
    return StaticBatch(
        requests.concurrency, prompt + output, requests.concurrency * prompt, given.reserve_bytes, given.imbalance,
        given.stages.get(serving.policy.name, 1), home if fetches else 0,
    )  # fmt: skip


def host_for(serving: Serving, pool: str = "", dp: int = 1) -> Host:
    """The host constants of a file: those of its engine, where it gives none; of a world, as far as they are off.
    ``pool``: PREFILL or DECODE of one that does one of both, with ``dp`` ranks of data-parallel attention.
    """
    found = _host_for(serving, pool, dp)
    off = {name: factor for name, factor in serving.off.get(serving.side, {}).items() if name != FIRST}
    return found._replace(**{name: getattr(found, name) * factor for name, factor in off.items()}) if off else found


def _host_for(serving: Serving, pool: str, dp: int) -> Host:
    """``pool``: of two sides. Engines to which requests bring their KV have the constants of those that do both: no
    router stands between them and an engine that prefills.
    """
    spec = serving.spec
    gpu = serving.system.compute.calibration or DEFAULT_CALIBRATION
    products = spec.precision.products or serving.system.compute.dtype
    if spec.disaggregated != "none" and spec.disaggregated.prefill == "none":
        pool = ""
    found = host_of(spec.engine, serving.model, gpu, spec.precision.experts or products, products, pool=pool, dp=dp)
    if serving.system.launch != WITH_KERNELS:  # factors are of kernels of GPUs
        found = found._replace(experts=1.0, decodes=1.0, prompts=1.0)
    given = spec.host
    if given is None:
        return found
    return found._replace(
        iteration_ns=given.iteration_ns, sequence_ns=given.sequence_ns, prompt_ns=given.prompt_ns,
        request_ns=given.request_ns, front_end_ns=given.front_end_ns, first_after=given.first_after,
        decodes=found.decodes if given.decodes is None else given.decodes,
        prompts=found.prompts if given.prompts is None else given.prompts,
        captured=found.captured if given.captured is None else given.captured,
    )  # fmt: skip


def measured_residual(serving: Serving) -> ResidualRow | None:
    """How far measurements of the engine that a file starts are from what is simulated, those of pools for pools; None
    without any.
    """
    spec, system = serving.spec, serving.system
    gpu = (system.compute.calibration or DEFAULT_CALIBRATION) if is_measured(system) else ANY
    products = spec.precision.products or serving.system.compute.dtype
    pools = spec.disaggregated != "none"
    if pools and (spec.experts_on is not None or serving.machines):
        return None
    return residual_of(
        spec.engine, serving.model, gpu, spec.precision.experts or products, products, pools, spec.engine_version
    )


def range_of(serving: Serving, measures: Measures) -> str:
    """Where 80 % of measured TTFT and TPOT would lie, in words; '' without constants that were fitted. Pools that
    prefill and decode have the ranges of such pools.
    """
    spec, found, pools = serving.spec, measured_residual(serving), serving.spec.disaggregated != "none"
    if spec.host is not None or (found is None and not pools):
        return ""
    if found is None:
        return f"There is no range for mean TTFT and TPOT, as {spec.engine} was not measured in such pools."
    whose = "a GPU that is left out" if found.gpu == "any" else f"{found.gpu} with {found.dtype}"
    whose += ", prompts and decodes on separate engines" if pools else ""
    ranges = [
        f"mean {name} would be {low * of.mean:,.1f} to {high * of.mean:,.1f} ms"
        for name, of, (low, high) in (("TTFT", measures.ttft, found.ttft), ("TPOT", measures.tpot, found.tpot))
        if of != UNDEFINED
    ]
    come = f"{found.groups} groups of measurements of {spec.engine} on {whose}"
    if found.unseen:
        what = (
            "nobody measured this GPU with this dtype"
            if found.unmeasured
            else "this version was not measured (engine_version)"
        )
        come = f"{found.groups} pages of another lab: under {spec.engine}, {what}"
    return f"With 80 % probability, the measured {' and the measured '.join(ranges)}. These ranges come from {come}."


def rooms_told(serving: Serving) -> list[str]:
    """What HBM of a device leaves for KV: a sentence for each pool."""
    sides, scheduler = serving.spec.sides, Scheduler.of(serving.spec.scheduler)
    rooms = {
        name: kv_room(engine_of(serving.on(name), side.parallel, side.experts_on), scheduler)
        for name, side in sides.items()
    }
    return [f"{name}: {room.report}" if len(sides) > 1 else room.report for name, room in rooms.items()]


def transfer_of(
    serving: Serving, engine: ServingEngine, given: TransferSpec, host: Host, devices: int = 0
) -> KvTransfer:
    """Over the links that a file gives, or those of its system: of its innermost level while all engines are on one
    node, else those between nodes, if every device has its own. ``devices``: of all engines; 0: those of the file.
    """
    system = serving.system
    used = devices or sum(each.instances * each.parallel.devices for each in serving.spec.sides.values())
    rate = given.bandwidth_bytes_per_s or system.d2d.bandwidth_bytes_per_s * system.d2d.efficiency
    levels = system.fabric.levels if system.fabric is not None else ()
    if given.bandwidth_bytes_per_s is None and len(levels) > 1 and used > (levels[0].switch or used):
        outer = levels[1]
        if outer.per == "gpu" and outer.bandwidth_bytes_per_s is not None:
            rate = outer.bandwidth_bytes_per_s
    return handed_over(engine, rate, given.latency_ns, host)


def _machine_notes(serving: Serving) -> list[str]:
    """Whose times the machines of a file take where they are not their own."""
    found = []
    for system in dict.fromkeys(serving.on(name).system for name in serving.spec.sides):
        found += [datasheet_note([system.name])] if system.datasheet_only else []
        scaled = scaled_report(system) if system.launch == WITH_KERNELS else ""
        found += [scaled] if scaled else []
    return found


def _notes(serving: Serving, prefill: Built, decode: Built | None) -> tuple[str, ...]:
    built = (prefill, decode) if decode else (prefill,)
    model = serving.model
    found = [*_machine_notes(serving), *plausibility_notes(serving.system)]
    found += serving.unread
    if serving.recipe:
        found.append(
            f"The file leaves some settings out, which are taken as {serving.spec.engine} starts with: "
            f"{'; '.join(serving.recipe)}."
        )
    ranks = [pool.parallel.sizes().ep for pool in serving.spec.pools]
    if serving.policy.placement.name == "padded" and (uneven := [ep for ep in ranks if model.experts % ep]):
        slots = -(-model.experts // uneven[0])
        found.append(
            f"The {model.experts} experts do not divide over {uneven[0]} ranks. Every rank has {slots} slots in a "
            f"layer, of which {slots * uneven[0] - model.experts} in all are empty."
        )
    found += [f"The model {model.name} is approximate: {each}." for each in model.approximate]
    found += [note for each in built for note in each.notes]
    worst = max(each.errors[1] for each in built)
    found.append(
        "The times of iterations are interpolated between values of the fitted curves. The median error is "
        f"{prefill.errors[0]:.2%} and the largest {worst:.2%}."
    )
    beyond = max(each.extrapolated for each in built)
    if beyond > 0.01:
        found.append(f"{beyond:.0%} of a typical iteration's time is extrapolated beyond measured sizes.")
    if prefill.pool.prefilled:
        found.append(
            "Requests arrive with their KV cache and first token (disaggregated.prefill: none), so TTFT is not "
            "simulated."
        )
    if serving.spec.engine == NONE and serving.spec.host is None:
        also = "" if serving.system.launch == WITH_KERNELS else ", but for its way to the wafer (system.decision.host)"
        found.append(f"The host takes no time (engine: none){also}.")
    return tuple(dict.fromkeys(found))


# What ``archsim check`` asks of a file of ``archsim serve`` beside its keys: what serving would refuse, unserved.

_LOADS = (
    "the file holds loads of experts and no tokens, so there are no tokens to draw from. Give a recorded trace. Loads "
    "are for `archsim place`"
)


def check_serving(serving: Serving) -> tuple[str, ...]:
    """What a reader has to know of the requests, and of engines that may not fit.

    Raises SpecError, CapacityError or LawMissing for a deployment that cannot be built under any of its policies, and
    SpecError or TraceError for files that are no routing or no requests. Nothing is served.
    """
    for key, file in (("routing.trace", serving.routed), ("requests.trace", serving.trace)):
        if file is not None and _are_loads(file, key):
            raise SpecError(f"{key}: {file}: {_LOADS}")
    requests = requests_of(serving)
    machines_of(serving)
    scheduler, doubts = Scheduler.of(serving.spec.scheduler), dict[str, None]()
    for policy in serving.policies:
        if serving.has_traffic:
            refuse_unserved(policy)
        for name, side in serving.spec.sides.items():
            there = serving.on(name)._replace(policy=policy)
            host, engine = host_for(there), engine_of(there, side.parallel, side.experts_on)
            built = build(engine, scheduler, host, side.instances)
            doubts[doubt_of(engine, scheduler)] = None
            if side.experts_on is not None:
                groups_apart(there, engine, built, scheduler, host)
    return (*_machine_notes(serving), *notes_of_requests(serving, requests), *filter(None, doubts))


def _are_loads(file: Path, key: str) -> bool:
    if key == "routing.trace":
        return holds_loads(file)
    try:
        format_of(file)
    except TraceError:
        if holds_loads(file):
            return True
        raise
    return False
