"""Fused MoE layers with an EP size left out, by group: error targets, and whether they are met."""

import pandas as pd

from archsim.studies.validation.choosing import MOE_NAMES
from archsim.studies.validation.errors import RANK_OUT, summaries

# Target mean errors: for the model most decisions rely on, and for any model. Names are compared in lower case.
AIM_OF = {"DeepSeek-V3": 0.04}
AIM = 0.06
GROUP = ["library", "dtype", "distribution", "model", "version", "kernel", "eplb_slots"]


def layer_groups(cases: pd.DataFrame) -> pd.DataFrame:
    """One row per group of GROUP: the columns of ``validate.Summary``, ``aim`` and ``met`` ('yes', 'no', 'floor').

    'floor': missed, but within the spread of repetitions or routing draws.
    """
    if not len(cases) or not set(MOE_NAMES) <= set(cases):
        return pd.DataFrame()
    cases = cases[cases["kind"] == RANK_OUT]
    found = summaries(cases.assign(model=_one_name_each(cases["model"])), GROUP)
    if not len(found):
        return found
    found["aim"] = found["model"].map(AIM_OF).fillna(AIM)
    found["met"] = [_met(row) for row in found.to_dict("records")]
    return found


def _one_name_each(models: pd.Series) -> pd.Series:
    """One name for models whose names differ only in case: that of AIM_OF, else the first in alphabetical order."""
    shown = {name.lower(): name for name in [*sorted(models.unique(), reverse=True), *AIM_OF]}
    return models.map(lambda name: shown[name.lower()])


def _met(row: dict) -> str:
    if row["mean"] <= row["aim"]:
        return "yes"
    return "floor" if row["mean"] <= row["floor"] else "no"
