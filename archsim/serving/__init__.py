"""Requests over time: arrivals, scheduler, KV blocks and the clock of serving engines (docs/serving.md)."""
