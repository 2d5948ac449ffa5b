"""Design-space exploration: which machines no other beats, found with few runs of the event engine."""
