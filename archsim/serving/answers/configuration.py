"""A configuration of a search: parallel sizes, batch limits, pools and policy; its name, and its file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from archsim.iteration.layers import has_experts
from archsim.specs.deployment import AttentionRanks, ExpertRanks, ParallelSpec, PrecisionSpec
from archsim.specs.serving import DisaggregatedSpec, SpeculationSpec
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
    decode_seqs: int = 0  # requests that a rank of these runs at once, at most; 0: `max_num_seqs`
    draft_tokens: int | None = None  # of every decode; None: those of the file

    @property
    def devices(self) -> int:
        prefill = self.prefill if self.decode else self.instances
        return prefill * self.parallel.devices + (self.instances - prefill) * (self.decode or self.parallel).devices

    @property
    def sizes(self) -> dict[str, int | None]:
        attention, experts = self.parallel.attention, self.parallel.experts
        spread = (experts.ep, experts.tp) if experts else (None, None)
        limits = self.max_num_seqs, self.max_num_batched_tokens
        values = (self.instances, self.prefill, attention.tp, attention.dp, *spread, *limits)
        return dict(zip(SIZES, values, strict=True))

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
        drafts = "" if self.draft_tokens is None else f", {self.draft_tokens} drafts"
        return sizes + dtypes + drafts

    @property
    def name(self) -> str:
        """``2 x tp 4 dp 1, ep 4 tp 1, 256 seqs, 8192 tokens``."""
        policy = f", {self.policy}" if self.policy else ""
        seqs = f"{self.max_num_seqs}" + (f" and {self.decode_seqs}" if self.decode_seqs else "")
        return f"{self.ranks}, {seqs} seqs, {self.max_num_batched_tokens} tokens{policy}"


def _sizes(parallel: ParallelSpec) -> str:
    attention, experts = parallel.attention, parallel.experts
    more = f" pp {parallel.pp}" * (parallel.pp > 1) + f" context {attention.context}" * (attention.context > 1)
    return f"tp {attention.tp} dp {attention.dp}{more}" + (f", ep {experts.ep} tp {experts.tp}" if experts else "")


class EngineLayout(NamedTuple):
    """Sizes of engines, of those that decode where they are unlike, and (instances, prefill) of `Configuration`."""

    parallel: ParallelSpec
    decode: ParallelSpec | None
    counts: Sequence[tuple[int, int]]


def sizes_of(serving: Serving, devices: int) -> Iterator[ParallelSpec]:
    """The sizes of one engine on some of the devices, or on all of them."""
    moe, given = has_experts(serving.model), serving.spec.search
    stages = [(pp, ranks) for pp in given.pp if not devices % pp for ranks in _divisors(devices // pp)]
    for pp, ranks in stages:
        for tp, context in [(tp, each) for tp in _divisors(ranks) for each in given.context if not tp % each]:
            attention = AttentionRanks(tp=tp, dp=ranks // tp, context=context)
            if not moe:
                if attention.dp == 1:
                    yield ParallelSpec(attention=attention, pp=pp)
                continue
            for ep in dict.fromkeys((ranks, 1)):
                yield ParallelSpec(attention=attention, experts=ExpertRanks(ep=ep, tp=ranks // ep), pp=pp)


def _divisors(number: int) -> Sequence[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


SIZES = ("instances", "prefill", "tp", "dp", "ep", "expert_tp", "max_num_seqs", "max_num_batched_tokens")


def describe_sizes(choice: Configuration) -> str:
    """``4 engines of attention TP 8, experts EP 8``, for a sentence."""

    def of(parallel: ParallelSpec) -> str:
        attention, experts = parallel.attention, parallel.experts
        one = f"TP {attention.tp}" if attention.dp == 1 else f"DP {attention.dp} of TP {attention.tp}"
        one += f" with context on {attention.context}" * (attention.context > 1)
        one = f"{parallel.pp} stages of {one}" if parallel.pp > 1 else one
        if experts is None or parallel.ranks == 1:
            return one
        both = [f"EP {experts.ep}"] if experts.ep > 1 else []
        both += [f"TP {experts.tp}"] if experts.tp > 1 else []
        return f"attention {one}, experts {' of '.join(both)}"

    drafts = f", {choice.draft_tokens} draft tokens" if choice.draft_tokens else ""
    if choice.prefill:
        decodes = f"{choice.instances - choice.prefill} x {of(choice.decode or choice.parallel)}"
        limit = f" of up to {choice.decode_seqs} requests per rank" if choice.decode_seqs else ""
        return f"{choice.prefill} x {of(choice.parallel)} that prefill and {decodes} that decode{limit}{drafts}"
    return f"{choice.instances} x {of(choice.parallel)}{drafts}"


def serving_of(serving: Serving, choice: Configuration) -> Serving:
    """A deployment with the sizes and batch limits of a configuration; a search has set its policy and dtypes."""
    limits = {"max_num_seqs": choice.max_num_seqs, "max_num_batched_tokens": choice.max_num_batched_tokens}
    changes: dict[str, Any] = {"parallel": choice.parallel, "instances": choice.instances}
    changes["scheduler"] = serving.spec.scheduler.model_copy(update=limits)
    if choice.prefill:
        changes["disaggregated"] = DisaggregatedSpec.model_validate(_pools(choice))
    return serving._replace(spec=serving.spec.model_copy(update=changes))


def with_choice(given: Mapping[str, Any], choice: Configuration) -> dict[str, Any]:
    """A file of ``archsim serve`` with the sizes, batch limits, dtypes and policy of a configuration."""
    found = {key: each for key, each in given.items() if key not in ("parallel", "instances", "search", "sweep")}
    scheduler = found.get("scheduler") or {}
    found["scheduler"] = ({"name": scheduler} if isinstance(scheduler, str) else dict(scheduler)) | {
        "max_num_seqs": choice.max_num_seqs, "max_num_batched_tokens": choice.max_num_batched_tokens,
    }  # fmt: skip
    if choice.precision is not None:
        found["precision"] = choice.precision.model_dump(exclude_none=True)
    if choice.draft_tokens is not None:
        found["speculation"] = "none"
        if choice.draft_tokens:
            of = SpeculationSpec.model_validate(given["speculation"]).of_depth(choice.draft_tokens)
            found["speculation"] = of.model_dump(mode="json", exclude_unset=True)
    if choice.prefill:
        return found | {"disaggregated": _pools(choice)}
    return found | {"parallel": _plain(choice.parallel), "instances": choice.instances}


def _pools(choice: Configuration) -> dict[str, Any]:
    decode = {"parallel": _plain(choice.decode or choice.parallel), "instances": choice.instances - choice.prefill}
    return {
        "prefill": {"parallel": _plain(choice.parallel), "instances": choice.prefill},
        "decode": decode | ({"max_num_seqs": choice.decode_seqs} if choice.decode_seqs else {}),
    }


def _plain(parallel: ParallelSpec) -> dict[str, Any]:
    attention, experts = parallel.attention, parallel.experts
    context = {"context": attention.context} if attention.context > 1 else {}
    plain: dict[str, Any] = {"attention": {"tp": attention.tp, "dp": attention.dp, **context}}
    plain |= {"pp": parallel.pp} if parallel.pp > 1 else {}
    return plain | ({"experts": {"ep": experts.ep, "tp": experts.tp}} if experts else {})
