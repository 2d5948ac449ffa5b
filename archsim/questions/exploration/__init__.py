"""Design-space exploration: find the Pareto-optimal designs with few runs of the event engine."""
