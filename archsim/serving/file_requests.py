"""The requests that a file of ``archsim serve`` asks for: drawn, in sessions, or of a trace."""

from __future__ import annotations

import numpy as np

from archsim.base.errors import TraceError
from archsim.serving import requests as drawn
from archsim.serving.requests import Requests, read_requests
from archsim.specs.serving import RequestSpec
from archsim.specs.serving_files import Serving

OPEN_REQUESTS, REQUESTS_A_CLIENT = 1000, 10  # as `vllm bench serve`, and InferenceX
# Of random numbers; 3 and 5 are of prefixes, and 8 of classes (`archsim.serving.requests`).
INPUT_STREAM, OUTPUT_STREAM, PREFIX_LENGTHS, TURNS_STREAM, THINK_STREAM = 1, 2, 4, 6, 7


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
        if given.total and given.total > len(found.input):
            fewer = f"It has {len(found.input):,} requests, fewer than the {given.total:,} of requests.count."
            found = found._replace(read_as=f"{found.read_as} {fewer}".strip())
        found = drawn.first(found, given.total) if given.total else found
    found = _in_classes(found, given, serving.spec.scheduler.order, serving.spec.slo.ttft_ns)
    return drawn.within_positions(found, serving.model, str(serving.trace or "requests"))


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
    """How a trace was read, which requests are rejected, and which need scaled positions."""
    scaled = drawn.scaled_positions_note(requests, serving.model)
    return tuple(each for each in (requests.read_as, *drawn.rejected_notes(requests), scaled) if each)
