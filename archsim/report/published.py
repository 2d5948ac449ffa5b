"""Published values of the five policies, compared with the runs of a report.

The two editions of Yu et al., arXiv 2510.05497, differ in hardware and numbers:

==== ============================================= ==================================== =============================
     text                                          systems of configs/systems           speed-ups
==== ============================================= ==================================== =============================
W    arXiv 2510.05497v2                            dojo, tsmc_sow                       5.3 DeepSeek, 3.1 Qwen3
W4   ISCA 2026 (arXiv 2510.05497v4)                isca26_dojo, isca26_tsmc_sow         7.0 DeepSeek … 4.1 Qwen3
==== ============================================= ==================================== =============================

A published mean is taken as arithmetic (the four of W4, 7.0, 8.2, 7.3 and 4.1, give its 6.6), over models, systems
and batches 4096, 8192 and 16384.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from archsim.base.errors import SpecError
from archsim.report.claims import BALANCERS, Claim
from archsim.report.data import Report, RunRow
from archsim.report.layers import partial, told
from archsim.report.units import factor, percent
from archsim.specs.loading.library import load_system

TOLERANCE = 0.10  # relative difference within which a published value is met
BOTH = "allo+pred"
GENERATED = "generated instead of recorded routing"

W, W4 = "arXiv v2", "ISCA 2026"
SYSTEMS = {W: ("dojo", "tsmc_sow"), W4: ("isca26_dojo", "isca26_tsmc_sow")}
MODELS = {
    W: ("deepseek-v3", "qwen3-235b-a22b"),
    W4: ("deepseek-v3", "kimi-k2", "llama-4-maverick", "qwen3-235b-a22b"),
}


def _speedups() -> Iterable[Claim]:
    per_model = {
        W: {"deepseek-v3": 5.3, "qwen3-235b-a22b": 3.1},
        W4: {"deepseek-v3": 7.0, "kimi-k2": 8.2, "llama-4-maverick": 7.3, "qwen3-235b-a22b": 4.1},
    }
    for edition, values in per_model.items():
        for model, value in values.items():
            what = f"speed-up of {BOTH}, {model}"
            yield Claim(edition, what, "throughput", BOTH, value, (model,), SYSTEMS[edition])
    for edition, values in {W: (3.7, 4.7), W4: (6.0, 7.5)}.items():
        for system, mesh, value in zip(SYSTEMS[edition], ("Dojo", "SoW"), values, strict=True):
            what = f"speed-up of {BOTH}, mean of the models on {mesh}"
            yield Claim(edition, what, "throughput", BOTH, value, MODELS[edition], (system,))
    what = f"speed-up of {BOTH}, mean of all"
    yield Claim(W4, what, "throughput", BOTH, 6.6, MODELS[W4], SYSTEMS[W4])


def _others() -> Iterable[Claim]:
    for batch, value in ((4096, 1.0), (16384, 1.44)):
        what = f"speed-up of {BOTH} over ep, batch {batch:,}{' (published: about equal)' if value == 1 else ''}"
        yield Claim(W4, what, "throughput", BOTH, value, MODELS[W4], SYSTEMS[W4], "ep", (batch,))
    for policy, value in (("pred", 4.5), ("allo", 142.0), (BOTH, 213.0)):
        yield Claim(
            W4,
            f"hops of base ÷ hops of {policy}",
            "hops",
            policy,
            value,
            MODELS[W4],
            SYSTEMS[W4],
        )


CLAIMS = (*_speedups(), *_others(), *BALANCERS)


@dataclass(frozen=True)
class Comparison:
    """A published value and the simulated one, under one assumption set."""

    claim: Claim
    assumptions: str
    simulated: float
    runs: int
    conditions: tuple[str, ...]  # differences from the published runs

    @property
    def difference(self) -> float:
        """Difference relative to the published value."""
        nearest = min(max(self.simulated, self.claim.value), self.claim.most or self.claim.value)
        return self.simulated / nearest - 1

    @property
    def met(self) -> bool:
        """A ratio within TOLERANCE; a range only if the value is in it."""
        return abs(self.difference) <= (0.0 if self.claim.most else TOLERANCE)

    @property
    def judged(self) -> bool:
        """Whether the runs are the published ones, but for routing that is generated: only then is a value not met."""
        return set(self.conditions) <= {GENERATED}

    @property
    def kind(self) -> str:
        """'met', 'above' or 'below'; 'other' if these are other runs than the published."""
        if not self.judged:
            return "other"
        if self.met:
            return "met"
        return "above" if self.difference > 0 else "below"

    @property
    def verdict(self) -> str:
        """``met``, ``not met: 32 % below``; as a factor above twice the published value. Of other runs, no judgement:
        ``within 10 %``, ``32 % below``.
        """
        if self.met:
            return "met" if self.judged else f"within {percent(TOLERANCE)}"
        if self.difference > 1:
            far = f"{factor(1 + self.difference)} the published"
        else:
            far = f"{percent(abs(self.difference))} {'above' if self.difference > 0 else 'below'}"
        return f"not met: {far}" if self.judged else far


def compare(report: Report) -> dict[Claim, list[Comparison]]:
    """For every claim that the runs can show, a comparison under each assumption set: runs of all its models, on its
    own hardware, at a batch of its own.
    """
    found: dict[Claim, list[Comparison]] = {}
    for claim in filter(report_covers(report), CLAIMS):
        for assumptions in report.compared():
            pairs = _pairs(report, claim, assumptions)
            ratios = {run: value for run, against in pairs if (value := ratio(claim.metric, run, against)) is not None}
            if ratios:
                simulated = sum(ratios.values()) / len(ratios)
                conditions = list(_conditions(report, claim, list(ratios)))
                if len(ratios) < len(pairs):
                    conditions.append(f"{len(pairs) - len(ratios)} more left out, without {claim.metric}")
                found.setdefault(claim, []).append(
                    Comparison(claim, assumptions, simulated, len(ratios), tuple(conditions))
                )
    return found


def report_covers(report: Report) -> Callable[[Claim], bool]:
    """Whether a claim is one that the runs of a report can show."""

    def covers(claim: Claim) -> bool:
        runs = [run for run in report.runs if run.place.system in claim.systems]
        runs = [run for run in runs if not claim.batches or run.batch in claim.batches]
        return set(claim.models) <= {run.place.model for run in runs}

    return covers


def is_the_claim(comparisons: Iterable[Comparison]) -> bool:
    """Whether a report is the published evaluation itself, so that its page begins with the comparison."""
    return any(each.judged and len(each.claim.models) > 1 for each in comparisons)


def marks(claims: Iterable[Claim], metric: str, model: str, system: str) -> dict[str, Claim]:
    """Policy → published value drawn in the panel of a model on a system: that of the model, else that of all
    models.
    """
    return {
        claim.policy: claim
        for claim in claims
        if (claim.metric, claim.against) == (metric, "base")
        and system in claim.systems
        and model in claim.models
        and (len(claim.models) == 1 or metric == "hops")
    }


def ratio(metric: str, run: RunRow, against: RunRow) -> float | None:
    """The value of a metric of ``archsim.report.claims``; None if undefined."""
    if metric == "imbalance":
        return run.get("load_max_over_mean")
    if metric == "throughput":
        above, below = run.get("throughput_tokens_per_s"), against.get("throughput_tokens_per_s")
    elif metric == "hops":
        above, below = against["hop_messages"], run["hop_messages"]
    elif metric == "replicas":
        above, below = against.get("replica_hbm_bytes"), run.get("replica_hbm_bytes")
    else:
        above, below = run.get("pairs_lost"), (run.get("expert_tokens") or 0.0) + (run.get("pairs_lost") or 0.0)
    return above / below if above and below else None


def _pairs(report: Report, claim: Claim, assumptions: str) -> list[tuple[RunRow, RunRow]]:
    """The runs that a claim covers, each with the run it is compared with."""
    pairs = []
    for run in report.runs:
        place = run.place
        wanted = place.assumptions == assumptions and place.system in claim.systems and place.model in claim.models
        if not wanted or run.policy != claim.policy or (len(claim.batches) == 1 and run.batch not in claim.batches):
            continue
        against = report.find(place, run.batch, claim.against)
        if against is not None:
            pairs.append((run, against))
    return pairs


def _conditions(report: Report, claim: Claim, runs: list[RunRow]) -> Iterable[str]:
    """How these runs differ from the published ones, in words."""
    steps = sorted({int(run["decode_steps"]) for run in runs})
    if claim.decode_steps is not None and steps != [claim.decode_steps]:
        yield f"{_listed(steps)} decode {'step' if steps == [1] else 'steps'} instead of {claim.decode_steps}"
    for model, part in partial(report.layers(runs)).items():
        yield told({model: part})
    if report.synthetic:
        yield GENERATED
    batches = sorted({run.batch for run in runs})
    if claim.batches and batches != list(claim.batches):
        yield _other_batches(batches, claim.batches)
    systems = sorted({run.place.system for run in runs})
    if len(systems) < len(claim.systems):
        yield f"on {_listed(systems)} only"
    for system in systems:
        changed = _changed(report, system)
        if changed:
            yield f"{system} with other {_listed(changed)}"
    if claim.lacks:
        yield claim.lacks


def _changed(report: Report, name: str) -> list[str]:
    """Keys in which a system differs from the shipped system of the same name."""
    try:
        shipped = load_system(name).model_dump(mode="json", by_alias=True)
    except SpecError:
        return []
    system = report.systems[name]
    return [key for key in shipped if key != "source" and shipped[key] != system.get(key)]


def _other_batches(ran: Sequence[int], published: Sequence[int]) -> str:
    """``batch 4,096 only, of 4,096, 8,192 and 16,384``; ``batch 128 instead of …``."""

    def written(batches: Sequence[int]) -> str:
        *rest, last = [f"{batch:,}" for batch in batches]
        return f"{', '.join(rest)} and {last}" if rest else last

    relation = "only, of" if set(ran) < set(published) else "instead of"
    return f"batch {written(ran)} {relation} {written(published)}"


def _listed(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))
