"""Checks before anything runs: models fit into the HBM of systems, fabrics match the assumptions."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from archsim.base.errors import ArchsimError, CapacityError
from archsim.engine.event.transfers import port_ranks
from archsim.engine.fabric import build_fabric
from archsim.iteration.account import ACTIVATIONS, ATTENTION, EXPERTS, SHARED
from archsim.iteration.account import Room as KvRoom
from archsim.iteration.memory import KV, Fit, fit_of
from archsim.iteration.refusal import refuse_misfit
from archsim.policies.placement.placement import Placement
from archsim.policies.registry import place_experts
from archsim.runs.run import LONGEST, Run


@dataclass(frozen=True)
class Room:
    """Memory use of a run. problem: why it is refused, or None. bounded: whether the limit applies."""

    run: Run
    fit: Fit
    bounded: bool
    problem: str | None

    @property
    def fullest_die(self) -> int:
        return int(self.fit.demand_bytes.argmax())

    @property
    def demand_bytes(self) -> int:
        return int(self.fit.demand_bytes.max())

    @property
    def experts_bytes(self) -> int:
        """Routed and shared experts on the fullest die."""
        return sum(self._of(kind) or 0 for kind in (EXPERTS, SHARED))

    @property
    def attention_bytes(self) -> int | None:
        """Attention, dense layers and embeddings on it; None if they are not counted."""
        return self._of(ATTENTION)

    @property
    def kv_bytes(self) -> int | None:
        """KV cache and activations on it; None if they are not counted."""
        return None if KV not in self.fit.parts else (self._of(KV) or 0) + (self._of(ACTIVATIONS) or 0)

    def _of(self, kind: str) -> int | None:
        return int(self.fit.parts[kind][self.fullest_die]) if kind in self.fit.parts else None


def uncounted(rooms: Iterable[Room]) -> list[str]:
    """Sentences on what ``memory: all`` does not count: the KV cache at context 0, and models of unknown attention."""
    notes = {}
    for run, fit in ((room.run, room.fit) for room in rooms):
        if run.assumptions.memory == "all" and run.model.missing_geometry:
            missing = ", ".join(run.model.missing_geometry)
            notes[f"{run.model.name}: experts alone are counted, as the model lacks {missing}"] = None
        elif fit.context == 0:
            notes["workload.context is 0: HBM holds no KV cache"] = None
        elif fit.context is not None and run.context_from == LONGEST:
            notes["workload.context is not given: requests hold as much KV cache as the longest of their batch"] = None
    return list(notes)


def rooms(runs: Iterable[Run]) -> Iterator[Room]:
    """The room of every run."""
    for run in runs:
        placement, fit = _placed(run)
        problem = None
        try:
            refuse_misfit(run.scenario, placement)
        except CapacityError as error:
            problem = str(error)
        yield Room(run, fit, run.assumptions.capacity == "finite", problem)


def kv_rooms_told(runs: Iterable[Run]) -> list[str]:
    """What HBM of a device leaves for KV, where it is counted: a sentence for each model and system of several, of the
    policy and assumptions that leave least.
    """
    least: dict[tuple[str, str], KvRoom] = {}
    for run in runs:
        room, of = _placed(run)[1].kv_room, (run.model.name, run.system.name)
        if room is not None and (of not in least or room.free_bytes < least[of].free_bytes):
            least[of] = room
    alone = len(least) == 1
    return [room.told if alone else f"{model} on {system}: {room.told}" for (model, system), room in least.items()]


def _placed(run: Run) -> tuple[Placement, Fit]:
    placement = place_experts(run.policy, run.model, run.system.dies)
    return placement, fit_of(run.scenario, placement)


def refuse_misroutes(runs: Iterable[Run]) -> None:
    """Raises ArchsimError with a line for every fabric that the assumption ``arbitration`` of its runs does not
    support.
    """
    problems = {}
    for run in runs:
        if run.assumptions.contention == "shared" and run.assumptions.arbitration == "round_robin":
            try:
                port_ranks(build_fabric(run.system, run.assumptions.numbering))
            except ArchsimError as error:
                problems[f"{run.system.name}: {error}"] = None
    if problems:
        raise ArchsimError("\n".join(problems))
