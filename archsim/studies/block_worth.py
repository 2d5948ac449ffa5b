"""Whether a block of the decision hardware pays: time that its policies save beside its area, power and price.

A policy that uses the block is compared with one that differs from it in that alone. The block pays a mm² and a USD
where throughput grows by more than silicon and price of the machine do, and a W where a token takes less energy: in
every draw of the traffic, and by PAYS or more, as `archsim worth` of balancers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from archsim.base.errors import SpecError
from archsim.base.nearest import did_you_mean
from archsim.base.shown import Shown
from archsim.report.decision_cost.deciders import NEED_NO_ALLOCATOR, words
from archsim.report.units import between, signed_percent, significant
from archsim.runs.economics import MW_PER_W, Coefficients, build_costs
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.machine.system import SystemSpec
from archsim.specs.policies import PolicySpec
from archsim.specs.workload import SyntheticSpec
from microarch.silicon.area_power import Cost
from microarch.silicon.decision_area import added_cost

if TYPE_CHECKING:
    import pandas

NOTHING = 1e-4  # changes of throughput below this share are none
PAYS = 0.01  # least gain, in every draw, that is called worth it: of a balancer, too (``archsim.studies.worth``)
DRAWS = 3  # of the traffic, of the range
# Block → the part of a policy that uses it.
BLOCKS = MappingProxyType({"prediction": "prediction", "allocator": "allocation"})
UNITS = MappingProxyType({"mm2": "mm²", "w": "W", "usd": "USD"})
RESOURCES = tuple(UNITS)


@dataclass(frozen=True)
class BlockCost:
    """What a block adds to a system: ``mm2`` and ``w`` of it, ``usd`` at its coefficients' low end, value and high end;
    ``share``: of silicon (``mm2``) and price (``usd``) of the machine without it; ``decided``: by what.
    """

    system: str
    decided: str
    mm2: float
    w: float
    usd: tuple[float, float, float]
    share: Mapping[str, float]


@dataclass(frozen=True)
class BlockRun:
    """A run with the block beside one without. ``gain``: of throughput, as a share, the mean of all draws; ``gains``:
    lowest and highest of them, ``draws`` in number; ``saved_ns``: of a decode step;
    ``energy``: change of energy a token, as a share; ``pays``: RESOURCES a unit of which yields more with the block.
    """

    system: str
    model: str
    batch: int
    assumptions: str
    policy: str
    without: str
    saved_ns: float
    gain: float
    energy: float | None
    pays: tuple[str, ...]
    gains: tuple[float, float] = (0.0, 0.0)
    draws: int = 1


@dataclass(frozen=True)
class BlockWorth(Shown):
    """``costs``: of the block, by system; ``rows``: of all pairs of runs."""

    block: str
    costs: tuple[BlockCost, ...]
    rows: tuple[BlockRun, ...]

    @property
    def gains(self) -> tuple[float, float]:
        """Lowest and highest change of throughput."""
        every = [row.gain for row in self.rows]
        return min(every), max(every)

    @property
    def verdict(self) -> str:
        """One sentence, for each set of assumptions."""
        sets = list(dict.fromkeys(row.assumptions for row in self.rows))
        told = [_verdict([row for row in self.rows if row.assumptions == name]) for name in sets]
        return "; ".join(f"{each} under {name}" for name, each in zip(sets, told, strict=True))

    @property
    def break_evens(self) -> tuple[str, ...]:
        """Sentences: the gain from which it pays, the size up to which it pays, and where that changes with batch."""
        return (*map(self._from_gain, self.costs), *self._from_batch())

    def _from_gain(self, cost: BlockCost) -> str:
        mm2, usd = (signed_percent(cost.share[name]) for name in ("mm2", "usd"))
        best = max(row.gain for row in self.rows if row.system == cost.system)
        least = f"{cost.system}: pays a mm² above {mm2} and a USD above {usd} of throughput"
        if best <= 0:
            return f"{least}; no run gains any"
        room = significant(best / cost.share["mm2"] * cost.mm2)
        return f"{least}; at the best run's {signed_percent(best)} a block of up to {room} mm² on all dies pays"

    def _from_batch(self) -> Iterator[str]:
        groups: dict[tuple[str, ...], list[BlockRun]] = {}
        for row in self.rows:
            groups.setdefault((row.system, row.model, row.assumptions, row.policy), []).append(row)
        for (system, model, assumptions, policy), rows in groups.items():
            for before, after in pairwise(sorted(rows, key=lambda row: row.batch)):
                for verb, units in (("stops paying", _lost(before, after)), ("pays", _lost(after, before))):
                    if units:
                        yield (
                            f"{policy}, {model} on {system}, {assumptions}: {verb} {_units(units)} between batch "
                            f"{before.batch:,} ({signed_percent(before.gain)}) and {after.batch:,} "
                            f"({signed_percent(after.gain)})"
                        )

    def to_pandas(self) -> pandas.DataFrame:
        """One row per pair of runs."""
        import pandas

        return pandas.DataFrame([asdict(row) for row in self.rows])

    def __repr__(self) -> str:
        return f"BlockWorth({self.block}: {self.verdict})"


def _verdict(rows: Sequence[BlockRun]) -> str:
    draws = min(row.draws for row in rows)
    ends = [end for row in rows for end in (row.gains if row.draws > 1 else (row.gain,))]
    gains = f"{between(ends, signed_percent)}, {f'{draws} draws' if draws > 1 else 'one draw: no range'}"
    paid = {name: sum(name in row.pays for row in rows) for name in RESOURCES}
    if not any(paid.values()):
        return f"not worth it: it pays in none of {len(rows)} runs (throughput {gains})"
    if set(paid.values()) == {len(rows)}:
        return f"worth it: it pays {_units(RESOURCES)} in all {len(rows)} runs (throughput {gains})"
    each = ", ".join(f"a {UNITS[name]} in {count}" for name, count in paid.items())
    return f"worth it in some: it pays {each} of {len(rows)} runs (throughput {gains})"


def _lost(before: BlockRun, after: BlockRun) -> tuple[str, ...]:
    return tuple(name for name in RESOURCES if name in before.pays and name not in after.pays)


def _units(names: Sequence[str]) -> str:
    """``a mm² and a W``."""
    *others, last = (f"a {UNITS[name]}" for name in names)
    return f"{', '.join(others)} and {last}" if others else last


def pairs_of(block: str, policies: Sequence[PolicySpec]) -> list[tuple[PolicySpec, PolicySpec]]:
    """(A policy that uses the block, the one that differs from it in that alone). Without an allocator experts run at
    home, if a policy does that: others lose time that no allocator needs to win back. Raises SpecError for an unknown
    block, or policies without such a pair.
    """
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
            f"the block and one without, so nothing tells what {block} saves; add such a policy"
        )
    return found


def uses(block: str, policy: PolicySpec) -> bool:
    """Whether a policy needs the block."""
    name = getattr(policy, BLOCKS[block]).name
    return name != "none" if block == "prediction" else name not in NEED_NO_ALLOCATOR


def cost_of(block: str, system: SystemSpec, policy: PolicySpec) -> BlockCost:
    """What the block adds to a system beside the rest of the policy. Raises SpecError where GPUs decide."""
    if system.decision.executor == "gpu":
        raise SpecError(f"{system.name} decides by {words(system.decision)}: it has no block of silicon to judge")
    other = "allocator" if block == "prediction" else "prediction"
    rest = uses(other, policy)
    needs = ((rest, True), (rest, False)) if block == "prediction" else ((True, rest), (False, rest))
    with_it, without = (added_cost(system, *each) for each in needs)
    added = with_it.minus(without)
    usd, before = [], 0.0
    for bound in (Coefficients().at("low"), Coefficients(), Coefficients().at("high")):
        prices = [sum(build_costs(system, bound, left).usd.values()) for left in (added, Cost(0.0, 0.0))]
        usd.append(prices[1] - prices[0])
        before = prices[0] if bound == Coefficients() else before
    machine = build_costs(system, without=added)
    share = {"mm2": added.area_mm2 / machine.silicon_mm2, "usd": usd[1] / before}
    return BlockCost(
        system.name, words(system.decision), added.area_mm2, added.power_mw / MW_PER_W, (usd[0], usd[1], usd[2]), share
    )


def judge(block: str, experiment: ExperimentSpec, *draws: Iterable[Mapping[str, Any]]) -> BlockWorth:
    """The block by the rows of runs of an experiment's policies (columns of ``results.parquet``), of every draw of its
    traffic.
    """
    found: dict[tuple, list[Mapping[str, Any]]] = {}
    for rows in draws:
        for row in rows:
            key = row["system"], row["model"], row["batch"], row["assumptions"], row["policy"]
            found.setdefault(key, []).append(row)
    costs: dict[str, BlockCost] = {}
    judged = []
    for policy, other in pairs_of(block, experiment.policies):
        for key, row in found.items():
            before = found.get((*key[:-1], other.name))
            if key[-1] != policy.name or before is None:
                continue
            system = next(each for each in experiment.systems if each.name == key[0])
            cost = cost_of(block, system, policy)
            costs[system.name] = cost
            judged.append(_run(key, row, before, other.name, cost.share))
    if not judged:
        raise SpecError(f"{experiment.name}: no runs of policies with and without {block} to compare")
    return BlockWorth(block, tuple(costs.values()), tuple(judged))


def drawn(experiment: ExperimentSpec, at: int) -> ExperimentSpec:
    """The experiment with the ``at``-th draw of its traffic; 0: its own."""
    workload = experiment.workload
    changes: dict[str, Any] = {"seed": workload.seed + at}
    if isinstance(traffic := getattr(workload.trace, "synthetic", None), SyntheticSpec):
        synthetic = traffic.model_copy(update={"seed": traffic.seed + at})
        changes["trace"] = workload.trace.model_copy(update={"synthetic": synthetic})
    return experiment.model_copy(update={"workload": workload.model_copy(update=changes)}) if at else experiment


def _run(
    key: tuple, rows: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]], without: str,
    share: Mapping[str, float],
) -> BlockRun:  # fmt: skip
    """Of the same draws with the block and without."""
    pairs = list(zip(rows, before, strict=True))
    gains = [row["throughput_tokens_per_s"] / other["throughput_tokens_per_s"] - 1 for row, other in pairs]
    gains = [gain if abs(gain) > NOTHING else 0.0 for gain in gains]
    known = all(other["energy_per_token_j"] for _, other in pairs)
    energies = [row["energy_per_token_j"] / other["energy_per_token_j"] - 1 for row, other in pairs] if known else []
    least = min(gains)
    pays = {name: least >= PAYS and least > share[name] for name in ("mm2", "usd")}
    pays["w"] = bool(energies) and -max(energies) >= PAYS
    saved_ns = sum(other["decode_step_ns"] - row["decode_step_ns"] for row, other in pairs) / len(pairs)
    energy = sum(energies) / len(energies) if energies else None
    paid = tuple(name for name in RESOURCES if pays[name])
    gain = sum(gains) / len(gains)
    return BlockRun(*key, without, saved_ns, gain, energy, paid, (least, max(gains)), len(pairs))


def _rest(block: str, policy: PolicySpec) -> dict[str, Any]:
    return policy.model_dump(exclude={"name", BLOCKS[block]})
