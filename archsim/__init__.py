"""archsim: co-design simulator for mixture-of-experts serving on chiplet and wafer-scale GPUs.

    import archsim as ar

    results = ar.sweep("configs/dojo.yaml")                  # or ar.load(...), or a mapping
    results.runs.to_pandas()                                 # one row per run; times in ns, data in bytes
    ar.run("configs/dojo.yaml", policy="allo")               # one combination

Functions print nothing, and write a report only if ``out`` is given. Errors that a user can fix are `ArchsimError`.
"""

import os
import sys

if sys.argv[:1] == ["-m"] and sys.path[:1] == [os.getcwd()] != [os.path.dirname(os.path.dirname(__file__))]:
    del sys.path[0]  # `python -m archsim` would search the current folder for every module that a library tries

import importlib
from typing import TYPE_CHECKING, Any

from archsim.base.code_digest import keep_compiler, keep_machine_code

if TYPE_CHECKING:
    from archsim.api.calibrating import Calibrations, calibrate, calibrate_meshes, validate, validate_meshes
    from archsim.api.claiming import claims
    from archsim.api.loading import ExplorationPlan, load
    from archsim.api.placing import block_worth, place, worth
    from archsim.api.running import run, run_phase, sweep
    from archsim.api.serving import (
        calibrate_serving,
        compare_serving,
        search_serving,
        serve,
        serve_plan,
        serve_policies,
    )
    from archsim.api.studying import ablate, compare, engines, explore, optimum, verify, why
    from archsim.base.errors import ArchsimError
    from archsim.engine.network.flows import simulate_flows
    from archsim.policies.allocation.rules import Effort, Plan, StepView
    from archsim.runs.results import Results
    from archsim.specs.loading.library import load_assumptions, load_experiment, load_model, load_system

    __version__: str

keep_compiler()
keep_machine_code()

# Module → its public names. Loaded on first use, so that `archsim --help` does not wait for numba.
_NAMES = {
    "archsim.api.calibrating": "Calibrations calibrate calibrate_meshes validate validate_meshes",
    "archsim.api.claiming": "claims",
    "archsim.api.loading": "ExplorationPlan load",
    "archsim.api.placing": "block_worth place worth",
    "archsim.api.running": "run run_phase sweep",
    "archsim.api.serving": "calibrate_serving compare_serving search_serving serve serve_plan serve_policies",
    "archsim.api.studying": "ablate compare engines explore optimum verify why",
    "archsim.base.errors": "ArchsimError",
    "archsim.engine.network.flows": "simulate_flows",
    "archsim.policies.allocation.rules": "Effort Plan StepView",
    "archsim.runs.results": "Results",
    "archsim.specs.loading.library": "load_assumptions load_experiment load_model load_system",
}
_PUBLIC = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [  # noqa: F822 (defined by __getattr__)
    "ArchsimError", "Calibrations", "Effort", "ExplorationPlan", "Plan", "Results", "StepView", "__version__",
    "ablate", "block_worth", "calibrate", "calibrate_meshes", "calibrate_serving", "claims", "compare",
    "compare_serving", "engines", "explore", "load", "load_assumptions", "load_experiment", "load_model",
    "load_system", "optimum", "place", "run", "run_phase", "search_serving", "serve", "serve_plan", "serve_policies",
    "simulate_flows", "sweep", "validate", "validate_meshes", "verify", "why", "worth",
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
