"""What dies and links did between iterations: the frames of the map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from archsim.runs.finished import ARRAYS, HBM

if TYPE_CHECKING:
    from archsim.engine.loop import RunOutcome


MOST_IN_FRAMES = 1024  # dies and links of a machine whose frames are kept


def measure_frames(outcome: RunOutcome) -> dict[str, list]:
    """What dies and links did between some iterations, list[frame] each: ``last`` iteration, ``time_ns``, and in every
    frame a list over the dies (``tokens``, ``hbm`` and ``array`` as shares of the time, ``queue``: stages that wait for
    the HBM, on average) or over the links, in the order of `measure_links` (``link``: share of the time that each is
    busy, ``link_queue``; None where an engine does not measure it). Empty for machines of more than MOST_IN_FRAMES.
    """
    from archsim.engine.state import UNITS

    dies, every = outcome.fabric.dies, outcome.counts.frames()
    resources = len(outcome.tally.resources)
    if not every or resources - (UNITS - 1) * dies > MOST_IN_FRAMES:
        return {}
    hbm, arrays, links = (slice(HBM * dies, (HBM + 1) * dies), slice(ARRAYS * dies, (ARRAYS + 1) * dies),
                          slice(UNITS * dies, resources))  # fmt: skip
    took_ns = np.maximum(np.diff([each.time_ns for each in every], prepend=0.0), 1e-9)[:, None]
    tokens, n_bytes, busy_ns, wait_ns = (
        np.diff([getattr(each, name) for each in every], axis=0, prepend=0)
        for name in ("tokens", "bytes", "busy_ns", "wait_ns")
    )
    moved, busy = _no_later(n_bytes[:, hbm] / outcome.machine.hbm_rates, took_ns), _no_later(busy_ns, took_ns)
    found: dict[str, list] = {
        "last": [each.step for each in every],
        "time_ns": took_ns[:, 0].tolist(),
        "tokens": tokens.tolist(),
    }
    for name, values in (
        ("hbm", moved), ("array", busy[:, arrays]), ("queue", (wait_ns / took_ns)[:, hbm]),
        ("link", busy[:, links]), ("link_queue", (wait_ns / took_ns)[:, links]),
    ):  # fmt: skip
        found[name] = [[None if value != value else float(f"{value:.3g}") for value in row] for row in values]
    return found


def _no_later(busy_ns: np.ndarray, took_ns: np.ndarray) -> np.ndarray:
    """float64[frame, n], shares of the time of each frame: what a frame had no time for was in the one before, as
    weights that arrive behind a step are counted with the step that they are for.
    """
    left = busy_ns.astype(float)
    for frame in range(len(left) - 1, 0, -1):
        later = np.maximum(left[frame] - took_ns[frame], 0.0)
        left[frame] -= later
        left[frame - 1] += later
    return left / took_ns
