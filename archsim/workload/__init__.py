"""Routing traffic: recorded traces, generated traffic, and what a batch of it asks of the machine."""

from archsim.workload.formats.readers import open_trace
from archsim.workload.trace import StepTokens, TokenSource, Trace, draw_requests

__all__ = ["StepTokens", "TokenSource", "Trace", "draw_requests", "open_trace"]
