"""Checks before anything runs: models fit into the HBM of systems, fabrics match the assumptions."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import exp
from typing import Any, NamedTuple

import numpy as np

from archsim.base.errors import ArchsimError, CapacityError, SpecError, in_words, spoken
from archsim.base.host import machine_bytes
from archsim.base.sums import sum
from archsim.engine.fabrics import build_fabric, extent_of
from archsim.engine.flows.link_order import port_ranks
from archsim.iteration.memory import KV, Fit, counts_all, depends_on_requests, fit_of, memory_fit
from archsim.iteration.misfit import refuse_misfit
from archsim.iteration.rank_memory import ACTIVATIONS, ATTENTION, EXPERTS, SHARED, KvRoom
from archsim.policies.placement import Placement
from archsim.policies.registry import place_experts
from archsim.runs.energy import SystemHardware, build_costs
from archsim.runs.run import LONGEST, Run
from archsim.specs.axes import Axis
from archsim.specs.engines import ENGINES
from archsim.specs.plan import Point, SweepPlan, spread
from archsim.specs.system import SystemSpec
from archsim.specs.workload import WorkloadSpec
from archsim.workload.trace import Trace, draw_requests
from archsim.workload.traffic_presets import generated_traffic
from microarch.fabric.fabric import Fabric, number_type
from microarch.fabric.grid import ROW_MAJOR


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
    """The room of every run."""
    for run in runs:
        placement, fit = _placement_of(run)
        problem = None
        try:
            refuse_misfit(run, placement)
        except CapacityError as error:
            problem = str(error)
        yield MemoryUse(run, fit, run.assumptions.capacity == "finite", problem)


MOST_ROOMS = 8  # that are named one by one


def kv_rooms_told(runs: Iterable[Run]) -> list[str]:
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


def doubts_told(runs: Iterable[Run]) -> list[str]:
    """The notes of runs that fit in some samples alone; the first `MOST_ROOMS`."""
    found = dict.fromkeys(_placement_of(run)[1].doubtful(f"{run.model.name} on {run.system.name}") for run in runs)
    return [each for each in found if each][:MOST_ROOMS]


def _placement_of(run: Run) -> tuple[Placement, Fit]:
    placement = place_experts(run.policy, run.model, run.system.dies)
    return placement, fit_of(run, placement)


def refuse_misroutes(runs: Iterable[Run]) -> None:
    """Raises ArchsimError with a line for every fabric that the assumption ``arbitration`` of its runs does not
    support.
    """
    problems: dict[str, None] = {}
    for run in runs:
        if run.assumptions.contention == "shared" and run.assumptions.arbitration == "round_robin":
            try:
                port_ranks(build_fabric(run.system, run.assumptions.numbering))
            except ArchsimError as error:
                problems[f"{run.system.name}: {error}"] = None
    if problems:
        raise ArchsimError("\n".join(problems))


# What simulating takes on this machine, before it is spent: events, time and memory, by formula.
#
# The constants are fits to ``benchmarks/estimates.py``, which prints estimate and measurement of runs on 3 × 3 to 9 × 9
# dies beside each other, and to ``benchmarks/big_fabrics.py``: meshes of up to 64 × 64 dies, tori, rings and switches
# of up to 32 × 32, fully connected dies of up to 40 × 40. Of these, events and memory are within a third; time within a
# factor of `SPREAD`, without the second or two in which a command starts. A user's own fabric function may make more
# links than are counted.

SPREAD = 3.0  # of time, either way
_RUN_NS, _STEP_NS = 25e6, 0.5e6  # a run and a step of a layer, whatever happens in them
_EVENTS_PER_EXPERT = 20.0  # an expert's reads, multiplication and reports, under any assumptions
_EVENTS_PER_PAIR = 4.0  # hidden vectors from one die to another and back
_ROUTE_LINK_NS = 20.0  # a link of a route, when the fabric is built; 64 × 64 dies
# A link of the fabric, whose ends, class, counts and share of the network are built; fully connected dies.
_LINK_NS = {"reserved": 2e3, "shared": 4e3}
_LINK_BYTES = {"reserved": 730.0, "shared": 1440.0}
_PROCESS_BYTES = 0.3e9  # Python with its libraries and compiled kernels
# Numbers kept of a link of a route, with its edge where links are reserved; and a pair of dies: costs, counts, and
# groups of flows.
_ROUTE_LINK_NUMBERS = {"reserved": 2, "shared": 1}
_PAIR_BYTES = {"reserved": 60.0, "shared": 80.0}
_ASKED = 64  # points from which those of a sweep are estimated
_GB, _GIB = 1e9, 2**30


class RunCost(NamedTuple):
    """The cost of one run. events: 0 for the analytical engine; host_ns: on one core of this machine, without
    compilation; host_bytes: of its process.
    """

    events: float
    host_ns: float
    host_bytes: float


def cost_of(point: Point) -> RunCost:
    """What a run takes. Its events are those of experts that a batch activates at even popularity, and of pairs of dies
    that exchange hidden vectors.
    """
    workload, kind, dies = point.workload, point.assumptions.contention, point.system.dies
    layers, (links, route_links) = len(point.model.moe_layer_ids), extent_of(point.system)
    steps = (workload.decode_steps + workload.has_prompts) * min(workload.layers or layers, layers)
    events = each_ns = 0.0
    if (event_ns := ENGINES[point.engine].event_ns) is not None:
        experts, chosen = point.model.experts, point.batch * point.model.top_k
        active = experts * (1 - exp(-chosen / experts))
        pairs = dies**2 * (1 - exp(-chosen / dies**2)) if kind == "shared" else 0.0
        events = steps * (_EVENTS_PER_EXPERT * active + _EVENTS_PER_PAIR * pairs)
        each_ns = event_ns[kind]
    return RunCost(
        events,
        _RUN_NS + steps * _STEP_NS + events * each_ns + links * _LINK_NS[kind] + route_links * _ROUTE_LINK_NS,
        _PROCESS_BYTES
        + links * _LINK_BYTES[kind]
        + route_links * _ROUTE_LINK_NUMBERS[kind] * np.dtype(number_type(links)).itemsize
        + dies**2 * _PAIR_BYTES[kind],
    )


def refuse_unheld(point: Point, bound_bytes: Callable[[], int | None] = machine_bytes) -> None:
    """Raises CapacityError for a system whose simulation does not fit into the memory of this machine.

    bound_bytes: of the machine.
    """
    needed, bound = cost_of(point).host_bytes, bound_bytes()
    if bound is None or needed <= bound:
        return
    dies, (links, route_links) = point.system.dies, extent_of(point.system)
    share = (bound - _PROCESS_BYTES) / (needed - _PROCESS_BYTES)
    # Pairs of dies × links between them: the fourth power of a side, and one more in a mesh.
    side = int(dies**0.5 * max(share, 0.0) ** 0.25)
    raise CapacityError(
        f"{point.system.name}: simulating {dies:,} dies ({point.engine} engine, {point.assumptions.contention} links) "
        f"takes about {needed / _GIB:,.0f} GiB of memory, for {in_words(links)} links, {in_words(dies**2)} pairs of "
        f"dies and {in_words(route_links)} links on their routes. This machine has {bound / _GIB:,.1f} GiB, "
        f"{(needed - bound) / _GIB:,.0f} GiB too few. About {side} × {side} dies would fit"
    )


def cost_sentence(plan: SweepPlan, cores: int) -> str:
    """``about 3.2 million events, which takes 40 s to 6 min on 2 cores when compiled and 0.4 GB of memory a process``,
    for all combinations of a plan, estimated from those spread over it.
    """
    of = plan.combinations
    costs = [cost_of(plan.point(index)) for index in spread(of, _ASKED)]
    at_a_time = min(cores, of)
    events = sum(each.events for each in costs) / len(costs) * of
    seconds = sum(each.host_ns for each in costs) / len(costs) * of / at_a_time / 1e9
    most, bound = max(each.host_bytes for each in costs), machine_bytes()
    low, high = (spoken(max(each, 1)) for each in (seconds / SPREAD, seconds * SPREAD))
    said = (
        f"{f'about {in_words(events)} events' if events else 'no events'}, which takes "
        f"{low if low == high else f'{low} to {high}'} on {at_a_time} {'core' if at_a_time == 1 else 'cores'} when "
        f"compiled and {most / _GB:.1f} GB of memory a process"
    )
    if bound is not None and at_a_time * most > bound:
        said += (
            f". {at_a_time} at a time would take {at_a_time * most / _GB:.0f} GB, but this machine has "
            f"{bound / _GB:.0f} GB: give --jobs {max(1, int(bound / most))}"
        )
    return said


# What is known of fabrics before anything runs: users' functions that build none, and axes that change no link.

# Keys of d2d that links may have of their own → the field, and what of it a fabric has.
_OF_LINKS = {"bandwidth": ("bandwidth_bytes_per_s", "link_bytes_per_ns"), "hop_latency": ("hop_latency_ns", "link_ns")}


def refuse_links(plan: SweepPlan, systems: Iterable[SystemSpec]) -> None:
    """Raise ArchsimError for a user's function that builds no fabric, once; SpecError for an axis of links that
    changes none.
    """
    unlike = {repr((system.mesh, system.topology, system.fabric)): system for system in systems}.values()  # but for d2d
    fabrics = [(system, build_fabric(system, ROW_MAJOR)) for system in unlike if system.topology.is_function]
    axes = [axis for axis in plan.sweep.axes if axis.path[:2] == ("system", "d2d") and axis.path[-1] in _OF_LINKS]
    if not axes:
        return
    known = {id(system): fabric for system, fabric in fabrics}
    built = [(system, known.get(id(system)) or build_fabric(system, ROW_MAJOR)) for system in unlike]
    for axis in axes:
        if all(_changes_nothing(axis, system, fabric) for system, fabric in built):
            names = [each.name for each in plan.experiment.systems]
            raise SpecError(_told(axis, *built[0], names[0] if len(names) == 1 else "any system"))


def refuse_own_fabric(system: SystemSpec) -> None:
    """Raise ArchsimError for a user's function that builds no fabric for the system."""
    if system.topology.is_function:
        build_fabric(system, ROW_MAJOR)


def _changes_nothing(axis: Axis, system: SystemSpec, fabric: Fabric) -> bool:
    field, links = _OF_LINKS[axis.path[-1]]
    other = system.d2d.model_copy(update={field: 2 * getattr(system.d2d, field) + 1})
    changed = build_fabric(system.model_copy(update={"d2d": other}), ROW_MAJOR)
    return np.array_equal(getattr(changed, links), getattr(fabric, links))


def _told(axis: Axis, system: SystemSpec, fabric: Fabric, name: str) -> str:
    key = axis.path[-1]
    names = ", ".join(dict.fromkeys(fabric.classes[at].name or "link" for at in np.unique(fabric.link_class)))
    if system.topology.is_function:
        params = ", ".join(f"system.topology.params.{name}" for name in system.topology.params) or "its params"
        instead = f"{system.topology.name} gives every class ({names}) its own; vary what it takes ({params})"
    else:
        whole = "system.fabric" if system.fabric is not None else "system.topology"
        instead = f"every class of links ({names}) has its own; vary {whole}, or leave {key} out of the classes"
    return f"{axis.place}: {axis.name} changes no link of {name}: {instead}"


# Tokens of KV cache that a request holds, where the workload does not say it: taken from the requests of the batch.

Traces = dict[tuple[str, str], Trace]
"""(path, model name) → trace that is open."""


class Contexts:
    """Workloads with their context; opens each trace once. ``traces``: those that are open, to which it adds."""

    def __init__(self, traces: Traces | None = None) -> None:
        self.traces: Traces = {} if traces is None else traces
        self._known: dict[tuple[int, int, int], WorkloadSpec] = {}

    def workload(self, point: Point) -> WorkloadSpec:
        """The point's workload; with the context of the longest request of its batch, which all are taken to hold,
        where only a recorded trace or a preset says it and the assumption ``memory`` counts it.

        Raises TraceError.
        """
        workload, key = point.workload, (id(point.model), id(point.workload), point.batch)
        from_requests = isinstance(workload.trace, str) or (
            workload.trace.synthetic.like is not None and workload.has_prompts
        )
        if workload.context is not None or not (from_requests and counts_all(point.model, point.assumptions)):
            return workload
        if key not in self._known:
            self._known[key] = workload.model_copy(update={"context": self._longest(point)})
        return self._known[key]

    def open_trace(self, point: Point) -> Trace:
        """The point's recorded trace. Raises TraceError."""
        workload, trace = point.workload, point.workload.trace
        assert isinstance(trace, str)
        if (at := (trace, point.model.name)) not in self.traces:
            from archsim.workload.formats.readers import open_trace

            self.traces[at] = open_trace(trace, point.model, workload.reader)
        return self.traces[at]

    def _longest(self, point: Point) -> int:
        workload = point.workload
        source: Any  # a trace, or generated traffic, which has `longest`, too
        if isinstance(workload.trace, str):
            source = self.open_trace(point)
            if workload.extend != "redraw":
                return source.longest(np.arange(min(point.batch, source.requests)), workload.decode_steps)
        else:
            source = generated_traffic(point.model, workload.trace.synthetic, point.batch)
        return source.longest(draw_requests(source.requests, point.batch, workload.seed), workload.decode_steps)


# Measures of a point without a run, for constraints of a sweep: dies, areas, price, and whether the weights fit.


class PartMeasures:
    """Functions for the names of ``archsim.specs.plan.CONSTRAINT_MEASURES``. Measures that depend on parts alone are
    computed once.
    """

    def __init__(self, contexts: Contexts | None = None) -> None:
        self._contexts = contexts or Contexts()
        self._known: dict[tuple, Any] = {}

    def functions(self) -> Mapping[str, Callable[[Point], Any]]:
        """Name → function of a point: numbers, or for ``hbm_capacity`` whether it fits."""
        return {
            "dies": lambda point: point.system.dies,
            "area_mm2": lambda point: self._machine(point).decision.area_mm2,
            "die_mm2": lambda point: self._machine(point).die_mm2,
            "silicon_mm2": lambda point: self._machine(point).silicon_mm2,
            "cost_usd": lambda point: sum(self._machine(point).usd.values()),
            "hbm_capacity": self.fits,
        }

    def fits(self, point: Point) -> bool:
        """Whether all that the assumption ``memory`` counts leaves no die over its HBM; ``capacity`` is ignored."""
        if depends_on_requests(point.model, point.assumptions):
            requests = self._contexts.workload(point), point.batch, point.deployment
            return self._fits(point.system, point.model, point.policy, point.assumptions, *requests)
        return self._once("fit", self._fits, point.system, point.model, point.policy, point.assumptions)

    def _once(self, what: str, compute: Callable[..., Any], *parts: Any) -> Any:
        # Points share parts, which their plan keeps alive: equal ids are equal parts.
        key = (what, *map(id, parts))
        if key not in self._known:
            self._known[key] = compute(*parts)
        return self._known[key]

    def _fits(self, system, model, policy, assumptions, *requests) -> bool:
        key = (str(policy.placement), len(model.moe_layer_ids), model.experts, system.dies)
        placement = self._once_by(key, lambda: place_experts(policy, model, system.dies))
        return memory_fit(system, model, assumptions, placement, *requests).fits

    def _once_by(self, key: tuple, compute: Callable[[], Any]) -> Any:
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]

    def _machine(self, point: Point) -> SystemHardware:
        return self._once("machine", build_costs, point.system)
