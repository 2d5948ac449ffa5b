# ruff: noqa: E501  (tables of the page)
"""``docs/results.md``: the columns of every file of results. Rows that differ in a word or two of their meaning are one row."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from archsim.runs.columns import COLUMNS, DIES, LINKS, PAIRS, STEPS, TIMINGS, Column
from archsim.specs.sweeps.explore import OBJECTIVES

_DENOMINATOR = re.compile("[;,] empty (without (decode( steps)?|tokens)|for a run without time)")


class _Row(NamedTuple):
    """Columns that share a row."""

    names: tuple[str, ...]
    unit: str
    meaning: str


def results_page() -> str:
    parts, files = [_HEAD], (
        ("results.csv, results.parquet", COLUMNS), ("dies.csv", DIES), ("links.csv", LINKS), ("pairs.csv", PAIRS),
        ("steps.parquet", STEPS), ("timings.csv", TIMINGS),
    )
    for title, columns in files:
        own = [each for each in columns if columns is COLUMNS or each not in COLUMNS]
        rows = [_Row((each.name,), each.unit, _meaning(each) + _used(each, columns)) for each in own]
        parts.append("\n".join([f"## {title}", "", *map(_line, _folded(rows))]))
    return "\n\n".join(parts) + "\n"


def _line(row: _Row) -> str:
    """An item. The unit stands in it where the names do not end with it."""
    last = {name.removesuffix("_low").removesuffix("_high").rpartition("_")[2] for name in row.names}
    known = last <= {row.unit, row.unit.casefold()} or "_percent" in row.names[0] or "_bytes_per_" in row.names[0]
    names, unit = ", ".join(f"`{name}`" for name in row.names), "" if known or not row.unit else f" ({row.unit})"
    return f"- {names}{unit}: {row.meaning}".removesuffix(": ")


def _meaning(column: Column) -> str:
    """Its meaning; of a cause, where the causes are; of a bound, that of the column whose bound it is."""
    if column.name.startswith("bound_"):
        return "of the critical path, by [cause](glossary.md#what-time-goes-to)"
    meaning = _DENOMINATOR.sub("", column.meaning)
    return meaning.replace(f"as {column.name.rpartition('_')[0]},", "as without the ending,")


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
    for family in _families(same):
        words = [row.meaning.split() for row in family]
        first, last = _shared(words), _shared([each[::-1] for each in words])
        differ = [each[first : len(each) - last] for each in words]
        own = "; ".join(" ".join(each).strip(";") for each in differ)
        if len(family) < 2 or first + last < 3 or ",;" in own or (len(family) == 2 and max(map(len, differ)) > 3):
            yield from family
            continue
        around = " ".join([*words[0][:first], "…", *words[0][len(words[0]) - last :]]).replace(": …", " …")
        yield _Row(tuple(name for row in family for name in row.names), family[0].unit, f"{around}: {own}")


def _families(rows: list[_Row]) -> Iterator[list[_Row]]:
    """Neighbours of one unit whose names, or whose meanings, begin alike."""
    family: list[_Row] = []
    for row in rows:
        alike = (
            family
            and row.unit == family[0].unit
            and (
                row.names[0].partition("_")[0] == family[0].names[0].partition("_")[0]
                or row.meaning.split()[:3] == family[0].meaning.split()[:3] != []
            )
        )
        if family and not alike:
            yield family
            family = []
        family.append(row)
    yield from filter(None, [family])


def _shared(words: list[list[str]]) -> int:
    """Words with which all begin, all but one of the shortest at most."""
    most = min(map(len, words)) - 1
    return next((at for at in range(most) if len({each[at] for each in words}) > 1), max(most, 0))


_HEAD = """\
# Results

`archsim sweep FILE` writes into the folder of its report:

| file | |
|---|---|
| `results.csv`, `results.parquet` | a row per run, in the order of the experiment; with a `sweep:` first `point` and a column for every axis |
| `dies.csv`, `links.csv`, `pairs.csv` | of every run a row for every die, link and pair of dies (of at most 32) between which anything moved; left out above 1,000 runs, and with `details: dropped` |
| `steps.parquet` | a row for every layer of every iteration, of runs of at most 12,000 such steps; with `dies.csv` |
| `timings.csv` | how long each run took to simulate; the only file that differs between machines |
| `manifest.yaml` | the full experiment: `archsim sweep manifest.yaml` reproduces the results |
| `results.partial.csv` | while a sweep runs: rows of finished runs, in order of completion, without speed-ups |

Pages and terminals show `tokens_per_s`: one definition under every set of assumptions, for all MoE layers of the model.
`throughput_tokens_per_s` counts as the assumption [`throughput`](assumptions.md#throughput) says, the layers that ran alone.

The ten slowest steps of a run, what bound them, their busiest link, and the links that are most often the busiest:

```python
import pandas as pd

steps = pd.read_parquet("reports/dojo/steps.parquet")
one = steps[(steps.policy == "allo") & (steps.assumptions == "physical") & (steps.batch == 4096) & (steps.model == "deepseek-v3")]
slow = one.nlargest(10, "time_ns")
print(slow[["step", "layer", "time_ns", "bound_hbm_ns", "bound_compute_ns", "link_src", "link_dst", "link_bytes"]])
print(one.groupby(["link_src", "link_dst"]).size().nlargest(5))
```

Below are the columns of `archsim/runs/columns.py`, written by `python -m archsim.report.reference`: a unit that the name does not say stands behind it;
names in one item stand in the order of their meanings. Cells are empty where what they divide by is 0 (a run without time, decode steps or tokens). `dies.csv`, `links.csv`, `pairs.csv` and `steps.parquet` begin with `run`, `system`, `model`,
`batch`, `policy` and `assumptions` of the run."""
