"""The MoE model: the shape of its expert layers, and of attention, dense layers and embeddings."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from archsim.base import errors, fields, quantities, sums
from archsim.model.attention import Attention, AttentionKind, LayerSet, by_layer, count_of_layers
from archsim.model.terms import TERMS

MOST_LAYERS = 10_000  # far above any model; layers are held one by one
SLICES = 3  # of an expert's weights: gate, up and down matrix
# Parts of a checkpoint that may stay in BF16 beside narrower weights; routers, norms, embeddings and the output layer
# always do (DeepSeek-V3, arXiv 2412.19437, section 3.3.1; and every list of excluded modules that was seen). Of
# attention, ``attention_output`` is the product back to the hidden vector.
KeptPart = Literal["attention_inputs", "attention_output", "shared_experts", "dense_ffn"]
UNMODELLED = (
    "its experts have fitted curves alone; serve it with routing: uniform (archsim serve), as the engine runs "
    "experts of three matrices of hidden x expert_ffn"
)


class KeptParts(fields.Spec):
    """What a published checkpoint leaves in BF16."""

    weights: Literal["fp8", "fp8_block", "nvfp4", "int4"]  # dtype of its other products
    parts: tuple[KeptPart, ...]  # in BF16
    # Whose they are, as Hugging Face names it; the first in a dtype stands for others that are not listed.
    checkpoint: str | None = None


class ModelSpec(fields.Spec):
    """Shape of a mixture-of-experts model. An expert is three slices (gate, up, down) of hidden ×
    expert_ffn weights.
    """

    WAYS: ClassVar[Mapping[str, str]] = TERMS
    WHOLE: ClassVar[bool] = True  # terms are whole keys, and no words of longer ones

    name: fields.Name  # of the model
    source: str = Field(min_length=1)  # of its numbers
    # Other names of the model that traces may use.
    aliases: tuple[str, ...] = ()
    layers: Annotated[int, quantities.count(1, MOST_LAYERS)]  # in all
    # Layers with experts: {first: 3, last: 60, every: 1}, or a list.
    moe_layers: LayerSet
    hidden: Annotated[int, quantities.count(1, 1_000_000)]  # values of a hidden vector
    expert_ffn: Annotated[int, quantities.count(1, 1_000_000)]  # inner width of an expert
    # Expert ids are int16 in traces.
    experts: Annotated[int, quantities.count(1, 32767)]
    top_k: Annotated[int, quantities.count(1, 32767)]  # experts that a token is sent to
    # A router limited to the experts of top_groups of the expert_groups groups, which are of equal size, in order of id
    # (DeepSeek-V3, arXiv 2412.19437, section 2.1.2); 1 and 1: not limited.
    expert_groups: Annotated[int, quantities.count(1, 32767)] = 1
    top_groups: Annotated[int, quantities.count(1, 32767)] = 1  # groups that a router chooses from
    shared_experts: Annotated[int, quantities.count(0, 1024)] = 0  # experts that every token passes
    # FFN width of one shared expert.
    shared_ffn: Annotated[int, quantities.count(1, 1_000_000)] = Field(
        default_factory=lambda given: given["expert_ffn"]
    )
    # Experts that return a token as it is, or nothing, and have no weights (LongCat-Flash): the router chooses among
    # them, too.
    zero_experts: Annotated[int, quantities.count(0, 32767)] = 0
    # Size of the vectors that routed experts work on, where two products a layer go there and back (LatentMoE of
    # Nemotron 3); null: hidden.
    expert_hidden: Annotated[int | None, quantities.count(1, 1_000_000, none=True)] = None
    # False: experts and dense FFNs have no gate matrix, up and down alone (ReLU squared).
    gated: bool = True
    # Null: unknown, as for a model without these keys; what they would hold in memory is then not counted.
    attention: Attention = None
    # FFN width of the dense layers; needed if there are any.
    dense_ffn: Annotated[int | None, quantities.count(1, 1_000_000, none=True)] = None
    # Layers with a dense FFN; null: those without experts.
    dense_in: LayerSet | None = None
    # Dense FFNs in each of those layers, one after the other.
    dense_per_layer: Annotated[int, quantities.count(1, 16)] = 1
    # Copies of the hidden vector that pass between layers (hyper-connections of DeepSeek-V4).
    streams: Annotated[int, quantities.count(1, 64)] = 1
    # Rows of the embedding, and of the output layer unless both are one matrix.
    vocabulary: Annotated[int | None, quantities.count(1, 100_000_000, none=True)] = None
    tied_embeddings: bool = False  # embedding and output layer are one matrix
    # Further weights of the embedding: tables of n-grams.
    more_embedding_weights: Annotated[int, quantities.count(0, 10_000_000_000_000)] = 0
    # The longest prompt with its answer, in tokens, that the model takes as published, scaling of its positions
    # included; null: unknown, and no length is refused.
    positions: Annotated[int | None, quantities.count(1, 1_000_000_000, none=True)] = None
    # Up to so many with a scaling that its authors describe and an engine has to be told of, such as YaRN.
    extended_positions: Annotated[int | None, quantities.count(1, 1_000_000_000, none=True)] = None
    # Layers of the checkpoint that predict further tokens (MTP), with which drafts are made; null: unknown.
    mtp_layers: Annotated[int | None, quantities.count(0, 64, none=True)] = None
    # Parts that its published checkpoints leave in BF16, by the dtype of their other products.
    kept_bf16: tuple[KeptParts, ...] = ()
    # What the model has and nothing here reads, as `archsim new --from --accept-approximate` found it.
    approximate: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_attention_a_layer(self) -> "ModelSpec":
        if self.attention:
            try:
                by_layer(self.attention, self.layers)
            except fields.KeyProblem as problem:
                raise fields.KeyProblem(("attention", *problem.keys), str(problem)) from None
        return self

    @field_validator("moe_layers", "extended_positions", "top_k", "top_groups")
    @classmethod
    def _fits_what_is_before(cls, value: Any, info: ValidationInfo) -> Any:
        known = info.data
        match info.field_name:
            case "moe_layers":
                layers = known.get("layers")
                if not value.ids:
                    raise ValueError("is empty; a model has at least one layer with experts")
                if layers is not None and value.last >= layers:
                    raise ValueError(
                        f"last MoE layer {value.last} is out of range; a model of {layers} layers has 0 to {layers - 1}"
                    )
            case "extended_positions":
                positions = known.get("positions")
                if value is not None and (positions is None or value < positions):
                    raise ValueError(
                        f"{value} is less than positions ({positions}); expected what scaling adds to them"
                    )
            case "top_k":
                experts = known.get("experts")
                if experts is not None and value > experts:
                    raise ValueError(f"{value} experts per token exceed the model's {experts} experts")
            case "top_groups":
                groups, experts, top_k = (known.get(name, 1) for name in ("expert_groups", "experts", "top_k"))
                if value > groups or experts % groups or value * (experts // groups) < top_k:
                    raise ValueError(
                        f"{value} of {groups} groups of {experts} experts: expected equal groups, at least as many "
                        f"as are taken, with at least {top_k} experts (top_k) in those taken"
                    )
        return value

    @property
    def moe_layer_ids(self) -> tuple[int, ...]:
        return self.moe_layers.ids

    @property
    def expert_width(self) -> int:
        """Values of the vectors that routed experts take and give."""
        return self.expert_hidden or self.hidden

    @property
    def slice_weights(self) -> int:
        """Number of weights in one of a routed expert's matrices."""
        return self.expert_width * self.expert_ffn

    @property
    def slices(self) -> int:
        """Matrices of an expert or a dense FFN: gate, up and down, or up and down alone."""
        return SLICES if self.gated else SLICES - 1

    @property
    def dense_layers(self) -> int:
        """Number of dense FFNs: one in every layer without experts, unless the model says otherwise."""
        if self.dense_in is not None:
            return len(self.dense_in.ids) * self.dense_per_layer
        return (self.layers - len(self.moe_layer_ids)) * self.dense_per_layer

    @property
    def attention_layers(self) -> tuple[tuple[AttentionKind, int], ...]:
        """Every attention and how many there are, by first layer. Raises SpecError without geometry, as all below."""
        return count_of_layers(self._attention, self.layers)

    @property
    def attention_by_layer(self) -> tuple[AttentionKind | None, ...]:
        """The attention of each layer; None where it has none."""
        return by_layer(self._attention, self.layers)

    @property
    def missing_geometry(self) -> tuple[str, ...]:
        """The keys without which attention, dense layers and embeddings cannot be counted; none if they can."""
        needed = {"attention": self.attention, "vocabulary": self.vocabulary}
        if self.dense_layers:
            needed["dense_ffn"] = self.dense_ffn
        return tuple(key for key, value in needed.items() if value is None)

    @property
    def unmodelled_experts(self) -> tuple[str, ...]:
        """Keys of expert layers that laws of fused layers know and the engine (three matrices) does not run."""
        odd = {"zero_experts": self.zero_experts, "expert_hidden": self.expert_hidden, "gated": not self.gated}
        return tuple(key for key, value in odd.items() if value)

    @property
    def most_positions(self) -> int | None:
        """Tokens of the longest request, with positions scaled where they can be; None: not known."""
        return self.extended_positions or self.positions

    def refuse_longer(self, tokens: float, whose: str) -> None:
        """Raise SpecError for a request of more tokens than `most_positions`."""
        if (most := self.most_positions) is not None and tokens > most:
            raise errors.SpecError(f"{whose}: {tokens:,.0f} tokens, but {self.name} has {most:,} positions. Give fewer")

    def kv_bytes_per_token(self, value_bytes: int = 2) -> float:
        """KV cache of one token in all layers, at 2 bytes a value (BF16) unless said otherwise; windows are ignored."""
        return sums.sum(layers * kind.kv_bytes_per_token(value_bytes) for kind, layers in self.attention_layers)

    def kept_bytes_per_token(self, value_bytes: int = 2) -> float:
        """The part of it that is kept for good, without layers with a window."""
        return sums.sum(layers * kind.kept_bytes_per_token(value_bytes) for kind, layers in self.attention_layers)

    def kv_bytes(self, context: int, value_bytes: int = 2) -> int:
        """KV cache of a request of ``context`` tokens; layers with a window keep no more than that."""
        return sums.sum(layers * kind.kv_bytes(context, value_bytes) for kind, layers in self.attention_layers)

    @property
    def state_bytes(self) -> int:
        """What linear attention keeps of a request, in all layers, however long it is."""
        return sums.sum(layers * kind.state_bytes for kind, layers in self.attention_layers)

    @property
    def attention_weights(self) -> int:
        return sums.sum(layers * kind.weights(self.hidden) for kind, layers in self.attention_layers)

    @property
    def dense_weights(self) -> int:
        """Weights of dense FFNs (``slices`` matrices), products of ``expert_hidden``, routers, hyper-connections."""
        self._refuse_missing()
        ffn = self.dense_layers * self.slices * self.hidden * (self.dense_ffn or 0)
        return ffn + len(self.moe_layer_ids) * 2 * self.hidden * (self.expert_hidden or 0) + self.router_weights

    @property
    def router_weights(self) -> int:
        """Weights of routers and hyper-connections (DeepSeek-V4, inference/model.py), which no checkpoint quantises."""
        n = self.streams
        routers = len(self.moe_layer_ids) * self.hidden * (self.experts + self.zero_experts)
        return routers + ((self.layers * 2 * (2 + n) + 1) * n * n * self.hidden if n > 1 else 0)

    def kept_beside(self, products: str) -> tuple[str, ...]:
        """Parts that stay in BF16 where the other products are in this dtype."""
        return next((each.parts for each in self.kept_bf16 if each.weights == products), ())

    def kept_in(self, checkpoint: str, products: str) -> tuple[str, ...] | None:
        """Parts that stay in BF16 in this checkpoint, with other products in this dtype; None: not listed."""
        asked = checkpoint, products
        return next((each.parts for each in self.kept_bf16 if (each.checkpoint, each.weights) == asked), None)

    @property
    def embedding_weights(self) -> int:
        return self.input_weights + self.output_weights

    @property
    def input_weights(self) -> int:
        """Weights of the embedding, its tables of n-grams included."""
        self._refuse_missing()
        return self.hidden * (self.vocabulary or 0) + self.more_embedding_weights

    @property
    def output_weights(self) -> int:
        """Weights of the output layer; 0 where it is the embedding."""
        self._refuse_missing()
        return 0 if self.tied_embeddings else self.hidden * (self.vocabulary or 0)

    @property
    def shared_weights(self) -> int:
        return len(self.moe_layer_ids) * self.shared_experts * self.slices * self.hidden * self.shared_ffn

    @property
    def routed_weights(self) -> int:
        return len(self.moe_layer_ids) * self.experts * self.slices * self.slice_weights

    @property
    def all_weights(self) -> int:
        """The model's parameters, but for norms, biases and heads of multi-token prediction."""
        shared, routed = self.shared_weights, self.routed_weights
        return self.attention_weights + self.dense_weights + self.embedding_weights + shared + routed

    @property
    def active_weights(self) -> int:
        """Parameters that a token uses: without experts it is not routed to and without the embedding (a tied one
        counts as the output layer); among zero experts, routing is taken to be even.
        """
        used = Fraction(self.top_k, self.experts + self.zero_experts)
        whole = self.all_weights - self.routed_weights - self.input_weights
        tied = self.hidden * (self.vocabulary or 0) if self.tied_embeddings else 0
        return whole + tied + int(self.routed_weights * used)

    @property
    def _attention(self) -> tuple[AttentionKind, ...]:
        if self.attention is None:
            raise errors.SpecError(f"{self.name}: without `attention:` its KV cache and attention weights are unknown")
        return self.attention

    def _refuse_missing(self) -> None:
        if self.missing_geometry:
            raise errors.SpecError(f"{self.name}: the model lacks {', '.join(self.missing_geometry)}")
