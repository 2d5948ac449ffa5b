"""Tokens from which iterations draw their experts: routing of a recorded trace or of generated traffic.

Prompt tokens and decoded ones are kept apart, in order of their decode step, so that popularity that drifts in the
traffic drifts while serving: the i-th draw begins at decode step i, and takes as many consecutive tokens as it needs,
from the beginning again after the last.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from archsim.base.errors import TraceError
from archsim.specs.model import ModelSpec
from archsim.specs.serving import RoutingSpec
from archsim.workload import open_trace
from archsim.workload.trace import TokenSource, draw_requests, some_layers
from archsim.workload.traffic_presets import generated_traffic

MOST_PROMPT_TOKENS = 65_536  # kept of the prefill


class TokenPool(NamedTuple):
    """``prompts``, ``decodes``: int16[token, layer, k]; ``starts``: int64[step], where the tokens of a decode step
    begin. ``layer_ids``: int32[layer], the model's numbers. ``label``: whose routing it is.
    """

    prompts: np.ndarray
    decodes: np.ndarray
    starts: np.ndarray
    layer_ids: np.ndarray
    label: str

    def draw(self, tokens: int, prompt: bool, turn: int) -> np.ndarray:
        """int16[tokens, layer, k]: what so many consecutive tokens chose; ``turn``: the draw before had one less."""
        pool = self.prompts if prompt else self.decodes
        first = int(self.starts[turn % len(self.starts)]) * len(pool) // len(self.decodes)
        return pool[(first + np.arange(tokens)) % len(pool)]


def token_pool(model: ModelSpec, spec: RoutingSpec, trace: Path | None) -> TokenPool:
    """The pool of a model. Raises TraceError for routing of another model, or without a token."""
    layers = min(spec.layers, len(model.moe_layer_ids))
    if trace is not None:
        source: TokenSource = some_layers(open_trace(str(trace), model), layers)
    else:
        source = generated_traffic(model, spec.generated, spec.requests, layers)
    prompts, decodes = [], []
    kept = 0
    for piece in source.steps(draw_requests(source.requests, spec.requests, spec.seed), spec.steps):
        if piece.iteration:
            decodes.append((piece.iteration, piece.experts))
        elif kept < MOST_PROMPT_TOKENS:
            prompts.append(piece.experts[: MOST_PROMPT_TOKENS - kept])
            kept += len(prompts[-1])
    if not decodes and not prompts:
        raise TraceError(f"routing: {source.label} has no tokens")
    decoded = np.concatenate([experts for _, experts in decodes]) if decodes else np.concatenate(prompts)
    steps = np.repeat([step for step, _ in decodes], [len(experts) for _, experts in decodes])
    starts = np.unique(steps, return_index=True)[1] if decodes else np.zeros(1, np.int64)
    asked = np.concatenate(prompts) if prompts else decoded
    return TokenPool(asked, decoded, starts, source.layer_ids, source.label)
