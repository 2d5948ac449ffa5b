"""A model as a visible list of layer programs: (number, operators), each with the cause that it counts for.

Weights are split as Megatron-LM does (Shoeybi et al., arXiv 1909.08053): projections into heads and the first FFN
product by columns, projections out of heads and the second FFN product by rows, with one all-reduce after each.
`archsim.iteration.times` gives operators their ns.
"""

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from archsim.base import errors, sums
from archsim.iteration import attention, rank_memory
from archsim.model.attention import AttentionKind, by_layer
from archsim.model.spec import KeptPart, ModelSpec
from archsim.specs.deployment import Parallelism, Precision

ATTENTION, PROJECTIONS, DENSE_FFN, ROUTER, SHARED = "attention", "projections", "dense_ffn", "router", "shared"
EXPERTS, DISPATCH, COMBINE, ALL_REDUCE = "experts", "dispatch", "combine", "all_reduce"
ELEMENTWISE, LM_HEAD, SAMPLING, HOST = "elementwise", "lm_head", "sampling", "host"
# What the time of an iteration is counted as; every reader asks for a cause by name.
CAUSES = (
    *(ATTENTION, PROJECTIONS, DENSE_FFN, ROUTER, ELEMENTWISE, ALL_REDUCE),
    *(LM_HEAD, SAMPLING, SHARED, DISPATCH, EXPERTS, COMBINE, HOST),
)
OF_ROUTED = (DISPATCH, EXPERTS, COMBINE)  # what ranks do together
ONCE = (LM_HEAD, SAMPLING, HOST)  # of a whole batch, whatever its layers and its halves do
# What an operator's time depends on: all tokens, those of decodes or of prompts, and requests that get a token.
TOKENS, DECODES, PROMPTS, SAMPLED = "tokens", "decode", "prefill", "sampled"
# How ranks exchange what experts take and give: all have all tokens and reduce what comes of them; each gathers the
# tokens of all and scatters their results; or transfers that are timed elsewhere.
REDUCED, GATHERED, ELSEWHERE = "reduced", "gathered", "elsewhere"

ACTIVATION_BYTES = 2  # hidden vectors are BF16
LOGIT_BYTES = SUM_BYTES = 4  # FP32
# Memory-bound kernels, as passes over a vector of each token: an RMS norm reads the hidden vector and the residual and
# writes both; SwiGLU reads two FFN vectors and writes one, without a gate it is one of each.
NORM_PASSES = 4
# Sampling reads logits for temperature, softmax and choice: a pass for each of them, and one to write.
SAMPLING_PASSES, SAMPLING_KERNELS = 4, 4


class Attention(NamedTuple):
    """The kernels of one attention on a rank, without its projections."""

    kind: attention.Kind
    cause: str = ATTENTION
    rows: str = TOKENS


class LayerProduct(NamedTuple):
    """A product with k x n weights on a rank."""

    cause: str  # that it counts for
    n: int  # columns of the weights
    k: int  # rows of the weights
    rows: str = TOKENS  # what its rows are
    sharing: int = 1  # ranks of a group, each with its share of the rows
    part: KeptPart | None = None  # of a checkpoint, which may leave it in BF16; None: always in BF16

    @property
    def weights(self) -> int:
        """Those of a decode are the prompts' (`archsim.iteration.grouped`)."""
        return 0 if self.rows == DECODES else self.n * self.k


class Stream(NamedTuple):
    """Memory-bound kernels: launches, and the bytes that they move a row."""

    cause: str
    kernels: int
    row_bytes: int
    rows: str = TOKENS


class Collective(NamedTuple):
    """Bytes that ranks exchange."""

    cause: str  # that it counts for
    op: str  # name of the collective
    row_bytes: int  # bytes of every row
    ranks: int  # that take part
    rows: str = TOKENS  # what its rows are


class RoutedExperts(NamedTuple):
    """The routed experts of one layer."""

    cause: str = EXPERTS
    rows: str = TOKENS


Operator = Attention | LayerProduct | Stream | Collective | RoutedExperts


class Layers(NamedTuple):
    """``number`` layers of the same operators, in order."""

    number: int
    operators: tuple[Operator, ...]


def has_experts(model: ModelSpec) -> bool:
    """False for a dense model, which is one of a single expert."""
    return model.experts > 1


def attentions(model: ModelSpec) -> list[tuple[attention.Kind, int]]:
    """Kinds of attention and how many of each the model has. Raises SpecError for one that only counts memory."""
    return [(_check_kind(model, kind), layers) for kind, layers in model.attention_layers]


def kind_of_attention(model: ModelSpec) -> str:
    """Kind of kernels of most of its attentions, as widths of measured laws have it (`archsim.specs.uncertainty`)."""
    known = model.attention is not None and not model.missing_geometry
    kind = max(model.attention_layers, key=lambda each: each[1])[0] if known else None
    if not isinstance(kind, attention.Kind) or kind.measured_as is None:
        return "attention"
    return "sparse" if attention.attention_blocks.BLOCK in kind.measured_parts else "linear"


def program(
    model: ModelSpec, parallel: Parallelism, apart: Collection[attention.Kind] = (), moves: str | None = None
) -> tuple[Layers, ...]:
    """The layers of a model on one rank, those that are the same together, and last what follows them once. ``apart``:
    attentions whose projections are in their kernels; ``moves``: REDUCED, GATHERED or ELSEWHERE; null: reduced unless
    groups of ranks have requests of their own. Raises SpecError.
    """
    moves = moves or (GATHERED if parallel.dp > 1 else REDUCED)
    moe, dense = set(model.moe_layer_ids), set(model.dense_in.ids if model.dense_in is not None else ())
    same: dict[tuple, list[tuple[int, AttentionKind | None]]] = {}
    for layer, kind in enumerate(by_layer(model.attention or (), model.layers)):
        same.setdefault((id(kind), layer in moe, layer in dense), []).append((layer, kind))
    found: Counter[tuple[Operator, ...]] = Counter()
    for (layer, kind), *others in same.values():
        found[*_attention(model, kind, parallel, apart), *_ffns(model, layer, parallel, moves)] += 1 + len(others)
    head = Layers(1, _head(model, parallel.tp))
    return (*(Layers(number, operators) for operators, number in found.items()), head)


def count_operators(layers: Collection[Layers], one_dtype: bool = False) -> dict[Operator, int]:
    """Every operator and how often it runs; memory-bound kernels of one cause and size are one operator, and so are,
    with ``one_dtype`` of all parts, products of one size.
    """
    found: Counter[Operator] = Counter()
    kernels: Counter[tuple[str, str]] = Counter()
    moved: Counter[tuple[str, str]] = Counter()
    for number, operators in layers:
        for each in operators:
            if isinstance(each, Stream):
                kernels[each.cause, each.rows] += number * each.kernels
                moved[each.cause, each.rows] += number * each.row_bytes
            elif one_dtype and isinstance(each, LayerProduct) and each.part is not None:
                found[each._replace(part="dense_ffn")] += number
            else:
                found[each] += number
    streams = (Stream(cause, kernels[cause, rows], moved[cause, rows], rows) for cause, rows in kernels)
    return dict(found) | dict.fromkeys(streams, 1)


def dtype_of(product: LayerProduct, precision: Precision) -> str:
    """The dtype of a product's weights. Routers and output layers are in BF16."""
    return "bf16" if product.part is None else precision.of(product.part)


def row_flop(model: ModelSpec, parallel: Parallelism) -> dict[tuple[str, str], float]:
    """(rows, cause) → FLOP of the products of a row."""
    found: dict[tuple[str, str], float] = {}
    for each, number in count_operators(program(model, parallel)).items():
        if isinstance(each, LayerProduct):
            key = each.rows, each.cause
            found[key] = found.get(key, 0.0) + 2.0 * each.n * each.k * number / each.sharing
    return found


def before_attention(model: ModelSpec, parallel: Parallelism) -> float:
    """Share of the projections that come before attention, by their weights."""
    weights = {
        each: number * each.weights
        for each, number in count_operators(program(model, parallel)).items()
        if isinstance(each, LayerProduct) and each.cause == PROJECTIONS
    }
    after = sums.sum(found for each, found in weights.items() if each.part != "attention_inputs")
    return 1 - after / sums.sum(weights.values())


def _check_kind(model: ModelSpec, kind: AttentionKind) -> attention.Kind:
    if not isinstance(kind, attention.Kind):
        raise errors.SpecError(f"{model.name}: attention of kind {kind.kind} has no times; let its class extend Kind")
    return kind


def _attention(
    model: ModelSpec, given: AttentionKind | None, parallel: Parallelism, apart: Collection[attention.Kind]
) -> tuple[Operator, ...]:
    if given is None:
        return ()
    kind, tp = _check_kind(model, given), parallel.tp
    found: list[Operator] = [_norm(model)]
    if kind not in apart:
        found += [
            LayerProduct(PROJECTIONS, each.n, each.k, each.rows, part=each.part)
            for each in kind.products(model.hidden, tp)
        ]
        beside = kind.streams(tp)
        found.append(Stream(ELEMENTWISE, beside.kernels, beside.values * ACTIVATION_BYTES))
    return (*found, Attention(kind), *_of_context(kind, parallel), *_all_reduce(model, tp)) * kind.per_layer


def _of_context(kind: attention.Kind, parallel: Parallelism) -> tuple[Operator, ...]:
    """What ranks that share the tokens of a request exchange in a decode: queries of all their heads before, and after
    it partial outputs in BF16 with the logarithm of their sums in FP32 (vLLM, v1/attention/ops/common.py:
    cp_lse_ag_out_rs; Helix, arXiv 2507.07120, section 2.2).
    """
    if parallel.context == 1:
        return ()
    query, output = kind.context_values(parallel.tp // parallel.context)
    heads = kind.split_heads * parallel.context // parallel.tp
    back = output * ACTIVATION_BYTES + heads * SUM_BYTES
    return (
        Collective(ALL_REDUCE, "all_gather", query * ACTIVATION_BYTES, parallel.context, DECODES),
        Collective(ALL_REDUCE, "reduce_scatter", back, parallel.context, DECODES),
    )


def _ffns(model: ModelSpec, layer: int, parallel: Parallelism, moves: str) -> tuple[Operator, ...]:
    moe = layer in model.moe_layer_ids
    dense = model.dense_in.ids if model.dense_in is not None else () if moe else (layer,)
    found: list[Operator] = []
    if layer in dense and model.dense_ffn:
        one = (*_ffn(model, DENSE_FFN, model.dense_ffn, parallel.tp), *_all_reduce(model, parallel.tp))
        found += (_norm(model), *one) * model.dense_per_layer
    if moe and not has_experts(model):
        found += (
            _norm(model),
            *_ffn(model, DENSE_FFN, model.expert_ffn, parallel.tp),
            *_all_reduce(model, parallel.tp),
        )
    elif moe:
        found += [] if found else [_norm(model)]  # one norm where both work on the same vector
        found.append(LayerProduct(ROUTER, model.experts + model.zero_experts, model.hidden))
        if (latent := model.expert_hidden) is not None:  # to and from the vectors of experts, whole on every rank
            widths = (latent, model.hidden), (model.hidden, latent)
            found += [LayerProduct(PROJECTIONS, n, k, part="dense_ffn") for n, k in widths]
        divided = rank_memory.shared_ranks(parallel)
        found += _ffn(model, SHARED, model.shared_experts * model.shared_ffn, divided, parallel.tp // divided)
        found += _routed_experts(model, parallel, moves)
    return tuple(found)


def _ffn(model: ModelSpec, cause: str, width: int, ranks: int, sharing: int = 1) -> tuple[Operator, ...]:
    mine, before = _share(width, ranks), model.slices - 1  # up, and gate where there is one: both read, one written
    part: KeptPart = "shared_experts" if cause == SHARED else "dense_ffn"
    if not mine:
        return ()
    return (
        LayerProduct(cause, before * mine, model.hidden, sharing=sharing, part=part),
        Stream(ELEMENTWISE, 1, (before + 1) * _share(mine, sharing) * ACTIVATION_BYTES),
        LayerProduct(cause, model.hidden, mine, sharing=sharing, part=part),
    )


def _routed_experts(model: ModelSpec, parallel: Parallelism, moves: str) -> tuple[Operator, ...]:
    if moves == REDUCED:
        return (RoutedExperts(), *_all_reduce(model, parallel.tp))
    if moves == ELSEWHERE:
        return (RoutedExperts(),)
    row_bytes = parallel.dp * model.expert_width * ACTIVATION_BYTES
    return (
        Collective(DISPATCH, "all_gather", row_bytes, parallel.ranks),
        RoutedExperts(),
        Collective(COMBINE, "reduce_scatter", row_bytes, parallel.ranks),
    )


def _head(model: ModelSpec, tp: int) -> tuple[Operator, ...]:
    """The output layer, split over the vocabulary; logits are gathered."""
    vocabulary = model.vocabulary or 0
    gathered = Collective(LM_HEAD, "all_gather", vocabulary * ACTIVATION_BYTES, tp, SAMPLED)
    return (
        LayerProduct(LM_HEAD, _share(vocabulary or 1, tp), model.hidden, SAMPLED),
        *((gathered,) if tp > 1 else ()),
        Stream(SAMPLING, SAMPLING_KERNELS, SAMPLING_PASSES * vocabulary * LOGIT_BYTES, SAMPLED),
    )


def _norm(model: ModelSpec) -> Stream:
    return Stream(ELEMENTWISE, 1, NORM_PASSES * model.hidden * ACTIVATION_BYTES)


def _all_reduce(model: ModelSpec, tp: int) -> tuple[Operator, ...]:
    return (Collective(ALL_REDUCE, ALL_REDUCE, model.hidden * ACTIVATION_BYTES, tp),) if tp > 1 else ()


def _share(width: int, ranks: int) -> int:
    return -(-width // ranks)
