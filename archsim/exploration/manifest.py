"""The manifest of an exploration: ``archsim explore manifest.yaml`` makes it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from archsim.execution.store import made_by
from archsim.files import write_text
from archsim.specs.explore import EXPLORE_KEY, ExploreSpec
from archsim.specs.library import MANIFEST, MANIFEST_KEY
from archsim.specs.points import SweepPlan
from archsim.specs.yaml_loader import dump_yaml


def given(plan: SweepPlan, spec: ExploreSpec) -> dict[str, Any]:
    """The experiment with its ``sweep:`` and ``explore:``, references expanded."""
    return plan.given() | {EXPLORE_KEY: spec.model_dump(mode="json")}


def write_manifest(plan: SweepPlan, spec: ExploreSpec, folder: Path) -> None:
    """Write ``manifest.yaml`` into the folder, which is there."""
    write_text(folder / MANIFEST, dump_yaml({MANIFEST_KEY: made_by() | {"points": plan.combinations}, **given(plan, spec)}))
