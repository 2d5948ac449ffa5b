"""The head of a traffic file that was fitted to published statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from archsim.base.files import write_text
from archsim.traffic import traffic_model
from archsim.traffic.published import rows_of
from archsim.traffic.traffic_heads import TrafficStatistics


def write_head(head: TrafficStatistics, traffic: traffic_model.TrafficModel, source: Path, out: Path, of: str) -> None:
    """Write a preset of statistics, with loads and acceptance beside it if any; source: where its loads lay."""
    data = head.model_dump(exclude_defaults=True, exclude={"published"})
    data = {key: _plain(value) for key, value in data.items()} | {"name": out.stem, "model": of}
    if head.loads is not None:
        tables = out.with_suffix(".npz")
        with np.load(source.parent / head.loads) as old:
            loads, layer_ids = old["loads"], old["layer_ids"]
        code = np.round(traffic.acceptance * 255).astype(np.uint8)
        np.savez_compressed(tables, layer_ids=layer_ids, loads=loads, acceptance=code)
        data["loads"] = tables.name
    order = ["name", "model", "source", *(key for key in data if key not in ("name", "model", "source"))]
    text = yaml.safe_dump({key: data[key] for key in order}, sort_keys=False, allow_unicode=True, width=120)
    if head.published:
        rows = rows_of(head.published)
        text += "published:\n" + "".join(
            "- " + yaml.safe_dump(row, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10_000)
            for row in rows
        )
    write_text(out, text)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return list(value) if isinstance(value, tuple) else value
