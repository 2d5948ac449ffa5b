"""How evenly work is spread over dies, and how much of the machine it uses."""

# ruff: noqa: E501  (one row a column: a table is read across)

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from archsim.base.tables import REAL
from archsim.base.units import NS_PER_S
from archsim.runs.finished import ARRAYS, HBM, Column, Finished, measures, per_die, share_of_time

LOADS: tuple[Column, ...] = (
    Column("die_utilisation", REAL, "share", "share of the time in which the compute array is busy, as a mean over dies", "die utilisation"),
    Column("load_max_over_mean", REAL, "×", "tokens of the busiest die relative to the mean of all dies, as a mean over steps; empty without decode", "load, max over mean", optional=True),
    *(
        Column(f"load_ceiling_{name}", REAL, "×", f"least load of the busiest die over the mean, {meaning}; mean over steps, empty without decode", optional=True)
        for name, meaning in (
            ("slots", "with any placement of as many slots: a lower bound"),
            ("placement", "with tokens divided at best among holders"),
        )
    ),
)  # fmt: skip


@measures(LOADS)
def loads(run: Finished) -> dict[str, Any]:
    """How evenly work is spread: means over steps of the load of the busiest die, and of what it could be at least."""
    from archsim.engine.ceilings import Ceilings

    load = run.outcome.load[run.decode]
    steps = load.reshape(-1, load.shape[-1])
    steps = steps[steps.any(axis=1)]
    ceilings = run.outcome.ceilings[run.decode].reshape(-1, len(Ceilings._fields))
    ceilings = ceilings[ceilings[:, 0] > 0]
    least = {name: ceilings[:, Ceilings._fields.index(name)] / ceilings[:, 0] for name in ("slots", "placement")}
    total_ns = run.outcome.prefill_ns + run.outcome.decode_ns
    return {
        "die_utilisation": share_of_time(per_die(run.outcome, ARRAYS)["busy_ns"], total_ns).mean(),
        "load_max_over_mean": (steps.max(axis=1) / steps.mean(axis=1)).mean() if len(steps) else None,
        **{f"load_ceiling_{name}": each.mean() if len(each) else None for name, each in least.items()},
    }


USE: tuple[Column, ...] = (
    Column("mfu", REAL, "share", "FLOP of experts relative to what all dies could do at their peak in the time of the run, prefill included", "MFU", optional=True, after="decode_batch_token_ns"),
    Column("hbm_bandwidth_utilisation", REAL, "share", "bytes of HBM relative to what all dies could move at nominal bandwidth in the time of the run, prefill included", "HBM bandwidth used", optional=True, after="mfu"),
    Column("over_roofline", REAL, "×", "time of the run relative to the least time in which evenly loaded dies could do the same FLOP and move the same bytes of HBM", "over its roofline", optional=True, after="hbm_bandwidth_utilisation"),
)  # fmt: skip


@measures(USE)
def use(run: Finished, row: Mapping[str, Any]) -> dict[str, Any]:
    """Use of the machine over the whole run, prefill included, by its work in ``row``. Its roofline is the least time in which evenly loaded
    dies could do the same FLOP and move the same bytes of HBM, without weights that move in no time.
    """
    system, total_ns = run.run.system, run.outcome.prefill_ns + run.outcome.decode_ns
    arrays, hbms = system.whole
    flop_ns = row["flop"] / (system.compute.peak_flop_per_s * arrays) * NS_PER_S
    hbm_ns = int(per_die(run.outcome, HBM)["bytes"].sum()) / (system.hbm.bandwidth_bytes_per_s * hbms) * NS_PER_S
    least_ns = max(flop_ns, hbm_ns)
    return {
        "mfu": flop_ns / total_ns if total_ns else None,
        "hbm_bandwidth_utilisation": hbm_ns / total_ns if total_ns else None,
        "over_roofline": total_ns / least_ns if least_ns else None,
    }
