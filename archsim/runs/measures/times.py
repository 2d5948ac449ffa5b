"""How long a run took, the rates that follow, and what its critical path goes to."""

# ruff: noqa: E501  (one row a column: a table is read across)

from __future__ import annotations

from typing import Any

import numpy as np

from archsim.base.causes import CAUSES, Cause
from archsim.base.sums import sum
from archsim.base.tables import INTEGER, REAL, TEXT
from archsim.base.units import NS_PER_S
from archsim.runs.finished import Column, Finished, measures

TIMES: tuple[Column, ...] = (
    Column("prefill_ns", REAL, "ns", "time of the prefill; 0 where none ran, or a warm-up follows it", "prefill"),
    Column("decode_ns", REAL, "ns", "time of all decode steps", "decode"),
    Column("throughput_tokens_per_s", REAL, "tokens/s", "decode throughput of the layers that ran, as the assumption throughput counts it; tables show tokens_per_s; empty without decode", optional=True),
    Column("events", INTEGER, "events", "events of the event engine, or steps of the analytical engine's walk", "events"),
    Column("decode_ns_low", REAL, "ns", "time of decode with GEMMs at the 5 % residual of their calibration; empty without one",
           "decode, low", optional=True, after="decode_ns"),
    Column("decode_ns_high", REAL, "ns", "time of decode with GEMMs at the 95 % residual of their calibration; empty without one",
           "decode, high", optional=True, after="decode_ns_low"),
    Column("tokens_per_s", REAL, "tokens/s", "tokens that decode generates, divided by its time and scaled to all MoE layers of the model; empty without decode", "throughput", optional=True, after="copies_extrapolated"),
    Column("decode_step_ns", REAL, "ns", "mean time of a decode step through all MoE layers of the model; empty without decode", "a decode step", optional=True, after="tokens_per_s"),
    Column("decode_batch_token_ns", REAL, "ns", "time of a decode step divided by the requests of its batch, which is not the TPOT of a request; empty without decode", "time per token of the batch", optional=True, after="decode_step_ns"),
    Column("layers_error", REAL, "share", "relative standard error of times that are scaled from the layers that ran to all MoE layers, from the spread between layers; 0 where all ran, empty for one layer", optional=True),
)  # fmt: skip


@measures(TIMES)
def times(run: Finished) -> dict[str, Any]:
    """Times of the run and rates that follow from them. ``decode_ns_low`` and ``_high`` shift the GEMMs on the critical
    path, which stays the same, to their 5 % and 95 % residuals.
    """
    outcome, assumptions = run.outcome, run.run.assumptions
    nominal = run.run.batch * len(run.counted)
    tokens = nominal if assumptions.throughput == "nominal" else int(run.demand.tokens_of_step[run.decode].sum())
    residual_ns = outcome.decode_residual_ns
    return {
        "prefill_ns": outcome.prefill_ns,
        "decode_ns": outcome.decode_ns,
        "decode_ns_low": None if residual_ns is None else max(outcome.decode_ns - residual_ns[0], 0.0),
        "decode_ns_high": None if residual_ns is None else outcome.decode_ns + residual_ns[1],
        "throughput_tokens_per_s": tokens / (outcome.decode_ns / NS_PER_S) if outcome.decode_ns else None,
        **decode_rates(run),
        "layers_error": _layers_error(run),
        "events": outcome.tally.events[0],
    }


def decode_rates(run: Finished) -> dict[str, Any]:
    """Throughput and times of a step, of all MoE layers of the model, whichever ran; they count the tokens that decode
    generates under every set of assumptions.
    """
    share = run.demand.layers / len(run.run.model.moe_layer_ids)
    tokens = int(run.demand.tokens_of_step[run.decode].sum())
    token_ns = run.outcome.decode_ns / tokens / share if tokens else None
    return {
        "tokens_per_s": NS_PER_S / token_ns if token_ns is not None and np.any(token_ns) else None,
        "decode_step_ns": run.outcome.decode_ns / len(run.decode) / share if len(run.decode) else None,
        "decode_batch_token_ns": token_ns,
    }


def _layers_error(run: Finished) -> float | None:
    """Standard error of the time of all MoE layers of the model that is concluded from those that ran, as a share of
    it: of a mean of n of N layers that are drawn without replacement, s / √n · √(1 − n / N) (Cochran, Sampling
    Techniques, 3rd ed., eq. 2.20), s between the layers' times in decode, else in the prefill.
    """
    share = run.demand.layers / len(run.run.model.moe_layer_ids)
    ns = run.outcome.step_ns[run.decode if len(run.decode) else [0]].sum(axis=0)
    if share >= 1:
        return 0.0
    if len(ns) < 2 or not ns.any():
        return None
    return float(ns.std(ddof=1) / ns.mean() * np.sqrt((1 - share) / len(ns)))


CRITICAL_PATH: tuple[Column, ...] = (
    *(
        Column(f"bound_{cause.column}", REAL, "share", f"time on the critical path that {about.meaning} takes; empty for a run without time", optional=True)
        for cause, about in CAUSES.items()
    ),
    Column("bounded_by", TEXT, "", "which cause has the largest of these shares; empty for a run without time", optional=True),
    Column("bounded_by_margin", REAL, "share", "by how much it is larger than the next one", optional=True),
)  # fmt: skip


@measures(CRITICAL_PATH)
def critical_path(run: Finished) -> dict[str, Any]:
    """What the time of the critical path goes to, and which of its causes takes most; None for a run without time."""
    bound_ns = {cause: float(run.outcome.tally.bound_ns[cause]) for cause in CAUSES}
    bound_ns[Cause.DECISION] = float(run.outcome.decision.exposed_ns.sum())
    every = sum(bound_ns.values())
    shares = {cause.column: ns / every for cause, ns in bound_ns.items()} if every else {}
    first, second = sorted(shares.values(), reverse=True)[:2] if shares else (None, None)
    return {f"bound_{cause.column}": shares.get(cause.column) for cause in CAUSES} | {
        "bounded_by": max(shares, key=shares.__getitem__) if shares else None,
        "bounded_by_margin": None if first is None or second is None else first - second,
    }
