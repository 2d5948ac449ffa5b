"""Routing traffic: recorded traces, generated traffic, and the demand of a batch."""

from typing import Any

from archsim.workload.trace import StepTokens, TokenSource, Trace, draw_requests

__all__ = ["StepTokens", "TokenSource", "Trace", "draw_requests", "open_trace"]


def __getattr__(name: str) -> Any:
    """``open_trace``, with the readers of all formats; a run without a recorded trace needs none of them."""
    if name != "open_trace":
        raise AttributeError(f"archsim.workload has no {name!r}")
    from archsim.workload.formats.readers import open_trace

    return open_trace
