"""The engines that simulate runs: a row each. What runs them, and what says how long they take, reads this table."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class EngineRow(NamedTuple):
    """An engine under its name in experiments."""

    target: str  # module:class, imported when a run takes it
    event_ns: Mapping[str, float] | None  # assumption contention → host time of an event; None: it has no events


ENGINES = MappingProxyType({
    "event": EngineRow("archsim.engine.engine:EventEngine", {"reserved": 0.8e3, "shared": 2.5e3}),
    "analytical": EngineRow("archsim.engine.analytic.engine:AnalyticalEngine", None),
    # Written in Python.
    "interpreted": EngineRow(
        "archsim.engine.interpreted.engine:InterpretedEngine", {"reserved": 40e3, "shared": 150e3}
    ),
})  # fmt: skip
