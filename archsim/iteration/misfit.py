"""Refuses a run that does not fit in HBM: by kind what it needs, and which single change would make it fit."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from archsim.base.errors import CapacityError
from archsim.iteration.memory import KV, Fit, counts_all, fit_of
from archsim.policies.placement import Placement, even_placement
from archsim.specs.scenario import Scenario

_MOST_DIES = 65_536


@dataclass(frozen=True)
class FittingChange:
    """A change that makes a run fit: text, scenario, and int64[die] experts of all layers together."""

    text: str
    scenario: Scenario
    slots: np.ndarray

    @property
    def fit(self) -> Fit:
        return fit_of(self.scenario, self.slots)


def refuse_misfit(scenario: Scenario, placement: Placement) -> Fit:
    """The fit, or CapacityError with die, demand by kind, bound, gap and what would make the run fit."""
    system, fit = scenario.system, fit_of(scenario, placement)
    if scenario.assumptions.capacity == "unbounded" or fit.fits:
        return fit
    die = int(fit.demand_bytes.argmax())
    demand = int(fit.demand_bytes[die])
    nowhere = fit.kv_room.nowhere if fit.kv_room is not None else ""
    texts = [lever.text for lever in levers(scenario, placement)] + ["capacity: unbounded, to ignore the limit"]
    raise CapacityError(
        f"{scenario.model.name} does not fit on {system.name}: die {die} needs {_written(demand)} of HBM "
        f"({_kinds(fit, die, scenario)}), but has {_written(fit.bound_bytes)} ({_written(system.hbm.capacity_bytes)} "
        f"less {system.hbm.reserved_fraction:.0%} reserve{nowhere}), {_written(demand - fit.bound_bytes)} too little. "
        f"It would fit with {', or '.join(texts)}"
    )


def _kinds(fit: Fit, die: int, scenario: Scenario) -> str:
    parts = [f"{kind} {_written(int(each[die]))}" for kind, each in fit.parts.items()]
    if KV in fit.parts:
        parts.append(f"batch {scenario.batch:,}, {fit.context:,} tokens per request")
    return ", ".join(parts)


def levers(scenario: Scenario, placement: Placement) -> Iterator[FittingChange]:
    """Single changes after which the run fits, with the least or the most of each that does."""
    candidates = [_capacity(scenario, placement), _dies(scenario, placement)]
    if counts_all(scenario.model, scenario.assumptions):
        candidates = [_batch(scenario, placement), _shorter(scenario, placement), *candidates]
        candidates += [_kv_in_fp8(scenario, placement), _shard_attention(scenario, placement)]
    candidates.append(_experts_in_fp8(scenario, placement))
    yield from (lever for lever in candidates if lever is not None and lever.fit.fits)


def _batch(scenario: Scenario, placement: Placement) -> FittingChange | None:
    def at(batch: int) -> FittingChange:
        return FittingChange(f"a batch of at most {batch:,}", replace(scenario, batch=batch), placement.slots)

    return _last_that_fits(at, 1, scenario.batch)


def _shorter(scenario: Scenario, placement: Placement) -> FittingChange | None:
    def at(context: int) -> FittingChange:
        workload = scenario.workload.model_copy(update={"context": context})
        text = f"workload.context of at most {context:,} tokens"
        return FittingChange(text, replace(scenario, workload=workload), placement.slots)

    return _last_that_fits(at, 1, scenario.workload.context_tokens or 0)


def _capacity(scenario: Scenario, placement: Placement) -> FittingChange:
    system = scenario.system
    needed = int(fit_of(scenario, placement).demand_bytes.max()) / (1 - system.hbm.reserved_fraction)
    capacity, text = _rounded_up(needed + 1)
    hbm = system.hbm.model_copy(update={"capacity_bytes": capacity})
    changed = replace(scenario, system=system.model_copy(update={"hbm": hbm}))
    return FittingChange(f"hbm.capacity of at least {text} per die", changed, placement.slots)


def _dies(scenario: Scenario, placement: Placement) -> FittingChange | None:
    """Of more dies with as many replicas, each as full as experts spread evenly make it."""
    model, held = scenario.model, int(placement.slots.sum())

    def at(dies: int) -> FittingChange:
        homes = len(model.moe_layer_ids) * np.bincount(even_placement(model.experts, dies), minlength=dies)
        replicas = ceil((held - int(homes.sum())) / dies)
        return FittingChange(
            f"about {dies:,} dies or more instead of {scenario.system.dies}", scenario, homes + replicas
        )

    dies = range(scenario.system.dies + 1, _MOST_DIES)
    found = _bisect(lambda number: at(number).fit.fits, dies.start, dies.stop)
    return None if found is None else at(found)


def _kv_in_fp8(scenario: Scenario, placement: Placement) -> FittingChange | None:
    if scenario.precision.kv == "fp8":
        return None
    precision = scenario.deployment.precision.model_copy(update={"kv": "fp8"})
    deployment = scenario.deployment.model_copy(update={"precision": precision})
    return FittingChange("precision.kv: fp8", replace(scenario, deployment=deployment), placement.slots)


def _shard_attention(scenario: Scenario, placement: Placement) -> FittingChange | None:
    if scenario.workload.attention_weights == "sharded":
        return None
    workload = scenario.workload.model_copy(update={"attention_weights": "sharded"})
    return FittingChange("workload.attention_weights: sharded", replace(scenario, workload=workload), placement.slots)


def _experts_in_fp8(scenario: Scenario, placement: Placement) -> FittingChange | None:
    system = scenario.system
    if system.compute.dtype_bytes <= 1:
        return None
    compute = system.compute.model_copy(update={"dtype": "fp8"})
    changed = replace(scenario, system=system.model_copy(update={"compute": compute}))
    return FittingChange("compute.dtype: fp8, which halves the weights", changed, placement.slots)


def _last_that_fits(at: Callable[[int], FittingChange], low: int, high: int) -> FittingChange | None:
    """Of numbers from low to below high the largest whose lever fits, as do all below it."""
    first_misfit = _bisect(lambda number: not at(number).fit.fits, low, high)
    last = (high if first_misfit is None else first_misfit) - 1
    return at(last) if last >= low else None


def _bisect(holds: Callable[[int], bool], low: int, high: int) -> int | None:
    """The first number in range(low, high) for which `holds`, as for all above it; None if there is none."""
    if low >= high or not holds(high - 1):
        return None
    first, last = low, high - 1
    while first < last:
        middle = (first + last) // 2
        first, last = (first, middle) if holds(middle) else (middle + 1, last)
    return first


def _rounded_up(n_bytes: float) -> tuple[int, str]:
    """The next number of bytes that `_written` writes exactly, and as it writes it."""
    unit, size = _unit(n_bytes)
    tenths = ceil(n_bytes / size * 10)
    return ceil(tenths * size / 10), f"{tenths / 10:.1f} {unit}"


def _written(n_bytes: float) -> str:
    """Bytes with a readable unit: ``91.2 GB``, ``3.4 MB``."""
    unit, size = _unit(n_bytes)
    return f"{n_bytes / size:.1f} {unit}"


def _unit(n_bytes: float) -> tuple[str, float]:
    units = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
    return next(((unit, size) for unit, size in units if n_bytes >= size), ("B", 1.0))
