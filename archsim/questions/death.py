"""What a die that dies tonight costs: the steps before, after, and once the policy has placed anew; and the moves."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from archsim.base import errors, units
from archsim.engine import state, weight_moves
from archsim.machine.as_built import DiesAsBuiltSpec
from archsim.machine.system import SystemSpec
from archsim.policies.placement import Placement, moves_between
from archsim.runs.plan import prepare
from archsim.runs.run import Run
from archsim.runs.simulator import Simulator
from archsim.show.units import carried_digits, change_text
from archsim.specs.experiment import ExperimentSpec
from archsim.uncertainty.ranges import WORLDS, shorten
from archsim.uncertainty.worlds import Worlds
from microarch.fabric.grid import ROW_MAJOR


@dataclass(frozen=True)
class Death:
    """A die dies: what its experts take on others, and what moving them takes. Times of iterations are of decode."""

    die: int  # that dies
    dies: int  # of the machine
    before_ns: float  # an iteration with all dies
    after_ns: float  # with the dead die's experts on the dies with fewest
    balanced_ns: float  # under the policy's placement for the dies that are left
    lost: int  # experts of which no copy was left
    lost_bytes: int  # of these, which come from outside
    lost_ns: float  # that they take over the host's link
    moved_bytes: int  # from die to die for the last placement
    moved_ns: float  # that these take
    after_change: tuple[float, float, float]  # of the step, relative: 5 %, as it is, and 95 % of the samples
    balanced_change: tuple[float, float, float]  # of `balanced_ns`, in the same samples
    won: tuple[float, float, float]  # by which the latter is less than the former in the same sample
    samples: int  # of all numbers that have a range

    @property
    def steps(self) -> int | None:
        """Iterations after which the moves have won back their time; None where the step may be no faster."""
        won_ns = self.after_ns - self.balanced_ns
        return math.ceil(self.moved_ns / won_ns) if won_ns > 0 and self.won[0] >= 0 else None

    @property
    def lines(self) -> list[str]:
        within = f" in 90\u00a0% of {self.samples} samples" if self.samples else ""
        change = change_text(self.after_change, within), change_text(self.balanced_change)
        lost = f"{self.lost} experts lose their only copy: {self.lost_bytes / 1e9:,.2f} GB come from outside"
        moved = f"{self.moved_bytes / 1e9:,.2f} GB move between dies, {self.moved_ns / 1e6:,.2f} ms alone on the links"
        times = (self.before_ns / 1e6, self.after_ns / 1e6, self.balanced_ns / 1e6)
        before, after, balanced = (carried_digits(each, min(times), max(times)) for each in times)
        instead = f"{after} ms as before" if after == before else f"{after} instead of {before} ms"
        steps = f"{self.steps:,} decode step{'' if self.steps == 1 else 's'}" if self.steps else ""
        if self.won[0] < 0 < self.won[2]:
            do = "which of them is faster is not decided"
            why = f"after which a step takes {change_text((-self.won[2], -self.won[1], -self.won[0]))} time"
        elif self.steps is None:
            do, why = "leave the other experts where they are", "and the step is no faster after it"
        elif steps:
            do, why = f"take that placement if the die stays dead for {steps} or more", f"won back after {steps}"
        else:
            do, why = "take that placement at once", "won back at once"
        return [
            f"If die {self.die} of {self.dies} fails, a decode step takes {change[0]} time with its experts on the "
            f"dies with fewest ({instead}, by the MoE layers that ran), and {change[1]} "
            f"({balanced} ms) with the policy's placement for {self.dies - 1} dies: {do}.",
            f"fewest:    {lost}" + (f", {self.lost_ns / 1e6:,.0f} ms over the host's link" if self.lost else ""),
            f"placement: {moved}, {why}",
        ]


def death_of(experiment: ExperimentSpec, die: int, samples: int = WORLDS) -> Death:
    """What the death of a die does to an experiment with one of each (``archsim.runs.choice.choose``), whose machine
    loses a die, in so many samples. Raises SpecError for a die that does not work already, or without which the
    machine does not.
    """
    numbered = experiment.assumptions[0].model_copy(update={"numbering": ROW_MAJOR})  # that of machines with defects
    experiment = experiment.model_copy(update={"assumptions": (numbered,)})
    system = experiment.systems[0]
    living = list(range(system.sites)) if system.built is None else list(system.built.living)
    if die not in living:
        near = min(living, key=lambda other: abs(other - die))
        raise errors.SpecError(
            f"die {die} is none of the {len(living)} that work of {system.name}; the nearest is {near}"
        )
    own = system.dies_as_built or DiesAsBuiltSpec()
    dead = own.model_copy(update={"dead": (*own.dead, die)})
    less = SystemSpec.model_validate(system.model_copy(update={"dies_as_built": dead}).model_dump(by_alias=True))
    before, after = (prepare(experiment.model_copy(update={"systems": (each,)})) for each in (system, less))
    whole = Simulator(before.traces).replay(before.runs[0])
    held = np.delete(whole.engine.placement.holds, living.index(die), axis=2)
    adopted, lost = _adopt(held)
    simulator = Simulator(after.traces)
    balanced, orphaned = (simulator.replay(after.runs[0]) for _ in range(2))
    orphaned.engine.use(adopted)
    engine = orphaned.engine
    moves = moves_between(adopted, balanced.engine.placement, engine.expert_bytes, engine.fabric.hops)
    mover = weight_moves.WeightMover(engine.machine, engine.fabric, state.new_tally(engine.machine))
    transfer = mover.transfer(moves["src"], moves["dst"], engine.expert_bytes)
    steps = max(1, experiment.workload.decode_steps)
    before_ns, after_ns, balanced_ns = (float(each.run().decode_ns) / steps for each in (whole, orphaned, balanced))
    changes = (after_ns / before_ns - 1, balanced_ns / before_ns - 1, (after_ns - balanced_ns) / before_ns)
    off = _off(simulator, before.runs[0], after.runs[0], adopted, samples) if samples else np.zeros((1, 3))
    low, high = np.minimum(0, np.quantile(off, 0.05, axis=0)), np.maximum(0, np.quantile(off, 0.95, axis=0))
    ranges = [(value + float(low[at]), value, value + float(high[at])) for at, value in enumerate(changes)]
    lost_bytes = lost * engine.expert_bytes
    host = system.decision.host.pcie_bandwidth_bytes_per_s
    return Death(
        die=die, dies=len(living), before_ns=before_ns, after_ns=after_ns, balanced_ns=balanced_ns, lost=lost,
        lost_bytes=lost_bytes, lost_ns=lost_bytes / host * units.NS_PER_S, moved_bytes=transfer.total_bytes,
        moved_ns=transfer.ns, after_change=ranges[0], balanced_change=ranges[1], won=ranges[2], samples=samples,
    )  # fmt: skip


def _off(simulator: Simulator, before: Run, after: Run, adopted: Placement, samples: int) -> np.ndarray:
    """float64[sample, 3]: how far the change of time is from that of the machine as it is, with the placement
    ``adopted`` and with the policy's own, and how far the first less the second is, in short runs
    (`archsim.uncertainty.ranges.shorten`).
    """
    worlds, runs = Worlds([before, after], samples), [shorten(before), shorten(after)]
    changes = []
    for whole, less in zip(*([run, *worlds.runs(run, run.engine)] for run in runs), strict=True):
        replays = [simulator.replay(run) for run in (whole, less, less)]
        held = replays[1].engine.placement.home.shape[0]
        replays[1].engine.use(Placement(adopted.home[:held], adopted.holds[:held]))
        ns = [float(each.run().decode_ns) for each in replays]
        changes.append([ns[1] / ns[0] - 1, ns[2] / ns[0] - 1, (ns[1] - ns[2]) / ns[0]])
    return np.array(changes[1:]) - changes[0]


def _adopt(held: np.ndarray) -> tuple[Placement, int]:
    """(placement with unheld experts on the emptiest dies, lowest first; how many). held: bool[layer, expert, die]."""
    held, lost = held.copy(), 0
    for layer in held:
        for expert in np.flatnonzero(~layer.any(axis=1)):
            layer[expert, int(layer.sum(axis=0).argmin())] = True
            lost += 1
    return Placement(held.argmax(axis=2).astype(np.int32), held), lost
