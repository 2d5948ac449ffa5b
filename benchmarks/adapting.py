"""Policies that adapt to faster links: ``python benchmarks/adapting.py [systems] [policy ...]``.

Runs every policy on random small ``physical`` systems (points of ``tests/support/random_points.py`` that no coefficient
was fitted to; 3 decode steps, 1 to 3 layers) on the event engine, with links as drawn and eight times as fast. Prints

* the share of systems on which the policy loses more than 1 % by faster links, and its largest loss;
* the share of systems on which it is more than 1 % slower than ``ep``, the largest loss, and its mean time relative to
  ``ep``, for both bandwidths;
* the same where decisions are free, which leaves what the plans alone cost.

A name that is no preset is an allocation, a rule or ``package.module:function``.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.adapting import run_ns
from support.random_points import HELD_OUT

POLICIES = ("allo", "allo-paper", "allo-lp", "copy_aware")
FASTER = 8
LOST = 0.01


def times(systems, policies, **assumptions):
    """float64[policy, bandwidth, system] ns; ``ep`` is the first policy."""
    every = ("ep", *policies)
    return np.array(
        [
            [[run_ns(HELD_OUT + at, name, faster, **assumptions) for at in range(systems)] for faster in (1, FASTER)]
            for name in every
        ]
    )


def lost(relative):
    """Relative times, float64[system], in words: share that lost, and the largest loss."""
    return f"{np.mean(relative > 1 + LOST):5.0%} {max(relative.max() - 1, 0.0):8.1%}"


def main():
    systems = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    policies = tuple(sys.argv[2:]) or POLICIES
    for title, assumptions in (("physical", {}), ("physical, decisions free", {"decision_cost": "free"})):
        found = times(systems, policies, **assumptions)
        print(f"\n{title}, {systems} systems: share that loses over 1 %, largest loss")
        heads = f"links x {FASTER}", "against ep", "mean", f"the same, x {FASTER}", "mean"
        print("{:<14} {:>14}   {:>14} {:>7}   {:>14} {:>7}".format("", *heads))
        for name, own in zip(policies, found[1:], strict=True):
            columns = [lost(own[1] / own[0])]
            for relative in own / found[0]:
                columns.append(f"{lost(relative)} {np.exp(np.log(relative).mean()) - 1:7.1%}")
            print(f"{name:<14} {'   '.join(columns)}")


if __name__ == "__main__":
    main()
