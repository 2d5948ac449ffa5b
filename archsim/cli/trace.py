"""What ``archsim trace`` does with stores: import, show, cut, put together; calls the API and prints."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from archsim.cli.arguments import natural, positive
from archsim.cli.trace_patterns import add_pattern_commands

OK, INTERRUPTED = 0, 130
_SHOWN = 12  # subjects of `info`
_EVERY_S = 5.0  # between plain lines


def add_trace_commands(commands: argparse._SubParsersAction) -> None:
    """The parsers of this module and of `archsim.cli.trace_patterns`, below ``archsim trace``."""
    add_pattern_commands(commands)
    importing = commands.add_parser("import", help="read recorded routing into a store")
    importing.add_argument(
        "sources",
        nargs="+",
        metavar="SRC",
        help="directory or .tar.gz of JSON requests, .npz, .jsonl; or expert loads: .json, .pt (SGLang), .csv, .npz",
    )
    _add_out(importing)
    importing.add_argument("--model", metavar="NAME", help="model by name or file (default: the one that SRC names)")
    importing.add_argument("--reader", metavar="MODULE:FUNCTION", help="a format of your own (docs/traces.md)")
    importing.add_argument(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help="at damaged data: stop and import nothing (default), or report it and leave it out",
    )
    importing.set_defaults(command=_import)

    info = commands.add_parser("info", help="what a store holds")
    info.add_argument("store", metavar="STORE")
    info.add_argument("--verify", action="store_true", help="read all of it and compare every checksum")
    info.set_defaults(command=_info)

    head = commands.add_parser("head", help="the first rows of a store")
    head.add_argument("store", metavar="STORE")
    head.add_argument("-n", dest="rows", type=natural, default=5, metavar="N", help="tokens (default: 5)")
    head.set_defaults(command=_head)

    part = commands.add_parser("slice", help="a store of some of the requests of another")
    part.add_argument("store", metavar="STORE")
    part.add_argument("--requests", type=_span, default=(0, None), metavar="A:B", help="from number A to before B")
    part.add_argument("--subject", dest="subjects", action="append", default=[], metavar="NAME", help="may be repeated")
    _add_out(part)
    part.set_defaults(command=_slice)

    merge = commands.add_parser("merge", help="a store of all requests of several")
    merge.add_argument("stores", nargs="+", metavar="STORE")
    _add_out(merge)
    merge.set_defaults(command=_merge)

    sample = commands.add_parser("sample", help="a store of requests drawn at random, each at most once")
    sample.add_argument("store", metavar="STORE")
    sample.add_argument("-n", dest="requests", type=positive, required=True, metavar="N", help="how many")
    sample.add_argument("--seed", type=natural, default=0, metavar="N")
    _add_out(sample)
    sample.set_defaults(command=_sample)


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the store")
    parser.add_argument(
        "--replace", action="store_true", help="replace the store that is there, once all has been read"
    )
    parser.add_argument("--jobs", type=positive, metavar="N", help="threads (default: number of cores)")


def _span(text: str) -> tuple[int, int | None]:
    first, colon, last = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r}: expected A:B, as in 0:100, :100 or 100:")
    return natural(first or "0"), natural(last) if last else None


def _import(arguments: argparse.Namespace) -> int:
    from archsim.specs.loading.library import load_model
    from archsim.workload.formats.importing import import_sources

    model = load_model(arguments.model) if arguments.model else None
    sources, out, jobs = [Path(source) for source in arguments.sources], Path(arguments.out), _jobs(arguments)
    started = time.perf_counter()
    try:
        with _watcher() as watcher:
            report = import_sources(sources, out, model, jobs, arguments.on_error, watcher, arguments.replace, arguments.reader)
    except KeyboardInterrupt:
        print("\ninterrupted; what has been read is kept: the same command goes on", file=sys.stderr)
        return INTERRUPTED
    seconds = time.perf_counter() - started
    kept = f", {report.kept} of them read before" if report.kept else ""
    print(f"{report.requests} requests{kept}, {report.size / 1e6:,.1f} MB in {seconds:.1f} s", file=sys.stderr)
    if report.problems:
        print(f"{len(report.problems)} damaged: left out, see above", file=sys.stderr)
    return _print_info(arguments.out)


def _info(arguments: argparse.Namespace) -> int:
    if arguments.verify:
        from archsim.workload.store.store import open_store
        from archsim.workload.store.verify import verify

        verify(open_store(arguments.store))
        print("all checksums match")
    return _print_info(arguments.store)


def _print_info(path: str) -> int:
    from archsim.workload.checks import span
    from archsim.workload.store.store import TOKENS, open_store

    store = open_store(path)
    shape, manifest = store.shape, store.manifest
    layers = f"{len(shape.layer_ids)} of {shape.layers}: {span(shape.layer_ids)}"
    facts = {
        "store": path,
        "model": shape.model,
        "layers": layers,
        "experts": f"top-{shape.top_k} of {shape.num_experts}",
    }
    if store.kind == TOKENS:
        size = sum(about["bytes"] for about in store.files)
        decode = manifest["tokens"] - manifest["prefill_tokens"]
        facts["requests"] = f"{manifest['requests']:,}"
        facts["tokens"] = f"{manifest['tokens']:,}: {manifest['prefill_tokens']:,} prefill, {decode:,} decode"
        facts["size"] = f"{size / 1e6:,.3f} MB in {len(store.files)} files"
        facts["subjects"] = _subjects(store)
    else:
        columns, about = store.loads()
        facts["matrices"] = str(len(about["names"]))
        for name, counts in zip(about["names"], columns["counts"], strict=True):
            facts[f"  {name}"] = f"{counts[0].sum() // shape.top_k:,} tokens"
    facts["digest"] = store.digest
    for name, value in facts.items():
        print(f"{name:<9} {value}")
    return OK


def _subjects(store) -> str:
    counted = Counter(entry.subject for entry in store.entries)
    shown = [f"{subject or '(none)'} {requests}" for subject, requests in list(counted.items())[:_SHOWN]]
    more = f", … {len(counted) - _SHOWN} more" if len(counted) > _SHOWN else ""
    return ", ".join(shown) + more


def _head(arguments: argparse.Namespace) -> int:
    from archsim.workload.store.store import TOKENS, open_store, rows_of

    store = open_store(arguments.store)
    store.require(TOKENS)
    left = arguments.rows
    for entry in store.entries:
        if left <= 0:
            break
        columns = rows_of(entry.file)
        for row in range(entry.first, entry.first + min(left, entry.rows)):
            ids = "  ".join(
                f"{layer}: {' '.join(map(str, ranks))}"
                for layer, ranks in zip(store.shape.layer_ids, columns["experts"][row].tolist(), strict=True)
            )
            print(f"{entry.name} iteration {columns['iteration'][row]}  {ids}")
        left -= entry.rows
    return OK


def _slice(arguments: argparse.Namespace) -> int:
    from archsim.workload.store.select import slice_entries, write_selection
    from archsim.workload.store.store import open_store

    store = open_store(arguments.store)
    entries = slice_entries(store, *arguments.requests, arguments.subjects)
    write_selection(store, entries, Path(arguments.out), _jobs(arguments), arguments.replace)
    return _print_info(arguments.out)


def _sample(arguments: argparse.Namespace) -> int:
    from archsim.workload.store.select import sample_entries, write_selection
    from archsim.workload.store.store import open_store

    store = open_store(arguments.store)
    entries = sample_entries(store, arguments.requests, arguments.seed)
    write_selection(store, entries, Path(arguments.out), _jobs(arguments), arguments.replace)
    return _print_info(arguments.out)


def _merge(arguments: argparse.Namespace) -> int:
    from archsim.workload.store.select import merge

    merge([Path(store) for store in arguments.stores], Path(arguments.out), _jobs(arguments), arguments.replace)
    return _print_info(arguments.out)


def _jobs(arguments: argparse.Namespace) -> int:
    from archsim.base.cores import available_cores

    return arguments.jobs or available_cores()


class _Lines:
    """A plain line now and then."""

    def __init__(self) -> None:
        self._requests = self._size = 0
        self._next = time.monotonic() + _EVERY_S

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        pass

    def read(self, requests: int, size: int) -> None:
        self._requests += requests
        self._size += size
        if time.monotonic() > self._next:
            self._next = time.monotonic() + _EVERY_S
            print(f"{self._requests:,} requests, {self._size / 1e6:,.0f} MB", file=sys.stderr, flush=True)

    def problem(self, message: str) -> None:
        print(f"left out: {message}", file=sys.stderr, flush=True)


class _Counter(_Lines):
    """Counts that go on in one line of a terminal."""

    def __init__(self, console) -> None:
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TransferSpeedColumn

        super().__init__()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TransferSpeedColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._progress.add_task("reading", total=None)

    def __enter__(self):
        self._progress.start()
        return self

    def __exit__(self, *error) -> None:
        self._progress.stop()

    def read(self, requests: int, size: int) -> None:
        self._requests += requests
        self._size += size
        self._progress.update(self._task, completed=self._size, description=f"{self._requests:,} requests")

    def problem(self, message: str) -> None:
        self._progress.console.print(f"left out: {message}", markup=False)


def _watcher() -> _Lines:
    from rich.console import Console

    console = Console(stderr=True)
    return _Counter(console) if console.is_terminal else _Lines()
