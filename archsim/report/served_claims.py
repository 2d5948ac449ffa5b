"""What papers state about balancers in serving, beside what a run of `archsim serve` with several policies shows.

=========== ===========================================================================================================
metric      a run's value
=========== ===========================================================================================================
``kv``      KV blocks of a rank over those of ``against``, minus 1
``ttft``    mean TTFT over that of ``against``, minus 1
``goodput`` goodput over that of ``against``
=========== ===========================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from archsim.serving.serving import Outcome

NEAR = 0.10  # as on the pages of other papers
OF_CHANGE = 0.25  # so that no change at all does not meet a small one


class ServedClaim(NamedTuple):
    """One published value of ``policy`` against ``against``; ``lacks``: why a run may not show it, in words."""

    paper: str
    metric: str
    policy: str
    against: str
    value: float
    model: str
    system: str
    devices: int
    lacks: str = ""


_DENSE = (
    "dense weights are taken to be replicated on every GPU (data-parallel attention), in BF16; the paper does not say "
    "how they are shared"
)
_TRAFFIC = "the paper's requests and its load are not published; here generated routing under Poisson arrivals"
_SCHEDULER = "the paper serves with SGLang's overlap of host and GPU, and measures whole requests"
_craft = ("deepseek-v3", "a100_cluster", 64)

CLAIMS: tuple[ServedClaim, ...] = (
    ServedClaim("CRAFT", "kv", "eplb", "ep", -0.19, *_craft, _DENSE),
    ServedClaim("CRAFT", "kv", "craft", "ep", -0.06, *_craft, _DENSE),
    ServedClaim("CRAFT", "kv", "eplb", "ep", -0.75, "kimi-k2", "a100_cluster", 48, _DENSE),
    ServedClaim("CRAFT", "kv", "eplb", "ep", -0.24, "kimi-k2", "a100_cluster", 96, _DENSE),
    ServedClaim("CRAFT", "goodput", "craft", "eplb", 1.15, *_craft, _TRAFFIC),
    ServedClaim("CRAFT", "ttft", "craft", "ep", -0.29, *_craft, _TRAFFIC),
    ServedClaim("CRAFT", "ttft", "eplb", "ep", -0.30, *_craft, _TRAFFIC),
    ServedClaim("Libra", "ttft", "libra", "ep", -0.27, "qwen3-235b-a22b", "h200_node", 8, _SCHEDULER),
)


def _kv(outcome: Outcome, other: Outcome) -> float:
    return outcome.deployment.prefill.pool.kv_blocks / other.deployment.prefill.pool.kv_blocks - 1


def _ttft(outcome: Outcome, other: Outcome) -> float:
    return outcome.measures.ttft.mean / other.measures.ttft.mean - 1


def _goodput(outcome: Outcome, other: Outcome) -> float:
    return outcome.measures.goodput_per_s / other.measures.goodput_per_s if other.measures.goodput_per_s else 0.0


_METRICS = MappingProxyType(
    {"kv": ("KV cache", _kv), "ttft": ("mean TTFT", _ttft), "goodput": ("goodput, ratio", _goodput)}
)


class Judged(NamedTuple):
    """A claim beside a run."""

    claim: ServedClaim
    simulated: float

    @property
    def met(self) -> bool:
        """Within 0.10, and within a quarter of the published change."""
        change = self.claim.value - (1 if self.claim.metric == "goodput" else 0)
        return abs(self.simulated - self.claim.value) <= min(NEAR, OF_CHANGE * abs(change))

    @property
    def cells(self) -> tuple[str, ...]:
        """As on a page: paper, what, published, simulated, verdict."""
        claim = self.claim
        shown = "{:.2f}" if claim.metric == "goodput" else "{:+.0%}"
        verdict = "met" if self.met else f"not met: {claim.lacks}"
        what = f"{_METRICS[claim.metric][0]} of {claim.policy} against {claim.against}"
        return claim.paper, what, shown.format(claim.value), shown.format(self.simulated), verdict


def judged(outcomes: Sequence[Outcome]) -> Iterator[Judged]:
    """Claims whose model, machine and policies the outcomes have."""
    if not outcomes:
        return
    by_policy: Mapping[str, Outcome] = {each.serving.policy.name: each for each in outcomes}
    serving = outcomes[0].serving
    here = serving.model.name, serving.system.name, outcomes[0].deployment.devices
    for claim in CLAIMS:
        pair = by_policy.get(claim.policy), by_policy.get(claim.against)
        if (claim.model, claim.system, claim.devices) == here and pair[0] is not None and pair[1] is not None:
            yield Judged(claim, _METRICS[claim.metric][1](pair[0], pair[1]))
