"""``ar.place`` and ``archsim place``: from recorded loads to a placement that a serving engine can start with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from archsim.base.errors import CapacityError, PlacementError, TraceError, did_you_mean
from archsim.base.files import sole_writer, write_text
from archsim.base.tables import Shown
from archsim.laws import gemm, tables
from archsim.laws.laws import Laws
from archsim.policies.craft import craft_budget, craft_gain, greedy_placement
from archsim.policies.eplb import eplb
from archsim.policies.load import balancedness
from archsim.policies.remap import dup, remap
from archsim.specs.calibration_files import calibration_named
from archsim.specs.model import ModelSpec
from archsim.specs.system import SystemSpec
from archsim.workload import placements, trace
from archsim.workload.formats.readers import open_trace
from archsim.workload.loads import holds_loads, loads_name, read_all_loads
from archsim.workload.placements import PhysicalMap, check_slots, sglang_default, write_placement
from archsim.workload.store import LOADS, is_store, open_store
from archsim.workload.trace import Trace

if TYPE_CHECKING:
    import pandas


# ---- choosing
# Policies that choose the expert in every slot: the placements of ``archsim.balancers`` in equal slots for all ranks.
#
# Engines give every layer and rank the same number of slots. Where a policy leaves slots free, each holds a further
# copy of an expert whose copies are all on that rank, which changes no load.

Chooser = Callable[[np.ndarray, int, int], np.ndarray]
"""(loads float64[time, layer, expert], ranks, slots) -> int[layer, slot]"""

CRAFT_BATCHES = 64  # batches in which CRAFT estimates what replicas gain; consecutive matrices are summed


def none(loads: np.ndarray, ranks: int, slots: int) -> np.ndarray:
    """What SGLang and vLLM start with: slot i holds expert i mod experts."""
    _, layers, experts = loads.shape
    return np.tile(sglang_default(slots, experts), (layers, 1))


def of_eplb(loads: np.ndarray, ranks: int, slots: int) -> np.ndarray:
    """DeepSeek's EPLB on all loads together, without groups."""
    return eplb(loads.sum(axis=0), slots, groups=1, nodes=1, gpus=ranks).physical_to_logical


def of_craft(loads: np.ndarray, ranks: int, slots: int) -> np.ndarray:
    """CRAFT: as many replicas in a layer as pay in the recorded batches, placed greedily."""
    _, layers, experts = loads.shape
    more, room = slots - experts, np.full(ranks, slots // ranks)
    replicas = np.zeros(layers, np.int64)
    if more:
        counts = sorted({min(2**n, more) for n in range(more.bit_length() + 1)})
        gain = craft_gain(_batches(loads), ranks, counts=counts)
        replicas = craft_budget(gain, more * layers)
    total = loads.sum(axis=0)
    plans = [greedy_placement(total[n], ranks, int(replicas[n]), room).experts for n in range(layers)]
    return np.stack([filled(plan, slots, total[n]) for n, plan in enumerate(plans)])


def of_remap(loads: np.ndarray, ranks: int, slots: int) -> np.ndarray:
    """Remap: experts move, none is replicated."""
    total = loads.sum(axis=0)
    return np.stack([filled(remap(layer, ranks).experts, slots, layer) for layer in total])


def of_dup(loads: np.ndarray, ranks: int, slots: int) -> np.ndarray:
    """Dup: experts stay in order, replicas go where they lower the largest load most."""
    _, _, experts = loads.shape
    free = slots // ranks - -(-experts // ranks)
    total = loads.sum(axis=0)
    return np.stack([filled(dup(layer, ranks, free, float).experts, slots, layer) for layer in total])


POLICIES: dict[str, Chooser] = {"none": none, "eplb": of_eplb, "craft": of_craft, "remap": of_remap, "dup": of_dup}


def policy_named(name: str) -> Chooser:
    """Raises PlacementError."""
    if name not in POLICIES:
        raise PlacementError(f"unknown policy {name!r}{did_you_mean(name, POLICIES)} (known: {', '.join(POLICIES)})")
    return POLICIES[name]


def filled(held: list[np.ndarray], slots: int, load: np.ndarray) -> np.ndarray:
    """int64[slot]: what each rank holds, its free slots filled as this section says.

    held[rank]: experts. load[expert]: where a rank has no expert of its own alone, the one with the least load per
    copy is repeated.
    """
    each = slots // len(held)
    copies = np.bincount(np.concatenate(held), minlength=len(load))
    row = np.empty((len(held), each), np.int64)
    for rank, experts in enumerate(held):
        mine = np.bincount(experts, minlength=len(load))
        alone = np.flatnonzero((mine > 0) & (mine == copies))
        coldest = np.argmin(load / np.maximum(copies, 1))
        row[rank, : len(experts)] = experts
        row[rank, len(experts) :] = alone[0] if len(alone) else coldest
    return row.ravel()


def _batches(loads: np.ndarray) -> np.ndarray:
    """Consecutive matrices summed to at most CRAFT_BATCHES."""
    starts = np.unique(np.arange(CRAFT_BATCHES) * len(loads) // CRAFT_BATCHES)
    return np.add.reduceat(loads, starts, axis=0)


# ---- history
# Loads over time from whatever was recorded: engines' dumps, load matrices, stores, or traces of tokens.

MOST_WINDOWS = 256  # of a trace of tokens, so that memory stays below 256 x 61 x 256 numbers


@dataclass(frozen=True)
class RecordedLoads:
    """counts: float64[time, layer, expert], in the order of the recording. layer_ids: the model's numbering.

    steps: whether every matrix is one forward pass.
    """

    counts: np.ndarray
    layer_ids: tuple[int, ...]
    steps: bool
    source: str


# What recorded loads are, for who gives a file that is not there.
RECORDED = (
    "Give what an engine recorded: a recorder dump of SGLang, `eplb_load_stats` of vLLM, statistics of TensorRT-LLM, a "
    "matrix of loads (.npz, .csv), a trace or a store. `archsim trace synth MODEL --out made.npz` makes a trace up"
)


def read_history(sources: Sequence[Path], model: ModelSpec) -> RecordedLoads:
    """Raises TraceError for sources that are unreadable, unknown, or of another model."""
    for source in sources:
        if not source.exists():
            raise TraceError(f"{source}: no such file or directory. {RECORDED}")
    name = ", ".join(source.name for source in sources)
    if len(sources) == 1 and is_store(sources[0]) and open_store(sources[0]).kind == LOADS:
        return _of_store(sources[0], model, name)
    if not is_store(sources[0]) and holds_loads(sources[0]):
        for source in sources:
            trace.check_name(str(source), model, loads_name(source))
        loads = read_all_loads(sources, model)
        return _history(loads.counts, loads.layer_ids, loads.series, name)
    if len(sources) > 1:
        raise TraceError(f"{sources[0]}: holds tokens; expected one trace, or several files of expert loads")
    return _of_tokens(open_trace(sources[0], model), name)


def _of_store(path: Path, model: ModelSpec, name: str) -> RecordedLoads:
    store = open_store(path)
    shape = store.shape
    trace.check_name(str(path), model, shape.model)
    trace.check_shape(str(path), model, experts=shape.num_experts, top_k=shape.top_k, layers=shape.layers)
    trace.check_layers(str(path), model, np.array(shape.layer_ids))
    columns, about = store.loads()
    return _history(columns["counts"], shape.layer_ids, about.get("series", about["names"]), name)


def _history(counts: np.ndarray, layer_ids, series: Sequence[str], name: str) -> RecordedLoads:
    steps = len(series) > 1 and len(set(series)) < len(series)
    return RecordedLoads(counts.astype(np.float64), tuple(map(int, layer_ids)), steps, name)


def _of_tokens(trace: Trace, name: str) -> RecordedLoads:
    """Loads by iteration, all requests together; long traces in windows of several iterations."""
    last = int(trace.iteration.max())
    every = -(-(last + 1) // MOST_WINDOWS)
    window = trace.iteration.astype(np.int64) // every
    windows, experts = int(window.max()) + 1, trace.num_experts
    counts = np.zeros((windows, len(trace.layer_ids), experts))
    for layer in range(len(trace.layer_ids)):
        cell = (window[:, None] * experts + trace.experts[:, layer]).ravel()
        counts[:, layer] = np.bincount(cell, minlength=windows * experts).reshape(windows, experts)
    busy = counts.any(axis=(1, 2))
    return RecordedLoads(counts[busy], tuple(trace.layer_ids.tolist()), every == 1, name)


# ---- judging
# What a placement is worth on loads: balance of the ranks, expected time of the experts, memory and moves.
#
# The load of an expert divides evenly over its copies, as engines dispatch without further knowledge.

MOST_TIMED = 32  # matrices whose time is evaluated, evenly spread
PRODUCTS = 3  # gate, up and down


@dataclass(frozen=True)
class JudgedPlacement:
    """A placement on held-out loads.

    max_over_mean: sum of the ranks' largest loads over the sum of their means; 1 is perfect. balancedness: mean over
    matrices and layers of mean / max, as SGLang logs it. experts_ns: expected time of the experts' products in one
    pass through the layers, where a calibrated law exists, else None.
    """

    name: str
    max_over_mean: float
    balancedness: float
    experts_ns: float | None


@dataclass(frozen=True)
class PlacementCost:
    """expert_bytes: of one expert. rank_bytes: of the experts of a rank, all layers; extra_bytes: of them for slots
    beyond one an expert. hbm_share: of a rank's HBM that extra_bytes take. moved: experts that a rank gets over the
    default placement, all ranks together; moved_bytes, and those of the rank that gets most: busiest_bytes.
    """

    expert_bytes: int
    rank_bytes: int
    extra_bytes: int
    hbm_share: float
    moved: int
    moved_bytes: int
    busiest_bytes: int


def rank_loads(placed: PhysicalMap, loads: np.ndarray) -> np.ndarray:
    """float64[time, layer, rank] of loads [time, layer, expert]."""
    copies = placed.copies()
    share = copies / copies.sum(axis=2, keepdims=True)
    return np.einsum("tle,ler->tlr", loads, share, optimize=True)


def judge(name: str, placed: PhysicalMap, loads: np.ndarray, experts: gemm.ExpertGemm | None) -> JudgedPlacement:
    """loads: float64[time, layer, expert]; experts: law of an expert's products, None: no time."""
    of_rank = rank_loads(placed, loads)
    mean = of_rank.mean(axis=2).sum()
    return JudgedPlacement(
        name,
        float(of_rank.max(axis=2).sum() / mean),
        float(np.mean(balancedness(of_rank))),
        None if experts is None else experts_ns(placed, loads, experts),
    )


def experts_ns(placed: PhysicalMap, loads: np.ndarray, experts: gemm.ExpertGemm) -> float:
    """Mean over matrices of the sum over layers of the slowest rank's products."""
    chosen = loads[np.unique(np.linspace(0, len(loads) - 1, MOST_TIMED).round().astype(int))]
    copies = placed.copies().sum(axis=2)
    per_copy = np.ceil(chosen / copies - 1e-9).astype(np.int64)
    tokens = np.take_along_axis(per_copy, np.broadcast_to(placed.experts, (len(chosen), *placed.experts.shape)), axis=2)
    values, inverse = np.unique(tokens, return_inverse=True)
    ns = np.where(values > 0, PRODUCTS * experts.times(np.maximum(values, 1)), 0.0)[inverse.reshape(tokens.shape)]
    of_rank = ns.reshape(*tokens.shape[:2], placed.ranks, placed.slots_per_rank).sum(axis=3)
    return float(of_rank.max(axis=2).sum(axis=1).mean())


def law_of(system: SystemSpec, model: ModelSpec) -> tuple[gemm.ExpertGemm | None, str]:
    """The calibrated law of an expert's products on a die, and why there is none."""
    compute = system.compute
    rates = system.nominal_rates
    try:
        laws = Laws(calibration_named(compute.calibration))
        found = laws.expert_gemm(
            model.hidden, model.expert_ffn, dtype=compute.dtype, rates=rates, library=compute.library
        )
    except tables.LawMissing as error:
        return None, str(error)
    return found, ""


def cost_of(placed: PhysicalMap, before: PhysicalMap, system: SystemSpec, model: ModelSpec) -> PlacementCost:
    """Memory, and moves from ``before``."""
    layers = len(placed.experts)
    expert_bytes = system.compute.bytes_of(PRODUCTS * model.slice_weights)
    rank_bytes = placed.slots_per_rank * layers * expert_bytes
    extra_bytes = round((placed.slots - model.experts) / placed.ranks * layers * expert_bytes)
    new = ((placed.copies() > 0) & (before.copies() == 0)).sum(axis=(0, 1))
    share = extra_bytes / system.hbm.capacity_bytes
    moved = int(new.sum())
    return PlacementCost(
        expert_bytes, rank_bytes, extra_bytes, share, moved, moved * expert_bytes, int(new.max()) * expert_bytes
    )


# ---- place
# The study: split the loads in time, choose on the first part, judge on the last, count the costs, write the files.

MANIFEST = "placement.json"
NO_STEPS = "No time can be stated, as the loads are sums over an unknown number of steps. Give --tokens"
ODD, MOST_TOLD = 2.0, 8  # times the pairs of the median layer, from which a layer is told; layers that a note lists
DEFAULT, OTHER_DEFAULT = "default of SGLang and vLLM", "default of TensorRT-LLM"


@dataclass(frozen=True)
class Placed(Shown):
    """A chosen placement. ``rows``: the engines' defaults and the placement, judged; ``cost``: over the default.

    trained, held_out: numbers of matrices; held_out 0: there was one alone, and the gain is that on the loads for which
    the placement was chosen. notes: what limits the numbers. files: written ones.
    """

    policy: str
    model: ModelSpec
    system: str
    map: PhysicalMap
    rows: tuple[JudgedPlacement, ...]
    cost: PlacementCost
    trained: int
    held_out: int
    notes: tuple[str, ...]
    files: tuple[Path, ...] = ()

    def __repr__(self) -> str:
        chosen, first = self.rows[-1], self.rows[0]
        return (
            f"Placed({self.policy}: {self.map.slots} slots on {self.map.ranks} ranks, max/mean "
            f"{chosen.max_over_mean:.3f} where the default has {first.max_over_mean:.3f})"
        )

    @property
    def gain(self) -> float:
        """The factor by which the largest load is smaller than with the default placement of SGLang and vLLM."""
        return self.rows[0].max_over_mean / self.rows[-1].max_over_mean

    def to_pandas(self) -> pandas.DataFrame:
        """One row per placement: name, max_over_mean, balancedness, experts_ns."""
        import pandas

        return pandas.DataFrame([asdict(row) for row in self.rows])


def place_experts(
    history: RecordedLoads, model: ModelSpec, system: SystemSpec, policy: str, slots: int, ranks: int, held_out: float,
    tokens: int | None,
) -> Placed:  # fmt: skip
    """See ``archsim.api.place``. slots: of a layer in all."""
    choose = policy_named(policy)
    check_slots("place", slots, model.experts, ranks)
    if not 0 < held_out < 1:
        raise PlacementError(f"held_out is {held_out}; expected a share between 0 and 1")
    last = min(len(history.counts) - 1, max(1, round(held_out * len(history.counts))))
    split = len(history.counts) - last
    first, judged_on = history.counts[:split], history.counts[split:] if last else history.counts
    if not first.any():
        raise PlacementError(f"{history.source}: no tokens before the loads that are held out")
    rows = [_of_all_layers(rows, history, model) for rows in (
        choose(first, ranks, slots),
        np.tile(sglang_default(slots, model.experts), (len(history.layer_ids), 1)),
        np.tile(placements.trtllm_default(slots, model.experts, ranks), (len(history.layer_ids), 1)),
    )]  # fmt: skip
    chosen, before, other = (PhysicalMap(each, model.experts, ranks, policy) for each in rows)
    cost = cost_of(chosen, before, system, model)
    _refuse_too_large(cost, chosen, system, model)
    law, notes = _law(history, system, model, tokens)
    scaled = judged_on if tokens is None else _scaled(judged_on, tokens * model.top_k)
    at = [model.moe_layer_ids.index(layer) for layer in history.layer_ids]
    named = ((DEFAULT, before), (OTHER_DEFAULT, other), (policy, chosen))
    judged = tuple(judge(name, replace(each, experts=each.experts[at]), scaled, law) for name, each in named)
    if not last:
        notes.append(
            f"{history.source} is one matrix: nothing could be held out, and the gain is that on the loads for which "
            "the placement was chosen; record passes or steps to judge it on later loads"
        )
    notes += odd_layers(history)
    missing = len(model.moe_layer_ids) - len(at)
    if missing:
        notes.append(f"{missing} MoE layers have no loads and keep the default placement.")
    return Placed(policy, model, system.name, chosen, judged, cost, split, last, tuple(notes))


def odd_layers(history: RecordedLoads) -> list[str]:
    """Notes on layers with ODD times the pairs of the median layer or more, and on those with none: every token passes
    all MoE layers, so that all have as many.
    """
    pairs = history.counts.sum(axis=(0, 2))
    usual = float(np.median(pairs[pairs > 0]))
    told = [
        f"layer {layer} has {f'{count / usual:.1f} times the pairs of the others' if count else 'no pairs'}"
        for layer, count in zip(history.layer_ids, pairs, strict=True)
        if not count or count >= ODD * usual
    ]
    why = "every token passes all layers, so this is a recording of other tokens, or was added up twice"
    return [f"{'; '.join(told[:MOST_TOLD])}{' …' if len(told) > MOST_TOLD else ''}: {why}"] if told else []


def write_placed(placed: Placed, folder: Path) -> Placed:
    """Write the engines' files and, when all are complete, ``placement.json``, which names them with their digests."""
    with sole_writer(folder):
        (folder / MANIFEST).unlink(missing_ok=True)
        files = write_placement(placed.map, placed.model, folder)
        digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
        about = {
            "model": placed.model.name, "system": placed.system, "policy": placed.policy, "ranks": placed.map.ranks,
            "slots": placed.map.slots, "trained": placed.trained, "held_out": placed.held_out,
            "judged": [asdict(row) for row in placed.rows], "cost": asdict(placed.cost), "notes": placed.notes,
            "sha256": digests,
        }  # fmt: skip
        write_text(folder / MANIFEST, json.dumps(about, indent=1) + "\n", durable=True)
    return replace(placed, files=(*files, folder / MANIFEST))


def _of_all_layers(rows: np.ndarray, history: RecordedLoads, model: ModelSpec) -> np.ndarray:
    """int32[MoE layer of the model, slot]; layers without loads have the default."""
    whole = np.tile(sglang_default(rows.shape[1], model.experts), (len(model.moe_layer_ids), 1)).astype(np.int32)
    whole[[model.moe_layer_ids.index(layer) for layer in history.layer_ids]] = rows
    return whole


def _law(history: RecordedLoads, system: SystemSpec, model: ModelSpec, tokens: int | None):
    """The law of an expert's products if the loads are those of steps, and notes if there is no time."""
    if tokens is None and not history.steps:
        return None, [NO_STEPS]
    law, reason = law_of(system, model)
    return law, [f"no time is stated: {reason}"] if law is None else []


def _scaled(loads: np.ndarray, pairs: int) -> np.ndarray:
    """Loads with ``pairs`` routed pairs in every matrix and layer."""
    total = loads.sum(axis=2, keepdims=True)
    return np.divide(loads * pairs, total, out=np.zeros_like(loads), where=total > 0)


def _refuse_too_large(cost: PlacementCost, placed: PhysicalMap, system: SystemSpec, model: ModelSpec) -> None:
    """Raise CapacityError if the experts of a rank exceed its HBM."""
    usable = int(system.hbm.capacity_bytes * (1 - system.hbm.reserved_fraction))
    if cost.rank_bytes <= usable:
        return
    most = usable // (len(model.moe_layer_ids) * cost.expert_bytes)
    fits = f"at most {most} slots a rank fit"
    if most * placed.ranks < model.experts:
        ranks = f"{-(-model.experts // most)} ranks or more for one copy of each expert" if most else "no slot fits"
        fits += f": {ranks}"
    raise CapacityError(
        f"{system.name}: {placed.slots_per_rank} slots a rank in {len(model.moe_layer_ids)} layers are "
        f"{cost.rank_bytes / 1e9:.1f} GB of {model.name}'s experts; {usable / 1e9:.1f} GB of HBM are usable; {fits}"
    )
