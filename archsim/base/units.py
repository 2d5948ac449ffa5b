"""Nanoseconds of other units of time."""

NS_PER_S, NS_PER_MS, NS_PER_US = 1e9, 1e6, 1e3
