"""Measures of a point without a run, for constraints of a sweep: dies, areas, price, and whether the weights fit."""

from collections.abc import Callable, Mapping
from typing import Any

from archsim.iteration.memory import depends_on_requests, memory_fit
from archsim.policies.registry import place_experts
from archsim.runs.contexts import Contexts
from archsim.runs.economics import Machine, build_costs
from archsim.specs.sweeps.plan import Point


class Measures:
    """Functions for the names of ``archsim.specs.sweeps.plan.MEASURES``. Measures that depend on parts alone are
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

    def _machine(self, point: Point) -> Machine:
        return self._once("machine", build_costs, point.system)
