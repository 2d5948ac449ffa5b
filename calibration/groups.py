"""Fused MoE layers with an EP size left out, group by group: what is aimed at, and what is met."""

from __future__ import annotations

import pandas as pd

from calibration.choosing import MOE_NAMES
from calibration.validate import RANK_OUT, summaries

# Mean errors aimed at: of the model that most is decided with, and of any model.
AIM_OF = {"DeepSeek-V3": 0.04}
AIM = 0.06
GROUP = ["library", "dtype", "distribution", "model", "version", "kernel"]


def layer_groups(cases: pd.DataFrame) -> pd.DataFrame:
    """One row per group of GROUP: the columns of ``validate.Summary``, ``aim`` and ``met`` ('yes', 'no', 'floor').

    'floor': missed, but by less than repetitions, or draws of the routing, differ.
    """
    if not len(cases) or not set(MOE_NAMES) <= set(cases):
        return pd.DataFrame()
    found = summaries(cases[cases["kind"] == RANK_OUT], GROUP)
    if not len(found):
        return found
    found["aim"] = found["model"].map(AIM_OF).fillna(AIM)
    found["met"] = [_met(row) for row in found.to_dict("records")]
    return found


def _met(row: dict) -> str:
    if row["mean"] <= row["aim"]:
        return "yes"
    return "floor" if row["mean"] <= row["floor"] else "no"
