"""archsim: co-design simulator for mixture-of-experts serving on chiplet and wafer-scale GPUs.

    import archsim as ar

    results = ar.sweep("configs/dojo.yaml")                  # or ar.load(...), or a mapping
    results.runs.to_pandas()                                 # one row per run; times in ns, data in bytes
    ar.run("configs/dojo.yaml", policy="allo")               # one combination

Functions print nothing, and write a report only if ``out`` is given. Errors that a user can fix are `ArchsimError`.
"""

# ruff: noqa: F405  (names of `archsim.api`, which are loaded on first use)

import os
import sys

if sys.argv[:1] == ["-m"] and sys.path[:1] == [os.getcwd()] != [os.path.dirname(os.path.dirname(__file__))]:
    del sys.path[0]  # `python -m archsim` would search the current folder for every module that a library tries

import importlib
from typing import TYPE_CHECKING, Any

from archsim.base.code_digest import keep_compiler, keep_machine_code
from archsim.base.libraries import find_nothing_here

if TYPE_CHECKING:
    from archsim.api import *  # noqa: F403
    from archsim.base.errors import ArchsimError
    from archsim.engine.flows.simulation import simulate_flows
    from archsim.policies.allocation import Effort, Plan, StepView
    from archsim.runs.executor import on_cluster
    from archsim.runs.results import Results
    from archsim.specs.library import load_assumptions, load_experiment, load_model, load_system

    __version__: str

find_nothing_here()
keep_compiler()
keep_machine_code()

# Module → its public names. Loaded on first use, so that `archsim --help` does not wait for numba.
_NAMES = {
    "archsim.api": "Calibrations ExplorationPlan ablate block_worth calibrate calibrate_meshes calibrate_serving check "
    "claims compare compare_serving engines explore figure load optimum place recommend run run_phase search_serving "
    "serve serve_plan serve_policies serve_sure sure sweep validate validate_meshes "
    "validate_served verify why worth ",
    "archsim.base.errors": "ArchsimError",
    "archsim.engine.flows.simulation": "simulate_flows",
    "archsim.policies.allocation": "Effort Plan StepView",
    "archsim.runs.executor": "on_cluster",
    "archsim.runs.results": "Results",
    "archsim.specs.library": "load_assumptions load_experiment load_model load_system",
}
_PUBLIC = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [  # noqa: F822 (defined by __getattr__)
    "ArchsimError", "Calibrations", "Effort", "ExplorationPlan", "Plan", "Results", "StepView", "__version__",
    "ablate", "block_worth", "calibrate", "calibrate_meshes", "calibrate_serving", "check", "claims", "compare",
    "compare_serving", "engines", "explore", "figure", "load", "load_assumptions", "load_experiment", "load_model",
    "load_system", "on_cluster", "optimum", "place", "recommend", "run", "run_phase", "search_serving", "serve",
    "serve_plan", "serve_policies", "serve_sure", "simulate_flows", "sure", "sweep", "validate", "validate_meshes",
    "validate_served", "verify", "why", "worth",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("archsim")
    elif name in _PUBLIC:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
    else:
        raise AttributeError(f"module 'archsim' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
