"""Reads a whole store and compares its checksums and content with the manifest."""

import hashlib
from functools import partial
from pathlib import Path

from archsim.base.errors import TraceError
from archsim.workload.checks import check_distinct
from archsim.workload.store.store import TOKENS, Store, rows_of


def _place(file: Path, layers: tuple[int, ...], row: int, column: int) -> str:
    return f"{file}: token {row}, layer {layers[column]}"


def verify(store: Store) -> None:
    """Raises TraceError at the first damaged file."""
    for about in store.files:
        file = store.path / about["file"]
        with file.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != about["sha256"]:
                raise TraceError(f"{file}: damaged: its checksum does not match that of the manifest")
    if store.kind == TOKENS:
        for about in store.manifest["rows"]:
            file = store.path / about["file"]
            experts = rows_of(file, store.shape)["experts"]
            check_distinct(str(file), experts, partial(_place, file, store.shape.layer_ids))
        store.trace(str(store.path))
