"""From an experiment to its runs: what each simulates, the key that names it, the demand that it shares with others."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.metadata import version
from itertools import product
from pathlib import Path

from archsim.base.code_digest import source_digest
from archsim.specs.assumptions import AssumptionsSpec
from archsim.specs.calibration import calibration_digest
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.loading.config_files import shipped_configs
from archsim.specs.machine.system import SystemSpec
from archsim.specs.model import ModelSpec
from archsim.specs.policies import PARTS, PolicySpec, import_function
from archsim.specs.text.fields import Spec
from archsim.specs.workload import WorkloadSpec
from archsim.workload.generated.traffic_presets import preset_digest

KEY_DIGITS = 12


@dataclass(frozen=True)
class DemandSpec:
    """What a demand is built from.

    origin_dies: number of dies that tokens live on, or None where no run needs to know. predicting: a policy whose
    predictor marks the hot experts, or None. Runs that need less may use a demand that holds more.
    """

    model: ModelSpec
    workload: WorkloadSpec
    batch: int
    origin_dies: int | None
    predicting: PolicySpec | None

    @cached_property
    def key(self) -> tuple[str, str, int, int | None, str | None]:
        """Equal for equal demands of one experiment or sweep."""
        plain = {**_plain(self.workload), "batch": None}
        if plain["layers"] is None:
            del plain["layers"]
        workload = json.dumps(plain, sort_keys=True)
        predicting = self.predicting and _prediction(self.predicting)
        return self.model.name, workload, self.batch, self.origin_dies, predicting


@dataclass(frozen=True)
class Run:
    """One row of the results. ``trace``: what the routing is, for the key: a digest, or the resolved generator."""

    system: SystemSpec
    model: ModelSpec
    workload: WorkloadSpec
    batch: int
    policy: PolicySpec
    assumptions: AssumptionsSpec
    engine: str
    demand: DemandSpec
    trace: str

    @cached_property
    def key(self) -> str:
        """12 hex digits of everything that the run is made of, names included."""
        return key_of(self, plain_text)

    @property
    def code(self) -> str:
        """Names the code that the run executes; a result of other code is not reused."""
        named = *(getattr(self.policy, part) for part in PARTS), self.system.topology
        functions = [each.name for each in named if each.is_function]
        return _digest_of_code(tuple(functions))

    @property
    def limits_heatmap(self) -> bool:
        """Whether the run keeps a heatmap of its own, for which it needs the routing token by token."""
        return self.policy.prediction.name != "none" and self.assumptions.heatmap_update == "limited"

    @property
    def name(self) -> str:
        return f"{self.system.name} {self.model.name} batch {self.batch} {self.policy.name} {self.assumptions.label}"


def expand(experiment: ExperimentSpec, digests: Mapping[str, str]) -> tuple[Run, ...]:
    """The runs in the order of the results. digests: model name → digest of its routing; see :func:`trace_of`."""
    runs: list[Run] = []
    workload = experiment.workload
    for system, model, batch, assumptions in product(
        experiment.systems, experiment.models, workload.batch, experiment.assumptions
    ):
        for policy in experiment.policies:
            demand = _shared_demand(experiment, system, model, batch, assumptions, policy)
            runs.append(
                Run(system, model, workload, batch, policy, assumptions, experiment.engine, demand, digests[model.name])
            )
    return tuple(runs)


def key_of(run: Run, text: Callable[[Spec], str]) -> str:
    """The run's key. text: of a part; `plain_text`, or a function that remembers what that has returned."""
    parts = [text(part) for part in (run.system, run.model, run.policy, run.assumptions)]
    others = [run.engine, run.batch, run.workload.decode_steps, run.workload.seed, run.trace]
    if run.workload.layers is not None:
        others.append(f"layers {run.workload.layers}")
    if run.assumptions.gemm == "calibrated":
        others.append(calibration_digest(run.system.compute.calibration))
    return hashlib.sha256(json.dumps([*parts, *others]).encode()).hexdigest()[:KEY_DIGITS]


def plain_text(part: Spec) -> str:
    """Everything that a part of a run says, as text."""
    return json.dumps(_plain(part), sort_keys=True)


def generated_digest(workload: WorkloadSpec) -> str:
    """Names generated routing: the generator with all its parameters, those of a preset by content."""
    parameters = json.dumps(_plain(workload.trace), sort_keys=True)
    like = workload.trace.synthetic.like
    return f"synthetic {hashlib.sha256(f'{parameters} {like and preset_digest(like)}'.encode()).hexdigest()}"


def trace_label(workload: WorkloadSpec) -> str:
    """A recorded trace in the results: the last two names of its path, the same from wherever it is looked at."""
    return "/".join(Path(workload.trace).absolute().resolve().parts[-2:])


def _shared_demand(experiment, system, model, batch, assumptions, policy) -> DemandSpec:
    """The demand of a run: with what it needs; where it needs nothing, with what the first other run needs."""
    origin_dies = system.dies if assumptions.needs_origins(model) else None
    if origin_dies is None and any(each.needs_origins(model) for each in experiment.assumptions):
        origin_dies = experiment.systems[0].dies
    free = any(each.heatmap_update == "free" for each in experiment.assumptions)
    predicting = [each for each in experiment.policies if free and each.prediction.name != "none"]
    own = [each for each in predicting if _prediction(each) == _prediction(policy)]
    return DemandSpec(model, experiment.workload, batch, origin_dies, _first(own) or _first(predicting))


def _first(policies: list[PolicySpec]) -> PolicySpec | None:
    return policies[0] if policies else None


def _prediction(policy: PolicySpec) -> str:
    return json.dumps(_plain(policy)["prediction"], sort_keys=True)


def _plain(spec) -> dict:
    return spec.model_dump(mode="json", by_alias=True)


@lru_cache(maxsize=64)
def _digest_of_code(functions: Iterable[str]) -> str:
    """12 hex digits of archsim's own code, its tables, numeric libraries, and the files of users' functions."""
    digest = hashlib.sha256(f"{source_digest()} numpy {version('numpy')} numba {version('numba')} scipy {version('scipy')}".encode())
    for file in sorted((shipped_configs() / "assumptions").glob("*.yaml")):
        digest.update(file.read_bytes())
    for name in functions:
        import_function(name)
        file = getattr(sys.modules[name.partition(":")[0]], "__file__", None)
        digest.update(name.encode() + (Path(file).read_bytes() if file else b""))
    return digest.hexdigest()[:KEY_DIGITS]
