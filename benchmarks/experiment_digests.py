"""Digests of the numbers of every shipped experiment.

    python benchmarks/experiment_digests.py OUT [--like OLD] [--layers N]

Runs each experiment of ``configs/`` on some of its MoE layers and prints a digest of its tables. With ``--like`` and a
folder written by an earlier version, also prints which of the common columns differ. Run keys are omitted, as they
depend on code and spec texts.
"""

import argparse
import hashlib
import subprocess
import sys
from pathlib import Path

import pandas as pd
from measured_command import archsim

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
TABLES = ("results.csv", "results.parquet", "dies.csv", "links.csv")
LEFT_OUT = ("run",)
EXPLORED = ("explore_dojo.yaml",)  # a search, not a sweep: its sweep runs under `archsim sweep`, too


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--like", type=Path, help="folder of an earlier version")
    parser.add_argument("--layers", type=int, default=2, help="MoE layers of each model to run (default: 2)")
    parser.add_argument("--only", nargs="*", default=[], help="names of experiments")
    arguments = parser.parse_args()
    different = False
    for file in sorted(CONFIGS.glob("*.yaml")):
        if arguments.only and file.stem not in arguments.only:
            continue
        folder = arguments.out / file.stem
        if not folder.is_dir():
            run(file, folder, arguments.layers)
        for table in TABLES:
            if not (folder / table).is_file() or (table == "results.parquet" and (folder / "results.csv").is_file()):
                continue
            now = read(folder / table)
            said = compare(now, arguments.like / file.stem / table) if arguments.like else ""
            different |= bool(said)
            print(f"{file.stem:24s} {table:16s} {len(now):7,d} rows  {digest(now)}  {said}", flush=True)
    return int(different)


def run(file: Path, folder: Path, layers: int) -> None:
    options = ["sweep", str(file), "--out", str(folder)]
    if "validate" not in file.stem and file.stem != "design_space":
        options += ["--set", f"workload.layers={layers}"]
    subprocess.run(archsim(*options), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def read(path: Path) -> pd.DataFrame:
    """A table without the columns that depend on code."""
    table = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    return table.drop(columns=[name for name in LEFT_OUT if name in table])


def digest(table: pd.DataFrame) -> str:
    """12 hex digits of the values, columns sorted by name."""
    text = table[sorted(table.columns)].to_csv(index=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def compare(now: pd.DataFrame, old: Path) -> str:
    """Which of the common columns differ; empty if none does."""
    if not old.is_file():
        return "missing before"
    before = read(old)
    both = [name for name in before.columns if name in now.columns]
    if len(before) != len(now):
        return f"{len(before)} rows before"
    differing = [name for name in both if not before[name].equals(now[name])]
    gone = [f"no {name}" for name in before.columns if name not in now.columns]
    return ", ".join([*differing, *gone])


if __name__ == "__main__":
    sys.exit(main())
