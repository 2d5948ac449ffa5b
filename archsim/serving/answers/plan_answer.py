"""What a served file says: measures of one run, policies beside each other, or the best points of its axes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from archsim.base.answer import Answer, Grid, Part
from archsim.base.errors import sentence
from archsim.serving.answers import page
from archsim.serving.measures import PERCENTILES, number
from archsim.serving.outcome import Outcome
from archsim.serving.serving import room_notes
from archsim.show.units import TIME_UNITS, interval, percent, significant, with_unit

SHOWN = 10  # points that a sentence lists
MOST_POINTS = 30  # rows of a file with axes


def answer_of(served: page.ServedPlan, sampled: bool = False) -> Answer:
    """The first sentence, tables and notes of a served file; with ``sampled``, of its samples, too."""
    rows = [dict(row) for row in served.table.rows]
    for row, outcome in zip(rows, served.outcomes, strict=False):  # none of a file with axes
        row |= {"why_slow": list(outcome.why_slow), "notes": list(outcome.notes)}
    result: dict[str, Any] = {"answer": served.answer, "rows": rows}
    if served.sampled is not None:
        result["sure"] = served.sampled.plain()
    parts: list[Part] = [served.answer] if served.answer else []
    if served.plan.has_axes:
        parts += _points(served)
        notes = [*served.plan.notes(served.table.rows)]
    else:
        first, *others = served.outcomes
        parts += _measures(first, served.sampled is not None)
        if others:
            values = [(each.serving.policy.name, *page.policy_values(each)) for each in served.outcomes]
            parts.append(Grid(("policy",), values, page.POLICY_COLUMNS, title="policies, with the same requests"))
        notes = [*first.notes]
        notes += [f"{each.serving.policy.name}: {said}" for each in others for said in each.unsteady_notes]
    if served.sampled is not None and sampled:
        of_samples = served.sampled.as_answer()
        parts, notes = [*parts, *of_samples.parts[1:]], [*notes, *of_samples.notes]
    return Answer(parts, notes, result)


def _points(served: page.ServedPlan) -> Iterator[Part]:
    ranges = page.ranges_of(served.plan, served.table, served.sampled)
    keys = ("point", *served.plan.first.axes, "policy")
    rows = page.order_rows(served.table.rows)
    cells = [page.cells(row, keys, page.FEW, ranges.get(row["run"], {}))[:-1] for row in rows[:MOST_POINTS]]
    yield Grid(keys, cells, tuple(each for _, each in page.FEW), title=f"{len(rows)} runs, most goodput first")
    if len(rows) > MOST_POINTS:
        yield f"{len(rows) - MOST_POINTS:,} more runs are in results.csv."
    for key, what, why in (
        ("saturated", "saturated", "requests come faster than they end"),
        ("unsteady", "unsteady", "halves differ, a run is short, or a fault came"),
        ("rejected", "incomplete", "requests that are too long are rejected"),
    ):
        points = [str(row["point"]) for row in rows if row[key]]
        if points:
            runs = "1 run is" if len(points) == 1 else f"{len(points)} runs are"
            numbers = ", ".join(points[:SHOWN]) + (", …" if len(points) > SHOWN else "")
            yield f"{runs} {what}, because {why} (point{'' if len(points) == 1 else 's'} {numbers})."
    refused = [row for row in rows if row["refused"]]
    if refused:
        runs = "1 run was" if len(refused) == 1 else f"{len(refused)} runs were"
        yield f"{runs} refused. The first is point {refused[0]['point']}: {sentence(refused[0]['refused'])}"


def _measures(outcome: Outcome, sampled: bool) -> Iterator[Part]:
    """``sampled``: the first sentence has medians of samples, while these are without."""
    measures = outcome.measures
    title = f"{outcome.serving.model.name}, {outcome.deployment.summary}{', without samples' if sampled else ''}"
    yield Grid(("ms",), page.time_rows(outcome), ("mean", *(f"p{each}" for each in PERCENTILES)), title=title)
    values = {
        "requests": f"{measures.requests:,} in {measures.duration_s:,.1f} s, "
        f"{significant(measures.requests_per_s)} per second"
        + (f"; {measures.rejected:,} more are rejected" if measures.rejected else ""),
        "goodput": f"{significant(measures.goodput_per_s)} requests/s; "
        f"{percent(measures.within_slo, 1)} of them are within the limits",
        "output": f"{measures.output_tokens_per_s:,.0f} tokens/s",
        "output per device": f"{measures.output_tokens_per_s_device:,.0f} tokens/s",
        "output per user": f"{number(measures.tokens_per_s_user, '.1f')} tokens/s",
        "KV cache": f"{percent(measures.kv_mean, 1)} in use on average, {percent(measures.kv_peak, 1)} at most",
        "prefix cache": f"{percent(measures.prefix_hits, 1)} of the prompt tokens",
        "preemptions": f"{measures.preemptions:,}",
    }
    if measures.device_w == measures.device_w:  # else it is not estimated
        watts = interval(measures.device_w, measures.device_w_low, measures.device_w_high)
        joules = interval(measures.output_token_j, measures.output_token_j_low, measures.output_token_j_high)
        values |= {
            "power": "{} W per device ({} to {}), without host and cooling".format(*watts),
            "energy": "{} J per output token ({} to {}), its prompt included".format(*joules),
        }
    if outcome.serving.has_traffic:
        values |= {
            "policy": outcome.serving.policy.name,
            "balance of dies": f"{significant(measures.balancedness)} (mean over largest load)",
            "migrations": f"{measures.migrations:,}, which move {measures.moved_bytes / 1e9:,.1f} GB",
            "wait for them": with_unit(measures.stalled_ns, TIME_UNITS),
        }
    yield Grid(("", ""), list(values.items()), has_heads=False)
    yield from room_notes(outcome.serving)
