"""Median errors of simulated TPOT and TTFT against measured serving, by model, system, engine and precision.

.venv/bin/python benchmarks/serving_accuracy.py ../shared/data/serving/silicon_agg.csv [--most-clients 16]
    [--page docs/accuracy.md] [--against docs/accuracy.csv]

Of each group of measurements the points of fewest and of most clients, up to ``--most-clients``, are simulated.
``--page`` writes a page and, beside it, the table of its cells; ``--against`` compares with such a table, and fails
where a cell has worsened by 2 points and 10 %. ``--residuals`` prints the rows of configs/serving/hosts.yaml that say
how far measured points of a cell, of groups that constants were fitted on, are from simulated ones.
"""

import argparse
from pathlib import Path

from archsim.serving.hosts import host_file
from archsim.studies.serving.accuracy import ends_of_groups, judged_rows, median_errors, simulated
from archsim.studies.serving.cells import cells, page, read_cells, worse, write_cells
from archsim.studies.serving.residuals import residual_rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--most-clients", type=int, default=16)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--residuals", action="store_true")
    args = parser.parse_args()
    rows = ends_of_groups(judged_rows(args.data), args.most_clients)
    points = list(simulated(rows))
    found = cells(points)
    before = read_cells(args.against) if args.against else []
    text = page(found, host_file().fitted_on, len({row["group"] for row in rows}))
    if args.page:
        args.page.write_text(text, encoding="utf-8")
        write_cells(found, args.page.with_suffix(".csv"))
    print(text)
    for moe, kind in ((1, "MoE"), (0, "dense")):
        for fitted in (False, True):
            here = [point for point in points if (point.row["is_moe"], point.fitted) == (moe, fitted)]
            tpot, ttft, warm, count = median_errors(here)
            print(f"{kind}{', fitted on' if fitted else ''}: {count} points, TPOT {tpot:.1%}, TTFT {ttft:.1%}, "
                  f"warmed up {warm:.1%}")  # fmt: skip
    print(f"{len(points)} of {len(rows)} points simulated; the others do not fit, or were not measured")
    if args.residuals:
        print("residuals:", *(f"  - {row}" for row in residual_rows(points)), sep="\n")
    grown = list(worse(before, found))
    print(*(f"WORSE: {each}" for each in grown), sep="\n")
    return 1 if grown else 0


if __name__ == "__main__":
    raise SystemExit(main())
