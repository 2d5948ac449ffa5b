"""The MoE model: the shape of its expert layers; and of attention, dense layers and embeddings, which take memory."""

from pydantic import Field, ValidationInfo, field_validator

from archsim.base.errors import SpecError
from archsim.specs.attention import AttentionSpec
from archsim.specs.text.fields import Name, Spec, count

SLICES = 3  # of an expert's weights: gate, up and down matrix


class MoeLayers(Spec):
    """Which layers are MoE: ``first``, ``first + every``, … up to ``last``; layer ids start at 0."""

    first: count(0, 9999)
    last: count(0, 9999)
    every: count(1, 9999) = 1

    @field_validator("last")
    @classmethod
    def _not_before_first(cls, last: int, info: ValidationInfo) -> int:
        first = info.data.get("first", 0)
        if last < first:
            raise ValueError(f"last MoE layer {last} is before the first, {first}")
        return last


class ModelSpec(Spec):
    """Shape of a mixture-of-experts model. An expert is three slices (gate, up, down) of hidden × expert_ffn weights.
    """

    name: Name
    source: str = Field(min_length=1)
    # Other names of the model that traces may use.
    aliases: tuple[str, ...] = ()
    layers: count(1, 10000)
    moe_layers: MoeLayers
    hidden: count(1, 1_000_000)
    expert_ffn: count(1, 1_000_000)
    # Expert ids are int16 in traces.
    experts: count(1, 32767)
    top_k: count(1, 32767)
    # A router limited to the experts of top_groups of the expert_groups groups, which are of equal size, in order of id
    # (DeepSeek-V3, arXiv 2412.19437, section 2.1.2); 1 and 1: not limited.
    expert_groups: count(1, 32767) = 1
    top_groups: count(1, 32767) = 1
    shared_experts: count(0, 1024) = 0
    # FFN width of one shared expert.
    shared_ffn: count(1, 1_000_000) = Field(default_factory=lambda given: given["expert_ffn"])
    # Null: unknown, as for a model without these keys; what they would hold in memory is then not counted.
    attention: AttentionSpec | None = None
    # FFN width of the layers without experts; needed if there are any.
    dense_ffn: count(1, 1_000_000, none=True) = None
    # Rows of the embedding, and of the output layer unless both are one matrix.
    vocabulary: count(1, 100_000_000, none=True) = None
    tied_embeddings: bool = False

    @field_validator("moe_layers")
    @classmethod
    def _within_layers(cls, moe_layers: MoeLayers, info: ValidationInfo) -> MoeLayers:
        layers = info.data.get("layers")
        if layers is not None and moe_layers.last >= layers:
            raise ValueError(
                f"last MoE layer {moe_layers.last} is out of range; a model of {layers} layers has 0 to {layers - 1}"
            )
        return moe_layers

    @field_validator("top_k")
    @classmethod
    def _within_experts(cls, top_k: int, info: ValidationInfo) -> int:
        experts = info.data.get("experts")
        if experts is not None and top_k > experts:
            raise ValueError(f"{top_k} experts per token exceed the model's {experts} experts")
        return top_k

    @field_validator("top_groups")
    @classmethod
    def _within_groups(cls, top_groups: int, info: ValidationInfo) -> int:
        groups, experts, top_k = (info.data.get(name, 1) for name in ("expert_groups", "experts", "top_k"))
        if top_groups > groups or experts % groups or top_groups * (experts // groups) < top_k:
            raise ValueError(
                f"{top_groups} of {groups} groups of {experts} experts: expected equal groups, at least as many "
                f"as are taken, with at least {top_k} experts (top_k) in those taken"
            )
        return top_groups

    @property
    def moe_layer_ids(self) -> tuple[int, ...]:
        return tuple(range(self.moe_layers.first, self.moe_layers.last + 1, self.moe_layers.every))

    @property
    def slice_weights(self) -> int:
        """Number of weights in one of an expert's three matrices."""
        return self.hidden * self.expert_ffn

    @property
    def dense_layers(self) -> int:
        """Number of layers that have one FFN instead of experts."""
        return self.layers - len(self.moe_layer_ids)

    @property
    def missing_geometry(self) -> tuple[str, ...]:
        """The keys without which attention, dense layers and embeddings cannot be counted; none if they can."""
        needed = {"attention": self.attention, "vocabulary": self.vocabulary}
        if self.dense_layers:
            needed["dense_ffn"] = self.dense_ffn
        return tuple(key for key, value in needed.items() if value is None)

    def kv_bytes_per_token(self, value_bytes: int = 2) -> int:
        """KV cache of one token in all layers, at 2 bytes a value (BF16) unless said otherwise; windows are ignored.
        Raises SpecError without attention geometry, as all below.
        """
        return self.layers * self._attention.kv_width * value_bytes

    def kv_bytes(self, context: int, value_bytes: int = 2) -> int:
        """KV cache of a request of ``context`` tokens; layers with a window keep no more than that."""
        attention = self._attention
        return attention.kept_tokens(self.layers, context) * attention.kv_width * value_bytes

    @property
    def attention_weights(self) -> int:
        """Weights of attention in all layers."""
        return self.layers * self._attention.weights(self.hidden)

    @property
    def dense_weights(self) -> int:
        """Weights of the FFNs of layers without experts (three matrices), and of the routers (hidden × experts)."""
        self._refuse_missing()
        ffn = self.dense_layers * SLICES * self.hidden * (self.dense_ffn or 0)
        return ffn + len(self.moe_layer_ids) * self.hidden * self.experts

    @property
    def embedding_weights(self) -> int:
        """Weights of the embedding and of the output layer."""
        self._refuse_missing()
        return self.hidden * (self.vocabulary or 0) * (1 if self.tied_embeddings else 2)

    @property
    def shared_weights(self) -> int:
        """Weights of the shared experts of all layers."""
        return len(self.moe_layer_ids) * self.shared_experts * SLICES * self.hidden * self.shared_ffn

    @property
    def routed_weights(self) -> int:
        """Weights of the routed experts of all layers."""
        return len(self.moe_layer_ids) * self.experts * SLICES * self.slice_weights

    @property
    def all_weights(self) -> int:
        """The model's parameters, but for norms, biases and heads of multi-token prediction."""
        shared, routed = self.shared_weights, self.routed_weights
        return self.attention_weights + self.dense_weights + self.embedding_weights + shared + routed

    @property
    def _attention(self) -> AttentionSpec:
        if self.attention is None:
            raise SpecError(f"{self.name}: without `attention:` its KV cache and attention weights are unknown")
        return self.attention

    def _refuse_missing(self) -> None:
        if self.missing_geometry:
            raise SpecError(f"{self.name}: the model lacks {', '.join(self.missing_geometry)}")
