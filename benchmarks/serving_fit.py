"""Fits the constants of configs/serving/hosts.yaml to all groups of measurements, and prints its rows.

.venv/bin/python benchmarks/serving_fit.py ../shared/data/serving/silicon_agg.csv

Begins at the constants of the file, and simulates all points twice: the schedule follows the constants.
"""

import sys
from pathlib import Path

from measured_serving.accuracy import cases_of, judged_rows, with_few_clients
from measured_serving.fitting import HOST, fitted, means_of

from archsim.base.units import NS_PER_MS
from archsim.iteration.constants import FactorRow, HostFile, HostRow

MOST_CLIENTS, SIMULATIONS = 128, 2


def summary(known: HostFile) -> str:
    """As in the file."""
    factors = sorted(map(_factor, known.factors))
    lines = [f"groups: {known.groups}", "hosts:", *map(_host, known.hosts), "factors:", *factors]
    return "\n".join(lines)


def _host(row: HostRow) -> str:
    times = ", ".join(f"{name}: {getattr(row, name) / NS_PER_MS:.4g} ms" for name in HOST)
    of = f"engine: {row.engine}, experts: {str(row.experts).lower()}"
    return f"  - {{{of}, {times}, captured: {row.captured}, first_after: {row.first_after}}}"


def _factor(row: FactorRow) -> str:
    keys = [f"{name}: {str(getattr(row, name)).lower()}" for name in ("engine", "experts", "gpu", "dtype", "shape")]
    values = [f"{name}: {getattr(row, name):.3g}" for name in ("routed", "decodes", "prompts", "request")]
    return f"  - {{{', '.join(each for each in (*keys, *values) if not each.endswith((': any', ': 1')))}}}"


def main(path: str) -> None:
    cases, _ = cases_of(with_few_clients(judged_rows(Path(path)), MOST_CLIENTS))
    known = None
    for _ in range(SIMULATIONS):
        known = fitted([each for case in cases for each in means_of(case, known)])
    print(summary(known))


if __name__ == "__main__":
    main(*sys.argv[1:])
