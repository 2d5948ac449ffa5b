"""Whether a block of the decision hardware pays: policies that differ in it alone are compared. It pays its mm² and USD
where throughput grows by more than silicon and price of the machine do, and its W where a token takes less energy: in
every draw of the traffic, by PAYS or more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from archsim.base.answer import Answer, Grid
from archsim.base.errors import SpecError, did_you_mean
from archsim.base.sums import sum
from archsim.base.tables import DataFrame, Shown, frame_of
from archsim.machine.system import SystemSpec
from archsim.runs.energy import MW_PER_W
from archsim.runs.prices import Coefficients, build_costs
from archsim.serving.answers.placement_choices import POLICIES
from archsim.show.deciders import NEED_NO_ALLOCATOR, words
from archsim.show.units import (
    TIME_UNITS,
    between,
    less_or_more,
    listing,
    percent,
    signed_percent,
    significant,
    usd,
    with_unit,
)
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.policies import NEEDS, PolicySpec
from archsim.uncertainty.estimate import SURE, Interval, interval
from microarch.silicon import area, decision_area

if TYPE_CHECKING:
    from archsim.uncertainty.sure_answer import Sure


NO_GAIN = 1e-4  # changes of throughput below this share are none
PAYS = 0.01  # least gain, in every draw, that is called worth it: of a balancer, too
DRAWS = 3  # of the traffic, of the range
# Block → the part of a policy that uses it.
BLOCKS = MappingProxyType({"prediction": "prediction", "allocator": "allocation", "speeds": "allocation"})
SPEEDS = "speeds"  # what rules that ask for them see of dies and links
WORDS = MappingProxyType({"mm2": "area", "w": "power", "usd": "price"})
RESOURCES = tuple(WORDS)
MOST_REASONS = 3  # sentences for a set of assumptions on why runs do not pay
NOTHING_ADDED = area.AreaAndPower(0.0, 0.0)


@dataclass(frozen=True)
class BlockCost:
    """What a block adds to a system."""

    system: str  # name
    decided: str  # by what
    mm2: float  # of the block
    w: float  # of the block
    usd: tuple[float, float, float]  # at its coefficients' low end, value and high end
    share: Mapping[str, float]  # ``mm2`` of the silicon, ``usd`` of the price of the machine without it


@dataclass(frozen=True)
class BlockRun:
    """A run with the block beside one without."""

    system: str  # name
    model: str  # name
    batch: int  # requests in flight
    assumptions: str  # label of the set
    policy: str  # that uses the block
    without: str  # the policy that does not
    saved_ns: float  # of a decode step
    gain: float  # of throughput, as a share: mean of all draws
    energy: float | None  # change of energy a token, as a share
    pays: tuple[str, ...]  # `RESOURCES` a unit of which yields more with the block
    gains: tuple[float, float] = (0.0, 0.0)  # lowest and highest gain of the draws
    draws: int = 1  # of the traffic
    before_ns: float = 0.0  # a decode step without the block
    decision_ns: float = 0.0  # longer wait of a decode step for decisions with it
    most_energy: float | None = None  # highest change of energy a token of all draws


@dataclass(frozen=True)
class GainInWorlds:
    """A gain in many worlds (`archsim sure`). ``pays``: share of them in which it is worth what it costs."""

    of: str
    samples: int
    gain: Interval
    pays: float

    @property
    def sentence(self) -> str:
        """``ep over base, …: worth it in 96 % of 64 worlds. In 90 % of them, throughput changes by +2 % to +9 %.``"""
        said = f"worth it in {percent(self.pays)} of {self.samples} samples"
        if 1 - SURE < self.pays < SURE:
            said = f"{said}, which decides nothing"
        by = between((self.gain.p05, self.gain.p95), signed_percent)
        return f"{self.of}: {said}. In 90 % of the samples, throughput changes by {by}."


@dataclass(frozen=True)
class BlockWorth(Shown):
    """``costs``: of the block, by system; ``rows``: of all pairs of runs; ``worlds``: of these, with ``samples``."""

    block: str
    costs: tuple[BlockCost, ...]
    rows: tuple[BlockRun, ...]
    worlds: tuple[GainInWorlds, ...] = ()

    @property
    def gains(self) -> tuple[float, float]:
        every = [row.gain for row in self.rows]
        return min(every), max(every)

    @property
    def verdict(self) -> str:
        sets = list(dict.fromkeys(row.assumptions for row in self.rows))
        own = ([row for row in self.rows if row.assumptions == name] for name in sets)
        return " ".join(f"Under {name}, {self.block} {_verdict(rows)}" for name, rows in zip(sets, own, strict=True))

    @property
    def break_evens(self) -> tuple[str, ...]:
        """Sentences: the gain from which it pays, the size up to which it pays, and where that changes with batch."""
        return (*map(self._from_gain, self.costs), *self._from_batch())

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the block does not pay and what would have to change, a sentence for runs with the same reason: for each
        set of assumptions, of the runs with the highest gain among those that do not pay.
        """
        said, shares = [], {each.system: each.share for each in self.costs}
        for name in dict.fromkeys(row.assumptions for row in self.rows):
            short = [row for row in self.rows if row.assumptions == name and len(row.pays) < len(RESOURCES)]
            together: dict[tuple[str, ...], list[int]] = {}
            for row in sorted(short, key=lambda row: -row.gain):
                reason = _reason(row, shares.get(row.system, {}))
                place = f"{row.policy} over {row.without}", row.system, row.model, reason
                together.setdefault(place, []).append(row.batch)
            for (policies, system, model, why), batches in list(together.items())[:MOST_REASONS]:
                sizes = listing(f"{batch:,}" for batch in sorted(batches))
                said.append(f"{policies} ({system}, {model}, batch {sizes}, {name}): {why}")
            if (more := sum(map(len, together.values())) - sum(map(len, list(together.values())[:MOST_REASONS]))) > 0:
                said.append(f"Under {name}, {more} more run{' gains' if more == 1 else 's gain'} no more than these.")
        return tuple(said)

    def _from_gain(self, cost: BlockCost) -> str:
        mm2, price = (signed_percent(cost.share[name]) for name in ("mm2", "usd"))
        best = max(row.gain for row in self.rows if row.system == cost.system)
        pays = max(PAYS, cost.share["mm2"], cost.share["usd"])
        least = (
            f"On {cost.system}, {self.block} adds {mm2} to the area and {price} to the price of the machine. Both are "
            f"worth it if throughput grows by {signed_percent(pays)} or more in every sample of the traffic"
        )
        least += ", as less counts as no gain." if pays == PAYS else "."
        if best <= 0:
            return f"{least} It grows in no run."
        if best < PAYS:
            return f"{least} The best run gains {signed_percent(best)}."
        room = significant(best / cost.share["mm2"] * cost.mm2)
        return f"{least} The best run gains {signed_percent(best)}, which is worth up to {room} mm² on all dies."

    def _from_batch(self) -> Iterator[str]:
        groups: dict[tuple[str, ...], list[BlockRun]] = {}
        for row in self.rows:
            groups.setdefault((row.system, row.model, row.assumptions, row.policy), []).append(row)
        for (system, model, assumptions, policy), rows in groups.items():
            for before, after in pairwise(sorted(rows, key=lambda row: row.batch)):
                for verb, units in (("stops", _lost(before, after)), ("starts", _lost(after, before))):
                    if units:
                        yield (
                            f"For {model} on {system} under {policy} ({assumptions}), it {verb} being worth its "
                            f"{listing(WORDS[name] for name in units)} between batch {before.batch:,} "
                            f"({signed_percent(before.gain)}) and batch {after.batch:,} ({signed_percent(after.gain)})."
                        )

    def as_answer(self) -> Answer:
        """The verdict, what the block costs, every pair of runs, and why it is not worth it."""
        rows = [
            (
                row.policy, row.without, row.system, row.model, row.assumptions, f"{row.batch:,}",
                "0" if row.gain == 0 else with_unit(row.saved_ns, TIME_UNITS), signed_percent(row.gain),
                "–" if row.energy is None else signed_percent(row.energy),
                ", ".join(WORDS[each] for each in row.pays) or "no",
            )
            for row in self.rows
        ]  # fmt: skip
        return Answer(
            (
                self.verdict,
                *(each.sentence for each in self.worlds),
                *(
                    f"On {cost.system}, which decides by {cost.decided}, {self.block} takes {cost.mm2:,.3g} mm², "
                    f"{cost.w:,.3g} W and {usd(*cost.usd[::2])}."
                    for cost in self.costs
                ),
                Grid(
                    ("policy", "without it", "system", "model", "assumptions"), rows, title="simulated",
                    numbers=("batch", "saved per decode step", "throughput", "energy per token"),
                    more=("is worth its",),
                ),
                *self.reasons, *self.break_evens,
            ),
            result=self,
        )  # fmt: skip

    def to_pandas(self) -> DataFrame:
        return frame_of(self.rows)

    def __repr__(self) -> str:
        return f"BlockWorth({self.block}: {self.verdict})"


def _verdict(rows: Sequence[BlockRun]) -> str:
    draws = min(row.draws for row in rows)
    ends = [end for row in rows for end in (row.gains if row.draws > 1 else (row.gain,))]
    of = f"over {draws} samples of the traffic" if draws > 1 else "in a single sample of the traffic"
    gains = f"it changes throughput by {between(ends, signed_percent)} {of}."
    paid = {name: sum(name in row.pays for row in rows) for name in RESOURCES}
    several = f" {{}} {len(rows)} runs" if len(rows) > 1 else ""
    if not any(paid.values()):
        return f"is not worth it{several.format('in any of')}: {gains}"
    if set(paid.values()) == {len(rows)}:
        return f"is worth its {listing(WORDS.values())}{several.format('in each of')}: {gains}"
    each = listing(f"its {WORDS[name]} in {count or 'none'}" for name, count in paid.items())
    return f"is worth it in part (of {len(rows)} run{'s' * (len(rows) > 1)}, {each}): {gains}"


def _reason(row: BlockRun, share: Mapping[str, float]) -> str:
    """Why a run does not pay for every resource. ``share``: of the machine's area and price, as in `BlockCost`."""
    unpaid = [name for name in ("mm2", "usd") if name not in row.pays]
    said = []
    if unpaid:
        need = max(PAYS, *(share.get(name, 0.0) for name in unpaid))
        said.append(f"It is not worth its {listing(WORDS[name] for name in unpaid)}. {_short_of(row, share, need)}")
    if "w" not in row.pays:
        begin = "It is not worth its power"
        if row.most_energy is None:
            said.append(f"{begin}, as the energy of this system is not known.")
        else:
            change = less_or_more(row.most_energy)
            said.append(f"{begin}. A token takes {change} energy with it, and would have to take {percent(PAYS)} less.")
    return " ".join(said)


def _short_of(row: BlockRun, share: Mapping[str, float], need: float) -> str:
    """Which charge keeps throughput from growing by ``need``, and from where on it would."""
    saved_ns = row.saved_ns + row.decision_ns  # outside of decisions
    least = min(row.gains) if row.draws > 1 else row.gain
    room_ns = saved_ns - row.before_ns * need / (1 + need)  # for decisions, with a gain that is enough
    if row.decision_ns > 0 and room_ns > 0 and row.gain < need:
        more = with_unit(row.decision_ns, TIME_UNITS)
        return (
            f"Time of decisions is the charge that is too large. A decode step saves {with_unit(saved_ns, TIME_UNITS)} "
            f"elsewhere, but waits {more} longer for decisions. It would be worth it if it waited at most "
            f"{with_unit(room_ns, TIME_UNITS)} longer."
        )
    if row.gain >= need:
        return (
            f"Throughput changes by {signed_percent(row.gain)} in the mean, but by {signed_percent(least)} in the "
            f"worst of {row.draws} samples of the traffic. It would have to grow by {signed_percent(need)} in each."
        )
    if saved_ns <= NO_GAIN * row.before_ns:
        same = saved_ns >= -NO_GAIN * row.before_ns
        step = "takes the same time" if same else f"takes {with_unit(-saved_ns, TIME_UNITS)} longer"
        waits = f" and waits {with_unit(row.decision_ns, TIME_UNITS)} longer for them" if row.decision_ns > 0 else ""
        return (
            f"It saves nothing that a charge could exceed: a decode step {step} outside of decisions{waits}. "
            f"Throughput would have to grow by {signed_percent(need)}."
        )
    worst = f" in the worst of {row.draws} samples of the traffic" if row.draws > 1 else ""
    gain = f"Throughput changes by {signed_percent(least)}{worst}"
    name, charge = max(((name, share.get(name, 0.0)) for name in ("mm2", "usd")), key=lambda each: each[1])
    if charge >= PAYS:
        return f"{gain}, but the {WORDS[name]} of the machine by {signed_percent(charge)}. Above, it is worth it."
    return (
        f"{gain}, and a gain counts from {signed_percent(PAYS)}. The {WORDS[name]}, which grows by "
        f"{signed_percent(charge)}, is not the reason."
    )


def _lost(before: BlockRun, after: BlockRun) -> tuple[str, ...]:
    return tuple(name for name in RESOURCES if name in before.pays and name not in after.pays)


def pairs_of(block: str, policies: Sequence[PolicySpec]) -> list[tuple[PolicySpec, PolicySpec]]:
    """(A policy that uses the block, the one that differs from it in that alone). Without an allocator experts run at
    home, if a policy does that: others lose time that no allocator needs to win back. Raises SpecError for an unknown
    block, or policies without such a pair.
    """
    if block in POLICIES:
        raise SpecError(f"{block} is a balancer, not a block: it needs --loads and --deployment instead of --in")
    if block not in BLOCKS:
        raise SpecError(f"unknown block {block!r}{did_you_mean(block, BLOCKS)}; known: {', '.join(BLOCKS)}")
    found = [
        (policy, other)
        for policy in policies if uses(block, policy)
        for other in policies if not uses(block, other) and _rest(block, other) == _rest(block, policy)
    ]  # fmt: skip
    at_home = [pair for pair in found if pair[1].allocation.name == "home"]
    found = at_home if block == "allocator" and at_home else found
    if not found:
        raise SpecError(
            f"policies {', '.join(each.name for each in policies)}: no two differ in {BLOCKS[block]} alone, one with "
            f"the block and one without, so nothing tells what {block} saves. Add such a policy"
        )
    return found


def uses(block: str, policy: PolicySpec) -> bool:
    if block == SPEEDS:
        return any(policy.needs_speeds(part) for part in ("allocation", "rebalancing"))
    name = getattr(policy, BLOCKS[block]).name
    return name != "none" if block == "prediction" else name not in NEED_NO_ALLOCATOR


def cost_of(block: str, system: SystemSpec, policy: PolicySpec) -> BlockCost:
    """What the block adds to a system beside the rest of the policy. Raises SpecError where GPUs decide."""
    if system.decision.executor == "gpu":
        raise SpecError(f"{system.name} decides by {words(system.decision)}: it has no block of silicon to assess")
    if block == SPEEDS:
        added = decision_area.speeds_part(system).cost
    else:
        other = "allocator" if block == "prediction" else "prediction"
        rest = uses(other, policy)
        needs = ((rest, True), (rest, False)) if block == "prediction" else ((True, rest), (False, rest))
        with_it, without = (decision_area.added_cost(system, *each) for each in needs)
        added = with_it.minus(without)
    prices_usd, before = [], 0.0
    for bound in (Coefficients().at("low"), Coefficients(), Coefficients().at("high")):
        # the machine has all blocks but that of speeds
        every = (
            (NOTHING_ADDED, area.AreaAndPower(-added.area_mm2, -added.power_mw))
            if block == SPEEDS
            else (added, NOTHING_ADDED)
        )
        prices = [sum(build_costs(system, bound, left).usd.values()) for left in every]
        prices_usd.append(prices[1] - prices[0])
        before = prices[0] if bound == Coefficients() else before
    machine = build_costs(system, without=NOTHING_ADDED if block == SPEEDS else added)
    share = {"mm2": added.area_mm2 / machine.silicon_mm2, "usd": prices_usd[1] / before}
    return BlockCost(
        system=system.name, decided=words(system.decision), mm2=added.area_mm2, w=added.power_mw / MW_PER_W,
        usd=(prices_usd[0], prices_usd[1], prices_usd[2]), share=share,
    )  # fmt: skip


def judge(block: str, experiment: ExperimentSpec, *draws: Iterable[Mapping[str, Any]]) -> BlockWorth:
    """The block by rows of runs (columns of ``results.parquet``), of every draw of the experiment's traffic."""
    found: dict[tuple, list[Mapping[str, Any]]] = {}
    for draw in draws:
        for row in draw:
            key = row["system"], row["model"], row["batch"], row["assumptions"], row["policy"]
            found.setdefault(key, []).append(row)
    costs: dict[str, BlockCost] = {}
    judged = []
    for policy, other in pairs_of(block, experiment.policies):
        for key, rows in found.items():
            before = found.get((*key[:-1], other.name))
            if key[-1] != policy.name or before is None:
                continue
            system = next(each for each in experiment.systems if each.name == key[0])
            cost = cost_of(block, system, policy)
            costs[system.name] = cost
            judged.append(_run(key, rows, before, other.name, cost.share))
    if not judged:
        raise SpecError(f"{experiment.name}: no runs of policies with and without {block} to compare")
    return BlockWorth(block, tuple(costs.values()), tuple(judged))


def in_worlds(found: BlockWorth, sure: Sure) -> BlockWorth:
    """With the gains of every pair in samples. It pays in one where throughput grows by PAYS, and by more than silicon
    and price do. ``sure``: of the policies of its rows.
    """
    costs, worlds = {each.system: each.share for each in found.costs}, []
    for row in found.rows:
        of = row.system, row.model, row.batch, row.assumptions
        names = ("system", "model", "batch", "assumptions")
        place = next(each for each in sure.places if tuple(each.of[name] for name in names) == of)
        gains = place.samples[row.without] / place.samples[row.policy] - 1
        pays = float((gains >= max(PAYS, *costs[row.system].values())).mean())
        where = f"{row.policy} over {row.without}, {row.system}, {row.model}, batch {row.batch:,}, {row.assumptions}"
        worlds.append(GainInWorlds(where, sure.samples, interval(gains), pays))
    return replace(found, worlds=tuple(worlds))


def drawn(experiment: ExperimentSpec, at: int) -> ExperimentSpec:
    """The experiment with the ``at``-th draw of its traffic; 0: its own."""
    return experiment.model_copy(update={"workload": experiment.workload.drawn(at)}) if at else experiment


def _run(
    key: tuple, rows: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]], without: str,
    share: Mapping[str, float],
) -> BlockRun:  # fmt: skip
    pairs = list(zip(rows, before, strict=True))
    gains = [row["throughput_tokens_per_s"] / other["throughput_tokens_per_s"] - 1 for row, other in pairs]
    gains = [gain if abs(gain) > NO_GAIN else 0.0 for gain in gains]
    known = all(other["energy_per_token_j"] for _, other in pairs)
    energies = [row["energy_per_token_j"] / other["energy_per_token_j"] - 1 for row, other in pairs] if known else []
    least = min(gains)
    pays = {name: least >= PAYS and least > share[name] for name in ("mm2", "usd")}
    pays["w"] = bool(energies) and -max(energies) >= PAYS
    saved_ns = sum(other["decode_step_ns"] - row["decode_step_ns"] for row, other in pairs) / len(pairs)
    energy = sum(energies) / len(energies) if energies else None
    paid = tuple(name for name in RESOURCES if pays[name])
    gain = sum(gains) / len(gains)
    system, model, batch, assumptions, policy = key
    span = least, max(gains)
    waits_ns = [_waits_ns(row) - _waits_ns(other) for row, other in pairs]
    return BlockRun(
        system=system, model=model, batch=batch, assumptions=assumptions, policy=policy, without=without,
        saved_ns=saved_ns, gain=gain, energy=energy, pays=paid, gains=span, draws=len(pairs),
        before_ns=sum(other["decode_step_ns"] for _, other in pairs) / len(pairs),
        decision_ns=sum(waits_ns) / len(pairs), most_energy=max(energies, default=None),
    )  # fmt: skip


def _waits_ns(row: Mapping[str, Any]) -> float:
    """How long a decode step of a run waits for decisions, at the share of them in the time of the run."""
    run_ns = (row.get("prefill_ns") or 0.0) + (row.get("decode_ns") or 0.0)
    return row["decode_step_ns"] * row.get("decision_exposed_ns", 0.0) / run_ns if run_ns else 0.0


def _rest(block: str, policy: PolicySpec) -> dict[str, Any]:
    if block == SPEEDS:
        rules = policy.model_dump(exclude={"name"})
        return {part: {key: value for key, value in rule.items() if key != NEEDS} for part, rule in rules.items()}
    return policy.model_dump(exclude={"name", BLOCKS[block]})
