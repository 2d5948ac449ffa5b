"""Where a command writes its report, and whose report it replaces there."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archsim.base.errors import SpecError
from archsim.specs.loading.library import MANIFEST, MANIFEST_KEY
from archsim.specs.text.yaml import dump_yaml, parse_yaml, read_yaml


def report_folder(name: str, out: str | None, kind: str = "") -> Path:
    """The folder that was asked for; else one below ``reports``, named after the experiment and the kind of report."""
    if out is not None:
        return Path(out)
    return Path("reports") / (f"{name}-{kind}" if kind else name)


def tell_replaced(folder: Path, experiment: Mapping[str, Any] | None) -> None:
    """One line on stderr where the folder holds a report, and not of this experiment.

    experiment: what the manifest of the new report will say; None: it will have none.
    """
    try:
        there = read_yaml(folder / MANIFEST).data
    except SpecError:
        return
    there.pop(MANIFEST_KEY, None)
    if experiment is not None and there == parse_yaml(dump_yaml(experiment), MANIFEST).data:
        return
    same_name = experiment is not None and there.get("name") == experiment["name"]
    settings = ", which had other settings" if same_name else ""
    print(f"replaces the report of {there.get('name')} in {folder}{settings}", file=sys.stderr)
