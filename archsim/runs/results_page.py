"""``docs/results.md``: the columns of every file of results."""

# ruff: noqa: E501  (tables of the page)

import re

from archsim.runs.columns import COLUMNS, DIES, LINKS, PAIRS, STEPS, TIMINGS
from archsim.runs.finished import Column
from archsim.specs.explore import OBJECTIVES

_DENOMINATOR = re.compile("[;,] empty (without (decode( steps)?|tokens)|for a run without time)")


def results_page() -> str:
    parts, files = (
        [_RESULTS_HEAD],
        (
            ("results.csv, results.parquet", COLUMNS),
            ("dies.csv", DIES),
            ("links.csv", LINKS),
            ("pairs.csv", PAIRS),
            ("steps.parquet", STEPS),
            ("timings.csv", TIMINGS),
        ),
    )
    for title, columns in files:
        own = [each for each in columns if columns is COLUMNS or each not in COLUMNS]
        rows = [f"| `{each.name}` | {each.unit} | {_meaning(each)}{_objective_of(each, columns)} |" for each in own]
        parts.append("\n".join([f"## {title}", "", "| column | unit | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _meaning(column: Column) -> str:
    """The meaning of a column as a cell. For a cause, it says where the causes are explained."""
    if column.name.startswith("bound_"):
        return "part of the critical path, by [cause](glossary.md#what-time-goes-to)"
    return _DENOMINATOR.sub("", column.meaning).replace("|", "\\|")


def _objective_of(column: Column, columns: tuple[Column, ...]) -> str:
    names = [name for name, (known, _) in OBJECTIVES.items() if known == column.name and columns is COLUMNS]
    return "".join(f" (objective `{name}`)" for name in names)


_RESULTS_HEAD = """\
# Results

What is in the files beside a page? `archsim sweep FILE` writes into the folder of its report:

| file | content |
|---|---|
| `results.csv`, `results.parquet` | one row for each run. With a `sweep:`, it begins with `point` and a column for every axis. |
| `dies.csv`, `links.csv`, `pairs.csv` | one row for every die, link and pair of dies of every run. They are left out above 1,000 runs and with `details: dropped`. Pairs are those of at most 32 dies. |
| `steps.parquet` | one row for every layer of every iteration, of runs of at most 12,000 such steps |
| `frames.json` | what dies and links did in each iteration, or in some together: tokens, HBM, arrays, links and queues, up to 16 of a run; a line for each run |
| `timings.csv` | how long each run took to simulate. Only this file differs between machines. |
| `manifest.yaml` | the full experiment. `archsim sweep manifest.yaml` reproduces the results. |
| `results.partial.csv` | while a sweep runs: the rows of finished runs, without speed-ups |

Pages and terminals show `tokens_per_s`, which has one definition under every set of assumptions and refers to all MoE layers of the model.
`throughput_tokens_per_s` refers to the layers that ran, and depends on the assumption [`throughput`](assumptions.md#throughput).

This prints the ten slowest steps of a run with what bound them, and the links that are most often the busiest:

```python
import pandas as pd

steps = pd.read_parquet("reports/dojo/steps.parquet")
one = steps[(steps.policy == "allo") & (steps.assumptions == "physical") & (steps.batch == 4096) & (steps.model == "deepseek-v3")]
slow = one.nlargest(10, "time_ns")
print(slow[["step", "layer", "time_ns", "bound_hbm_ns", "bound_compute_ns", "link_src", "link_dst", "link_bytes"]])
print(one.groupby(["link_src", "link_dst"]).size().nlargest(5))
```

The tables below come from `archsim/runs/columns.py` (`python -m archsim.show.reference`). A cell of a file is empty where its denominator is 0, as in a run without decode steps.
`dies.csv`, `links.csv`, `pairs.csv` and `steps.parquet` begin with `run`, `system`, `model`, `batch`, `policy` and `assumptions` of the run."""
