"""Where the time of a deployment goes, and what doubling each rate would change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from archsim.base import tables
from archsim.base.sums import sum
from archsim.iteration import layers
from archsim.iteration.times import Batches, iteration_times
from archsim.search.deployment_pair import NOTHING
from archsim.serving.answers.sure import factors_of_laws
from archsim.serving.measures import Measures
from archsim.serving.outcome import Outcome
from archsim.serving.serving import serve
from archsim.show.units import less_or_more, listing, percent, signed_percent
from archsim.specs import serving_files, uncertainty
from archsim.uncertainty.estimate import Interval, interval
from archsim.uncertainty.worlds import draws_of, value_of

WORLDS_OF_SHARES = 64  # of an iteration, whose times are scaled: nothing is served
# What an iteration is spent on, and the field of `archsim.iteration.constants.Host` by which that may be off.
_SPENT: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType({
    "links": ("moves", (layers.DISPATCH, layers.COMBINE, layers.ALL_REDUCE)),
    "GEMMs": ("products", (layers.PROJECTIONS, layers.DENSE_FFN, layers.ROUTER, layers.SHARED, layers.LM_HEAD)),
    "experts": ("experts", (layers.EXPERTS,)), "attention": ("attention", (layers.ATTENTION,)),
    "the host": ("iteration_ns", (layers.HOST,)),
    "other kernels": ("", (layers.ELEMENTWISE, layers.SAMPLING)),
})  # fmt: skip
# Groups of causes whose rates are doubled, and the field of `archsim.iteration.constants.Host` that is off with them.
_LEVERS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "GEMMs twice as fast": ("products",), "experts twice as fast": ("experts",),
    "attention twice as fast": ("attention",), "links twice as fast": ("moves",),
    "half the time of the host": ("iteration_ns", "sequence_ns", "prompt_ns", "request_ns", "front_end_ns"),
})  # fmt: skip


class ServedLever(NamedTuple):
    """What a change does to the means of a run."""

    what: str
    ttft: float  # relative change of mean TTFT
    tpot: float  # of mean TPOT
    goodput: float  # of requests within the limits a second


@dataclass(frozen=True, eq=False)
class ServedWhy(tables.Shown):
    """What the time of a deployment goes to, and what would help."""

    name: str
    outcome: Outcome
    shares: Mapping[str, Interval]  # what → share of a mean decode iteration in samples, the largest first
    levers: tuple[ServedLever, ...]  # most gain first

    @property
    def sentence(self) -> str:
        (first, share), *others = list(self.shares.items())[:3]
        spread = f"{percent(share.p05)} to {percent(share.p95)} in {percent(0.9)} of {WORLDS_OF_SHARES} samples"
        rest = [f"{percent(each.p50)} on {what}" for what, each in others]
        spent = listing([f"{percent(share.p50)} ({spread}) of a mean decode iteration on {first}", *rest])
        best = next(iter(self.levers), None)
        if best is None or max(-best.ttft, -best.tpot, best.goodput) < NOTHING:
            return f"{self.name} spends {spent}, and nothing that was tried would help."
        other = min(self.levers, key=lambda each: each.tpot)
        of_tpot = f" for both; {other.what} would make TPOT {less_or_more(other.tpot)}"
        return (
            f"{self.name} spends {spent}; with {best.what}, TPOT would be {less_or_more(best.tpot)} and TTFT "
            f"{less_or_more(best.ttft)}, which helps most of all that was tried"
            f"{of_tpot if other.tpot < best.tpot - NOTHING else ''}."
        )

    @property
    def changes(self) -> list[tuple[str, str, str, str]]:
        """What is changed, and the changes of mean TTFT, mean TPOT and goodput in words."""

        def said(change: float) -> str:
            return signed_percent(change, NOTHING)

        return [(each.what, said(each.ttft), said(each.tpot), said(each.goodput)) for each in self.levers]

    def __repr__(self) -> str:
        lines = [f"  {what}: TTFT {ttft}, TPOT {tpot}, goodput {rate}" for what, ttft, tpot, rate in self.changes]
        return "\n".join([self.sentence, *self.outcome.why_slow, *lines])

    def to_pandas(self) -> Any:
        import pandas

        return pandas.DataFrame(list(self.levers), columns=list(ServedLever._fields))

    def as_json(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            "answer": self.sentence, "why": list(self.outcome.why_slow),
            "shares": {what: each._asdict() for what, each in self.shares.items()},
            "levers": [each._asdict() for each in self.levers],
        }  # fmt: skip


def why_deployment(
    serving: serving_files.Serving, name: str, say: Callable[[str], None] = lambda text: None
) -> ServedWhy:
    """Serve it, and again with each group of causes twice as fast."""
    say("serving the requests")
    outcome = serve(serving)
    own = outcome.measures
    levers = []
    for what, fields in _LEVERS.items():
        say(f"serving the requests with {what}")
        off = {side: MappingProxyType(dict.fromkeys(fields, 0.5)) for side in serving.spec.sides}
        found = serve(serving._replace(off=MappingProxyType(off))).measures
        levers.append(ServedLever(what, *(_change(own, found, name) for name in ("ttft", "tpot", "goodput"))))
    levers.sort(key=lambda each: each.tpot + each.ttft - 2 * max(each.goodput, 0.0))
    return ServedWhy(name, outcome, _shares(outcome), tuple(levers))


def _change(before: Measures, after: Measures, name: str) -> float:
    one, other = (each.goodput_per_s if name == "goodput" else getattr(each, name).mean for each in (before, after))
    return float(other / one - 1) if one and one == one and other == other else 0.0


def _shares(outcome: Outcome) -> dict[str, Interval]:
    """What → share of an iteration with mean decodes and context, as what laws are off moves it."""
    built, totals = outcome.deployment.decode or outcome.deployment.prefill, outcome.served.totals
    iterations = max(float(totals["iterations"]), 1.0)
    decodes = max(float(totals["sequences"]) / iterations, 1.0)
    context = float(np.mean(outcome.requests.input) + np.mean(outcome.requests.output) / 2)
    one, none = np.ones(1), np.zeros(1)
    batch = Batches(one * decodes, one * context, none, one, one, one * decodes)
    host = outcome.deployment.host
    found = iteration_times(built.laws, batch, host_ns=host.iteration_ns + decodes * host.sequence_ns)
    side = "decode" if outcome.deployment.decode else next(iter(outcome.serving.spec.sides))
    factors = factors_of_laws(outcome.serving.on(side), uncertainty.load_widths())
    draws = draws_of(sorted({each.draws_as for _, each in factors}), WORLDS_OF_SHARES)
    ns: dict[str, np.ndarray] = {}
    for what, (name, causes) in _SPENT.items():
        own = sum(float(found.ns[cause][0]) for cause in causes if cause in found.ns)
        off = [[value_of(each, draws, at) for at in range(WORLDS_OF_SHARES)] for of, each in factors if of == name]
        if own:
            ns[what] = own * np.prod(off, axis=0) if off else np.full(WORLDS_OF_SHARES, own)
    total = np.sum(list(ns.values()), axis=0)
    shares = {what: interval(each / total) for what, each in ns.items()}
    return dict(sorted(shares.items(), key=lambda each: -each[1].p50))
