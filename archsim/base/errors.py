"""Errors raised when the input, not the program, is at fault.

Every message says where (file, line, key or request), what was found, what was expected and, if there is one,
the nearest valid name. The command line prints the message alone; a traceback always means a defect in archsim.
"""


class ArchsimError(Exception):
    """Base class of all errors that a user can fix."""


class FailedRuns(ArchsimError):
    """Some runs of a sweep failed; the others are kept."""


class SpecError(ArchsimError):
    """A YAML file, an override or a name in it is not valid."""


class TraceError(ArchsimError):
    """A routing trace is malformed or does not belong to the model."""


class CapacityError(ArchsimError):
    """A model does not fit into the memory of the machine."""


class PlacementError(ArchsimError):
    """A placement of experts is malformed, or does not belong to the model or to the number of ranks."""
