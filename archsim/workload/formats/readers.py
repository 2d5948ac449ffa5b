"""Open a recorded trace, whatever its layout; large ones are converted once."""

import hashlib
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from archsim.base import errors, host, own_code
from archsim.specs.model import ModelSpec
from archsim.workload import store, trace
from archsim.workload import trace as checks
from archsim.workload.formats import jsonl
from archsim.workload.formats.json_tree import (
    ARCHIVES,
    archive_items,
    archive_name,
    request_files,
    tree_items,
    tree_name,
)
from archsim.workload.formats.npz import npz_items, npz_name, read_npz
from archsim.workload.formats.requests import Item, RequestRows, joined_scores, request_rows
from archsim.workload.formats.source_destination import is_matrices, matrix_items
from archsim.workload.loads import holds_loads, load_files, loads_name, read_all_loads
from archsim.workload.trace import Trace

# ---- registry
# Formats of token-level routing: one row each, shared by ``open_trace`` and imports.
#
# A user's own format is a function ``package.module:function`` (``workload.reader`` of an experiment, ``--reader`` of
# an import): ``(path: pathlib.Path, model: ModelSpec) -> iterable of (experts, prompt_tokens)``, one pair per request;
# ``experts``: integers [token, MoE layer, rank], prompt first; ``prompt_tokens``: number of prompt tokens. A third
# member of a pair are the gate's scores, numbers of the shape of ``experts``.


@dataclass(frozen=True)
class RoutingFormat:
    """One layout of token-level routing.

    ``matches``: whether a path looks like it. ``model_name``: the model that a source names, or ''. ``items``: its
    requests, still to be read; both raise TraceError.
    """

    name: str
    matches: Callable[[Path], bool]
    model_name: Callable[[Path], str]
    items: Callable[[Path, ModelSpec], Iterator[Item]]


def _is_tree(path: Path) -> bool:
    return path.is_dir() or path.suffix == ".json"


FORMATS = (
    RoutingFormat(
        "response of an engine", jsonl.is_response, jsonl.response_name, lambda path, model: jsonl.response_items(path)
    ),
    RoutingFormat("JSON tree", _is_tree, tree_name, lambda path, model: tree_items(path)),
    RoutingFormat(
        "archive of a JSON tree",
        lambda path: path.name.endswith(ARCHIVES),
        archive_name,
        lambda path, model: archive_items(path),
    ),
    RoutingFormat("routed experts in npz", jsonl.is_routed_npz, npz_name, jsonl.routed_npz_items),
    RoutingFormat("npz", lambda path: path.suffix == ".npz", npz_name, npz_items),
    RoutingFormat("matrices of assignments", is_matrices, lambda path: "", matrix_items),
    RoutingFormat(
        "JSON lines",
        lambda path: path.suffix == ".jsonl",
        jsonl.jsonl_name,
        lambda path, model: jsonl.jsonl_items(path),
    ),
)


def format_of(path: Path, reader: str | None = None) -> RoutingFormat:
    """The format of a source, or that of a user's own ``reader``. Raises TraceError if none matches."""
    if reader is not None:
        return own_format(reader)
    found = next((each for each in FORMATS if each.matches(path)), None)
    if found is None:
        raise errors.TraceError(
            f"{path}: unknown format; expected tokens: a directory or archive ({', '.join(ARCHIVES)}) of requests, "
            ".json, .jsonl or .npz; or expert loads: .pt, .json, .csv, .npy, .npz, .jsonl, rank*.safetensors"
            " (or name your own reader: package.module:function)"
        )
    return found


def own_format(reader: str) -> RoutingFormat:
    """The format that the function ``package.module:function`` reads. Raises TraceError if it cannot be imported."""
    try:
        function = own_code.import_function(reader)
    except ValueError as error:
        raise errors.TraceError(f"reader: {error}") from None
    return RoutingFormat(reader, lambda path: True, lambda path: "", partial(_own_items, reader, function))


def _own_items(reader: str, function: Callable[..., Iterable[Any]], path: Path, model: ModelSpec) -> Iterator[Item]:
    number = 0
    for given in _called(reader, path, function, model):
        where = f"{path}: request {number} of {reader}"
        if not isinstance(given, tuple) or len(given) not in (2, 3):
            raise errors.TraceError(f"{where}: is {type(given).__name__}; expected a pair (experts, prompt_tokens)")
        experts, prompt_tokens, scores = np.asarray(given[0]), given[1], np.asarray(given[2]) if given[2:] else None
        rows = partial(_own_rows, where, experts, prompt_tokens, scores)
        yield Item(where, "", path.stem, number, experts.nbytes, rows)
        number += 1
    if number == 0:
        raise errors.TraceError(f"{path}: {reader} yields no requests")


def _called(reader: str, path: Path, function: Callable[..., Iterable[Any]], model: ModelSpec) -> Iterator[Any]:
    """What a user's function yields; an exception becomes a TraceError with its type and place."""
    try:
        yield from function(path, model)
    except errors.ArchsimError:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise errors.TraceError(
            f"{path}: {reader}: {type(error).__name__}: {error} ({place.filename}:{place.lineno})"
        ) from error


def _own_rows(
    where: str,
    experts: np.ndarray,
    prompt_tokens: Any,
    scores: np.ndarray | None,
    model: ModelSpec,
    layer_ids: np.ndarray | None,
) -> RequestRows:
    layers = np.array(model.moe_layer_ids, np.int32)
    return request_rows(where, model, experts, prompt_tokens, layers, layer_ids, scores)


def assembled(items: Iterable[Item], model: ModelSpec, name: str, source: str) -> Trace:
    """A trace of all requests, in order. Raises TraceError for the first malformed one."""
    experts, iterations, subjects, scores = [], [], [], []
    layer_ids: np.ndarray | None = None
    for item in items:
        request = item.read(model, layer_ids)
        layer_ids = request.layer_ids
        experts.append(request.experts)
        iterations.append(request.iteration)
        subjects.append(item.subject)
        scores.append(request.scores)
    names = tuple(dict.fromkeys(subjects))
    assert layer_ids is not None, "there are requests"
    return Trace(
        experts=np.concatenate(experts),
        request_offsets=np.concatenate([[0], np.cumsum([len(rows) for rows in experts])]).astype(np.int64),
        iteration=np.concatenate(iterations),
        layer_ids=layer_ids,
        num_experts=model.experts,
        top_k=model.top_k,
        model=name,
        source=source,
        request_subject=np.array([names.index(subject) for subject in subjects], np.int16),
        subject_names=names,
        scores=joined_scores(source, scores),
    )


# ---- readers

CACHED_BYTES = 4 << 20
"""Sources of at least this size are cached as columns; smaller ones are read again, within a second."""
SETTLED_S = 2.0
"""Files unchanged for this long are identified by size and modification time: file-system timestamps are at most this
coarse.
"""


def open_trace(path: str | Path, model: ModelSpec, reader: str | None = None) -> Trace:
    """Open a trace store, or a file or directory of any format that has a reader; check it
    against a model.

    reader: a user's own format. A directory may be any level of ``<org>/<model>/<dataset>/<subject>/<n>.json``. The
    trace may have fewer layers than the model. Raises TraceError naming file, request, iteration and layer.
    """
    location = Path(path)
    if not location.exists():
        raise errors.TraceError(f"{location}: no such file or directory{_beside(location)}")
    checks.refuse_special(location)
    if store.is_store(location):
        return store.open_stored(location, model, str(path))
    if (location / store.DRAFTS).is_dir():
        raise errors.TraceError(
            f"{location}: an import that was interrupted; repeat the same `archsim trace import` to resume it"
        )
    if reader is not None:
        return _assembled(location, model, str(path), reader)  # never cached: the cache cannot see changes in user code
    read, files = _reader_of(location)
    if sum(file.stat().st_size for file in files) < CACHED_BYTES:
        return read(location, model, str(path))
    key = store.remembered(_signature(files, model), lambda: _key(files, model))
    trace = store.load(key) or store.store(key, read(location, model, str(path)))
    return replace(trace, source=str(path))


def _reader_of(location: Path) -> tuple[Callable[[Path, ModelSpec, str], Trace], list[Path]]:
    """The reader of a source, and its files. npz has its own reader, by columns."""
    if location.suffix == ".npz" and location.is_file() and not jsonl.is_routed_npz(location):
        return read_npz, [location]
    if location.is_dir() or (location.suffix == ".json" and not jsonl.is_response(location)):
        return _assembled, request_files(location)
    format_of(location)
    return _assembled, [location]


def _assembled(location: Path, model: ModelSpec, source: str, reader: str | None = None) -> Trace:
    found = format_of(location, reader)
    name = found.model_name(location)
    checks.check_name(source, model, name)
    return assembled(found.items(location, model), model, name, source)


def _signature(files: list[Path], model: ModelSpec) -> str | None:
    """A key of files by path, size and modification time; None if one changed so recently that a further change could
    go unnoticed.
    """
    digest = hashlib.sha256(repr(_shape(model)).encode())
    for file in files:
        status = file.stat()
        if time.time() - status.st_mtime < SETTLED_S:
            return None
        digest.update(f"{file.absolute()} {status.st_size} {status.st_mtime_ns} ".encode())
    return digest.hexdigest()


def _key(files: list[Path], model: ModelSpec) -> str:
    """A key of the files' content and of the model it is checked against."""
    digest = hashlib.sha256(repr(_shape(model)).encode())
    for file in files:
        with file.open("rb") as stream:
            digest.update(f"{'/'.join(file.absolute().parts[-5:])} ".encode())
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _shape(model: ModelSpec) -> tuple:
    return model.name, model.aliases, model.layers, model.moe_layer_ids, model.experts, model.top_k


def _beside(location: Path) -> str:
    """A hint at existing names near a mistyped path."""
    parent = next(parent for parent in location.absolute().parents if parent.exists())
    missing = location.absolute().relative_to(parent).parts[0]
    names = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
    return f": {parent} has no {missing!r}{errors.did_you_mean(missing, names)}"


# ---- importing
# An import: sources to batches, batches to drafts in parallel, drafts to a store.
#
# A draft is a file of rows named after its source, so an interrupted import resumes where it stopped. The store
# appears when everything has been read.

STOP = "stop"
_DRAFT_LAYOUT = 2


class ImportWatcher(Protocol):
    def read(self, requests: int, size: int) -> None:
        """Called when further requests have been read; ``size`` is in bytes."""

    def problem(self, message: str) -> None:
        """Called when something was skipped."""


@dataclass
class ImportReport:
    """The outcome of an import. kept: requests found in drafts of an earlier attempt. size: bytes read."""

    requests: int = 0
    tokens: int = 0
    size: int = 0
    kept: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Draft:
    entries: list[store.Entry]
    layer_ids: np.ndarray | None
    problems: list[str]
    size: int
    kept: bool


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

    model: the routing is checked against it; None: the shipped model that the first source names. on_error: stop at
    the first damaged request or file, or skip it. reader: a user's own format.
    """
    for source in sources:
        if not source.exists():
            raise errors.TraceError(f"{source}: no such file or directory")
        trace.refuse_special(source)
    formats = _formats(sources, reader)
    names = [
        each.model_name(source) if each else loads_name(source) for source, each in zip(sources, formats, strict=True)
    ]
    model = model or _known_model(sources[0], names[0])
    for source, name in zip(sources, names, strict=True):
        trace.check_name(str(source), model, name)
        if name and names[0] and name != names[0] and not all(trace.is_named(model, each) for each in (name, names[0])):
            raise errors.TraceError(f"{source}: the trace is of {name}, that of {sources[0]} is of {names[0]}")
    with store.writing(out, replace):
        if formats[0] is None:
            return _import_loads(sources, out, model, names[0], watcher)
        pairs = [(source, each) for source, each in zip(sources, formats, strict=True) if each is not None]
        return _import_tokens(pairs, out, model, names[0], jobs, on_error, watcher)


def _formats(sources: Sequence[Path], reader: str | None) -> list[RoutingFormat | None]:
    """The format of every source; None: it holds expert loads. Raises TraceError for one that is unknown, or a
    mixture.
    """
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
    found = [model for model in trace.shipped_models() if name and trace.is_named(model, name)]
    if len(found) != 1:
        named = f"names the model {name!r}, which is not a shipped model" if name else "does not name its model"
        raise errors.TraceError(f"{source}: {named}. Give --model NAME or a model file")
    return found[0]


def _import_loads(sources, out: Path, model: ModelSpec, name: str, watcher: ImportWatcher) -> ImportReport:
    loads = read_all_loads(sources, model)
    store.write_loads(out, store.Shape.of(model, name, loads.layer_ids), loads)
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
    drafts = out / store.DRAFTS
    drafts.mkdir(exist_ok=True)
    report, entries = ImportReport(), []
    problems = report.problems
    items = chain.from_iterable(
        _guarded(each.items(source, model), on_error, problems, watcher) for source, each in sources
    )
    batches = store.in_batches(items, attrgetter("size"), BATCH_BYTES)
    layer_ids = None

    def read(batch: list[Item]) -> _Draft:
        return _draft(batch, drafts, model, layer_ids, on_error)

    def finished(draft: _Draft) -> None:
        entries.extend(draft.entries)
        report.size += draft.size
        report.kept += len(draft.entries) if draft.kept else 0
        for message in draft.problems:
            problems.append(message)
            watcher.problem(message)
        watcher.read(len(draft.entries), draft.size)

    for batch in batches:  # until one shows which layers exist; the others must have the same
        draft = read(batch)
        finished(draft)
        if draft.layer_ids is not None:
            layer_ids = draft.layer_ids
            break
    for draft in host.in_order(jobs, read, batches):
        finished(draft)
    if not entries:
        raise errors.TraceError(
            f"{sources[0][0]}: no request could be read; {len(problems)} problem(s), the first: {problems[0]}"
        )
    store.write_tokens(out, store.Shape.of(model, name, layer_ids), entries, jobs)
    report.requests, report.tokens = len(entries), sum(entry.rows for entry in entries)
    return report


def _guarded(items: Iterator[Item], on_error: str, problems: list[str], watcher: ImportWatcher) -> Iterator[Item]:
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
    columns, facts = store.read_frames(file, frozenset())
    if facts["problems"] and on_error == STOP:
        raise errors.TraceError(facts["problems"][0])
    entries, first = [], 0
    for dataset, subject, number, rows, prefill_rows in facts["requests"]:
        entries.append(store.Entry(dataset, subject, number, file, first, rows, prefill_rows))
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
        columns = store.row_columns(experts, iteration, model.experts, scores)
    layers = [] if layer_ids is None else layer_ids.tolist()
    store.write_frames(file, columns, {"requests": requests, "layer_ids": layers, "problems": problems})


def _source_key(batch: list[Item], model: ModelSpec, layer_ids: np.ndarray | None) -> str:
    """A key of a draft's sources: files by path, size and modification time."""
    shape = (_DRAFT_LAYOUT, model.layers, model.moe_layer_ids, model.experts, model.top_k)
    digest = hashlib.sha256(repr((shape, None if layer_ids is None else layer_ids.tolist())).encode())
    for item in batch:
        file = Path(item.where.partition(": ")[0])
        there = file if file.exists() else file.parent  # a dangling link
        digest.update(f"{item.where} {item.size} {there.stat().st_mtime_ns} ".encode())
    return digest.hexdigest()
