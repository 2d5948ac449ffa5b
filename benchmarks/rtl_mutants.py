"""Mutants of the components in RTL, one planted error each, and which of them lockstep misses.

``python benchmarks/rtl_mutants.py [BLOCK ...]`` takes ten minutes. The errors: every comparison with every other
operator, other arithmetic, registers and wires that are a bit too narrow, exchanged values of a ``Mux``, inverted
conditions, missing statements, constants off by one. Status 1 if one survives that is not named as equivalent in
``tests/support/rtl_mutants.py``.
"""

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
warnings.simplefilter("ignore")

from support.rtl_mutants import SHOWN, caught, mutants, why_equivalent  # noqa: E402


def main(blocks):
    survivors = 0
    for block in blocks:
        planted = list(mutants(block, every=True))
        missed = [each for each in planted if not caught(block, each)]
        equal = [each for each in missed if why_equivalent(block, each)]
        print(
            f"{block}: {len(planted)} mutants, {len(planted) - len(missed)} found, {len(equal)} equivalent", flush=True
        )
        for each in missed:
            text = " ".join(each.text.split())
            print(f"  line {each.line}: {text}: {each.planted}: {why_equivalent(block, each) or 'SURVIVES'}")
        survivors += len(missed) - len(equal)
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:] or SHOWN))
