"""Expands a sweep to points: each is one run of system, model, batch, policy, assumption set and workload."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy, deepcopy
from pathlib import Path
from typing import Any, NamedTuple, get_args

from archsim.base.errors import SpecError, did_you_mean
from archsim.base.fields import Spec, without_range
from archsim.base.quantities import describe, parse_quantity
from archsim.base.validation import keys_of, validate
from archsim.base.yaml import Place, Tree
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from archsim.specs.assumptions import AssumptionsSpec
from archsim.specs.axes import DEPLOYED, KINDS, SWEEP_KEY, Axis, SweepSpec, canonical
from archsim.specs.axis_values import Drawn, RangeValues, dimension_of
from archsim.specs.constraints import Constraint, any_of
from archsim.specs.deployment import DeploymentSpec
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.overrides import put
from archsim.specs.policies import PolicySpec
from archsim.specs.variants import NAMED, PLURAL, Maker, Variant, in_words, written
from archsim.specs.workload import WorkloadSpec

CONSTRAINT_MEASURES = {
    "dies": "number of dies",
    "area_mm2": "silicon of the decision hardware (archsim hardware area): tables and command processors",
    "die_mm2": "one die (archsim hardware cost)",
    "silicon_mm2": "all dies (archsim hardware cost)",
    "cost_usd": "price of the machine (archsim hardware cost)",
    "hbm_capacity": "with `fits`: whether homes and shared experts fit in the HBM of every die",
}
_FITTING = "hbm_capacity"
_ASKED = 64  # points from which a constraint learns which keys there are
_SUFFIX = {
    "size": "_bytes", "bandwidth": "_bytes_per_s", "compute rate": "_flop_per_s", "time": "_ns", "clock rate": "_hz",
    "power": "_w", "temperature": "_c", "thermal resistance": "_k_per_w", "area": "_mm2", "fraction": "",
}  # fmt: skip
# Other fields follow from these, so they cannot be axes; the whole entry is the axis instead.
_WHOLE = {("assumptions", "set"): "assumptions", ("system", "like"): "system", ("policy", "preset"): "policy"}


_HERE = Place("sweep")


class Point(NamedTuple):
    """One combination of the values of a sweep."""

    index: int  # type: ignore[assignment]  # a field in place of tuple's method
    choice: tuple[int, ...]  # index of the value of every group of axes
    variants: Mapping[str, Variant]  # kind → variant, whose specs are those below
    batch: int  # requests served together
    engine: str  # name
    deployment: DeploymentSpec  # parallel sizes and precision
    system: SystemSpec  # as varied
    model: ModelSpec  # as varied
    workload: WorkloadSpec  # as varied
    policy: PolicySpec  # as varied
    assumptions: AssumptionsSpec  # as varied


class Dropped:
    """Points that an expansion has dropped so far: by constraint (as written), and repeats of other points."""

    def __init__(self) -> None:
        self.by_constraint: dict[str, int] = {}
        self.repeats = 0

    @property
    def total(self) -> int:
        return sum(self.by_constraint.values()) + self.repeats


class SweepPlan:
    """An experiment with a sweep, checked axis by axis. tree: raw data, references expanded; experiment: validated;
    folder: of its file. Raises SpecError for invalid axes and constraints.
    """

    def __init__(self, tree: Tree, sweep: SweepSpec, experiment: ExperimentSpec, folder: Path | None) -> None:
        self.tree, self.sweep, self.experiment, self._folder = tree, sweep, experiment, folder
        self._deployed = [axis for axis in sweep.axes if axis.path[0] in DEPLOYED]
        self._deployments: dict[tuple[int, ...], DeploymentSpec] = {}
        self._group_of = {axis.name: index for index, group in enumerate(sweep.groups) for axis in group.axes}
        by_path = {axis.path: axis for axis in reversed(sweep.axes)}
        self._batch, self._engine = by_path.get(("workload", "batch")), by_path.get(("engine",))
        if self._batch:
            _check_batches(self._batch)
        if self._engine:
            _check_engines(self._engine)
        self._makers = self._new_makers(folder)
        self.columns = tuple(AxisColumn(axis) for axis in sweep.axes)
        inner = [
            1 if self._batch else len(experiment.workload.batch),
            len(self._makers["assumptions"]),
            len(self._makers["policy"]),
        ]
        self._sizes = [*map(len, sweep.groups), len(self._makers["system"]), len(self._makers["model"]), *inner]
        self.finish: Callable[[Any], Any] = lambda system: system
        self._finished: dict[int, tuple[Any, Variant]] = {}
        self._constraints = [_Question(self, constraint, place) for constraint, place in sweep.where]

    def _new_makers(self, folder: Path | None) -> dict[str, Maker]:
        makers, problems = {}, []
        for kind in KINDS:
            axes = [axis for axis in self.sweep.axes if axis.path[0] == kind and axis is not self._batch]
            raw = [self.tree.data["workload"]] if kind == "workload" else self.tree.data[PLURAL[kind]]
            specs = [self.experiment.workload] if kind == "workload" else getattr(self.experiment, PLURAL[kind])
            base = [Variant(spec, getattr(spec, "name", ""), frozenset()) for spec in specs]
            try:
                for axis in axes:
                    if axis.path in _WHOLE:
                        raise SpecError(
                            f"{axis.place}: other keys depend on it. Vary the whole entry instead, "
                            f"{_WHOLE[axis.path]}: [...]"
                        )
                makers[kind] = Maker(kind, raw, axes, [self._group_of[axis.name] for axis in axes], base, folder)
            except SpecError as error:
                problems.append(str(error))
        if problems:
            raise SpecError("\n".join(problems))
        return makers

    def with_engine(self, engine: str) -> SweepPlan:
        """The same plan on another engine: ``event`` or ``analytical``; an axis ``engine`` stays as it is."""
        tree = Tree(self.tree.data | {"engine": engine}, self.tree.places)
        found = copy(self)  # which shares what was made: no variant depends on the engine
        found.tree, found.experiment = tree, self.experiment.model_copy(update={"engine": engine})
        found.finish, found._finished = lambda system: system, {}
        found._constraints = [_Question(found, constraint, place) for constraint, place in self.sweep.where]
        return found

    def finished_by(self, finish: Callable[[Any], Any]) -> SweepPlan:
        """The same plan with ``finish`` on its points' systems, which adds what only the machine has, as areas."""
        found = copy(self)
        found.finish, found._finished = finish, {}
        return found

    def _finish(self, variant: Variant) -> Variant:
        """Equal systems stay one object."""
        at = id(variant.spec)
        if at not in self._finished:
            done = self.finish(variant.spec)
            self._finished[at] = variant.spec, variant if done is variant.spec else variant._replace(spec=done)
        return self._finished[at][1]

    def __repr__(self) -> str:
        axes = ", ".join(f"{axis.name}: {len(axis.values)}" for axis in self.sweep.axes)
        return f"SweepPlan({self.experiment.name!r}, {self.combinations:,} points; {axes})"

    @property
    def combinations(self) -> int:
        """Number of points before constraints, including repeats."""
        total = 1
        for size in self._sizes:
            total *= size
        return total

    @property
    def sizes(self) -> tuple[int, ...]:
        """Radices of a point's number: values per group of axes, then items per list; the last varies fastest."""
        return tuple(self._sizes)

    def index_of(self, chosen: tuple[int, ...]) -> int:
        """The number of the point with the ``chosen`` indices, one per entry of ``sizes``."""
        index = 0
        for at, size in zip(chosen, self._sizes, strict=True):
            index = index * size + at
        return index

    def indices_of(self, index: int) -> tuple[int, ...]:
        """What makes a point, by its number: one per entry of ``sizes``. The inverse of `index_of`."""
        found = []
        for size in reversed(self._sizes):
            index, at = divmod(index, size)
            found.append(at)
        return tuple(reversed(found))

    def keeps(
        self,
        point: Point,
        measures: Mapping[str, Callable[[Point], Any]],
        value: Callable[[Point, tuple[str, ...]], Any] | None = None,
    ) -> Any:
        """Whether all constraints hold. Raises SpecError as :meth:`points` does. ``value``: of a key, where others are
        asked than this point; arrays of it and of ``measures`` ask many points at once, bool[point].
        """
        kept: Any = True
        for each in self._constraints:
            kept = kept & each.holds(point, measures, value)
            if not any_of(kept):
                break
        return kept

    def points(
        self,
        measures: Mapping[str, Callable[[Point], Any]],
        dropped: Dropped | None = None,
        among: Iterable[int] | None = None,
    ) -> Iterator[Point]:
        """The points that satisfy all constraints, in order, without repeats. measures: a function for every name in
        CONSTRAINT_MEASURES; among: numbers of points; None: all. Raises SpecError for invalid combinations.
        """
        dropped = Dropped() if dropped is None else dropped
        seen: set[tuple] = set()
        for index in range(self.combinations) if among is None else among:
            point = self.point(index)
            kinds = [id(variant.spec) for variant in point.variants.values()]
            same = (*kinds, point.batch, point.engine, id(point.deployment))
            if same in seen:
                dropped.repeats += 1
                continue
            seen.add(same)
            broken = next((each.text for each in self._constraints if not each.holds(point, measures)), None)
            if broken is None:
                yield point
            else:
                dropped.by_constraint[broken] = dropped.by_constraint.get(broken, 0) + 1

    def point(self, index: int) -> Point:
        """A point by its number, regardless of constraints. Raises SpecError if it does not exist or is invalid."""
        if not 0 <= index < self.combinations:
            raise SpecError(f"point {index}: the sweep has {self.combinations:,}, numbered from 0")
        chosen, groups = self.indices_of(index), len(self.sweep.groups)
        choice, (system, model, batch, assumptions, policy) = chosen[:groups], chosen[groups:]
        base = {"system": system, "model": model, "workload": 0, "policy": policy, "assumptions": assumptions}
        try:
            variants = {kind: self._makers[kind].make(at, choice) for kind, at in base.items()}
        except SpecError as error:
            shown = ", ".join(f"{axis.name} {written(self._chosen(axis, choice))}" for axis in self.sweep.axes)
            raise SpecError(f"{error} (point {index}: {shown})") from None
        variants["system"] = self._finish(variants["system"])
        size = int(self._chosen(self._batch, choice)) if self._batch else self.experiment.workload.batch[batch]
        engine = self._chosen(self._engine, choice) if self._engine else self.experiment.engine
        specs = {kind: variant.spec for kind, variant in variants.items()}
        return Point(index, choice, variants, size, engine, self._deployment_of(choice), **specs)

    def _deployment_of(self, choice: tuple[int, ...]) -> DeploymentSpec:
        """One object for a choice of its axes. Raises SpecError for sizes that do not go together."""
        key = tuple(choice[self._group_of[axis.name]] for axis in self._deployed)
        if key in self._deployments:
            return self._deployments[key]
        tree = Tree({key: deepcopy(self.tree.data[key]) for key in DEPLOYED if self.tree.data.get(key)}, {(): _HERE})
        for axis in self._deployed:
            value = self._chosen(axis, choice)
            put(tree, axis.path, deepcopy(value), f"{axis.place}: {written(value)}", lambda keys: None)
        found = self._deployments[key] = validate(DeploymentSpec, tree)
        return found

    def _chosen(self, axis: Axis, choice: tuple[int, ...]) -> Any:
        return axis.values[choice[self._group_of[axis.name]]]

    def system_at(self, point: Point) -> str:
        """Where the system of a point is written: the value of an axis over systems, else in the experiment."""
        for axis in self.sweep.axes:
            if axis.path == ("system",):
                return str(axis.places[point.choice[self._group_of[axis.name]]])
        return self.experiment.limits_at.get((point.variants["system"].name, ""), "")

    def cells(self, point: Point) -> dict[str, Any]:
        """Column → value of every axis; None if the axis does not apply to the point."""
        absent = _absent(point)
        return {
            column.name: None if column.axis.name in absent else column.cell(self._chosen(column.axis, point.choice))
            for column in self.columns
        }

    def shown(self, point: Point) -> dict[str, str]:
        """Path → value of every axis in words (`in_words`); ``–`` if the axis does not apply to the point."""
        absent = _absent(point)
        return {
            axis.name: "–" if axis.name in absent else in_words(self._chosen(axis, point.choice))
            for axis in self.sweep.axes
        }

    def given(self) -> dict[str, Any]:
        """The experiment before axes change it, with its ``sweep:`` if any; it loads as an equal plan."""
        return self.tree.data | {SWEEP_KEY: self.sweep.given} if self.sweep.axes else self.experiment.resolved()

    def resolved(self, point: Point) -> dict[str, Any]:
        """An experiment with only this point, everything written out; see ``ExperimentSpec.resolved``."""
        return self.alone(point).resolved()

    def alone(self, point: Point) -> ExperimentSpec:
        """An experiment with only this point."""
        return self.experiment.model_copy(
            update={
                "name": f"{self.experiment.name[:60]}.{point.index}",
                "systems": (point.system,),
                "models": (point.model,),
                "workload": point.workload.model_copy(update={"batch": (point.batch,)}),
                "policies": (point.policy,),
                "assumptions": (point.assumptions,),
                "engine": point.engine,
                "parallel": point.deployment.parallel,
                "precision": point.deployment.precision,
            }
        )

    def value(self, point: Point, path: tuple[str, ...]) -> Any:
        """A point's key: number in its base unit, text, boolean or spec; None if it has no such key."""
        kind = path[0]
        if path == ("workload", "batch"):
            return point.batch
        if kind == "engine":
            return point.engine
        if kind in DEPLOYED:
            return _walk(point.deployment, path)
        variant = point.variants[kind]
        if len(path) == 1 or (path[1:] == ("name",) and kind in NAMED):
            return variant.name if kind in NAMED else variant.spec.label if kind == "assumptions" else variant.spec
        return _walk(variant.spec, path[1:])


def _absent(point: Point) -> frozenset[str]:
    return point.variants["policy"].absent | point.variants["system"].absent


def plan_without_axes(experiment: ExperimentSpec) -> SweepPlan:
    return SweepPlan(Tree(experiment.resolved(), {}), SweepSpec(None, (), ()), experiment, None)


class AxisColumn:
    """The result column of an axis: name, type (``archsim.base.tables``) and the cell of a value."""

    def __init__(self, axis: Axis) -> None:
        self.axis = axis
        values = [without_range(axis.values[at]) for at in axis.telling]
        dimension = dimension_of(values[0]) if isinstance(values[0], str) else None
        if not all(isinstance(value, str) and dimension_of(value) is dimension for value in values):
            dimension = None
        numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        self.name = f"axis.{axis.name}{_SUFFIX[dimension.name] if dimension else ''}"
        self.cell: Callable[[Any], Any]
        if dimension:
            self.kind, self.cell = "real", lambda value: float(parse_quantity(without_range(value), dimension))
        elif numeric and all(isinstance(value, int) for value in values):
            self.kind, self.cell = "integer", lambda value: int(without_range(value))
        else:
            self.kind = "real" if numeric else "text"
            self.cell = (lambda value: float(without_range(value))) if numeric else written

    def cells(self) -> list[Any]:
        """The cells of all values of the axis. Those of a sampled or long range are never written as text."""
        values = self.axis.values
        numbers = values.numbers() if isinstance(values, Drawn | RangeValues) and self.kind == "real" else None
        return [self.cell(value) for value in values] if numbers is None else numbers


class _Question:
    """A constraint with its names resolved."""

    def __init__(self, plan: SweepPlan, constraint: Constraint, place: Place) -> None:
        self.text, self._constraint, self._place, self._plan = constraint.text, constraint, place, plan
        self._paths: dict[str, tuple[str, ...] | None] = {}
        samples = [plan.point(index) for index in spread(plan.combinations, _ASKED)]
        for name in constraint.names:
            if name in CONSTRAINT_MEASURES:
                self._check_fitting(name)
                continue
            path, problem = _path(name)
            values = [] if path is None else [plan.value(point, path) for point in samples]
            if any(isinstance(value, Spec | dict | tuple | list) for value in values):
                inside = next(value for value in values if value is not None)
                keys = f"; compare one of its keys: {', '.join(keys_of(type(inside)))}" if keys_of(type(inside)) else ""
                raise SpecError(f"{place}: {name!r} is not a single value{keys}")
            swept = path is not None and any(axis.path == path for axis in plan.sweep.axes)
            if path is not None and not swept and all(value is None for value in values):
                path, problem = None, f"unknown key {name!r}{did_you_mean(name, self._known(samples))}"
            if path is None and name not in constraint.words:
                known = self._known(samples)
                hint = did_you_mean(name, known)
                raise SpecError(
                    f"{place}: {problem if not hint else f'unknown name {name!r}{hint}'} (measures: "
                    f"{', '.join(CONSTRAINT_MEASURES)})"
                )
            self._paths[name] = path

    def _check_fitting(self, name: str) -> None:
        fitted = ("fits", name) in self._constraint.tests
        if fitted != (name == _FITTING):
            problem = (
                f"write `{_FITTING} fits`"
                if name == _FITTING
                else f"only {_FITTING} can be tested with `fits`; {name} is a number"
            )
            raise SpecError(f"{self._place}: {problem}")

    def _known(self, samples: list[Point]) -> list[str]:
        """All names that can be compared."""
        dotted = [
            f"{kind}.{path}"
            for point in samples[:1]
            for kind, variant in point.variants.items()
            for path in _leaves(variant.spec)
        ]
        short = [name.partition(".")[2] for name in dotted]
        return [*CONSTRAINT_MEASURES, *dotted, *short]

    def holds(self, point: Point, measures: Mapping[str, Callable[[Point], Any]], value: Any = None) -> Any:
        def lookup(name: str) -> Any:
            if name in CONSTRAINT_MEASURES:
                return measures[name](point)
            path = self._paths[name]
            return name if path is None else (value or self._plan.value)(point, path)

        try:
            return self._constraint.holds(lookup)
        except ValueError as error:
            raise SpecError(f"{self._place}: {error} (point {point.index})") from None


def _path(name: str) -> tuple[tuple[str, ...] | None, str]:
    try:
        return canonical(name), ""
    except ValueError as error:
        return None, str(error)


def spread(count: int, most: int) -> list[int]:
    """Numbers of up to ``most`` points spread over a sweep of ``count``, including the first and the last."""
    return sorted({round(index * (count - 1) / (most - 1)) for index in range(most)})


def _walk(spec: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        if isinstance(spec, Spec):
            fields = {info.alias or name: name for name, info in type(spec).model_fields.items()}
            params = getattr(spec, "params", None)
            spec = (
                params.get(key)
                if params is not None and key not in fields
                else getattr(spec, fields[key], None)
                if key in fields
                else None
            )
        elif isinstance(spec, dict):
            spec = spec.get(key)
        elif isinstance(spec, tuple) and key.isdecimal():
            spec = spec[int(key)] if int(key) < len(spec) else None
        else:
            return None
    return spec


def _leaves(spec: Spec, above: str = "") -> Iterator[str]:
    for name, info in type(spec).model_fields.items():
        value, key = getattr(spec, name), f"{above}{info.alias or name}"
        if isinstance(value, Spec):
            yield from _leaves(value, f"{key}.")
        elif name == "params":
            yield from (f"{above}{each}" for each in value)
        elif isinstance(value, int | float | str):
            yield key


def _check_batches(axis: Axis) -> None:
    for value, place in ((axis.values[at], axis.places[at]) for at in axis.telling):
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or value != int(value)
            or not 1 <= value <= 10_000_000
        ):
            raise SpecError(f"{place}: expected a batch, an integer from 1 to 10000000, not {describe(value)}")


def _check_engines(axis: Axis) -> None:
    known = get_args(ExperimentSpec.model_fields["engine"].annotation)
    for value, place in ((axis.values[at], axis.places[at]) for at in axis.telling):
        if value not in known:
            raise SpecError(
                f"{place}: unknown value {value!r}{did_you_mean(str(value), known)} (valid: {', '.join(known)})"
            )
