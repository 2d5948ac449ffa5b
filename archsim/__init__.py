"""archsim: co-design simulator for mixture-of-experts serving on chiplet and wafer-scale GPUs.

experiment = archsim.load_experiment("configs/dojo.yaml")
results = archsim.sweep(experiment)
"""

import importlib
from typing import Any

from archsim.base.code_digest import keep_machine_code

keep_machine_code()

# Public name → where it is defined. Loaded when first used, so that `archsim --help` does not wait for numba.
_PUBLIC = {
    "load_experiment": "archsim.specs.loading.library",
    "simulate": "archsim.runs.sweep",
    "simulate_flows": "archsim.engine.network.flows",
    "sweep": "archsim.runs.sweep",
    "Results": "archsim.runs.results",
}

__all__ = ["Results", "load_experiment", "simulate", "simulate_flows", "sweep"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'archsim' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
