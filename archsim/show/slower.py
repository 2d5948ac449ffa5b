"""The page section on policies slower than plain expert parallelism at the same place: where, by how much, what takes
longer, and what their rule does not see.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from archsim.base.causes import CAUSES
from archsim.base.sums import sum
from archsim.runs.policy_notes import SLOWER, grown
from archsim.runs.results import Row
from archsim.show.balancers import PLACE, REFERENCE, gain, places_with_reference
from archsim.show.units import percent
from archsim.specs import policies
from archsim.specs.assumptions import AssumptionsSpec

STEPS = (0.05, 0.15, 0.35)  # losses from which a cell is redder
# What the engine charges and an allocation does not weigh (docs/policies.md), where assumptions have these values.
VECTORS = "hidden vectors", {"activations": "dispatched"}
KERNELS = "times of kernels", {"gemm": "grouped"}
LINKS: tuple[str, Mapping[str, str]] = ("links that pairs share", {})
UNSEEN: Mapping[str, tuple[tuple[str, Mapping[str, str]], ...]] = {
    "first_seen": (("anything but the order of experts: weights, links, balance", {}),),
    "home": (("how the load is divided", {}),),
    "isca26": (VECTORS, LINKS, KERNELS),
    "paper": (VECTORS, LINKS, ("HBM reads for others", {}), KERNELS),
    "copy_aware": (VECTORS, LINKS, KERNELS),
    "lp": (("what its solver takes", {"decision_cost": "charged"}),),
}
NOTHING = "–"
OTHER = "the time of a step: it balances numbers of tokens"


@dataclass(frozen=True)
class Slower:
    """``lost``: in how many runs; ``loss``, ``place``, ``longer``: of the worst; ``step``: 1 … 4 of the red scale."""

    policy: str
    lost: str
    loss: str
    place: str
    step: int
    longer: str
    unseen: str


def slower_section(
    rows: Iterable[Row], policies: Iterable[policies.PolicySpec], assumptions: Mapping[str, AssumptionsSpec]
) -> dict[str, Any] | None:
    """What the section shows; None where no run is slower than ``ep``. assumptions: by label."""
    rules = {each.name: each.allocation.name for each in policies}
    compared = [
        (place, row, runs[REFERENCE])
        for place, runs in places_with_reference(rows).items()
        for name, row in runs.items()
        if name != REFERENCE
    ]
    lost = sorted((each for each in compared if gain(*each[1:]) < SLOWER), key=lambda each: gain(*each[1:]))
    if not lost:
        return None
    runs = Counter(row["policy"] for _, row, _ in compared)
    of_policy: dict[str, list[tuple[tuple, Row, Row]]] = {}
    for each in lost:
        of_policy.setdefault(each[1]["policy"], []).append(each)
    varies = [at for at in range(len(PLACE)) if len({place[at] for place, _, _ in compared}) > 1]
    shown = []
    for name, worst in of_policy.items():
        place, row, ep = worst[0]
        where = ", ".join(f"{PLACE[at]} {place[at]}" if PLACE[at] == "batch" else str(place[at]) for at in varies)
        unseen = _unseen(rules.get(name, ""), assumptions[row["assumptions"]])
        shown.append(_slower(f"{len(worst)} of {runs[name]}", where, row, ep, unseen))
    return {"rows": shown, "lost": len(lost), "compared": len(compared)}


def _unseen(rule: str, assumptions: AssumptionsSpec) -> str:
    """What the rule does not see of what is charged under these assumptions."""
    if rule not in UNSEEN:
        return OTHER
    parts = [
        part
        for part, needs in UNSEEN[rule]
        if all(getattr(assumptions, field) == value for field, value in needs.items())
    ]
    return ", ".join(parts) or NOTHING


def _slower(lost: str, place: str, row: Row, ep: Row, unseen: str) -> Slower:
    loss = 1 / gain(row, ep) - 1
    step = 1 + sum(loss >= least for least in STEPS)
    return Slower(row["policy"], lost, percent(loss, 1), place, step, _longer(row, ep), unseen)


def _longer(row: Row, ep: Row) -> str:
    """The cause on the critical path that grew most, relative to the time of ``ep``."""
    found = grown(row, ep, 1 / gain(row, ep))
    return f"{CAUSES[found[0]].label}: +{percent(found[1], 1)}" if found else ""
