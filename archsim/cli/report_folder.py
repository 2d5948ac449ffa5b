"""Where a command writes its report, and which report it replaces there."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archsim.base.errors import ArchsimError, SpecError
from archsim.base.text.yaml import dump_yaml, parse_yaml, read_yaml
from archsim.specs.loading.library import MANIFEST, MANIFEST_KEY


def report_folder(name: str, out: str | None, kind: str = "") -> Path:
    """``out`` if given; else a folder below ``reports``, named after the experiment and the kind of report."""
    if out == "":
        raise ArchsimError("--out: an empty name; expected a folder")
    if out is not None:
        return Path(out)
    return Path("reports") / (f"{name}-{kind}" if kind else name)


def print_replaced(folder: Path, experiment: Mapping[str, Any] | None) -> None:
    """Say on stderr that the folder contains a report of another experiment.

    experiment: as in the manifest of the new report; None: the new report has no manifest.
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
