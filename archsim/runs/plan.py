"""Turns an experiment, with or without axes, into its runs: the points that meet the constraints and can run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import monotonic

import numpy as np

from archsim.base.errors import ArchsimError, CapacityError, spoken
from archsim.base.fields import Spec
from archsim.base.sums import sum
from archsim.engine import fabrics, gemm, own_objects
from archsim.machine.built import named_dies
from archsim.machine.system import SystemSpec
from archsim.runs import clocks, fabric_checks, feasibility, point_measures, prices, run_cost
from archsim.runs.run import (
    DemandSpec,
    Run,
    code_of,
    generated_digest,
    key_of,
    plain_text,
    prediction_text,
    shaping_text,
    simulation_of,
)
from archsim.runs.simulator import simulator_of
from archsim.specs.assumptions import AssumptionsSpec
from archsim.specs.experiment import ExperimentSpec, layers_problem
from archsim.specs.plan import Dropped, Point, SweepPlan, plan_without_axes
from archsim.specs.policies import PolicySpec
from archsim.specs.scenario import Scenario, own_functions
from archsim.specs.workload import trace_label
from archsim.traffic.layer_subset import refuse_more_layers
from archsim.traffic.traffic_presets import load_traffic, with_lengths
from microarch.fabric.grid import ROW_MAJOR

# Machines that are drawn: areas that decide how many defects they have, which of them work, and their distribution.

SCRAPPED = "a machine that works"  # what drawn machines that do not were dropped by


@lru_cache(maxsize=4096)
def with_areas(system: SystemSpec) -> SystemSpec:
    """A sampled system with the areas of a die and its cores (of its price, where not given), which defects hit."""
    drawn = system.drawn
    if drawn is None or not drawn.needs_area:
        return system
    machine = prices.build_costs(system.as_made)
    blocks = machine.area_mm2
    die_mm2 = drawn.die_area_mm2 or sum(blocks.values())
    core_mm2 = drawn.core_area_mm2 or min(die_mm2, die_mm2 * blocks["compute"] / sum(blocks.values()))
    areas = {"die_area_mm2": die_mm2, "core_area_mm2": core_mm2} if drawn.defects_per_cm2 else {}
    if drawn.needs_bonds:
        io_dies = system.made.io_dies.number if system.made is not None and system.made.io_dies is not None else 0
        areas["bonds"] = machine.pieces + machine.stacks_per_die + io_dies
    return system.model_copy(update={"drawn": drawn.model_copy(update=areas)})


def works(points: Iterable[Point], dropped: Dropped) -> Iterator[Point]:
    """Points whose machine works; drawn ones that do not are counted as dropped. Raises SpecError for others."""
    known: dict[int, bool] = {}
    for point in points:
        system = point.system
        if id(system) not in known:
            known[id(system)] = system.drawn is None or not why_scrapped(system)
        if known[id(system)]:
            yield point
        else:
            dropped.by_constraint[SCRAPPED] = dropped.by_constraint.get(SCRAPPED, 0) + 1


def why_scrapped(system: SystemSpec) -> str:
    """Why a drawn machine does not work: too few dies, or dies that are cut off; '' if it does."""
    if system.built is not None and system.built.unusable:
        return system.built.unusable
    try:
        fabrics.build_fabric(system, ROW_MAJOR)
    except fabrics.MachineInParts as error:
        return str(error)
    return ""


def as_built_note(system: SystemSpec) -> list[str]:
    """Sentences on a machine as it is built; none of a perfect one. Raises SpecError for one that does not work."""
    system = with_areas(system)
    if system.drawn is not None and system.drawn.wafers > 1:
        return [_told_drawn(system)]
    left = fabrics.what_is_left(system)
    if left is None:
        return []
    built, found = system.built, []
    if built is not None and len(built.living) < built.sites:
        dead = f"{named_dies(built.dead)} dead" if built.dead else ""
        idle = f"{named_dies(built.idle)} spare" if built.idle else ""
        found.append(f"{len(built.living)} of {built.sites} dies work ({', '.join(filter(None, (dead, idle)))})")
    if built is not None and (min(built.array) < 1 or max(built.array) > 1 or min(built.hbm) < 1 or max(built.hbm) > 1):
        found.append(f"arrays run at {_range(built.array)} of their clock, HBM at {_range(built.hbm)} of its bandwidth")
    bisection = "" if left.bisection is None else f"bisection left: {left.bisection:.0%}; "
    found.append(
        f"all are connected; detours: routes are {left.mean_detour:.3f} times as long as in the perfect machine, at "
        f"most {left.most_detour:.2f} times; {bisection}virtual channels: {left.channels} "
        f"(perfect machine: {left.perfect_channels})"
    )
    return [f"{system.name}: {'; '.join(found)}"]


def _range(factors: tuple[float, ...]) -> str:
    low, high = min(factors), max(factors)
    return f"{low:.1%}" if low == high else f"{low:.1%} to {high:.1%}"


_TOLD = 200  # wafers that are looked at to say how many work


def _told_drawn(system: SystemSpec) -> str:
    assert system.drawn is not None
    count = min(system.drawn.wafers, _TOLD)
    living, scrapped = [], 0
    for wafer in range(count):
        one = system.model_copy(update={"drawn": system.drawn.model_copy(update={"wafer": wafer})})
        if why_scrapped(one):
            scrapped += 1
        else:
            living.append(one.dies)
    area = "" if system.drawn.die_area_mm2 is None else f" on dies of {system.drawn.die_area_mm2:,.0f} mm²"
    dies = f", with {min(living)} to {max(living)} of {system.sites} dies" if living else ""
    first = f" of the first {count}" if count < system.drawn.wafers else f" of {count}"
    return f"{system.name}: {count - scrapped}{first} sampled machines work{dies}{area}"


Tell = Callable[[str], None]
"""Receives progress texts, such as ``opening trace …``."""
_MANY = 1000  # points whose checking takes long enough for progress
_SAID_S = 2.5  # between two lines on it
_MOST_TOLD = 10_000  # points whose axes are named for every run: it takes time, and progress names no single ones


class RunMaker:
    """Makes the runs of a plan's points; opens each trace once. ``plan``: with axes, by which runs are named."""

    def __init__(
        self, tell: Tell = lambda text: None, columns: tuple[str, ...] = (), plan: SweepPlan | None = None
    ) -> None:
        self.contexts = point_measures.Contexts()
        self.traces = self.contexts.traces  # those that are open
        self._tell, self._columns, self._plan = tell, columns, plan
        self._routing: dict[tuple[int, int], tuple[str, str]] = {}
        self._texts: dict[int, str] = {}
        self._simulated: dict[tuple[int, int], AssumptionsSpec] = {}
        self._predictions: dict[int, str] = {}
        self._demands: dict[tuple, DemandSpec] = {}
        self._presets: set[tuple] = set()

    def runs(self, points: Iterable[Point], details: bool = False) -> list[Run]:
        """The runs of points, in order; those without special needs share a demand built for others. ``details``: of
        `Run`. Raises TraceError for a trace or preset that is malformed or belongs to another model.
        """
        points = list(points)
        most: dict[tuple[int, int, int], tuple[int | None, PolicySpec | None]] = {}
        needed = [(_traffic(point), *_needs(point)) for point in points]
        for traffic, dies, predicting in needed:
            shared_dies, shared_predicting = most.get(traffic, (None, None))
            most[traffic] = dies if shared_dies is None else shared_dies, shared_predicting or predicting
        made = []
        for point, (traffic, dies, predicting) in zip(points, needed, strict=True):
            shared_dies, shared_predicting = most[traffic]
            dies = shared_dies if dies is None else dies
            made.append(self._run(point, dies, predicting or shared_predicting, details))
        return made

    def _run(self, point: Point, dies: int | None, predicting: PolicySpec | None, details: bool) -> Run:
        workload = self.contexts.workload(point)
        scenario = point.system, point.model, point.assumptions, point.policy, workload, point.batch, point.deployment
        Scenario(*scenario).refuse_undeployed()
        demand = self._demand(point, dies, predicting)
        number, axes = None, ""
        if self._plan is not None:
            number = point.index
            axes = axes_text(self._plan, point) if self._plan.combinations <= _MOST_TOLD else ""
        run = Run(
            *scenario, engine=point.engine, demand=demand, trace=self.routing(point)[0], simulator=simulator_of,
            columns=self._columns, point=number, axes=axes, details=details,
        )  # fmt: skip
        # What Run.key and Run.simulation would find, from texts of parts that points share.
        pair = id(point.assumptions), id(point.policy)
        if pair not in self._simulated:
            self._simulated[pair] = point.assumptions.for_simulation(point.policy)
        run.__dict__["key"] = key_of(run, self._text)
        run.__dict__["simulation"] = simulation_of(run, self._simulated[pair], self._text)
        return run

    def _text(self, part: Spec) -> str:
        if id(part) not in self._texts:
            self._texts[id(part)] = plain_text(part)
        return self._texts[id(part)]

    def _demand(self, point: Point, dies: int | None, predicting: PolicySpec | None) -> DemandSpec:
        if predicting and id(predicting) not in self._predictions:
            self._predictions[id(predicting)] = prediction_text(predicting)
        shaping = point.policy if point.policy.shapes_demand else None
        single = point.assumptions.needs_routing
        predicted = predicting and self._predictions[id(predicting)]
        seen = point.policy.sees_routing
        key = (*_traffic(point), dies, predicted, single, seen, shaping and shaping_text(shaping))
        if key not in self._demands:
            stored = self.routing(point)[1]
            self._demands[key] = DemandSpec(
                model=point.model, workload=point.workload, batch=point.batch, origin_dies=dies, predicting=predicting,
                stored_trace=stored, routing=single, shaped_by=shaping, seen=seen,
            )  # fmt: skip
        return self._demands[key]

    def routing(self, point: Point) -> tuple[str, str]:
        """(name of a point's routing for its run's key, name of its cached columns). Raises as `runs` does."""
        workload, key = point.workload, (id(point.model), id(point.workload))
        if key not in self._routing:
            if (problem := layers_problem(point.model, workload)) is not None:
                raise ArchsimError(f"point {point.index}: workload.layers: {problem}")
            if isinstance(workload.trace, str):
                if (workload.trace, point.model.name) not in self.traces:
                    self._tell(f"opening trace {workload.trace}")
                trace = self.contexts.open_trace(point)
                refuse_more_layers(trace, workload.layers)
                self._routing[key] = f"{trace_label(workload)} {trace.digest}", trace.stored_as
            else:
                model, spec = point.model, workload.trace.synthetic
                like = spec.preset_of(model.name)
                preset = like, model.experts, model.top_k, model.moe_layer_ids, spec.prompt_tokens, spec.decode_steps
                if like is not None and preset not in self._presets:
                    with_lengths(load_traffic(like, model), spec, like)  # refuses one of other experts or layers
                    self._presets.add(preset)
                self._routing[key] = generated_digest(workload, model), ""
        return self._routing[key]


def _traffic(point: Point) -> tuple[int, int, int]:
    return id(point.model), id(point.workload), point.batch


def _needs(point: Point) -> tuple[int | None, PolicySpec | None]:
    """What a point's demand must contain beside counts: on how many dies tokens live, and whose predictions."""
    origins = point.policy.needs_origins or point.policy.sees_routing or point.assumptions.needs_origins(point.model)
    predicting = point.assumptions.heatmap_update == "free" and point.policy.predicts
    return point.system.dies if origins else None, point.policy if predicting else None


@dataclass(frozen=True)
class Selection:
    """The points of a plan that run."""

    plan: SweepPlan  # all combinations
    kept: tuple[int, ...]  # numbers of the points among all combinations
    dropped: Dropped  # the others
    code: tuple[str, ...]  # what the runs execute
    routing: dict[str, tuple[str, ...]]  # name of a model → digests of its routing
    maker: RunMaker  # of the runs
    functions: tuple[str, ...] = ()  # the users' own that take part

    def __len__(self) -> int:
        return len(self.kept)

    def blocks(self, size: int, details: bool = False) -> Iterator[tuple[list[Point], list[Run]]]:
        """Points and their runs, ``size`` at a time. ``details``: of `Run`."""
        for begin in range(0, len(self.kept), size):
            points = [self.plan.point(number) for number in self.kept[begin : begin + size]]
            yield points, self.maker.runs(points, details)

    def runs(self) -> tuple[Run, ...]:
        return tuple(self.maker.runs(map(self.plan.point, self.kept)))


def plan_of(planned: ExperimentSpec | SweepPlan) -> SweepPlan:
    plan = planned if isinstance(planned, SweepPlan) else plan_without_axes(planned)
    return plan.finished_by(with_areas)


def drawn(plan: SweepPlan, most: int) -> list[int] | None:
    """Numbers of ``most`` points of a plan, drawn at random, always the same ones; None if it has no more."""
    if plan.combinations <= most:
        return None
    return sorted(np.random.default_rng(0).choice(plan.combinations, most, replace=False).tolist())


def select(
    planned: ExperimentSpec | SweepPlan,
    tell: Tell = lambda text: None,
    refuse: bool = True,
    among: Sequence[int] | None = None,
) -> Selection:
    """Evaluate the constraints of every point, or of those ``among`` them; open its trace. tell: gets texts. Raises
    TraceError; LawMissing for missing tables; ArchsimError if no point is left; CapacityError beyond this machine's
    memory, and with ``refuse`` for points that could not run.
    """
    plan = plan_of(planned)
    dropped, maker = Dropped(), RunMaker(tell, plan.experiment.all_columns, plan if plan.sweep.axes else None)
    measures = point_measures.PartMeasures(maker.contexts)
    kept: list[int] = []
    misfits: list[Point] = []
    asked = plan.combinations if among is None else len(among)
    checked = _Checked(asked, tell) if asked >= _MANY else None
    functions: dict[tuple, tuple[str, ...]] = {}
    routing: dict[str, dict[str, None]] = {}
    routes: dict[tuple, Point] = {}
    for point in works(plan.points(measures.functions(), dropped, among), dropped):
        if checked is not None:
            checked.say(point.index if among is None else len(kept) + dropped.total)
        kept.append(point.index)
        routing.setdefault(point.model.name, {})[maker.routing(point)[0]] = None
        decides = id(point.system), id(point.policy), id(point.assumptions), point.engine
        if decides not in functions:
            own_objects.refuse_engine(point.engine, point.system, point.assumptions, point.policy)
            functions[decides] = own_functions(point.system, point.policy, point.assumptions)
        if refuse and point.assumptions.capacity == "finite" and not measures.fits(point):
            misfits.append(point)
        if (machine := (id(point.system), id(point.assumptions), point.engine)) not in routes:
            run_cost.refuse_unheld(point)
            gemm.refuse_unmeasured(point.system, point.assumptions)
            routes[machine] = point
    if not kept:
        said = ", ".join(f"{count:,} by `{text}`" for text, count in dropped.by_constraint.items())
        raise ArchsimError(f"no point is left of {dropped.total:,}: dropped {said}")
    if misfits:
        raise CapacityError(_misfits_note(plan, misfits, len(kept), maker))
    if refuse:
        for point in routes.values():
            clocks.refuse_unpowered(point.system, plan.experiment.limits_at)
        fabric_checks.refuse_links(plan, [point.system for point in routes.values()])
        unlike: dict[tuple, Point] = {}  # one point of each group with equal routes
        for point in routes.values():
            system = point.system
            like = system.mesh, str(system.topology), str(system.fabric), point.assumptions.label
            unlike.setdefault(like, point)
        fabric_checks.refuse_misroutes(maker.runs(unlike.values()))
    executed = {own + plan.experiment.all_columns for own in functions.values()}
    return Selection(
        plan,
        tuple(kept),
        dropped,
        tuple(sorted(map(code_of, executed))),
        {name: tuple(digests) for name, digests in routing.items()},
        maker,
        tuple(sorted({each for own in executed for each in own})),
    )


class _Checked:
    """Tells how many points of a large sweep are checked."""

    def __init__(self, points: int, tell: Tell) -> None:
        self._points, self._tell = points, tell
        self._began_s = self._said_s = monotonic()
        tell(f"checking {points:,} points")

    def say(self, index: int) -> None:
        if not index or index % _MANY or monotonic() - self._said_s < _SAID_S:
            return
        self._said_s = monotonic()
        so_far_s = self._said_s - self._began_s
        left = spoken(so_far_s * (self._points / index - 1))
        self._tell(f"checked {index:,} of {self._points:,} points, about {left} left")


def prepare(planned: ExperimentSpec | SweepPlan) -> PreparedRuns:
    """The runs of an experiment and its open traces; nothing is refused for lack of memory. Raises TraceError."""
    selection = select(planned, refuse=False)
    return PreparedRuns(selection.runs(), selection.maker.traces)


@dataclass(frozen=True)
class PreparedRuns:
    """The runs of an experiment in the order of the results, and its open traces."""

    runs: tuple[Run, ...]
    traces: point_measures.Traces


def axes_text(plan: SweepPlan, point: Point) -> str:
    """``system.mesh 4x4, system.d2d.bandwidth 3 TB/s``."""
    return ", ".join(f"{path} {value}" for path, value in plan.shown(point).items())


def _misfits_note(plan: SweepPlan, misfits: Sequence[Point], of: int, maker: RunMaker) -> str:
    """Without axes, a line for every distinct problem; with axes, their number and that of the first."""
    looked = misfits[:1] if plan.sweep.axes else misfits
    problems = "\n".join(dict.fromkeys(room.problem for room in feasibility.rooms(maker.runs(looked)) if room.problem))
    if not plan.sweep.axes:
        return problems
    drop = "drop them with where: [hbm_capacity fits], or " if len(misfits) < of else ""
    return (
        f"{len(misfits):,} of {of:,} points do not fit into the memory of their dies, the first of them point "
        f"{looked[0].index} ({axes_text(plan, looked[0])}): {problems}; {drop}set the assumption capacity: unbounded"
    )
