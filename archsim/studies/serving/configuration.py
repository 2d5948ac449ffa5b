"""A configuration of a search: parallel sizes, batch limits, pools and policy; its name, and its file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from archsim.iteration.layers import has_experts
from archsim.specs.deployment import AttentionRanks, ExpertRanks, ParallelSpec, PrecisionSpec
from archsim.specs.serving_files import Serving


class Configuration(NamedTuple):
    """One configuration: what a search varies."""

    parallel: ParallelSpec  # sizes of an engine; of those that prefill, where `prefill` is not 0
    instances: int  # engines, of all kinds together
    max_num_seqs: int  # requests that a rank runs at once, at most
    max_num_batched_tokens: int  # tokens of a rank's iteration, at most
    policy: str = ""  # of balancing; '' without routing from traffic
    prefill: int = 0  # engines that only prefill, while the others only decode; 0: all do both
    precision: PrecisionSpec | None = None  # None: that of the file
    decode: ParallelSpec | None = None  # sizes of engines that decode; None: as those that prefill

    @property
    def devices(self) -> int:
        """The devices of all engines together."""
        prefill = self.prefill if self.decode else self.instances
        return prefill * self.parallel.ranks + (self.instances - prefill) * (self.decode or self.parallel).ranks

    @property
    def ranks(self) -> str:
        """``2 x tp 4 dp 1, ep 4 tp 1``, and what tells them apart beside batch limits and policy."""
        decodes = self.instances - self.prefill
        if self.decode:
            sizes = f"{self.prefill} x {_sizes(self.parallel)} prefill, {decodes} x {_sizes(self.decode)} decode"
        else:
            apart = f" ({self.prefill} prefill, {decodes} decode)" if self.prefill else ""
            sizes = f"{self.instances} x {_sizes(self.parallel)}{apart}"
        given = self.precision.model_dump(exclude_none=True) if self.precision else {}
        dtypes = "".join(f", {key} {dtype}" for key, dtype in given.items())
        return sizes + dtypes

    @property
    def name(self) -> str:
        """``2 x tp 4 dp 1, ep 4 tp 1, 256 seqs, 8192 tokens``."""
        policy = f", {self.policy}" if self.policy else ""
        return f"{self.ranks}, {self.max_num_seqs} seqs, {self.max_num_batched_tokens} tokens{policy}"


def _sizes(parallel: ParallelSpec) -> str:
    attention, experts = parallel.attention, parallel.experts
    return f"tp {attention.tp} dp {attention.dp}" + (f", ep {experts.ep} tp {experts.tp}" if experts else "")


class EngineLayout(NamedTuple):
    """Sizes of engines, of those that decode where they are unlike, and (instances, prefill) of `Configuration`."""

    parallel: ParallelSpec
    decode: ParallelSpec | None
    counts: Sequence[tuple[int, int]]


def sizes_of(serving: Serving, devices: int) -> Iterator[ParallelSpec]:
    """The sizes of one engine on some of the devices, or on all of them."""
    moe = has_experts(serving.model)
    for ranks in _divisors(devices):
        for tp in _divisors(ranks):
            attention = AttentionRanks(tp=tp, dp=ranks // tp)
            if not moe:
                if attention.dp == 1:
                    yield ParallelSpec(attention=attention)
                continue
            for ep in dict.fromkeys((ranks, 1)):
                yield ParallelSpec(attention=attention, experts=ExpertRanks(ep=ep, tp=ranks // ep))


def _divisors(number: int) -> Sequence[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


SIZES = ("instances", "prefill", "tp", "dp", "ep", "expert_tp", "max_num_seqs", "max_num_batched_tokens")


def describe_sizes(choice: Configuration) -> str:
    """``4 engines of attention TP 8, experts EP 8``, for a sentence."""

    def of(parallel: ParallelSpec) -> str:
        attention, experts = parallel.attention, parallel.experts
        one = f"TP {attention.tp}" if attention.dp == 1 else f"DP {attention.dp} of TP {attention.tp}"
        if experts is None or parallel.ranks == 1:
            return one
        both = [f"EP {experts.ep}"] if experts.ep > 1 else []
        both += [f"TP {experts.tp}"] if experts.tp > 1 else []
        return f"attention {one}, experts {' of '.join(both)}"

    if choice.prefill:
        decodes = f"{choice.instances - choice.prefill} x {of(choice.decode or choice.parallel)}"
        return f"{choice.prefill} x {of(choice.parallel)} that prefill and {decodes} that decode"
    return f"{choice.instances} x {of(choice.parallel)}"


def with_choice(given: Mapping[str, Any], choice: Configuration) -> dict[str, Any]:
    """A file of ``archsim serve`` with the sizes, batch limits, dtypes and policy of a configuration."""
    found = {key: each for key, each in given.items() if key not in ("parallel", "instances", "search", "sweep")}
    scheduler = found.get("scheduler") or {}
    found["scheduler"] = ({"name": scheduler} if isinstance(scheduler, str) else dict(scheduler)) | {
        "max_num_seqs": choice.max_num_seqs, "max_num_batched_tokens": choice.max_num_batched_tokens,
    }  # fmt: skip
    if choice.precision is not None:
        found["precision"] = choice.precision.model_dump(exclude_none=True)
    if choice.prefill:
        found["disaggregated"] = {
            "prefill": {"parallel": _plain(choice.parallel), "instances": choice.prefill},
            "decode": {
                "parallel": _plain(choice.decode or choice.parallel), "instances": choice.instances - choice.prefill,
            },
        }  # fmt: skip
        return found
    return found | {"parallel": _plain(choice.parallel), "instances": choice.instances}


def _plain(parallel: ParallelSpec) -> dict[str, Any]:
    attention, experts = parallel.attention, parallel.experts
    plain: dict[str, Any] = {"attention": {"tp": attention.tp, "dp": attention.dp}}
    return plain | ({"experts": {"ep": experts.ep, "tp": experts.tp}} if experts else {})
