"""Readers of request traces: one function a format, and one that tells formats apart.

Times become ns from the first arrival on; requests are sorted only where a format does not promise order. A line that
contradicts itself is refused with file, line and reason.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from archsim.base.errors import TraceError
from archsim.base.nearest import did_you_mean
from archsim.base.units import NS_PER_S
from archsim.serving.requests import Requests

MOONCAKE_BLOCK = 512  # tokens of a hash id (Mooncake, FAST 2025, trace release)
MOST_TOKENS = 1 << 30  # of a prompt or an output: a hundred times the longest contexts of 2026; sums stay in int64


class Row(NamedTuple):
    """A request as read; ``hash_ids``: of its prompt, if the format has them."""

    line: int
    arrival_ns: float
    input: int
    output: int
    hash_ids: tuple[int, ...] = ()


class Format(NamedTuple):
    """``columns``: without which a file is not of this format."""

    read: Callable[[Path], Iterator[Row]]
    columns: tuple[str, ...]
    hash_tokens: int = 0


def read_requests(path: str | Path, name: str | None = None) -> Requests:
    """The requests of a trace; ``name``: its format, else found by its columns. Raises TraceError."""
    path = Path(path)
    if name is not None and name not in FORMATS:
        raise TraceError(f"{path}: unknown format {name!r}{did_you_mean(name, FORMATS)} (known: {', '.join(FORMATS)})")
    chosen = FORMATS[name or format_of(path)]
    rows = list(_checked(path, chosen.read(path), chosen.hash_tokens))
    if not rows:
        raise TraceError(f"{path}: no requests")
    return _as_arrays(rows, chosen.hash_tokens)


def format_of(path: Path) -> str:
    """The format whose columns the first record has. Raises TraceError."""
    try:
        with path.open(encoding="utf-8") as stream:
            start = stream.readline()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from None
    if start.lstrip().startswith("[") and path.suffix == ".json":
        return "sharegpt"
    if start.lstrip().startswith("{"):
        keys = tuple(_object(path, 1, start))
    else:
        keys = tuple(word.strip() for word in start.strip().split(","))
    for name, each in FORMATS.items():
        if each.columns and set(each.columns) <= set(keys):
            return name
    known = "; ".join(f"{name}: {', '.join(each.columns)}" for name, each in FORMATS.items() if each.columns)
    raise TraceError(f"{path}:1: columns {', '.join(keys) or 'none'} are of no known format ({known})")


def _checked(path: Path, rows: Iterable[Row], hash_tokens: int) -> Iterator[Row]:
    before = None
    for row in rows:
        where = f"{path}:{row.line}"
        if max(row.input, row.output) > MOST_TOKENS:
            raise TraceError(f"{where}: {max(row.input, row.output)} tokens; expected at most {MOST_TOKENS}")
        if row.input < 1:
            raise TraceError(f"{where}: a prompt of {row.input} tokens; expected 1 or more")
        if row.output < 1:
            raise TraceError(f"{where}: an output of {row.output} tokens; expected 1 or more")
        if before is not None and row.arrival_ns < before:
            raise TraceError(
                f"{where}: arrives at {row.arrival_ns / NS_PER_S:g} s, before the request above it, at "
                f"{before / NS_PER_S:g} s; sort the trace by arrival"
            )
        needed = -(-row.input // hash_tokens) if hash_tokens else 0
        if row.hash_ids and len(row.hash_ids) != needed:
            raise TraceError(
                f"{where}: {len(row.hash_ids)} hash ids, but a prompt of {row.input} tokens has {needed} blocks of "
                f"{hash_tokens}"
            )
        before = row.arrival_ns
        yield row


def _as_arrays(rows: list[Row], hash_tokens: int) -> Requests:
    start = rows[0].arrival_ns
    ids = np.array([each for row in rows for each in row.hash_ids], np.int64)
    counts = np.cumsum([0, *(len(row.hash_ids) for row in rows)])
    return Requests(
        np.array([row.arrival_ns - start for row in rows]),
        np.array([row.input for row in rows], np.int64),
        np.array([row.output for row in rows], np.int64),
        np.unique(ids, return_inverse=True)[1].astype(np.int64).ravel(),
        counts.astype(np.int64),
        hash_tokens if len(ids) else 0,
    )


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


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8") as stream:
        for line, text in enumerate(stream, 1):
            if text.strip():
                yield line, _object(path, line, text)


def _records(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    with path.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        for row in reader:
            yield reader.line_num, row


def _number(path: Path, line: int, row: dict[str, Any], key: str) -> float:
    value = row.get(key)
    try:
        if value is None or isinstance(value, bool):
            raise ValueError
        found = float(value)
        if not np.isfinite(found):
            raise ValueError
        return found
    except (TypeError, ValueError):
        raise TraceError(f"{path}:{line}: {key} is {value!r}; expected a number") from None


def _count(path: Path, line: int, row: dict[str, Any], key: str) -> int:
    found = _number(path, line, row, key)
    if found != int(found):
        raise TraceError(f"{path}:{line}: {key} is {found!r}; expected a whole number")
    return int(found)


def _sizes(path: Path, line: int, row: dict[str, Any], prompt: str, output: str) -> tuple[int, int]:
    return _count(path, line, row, prompt), _count(path, line, row, output)


def _mooncake(path: Path) -> Iterator[Row]:
    """{"timestamp": ms, "input_length", "output_length", "hash_ids": [one per 512 tokens]}."""
    for line, row in _objects(path):
        ids = row.get("hash_ids", [])
        if not isinstance(ids, list) or not all(type(each) is int for each in ids):
            raise TraceError(f"{path}:{line}: hash_ids is not a list of whole numbers")
        arrival = _number(path, line, row, "timestamp") * 1e6
        yield Row(line, arrival, *_sizes(path, line, row, "input_length", "output_length"), tuple(ids))


def _azure(path: Path) -> Iterator[Row]:
    """TIMESTAMP (100 ns digits), ContextTokens, GeneratedTokens; Azure 2023 and 2024."""
    for line, row in _records(path):
        text = (row.get("TIMESTAMP") or "").strip()
        whole, _, digits = text.partition(".")
        try:
            at = (
                datetime.fromisoformat(whole).timestamp()
                if "+" in whole
                else datetime.fromisoformat(f"{whole}+00:00").timestamp()
            )
            digits = digits.partition("+")[0]
            fraction = float(f"0.{digits}") if digits else 0.0
        except ValueError:
            raise TraceError(f"{path}:{line}: TIMESTAMP is {text!r}; expected 2023-11-16 18:17:03.9799600") from None
        sizes = _sizes(path, line, row, "ContextTokens", "GeneratedTokens")
        yield Row(line, (at + fraction) * NS_PER_S, *sizes)


def _burstgpt(path: Path) -> Iterator[Row]:
    """Timestamp (s), Request tokens, Response tokens, ...; failed requests, of 0 response tokens, are left out."""
    for line, row in _records(path):
        output = _count(path, line, row, "Response tokens")
        if output:
            arrival = _number(path, line, row, "Timestamp") * NS_PER_S
            yield Row(line, arrival, _count(path, line, row, "Request tokens"), output)


def _vidur(path: Path) -> Iterator[Row]:
    """arrived_at (s; 0 where missing), num_prefill_tokens, num_decode_tokens."""
    for line, row in _records(path):
        arrival = _number(path, line, row, "arrived_at") * NS_PER_S if "arrived_at" in row else 0.0
        yield Row(line, arrival, *_sizes(path, line, row, "num_prefill_tokens", "num_decode_tokens"))


def _llmservingsim(path: Path) -> Iterator[Row]:
    """{"input_toks", "output_toks", "arrival_time_ns"}; token ids are not used."""
    for line, row in _objects(path):
        arrival = _number(path, line, row, "arrival_time_ns")
        yield Row(line, arrival, *_sizes(path, line, row, "input_toks", "output_toks"))


def _sharegpt(path: Path) -> Iterator[Row]:
    """[{"conversations": [{"from", "value"}]}]: the first turn of a person and the answer, about 4 characters a token
    (OpenAI's rule of thumb for English); no arrivals. Conversations without both are left out, as `vllm bench` does.
    """
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{path}: not JSON: {error}") from None
    for at, record in enumerate(records if isinstance(records, list) else [records], 1):
        turns = [turn for turn in _turns(path, at, record) if turn.get("from") in ("human", "gpt")]
        if len(turns) >= 2 and turns[0]["from"] == "human" and turns[1]["from"] == "gpt":
            prompt, output = (max(1, round(len(turn["value"]) / 4)) for turn in turns[:2])
            yield Row(at, 0.0, prompt, output)


def _turns(path: Path, at: int, record: Any) -> list[dict[str, Any]]:
    """The turns of a conversation. Raises TraceError."""
    turns = record.get("conversations") or [] if isinstance(record, dict) else None
    if not isinstance(turns, list):
        raise TraceError(f"{path}: conversation {at}: expected an object with a list `conversations`")
    for turn in turns:
        if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
            raise TraceError(f"{path}: conversation {at}: a turn is {turn!r:.60}; expected {{from, value}} with text")
    return turns


FORMATS = MappingProxyType(
    {
        "mooncake": Format(_mooncake, ("timestamp", "input_length", "output_length"), MOONCAKE_BLOCK),
        "azure": Format(_azure, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")),
        "burstgpt": Format(_burstgpt, ("Timestamp", "Request tokens", "Response tokens")),
        "sharegpt": Format(_sharegpt, ()),
        "vidur": Format(_vidur, ("num_prefill_tokens", "num_decode_tokens")),
        "llmservingsim": Format(_llmservingsim, ("input_toks", "output_toks", "arrival_time_ns")),
    }
)
