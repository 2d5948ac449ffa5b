"""Which experts do tokens choose, in recorded or generated traffic, and what does a batch ask of every expert?

Front: `trace.Trace`, `trace.draw_requests`, `formats.readers.open_trace`, `trace_store.open_store`,
    `traffic_presets.load_traffic`, `demand.BatchSum`, `step_demand.StepDemand`, `placements.PhysicalMap`,
    `synthetic.SyntheticTraffic`, `profile.insights`, `statistics.layer_statistics`.
Units and errors: Counts are tokens by [step, layer, expert]. A trace that cannot be read is a `TraceError` with its
    file.
Laws:
    INV-19. A batch is the sum of its requests (test_a_batch_is_the_sum_of_its_requests).
    INV-20. Origins sum to tokens (test_origins_sum_to_tokens).
    INV-21. Every format gives the same counts (test_every_format_gives_the_same_counts).
Journey: A folder of traces → `formats.readers.open_trace` → `trace.draw_requests` → `demand.BatchSum` → one
    `StepDemand` for each layer and step.
"""

from typing import Any

from archsim.traffic.trace import StepTokens, TokenSource, Trace, draw_requests

__all__ = ["StepTokens", "TokenSource", "Trace", "draw_requests", "open_trace"]


def __getattr__(name: str) -> Any:
    """``open_trace``, with the readers of all formats; a run without a recorded trace needs none of them."""
    if name != "open_trace":
        raise AttributeError(f"archsim.traffic has no {name!r}")
    from archsim.traffic.formats.readers import open_trace

    return open_trace
