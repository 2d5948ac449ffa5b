"""Requests: arrival, prompt, output and hash ids of each; drawn from distributions, or read (``traces``)."""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from archsim.base.errors import TraceError, did_you_mean, nearest
from archsim.base.quantities import TIME, parse_quantity
from archsim.base.units import NS_PER_S
from archsim.model.spec import ModelSpec
from archsim.specs.serving import RoutingSpec
from archsim.traffic import open_trace, traffic_presets
from archsim.traffic.layer_subset import some_layers
from archsim.traffic.trace import TokenSource, draw_requests


class Rejected(NamedTuple):
    """``number`` of requests that a server answers with an error; ``first``: where the first was read; ``why``."""

    number: int
    first: str
    why: str


class Requests(NamedTuple):
    """Requests in order of arrival."""

    arrival_ns: np.ndarray  # float64[request], from 0; of later turns: that of the first
    input: np.ndarray  # int64[request], tokens of the prompt
    output: np.ndarray  # int64[request], tokens
    hash_ids: np.ndarray  # int64[id] from 0 on, of full and partly filled blocks of hash_tokens
    hash_from: np.ndarray  # int64[request + 1], where the ids of a request begin
    hash_tokens: int = 0  # tokens of a block; 0: no hashes
    # clients of a closed loop, each sends its next request when the last one ends; 0: requests come at arrival_ns
    concurrency: int = 0
    lines: np.ndarray = np.zeros(0, np.int64)  # int64[request], of a trace's file; empty: requests are drawn
    read_as: str = ""  # what a trace was read as, in words
    outputs_kept: bool = True  # later turns repeat the outputs of earlier ones
    # int64[request], next turn of its session; -1: none; empty: no request waits for another
    follower: np.ndarray = np.zeros(0, np.int64)
    think_ns: np.ndarray = np.zeros(0)  # float64[request], from the last token of a turn to the next turn
    order: np.ndarray = np.zeros(0)  # float64[request], the least waits in front; empty: as they come
    kinds: np.ndarray = np.zeros(0, np.int64)  # int64[request], of the classes of a file; empty: one class
    # clients of a closed loop begin at random within the time of a request or a session; else at arrival_ns
    apart: bool = False
    rejected: tuple[Rejected, ...] = ()  # what a server refuses of a file; not among these requests

    def place(self, whose: str, at: int) -> str:
        """Where request ``at`` was read: file and line; else the number of the request."""
        return f"{whose}:{self.lines[at]}" if len(self.lines) else f"{whose}: request {at}"

    @property
    def offered_per_s(self) -> float:
        """Requests a second over the span of arrivals, all turns counted; 0 for a closed loop or a single time."""
        first = self.arrival_ns[first_turns(len(self.input), self.follower)]
        span = first.max() - first.min()
        if self.concurrency or span <= 0:
            return 0.0
        return (len(first) - 1) / span * NS_PER_S * len(self.input) / len(first)


def first_turns(count: int, follower: np.ndarray) -> np.ndarray:
    """int64[session] which of ``count`` requests follow no other; ``follower`` as of `Requests`."""
    return np.delete(np.arange(count), follower[follower >= 0])


def without_hashes(arrival_ns: np.ndarray, input: np.ndarray, output: np.ndarray, concurrency: int = 0) -> Requests:
    """Requests that share no prefix."""
    n = len(input)
    return Requests(
        np.asarray(arrival_ns, float),
        np.asarray(input, np.int64),
        np.asarray(output, np.int64),
        np.zeros(0, np.int64),
        np.zeros(n + 1, np.int64),
        0,
        concurrency,
    )


PREFIX_BLOCK = 16  # tokens of a hash block of requests that are drawn with prefixes


def with_prefixes(requests: Requests, tokens: np.ndarray, share: float, skew: float, seed: int) -> Requests:
    """Requests, ``share`` of which begin with one of as many prefixes as ``tokens`` (int64[prefix]) has; the n-th is
    taken in proportion to n ** -skew. Its tokens come before those of the prompt. Blocks of PREFIX_BLOCK tokens have
    hash ids; one that has tokens of both prefix and prompt is not shared.
    """
    n = len(requests.input)
    before, chosen = prefixes(n, tokens, share, skew, seed)
    prompt = requests.input + before
    ids, first = _blocks(prompt, np.arange(n), before, chosen)
    return requests._replace(input=prompt, hash_ids=ids, hash_from=first, hash_tokens=PREFIX_BLOCK)


def prefixes(n: int, tokens: np.ndarray, share: float, skew: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """int64[n] tokens of the prefix that each of ``n`` begins with, 0: none; and its number."""
    draws = [_generator(seed, stream) for stream in PREFIX_STREAMS]
    popular = np.arange(1, len(tokens) + 1) ** -skew
    chosen = draws[0].choice(len(tokens), n, p=popular / popular.sum())
    has = draws[1].random(n) < share  # of its own stream, so that more requests begin with the same ones
    return np.where(has, tokens[chosen], 0), chosen


def _blocks(
    prompt: np.ndarray, whose: np.ndarray, before: np.ndarray, which: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Hash ids of prompts, and where those of each begin. All prompts of one of ``whose`` (int64[request]) repeat each
    other; the first ``before`` tokens (int64[session]) are of prefix ``which``. A block that a prompt fills in part is
    its own.
    """
    shared, blocks, full = before // PREFIX_BLOCK, -(-prompt // PREFIX_BLOCK), prompt // PREFIX_BLOCK
    of_prefix = np.zeros(int(which.max(initial=0)) + 1, np.int64)
    np.maximum.at(of_prefix, which, shared)
    begins = np.concatenate([[0], np.cumsum(of_prefix)])  # first id of a prefix
    longest = np.zeros(len(before), np.int64)
    np.maximum.at(longest, whose, blocks)
    own = begins[-1] + np.concatenate([[0], np.cumsum(longest)])  # first id of a session
    first = np.concatenate([[0], np.cumsum(blocks)])
    of = np.repeat(np.arange(len(prompt)), blocks)
    at, session = np.arange(first[-1]) - first[of], whose[of]
    ids = np.where(at < shared[session], begins[which[session]] + at, own[session] + at)
    ids = np.where(at < full[of], ids, own[-1] + of)
    return np.unique(ids, return_inverse=True)[1].astype(np.int64), first


def in_sessions(
    arrival_ns: np.ndarray,
    turns: np.ndarray,
    added: np.ndarray,
    output: np.ndarray,
    think_ns: np.ndarray,
    before: np.ndarray,
    which: np.ndarray,
    outputs_kept: bool = True,
) -> Requests:
    """Turns of sessions: those of ``arrival_ns`` (float64[session]) and ``turns``, in their order. A prompt has the
    ``before`` tokens of prefix ``which`` (int64[session]), all tokens of the session so far, and ``added``
    (int64[request]); ``think_ns`` passes from a last token to the next turn.
    """
    session = np.repeat(np.arange(len(turns)), turns)
    ends = np.cumsum(turns)
    kept = added + (output if outputs_kept else 0)
    grown = np.cumsum(kept) - kept  # of all turns before, of all sessions
    prompt = before[session] + grown - grown[ends - turns][session] + added
    follower = np.arange(1, len(session) + 1)
    follower[ends - 1] = -1
    ids, first = _blocks(prompt, session, before, which)
    plain = without_hashes(arrival_ns[session], prompt, output)
    return plain._replace(
        hash_ids=ids, hash_from=first, hash_tokens=PREFIX_BLOCK, follower=follower,
        think_ns=np.asarray(think_ns, float), outputs_kept=outputs_kept,
    )  # fmt: skip


def kinds(requests: Requests, shares: np.ndarray, seed: int) -> np.ndarray:
    """int64[request]: the class of each, drawn by shares; all turns of a session have the same."""
    found = _generator(seed, CLASS_STREAM).choice(len(shares), len(requests.input), p=shares / shares.sum())
    for at, after in enumerate(requests.follower):
        if after >= 0:
            found[after] = found[at]
    return found


def times_ns(count: int, mean_ns: float, variation: float, seed: int, stream: int) -> np.ndarray:
    """float64[request]: log-normal, as ``lengths``."""
    sigma2 = np.log1p(variation**2)
    return mean_ns * np.exp(_generator(seed, stream).normal(-sigma2 / 2, np.sqrt(sigma2), count))


def gamma_arrivals(count: int, per_s: float, burstiness: float, seed: int) -> np.ndarray:
    """float64[request] ns: gamma gaps of shape ``burstiness`` (1: Poisson), mean 1 / rate, as `vllm bench serve`."""
    draw = _generator(seed, 0)
    gaps = draw.gamma(burstiness, 1.0 / (per_s * burstiness), count)
    return np.cumsum(gaps) * NS_PER_S


def lengths(count: int, kind: str, values: tuple[float, ...], seed: int, stream: int) -> np.ndarray:
    """int64[request] ≥ 1. ``fixed``: (tokens,); ``uniform``: (low, high), both included; ``lognormal``: (mean,
    coefficient of variation).
    """
    draw = _generator(seed, stream)
    if kind == "fixed":
        return np.full(count, int(values[0]), np.int64)
    if kind == "uniform":
        return draw.integers(int(values[0]), int(values[1]) + 1, count)
    mean, variation = values
    sigma2 = np.log1p(variation**2)
    drawn = draw.lognormal(np.log(mean) - sigma2 / 2, np.sqrt(sigma2), count)
    return np.maximum(np.rint(drawn), 1).astype(np.int64)


PREFIX_STREAMS, CLASS_STREAM = (3, 5), 8  # of random numbers; others are of lengths and times


def _generator(seed: int, stream: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, stream]))


def scale_rate(requests: Requests, speed: float) -> Requests:
    """The same requests at ``speed`` times their rate."""
    return requests._replace(arrival_ns=requests.arrival_ns / speed)


def first(requests: Requests, count: int) -> Requests:
    """The first ``count`` requests."""
    return some(requests, np.arange(len(requests.input)) < count)


def repeated(requests: Requests, count: int) -> Requests:
    """At least ``count`` requests: those of a shorter trace again and again, without a prefix in common."""
    number, ids = len(requests.input), requests.hash_ids
    times = np.arange(-(-count // number))
    if len(times) <= 1:
        return requests

    def shifted(each: np.ndarray, by: float) -> np.ndarray:
        return (each + by * times[:, None].astype(each.dtype)).ravel()

    after = requests.follower
    again = requests._replace(
        arrival_ns=shifted(requests.arrival_ns, number / requests.offered_per_s * NS_PER_S),
        hash_ids=shifted(ids, 1 + ids.max(initial=-1)),
        hash_from=np.append(0, np.cumsum(np.tile(np.diff(requests.hash_from), len(times)))),
        follower=np.where(np.tile(after, len(times)) < 0, -1, shifted(after, number)),
    )
    same: dict[str, Any] = {
        name: np.tile(getattr(requests, name), len(times))
        for name in ("input", "output", "lines", "think_ns", "order", "kinds")
    }
    return again._replace(**same)


def some(requests: Requests, kept: np.ndarray) -> Requests:
    """The requests that are ``kept`` (bool[request])."""
    counts = np.diff(requests.hash_from)
    number = np.cumsum(kept) - 1
    after = requests.follower[kept] if len(requests.follower) else requests.follower
    optional = {name: getattr(requests, name) for name in ("lines", "think_ns", "order", "kinds")}
    return requests._replace(
        arrival_ns=requests.arrival_ns[kept],
        input=requests.input[kept],
        output=requests.output[kept],
        hash_ids=requests.hash_ids[np.repeat(kept, counts)] if len(requests.hash_ids) else requests.hash_ids,
        hash_from=np.concatenate([[0], np.cumsum(counts[kept])]),
        follower=np.where((after >= 0) & kept[after], number[after], -1),
        **{name: each[kept] for name, each in optional.items() if len(each)},
    )


def _servable(requests: Requests, wrong: np.ndarray, whose: str, why: str, advice: str) -> Requests:
    """Without ``wrong`` ones (bool[request]) and later turns of their sessions. TraceError where none is left."""
    if not wrong.any():
        return requests
    at, total, left_out = int(np.argmax(wrong)), len(wrong), wrong.copy()
    for turn, after in enumerate(requests.follower):
        left_out[after] |= after >= 0 and left_out[turn]
    place = f"{requests.place(whose, at)}: {requests.input[at]:,} prompt and {requests.output[at]:,} output tokens"
    if left_out.all():
        raise TraceError(f"{place}, but {why}; none of {total:,} requests can be served. {advice}")
    refusal = Rejected(int(left_out.sum()), place, why)
    return some(requests, ~left_out)._replace(rejected=(*requests.rejected, refusal))


def rejected_notes(requests: Requests) -> Iterator[str]:
    """What a server refuses, in sentences."""
    served = len(requests.input)
    total = served + sum(each.number for each in requests.rejected)
    for count, first_one, why in requests.rejected:
        yield (
            f"{count:,} of {total:,} requests {'is' if count == 1 else 'are'} rejected, as {why}. The first is "
            f"{first_one}. All numbers are of the other requests."
        )


def without_too_long(
    requests: Requests, kv_tokens: int, budget: int, chunked: bool, whose: str, *, preempted: bool = True
) -> Requests:
    """Without requests that can never be served: beyond KV, or beyond the budget of one iteration where prompts are not
    split. ``preempted``: whether the scheduler preempts, so that a prompt is computed anew with its output. Raises
    TraceError where that leaves none.
    """
    whole = requests.input + requests.output
    found = _servable(
        requests, whole > kv_tokens, whose, f"the KV cache holds {kv_tokens:,} tokens",
        "Use more devices, or leave these requests out",
    )  # fmt: skip
    if chunked:
        return found
    at_once = found.input + found.output if preempted else found.input
    return _servable(
        found, at_once > budget, whose, f"iterations take {budget:,} tokens, and prompts are not split",
        "Use a larger budget, or leave these requests out",
    )  # fmt: skip


def within_positions(requests: Requests, model: ModelSpec, whose: str) -> Requests:
    """Without requests longer, with output, than the model's positions reach. TraceError where none is left."""
    most = model.most_positions
    if most is None:
        return requests
    scaled_to = f" ({most:,} if scaled)" if model.extended_positions else ""
    return _servable(
        requests, requests.input + requests.output > most, whose,
        f"{model.name} has {model.positions:,} positions{scaled_to}, and an engine refuses more",
        "Take shorter ones (--input and --output of archsim recommend; requests.input and requests.output of a file), "
        "or give the model more `positions:` if it was trained for more",
    )  # fmt: skip


def scaled_positions_note(requests: Requests, model: ModelSpec) -> str:
    if model.positions is None:
        return ""
    longer = int((requests.input + requests.output > model.positions).sum())
    if not longer:
        return ""
    return (
        f"{longer:,} of {len(requests.input):,} requests are longer than the {model.positions:,} positions of "
        f"{model.name}. An engine takes them only with scaled positions (such as YaRN), up to "
        f"{model.extended_positions:,}."
    )


# Readers of request traces: one function a format, and one that tells formats and units of time apart.
#
# Times become ns from the first arrival on; requests are sorted only where a format does not promise order. A line that
# contradicts itself is refused with file, line and reason. Several tools write other units under the same keys, so that
# the unit of time follows from evidence, and is asked for where two are plausible.

MOONCAKE_BLOCK = 512  # tokens of a hash id (Mooncake, FAST 2025, trace release)
BAILIAN_BLOCK = 16  # tokens of a hash id (alibaba-edu/qwen-bailian-usagetraces-anon, README)
LIKELY_BLOCKS = tuple(1 << power for power in range(13))  # that a message proposes
MOST_TOKENS = 1 << 30  # of a prompt or an output: a hundred times the longest contexts of 2026; sums stay in int64
UNITS = MappingProxyType({unit: int(parse_quantity(f"1{unit}", TIME)) for unit in ("s", "ms", "us", "ns")})
# Numbers that are times since 1970 lie in these years, whatever their unit: 2000 to 2100.
_EPOCH_S = (946_684_800, 4_102_444_800)
# Mean rates of a trace. Published ones have 1 to 200 requests a second (Mooncake 3 to 7; Azure 2024 some 200 in all of
# its services): above the first, ms are not plausible where seconds are; above the second, nothing is.
MOST_PER_S_IN_MS, MOST_PER_S = 500, 10_000
# The longest mean gap of a trace in whole seconds beside one in ms, and of any: nobody replays slower ones.
MOST_GAP_OF_WHOLE_S, MOST_GAP_S = 60, 600
_DATE = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)[ Tt](?P<time>\d\d:\d\d(?::\d\d)?)(?:[.,](?P<fraction>\d+))?"
    r" ?(?P<zone>[Zz]|UTC|GMT|[+-]\d\d(?::?\d\d)?)?",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class WrittenTime(NamedTuple):
    """A time as written: ``value`` in the unit of its trace; of a date, in s since 1970. ``kind``: of KINDS."""

    value: Decimal
    kind: str


NUMBER, DATE, DATE_WITH_OFFSET = KINDS = ("a number", "a date without an offset", "a date with its offset from UTC")
NO_ARRIVAL = WrittenTime(Decimal(0), NUMBER)


class RequestRow(NamedTuple):
    """A request as read; ``hash_ids``: of its prompt, if the format has them. ``session``: whose turn it is; a turn
    after the first waits for the one before, and comes ``think_ns`` after its last token.
    """

    line: int
    arrival: WrittenTime
    input: int
    output: int
    hash_ids: tuple[int | str, ...] = ()
    session: str = ""
    think_ns: float = 0.0
    waits: bool = False


class RequestFormat(NamedTuple):
    """``columns``: without which a file is not of this format; ``units``: in which tools write its times, the format's
    own first; none: dates. ``others``: columns that are read where a file has them, or that repeat what is read.
    """

    read: Callable[[Path], Iterator[RequestRow]]
    columns: tuple[str, ...]
    units: tuple[str, ...]
    hash_tokens: int = 0
    others: tuple[str, ...] = ()


def read_requests(
    path: str | Path, name: str | None = None, unit: str | None = None, hash_tokens: int | None = None
) -> Requests:
    """The requests of a trace; ``name``: its format, else found by its columns; ``unit``: of UNITS, else found by
    evidence; ``hash_tokens``: tokens of a block that has a hash id, else those of the format. Raises TraceError.
    """
    path = Path(path)
    if name is not None and name not in FORMATS:
        raise TraceError(f"{path}: unknown format {name!r}{did_you_mean(name, FORMATS)} (known: {', '.join(FORMATS)})")
    found = name or format_of(path)
    chosen = FORMATS[found]
    if hash_tokens is not None and not chosen.hash_tokens:
        having = ", ".join(name for name, each in FORMATS.items() if each.hash_tokens)
        raise TraceError(f"{path}: requests.hash_tokens: only traces of {having} have hash ids. Leave the key out")
    hash_tokens = hash_tokens or chosen.hash_tokens
    with _readable(path):
        rows = list(_check_rows(path, chosen.read(path), hash_tokens))
    if not rows:
        raise TraceError(f"{path}: no requests")
    unit, why = _unit_of(path, rows, chosen, named=name is not None, given=unit)
    unread = [key for key in _keys_of(path) if key not in (*chosen.columns, *chosen.others)]
    text = f"{path.name} is read as {found}: {why}."
    if unread:
        left = f" and {len(unread) - 8} more" if len(unread) > 8 else ""
        text += f" These keys have no effect: {', '.join(unread[:8])}{left}."
    return _as_arrays(rows, UNITS[unit], hash_tokens, text)


def format_of(path: Path) -> str:
    """The format whose columns the first record has. Raises TraceError."""
    keys = _keys_of(path)
    if keys == _LIST:
        return "sharegpt"
    for name, each in FORMATS.items():
        if each.columns and set(each.columns) <= set(keys):
            return name
    if not keys:
        raise TraceError(f"{path}: the file is empty; expected requests, one per line")
    folded = {key.casefold() for key in keys}
    known = {name: sum(each.casefold() in folded for each in found.columns) for name, found in FORMATS.items()}
    near = max(FORMATS, key=lambda name: (known[name], name == "mooncake"))
    columns, units = FORMATS[near].columns, " or ".join(FORMATS[near].units) or "dates"
    like = {each: nearest(each, set(keys) - set(columns)) for each in columns if each not in keys}
    lacking = ", ".join(f"{each} (here {other}?)" if other else each for each, other in like.items())
    raise TraceError(
        f"{path}:1: columns {', '.join(keys)} are of no known format. The nearest is {near} (times: {units}), which "
        f"also needs {lacking}. Rename columns or add them. Other formats: "
        f"{', '.join(name for name in FORMATS if name != near)}"
    )


_LIST = ("[",)


def _keys_of(path: Path) -> tuple[str, ...]:
    """Columns of a CSV file, or keys of the first object; _LIST for a JSON list."""
    line, start = _start(path)
    if start.startswith("[") and path.suffix == ".json":
        return _LIST
    if start.startswith("{"):
        return tuple(_object(path, line, start))
    return tuple(word.strip() for word in next(csv.reader([start], delimiter=_delimiter(start)), ()))


def _start(path: Path) -> tuple[int, str]:
    """Number and text of the first line that is not empty."""
    with _readable(path), path.open(encoding="utf-8-sig") as stream:
        return next(((at, text.strip()) for at, text in enumerate(stream, 1) if text.strip()), (1, ""))


def _delimiter(header: str) -> str:
    return max(",;\t", key=header.count)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from None


def _check_rows(path: Path, rows: Iterable[RequestRow], hash_tokens: int) -> Iterator[RequestRow]:
    before = None
    for row in rows:
        where = f"{path}:{row.line}"
        if max(row.input, row.output) > MOST_TOKENS:
            raise TraceError(f"{where}: {max(row.input, row.output)} tokens; expected at most {MOST_TOKENS}")
        if row.input < 1:
            raise TraceError(f"{where}: a prompt of {row.input} tokens; expected 1 or more")
        if row.output < 1:
            raise TraceError(f"{where}: an output of {row.output} tokens; expected 1 or more")
        if before is not None and row.arrival.kind != before.kind:
            raise TraceError(
                f"{where}: the arrival is {row.arrival.kind}, but in the request above it {before.kind}. Write all of "
                "them in one form"
            )
        if row.think_ns < 0:
            raise TraceError(f"{where}: a delay of {row.think_ns:g} ns after the turn before; expected 0 or more")
        if before is not None and row.arrival.value < before.value and not row.waits:
            earlier, later = (
                f"{each.value:f}" if each.kind == NUMBER else f"{_EPOCH + timedelta(seconds=float(each.value))}"
                for each in (row.arrival, before)
            )
            raise TraceError(
                f"{where}: arrives at {earlier}, before the request above it, at {later}; sort the trace by arrival"
            )
        needed = -(-row.input // hash_tokens) if hash_tokens else 0
        if row.hash_ids and len(row.hash_ids) != needed:
            fitting = [size for size in LIKELY_BLOCKS if -(-row.input // size) == len(row.hash_ids)]
            instead = f"; {len(row.hash_ids)} ids would be of blocks of {fitting[0]}" if fitting else ""
            raise TraceError(
                f"{where}: {len(row.hash_ids)} hash ids, but a prompt of {row.input} tokens has {needed} blocks of "
                f"{hash_tokens}{instead}; if the ids of this trace are of other blocks, give their tokens as "
                "requests.hash_tokens"
            )
        before = before if row.waits else row.arrival
        yield row


def _unit_of(
    path: Path, rows: list[RequestRow], chosen: RequestFormat, *, named: bool, given: str | None
) -> tuple[str, str]:
    """The unit of a trace's times, and a sentence that says why. Raises TraceError where evidence does not decide."""
    rows = [row for row in rows if not row.waits]
    kind, values = rows[0].arrival.kind, [row.arrival.value for row in rows]
    span = values[-1] - values[0]
    if given is not None and given not in UNITS:
        raise TraceError(f"{path}: unknown unit of time {given!r} (known: {', '.join(UNITS)})")
    if kind != NUMBER:
        if given is not None:
            raise TraceError(f"{path}: times are dates, which have no other unit. Leave requests.time_unit out")
        with_ = "with their offsets from UTC" if kind == DATE_WITH_OFFSET else "without offsets, all of one zone"
        return "s", f"times are dates {with_}"
    if given is not None:
        return given, f"times are in {given}, as requests.time_unit says"
    if not span:
        return "s", "all requests arrive at once"
    gap = span / (len(rows) - 1)
    since_1970 = next((unit for unit in UNITS if _EPOCH_S[0] <= values[0] * UNITS[unit] / 10**9 < _EPOCH_S[1]), None)
    if since_1970 and "ns" not in chosen.units:  # which a key of that format says
        return since_1970, f"times are in {since_1970} since 1970, by their size: {_rate(gap, since_1970)}"
    if not chosen.units:
        raise TraceError(f"{path}: times are numbers, where this format has dates. Name their unit: {_ASK}")
    if named:
        return chosen.units[0], f"times are in {chosen.units[0]}, as the format says: {_rate(gap, chosen.units[0])}"
    if len(chosen.units) == 1:
        return _plausible(path, chosen.units[0], gap)
    return _ms_or_s(path, values, gap)


_ASK = "requests.time_unit: s, or ms, us, ns"


def _plausible(path: Path, unit: str, gap: Decimal) -> tuple[str, str]:
    """The unit of a format, if a trace may have the rate that follows from it. Raises TraceError."""
    text = f"times are in {unit}, as this format's are: {_rate(gap, unit)}"
    likely = [each for each in UNITS if MOST_PER_S >= _per_s(gap, each) >= 1 / MOST_GAP_S]
    if unit in likely:
        return unit, text
    others = ", ".join(f"{_rate(gap, each)} if {each}" for each in likely)
    raise TraceError(f"{path}: {text}, which is not plausible{f' ({others})' if others else ''}. Name the unit: {_ASK}")


def _ms_or_s(path: Path, values: list[Decimal], gap: Decimal) -> tuple[str, str]:
    """By digits and by rate: ms are whole numbers, seconds have fractions. Raises TraceError where both may be."""
    whole = all(value == value.to_integral_value() for value in values)
    in_ms = MOST_PER_S_IN_MS >= _per_s(gap, "ms") >= 1 / MOST_GAP_S
    in_s = gap <= (MOST_GAP_OF_WHOLE_S if whole else MOST_GAP_S)
    digits = "whole numbers" if whole else "numbers with fractions"
    if in_ms and not in_s:
        return "ms", f"times are in ms: {digits}, {_rate(gap, 'ms')}, where s would make {_rate(gap, 's')}"
    if in_s and not in_ms and not whole:
        return "s", f"times are in s: {digits}, {_rate(gap, 's')}, where ms would make {_rate(gap, 'ms')}"
    raise TraceError(
        f"{path}: the unit of timestamp is not clear: Mooncake writes ms, GuideLLM and `vllm bench serve` seconds "
        f"under the same keys. {digits.capitalize()}: "
        + ", ".join(f"{_rate(gap, each)} if {each}" for each in ("ms", "s", *_finer(gap)))
        + f". Name it: {_ASK}"
    )


def _finer(gap: Decimal) -> list[str]:
    """Units finer than ms that make the rate a likely one, where ms would make it too low."""
    if _per_s(gap, "ms") >= 1 / MOST_GAP_S:
        return []
    return [unit for unit in ("us", "ns") if MOST_PER_S >= _per_s(gap, unit) >= 1 / MOST_GAP_S]


def _per_s(gap: Decimal, unit: str) -> float:
    return 10**9 / (float(gap) * UNITS[unit])


def _rate(gap: Decimal, unit: str) -> str:
    per_s = _per_s(gap, unit)
    number = float(f"{per_s if per_s >= 0.1 else 1 / per_s:.3g}")
    return f"{number:,g} requests/s" if per_s >= 0.1 else f"a request every {number:,g} s"


def _as_arrays(rows: list[RequestRow], unit_ns: int, hash_tokens: int, read_as: str) -> Requests:
    start = rows[0].arrival.value
    every = sorted({each for row in rows for each in row.hash_ids}, key=lambda each: (isinstance(each, str), each))
    numbers = {each: at for at, each in enumerate(every)}  # whatever the ids are: dynamo's are u64
    counts = np.cumsum([0, *(len(row.hash_ids) for row in rows)])
    found = Requests(
        np.array([float((row.arrival.value - start) * unit_ns) for row in rows]),
        np.array([row.input for row in rows], np.int64),
        np.array([row.output for row in rows], np.int64),
        np.array([numbers[each] for row in rows for each in row.hash_ids], np.int64),
        counts.astype(np.int64),
        hash_tokens if every else 0,
        lines=np.array([row.line for row in rows], np.int64),
        read_as=read_as,
    )
    return _with_turns(found, rows) if any(row.waits for row in rows) else found


def _with_turns(found: Requests, rows: list[RequestRow]) -> Requests:
    """With the next turn of each. Where a trace has no hash ids, a prompt that has room for the prompt and the output
    before it repeats them; another one is of a context that was dropped, and shares nothing.
    """
    follower, think_ns = np.full(len(rows), -1), np.zeros(len(rows))
    last: dict[str, int] = {}
    begins = np.zeros(len(rows), np.int64)  # the first request of its unbroken context
    for at, row in enumerate(rows):
        begins[at] = at
        if row.waits:
            before = last[row.session]
            follower[before], think_ns[before] = at, row.think_ns
            if row.input >= rows[before].input + rows[before].output:
                begins[at] = begins[before]
        last[row.session] = at
    sessions = len(set(row.session for row in rows))
    text = f"{found.read_as} It has {sessions:,} sessions, in which a turn waits for the answer to the turn before."
    found = found._replace(follower=follower, think_ns=think_ns, read_as=text)
    if found.hash_tokens:
        return found
    none = np.zeros(len(rows), np.int64)
    ids, first = _blocks(found.input, np.unique(begins, return_inverse=True)[1], none, none)
    return found._replace(hash_ids=ids, hash_from=first, hash_tokens=PREFIX_BLOCK)


def _object(path: Path, line: int, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}:{line}: not JSON: {error.msg} at column {error.colno}") from None
    except (RecursionError, ValueError) as error:
        raise TraceError(f"{path}:{line}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise TraceError(f"{path}:{line}: expected an object, not {type(found).__name__}")
    return found


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    at, start = _start(path)
    with path.open(encoding="utf-8-sig", newline="") as stream:
        if start.startswith("{"):
            for line, text in enumerate(stream, 1):
                if text.strip():
                    yield line, _object(path, line, text)
            return
        for _ in range(at - 1):
            next(stream)
        reader = csv.DictReader(stream, delimiter=_delimiter(start))
        reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
        for row in reader:
            line = reader.line_num + at - 1
            if missing := [name for name, value in row.items() if value is None]:
                raise TraceError(
                    f"{path}:{line}: the row has {len(row) - len(missing)} of {len(row)} columns; expected a value of "
                    f"{', '.join(missing)}, too. Is the file cut off?"
                )
            if any(beyond := row.pop(None, [])):  # the key of what is beyond the columns
                raise TraceError(
                    f"{path}:{line}: the row has {len(row) + len(beyond)} values for {len(row)} columns; expected one "
                    "each. Does a text with a comma lack its quotes?"
                )
            yield line, row


def _decimal(path: Path, line: int, row: dict[str, Any], key: str) -> Decimal:
    if key not in row:
        other = nearest(key, row)
        raise TraceError(f"{path}:{line}: {key} is missing{f' (here {other}?)' if other else ''}; expected a number")
    value = row[key]
    text = value.strip() if isinstance(value, str) else repr(value)
    if isinstance(value, bool) or not _NUMBER.fullmatch(text):
        raise TraceError(f"{path}:{line}: {key} is {value!r}; expected a number")
    return Decimal(text)


_NUMBER = re.compile(r"[-+]?(\d{1,300}\.?\d{0,300}|\.\d{1,300})([eE][-+]?\d{1,2})?", re.ASCII)


def _moment(path: Path, line: int, row: dict[str, Any], key: str) -> WrittenTime:
    """A number, or a date with seconds, any fraction of one, and an offset from UTC or none."""
    value = row.get(key)
    date = _DATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if date is None:
        if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()) or value is None:
            delayed = next((each for each in ("delay", "delay_ms", "wait_for") if each in row), None)
            what = f" ({delayed}: requests that wait for others are not modelled)" if delayed else ""
            raise TraceError(
                f"{path}:{line}: {key} is {value!r}{what}; expected a number, or a date such as "
                "2023-11-16 18:17:03.9799600 or 2024-05-10T02:00:00.25+02:00"
            )
        return WrittenTime(_decimal(path, line, row, key), NUMBER)
    zone = date["zone"] or ""
    offset = "+00:00" if zone.upper() in ("", "Z", "UTC", "GMT") else zone
    try:
        at = datetime.fromisoformat(f"{date['day']}T{date['time']}{offset}")
    except ValueError as error:
        raise TraceError(f"{path}:{line}: {key} is {value!r}, which is no date: {error}") from None
    whole = (at - _EPOCH) // timedelta(seconds=1)
    return WrittenTime(whole + Decimal(f"0.{date['fraction'] or 0}"), DATE_WITH_OFFSET if zone else DATE)


def _count(path: Path, line: int, row: dict[str, Any], key: str) -> int:
    found = _decimal(path, line, row, key)
    if found != found.to_integral_value():
        raise TraceError(f"{path}:{line}: {key} is {found}; expected a whole number")
    return int(found)


def _sizes(path: Path, line: int, row: dict[str, Any], prompt: str, output: str) -> tuple[int, int]:
    return _count(path, line, row, prompt), _count(path, line, row, output)


def _mooncake(path: Path) -> Iterator[RequestRow]:
    """{"timestamp", "input_length", "output_length", "hash_ids": [one a block of the prompt]}: Mooncake's (ms), and
    with the same keys GuideLLM's, those of `vllm bench serve`, and Alibaba's (s).
    """
    for line, row in _records(path):
        ids = row.get("hash_ids") or []
        if not isinstance(ids, list) or not all(type(each) in (int, str) for each in ids):
            raise TraceError(f"{path}:{line}: hash_ids is not a list of whole numbers")
        arrival = _moment(path, line, row, "timestamp")
        yield RequestRow(line, arrival, *_sizes(path, line, row, "input_length", "output_length"), tuple(ids))


def _sessions(path: Path) -> Iterator[RequestRow]:
    """Mooncake's keys with "session_id": a first turn has "timestamp", a later one "delay" or "delay_ms", ms after the
    answer before (ai-dynamo/dynamo, docs/dynosim/trace-formats.md).
    """
    begun: dict[str, WrittenTime] = {}
    for line, row in _records(path):
        session = str(row.get("session_id"))
        if "wait_for" in row:
            raise TraceError(f"{path}:{line}: wait_for: requests that wait for several others are not modelled")
        ids = row.get("hash_ids") or []
        if not isinstance(ids, list) or not all(type(each) in (int, str) for each in ids):
            raise TraceError(f"{path}:{line}: hash_ids is not a list of whole numbers")
        sizes = _sizes(path, line, row, "input_length", "output_length")
        delay = next((key for key in ("delay", "delay_ms") if key in row), None)
        if session in begun and delay:
            think_ns = float(_decimal(path, line, row, delay) * UNITS["ms"])
            yield RequestRow(line, begun[session], *sizes, tuple(ids), session, think_ns, waits=True)
            continue
        if session in begun:
            raise TraceError(f"{path}:{line}: a later turn of session {session} has no delay; expected delay, in ms")
        begun[session] = _moment(path, line, row, "timestamp")
        yield RequestRow(line, begun[session], *sizes, tuple(ids), session)


def _llmservingsim_agentic(path: Path) -> Iterator[RequestRow]:
    """{"session_id", "arrival_time_ns", "sub_requests": [{"input_toks", "output_toks", "tool_duration_ns"}]}: the time
    of a tool passes before the next one.
    """
    for line, row in _records(path):
        arrival, think_ns = _moment(path, line, row, "arrival_time_ns"), 0.0
        for at, each in enumerate(_list_at(path, line, row, "sub_requests")):
            if not isinstance(each, dict):
                raise TraceError(f"{path}:{line}: sub_requests[{at}] is {each!r:.40}; expected an object")
            sizes = _sizes(path, line, each, "input_toks", "output_toks")
            yield RequestRow(line, arrival, *sizes, (), f"{row.get('session_id')}", think_ns, waits=at > 0)
            think_ns = float(_decimal(path, line, each, "tool_duration_ns"))


def _applied_compute(path: Path) -> Iterator[RequestRow]:
    """{"num_turns", "input_prompt_length", "assistant_response_length": [...], "tool_call_output_length": [...],
    "tool_call_latency": [s, ...], "final_assistant_response_length"}: an agent a line, all at once.
    """
    keys = ("assistant_response_length", "tool_call_output_length", "tool_call_latency")
    for line, row in _records(path):
        turns, think_ns = _count(path, line, row, "num_turns"), 0.0
        tokens = _count(path, line, row, "input_prompt_length")
        answers, tools, times = (_list_at(path, line, row, key) for key in keys)
        if not len(answers) == len(tools) == len(times) == turns:
            raise TraceError(f"{path}:{line}: {turns} turns, but {len(answers)} answers, {len(tools)} outputs of tools "
                             f"and {len(times)} latencies; expected as many of each")  # fmt: skip
        last = _count(path, line, row, "final_assistant_response_length")
        for at in range(turns + 1):
            one = {"answer": answers[at], "tool": tools[at], "time": times[at]} if at < turns else {"answer": last}
            output = _count(path, line, one, "answer")
            yield RequestRow(line, NO_ARRIVAL, tokens, output, (), str(line), think_ns, waits=at > 0)
            if at < turns:
                tokens += output + _count(path, line, one, "tool")
                think_ns = float(_decimal(path, line, one, "time") * UNITS["s"])


def _list_at(path: Path, line: int, row: dict[str, Any], key: str) -> list[Any]:
    found = row.get(key)
    if not isinstance(found, list):
        raise TraceError(f"{path}:{line}: {key} is {found!r:.40}; expected a list")
    return found


def _azure(path: Path) -> Iterator[RequestRow]:
    """TIMESTAMP (100 ns digits, with an offset in some), ContextTokens, GeneratedTokens; Azure 2023 to 2025."""
    for line, row in _records(path):
        arrival = _moment(path, line, row, "TIMESTAMP")
        yield RequestRow(line, arrival, *_sizes(path, line, row, "ContextTokens", "GeneratedTokens"))


def _burstgpt(path: Path) -> Iterator[RequestRow]:
    """Timestamp (s), Request tokens, Response tokens, ...; failed requests, of 0 response tokens, are left out."""
    for line, row in _records(path):
        output = _count(path, line, row, "Response tokens")
        if output:
            arrival = _moment(path, line, row, "Timestamp")
            yield RequestRow(line, arrival, _count(path, line, row, "Request tokens"), output)


def _vidur(path: Path) -> Iterator[RequestRow]:
    """arrived_at (s; 0 where missing), num_prefill_tokens, num_decode_tokens."""
    for line, row in _records(path):
        arrival = _moment(path, line, row, "arrived_at") if "arrived_at" in row else NO_ARRIVAL
        yield RequestRow(line, arrival, *_sizes(path, line, row, "num_prefill_tokens", "num_decode_tokens"))


def _llmservingsim(path: Path) -> Iterator[RequestRow]:
    """{"input_toks", "output_toks", "arrival_time_ns"}; token ids are not used."""
    for line, row in _records(path):
        arrival = _moment(path, line, row, "arrival_time_ns")
        yield RequestRow(line, arrival, *_sizes(path, line, row, "input_toks", "output_toks"))


def _sharegpt(path: Path) -> Iterator[RequestRow]:
    """[{"conversations": [{"from", "value"}]}]: the first turn of a person and the answer, about 4 characters a token
    (OpenAI's rule of thumb for English); no arrivals. Conversations without both are left out, as `vllm bench` does.
    """
    try:
        records = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{path}: not JSON: {error}") from None
    for at, record in enumerate(records if isinstance(records, list) else [records], 1):
        turns = [turn for turn in _turns(path, at, record) if turn.get("from") in ("human", "gpt")]
        if len(turns) >= 2 and turns[0]["from"] == "human" and turns[1]["from"] == "gpt":
            prompt, output = (max(1, round(len(turn["value"]) / 4)) for turn in turns[:2])
            yield RequestRow(at, NO_ARRIVAL, prompt, output)


def _turns(path: Path, at: int, record: Any) -> list[dict[str, Any]]:
    """The turns of a conversation. Raises TraceError."""
    turns = record.get("conversations") or [] if isinstance(record, dict) else None
    if not isinstance(turns, list):
        raise TraceError(f"{path}: conversation {at}: expected an object with a list `conversations`")
    for turn in turns:
        if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
            raise TraceError(f"{path}: conversation {at}: a turn is {turn!r:.60}; expected {{from, value}} with text")
    return turns


_MOONCAKE = ("timestamp", "input_length", "output_length")
FORMATS = MappingProxyType(
    {
        "bailian": RequestFormat(
            _mooncake, ("chat_id", "parent_chat_id", *_MOONCAKE), ("s",), BAILIAN_BLOCK, ("hash_ids", "type", "turn")
        ),
        "sessions": RequestFormat(
            _sessions, ("session_id", *_MOONCAKE), ("ms", "s"), MOONCAKE_BLOCK, ("hash_ids", "delay", "delay_ms"),
        ),
        "mooncake": RequestFormat(_mooncake, _MOONCAKE, ("ms", "s"), MOONCAKE_BLOCK, ("hash_ids",)),
        "guidellm": RequestFormat(_mooncake, _MOONCAKE, ("s",), MOONCAKE_BLOCK, ("hash_ids",)),
        "llmservingsim_agentic": RequestFormat(
            _llmservingsim_agentic, ("session_id", "arrival_time_ns", "sub_requests"), ("ns",),
        ),
        "applied_compute": RequestFormat(
            _applied_compute, (
                "num_turns", "input_prompt_length", "assistant_response_length", "tool_call_output_length",
                "tool_call_latency", "final_assistant_response_length",
            ), ("s",),
        ),
        "azure": RequestFormat(_azure, ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), ()),
        "burstgpt": RequestFormat(
            _burstgpt, ("Timestamp", "Request tokens", "Response tokens"), ("s",), 0,
            ("Total tokens", "Model", "Log Type"),
        ),
        "sharegpt": RequestFormat(_sharegpt, (), ("s",), 0, _LIST),
        "vidur": RequestFormat(
            _vidur, ("num_prefill_tokens", "num_decode_tokens"), ("s",), 0,
            ("arrived_at", "num_total_tokens", "pd_ratio"),
        ),
        "llmservingsim": RequestFormat(
            _llmservingsim, ("input_toks", "output_toks", "arrival_time_ns"), ("ns",), 0,
            ("input_tok_ids", "output_tok_ids"),
        ),
    }
)  # fmt: skip


# Tokens from which iterations draw their experts: routing of a recorded trace or of generated traffic.
#
# Prompt tokens and decoded ones are kept apart, in order of their decode step, so that popularity that drifts in the
# traffic drifts while serving: the i-th draw begins at decode step i, and takes as many consecutive tokens as it needs,
# from the beginning again after the last.

MOST_PROMPT_TOKENS = 65_536  # kept of the prefill


class TokenPool(NamedTuple):
    """``prompts``, ``decodes``: int16[token, layer, k]; ``starts``: int64[step], where the tokens of a decode step
    begin. ``layer_ids``: int32[layer], the model's numbers. ``label``: whose routing it is.
    """

    prompts: np.ndarray
    decodes: np.ndarray
    starts: np.ndarray
    layer_ids: np.ndarray
    label: str

    def draw(self, tokens: int, prompt: bool, turn: int) -> np.ndarray:
        """int16[tokens, layer, k]: what so many consecutive tokens chose; ``turn``: the draw before had one less."""
        pool = self.prompts if prompt else self.decodes
        first = int(self.starts[turn % len(self.starts)]) * len(pool) // len(self.decodes)
        return pool[(first + np.arange(tokens)) % len(pool)]


def token_pool(model: ModelSpec, spec: RoutingSpec, trace: Path | None) -> TokenPool:
    """The pool of a model. Raises TraceError for routing of another model, or without a token."""
    layers = min(spec.layers, len(model.moe_layer_ids))
    if trace is not None:
        source: TokenSource = some_layers(open_trace(str(trace), model), layers)
    else:
        source = traffic_presets.generated_traffic(model, spec.synthetic_traffic, spec.requests, layers)
    prompts, decodes = [], []
    kept = 0
    for piece in source.steps(draw_requests(source.requests, spec.requests, spec.seed), spec.steps):
        if piece.iteration:
            decodes.append((piece.iteration, piece.experts))
        elif kept < MOST_PROMPT_TOKENS:
            prompts.append(piece.experts[: MOST_PROMPT_TOKENS - kept])
            kept += len(prompts[-1])
    if not decodes and not prompts:
        raise TraceError(f"routing: {source.label} has no tokens")
    decoded = np.concatenate([experts for _, experts in decodes]) if decodes else np.concatenate(prompts)
    steps = np.repeat([step for step, _ in decodes], [len(experts) for _, experts in decodes])
    starts = np.unique(steps, return_index=True)[1] if decodes else np.zeros(1, np.int64)
    asked = np.concatenate(prompts) if prompts else decoded
    return TokenPool(asked, decoded, starts, source.layer_ids, source.label)
