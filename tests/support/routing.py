"""Small recorded routing, written out."""

import numpy as np

from archsim.traffic import Trace


def trace_of(requests, num_experts=4, prompt=1):
    """A trace from [request][token][layer][rank]; the first `prompt` tokens of each are prefill."""
    experts = np.array([token for request in requests for token in request], np.int16)
    lengths = [len(request) for request in requests]
    iteration = np.concatenate([np.maximum(np.arange(length) - prompt + 1, 0) for length in lengths])
    return Trace(
        experts=experts,
        request_offsets=np.concatenate([[0], np.cumsum(lengths)]),
        iteration=iteration.astype(np.int16),
        layer_ids=np.arange(experts.shape[1], dtype=np.int32),
        num_experts=num_experts,
        top_k=experts.shape[2],
        model="",
        source="",
        request_subject=np.zeros(len(requests), np.int16),
        subject_names=("all",),
    )
