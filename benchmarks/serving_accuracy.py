"""Median errors of simulated TPOT and TTFT against measured serving, by model, system, engine and precision.

.venv/bin/python benchmarks/serving_accuracy.py ../shared/data/serving/silicon_agg.csv [--most-clients 128]
    [--disaggregated ../shared/data/serving/silicon_disagg.csv] [--page docs/accuracy.md]
    [--against docs/accuracy.csv] [--residuals]

Points of up to ``--most-clients`` are simulated, each by constants that are fitted here on the groups of other folds;
``--disaggregated``: all of its points, too. It ends with what a choice of configurations by simulation loses.
``--page`` writes a page and, beside it, the table of its cells; ``--against`` compares with such a table, and fails
where a cell has worsened by 2 points and 10 %. ``--residuals`` prints the rows of configs/serving/hosts.yaml that say
how far measured points of a cell are from simulated ones.
"""

import argparse
from pathlib import Path

from measured_serving.accuracy import cases_of, judged_rows, median_errors, points_of, with_few_clients
from measured_serving.cells import Cell, cells, page, read_cells, worse, write_cells
from measured_serving.choices import with_clients, within_limits
from measured_serving.fitting import FOLDS, fitted, fold_of, means_of
from measured_serving.residuals import residual_rows
from measured_serving.split import judge_cases, plain_points, pools_of, split_cases_of, split_rows, with_own_name

from archsim.base.units import NS_PER_MS
from archsim.iteration.constants import HostFile, PoolRow


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--most-clients", type=int, default=128)
    parser.add_argument("--disaggregated", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--residuals", action="store_true")
    args = parser.parse_args()
    rows = with_few_clients(judged_rows(args.data), args.most_clients)
    cases, refused = cases_of(rows)
    means = [each for case in cases for each in means_of(case)]
    fold = fold_of(each.group for each in means)
    known = [fitted([each for each in means if fold[each.group] != left]) for left in range(FOLDS)]
    points = [point for case in cases for point in points_of(case, known[fold[case.rows[0]["group"]]])]
    found = cells(points)
    if args.disaggregated:
        split, said, why = _disaggregated(args.disaggregated, fitted(means))
        found += split
        refused |= why
    before = read_cells(args.against) if args.against else []
    rest = f"{len(points)} of {len(rows)} points are simulated{said if args.disaggregated else ''}."
    if refused:
        rest += f" Refused: {'; '.join(sorted(set(refused.values())))}."
    text = page(found, FOLDS, args.most_clients, rest)
    if args.page:
        args.page.write_text(text, encoding="utf-8")
        write_cells(found, args.page.with_suffix(".csv"))
    print(text)
    for kind, kinds in (("MoE", (1,)), ("dense", (0,)), ("all", (0, 1))):
        mine = [point for point in points if point.row["is_moe"] in kinds]
        tpot, ttft, warm, count = median_errors(mine)
        print(f"{kind}: {count} points, TPOT {tpot:.1%}, TTFT {ttft:.1%}, warmed up {warm:.1%}")
        print(f"  configurations with the same clients, {with_clients(mine).sentence}")
        print(f"  configurations within limits of TPOT, {within_limits(mine).sentence}")
    if args.residuals:
        print("residuals:", *(f"  - {row}" for row in residual_rows(points)), sep="\n")
    grown = list(worse(before, found))
    print(*(f"WORSE: {each}" for each in grown), sep="\n")
    return 1 if grown else 0


def sentence(row: PoolRow) -> str:
    """As in configs/serving/hosts.yaml."""
    keys = [f"{name}: {value}" for name in ("engine", "gpu", "dtype") if (value := getattr(row, name)) != "any"]
    keys += [f"data_parallel: {str(row.data_parallel).lower()}"] if row.data_parallel is not None else []
    keys += [f"{name}: {each:.3g}" for name in ("decodes", "prompts") if (each := getattr(row, name)) != 1]
    times = {name: ns for name in ("request", "handoff") if (ns := getattr(row, name)) is not None}
    keys += [f"{name}: {ns / NS_PER_MS:.4g} ms" for name, ns in times.items()]
    keys += [f"first_after: {row.first_after}"] if row.first_after is not None else []
    return f"{{{', '.join(keys)}}}"


def _disaggregated(path: Path, known: HostFile) -> tuple[list[Cell], str, dict[str, str]]:
    """Cells, how many points they have, and why others were refused."""
    rows = split_rows(path)
    cases, refused = split_cases_of(rows)
    plain = plain_points(cases, known)
    points = judge_cases(cases, known, plain)
    print("pools:", *(f"  - {sentence(row)}" for row in pools_of(*plain)), sep="\n")
    print("residuals:", *(f"  - {row}" for row in residual_rows(points, pools=True)), sep="\n")
    return (
        cells(map(with_own_name, points), "disaggregated"),
        f", and {len(points)} of {len(rows)} disaggregated ones",
        refused,
    )


if __name__ == "__main__":
    raise SystemExit(main())
