"""``ar.place`` and ``ar.worth``: a placement of experts from recorded loads, and whether it pays."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from archsim.base.errors import PlacementError

# numpy and numba are imported where they are used, so that importing this module is fast.
if TYPE_CHECKING:
    from archsim.specs.loading.library import Source
    from archsim.specs.machine.system import SystemSpec
    from archsim.specs.model import ModelSpec
    from archsim.studies.place.place import Placed
    from archsim.studies.worth import Worth

HELD_OUT = 0.25


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
    deployment: Source,
    overrides: Sequence[str] = (),
    *,
    held_out: float = HELD_OUT,
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
