"""What a comparison of options says: its first sentence, and why."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import numpy as np

from archsim.base.quantities import TIME, format_quantity
from archsim.search.compare import NEVER, UNITS, Compared, OptionComparison
from archsim.search.frontier import Crossing, crossing_of
from archsim.search.keys import keys_sentence
from archsim.search.machines import MOST_BATCH
from archsim.show.units import listing, percent, significant, with_prefix
from archsim.uncertainty.estimate import NO_DIFFERENCE, SURE, OptionPair
from archsim.uncertainty.plateau import PLATEAU, best_value

ENDLESS = 1e6  # ratios above it are over what serves nothing in a sample
WORLDS_OF_A_SIZE = 10  # percentile of the rate for which a number of machines is recommended


def answer(found: OptionComparison) -> str:
    sides, limits = found.sides, found.limits
    if found.varied is not None:
        return keys_sentence(found) if found.varied.keys else _over_key(found)
    unable = [each.side.label for each in sides if not each.keeps]
    cannot = f", and {listing(unable)} cannot keep that" if unable else ""
    if not found.able:
        fastest = min(float(each.frontier.ends()[0]) for each in sides)
        token = format_quantity(float(f"{fastest:.3g}"), TIME)
        return f"{_begin(found)}{listing(unable)} cannot keep that: the fastest token takes {token}."
    first, *others = found.able
    if not others:
        alone = sides[first]
        low, middle, high = (with_prefix(value) for value in (alone.range.p05, alone.range.p50, alone.range.p95))
        users = f"{alone.side.machines * alone.chosen.way.engines * alone.batch.batch:,}"
        return (
            f"{_begin(found)}{alone.side.label} serves {middle} tokens per second ({low} to {high}) to {users} users "
            f"at a time{cannot}.{_size(found)}"
        )
    said = []
    for other in others:
        by_all, by_price = found.pair(first, other, "machines"), found.pair(first, other, "usd")
        third = [] if found.equal in ("machines", "usd") else [(found.equal, found.pair(first, other, found.equal))]
        more = "".join(f", {ratio(each)} {UNITS[name]}" for name, each in third)
        said.append(
            f"{ratio(by_all)} as many tokens per second as {sides[other].side.label}{more}, and "
            f"{ratio(by_price)} as many {UNITS['usd']}"
        )
    begin = f"{_begin(found)}{sides[first].side.label} serves {'; '.join(said)}"
    text = f"{'; '.join([begin, *_turns(found, first, others[0])])}{cannot}."
    if limits.rate_per_s:
        return f"{_size(found).strip()} {text}"
    return text


def _over_key(found: OptionComparison) -> str:
    """Of one machine: from which value nothing is gained, and the best's gain; of two: where their order turns."""
    varied, skip = found.varied, 1 if found.samples else 0
    assert varied is not None
    count = len(varied.values)
    tokens = " ".join(filter(None, ["as many tokens per second", UNITS[found.equal]]))
    said = []
    for begin in range(0, len(found.sides), count):
        places = [at for at in range(begin, begin + count) if found.sides[at].keeps]
        sides, values = [found.sides[at] for at in places], [str(varied.values[at - begin]) for at in places]
        lost = [str(value) for at, value in enumerate(varied.values, begin) if at not in places]
        name = found.sides[begin].side.label.partition(" with ")[0]
        cannot = f" With {listing(lost)} it cannot keep the limits." if lost else ""
        if len(places) < 2:
            alone = f"{name} serves {with_prefix(sides[0].range.p50)} tokens per second with {varied.key} {values[0]}."
            said.append(f"{alone}{cannot}" if places else cannot.strip())
            continue
        numbers = [varied.numbers[at - begin] for at in places if varied.numbers]
        rates, prices = [each.per(found.equal)[skip:] for each in sides], [float(each.usd[0]) for each in sides]
        best, equal, cheapest, worst, end = best_value(rates, prices, numbers)
        gained = ratio(found.pair(places[cheapest], places[worst], found.equal))
        flat = (
            f" {listing(values[at] for at in equal)} serve as much within the noise, of which "
            f"{values[cheapest]} is the cheapest."
            if len({prices[at] for at in equal}) > 1 else ""
        )  # fmt: skip
        if len(equal) == len(places):
            over = found.pair(places[best], places[worst], found.equal)
            said.append(
                f"{varied.key} has no effect on {name} from {values[0]} to {values[-1]}.{flat}{cannot}"
                if over.ratio.p50 <= 1 + PLATEAU
                else f"{name} serves {ratio(over)} {tokens} with {varied.key} "
                f"{values[best]} as with {values[worst]}, which is not decided.{cannot}"
            )
            continue
        said.append(
            f"{name} serves {gained} {tokens} with {varied.key} {values[cheapest]} as with {values[worst]}.{flat}"
            + (f" That is the {end} value that was tried, and beyond it more may be gained." if end else "")
            + cannot
        )
    begin_ = _begin(found)
    turn = key_crossing(found)
    if turn is not None:
        value, ends, name = turn
        said.append(f"{name} is ahead from {varied.key} {significant(value)} ({ends}) on.")
    return f"{begin_}{' '.join(said)}"


def key_crossing(found: OptionComparison) -> tuple[float, str, str] | None:
    """(Value of the key from which on the order of two machines is another, its range, the name of that ahead)."""
    varied = found.varied
    if varied is None or not varied.numbers or len(found.sides) != 2 * len(varied.values):
        return None
    order = np.argsort(varied.numbers)
    rates = [np.stack([found.sides[half * len(order) + at].per(found.equal) for at in order]) for half in (0, 1)]
    with np.errstate(divide="ignore", invalid="ignore"):
        each = rates[0] / rates[1]
    turn = crossing_of(np.array(varied.numbers)[order], each[:, 0], each[:, 1:].T)
    if turn is None:
        return None
    ahead = found.sides[len(order) if turn.first_below else 0].side.label.partition(" with ")[0]
    return turn.at, f"{significant(turn.range.p05)} to {significant(turn.range.p95)}", ahead


def _begin(found: OptionComparison) -> str:
    return (
        f"{found.limits.words}, "
        if found.limits.words
        else f"With batches as large as memory and {MOST_BATCH:,} requests per rank allow, "
    )


def ratio(each: OptionPair) -> str:
    """``0.6 × (0.5–0.8)``, and whether it is a tie."""
    low, middle, high = (_times(value) for value in each.ratio)
    ends = f"{low}–{high}" if each.ratio.p95 < ENDLESS else f"at least {low}"
    if not each.probability and not each.reverse:
        return f"{middle} × (a tie: the same in all samples)"
    tie = ""
    if max(each.probability, each.reverse) < SURE:
        tie = f", a tie: ahead in {percent(each.probability)} of samples"
    return f"{middle} ×" if low == high and not tie else f"{middle} × ({ends}{tie})"


def _times(value: float) -> str:
    """Two decimals near 1, two digits elsewhere."""
    if value < 1 / ENDLESS:
        return "0"
    return f"{value:.2f}" if 0.1 <= value < 10 else significant(value, 2)


def _turns(found: OptionComparison, one: int, other: int) -> Iterator[str]:
    any_turn = False
    for equal in dict.fromkeys((found.equal, "usd")):
        turn = found.crossing(one, other, equal)
        if turn is None:
            continue
        any_turn = True
        yield _turn_sentence(found, turn, one, other, equal)
    if not any_turn:
        here, there = (found.over_grid[at][0] / np.ravel(found.sides[at].amount(found.equal))[0] for at in (one, other))
        is_sure = found.pair(one, other, found.equal).probability >= SURE
        leads = is_sure and (here > (1 + NO_DIFFERENCE) * there).all()  # that with which the sentence begins, or none
        fast, slow = 1e9 / found.grid[0], 1e9 / found.grid[-1]
        unit = f" {UNITS[found.equal]}" if UNITS[found.equal] else ""
        yield (
            f"the order does not turn from {significant(slow, 2)} to {significant(fast, 2)} tokens/s per user"
            + (f" ({found.sides[one].side.label} is ahead{unit} throughout)" if leads else "")
        )


def _turn_sentence(found: OptionComparison, turn: Crossing, one: int, other: int, equal: str) -> str:
    """``per dollar, B is ahead above 90 tokens/s per user (80 to 110)``: below a time per token is above a speed."""
    fast, slow = (one, other) if turn.first_below else (other, one)
    ends = sorted(1e9 / each for each in (turn.range.p05, turn.range.p95))
    spread = f" ({significant(ends[0], 2)} to {significant(ends[1], 2)})" if found.samples else ""
    begin = f"{UNITS[equal]}, " if UNITS[equal] else ""
    sure = "" if turn.share >= SURE or not found.samples else f" (they cross in {percent(turn.share)} of samples)"
    return (
        f"{begin}{found.sides[fast].side.label} is ahead above {significant(1e9 / turn.at, 2)} tokens/s per user"
        f"{spread} and {found.sides[slow].side.label} below{sure}"
    )


def machines_for(each: Compared, rate: float, output: float, samples: int) -> int:
    """Machines that serve so many requests a second in SURE of the worlds."""
    one = each.rates[1:] if samples else each.rates
    least = float(np.percentile(one, WORLDS_OF_A_SIZE)) / each.side.machines / output
    return ceil(rate / max(least, NEVER) * (1 - 1e-9))


def _size(found: OptionComparison) -> str:
    """What serves the asked rate in 90 % of the worlds; ''."""
    rate = found.limits.rate_per_s
    if not rate:
        return ""
    sizes = []
    for each in (found.sides[at] for at in found.ranked):
        if each.rates[0] <= NEVER:
            continue
        count = machines_for(each, rate, found.requests.output, found.samples)
        usd = count * each.usd[0] / each.side.machines
        sizes.append(f"{count} {each.side.name} ({with_prefix(usd)} USD)")
    worlds = f" in {SURE:.0%} of samples" if found.samples else ""
    return f" {rate:g} requests per second{worlds} take {' or '.join(sizes)}."
