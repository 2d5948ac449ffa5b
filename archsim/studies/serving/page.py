"""The page of a serving run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base.files import write_text
from archsim.report.draw.lines import Line, line_panel
from archsim.report.rendering import rendered
from archsim.report.served_claims import judged
from archsim.serving.measures import NS_PER_MS, PERCENTILES, times_ns
from archsim.serving.requests import NS_PER_S
from archsim.serving.serving import Outcome
from archsim.studies.serving.loads import Load

_CURVE = 200  # points of a distribution


def write_page(outcome: Outcome, around: Sequence[Load], folder: Path, policies: Sequence[Outcome] = ()) -> Path:
    """``index.html`` in a folder. Equal runs give equal bytes. ``policies``: outcomes to compare with, the first its
    own.
    """
    target = folder / "index.html"
    write_text(target, rendered("serving.html.j2", context(outcome, around, policies)))
    return target


def context(outcome: Outcome, around: Sequence[Load], policies: Sequence[Outcome] = ()) -> dict[str, Any]:
    """What the template shows."""
    measures, serving = outcome.measures, outcome.serving
    metrics = (("TTFT", measures.ttft), ("TPOT", measures.tpot), ("ITL", measures.itl), ("E2E", measures.e2e))
    rows = [(name, *(f"{each:,.2f}" for each in (spread.mean, *spread.percentiles))) for name, spread in metrics]
    return {
        "model": serving.model.name,
        "system": serving.system.name,
        "engine": serving.spec.engine,
        "scheduler": serving.spec.scheduler.name,
        "devices": outcome.deployment.devices,
        "m": measures,
        "notes": outcome.notes,
        "percentiles": PERCENTILES,
        "rows": rows,
        "policy": serving.policy.name if serving.has_traffic else "",
        "policies": [_policy_row(each, outcome) for each in policies] if len(policies) > 1 else [],
        "over_time": _over_time(outcome),
        "distributions": _distributions(outcome),
        "policy_columns": POLICY_COLUMNS,
        "claims": [each.cells for each in judged(policies)],
        "loads": _loads(outcome, around),
        "around": around,
    }


def _over_time(outcome: Outcome) -> list[tuple[str, str]]:
    series = outcome.served.series
    seconds = (np.arange(len(series)) + 0.5) * outcome.served.bin_ns / NS_PER_S
    found = []
    for title, columns in (
        ("KV blocks in use, %", {"in use": 100 * series[:, 0]}),
        ("Requests", {"running": series[:, 1], "waiting": series[:, 2]}),
        ("Tokens computed a second", {"tokens": series[:, 3]}),
    ):
        lines = [Line(name, tuple(zip(seconds, values, strict=True))) for name, values in columns.items()]
        found.append((title, line_panel(lines, "time, s", title)))
    balance = outcome.served.balance
    if len(balance) > 1:
        line = Line("balance", tuple(zip(balance[:, 0] / NS_PER_S, 100 * balance[:, 1], strict=True)))
        title = "Balance of ranks at the mean decode, %"
        found.append((title, line_panel([line], "time, s", title)))
    return found


POLICY_COLUMNS = (
    *("TTFT ms", "TPOT ms", "ITL p99 ms", "goodput /s", "KV blocks a rank", "balancedness", "migrations", "moved GB"),
    "stalled s",
)


def policy_values(outcome: Outcome) -> tuple[str, ...]:
    """POLICY_COLUMNS of an outcome."""
    m = outcome.measures
    return (
        f"{m.ttft.mean:,.1f}", f"{m.tpot.mean:,.2f}", f"{m.itl.percentiles[-1]:,.1f}", f"{m.goodput_per_s:.3f}",
        f"{outcome.deployment.prefill.pool.kv_blocks:,}", f"{m.balancedness:.3f}", str(m.migrations),
        f"{m.moved_bytes / 1e9:,.1f}", f"{m.stalled_ns / NS_PER_S:.3f}",
    )  # fmt: skip


def _policy_row(outcome: Outcome, shown: Outcome) -> tuple[str, str, tuple[str, ...]]:
    """(name, page, values)."""
    name = outcome.serving.policy.name
    return name, "" if outcome is shown else f"{name}/index.html", policy_values(outcome)


def _distributions(outcome: Outcome) -> list[tuple[str, str]]:
    times, found = times_ns(outcome.served), []
    share = np.linspace(0, 100, _CURVE)
    for name, title in (("ttft", "TTFT, ms"), ("tpot", "TPOT, ms")):
        values = np.percentile(times[name] / NS_PER_MS, share)
        line = Line(title, tuple(zip(values, share, strict=True)))
        found.append(
            (f"Share of requests below, % ({title})", line_panel([line], title, f"share of requests by {title}"))
        )
    return found


def _loads(outcome: Outcome, around: Sequence[Load]) -> list[tuple[str, str]]:
    if len(around) < 2:
        return []
    offered = "clients" if outcome.requests.concurrency else "requests/s offered"
    good = Line("goodput", tuple((each.offered, each.measures.goodput_per_s) for each in around))
    done = Line("throughput", tuple((each.offered, each.measures.requests_per_s) for each in around))
    user = tuple((each.measures.tokens_per_s_user, each.measures.output_tokens_per_s_device) for each in around)
    return [
        ("Requests a second", line_panel([good, done], offered, "requests a second")),
        (
            "Output tokens a second a device, over those of a user",
            line_panel([Line("this deployment", user)], "tokens/s a user", "tokens a second a device", dots=True),
        ),
    ]
