"""Expands a sweep to its points, one at a time. Each is one run: system, model, batch, policy, assumption set and
workload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, get_args

from archsim.base.errors import SpecError
from archsim.base.nearest import did_you_mean
from archsim.specs.deployment import DeploymentSpec
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.sweeps.axes import KINDS, SWEEP_KEY, Axis, SweepSpec, canonical
from archsim.specs.sweeps.axis_values import dimension_of
from archsim.specs.sweeps.constraints import Constraint
from archsim.specs.sweeps.variants import NAMED, PLURAL, Maker, Variant
from archsim.specs.text.fields import Spec
from archsim.specs.text.quantities import describe, parse_quantity
from archsim.specs.text.validation import keys_of
from archsim.specs.text.yaml import Place, Tree, dump_yaml
from archsim.specs.workload import WorkloadSpec

MEASURES = {
    "dies": "number of dies",
    "area_mm2": "silicon of the decision hardware (archsim area): tables and command processors",
    "die_mm2": "one die (archsim cost)",
    "silicon_mm2": "all dies (archsim cost)",
    "cost_usd": "price of the machine (archsim cost)",
    "hbm_capacity": "with `fits`: whether homes and shared experts fit in the HBM of every die",
}
_FITTING = "hbm_capacity"
_SUFFIX = {
    "size": "_bytes",
    "bandwidth": "_bytes_per_s",
    "compute rate": "_flop_per_s",
    "time": "_ns",
    "clock rate": "_hz",
    "fraction": "",
}
# Other fields follow from these, so they cannot be axes; the whole entry is the axis instead.
_WHOLE = {("assumptions", "set"): "assumptions", ("system", "like"): "system", ("policy", "preset"): "policy"}


class Point(NamedTuple):
    """index: its number among all combinations; choice: value index of every group; variants: by kind, as below."""

    index: int
    choice: tuple[int, ...]
    variants: Mapping[str, Variant]
    batch: int
    engine: str
    deployment: DeploymentSpec = DeploymentSpec()

    @property
    def system(self):
        return self.variants["system"].spec

    @property
    def model(self):
        return self.variants["model"].spec

    @property
    def workload(self) -> WorkloadSpec:
        return self.variants["workload"].spec

    @property
    def policy(self):
        return self.variants["policy"].spec

    @property
    def assumptions(self):
        return self.variants["assumptions"].spec


@dataclass
class Dropped:
    """Points that an expansion has dropped so far: by constraint (as written), and repeats of other points."""

    by_constraint: dict[str, int] = field(default_factory=dict)
    repeats: int = 0

    @property
    def total(self) -> int:
        return sum(self.by_constraint.values()) + self.repeats


class SweepPlan:
    """An experiment with a sweep, checked axis by axis.

    tree: raw data of the experiment, references expanded; experiment: the same, validated; folder: of its file.
    Raises SpecError for axes and constraints that are not valid.
    """

    def __init__(self, tree: Tree, sweep: SweepSpec, experiment: ExperimentSpec, folder: Path | None) -> None:
        self.tree, self.sweep, self.experiment, self._folder = tree, sweep, experiment, folder
        self._deployment = experiment.deployment
        self._group_of = {axis.name: index for index, group in enumerate(sweep.groups) for axis in group.axes}
        self._batch, self._engine = (_axis(sweep, path) for path in (("workload", "batch"), ("engine",)))
        self._batches = _batches(self._batch) if self._batch else experiment.workload.batch
        self._engines = _engines(self._engine) if self._engine else (experiment.engine,)
        self._makers = self._new_makers(folder)
        self.columns = tuple(AxisColumn(axis) for axis in sweep.axes)
        inner = [
            1 if self._batch else len(self._batches),
            len(self._makers["assumptions"]),
            len(self._makers["policy"]),
        ]
        self._sizes = [*map(len, sweep.groups), len(self._makers["system"]), len(self._makers["model"]), *inner]
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
                            f"{axis.place}: other keys depend on it; vary the whole entry instead, "
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
        return SweepPlan(tree, self.sweep, self.experiment.model_copy(update={"engine": engine}), self._folder)

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
        """Radices of a point's number: values per group of axes, then items per list of the experiment; the last
        varies fastest.
        """
        return tuple(self._sizes)

    def index_of(self, chosen: tuple[int, ...]) -> int:
        """The number of the point with the ``chosen`` indices, one per entry of ``sizes``."""
        index = 0
        for at, size in zip(chosen, self._sizes, strict=True):
            index = index * size + at
        return index

    def keeps(self, point: Point, measures: Mapping[str, Callable[[Point], Any]]) -> bool:
        """Whether all constraints hold. Raises SpecError as :meth:`points` does."""
        return all(each.holds(point, measures) for each in self._constraints)

    def points(self, measures: Mapping[str, Callable[[Point], Any]], dropped: Dropped | None = None) -> Iterator[Point]:
        """The points that satisfy all constraints, in order, without repeats. measures: a function for every name in
        MEASURES.

        Raises SpecError for an invalid combination, or one on which a constraint cannot be evaluated.
        """
        dropped = Dropped() if dropped is None else dropped
        seen: set[tuple] = set()
        for index in range(self.combinations):
            point = self.point(index)
            same = (*[id(variant.spec) for variant in point.variants.values()], point.batch, point.engine)
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
        rest, chosen = index, []
        for size in reversed(self._sizes):
            rest, at = divmod(rest, size)
            chosen.append(at)
        chosen.reverse()
        groups = len(self.sweep.groups)
        choice, (system, model, batch, assumptions, policy) = tuple(chosen[:groups]), chosen[groups:]
        base = {"system": system, "model": model, "workload": 0, "policy": policy, "assumptions": assumptions}
        try:
            variants = {kind: self._makers[kind].make(at, choice) for kind, at in base.items()}
        except SpecError as error:
            shown = ", ".join(
                f"{axis.name} {written(axis.values[choice[self._group_of[axis.name]]])}" for axis in self.sweep.axes
            )
            raise SpecError(f"{error} (point {index}: {shown})") from None
        size = self._batches[choice[self._group_of[self._batch.name]] if self._batch else batch]
        engine = self._engines[choice[self._group_of[self._engine.name]] if self._engine else 0]
        return Point(index, choice, variants, size, engine, self._deployment)

    def cells(self, point: Point) -> dict[str, Any]:
        """Column → value of every axis; None if the axis does not apply to the point."""
        absent = point.variants["policy"].absent
        return {
            column.name: None
            if column.axis.name in absent
            else column.cells[point.choice[self._group_of[column.axis.name]]]
            for column in self.columns
        }

    def shown(self, point: Point) -> dict[str, str]:
        """Path → value of every axis in words (`in_words`); ``–`` if the axis does not apply to the point."""
        absent = point.variants["policy"].absent
        return {
            axis.name: "–" if axis.name in absent else in_words(axis.values[point.choice[self._group_of[axis.name]]])
            for axis in self.sweep.axes
        }

    def given(self) -> dict[str, Any]:
        """The experiment before axes change it, references expanded, with its ``sweep:`` if any; it loads as an equal
        plan.
        """
        return self.tree.data | {SWEEP_KEY: self.sweep.given} if self.sweep.axes else self.experiment.resolved()

    def resolved(self, point: Point) -> dict[str, Any]:
        """An experiment with only this point, everything written out; see ``ExperimentSpec.resolved``."""
        one = self.experiment.model_copy(
            update={
                "name": f"{self.experiment.name[:60]}.{point.index}",
                "systems": (point.system,),
                "models": (point.model,),
                "workload": point.workload.model_copy(update={"batch": (point.batch,)}),
                "policies": (point.policy,),
                "assumptions": (point.assumptions,),
                "engine": point.engine,
            }
        )
        return one.resolved()

    def value(self, point: Point, path: tuple[str, ...]) -> Any:
        """The value of a point's key: a number in its base unit, text, a boolean or a spec; None if the point has no
        such key.
        """
        kind = path[0]
        if path == ("workload", "batch"):
            return point.batch
        if kind == "engine":
            return point.engine
        variant = point.variants[kind]
        if len(path) == 1 or (path[1:] == ("name",) and kind in NAMED):
            return variant.name if kind in NAMED else variant.spec.label if kind == "assumptions" else variant.spec
        return _walk(variant.spec, path[1:])


def plan_without_axes(experiment: ExperimentSpec) -> SweepPlan:
    """A plan of all combinations of an experiment."""
    return SweepPlan(Tree(experiment.resolved(), {}), SweepSpec(None, (), ()), experiment, None)


class AxisColumn:
    """The result column of an axis: name, type (``archsim.base.tables``) and the value of every index."""

    def __init__(self, axis: Axis) -> None:
        self.axis = axis
        dimension = dimension_of(axis.values[0]) if isinstance(axis.values[0], str) else None
        if not all(isinstance(value, str) and dimension_of(value) is dimension for value in axis.values):
            dimension = None
        numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in axis.values)
        self.name = f"axis.{axis.name}{_SUFFIX[dimension.name] if dimension else ''}"
        if dimension:
            self.kind, self.cells = "real", tuple(float(parse_quantity(value, dimension)) for value in axis.values)
        elif numeric:
            whole = all(isinstance(value, int) for value in axis.values)
            self.kind, self.cells = ("integer", axis.values) if whole else ("real", tuple(map(float, axis.values)))
        else:
            self.kind, self.cells = "text", tuple(map(written, axis.values))


class _Question:
    """A constraint with its names resolved."""

    def __init__(self, plan: SweepPlan, constraint: Constraint, place: Place) -> None:
        self.text, self._constraint, self._place, self._plan = constraint.text, constraint, place, plan
        self._paths: dict[str, tuple[str, ...] | None] = {}
        samples = [plan.point(index) for index in _spread(plan.combinations)]
        for name in constraint.names:
            if name in MEASURES:
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
                    f"{', '.join(MEASURES)})"
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
        return [*MEASURES, *dotted, *short]

    def holds(self, point: Point, measures: Mapping[str, Callable[[Point], Any]]) -> bool:
        def lookup(name: str) -> Any:
            if name in MEASURES:
                return measures[name](point)
            path = self._paths[name]
            return name if path is None else self._plan.value(point, path)

        try:
            return self._constraint.holds(lookup)
        except ValueError as error:
            raise SpecError(f"{self._place}: {error} (point {point.index})") from None


def _path(name: str) -> tuple[tuple[str, ...] | None, str]:
    try:
        return canonical(name), ""
    except ValueError as error:
        return None, str(error)


def _spread(count: int) -> list[int]:
    """Numbers of up to 64 points spread over a sweep, including the first and the last."""
    return sorted({round(index * (count - 1) / 63) for index in range(64)})


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


def _axis(sweep: SweepSpec, path: tuple[str, ...]) -> Axis | None:
    return next((axis for axis in sweep.axes if axis.path == path), None)


def _batches(axis: Axis) -> tuple[int, ...]:
    for value, place in zip(axis.values, axis.places, strict=True):
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or value != int(value)
            or not 1 <= value <= 10_000_000
        ):
            raise SpecError(f"{place}: expected a batch, an integer from 1 to 10000000, not {describe(value)}")
    return tuple(map(int, axis.values))


def _engines(axis: Axis) -> tuple[str, ...]:
    known = get_args(ExperimentSpec.model_fields["engine"].annotation)
    for value, place in zip(axis.values, axis.places, strict=True):
        if value not in known:
            raise SpecError(
                f"{place}: unknown value {value!r}{did_you_mean(str(value), known)} (valid: {', '.join(known)})"
            )
    return axis.values


def written(value: Any) -> str:
    """Text unchanged; anything else as YAML on one line."""
    return value if isinstance(value, str) else dump_yaml([value], flow=True)[1:-1]


def in_words(value: Any) -> str:
    """As `written`; of a mapping its name, then its keys: ``mesh, vertical bandwidth 1 TB/s``."""
    if not isinstance(value, dict) or "name" not in value:
        return written(value)
    others = {key: each for key, each in value.items() if key != "name"}
    return ", ".join([written(value["name"]), *_keys_in_words(others)])


def _keys_in_words(value: dict[str, Any], above: str = "") -> Iterator[str]:
    for key, each in value.items():
        words = f"{above}{key.replace('_', ' ')} "
        if isinstance(each, dict):
            yield from _keys_in_words(each, words)
        else:
            yield f"{words}{written(each)}"
