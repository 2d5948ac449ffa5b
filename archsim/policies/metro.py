"""METRO: an expert runs on one of its holders, such that dies run equally many experts (arXiv 2512.09277).

In decode a die's time is that of reading the weights of the experts that it runs, however few tokens each has, and
dividing an expert's tokens among its holders makes all of them read it. Experts with the fewest holders choose first,
then those with most tokens; each takes the holder that runs the fewest experts so far, ties to the one with the fewest
tokens, then to the lowest.
"""

import numpy as np

from archsim.policies.allocation import Effort, Plan, StepView


def metro(step: StepView) -> Plan:
    active = np.flatnonzero(step.tokens)
    holders = step.holders[active].sum(axis=1)
    order = np.lexsort((active, -step.tokens[active], holders))
    experts, tokens = np.zeros((2, step.holders.shape[1]), np.int64)
    die = np.zeros(len(active), np.int32)
    for at in order.tolist():
        expert = active[at]
        of = np.flatnonzero(step.holders[expert])
        die[at] = of[np.lexsort((of, tokens[of], experts[of]))[0]]
        experts[die[at]] += 1
        tokens[die[at]] += step.tokens[expert]
    effort = Effort(True, len(active), holders[order].astype(np.int64), np.ones(len(active), np.int64))
    return Plan(active.astype(np.int32), die, step.tokens[active].astype(np.int32), effort)
