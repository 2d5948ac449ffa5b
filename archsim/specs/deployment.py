"""How a model is spread over devices, and which number formats it computes in. Experiments and serve files share these
keys.

parallel: {attention: {tp: 4, dp: 2}, experts: {ep: 8}}
precision: {products: fp8_block, kv: fp8}
"""

from collections.abc import Callable, Iterator
from functools import partial
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple

from pydantic import model_validator

from archsim.base.errors import SpecError
from archsim.base.fields import KeyProblem, Spec
from archsim.base.quantities import count
from archsim.model.attention import AttentionKind
from archsim.model.spec import KeptPart, ModelSpec
from archsim.specs.serving_terms import ServingSpec

Products = Literal["bf16", "fp8", "fp8_block", "nvfp4", "int4"]
Experts = Literal["bf16", "fp8", "fp8_block", "nvfp4", "mxfp4", "mxfp4_mxfp8", "int4"]
Cache = Literal["bf16", "fp8"]


class Parallelism(NamedTuple):
    """Ranks of one engine. ``tp``: ranks that share the heads of a request; ``dp``: groups of ``tp`` ranks with
    requests of their own; ``ep`` x ``expert_tp`` = ``tp`` x ``dp``: ranks that share experts, and each expert.
    """

    tp: int = 1  # ranks that share the heads of a request
    dp: int = 1  # groups of ``tp`` ranks with requests of their own
    ep: int = 1  # ranks that share the experts
    expert_tp: int = 1  # ranks that share each expert; ``ep`` x ``expert_tp`` = ``tp`` x ``dp``
    context: int = 1  # ranks that share the context of a request
    stages: int = 1  # of the pipeline

    @property
    def ranks(self) -> int:
        """Devices of an engine, or of each of its pipeline's stages."""
        return self.tp * self.dp


class Precision(NamedTuple):
    """dtypes of products (the router's is bf16), of attention and of its KV cache, and of experts. ``kept``: parts of
    which products are in BF16 (`archsim.model.spec.KeptPart`).
    """

    products: str = "bf16"
    attention: str = "bf16"
    kv: str = "bf16"
    experts: str = "bf16"
    kept: tuple[str, ...] = ()

    def of(self, part: str) -> str:
        return "bf16" if part in self.kept else self.products

    @property
    def kept_words(self) -> str:
        """``, attention inputs in BF16``; '' where all products have one dtype."""
        return "".join(f", {each.replace('_', ' ')} in BF16" for each in self.kept)


ALONE, BF16 = Parallelism(), Precision()


class AttentionRanks(ServingSpec):
    """``tp``: ranks that share the heads of a request; ``dp``: groups of them with requests of their own."""

    tp: Annotated[int, count(1, 4096)] = 1
    dp: Annotated[int, count(1, 4096)] = 1
    # Of the tp ranks, so many share the tokens of a request where they would hold copies of its keys and values:
    # decode context parallelism (vLLM's --decode-context-parallel-size), Helix.
    context: Annotated[int, count(1, 4096)] = 1
    # Of groups that only prefill: own, each group has prompts of its own; shared, all groups share the tokens of each
    # prompt (prefill context parallelism: vLLM's --prefill-context-parallel-size, SGLang's --attn-cp-size).
    prompts: Literal["own", "shared"] = "own"

    @model_validator(mode="after")
    def _check_shares(self) -> "AttentionRanks":
        if self.tp % self.context:
            what = f"{self.context} ranks share the tokens of a request, which does not divide tp {self.tp}"
            raise KeyProblem(("context",), what)
        return self


class ExpertRanks(ServingSpec):
    """``ep``: ranks that share experts; ``tp``: ranks that share each expert. Their product is that of attention."""

    ep: Annotated[int, count(1, 4096)] = 1
    tp: Annotated[int, count(1, 4096)] = 1


class ParallelSpec(ServingSpec):
    """Ranks of one engine."""

    attention: AttentionRanks = AttentionRanks()
    # Null: every rank holds its share of the experts (ep = tp x dp of attention).
    experts: ExpertRanks | None = None
    # Stages of a pipeline, each with its part of the layers on ranks of its own.
    pp: Annotated[int, count(1, 4096)] = 1
    # Attention and experts on different devices: see `disaggregated.decode.experts_on` of a serve file.
    disaggregated: Literal["none", "attention_ffn"] = "none"

    @model_validator(mode="after")
    def _check_modelled_keys(self) -> "ParallelSpec":
        if self.disaggregated != "none":
            raise KeyProblem(
                ("disaggregated",),
                "attention and experts on separate devices are a side of a serve file. Give disaggregated: "
                "{prefill: none, decode: {parallel: ..., experts_on: {system: ...}}}",
            )
        given = self.experts
        if given is not None and given.ep * given.tp != self.ranks:
            raise KeyProblem(
                ("experts",),
                f"ep {given.ep} x tp {given.tp} is not the {self.ranks} ranks of attention (tp {self.attention.tp} x "
                f"dp {self.attention.dp}). Give experts an ep and a tp whose product is {self.ranks}",
            )
        return self

    @property
    def ranks(self) -> int:
        """Devices of an engine, or of each of its pipeline's stages."""
        return self.attention.tp * self.attention.dp

    @property
    def devices(self) -> int:
        return self.ranks * self.pp

    def sizes(self, experts: bool = True) -> Parallelism:
        """The sizes as numbers. Without ``experts``, as for a dense model, they are those of attention."""
        tp, dp, given = self.attention.tp, self.attention.dp, self.experts
        of_experts = (given.ep, given.tp) if given else (self.ranks, 1)
        return Parallelism(tp, dp, *(of_experts if experts else (1, 1)), self.attention.context, self.pp)


class PrecisionSpec(ServingSpec):
    """dtypes of weights and of the KV cache; null: that of the system's compute array, and BF16 for KV."""

    products: Products | None = None
    experts: Experts | None = None
    kv: Cache | None = None
    # Parts whose products are in BF16; null: those that the model's file says of checkpoints in this dtype (kept_bf16).
    bf16: tuple[KeptPart, ...] | None = None

    def dtypes(self, compute: str, model: ModelSpec) -> Precision:
        """The dtypes as names. ``compute``: the dtype of the system's compute array."""
        dtype = "bf16" if compute == "fp16" else compute
        products = self.products or dtype
        kept = model.kept_beside(products) if self.bf16 is None else self.bf16
        return Precision(products, "bf16", self.kv or "bf16", self.experts or products, kept)


class DeploymentSpec(Spec):
    """The deployment of an experiment. With a null ``parallel``, every device has requests of its own and its share of
    the experts.
    """

    parallel: ParallelSpec | None = None
    precision: PrecisionSpec = PrecisionSpec()

    def dtypes(self, compute: str, model: ModelSpec) -> Precision:
        """The given dtypes, else that of the system's compute array; the KV cache is in BF16."""
        return self.precision.dtypes(compute, model)._replace(experts=self.precision.experts or compute)

    def sizes(self, devices: int) -> Parallelism:
        """As numbers, on so many devices."""
        if self.parallel is None:
            return Parallelism(dp=devices, ep=devices)
        return self.parallel.sizes()


def refuse_uneven(model: ModelSpec, parallel: Parallelism, experts: bool = True) -> None:
    """Raise SpecError where sizes do not divide, naming those that would, or where the model lacks its geometry.
    Without ``experts``: attention alone.
    """
    if model.attention is None or model.missing_geometry:
        raise SpecError(f"{model.name}: times of an iteration need {', '.join(model.missing_geometry)}")
    tp, dp, ep, expert_tp, _, stages = parallel
    if min(parallel) < 1:
        raise SpecError(f"parallel sizes are 1 or more, not {tuple(parallel)}")
    if stages > model.layers:
        raise SpecError(
            f"parallel.pp: {stages} stages, and {model.name} has {model.layers} layers, of which a stage has one or "
            f"more. Give pp: {model.layers} at most"
        )
    for heads in dict.fromkeys(kind.split_heads for kind in model.attention if kind.split_heads % tp):
        raise SpecError(f"{model.name}: tp {tp} does not divide {heads} heads: {fitting(heads, tp)}")
    if model.experts == 1 or not experts:
        return
    if ep * expert_tp != parallel.ranks:
        raise SpecError(f"ep {ep} x expert_tp {expert_tp} is not the {parallel.ranks} ranks of tp {tp} x dp {dp}")
    if model.experts % ep:
        fits = fitting(model.experts, ep)
        raise SpecError(
            f"{model.name}: {model.experts} experts are not divided by ep {ep}: {fits}; or serve with routing: "
            "{like: model}, which leaves slots empty"
        )
    if model.expert_ffn % expert_tp:
        fits = fitting(model.expert_ffn, expert_tp)
        raise SpecError(f"{model.name}: experts of {model.expert_ffn} are not divided by expert_tp {expert_tp}: {fits}")


def refuse_cut_blocks(model: ModelSpec, parallel: Parallelism, precision: Precision, experts: bool = True) -> None:
    """Raise SpecError where ranks would cut through blocks of weights that share a scale: vLLM and SGLang refuse such a
    shard when they load it (vllm/model_executor/layers/quantization/fp8.py). Says which sizes would fit. Without
    ``experts``: of what tensor parallelism divides alone.
    """
    tp, _, ep, expert_tp, *_ = parallel
    block = BLOCKS.get(precision.experts)
    if experts and model.experts > 1 and block and expert_tp > 1 and model.expert_ffn // expert_tp % block:
        fits = [
            f"experts: {{ep: {ep * expert_tp // each}, tp: {each}}}"
            for each in range(expert_tp - 1, 0, -1)
            if expert_tp % each == 0 and (each == 1 or not model.expert_ffn % (each * block))
            and not model.experts % (ep * expert_tp // each)
        ]  # fmt: skip
        raise SpecError(
            f"{model.name}: experts in {precision.experts} have a scale for {block} x {block} weights, and tp "
            f"{expert_tp} cuts their {model.expert_ffn:,} into {model.expert_ffn / expert_tp:g}, no multiple of "
            f"{block}; {_choices([*fits, f'other dtypes (precision.experts: {_UNCUT})'])}"
        )
    block = BLOCKS.get(precision.products)
    if not block or tp == 1:
        return
    for what, width in _split_widths(model, parallel):
        if width(tp) % block:
            fewer = [each for each in range(tp - 1, 0, -1) if tp % each == 0]
            fits = [f"tp {each}" for each in fewer if each == 1 or not width(each) % block]
            raise SpecError(
                f"{model.name}: GEMMs in {precision.products} have a scale for {block} x {block} weights, and tp "
                f"{tp} cuts {what} into {width(tp):g}, no multiple of {block}; "
                f"{_choices([*fits[:2], f'other dtypes (precision.products: {_UNCUT})'])}"
            )


# Weights along each side of a block that has one scale (DeepSeek-V3, arXiv 2412.19437, section 3.3.2).
BLOCKS = MappingProxyType({"fp8_block": 128, "fp8_block_bf16": 128})
_UNCUT = "fp8, with one scale a tensor, or bf16"


def _split_widths(model: ModelSpec, parallel: Parallelism) -> Iterator[tuple[str, Callable[[int], float]]]:
    """What tensor parallelism divides → its width on each of so many ranks."""
    if model.dense_layers and (dense := model.dense_ffn):
        yield f"dense_ffn: {dense:,}", lambda ranks: dense / ranks
    whole = parallel.dp > 1 and parallel.ep > 1  # as `archsim.iteration.rank_memory.shared_ranks`
    if model.shared_experts and not whole:
        shared = model.shared_experts * model.shared_ffn
        yield f"the shared experts' {shared:,}", lambda ranks: shared / ranks
    for kind in model.attention or ():
        for name in kind.shard_widths(1):
            yield f"{name} of attention ({kind.shard_widths(1)[name]:,})", partial(_width, kind, name)


def _width(kind: AttentionKind, name: str, ranks: int) -> int:
    return kind.shard_widths(ranks)[name]


def _choices(found: list[str]) -> str:
    return f"{', or '.join(found)} would fit"


def fitting(whole: int, ranks: int) -> str:
    """``64 or 32 fit``: the largest two divisors of ``whole`` up to ``ranks``."""
    found = [each for each in range(min(whole, ranks), 0, -1) if whole % each == 0][:2]
    return f"{' or '.join(map(str, found))} {'fits' if len(found) == 1 else 'fit'}"
