"""The analytical engine: the event engine whose steps take the duration of their walk
(``archsim.engine.analytic.walk``).
"""

from collections.abc import Callable, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np

from archsim.base import causes, errors, sums
from archsim.engine.analytic import count, slices, walk
from archsim.engine.engine import EventEngine
from archsim.engine.state import COMBINE, UNITS, Machine, Memory, StepWork, Tally
from archsim.specs.assumptions import AssumptionsSpec
from archsim.specs.scenario import Scenario
from microarch.blocks.hbm import SLICES

PARTS_OF_PRODUCTS = MappingProxyType(
    {
        "multiply_ns": causes.Cause.COMPUTE,
        "bytes_ns": causes.Cause.HBM,
        "permute_ns": causes.Cause.PERMUTE,
        "started_ns": causes.Cause.LAUNCH,
        "block_ns": causes.Cause.BLOCKS,
    }
)
PHASES = 3  # rows of the loads, see archsim.engine.analytic.walk


class WalkKernel:
    """Runs steps by walking them."""

    def __init__(self, machine: Machine, assumptions: AssumptionsSpec):
        self._machine, self._contention = machine, assumptions.contention
        self._strategy = walk.walk_strategy(assumptions)
        self._loads = np.zeros((PHASES, machine.resources))

    def step(self, work: StepWork, memory: Memory, tally: Tally, begin_ns: float) -> float:
        """Walk one step; returns its end in ns."""
        walked = walk.walk_step(self._machine, work, memory, self._strategy)
        count.count_step(self._machine, work, walked.fetches, tally, self._loads, self._contention == "reserved")
        self._explain(work, walked, tally)
        return begin_ns + walked.ns

    def _explain(self, work: StepWork, walked: walk.WalkedStep, tally: Tally) -> None:
        """Attribute the step's time to what the die that finishes last was doing.

        Waiting for slices is attributed to the links if the most loaded link is busy longer than the most loaded HBM,
        else to the HBMs.
        """
        dies, bound_ns = self._machine.dies, tally.bound_ns
        die = int(walked.dies["array"].argmax())
        last = walked.dies[die]
        every = self._loads.sum(axis=0)
        hbm_ns, link_ns = every[slices.HBMS * dies : slices.ARRAYS * dies].max(), every[UNITS * dies :].max(initial=0.0)
        own = work.entries[work.entries["die"] == die]
        did_ns = {cause: SLICES * float(own[part].sum()) for part, cause in PARTS_OF_PRODUCTS.items()}
        did_ns[causes.Cause.INEFFICIENCY] = max(0.0, last["busy"] - sums.sum(did_ns.values()))
        did_ns[causes.Cause.LAUNCH] += last["launch"]
        for cause, ns in did_ns.items():
            bound_ns[cause] += ns
        bound_ns[causes.Cause.ACTIVATIONS] += last["held"]
        waiting_ns = last["array"] - sums.sum(did_ns.values()) - last["held"]
        bound_ns[causes.Cause.LINK if link_ns > hbm_ns else causes.Cause.HBM] += waiting_ns
        computing = (last["busy"] + last["launch"]) / last["array"] if last["array"] else 0.0
        for i, residual_ns in enumerate((own["low_ns"].sum(), own["high_ns"].sum())):
            # scaled by the share of time that the step waits for its GEMMs
            tally.residual_ns[i] += SLICES * residual_ns * computing
        returning = work.moves[COMBINE].size > 0
        bound_ns[causes.Cause.ACTIVATIONS if returning else causes.Cause.LLC] += walked.ns - last["array"]

    def log(self, begin_ns: float) -> dict[str, np.ndarray]:
        """Raises ArchsimError: a walk keeps no log."""
        raise errors.ArchsimError("the analytical engine keeps no log of a step; a timeline needs engine: event")


class AnalyticalEngine(EventEngine):
    """Runs steps of a scenario by walking them; see ``EventEngine``."""

    name = "analytical"
    analytical = True

    def __init__(self, scenario: Scenario, layer_ids: Sequence[int] | None = None):
        super().__init__(scenario, layer_ids)
        self.tally.resources["wait_ns"] = np.nan  # bookings do not show what waited

    def count_anew(self) -> None:
        super().count_anew()
        self.tally.resources["wait_ns"] = np.nan

    def _kernels(self) -> Callable[[], WalkKernel]:
        return partial(WalkKernel, self.machine, self.scenario.assumptions)
