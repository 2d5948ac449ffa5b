"""The attention of a model: the shape of its heads, its weights, and what a token leaves in the KV cache."""

from pydantic import model_validator

from archsim.specs.text.fields import KeyProblem, Spec, count

_HEADS = ("kv_heads", "head_dim")
_LATENT = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_DIMENSION = count(1, 1_000_000, none=True)


class AttentionSpec(Spec):
    """One of two kinds: grouped heads (``kv_heads``, ``head_dim``), of which multi-head attention is the case of as
    many KV heads as heads; or multi-head latent attention (MLA; arXiv 2405.04434, section 2.1), given by its ranks.
    """

    heads: count(1, 65_536)
    # Grouped heads.
    kv_heads: count(1, 65_536, none=True) = None
    head_dim: _DIMENSION = None
    # MLA. A query is projected from the hidden vector through this rank; null: directly.
    q_lora_rank: _DIMENSION = None
    # What the cache holds of a token and layer: a latent vector of this size, and one rotated key of qk_rope_head_dim.
    kv_lora_rank: _DIMENSION = None
    qk_nope_head_dim: _DIMENSION = None
    qk_rope_head_dim: _DIMENSION = None
    v_head_dim: _DIMENSION = None
    # Every full_every-th layer attends to all tokens; the others keep the last `window` tokens of a request.
    window: count(1, 1_000_000_000, none=True) = None
    full_every: count(1, 10_000, none=True) = None

    @model_validator(mode="after")
    def _of_one_kind(self) -> "AttentionSpec":
        latent = any(getattr(self, key) is not None for key in (*_LATENT, "q_lora_rank"))
        needed, other = (_LATENT, _HEADS) if latent else (_HEADS, ())
        for key in needed:
            if getattr(self, key) is None:
                kind = "latent attention" if latent else "attention of grouped heads"
                raise KeyProblem((key,), f"required key is missing: {kind} needs {', '.join(needed)}")
        for key in other:
            if getattr(self, key) is not None:
                raise KeyProblem((key,), "is of grouped heads; latent attention has ranks instead")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise KeyProblem(("kv_heads",), f"{self.kv_heads} KV heads do not divide {self.heads} heads")
        if (self.window is None) != (self.full_every is None):
            raise KeyProblem(("window",), "window and full_every belong together; give both, or neither")
        return self

    @property
    def kv_width(self) -> int:
        """Values that the cache keeps of a token in one layer: a key and a value per KV head; of MLA, the latent
        vector and the rotated key, which all heads share.
        """
        if self.kv_lora_rank is not None:
            return self.kv_lora_rank + (self.qk_rope_head_dim or 0)
        return 2 * (self.kv_heads or 0) * (self.head_dim or 0)

    def weights(self, hidden: int) -> int:
        """Weights of one layer: the projections of queries, keys and values, and of the output. Norms, biases and sinks
        are left out (below 0.1 %).
        """
        if self.kv_lora_rank is not None:
            return self._latent_weights(hidden, self.kv_lora_rank)
        queries, keys = self.heads * (self.head_dim or 0), (self.kv_heads or 0) * (self.head_dim or 0)
        return hidden * (2 * queries + 2 * keys)

    def _latent_weights(self, hidden: int, rank: int) -> int:
        nope, rope, value = self.qk_nope_head_dim or 0, self.qk_rope_head_dim or 0, self.v_head_dim or 0
        queries = self.heads * (nope + rope)
        down = hidden * (rank + rope)
        up = rank * self.heads * (nope + value)
        into = hidden * queries if self.q_lora_rank is None else self.q_lora_rank * (hidden + queries)
        return into + down + up + self.heads * value * hidden

    def kept_tokens(self, layers: int, context: int) -> int:
        """Tokens of a request that the cache keeps, summed over the layers."""
        if self.window is None or self.full_every is None:
            return layers * context
        full = layers // self.full_every
        return full * context + (layers - full) * min(context, self.window)
