"""Changes one assumption set into another, in a *chain* of one field after the other (``ORDER``), whose end gives the
other set's results bit for bit, and each field *alone*. Both are reported, as assumptions interact. `ENDPOINT` goes
beyond: endpoints of dies as measured on a real mesh.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archsim.base.errors import ArchsimError, did_you_mean
from archsim.base.tables import DataFrame, Shown, frame_of
from archsim.runs.results import BASE_POLICY, Layers, layers_that_ran
from archsim.runs.sweep import Watcher, sweep
from archsim.specs import library, unread
from archsim.specs.assumptions import ASSUMPTIONS, AssumptionsSpec, shipped_sets
from archsim.specs.experiment import ExperimentSpec

# First what the paper's gains depend on; then what changes the work of a die; then how it is counted.
ORDER = (
    "contention", "arbitration", "reads", "rate_updates", "endpoint", "carriers", "source", "capacity", "memory",
    "copy_writes", "migration", "execution", "activations", "dispatch", "overlap", "combine", "transfer_software",
    "decision_cost", "heatmap_update", "tables", "weights", "llc", "gemm", "order", "numbering", "prediction_rows",
    "ties", "hops", "throughput",
)  # fmt: skip
ENDPOINT = ("endpoint", "unlimited", "as_measured")
EFFECT_COLUMNS = (
    "system", "model", "batch", "policy", "place", "assumption", "from", "to", "speedup_before", "speedup_after",
    "factor", "speedup_alone", "throughput_after_tokens_per_s",
)  # fmt: skip
_COMPARED = ("system", "model", "batch", "policy")


@dataclass(frozen=True)
class AblatedField:
    """A field of assumptions and its two values."""

    field: str  # its name
    before: str  # its value in the first set
    after: str  # in the other
    alone: AssumptionsSpec  # the first set with only this field changed
    chain: AssumptionsSpec  # with all fields up to it changed


@dataclass(frozen=True)
class FieldEffect:
    """Effect of a link on one policy."""

    link: AblatedField  # what is changed
    speedup_before: float  # over base under the same assumptions, before the link
    speedup_after: float  # with the link, and all before it
    speedup_alone: float  # with this field changed alone
    throughput_after: float  # tokens/s, with the link and all before it

    @property
    def factor(self) -> float:
        return self.speedup_after / self.speedup_before


@dataclass(frozen=True)
class Waterfall:
    """One policy on one system, model and batch: from the first set's speed-up to the other's."""

    system: str  # name
    model: str  # name
    batch: int  # requests in flight
    policy: str  # name
    start: float  # speed-up over base under the first set
    end: float  # under the other
    effects: tuple[FieldEffect, ...]  # of the links, in the order of the chain
    beyond: FieldEffect | None = None  # of endpoints as measured, on the other set; None where a set has them already

    @property
    def every(self) -> tuple[FieldEffect, ...]:
        """``effects``, and ``beyond`` where there is one."""
        return self.effects if self.beyond is None else (*self.effects, self.beyond)


@dataclass(frozen=True)
class Ablation(Shown):
    """The waterfalls of an experiment."""

    start: AssumptionsSpec  # first set
    end: AssumptionsSpec  # the other
    links: tuple[AblatedField, ...]  # in the order of `ORDER`
    waterfalls: tuple[Waterfall, ...]  # one for each policy but base, system, model and batch
    closes: bool  # whether the chain's end equals the other set's results bit for bit, in every run
    runs: int  # how many ran
    layers: Layers  # which ran: `archsim.runs.results.layers_that_ran`

    def __repr__(self) -> str:
        chain = f"{self.start.label} → {self.end.label}, {len(self.links)} links"
        return f"Ablation({chain}, {len(self.waterfalls)} waterfalls, {self.runs} runs)"

    def to_pandas(self) -> DataFrame:
        """One row per policy, system, model, batch and link: the effect of the link on the policy's speed-up.

        Columns: system, model, batch, policy, place (from 1), assumption, from, to, speedup_before, speedup_after,
        factor, speedup_alone, throughput_after_tokens_per_s.
        """
        return frame_of(effect_rows(self), EFFECT_COLUMNS)


def effect_rows(found: Ablation) -> Iterator[tuple[Any, ...]]:
    """The values of ``EFFECT_COLUMNS`` for every effect, in the order of the chain."""
    for fall in found.waterfalls:
        for place, effect in enumerate(fall.every, 1):
            link = effect.link
            yield (
                fall.system, fall.model, fall.batch, fall.policy, place, link.field, link.before, link.after,
                effect.speedup_before, effect.speedup_after, effect.factor, effect.speedup_alone,
                effect.throughput_after,
            )  # fmt: skip


def assumptions_named(experiment: ExperimentSpec, name: str) -> AssumptionsSpec:
    """An assumption set by its label: the experiment's or a shipped one. Raises ArchsimError for an unknown label."""
    own = {each.label: each for each in experiment.assumptions}
    if name in own:
        return own[name]
    if name not in shipped_sets():
        known = list(dict.fromkeys([*shipped_sets(), *own]))
        raise ArchsimError(f"unknown assumption set {name!r}{did_you_mean(name, known)} (known: {', '.join(known)})")
    return library.load_assumptions(name)


def links_between(start: AssumptionsSpec, end: AssumptionsSpec) -> tuple[AblatedField, ...]:
    """The links of the chain. Raises ArchsimError if the sets do not differ."""
    fields = [field for field in ORDER if getattr(start, field) != getattr(end, field)]
    if not fields:
        raise ArchsimError(f"nothing to ablate: {start.label} and {end.label} have the same values")
    links, values = [], start.model_dump()
    for place, field in enumerate(fields, 1):
        after = getattr(end, field)
        values = values | {field: after, "set": f"chain-{place:02}-{field}"}
        chain = AssumptionsSpec(**{name: values[name] for name in ("set", *ASSUMPTIONS)})
        alone = start.model_copy(update={field: after, "set": f"alone-{field}"})
        links.append(AblatedField(field, getattr(start, field), after, chain if place == 1 else alone, chain))
    return tuple(links)


def beyond(start: AssumptionsSpec, end: AssumptionsSpec) -> AblatedField | None:
    """The row beyond the other set; None where one of the sets limits endpoints."""
    field, before, after = ENDPOINT
    if any(getattr(each, field) != before for each in (start, end)):
        return None
    alone = start.model_copy(update={field: after, "set": f"alone-{field}"})
    return AblatedField(field, before, after, alone, end.model_copy(update={field: after, "set": f"beyond-{field}"}))


def ablated_experiment(experiment: ExperimentSpec, start: AssumptionsSpec, end: AssumptionsSpec) -> ExperimentSpec:
    """The experiment under both sets and every link. Raises ArchsimError if no speed-up can be computed."""
    policies = [policy.name for policy in experiment.policies]
    if BASE_POLICY not in policies or len(policies) == 1:
        raise ArchsimError(
            f"an ablation compares policies with {BASE_POLICY!r}: the experiment needs it and at least one other policy"
        )
    links, more = links_between(start, end), beyond(start, end)
    alone = [link.alone for link in links if link.alone != link.chain]
    whole = (start, *alone, *(link.chain for link in links), end)
    every = experiment.model_copy(update={"assumptions": (*whole, *((more.alone, more.chain) if more else ()))})
    written: unread.WrittenKeys = experiment.__dict__.get("written", unread.WrittenKeys(frozenset(), of_manifest=False))
    kept = written._replace(keys=frozenset(keys for keys in written.keys if keys[0] != "assumptions"))
    axes = [each for each in experiment.unread if library.AXIS_UNREAD in each]
    return library.with_unread(every, axes, kept)


def ablate(
    experiment: ExperimentSpec,
    start: AssumptionsSpec,
    end: AssumptionsSpec,
    out: str | Path,
    jobs: int | None = None,
    watcher: Watcher | None = None,
) -> Ablation:
    """Run what is missing in ``out`` and compute the effects. Raises as :func:`archsim.runs.sweep.sweep`."""
    found = sweep(ablated_experiment(experiment, start, end), out, jobs, watcher).runs.rows
    links, more = links_between(start, end), beyond(start, end)
    rows = {(*(row[name] for name in _COMPARED), row["assumptions"]): row for row in found}
    every = dict.fromkeys(key[:-1] for key in rows)
    falls = [_waterfall(place, rows, links, start, end, more) for place in every if place[3] != BASE_POLICY]
    closes = all(_same(rows[(*place, links[-1].chain.label)], rows[(*place, end.label)]) for place in every)
    layers = layers_that_ran(found, {model.name: len(model.moe_layer_ids) for model in experiment.models})
    return Ablation(start, end, links, tuple(falls), closes, len(found), layers)


def _waterfall(
    place: tuple,
    rows: Mapping[tuple, Mapping[str, Any]],
    links: Sequence[AblatedField],
    start,
    end,
    more: AblatedField | None,
) -> Waterfall:
    def of(assumptions: AssumptionsSpec) -> Mapping[str, Any]:
        return rows[(*place, assumptions.label)]

    effects, before = [], of(start)["speedup_vs_base"]
    for link in links:
        after = of(link.chain)
        alone = of(link.alone)["speedup_vs_base"]
        effects.append(FieldEffect(link, before, after["speedup_vs_base"], alone, after["throughput_tokens_per_s"]))
        before = after["speedup_vs_base"]
    last = of(end)["speedup_vs_base"]
    further = None
    if more is not None:
        limited = of(more.chain)
        alone = of(more.alone)["speedup_vs_base"]
        further = FieldEffect(more, last, limited["speedup_vs_base"], alone, limited["throughput_tokens_per_s"])
    system, model, batch, policy = place
    return Waterfall(
        system=system, model=model, batch=batch, policy=policy, start=of(start)["speedup_vs_base"], end=last,
        effects=tuple(effects), beyond=further,
    )  # fmt: skip


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    named = ("assumptions", "run")
    return {key: value for key, value in one.items() if key not in named} == {
        key: value for key, value in other.items() if key not in named
    }
