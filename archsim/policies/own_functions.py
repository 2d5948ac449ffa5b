"""A user's own functions as rules of a policy: arguments are copies that they may change; results are checked."""

import inspect
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.base.own_code import import_function
from archsim.policies.allocation import NO_EFFORT, Effort, Plan, StepView
from archsim.policies.heatmap import Seen
from archsim.policies.placement import Placement
from archsim.policies.rebalancing import History, Rebalanced
from archsim.policies.replication import LayerView, Replicas
from archsim.policies.routing import Executed, Pass
from archsim.specs.policies import arguments_of

_COLUMNS = ("expert", "die", "tokens")
# Limits of an Effort's counts: float64 keeps any total exactly, and int64 any sum of products of 2^15 experts.
_TOTAL_BITS, _EACH_BITS = 53, 24
_MOST_CHARACTERS = 60  # of what is no number, in a message


def own_placement(target: str, params: Mapping[str, Any]) -> Callable[[int, int, int], Placement]:
    """The placement ``package.module:function``. Raises ValueError if it cannot be imported.

    It is called with the numbers of experts and of dies; and with ``layers=`` if it has a parameter of that name that
    the policy does not set. It returns the homes, int[expert] (the same in every layer), or a `Placement`.
    """
    own = import_function(target)
    function = partial(own, **params)
    wants_layers = "layers" in inspect.signature(own).parameters and "layers" not in params

    def place(layers: int, experts: int, dies: int) -> Placement:
        given = _call(target, partial(function, layers=layers) if wants_layers else function, experts, dies)
        if isinstance(given, Placement):
            return _checked_placement(target, given, (layers, experts, dies))
        home = _integers(target, "the homes", given)
        if len(home) != experts:
            raise ArchsimError(f"{target}: returns {len(home)} homes for {experts} experts")
        outside = np.flatnonzero((home < 0) | (home >= dies))
        if len(outside):
            raise ArchsimError(
                f"{target}: the home of expert {outside[0]} is die {home[outside[0]]}; the system has 0 to {dies - 1}"
            )
        return Placement.of_homes(home, layers, dies)

    return place


def own_rebalancing(target: str, params: Mapping[str, Any]) -> Callable[[History, Placement], Placement | Rebalanced]:
    """The rebalancing ``package.module:function``. Raises ValueError if it cannot be imported."""
    function = partial(import_function(target), **params)

    def rebalance(history: History, placement: Placement) -> Placement | Rebalanced:
        given = _call(target, function, history, placement)
        if isinstance(given, Rebalanced):
            _checked_placement(target, given.placement, placement.holds.shape)
            return given._replace(effort=_checked_effort("rebalancing", target, given.effort))
        return _checked_placement(target, given, placement.holds.shape)

    return rebalance


def _checked_placement(target: str, given: Any, shape: tuple[int, ...]) -> Placement:
    if not isinstance(given, Placement):
        raise ArchsimError(f"{target}: returns {type(given).__name__}; expected archsim.policies.placement.Placement")
    if given.holds.shape != shape:
        found, expected = ("{} layers, {} experts and {} dies".format(*each) for each in (given.holds.shape, shape))
        raise ArchsimError(f"{target}: the placement is of {found}; expected {expected}")
    return given


def own_allocation(target: str, params: Mapping[str, Any]) -> Callable[[StepView], Plan]:
    """The allocation ``package.module:function``; it gets copies. Raises ValueError if it cannot be imported."""
    function = partial(import_function(target), **params)

    def allocate(step: StepView) -> Plan:
        copies = {
            name: each.copy() for name, each in zip(step._fields, step, strict=True) if isinstance(each, np.ndarray)
        }
        plan = _call(target, function, step._replace(**copies))  # type: ignore[arg-type]
        if not isinstance(plan, Plan):
            raise ArchsimError(f"{target}: returns {type(plan).__name__}; expected archsim.policies.allocation.Plan")
        columns = {name: _integers(target, f"{name} of the plan", getattr(plan, name)) for name in _COLUMNS}
        if len({len(column) for column in columns.values()}) > 1:
            sizes = ", ".join(f"{len(column)} of {name}" for name, column in columns.items())
            raise ArchsimError(f"{target}: the columns of the plan differ in length: {sizes}")
        expert = columns["expert"]
        outside = np.flatnonzero((expert < 0) | (expert >= len(step.tokens)))
        if len(outside):
            raise ArchsimError(
                f"{target}: the plan names expert {expert[outside[0]]}; the model has 0 to {len(step.tokens) - 1}"
            )
        expert, die, tokens = (columns[name].astype(np.int32) for name in _COLUMNS)
        effort = _checked_effort("allocation", target, plan.effort, int(np.count_nonzero(step.tokens)))
        return plan._replace(expert=expert, die=die, tokens=tokens, effort=effort)

    return allocate


def own_routing(target: str, params: Mapping[str, Any]) -> Callable[[Pass], Executed]:
    """The routing ``package.module:function``; it returns an `Executed`. Raises ValueError if it cannot be imported."""
    function = partial(import_function(target), **params)

    def route(batch: Pass) -> Executed:
        given = _call(target, function, batch._replace(experts=batch.experts.copy()))
        if not isinstance(given, Executed):
            raise ArchsimError(f"{target}: returns {type(given).__name__}; expected archsim.policies.routing.Executed")
        experts, rows = np.asarray(given.experts), len(batch.experts)
        if experts.ndim != 2 or len(experts) != rows or not np.issubdtype(experts.dtype, np.integer):
            found = f"{experts.dtype}{list(experts.shape)}"
            raise ArchsimError(f"{target}: experts are {found}; expected integers [{rows}, m]")
        if experts.size and not -1 <= experts.min() <= experts.max() < batch.num_experts:
            raise ArchsimError(
                f"{target}: experts {experts.min()} to {experts.max()}; expected 0 to {batch.num_experts - 1}, or -1"
            )
        return given

    return route


def own_replication(target: str, params: Mapping[str, Any], slots: int) -> Callable[[LayerView], Replicas]:
    """The replication ``package.module:function``: bool[expert, die] or `Replicas`. Raises ValueError."""
    function = partial(import_function(target), **params)

    def replicate(layer: LayerView) -> Replicas:
        given = _call(target, function, layer._replace(holders=layer.holders.copy()))
        given = given if isinstance(given, Replicas) else Replicas(given)
        given = given._replace(holds=np.asarray(given.holds))
        if given.holds.shape != layer.holders.shape or given.holds.dtype != np.bool_:
            found = f"{given.holds.dtype}{list(given.holds.shape)}"
            raise ArchsimError(f"{target}: returns {found}; expected bool{list(layer.holders.shape)}")
        new = given.holds & ~layer.holders
        if (most := int(new.sum(axis=0).max(initial=0))) > slots:
            raise ArchsimError(f"{target}: replicates {most} experts on a die; it has {slots} slots")
        in_sight_ns = _numbers(given.in_sight_ns)
        if in_sight_ns is None or in_sight_ns.ndim or not 0 <= in_sight_ns < np.inf:
            found = _found(given.in_sight_ns, in_sight_ns)
            raise ArchsimError(f"replication {target}: in_sight_ns {found}, expected a finite number of ns ≥ 0")
        effort = _checked_effort("replication", target, given.effort)
        return Replicas(new, effort, float(in_sight_ns))

    return replicate


def own_sharing(target: str, params: Mapping[str, Any]) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """The rule of shared experts ``package.module:function``. Raises ValueError if it cannot be imported."""
    function = partial(import_function(target), **params)

    def share(tokens: np.ndarray, load: np.ndarray) -> np.ndarray:
        given = np.asarray(_call(target, function, tokens.copy(), load.copy()))
        expected = (len(tokens), len(tokens))
        if given.shape != expected or not np.issubdtype(given.dtype, np.integer):
            found = f"{given.dtype}{list(given.shape)}"
            raise ArchsimError(f"{target}: returns {found}; expected integers {list(expected)}")
        if (given < 0).any() or (given.sum(axis=1) != tokens).any():
            raise ArchsimError(f"{target}: rows must add up to the tokens of each die")
        return given.astype(np.int64)

    return share


class OwnLook:
    """A predictor of one argument, `Seen`. It returns bool[expert], the experts expected next whatever a die runs now,
    or bool[expert, expert], row i those that are expected to follow expert i.
    """

    def __init__(self, target: str, function: Callable[[Seen], Any]):
        self._target, self._function = target, function

    def look(self, seen: Seen) -> np.ndarray:
        """uint8[expert, ceil(E/8)], little-endian bitset. Raises ArchsimError for another result."""
        experts = len(seen.heat)
        given = np.asarray(_call(self._target, self._function, seen))
        if given.dtype != bool or given.shape not in ((experts,), (experts, experts)):
            found = f"{given.dtype}{list(given.shape)}"
            raise ArchsimError(
                f"{self._target}: returns {found}; expected bool[{experts}], the experts expected next, or "
                f"bool[{experts}, {experts}], for each expert those expected to follow it"
            )
        return np.packbits(np.broadcast_to(given, (experts, experts)), axis=1, bitorder="little")


def own_predictor(target: str, params: Mapping[str, Any]) -> Any:
    """The predictor ``package.module:function``: an `OwnLook` if it takes one argument, else called with a copy of the
    heatmap. Raises ValueError if it cannot be imported.
    """
    own = import_function(target)
    function = partial(own, **params)
    if arguments_of("prediction", own, params) == 1:
        return OwnLook(target, function)

    def predict(heat: np.ndarray, changed: np.ndarray, out: np.ndarray) -> None:
        _call(target, function, heat.copy(), changed.copy(), out)

    return predict


def _call(target: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's function; report what it raises, and where."""
    try:
        return function(*arguments)
    except ArchsimError:
        raise
    except Exception as error:
        if type(error).__module__.startswith("numba.") and any(getattr(each, "charged", None) for each in arguments):
            raise ArchsimError(
                f"{target}: a compiled function cannot take `step`. Pass `step.compiled` to compiled functions"
            ) from error
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if place.filename == __file__ else f" ({place.filename}:{place.lineno})"
        raise ArchsimError(f"{target}: {type(error).__name__}: {error}{where}") from error


def _checked_effort(rule: str, target: str, given: Any, active: int | None = None) -> Effort:
    """A user's effort, with counts in int64. None states none, as an effort that is left out.

    ``active``: active experts of the step, of which a decision has an entry for each that it places; None where it is
    taken beside the steps, and charged by its operations and statistics alone. Raises ArchsimError, with the field, for
    what cannot be charged.
    """
    if given is None or given is NO_EFFORT:
        return NO_EFFORT
    if not isinstance(given, Effort):
        raise ArchsimError(
            f"{rule} {target}: effort is {type(given).__name__}; expected archsim.extend.Effort, or None where none is "
            "stated"
        )
    found = {name: _numbers(value) for name, value in given._asdict().items()}

    def refusal(name: str, expected: str, at: int | None = None) -> ArchsimError:
        problem = _found(getattr(given, name), found[name], at)
        return ArchsimError(f"{rule} {target}: effort.{name} {problem}, expected {expected}")

    checked: dict[str, Any] = {}
    for name in ("global_demand", "speeds"):
        if (flag := found[name]) is None or flag.ndim or flag not in (0, 1):
            raise refusal(name, "True or False")
        checked[name] = bool(flag)
    for name in ("sorted_experts", "operations", "statistics_bytes"):
        if (total := found[name]) is None or total.ndim or not _are_counts(total, _TOTAL_BITS):
            raise refusal(name, f"a whole number ≥ 0 (at most 2^{_TOTAL_BITS})")
        checked[name] = int(total)
    if active is None:
        for name in ("sorted_experts", "candidates", "blocks"):
            if (counts := found[name]) is None or counts.any():
                problem = "no counts: a decision beside the steps is charged by operations and statistics_bytes"
                raise refusal(name, problem)
        return NO_EFFORT._replace(**checked)
    for name in ("candidates", "blocks"):
        entries = f"at most {active} entries (one for each active expert that it places)"
        each = f"{entries}, each a whole number from 0 to 2^{_EACH_BITS}"
        if (counts := found[name]) is None or counts.ndim != 1 or len(counts) > active:
            raise refusal(name, each)
        if not (right := _are_counts(counts, _EACH_BITS)).all():
            raise refusal(name, each, int(np.argmin(right)))
        checked[name] = counts.astype(np.int64)
    if len(checked["blocks"]) != len(checked["candidates"]):
        raise refusal("blocks", f"{len(checked['candidates'])}, as many as candidates has")
    return given._replace(**checked)


def _numbers(given: Any) -> np.ndarray | None:
    """``given`` as an array of real numbers; None if it is none."""
    try:
        values = np.asarray(given)
    except (TypeError, ValueError):  # rows of several lengths
        return None
    return values if values.dtype.kind in "buif" else None


def _are_counts(values: np.ndarray, bits: int) -> np.ndarray:
    """bool, of the shape of ``values``: whether each is a whole number from 0 to 2^bits."""
    return (values >= 0) & (values <= 2.0**bits) & (values == np.floor(values))


def _found(given: Any, values: np.ndarray | None, at: int | None = None) -> str:
    """What a message says of ``given``, whose `_numbers` are ``values``. ``at``: the entry that is wrong, if one is."""
    if values is None:
        text = " ".join(repr(given).split())
        return f"is {text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + '…'}"
    if values.ndim == 0:
        return f"is {values.item()}"
    if values.ndim > 1:
        return f"has the shape {list(values.shape)}"
    return f"has {len(values)} entries" if at is None else f"is {values[at].item()} at entry {at}"


def _integers(target: str, what: str, given: Any) -> np.ndarray:
    """``given`` as int64[n]."""
    values = np.asarray(given)
    if values.ndim != 1 or (values.size and not np.issubdtype(values.dtype, np.integer)):
        shape = f"{values.dtype} of shape {values.shape}"
        raise ArchsimError(f"{target}: {what} must be a row of integers, got {shape}")
    return values.astype(np.int64)
