"""``ar.place``, ``ar.worth`` and ``ar.block_worth``: a placement of experts, and whether it or a block pays."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from archsim.api.loading import Experiment, experiment_of
from archsim.base.errors import PlacementError

# numpy and numba are imported where they are used, so that importing this module is fast.
if TYPE_CHECKING:
    from archsim.runs.sweep import Watcher
    from archsim.specs.loading.library import Source
    from archsim.specs.machine.system import SystemSpec
    from archsim.specs.model import ModelSpec
    from archsim.studies.block_worth import BlockWorth
    from archsim.studies.place.place import Placed
    from archsim.studies.worth import Worth

HELD_OUT = 0.25


def place(
    loads: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    model: str | ModelSpec, system: str | SystemSpec, policy: str = "eplb", slots: int = 0, *,
    num_slots: int | None = None, ranks: int | None = None, tokens: int | None = None, held_out: float = HELD_OUT,
    out: str | os.PathLike[str] | None = None,
) -> Placed:
    """Choose the expert in every slot on the first part of recorded loads, and judge it on the last.

    Returns a `Placed`: ``.map`` (the expert in every slot), ``.rows`` (the engines' defaults and the placement on loads
    held out in time: largest over mean load of the ranks, expected time where a calibrated law exists), ``.cost``
    (HBM and moved experts), ``.gain``, ``.notes``; ``.to_pandas()`` has one row per placement.

    loads: what an engine recorded, a load matrix, a store or a trace (docs/traces.md); several paths: the files of all
    ranks. policy: ``none``, ``eplb``, ``craft``, ``remap`` or ``dup``. slots: of a layer beyond one an expert, all
    ranks together (SGLang's --ep-num-redundant-experts); num_slots: slots of a layer in all, instead. ranks: EP size;
    None: the dies of the system. tokens: of a step, to scale loads that are sums over many steps. held_out: share of
    the matrices, the last ones. out: folder of the engines' files and ``placement.json``, which is written last.

    Raises TraceError for loads that cannot be read or are of another model; PlacementError for slots that do not divide
    or are fewer than the experts, and unknown policies; CapacityError if the experts do not fit; SpecError.
    """
    from archsim.specs.loading.library import load_model, load_system
    from archsim.studies.place.history import read_history
    from archsim.studies.place.place import place_experts, write_placed
    from archsim.workload.placements.physical import check_slots

    whose = load_model(model) if isinstance(model, str) else model
    machine = load_system(system) if isinstance(system, str) else system
    size = machine.dies if ranks is None else ranks
    given = ("slots", slots, 0), ("num_slots", num_slots, 1), ("ranks", size, 1), ("tokens", tokens, 1)
    for name, value, least in given:
        if value is not None and (type(value) is not int or value < least):
            raise PlacementError(f"{name} is {value!r}; expected a whole number from {least}")
    total = whose.experts + slots if num_slots is None else num_slots
    check_slots(f"{whose.name} on {machine.name}", total, whose.experts, size)
    sources = [loads] if isinstance(loads, str | os.PathLike) else list(loads)
    history = read_history([Path(source) for source in sources], whose)
    placed = place_experts(history, whose, machine, policy, total, size, held_out, tokens)
    return placed if out is None else write_placed(placed, Path(out))


def worth(
    policy: str,
    loads: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    deployment: Source, overrides: Sequence[str] = (), *, held_out: float = HELD_OUT,
    out: str | os.PathLike[str] | None = None,
) -> Worth:
    """Whether a balancer pays: its placements on the first part of recorded loads, served on tokens of the last.

    Returns a `Worth`: ``.verdict``, ``.rows`` (without the balancer and by spare slots a rank: balance, time of the
    experts, TTFT, TPOT, goodput, KV blocks), ``.tpot``, ``.ttft`` and ``.goodput`` (range of the change over three
    draws), ``.break_even`` (decode iterations after which a rearrangement has paid), ``.placed``.

    policy, loads, held_out: as of ``place``. deployment: a file of ``archsim serve`` with one engine; its requests and
    limits are served. out: folder of the engines' files of the best placement.

    Raises as ``place`` and ``serve``; PlacementError for loads of one matrix, which leave nothing to judge on.
    """
    from archsim.studies.worth import worth as judged

    sources = [loads] if isinstance(loads, str | os.PathLike) else list(loads)
    target = None if out is None else Path(out)
    return judged(policy, [Path(source) for source in sources], deployment, overrides, held_out, target)


def block_worth(
    block: str, experiment: Experiment, jobs: int | None = None, watcher: Watcher | None = None
) -> BlockWorth:
    """Whether a block of the decision hardware pays: time that its policies save beside its area, power and price.

    Returns a `BlockWorth`: ``.verdict``, ``.rows`` (every run of a policy that uses the block, beside that of the
    policy that differs in it alone), ``.costs`` (mm², W, USD with range, shares of the machine), ``.break_evens``.

    block: ``prediction`` or ``allocator``. experiment: also the folder of a report, whose runs are taken (one draw);
    otherwise its policies with and without the block are simulated on three draws of the traffic, and the block pays
    what it pays in every draw, by 1 % or more. jobs, watcher: as of ``sweep``.

    Raises SpecError for an unknown block, for policies of which no two differ in it alone, and for systems whose GPUs
    decide; otherwise as `sweep`.
    """
    from archsim.api.running import sweep
    from archsim.runs.results import Results
    from archsim.specs.loading.library import MANIFEST
    from archsim.studies.block_worth import DRAWS, drawn, judge, pairs_of

    report = Path(experiment) if isinstance(experiment, str | os.PathLike) and Path(experiment).is_dir() else None
    whole = experiment_of(experiment if report is None else report / MANIFEST)
    names = {each.name for pair in pairs_of(block, whole.policies) for each in pair}
    if report is not None:
        return judge(block, whole, Results.load(report).runs.rows)
    fewer = whole.model_copy(update={"policies": tuple(each for each in whole.policies if each.name in names)})
    draws = [sweep(drawn(fewer, at), None, jobs, watcher).runs.rows for at in range(DRAWS)]
    return judge(block, fewer, *draws)
