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
import warnings
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
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


# Paths of modules that the documentation of version 0.1 named → where they are now. They work until version 0.3.
MOVED = {
    "archsim.engine.executions.execution": "archsim.engine.execution",
    "archsim.engine.fabric": "archsim.engine.fabrics",
    "archsim.serving.scheduling": "archsim.serving.schedulers",
    "archsim.specs.loading.calibrations": "archsim.specs.calibration_files",
    "archsim.specs.loading.library": "archsim.specs.library",
    "microarch.fabric.own": "microarch.fabric.described",
    "microarch.fabric.routes": "microarch.fabric.fabric",
}


class MovedModules(MetaPathFinder, Loader):
    """Imports a module of `MOVED` by its old path: an empty module whose names are those of the new one."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname in MOVED or any(old.startswith(f"{fullname}.") for old in MOVED):
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def exec_module(self, module: ModuleType) -> None:
        now = MOVED.get(module.__name__)
        if now is None:  # a folder that is gone, with modules of MOVED in it
            return
        warnings.warn(f"{module.__name__} is {now} now; see archsim.extend", DeprecationWarning, stacklevel=2)
        vars(module)["__getattr__"] = partial(getattr, importlib.import_module(now))
