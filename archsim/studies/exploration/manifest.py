"""The manifest of an exploration: ``archsim explore manifest.yaml`` reproduces it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from archsim.base.files import write_text
from archsim.runs.store import made_by
from archsim.specs.loading.library import MANIFEST, MANIFEST_KEY
from archsim.specs.sweeps.explore import EXPLORE_KEY, ExploreSpec
from archsim.specs.sweeps.plan import SweepPlan
from archsim.specs.text.yaml import dump_yaml


def given(plan: SweepPlan, spec: ExploreSpec) -> dict[str, Any]:
    """The experiment with its ``sweep:`` and ``explore:``, references expanded."""
    return plan.given() | {EXPLORE_KEY: spec.model_dump(mode="json")}


def write_manifest(plan: SweepPlan, spec: ExploreSpec, folder: Path) -> None:
    """Write ``manifest.yaml`` into the folder, which must exist."""
    write_text(
        folder / MANIFEST, dump_yaml({MANIFEST_KEY: made_by() | {"points": plan.combinations}, **given(plan, spec)})
    )
