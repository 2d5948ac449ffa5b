"""``ar.compare``, ``ar.why``, ``ar.sure``, ``ar.place``, ``ar.worth``, ``ar.claims``: questions to an experiment."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from archsim.api import files
from archsim.api.runs import sweep
from archsim.api.serving import serve_sure
from archsim.base import verbs
from archsim.base.errors import ArchsimError, PlacementError, SpecError
from archsim.base.verbs import verb
from archsim.specs import library
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.file_kinds import EXPERIMENT, SERVE
from archsim.specs.library import Source
from archsim.specs.plan import SweepPlan

if TYPE_CHECKING:
    from archsim.evidence.claims import Claims
    from archsim.machine.system import SystemSpec
    from archsim.model.spec import ModelSpec
    from archsim.questions.block_worth import BlockWorth
    from archsim.questions.designs import DesignComparison
    from archsim.questions.why import Why
    from archsim.questions.worth import Worth
    from archsim.runs.sweep import Watcher
    from archsim.search.compare import OptionComparison
    from archsim.search.deployments import DeploymentComparison
    from archsim.search.options import Side
    from archsim.search.served_why import ServedWhy
    from archsim.serving.answers.place import Placed
    from archsim.serving.answers.sure import ServedSure
    from archsim.uncertainty.sure_answer import Sure


HELD_OUT = 0.25


# numpy and studies are imported where they are used, so that importing this module is fast.


@verb(verbs.SURE)
def sure(
    experiment: files.Experiment,
    samples: int = 256,
    out: str | os.PathLike[str] | None = None,
    *,
    system: str | None = None,
    model: str | None = None,
    policy: str | None = None,
    batch: int | None = None,
    assumptions: str | None = None,
    jobs: int | None = None,
    watcher: Watcher | None = None,
    overrides: files.Overrides = (),
    seed: int = 0,
) -> Sure | ServedSure:
    """How sure the answer of an experiment is: its runs in ``samples`` worlds, in which all numbers with a range are
    drawn, the same for all policies, batches and systems. Of a file of ``ar.serve``: as ``ar.serve_sure``.

    Returns a `Sure`: ``.sentence`` has the verdict, ``.places`` the pairs of options with the probability of their
    order, Sobol' indices and what to measure next; ``.to_pandas()`` has one row for each option with columns
    ``_p05``, ``_p50`` and ``_p95``. Times are in ns.

    samples: 16 or more. Runs kept in ``out`` are not simulated again. overrides: as of `load`.

    Raises ArchsimError for too few samples; otherwise as `sweep`.

    >>> print(ar.sure(ar.api.EXAMPLE, 16).sentence)  # takes seconds  # doctest: +SKIP
    """
    from archsim.runs.plan import select
    from archsim.runs.sweep import Unwatched
    from archsim.uncertainty.sure import find_sure, sure_into
    from archsim.uncertainty.worlds import refuse_few

    refuse_few(samples)
    if _is_deployment(experiment):
        named = {"system": system, "model": model, "policy": policy, "batch": batch, "assumptions": assumptions}
        _refuse_choices(named | {"seed": seed or None})
        source, changes = cast("Source", experiment), files.override_texts(overrides)
        return serve_sure(source, samples, changes, out=out, watcher=watcher, jobs=jobs)
    chosen = {"system": system, "model": model, "policy": policy, "batch": batch, "assumptions": assumptions}
    watcher = watcher or Unwatched()
    selection = select(only_chosen(files.planned_of(files.overridden(experiment, overrides)), chosen), watcher.phase)
    if out is None:
        return find_sure(selection, samples, None, jobs, watcher, seed)
    return sure_into(selection, samples, Path(out), jobs, watcher, seed)


def _refuse_choices(given: Mapping[str, Any]) -> None:
    """Raise SpecError for what is chosen of the runs of an experiment; a deployment has none of it."""
    for name, value in given.items():
        if value is not None:
            raise SpecError(f"{verbs.caller_name(name)} {value}: a file of `archsim serve` has no choice of it")


def _is_deployment(source: Any) -> bool:
    """Whether a file or mapping is one of ``ar.serve``."""
    loaded = isinstance(source, ExperimentSpec | SweepPlan | files.ExplorationPlan)
    return not loaded and library.kind_of_file(source) == SERVE


def _chosen_side(side: Side, sides: Sequence[Side], chosen: Mapping[str, Any], overrides: Sequence[str]) -> Side:
    """A side with what is chosen of it, and with overrides. Raises SpecError for what it does not have."""
    from archsim.search.options import SYSTEM

    kinds, chosen = {each.kind for each in sides}, {name: value for name, value in chosen.items() if name != "model"}
    if side.kind == SERVE and EXPERIMENT not in kinds:
        _refuse_choices(chosen)
    elif side.kind == SYSTEM:
        if overrides and SERVE not in kinds:
            raise SpecError(
                f"{verbs.caller_name('overrides')} {overrides[0]}: {side.name} is a machine. Change its file "
                f"(archsim new system {side.name}), or ask for values of a key: --vary hbm.bandwidth=[4,8]TB/s"
            )
        if chosen.get("system") and len(kinds) == 1:
            raise SpecError(f"{verbs.caller_name('system')} {chosen['system']}: {side.name} is a machine already")
    elif side.experiment is not None and SERVE not in kinds:
        experiment = library.load_experiment(side.source, overrides) if overrides else side.experiment
        return side._replace(experiment=cast("ExperimentSpec", only_chosen(experiment, chosen)))
    return side


def only_chosen(planned: ExperimentSpec | SweepPlan, chosen: Mapping[str, Any]) -> ExperimentSpec | SweepPlan:
    """The experiment with the named parts alone; all of those without a name. Raises ArchsimError for an unknown name,
    and for names with a ``sweep:``.
    """
    from archsim.runs.choice import choose

    wanted = {name: value for name, value in chosen.items() if value is not None}
    if not wanted:
        return planned
    if isinstance(planned, SweepPlan):
        raise ArchsimError(f"{', '.join(wanted)}: a file with sweep: has its own. Set them there")
    one, lists = choose(planned, **wanted), {"system": "systems", "model": "models", "policy": "policies"}
    changed: dict[str, Any] = {lists[name]: getattr(one, lists[name]) for name in wanted if name in lists}
    changed |= {"assumptions": one.assumptions} if "assumptions" in wanted else {}
    changed |= {"workload": one.workload} if "batch" in wanted else {}
    return planned.model_copy(update=changed)


@verb(verbs.COMPARE)
def compare(
    *sides: Any,
    inside: Source | ExperimentSpec | None = None,
    out: str | os.PathLike[str] | None = None,
    overrides: files.Overrides = (),
    limits: Mapping[str, Any] | None = None,
    tpot: str | None = None,
    ttft: str | None = None,
    rate: float | str | None = None,
    equal: str | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    input_tokens: float | None = None,
    output_tokens: float | None = None,
    prices: Mapping[str, float] | None = None,
    samples: int | None = None,
    jobs: int | None = None,
    report: Callable[[str], None] = lambda text: None,
    watcher: Watcher | None = None,
    **chosen: Any,
) -> DesignComparison | OptionComparison | DeploymentComparison:
    """Options side by side, each as well as it can be used; two designs at one batch; or deployments.

    sides: two experiments, or with ``inside`` two of its policies or systems, and nothing else asked: a
    `DesignComparison` of the first combination of each: what differs in its specification, and in time by cause,
    traffic, energy and price; with ``samples``, ``.sure`` as of ``ar.sure``. Systems (``"gb200_nvl72:8"`` is eight),
    or experiments with limits: an `OptionComparison`, by whole iterations; replicas, sizes, policy and batch of a
    system are chosen. Files of ``ar.serve``: a `DeploymentComparison`, with the same requests, which a system beside
    one serves in sizes that are chosen. All have ``.sentence`` but the first, and ``.to_pandas()``.

    vary: key of the sides → values; prices: GPU → USD an hour. limits: tpot, ttft and rate in a mapping.

    Raises ArchsimError for a name that is not there, two equal designs, sides without a common model, limits that no
    side keeps, and a price that is not known; otherwise as `run`.

    >>> ar.compare("base", "ep", inside=ar.api.EXAMPLE).to_pandas().empty
    False
    >>> ar.compare("wafer.yaml", "gb200_nvl72:8", model="deepseek-v3", limits={"tpot": "50ms"})  # doctest: +SKIP
    """
    from archsim.base.host import available_cores
    from archsim.search.door import Question, compare_options
    from archsim.search.options import SYSTEM
    from archsim.search.options import side_of as read_side

    changes = files.override_texts(overrides)
    given, where = {"tpot": tpot, "ttft": ttft, "rate": rate} | dict(limits or {}), None if out is None else Path(out)
    if unknown := sorted(set(given) - {"tpot", "ttft", "rate"}):
        raise SpecError(f"limits: unknown {unknown[0]!r} (known: tpot, ttft, rate)")
    question = Question(
        model=chosen.get("model"), tpot=given["tpot"], ttft=given["ttft"], rate=given["rate"],
        input_tokens=input_tokens, output_tokens=output_tokens, equal=equal,
        vary=None if not vary else {key: tuple(values) for key, values in vary.items()}, prices=prices, samples=samples,
    )  # fmt: skip
    if inside is not None and (question.asks or len(sides) != 2):
        raise SpecError("--in: policies and systems of an experiment are compared two at a time, at its own batch")
    read = [] if inside is not None else [read_side(each, bool(question.model or vary)) for each in sides]
    if any(each.kind == SYSTEM for each in read):  # so is a name that an experiment has, too
        read = [read_side(each, True) for each in sides]
    if inside is None and (question.asks or len(sides) != 2 or any(each.kind != EXPERIMENT for each in read)):
        read = [_chosen_side(each, read, chosen, changes) for each in read]
        found = compare_options(read, question, chosen, changes, jobs or available_cores(), report, where, watcher)
        if where is not None:
            _write_options(found, where)
        return found
    from archsim.questions import designs
    from archsim.questions.designs_page import write_comparison_page
    from archsim.questions.sides import load_side, name_of, side_of
    from archsim.uncertainty.ranges import WORLDS

    whole = None if inside is None else load_side(inside, changes)
    a, b = sides
    both = [side_of(each, whole, changes, chosen) for each in (a, b)]
    compared = designs.compare_designs((name_of(a), name_of(b)), both, WORLDS if samples is None else samples)
    if where is not None:
        write_comparison_page(compared, where)
    if not samples:
        return compared
    from dataclasses import replace

    from archsim.runs.executor import shared_folder
    from archsim.uncertainty.sure import sure_of_sides

    named = {f"{letter}: {name_of(each)}": side for letter, each, side in zip("AB", sides, both, strict=True)}
    with shared_folder() as folder:
        return replace(compared, sure=sure_of_sides(named, samples, where or Path(folder), jobs, watcher))


def _write_options(found: OptionComparison | DeploymentComparison, folder: Path) -> None:
    from archsim.search.compare import OptionComparison

    if isinstance(found, OptionComparison):
        from archsim.search.page import write_options

        write_options(found, folder)
        return
    from archsim.search.deployments import write_deployments

    write_deployments(found, folder)


@verb(verbs.WHY)
def why(
    experiment: files.Experiment,
    overrides: files.Overrides = (),
    *,
    step: int | None = None,
    layer: int | None = None,
    worst: int = 10,
    report: Callable[[str], None] = lambda text: None,
    **chosen: Any,
) -> Why | ServedWhy:
    """What limits a step of one combination of an experiment, and what would help. Of a file of ``ar.serve``, a
    `ServedWhy`: what its time goes to by cause, and what doubling each rate would change.

    Returns a `Why`: ``.rows`` has the slowest steps (columns of ``steps.parquet``), ``.lines()`` five lines of the
    first: cause, link, die, expert, and what would help by how much. The last is simulated:
    the step with twice of what it waits for, and under the other policies of the experiment.

    step or layer alone: the slowest of it. report: gets what is tried next, in words. Of the folder of a report without
    a choice: its fastest run at the largest batch.

    Raises ArchsimError for a step that the run does not have; otherwise as `run`.

    >>> len(ar.why(ar.api.EXAMPLE, policy="ep", worst=3).rows)
    3
    """
    from archsim.questions.why import explain, fastest_run

    if _is_deployment(experiment):
        from archsim.search.served_why import why_deployment
        from archsim.specs.serving_files import load_serving

        _refuse_choices({"step": step, "layer": layer, **chosen})
        source = cast("Source", experiment)
        name = "the deployment" if isinstance(source, Mapping) else Path(source).stem
        return why_deployment(load_serving(source, files.override_texts(overrides)), name, report)
    if picked := fastest_run(experiment, files.override_texts(overrides), step, layer, chosen):
        return explain(picked[0], step, layer, worst, picked[1], report)
    return explain(files.experiment_of(files.overridden(experiment, overrides)), step, layer, worst, chosen, report)


@verb(verbs.PLACEMENT)
def place(
    loads: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    model: str | ModelSpec,
    system: str | SystemSpec,
    policy: str = "eplb",
    slots: int = 0,
    *,
    num_slots: int | None = None,
    ranks: int | None = None,
    tokens: int | None = None,
    held_out: float = HELD_OUT,
    out: str | os.PathLike[str] | None = None,
) -> Placed:
    """Choose the expert in every slot on the first part of recorded loads, and judge it on the last.

    Returns a `Placed`: ``.map`` (the expert in every slot), ``.rows`` (the engines' defaults and the placement on loads
    held out in time: largest over mean load of the ranks, expected time where a calibrated law exists), ``.cost``
    (HBM and moved experts), ``.gain``, ``.notes``; ``.to_pandas()`` has one row per placement.

    Several loads are the files of all ranks (docs/traces.md). Slots are of all ranks together, as SGLang's
    --ep-num-redundant-experts. held_out: share of the matrices, the last ones. ``placement.json`` is written last.

    Raises TraceError for loads that cannot be read or are of another model; PlacementError for slots that do not divide
    or are fewer than the experts, more ranks than devices, and unknown policies; CapacityError if the experts do not
    fit; SpecError.

    >>> import numpy as np
    >>> np.save("loads.npy", np.random.default_rng(0).integers(1, 99, (4, 16, 64)))  # matrix, layer, expert
    >>> ar.place("loads.npy", "olmoe-1b-7b", "h200_node", slots=8).to_pandas().empty
    False
    """
    from archsim.serving.answers.place import place_experts, write_placed
    from archsim.serving.answers.recorded_loads import read_history
    from archsim.specs.library import load_model, load_system
    from archsim.traffic.placements import check_slots

    whose = load_model(model) if isinstance(model, str) else model
    machine = load_system(system) if isinstance(system, str) else system
    size = machine.dies if ranks is None else ranks
    given = ("slots", slots, 0), ("num_slots", num_slots, 1), ("ranks", size, 1), ("tokens", tokens, 1)
    for name, value, least in given:
        if value is not None and (type(value) is not int or value < least):
            raise PlacementError(f"{name} is {value!r}; expected a whole number from {least}")
    if size > machine.dies:
        raise PlacementError(
            f"{verbs.caller_name('ranks')} is {size}, but {machine.name} has {machine.dies} devices, one "
            f"a rank. Give at most {machine.dies}, or a machine with {size} devices or more (archsim list systems)"
        )
    total = whose.experts + slots if num_slots is None else num_slots
    sources = [loads] if isinstance(loads, str | os.PathLike) else list(loads)
    history = read_history([Path(source) for source in sources], whose)
    check_slots(f"{whose.name} on {machine.name}", total, whose.experts, size)
    placed = place_experts(history, whose, machine, policy, total, size, held_out, tokens)
    return placed if out is None else write_placed(placed, Path(out))


def worth(
    policy: str,
    loads: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    deployment: Source,
    overrides: files.Overrides = (),
    *,
    held_out: float = HELD_OUT,
    out: str | os.PathLike[str] | None = None,
    samples: int | None = None,
    jobs: int = 1,
) -> Worth:
    """Whether a balancer pays: its placements on the first part of recorded loads, served on tokens of the last.

    Returns a `Worth`: ``.answer`` (how many redundant experts, and their gain), ``.verdict``, ``.rows`` (without the
    balancer and by spare slots a rank: balance, time of the experts, TTFT, TPOT, goodput, KV blocks), ``.tpot``,
    ``.ttft`` and ``.goodput`` (range of the change over three draws), ``.break_even`` (decode iterations after which a
    rearrangement has paid), ``.placed``.

    policy, loads, held_out: as of ``place``; loads None: of the traffic that is known of the model. deployment: a file
    of ``archsim serve`` with one engine; its requests and limits are served. out: folder of the engines' files of the
    best placement. samples: ``.worlds`` is what it gains where what laws are off is drawn so often (None: 16, of the
    first requests; 0: none). jobs: parallel processes.

    Raises as ``place`` and ``serve``; PlacementError for loads of one matrix, which leave nothing to judge on.

    >>> ar.worth("eplb", "loads.npz", "serve_olmoe").verdict  # takes minutes  # doctest: +SKIP
    """
    from archsim.questions.worth import worth as judged
    from archsim.search.deployments import policies_sentence

    changes = files.override_texts(overrides)
    sources = [loads] if isinstance(loads, str | os.PathLike) else list(loads or ())
    target, paths = None if out is None else Path(out), [Path(source) for source in sources]
    return judged(policy, paths, deployment, changes, held_out, target, samples, jobs, policies_sentence)


def block_worth(
    block: str,
    experiment: files.Experiment,
    jobs: int | None = None,
    watcher: Watcher | None = None,
    samples: int | None = None,
) -> BlockWorth:
    """Whether a block of the decision hardware pays: time that its policies save beside its area, power and price.

    Returns a `BlockWorth`: ``.verdict``, ``.rows`` (every run of a policy that uses the block, beside that of the
    policy that differs in it alone), ``.costs`` (mm², W, USD with range, shares of the machine), ``.break_evens``.

    block: ``prediction``, ``allocator`` or ``speeds``. experiment: also the folder of a report, whose runs are taken
    (one draw); otherwise its policies with and without the block are simulated on three draws of the traffic, and the
    block pays what it pays in every draw, by 1 % or more. jobs, watcher: as of ``sweep``. samples: 16 or more, or 0:
    ``.worlds`` is what every pair gains where all numbers with a range are drawn so often (`sure`).

    Raises SpecError for an unknown block, for an experiment with axes, for policies of which no two differ in it alone,
    and for systems whose GPUs decide; otherwise as `sweep`.

    >>> ar.block_worth("prediction", "dojo").verdict  # takes minutes  # doctest: +SKIP
    """
    from archsim.questions.block_worth import DRAWS, drawn, in_worlds, judge, pairs_of
    from archsim.runs.results import Results
    from archsim.specs.library import MANIFEST

    report = Path(experiment) if isinstance(experiment, str | os.PathLike) and Path(experiment).is_dir() else None
    whole = files.planned_of(experiment if report is None else report / MANIFEST)
    if isinstance(whole, SweepPlan):
        axes = ", ".join(axis.name for axis in whole.sweep.axes)
        what = f"a block is tested on one experiment, and this one has axes: {axes}. Give each value in a file without"
        raise SpecError(f"{whole.experiment.name}: {what}")
    names = {each.name for pair in pairs_of(block, whole.policies) for each in pair}
    if report is not None:
        found = judge(block, whole, Results.load(report).runs.rows)
    fewer = whole.model_copy(update={"policies": tuple(each for each in whole.policies if each.name in names)})
    if report is None:
        draws = [sweep(drawn(fewer, at), None, jobs, watcher).runs.rows for at in range(DRAWS)]
        found = judge(block, fewer, *draws)
    return in_worlds(found, cast("Sure", sure(fewer, samples, jobs=jobs, watcher=watcher))) if samples else found


def claims(
    papers: Sequence[str | os.PathLike[str]] = (),
    out: str | os.PathLike[str] = "reports/claims",
    jobs: int | None = None,
    watcher: Watcher | None = None,
    recorded: bool = False,
) -> list[Claims]:
    """Run what is missing of the papers' experiments, judge every row of their files, and write their pages.

    Returns a `Claims` a paper: ``.judged`` (published, null models, simulated under the paper's rules and under
    ``physical``, skill, verdict), ``.signs``, ``.answers``, ``.numbers``. papers: names of configs/papers, or paths;
    none: all of them, and then a page over all. out: folder of the pages and of ``recorded.json``, the values that were
    simulated; runs kept there are not simulated again. jobs: parallel processes. recorded: simulate nothing, and judge
    values that this code recorded, in ``out`` or as shipped (configs/papers/recorded.json); papers whose values other
    code computed are left out.

    Raises SpecError, TraceError and CapacityError before anything is simulated, and SpecError where all papers would be
    left out; FailedRuns at the end if runs failed.

    >>> [each.paper.paper for each in ar.claims(["wafer"], "claims")]  # doctest: +SKIP
    ['wafer']
    """
    from archsim.base.files import own_folder, write_text
    from archsim.evidence.claims import judge_paper, judge_recorded
    from archsim.evidence.claims_page import write_claims, write_summary
    from archsim.runs.sweep import Unwatched
    from archsim.specs.papers import load_paper, paper_names, recorded_values

    folder, found = Path(out), []
    own_folder(folder)
    read = [load_paper(each) for each in papers or paper_names()]
    kept = folder / "recorded.json"
    own: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
    for paper in read:
        if recorded:
            of_both = (each.get(paper.paper, {}) for each in (own, recorded_values()))
            judged = next(filter(None, (judge_recorded(paper, each) for each in of_both)), None)
        else:
            own_folder(folder / paper.paper)
            judged = judge_paper(paper, folder / paper.paper, jobs, watcher or Unwatched())
        if judged is not None:
            write_claims(judged, folder / paper.paper)
            found.append(judged)
    if not found:
        names = " ".join(each.paper for each in read)
        raise SpecError(f"other code computed what is recorded of {names}. Simulate: archsim compare --papers {names}")
    write_text(
        kept,
        json.dumps(own | {each.paper.paper: each.as_recorded() for each in found}, indent=1, sort_keys=True) + "\n",
    )
    if not papers:
        write_summary(found, folder)
    return found
