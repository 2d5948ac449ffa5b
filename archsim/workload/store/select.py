"""Stores built from the requests of others: a slice of one, several merged, or a random sample."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from archsim.base.errors import TraceError
from archsim.base.nearest import did_you_mean
from archsim.workload.store.store import TOKENS, Entry, Store, open_store
from archsim.workload.store.store_writer import write_tokens, writing


def slice_entries(store: Store, first: int, last: int | None, subjects: Sequence[str]) -> list[Entry]:
    """Requests first … last − 1 of the store (counted in its order), of some subjects if any are named. Raises
    TraceError.
    """
    known = {entry.subject for entry in store.entries}
    for subject in subjects:
        if subject not in known:
            raise TraceError(f"{store.path}: no requests of subject {subject!r}{did_you_mean(subject, known)}")
    return [entry for entry in store.entries[first:last] if not subjects or entry.subject in subjects]


def sample_entries(store: Store, requests: int, seed: int) -> list[Entry]:
    """The given number of requests, drawn without replacement by ``numpy.random.default_rng(seed)``. Raises
    TraceError.
    """
    if requests > len(store.entries):
        raise TraceError(f"{store.path}: holds {len(store.entries)} requests; {requests} cannot be drawn from it")
    chosen = np.random.default_rng(seed).choice(len(store.entries), requests, replace=False)
    return [store.entries[r] for r in sorted(chosen.tolist())]


def write_selection(store: Store, entries: Sequence[Entry], out: Path, jobs: int, replace: bool = False) -> None:
    """Make `out` a store of some requests of another."""
    store.require(TOKENS)
    with writing(out, replace):
        write_tokens(out, store.shape, entries, jobs)


def merge(paths: Sequence[Path], out: Path, jobs: int, overwrite: bool = False) -> None:
    """Make `out` a store of all requests of several, of one model and the same layers. Raises TraceError."""
    stores = [open_store(path) for path in paths]
    for store in stores:
        store.require(TOKENS)
        mine, theirs = (replace(each.shape, model="") for each in (store, stores[0]))
        if mine != theirs or store.shape.model.casefold() != stores[0].shape.model.casefold():
            raise TraceError(
                f"{store.path}: is of {_named(store)}, {stores[0].path} of {_named(stores[0])}; expected the same"
            )
    with writing(out, overwrite):
        write_tokens(out, stores[0].shape, [entry for store in stores for entry in store.entries], jobs)


def _named(store: Store) -> str:
    shape = store.shape
    return f"{shape.model} ({len(shape.layer_ids)} layers, top-{shape.top_k} of {shape.num_experts})"
