"""The steps of a finished run, one row a layer of an iteration.

A run of more than `archsim.engine.step_counts.MOST_STEPS` steps has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from archsim.base.causes import CAUSES, Cause
from archsim.runs.packing import NO_LINK

if TYPE_CHECKING:
    from archsim.runs.measure import Finished

# Classes of archsim.engine.pair_traffic, without requests, whose bytes are next to nothing.
_AS_COUNTED = ("link_bytes", "link_busy_ns", "die", "die_tokens", "tokens", "expert", "expert_tokens")
CLASSES = ("weight", "dispatch", "combine", "replica", "statistics")


def measure_steps(run: Finished) -> dict[str, np.ndarray]:
    """Columns over the steps, one value each; see ``archsim.runs.columns.STEPS``. Empty where none are kept."""
    from archsim.engine.step_counts import MOVED

    counts = run.outcome.counts.columns()
    if not len(counts["step"]):
        return {}
    layers, bound_ns = np.array(run.demand.layer_ids), counts["bound_ns"]
    columns = {"step": counts["step"], "layer": layers[counts["layer"]], "time_ns": counts["time_ns"]}
    columns |= {f"bound_{cause.column}_ns": bound_ns[:, cause] for cause in CAUSES}
    columns[f"bound_{Cause.DECISION.column}_ns"] = counts["decision_ns"]
    for at, name in enumerate(("local_read", "remote_read", "write", "activation")):
        columns[f"hbm_{name}_bytes"] = counts["hbm_bytes"][:, at]
    for name in CLASSES:
        columns[f"{name}_bytes"] = counts["moved"][:, MOVED.index(name)]
    src, dst = _ends(run, counts["link"])
    columns |= {"link": counts["link"], "link_src": src, "link_dst": dst}
    return columns | {name: counts[name] for name in _AS_COUNTED}


def _ends(run: Finished, links: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each of these links begins and ends, int64[n]; NO_LINK where there is none."""
    from archsim.runs.measure_units import shown_links

    shown = shown_links(run.outcome)
    if not len(shown):
        return links, links
    fabric, there = run.outcome.fabric, shown[np.maximum(links, 0)]
    ends = (np.where(links >= 0, end[there], NO_LINK).astype(np.int64) for end in (fabric.link_src, fabric.link_dst))
    src, dst = ends
    return src, dst
