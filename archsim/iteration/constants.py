"""Fitted constants of serving engines: the time of their host, and how far laws and served points are off."""

from functools import lru_cache
from math import prod
from typing import Annotated, NamedTuple, TypedDict

import numpy as np

from archsim.base import fields, validation, yaml
from archsim.base.config_files import search_folders
from archsim.base.errors import SpecError
from archsim.base.quantities import TIME, count, quantity
from archsim.iteration.layers import has_experts
from archsim.model.spec import ModelSpec


class OfRequests(TypedDict):
    """As in ``Host``."""

    request_ns: float
    front_end_ns: float
    first_after: int


class Host(NamedTuple):
    """Time of the host, and factors on the laws of kernels."""

    iteration_ns: float = 0.0  # of an iteration
    sequence_ns: float = 0.0  # of each request in an iteration
    prompt_ns: float = 0.0  # of an iteration that no captured graph covers
    request_ns: float = 0.0  # once a request before it is queued, side by side
    front_end_ns: float = 0.0  # once a request before that, one after the other
    captured: int = 0  # most tokens of a rank in a graph with prompts; 0: graphs cover decodes alone
    # iterations of its engine after which a client sees a first token, its own among them; it sees all tokens as
    # late
    first_after: int = 1
    experts: float = 1.0  # time of routed experts relative to their law
    decodes: float = 1.0  # of all that laws give in iterations without prompts
    prompts: float = 1.0  # of all that laws give in iterations with prompts
    handoff_ns: float = 0.0  # of a request between engines that prefill and decode
    products: float = 1.0  # time of products relative to their laws
    attention: float = 1.0  # time of attention relative to its laws
    moves: float = 1.0  # time of dispatch, combine and collectives relative to their laws

    @property
    def as_written(self) -> str:
        """The host as a file of ``archsim serve`` writes it; times below a nanosecond are 0."""
        names = ("iteration", "sequence", "prompt", "request", "front_end")
        times = {name: getattr(self, f"{name}_ns") for name in names}
        each = [f"{name}: {ns / 1e6 if ns >= 1 else 0:.4g} ms" for name, ns in times.items()]
        factors = [f"{name}: {getattr(self, name):.4g}" for name in ("decodes", "prompts")]
        return f"{{{', '.join([*each, f'first_after: {self.first_after}', *factors])}}}"

    def of_iterations(self, most_requests: int) -> np.ndarray:
        """As in ``StepTable``. The largest captured graph has twice the requests of a batch, up to ``captured`` (vLLM
        v0.10 to v0.19, vllm/config: cuda_graph_sizes and max_cudagraph_capture_size, min(2 x max_num_seqs, 512)).
        """
        graph = float(min(self.captured, 2 * most_requests))
        return np.array([self.iteration_ns, self.sequence_ns, self.prompt_ns, graph, self.decodes, self.prompts])

    @property
    def of_requests(self) -> OfRequests:
        """What ``simulate`` charges requests, by its names."""
        return OfRequests(request_ns=self.request_ns, front_end_ns=self.front_end_ns, first_after=self.first_after)


NO_HOST = Host()


NONE, ANY = "none", "any"
PREFILL, DECODE = "prefill", "decode"  # engines that only prefill, or only decode
Time = Annotated[float, quantity(TIME, "0 ns", "1000 s", zero=True)]


class HostRow(fields.Spec):
    """Constants of an engine with MoE or dense models. ``iteration``, and ``layer`` for each layer: of every iteration;
    ``eager_layer``: of a layer, in one that no captured graph covers; ``captured``, ``front_end``: as in ``Host``;
    ``first_after``: engines choose an iteration while the one before runs, and send its tokens when the next one is
    over; ``handoff``: of a request that goes from an engine that prefills to one that decodes.
    """

    engine: str
    experts: bool
    iteration: Time
    layer: Time
    sequence: Time
    eager_layer: Time
    request: Time
    front_end: Time
    captured: Annotated[int, count(0, 1_000_000)]
    first_after: Annotated[int, count(1, 1000)]
    handoff: Time = 0.0


class FactorRow(fields.Spec):
    """Times relative to their laws, of what has these keys, each a name or ``any``; rows multiply. ``dtype``: of
    experts, or of a dense model's products; ``shape``: of the model, as in `shape_of`; ``routed``: of routed experts;
    ``decodes``, ``prompts``: of all that laws give in iterations without and with prompts; ``request``: of the engine's
    constant of that name.
    """

    engine: str = ANY
    experts: bool
    gpu: str = ANY
    dtype: str = ANY
    shape: str = ANY
    routed: float = 1.0
    decodes: float = 1.0
    prompts: float = 1.0
    request: float = 1.0

    def of(self, **keys: str | bool) -> bool:
        return all(getattr(self, name) in (value, ANY) for name, value in keys.items())


class PoolRow(fields.Spec):
    """Engines that prefill and others that decode, of what has these keys, each a name or ``any``; rows multiply.
    ``decodes``: of all of an iteration of those that decode, relative to an engine's that does both; that of a GPU is
    one of its kernels, and of what laws give those that prefill, too; ``prompts``: of all that laws give these. In
    place of the engine's own, where they are given: ``request``, ``handoff``, and ``first_after``, of iterations that
    decode: a first token comes with those of a decoding engine, which streams several at a time.
    """

    engine: str = ANY
    gpu: str = ANY
    dtype: str = ANY
    # Whether ranks have requests of their own; null: either.
    data_parallel: bool | None = None
    decodes: float = 1.0
    prompts: float = 1.0
    request: Time | None = None
    handoff: Time | None = None
    first_after: Annotated[int | None, count(1, 1000, none=True)] = None

    def of(self, dp: int, **keys: str) -> bool:
        same = self.data_parallel in (None, dp > 1)
        return same and all(getattr(self, name) in (value, ANY) for name, value in keys.items())


class ResidualRow(fields.Spec):
    """80 % of measured times, relative to simulated ones, of an engine with MoE or dense models on a GPU with experts
    (products) of a dtype; ``any``: of the engine on all. ``groups``: of measurements, on which constants were fitted.
    ``pools``: of engines that prefill and others that decode; else of those that do both. ``unseen``: of a source that
    no constant was fitted to, whose versions and clients are others; of a GPU that it has, else of those with constants
    (``any``), or of one that nobody measured under the engine (``unmeasured``).
    """

    engine: str
    experts: bool
    gpu: str
    dtype: str
    groups: Annotated[int, count(1, 1_000_000)]
    ttft: tuple[float, float]
    tpot: tuple[float, float]
    pools: bool = False
    unseen: bool = False
    unmeasured: bool = False


class HostFile(fields.Spec):
    """``groups``: of measurements, as many as the constants were fitted on. ``versions``: of engines in them."""

    source: str
    groups: int
    hosts: tuple[HostRow, ...]
    factors: tuple[FactorRow, ...]
    pools: tuple[PoolRow, ...] = ()
    residuals: tuple[ResidualRow, ...] = ()
    versions: dict[str, tuple[str, ...]] = {}


@lru_cache
def host_file() -> HostFile:
    """The shipped constants. Raises SpecError."""
    for folder in search_folders("serving", None):
        if (folder / "hosts.yaml").is_file():
            return validation.validate(HostFile, yaml.read_yaml(folder / "hosts.yaml", "configs/serving/hosts.yaml"))
    raise SpecError("configs/serving/hosts.yaml is missing")


def shape_of(model: ModelSpec) -> str:
    """What a model's kernels depend on, whatever its name: ``256/8 7168x2048 latent`` is a top 8 of 256 experts, the
    hidden size and the FFN of an expert (or of a dense model), and the kinds of attention.
    """
    kinds = dict.fromkeys(kind.kind for kind, _ in model.attention_layers) if model.attention else {}
    return f"{model.experts}/{model.top_k} {model.hidden}x{model.expert_ffn} {'+'.join(kinds)}"


def engines(known: HostFile | None = None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.engine for row in (known or host_file()).hosts))


def host_of(
    engine: str, model: ModelSpec, gpu: str, experts: str, products: str, known: HostFile | None = None,
    pool: str = "", dp: int = 1,
) -> Host:  # fmt: skip
    """The constants of an engine that serves a model on a GPU, with experts and products of these dtypes; for the
    engine ``none`` no times, and of each factor on kernels the least of all engines, where one is below 1. ``known``:
    in place of the shipped ones; ``pool``: PREFILL or DECODE of an engine that does one of both, with ``dp`` ranks of
    data-parallel attention.
    """
    moe, known = has_experts(model), known or host_file()
    if engine == NONE:
        each = [host_of(name, model, gpu, experts, products, known, pool, dp) for name in engines(known)]
        least = ("experts", "decodes", "prompts")
        return Host(**{name: min(1.0, *(getattr(host, name) for host in each)) for name in least})
    row = next(each for each in known.hosts if (each.engine, each.experts) == (engine, moe))
    dtype, shape = experts if moe else products, shape_of(model)
    factors = [each for each in known.factors if each.of(engine=engine, experts=moe, gpu=gpu, dtype=dtype, shape=shape)]
    pools = [each for each in known.pools if each.of(dp, engine=engine, gpu=gpu, dtype=dtype)] if pool else []
    alone = prod(each.decodes for each in pools) if pool == DECODE else 1.0
    kernels = (
        prod(each.prompts * (1.0 if each.gpu == ANY else each.decodes) for each in pools) if pool == PREFILL else 1.0
    )

    def own(name: str, otherwise: float) -> float:
        return next((value for each in pools if (value := getattr(each, name)) is not None), otherwise)

    return Host(
        alone * (row.iteration + row.layer * model.layers),
        alone * row.sequence,
        row.eager_layer * model.layers,
        own("request", row.request * prod(each.request for each in factors)),
        row.front_end,
        row.captured,
        int(own("first_after", row.first_after)),
        experts=prod(each.routed for each in factors),
        decodes=alone * prod(each.decodes for each in factors),
        prompts=kernels * prod(each.prompts for each in factors),
        handoff_ns=own("handoff", row.handoff),
    )


def residual_of(
    engine: str, model: ModelSpec, gpu: str, experts: str, products: str, pools: bool = False, version: str | None = ""
) -> ResidualRow | None:
    """How far measurements of such an engine are from what is simulated: its own cell's, else the engine's on a GPU
    that is left out, else, of ``pools``, those of all. None where there are none. ``version``: of the engine; None, or
    one that was not measured: those of a source that is left out, wider for a GPU or dtype that nobody measured; '':
    within a source, as options are compared.
    """
    moe = has_experts(model)
    known = [row for row in host_file().residuals if row.experts == moe]
    there = [row for row in known if row.pools == pools and not row.unseen]
    elsewhere = version != "" and (version or "").lstrip("v") not in host_file().versions.get(engine, ())
    mine = [row for row in there if row.engine == engine] or [row for row in there if row.engine == ANY]
    asked = (gpu, experts if moe else products)
    if elsewhere and mine and engine != NONE:
        seen = gpu if any(row.unseen and row.gpu == gpu for row in known) else ANY
        lacks = seen == ANY and not any((row.engine, row.gpu, row.dtype) == (engine, *asked) for row in known)
        return next((row for row in known if row.unseen and (row.gpu, row.unmeasured) == (seen, lacks)), None)
    return next((row for each in (asked, (ANY, ANY)) for row in mine if (row.gpu, row.dtype) == each), None)
