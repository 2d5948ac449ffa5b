"""Output that commands share: tables, notes, and where an interrupted command resumes."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archsim.base import code_digest, yaml
from archsim.base.errors import ArchsimError, SpecError, sentence, spaced, spoken
from archsim.specs.library import MANIFEST, MANIFEST_KEY

if TYPE_CHECKING:
    from archsim.base.answer import Answer, Part
    from archsim.specs.experiment import ExperimentSpec


LOG_WIDTH = 200  # of tables outside a terminal
MOST_PROBLEMS = 12  # printed per file of measurements


def console():
    """For tables: as wide as the terminal, or LOG_WIDTH. Text is printed as it is; names come from files."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else LOG_WIDTH, highlight=False, markup=False, emoji=False)


def print_parts(parts: Iterable[Part]) -> None:
    """Lines and tables of an answer; a narrow terminal shows the first ``least`` columns of a table."""
    for part in parts:
        if isinstance(part, str):
            print(spaced(part), flush=True)
            continue
        title = None if part.title is None else spaced(part.title)
        table = grid(*map(spaced, part.columns), title=title, numbers=tuple(map(spaced, part.numbers)))
        for column in table.columns[len(part.columns) :] if part.wraps else ():
            column.no_wrap = False
        for head in part.more:
            table.add_column(spaced(head))
        table.show_header = part.has_heads
        if part.unbroken:
            table.columns[0].no_wrap = True
        if part.second:
            table.columns[1].max_width, table.columns[1].overflow = part.second, "fold"
        for row in part.rows:
            if row is None:
                table.add_section()
            else:
                table.add_row(*map(spaced, row), style="bold" if part.headings and not any(row[1:]) else None)
        print_fitting(table, part.least or len(table.columns))


def print_answer(found: Answer) -> None:
    print_parts(found.parts)
    print_notes(found.notes)


def print_notes(notes: Iterable[str]) -> None:
    """Caveats of results, one line each, on stderr."""
    for note in notes:
        print(f"note: {spaced(sentence(note))}", file=sys.stderr)


def result_of(found: Answer) -> Any:
    """What ``--json`` prints: the result of an answer, with the sentence that is printed first where its fields have no
    ``answer``. One of several systems has that of each.
    """
    plain, first = _plain(found.result), next(iter(found.parts), None)
    if not isinstance(first, str) or not isinstance(plain, dict):
        return plain
    return plain if all(isinstance(each, dict) for each in plain.values()) else {"answer": spaced(first)} | plain


def print_json(result: Any) -> None:
    """A result as JSON on stdout: its fields, rows of tables as lists; NaN and infinities as null."""
    text = json.dumps(_plain(result), ensure_ascii=False, indent=1, allow_nan=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(json.loads(text), indent=1)
    print(text)


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


def print_compiling(*expected: str, of: ExperimentSpec | None = None) -> None:
    """Say on stderr about how long the command waits for the compiler: for kernels of these groups of ``KERNELS`` and
    those of an experiment (of any run if nothing is given) that are not compiled yet.
    """
    from archsim.cli.heartbeat import LEAST_TOLD_S, Heard

    groups = list(expected)
    if of is not None:
        engine = "analytical " if of.engine == "analytical" else ""
        groups += ["runs", *sorted({f"{engine}{each.contention}" for each in of.assumptions})]
        if any(each.prediction.name != "none" for each in of.policies):
            groups.append("policies")
    needed = groups or ["runs", "shared"]
    if isinstance(sys.stderr, Heard):
        sys.stderr.expected = needed
    if (missing_s := code_digest.machine_code(needed).missing_s) > LEAST_TOLD_S:
        print(f"compiling kernels, once: about {spoken(missing_s)} of one core", file=sys.stderr, flush=True)


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
    """Print a table; in a narrow terminal without last columns, which are named; the first ``kept`` stay."""
    out = console()
    left: list[str] = []
    while len(table.columns) > kept and natural_width(table) > out.width:
        left.insert(0, str(table.columns.pop().header))
    out.print(table)
    if left:
        print(f"The terminal is too narrow for these columns: {', '.join(left)}.")


def natural_width(table) -> int:
    """Columns of text that the table takes where nothing wraps."""
    from rich.console import Console

    wide = Console(width=10_000)
    return wide.measure(table).maximum


def answer_of_store(path: str | Path, *before: str) -> Answer:
    """What the store at ``path`` contains."""
    from archsim.base.answer import Answer
    from archsim.traffic.trace_store import facts_of, open_store

    facts = facts_of(open_store(str(path))) | {"store": str(path)}
    number, one, many = (facts["requests"], "request", "requests") if "requests" in facts else (
        facts["matrices"], "matrix of loads", "matrices of loads"
    )  # fmt: skip
    said = f"{path} holds {number} {one if number == '1' else many} of {facts['model']}."
    return Answer((*before, said, *(f"{name:<9} {value}" for name, value in facts.items())), result=facts)


def print_measurement_problems(measurements) -> None:
    """Refused files, then quarantined rows and warnings, at most ``MOST_PROBLEMS`` per file, on stderr."""
    counts: Counter[str] = Counter()
    for problem in measurements.problems:
        counts[problem.file] += 1
        if counts[problem.file] <= MOST_PROBLEMS:
            print(problem, file=sys.stderr)
    for file, count in counts.items():
        if count > MOST_PROBLEMS:
            print(f"{file}: {count - MOST_PROBLEMS} more such rows are not listed", file=sys.stderr)
    for file, why in measurements.skipped.items():
        print(f"{file}:1: skipped: {why}", file=sys.stderr)


# Where a command writes its report, and which report it replaces there.


def report_folder(name: str, out: str | None, kind: str = "") -> Path:
    """``out`` if given; else a folder below ``reports``, named after the experiment and the kind of report."""
    if out == "":
        raise ArchsimError("--out: an empty name; expected a folder")
    if out is not None:
        return Path(out)
    return Path("reports") / (f"{name}-{kind}" if kind else name)


def print_replaced(folder: Path, experiment: Mapping[str, Any] | None) -> None:
    """Warn on stderr that the folder has a report of another ``experiment`` (None: a report without manifest)."""
    try:
        there = yaml.read_yaml(folder / MANIFEST).data
    except SpecError:
        return
    there.pop(MANIFEST_KEY, None)
    if experiment is not None and there == yaml.parse_yaml(yaml.dump_yaml(experiment), MANIFEST).data:
        return
    same_name = experiment is not None and there.get("name") == experiment["name"]
    settings = ", which had other settings" if same_name else ""
    print(f"This replaces the report of {there.get('name')} in {folder}{settings}.", file=sys.stderr)
