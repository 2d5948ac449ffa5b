"""The analytical engine: plans, caches and copies as in the event engine; time from bookings and bounds."""
