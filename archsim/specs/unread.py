# ruff: noqa: E501  (one row a line: a table is read across)
"""Keys that a file gives and no run of it reads: one table says under which choices a key is not read, and why.

`ROWS` holds for experiments, `SERVED` for files of ``archsim serve``. A law test changes the key of every row under its
condition and finds equal results (``tests/specs/test_bad_specs.py``), so that the table says nothing that is false. Only
what the user wrote is named: in the file, in a file of their own that it refers to, or by ``--set``; neither default
values nor those of a shipped file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from archsim.base import errors, fields, yaml
from archsim.base.config_files import shipped_configs
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from archsim.specs.assumptions import AssumptionsSpec
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.plan import SweepPlan
from archsim.specs.policies import PolicySpec
from archsim.specs.workload import WorkloadSpec

if TYPE_CHECKING:
    from archsim.specs.serving import ServeSpec

_MOST_POINTS = 500  # of a sweep that are looked at; beyond, only the groups of axes that choose strategies vary
_KINDS = {"systems": "system", "models": "model", "policies": "policy", "assumptions": "assumptions"}
_LISTS = {kind: name for name, kind in _KINDS.items()}


class Chosen(NamedTuple):
    """What decides which keys one run reads."""

    system: SystemSpec  # its machine
    model: ModelSpec  # its model
    assumptions: AssumptionsSpec  # its set
    policy: PolicySpec  # its rules
    workload: WorkloadSpec | None = None  # None: of a file of ``archsim serve``
    engine: str = "event"  # name
    serving: ServeSpec | None = None  # a file of ``archsim serve``, which has no workload; None: an experiment


class UnreadKeys(NamedTuple):
    """``keys``: patterns of keys, such as ``system.llc.*``; ``why``: why a run does not read them, a template, or what
    makes it ('' where the run reads them); ``when``: which runs do not.
    """

    keys: tuple[str, ...]
    why: str | Callable[[Chosen], str]
    when: Callable[[Chosen], bool] = lambda run: True

    def message(self, run: Chosen) -> str:
        """Why the run does not read the keys; '' where it does."""
        if not self.when(run):
            return ""
        return self.why.format(run=run) if isinstance(self.why, str) else self.why(run)


_GEMM = {
    "calibrated": "gemm: calibrated takes the times of expert GEMMs from measured kernels",
    "grouped": "gemm: grouped takes the times of expert layers from measured kernels",
    "tables": "gemm: tables takes the shares of peak from the published simulator's tables",
    "roofline": "gemm: roofline takes the system's compute.efficiency, and no measured kernel",
}
_WHOLE_KERNELS = (
    "execution: expert_parallel runs one kernel on the experts that a die keeps; it streams no weights through the LLC"
)
_AT_ONCE = "contention: reserved holds the whole path of one transfer at a time, so that nothing is shared"


_LLC_TIMES = tuple(f"system.llc.{key}" for key in ("hit", "miss", "write", "ways", "segment"))  # capacity has a price


def _has_dead_dies(run: Chosen) -> bool:
    built, drawn = run.system.built, run.system.drawn
    return (built is not None and bool(built.dead)) or (drawn is not None and drawn.defects_per_cm2 > 0)


def _draws(run: Chosen) -> bool:
    drawn, dies = run.system.drawn, run.system.dies_as_built
    speed = dies.speed if dies is not None else None
    varies = speed is not None and any(law is not None and law.sigma > 0 for law in (speed, speed.hbm))
    return varies or (drawn is not None and (drawn.defects_per_cm2 > 0 or drawn.link_failure > 0))


def _streams(run: Chosen) -> bool:
    return run.assumptions.execution == "weight_streaming"


def _groups(run: Chosen) -> bool:
    return run.assumptions.execution == "expert_parallel"


def _is_reserved(run: Chosen) -> bool:
    return run.assumptions.contention == "reserved"


def _stays(run: Chosen) -> bool:
    return run.assumptions.activations != "dispatched"


def _iterates(run: Chosen) -> bool:
    """Whether a wafer has whole iterations, whose host is that of decisions."""
    return run.system.launch != "gpu" and (_groups(run) or run.assumptions.counts_attention)


def _weighs(run: Chosen) -> bool:
    """Whether the allocation weighs rates of the machine (`archsim.policies.registry.COSTLESS` has those that do not)."""
    return run.policy.allocation.name not in ("first_seen", "home", "even", "hashed", "nearest", "static")


def _efficiency(run: Chosen) -> str:
    return _GEMM[run.assumptions.gemm] if run.assumptions.gemm != "roofline" and not _weighs(run) else ""


def _calibration(run: Chosen) -> str:
    kernels = run.assumptions.gemm in ("calibrated", "grouped") or run.system.launch == "gpu" or _iterates(run)
    return "" if kernels else _GEMM[run.assumptions.gemm]


def _measured_transfers(run: Chosen) -> str:
    if (
        run.system.d2d.copies is not None
        or (run.system.endpoint is not None and not _stays(run))
        or (run.system.launch == "gpu" and not _stays(run) and run.assumptions.transfer_software == "charged")
    ):
        return ""
    return "no time of a measured transfer is charged"


def _is_generated(run: Chosen) -> bool:
    return run.workload is not None and not isinstance(run.workload.trace, str)


ROWS: tuple[UnreadKeys, ...] = (
    UnreadKeys(("system.compute.efficiency",), _efficiency),
    UnreadKeys(("system.d2d.measured_factor",), _measured_transfers),
    UnreadKeys(("system.compute.kernels.single",), lambda run: _GEMM[run.assumptions.gemm] if run.assumptions.gemm in ("roofline", "tables") else ""),
    UnreadKeys(("system.compute.kernel_factor", *(f"system.compute.kernels.{part}" for part in ("permute", "quantise", "finalise", "multiply"))), lambda run: _GEMM[run.assumptions.gemm] if run.assumptions.gemm != "grouped" else ""),
    UnreadKeys(("system.compute.lanes", "system.compute.clock"), lambda run: "only `archsim sure` takes vector lanes, as a bound of kernels"),
    UnreadKeys(("system.compute.library",), lambda run: _GEMM[run.assumptions.gemm] if run.assumptions.gemm in ("roofline", "tables") else ""),
    UnreadKeys(("system.compute.calibration",), _calibration),
    UnreadKeys(("system.hbm.efficiency",), lambda run: _GEMM["tables"] if run.assumptions.gemm == "tables" and not (_weighs(run) or _groups(run) or run.assumptions.counts_attention) else ""),
    UnreadKeys((*_LLC_TIMES, "assumptions.llc", "assumptions.reads", "assumptions.source", "assumptions.order"), _WHOLE_KERNELS, _groups),
    UnreadKeys(("system.hbm.latency", "system.d2d.request"), _WHOLE_KERNELS, lambda run: _groups(run) and run.policy.allocation.name == "home" and not run.policy.moves_experts),
    UnreadKeys(("assumptions.arbitration", "assumptions.rate_updates"), "execution: expert_parallel takes the times of transfers from measured kernels, or from the busiest link", _groups),
    UnreadKeys(("system.llc.ways",), "llc: segments has no sets", lambda run: run.assumptions.llc == "segments"),
    UnreadKeys(("system.llc.segment",), "llc: slices keeps whole slices, not segments", lambda run: run.assumptions.llc == "slices"),
    UnreadKeys(("assumptions.arbitration", "assumptions.reads", "assumptions.rate_updates"), _AT_ONCE, _is_reserved),
    UnreadKeys(("assumptions.ties",), "contention: shared orders no bookings, which alone have ties", lambda run: not _is_reserved(run)),
    UnreadKeys(("assumptions.ties", "assumptions.arbitration", "assumptions.rate_updates"), "engine: analytical books every transfer once, without events", lambda run: run.engine == "analytical"),
    UnreadKeys(("assumptions.overlap",), "execution: weight_streaming has no dispatch, kernels and combine that follow each other; execution: expert_parallel has", _streams),
    UnreadKeys(("assumptions.combine", "assumptions.transfer_software"), "activations: {run.assumptions.activations} moves no hidden vectors", _stays),
    UnreadKeys(("assumptions.dispatch",), "activations: {run.assumptions.activations} moves no hidden vectors", lambda run: _streams(run) and _stays(run) and not run.assumptions.receives),
    UnreadKeys(("assumptions.heatmap_update", "assumptions.prediction_rows", "assumptions.copy_writes", "assumptions.tables"), "policy {run.policy.name} predicts no experts and makes no copies", lambda run: not run.policy.predicts),
    UnreadKeys(("assumptions.migration",), "policy {run.policy.name} moves no experts", lambda run: not run.policy.moves_experts),
    UnreadKeys(("assumptions.weights",), "{run.model.name} has no shared experts", lambda run: run.model.shared_experts == 0),
    UnreadKeys(("assumptions.numbering",), "{run.system.name} has no mesh whose dies could be numbered otherwise", lambda run: run.system.mesh is None),
    UnreadKeys(("system.d2d.off_carrier.*",), "carriers: one takes links from one carrier to the next as those on one", lambda run: run.assumptions.carriers == "one"),
    UnreadKeys(("assumptions.endpoint",), "{run.system.name} names measured kernels (law or endpoint), which have their own endpoints", lambda run: run.system.transfer_law is not None or run.system.endpoint is not None),
    UnreadKeys(("system.dies_as_built.router",), "no die of {run.system.name} is dead", lambda run: not _has_dead_dies(run)),
    UnreadKeys(("system.drawn.cluster", "system.drawn.die_area", "system.drawn.core_area"), "drawn.defects_per_cm2 is 0", lambda run: run.system.drawn is not None and not run.system.drawn.defects_per_cm2),
    UnreadKeys(("system.drawn.core_area",), "a defect anywhere kills a die without harvest", lambda run: run.system.dies_as_built is None or run.system.dies_as_built.harvest is None),
    UnreadKeys(("system.drawn.wafers", "system.drawn.seed"), "nothing of {run.system.name} is sampled", lambda run: not _draws(run)),
    UnreadKeys(("system.decision.firmware.*",), "decision.executor: {run.system.decision.executor} decides, not firmware", lambda run: run.system.decision.executor != "firmware"),
    UnreadKeys(("system.decision.host.*",), "decision.executor: {run.system.decision.executor} decides, not host", lambda run: run.system.decision.executor != "host" and not _iterates(run)),
    UnreadKeys(("system.decision.host.time",), "decision.executor: {run.system.decision.executor} decides, not host", lambda run: run.system.decision.executor != "host"),
    UnreadKeys(("system.decision.gpu.*",), "decision.executor: {run.system.decision.executor} decides, not gpu", lambda run: run.system.decision.executor != "gpu"),
    UnreadKeys(tuple(f"system.decision.fsm.{key}" for key in ("sorter", "pipeline", "cost_quantum")), "decision.executor: {run.system.decision.executor} decides, not fsm", lambda run: run.system.decision.executor != "fsm"),
    UnreadKeys(tuple(f"system.decision.{key}" for key in ("gpu.*", "firmware.ipc", "firmware.per_*", "fsm.cost_quantum", "host.time")), "decision_cost: free takes no time for a decision", lambda run: run.assumptions.decision_cost == "free"),
    UnreadKeys(("system.decision.host.*",), "decision_cost: free takes no time for a decision", lambda run: run.assumptions.decision_cost == "free" and not _iterates(run)),
    UnreadKeys(("assumptions.combine",), "compute.dtype: {run.system.compute.dtype} has results of two bytes either way", lambda run: run.system.compute.dtype in ("bf16", "fp16")),
    UnreadKeys(("system.hbm.reserved", ), "capacity: unbounded lets everything fit", lambda run: run.assumptions.capacity == "unbounded"),
    UnreadKeys(("system.decision.fsm.cost_quantum",), "allocation: {run.policy.allocation.name} compares no costs in whole units; allocation: paper does", lambda run: run.policy.allocation.name != "paper" and ":" not in run.policy.allocation.name),
    UnreadKeys(("workload.seed",), "requests are generated, with the seed of trace.synthetic.seed; this one samples recorded requests", _is_generated),
    UnreadKeys(("workload.attention_weights",), "memory: experts counts the weights of experts alone", lambda run: run.assumptions.memory == "experts" and run.system.launch == "local_cp"),
    UnreadKeys(("policy.shared.kernel", "policy.allocation.stages"), "execution: {run.assumptions.execution} multiplies expert by expert; expert_parallel has a grouped kernel", lambda run: run.assumptions.execution != "expert_parallel"),
    UnreadKeys(("policy.replication.path_length", "policy.replication.sample_tokens"), "replication.accuracy is given instead of paths", lambda run: run.policy.replication.params.get("accuracy", 0) > 0),
)  # fmt: skip


def _uniform(run: Chosen) -> bool:
    return isinstance(_serving(run).routing, str)


def _serving(run: Chosen) -> ServeSpec:
    assert run.serving is not None
    return run.serving


def _pools(run: Chosen, holds: Callable[[Any], bool]) -> bool:
    return all(holds(side) for side in _serving(run).pools)


def _drawn_at_random(run: Chosen) -> bool:
    requests = _serving(run).requests
    sessions, prefixes = requests.sessions, requests.prefixes
    turns, shared = sessions.turns if sessions else None, prefixes.tokens if prefixes else None
    lengths = (requests.input, requests.output, turns, shared)
    if requests.arrivals is not None or any(each is not None and each.fixed is None for each in lengths):
        return True
    if sessions is not None and sessions.think_ns and sessions.think_cv:
        return True
    chosen = prefixes is not None and (prefixes.different > 1 or 0 < prefixes.share < 1)
    return chosen or sum(each.share > 0 for each in requests.classes) > 1


def _loads_from_host(run: Chosen) -> bool:
    given = _serving(run).kv_store, _serving(run).expert_offload
    return any(each != "none" and each.bandwidth_bytes_per_s is None for each in given)


def _shares_nothing(run: Chosen) -> bool:
    requests = _serving(run).requests
    return requests.trace is None and requests.prefixes is None and requests.sessions is None


_MEASURED = "routing: {run.serving.routing} takes the times of iterations from the curves fitted to measurements in compute.calibration; routing: {{like: model}} simulates the machine's experts"
_OTHER_DECIDERS = tuple(f"system.decision.{key}" for key in ("executor", "firmware.*", "gpu.*", "fsm.*"))
SERVED: tuple[UnreadKeys, ...] = (
    UnreadKeys(("parallel.*", "instances"), "the sides of disaggregated have their own", lambda run: _serving(run).disaggregated != "none"),
    UnreadKeys(("disaggregated.transfer.*",), "disaggregated.prefill: none brings requests with their KV", lambda run: _serving(run).disaggregated != "none" and _serving(run).disaggregated.prefill == "none"),  # type: ignore[union-attr]
    UnreadKeys(("scheduler.prefill_every",), "scheduler.prefill: free computes prompts in every iteration", lambda run: _serving(run).scheduler.prefill == "free"),
    UnreadKeys(("scheduler.balance",), "there is one rank of attention, which takes every request", lambda run: _pools(run, lambda side: side.instances * side.parallel.attention.dp == 1)),
    UnreadKeys(("scheduler.prefix_caching",), "requests are sampled and share no prefix; those of a trace with hash ids may", _shares_nothing),
    UnreadKeys(("scheduler.reserve_full_isl",), "chunked_prefill: false takes prompts whole", lambda run: _serving(run).scheduler.chunked_prefill is False),
    UnreadKeys(("requests.input.cv",), "cv goes with mean, and the lengths are fixed or uniform", lambda run: (given := _serving(run).requests.input) is not None and given.mean is None),
    UnreadKeys(("requests.output.cv",), "cv goes with mean, and the lengths are fixed or uniform", lambda run: (given := _serving(run).requests.output) is not None and given.mean is None),
    UnreadKeys(("requests.sessions.think_cv",), "turns come at once; cv goes with a time to think", lambda run: (given := _serving(run).requests.sessions) is not None and not given.think_ns),
    UnreadKeys(("kv_store.shared",), "there is one engine, which has the store", lambda run: _pools(run, lambda side: side.instances == 1)),
    UnreadKeys(("requests.seed",), "nothing of these requests is sampled at random", lambda run: not _drawn_at_random(run)),
    UnreadKeys(("system.hbm.reserved",), "utilisation is given instead", lambda run: _serving(run).utilisation is not None),
    UnreadKeys(("routing",), "{run.model.name} has no experts", lambda run: run.model.experts == 1 and _uniform(run)),
    UnreadKeys(("system.llc.*", *_OTHER_DECIDERS, "system.compute.efficiency", "system.compute.library", "system.hbm.latency", "system.d2d.request"), _MEASURED, lambda run: _uniform(run) and run.system.launch == "gpu"),
    UnreadKeys(("system.decision.host.*",), _MEASURED, lambda run: _uniform(run) and run.system.launch == "gpu" and not _loads_from_host(run)),
    UnreadKeys(("system.d2d.*",), _MEASURED, lambda run: _uniform(run) and run.system.launch == "gpu" and run.system.fabric is not None and _serving(run).disaggregated == "none"),
    UnreadKeys(("assumptions.hops", "assumptions.throughput", "assumptions.memory", "assumptions.weights"), "archsim serve has its own: it counts tokens and blocks of KV, and runs shared experts in its iterations", lambda run: not _uniform(run)),
    UnreadKeys(("system.compute.efficiency", "system.llc.*", "assumptions.llc", "assumptions.reads", "assumptions.source", "assumptions.order"), _WHOLE_KERNELS, lambda run: not _uniform(run) and _groups(run) and run.assumptions.gemm == "grouped" and not _weighs(run)),
)  # fmt: skip


UNREAD = "unread"  # key of a manifest's facts


def keys_of(sentences: Iterable[str]) -> frozenset[str]:
    """The keys that sentences of this module say have no effect."""
    named = (re.split(" (?:has|have) no effect: ", each)[0] for each in sentences)
    return frozenset(key for each in named for key in re.split(", | and ", each))


def unread_everywhere(runs: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Of the sentences of runs of one file, those of the first on keys that no run reads."""
    everywhere = frozenset.intersection(*map(keys_of, runs))
    return tuple(each for each in runs[0] if keys_of([each]) <= everywhere)


def recorded_unread(made: Any) -> tuple[str, ...]:
    """The sentences that a manifest has, which writes all defaults out. made: its facts; None: no manifest."""
    found = made.get(UNREAD) if isinstance(made, dict) else None
    return tuple(each for each in found if isinstance(each, str)) if isinstance(found, list) else ()


class WrittenKeys(NamedTuple):
    """Keys of a tree that the user gave a value to, each as in the tree: ``(systems, 0, compute, efficiency)``.
    ``of_manifest``: only overrides count, since a manifest writes all defaults out.
    """

    keys: frozenset[yaml.Keys]
    of_manifest: bool

    @classmethod
    def of(cls, tree: yaml.Tree, of_manifest: bool = False) -> WrittenKeys:
        """The keys of a tree before references are expanded. `with_files` adds those that the user's own files give."""
        is_own = _own_places(of_manifest)
        return cls(frozenset(each for each in _leaves(tree.data, ()) if is_own(tree.place(each))), of_manifest)

    def with_files(self, tree: yaml.Tree) -> WrittenKeys:
        """Adds the keys of the user's own files that references name. ``tree`` has these references expanded."""
        is_own = _own_places(self.of_manifest)
        own = (keys for keys, place in tree.places.items() if len(keys) > 1 and is_own(place))
        return self._replace(keys=self.keys | {keys for keys in own if not _below_value(tree.data, keys)})


def _own_places(of_manifest: bool) -> Callable[[yaml.Place], bool]:
    """Whether a place is an override; or, unless ``of_manifest``, not in a shipped file of parts."""
    configs = shipped_configs()

    @cache  # a tree has many places of few files
    def is_shipped(file: str) -> bool:
        path = Path(file).absolute()
        return path.is_relative_to(configs) and path.parent != configs

    def is_own(place: yaml.Place) -> bool:
        if of_manifest or place.head.startswith("--set "):
            return place.head.startswith("--set ")
        return not is_shipped(place.head.rpartition(":")[0])

    return is_own


def _leaves(value: Any, keys: yaml.Keys) -> Iterator[yaml.Keys]:
    """Keys of all values below mappings, and below the lists of an experiment's parts; a number with its range is one."""
    if isinstance(value, dict) and value and fields.without_range(value) is value:
        for key, each in value.items():
            yield from _leaves(each, (*keys, key))
    elif isinstance(value, list) and len(keys) == 1 and keys[0] in _KINDS:
        for at, each in enumerate(value):
            yield from _leaves(each, (*keys, at))
    elif keys:
        yield keys


def _below_value(value: Any, keys: yaml.Keys) -> bool:
    """Whether keys lead to what a file says of a number beside its value, or to that."""
    for key in keys[:-1]:
        value = value.get(key) if isinstance(value, dict) else value[key] if isinstance(value, list) else None  # type: ignore[index]
        if fields.without_range(value) is not value:
            return True
    return False


def unread_keys(plan: SweepPlan, written: WrittenKeys, engine: str | None = None) -> tuple[str, ...]:
    """Sentences that name the written keys, axes included, that no run of a plan reads, and say why. ``engine``: in place of its own."""
    replaced = {axis.path[0] for axis in plan.sweep.axes if len(axis.path) == 1}
    asked: list[tuple[str, int | None, yaml.Keys]] = []  # kind, number in its list, and path below
    for keys in sorted(written.keys, key=str):
        kind = _KINDS.get(str(keys[0]), str(keys[0]))
        if kind in replaced:
            continue
        if keys[0] in _KINDS and len(keys) > 1 and isinstance(keys[1], int):
            asked.append((kind, keys[1], keys[2:]))
        else:  # a set of assumptions need not be in a list
            asked.append((kind, 0 if keys[0] in _KINDS else None, keys[1:]))
    asked += [(axis.path[0], None, axis.path[1:]) for axis in plan.sweep.axes]
    wanted = [each for each in asked if _rows_of(each, ROWS)]
    return tuple(_messages(wanted, ROWS, _runs_of(plan, engine), plan.experiment)) if wanted else ()


def unread_of_serving(
    spec: ServeSpec,
    system: SystemSpec,
    model: ModelSpec,
    assumptions: AssumptionsSpec,
    policies: Sequence[PolicySpec],
    written: Iterable[yaml.Keys],
) -> tuple[str, ...]:
    """Sentences that name the keys that a file of ``archsim serve`` reads under none of its policies, and say why."""
    asked = [(str(keys[0]), None, keys[1:]) for keys in sorted(written, key=str)]
    runs: list[Any] = [(Chosen(system, model, assumptions, policy, serving=spec), {}) for policy in policies]
    wanted = [each for each in asked if _rows_of(each, SERVED)]
    return tuple(_messages(wanted, SERVED, runs))


def _runs_of(plan: SweepPlan, engine: str | None) -> Iterator[tuple[Chosen, Mapping[str, int]]]:
    """What decides in runs of a plan, and the number of each part in its list."""
    for number in _looked_at(plan):
        try:
            point = plan.point(number)
        except errors.SpecError:  # values that do not go together: no run
            continue
        places, rest = {}, number
        for kind, size in zip(
            ("policy", "assumptions", "batch", "model", "system"), reversed(plan.sizes), strict=False
        ):
            rest, places[kind] = divmod(rest, size)
        chosen = point.system, point.model, point.assumptions, point.policy, point.workload, engine or point.engine
        yield Chosen(*chosen), places


def _looked_at(plan: SweepPlan) -> Iterable[int]:
    """Numbers of all points; of a large sweep, of those in which only axes vary that may choose what is read; none
    where these are too many, too.
    """
    if plan.combinations <= _MOST_POINTS:
        return range(plan.combinations)
    groups = [any(_may_choose(axis.path) for axis in group.axes) for group in plan.sweep.groups]
    groups += [True] * (len(plan.sizes) - len(groups))
    few = [range(size if varies else 1) for size, varies in zip(plan.sizes, groups, strict=True)]
    count = 1
    for each in few:
        count *= len(each)
    return map(plan.index_of, product(*few)) if count <= _MOST_POINTS else ()


def _may_choose(path: yaml.Keys) -> bool:
    return len(path) == 1 or path[0] not in ("system", "workload") or path[1] not in _RATES


_RATES = ("hbm", "d2d", "llc", "compute", "mesh", "batch", "decode_steps", "context")  # no row asks for these


def _rows_of(asked: tuple[str, Any, yaml.Keys], rows: Sequence[UnreadKeys]) -> list[UnreadKeys]:
    kind, _, path = asked
    key = ".".join((kind, *map(str, path)))
    return [row for row in rows if any(fnmatchcase(key, pattern) for pattern in row.keys)]


def _messages(
    wanted: Sequence[tuple[str, int | None, yaml.Keys]],
    rows: Sequence[UnreadKeys],
    runs: Iterable[tuple[Chosen, Mapping[str, int]]],
    experiment: ExperimentSpec | None = None,
) -> Iterator[str]:
    whys: dict[tuple, dict[str, None]] = {each: {} for each in wanted}
    matching = {each: _rows_of(each, rows) for each in wanted}
    read = set()
    for run, places in runs:
        for each in wanted:
            if each in read or (each[1] is not None and places.get(each[0]) != each[1]):
                continue
            why = next(filter(None, (row.message(run) for row in matching[each])), "")
            if why:
                whys[each][why] = None
            else:
                read.add(each)
        if len(read) == len(wanted):
            return
    by_reason: dict[str, list[str]] = {}
    for each in wanted:
        if each not in read and whys[each]:
            by_reason.setdefault("; ".join(whys[each]), []).append(_name_of(each, experiment))
    for why, keys in by_reason.items():
        *first, last = dict.fromkeys(keys)
        yield f"{', '.join(first)} and {last} have no effect: {why}" if first else f"{last} has no effect: {why}"


def _name_of(asked: tuple[str, int | None, yaml.Keys], experiment: ExperimentSpec | None) -> str:
    """``system.compute.efficiency``, or ``system mine: compute.efficiency`` of several systems."""
    kind, at, path = asked
    written = ".".join(map(str, path))
    of = getattr(experiment, _LISTS.get(kind, ""), ())
    if at is None or len(of) < 2:
        return f"{kind}.{written}" if written else kind
    return f"{kind} {getattr(of[at], 'name', '') or of[at].label}: {written}"
