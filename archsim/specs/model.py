"""The MoE model: the shape of its expert layers. Attention and dense layers are not modelled."""

from pydantic import Field, ValidationInfo, field_validator

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
