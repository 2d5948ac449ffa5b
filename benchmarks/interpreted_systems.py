"""Compiled kernels beside the interpreter: ``python benchmarks/interpreted_systems.py [SYSTEMS] [FIRST]``.

Runs random systems (``tests/support/random_systems.py``; 500 from number 0 take ten minutes) on ``engine: event`` and
``engine: interpreted`` and names those that differ in any column. Status 1 if one does.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.random_systems import assert_kernels_equal_interpreter


def main(systems: int = 500, first: int = 0) -> int:
    differ = 0
    for number in range(first, first + systems):
        try:
            assert_kernels_equal_interpreter(number)
        except AssertionError as error:
            differ += 1
            print(f"system {number}: {' '.join(str(error).split())[:300]}", flush=True)
        done = number - first + 1
        if done % 100 == 0 or done == systems:
            print(f"{done} systems, {differ} differ", flush=True)
    return 1 if differ else 0


if __name__ == "__main__":
    raise SystemExit(main(*(int(given) for given in sys.argv[1:])))
