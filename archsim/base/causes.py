"""What the time of a step goes to. Columns (``bound_*``), pages, notes and the glossary all read this one table."""

from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple


class Cause(IntEnum):
    """Row of ``archsim.engine.state.Tally.bound_ns``."""

    COMPUTE = 0
    INEFFICIENCY = 1
    PERMUTE = 2
    LAUNCH = 3
    BLOCKS = 4
    HBM = 5
    LINK = 6
    LLC = 7
    ACTIVATIONS = 8
    DECISION = 9

    @property
    def column(self) -> str:
        """The end of the names of its columns: ``bound_hbm``."""
        return self.name.lower()


class About(NamedTuple):
    """``label``: on pages; ``meaning``: before "takes 12 % of the critical path"; ``doing``: after "A step spends 12 %
    of its time"; ``colour``: CSS variable.
    """

    label: str
    meaning: str
    doing: str
    colour: str


CAUSES = MappingProxyType(
    {
        Cause.COMPUTE: About(
            "multiply",
            "multiplying (FLOP of measured kernels at the die's peak)",
            "multiplying",
            "--compute",
        ),
        Cause.INEFFICIENCY: About(
            "kernel inefficiency",
            "what measured kernels lose against peak",
            "in kernels that stay below the peak",
            "--loss",
        ),
        Cause.PERMUTE: About(
            "permute and finalise",
            "permuting, quantising and finalising tokens",
            "permuting and finalising tokens",
            "--permute",
        ),
        Cause.LAUNCH: About("launch", "launching kernels", "launching kernels", "--launch"),
        Cause.BLOCKS: About("own blocks", "passing the blocks that the system adds", "in your own blocks", "--block"),
        Cause.HBM: About("HBM", "HBM", "waiting for HBM", "--hbm"),
        Cause.LINK: About("links", "moving weights over links", "waiting for links", "--from-link"),
        Cause.LLC: About("LLC", "the LLC", "waiting for the LLC", "--llc"),
        Cause.ACTIVATIONS: About(
            "dispatch and combine",
            "dispatching and combining hidden vectors",
            "dispatching and combining hidden vectors",
            "--act",
        ),
        Cause.DECISION: About("decision", "deciding", "waiting for decisions", "--dec"),
    }
)  # in the order of columns and bars


# Label of a cause → what a step does meanwhile.
DOING = MappingProxyType({about.label: about.doing for about in CAUSES.values()})


def label_of(column: str) -> str:
    return CAUSES[Cause[column.upper()]].label
