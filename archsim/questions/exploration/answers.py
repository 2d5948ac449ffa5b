"""What was asked, and the design that answers it; designs that have the same values, and what differs among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from archsim.questions.exploration.candidates import Candidate, Exploration

DIGITS = 9  # of values that are the same


@dataclass(frozen=True)
class EqualDesigns:
    """Designs of a model with equal objectives. ``point``: the first; ``axes``: in which others differ."""

    point: Candidate
    others: tuple[Candidate, ...]
    axes: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """``points 8, 12 (llc.capacity)``; empty for a design without equal ones."""
        if not self.others:
            return ""
        numbers = ", ".join(str(each.index) for each in self.others[:6]) + (", …" if len(self.others) > 6 else "")
        return f"{'point' if len(self.others) == 1 else 'points'} {numbers} ({', '.join(self.axes)})"


def merge_equal(points: Sequence[Candidate], objectives: Sequence[str]) -> list[EqualDesigns]:
    """The points, those with the same values as one; in the order of their first."""
    groups: dict[tuple, list[Candidate]] = {}
    for point in points:
        values = tuple(f"{point.values[name]:.{DIGITS}g}" for name in objectives)
        groups.setdefault((point.model, *values), []).append(point)
    return [_as_one(group) for group in groups.values()]


def collapse_sentence(points: Sequence[Candidate], objectives: Sequence[str]) -> str:
    """How many distinct designs these are, and which axes change none of them; empty if all are distinct."""
    groups = merge_equal(points, objectives)
    several = [group for group in groups if group.others]
    if not several:
        return ""
    axes = list(dict.fromkeys(axis for group in several for axis in group.axes))
    return (
        f"{len(points)} designs on the front have {len(groups)} different values: the others differ in "
        f"{', '.join(axes)}, which changes nothing there. They are listed with the first of each"
    )


def wanted_designs(found: Exploration) -> dict[str, Candidate]:
    """Heading → design: within each budget the best by the first objective, then the best by every objective; with
    several models, of each.
    """
    first = found.spec.objectives[0]
    named: dict[str, Candidate | None] = {}
    for model in found.models:
        of = f", {model}" if len(found.models) > 1 else ""
        named |= {f"{budget_of(first, text)}{of}": found.best(text, first, model) for text in found.spec.budgets}
        named |= {f"best {name}{of}": found.best(None, name, model) for name in found.spec.objectives}
    return {heading: point for heading, point in named.items() if point is not None}


def budget_of(objective: str, text: str) -> str:
    return f"best {objective} with {text}"


def _as_one(group: Sequence[Candidate]) -> EqualDesigns:
    first, *others = group
    differing = tuple(axis for axis in first.axes if any(each.axes[axis] != first.axes[axis] for each in others))
    return EqualDesigns(first, tuple(others), differing)
