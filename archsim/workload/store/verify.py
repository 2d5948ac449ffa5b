"""Reads a whole store and compares its checksums and content with the manifest."""

import hashlib

from archsim.base.errors import TraceError
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
            experts = rows_of(file, "experts")["experts"]
            shape = (about["tokens"], len(store.shape.layer_ids), store.shape.top_k)
            if experts.shape != shape or experts.max(initial=0) >= store.shape.num_experts:
                raise TraceError(
                    f"{file}: experts {experts.shape}; expected {shape}, ids below {store.shape.num_experts}"
                )
