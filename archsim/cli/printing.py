"""Output that commands share: tables, notes, and where an interrupted command resumes."""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from archsim.base.code_digest import nothing_compiled
from archsim.cli.exit_codes import INTERRUPTED

LOG_WIDTH = 200  # of tables outside a terminal
MOST_PROBLEMS = 12  # printed per file of measurements


def console():
    """Where tables are printed: as wide as the terminal, ``LOG_WIDTH`` elsewhere. Text is printed as it is, also where
    it looks like a style: names come from files.
    """
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else LOG_WIDTH, highlight=False, markup=False, emoji=False)


def printable(text: str) -> str:
    """Text without control characters, which names of files may bring and a terminal would obey."""
    return "".join(each if each.isprintable() or each == "\n" else f"\\x{ord(each):02x}" for each in text)


def print_notes(notes: Iterable[str]) -> None:
    """Caveats of results, one line each, on stderr."""
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def print_json(result: Any) -> None:
    """A result as JSON on stdout: its fields, rows of tables as lists; NaN and infinities as null."""
    print(json.dumps(_plain(result), ensure_ascii=False, indent=1, allow_nan=False))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if hasattr(value, "tolist"):  # arrays and scalars of numpy
        return _plain(value.tolist())
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if hasattr(value, "model_dump"):  # specs
        return _plain(value.model_dump(mode="json", by_alias=True))
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    return value if isinstance(value, str | int | None) else str(value)


def print_result_notes(rows: Iterable[Mapping[str, Any]], systems) -> None:
    """Caveats of these rows of results, on stderr. systems: their specs."""
    from archsim.runs.calibration_notes import die_of
    from archsim.runs.result_notes import result_notes

    print_notes(result_notes(rows, [(system.name, die_of(system)) for system in systems]) + system_notes(systems))


def system_notes(systems) -> list[str]:
    """A sentence for every system whose state machine is clocked higher than its RTL, and every value that is far from
    known machines. systems: their specs.
    """
    from archsim.specs.machine.plausible import plausibility_notes
    from microarch.silicon.synthesised import clock_note

    found = (clock_note(each.name, each.decision.executor, each.decision.fsm.clock_hz) for each in systems)
    odd = (note for each in systems for note in plausibility_notes(each.name, each.model_dump(by_alias=True)))
    return [note for note in dict.fromkeys([*found, *odd]) if note]


def print_engine_errors(compared) -> None:
    """One line per assumption set, then the runs outside the limit.

    compared: ``archsim.runs.engine_comparison.Compared``.
    """
    from archsim.report.units import signed_percent
    from archsim.runs.engine_comparison import OUTSIDE, errors

    for each in errors(compared):
        rank = "–" if each.rank is None else f"{each.rank:.3f}"
        print(
            f"  {each.assumptions}: {each.runs} runs, error of decode time: median {each.median:.1%}, "
            f"p95 {each.p95:.1%}, max {each.largest:.1%}, signed median {signed_percent(each.signed_median)}; "
            f"rank correlation {rank}"
        )
    outside = sorted((each for each in compared if abs(each.error) > OUTSIDE), key=lambda each: -abs(each.error))
    for each in outside:
        print(f"  outside {OUTSIDE:.0%}: {each.run}: {signed_percent(each.error)}; {each.reason}")


def print_compiling() -> None:
    """Say on stderr that the first runs wait for the compiler; see ``archsim.base.code_digest``."""
    if nothing_compiled():
        print("compiling, once: a minute or two", file=sys.stderr, flush=True)


def print_kept(folder: Path) -> int:
    """Say where an interrupted command resumes; returns its exit code."""
    print(f"\ninterrupted; finished runs are kept in {folder}: the same command resumes there", file=sys.stderr)
    return INTERRUPTED


def grid(*columns: str, title: str | None = None, numbers: tuple[str, ...] = ()):
    """A table with text columns, then right-aligned ``numbers``."""
    from rich import box
    from rich.table import Table

    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(column)
    for column in numbers:
        made.add_column(column, justify="right", no_wrap=True)
    return made


def print_fitting(table, kept: int) -> None:
    """Print a table; in a terminal that is too narrow, without its last columns, of which the first ``kept`` stay.
    Name those that are left out.
    """
    out = console()
    left: list[str] = []
    while len(table.columns) > kept and natural_width(table) > out.width:
        left.insert(0, str(table.columns.pop().header))
    out.print(table)
    if left:
        print(f"left out, as the terminal is narrow: {', '.join(left)}")


def natural_width(table) -> int:
    """Columns of text that the table takes where nothing wraps."""
    from rich.console import Console

    wide = Console(width=10_000)
    return wide.measure(table).maximum


def print_store(path: str) -> None:
    """What the store at ``path`` contains."""
    from archsim.workload.store.describe import facts_of
    from archsim.workload.store.store import open_store

    for name, value in (facts_of(open_store(path)) | {"store": path}).items():
        print(f"{name:<9} {value}")


def print_measurement_problems(measurements) -> None:
    """Refused files, then quarantined rows and warnings, at most ``MOST_PROBLEMS`` per file, on stderr."""
    counts: Counter[str] = Counter()
    for problem in measurements.problems:
        counts[problem.file] += 1
        if counts[problem.file] <= MOST_PROBLEMS:
            print(problem, file=sys.stderr)
    for file, count in counts.items():
        if count > MOST_PROBLEMS:
            print(f"{file}: and {count - MOST_PROBLEMS} more", file=sys.stderr)
    for file, why in measurements.skipped.items():
        print(f"{file}:1: skipped: {why}", file=sys.stderr)
