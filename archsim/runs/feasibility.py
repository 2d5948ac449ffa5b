"""Checks before anything runs: models fit into the HBM of systems."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from archsim.base.errors import CapacityError
from archsim.base.sums import sum
from archsim.iteration.memory import KV, Fit, fit_of
from archsim.iteration.misfit import refuse_misfit
from archsim.iteration.rank_memory import ACTIVATIONS, ATTENTION, EXPERTS, SHARED, KvRoom
from archsim.policies.placement import Placement
from archsim.policies.registry import place_experts
from archsim.runs.run import LONGEST, Run


class MemoryUse(NamedTuple):
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


def uncounted_notes(rooms: Iterable[MemoryUse]) -> list[str]:
    """Sentences on what ``memory: all`` does not count: the KV cache at context 0, and models of unknown attention."""
    notes: dict[str, None] = {}
    for run, fit in ((room.run, room.fit) for room in rooms):
        if run.assumptions.memory == "all" and run.model.missing_geometry:
            missing = ", ".join(run.model.missing_geometry)
            notes[f"Only the experts of {run.model.name} are counted, as the model lacks {missing}."] = None
        elif fit.context == 0:
            notes["HBM holds no KV cache, as workload.context is 0."] = None
        elif fit.context is not None and run.context_from == LONGEST:
            longest = "every request holds as much KV cache as the longest of its batch"
            notes[f"workload.context is not given, so {longest}."] = None
    return list(notes)


def rooms(runs: Iterable[Run]) -> Iterator[MemoryUse]:
    for run in runs:
        placement, fit = _placement_of(run)
        problem = None
        try:
            refuse_misfit(run, placement)
        except CapacityError as error:
            problem = str(error)
        yield MemoryUse(run, fit, run.assumptions.capacity == "finite", problem)


MOST_ROOMS = 8  # that are named one by one


def kv_room_notes(runs: Iterable[Run]) -> list[str]:
    """What HBM of a device leaves for KV, where it is counted: a sentence for each model and system of several, of the
    policy and assumptions that leave least. Of more than `MOST_ROOMS`, the least and the most.
    """
    least: dict[tuple[str, str], KvRoom] = {}
    for run in runs:
        room, of = _placement_of(run)[1].kv_room, (run.model.name, run.system.name)
        if room is not None and (of not in least or room.free_bytes < least[of].free_bytes):
            least[of] = room
    if len(least) == 1:
        return [room.report for room in least.values()]
    lines = [f"{model} on {system}: {room.report}" for (model, system), room in least.items()]
    if len(lines) <= MOST_ROOMS:
        return lines
    free = [room.free_bytes for room in least.values()]
    few, most = lines[free.index(min(free))], lines[free.index(max(free))]
    return [f"The least room of {len(lines):,} machines and models: {few}", f"The most room: {most}"]


def doubts_sentence(runs: Iterable[Run]) -> list[str]:
    found = dict.fromkeys(_placement_of(run)[1].doubtful(f"{run.model.name} on {run.system.name}") for run in runs)
    return [each for each in found if each][:MOST_ROOMS]


def _placement_of(run: Run) -> tuple[Placement, Fit]:
    placement = place_experts(run.policy, run.model, run.system.dies)
    return placement, fit_of(run, placement)


"""(path, model name) → trace that is open."""
