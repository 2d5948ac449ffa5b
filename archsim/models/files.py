"""Imported models in files: the model as YAML, its operators as CSV."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from archsim.base.files import drafted, write_text
from archsim.base.yaml import dump_yaml
from archsim.models.onnx import OPERATOR_COLUMNS
from archsim.specs.model import ModelSpec


def write_model(model: ModelSpec, path: Path) -> None:
    write_text(path, dump_yaml(model.model_dump(mode="json", by_alias=True, exclude={"aliases"}, exclude_none=True)))


def write_operators(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write a table of the columns ``OPERATOR_COLUMNS`` as a whole."""
    with drafted(path) as draft, draft.open("w", newline="", encoding="utf-8") as stream:
        table = csv.DictWriter(stream, OPERATOR_COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
