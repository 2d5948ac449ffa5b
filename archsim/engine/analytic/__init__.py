"""The analytical engine: the same plans, caches and copies as the event engine, and time from bookings and bounds."""
