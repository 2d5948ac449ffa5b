"""What comes of serving a file, and what a reader has to know of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from archsim.base.errors import capital
from archsim.base.tables import Shown
from archsim.base.units import NS_PER_MS, NS_PER_S
from archsim.iteration.constants import ANY, NONE, Host, ResidualRow, residual_of
from archsim.iteration.machine import has_measured_links, is_measured
from archsim.laws.calibration_files import DEFAULT_CALIBRATION
from archsim.runs.physical_laws import law_sentence
from archsim.serving.deployment import Built
from archsim.serving.expert_groups import busy_of
from archsim.serving.file_requests import notes_of_requests
from archsim.serving.measures import (
    PERCENTILES,
    UNDEFINED,
    Measures,
    Slo,
    few_note,
    in_step_note,
    number,
    times_ns,
    within_limits,
)
from archsim.serving.physical_laws import broken_laws
from archsim.serving.records import KvTransfer
from archsim.serving.requests import Requests
from archsim.serving.simulate import Fault, KvStore, Pool, Scheduler, Served
from archsim.specs.serving_files import Serving

if TYPE_CHECKING:
    import pandas


QUEUED_MS, FULL, STALLED = 50.0, 0.97, 1.15  # from which on a run says why it is slow
RECOVERED = 100  # requests by whose times to first token a recovery is judged


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
    beside: int = 0  # further devices of its machine, on which others serve as it does: they load its power limits
    machines: tuple[tuple[str, int], ...] = ()  # name, devices of it that are used
    store: KvStore | None = None
    faults: tuple[Fault, ...] = ()

    @property
    def summary(self) -> str:
        (name, devices), *others = self.machines
        first = f"{devices} device{'s' * (devices != 1)} of {name}"
        return " and ".join([first, *(f"{count} of {other}" for other, count in others)])

    def __repr__(self) -> str:
        sides = ", then others that decode" if self.decode else ""
        return f"Deployment({self.devices} devices, scheduler {self.scheduler.name}{sides})"


@dataclass(frozen=True, eq=False)
class Outcome(Shown):
    """A deployment, its requests, and what happened; ``longer``: to more requests, which tests steadiness."""

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
    def busy_text(self) -> str:
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
    def unsteady_notes(self) -> tuple[str, ...]:
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
        few, step = few_note(self.served, self.longer), in_step_note(self.served)
        said = (*self.unsteady_notes, *filter(None, [few, step, range_of(self.serving, self.measures), self.busy_text]))
        drafted = int(self.served.totals["drafted"])
        if drafted:
            share = self.served.totals["accepted"] / drafted
            said = (*said, f"Of {drafted:,} drafted tokens, {share:.1%} are accepted. Each takes one token to verify.")
        of_requests = notes_of_requests(self.serving, self.requests)
        return (
            *map(law_sentence, self.broken_laws), *said, *self.why_slow, *self._classes_note(), *self._events_note(),
            *of_requests, *self.deployment.notes,
        )  # fmt: skip

    @property
    def why_slow(self) -> tuple[str, ...]:
        """What most of the time to the first token, and between tokens, passes with, in sentences."""
        return tuple(filter(None, (self._queue_note(), self._stalls_note())))

    def _queue_note(self) -> str:
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

    def _stalls_note(self) -> str:
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

    def _classes_note(self) -> Iterator[str]:
        within, times = within_limits(self.served, slo_of(self.serving)), times_ns(self.served)
        for at, each in enumerate(self.serving.spec.requests.classes):
            mine = self.served.requests["kind"] == at
            if mine.any():
                ttft, tpot = (np.percentile(times[name][mine], 90) / NS_PER_MS for name in ("ttft", "tpot"))
                yield (
                    f"Of the {mine.sum():,} requests of class {each.name}, {within[mine].mean():.1%} are within its "
                    f"limits. Nine in ten of them have at most {ttft:,.0f} ms TTFT and {tpot:,.1f} ms TPOT."
                )

    def _events_note(self) -> Iterator[str]:
        totals, prompt = self.served.totals, int(self.requests.input.sum())
        if self.deployment.store is not None:
            loaded = int(totals["loaded_tokens"])
            yield f"{loaded / prompt:.1%} of the prompt tokens were loaded from the KV store instead of being computed."
        requests = self.served.requests
        for each in self.served.failed:
            yield (
                f"A fault after {each.at_ns / NS_PER_S:,.1f} s cost {each.lost:,} requests their KV cache, which was "
                f"computed again. {_recovery_note(requests, each.at_ns)}"
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


def _recovery_note(requests: np.ndarray, at_ns: float) -> str:
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


def slo_of(serving: Serving) -> Slo:
    """The limits, of each class where there are several; infinite where none is given."""
    given, classes = serving.spec.slo, serving.spec.requests.classes
    names = ("ttft_ns", "tpot_ns", "e2e_ns")
    of_all = {name: np.inf if getattr(given, name) is None else float(getattr(given, name)) for name in names}
    if not classes:
        return Slo(**of_all)
    own = {name: [getattr(each, name) for each in classes] for name in names}
    return Slo(**{name: np.array([of_all[name] if ns is None else ns for ns in own[name]]) for name in names})


def measured_residual(serving: Serving) -> ResidualRow | None:
    """Error of simulation against measurements of the file's engine (pools for pools); None without any."""
    spec, system = serving.spec, serving.system
    measured = is_measured(system) and has_measured_links(system)
    gpu = (system.compute.calibration or DEFAULT_CALIBRATION) if measured else ANY
    pools = spec.disaggregated != "none"
    if pools and (spec.experts_on is not None or serving.machines):
        return None
    dtypes = serving.precision.experts, serving.precision.products
    return residual_of(spec.engine, serving.model, gpu, *dtypes, pools, spec.engine_version)


def range_of(serving: Serving, measures: Measures) -> str:
    """Where 80 % of measured TTFT and TPOT would lie, in words; '' without fitted constants. Pools have their own."""
    spec, found, pools = serving.spec, measured_residual(serving), serving.spec.disaggregated != "none"
    engine = "any engine" if spec.engine == NONE else spec.engine
    if spec.host is not None or (found is None and not pools):
        return ""
    if found is None:
        return f"There is no range for mean TTFT and TPOT, as nobody measured {engine} in such pools."
    whose = "a GPU that is left out" if found.gpu == "any" else f"{found.gpu} with {found.dtype}"
    whose += ", prompts and decodes on separate engines" if pools else ""
    ranges = [
        f"mean {name} would be {low * of.mean:,.1f} to {high * of.mean:,.1f} ms"
        for name, of, (low, high) in (("TTFT", measures.ttft, found.ttft), ("TPOT", measures.tpot, found.tpot))
        if of != UNDEFINED
    ]
    come = f"{found.groups} groups of measurements of {engine} on {whose}"
    if found.unseen:
        what = (
            "nobody measured this GPU with this dtype"
            if found.unmeasured
            else "this version was not measured (engine_version)"
        )
        come = f"{found.groups} pages of another lab: under {engine}, {what}"
    return f"With 80 % probability, the measured {' and the measured '.join(ranges)}. These ranges come from {come}."
