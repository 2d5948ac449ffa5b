"""A job: one simulation that gives one record. A run: a scenario on an engine, its key, its code, shared demand."""

import hashlib
import json
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TypeVar

from archsim.base.code_digest import digest_here
from archsim.base.config_files import shipped_configs
from archsim.base.fields import Spec
from archsim.base.own_code import NO_CODE, CodeNotImported, code_folder, import_function, is_ours, module_of, stamp_of
from archsim.engine.machine import ENDPOINT
from archsim.engine.transfer_kernels import KERNELS, charges_kernels, kernels_from
from archsim.laws.calibration_files import calibration_digest
from archsim.machine.fabric_calibrations import fabric_file
from archsim.model.spec import ModelSpec
from archsim.policies.placement import file_of
from archsim.specs.assumptions import AssumptionsSpec
from archsim.specs.deployment import DeploymentSpec
from archsim.specs.policies import PolicySpec
from archsim.specs.scenario import Scenario
from archsim.specs.workload import WorkloadSpec
from archsim.traffic.traffic_presets import preset_digest

KEY_DIGITS = 12
LONGEST = "longest request"  # what a context was taken from, where the workload does not say it
_LEFT_OUT_IF_NULL = ("layers", "reader")
_OF_MEMORY = ("context", "attention_weights")  # keys of a workload that do not touch its demand


Record = Mapping[str, Any]
"""What is kept of a job: its key ``run``, ``row`` and ``host`` (where, when and how long it was simulated; columns of
TIMING_COLUMNS but run). A job with details has more: a `Run` has ``dies``, ``links`` and ``pairs`` (name → list over
dies, links, pairs of dies), ``steps`` (packed, see `archsim.runs.columns`) and ``frames`` (see
``archsim.runs.measures.frames.measure_frames``).
"""
ROW = ("run", "row", "host")  # of a record without details
Kept = TypeVar("Kept")


class Workspace:
    """What one process keeps from job to job. tell: gets a text on the present job, and the share that is done; traces:
    (path, model name) → open trace.
    """

    def __init__(
        self, tell: Callable[[str, float], None] = lambda text, share: None,
        traces: dict[tuple[str, str], Any] | None = None,
    ) -> None:  # fmt: skip
        self.tell, self.traces = tell, {} if traces is None else traces
        self._kept: dict[Callable[[Workspace], Any], Any] = {}

    def of(self, make: Callable[["Workspace"], Kept]) -> Kept:
        """What ``make`` gave for this workspace when it was first asked for: a class, or a function."""
        if make not in self._kept:
            self._kept[make] = make(self)
        return self._kept[make]


class Job(Protocol):
    """One simulation that gives one record: a `Run`, requests that are served, or a part of a search."""

    @property
    def key(self) -> str:
        """12 hex digits: a digest of all inputs, names included."""
        ...

    @property
    def code(self) -> str:
        """12 hex digits of the code that the job executes. Results of other code are not reused."""
        ...

    @property
    def name(self) -> str: ...

    @property
    def cacheable(self) -> bool:
        """Whether key and code decide the record; not with users' functions, which may read other files."""
        ...

    @property
    def details(self) -> bool:
        """Whether the record has more than `ROW`."""
        return False

    def simulate(self, workspace: Workspace) -> Record:
        """The record, simulated now. Raises ArchsimError."""
        ...

    def summary(self, row: Mapping[str, Any]) -> str: ...

    # What says which worker does a job next (`archsim.runs.run_queue.RunQueue`). A job may leave it all as it is here.

    @property
    def group(self) -> Hashable:
        """Equal for jobs that share what takes long to build. A worker does them one after the other."""
        return self.key

    @property
    def kernel(self) -> Hashable:
        """Equal for jobs that share compiled functions: one worker compiles them."""
        return None

    @property
    def family(self) -> Hashable | None:
        """Equal for jobs of different groups that `gather` may build together; None for a job without such others."""
        return None

    @property
    def traffic(self) -> Hashable | None:
        """Equal for jobs of different groups of which a worker that has done one builds the others faster."""
        return None

    @property
    def size(self) -> float:
        """Grows with the time that the job takes: largest first. Within a family, its selections of experts."""
        return 0.0

    def warm_up(self, workspace: Workspace) -> None:
        """Compile what the job needs, by simulating a small part of it."""
        return

    def gather(self, workspace: Workspace, together: Sequence["Job"]) -> None:
        """Build what the groups of ``together``, this job among them, share, for later jobs and other processes."""
        return


@dataclass(frozen=True)
class DemandSpec:
    """What a demand is built from. Runs may use a demand with more than they need."""

    model: ModelSpec  # whose MoE layers run
    workload: WorkloadSpec  # of the routing
    batch: int  # requests that are served together
    origin_dies: int | None  # that tokens live on; None: no run needs it
    predicting: PolicySpec | None  # whose predictor marks the hot experts; None: none
    stored_trace: str = ""  # of its columns in `archsim.traffic.column_cache`; "": not there
    routing: bool = False  # whether a run counts single tokens
    seen: bool = False  # whether a rule of a policy sees them
    shaped_by: PolicySpec | None = None  # whose routing or replication it depends on: for equal rules alone

    @cached_property
    def key(self) -> tuple[str, str, int, int | None, str | None, int, str | None]:
        """Equal for equal demands of one sweep."""
        plain = {**_plain(self.workload), "batch": None}
        del plain["warmup_steps"]  # they are part of the demand
        plain = {key: value for key, value in plain.items() if key not in _LEFT_OUT_IF_NULL or value is not None}
        plain = {key: value for key, value in plain.items() if key not in _OF_MEMORY}
        workload = json.dumps(plain, sort_keys=True)
        predicting = None if self.predicting is None else prediction_text(self.predicting)
        shaping = None if self.shaped_by is None else shaping_text(self.shaped_by)
        kept = 2 if self.seen else self.routing
        return self.model.name, workload, self.batch, self.origin_dies, predicting, kept, shaping

    @cached_property
    def family(self) -> tuple | None:
        """Equal for demands that differ in batch alone; None where routing depends on how many there are."""
        extended = isinstance(self.workload.trace, str) and self.workload.extend != "redraw"
        return None if extended else (*self.key[:2], *self.key[3:])

    @property
    def traffic(self) -> tuple | None:
        """Equal for demands of the same generated traffic, whatever their batch and what is asked of it."""
        return None if isinstance(self.workload.trace, str) else self.key[:2]

    @property
    def selections(self) -> int:
        """Pairs of token and expert of the demand, prompts left out."""
        layers = self.workload.layers or len(self.model.moe_layer_ids)
        return self.batch * self.workload.decode_steps * layers * self.model.top_k


class Simulates(Protocol):
    """What simulates the runs of one process: a `archsim.runs.simulator.Simulator`."""

    def record(self, run: "Run", details: bool = True) -> Record: ...

    def times(self, run: "Run") -> tuple[float, float]: ...

    def warm_up(self, run: "Run") -> None: ...

    def gather(self, specs: Sequence[DemandSpec]) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Run(Scenario, Job):
    """One row of the results: a scenario on an engine. What is not compared is no part of its key."""

    engine: str  # its name
    demand: DemandSpec  # what its demand is built from
    trace: str  # what the routing is, for the key: a digest, or the resolved generator
    simulator: Callable[[Workspace], Simulates] = field(compare=False, repr=False)  # makes what simulates it
    columns: tuple[str, ...] = ()  # users' own, as package.module:function
    point: int | None = field(default=None, compare=False)  # its number in a sweep with axes
    axes: str = field(default="", compare=False)  # their values, for people
    details: bool = field(default=False, compare=False)  # record has dies, links, pairs, steps

    @property
    def context_from(self) -> str:
        """What says how many tokens of KV cache a request holds: ``workload``, or the longest request."""
        return "workload" if self.workload.context == self.demand.workload.context else LONGEST

    @cached_property
    def key(self) -> str:
        """12 hex digits: a digest of all inputs of the run, names included."""
        return key_of(self, plain_text)

    @cached_property
    def simulation(self) -> str:
        """Equal for runs that differ only in how results are counted, or in what does nothing: one serves them all."""
        return simulation_of(self, self.assumptions.for_simulation(self.policy), plain_text)

    @property
    def code(self) -> str:
        """Digest of the code that the run executes; results of other code are not reused."""
        return code_of(self.own_functions + self.columns)

    @property
    def cacheable(self) -> bool:
        return not (self.columns or self.own_functions)

    @property
    def group(self) -> tuple:
        return self.demand.key

    @property
    def kernel(self) -> tuple[str, str]:
        """There is a kernel for each engine and contention strategy."""
        return self.engine, self.assumptions.contention

    @property
    def family(self) -> tuple | None:
        return self.demand.family

    @property
    def traffic(self) -> tuple | None:
        return self.demand.traffic

    @property
    def size(self) -> float:
        return self.demand.selections

    def simulate(self, workspace: Workspace) -> Record:
        """The record; the workspace keeps what `simulator` makes for it."""
        return workspace.of(self.simulator).record(self, self.details)

    def warm_up(self, workspace: Workspace) -> None:
        workspace.of(self.simulator).warm_up(self)

    def gather(self, workspace: Workspace, together: Sequence[Job]) -> None:
        """Build the demands of batches of the same traffic in one pass over it."""
        workspace.of(self.simulator).gather([run.demand for run in together if isinstance(run, Run)])

    @property
    def limits_heatmap(self) -> bool:
        """Whether the run keeps a heatmap of its own, for which it needs the routing token by token."""
        return self.policy.predicts and self.assumptions.heatmap_update == "limited"

    def summary(self, row: Mapping[str, Any]) -> str:
        """The result in one line."""
        ran, every = row.get("layers"), row.get("model_layers")
        of_layers = f" of {ran} of {every} layers" if ran and every and ran < every else ""
        whole = f"iteration {row['iteration_ns'] / 1e6:.3f} ms, " if row.get("iteration_ns") else ""
        return f"{whole}decode {row['decode_ns'] / 1e6:.3f} ms{of_layers}"

    @property
    def name(self) -> str:
        system = "" if self.axes else f"{self.system.name} "  # variants are named by a digest
        parts = f"{system}{self.model.name} batch {self.batch} {self.policy.name} {self.assumptions.label}"
        return f"{point_text(self.point)}{self.axes}{', ' if self.axes else ''}{parts}"


def point_text(point: int | None) -> str:
    """``point 12: ``, as pages number points; variants of systems are named by a digest. '' without a number."""
    return "" if point is None else f"point {point}: "


def key_of(run: Run, text: Callable[[Spec], str]) -> str:
    """The run's key. text: of a part; `plain_text`, or a function that caches its results."""
    tabled = run.system.in_tables()
    parts = [text(tabled) if tabled is run.system else plain_text(tabled)]
    parts += [text(part) for part in (run.model, run.policy, run.assumptions)]
    others = [run.engine, run.batch, run.workload.decode_steps, run.workload.seed, run.trace]
    if run.workload.layers is not None:
        others.append(f"layers {run.workload.layers}")
    if run.workload.warmup_steps:
        others.append(f"warmup {run.workload.warmup_steps}")
    if run.assumptions.gemm in ("calibrated", "grouped") or run.assumptions.counts_attention:
        others.append(calibration_digest(run.system.compute.calibration))
    if run.assumptions.counts_attention or run.assumptions.execution != "weight_streaming":
        others += [getattr(run.workload, key) for key in _OF_MEMORY]
    if run.deployment != DeploymentSpec():
        others.append(f"deployment {text(run.deployment)}")
    if run.workload.extend != "redraw":
        others.append(f"extend {run.workload.extend}")
    if charges_kernels(run):
        kernels = kernels_from(run.system, KERNELS[run.assumptions.dispatch])
        others.append(f"transfers {calibration_digest(kernels)}")
    if run.assumptions.endpoint == "as_measured" or run.system.endpoint is not None:
        machine = run.system.endpoint.rpartition("/")[0] if run.system.endpoint else ENDPOINT[0]
        others.append(f"endpoint {_digest_of(fabric_file(machine))}")
    if run.policy.placement.name == "from_file":
        others.append(f"placement {_digest_of(file_of(run.policy.placement.params.get('file', '')))}")
    if run.columns:
        others.append(f"columns {' '.join(run.columns)}")
    return hashlib.sha256(json.dumps([*parts, *others]).encode()).hexdigest()[:KEY_DIGITS]


def simulation_of(run: Run, simulated: AssumptionsSpec, text: Callable[[Spec], str]) -> str:
    """The run's ``simulation``, from its assumptions as ``simulated``; text: as of `key_of`."""
    return f"{key_of(replace(run, assumptions=simulated), text)} {run.demand.key}"


def _digest_of(file: Path) -> str:
    """The digest of a file's content. Empty where there is no file, which the run refuses."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def plain_text(part: Spec) -> str:
    return json.dumps(_plain(part), sort_keys=True)


def generated_digest(workload: WorkloadSpec, model: ModelSpec) -> str:
    """Names a model's generated routing: the generator with all its parameters, those of a preset by content."""
    assert not isinstance(workload.trace, str)
    parameters = json.dumps(_plain(workload.trace), sort_keys=True)
    like = workload.trace.synthetic.preset_of(model.name)
    return f"synthetic {hashlib.sha256(f'{parameters} {like and preset_digest(like)}'.encode()).hexdigest()}"


def prediction_text(policy: PolicySpec) -> str:
    """Prediction rule of a policy, as text: equal for policies that may share a demand."""
    return json.dumps(_plain(policy)["prediction"], sort_keys=True)


def shaping_text(policy: PolicySpec) -> str:
    plain = _plain(policy)
    return json.dumps([plain["routing"], plain["replication"]], sort_keys=True)


def _plain(spec: Spec) -> dict:
    return spec.model_dump(mode="json", by_alias=True)


def code_of(functions: tuple[str, ...]) -> str:
    """12 hex digits of the code that decides numbers, tables, libraries, files of users' functions (`Run.code`)."""
    return _code_of(functions, code_folder(), tuple(stamp_of(name.partition(":")[0]) for name in functions))


@lru_cache(maxsize=64)
def _code_of(functions: tuple[str, ...], folder: str, stamps: tuple[tuple[int, int] | None, ...]) -> str:
    """folder: of users' functions; stamps: of their files, which a session may edit."""
    libraries = " ".join(f"{name} {version(name)}" for name in ("numpy", "numba", "scipy"))
    digest = hashlib.sha256(f"{digest_here()} {libraries}".encode())
    for file in sorted((shipped_configs() / "assumptions").glob("*.yaml")):
        digest.update(file.read_bytes())
    for name in functions:
        import_function(name)
        module_name = name.partition(":")[0]
        if os.environ.get(NO_CODE) and not is_ours(module_name):
            raise CodeNotImported(name)
        source = getattr(module_of(module_name), "__file__", None)
        digest.update(name.encode() + (Path(source).read_bytes() if source else b""))
    return digest.hexdigest()[:KEY_DIGITS]
