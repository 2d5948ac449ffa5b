"""From recorded loads to files of a placement that an engine can start with (``archsim place``): chosen on the first
part of the time, tested on the last.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from archsim.base import errors, tables
from archsim.base.answer import Answer, Grid
from archsim.base.files import sole_writer, write_text
from archsim.base.tables import DataFrame, frame_of
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from archsim.serving.answers.placement_choices import policy_named
from archsim.serving.answers.placement_costs import JudgedPlacement, PlacementCost, cost_of, judge, law_of, rank_loads
from archsim.serving.answers.recorded_loads import RecordedLoads
from archsim.show.units import TIME_UNITS, less_or_more, significant, with_unit
from archsim.traffic import placements
from archsim.traffic.placements import PhysicalMap, check_slots, sglang_default, write_placement

MANIFEST = "placement.json"
SURE = 0.95  # probability that a placement gains, from which it is advised: the low end of a range of 90 %
WORTH = "`archsim compare --without`"  # says what a balancer is worth with its moves
NO_STEPS = "No time can be stated, as the loads are sums over an unknown number of steps. Give --tokens"
ODD, MOST_LISTED = 2.0, 8  # times the pairs of the median layer, from which a layer is odd; layers that a note lists
DEFAULT, OTHER_DEFAULT = "default of SGLang and vLLM", "default of TensorRT-LLM"


@dataclass(frozen=True)
class Placed(tables.Shown):
    """A chosen placement."""

    policy: str  # that chose it
    model: ModelSpec  # whose experts lie there
    system: str  # name
    map: PhysicalMap  # where they lie
    rows: tuple[JudgedPlacement, ...]  # the engines' defaults and the placement, judged
    cost: PlacementCost  # over the default
    trained: int  # number of matrices of loads for which it was chosen
    held_out: int  # others, on which it is judged; 0: there was one alone, and the gain is on that
    notes: tuple[str, ...]  # what limits the numbers
    least_gain: float  # `gain` less what the held-out matrices leave open: `least_gain`
    files: tuple[Path, ...] = ()  # written ones

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

    def as_answer(self) -> Answer:
        matrices, cost = self.trained + self.held_out, self.cost
        advice = f"use it if that outweighs its moves ({WORTH})" if self.least_gain > 1 else "keep theirs"
        if self.least_gain <= 1 < self.gain:
            advice += ", as its gain differs by more from matrix to matrix"
        judged = f"the last {self.held_out} of {matrices} matrices" if self.held_out else "all loads"
        advice = f": {advice}" if self.held_out else f", for which it was chosen (see {WORTH})"
        files = zip(placements.ENGINES, self.files, strict=False)
        return Answer(
            (
                f"With {self.policy}, the most loaded rank has {less_or_more(1 / self.gain - 1)} load than with the "
                f"default of SGLang and vLLM, on {judged}{advice}.",
                Grid(
                    ("placement",),
                    [
                        (
                            row.name, significant(row.max_over_mean), significant(row.balancedness),
                            "–" if row.experts_ns is None else with_unit(row.experts_ns, TIME_UNITS),
                        )
                        for row in self.rows
                    ],
                    numbers=("max / mean", "balancedness", "experts"),
                    title=f"{self.model.name}, {self.map.ranks} ranks, {self.map.slots} slots: {judged}",
                ),
                f"Replicas take {cost.extra_bytes / 1e9:.2f} GB of a rank's HBM, {cost.hbm_share:.1%} of its capacity.",
                f"Replacing the default placement of a running engine moves {cost.moved:,} experts "
                f"({cost.moved_bytes / 1e9:.1f} GB), of which {cost.busiest_bytes / 1e9:.2f} GB go to the busiest "
                "rank. An engine that starts with it moves none.",
                *(f"{engine.name:<12} {file}\n{'':<12} {engine.options(self.map, file)}" for engine, file in files),
            ),
            self.notes, self,
        )  # fmt: skip

    def to_pandas(self) -> DataFrame:
        """One row per placement: name, max_over_mean, balancedness, experts_ns."""
        return frame_of(self.rows)


def place_experts(
    history: RecordedLoads, model: ModelSpec, system: SystemSpec, policy: str, slots: int, ranks: int, held_out: float,
    tokens: int | None,
) -> Placed:  # fmt: skip
    """See `archsim.api.questions.place`. slots: of a layer in all."""
    choose = policy_named(policy)
    check_slots("place", slots, model.experts, ranks)
    if not 0 < held_out < 1:
        raise errors.PlacementError(f"held_out is {held_out}; expected a share between 0 and 1")
    last = min(len(history.counts) - 1, max(1, round(held_out * len(history.counts))))
    split = len(history.counts) - last
    first, judged_on = history.counts[:split], history.counts[split:] if last else history.counts
    if not first.any():
        raise errors.PlacementError(f"{history.source}: no tokens before the loads that are held out")
    rows = [_of_all_layers(rows, history, model) for rows in (
        choose(first, ranks, slots),
        np.tile(sglang_default(slots, model.experts), (len(history.layer_ids), 1)),
        np.tile(placements.trtllm_default(slots, model.experts, ranks), (len(history.layer_ids), 1)),
    )]  # fmt: skip
    chosen, before, other = (PhysicalMap(each, model.experts, ranks, policy) for each in rows)
    cost = cost_of(chosen, before, system, model)
    _refuse_too_large(cost, chosen, system, model)
    law, notes = _law(history, system, model, tokens)
    scaled = judged_on if tokens is None else _scale(judged_on, tokens * model.top_k)
    at = [model.moe_layer_ids.index(layer) for layer in history.layer_ids]
    named = ((DEFAULT, before), (OTHER_DEFAULT, other), (policy, chosen))
    judged = tuple(judge(name, replace(each, experts=each.experts[at]), scaled, law) for name, each in named)
    least = least_gain(*(busiest_loads(replace(each, experts=each.experts[at]), scaled) for each in (before, chosen)))
    if not last:
        notes.append(
            f"{history.source} is one matrix: nothing could be held out, and the gain is that on the loads for which "
            "the placement was chosen; record passes or steps to test it on later loads"
        )
    notes += odd_layers(history)
    missing = len(model.moe_layer_ids) - len(at)
    if missing:
        notes.append(f"{missing} MoE layers have no loads and keep the default placement.")
    return Placed(
        policy=policy, model=model, system=system.name, map=chosen, rows=judged, cost=cost, trained=split,
        held_out=last, notes=tuple(notes), least_gain=least,
    )  # fmt: skip


def busiest_loads(placed: PhysicalMap, loads: np.ndarray) -> np.ndarray:
    """float64[time]: the largest loads of a rank of all layers together, of loads [time, layer, expert]."""
    return rank_loads(placed, loads).max(axis=2).sum(axis=1)


def least_gain(before: np.ndarray, after: np.ndarray) -> float:
    """What the sum of ``before`` over that of ``after`` (float64[time]) exceeds with probability SURE: the error of a
    ratio estimate (Cochran, Sampling Techniques, 6.4) with Student's t, as if the matrices were independent. The ratio
    itself of one matrix, whose error is not known.
    """
    from scipy.special import stdtrit

    gain, count = float(before.sum() / after.sum()), len(before)
    if count < 2:
        return gain
    error = np.sqrt(count / (count - 1) * ((before - gain * after) ** 2).sum()) / after.sum()
    return gain - float(stdtrit(count - 1, SURE) * error)


def odd_layers(history: RecordedLoads) -> list[str]:
    """Notes on layers with ODD times the pairs of the median layer or more, and on those with none."""
    pairs = history.counts.sum(axis=(0, 2))
    usual = float(np.median(pairs[pairs > 0]))
    odd = [
        f"layer {layer} has {f'{count / usual:.1f} times the pairs of the others' if count else 'no pairs'}"
        for layer, count in zip(history.layer_ids, pairs, strict=True)
        if not count or count >= ODD * usual
    ]
    why = "every token passes all layers, so this is a recording of other tokens, or was added up twice"
    return [f"{'; '.join(odd[:MOST_LISTED])}{' …' if len(odd) > MOST_LISTED else ''}: {why}"] if odd else []


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


def _scale(loads: np.ndarray, pairs: int) -> np.ndarray:
    """Loads with ``pairs`` routed pairs in every matrix and layer."""
    total = loads.sum(axis=2, keepdims=True)
    return np.divide(loads * pairs, total, out=np.zeros_like(loads), where=total > 0)


def _refuse_too_large(cost: PlacementCost, placed: PhysicalMap, system: SystemSpec, model: ModelSpec) -> None:
    """Raise CapacityError if the experts of a rank exceed its HBM."""
    usable = int(system.hbm.capacity_bytes * (1 - system.hbm.reserved_fraction))
    if cost.rank_bytes <= usable:
        return
    most = usable // (len(model.moe_layer_ids) * cost.expert_bytes)
    fits = f"at most {most} slots per rank fit"
    if most * placed.ranks < model.experts:
        ranks = f"{-(-model.experts // most)} ranks or more for one copy of each expert" if most else "no slot fits"
        fits += f": {ranks}"
    raise errors.CapacityError(
        f"{system.name}: {placed.slots_per_rank} slots per rank in {len(model.moe_layer_ids)} layers are "
        f"{cost.rank_bytes / 1e9:.1f} GB of {model.name}'s experts; {usable / 1e9:.1f} GB of HBM are usable; {fits}"
    )
