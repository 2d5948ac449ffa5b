"""Median errors of simulated TPOT and TTFT against measured serving, by engine and system.

.venv/bin/python benchmarks/serving_accuracy.py ../shared/data/serving/silicon_agg.csv
"""

import sys
from pathlib import Path

from archsim.studies.serving.accuracy import judged_rows, median_errors, simulated


def main(path: str) -> None:
    points = list(simulated(judged_rows(Path(path))))
    print("| models | engine | system | points | TPOT | TTFT | TTFT, warmed up |\n|---|---|---|---|---|---|---|")
    for fitted in (False, True):
        for moe, kind in ((1, "MoE"), (0, "dense")):
            here = [point for point in points if point.fitted == fitted and point.row["is_moe"] == moe]
            cells = sorted({(point.row["backend"], point.row["system"]) for point in here})
            for cell in cells if not fitted else ():
                _row(kind, *cell, [p for p in here if (p.row["backend"], p.row["system"]) == cell])
            _row(f"**{kind}{', fitted on' if fitted else ''}**", "all", "all", here)


def _row(kind: str, engine: str, system: str, points: list) -> None:
    tpot, ttft, warm, count = median_errors(points)
    print(f"| {kind} | {engine} | {system} | {count} | {tpot:.1%} | {ttft:.1%} | {warm:.1%} |")


if __name__ == "__main__":
    main(sys.argv[1])
