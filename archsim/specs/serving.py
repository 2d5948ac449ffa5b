"""What ``archsim serve`` reads: machine, model, parallel sizes, requests, scheduler, limits."""

import re
from collections.abc import Mapping
from itertools import product
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Field,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from archsim.base.fields import KeyProblem
from archsim.base.quantities import BANDWIDTH, SIZE, TIME, count, describe, fraction, number, quantity
from archsim.base.sums import sum
from archsim.specs import deployment, schedulers, workload
from archsim.specs.serving_terms import ServingSpec

Time = Annotated[float, quantity(TIME, "1 ns", "1000 s", zero=True)]
_RATE = re.compile(r"(\d+\.?\d*(?:[eE][-+]?\d+)?)\s*/\s*(s|min|h)", re.ASCII)
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def _rate(value: Any) -> float:
    found = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"expected a rate such as '4/s' or '30/min', not {describe(value)}")
    per_s = float(found[1]) / _SECONDS[found[2]]
    if per_s <= 0:
        raise ValueError(f"{value!r}: no request would ever come. Expected a rate above 0")
    if per_s > 1e9:  # times are counted in ns
        raise ValueError(f"{value!r} is more than one request per ns. Expected at most 1e9/s")
    return per_s


Rate = Annotated[
    float,
    BeforeValidator(_rate),
    WithJsonSchema({"type": "string", "format": "rate", "title": "such as `4/s` or `30/min`"}),
]


class LengthSpec(ServingSpec):
    """Tokens of prompts or outputs: one of ``fixed``, ``uniform`` (low and high, both included) and ``mean`` with the
    coefficient of variation ``cv`` of a log-normal distribution.
    """

    fixed: Annotated[int | None, count(1, 10_000_000, none=True)] = None
    uniform: tuple[Annotated[int, count(1, 10_000_000)], Annotated[int, count(1, 10_000_000)]] | None = None
    mean: Annotated[float, number(1, 1e7)] | None = None
    cv: Annotated[float, number(0, 100)] = 0.0

    @model_validator(mode="after")
    def _one(self) -> "LengthSpec":
        given = [key for key in ("fixed", "uniform", "mean") if getattr(self, key) is not None]
        if len(given) != 1:
            raise ValueError(f"expected one of fixed, uniform and mean, not {' and '.join(given) or 'none'}")
        if self.uniform is not None and self.uniform[0] > self.uniform[1]:
            raise KeyProblem(("uniform",), f"low {self.uniform[0]} is above high {self.uniform[1]}")
        return self

    @property
    def drawn(self) -> tuple[str, tuple[float, ...]]:
        """The distribution in the form that ``archsim.serving.requests.lengths`` takes."""
        if self.fixed is not None:
            return "fixed", (self.fixed,)
        if self.uniform is not None:
            return "uniform", self.uniform
        return "lognormal", (self.mean or 1.0, self.cv)


class ArrivalSpec(ServingSpec):
    """``burstiness``: shape of the gamma distribution of gaps; 1: Poisson, less: bursts."""

    rate: Rate
    burstiness: Annotated[float, number(1e-3, 1e3)] = 1.0


class PrefixSpec(ServingSpec):
    """Beginnings that requests share, such as system prompts: ``count`` of them, of ``tokens`` each, before the tokens
    of ``input``.
    """

    tokens: LengthSpec
    different: Annotated[int, count(1, 1_000_000)] = Field(1, alias="count")
    # Of requests that begin with one.
    share: Annotated[float, number(0, 1)] = 1.0
    # The n-th prefix is taken in proportion to n ** -skew; 0: all alike.
    skew: Annotated[float, number(0, 10)] = 0.0


class SessionSpec(ServingSpec):
    """Conversations or agents: a turn waits for the answer to the one before, and comes after a time to think, or to
    run a tool. Its prompt repeats all tokens before; ``input`` is what a turn adds to them.
    """

    turns: LengthSpec
    # Between the last token of an answer and the next turn, in the mean, and its coefficient of variation.
    think_ns: Time = Field(0.0, alias="think")
    think_cv: Annotated[float, number(0, 100)] = 0.0


class ClassSpec(ServingSpec):
    """Some of the requests, with limits of their own. ``share``: of the requests, or of sessions."""

    name: Annotated[str, Field(min_length=1)]  # of the class
    share: Annotated[float, number(0, 1)]  # of the requests
    # The least is served first, with `scheduler.order: priority`.
    priority: Annotated[int, count(-1_000_000, 1_000_000)] = 0
    # In place of those of `slo`.
    ttft_ns: Annotated[float, quantity(TIME, "1 us", "10000 s")] | None = Field(None, alias="ttft")
    tpot_ns: Annotated[float, quantity(TIME, "1 us", "1000 s")] | None = Field(None, alias="tpot")
    e2e_ns: Annotated[float, quantity(TIME, "1 us", "100000 s")] | None = Field(None, alias="e2e")


class RequestSpec(ServingSpec):
    """A trace, an open loop (``arrivals``) or a closed loop (``concurrency``)."""

    trace: str | None = None  # file of recorded requests
    # Of the trace; null: told by its columns.
    format: str | None = None
    # Of the trace's times; null: told by its format, digits and rate, and asked for where two are plausible.
    time_unit: Literal["s", "ms", "us", "ns"] | None = None
    # Of the trace: tokens of a block that has a hash id; null: as its format says, 512 for Mooncake's.
    hash_tokens: Annotated[int | None, count(1, 1_000_000, none=True)] = None
    # Of the trace: times its rate.
    speed: Annotated[float, number(1e-6, 1e6)] = 1.0
    arrivals: ArrivalSpec | None = None  # how they arrive, if drawn
    concurrency: Annotated[int | None, count(1, 1_000_000, none=True)] = None
    input: LengthSpec | None = None  # lengths of prompts
    output: LengthSpec | None = None  # lengths of answers
    # Shared beginnings of requests that are drawn.
    prefixes: PrefixSpec | None = None
    # Requests that are drawn as turns of sessions; `arrivals.rate` and `concurrency` are then of sessions.
    sessions: SessionSpec | None = None
    # Null: all requests are alike. Shares add up to 1.
    classes: tuple[ClassSpec, ...] = ()
    # Whether later turns of a trace with hash ids repeat the outputs of earlier ones, whose KV is then reused. Give
    # false where outputs are dropped from the context, such as thoughts of a model.
    outputs_kept: bool = True
    # Of a closed loop: whether its clients begin apart, at random within the time that a request takes, or all
    # together, as `vllm bench serve --max-concurrency` and InferenceX begin.
    start: Literal["apart", "together"] = "apart"
    seed: Annotated[int, count(0, 2**31)] = 0  # of the draws
    # Requests; null: all of a trace, 1000 of an open loop, 10 a client of a closed one, or 10 sessions.
    total: Annotated[int | None, count(1, 100_000_000, none=True)] = Field(None, alias="count")

    @model_validator(mode="after")
    def _one(self) -> "RequestSpec":
        given = [key for key in ("trace", "arrivals", "concurrency") if getattr(self, key) is not None]
        if len(given) != 1 and given != ["trace", "concurrency"]:
            speed = ". `speed` sets the rate of a trace" if "trace" in given else ""
            found = " and ".join(given) or "none"
            raise ValueError(f"expected one of trace, arrivals (rate) and concurrency (users), not {found}{speed}")
        if self.trace is None:
            for key in ("format", "time_unit", "hash_tokens", "speed"):
                if key in self.model_fields_set and getattr(self, key) not in (None, 1.0):
                    raise KeyProblem((key,), "only a trace has this key, and these requests are sampled. Leave it out")
        for key in ("input", "output"):
            if (getattr(self, key) is None) != (self.trace is not None):
                what = "a trace has its lengths" if self.trace is not None else "required key is missing"
                raise KeyProblem((key,), what)
        if self.prefixes is not None and self.trace is not None:
            raise KeyProblem(("prefixes",), "a trace brings its own hash ids. Leave prefixes out, or generate requests")
        if self.sessions is not None and self.trace is not None:
            raise KeyProblem(("sessions",), "a trace brings its own sessions. Leave the key out, or generate requests")
        if "start" in self.model_fields_set and self.concurrency is None:
            raise KeyProblem(("start",), "only the clients of a closed loop begin (concurrency). Leave it out")
        if self.classes and abs(sum(each.share for each in self.classes) - 1) > 1e-6:
            found = ", ".join(f"{each.share:g}" for each in self.classes)
            raise KeyProblem(("classes",), f"shares are {found}; expected shares that add up to 1")
        if len({each.name for each in self.classes}) < len(self.classes):
            raise KeyProblem(("classes",), "two classes have the same name")
        return self


class EngineHostSpec(ServingSpec):
    """Time of the host. What is null is the engine's fitted constant."""

    iteration_ns: Time | None = Field(None, alias="iteration")  # of an iteration
    sequence_ns: Time | None = Field(None, alias="sequence")  # of a sequence in it
    # Of an iteration that no captured graph covers.
    prompt_ns: Time | None = Field(None, alias="prompt")
    request_ns: Time | None = Field(None, alias="request")  # of a request
    # Before it, one request after the other.
    front_end_ns: Time | None = Field(None, alias="front_end")
    # Most tokens of a rank in a captured graph with prompts; 0: graphs cover decodes alone.
    captured: Annotated[int | None, count(0, 1_000_000, none=True)] = None
    # Times all times of laws, in iterations without and with prompts.
    decodes: Annotated[float, number(0.05, 20)] | None = None
    prompts: Annotated[float, number(0.05, 20)] | None = None  # as decodes, with prompts
    # Iterations of its engine after which a client sees a first token; it sees all tokens as late.
    first_after: Annotated[int, count(1, 10_000)] | None = None


class LinksSpec(ServingSpec):
    """Links between two sides of a deployment, each way. The defaults are those of the shipped ``h100_cluster``: one
    ConnectX-7 of 400 Gb/s a GPU, two hops of 1 us.
    """

    # Of one device.
    bandwidth_bytes_per_s: Annotated[float, quantity(BANDWIDTH, "1 MB/s", "100 TB/s")] = Field(50e9, alias="bandwidth")
    latency_ns: Time = Field(2_000.0, alias="latency")
    # Links of the side that has the experts; null: one for each of its devices.
    expert_links: Annotated[int | None, count(1, 100_000, none=True)] = None


class ExpertsOnSpec(ServingSpec):
    """Attention–FFN disaggregation: routed and shared experts are on devices of their own, even of another kind. The
    hidden vectors of a layer travel there and back. Attention, dense layers and routers stay.
    """

    # By name, file or mapping, as `system`; all of its devices share the experts.
    system: Any
    # The batch of an iteration is cut into so many parts, which take turns on both sides and on the links.
    micro_batches: Annotated[int, count(1, 64)] = 3
    links: LinksSpec = LinksSpec()


class SideSpec(ServingSpec):
    """Engines that prefill, or decode. ``max_num_seqs``: of a rank; null: as the scheduler's."""

    # What is no key of a side → what to write.
    WAYS: ClassVar[Mapping[str, str]] = {
        "precision": "both sides have the precision of the file, as KV is handed over as it is kept. Compare two files",
        **dict.fromkeys(
            ("scheduler", "max_num_batched_tokens", "chunk", "chunk_size", "chunked_prefill_size", "chunked_prefill"),
            "of its limits a side has max_num_seqs alone; the others are the file's (scheduler)",
        ),
        **dict.fromkeys(
            ("tp", "tensor_parallel_size", "dp", "data_parallel_size"), "write parallel: {attention: {tp: 8}}"
        ),
        **dict.fromkeys(("ep", "expert_parallel_size"), "write parallel: {attention: {dp: 8}, experts: {ep: 8}}"),
        **dict.fromkeys(("gpus", "devices", "n_gpus"), "devices are the ranks of parallel, times instances"),
        **dict.fromkeys(("batch", "max_batch", "batch_size", "max_batch_size"), "write max_num_seqs"),
    }
    # Its machine, where it is not that of the file: by name, file or mapping.
    system: Any | None = None
    parallel: deployment.ParallelSpec = deployment.ParallelSpec()  # sizes of an engine of the side
    instances: Annotated[int, count(1, 10_000)] = 1  # engines of the side
    max_num_seqs: Annotated[int, count(1, 65_536)] | None = None  # of a rank; null: as the scheduler's
    # Null: every device has its share of the experts.
    experts_on: ExpertsOnSpec | None = None


class TransferSpec(ServingSpec):
    """How the KV cache moves. Null takes the links of the system."""

    bandwidth_bytes_per_s: Annotated[float, quantity(BANDWIDTH, "1 MB/s", "100 TB/s")] | None = Field(
        None, alias="bandwidth"
    )
    latency_ns: Time = Field(10_000.0, alias="latency")


class DisaggregatedSpec(ServingSpec):
    """Prefill and decode on engines of their own."""

    # none: requests come with their KV, and a first token; only decodes are served.
    prefill: SideSpec | Literal["none"]
    decode: SideSpec
    transfer: TransferSpec = TransferSpec()

    @model_validator(mode="after")
    def _check_sides(self) -> "DisaggregatedSpec":
        if isinstance(self.prefill, SideSpec) and self.prefill.experts_on is not None:
            what = "prompts on two sides are not modelled; let the engines that prefill keep their experts"
            raise KeyProblem(("prefill", "experts_on"), what)
        decode = self.decode
        if decode.experts_on is None:
            return self
        if decode.instances > 1:
            what = f"{decode.instances} engines cannot share one side of experts. Give one engine with more ranks"
            raise KeyProblem(("decode", "instances"), what)
        if decode.parallel.experts is not None:
            what = "the experts are on the devices of experts_on, which all share them. Leave it out"
            raise KeyProblem(("decode", "parallel", "experts"), what)
        return self


class SloSpec(ServingSpec):
    """Limits; a request counts for goodput within all of them."""

    ttft_ns: Annotated[float, quantity(TIME, "1 us", "10000 s")] | None = Field(None, alias="ttft")
    tpot_ns: Annotated[float, quantity(TIME, "1 us", "1000 s")] | None = Field(None, alias="tpot")
    e2e_ns: Annotated[float, quantity(TIME, "1 us", "100000 s")] | None = Field(None, alias="e2e")


class SearchSpec(ServingSpec):
    """What ``archsim serve --search`` varies; null: the divisors of the devices, and these limits of a batch."""

    WAYS: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("gpus", "n_gpus", "num_gpus", "nodes"), "write devices, in all"),
        **dict.fromkeys(
            ("batch", "max_batch", "batch_size"), "write max_num_seqs, the values that are tried: [64, 256]"
        ),
        **dict.fromkeys(("tp", "dp", "ep"), "sizes that divide the devices are tried; leave them out"),
    }
    devices: Annotated[int | None, count(1, 4096, none=True)] = None  # in all
    max_num_seqs: tuple[Annotated[int, count(1, 65536)], ...] = (32, 64, 128, 256, 512)  # values that are tried
    max_num_batched_tokens: tuple[Annotated[int, count(1, 10_000_000)], ...] = (2048, 4096, 8192, 16384)
    # Of engines that decode alone, up to each of `max_num_seqs`; empty: those of `max_num_seqs`.
    decode_max_num_seqs: tuple[Annotated[int, count(1, 65536)], ...] = ()
    # Empty: that of the file.
    precision: tuple[deployment.PrecisionSpec, ...] = ()
    # Stages of a pipeline (`parallel.pp`), which divide the devices of an engine, too.
    pp: tuple[Annotated[int, count(1, 4096)], ...] = Field((1,), min_length=1)
    # Of the tp ranks, so many share the tokens of a request (`parallel.attention.context`).
    context: tuple[Annotated[int, count(1, 4096)], ...] = Field((1,), min_length=1)
    # Drafts of every decode, accepted as `speculation` says; 0: none. Empty: those of the file.
    draft_tokens: tuple[Annotated[int, count(0, 64)], ...] = ()
    # disaggregated: engines alike, some of which prefill and the others decode; unlike: of two sizes, such as TP 4 that
    # prefill and DP 8 that decode.
    pools: tuple[Literal["colocated", "disaggregated", "unlike"], ...] = Field(("colocated",), min_length=1)


class LoadsSpec(ServingSpec):
    """What the page serves beside the run: at ``rates`` of an open loop or a trace, or with as many ``clients`` of a
    closed one (null: shares of the traffic), and prompts of ``inputs`` tokens under each of them.
    """

    WAYS: ClassVar[Mapping[str, str]] = dict.fromkeys(("concurrency", "users"), "write clients, a list")
    rates: tuple[Rate, ...] = ()
    clients: tuple[Annotated[int, count(1, 1_000_000)], ...] = ()
    inputs: tuple[Annotated[int, count(1, 10_000_000)], ...] = ()


class RoutingSpec(ServingSpec):
    """Experts from traffic: one of ``like`` (a preset of configs/traffic, a file, or ``model``), ``synthetic`` and
    ``trace`` (recorded routing). docs/serving.md says what is sampled.
    """

    WAYS: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("file", "dataset"), "write trace: FILE, of recorded routing"),
        **dict.fromkeys(("skew", "popularity_skew"), "write synthetic: {popularity_skew: 0.7}"),
    }
    like: str | None = None  # a preset of configs/traffic, a file, or ``model``
    synthetic: workload.SyntheticSpec | None = None  # generated routing
    trace: str | None = None  # recorded routing
    # MoE layers that are simulated, those that represent all; the others take their mean. More are more exact, and
    # slower.
    layers: Annotated[int, count(1, 10_000)] = 4
    # Requests and decode steps of the traffic from which tokens are drawn.
    requests: Annotated[int, count(1, 1_000_000)] = 128
    steps: Annotated[int, count(1, 32766)] = 64  # decode steps of that traffic
    # Iterations of an engine after which its tokens are drawn anew; later after a sixteenth of those so far.
    every: Annotated[int, count(1, 10_000_000)] = 512
    seed: Annotated[int, count(0, 2**31)] = 0  # of the draws

    @field_validator("like")
    @classmethod
    def _known(cls, like: str | None) -> str | None:
        return workload.known_preset(like)

    @model_validator(mode="after")
    def _one(self) -> "RoutingSpec":
        given = [key for key in ("like", "synthetic", "trace") if getattr(self, key) is not None]
        if len(given) != 1:
            raise ValueError(f"expected one of like, synthetic and trace, not {' and '.join(given) or 'none'}")
        if self.synthetic and self.synthetic.chunk_tokens is not None:
            raise KeyProblem(("synthetic", "chunk_tokens"), "served requests are themselves prompts, in "
                             "chunks by `scheduler`. Give prompt_tokens, of how many tokens each is")  # fmt: skip
        return self

    @property
    def synthetic_traffic(self) -> workload.SyntheticSpec:
        return self.synthetic or workload.SyntheticSpec(like=self.like or workload.OF_MODEL, seed=self.seed)


class SpeculationSpec(ServingSpec):
    """Drafted tokens that every decode verifies. ``acceptance``: of a draft, if those before it were accepted; one
    rate for all, or one for each depth.
    """

    # One after the other; the depth of a tree.
    draft_tokens: Annotated[int, count(1, 64)]
    acceptance: Annotated[float, number(0, 1)] | tuple[Annotated[float, number(0, 1)], ...]
    # mtp: a draft takes a layer of the model and its head, as those of EAGLE do; ngram: nothing.
    method: Literal["mtp", "ngram"] = "mtp"
    # Drafts at each depth, of which one at most is accepted, such as [4, 8, 8]; null: one.
    tree: tuple[Annotated[int, count(1, 1024)], ...] | None = None
    seed: Annotated[int, count(0, 2**31)] = 0  # of the draws

    def of_depth(self, drafts: int) -> "SpeculationSpec":
        """So many drafts, accepted as these are."""
        rates = self.acceptance if isinstance(self.acceptance, float) else self.acceptance[:drafts]
        return self.model_copy(update={"draft_tokens": drafts, "acceptance": rates})

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_acceptance(cls, given: Any) -> Any:
        if isinstance(given, dict) and "acceptance" not in given:
            raise KeyProblem(
                ("acceptance",), "how many drafts are accepted is not known. Give speculation.acceptance, such as 0.8"
            )
        return given

    @model_validator(mode="after")
    def _one_each(self) -> "SpeculationSpec":
        if isinstance(self.acceptance, tuple) and len(self.acceptance) != self.draft_tokens:
            found = f"{len(self.acceptance)} rates for {self.draft_tokens} drafts. Give one, or one for each"
            raise KeyProblem(("acceptance",), found)
        if self.tree is not None and len(self.tree) != self.draft_tokens:
            found = f"{len(self.tree)} depths for {self.draft_tokens} draft_tokens. Give one number for each"
            raise KeyProblem(("tree",), found)
        return self


class KvStoreSpec(ServingSpec):
    """KV of prompts beside HBM: memory of the host (vLLM's OffloadingConnector, SGLang's HiCache) or a store that
    engines share (Mooncake Store, LMCache). What is computed is copied there at once, and what was used longest ago is
    evicted.
    """

    # Of an engine, or with `shared: all` of all engines together.
    capacity_bytes: Annotated[float, quantity(SIZE, "1 MB", "10 PB")] = Field(alias="capacity")
    # With which one device loads; null: that of the machine's host (decision.host.pcie_bandwidth).
    bandwidth_bytes_per_s: Annotated[float, quantity(BANDWIDTH, "1 MB/s", "10 TB/s")] | None = Field(
        None, alias="bandwidth"
    )
    # Before the first byte of a load.
    latency_ns: Time = Field(0.0, alias="latency")
    shared: Literal["engine", "all"] = "engine"


class ExpertOffloadSpec(ServingSpec):
    """Experts in memory of the host, of which HBM has some. Those that tokens choose and HBM lacks are loaded in every
    layer; with ``prefetch``, while the layer before is computed.
    """

    # Share of the experts of a rank that stays in HBM: the most popular ones, by `popularity`.
    resident: Annotated[float, fraction(zero=True)]
    # Of one device; null: that of the machine's host (decision.host.pcie_bandwidth).
    bandwidth_bytes_per_s: Annotated[float, quantity(BANDWIDTH, "1 MB/s", "10 TB/s")] | None = Field(
        None, alias="bandwidth"
    )
    # Share of the loads that a predictor names a layer before. In place of each other it names an expert that no token
    # needs, as far as there are such; those that wait when the router has chosen are dropped. Null: experts are loaded
    # when the router has chosen them.
    prefetch: Annotated[float, number(0, 1)] | None = None
    # Traffic by whose first half residents are chosen, and by whose second half they are hit, as in `routing`, such as
    # {like: model}; null: all experts are as popular.
    popularity: RoutingSpec | None = None

    @model_validator(mode="after")
    def _check_popularity(self) -> "ExpertOffloadSpec":
        if self.popularity is not None and self.popularity.trace is not None:
            raise KeyProblem(("popularity", "trace"), "only generated traffic has this key. Give like or synthetic")
        return self


class FaultSpec(ServingSpec):
    """A rank of data-parallel attention that fails, with its devices. Its requests lose their KV and are computed anew
    elsewhere. With ``elastic``, the engine goes on without the rank after ``recovery``: the others have its experts.
    Else the whole engine starts anew, which takes ``recovery``.
    """

    at_ns: Time = Field(alias="at")  # time of the fault
    # The n-th engine and its n-th rank, from 0 on.
    engine: Annotated[int, count(0, 10_000)] = 0
    rank: Annotated[int, count(0, 4096)] = 0  # that fails
    recovery_ns: Time = Field(alias="recovery")  # until the engine goes on, or has started anew
    elastic: bool = False  # whether the engine goes on without the rank
    # After which the rank is there again, which takes another `recovery`; null: never.
    back_ns: Time | None = Field(None, alias="back")

    @model_validator(mode="after")
    def _back_of_ranks(self) -> "FaultSpec":
        if self.back_ns is not None and not self.elastic:
            raise KeyProblem(("back",), "an engine that starts again is back after `recovery`. Leave back out")
        if self.back_ns is not None and self.back_ns <= self.recovery_ns:
            raise KeyProblem(("back",), "expected a time after `recovery`, when the engine goes on without the rank")
        return self


class AxesSpec(ServingSpec):
    """What one file serves beside each other: every combination of the values of these keys."""

    # Key of the file, such as requests.arrivals.rate, parallel or scheduler.name → its values.
    grid: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    # Linked keys: the first values of all of them, then the second ones.
    zip: dict[str, tuple[Any, ...]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _several(self) -> "AxesSpec":
        for way, axes in (("grid", self.grid), ("zip", self.zip)):
            for path, values in axes.items():
                if not values or path.split(".")[0] in ("sweep", "policies"):
                    what = "list of policies is an axis by itself" if path.startswith("polic") else "axis has values"
                    raise KeyProblem((way, path), f"expected key: [value, ...] of this file; an {what}")
        if len(sizes := {path: len(values) for path, values in self.zip.items()}) and len(set(sizes.values())) > 1:
            found = ", ".join(f"{path} {size}" for path, size in sizes.items())
            raise KeyProblem(("zip",), f"expected as many values of every key; there are of {found}")
        if not self.axes:
            raise ValueError("the sweep varies nothing. Give axes in grid or zip")
        return self

    @property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        return self.grid | self.zip

    @property
    def cells(self) -> tuple[dict[str, Any], ...]:
        """Key → value of every point."""
        linked = list(zip(*self.zip.values(), strict=True)) or [()]
        return tuple(
            dict(zip(self.axes, (*chosen, *together), strict=True))
            for *chosen, together in product(*self.grid.values(), linked)
        )


class StaticBatchSpec(ServingSpec):
    """A batch of ``requests.concurrency`` requests of one length that prefill in one pass, as benchmarks of engines run
    it. What does not fit in HBM is refused: weights, KV, and the buffers of expert parallelism, which grow with it.
    """

    # Of a GPU: what the runtime takes for itself, in place of ``utilisation``.
    reserve_bytes: Annotated[int, quantity(SIZE, "1 B", "1 TB", int, zero=True)] = Field(0, alias="reserve")
    # Pairs of token and expert on the busiest rank over the mean, for which buffers are sized.
    imbalance: Annotated[float, number(1, 1000)] = 1.0
    # Policy → sets of buffers for pairs: 2 where local and remote experts run one after the other (Libra); else 1.
    stages: dict[str, Annotated[int, count(1, 100)]] = Field(default_factory=dict)


class ServeSpec(ServingSpec):
    """A deployment and its traffic. ``system`` and ``model``: as in experiments, by name, file or mapping."""

    system: Any  # name, path or mapping
    model: Any  # name, path or mapping
    parallel: deployment.ParallelSpec = deployment.ParallelSpec()  # sizes of an engine
    # Engines alike.
    instances: Annotated[int, count(1, 10_000)] = 1
    precision: deployment.PrecisionSpec = deployment.PrecisionSpec()  # of weights, activations and KV
    # Whose host constants and attention: fitted ones of configs/serving/hosts.yaml. none: no host time, and
    # of each kernel the fastest of all engines.
    engine: Literal["vllm", "sglang", "trtllm", "none"] = "vllm"
    # Such as 0.19.0: whose defaults the engine has; null: the newest that is known.
    engine_version: Annotated[str, Field(pattern=r"^v?\d+\.\d+")] | None = None
    host: EngineHostSpec | None = None  # constants in place of fitted ones
    # uniform: by chance; else a distribution of the fused MoE laws of the calibration, such as power_law_1.2; or
    # {like: model}: from traffic, by the engine's execution, under policies.
    routing: str | RoutingSpec = "uniform"
    # As in experiments: presets or mappings; each is served with the same requests.
    policies: tuple[Any, ...] = Field(("ep",), min_length=1)
    # Of the engine under routing from traffic, such as {migration: blocking}; null: archsim/serving/groups.py.
    assumptions: dict[str, Any] | str | None = None
    utilisation: Annotated[float, fraction(zero=False)] | None = None  # share of HBM that an engine may use
    # All requests prefill at once, in one pass, and their buffers count in HBM; none: as they come.
    static_batch: StaticBatchSpec | None = None
    requests: RequestSpec  # that arrive
    scheduler: schedulers.SchedulerSpec = schedulers.SchedulerSpec()  # fills iterations
    speculation: SpeculationSpec | Literal["none"] = "none"  # drafted tokens
    disaggregated: DisaggregatedSpec | Literal["none"] = "none"  # sides of prefill and decode
    # KV of prompts that HBM has no room for; none: it is computed again.
    kv_store: KvStoreSpec | Literal["none"] = "none"
    # Experts that HBM has no room for; none: all are in HBM.
    expert_offload: ExpertOffloadSpec | Literal["none"] = "none"
    # Ranks that fail while requests are served.
    faults: tuple[FaultSpec, ...] = ()
    slo: SloSpec = SloSpec()  # limits on times
    search: SearchSpec = SearchSpec()  # sizes that a search tries
    loads: LoadsSpec = LoadsSpec()  # what the page serves beside the run
    # Axes, as in experiments: {grid: {requests.arrivals.rate: [1/s, 2/s], scheduler.name: [vllm_v1, sglang]}}.
    sweep: AxesSpec | None = None

    @property
    def pools(self) -> tuple[SideSpec, ...]:
        """Engines that serve, those that prefill first."""
        return tuple(self.sides.values())

    @property
    def sides(self) -> dict[str, SideSpec]:
        """``prefill`` and ``decode`` → their engines; ``""`` → those that do both."""
        given = self.disaggregated
        if given == "none":
            return {"": SideSpec(parallel=self.parallel, instances=self.instances)}
        both = {"prefill": given.prefill, "decode": given.decode}
        return {name: side for name, side in both.items() if isinstance(side, SideSpec)}

    @model_validator(mode="after")
    def _check_load(self) -> "ServeSpec":
        drawn = self.requests.trace is None and self.requests.prefixes is None and self.requests.sessions is None
        if self.scheduler.balance in schedulers.BY_HASHES and drawn:
            what = (
                f"{self.scheduler.balance} asks for shared prefixes, of a trace with hash ids or of requests.prefixes; "
                "give least_loaded"
            )
            raise KeyProblem(("scheduler", "balance"), what)
        self._refuse_drafts()
        self._refuse_unordered()
        self._refuse_faults()
        self._refuse_offload()
        self._refuse_shared_prompts()
        if self.kv_store != "none" and not self.scheduler.prefix_caching:
            raise KeyProblem(("kv_store",), "keeps prefixes, and scheduler.prefix_caching is false. Leave one out")
        if self.kv_store != "none" and self.disaggregated != "none" and self.disaggregated.prefill == "none":
            what = "keeps KV of prompts, but with disaggregated.prefill: none requests bring it. Leave it out"
            raise KeyProblem(("kv_store",), what)
        if self.kv_store != "none" and drawn:
            what = "keeps prefixes, but these requests share none. Give requests.sessions or prefixes, or a trace"
            raise KeyProblem(("kv_store",), what)
        closed = self.requests.concurrency is not None
        wrong, right = ("rates", "clients") if closed else ("clients", "rates")
        if getattr(self.loads, wrong):
            what = "a closed loop has clients" if closed else "requests that arrive by themselves have rates"
            raise KeyProblem(("loads", wrong), f"{what}. Give {right}")
        if self.loads.inputs and self.requests.trace is not None:
            raise KeyProblem(("loads", "inputs"), "a trace has lengths. Leave inputs out, or generate requests")
        if self.experts_on is not None:
            where = ("disaggregated", "decode", "experts_on")
            if not isinstance(self.routing, RoutingSpec):
                raise KeyProblem(where, "experts_on needs tokens from traffic. Give routing: {like: model}")
            if self.speculation != "none":
                raise KeyProblem(where, "drafts across two sides are not modelled. Give speculation: none")
            if self.static_batch is not None:
                raise KeyProblem(where, "a static batch prefills, which experts_on does not model. Leave one out")
        return self

    def _refuse_drafts(self) -> None:
        most, given = max(self.search.draft_tokens, default=0), self.speculation
        if not most:
            return
        where = "search", "draft_tokens"
        if given == "none":
            what = "how many drafts are accepted is not known. Give speculation: {draft_tokens: 1, acceptance: 0.8}"
            raise KeyProblem(where, what)
        if given.tree is not None:
            raise KeyProblem(where, "a tree (speculation.tree) says how deep drafts are. Leave one out")
        if isinstance(given.acceptance, tuple) and len(given.acceptance) < most:
            what = f"{most} drafts, and speculation.acceptance has {len(given.acceptance)} rates. Give one for each"
            raise KeyProblem(where, what)

    def _refuse_unordered(self) -> None:
        order, classes = self.scheduler.order, self.requests.classes
        if order == "priority" and len({each.priority for each in classes}) < 2:
            what = "needs requests.classes with different priorities. Give arrival"
            raise KeyProblem(("scheduler", "order"), f"priority {what}")
        limits = [each.ttft_ns or self.slo.ttft_ns for each in classes] or [self.slo.ttft_ns]
        if order == "deadline" and (None in limits or len(set(limits)) < 2):
            what = "deadline needs requests.classes with limits `ttft` that differ; one limit is the order of arrival"
            raise KeyProblem(("scheduler", "order"), what)

    def _refuse_faults(self) -> None:
        if not self.faults:
            return
        if self.disaggregated != "none":
            raise KeyProblem(("faults",), "requests that return from decodes to prompts are not modelled. Leave it out")
        if isinstance(self.routing, RoutingSpec):
            what = "the placement of experts from traffic on fewer ranks is not modelled. Give routing: uniform"
            raise KeyProblem(("faults",), what)
        for at, each in enumerate(self.faults):
            ranks = self.parallel.attention.dp
            if each.engine >= self.instances or each.rank >= ranks:
                what = f"there are {self.instances} engines of {ranks} ranks; they are counted from 0 on"
                raise KeyProblem(("faults", at), what)
            if each.elastic and ranks == 1:
                what = "no other rank of the engine could go on. Give elastic: false, or attention dp above 1"
                raise KeyProblem(("faults", at, "elastic"), what)

    def _refuse_offload(self) -> None:
        if self.expert_offload == "none":
            return
        for odd, what in (
            (isinstance(self.routing, RoutingSpec), "policies that move experts (routing from traffic)"),
            (self.experts_on is not None, "experts on separate devices (experts_on)"),
            (any(side.parallel.pp > 1 for side in self.pools), "a pipeline (parallel.pp)"),
            (self.speculation != "none", "speculation"),
            (self.static_batch is not None, "a static batch"),
            (any(each.elastic for each in self.faults), "ranks that fail and leave their experts to others (faults)"),
        ):
            if odd:
                raise KeyProblem(("expert_offload",), f"with {what} is not modelled. Leave one of them out")

    def _refuse_shared_prompts(self) -> None:
        for name, side in self.sides.items():
            attention = side.parallel.attention
            if attention.prompts == "own":
                continue
            where = ("disaggregated", name, "parallel", "attention") if name else ("parallel", "attention")
            if name != "prefill":
                what = "ranks that share prompts keep copies of their KV, with which nobody decodes; give it to "
                what += "engines that only prefill (disaggregated.prefill), or give own"
                raise KeyProblem((*where, "prompts"), what)
            for odd, what in (
                (attention.context > 1, "context above 1"), (side.parallel.pp > 1, "a pipeline (pp)"),
                (isinstance(self.routing, RoutingSpec), "routing from traffic"),
                (self.speculation != "none", "speculation"),
            ):  # fmt: skip
                if odd:
                    raise KeyProblem((*where, "prompts"), f"shared prompts with {what} are not modelled. Give own")

    @property
    def experts_on(self) -> ExpertsOnSpec | None:
        return None if self.disaggregated == "none" else self.disaggregated.decode.experts_on
