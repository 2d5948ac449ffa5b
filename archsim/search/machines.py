"""Options of a machine, by whole iterations: its dies as identical engines, each with its sizes, policy and batch.

MoE layers are those of the analytical engine, all else by the laws of an iteration (`archsim.iteration.run_iteration`).
With prompts, an engine that decodes B requests at a time and takes r of them a second spends r (p + o t(B) / B) of a
second: p is what the prompt of a request adds, o its output tokens, t(B) an iteration. A token then takes B / (r o). A
first token takes an iteration that is under way and a prompt on every group of ranks; a queue is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from archsim.base import config_files, errors
from archsim.base.verbs import caller_name
from archsim.iteration.layers import has_experts
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from archsim.runs.executor import do_all
from archsim.runs.plan import select
from archsim.runs.point_measures import PartMeasures
from archsim.runs.run import Run
from archsim.runs.simulator import Simulator
from archsim.search.frontier import Curve
from archsim.search.limits import Limits
from archsim.search.options import Requests, Side, experiment_with
from archsim.serving.deployment import BY_RANK, GATHERED, LOW_LATENCY
from archsim.serving.expert_groups import WITH_KERNELS, part_of
from archsim.specs import library
from archsim.specs.assumptions import AssumptionsSpec
from archsim.specs.deployment import AttentionRanks, ParallelSpec, PrecisionSpec, refuse_cut_blocks, refuse_uneven
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.policies import PolicySpec
from archsim.specs.scenario import Scenario

ESTIMATED_LAYERS, SIMULATED_LAYERS = 1, 2  # MoE layers of an estimate, and of what is simulated
COARSE, MOST_BATCH = 32, 4096  # step of batches at first, and requests of a group of ranks at most
MOST_SIZES, MOST_FINE, MOST_KEPT = 4, 8, 4  # sizes of engines, ways with all batches, and ways that are simulated
CLOSE = 0.97  # of the best estimate at the limit: as simulated, another way may be the best (seen: 0.98)
NEAR = 0.85  # of the best estimate: ways that serve less at every limit are left
BEYOND = 4.0  # times the limit: beyond it, no larger batch of a way is looked at, and no longer token kept
MOST_TP = 8  # ranks that share the heads of a request
GATHERING_RANKS = 8  # ranks that may gather all tokens in place of dispatching them
PARTS = ("attention", "projections", "dense", "experts", "transfers", "all_reduce", "head", "host")
# How a machine may run experts: on GPUs they stay where they are; on a wafer weights or tokens may move.
_ON_GPUS: Mapping[str, str] = {
    "execution": "expert_parallel", "gemm": "grouped", "combine": "bf16", "transfer_software": "charged",
    "decision_cost": "free", "dispatch": BY_RANK,
}  # fmt: skip
_ON_DIES: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("ep", {}), ("allo", {}), ("ep", {"execution": "expert_parallel", "decision_cost": "free"}),
)  # fmt: skip


class Way(NamedTuple):
    """One way to use a machine, but for the batch."""

    engine: SystemSpec  # the dies of one engine
    engines: int  # on one machine
    tp: int  # ranks that share the heads of a request
    policy: PolicySpec
    assumptions: AssumptionsSpec
    parallel: ParallelSpec | None = None  # None: every die has requests of its own

    @property
    def groups(self) -> int:
        """Groups of ranks with requests of their own, of one engine."""
        return self.engine.dies // self.tp

    @property
    def label(self) -> str:
        """``8 engines of 8 devices, attention TP 2 DP 4, experts EP 8, policy ep``."""
        dies, given = self.engine.dies, self.assumptions
        whole = f"{self.engines} engines of {dies} devices" if self.engines > 1 else f"one engine of {dies} devices"
        moved = f", {given.execution.replace('_', ' ')}" + (f", dispatch {given.dispatch}" if self.gathers else "")
        return f"{whole}, attention TP {self.tp} DP {self.groups}, experts EP {dies}, policy {self.policy.name}{moved}"

    @property
    def gathers(self) -> bool:
        """Whether it moves tokens in another way than once for every rank."""
        return self.assumptions.execution == "expert_parallel" and self.assumptions.dispatch != BY_RANK


class Batch(NamedTuple):
    """An iteration of one engine."""

    batch: int  # requests
    ns: float  # of a whole decode iteration
    parts_ns: Mapping[str, float]  # of PARTS
    watts: float  # of one engine
    layers_error: float  # standard error of the time of all MoE layers, as a share


class Used(NamedTuple):
    """A machine used in one way, by batch."""

    way: Way
    batches: tuple[Batch, ...]  # in ascending order
    prompt_ns: float  # of a prompt on every group of ranks at once; 0: prompts are computed elsewhere

    def curve(self, output: float, factors: np.ndarray, prompts: np.ndarray) -> Curve:
        """``factors``: float64[world, batch] of iterations; ``prompts``: float64[world] of prompts."""
        batch = np.array([each.batch for each in self.batches], float)
        iteration = np.array([each.ns for each in self.batches]) * factors
        prompt = (self.prompt_ns * prompts)[:, None]
        token = iteration + batch * prompt / self.way.groups / output
        first = (iteration + prompt) * (self.prompt_ns > 0)
        return Curve(token, self.way.engines * batch / token * 1e9, first)

    def nominal(self, output: float) -> Curve:
        return self.curve(output, np.ones((1, len(self.batches))), np.ones(1))


class Machine(NamedTuple):
    """A side and the ways to use one of its machines that serve most at some limit."""

    side: Side
    base: ExperimentSpec  # with its system and model, from which runs are made
    used: tuple[Used, ...]
    tried: int  # ways that were estimated
    refused: tuple[tuple[str, str], ...]  # (way, why it cannot be used)

    @property
    def system(self) -> SystemSpec:
        return self.base.systems[0]


def base_of(side: Side, model: str | ModelSpec | None) -> ExperimentSpec:
    """The experiment of a side's runs: its own with this model alone, or of its system. Raises SpecError."""
    if (own := side.experiment) is not None:
        if len(own.systems) > 1:
            systems = ", ".join(each.name for each in own.systems)
            raise errors.SpecError(
                f"{side.name} has {len(own.systems)} systems ({systems}), and a side is one machine. Choose one: "
                f"{caller_name('system')} {own.systems[0].name}"
            )
        name = getattr(model, "name", model)
        return own.model_copy(update={"models": tuple(each for each in own.models if each.name == name)})
    assert side.system is not None
    given: dict[str, Any] = {
        "name": re_named(side.name), "engine": "analytical",
        "models": [model.model_dump(mode="json", by_alias=True) if isinstance(model, ModelSpec) else str(model)],
    }  # fmt: skip
    found = experiment_with(**given)
    if has_traffic_of(found.models[0].name):
        found = experiment_with(["workload.trace.synthetic.like=model"], **given)
    return found.model_copy(update={"systems": (side.system,)})


def has_traffic_of(model: str) -> bool:
    """Whether a preset says how tokens of a model choose experts."""
    return model in config_files.named_files("traffic")


def re_named(name: str) -> str:
    """A name that a file may have."""
    return "".join(each if each.isalnum() or each in "._-" else "_" for each in name).strip("._-") or "side"


def ways_of(base: ExperimentSpec, pinned: Mapping[str, Any]) -> Iterator[Way]:
    """All ways to use a system. ``pinned``: ``policy`` and ``assumptions`` by name, which are then not chosen."""
    system, model = base.systems[0], base.models[0]
    for engine in engines_of(system):
        for tp in _powers(min(MOST_TP, engine.dies)):
            if engine.dies % tp:
                continue
            parallel = ParallelSpec(attention=AttentionRanks(tp=tp, dp=engine.dies // tp)) if tp > 1 else None
            for policy, changes in _rules(engine, pinned):
                given = dict(changes)
                name = given.pop("set", "physical")
                way = Way(
                    engine, system.dies // engine.dies, tp, _policy(policy), library.load_assumptions(name, **given),
                    parallel,
                )  # fmt: skip
                if not _refusal(way, model):
                    yield way


def _refusal(way: Way, model: ModelSpec) -> str:
    """Why heads, experts or blocks of weights are not divided so; ''."""
    if way.engine.launch == WITH_KERNELS and model.experts % way.engine.dies:
        return f"{model.experts} experts do not divide over {way.engine.dies} devices"
    if way.tp == 1:
        return ""
    sizes = way.parallel.sizes() if way.parallel else None
    assert sizes is not None
    try:
        refuse_uneven(model, sizes, experts=False)
        refuse_cut_blocks(model, sizes, PrecisionSpec().dtypes(way.engine.compute.dtype, model), experts=False)
    except errors.SpecError as error:
        return str(error)
    return ""


def engines_of(system: SystemSpec) -> list[SystemSpec]:
    """The machine as one engine, and its parts of powers of two, the largest first; of a mesh its halves."""
    found = [system]
    mesh = system.mesh
    if mesh is not None:
        plain = system.built is None and system.links_as_built is None and system.topology.name == "mesh"
        sides = [mesh.x, mesh.y]
        while plain and len(found) < MOST_SIZES and any(side % 2 == 0 for side in sides):
            longest = max((at for at in (0, 1) if sides[at] % 2 == 0), key=lambda at: sides[at])
            sides[longest] //= 2
            half = mesh.model_copy(update={"x": sides[0], "y": sides[1]})
            found.append(system.model_copy(update={"mesh": half, "name": f"{system.name}_{sides[0]}x{sides[1]}"}))
        return found
    for ranks in reversed(list(_powers(system.dies))):
        if ranks == system.dies or len(found) > MOST_SIZES:
            continue
        try:
            part = part_of(system, ranks)
        except errors.SpecError:
            continue
        found.append(part.model_copy(update={"name": f"{system.name}_{ranks}"}))
    return found


def _powers(most: int) -> Iterator[int]:
    size = 1
    while size <= most:
        yield size
        size *= 2


def _rules(engine: SystemSpec, pinned: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """(policy, changed assumptions)."""
    if engine.launch == WITH_KERNELS:
        ways = [BY_RANK]
        levels = engine.fabric.levels if engine.fabric is not None else ()
        ways += [GATHERED] if engine.dies <= GATHERING_RANKS else [LOW_LATENCY] if len(levels) > 1 else []
        rules = [("ep", {**_ON_GPUS, "dispatch": way}) for way in ways]
    else:
        rules = [(policy, dict(changes)) for policy, changes in _ON_DIES]
    if name := pinned.get("assumptions"):
        rules = [(policy, {"set": name}) for policy in dict.fromkeys(policy for policy, _ in rules)]
    if policy := pinned.get("policy"):
        rules = [(policy, changes) for changes in {str(each): each for _, each in rules}.values()]
    yield from rules


@lru_cache
def _policy(name: str) -> PolicySpec:
    return experiment_with(policies=[name]).policies[0]


def ways_of_experiment(base: ExperimentSpec) -> Iterator[Way]:
    """Those that an experiment pins: each of its policies under each of its sets of assumptions."""
    system, parallel = base.systems[0], base.parallel
    tp = parallel.attention.tp if parallel is not None else 1
    for policy in base.policies:
        for assumptions in base.assumptions:
            yield Way(system, 1, tp, policy, assumptions, parallel)


def experiment_of(
    base: ExperimentSpec, way: Way, batch: int, requests: Requests, *, prompts: bool = False,
    layers: int | None = ESTIMATED_LAYERS, engine: str = "analytical", context: int | None = None,
) -> ExperimentSpec:  # fmt: skip
    """The experiment of one run. ``prompts``: of a prompt for every request in place of decodes."""
    update: dict[str, Any] = {"batch": (batch,), "decode_steps": 1, "warmup_steps": 0}
    every = len(base.models[0].moe_layer_ids)
    update["layers"] = None if layers is None or layers >= every else layers
    trace = base.workload.trace
    if not isinstance(trace, str):
        tokens = round(requests.prompt) if prompts else 0
        synthetic = trace.synthetic.model_copy(update={"prompt_tokens": tokens, "decode_steps": 1, "requests": None})
        update["trace"] = trace.model_copy(update={"synthetic": synthetic})
    update["context"] = round(requests.prompt) if prompts else context if context is not None else requests.context
    name = f"{base.name[:48]}_{'prompts' if prompts else 'decode'}"
    return base.model_copy(update={
        "name": name, "systems": (way.engine,), "workload": base.workload.model_copy(update=update),
        "policies": (way.policy,), "assumptions": (way.assumptions,), "parallel": way.parallel, "engine": engine,
    })  # fmt: skip


def run_of(experiment: ExperimentSpec, explains: bool = True) -> tuple[Run, Simulator]:
    """Its only run, and what simulates it. Raises ArchsimError for what does not fit, or was not measured.
    ``explains``: and says what would make it fit, which takes longer than the run, and what else of the machine is
    refused whatever the batch.
    """
    selection = select(experiment, refuse=explains)
    (number,) = selection.kept
    point = selection.plan.point(number)
    if not explains and point.assumptions.capacity == "finite":
        if not PartMeasures(selection.maker.contexts).fits(point):
            raise errors.CapacityError(
                f"{point.model.name} with a batch of {point.batch} does not fit on {point.system.name}. Give a smaller "
                "batch, or more dies"
            )
    (run,) = selection.maker.runs([point])
    return run, Simulator(selection.maker.traces)


def batch_of(row: Mapping[str, Any], batch: int) -> Batch:
    """The iteration of a row of results. Raises LawMissing where the laws of a whole iteration are not known."""
    if not row["iteration_ns"]:
        raise errors.ArchsimError(
            f"{row['model']} on {row['system']}: the time of a whole iteration is not known: attention or another part "
            "beside experts was not measured"
        )
    parts = parts_of(row)
    joule = row["iteration_energy_per_token_j"] or 0.0
    watts = joule * batch / row["iteration_ns"] * 1e9
    return Batch(batch, float(row["iteration_ns"]), parts, watts, float(row["layers_error"] or 0.0))


def parts_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Part of PARTS → ns of the iteration of a row."""
    return {part: float(row[f"iteration_{part}_ns"]) for part in PARTS}


class Estimates(NamedTuple):
    """What all processes know to estimate the ways of a side."""

    base: ExperimentSpec
    requests: Requests
    context: int | None  # that an experiment pins
    batches: tuple[int, ...] = ()  # that are pinned; (): chosen
    most_ns: float = np.inf  # of an iteration with the smallest batch, beyond which no larger one is looked at

    def batch(self, way: Way, batch: int) -> Batch:
        """Raises ArchsimError, which says how the smallest batch would fit."""
        experiment = experiment_of(self.base, way, batch, self.requests, context=self.context)
        run, simulator = run_of(experiment, batch <= way.groups or bool(self.batches))
        return batch_of(simulator.record(run, details=False)["row"], batch)

    def prompt_ns(self, way: Way) -> float:
        """Of a prompt on every group of ranks; 0 where prompts do not count. Raises ArchsimError."""
        if not self.requests.prompts:
            return 0.0
        run, simulator = run_of(experiment_of(self.base, way, way.groups, self.requests, prompts=True))
        found = simulator.iteration(run)["prefill_iteration_ns"]
        if not found:
            raise errors.ArchsimError(f"{run.system.name}: the time of a prompt is not known")
        return float(found)

    def coarse(self, way: Way) -> Used | str:
        """Few batches of a way, up to the largest that fits; or why it cannot be used."""
        try:
            prompt_ns = self.prompt_ns(way)
            if self.batches:
                return Used(way, tuple(self.batch(way, each) for each in self.batches), prompt_ns)
            found = [self.batch(way, way.groups)]
        except errors.ArchsimError as error:
            return str(error)
        most = MOST_BATCH * way.groups if found[0].ns <= self.most_ns else found[0].batch
        while (batch := min(found[-1].batch * COARSE, most)) > found[-1].batch:
            try:
                found.append(self.batch(way, batch))
            except errors.ArchsimError:
                found += list(self._largest(way, found[-1].batch, batch))[-1:]
                break
        return Used(way, tuple(found), prompt_ns)

    def _largest(self, way: Way, low: int, high: int) -> Iterator[Batch]:
        """Batches that fit, the last the largest, to a quarter; between one that does and one that does not."""
        while high > 1.25 * low:
            middle = max(low + way.groups, round((low * high) ** 0.5 / way.groups) * way.groups)
            if middle >= high:
                return
            try:
                yield self.batch(way, middle)
                low = middle
            except errors.ArchsimError:
                high = middle

    def fine(self, used: Used) -> Used:
        """With all powers of two times its smallest batch."""
        if self.batches:
            return used
        known = {each.batch: each for each in used.batches}
        batch = used.batches[0].batch
        while batch < used.batches[-1].batch:
            known.setdefault(batch, self.batch(used.way, batch))
            batch *= 2
        return used._replace(batches=tuple(known[each] for each in sorted(known)))


def machine_of(
    side: Side, base: ExperimentSpec, requests: Requests, limits: Limits, pinned: Mapping[str, Any],
    say: Callable[[str], None] = lambda text: None, jobs: int = 1, among: Sequence[Way] = (),
) -> Machine:  # fmt: skip
    """The ways to use a side's machine that serve most at some limit. ``pinned``: as in `ways_of`, and ``batch``;
    ``among``: ways of a variant of its design, of which alone those of the machine are looked at. Raises SpecError for
    a dense model, and where no way can be used.
    """
    model = base.models[0]
    if not has_experts(model):
        raise errors.SpecError(
            f"{model.name} is a dense model, and machines are compared by models with experts. Compare deployments of "
            "it (files of archsim serve)"
        )
    own = side.experiment is not None
    context = base.workload.context if own else None
    batches = tuple(base.workload.batch) if own else ((pinned["batch"],) if pinned.get("batch") else ())
    if own and limits.given and len(batches) == 1:
        batches = ()
    estimates = Estimates(base, requests, context, batches, BEYOND * limits.tpot_ns)
    every = list(ways_of_experiment(base) if own else ways_of(base, pinned))
    if among:
        known = {each.label for each in among}
        every = [way for way in every if way.label in known]
    if not every:
        raise errors.SpecError(f"{side.name}: no sizes divide its {base.systems[0].dies} devices and {model.name}")
    found: list[Used] = []
    refused: list[tuple[str, str]] = []
    first = {(way.policy.name, way.assumptions.label): way for way in reversed(every)}
    for way in first.values():  # here, so that no process compiles what another one does
        if jobs > 1:
            estimates.coarse(way)
    done = 0
    for way, each in do_all(estimates.coarse, every, jobs):
        done += 1
        say(f"{side.name}: {done} of {len(every)} ways to use it are estimated")
        if isinstance(each, str):
            refused.append((way.label, each))
        else:
            found.append(each)
    if not found:
        raise errors.SpecError(f"{side.name} cannot serve {model.name}: {refused[0][1]}")
    found.sort(key=lambda each: each.way.label)
    kept = best_of(found, requests.output, limits, MOST_FINE)  # few batches hide what wins between them
    say(f"{side.name}: {len(kept)} of them with more batches")
    fine = sorted((each for _, each in do_all(estimates.fine, kept, jobs)), key=lambda each: each.way.label)
    return Machine(side, base, tuple(best_of(fine, requests.output, limits)), len(every), tuple(refused))


def best_of(found: Sequence[Used], output: float, limits: Limits, most: int = MOST_KEPT) -> list[Used]:
    """Those that serve most, or nearly so, at some limit of the time per token; the best at the limit asked first."""
    curves = [each.nominal(output) for each in found]
    token = np.concatenate([curve.tpot_ns[0] for curve in curves])
    grid = np.geomspace(token.min(), token.max() * 1.001, 64)
    if limits.tpot_ns < np.inf:
        grid = np.append(grid[grid <= BEYOND * limits.tpot_ns], limits.tpot_ns)
    rates = np.stack([curve.at(grid, limits.ttft_ns)[0] for curve in curves])
    if not rates.any():  # nothing is within the limits: the fastest are kept, to say how near they are
        grid = np.geomspace(token.min(), token.max() * 1.001, 64)
        rates = np.stack([curve.at(grid)[0] for curve in curves])
    best = rates.max(axis=0)
    wins = (rates >= best * (1 - 1e-9)) & (best > 0)
    near = (rates >= NEAR * best) & (best > 0)
    # What is best at the limit, or with the largest batches, which the last point of the grid is, comes first.
    order = sorted(range(len(found)), key=lambda at: (-rates[at, -1], -wins[at].sum()))
    kept = order[:1]
    while len(kept) < most:  # where those kept serve least beside the best
        short = rates[kept].max(axis=0) / np.where(best > 0, best, np.inf)
        worst = int(np.where(best > 0, short, np.inf).argmin())
        if short[worst] >= NEAR or best[worst] == 0:
            break
        kept.append(int(rates[:, worst].argmax()))
    for some in (rates[:, -1] >= CLOSE * best[-1], wins.any(axis=1), near.any(axis=1)):
        kept += [at for at in order if some[at] and at not in kept][: most - len(kept)]
    return [found[at] for at in kept]


def scenario_of(base: ExperimentSpec, way: Way, batch: int, requests: Requests, context: int | None) -> Scenario:
    """The scenario of a batch, whose uncertain numbers are drawn."""
    return run_of(experiment_of(base, way, batch, requests, context=context))[0]
