"""Notes on the model of a run: what of it is not modelled, and what it was taken to keep in HBM."""

from collections.abc import Iterable, Mapping
from typing import Any

from archsim.runs.run import LONGEST


def memory_notes(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence for each model of which something is not modelled, or that does not say what it keeps beside experts,
    and where the KV cache was left out. rows: of results.
    """
    rows = list(rows)
    odd = {str(row.get("model")): str(row["approximate"]) for row in rows if row.get("approximate")}
    notes = [f"{model} is approximate: {what}" for model, what in odd.items()]
    notes += dict.fromkeys(str(row["attention_law"]) for row in rows if row.get("attention_law"))
    if any(row.get("context_tokens") == 0 for row in rows):
        notes.append("HBM holds no KV cache: workload.context is 0; real requests leave less room for copies")
    derived = [row for row in rows if row.get("context_from") == LONGEST]
    if derived:
        most = max(int(row["context_tokens"]) for row in derived)
        notes.append(
            f"workload.context is not given: every request is taken to hold as much KV cache as the longest of its "
            f"batch has tokens in the trace or preset, prompt and decode steps (up to {most:,})"
        )
    lacking = dict.fromkeys(str(row.get("model")) for row in rows if row.get("hbm_all_counted") == 0)
    notes += [
        f"HBM of {model} holds experts alone: without attention, vocabulary and dense_ffn, its KV cache and attention "
        f"are not counted"
        for model in lacking
    ]
    return notes
