"""Everything that your own code may import: types and helpers behind keys that name ``package.module:function``.

What stands here keeps its name from release to release. All other modules are free to move.

| your function is | it uses |
|---|---|
| an allocation | ``StepView``, ``Plan``, ``Effort``, ``NO_EFFORT``, ``home`` |
| a routing | ``Pass``, ``Executed`` |
| a rebalancing | ``History``, ``SeenRouting``, ``Rebalanced``, ``Placement``, ``Effort``, ``moves_between`` |
| a replication for the next layer | ``LayerView``, ``Replicas`` |
| a prediction of experts | ``Seen`` |
| a placement rule | ``Placement`` |
| a scheduler of ``archsim serve`` | ``serve_running``, ``admit``, ``enqueue``, ``uncomputed`` |
| a kind of attention | ``Kind``, ``Product``, ``Work`` |
| a topology | ``FabricDescription``, ``LinkClass`` |
| an execution | ``Execution``, ``Setup``, ``GemmTime`` |
| a hardware block | ``BlockState``, ``BlockEvent``, ``kernel`` |
| anything that refuses input | ``ArchsimError``, ``SpecError`` |

Names load on first use, so importing this module costs nothing.
"""

import importlib
from typing import Any

# Module → its names, as ``name`` or ``name=its name there``.
_FROM = {
    "archsim.base.compiled": "kernel",
    "archsim.base.errors": "ArchsimError SpecError",
    "archsim.engine.execution": "Execution GemmTime Setup",
    "archsim.iteration.attention": "Kind Product Work",
    "archsim.policies.allocation": "Effort NO_EFFORT Plan StepView home",
    "archsim.policies.placement": "Placement moves_between",
    "archsim.policies.rebalancing": "History Rebalanced",
    "archsim.policies.replication": "LayerView Replicas",
    "archsim.policies.routing": "Executed Pass",
    "archsim.policies.seen_routing": "SeenRouting",
    "archsim.policies.heatmap": "Seen",
    "archsim.serving.schedulers": "admit enqueue serve_running uncomputed",
    "microarch.blocks.request": "BlockEvent=Event BlockState=State",
    "microarch.fabric.described": "FabricDescription",
    "microarch.fabric.fabric": "LinkClass",
}
_HOME = {
    each.partition("=")[0]: (module, each.rpartition("=")[2])
    for module, names in _FROM.items()
    for each in names.split()
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"archsim.extend has no {name!r}; it has {', '.join(__all__)}")
    module, there = _HOME[name]
    value = getattr(importlib.import_module(module), there)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
