"""What an interpreted step leaves behind: a stage for each activity, and a transition for each answer of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class Transition(NamedTuple):
    """What a table answered."""

    time: float  # ns, on the clock of the step
    table: str  # ``request`` or ``local_cp``
    state: Any  # before
    event: Any  # that ended it
    next: Any  # state after
    item: int  # chain or move; the die for a Local CP


@dataclass(eq=False)
class Stage:
    """One activity: an item in a state, from ``start`` (before: the earliest) to ``end``."""

    number: int  # in order of creation
    state: Any  # of the request
    item: int  # chain or move
    parent: Stage | None  # the stage that it follows; None: the first
    start: float  # ns; before it begins, the earliest
    end: float = 0.0  # ns
    event: Any = None  # that ended it
    next: Any = None  # state that follows
    floor: float = 0.0  # Reserved: a compute stage does not end before its last segment is there
    reader: int = -1  # LLC_FILL: the die whose HBM the slice came from
    ns: float = 0.0  # for which its block holds it
    cause: Stage | None = None  # what it had to wait for: its parent, or the last user of a resource
    # Shared
    bound_from: float = 0.0  # from when on the step waited for it; before, for its cause
    hbm_ns: float = 0.0  # time in which an HBM, not a link, limited its flow
    # Reserved
    resources: tuple = ()
    priority: int = 0  # of its claims: higher first
    tie: int = 0  # breaks ties of time, lower first
    arrival: int = 0  # order in which it came to its queues
    admitted: bool = False  # whether it has all of its resources
    home_hit: bool = False  # LOOKUP: the home's LLC has the slice

    @property
    def before(self) -> Stage:
        """The stage that it follows. Only the first stage of a slice or a bundle follows none."""
        assert self.parent is not None
        return self.parent

    def __lt__(self, other: Stage) -> bool:
        return (self.start, self.tie) < (other.start, other.tie)
