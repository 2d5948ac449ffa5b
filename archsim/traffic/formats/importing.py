"""An import: sources to batches, batches to drafts in parallel, drafts to a store.

A draft is a file of rows named after its source, so an interrupted import resumes where it stopped. The store
appears when everything has been read.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Protocol

import numpy as np

from archsim.base import errors, host
from archsim.model.spec import ModelSpec
from archsim.traffic import frames, store_writer, trace_checks, trace_store
from archsim.traffic.formats.json_tree import ARCHIVES
from archsim.traffic.formats.load_files import holds_loads, load_files, loads_name, read_all_loads
from archsim.traffic.formats.registry import RoutingFormat, format_of, own_format
from archsim.traffic.formats.requests import Item, RequestRows, joined_scores

STOP = "stop"
_DRAFT_LAYOUT = 2


class ImportWatcher(Protocol):
    def read(self, requests: int, size: int) -> None:
        """Called when further requests have been read; ``size`` is in bytes."""

    def problem(self, message: str) -> None:
        """Called when something was skipped."""


@dataclass
class ImportReport:
    """The outcome of an import."""

    requests: int = 0  # in the store; of loads, matrices
    tokens: int = 0  # rows in the store
    size: int = 0  # bytes read
    kept: int = 0  # requests found in drafts of an earlier attempt
    problems: list[str] = field(default_factory=list)  # messages on what was skipped


@dataclass(frozen=True)
class _Draft:
    entries: list[trace_store.Entry]  # requests in the file of rows
    layer_ids: np.ndarray | None  # int32[layer]; None: no request could be read
    problems: list[str]  # messages on requests that were skipped
    size: int  # bytes of the requests' sources
    kept: bool  # whether an earlier attempt has written it


def import_sources(
    sources: Sequence[Path],
    out: Path,
    model: ModelSpec | None,
    jobs: int,
    on_error: str,
    watcher: ImportWatcher,
    replace: bool,
    reader: str | None = None,
) -> ImportReport:
    """Make `out` a store of the sources' requests. Raises TraceError, and then leaves an existing store unchanged.

    model: checks the routing; None: the shipped one that the first source names. on_error: stop at the first damaged
    request or file, or skip it. reader: a user's own format.
    """
    for source in sources:
        if not source.exists():
            raise errors.TraceError(f"{source}: no such file or directory")
        trace_checks.refuse_special(source)
    formats = _formats(sources, reader)
    names = [
        each.model_name(source) if each else loads_name(source) for source, each in zip(sources, formats, strict=True)
    ]
    model = model or _known_model(sources[0], names[0])
    for source, name in zip(sources, names, strict=True):
        trace_checks.check_name(str(source), model, name)
        if (
            name
            and names[0]
            and name != names[0]
            and not all(trace_checks.is_named(model, each) for each in (name, names[0]))
        ):
            raise errors.TraceError(f"{source}: the trace is of {name}, that of {sources[0]} is of {names[0]}")
    with store_writer.writing(out, replace):
        if formats[0] is None:
            return _import_loads(sources, out, model, names[0], watcher)
        pairs = [(source, each) for source, each in zip(sources, formats, strict=True) if each is not None]
        return _import_tokens(pairs, out, model, names[0], jobs, on_error, watcher)


def _formats(sources: Sequence[Path], reader: str | None) -> list[RoutingFormat | None]:
    """The format of every source; None: expert loads. Raises TraceError for an unknown one, or a mixture."""
    if reader is not None:
        return [own_format(reader)] * len(sources)
    loads = [not source.name.endswith(ARCHIVES) and holds_loads(source) for source in sources]
    formats = [None if each else format_of(source) for source, each in zip(sources, loads, strict=True)]
    if len(set(loads)) > 1:
        raise errors.TraceError(
            f"{sources[loads.index(True)]}: holds expert loads, others hold tokens. Import them separately"
        )
    return formats


def _known_model(source: Path, name: str) -> ModelSpec:
    found = [model for model in trace_checks.shipped_models() if name and trace_checks.is_named(model, name)]
    if len(found) != 1:
        named = f"names the model {name!r}, which is not a shipped model" if name else "does not name its model"
        raise errors.TraceError(f"{source}: {named}. Give --model NAME or a model file")
    return found[0]


def _import_loads(sources, out: Path, model: ModelSpec, name: str, watcher: ImportWatcher) -> ImportReport:
    loads = read_all_loads(sources, model)
    store_writer.write_loads(out, trace_store.Shape.of(model, name, loads.layer_ids), loads)
    size = sum(file.stat().st_size for file in load_files(sources))
    watcher.read(len(loads.names), size)
    return ImportReport(requests=len(loads.names), size=size)


BATCH_BYTES = 16 << 20  # of recorded requests that are read together; memory holds a few batches per job


def _import_tokens(
    sources: list[tuple[Path, RoutingFormat]],
    out: Path,
    model: ModelSpec,
    name: str,
    jobs: int,
    on_error: str,
    watcher: ImportWatcher,
) -> ImportReport:
    for source, _ in sources:
        if passed := sum(1 for _ in source.rglob("*.npz")) if source.is_dir() else 0:
            watcher.problem(
                f"{source}: {passed} .npz {'file' if passed == 1 else 'files'}; only .json requests are read from a "
                f"directory; name the others individually"
            )
    drafts = out / trace_store.DRAFTS
    drafts.mkdir(exist_ok=True)
    report, entries = ImportReport(), []
    problems = report.problems
    items = chain.from_iterable(
        _until_damaged(each.items(source, model), on_error, problems, watcher) for source, each in sources
    )
    batches = store_writer.in_batches(items, attrgetter("size"), BATCH_BYTES)
    layer_ids = None

    def read(batch: list[Item]) -> _Draft:
        return _draft(batch, drafts, model, layer_ids, on_error)

    def finish(draft: _Draft) -> None:
        entries.extend(draft.entries)
        report.size += draft.size
        report.kept += len(draft.entries) if draft.kept else 0
        for message in draft.problems:
            problems.append(message)
            watcher.problem(message)
        watcher.read(len(draft.entries), draft.size)

    for batch in batches:  # until one shows which layers exist; the others must have the same
        draft = read(batch)
        finish(draft)
        if draft.layer_ids is not None:
            layer_ids = draft.layer_ids
            break
    for draft in host.in_order(jobs, read, batches):
        finish(draft)
    if not entries:
        raise errors.TraceError(
            f"{sources[0][0]}: no request could be read; {len(problems)} problem(s), the first: {problems[0]}"
        )
    store_writer.write_tokens(out, trace_store.Shape.of(model, name, layer_ids), entries, jobs)
    report.requests, report.tokens = len(entries), sum(entry.rows for entry in entries)
    return report


def _until_damaged(items: Iterator[Item], on_error: str, problems: list[str], watcher: ImportWatcher) -> Iterator[Item]:
    """The items of a source, up to the first damaged one."""
    try:
        yield from items
    except errors.TraceError as error:
        if on_error == STOP:
            raise
        problems.append(str(error))
        watcher.problem(str(error))


def _draft(batch: list[Item], drafts: Path, model: ModelSpec, layer_ids: np.ndarray | None, on_error: str) -> _Draft:
    """Read a batch into a draft, or find the draft that already holds it."""
    size = sum(item.size for item in batch)
    file = drafts / f"{_source_key(batch, model, layer_ids)}.col"
    kept = file.is_file()
    if not kept:
        _write_draft(file, batch, model, layer_ids, on_error)
    columns, facts = frames.read_frames(file, frozenset())
    if facts["problems"] and on_error == STOP:
        raise errors.TraceError(facts["problems"][0])
    entries, first = [], 0
    for dataset, subject, number, rows, prefill_rows in facts["requests"]:
        entries.append(trace_store.Entry(dataset, subject, number, file, first, rows, prefill_rows))
        first += rows
    found = np.array(facts["layer_ids"], np.int32) if entries else None
    return _Draft(entries, found, facts["problems"], size, kept)


def _write_draft(file: Path, batch: list[Item], model: ModelSpec, layer_ids, on_error: str) -> None:
    found: list[RequestRows] = []
    requests, problems = [], []
    for item in batch:
        try:
            request = item.read(model, layer_ids)
            if not len(request.iteration):
                raise errors.TraceError(f"{item.where}: has no tokens; expected one or more")
        except errors.TraceError as error:
            if on_error == STOP:
                raise
            problems.append(str(error))
            continue
        layer_ids = request.layer_ids
        prefill_rows = int(np.count_nonzero(request.iteration == 0))
        requests.append([item.dataset, item.subject, item.number, len(request.iteration), prefill_rows])
        found.append(request)
    columns = {}
    if found:
        experts = np.concatenate([request.experts for request in found])
        iteration = np.concatenate([request.iteration for request in found])
        scores = joined_scores(batch[0].where, [request.scores for request in found])
        columns = trace_store.row_columns(experts, iteration, model.experts, scores)
    layers = [] if layer_ids is None else layer_ids.tolist()
    frames.write_frames(file, columns, {"requests": requests, "layer_ids": layers, "problems": problems})


def _source_key(batch: list[Item], model: ModelSpec, layer_ids: np.ndarray | None) -> str:
    """A key of a draft's sources: files by path, size and modification time."""
    shape = (_DRAFT_LAYOUT, model.layers, model.moe_layer_ids, model.experts, model.top_k)
    digest = hashlib.sha256(repr((shape, None if layer_ids is None else layer_ids.tolist())).encode())
    for item in batch:
        file = Path(item.where.partition(": ")[0])
        there = file if file.exists() else file.parent  # a dangling link
        digest.update(f"{item.where} {item.size} {there.stat().st_mtime_ns} ".encode())
    return digest.hexdigest()
