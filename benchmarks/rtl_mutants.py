"""Mutants of the components in RTL: every comparison with every other operator, and which of them lockstep misses.

``python benchmarks/rtl_mutants.py [BLOCK ...]`` takes two minutes. Status 1 if one survives that is not named as
equivalent in ``tests/support/rtl_mutants.py``.
"""

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
warnings.simplefilter("ignore")

from support.rtl_mutants import EQUIVALENT, OPERATORS, SHOWN, caught, mutants  # noqa: E402


def main(blocks):
    survivors = 0
    for block in blocks:
        found = [each for each in mutants(block, every=True) if not caught(block, each)]
        equal = [each for each in found if (each.text, OPERATORS[each.other]) in EQUIVALENT]
        total = sum(1 for _ in mutants(block, every=True))
        print(f"{block}: {total} mutants, {total - len(found)} found, {len(equal)} equivalent", flush=True)
        for each in found:
            why = EQUIVALENT.get((each.text, OPERATORS[each.other]), "SURVIVES")
            print(f"  line {each.line}: {each.text} -> {OPERATORS[each.other]}: {why}")
        survivors += len(found) - len(equal)
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:] or SHOWN))
