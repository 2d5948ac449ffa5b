"""Reads a whole store and compares its checksums and content with the manifest."""

import hashlib

from archsim.base.errors import TraceError
from archsim.workload.store.checking import check_rows
from archsim.workload.store.store import TOKENS, Store, rows_of


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
            columns = rows_of(file)
            shape = (about["tokens"], len(store.shape.layer_ids), store.shape.top_k)
            check_rows(str(file), columns["experts"], columns["iteration"], shape, store.shape.num_experts)
        store.trace(str(store.path))
