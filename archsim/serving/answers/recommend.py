"""Recommends the engine, GPU, parallel sizes, precision, batch limits and pools that serve the most requests within
limits and a budget, or at the least price or energy, and says how sure that is. A search races: rates of all sizes are
estimated, the best served by bisection, then with other limits, then on a grid of rates. A run has so many requests
that a growing queue shows: RESIDENCES times those in the engine at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base.errors import SpecError, TraceError, capital
from archsim.base.units import NS_PER_MS, NS_PER_S
from archsim.base.verbs import caller_name
from archsim.iteration.layers import has_experts
from archsim.iteration.machine import scaled_report
from archsim.runs.calibration_notes import datasheet_note
from archsim.runs.clocks import has_limits
from archsim.serving.answers import question
from archsim.serving.answers.chances import drawn_rates, factors_of
from archsim.serving.answers.configuration import Configuration, describe_sizes, serving_of, sizes_of
from archsim.serving.answers.engines import SharedEngines
from archsim.serving.answers.highest_rate import TIMES, WITHIN, Curve, limits_of
from archsim.serving.answers.race import (
    GRID,
    PartOfRace,
    Race,
    Rounds,
    Row,
    Tried,
    curve_and_upkeep,
    estimate,
    find_alone,
    find_curve,
    find_limits,
    find_pool_rate,
    find_rate,
    serve_few,
)
from archsim.serving.answers.recommendation import Recommendation, Recommended, enough_requests, shown_rate
from archsim.serving.deployment import GATHERED_RANKS
from archsim.serving.measures import Measures, usd_per_million
from archsim.serving.power import Upkeep
from archsim.serving.requests import Requests, first, rejected_notes, repeated, scale_rate
from archsim.serving.serving import serve_requests
from archsim.show.units import listing, rounded_up

RACED_OF_KIND, RACED = 3, 9  # sizes that are served, by their estimates: of an engine and precision, and in all
LIMITED, FINALISTS = 3, 5  # sizes with all batch limits, and on the grid
MOST_OF_KIND = 3  # of these, of one engine and precision
RATES = (
    "requests_per_s",
    "goodput_per_s",
    "output_tokens_per_s",
    "total_tokens_per_s",
)  # of `Measures`, of all engines
ENDED = "The search was ended, so this compares what was found so far. The same command goes on from there."


def recommend(
    asked: question.Asked, report: Callable[[str], None] = lambda text: None, jobs: int = 1, folder: Path | None = None
) -> Recommendation:
    """Race all configurations, and compare the best. ``folder``: keeps what was served, where a later call finds it,
    also after Ctrl-C. Raises SpecError where none serves within the limits, TraceError where an engine would reject
    requests.
    """
    kinds, rounds = question.kinds_of(asked), Rounds(report, jobs, folder, compares=True)
    engines = rounds.workspace.of(SharedEngines)
    requests = engines.requests(kinds[0].serving)
    if requests.rejected:  # else the shorter ones alone would decide
        raise TraceError(f"{next(rejected_notes(requests))} Take shorter ones (--input, --output), or leave them out")
    if not requests.offered_per_s:
        raise SpecError("a recommendation needs requests that arrive over time: this trace has them all at once")
    race = Race(asked, kinds, requests)
    every = [
        Tried(kind, Configuration(
            parallel, 1, question.USUAL_SEQS, question.USUAL_TOKENS, precision=each.dtypes, draft_tokens=each.drafts,
        ), 0.0, 0.0)
        for kind, each in enumerate(kinds)
        for parallel in sizes_of(each.serving, _most_ranks(each.offer, len(asked.offers)))
    ]  # fmt: skip
    report(f"estimating {len(every)} {'size' if len(every) == 1 else 'sizes'} of engines")
    known: set[tuple[str, str]] = set()  # here, so that no process compiles or reads what another one does
    for each in every:
        what = kinds[each.kind].offer.gpu, kinds[each.kind].precision
        if what not in known and not race.part(serve_few, each).simulate(rounds.workspace)["row"]["refused"]:
            known.add(what)
    guesses = _estimates(race, every, rounds)
    is_slow = all(each.refused or _is_slow(each) for each in guesses) and not rounds.ended
    alone = _ask_alone(race, guesses, rounds) if is_slow else []
    if alone and not rounds.ended and not any(row.get("keeps") for _, row in alone):  # nor does any with others
        raise SpecError(_refusal(race, guesses, alone))
    done = _race_sizes(race, guesses, rounds)
    served = sorted((each for each in done if each.rate > 0), key=_by_rate)
    if served or rounds.ended:
        alone = []
    elif not alone:
        alone = _ask_alone(race, done, rounds)
    if not rounds.ended and (keep := [(part, row) for part, row in alone if row.get("keeps")]):
        left = [each for each in done if each not in [part.tried for part, _ in keep]]
        parts = [race.part(find_rate, part.found(row)) for part, row in keep]
        done = [*left, *rounds.tried(parts, "sizes served that keep the limits alone")]
        served = sorted((each for each in done if each.rate > 0), key=_by_rate)
    if not served and rounds.ended:
        raise KeyboardInterrupt
    if not served:
        raise SpecError(_refusal(race, done, alone))
    if not rounds.ended:
        served = _with_limits(race, served, done, rounds)
    if asked.pools and not rounds.ended:
        served = sorted([*served, *_with_pools(race, served, done, rounds)], key=_by_rate)
    finalists = _finalists(race, served, FINALISTS)
    if asked.pools and not any(each.choice.prefill for each in finalists):  # their ratio is asked for, too
        finalists += [each for each in served if each.choice.prefill][:1]
    for precision in asked.precisions:  # and so is the best of each that is named
        if not any(kinds[each.kind].precision == precision for each in finalists):
            finalists += [each for each in served if kinds[each.kind].precision == precision][:1]
    report(f"serving the {len(finalists)} best at {len(GRID)} rates each")
    rows = rounds.rows([race.part(find_curve, each) for each in finalists], "best served")
    done += (failed := [part.found(row) for part, row in rows if "curve" not in row])
    rows = [(part, row) for part, row in rows if "curve" in row]
    if not rows and not failed:
        raise KeyboardInterrupt
    if not rows:
        raise SpecError(f"none of the best can be recommended. {failed[0].choice.name}: {failed[0].refused}")
    shown = [curve_and_upkeep(row) for _, row in rows]
    return _compare(race, [part.tried for part, _ in rows], shown, done, rounds.ended, engines, failed)


def _most_ranks(offer: question.Offer, offers: int) -> int:
    """Of one engine: of several offers without a number two nodes, so that an answer takes a minute."""
    many = offers > 1 and offer.devices == question.MOST_DEVICES
    most = min(offer.devices, offer.system.dies, question.MOST_RANKS // 4 if many else question.MOST_RANKS)
    return 1 << (most.bit_length() - 1)


def _by_rate(tried: Tried) -> tuple:
    return -tried.per_gpu(), tried.kind, tried.choice.name


def _is_slow(guess: Tried) -> bool:
    """Whether not even one request at a time is within the limit, by its estimate (`estimate_rate`)."""
    return guess.rate * guess.residence_ns < 0.5 * guess.choice.parallel.attention.dp * NS_PER_S


def _estimates(race: Race, every: Sequence[Tried], rounds: Rounds) -> list[Tried]:
    """The sizes with their estimated rates."""
    guesses: list[Tried] = []
    for is_wide in (False, True):  # ranks beyond a node are bounded by the third best of their kind, which race
        sizes = [each for each in every if (each.devices > GATHERED_RANKS) == is_wide]
        if rounds.ended or not sizes:
            continue
        least = _least_raced(guesses)
        guesses += rounds.tried([race.part(estimate, each, least.get(each.kind, 0.0)) for each in sizes], "estimated")
    return guesses


def _race_sizes(race: Race, guesses: list[Tried], rounds: Rounds) -> list[Tried]:
    """The sizes that were served, with their rates, and all others. The first of each kind is served to the end, so
    that engines can be compared; of the others, those far below the best rate of a GPU are left.
    """
    guesses.sort(key=lambda each: (-each.per_gpu(), each.kind, str(each.choice.parallel)))
    chosen = _best_guesses(guesses, race)
    kinds = [each.kind for each in chosen]
    first = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
    done: list[Tried] = []
    for some in (first, [at for at in range(len(chosen)) if at not in first]):
        if rounds.ended:
            break
        best = _best_per_gpu(race, done)
        parts = [race.part(find_rate, chosen[at], best.get(race.kinds[kinds[at]].offer.gpu, 0.0)) for at in some]
        done += rounds.tried(parts, "sizes served")
    return [*done, *(each._replace(rate=0.0) for each in guesses if each not in chosen)]


def _least_raced(guesses: Sequence[Tried]) -> dict[int, float]:
    """Kind → the estimate a GPU of the last of its sizes that are served, if there are RACED_OF_KIND."""
    rates: dict[int, list[float]] = {}
    for each in guesses:
        if not each.refused:
            rates.setdefault(each.kind, []).append(each.per_gpu())
    return {kind: sorted(of)[-RACED_OF_KIND] for kind, of in rates.items() if len(of) >= RACED_OF_KIND}


def _best_per_gpu(race: Race, done: Sequence[Tried]) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in done:
        gpu = race.kinds[each.kind].offer.gpu
        found[gpu] = max(found.get(gpu, 0.0), each.per_gpu())
    return found


def _best_guesses(guesses: Sequence[Tried], race: Race) -> list[Tried]:
    """The best estimates of each engine, precision and GPU, RACED a GPU, and one of each precision that is named."""
    counts: dict[Any, int] = {}
    kept = []
    for each in guesses:
        kind = race.kinds[each.kind]
        gpu, named = kind.offer.gpu, (kind.offer.gpu, kind.precision)
        fits = counts.get(each.kind, 0) < RACED_OF_KIND and counts.get(gpu, 0) < RACED
        fits = fits or (kind.precision in race.asked.precisions and named not in counts)
        if each.rate and not each.refused and fits:
            kept.append(each)
            for counted in (each.kind, gpu, named):
                counts[counted] = counts.get(counted, 0) + 1
    return kept


def _with_limits(race: Race, served: Sequence[Tried], done: list[Tried], rounds: Rounds) -> list[Tried]:
    """The best sizes with their best batch limits; adds what was tried to ``done``."""
    found = {(each.kind, each.choice.parallel): each for each in served}
    best = [race.part(find_limits, each) for each in _finalists(race, served, LIMITED)]
    for tried in rounds.tried(best, "best with other batch limits"):
        done.append(tried)
        found[tried.kind, tried.choice.parallel] = tried
    return sorted(found.values(), key=_by_rate)


def _finalists(race: Race, served: Sequence[Tried], most: int) -> list[Tried]:
    """The best of each engine on each GPU, so that these can be compared, then the next best up to ``most`` in all, or
    two beyond these; no more than MOST_OF_KIND of one engine and precision.
    """
    first_of = {(race.kinds[each.kind].engine, race.kinds[each.kind].offer.gpu): each for each in reversed(served)}
    kept = list(first_of.values())
    for each in served:
        of_kind = [other for other in kept if other.kind == each.kind and bool(other.choice.prefill) == bool(
            each.choice.prefill)]  # fmt: skip
        if each not in kept and len(of_kind) < MOST_OF_KIND and len(kept) < max(most, len(first_of) + 2):
            kept.append(each)
    return sorted(kept, key=_by_rate)


ENOUGH_WORLDS = 0.9  # of the draws, in which a recommended size meets the rate that is asked
MOST_NEEDED = 10**9  # GPUs
POOL_SHARES = (0.25, 0.5, 0.75)  # of the GPUs that prefill


def _with_pools(race: Race, served: Sequence[Tried], done: list[Tried], rounds: Rounds) -> list[Tried]:
    """Pools of engines that prefill and others that decode, of the two best sizes of the best engine of each GPU. The
    first of each GPU is served to the end; of the others, those below it are left. Then the best with another limit of
    requests for engines that decode.
    """
    tasks: list[Tried] = []
    free = [each for each in served if not has_limits(race.kinds[each.kind].offer.system)]  # others have no clock
    for gpu in dict.fromkeys(race.kinds[each.kind].offer.gpu for each in free):
        mine = [each for each in free if race.kinds[each.kind].offer.gpu == gpu]
        mine = [each for each in mine if each.kind == mine[0].kind][:2]
        devices = race.kinds[mine[0].kind].offer.devices
        for one, other in product(mine, mine):
            prefill, decode = one.choice.parallel, other.choice.parallel
            for number in sorted({max(1, round(share * devices / prefill.devices)) for share in POOL_SHARES}):
                left = (devices - number * prefill.devices) // decode.devices
                if left >= 1:
                    choice = other.choice._replace(
                        parallel=prefill, instances=number + left, prefill=number,
                        decode=decode if decode != prefill else None,
                    )  # fmt: skip
                    tasks.append(Tried(one.kind, choice, mine[0].per_gpu() * devices, mine[0].residence_ns))
    of = [race.kinds[each.kind].offer.gpu for each in tasks]
    first = [of.index(gpu) for gpu in dict.fromkeys(of)]
    found: list[Tried] = []
    for some in (first, [at for at in range(len(tasks)) if at not in first]):
        if rounds.ended:
            break
        best = {gpu: max((each.rate for each in found if race.kinds[each.kind].offer.gpu == gpu), default=0.0)
                for gpu in of}  # fmt: skip
        parts = [race.part(find_pool_rate, tasks[at], best[of[at]]) for at in some]
        found += rounds.tried(parts, "pools compared")
    others = []  # the best pools of each GPU, with a lower limit of requests for engines that decode
    best_of = {race.kinds[each.kind].offer.gpu: each for each in sorted(found, key=lambda each: each.rate)}
    for each in best_of.values():
        limits = sorted(race.asked.max_num_seqs)
        at = limits.index(each.choice.max_num_seqs)
        for limit in limits[max(at - 1, 0) : at]:
            limited = each._replace(choice=each.choice._replace(decode_seqs=limit))
            others.append(race.part(find_pool_rate, limited, each.rate))
    if not rounds.ended:
        found += rounds.tried(others, "pools with a lower limit of decodes")
    done += found
    return [each for each in found if each.rate > 0 and not each.refused]


def _compare(
    race: Race, finalists: Sequence[Tried], shown: Sequence[tuple[Curve, Upkeep]], done: Sequence[Tried], ended: bool,
    engines: SharedEngines, failed: Sequence[Tried],
) -> Recommendation:  # fmt: skip
    asked, kinds, curves, costs = race.asked, race.kinds, [each for each, _ in shown], [each for _, each in shown]
    limits = [limits_of(kinds[each.kind].serving) for each in finalists]
    nominal = [curve.highest(limit) for curve, limit in zip(curves, limits, strict=True)]
    drawn = drawn_rates(kinds, finalists, curves)
    counts = [_instances(asked, kinds[each.kind].offer, each, float(np.quantile(rates, 1 - ENOUGH_WORLDS)))
              for each, rates in zip(finalists, drawn, strict=True)]  # fmt: skip
    scores = np.stack([
        _score(asked, kinds[each.kind].offer, each, drawn[at], nominal[at], costs[at])
        for at, each in enumerate(finalists)
    ])  # fmt: skip
    probability = np.bincount(scores.argmax(axis=0), minlength=len(finalists)) / scores.shape[1]
    mine = np.array([
        _score(asked, kinds[each.kind].offer, each, np.array([nominal[at]]), nominal[at], costs[at])[0]
        for at, each in enumerate(finalists)
    ])  # fmt: skip
    output = float(race.requests.output.mean())
    rows = []
    for at, each in enumerate(finalists):
        kind, number = kinds[each.kind], counts[at]
        choice = each.choice if each.choice.prefill else each.choice._replace(instances=number)
        times = 1 if each.choice.prefill else number
        low, high = (float(np.percentile(drawn[at], p)) * times for p in (10, 90))
        rent = kind.offer.rent.usd_per_hour if kind.offer.rent else float("nan")
        rate = nominal[at] * times
        loaded = min(rate, asked.rate) if asked.rate else rate
        rows.append(Recommended(
            kind, choice, rate_per_s=rate, low=low, high=high, probability=float(probability[at]), upkeep=costs[at],
            usd_per_million=usd_per_million(rent * choice.devices, loaded * output),
            limited=curves[at].shares_at(nominal[at], limits[at]),
            frontier=_frontier(curves[at], times, choice.devices, output),
            meets=float((drawn[at] * times >= asked.rate).mean()) if asked.rate else 1.0,
            fewer=tuple(
                each.choice.devices if each.choice.prefill
                else _instances(asked, kind.offer, each, rate) * choice.parallel.devices
                for rate in (float(np.median(drawn[at])), nominal[at])
            ),
        ))  # fmt: skip
    order = sorted(range(len(rows)), key=lambda at: (-round(float(probability[at]), 2), -mine[at]))
    if asked.rate and not any(row.rate_per_s >= asked.rate for row in rows):
        raise SpecError(_too_few(asked, rows, drawn) + (f". {ENDED}" if ended else ""))
    best = rows[order[0]]
    measures, notes = _serve_best(race, finalists[order[0]], best, engines)
    refused = tuple(
        (f"{question.NAMES[kinds[each.kind].engine]}, {each.choice.ranks}", each.refused)
        for each in done
        if each.refused
    )
    return Recommendation(
        asked, best, tuple(rows[at] for at in order[1:]), measures,
        configurations=sum(each.configurations for each in done),
        simulated=sum(each.simulated for each in done) + len(GRID) * len(finalists), refused=refused, ended=ended,
        notes=(
            *([ENDED] if ended else []), *_notes(race, best), *notes,
            *(f"{question.NAMES[kinds[each.kind].engine]} ({describe_sizes(each.choice)}) is not compared: "
              f"{each.refused}" for each in failed),
        ),
    )  # fmt: skip


def _too_few(asked: question.Asked, rows: Sequence[Recommended], drawn: np.ndarray) -> str:
    """What the GPUs that are offered answer, and how many answer the rate in `ENOUGH_WORLDS` of all draws. ``drawn``:
    float64[row, draw], requests a second of one engine, or of all where it has pools.
    """
    needed: dict[str, int] = {}
    for row, rates in zip(rows, drawn, strict=True):
        low = float(np.quantile(rates, 1 - ENOUGH_WORLDS))
        if not low:
            continue
        one = row.choice.devices if row.choice.prefill else row.choice.parallel.devices
        gpu = row.kind.offer.gpu
        needed[gpu] = min(needed.get(gpu, MOST_NEEDED), one * math.ceil(asked.rate / low))
    most = max(rows, key=lambda row: row.rate_per_s)
    gpu, on = most.kind.offer.gpu, caller_name("on")
    number, ways = "", ["raise the limits"]
    if gpu in needed:
        number = f"; {asked.rate:g} take about {needed[gpu]:,} {gpu.upper()} in {ENOUGH_WORLDS:.0%} of samples"
        if not asked.pools and not asked.budget and most.kind.offer.devices < question.MOST_DEVICES:
            ways = [f"{on} {gpu} for as many as are needed", *ways]
        bought = " or ".join(map(caller_name, asked.budget))
        ways = [f"raise {bought}" if bought else f"give {on} {gpu}:{needed[gpu]}", *ways]
    return (
        f"{caller_name('rate')} {asked.rate:g}: {most.choice.devices:,} {gpu.upper()} answer at most "
        f"{most.rate_per_s:.1f} requests per second within the limits{number}. {capital(' or '.join(ways))}"
    )


def _frontier(curve: Curve, engines: int, devices: int, output: float) -> tuple[tuple[float, float, float], ...]:
    """See `Recommended.frontier`. ``curve``: of one of the engines; ``output``: mean tokens of an answer."""
    tpot_ns = np.median(curve.times_ns[:, TIMES.index("tpot")], axis=1)
    return tuple(
        (NS_PER_S / ns, rate * output / devices, rate)
        for ns, rate in zip(tpot_ns, engines * curve.rates, strict=True)
        if 0 < ns < np.inf
    )


def _instances(asked: question.Asked, offer: question.Offer, tried: Tried, rate: float) -> int:
    """Equal engines on the GPUs of an offer, or as many as the asked rate needs. ``rate``: what one reaches in
    `ENOUGH_WORLDS` of all samples.
    """
    if tried.choice.prefill:
        return tried.choice.instances
    most = offer.devices // tried.choice.parallel.devices
    return min(most, max(1, -int(-asked.rate // rate))) if asked.rate and rate > 0 else most


def _score(
    asked: question.Asked, offer: question.Offer, tried: Tried, rates: np.ndarray, nominal: float, cost: Upkeep
) -> np.ndarray:
    """float64[draw]: what is to be largest: requests a second, or minus the price or energy of a token."""
    most, ranks = 1 if tried.choice.prefill else offer.devices // tried.devices, tried.devices
    if asked.rate:
        needed = np.ceil(asked.rate / np.maximum(rates, 1e-9))
        usd = needed * ranks * (offer.rent.usd_per_hour if offer.rent else 1.0)
        served = asked.rate / NS_PER_S  # fewer requests come than could be served: a tie goes to the higher rate
        return np.where(needed <= most, -usd + served * rates, -1e12 + rates)
    if asked.objective == question.THROUGHPUT:
        return rates * most
    if asked.objective == question.PRICE:
        assert offer.rent is not None
        return -offer.rent.usd_per_hour * ranks / np.maximum(rates, 1e-9)
    # Power hardly depends on how long an iteration takes: energy a token goes with the time.
    return -cost.j_per_token[0] * nominal / np.maximum(rates, 1e-9)


def _serve_best(
    race: Race, tried: Tried, best: Recommended, engines: SharedEngines
) -> tuple[Measures, tuple[str, ...]]:
    """`Recommendation.measures`, and the notes of the deployment. One engine takes its share of the rate, so that its
    requests fill it however many engines there are.
    """
    number = 1 if best.choice.prefill else best.choice.instances
    choice = best.choice if number == 1 else best.choice._replace(instances=1)
    deployment, serving = race.deployment(tried, choice, engines), serving_of(best.kind.serving, choice)
    rate = shown_rate(race.asked, best) / number
    some = requests_shown(race.requests, rate * tried.residence_ns / NS_PER_S)
    outcome = serve_requests(serving, deployment, scale_rate(some, rate / some.offered_per_s))
    of_all = {name: getattr(outcome.measures, name) * number for name in RATES}
    notes, given = outcome.deployment.notes, len(race.requests.input)
    if len(some.input) > given:
        again = f"The trace has {given:,} requests, which are repeated, as a queue of so few would not be seen to grow."
        notes = (again, *notes)
    return outcome.measures._replace(**of_all), notes


def requests_shown(every: Requests, users: float) -> Requests:
    """Of the run that is shown, in which so many users are served at a time: those of a short trace again and again, up
    to MOST_REQUESTS.
    """
    number = enough_requests(users)
    return first(repeated(every, min(number, question.MOST_REQUESTS)), number)


def _ask_alone(race: Race, done: Sequence[Tried], rounds: Rounds) -> list[tuple[PartOfRace, Row]]:
    """The times of requests that come alone. Of each kind and number of GPUs those sizes are asked whose ranks share a
    request most: a token comes soonest there, but later where these are of several nodes.
    """
    runs = [(each, each.choice.parallel.attention.tp) for each in done if not each.refused]
    most = {(each.kind, each.devices): tp for each, tp in sorted(runs, key=lambda run: run[1])}
    shared = [each for each, tp in runs if tp == most[each.kind, each.devices]]
    return rounds.rows([race.part(find_alone, each) for each in shared], "asked for their times alone")


def _refusal(race: Race, done: Sequence[Tried], rows: Sequence[tuple[PartOfRace, Row]]) -> str:
    """Why nothing is served: what does not run, or what is nearest to the limits. ``rows``: of `_ask_alone`."""
    asked, kinds = race.asked, race.kinds
    where = ", ".join(f"{each.devices} {each.gpu}" for each in asked.offers)
    limits = limits_of(kinds[0].serving)
    alone = [(part.tried, np.array(row["alone_ns"]), row["often_ns"]) for part, row in rows if "alone_ns" in row]
    if not alone:
        refused = [part.found(row) for part, row in rows] or done
        last = max(refused, key=lambda each: each.choice.parallel.devices)
        return f"{asked.model.name} cannot be served on {where}: {last.refused}"
    begin = f"no configuration of {asked.model.name} on {where} serves {WITHIN:.0%} of the requests with "
    begin += f"{question.describe_limits(asked)}."
    nearest, ns, often_ns = min(alone, key=lambda each: float((each[1] / limits).max()))
    kind, at = kinds[nearest.kind], {name: TIMES.index(name) for name in asked.slo}
    slo = {name: f"{float(f'{ns[each] / NS_PER_MS:.3g}'):g} ms" for name, each in at.items()}
    raised = {name: often_ns[each] for name, each in at.items() if often_ns[each] > limits[each]}
    helps = [f"{caller_name(name)} to {rounded_up(each / NS_PER_MS):g} ms" for name, each in raised.items()]
    helps = [f"raise {listing(helps)}"] if helps else []
    if "tpot" in raised and asked.model.mtp_layers and not asked.drafts:
        helps.append(f"let the model draft ({caller_name('drafts')} 1 {caller_name('acceptance')} 0.8)")
    if "ttft" in raised and "trace" not in asked.requests:
        helps.append(f"give shorter prompts ({caller_name('input_tokens')})")
    return (
        f"{begin} The nearest is {question.NAMES[kind.engine]} on {kind.offer.gpu.upper()} "
        f"({describe_sizes(nearest.choice)}, {kind.precision}), which gives requests that come one at a time "
        f"{question.describe_limits(asked._replace(slo=slo))}. {capital(', or '.join([*helps, 'offer faster GPUs']))}"
    )


def _notes(race: Race, best: Recommended) -> Iterator[str]:
    asked, kind = race.asked, best.kind
    system = kind.offer.system
    if system.datasheet_only:
        yield datasheet_note([system.name])
    if scale_rate := scaled_report(system):
        yield scale_rate
    if has_limits(system):
        yield (
            f"{system.name}: sizes are chosen and shown at the clock that the limits of power and heat allow. Pools, "
            "whose engines do unlike work, have no clock of theirs yet and are left out."
        )
    yield from asked.notes
    yield from question.unread_by(race.kinds)
    if asked.assumed:
        yield (
            f"No limit was given, so the usual ones of a chat count: {question.describe_limits(asked)}. --ttft, --tpot "
            "and --e2e change them."
        )
    if "trace" not in asked.requests:
        yield (
            f"Requests come at random times, with a mean of {race.requests.input.mean():,.0f} prompt tokens and "
            f"{race.requests.output.mean():,.0f} output tokens. --input and --output change that, and --requests "
            "takes your trace."
        )
    if kind.precision != question.BF16:
        yield (
            f"Precision {kind.precision} needs a checkpoint in it, whose quality is not simulated. Give --precision to "
            "choose another."
        )
    if has_experts(kind.serving.model):
        yield (
            "Experts are sampled at random (routing: uniform), so no balancer would gain anything. `archsim serve` "
            "with routing: {like: model} compares policies, and --loads FILE --out DIR writes a placement."
        )
    if not factors_of(kind, best.choice).groups:
        yield (
            "The probability rests on the errors for measured pools, as nothing was measured with this engine, GPU "
            "and dtype."
        )
