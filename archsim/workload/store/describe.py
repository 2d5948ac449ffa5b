"""What a store holds, as text."""

from collections import Counter

from archsim.workload.checks import span
from archsim.workload.store.store import TOKENS, Store, rows_of

_SHOWN = 12  # subjects or matrices


def facts_of(store: Store) -> dict[str, str]:
    """Name → text: model, layers, experts, then of token-level stores requests, tokens, size; of loads, its matrices."""  # noqa: E501
    shape, manifest = store.shape, store.manifest
    facts = {
        "store": str(store.path),
        "model": shape.model,
        "layers": f"{len(shape.layer_ids)} of {shape.layers}: {span(shape.layer_ids)}",
        "experts": f"top-{shape.top_k} of {shape.num_experts}",
    }
    if store.kind == TOKENS:
        size_bytes = sum(about["bytes"] for about in store.files)
        decode = manifest["tokens"] - manifest["prefill_tokens"]
        facts["requests"] = f"{manifest['requests']:,}"
        facts["tokens"] = f"{manifest['tokens']:,}: {manifest['prefill_tokens']:,} prefill, {decode:,} decode"
        facts["size"] = f"{size_bytes / 1e6:,.3f} MB in {len(store.files)} files"
        facts["subjects"] = _subjects(store)
    else:
        columns, about = store.loads()
        facts["matrices"] = str(len(about["names"]))
        for name, counts in list(zip(about["names"], columns["counts"], strict=True))[:_SHOWN]:
            facts[f"  {name}"] = f"{counts[0].sum() / shape.top_k:,.0f} tokens"
        if len(about["names"]) > _SHOWN:
            facts["  …"] = f"{len(about['names']) - _SHOWN} more"
    return facts | {"digest": store.digest}


def head_of(store: Store, rows: int) -> list[str]:
    """A line for each of the first ``rows`` tokens: request, iteration, expert ids by layer. Raises TraceError."""
    store.require(TOKENS)
    lines: list[str] = []
    for entry in store.entries:
        left = rows - len(lines)
        if left <= 0:
            break
        columns = rows_of(entry.file, store.shape)
        for row in range(entry.first, entry.first + min(left, entry.rows)):
            ids = "  ".join(
                f"{layer}: {' '.join(map(str, ranks))}"
                for layer, ranks in zip(store.shape.layer_ids, columns["experts"][row].tolist(), strict=True)
            )
            lines.append(f"{entry.name} iteration {columns['iteration'][row]}  {ids}")
    return lines


def _subjects(store: Store) -> str:
    counted = Counter(entry.subject for entry in store.entries)
    shown = [f"{subject or '(none)'} {requests}" for subject, requests in list(counted.items())[:_SHOWN]]
    more = f", … {len(counted) - _SHOWN} more" if len(counted) > _SHOWN else ""
    return ", ".join(shown) + more
