"""Routing traffic: recorded traces, generated traffic, and the demand of a batch."""

from archsim.workload.formats.readers import open_trace
from archsim.workload.trace import StepTokens, TokenSource, Trace, draw_requests

__all__ = ["StepTokens", "TokenSource", "Trace", "draw_requests", "open_trace"]
