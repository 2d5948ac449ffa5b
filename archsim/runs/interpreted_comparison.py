"""Records of the interpreter beside those of the event engine."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from archsim.runs.run import Run
from archsim.runs.simulator import Simulator

NOT_OF_RESULTS = ("events",)  # how an engine worked, not what it found


class Largest(NamedTuple):
    """The column in which the compiled kernels and the interpreter differ most."""

    run: str  # its name
    column: str  # its name
    event: float  # value by the compiled kernels
    interpreted: float  # value by the interpreter
    share: float  # difference over the first


def compare_interpreted(runs: Iterable[Run], simulator: Simulator) -> Iterable[Largest]:
    """Each run with the compiled kernels and in the interpreter, over all columns of numbers, as they finish."""
    for run in runs:
        event, interpreted = (
            simulator.record(replace(run, engine=engine))["row"] for engine in ("event", "interpreted")
        )
        numbers = [
            (name, value, interpreted[name])
            for name, value in event.items()
            if isinstance(value, int | float) and name not in NOT_OF_RESULTS
        ]
        yield max(
            (Largest(run.name, name, one, other, _share(one, other)) for name, one, other in numbers),
            key=lambda each: each.share,
        )


def _share(one: float, other: float) -> float:
    if one == other or (one != one and other != other):
        return 0.0
    return abs(other - one) / max(abs(one), 1e-3)
