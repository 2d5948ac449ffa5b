# ruff: noqa: E501  (tables of the page)
"""``docs/results.md``: the columns of every file of results. Rows that differ in a word or two of their meaning are one row."""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from archsim.runs.columns import COLUMNS, DIES, LINKS, PAIRS, STEPS, TIMINGS, Column
from archsim.specs.sweeps.explore import OBJECTIVES


class _Row(NamedTuple):
    """Columns that share a row."""

    names: tuple[str, ...]
    unit: str
    meaning: str


def results_page() -> str:
    """The page."""
    parts, files = [_HEAD], (
        ("results.csv, results.parquet", COLUMNS), ("dies.csv", DIES), ("links.csv", LINKS), ("pairs.csv", PAIRS),
        ("steps.parquet", STEPS), ("timings.csv", TIMINGS),
    )
    for title, columns in files:
        known = [each for each in columns if columns is not COLUMNS and each in COLUMNS]
        rows = [_Row((each.name,), each.unit, each.meaning + _used(each, columns)) for each in columns if each not in known]
        lines = (f"| {', '.join(f'`{name}`' for name in row.names)} | {row.unit} | {row.meaning} |" for row in _folded(rows))
        names = ", ".join(f"`{each.name}`" for each in known)
        before = [f"Of the run, as above: {names}.", ""] if known else []
        parts.append("\n".join([f"## {title}", "", *before, "| column | unit | meaning |", "|---|---|---|", *lines]))
    return "\n\n".join(parts) + "\n"


def _used(column: Column, columns: tuple[Column, ...]) -> str:
    """Name of the column as an objective of `explore:`, if it is one."""
    names = [name for name, (known, _) in OBJECTIVES.items() if known == column.name and columns is COLUMNS]
    return "".join(f" (objective `{name}`)" for name in names)


def _folded(rows: list[_Row]) -> Iterator[_Row]:
    """Rows of one meaning as one; then neighbours whose names begin alike and whose meanings share words."""
    together: dict[tuple[str, str], tuple[str, ...]] = {}
    for row in rows:
        key = row.unit, row.meaning or row.names[0]
        together[key] = together.get(key, ()) + row.names
    same = [_Row(names, unit, "" if meaning in names else meaning) for (unit, meaning), names in together.items()]
    for _, group in groupby(same, lambda row: (row.unit, row.names[0].partition("_")[0])):
        family = list(group)
        words = [row.meaning.split() for row in family]
        first, last = _shared(words), _shared([each[::-1] for each in words])
        own = "; ".join(" ".join(each[first : len(each) - last]) for each in words)
        if len(family) < 3 or first + last < 2 or ",;" in own:
            yield from family
            continue
        around = " ".join([*words[0][:first], "…", *words[0][len(words[0]) - last :]])
        yield _Row(tuple(name for row in family for name in row.names), family[0].unit, f"{around}: {own}")


def _shared(words: list[list[str]]) -> int:
    """Words with which all begin, all but one of the shortest at most."""
    most = min(map(len, words)) - 1
    return next((at for at in range(most) if len({each[at] for each in words}) > 1), max(most, 0))


_HEAD = """\
# Results

`archsim sweep FILE` writes into the folder of its report:

| file | |
|---|---|
| `results.csv`, `results.parquet` | one row per run, in the order of the experiment; with a `sweep:` first `point` and a column for every axis |
| `dies.csv`, `links.csv`, `pairs.csv` | a row for every die, every link and every pair of dies (of at most 32) between which anything moved, of every run; left out for more than 1,000 runs, and with `details: dropped` |
| `steps.parquet` | a row for every layer of every iteration, of runs of at most 12,000 such steps; with `dies.csv` |
| `timings.csv` | how long each run took to simulate, where and when; the only file that differs from one machine to the next |
| `manifest.yaml` | the full experiment: `archsim sweep manifest.yaml` reproduces the results |
| `results.partial.csv` | while a sweep runs: rows of the finished runs, in order of completion, without speed-ups |

Throughput on pages and terminals is `tokens_per_s`: one definition under every set of assumptions, for all MoE layers of the model.
`throughput_tokens_per_s` counts as the assumption `throughput` says, which under `published` is one iteration more, and the layers that ran alone.

`steps.parquet` says which step was slow and why. The hottest link of every step is a column; the ten slowest steps of a run, what bound them and their
busiest link:

```python
import pandas as pd

steps = pd.read_parquet("reports/dojo/steps.parquet")
one = steps[(steps.policy == "allo") & (steps.assumptions == "physical") & (steps.batch == 4096) & (steps.model == "deepseek-v3")]
slow = one.nlargest(10, "time_ns")
print(slow[["step", "layer", "time_ns", "bound_hbm_ns", "bound_compute_ns", "link_src", "link_dst", "link_bytes"]])
print(one.groupby(["link_src", "link_dst"]).size().nlargest(5))      # links that are most often the hottest
```

The tables below are those of `archsim/runs/columns.py`, written by `python -m archsim.report.reference`. Names in one row stand in the order of their meanings."""
