"""Design-space exploration: which designs are Pareto-optimal, found with few runs of the event engine."""
