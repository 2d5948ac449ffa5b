"""archsim: co-design simulator for mixture-of-experts serving on chiplet and wafer-scale GPUs.

    import archsim as ar

    results = ar.sweep("configs/dojo.yaml")                  # or ar.load(...), or a mapping
    results.runs.to_pandas()                                 # one row per run; times in ns, data in bytes
    ar.run("configs/dojo.yaml", policy="allo")               # one combination

Functions print nothing, and write a report only if ``out`` is given. Errors that a user can fix are `ArchsimError`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from archsim.base.code_digest import keep_machine_code

if TYPE_CHECKING:
    from archsim.api.calibrating import Calibrations as Calibrations
    from archsim.api.calibrating import calibrate as calibrate
    from archsim.api.calibrating import validate as validate
    from archsim.api.claiming import claims as claims
    from archsim.api.loading import ExplorationPlan as ExplorationPlan
    from archsim.api.loading import load as load
    from archsim.api.placing import block_worth as block_worth
    from archsim.api.placing import place as place
    from archsim.api.placing import worth as worth
    from archsim.api.running import run as run
    from archsim.api.running import sweep as sweep
    from archsim.api.serving import calibrate_serving as calibrate_serving
    from archsim.api.serving import compare_serving as compare_serving
    from archsim.api.serving import search_serving as search_serving
    from archsim.api.serving import serve as serve
    from archsim.api.serving import serve_plan as serve_plan
    from archsim.api.serving import serve_policies as serve_policies
    from archsim.api.studying import ablate as ablate
    from archsim.api.studying import compare as compare
    from archsim.api.studying import engines as engines
    from archsim.api.studying import explore as explore
    from archsim.api.studying import optimum as optimum
    from archsim.api.studying import verify as verify
    from archsim.api.studying import why as why
    from archsim.base.errors import ArchsimError as ArchsimError
    from archsim.engine.network.flows import simulate_flows as simulate_flows
    from archsim.policies.allocation.rules import Effort as Effort
    from archsim.policies.allocation.rules import Plan as Plan
    from archsim.policies.allocation.rules import StepView as StepView
    from archsim.runs.results import Results as Results
    from archsim.specs.loading.library import load_assumptions as load_assumptions
    from archsim.specs.loading.library import load_experiment as load_experiment
    from archsim.specs.loading.library import load_model as load_model
    from archsim.specs.loading.library import load_system as load_system

    __version__: str

keep_machine_code()

# Public name → defining module. Loaded on first use, so that `archsim --help` does not wait for numba.
_PUBLIC = {
    "ArchsimError": "archsim.base.errors",
    "Calibrations": "archsim.api.calibrating",
    "ExplorationPlan": "archsim.api.loading",
    "Effort": "archsim.policies.allocation.rules",
    "Plan": "archsim.policies.allocation.rules",
    "Results": "archsim.runs.results",
    "StepView": "archsim.policies.allocation.rules",
    "ablate": "archsim.api.studying",
    "block_worth": "archsim.api.placing",
    "calibrate": "archsim.api.calibrating",
    "calibrate_serving": "archsim.api.serving",
    "claims": "archsim.api.claiming",
    "compare": "archsim.api.studying",
    "compare_serving": "archsim.api.serving",
    "engines": "archsim.api.studying",
    "explore": "archsim.api.studying",
    "load": "archsim.api.loading",
    "load_assumptions": "archsim.specs.loading.library",
    "load_experiment": "archsim.specs.loading.library",
    "load_model": "archsim.specs.loading.library",
    "load_system": "archsim.specs.loading.library",
    "optimum": "archsim.api.studying",
    "place": "archsim.api.placing",
    "run": "archsim.api.running",
    "search_serving": "archsim.api.serving",
    "serve": "archsim.api.serving",
    "serve_plan": "archsim.api.serving",
    "serve_policies": "archsim.api.serving",
    "simulate_flows": "archsim.engine.network.flows",
    "sweep": "archsim.api.running",
    "validate": "archsim.api.calibrating",
    "verify": "archsim.api.studying",
    "why": "archsim.api.studying",
    "worth": "archsim.api.placing",
}

__all__ = [  # noqa: F822 (defined by __getattr__)
    "ArchsimError", "Calibrations", "Effort", "ExplorationPlan", "Plan", "Results", "StepView", "__version__",
    "ablate", "block_worth", "calibrate", "calibrate_serving", "claims", "compare", "compare_serving",
    "engines", "explore", "load", "load_assumptions", "load_experiment", "load_model", "load_system", "optimum",
    "place", "run", "search_serving", "serve", "serve_plan", "serve_policies", "simulate_flows",
    "sweep", "validate", "verify", "why", "worth",
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
