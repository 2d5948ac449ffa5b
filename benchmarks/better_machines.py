"""Whether any run is slower on a better machine: ``python benchmarks/better_machines.py [CASES] [MACHINES] [FIRST]``.

Runs random cases (``tests/support/better_machines.py``) under every kind of ``gemm`` and ``execution: expert_parallel``
on both engines, each with some better machines, and prints those that are slower by more than 0.5 %.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.better_machines import GEMM, random_case, slower_runs

from archsim.base.errors import ArchsimError

SLOWER = 0.005


def main(cases: int = 100, machines: int = 6, first: int = 0) -> None:
    for execution, gemm in [("weight_streaming", gemm) for gemm in GEMM] + [("expert_parallel", "grouped")]:
        found, ran = [], 0
        for number in range(first, first + cases):
            try:
                case = random_case(number, execution, gemm)
                found += slower_runs(case, machines, SLOWER)
                ran += 1
            except ArchsimError as refused:
                print(f"#{number}: {refused}")
        print(f"{execution}, gemm: {gemm}: {len(found)} slower of {2 * ran * machines} runs of {ran} cases")
        for by, what, name in sorted(found, reverse=True):
            print(f"  {100 * by:.1f} % {what} | {name}")


if __name__ == "__main__":
    main(*(int(given) for given in sys.argv[1:]))
